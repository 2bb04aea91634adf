//! Login and what is asked in text: stages, keys, discovery, in pieces and wrongly.

use std::sync::Arc;

use bytes::BytesMut;
use iscsi::{
    Access, Offer, Targets,
    inbox::Inbox,
    login::{Login, Status, Step},
    negotiate,
    pdu::{Header, NO_TAG, Outbox, op, reject},
    session::Session,
};

use crate::initiator::{Initiator, NAME, discovery, login_pdu, rw10, targets, try_login, volume};

#[test]
fn every_mistake_at_login_has_its_own_status() {
    let targets = targets(&volume());
    for (stages, text, status) in [
        (0x87, "TargetName=x|", Status::MissingParameter),
        (0x87, "InitiatorName=iqn.a|", Status::MissingParameter),
        (0x87, "InitiatorName=iqn.a|TargetName=iqn.nobody|", Status::NotFound),
        (0x87, "InitiatorName=iqn.a|SessionType=Other|", Status::SessionType),
        (0x81, "InitiatorName=iqn.a|SessionType=Discovery|AuthMethod=CHAP|", Status::AuthenticationFailed),
        (
            0x87,
            "InitiatorName=iqn.a|SessionType=Discovery|MaxBurstLength=512|MaxBurstLength=512|",
            Status::InitiatorError,
        ),
        (0x8b, "InitiatorName=iqn.a|SessionType=Discovery|", Status::InitiatorError),
        (0x87, "no pairs|", Status::InitiatorError),
        // Reservations and copies would take it for iqn.victim.
        (0x87, "InitiatorName=iqn.victim,i,0x00023d000001|SessionType=Discovery|", Status::InitiatorError),
        (0x87, "InitiatorName=iqn.a b|SessionType=Discovery|", Status::InitiatorError),
    ] {
        let (step, reply) = try_login(&targets, stages, text);
        assert!(matches!(step, Ok(Step::Refused(refused)) if refused == status), "{text}: {step:?}");
        assert_eq!([reply.0[36], reply.0[37]], (status as u16).to_be_bytes(), "{text}");
    }
    assert!(try_login(&targets, 0x87, "InitiatorName=iqn.a|SessionType=Discovery|X-odd=1|").0.is_ok());
}

#[test]
fn login_goes_through_both_stages_and_takes_text_in_pieces() {
    let targets = targets(&volume());
    let mut login = Login::default();
    let mut outbox = Outbox::default();
    let mut say = |stages, text: &str| {
        let (header, data) = login_pdu(stages, text);
        let step = login.handle(&header, &data, &targets, &mut outbox).unwrap();
        let reply = outbox.drain();
        (step, reply.get(1).copied(), String::from_utf8_lossy(reply.get(48..).unwrap_or(&[])).into_owned())
    };
    let (step, flags, _) = say(0x40, "InitiatorName=iqn.a|Target");
    assert!(matches!(step, Step::Continue) && flags == Some(0));
    let (_, flags, text) = say(0x81, &format!("Name={NAME}|AuthMethod=CHAP,None|"));
    assert_eq!(flags, Some(0x81));
    assert!(text.contains("AuthMethod=None") && text.contains("TargetPortalGroupTag=1"), "{text}");
    let (_, flags, text) = say(0x04, "HeaderDigest=CRC32C,None|InitialR2T=No|");
    assert_eq!(flags, Some(0x04));
    assert!(
        text.contains("HeaderDigest=CRC32C") && text.contains("MaxRecvDataSegmentLength=262144"),
        "{text}"
    );
    assert!(matches!(say(0x87, "").0, Step::Accepted));
}

/// libiscsi says in each stage who it is; with credentials in its URL it goes through both.
#[test]
fn what_was_declared_may_be_said_again_in_a_later_request_and_not_otherwise() {
    let targets = targets(&volume());
    let of = |name: &str| format!("InitiatorName={name}|TargetName={NAME}|SessionType=Normal|");
    let first = format!("{}AuthMethod=CHAP,None|", of("iqn.a"));
    let twice = format!("{}SessionType=Normal|", of("iqn.a"));
    for (first, second, fault) in [
        (&first, &format!("{}HeaderDigest=None|", of("iqn.a")), ""),
        (&first, &of("iqn.b"), "InitiatorName comes again with another value"),
        (&first, &"SessionType=Discovery|".to_owned(), "SessionType comes again with another value"),
        (&first, &"AuthMethod=CHAP,None|".to_owned(), "AuthMethod comes twice"),
        (&twice, &String::new(), "SessionType comes twice in one request"),
    ] {
        let (mut login, mut outbox) = (Login::default(), Outbox::default());
        let mut say = |stages: u8, text: &str| {
            let (header, data) = login_pdu(stages, text);
            login.handle(&header, &data, &targets, &mut outbox).unwrap()
        };
        let step = match say(0x81, first) {
            Step::Continue => say(0x87, second),
            refused => refused,
        };
        match fault {
            "" => assert!(matches!(step, Step::Accepted), "{second}: {step:?}"),
            _ => assert!(matches!(step, Step::Refused(Status::InitiatorError)), "{second}: {step:?}"),
        }
        assert_eq!(login.fault(), fault);
    }
}

#[test]
fn pings_come_back_with_their_data_and_discovery_lists_every_portal() {
    let mut i = Initiator::new(&volume(), "");
    let mut h = Header::new(op::NOP_OUT | 0x40);
    h.set(16, 77).set(20, NO_TAG).set(24, i.cmd_sn);
    i.push(h, b"are you there").unwrap();
    let reply = i.replies().remove(0);
    assert_eq!(
        (reply.header.opcode(), reply.header.itt(), &reply.data[..]),
        (op::NOP_IN, 77, &b"are you there"[..])
    );
    let mut h = Header::new(op::TEXT | 0x40);
    h.set(16, 78).set(20, NO_TAG).set(24, i.cmd_sn);
    i.push(h, b"SendTargets=\0").unwrap();
    let text = i.replies().remove(0).data;
    let pairs = negotiate::pairs(&text).unwrap();
    assert_eq!(pairs, [("TargetName", NAME), ("TargetAddress", "127.0.0.1:3260,1")]);
}

#[test]
fn a_long_discovery_answer_comes_in_pieces() {
    let targets = and_others(40, &Offer::default());
    let mut session = discovery(&targets, "MaxRecvDataSegmentLength=512");
    let pieces = fetch(&mut session, NO_TAG);
    assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.len() <= 512));
    assert_eq!(names(&pieces.concat()).len(), 41);
}

/// All of it was made at once, and what was not fetched was kept: gigabytes, for hundreds of strangers that asked for the list
/// of some thousands of snapshots.
#[test]
fn what_is_left_of_a_discovery_answer_is_made_when_it_is_fetched() {
    let targets = and_others(40, &Offer::default());
    let mut session = discovery(&targets, "MaxRecvDataSegmentLength=512");
    let [(first, piece)] = &ask(&mut session, &[NO_TAG])[..] else { panic!("one answer") };
    assert!(!first.is_final() && !names(piece).contains(&format!("{NAME}39")));
    assert!(targets.remove(&format!("{NAME}39")));
    targets.create(&format!("{NAME}9a"), Offer::default()).unwrap();
    let rest = fetch(&mut session, first.word20()).concat();
    let told = names(&[&piece[..], &rest].concat());
    let all: Vec<String> = targets.list().iter().map(|target| target.iqn().to_owned()).collect();
    assert_eq!(told, all, "as it is now");
}

/// For each request of a few bytes all targets were looked at, in seconds for what came in one read, and nobody else was served.
#[test]
fn who_may_use_few_of_many_targets_is_told_of_these_by_and_by() {
    let access = Access { initiators: vec!["iqn.other".into()], ..Access::default() };
    let targets = and_others(10_000, &Offer { access, ..Offer::default() });
    let last = format!("{NAME}:last");
    targets.create(&last, Offer::default()).unwrap();
    let mut session = discovery(&targets, "");
    let pieces = fetch(&mut session, NO_TAG);
    assert_eq!(names(&pieces.concat()), [NAME.to_owned(), last.clone()]);
    assert_eq!(pieces.len(), 3, "4,096 at a time");
    // All requests that come together are one time; none is forgotten for that.
    let [(_, one), (again, none)] = &ask(&mut session, &[NO_TAG, NO_TAG])[..] else { panic!("two answers") };
    assert_eq!((names(one), names(none)), (vec![NAME.to_owned()], vec![]));
    assert_eq!(names(&fetch(&mut session, again.word20()).concat()), [NAME.to_owned(), last]);
}

/// The target, and so many more behind it.
fn and_others(count: usize, offer: &Offer) -> Arc<Targets> {
    let targets = targets(&volume());
    for n in 0..count {
        targets.create(&format!("{NAME}{n}"), offer.clone()).unwrap();
    }
    targets
}

/// Asks for all targets, or for what is left of the answer with that tag, all at once; the answers.
fn ask(session: &mut Session, tags: &[u32]) -> Vec<(Header, Vec<u8>)> {
    let mut out = Outbox::default();
    for ttt in tags {
        let mut h = Header::new(op::TEXT | 0x40);
        h.set(16, 5).set(20, *ttt).set(24, 1);
        out.push(h, if *ttt == NO_TAG { b"SendTargets=All\0" } else { b"" });
    }
    session.handle_bytes(&mut Inbox::from(BytesMut::from(&out.drain()[..]))).unwrap();
    let wire = session.outbox().drain();
    let (mut rest, mut answers) = (&wire[..], Vec::new());
    while let Some(head) = rest.first_chunk::<48>() {
        let len = usize::from(head[6]) << 8 | usize::from(head[7]);
        answers.push((Header(*head), rest[48..48 + len].to_vec()));
        rest = &rest[48 + len.next_multiple_of(4)..];
    }
    answers
}

/// The pieces of an answer from that tag to its end.
fn fetch(session: &mut Session, mut ttt: u32) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    loop {
        let (reply, piece) = ask(session, &[ttt]).remove(0);
        assert_eq!((reply.opcode(), reply.is_final()), (op::TEXT_RESPONSE, reply.word20() == NO_TAG));
        pieces.push(piece);
        ttt = reply.word20();
        if reply.is_final() {
            return pieces;
        }
    }
}

/// The targets that an answer names. Its end may be missing.
fn names(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    text.split('\0').filter_map(|pair| pair.strip_prefix("TargetName=")).map(str::to_owned).collect()
}

#[test]
fn a_text_request_may_come_in_pieces_and_is_no_longer_than_agreed() {
    let mut i = Initiator::new(&volume(), "");
    let mut say = |flags: u8, ttt: u32, text: &[u8]| {
        let mut h = Header::new(op::TEXT | 0x40);
        h.0[1] = flags;
        h.set(16, 78).set(20, ttt).set(24, i.cmd_sn);
        i.push(h, text).unwrap();
        i.replies().remove(0)
    };
    let expected = [("TargetName", NAME), ("TargetAddress", "127.0.0.1:3260,1")];
    for pieces in [&[&b"SendTar"[..], b"gets=\0"][..], &[b"Se", b"ndTargets", b"", b"=", b"\0"]] {
        let mut ttt = NO_TAG;
        for (n, piece) in pieces.iter().enumerate() {
            let is_last = n + 1 == pieces.len();
            let reply = say(if is_last { 0x80 } else { 0x40 }, ttt, piece);
            assert_eq!((reply.header.opcode(), reply.header.is_final()), (op::TEXT_RESPONSE, is_last));
            ttt = reply.header.word20();
            assert_eq!((ttt == NO_TAG, reply.data.is_empty()), (is_last, !is_last), "the tag to go on under");
            if is_last {
                assert_eq!(negotiate::pairs(&reply.data).unwrap(), expected);
            }
        }
    }
    // Under a tag of nobody's.
    let ttt = say(0x40, NO_TAG, b"SendTar").header.word20();
    assert_eq!(say(0x80, ttt + 1, b"gets=\0").header.opcode(), op::REJECT);
    assert_eq!(say(0x80, ttt, b"gets=\0").header.opcode(), op::REJECT, "that exchange is over");
    // One that never ends.
    let mut reply = say(0x40, NO_TAG, &[b'x'; 16 << 10]).header;
    for _ in 0..3 {
        reply = say(0x40, reply.word20(), &[b'x'; 16 << 10]).header;
        assert_eq!(reply.opcode(), op::TEXT_RESPONSE);
    }
    assert_eq!(say(0x40, reply.word20(), b"x").header.opcode(), op::REJECT);
    assert_eq!(negotiate::pairs(&say(0x80, NO_TAG, b"SendTargets=\0").data).unwrap(), expected, "a new one");
}

/// The whole list came for each of thousands of times that it was asked for in one request, in memory all at once.
#[test]
fn a_text_request_that_says_a_key_twice_is_refused_and_nothing_of_it_is_done() {
    let mut i = Initiator::new(&volume(), "");
    let mut say = |text: &[u8]| {
        let mut h = Header::new(op::TEXT | 0x40);
        h.set(16, 78).set(20, NO_TAG).set(24, i.cmd_sn);
        i.push(h, text).unwrap();
        let replies = i.replies();
        assert_eq!(replies.len(), 1);
        let reply = &replies[0];
        (reply.header.opcode(), reply.header.0[2], reply.data.clone())
    };
    for text in [
        b"SendTargets=\0".repeat(4096),
        b"SendTargets=\0X-a=1\0SendTargets=All\0".to_vec(),
        b"MaxRecvDataSegmentLength=512\0X-a=1\0X-a=2\0".to_vec(),
    ] {
        let (opcode, reason, _) = say(&text);
        assert_eq!((opcode, reason), (op::REJECT, reject::PROTOCOL_ERROR));
    }
    let (opcode, _, text) = say(b"SendTargets=\0X-a=1\0");
    assert_eq!(opcode, op::TEXT_RESPONSE);
    let pairs = [("TargetName", NAME), ("TargetAddress", "127.0.0.1:3260,1"), ("X-a", "NotUnderstood")];
    assert_eq!(negotiate::pairs(&text).unwrap(), pairs);
    assert_eq!(i.read(0, 8).len(), 4096);
    let pieces = i.command(&rw10(0x28, 0, 8), 0x40, 4096, &[]).len();
    assert_eq!(pieces, 1, "segments are as long as they were");
}
