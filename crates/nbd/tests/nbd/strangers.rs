//! Thousands of conversations that nearly make sense, through the protocol core without a socket: nothing may panic, hang,
//! or pile up. The bodies are those of the libFuzzer targets (`fuzz/nbd.rs`), which say what else is promised.
//!
//! Each input is derived from one number, so that a failure prints what replays it:
//! `MILLPOND_FUZZ_SEED=… MILLPOND_FUZZ_ITERATIONS=1`. The default is a short dose.

#[path = "../../../../fuzz/nbd.rs"]
mod bodies;

use fixtures::dice::{self, Dice};

/// Inputs for each body without `MILLPOND_FUZZ_ITERATIONS`.
const SHORT_DOSE: u64 = 3000;

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

fn export(dice: &mut Dice) -> Vec<u8> {
    match dice.below(8) {
        0 => vec![b'x'; dice.pick(&[0, 1, 4096, 4097, 20_000])],
        1 => vec![0xff; 5],
        2 => b"tank/fuzz@monday".to_vec(),
        _ => b"tank/fuzz".to_vec(),
    }
}

/// An option, or something like one.
fn option(dice: &mut Dice) -> Vec<u8> {
    let kind = if dice.once_in(20) {
        dice.roll() as u32
    } else {
        dice.pick(&[1, 2, 3, 3, 5, 6, 7, 8, 9, 10, 10, 11])
    };
    let name = export(dice);
    let mut data = match kind {
        1 => name,
        6 | 7 => {
            let count = dice.below(6);
            let mut data = string(&name);
            data.extend((count as u16).to_be_bytes());
            (0..count).for_each(|_| data.extend((dice.below(5) as u16).to_be_bytes()));
            data
        }
        9 | 10 => {
            let texts: [&[u8]; 5] =
                [b"base:allocation", b"base:", b"qemu:dirty-bitmap:x", b"nothing", b"\xff:"];
            let count = dice.pick(&[0, 1, 1, 3, 400]);
            let mut data = string(&name);
            data.extend((count as u32).to_be_bytes());
            (0..count).for_each(|_| data.extend(string(dice.pick(&texts))));
            data
        }
        _ if dice.once_in(6) => vec![7; dice.pick(&[1, 100, 32 << 10, (32 << 10) + 1, 200_000])],
        _ => Vec::new(),
    };
    if dice.once_in(30) {
        data.truncate(dice.below(data.len() + 1));
    }
    let len = if dice.once_in(40) { dice.roll() as u32 } else { data.len() as u32 };
    [&b"IHAVEOPT"[..], &kind.to_be_bytes(), &len.to_be_bytes(), &data].concat()
}

fn handshake(dice: &mut Dice) -> Vec<u8> {
    let mut out = vec![dice.roll() as u8];
    out.extend(if dice.once_in(30) { dice.roll() as u32 } else { dice.below(4) as u32 }.to_be_bytes());
    for _ in 0..dice.below(30) {
        out.extend(option(dice));
    }
    if dice.once_in(10) {
        (0..dice.below(200)).for_each(|_| out.extend(b"IHAVEOPT\0\0\0\x03\0\0\0\0"));
    }
    out
}

fn session(dice: &mut Dice) -> Vec<u8> {
    let mode = dice.roll() as u8;
    let is_extended = mode & 3 == 2;
    let mut out = vec![mode];
    for cookie in 0..dice.below(40) as u64 {
        let command =
            if dice.once_in(30) { dice.roll() as u16 } else { dice.pick(&[0, 0, 0, 1, 1, 3, 4, 5, 6, 7]) };
        let command = if dice.once_in(60) { 2 } else { command };
        let offset = match dice.below(8) {
            0 => dice.roll(),
            1 => (1 << 20) - dice.below(5000) as u64,
            _ => dice.below(1 << 20) as u64,
        };
        let len = match dice.below(12) {
            0 => dice.roll() & if is_extended { u64::MAX } else { u64::from(u32::MAX) },
            1 => 1 << 20,
            2 => 300 << 10,
            _ => dice.below(9000) as u64,
        };
        let mut flags = if dice.once_in(5) { 1_u16 << dice.below(7) } else { 0 };
        if is_extended && command == 1 && !dice.once_in(10) {
            flags |= 1 << 5;
        }
        let (offset, len) = if command == 3 { (0, 0) } else { (offset, len) };
        out.extend(if is_extended { 0x21e4_1c71_u32 } else { 0x2560_9513 }.to_be_bytes());
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        if is_extended {
            out.extend(len.to_be_bytes())
        } else {
            out.extend((len as u32).to_be_bytes())
        }
        let has_payload = if is_extended { flags & (1 << 5) != 0 } else { command == 1 };
        // What is announced comes, unless it is too much to be made up here.
        if has_payload && len <= 2 << 20 {
            out.resize(out.len() + len as usize, cookie as u8);
        }
    }
    out
}

#[test]
fn no_stranger_breaks_the_protocol_core() {
    dice::throw(bodies::TARGETS, &[handshake, session], SHORT_DOSE);
}
