//! What may be under way, in which order it is answered, and how a conversation ends.

use super::*;

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

/// An answer of a byte kept its block in memory until the client took it, and only the byte was counted.
#[test]
fn small_answers_keep_no_blocks() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    let block = Bytes::from(vec![7; 4096]);
    let read = |talk: &mut Talk, len: u32| {
        let request = next(talk, &request(0, 0, 1, 4096, len));
        let part = Segment::Data(block.slice(..len as usize));
        talk.session.complete(request.tag, Ok(Outcome::Data(std::iter::once(part).collect())));
    };
    read(&mut talk, 1);
    read(&mut talk, 1000);
    assert!(block.is_unique(), "copied");
    read(&mut talk, 1024);
    assert!(!block.is_unique(), "a quarter of a block goes out as it is");
    said(&mut talk);
    assert!(block.is_unique());
}

/// A header of 28 bytes had a whole volume read, or as many steps taken in one go.
#[test]
fn advice_to_cache_is_followed_a_little_way() {
    let big = Arc::new(MemVolume::new("big", 1 << 40, 1 << 20));
    let registry = Arc::new(Registry::new());
    registry.insert("big", "", big).unwrap();
    let mut talk = in_transmission(registry, "big", &[]);
    for (asked, done) in [(4096, 4096), (u32::MAX, 64 << 20)] {
        let request = next(&mut talk, &request(0, 5, 1, 512, asked));
        assert!(matches!(request.op, Op::Cache { offset: 512, len } if len == done), "{:?}", request.op);
        talk.session.complete(request.tag, Ok(Outcome::Done));
        said(&mut talk);
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
    assert_eq!(budget.used(), 61_440, "all of the blocks that it touches");
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

/// What came of a long write in pieces of less than 32 KiB was copied, and with it up to 128 KiB of the next ones.
#[test]
fn long_writes_are_received_where_they_belong_to_the_last_kilobytes() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    assert_eq!(talk.session.receive().room(), RX);
    let data = vec![7; 40 << 10];
    talk.hear(&request(0, 1, 1, 0, 40 << 10));
    for piece in [&data[..100], &data[100..30_000], &data[30_000..38_000]] {
        assert!(matches!(talk.session.receive(), Place::Row(..)));
        talk.hear(piece);
    }
    assert!(matches!(talk.session.receive(), Place::Row(..)), "the last of it as well");
    assert_eq!(talk.ask(&data[38_000..]), simple(0, 1, &[]));
    assert_eq!(talk.session.receive().room(), RX_LONG, "the next header, and little behind it");
    // Of a client that writes little at a time as much as there is.
    let short = cat(&[&request(0, 1, 2, 0, 4096), &[8; 4096]]);
    assert_eq!(talk.ask(&short), simple(0, 2, &[]));
    assert_eq!(talk.session.receive().room(), RX);
    let read = [&[8; 4096][..], &data[4096..]].concat();
    assert_eq!(talk.ask(&request(0, 0, 3, 0, 40 << 10)), simple(0, 3, &read));
}

/// Of a client that is gone no more is kept than requests may hold, however much it goes on sending.
#[test]
fn a_client_that_is_heard_out_has_a_bound() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    talk.session.limits = Limits { bytes: 2 * RX, ..Limits::default() };
    talk.hear(&request(0, 1, 1, 0, 40 << 10));
    talk.session.hear_out();
    let more = vec![0; RX];
    let taken = (0..100).map(|_| talk.session.handle_bytes(&more)).sum::<usize>();
    assert!(taken <= 2 * RX + (40 << 10), "{taken}");
    assert_eq!(talk.session.handle_bytes(&[0; 10]), 0, "no room is the end of it");
    assert!(talk.session.rx.capacity() <= 4 * RX);
}

#[test]
fn connections_share_one_gate_take_turns_and_give_back_what_they_held() {
    let gate = Gate::new(44_000);
    let turn = |session: &mut Session| session.poll_turn(&mut Context::from_waker(Waker::noop())).is_ready();
    let mut one = in_transmission(exports().0, "tank/vm1", &[]);
    let mut two = in_transmission(exports().0, "tank/vm1", &[]);
    one.session.gate = Member::new(Arc::clone(&gate));
    two.session.gate = Member::new(Arc::clone(&gate));
    let held = next(&mut one, &request(0, 0, 1, 0, 36_864));
    assert!(one.session.poll_request().unwrap().is_none());
    let first = next(&mut two, &cat(&[&request(0, 0, 1, 0, 4_096), &request(0, 0, 2, 0, 4_096)]));
    assert!(two.session.poll_request().unwrap().is_none(), "45 056 bytes are too many");
    assert!(!two.session.wants_bytes() && !turn(&mut two.session));
    // A write is not read before there is room for all of it, also on a connection that has nothing else.
    let mut three = in_transmission(exports().0, "tank/vm1", &[]);
    three.session.gate = Member::new(Arc::clone(&gate));
    three.session.handle_bytes(&request(0, 1, 1, 0, 5_000));
    assert!(three.session.poll_request().unwrap().is_none());
    assert!(!three.session.wants_bytes());
    one.session.complete(held.tag, zeroes(36_864));
    said(&mut one);
    assert!(one.session.poll_request().unwrap().is_none());
    assert!(turn(&mut two.session) && turn(&mut three.session));
    assert!(two.session.poll_request().unwrap().is_some());
    assert!(three.session.poll_request().unwrap().is_none());
    assert!(three.session.wants_bytes(), "its payload may come now");
    assert_eq!(gate.used(), 17_288, "and the block of which it changes a part");
    // One that waits and leaves is in nobody's way.
    one.session.handle_bytes(&request(0, 0, 3, 0, 36_864));
    assert!(one.session.poll_request().unwrap().is_none());
    one.session.leave();
    drop((first, two, three));
    assert_eq!((gate.used(), gate.waiting()), (0, 0));
    drop(one);
    assert_eq!(gate.members(), 0);
}

/// The turn that came to it was of no use before the client had taken its answers, and was kept from others as long.
#[test]
fn who_takes_no_answers_waits_for_no_turn_and_keeps_none() {
    const MIB: u64 = 1 << 20;
    let registry = Arc::new(Registry::new());
    registry.insert("big", "", Arc::new(MemVolume::new("big", MIB, 4096))).unwrap();
    let gate = Gate::new(2 * MIB);
    let mut slow = in_transmission(registry, "big", &[]);
    slow.session.gate = Member::new(Arc::clone(&gate));
    let [mut one, mut two] = [(); 2].map(|()| Member::new(Arc::clone(&gate)));
    assert!(one.ask(0, MIB));
    let input = cat(&[&request(0, 0, 1, 0, BATCH as u32), &request(0, 0, 2, 0, MIB as u32)]);
    let first = next(&mut slow, &input);
    assert!(slow.session.poll_request().unwrap().is_none() && gate.waiting() == 1);
    one.settle(0);
    assert_eq!(gate.used(), BATCH as u64 + MIB, "its turn has come");
    slow.session.complete(first.tag, zeroes(BATCH));
    slow.session.settle();
    assert_eq!(gate.used(), slow.session.output_len() as u64, "what waits to be sent, and nothing else");
    assert!(one.ask(0, MIB) && !two.ask(0, MIB));
    assert!(slow.session.poll_request().unwrap().is_none());
    assert_eq!(gate.waiting(), 1, "nor does it ask");
    said(&mut slow);
    assert!(slow.session.poll_request().unwrap().is_none() && two.has_turn());
    one.settle(0);
    assert!(slow.session.poll_request().unwrap().is_some(), "in its turn again");
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

/// What was completed later went out behind the half of a reply that had left, as if it were the rest.
#[test]
fn nothing_follows_a_reply_that_was_cut_off() {
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    let requests: Vec<Vec<u8>> = (1..4).map(|cookie| request(0, 0, cookie, 0, 4096)).collect();
    let first = next(&mut talk, &requests.concat());
    let (second, third) = (next(&mut talk, &[]), next(&mut talk, &[]));
    talk.session.complete(first.tag, zeroes(4096));
    talk.session.transmitted(1000);
    talk.session.discard_output();
    talk.session.leave();
    talk.session.complete(second.tag, zeroes(4096));
    assert!(!talk.session.is_idle(), "what was begun is finished");
    talk.session.complete(third.tag, Err(NbdError::new(Errno::Io, "rotten")));
    assert_eq!((said(&mut talk), talk.session.is_idle()), (vec![], true));
    let counters = talk.session.counters();
    assert_eq!((counters.read_bytes, counters.errors), (2 * 4096, 1), "it counts all the same");
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
