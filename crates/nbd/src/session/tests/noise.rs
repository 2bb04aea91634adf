//! Conversations of chance: cut anywhere, with bytes changed, and with options and requests nobody agreed on.

use super::*;

/// A conversation that touches everything, ending in transmission.
fn conversation(structured: bool, requests: &[(u16, u16, u64, u32)]) -> Vec<u8> {
    let mut bytes = FLAGS.to_vec();
    bytes.extend_from_slice(&option(3, &[]));
    bytes.extend_from_slice(&option(99, &[1, 2, 3]));
    if structured {
        bytes.extend_from_slice(&option(8, &[]));
        bytes.extend_from_slice(&option(10, &queries("tank/vm1", &["base:allocation"])));
    }
    bytes.extend_from_slice(&option(7, &go("tank/vm1", &[1, 2, 3])));
    for (cookie, (flags, command, offset, len)) in requests.iter().enumerate() {
        bytes.extend_from_slice(&request(*flags, *command, cookie as u64, *offset, *len));
        if *command == 1 {
            bytes.extend((0..*len).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8 ^ (cookie as u8)));
        }
    }
    bytes
}

fn requests() -> impl Strategy<Value = Vec<(u16, u16, u64, u32)>> {
    let flags = prop_oneof![8 => Just(0_u16), 1 => 0_u16..64];
    let offset = prop_oneof![4 => 0..SIZE + 100, 1 => Just(0)];
    // Some writes are long enough to be received straight into their buffers.
    let len = prop_oneof![6 => 0_u32..20_000, 1 => 30_000..SIZE as u32];
    let one = (flags, prop_oneof![Just(0_u16), Just(1), 3_u16..9], offset, len);
    // What came of them is looked at in the end.
    proptest::collection::vec(one, 0..20).prop_map(|mut requests| {
        requests.push((0, 0, 0, SIZE as u32));
        requests
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn however_the_stream_is_split_the_same_is_said(
        structured: bool,
        requests in requests(),
        splits in proptest::collection::vec(1_usize..6000, 1..50),
    ) {
        let input = conversation(structured, &requests);
        let mut whole = Talk::new(exports().0);
        whole.hear(&input);
        let mut split = Talk::new(exports().0);
        let mut rest = input.as_slice();
        for step in splits.iter().cycle() {
            if rest.is_empty() { break; }
            let (now, later) = rest.split_at((*step).min(rest.len()));
            split.hear(now);
            rest = later;
        }
        prop_assert_eq!(&whole.error, &None);
        prop_assert_eq!(whole.error, split.error);
        prop_assert!(whole.said == split.said);
    }

    #[test]
    fn no_bytes_make_it_panic_or_hoard(
        structured: bool,
        requests in requests(),
        noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        tail in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut input = conversation(structured, &requests);
        for (at, byte) in noise {
            let at = at.index(input.len());
            input[at] = byte;
        }
        input.extend_from_slice(&tail);
        let mut talk = Talk::new(exports().0);
        talk.hear(&input);
        prop_assert!(talk.session.rx.capacity() <= 2 * RX);
        prop_assert!(talk.session.held() <= MAX_PAYLOAD as usize);
    }

    #[test]
    fn random_options_and_extended_requests_do_no_harm(
        kind in 0_u32..13,
        data in proptest::collection::vec(any::<u8>(), 0..100),
        flags: u16, command in 0_u16..10, offset: u64, len: u64,
        small: bool,
        tail in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut talk = hello(exports().0);
        talk.hear(&cat(&[&option(kind, &data), &tail]));
        let mut talk = in_transmission(exports().0, "tank/vm1", EXTENDED);
        let (offset, len) = if small { (offset % SIZE, len % SIZE) } else { (offset, len) };
        talk.hear(&cat(&[&request_ext(flags, command, 1, offset, len), &tail]));
        prop_assert!(talk.session.held() <= MAX_PAYLOAD as usize);
    }
}
