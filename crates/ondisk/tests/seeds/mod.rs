//! The structures in `tests/vectors/seeds.txt`: taken from pools of the OpenZFS kernel module and stress tester.

/// `name hex` lines; `{n}` is a run of n zero bytes.
pub(crate) fn real_structures() -> Vec<(String, Vec<u8>)> {
    let text = include_str!("../vectors/seeds.txt");
    let parse = |line: &str| {
        let (name, hex) = line.split_once(' ').unwrap();
        let (mut bytes, mut rest) = (Vec::new(), hex);
        while !rest.is_empty() {
            if let Some(run) = rest.strip_prefix('{') {
                let (zeros, after) = run.split_once('}').unwrap();
                bytes.resize(bytes.len() + zeros.parse::<usize>().unwrap(), 0);
                rest = after;
            } else {
                bytes.push(u8::from_str_radix(&rest[..2], 16).unwrap());
                rest = &rest[2..];
            }
        }
        (name.to_owned(), bytes)
    };
    text.lines().filter(|line| !line.starts_with('#')).map(parse).collect()
}
