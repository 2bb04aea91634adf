//! The core byte by byte, with a volume in memory behind it and no socket in front.

use std::task::Waker;

use block::{BlockVolume, Extent, MemVolume, VolumeError};
use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::{export::Registry, proto::*};

const SIZE: u64 = 64 << 10;

/// The exports of most tests: `tank/vm1` (4 KiB blocks; the second is data, the rest holes) and a snapshot.
fn exports() -> (Arc<Registry>, Arc<MemVolume>) {
    let volume = Arc::new(MemVolume::new("tank/vm1", SIZE, 4096));
    write(&*volume, 4096, &[0xaa; 4096]);
    let snapshot = Arc::new(MemVolume::new("tank/vm1@monday", SIZE, 4096).read_only());
    let registry = Arc::new(Registry::new());
    registry.insert("tank/vm1", "a disk", volume.clone()).unwrap();
    registry.insert("tank/vm1@monday", "", snapshot).unwrap();
    (registry, volume)
}

fn write(volume: &dyn BlockVolume, offset: u64, data: &[u8]) {
    let segments = std::iter::once(Segment::Data(Bytes::copy_from_slice(data))).collect();
    volume.write(offset, segments, Durability::Cached).now_or_never().unwrap().unwrap();
}

fn serve(volume: &dyn BlockVolume, op: Op) -> Result<Outcome, NbdError> {
    let unit = |f: block::VolumeFuture<'_, ()>| f.now_or_never().unwrap().map(|()| Outcome::Done);
    Ok(match op {
        Op::Read { offset, len } => volume.read(offset, len).now_or_never().unwrap().map(Outcome::Data),
        Op::BlockStatus { offset, len, max_extents } => {
            volume.extents(offset, len, max_extents).now_or_never().unwrap().map(Outcome::Extents)
        }
        Op::Write { offset, data, durability } => unit(volume.write(offset, data, durability)),
        Op::WriteZeroes { offset, len, allocate, durability } => {
            unit(volume.write_zeroes(offset, len, allocate, durability))
        }
        Op::Trim { offset, len, durability } => unit(volume.unmap(offset, len, durability)),
        Op::Flush => unit(volume.flush()),
        Op::Cache { .. } => Ok(Outcome::Done),
    }?)
}

/// A session, and all it said.
struct Talk {
    session: Session,
    said: Vec<u8>,
    error: Option<ProtocolError>,
}

impl Talk {
    fn new(exports: Arc<dyn Exports>) -> Self {
        let session = Session::new(exports, Limits::default(), Gate::new(1 << 30));
        Self { session, said: Vec::new(), error: None }
    }

    /// Serves all that can be served.
    fn settle(&mut self) {
        while self.error.is_none() {
            match self.session.poll_request() {
                Ok(Some(Request { op, tag })) => {
                    let volume = Arc::clone(&self.session.export().unwrap().volume);
                    self.session.complete(tag, serve(&*volume, op));
                }
                Ok(None) => {
                    let waiting = self.session.output_len();
                    while let Some(bytes) = self.session.poll_transmit() {
                        self.said.extend_from_slice(&bytes);
                    }
                    if waiting == 0 {
                        break;
                    }
                }
                Err(error) => self.error = Some(error),
            }
        }
    }

    fn hear(&mut self, mut bytes: &[u8]) {
        self.settle();
        while !bytes.is_empty() && self.error.is_none() && self.session.phase() != Phase::Leaving {
            let n = self.session.handle_bytes(bytes);
            assert!(n > 0, "everything was served and sent, so bytes are welcome");
            bytes = &bytes[n..];
            self.settle();
        }
    }

    /// What is said in answer to these bytes.
    fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.settle();
        self.said.clear();
        self.hear(bytes);
        assert_eq!(self.error, None);
        std::mem::take(&mut self.said)
    }
}

fn cat(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    cat(&[b"IHAVEOPT", &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data])
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    cat(&[
        &0x0003_e889_0455_65a9_u64.to_be_bytes(),
        &option.to_be_bytes(),
        &kind.to_be_bytes(),
        &(data.len() as u32).to_be_bytes(),
        data,
    ])
}

/// `answer` for errors, whose text is not compared.
fn error_code(reply: &[u8]) -> u32 {
    assert_eq!(reply[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
    assert_eq!(reply.len(), 20 + u32::from_be_bytes(reply[16..20].try_into().unwrap()) as usize);
    u32::from_be_bytes(reply[12..16].try_into().unwrap())
}

fn name(text: &str) -> Vec<u8> {
    cat(&[&(text.len() as u32).to_be_bytes(), text.as_bytes()])
}

fn go(export: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = name(export);
    data.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    for info in infos {
        data.extend_from_slice(&info.to_be_bytes());
    }
    data
}

fn queries(export: &str, texts: &[&str]) -> Vec<u8> {
    let mut data = name(export);
    data.extend_from_slice(&(texts.len() as u32).to_be_bytes());
    for text in texts {
        data.extend_from_slice(&name(text));
    }
    data
}

fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    cat(&[
        &0x2560_9513_u32.to_be_bytes(),
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ])
}

fn request_ext(flags: u16, command: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    cat(&[
        &0x21e4_1c71_u32.to_be_bytes(),
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ])
}

fn simple(errno: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
    cat(&[&0x6744_6698_u32.to_be_bytes(), &errno.to_be_bytes(), &cookie.to_be_bytes(), data])
}

fn chunk(flags: u16, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
    cat(&[
        &0x668e_33ef_u32.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &(body.len() as u32).to_be_bytes(),
        body,
    ])
}

fn chunk_ext(flags: u16, kind: u16, cookie: u64, offset: u64, body: &[u8]) -> Vec<u8> {
    cat(&[
        &0x6e8a_278c_u32.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &(body.len() as u64).to_be_bytes(),
        body,
    ])
}

const FLAGS: &[u8] = &[0, 0, 0, 3];

/// A client that said hello.
fn hello(exports: Arc<dyn Exports>) -> Talk {
    let mut talk = Talk::new(exports);
    assert_eq!(talk.ask(FLAGS), b"");
    talk
}

fn in_transmission(exports: Arc<dyn Exports>, export: &str, options: &[u32]) -> Talk {
    let mut talk = hello(exports);
    for each in options {
        assert_eq!(talk.ask(&option(*each, &[])), answer(*each, 1, &[]));
    }
    if !options.is_empty() {
        let set = option(10, &queries(export, &["base:allocation"]));
        let context = cat(&[&1_u32.to_be_bytes(), b"base:allocation"]);
        assert_eq!(talk.ask(&set), cat(&[&answer(10, 4, &context), &answer(10, 1, &[])]));
    }
    talk.ask(&option(7, &go(export, &[])));
    assert_eq!(talk.session.phase(), Phase::Transmission);
    talk
}

const STRUCTURED: &[u32] = &[8];
const EXTENDED: &[u32] = &[11];

/// The error number of a one-chunk structured reply.
fn chunk_errno(reply: &[u8]) -> u32 {
    assert_eq!(reply[..4], 0x668e_33ef_u32.to_be_bytes());
    assert_eq!(reply.len(), 20 + u32::from_be_bytes(reply[16..20].try_into().unwrap()) as usize);
    assert!(reply[6] & 0x80 != 0, "not an error chunk");
    u32::from_be_bytes(reply[20..24].try_into().unwrap())
}

#[test]
fn the_server_speaks_first_and_offers_fixed_newstyle_without_zeroes() {
    let mut talk = Talk::new(exports().0);
    talk.settle();
    assert_eq!(talk.said, b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn go_tells_size_flags_block_sizes_and_what_was_asked_for() {
    let mut talk = hello(exports().0);
    let said = talk.ask(&option(7, &go("tank/vm1", &[1, 2, 99])));
    // has-flags, flush, fua, trim, write-zeroes, multi-conn, cache, fast-zero
    let flags = 0b1101_0110_1101_u16;
    let want = cat(&[
        &answer(7, 3, &cat(&[&[0, 0], &SIZE.to_be_bytes(), &flags.to_be_bytes()])),
        &answer(7, 3, &[0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]),
        &answer(7, 3, b"\x00\x01tank/vm1"),
        &answer(7, 3, b"\x00\x02a disk"),
        &answer(7, 1, &[]),
    ]);
    assert_eq!(said, want);
    assert_eq!(talk.session.phase(), Phase::Transmission);
}

#[test]
fn a_snapshot_is_read_only_and_df_comes_with_structured_replies() {
    let mut talk = hello(exports().0);
    talk.ask(&option(8, &[]));
    let said = talk.ask(&option(6, &go("tank/vm1@monday", &[])));
    // has-flags, read-only, flush, df, multi-conn, cache
    let flags = 0b0101_1000_0111_u16;
    assert_eq!(said[20 + 10..20 + 12], flags.to_be_bytes());
    assert_eq!(talk.session.phase(), Phase::Handshake, "INFO chooses nothing");
}

#[test]
fn export_name_pads_with_124_zeroes_unless_told_not_to() {
    for (client, padding) in [(1_u8, 124), (3, 0)] {
        let mut talk = Talk::new(exports().0);
        let said = talk.ask(&cat(&[&[0, 0, 0, client], &option(1, b"tank/vm1")]));
        assert_eq!(said.len(), 8 + 2 + padding);
        assert_eq!(said[..8], SIZE.to_be_bytes());
        assert!(said[10..].iter().all(|byte| *byte == 0));
        assert_eq!(talk.ask(&request(0, 0, 7, 4096, 2)), simple(0, 7, &[0xaa; 2]));
    }
}

#[test]
fn export_name_of_nothing_ends_the_connection() {
    let mut talk = hello(exports().0);
    talk.hear(&option(1, b"tank/vm9"));
    assert_eq!(talk.error, Some(ProtocolError::UnknownExport("tank/vm9".into())));
}

#[test]
fn a_client_without_fixed_newstyle_may_only_name_an_export() {
    let mut talk = Talk::new(exports().0);
    talk.hear(&cat(&[&[0, 0, 0, 0], &option(3, &[])]));
    assert_eq!(talk.error, Some(ProtocolError::NotFixed(3)));
}

#[test]
fn unknown_client_flags_and_bad_magic_end_the_connection() {
    let mut talk = Talk::new(exports().0);
    talk.hear(&[0, 0, 0, 7]);
    assert_eq!(talk.error, Some(ProtocolError::ClientFlags(7)));
    let mut talk = hello(exports().0);
    talk.hear(b"IHAVENOT\0\0\0\0\0\0\0\0");
    assert!(matches!(talk.error, Some(ProtocolError::OptionMagic(_))));
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    talk.hear(&[0x25; 28]);
    assert_eq!(talk.error, Some(ProtocolError::RequestMagic(0x2525_2525)));
}

#[test]
fn unknown_and_oversized_options_are_skipped_and_the_next_is_understood() {
    let mut talk = hello(exports().0);
    let said = talk.ask(&option(4242, b"whatever it says"));
    assert_eq!(error_code(&said), rep::ERR_UNSUP);
    let said = talk.ask(&option(5, &[]));
    assert_eq!(error_code(&said), rep::ERR_POLICY, "TLS is not offered");
    let said = talk.ask(&option(3, &vec![1; 300_000]));
    assert_eq!(error_code(&said), rep::ERR_TOO_BIG);
    let said = talk.ask(&option(3, &[]));
    let want = cat(&[
        &answer(3, 2, &cat(&[&name("tank/vm1"), b"a disk"])),
        &answer(3, 2, &name("tank/vm1@monday")),
        &answer(3, 1, &[]),
    ]);
    assert_eq!(said, want);
}

#[test]
fn without_tls_nothing_is_told_where_it_is_required_and_what_was_said_before_it_is_forgotten() {
    let mut talk = Talk::new(exports().0);
    talk.session.offer_tls(true);
    talk.hear(&[0, 0, 0, 3]);
    for number in [3, 6, 7, 8, 9, 10, 11, 4242] {
        let said = talk.ask(&option(number, &[]));
        assert_eq!(error_code(&said), rep::ERR_TLS_REQD, "option {number}");
    }
    assert_eq!(error_code(&talk.ask(&option(5, b"x"))), rep::ERR_INVALID);
    assert_eq!(talk.ask(&option(5, &[])), answer(5, 1, &[]));
    assert_eq!(talk.session.phase(), Phase::Securing);
    assert!(!talk.session.wants_bytes(), "what comes now is for TLS");
    talk.session.secured();
    assert_eq!(error_code(&talk.ask(&option(5, &[]))), rep::ERR_INVALID, "it is on already");
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]));

    // Structured replies that were agreed on in the clear are not agreed on any more.
    let mut talk = hello(exports().0);
    talk.session.offer_tls(false);
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]));
    assert_eq!(talk.ask(&option(5, &[])), answer(5, 1, &[]));
    talk.session.secured();
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]), "not ERR_INVALID: it was forgotten");

    // Nor is an export that was chosen without it, and there is no reply to say so.
    let mut talk = Talk::new(exports().0);
    talk.session.offer_tls(true);
    talk.hear(&[0, 0, 0, 3]);
    talk.hear(&option(1, b"tank/vm1"));
    assert_eq!(talk.error, Some(ProtocolError::NotSecured));
}

#[test]
fn bytes_in_the_clear_behind_starttls_end_the_connection() {
    let mut talk = hello(exports().0);
    talk.session.offer_tls(true);
    let injected = option(7, &cat(&[&name("tank/vm1"), &[0, 0]]));
    talk.hear(&cat(&[&option(5, &[]), &injected]));
    assert_eq!(talk.error, Some(ProtocolError::Injected(injected.len())));
}

#[test]
fn malformed_options_get_err_invalid_and_cost_nothing_else() {
    let mut talk = hello(exports().0);
    for (number, data) in [
        (3, b"x".to_vec()),
        (8, b"x".to_vec()),
        (11, b"x".to_vec()),
        (7, vec![]),
        (7, vec![0, 0, 0, 200, 1, 2]),
        (7, cat(&[&name("tank/vm1"), &[0, 2, 0, 1]])),
        (7, cat(&[&name("tank/vm1"), &[0, 0, 0]])),
        (6, cat(&[&[0, 0, 0, 1, 0xff], &[0, 0]])),
        (7, go(&"n".repeat(4097), &[])),
    ] {
        let said = talk.ask(&option(number, &data));
        assert_eq!(error_code(&said), rep::ERR_INVALID, "option {number} {data:?}");
    }
    assert_eq!(error_code(&talk.ask(&option(7, &go("nothing", &[])))), rep::ERR_UNKNOWN);
    assert_eq!(error_code(&talk.ask(&option(7, &go("", &[])))), rep::ERR_UNKNOWN, "two exports, no default");
}

#[test]
fn abort_is_acknowledged_and_ends_the_session() {
    let mut talk = hello(exports().0);
    assert_eq!(talk.ask(&option(2, &[])), answer(2, 1, &[]));
    assert_eq!(talk.session.phase(), Phase::Leaving);
    assert!(talk.session.is_idle());
}

#[test]
fn meta_contexts_come_after_structured_replies_and_only_base_allocation_exists() {
    let mut talk = hello(exports().0);
    let early = talk.ask(&option(10, &queries("tank/vm1", &["base:allocation"])));
    assert_eq!(error_code(&early), rep::ERR_INVALID);
    talk.ask(&option(8, &[]));
    let listed = cat(&[&answer(9, 4, b"\0\0\0\0base:allocation"), &answer(9, 1, &[])]);
    for texts in [&[][..], &["base:"], &["base:allocation"], &["x-other:thing", "base:allocation"]] {
        assert_eq!(talk.ask(&option(9, &queries("tank/vm1", texts))), listed, "{texts:?}");
    }
    for texts in [&["qemu:dirty-bitmap:b"][..], &["base:other"]] {
        assert_eq!(talk.ask(&option(9, &queries("tank/vm1", texts))), answer(9, 1, &[]), "{texts:?}");
    }
    for texts in [&[][..], &["base:"], &["base:other"]] {
        assert_eq!(talk.ask(&option(10, &queries("tank/vm1", texts))), answer(10, 1, &[]), "{texts:?}");
    }
    assert_eq!(error_code(&talk.ask(&option(9, &queries("tank/vm1", &["nocolon"])))), rep::ERR_INVALID);
    assert_eq!(error_code(&talk.ask(&option(9, &queries("gone", &[])))), rep::ERR_UNKNOWN);
    let mut lying = queries("tank/vm1", &["base:allocation"]);
    lying[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(error_code(&talk.ask(&option(10, &lying))), rep::ERR_INVALID);
}

#[test]
fn a_selection_holds_for_its_export_only_and_a_failed_one_drops_it() {
    let set = option(10, &queries("tank/vm1", &["base:allocation"]));
    let drops: [&[u8]; 3] = [
        &option(7, &go("tank/vm1@monday", &[])),
        &cat(&[&option(10, &queries("gone", &["base:allocation"])), &option(7, &go("tank/vm1", &[]))]),
        &cat(&[&option(10, &queries("tank/vm1", &[])), &option(7, &go("tank/vm1", &[]))]),
    ];
    for after in drops {
        let mut talk = hello(exports().0);
        talk.ask(&cat(&[&option(8, &[]), &set, after]));
        assert_eq!(chunk_errno(&talk.ask(&request(0, 7, 1, 0, 4096))), 22);
    }
}

#[test]
fn a_simple_read_carries_data_and_zeroes() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    let said = talk.ask(&request(0, 0, 9, 4094, 4));
    assert_eq!(said, simple(0, 9, &[0, 0, 0xaa, 0xaa]));
    assert_eq!(talk.ask(&request(0, 0, 9, 0, 0)), simple(0, 9, &[]));
    assert_eq!(talk.ask(&request(1, 0, 9, 4096, 1)), simple(0, 9, &[0xaa]), "FUA on a read is ignored");
}

#[test]
fn a_structured_read_sends_each_run_once_and_holes_as_numbers() {
    let mut talk = in_transmission(exports().0, "tank/vm1", STRUCTURED);
    let said = talk.ask(&request(0, 0, 9, 4094, 4100));
    let want = cat(&[
        &chunk(0, 2, 9, &cat(&[&4094_u64.to_be_bytes(), &2_u32.to_be_bytes()])),
        &chunk(0, 1, 9, &cat(&[&4096_u64.to_be_bytes(), &[0xaa; 4096]])),
        &chunk(1, 2, 9, &cat(&[&8192_u64.to_be_bytes(), &2_u32.to_be_bytes()])),
    ]);
    assert_eq!(said, want);
    // DF: one chunk, the zeroes explicit; a hole alone stays a number.
    let mut data = vec![0, 0];
    data.resize(4098, 0xaa);
    data.extend_from_slice(&[0, 0]);
    let said = talk.ask(&request(4, 0, 9, 4094, 4100));
    assert_eq!(said, chunk(1, 1, 9, &cat(&[&4094_u64.to_be_bytes(), &data])));
    let said = talk.ask(&request(4, 0, 9, 16384, 8192));
    assert_eq!(said, chunk(1, 2, 9, &cat(&[&16384_u64.to_be_bytes(), &8192_u32.to_be_bytes()])));
    assert_eq!(talk.ask(&request(0, 0, 9, 0, 0)), chunk(1, 0, 9, &[]));
    assert_eq!(talk.session.counters().reads, 4);
    assert_eq!(talk.session.counters().read_bytes, 2 * 4100 + 8192);
}

#[test]
fn errors_have_their_number_on_the_wire() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    let payload = [7; 512];
    for (what, bytes, errno) in [
        ("read beyond the end", request(0, 0, 1, SIZE - 1, 2), 22),
        ("read beyond 2^64", request(0, 0, 1, u64::MAX, 2), 22),
        ("write beyond the end", cat(&[&request(0, 1, 1, SIZE - 511, 512), &payload]), 28),
        ("zeroes beyond the end", request(0, 6, 1, SIZE, 1), 28),
        ("trim beyond the end", request(0, 4, 1, SIZE, 1), 22),
        ("cache beyond the end", request(0, 5, 1, SIZE, 1), 22),
        ("flush with a range", request(0, 3, 1, 0, 1), 22),
        ("unknown command", request(0, 77, 1, 0, 0), 22),
        ("unknown flag", request(1 << 9, 0, 1, 0, 1), 22),
        ("DF without structured replies", request(4, 0, 1, 0, 1), 22),
        ("payload flag with compact headers", cat(&[&request(1 << 5, 1, 1, 0, 512), &payload]), 22),
        ("block status without context", request(0, 7, 1, 0, 512), 22),
        ("fast zeroes that allocate", request(0b1_0010, 6, 1, 0, 4096), 95),
    ] {
        assert_eq!(talk.ask(&bytes), simple(errno, 1, &[]), "{what}");
        assert_eq!(talk.ask(&request(0, 0, 2, 4096, 1)), simple(0, 2, &[0xaa]), "in step after {what}");
    }
    assert_eq!(talk.session.counters().errors, 13);
}

#[test]
fn requests_above_the_maximum_payload_are_refused_and_drained() {
    let big = Arc::new(MemVolume::new("big", 1 << 40, 1 << 20));
    let registry = Arc::new(Registry::new());
    registry.insert("big", "", big).unwrap();
    let mut talk = in_transmission(registry, "big", &[]);
    assert_eq!(talk.ask(&request(0, 0, 1, 0, MAX_PAYLOAD + 1)), simple(75, 1, &[]));
    let mut write = request(0, 1, 1, 0, MAX_PAYLOAD + 1);
    write.resize(write.len() + MAX_PAYLOAD as usize + 1, 0x25);
    assert_eq!(talk.ask(&write), simple(22, 1, &[]));
    assert!(talk.session.rx.capacity() <= 2 * RX, "nothing of it was kept");
    assert_eq!(talk.ask(&request(0, 6, 1, 0, u32::MAX)), simple(0, 1, &[]), "zeroes may be longer");
}

#[test]
fn a_read_only_export_refuses_every_change_and_drains_writes() {
    for options in [&[][..], STRUCTURED] {
        let mut talk = in_transmission(exports().0, "tank/vm1@monday", options);
        let errno = |said: Vec<u8>| match options {
            [] => u32::from_be_bytes(said[4..8].try_into().unwrap()),
            _ => chunk_errno(&said),
        };
        let write = cat(&[&request(1, 1, 3, 0, 28), &request(0, 0, 4, 0, 1)]);
        assert_eq!(errno(talk.ask(&write)), 1, "the payload looks like a request and is none");
        for command in [4, 6] {
            assert_eq!(errno(talk.ask(&request(0, command, 3, 0, 512))), 1);
        }
        assert_eq!(talk.ask(&request(0, 3, 5, 0, 0)), simple(0, 5, &[]), "flush is harmless");
    }
}

#[test]
fn writes_trims_and_zeroes_change_what_they_say_and_fua_is_counted() {
    let (registry, volume) = exports();
    let mut talk = in_transmission(registry, "tank/vm1", STRUCTURED);
    assert_eq!(talk.ask(&cat(&[&request(0, 1, 1, 8000, 400), &[0xbb; 400]])), simple(0, 1, &[]));
    assert_eq!(volume.flushes(), 0);
    assert_eq!(talk.ask(&cat(&[&request(1, 1, 2, 9000, 1), &[0xcc]])), simple(0, 2, &[]));
    assert_eq!(volume.flushes(), 1);
    assert_eq!(talk.ask(&request(1, 6, 3, 8100, 10)), simple(0, 3, &[]));
    assert_eq!(volume.flushes(), 2);
    assert_eq!(talk.ask(&request(1, 4, 4, 4095, 4098)), simple(0, 4, &[]), "trims the block in the middle");
    assert_eq!(volume.flushes(), 3);
    assert_eq!(talk.ask(&request(0, 3, 5, 0, 0)), simple(0, 5, &[]));
    assert_eq!(volume.flushes(), 4);
    let want = cat(&[
        &chunk(0, 2, 6, &cat(&[&8000_u64.to_be_bytes(), &192_u32.to_be_bytes()])),
        &chunk(1, 1, 6, &cat(&[&8192_u64.to_be_bytes(), &[0xbb; 208]])),
    ]);
    assert_eq!(talk.ask(&request(0, 0, 6, 8000, 400)), want);
    // NO_HOLE takes the space, FAST_ZERO alone leaves a hole: block status tells.
    assert_eq!(talk.ask(&request(0b1_0000, 6, 7, 8192, 4096)), simple(0, 7, &[]));
    assert_eq!(talk.ask(&request(0b0_0010, 6, 8, 0, 4096)), simple(0, 8, &[]));
    let extents: Vec<u8> =
        [1, 4096, 0, 60 << 10, 3].iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
    assert_eq!(talk.ask(&request(0, 7, 9, 0, SIZE as u32)), chunk(1, 5, 9, &extents));
}

#[test]
fn block_status_stays_in_the_range_and_req_one_means_one() {
    let mut talk = in_transmission(exports().0, "tank/vm1", STRUCTURED);
    let status = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let said = talk.ask(&request(0, 7, 1, 100, 9000));
    assert_eq!(said, chunk(1, 5, 1, &status(&[1, 3996, 3, 4096, 0, 908, 3])));
    let said = talk.ask(&request(8, 7, 1, 100, 9000));
    assert_eq!(said, chunk(1, 5, 1, &status(&[1, 3996, 3])));
    let said = talk.ask(&request(8, 7, 1, 4097, 10));
    assert_eq!(said, chunk(1, 5, 1, &status(&[1, 10, 0])));
    assert_eq!(chunk_errno(&talk.ask(&request(0, 7, 1, 0, 0))), 22);
}

#[test]
fn extended_headers_carry_64_bit_lengths_and_every_reply_is_a_chunk() {
    // 16 TiB in blocks of 1 GiB, none of which is ever allocated here.
    let volume = Arc::new(MemVolume::new("big", 1 << 44, 1 << 30));
    let registry = Arc::new(Registry::new());
    registry.insert("big", "", volume).unwrap();
    let mut talk = in_transmission(registry, "big", EXTENDED);
    let len: u64 = 5 << 40;
    // A block status looks so far and no further.
    let told: u64 = 1 << 40;
    let body = cat(&[&1_u32.to_be_bytes(), &1_u32.to_be_bytes(), &told.to_be_bytes(), &3_u64.to_be_bytes()]);
    assert_eq!(talk.ask(&request_ext(0, 7, 1, 1 << 40, len)), chunk_ext(1, 6, 1, 1 << 40, &body));
    assert_eq!(talk.ask(&request_ext(0, 4, 2, 3, len)), chunk_ext(1, 0, 2, 3, &[]));
    assert_eq!(talk.ask(&request_ext(0, 6, 2, 3, len)), chunk_ext(1, 0, 2, 3, &[]));
    assert_eq!(talk.ask(&request_ext(0, 3, 4, 0, 0)), chunk_ext(1, 0, 4, 0, &[]));
    let hole = cat(&[&5_u64.to_be_bytes(), &6_u32.to_be_bytes()]);
    assert_eq!(talk.ask(&request_ext(0, 0, 5, 5, 6)), chunk_ext(1, 2, 5, 5, &hole));
    // An error is a chunk, too, with its text.
    let said = talk.ask(&request_ext(0, 0, 6, 1 << 44, 1));
    assert_eq!(said[..8], [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0x80, 1]);
    assert_eq!(said[32..36], 22_u32.to_be_bytes());
}

#[test]
fn extended_payloads_are_announced_by_their_flag() {
    let mut talk = in_transmission(exports().0, "tank/vm1", EXTENDED);
    let write = cat(&[&request_ext(1 << 5, 1, 1, 0, 4), b"data"]);
    assert_eq!(talk.ask(&write), chunk_ext(1, 0, 1, 0, &[]));
    let data = cat(&[&0_u64.to_be_bytes(), b"data"]);
    assert_eq!(talk.ask(&request_ext(0, 0, 2, 0, 4)), chunk_ext(1, 1, 2, 0, &data));
    let errno = |said: &[u8]| u32::from_be_bytes(said[32..36].try_into().unwrap());
    // Without the flag nothing follows, whatever the command; with it, it is drained.
    assert_eq!(errno(&talk.ask(&request_ext(0, 1, 3, 0, 4))), 22);
    assert_eq!(errno(&talk.ask(&cat(&[&request_ext(1 << 5, 7, 3, 0, 12), &[9; 12]]))), 22);
    assert_eq!(errno(&talk.ask(&cat(&[&request_ext(1 << 5, 0, 3, 0, 12), &[9; 12]]))), 22);
    assert_eq!(talk.ask(&request_ext(0, 0, 2, 0, 4)), chunk_ext(1, 1, 2, 0, &data), "still in step");
    talk.hear(&request_ext(1 << 5, 1, 3, 0, 1 << 40));
    assert_eq!(talk.error, Some(ProtocolError::PayloadTooLong(1 << 40)));
}

#[test]
fn negotiation_of_headers_has_an_order() {
    let mut talk = hello(exports().0);
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]));
    assert_eq!(error_code(&talk.ask(&option(8, &[]))), rep::ERR_INVALID);
    assert_eq!(talk.ask(&option(11, &[])), answer(11, 1, &[]));
    assert_eq!(error_code(&talk.ask(&option(11, &[]))), rep::ERR_INVALID);
    assert_eq!(error_code(&talk.ask(&option(8, &[]))), rep::ERR_EXT_HEADER_REQD);
    talk.hear(&option(1, b"tank/vm1"));
    assert!(talk.error.is_some(), "EXPORT_NAME is over once extended headers are in use");
}

/// The next request, without serving it.
fn next(talk: &mut Talk, bytes: &[u8]) -> Request {
    if !bytes.is_empty() {
        assert!(talk.session.poll_request().unwrap().is_none());
        assert_eq!(talk.session.handle_bytes(bytes), bytes.len());
    }
    talk.session.poll_request().unwrap().expect("a request")
}

fn said(talk: &mut Talk) -> Vec<u8> {
    std::iter::from_fn(|| talk.session.poll_transmit()).flatten().collect()
}

fn zeroes(len: usize) -> Result<Outcome, NbdError> {
    Ok(Outcome::Data(std::iter::once(Segment::Zero(len)).collect()))
}

#[test]
fn replies_leave_in_the_order_of_completion_and_cookies_may_repeat() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    let first = next(&mut talk, &cat(&[&request(0, 0, 5, 0, 1), &request(0, 0, 5, 4096, 2)]));
    let second = next(&mut talk, &[]);
    assert_eq!(talk.session.in_flight(), 2);
    talk.session.complete(second.tag, zeroes(2));
    assert_eq!(said(&mut talk), simple(0, 5, &[0, 0]));
    talk.session.complete(first.tag, zeroes(1));
    assert_eq!(said(&mut talk), simple(0, 5, &[0]));
}

#[test]
fn a_volume_that_answers_with_another_length_is_an_io_error_not_a_lost_step() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    for outcome in [zeroes(3), zeroes(0), Ok(Outcome::Done), Ok(Outcome::Extents(vec![]))] {
        let request = next(&mut talk, &request(0, 0, 5, 0, 2));
        talk.session.complete(request.tag, outcome);
        assert_eq!(said(&mut talk), simple(5, 5, &[]));
    }
    let mut talk = in_transmission(exports().0, "tank/vm1", STRUCTURED);
    let request = next(&mut talk, &request(0, 7, 5, 0, 4096));
    talk.session.complete(request.tag, Ok(Outcome::Extents(vec![Extent { len: 0, hole: true }])));
    assert_eq!(chunk_errno(&said(&mut talk)), 5);
}

#[test]
fn an_unreadable_block_is_told_with_its_offset_if_that_lies_in_the_request() {
    let mut talk = in_transmission(exports().0, "tank/vm1", STRUCTURED);
    for (offset, kind, told) in [(4096, 2, 5000_u64), (8192, 2, 8192), (1 << 20, 1, 0)] {
        let request = next(&mut talk, &request(0, 0, 5, 5000, 4096));
        let error = VolumeError::Unreadable { offset, detail: "no copy".into() };
        talk.session.complete(request.tag, Err(error.into()));
        let said = said(&mut talk);
        assert_eq!(said[4..8], [0, 1, 0x80, kind]);
        assert_eq!(chunk_errno(&said), 5);
        if kind == 2 {
            assert_eq!(said[said.len() - 8..], told.to_be_bytes());
        }
        assert!(String::from_utf8_lossy(&said).contains("no copy"));
    }
}

#[test]
fn volume_errors_map_to_their_numbers() {
    for (error, errno) in [
        (VolumeError::OutOfRange { offset: 1, len: 2, size: 3 }, Errno::Invalid),
        (VolumeError::ReadOnly, Errno::Perm),
        (VolumeError::NoSpace, Errno::NoSpace),
        (VolumeError::NotReady("suspended".into()), Errno::Shutdown),
        (VolumeError::Unsupported("no key".into()), Errno::Io),
    ] {
        assert_eq!(NbdError::from(error).errno, errno);
    }
}

#[test]
fn nothing_is_read_beyond_the_limits_and_a_lone_request_always_passes() {
    let limits = Limits { requests: 2, bytes: 10_000 };
    let budget = Gate::new(100_000);
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    talk.session.limits = limits;
    talk.session.gate = Member::new(Arc::clone(&budget));
    let input = cat(&[
        &request(0, 0, 1, 0, 60_000),
        &request(0, 0, 2, 0, 4000),
        &request(0, 0, 3, 0, 4000),
        &request(0, 0, 4, 0, 4000),
    ]);
    let lone = next(&mut talk, &input);
    assert!(talk.session.poll_request().unwrap().is_none(), "60 000 bytes are more than the limit already");
    assert!(!talk.session.wants_bytes());
    assert_eq!(budget.used(), 60_000);
    talk.session.complete(lone.tag, zeroes(60_000));
    assert!(talk.session.poll_request().unwrap().is_none(), "the reply waits to be sent");
    said(&mut talk);
    let (two, three) = (next(&mut talk, &[]), next(&mut talk, &[]));
    assert!(talk.session.poll_request().unwrap().is_none(), "two in flight");
    talk.session.complete(three.tag, zeroes(4000));
    said(&mut talk);
    let four = next(&mut talk, &[]);
    talk.session.complete(four.tag, zeroes(4000));
    talk.session.complete(two.tag, zeroes(4000));
    said(&mut talk);
    assert!(talk.session.poll_request().unwrap().is_none());
    assert!(talk.session.wants_bytes());
    assert_eq!(budget.used(), 0);
}

#[test]
fn connections_share_one_gate_take_turns_and_give_back_what_they_held() {
    let gate = Gate::new(10_000);
    let turn = |session: &mut Session| session.poll_turn(&mut Context::from_waker(Waker::noop())).is_ready();
    let mut one = in_transmission(exports().0, "tank/vm1", &[]);
    let mut two = in_transmission(exports().0, "tank/vm1", &[]);
    one.session.gate = Member::new(Arc::clone(&gate));
    two.session.gate = Member::new(Arc::clone(&gate));
    let held = next(&mut one, &request(0, 0, 1, 0, 9_000));
    assert!(one.session.poll_request().unwrap().is_none());
    let first = next(&mut two, &cat(&[&request(0, 0, 1, 0, 900), &request(0, 0, 2, 0, 900)]));
    assert!(two.session.poll_request().unwrap().is_none(), "10 800 bytes are too many");
    assert!(!two.session.wants_bytes() && !turn(&mut two.session));
    // A write is not read before there is room for all of it, also on a connection that has nothing else.
    let mut three = in_transmission(exports().0, "tank/vm1", &[]);
    three.session.gate = Member::new(Arc::clone(&gate));
    three.session.handle_bytes(&request(0, 1, 1, 0, 5_000));
    assert!(three.session.poll_request().unwrap().is_none());
    assert!(!three.session.wants_bytes());
    one.session.complete(held.tag, zeroes(9_000));
    said(&mut one);
    assert!(one.session.poll_request().unwrap().is_none());
    assert!(turn(&mut two.session) && turn(&mut three.session));
    assert!(two.session.poll_request().unwrap().is_some());
    assert!(three.session.poll_request().unwrap().is_none());
    assert!(three.session.wants_bytes(), "its payload may come now");
    assert_eq!(gate.used(), 6_800);
    // One that waits and leaves is in nobody's way.
    one.session.handle_bytes(&request(0, 0, 3, 0, 9_000));
    assert!(one.session.poll_request().unwrap().is_none());
    one.session.leave();
    drop((first, two, three));
    assert_eq!((gate.used(), gate.waiting()), (0, 0));
    drop(one);
    assert_eq!(gate.members(), 0);
}

#[test]
fn a_shutdown_finishes_what_is_in_flight_and_refuses_the_rest() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    let begun = next(&mut talk, &request(0, 0, 1, 0, 1));
    assert!(talk.session.poll_request().unwrap().is_none());
    talk.session.shut_down();
    assert_eq!(talk.session.handle_bytes(&cat(&[&request(0, 1, 2, 0, 4), b"data"])), 32);
    assert!(talk.session.poll_request().unwrap().is_none());
    assert_eq!(said(&mut talk), simple(108, 2, &[]));
    assert!(!talk.session.is_idle());
    talk.session.complete(begun.tag, zeroes(1));
    assert_eq!(said(&mut talk), simple(0, 1, &[0]));
    assert!(talk.session.is_idle());

    let mut talk = hello(exports().0);
    talk.session.shut_down();
    assert_eq!(error_code(&talk.ask(&option(7, &go("tank/vm1", &[])))), rep::ERR_SHUTDOWN);
}

#[test]
fn a_disconnect_leaves_what_follows_unread_and_a_half_read_write_has_no_effect() {
    let (registry, volume) = exports();
    let mut talk = in_transmission(registry, "tank/vm1", &[]);
    talk.hear(&cat(&[&request(0, 2, 0, 0, 0), &request(0, 4, 1, 0, SIZE as u32)]));
    assert_eq!(talk.session.phase(), Phase::Leaving);
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    talk.hear(&cat(&[&request(0, 1, 1, 4096, 4096), &[1; 4095]]));
    talk.session.leave();
    assert!(talk.session.poll_request().unwrap().is_none());
    assert!(talk.session.is_idle());
    assert_eq!(talk.session.held(), 0);
    let read = volume.read(4096, 1).now_or_never().unwrap().unwrap();
    assert_eq!(read[0], Segment::Data(Bytes::from_static(&[0xaa])));
}

#[test]
fn a_client_that_never_reads_the_export_list_cannot_make_it_pile_up() {
    let registry = Arc::new(Registry::new());
    for n in 0..1000 {
        let volume = Arc::new(MemVolume::new("v", 4096, 4096));
        registry.insert(&format!("{n:0>200}"), "", volume).unwrap();
    }
    let mut session = Session::new(registry, Limits::default(), Gate::new(1 << 30));
    session.handle_bytes(FLAGS);
    session.poll_request().unwrap();
    while session.wants_bytes() {
        session.handle_bytes(&option(3, &[]));
        session.poll_request().unwrap();
    }
    assert!(session.output_len() < 2 * HANDSHAKE_OUT);
}

/// Lists are told in parts; whatever their length, nothing is left out or told twice.
#[test]
fn a_list_of_any_length_is_told_whole_and_once() {
    for count in [0_usize, 1, 63, 64, 65, 128, 200] {
        let registry = Arc::new(Registry::new());
        let mut want = Vec::new();
        for n in 0..count {
            let volume = Arc::new(MemVolume::new("v", 4096, 4096));
            let export = format!("tank/{n:0>3}");
            registry.insert(&export, "d", volume).unwrap();
            want.extend(answer(3, 2, &cat(&[&name(&export), b"d"])));
        }
        want.extend(answer(3, 1, &[]));
        let mut talk = hello(registry);
        assert!(talk.ask(&option(3, &[])) == want, "{count} exports");
        assert_eq!(error_code(&talk.ask(&option(3, &[1]))), rep::ERR_INVALID, "a list takes no data");
    }
}

#[test]
fn a_stranger_costs_little_and_an_option_of_any_length_is_still_read() {
    let mut talk = hello(exports().0);
    talk.hear(&option(7, &go("tank/none", &[])));
    assert!(talk.session.rx.capacity() <= RX_STRANGER, "{}", talk.session.rx.capacity());
    let text = "x".repeat(4000) + ":";
    let long = queries("tank/vm1", &[text.as_str(); 8]);
    assert!(long.len() > 7 * RX_STRANGER && long.len() < OPTION_MAX);
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]));
    assert_eq!(talk.ask(&option(10, &long)), answer(10, 1, &[]));
    let mut said = talk.ask(&option(7, &go("tank/vm1", &[])));
    assert_eq!(said.split_off(said.len() - 20), answer(7, 1, &[]));
}

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
            bytes.extend((0..*len).map(|n| (n as u8) ^ (cookie as u8)));
        }
    }
    bytes
}

fn requests() -> impl Strategy<Value = Vec<(u16, u16, u64, u32)>> {
    let flags = prop_oneof![8 => Just(0_u16), 1 => 0_u16..64];
    let one = (flags, prop_oneof![Just(0_u16), Just(1), 3_u16..9], 0..SIZE + 100, 0_u32..20_000);
    proptest::collection::vec(one, 0..20)
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
