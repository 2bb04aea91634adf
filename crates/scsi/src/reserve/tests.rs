use super::*;
use crate::cdb::Command;

fn id(name: &str) -> NexusId {
    at(name, 1)
}

fn at(name: &str, port: u16) -> NexusId {
    NexusId { initiator: format!("{name},i,0x000000000001").into(), port }
}

/// Sends one command as the unit does: to a copy, which becomes the state if it was taken.
fn send(r: &mut Reservations, who: &NexusId, action: u8, kind: u8, list: &[u8]) -> Result<Outcome, Refusal> {
    let mut next = r.clone();
    let attached = [id("alice"), id("bob"), at("bob", 2)];
    let request = Request {
        from: who,
        action,
        scope: 0,
        kind,
        list,
        ports: &[1, 2],
        attached: &attached,
        can_keep: true,
    };
    let outcome = next.act(&request)?;
    *r = next;
    Ok(outcome)
}

fn list(key: u64, service: u64, flags: u8) -> Vec<u8> {
    let mut list = key.to_be_bytes().to_vec();
    list.extend(service.to_be_bytes());
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

fn out(
    r: &mut Reservations,
    who: &str,
    action: u8,
    kind: u8,
    key: u64,
    service: u64,
) -> Result<Outcome, Refusal> {
    send(r, &id(who), action, kind, &list(key, service, 0))
}

/// Alice (key 1) and Bob (key 2) are registered, Carol is not; Alice reserves.
fn reserved(kind: u8) -> Reservations {
    let mut r = Reservations::default();
    out(&mut r, "alice", 0, 0, 0, 1).unwrap();
    out(&mut r, "bob", 0, 0, 0, 2).unwrap();
    out(&mut r, "alice", 1, kind, 1, 0).unwrap();
    r
}

/// As in the standard's table. Under write exclusive a stranger was not told of the disk's cache, and Linux takes a disk that
/// does not tell for one that has none: it wrote without flushes from then on.
#[test]
fn what_strangers_may_ask_is_of_the_class_that_the_standard_says() {
    let class_of = |cdb: &[u8]| {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        class(&Command::parse(&padded).unwrap())
    };
    for cdb in [
        &[0x1a, 0x08, 0x08, 0, 64, 0][..],                       // MODE SENSE(6)
        &[0x5a, 0x08, 0x08, 0, 0, 0, 0, 0, 64, 0],               // MODE SENSE(10)
        &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0],             // REPORT SUPPORTED OPERATION CODES
        &[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0],            // REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS
        &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0],                      // READ(10)
        &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], // GET LBA STATUS
    ] {
        assert_eq!(class_of(cdb), Class::Reads, "{cdb:x?}");
    }
    for cdb in [
        &[0x15, 0x10, 0, 0, 24, 0][..],      // MODE SELECT(6)
        &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0],  // WRITE(10)
        &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0],  // SYNCHRONIZE CACHE(10)
        &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], // UNMAP
        &[0x1e, 0, 0, 0, 1, 0],              // PREVENT ALLOW MEDIUM REMOVAL, prevent
    ] {
        assert_eq!(class_of(cdb), Class::Writes, "{cdb:x?}");
    }
    for cdb in [
        &[0; 6][..],                                              // TEST UNIT READY
        &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], // READ CAPACITY(16)
        &[0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0],  // RECEIVE COPY OPERATING PARAMETERS
        &[0x84, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0],  // RECEIVE COPY STATUS(LID4)
        &[0x84, 0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0],  // RECEIVE ROD TOKEN INFORMATION
    ] {
        assert_eq!(class_of(cdb), Class::Ready, "{cdb:x?}");
    }
    assert_eq!(class_of(&[0x12, 0, 0, 0, 64, 0]), Class::Identity, "INQUIRY");
    assert_eq!(class_of(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 32, 0]), Class::State, "PERSISTENT RESERVE IN");
    let stranger = id("carol");
    for (kind, limits) in [
        (1, limit::WRITE),
        (3, limit::READ | limit::WRITE),
        (5, limit::WRITE),
        (6, limit::READ | limit::WRITE),
        (7, limit::WRITE),
        (8, limit::READ | limit::WRITE),
    ] {
        assert_eq!(reserved(kind).limits(&stranger), limits, "type {kind}");
    }
}

fn move_list(key: u64, service: u64, flags: u8, port: u16, to: &NexusId) -> Vec<u8> {
    let mut list = key.to_be_bytes().to_vec();
    list.extend(service.to_be_bytes());
    list.extend([0, flags]);
    list.extend(port.to_be_bytes());
    let transport = lists::transport_id(&to.initiator);
    list.extend((transport.len() as u32).to_be_bytes());
    list.extend(transport);
    list
}

#[test]
fn who_may_read_and_write_under_each_type() {
    for (kind, bob, carol) in [
        (1, limit::WRITE, limit::WRITE),
        (3, limit::READ | limit::WRITE, limit::READ | limit::WRITE),
        (5, 0, limit::WRITE),
        (6, 0, limit::READ | limit::WRITE),
        (7, 0, limit::WRITE),
        (8, 0, limit::READ | limit::WRITE),
    ] {
        let r = reserved(kind);
        assert_eq!(r.limits(&id("alice")), 0, "{kind}");
        assert_eq!(r.limits(&id("bob")), bob, "{kind}");
        assert_eq!(r.limits(&id("carol")), carol, "{kind}");
        assert_eq!(
            r.limits(&at("alice", 2)),
            carol,
            "{kind}: the same initiator at another port is a stranger"
        );
    }
}

#[test]
fn a_preempted_holder_loses_disk_and_registration_and_is_told() {
    let mut r = reserved(5);
    let outcome = out(&mut r, "bob", 5, 5, 2, 1).unwrap();
    assert_eq!(outcome.attentions, [(id("alice"), Sense::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(outcome.abort, [id("alice")]);
    assert_eq!(r.limits(&id("alice")), limit::WRITE);
    assert!(r.holds(&id("bob")));
}

/// Under 1 and 3 nobody but the holder could do what now some can, or the other way round.
#[test]
fn a_preemption_that_changes_the_type_tells_all_who_stay_registered() {
    for before in [1, 3, 5, 6] {
        for after in [1, 3, 5, 6, 7, 8] {
            let mut r = reserved(before);
            out(&mut r, "dave", 0, 0, 0, 4).unwrap();
            let outcome = out(&mut r, "bob", 4, after, 2, 1).unwrap();
            let mut told = vec![(id("alice"), Sense::REGISTRATIONS_PREEMPTED)];
            if before != after {
                told.push((id("dave"), Sense::RESERVATIONS_RELEASED));
            }
            assert_eq!(outcome.attentions, told, "{before} to {after}");
        }
    }
}

/// As `sg_persist --preempt` sends it, who gives no type where none is needed.
#[test]
fn who_preempts_registrations_only_needs_no_type_and_does_not_spare_itself() {
    let mut r = reserved(5);
    assert!(out(&mut r, "bob", 4, 0, 2, 1).is_err(), "the reservation would be of that type");
    out(&mut r, "dave", 0, 0, 0, 4).unwrap();
    let outcome = out(&mut r, "alice", 4, 0, 1, 4).unwrap();
    assert_eq!(outcome.attentions, [(id("dave"), Sense::REGISTRATIONS_PREEMPTED)]);
    assert!(r.key_of(&id("dave")).is_none() && r.holds(&id("alice")));
    out(&mut r, "dave", 0, 0, 0, 2).unwrap();
    let outcome = out(&mut r, "bob", 5, 0, 2, 2).unwrap();
    assert_eq!((outcome.attentions.len(), &outcome.abort[..]), (1, &[id("dave")][..]));
    assert!(r.key_of(&id("bob")).is_none() && r.key_of(&id("dave")).is_none());
}

#[test]
fn unregistering_the_holder_tells_the_others_but_never_itself() {
    let mut r = reserved(6);
    let outcome = out(&mut r, "alice", 0, 0, 1, 0).unwrap();
    assert_eq!(outcome.attentions, [(id("bob"), Sense::RESERVATIONS_RELEASED)]);
    assert_eq!(r.limits(&id("carol")), 0);
}

#[test]
fn an_all_registrants_reservation_ends_with_its_last_registrant_only() {
    let mut r = reserved(8);
    assert!(out(&mut r, "alice", 0, 0, 1, 0).unwrap().attentions.is_empty());
    assert_eq!(r.limits(&id("bob")), 0);
    assert_eq!(r.limits(&id("alice")), limit::READ | limit::WRITE);
    // It says so after a power cut, too, though who made it is gone.
    let mut kept = r.clone();
    kept.persistent = true;
    let back = Reservations::restore(Some(&kept.encode()));
    assert_eq!((back.limits(&id("bob")), back.limits(&id("alice"))), (0, limit::READ | limit::WRITE));
    out(&mut r, "bob", 0, 0, 2, 0).unwrap();
    assert_eq!(r.limits(&id("alice")), 0);
}

#[test]
fn a_wrong_key_changes_nothing() {
    let mut r = reserved(5);
    let before = r.clone();
    for action in 1..=5 {
        assert!(matches!(out(&mut r, "bob", action, 5, 99, 1), Err(Refusal::Conflict)), "{action}");
    }
    let list = move_list(99, 7, 0, 1, &id("bob"));
    assert!(matches!(send(&mut r, &id("alice"), 7, 5, &list), Err(Refusal::Conflict)));
    assert_eq!(r, before);
}

#[test]
fn each_change_of_registrations_counts_and_nothing_else_does() {
    let mut r = Reservations::default();
    let mut step = |who: &str, action, kind, key, service| {
        out(&mut r, who, action, kind, key, service).unwrap();
        r.generation
    };
    assert_eq!(step("alice", 0, 0, 0, 1), 1);
    assert_eq!(step("bob", 6, 0, 0, 2), 2);
    assert_eq!(step("alice", 1, 5, 1, 0), 2); // RESERVE
    assert_eq!(step("alice", 2, 5, 1, 0), 2); // RELEASE
    assert_eq!(step("carol", 6, 0, 0, 0), 2); // taking back nothing
    assert_eq!(step("alice", 4, 5, 1, 2), 3); // PREEMPT
    assert_eq!(step("alice", 3, 0, 1, 0), 4); // CLEAR
}

#[test]
fn all_tg_pt_registers_at_every_target_port_and_takes_back_there() {
    let mut r = Reservations::default();
    send(&mut r, &id("alice"), 0, 0, &list(0, 1, 0x04)).unwrap();
    assert!(r.key_of(&id("alice")).is_some() && r.key_of(&at("alice", 2)).is_some());
    assert_eq!(r.generation, 1);
    send(&mut r, &id("alice"), 0, 0, &list(1, 0, 0x04)).unwrap();
    assert!(!r.registered());
}

/// The portals of a group were gone for a while: who left then could write again by them when they were back.
#[test]
fn all_tg_pt_takes_back_at_ports_that_are_not_there_too() {
    let mut r = Reservations::default();
    send(&mut r, &at("alice", 3), 0, 0, &list(0, 1, 0)).unwrap();
    send(&mut r, &at("bob", 3), 0, 0, &list(0, 2, 0)).unwrap();
    send(&mut r, &id("alice"), 0, 0, &list(0, 1, 0x04)).unwrap();
    assert_eq!(r.registrants.len(), 4);
    send(&mut r, &id("alice"), 0, 0, &list(1, 0, 0x04)).unwrap();
    assert!(r.registrants.len() == 1 && r.key_of(&at("bob", 3)).is_some());
}

#[test]
fn spec_i_pt_registers_all_that_it_names_or_none() {
    let mut with_others = list(0, 9, 0x08);
    let mut ids = lists::transport_id(&id("bob").initiator);
    ids.extend(lists::transport_id(&id("carol").initiator));
    with_others.extend((ids.len() as u32).to_be_bytes());
    with_others.extend(&ids);

    let mut r = Reservations::default();
    send(&mut r, &id("alice"), 0, 0, &with_others).unwrap();
    for who in ["alice", "bob", "carol"] {
        assert_eq!(r.key_of(&id(who)), Some(9), "{who}");
        assert_eq!(r.key_of(&at(who, 2)), None, "{who}");
    }
    // Not with REGISTER AND IGNORE EXISTING KEY, not by who is registered, not where one is.
    let refused = |r: &mut Reservations, who: &str, action| {
        let before = r.clone();
        assert!(matches!(
            send(r, &id(who), action, 0, &with_others),
            Err(Refusal::Sense(_) | Refusal::Conflict)
        ));
        assert_eq!(*r, before);
    };
    refused(&mut r, "alice", 0);
    refused(&mut r, "dave", 6);
    refused(&mut r, "dave", 0);
    // A name without ISID means the ports of it that are logged in; one that is not logged in means nobody.
    for (name, known) in [("bob", true), ("erin", false)] {
        let mut named = list(0, 9, 0x08);
        let ids = lists::transport_id(name);
        named.extend((ids.len() as u32).to_be_bytes());
        named.extend(&ids);
        let mut r = Reservations::default();
        assert_eq!(send(&mut r, &id("alice"), 0, 0, &named).is_ok(), known, "{name}");
        assert_eq!(r.key_of(&id("bob")).is_some(), known);
    }
}

/// Each was meant as often as it was named, and compared with all others: seconds, while the disk answered nobody.
#[test]
fn a_list_that_names_many_nexuses_many_times_means_each_once_and_no_more_than_may_be_registered() {
    let sessions = |count: u32| -> Vec<NexusId> {
        (0..count).map(|n| NexusId { initiator: format!("bob,i,0x{n:012x}").into(), port: 1 }).collect()
    };
    let named = vec![Transport::Device("bob".to_owned()); 600];
    let meant = |count: u32| Reservations::default().named(&named, &[1], &sessions(count), &[]);
    assert_eq!(meant(1000).unwrap(), sessions(1000));
    assert_eq!(meant(2000).unwrap_err(), Sense::NO_REGISTRATION_RESOURCES);

    let mut list = list(0, 9, 0x08);
    let ids = lists::transport_id("bob").repeat(600);
    list.extend((ids.len() as u32).to_be_bytes());
    list.extend(&ids);
    let (mut r, from, attached) = (Reservations::default(), id("alice"), sessions(1000));
    let request = Request {
        from: &from,
        action: 0,
        scope: 0,
        kind: 0,
        list: &list,
        ports: &[1],
        attached: &attached,
        can_keep: true,
    };
    r.act(&request).unwrap();
    assert_eq!((r.registrants.len(), r.key_of(&attached[999])), (1001, Some(9)));
}

#[test]
fn a_moved_reservation_belongs_to_the_other_nexus() {
    let mut r = reserved(3);
    let to = at("bob", 2);
    send(&mut r, &id("alice"), 7, 3, &move_list(1, 7, 0x02, 2, &to)).unwrap();
    assert_eq!((r.key_of(&to), r.key_of(&id("alice"))), (Some(7), None));
    assert!(r.holds(&to));
    assert_eq!(r.limits(&id("alice")), limit::READ | limit::WRITE);
    // Without UNREG the one who gave it stays registered.
    let mut r = reserved(1);
    send(&mut r, &id("alice"), 7, 1, &move_list(1, 7, 0, 1, &id("dave"))).unwrap();
    assert_eq!(r.key_of(&id("alice")), Some(1));
    assert!(r.holds(&id("dave")));
}

#[test]
fn a_move_is_refused_where_there_is_nothing_to_move_or_nobody_to_take_it() {
    let to = at("bob", 2);
    let conflict = |kind, who: &str, key| {
        let mut r = reserved(kind);
        matches!(send(&mut r, &id(who), 7, kind, &move_list(key, 7, 0, 2, &to)), Err(Refusal::Conflict))
    };
    assert!(conflict(5, "bob", 2), "not the holder");
    assert!(conflict(7, "alice", 1), "held by all");
    let invalid = |list: Vec<u8>| {
        let mut r = reserved(5);
        matches!(send(&mut r, &id("alice"), 7, 5, &list), Err(Refusal::Sense(s)) if s.asc == 0x26 || s.asc == 0x1a)
    };
    assert!(invalid(move_list(1, 0, 0, 2, &to)), "a key of zero");
    assert!(invalid(move_list(1, 7, 0, 9, &to)), "no such target port");
    assert!(invalid(move_list(1, 7, 0, 1, &id("alice"))), "to itself");
    assert!(invalid(move_list(1, 7, 0, 2, &to)[..30].to_vec()), "cut off");
}

#[test]
fn what_is_kept_comes_back_without_its_generation() {
    let mut r = reserved(5);
    assert!(r.encode().is_empty(), "nobody asked for it");
    send(&mut r, &id("bob"), 6, 0, &list(0, 3, 0x01)).unwrap();
    let back = Reservations::restore(Some(&r.encode()));
    assert_eq!(back, Reservations { generation: 0, ..r.clone() });
}

/// One path that came back with APTPL=0 took from the pool what every host had asked to be kept.
#[test]
fn what_one_asked_to_be_kept_is_kept_until_nobody_is_registered() {
    let is_kept = |r: &Reservations| {
        let back = Reservations::restore(Some(&r.encode()));
        assert_eq!(r.report(2, true).unwrap()[3] & 1 == 1, back.registered(), "PTPL_A says what is done");
        back.registered()
    };
    let mut r = reserved(5);
    assert!(!is_kept(&r));
    send(&mut r, &id("bob"), 6, 0, &list(0, 2, 0x01)).unwrap();
    // The same path again, another one, one that goes, and whom a reservation was moved to; and who asked is preempted.
    let (dave, erin) = (id("dave"), id("erin"));
    let steps: [(&str, u8, Vec<u8>); 6] = [
        ("bob", 6, list(0, 2, 0)),
        ("carol", 0, list(0, 3, 0)),
        ("carol", 0, list(3, 0, 0)),
        ("alice", 7, move_list(1, 4, 0, 1, &dave)),
        ("dave", 7, move_list(4, 5, 0x02, 1, &erin)),
        ("alice", 4, list(1, 2, 0)),
    ];
    for (who, action, list) in steps {
        send(&mut r, &id(who), action, 5, &list).unwrap();
        assert!(is_kept(&r), "{who} {action}");
    }
    assert_eq!(r.key_of(&id("bob")), None);
    // The last ones go. Who comes then decides for itself.
    out(&mut r, "alice", 0, 0, 1, 0).unwrap();
    assert!(is_kept(&r));
    out(&mut r, "erin", 0, 0, 5, 0).unwrap();
    assert!(!is_kept(&r));
    for again in [0x01, 0x00] {
        send(&mut r, &id("alice"), 0, 0, &list(0, 1, again)).unwrap();
        assert_eq!(is_kept(&r), again == 0x01);
        out(&mut r, "alice", 3, 0, 1, 0).unwrap();
        assert!(!r.registered());
    }
}

#[test]
fn kept_bytes_that_make_no_sense_fence_everybody_until_one_clears() {
    let mut r = reserved(5);
    r.persistent = true;
    let good = r.encode();
    for cut in 1..good.len() {
        assert!(Reservations::restore(Some(&good[..cut])).unreadable(), "{cut}");
    }
    let mut newer = good;
    newer[4] = 2;
    let mut r = Reservations::restore(Some(&newer));
    assert_eq!(r.limits(&id("alice")), limit::READ | limit::WRITE);
    out(&mut r, "alice", 6, 0, 0, 1).unwrap();
    assert_eq!(r.limits(&id("alice")), limit::READ | limit::WRITE, "a registration alone shows nothing");
    out(&mut r, "alice", 3, 0, 1, 0).unwrap();
    assert_eq!(r.limits(&id("bob")), 0);
}

#[test]
fn persistence_is_refused_where_nothing_can_be_kept() {
    let (who, list) = (id("alice"), list(0, 1, 1));
    let request = Request {
        from: &who,
        action: 0,
        scope: 0,
        kind: 0,
        list: &list,
        ports: &[1],
        attached: &[],
        can_keep: false,
    };
    let mut r = Reservations::default();
    assert!(matches!(r.act(&request), Err(Refusal::Sense(s)) if s == Sense::parameter(20)));
    assert_eq!(r.report(2, false).unwrap()[2..4], [0x1c, 0x80]);
    assert_eq!(r.report(2, true).unwrap()[2..4], [0x1d, 0x80]);
}

#[test]
fn full_status_tells_each_nexus_its_port_key_and_whether_it_holds() {
    let r = reserved(1);
    let status = r.report(3, false).unwrap();
    assert_eq!(u32::from_be_bytes(status[4..8].try_into().unwrap()) as usize, status.len() - 8);
    let first = &status[8..];
    assert_eq!((first[7], first[12], first[13], first[19]), (1, 1, 1, 1));
    let len = u32::from_be_bytes(first[20..24].try_into().unwrap()) as usize;
    assert_eq!(&first[24..28], [0x45, 0, 0, (len - 4) as u8]);
    let second = &first[24 + len..];
    assert_eq!((second[7], second[12], second[13]), (2, 0, 0));
}
