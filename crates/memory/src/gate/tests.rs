use std::{
    task::{Context, Waker},
    time::Duration,
};

use super::*;

fn turn(member: &mut Member) -> bool {
    member.poll_turn(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn who_waits_gets_its_turn_in_order_and_nobody_holds_a_part() {
    let gate = Gate::new(1000);
    let mut members: Vec<Member> = (0..4).map(|_| Member::new(Arc::clone(&gate))).collect();
    assert!(members[0].ask(0, 900));
    assert!(!members[1].ask(0, 500), "there is no room");
    assert!(!members[2].ask(0, 50), "there is, but somebody came before");
    assert!(!members[3].ask(0, 600));
    assert_eq!((gate.used(), gate.waiting(), gate.waits()), (900, 3, 3));
    assert!(!turn(&mut members[1]));
    members[0].settle(0);
    assert!(turn(&mut members[1]) && turn(&mut members[2]) && !turn(&mut members[3]));
    assert!(members[1].ask(0, 500) && members[2].ask(0, 50));
    assert_eq!((gate.used(), gate.waiting()), (550, 1));
    assert!(!members[0].ask(0, 1), "behind the last one");
    members[1].settle(0);
    assert!(members[3].ask(0, 600) && members[0].ask(0, 1));
    drop(members);
    assert_eq!((gate.used(), gate.waiting(), gate.members()), (0, 0, 0));
}

#[test]
fn guests_have_no_share_before_they_join() {
    let gate = Gate::new(1000);
    let client = Client::new(None, "somebody");
    let member = Member::of(Arc::clone(&gate), &client);
    let mut guests: Vec<Member> = (0..9).map(|_| Member::guest(Arc::clone(&gate), &client)).collect();
    assert_eq!((gate.members(), gate.share()), (1, 1000));
    guests[0].join();
    guests[0].join();
    assert_eq!((gate.members(), gate.share()), (2, 500));
    drop(guests);
    assert_eq!(gate.members(), 1);
    drop(member);
    assert_eq!(gate.members(), 0);
}

#[test]
fn while_others_wait_nobody_lives_on_what_it_has_had() {
    let gate = Gate::new(1000);
    let mut greedy = Member::new(Arc::clone(&gate));
    let mut other = Member::new(Arc::clone(&gate));
    assert!(greedy.ask(0, 500) && greedy.ask(500, 500));
    assert!(!other.ask(0, 400));
    // One of the two is done, and the next is asked for before anything was settled.
    assert!(!greedy.ask(500, 500), "the other one is first");
    assert!(turn(&mut other) && other.ask(0, 400));
    assert_eq!(gate.used(), 900);
    other.settle(0);
    assert!(greedy.ask(500, 500));
    // Who waits itself does not go on with what it has done meanwhile, either.
    assert!(!greedy.ask(1000, 500) && !other.ask(0, 300));
    assert!(greedy.ask(500, 500), "now it is first in the queue, with room");
    assert!(!greedy.ask(1000, 500));
    assert!(!greedy.ask(600, 100), "room for the other one");
    assert!(turn(&mut other) && other.ask(0, 300));
    assert_eq!((gate.used(), gate.waiting()), (900, 1));
    assert!(greedy.ask(600, 0), "what takes nothing never waits");
}

#[test]
fn a_turn_is_not_lost_because_more_is_held_when_it_comes() {
    let gate = Gate::new(1000);
    let [mut busy, mut other, mut last] = [(); 3].map(|()| Member::new(Arc::clone(&gate)));
    assert!(busy.ask(0, 500) && other.ask(0, 400));
    assert!(!busy.ask(500, 300) && !last.ask(0, 900));
    other.settle(0);
    assert!(turn(&mut busy));
    // An answer came in between, and its header is held beside it.
    assert!(busy.ask(516, 300), "who comes later is not first");
    assert_eq!((gate.used(), gate.waiting()), (816, 1));
    busy.settle(0);
    assert!(turn(&mut last) && last.ask(0, 900));
    // But it is not a turn for something larger.
    assert!(!busy.ask(0, 200) && !other.ask(0, 900));
    last.settle(0);
    assert!(turn(&mut busy) && !busy.ask(0, 950));
    assert!(turn(&mut other));
}

/// Who had its turn kept all that it had finished since, until it asked again.
#[test]
fn what_is_finished_comes_back_also_while_a_turn_waits_to_be_used() {
    let gate = Gate::new(1000);
    let [mut slow, mut other, mut last] = [(); 3].map(|()| Member::new(Arc::clone(&gate)));
    assert!(slow.ask(0, 600) && other.ask(0, 300));
    assert!(!slow.ask(600, 200) && !last.ask(0, 700));
    other.settle(0);
    assert!(slow.has_turn() && !turn(&mut last));
    slow.settle(0);
    assert_eq!(gate.used(), 900, "its turn is kept for it, and nothing else");
    assert!(turn(&mut last) && last.ask(0, 700));
    assert!(slow.ask(0, 200));
    assert_eq!((gate.used(), gate.waiting()), (900, 0));
}

#[test]
fn a_request_larger_than_all_passes_alone() {
    let gate = Gate::new(1000);
    let (mut one, mut two) = (Member::new(Arc::clone(&gate)), Member::new(Arc::clone(&gate)));
    assert!(two.ask(0, 10));
    assert!(!one.ask(0, 5000));
    assert!(!two.ask(10, 10), "it cannot be overtaken for ever");
    two.settle(0);
    assert!(one.ask(0, 5000), "nobody holds anything");
    one.settle(0);
    assert!(two.ask(0, 10), "its wish was met");
    two.settle(0);
    assert_eq!(gate.used(), 0);
}

/// It and everybody behind it waited for a few bytes that never came back, until one was let through after two seconds.
#[test]
fn a_request_larger_than_all_does_not_wait_for_what_is_set_aside() {
    let gate = Gate::new(1000);
    let (mut stalled, mut large, mut next) = (from(&gate, 1), from(&gate, 2), from(&gate, 3));
    assert!(stalled.ask(0, 10));
    assert!(!large.ask(0, 5000) && !next.ask(0, 10));
    assert_eq!(watch(&gate, 10).aside, 0);
    assert!(!turn(&mut large));
    assert_eq!(watch(&gate, 1).aside, 10);
    assert!(turn(&mut large) && large.ask(0, 5000), "nobody else holds anything");
    assert!(!turn(&mut next));
    large.settle(0);
    assert!(turn(&mut next) && next.ask(0, 10));
    assert_eq!(gate.used(), 20);
}

#[test]
fn what_came_unasked_is_counted_and_others_wait_for_it() {
    let gate = Gate::new(1000);
    let (mut one, mut two) = (Member::new(Arc::clone(&gate)), Member::new(Arc::clone(&gate)));
    one.take_anyway(1500);
    assert!(!two.ask(0, 100));
    one.settle(1000);
    assert!(!turn(&mut two), "less is not yet room enough");
    one.settle(0);
    assert!(turn(&mut two));
}

#[test]
fn if_nothing_comes_back_one_may_be_let_through() {
    let gate = Gate::new(1000);
    let (mut stalled, mut two) = (Member::new(Arc::clone(&gate)), Member::new(Arc::clone(&gate)));
    assert!(stalled.ask(0, 1000) && !two.ask(0, 300));
    let turns = gate.turns();
    assert_eq!(gate.turns(), turns);
    assert!(gate.let_one_pass() && !gate.let_one_pass());
    assert!(turn(&mut two) && two.ask(0, 300));
    assert_eq!(gate.used(), 1300);
}

#[test]
fn a_larger_bound_lets_those_in_who_wait() {
    let gate = Gate::new(100);
    let (mut one, mut two) = (Member::new(Arc::clone(&gate)), Member::new(Arc::clone(&gate)));
    assert!(one.ask(0, 100) && !two.ask(0, 100));
    gate.set_max(50);
    assert!(!turn(&mut two));
    gate.set_max(200);
    assert!(turn(&mut two));
    two.withdraw();
    two.settle(0);
    assert_eq!(gate.used(), 100);
}

#[test]
fn whoever_leaves_the_queue_makes_way() {
    let gate = Gate::new(1000);
    let mut members: Vec<Member> = (0..3).map(|_| Member::new(Arc::clone(&gate))).collect();
    assert!(members[0].ask(0, 900));
    assert!(!members[1].ask(0, 500) && !members[2].ask(0, 100));
    drop(members.remove(1));
    assert!(turn(&mut members[1]));
    drop(members);
    assert_eq!((gate.used(), gate.waiting(), gate.members()), (0, 0, 0));
}

/// Threads that take and give back as fast as they can: none is left waiting, and the bound holds.
#[test]
#[allow(clippy::disallowed_methods, reason = "races are what is tested")]
fn nobody_is_forgotten_however_they_meet() {
    use std::{sync::mpsc, task::Wake};
    struct Tell(mpsc::Sender<()>);
    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            // Nobody listens any more: it has its turn.
            let _gone = self.0.send(());
        }
    }
    let gate = Gate::new(1000);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let gate = Arc::clone(&gate);
            scope.spawn(move || {
                let (tell, hear) = mpsc::channel();
                let waker = Waker::from(Arc::new(Tell(tell)));
                let mut member = Member::new(Arc::clone(&gate));
                for round in 0..2000_u64 {
                    let bytes = (round * 37 + thread * 101) % 700 + 1;
                    while !member.ask(0, bytes) {
                        if member.poll_turn(&mut Context::from_waker(&waker)).is_pending() {
                            hear.recv_timeout(Duration::from_secs(30)).expect("its turn comes");
                        }
                    }
                    assert!(gate.used() <= 1000);
                    member.settle(0);
                }
            });
        }
    });
    assert_eq!((gate.used(), gate.waiting()), (0, 0));
}

/// Looks for so long, ten times a second, with room for more.
fn watch(gate: &Gate, looks: u32) -> Watched {
    (0..looks).fold(Watched::default(), |mut all, _| {
        let seen = gate.watch(Duration::from_millis(100), true);
        all.expelled.extend(seen.expelled);
        Watched { aside: seen.aside, ..all }
    })
}

fn from(gate: &Arc<Gate>, host: u8) -> Member {
    let peer = IpAddr::from([192, 0, 2, host]);
    Member::of(Arc::clone(gate), &Client::new(Some(peer), peer.to_string()))
}

fn is_expelled(member: &Member) -> bool {
    let mut expelled = std::pin::pin!(member.client().expelled());
    expelled.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn others_go_on_a_second_after_clients_that_do_not() {
    let gate = Gate::new(64 << 20);
    let (mut stalled, mut two, mut three) = (from(&gate, 1), from(&gate, 2), from(&gate, 3));
    assert!(stalled.ask(0, 64 << 20));
    stalled.note(64 << 20, 0);
    assert!(!two.ask(0, 1 << 20));
    assert_eq!(watch(&gate, 10).aside, 0, "it has a second");
    assert!(!turn(&mut two));
    assert_eq!(watch(&gate, 1).aside, 64 << 20);
    assert!(turn(&mut two) && two.ask(0, 1 << 20), "as if nothing were held");
    assert!(!stalled.ask(64 << 20, 16 << 20), "not for the one who is in the way");
    stalled.withdraw();
    assert!(three.ask(0, 60 << 20) && !two.ask(1 << 20, 4 << 20), "twice the gate is all there ever is");
    two.withdraw();
    // It goes on: nothing is set aside any more, and what is too much goes as it is given back.
    stalled.note(0, 64 << 20);
    assert!(!two.ask(1 << 20, 10 << 20));
    assert_eq!((watch(&gate, 1).aside, gate.aside()), (0, 0));
    assert!(!turn(&mut two));
}

#[test]
fn nothing_is_set_aside_without_memory_for_it() {
    let gate = Gate::new(64 << 20);
    let (mut stalled, mut other) = (from(&gate, 1), from(&gate, 2));
    assert!(stalled.ask(0, 64 << 20) && !other.ask(0, 1));
    for _ in 0..30 {
        assert_eq!(gate.watch(Duration::from_millis(100), false).aside, 0);
    }
    assert!(!turn(&mut other));
    assert_eq!(gate.watch(Duration::from_millis(100), true).aside, 64 << 20);
    assert!(turn(&mut other));
}

#[test]
fn who_owes_and_stands_still_for_ten_seconds_is_expelled_and_nobody_else() {
    let gate = Gate::new(64 << 20);
    let (mut stalled, mut busy, mut slow) = (from(&gate, 1), from(&gate, 2), from(&gate, 3));
    let (mut little, mut waits) = (from(&gate, 4), from(&gate, 5));
    assert!(stalled.ask(0, 32 << 20) && busy.ask(0, 20 << 20) && slow.ask(0, 8 << 20));
    assert!(little.ask(0, 1 << 10));
    assert!(!waits.ask(0, 80 << 20));
    stalled.note(32 << 20, 0);
    busy.note(0, 0); // for a device
    little.note(1 << 10, 0); // a ping that nobody takes
    let mut expelled = Vec::new();
    for tenth in 1..=200_u64 {
        stalled.note(32 << 20, tenth * 48); // it says that it is alive, and nothing else
        slow.note(8 << 20, tenth * 1000);
        let seen = gate.watch(Duration::from_millis(100), false);
        expelled.extend(seen.expelled.into_iter().map(|one| (tenth, one)));
    }
    let (tenth, one) = expelled.pop().unwrap();
    assert_eq!((tenth, one.name.as_str(), one.held, one.owed), (101, "192.0.2.1", 32 << 20, 32 << 20));
    assert_eq!((expelled.len(), one.still), (0, Duration::from_secs(10)));
    assert!(is_expelled(&stalled));
    assert!(![&busy, &slow, &little, &waits].into_iter().any(is_expelled));
}

/// All of a pause was counted in one look: a daemon that had been stopped for ten seconds expelled every client that had data
/// to send or answers to take.
#[test]
fn a_daemon_that_stood_still_itself_blames_nobody_for_it() {
    let gate = Gate::new(64 << 20);
    let (mut holds, mut waits) = (from(&gate, 1), from(&gate, 2));
    assert!(holds.ask(0, 64 << 20) && !waits.ask(0, 1 << 20));
    holds.note(64 << 20, 0);
    watch(&gate, 2);
    assert_eq!(gate.watch(Duration::from_secs(15), true), Watched::default());
    assert!(!is_expelled(&holds) && !turn(&mut waits));
    assert_eq!(watch(&gate, 3).aside, 0);
    assert_eq!(watch(&gate, 1).aside, 64 << 20, "who does not go on either is found out as ever");
    assert!(turn(&mut waits));
}

#[test]
fn nobody_is_expelled_while_nobody_waits() {
    let gate = Gate::new(64 << 20);
    let mut alone = from(&gate, 1);
    assert!(alone.ask(0, 64 << 20));
    alone.note(64 << 20, 0);
    assert_eq!(watch(&gate, 300), Watched::default());
    // It waits for itself.
    assert!(!alone.ask(64 << 20, 64 << 20));
    assert_eq!(watch(&gate, 300).expelled, []);
    assert!(!is_expelled(&alone));
}

#[test]
fn one_address_has_no_more_than_half_while_others_wait() {
    let gate = Gate::new(64_000);
    let mut greedy: Vec<Member> = (0..20).map(|_| from(&gate, 1)).collect();
    let mut other = from(&gate, 2);
    assert!((0..16).all(|n| greedy[n].ask(0, 4000)), "all of it while nobody else wants any");
    assert!(!greedy[16].ask(0, 4000) && !greedy[17].ask(0, 4000));
    assert!(!other.ask(0, 6000), "last in the queue");
    watch(&gate, 1);
    greedy[0].settle(0);
    assert!(!turn(&mut greedy[16]) && !turn(&mut other), "what comes back is kept for the other one");
    greedy[1].settle(0);
    assert!(turn(&mut other) && other.ask(0, 6000));
    assert!(!turn(&mut greedy[16]), "there is no room now");
    greedy[2].settle(0);
    assert!(turn(&mut greedy[16]), "and nobody else waits");
}

#[test]
fn what_is_set_aside_is_for_others() {
    let gate = Gate::new(64 << 20);
    let client = Client::new(None, "one");
    let mut coming = Member::of(Arc::clone(&gate), &client);
    let mut going = Member::of(Arc::clone(&gate), &client);
    let mut other = Member::new(Arc::clone(&gate));
    assert!(coming.ask(0, 64 << 20));
    assert!(!going.ask(0, 64 << 20) && !other.ask(0, 1 << 20));
    watch(&gate, 12);
    assert!(!turn(&mut going), "it was first, and stands in its own way");
    assert!(turn(&mut other));
}

/// The others of the same host may be as dead, and wait in front of everybody else.
#[test]
fn an_address_that_stalls_does_not_get_all_of_what_it_has_set_aside() {
    let gate = Gate::new(64 << 20);
    let mut dead: Vec<Member> = (0..3).map(|_| from(&gate, 1)).collect();
    assert!(dead[0].ask(0, 64 << 20) && !dead[1].ask(0, 2 << 20) && !dead[2].ask(0, 2 << 20));
    let mut other = from(&gate, 2);
    assert!(!other.ask(0, 1 << 20));
    watch(&gate, 12);
    assert!(turn(&mut other) && other.ask(0, 1 << 20));
    other.settle(0);
    for one in &mut dead[1..] {
        let mut held = 0;
        while one.ask(held, 2 << 20) {
            held += 2 << 20;
        }
    }
    assert_eq!(gate.used(), 96 << 20, "half of it");
    for _ in 0..10 {
        assert!(other.ask(0, 30 << 20), "the other half waits for nobody");
        other.settle(0);
    }
}

#[test]
fn the_hall_is_small_and_watched_as_well() {
    let gate = Gate::new(64 << 20);
    let (client, others) = (Client::new(None, "half a segment"), Client::new(None, "another"));
    let mut first = Member::of(Arc::clone(gate.hall()), &client);
    let mut second = Member::of(Arc::clone(gate.hall()), &others);
    assert!(first.ask(0, 16 << 20) && !second.ask(0, 1 << 20));
    assert_eq!((gate.used(), gate.waiting()), (0, 1), "of no concern to the large one");
    first.note(16 << 20, 0);
    let seen = watch(&gate, 102);
    assert_eq!((seen.aside, seen.expelled.len()), (16 << 20, 1));
    assert!(turn(&mut second) && is_expelled(&first));
    gate.set_max(32 << 20);
    assert_eq!(gate.hall().max(), 8 << 20);
}

/// The look at the hall took back what was found at the large gate a moment before, and who stood in its own way there was
/// given what others were to have.
#[test]
fn who_stalls_at_the_large_gate_stays_aside_there_while_others_wait_in_the_hall() {
    let gate = Gate::new(64 << 20);
    let client = Client::new(None, "one");
    let [mut holds, mut wants] = [(); 2].map(|()| Member::of(Arc::clone(&gate), &client));
    let _receives = Member::of(Arc::clone(gate.hall()), &client);
    let mut other = Member::new(Arc::clone(&gate));
    let [mut sends, mut waits] = [(); 2].map(|()| Member::new(Arc::clone(gate.hall())));
    assert!(holds.ask(0, 64 << 20));
    assert!(!wants.ask(0, 32 << 20) && !other.ask(0, 1 << 20));
    assert!(sends.ask(0, 16 << 20) && !waits.ask(0, 1 << 20));
    watch(&gate, 12);
    assert!(turn(&mut other) && other.ask(0, 1 << 20));
    other.settle(0);
    assert!(!turn(&mut wants), "there is room for others");
}
