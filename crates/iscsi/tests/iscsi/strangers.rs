//! Thousands of inputs that nearly make sense, through every protocol core without I/O: nothing may panic, hang, or
//! pile up. The bodies are those of the libFuzzer targets (`fuzz/protocols.rs`).
//!
//! Each input is derived from one number, so that a failure prints what replays it:
//! `MILLPOND_FUZZ_SEED=… MILLPOND_FUZZ_ITERATIONS=1`. The default is a short dose.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may fail loudly")]

#[path = "../../../../fuzz/protocols.rs"]
mod protocols;

use fixtures::dice::{self, Dice};

/// Inputs for each body without `MILLPOND_FUZZ_ITERATIONS`.
const SHORT_DOSE: u64 = 3000;

/// A number that is often small, and sometimes at an edge.
fn number(dice: &mut Dice) -> u32 {
    match dice.below(8) {
        0 => u32::MAX,
        1 => 0x8000_0000,
        2 => 2048,
        3 => dice.roll() as u32,
        _ => dice.below(40) as u32,
    }
}

const OPCODES: [u8; 30] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x25, 0x28, 0x2a, 0x2e, 0x2f, 0x35, 0x41, 0x42,
    0x4d, 0x5a, 0x5e, 0x5f, 0x83, 0x83, 0x84, 0x88, 0x89, 0x8a, 0x8b, 0x93, 0xa3,
];

fn cdb(dice: &mut Dice) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = if dice.below(20) == 0 { dice.roll() as u8 } else { dice.pick(&OPCODES) };
    cdb[1] = dice.pick(&[0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0x10, 0x11, 0x12, 0x1c]);
    for at in (2..14).step_by(4) {
        let bytes = if dice.below(3) == 0 { number(dice) } else { dice.below(30) as u32 }.to_be_bytes();
        cdb[at..at + 4].copy_from_slice(&bytes);
    }
    cdb
}

/// Parameter lists, or something like them.
fn payload(dice: &mut Dice) -> Vec<u8> {
    let len = dice.pick(&[0, 8, 24, 24, 24, 52, 76, 512, 512, 1024, 1096]);
    let mut data: Vec<u8> =
        (0..len).map(|_| if dice.below(4) == 0 { dice.roll() as u8 } else { 0 }).collect();
    if len == 76 {
        data[..16].copy_from_slice(&[1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0]);
        (data[16], data[20], data[21], data[23], data[48], data[51]) = (0xe4, 1, 3, 16, 2, 24);
    }
    if len == 52 {
        data[20] = 8;
        data[24..32].copy_from_slice(&[0, 0, 0, 24, 0x45, 0, 0, 20]);
        data[32..].copy_from_slice(b"iqn.x,i,0x0000000001");
    }
    data
}

fn scsi_commands(dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..dice.below(30) {
        let data = payload(dice);
        // Where a command says how long its list is, it is often right.
        let mut cdb = cdb(dice);
        if dice.below(3) > 0 {
            cdb[8] = data.len() as u8;
            cdb[7] = (data.len() >> 8) as u8;
            cdb[12..14].copy_from_slice(&(data.len() as u16).to_be_bytes());
        }
        out.push(dice.roll() as u8 & if dice.below(8) == 0 { 3 } else { 1 });
        out.extend(cdb);
        out.extend((data.len() as u16).to_be_bytes());
        out.extend(data);
    }
    out
}

fn pdu(opcode: u8, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 48];
    (out[0], out[1]) = (opcode, flags);
    out[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    out.extend(data);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn iscsi_login(dice: &mut Dice) -> Vec<u8> {
    let words: [&[u8]; 20] = [
        b"InitiatorName=iqn.a\0",
        b"TargetName=iqn.fuzz\0",
        b"TargetName=iqn.fuzz:secured\0",
        b"SessionType=Discovery\0",
        b"AuthMethod=CHAP,None\0",
        b"AuthMethod=None\0",
        b"CHAP_A=5,7\0",
        b"CHAP_N=host\0",
        b"CHAP_R=0x00\0",
        b"CHAP_I=1\0",
        b"CHAP_C=0bAAAA\0",
        b"HeaderDigest=CRC32C,None\0",
        b"MaxBurstLength=512\0",
        b"FirstBurstLength=0xffffff\0",
        b"MaxRecvDataSegmentLength=512\0",
        b"X-unheard=of\0",
        b"=\0",
        b"\xff\0",
        b"InitialR2T=",
        b"\0\0\0",
    ];
    let mut out = Vec::new();
    for round in 0..=dice.below(6) {
        let mut text = Vec::new();
        if round == 0 {
            text.extend(words[0]);
            let target = dice.pick(&[1, 2]);
            text.extend(words[target]);
        }
        for _ in 0..dice.below(6) {
            text.extend(dice.pick(&words));
        }
        let flags = dice.pick(&[0x87, 0x81, 0x00, 0x83, 0x04, 0x40, 0x8b, 0xff]);
        out.extend(pdu(0x43, flags, &text));
    }
    out
}

fn iscsi_session(dice: &mut Dice) -> Vec<u8> {
    let mut out = vec![dice.pick(&[0, 2, 7, 0xfe]) & if dice.below(4) == 0 { 0xff } else { 0xfe }];
    let mut cmd_sn = 1_u32;
    for _ in 0..dice.below(40) {
        let data = payload(dice);
        let opcode = dice.pick(&[0x01, 0x01, 0x01, 0x01, 0x02, 0x05, 0x05, 0x00, 0x04, 0x06, 0x10, 0x3f]);
        let immediate = if dice.below(5) == 0 { 0x40 } else { 0 };
        let data = if dice.below(2) == 0 { data } else { Vec::new() };
        let mut pdu = pdu(
            opcode | immediate,
            dice.pick(&[0x81, 0xc1, 0xa1, 0x21, 0x80, 0x00, 0x85, 0x84, 0xe1]),
            &data,
        );
        pdu[9] = dice.pick(&[0, 0, 0, 3, 1]);
        pdu[16..20].copy_from_slice(&(dice.below(12) as u32).to_be_bytes());
        pdu[20..24].copy_from_slice(&if dice.below(2) == 0 { u32::MAX } else { number(dice) }.to_be_bytes());
        let sn = if dice.below(12) == 0 { number(dice) } else { cmd_sn };
        pdu[24..28].copy_from_slice(&sn.to_be_bytes());
        if opcode == 0x01 {
            pdu[20..24].copy_from_slice(&(data.len() as u32).to_be_bytes());
            pdu[32..48].copy_from_slice(&cdb(dice));
        } else if opcode == 0x05 {
            pdu[40..44].copy_from_slice(&(dice.pick(&[0_u32, 0, 512, 1])).to_be_bytes());
        }
        if immediate == 0 && opcode != 0x05 && sn == cmd_sn {
            cmd_sn += 1;
        }
        out.extend(pdu);
    }
    out
}

#[test]
fn no_stranger_breaks_a_protocol_core() {
    dice::throw(protocols::TARGETS, &[scsi_commands, iscsi_login, iscsi_session], SHORT_DOSE);
}
