//! Requests and their replies in all three forms, and errors as they are told.

use super::*;

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
        ("fast zeroes of a part of a block", request(0b1_0000, 6, 1, 100, 10), 95),
        ("fast zeroes of parts of two blocks", request(0b1_0000, 6, 1, 100, 8000), 95),
    ] {
        assert_eq!(talk.ask(&bytes), simple(errno, 1, &[]), "{what}");
        assert_eq!(talk.ask(&request(0, 0, 2, 4096, 1)), simple(0, 2, &[0xaa]), "in step after {what}");
    }
    assert_eq!(talk.session.counters().errors, 15);
    assert_eq!(talk.ask(&request(0b1_0000, 6, 1, 8000, 4500)), simple(0, 1, &[]), "one whole block is in it");
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
