//! Disks that come, go, and are still to come under hosts that are logged in: by which number each is found, who is told of it,
//! and what becomes of what was begun on one that has gone.

use std::sync::Arc;

use iscsi::{
    Form,
    pdu::{Header, NO_TAG, op},
};

use crate::hosts::{Host, cluster, disk, write10};

#[test]
fn disks_are_told_apart_by_their_numbers_also_above_255_whichever_form_these_have() {
    // As REPORT LUNS tells them, and as libiscsi writes them.
    let forms: [fn(u16) -> [u8; 8]; 2] = [scsi::lun_bytes, |lun| {
        let [high, low] = lun.to_be_bytes();
        [high, low, 0, 0, 0, 0, 0, 0]
    }];
    for form in forms {
        let targets = cluster(&[1, 5, 300]);
        let mut host = Host { form, ..Host::log_in(&targets, "iqn.one") };
        assert_eq!(host.luns(), [1, 5, 300], "asked of a LUN that has no disk");
        for lun in [1, 5, 300] {
            assert_eq!(host.settle(lun), [(0x29, 0)], "{lun}");
            assert_eq!(host.send(lun, &write10(0), &[lun as u8; 512], 0).0, 0);
        }
        for lun in [1, 5, 300] {
            let (_, data) = host.send(lun, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], 512);
            assert!(data == [lun as u8; 512], "{lun}");
        }
        let (_, inquiry) = host.send(0, &[0x12, 0, 0, 0, 96, 0], &[], 96);
        assert_eq!(inquiry[0], 0x7f);
        assert_eq!([2, 256].map(|lun| host.sense(lun, &[0])), [(5, 0x25, 0); 2]);
        // LOGICAL UNIT RESET.
        assert_eq!([300, 256].map(|lun| host.manage(5, lun, NO_TAG).0[2]), [0, 2]);
        assert_eq!((host.settle(300), host.settle(5)), (vec![(0x29, 3)], vec![]));
    }
}

#[test]
fn disks_come_and_go_under_hosts_that_are_logged_in() {
    let targets = cluster(&[0]);
    let target = targets.list().remove(0);
    let (mut asks, mut works) = (Host::log_in(&targets, "iqn.one"), Host::log_in(&targets, "iqn.two"));
    asks.settle(0);
    works.settle(0);
    target.add_lun(7, disk("tank/new"), Form { block_size: 4096, ..Form::default() }).unwrap();
    assert!(target.add_lun(7, disk("tank/other"), Form::default()).is_err());
    assert_eq!(works.sense(0, &write10(0)), (6, 0x3f, 0x0e), "told with its next command");
    assert_eq!(works.luns(), [0, 7]);
    assert_eq!(asks.luns(), [0, 7], "who asks of its own accord");
    assert_eq!(asks.settle(0), [], "need not be told");
    assert_eq!(asks.settle(7), [(0x29, 0)]);
    let (_, capacity) = asks.send(7, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8);
    assert_eq!(capacity, [0, 0, 0, 255, 0, 0, 0x10, 0]);
    assert!(target.remove_lun(7) && !target.remove_lun(7));
    assert_eq!(asks.sense(7, &[0]), (5, 0x25, 0));
    assert_eq!(asks.settle(0), [(0x3f, 0x0e)]);
    // Idle hosts hear of it, too.
    asks.session.announce_luns();
    let (h, body) = asks.replies().remove(0);
    assert_eq!((h.opcode(), h.0[36], body[4], body[14], body[15]), (op::ASYNC, 0, 6, 0x3f, 0x0e));
}

/// Hosts took it for removed (5/25/00), and gave up what was on it.
#[test]
fn a_disk_that_cannot_be_had_yet_is_known_by_its_name_and_not_ready_until_it_comes() {
    let targets = cluster(&[0]);
    let target = targets.list().remove(0);
    let volume = disk("tank/late");
    let kept = target.keep_lun(3, volume.identity(), Form::default()).unwrap();
    let mut host = Host::log_in(&targets, "iqn.one");
    host.settle(0);
    assert_eq!(host.luns(), [0, 3]);
    assert_eq!(host.sense(3, &[0]), (6, 0x29, 0));
    let not_ready = (2, 4, 1);
    for cdb in [&[0][..], &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &write10(0), &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0]]
    {
        assert_eq!(host.sense(3, cdb), not_ready, "{cdb:02x?}");
    }
    let name = |host: &mut Host| host.send(3, &[0x12, 1, 0x83, 1, 0, 0], &[], 256);
    let before = name(&mut host);
    assert!(before.0 == 0 && before.1[0] == 0, "a disk");
    // Nobody else has its place.
    assert!(target.add_lun(3, disk("tank/other"), Form::default()).is_err());
    assert_eq!(host.sense(3, &[0]), not_ready);
    let (status, asked) = host.send(3, &[3, 0, 0, 0, 252, 0], &[], 252);
    assert_eq!(
        (status, asked[2], asked[12], asked[13]),
        (0, 2, 4, 1),
        "who asks what it is like hears the same"
    );
    let unit = target.add_lun(3, Arc::clone(&volume), Form::default()).unwrap();
    assert!(unit.naa() == kept.naa() && !unit.is_coming());
    assert_eq!(host.settle(0), [(0x3f, 0x0e)], "told");
    assert_eq!(
        host.settle(3),
        [(0x29, 0), (0x2a, 9), (0x3f, 3)],
        "what it has seen of it is not true any more"
    );
    assert_eq!(Host::log_in(&targets, "iqn.two").settle(3), [(0x29, 0)], "who never saw it need not be told");
    assert_eq!(name(&mut host), before);
    assert_eq!(host.send(3, &write10(0), &[7; 512], 0).0, 0);
    assert!(target.add_lun(3, volume, Form::default()).is_err(), "it is there");
}

/// It was offered with the cache on and then switched: what was written in between was not stable, and hosts were told of a
/// change that was none.
#[test]
fn a_disk_without_write_cache_has_none_from_the_beginning() {
    let targets = cluster(&[]);
    let form = Form { write_cache: false, ..Form::default() };
    targets.list()[0].add_lun(0, disk("tank/safe"), form).unwrap();
    let mut host = Host::log_in(&targets, "iqn.one");
    assert_eq!(host.settle(0), [(0x29, 0)], "and nobody is told of a change");
    let (_, page) = host.send(0, &[0x1a, 8, 8, 0, 64, 0], &[], 64);
    assert_eq!((page[4], page[6] & 4), (8, 0), "WCE");
}

#[test]
fn a_disk_taken_away_while_data_comes_gets_none_of_it_nor_does_the_next_of_its_number() {
    for (comes_another, is_told) in [(false, true), (false, false), (true, true), (true, false)] {
        let targets = cluster(&[0, 1]);
        let target = &targets.list()[0];
        let mut host = Host::log_in(&targets, "iqn.one");
        host.settle(1);
        host.start(1, &write10(0), 0x20, 512, &[]);
        let (r2t, _) = host.replies().remove(0);
        target.remove_lun(1);
        if comes_another {
            target.add_lun(1, disk("tank/other"), Form::default()).unwrap();
        }
        if is_told {
            host.luns();
        }
        let mut d = Header::new(op::DATA_OUT);
        d.set(16, r2t.itt()).set(20, r2t.word20());
        host.push(d, &[9; 512]);
        let (h, sense) = host.run().remove(0);
        let answer = (h.opcode(), h.0[3], sense[4], sense[14]);
        assert_eq!(answer, (op::RESPONSE, 2, 5, 0x25), "{comes_another} {is_told}");
        if comes_another {
            host.settle(1);
            assert_eq!(host.send(1, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], 512).1, [0; 512]);
        }
    }
}

/// What was written to the volume afterwards by another disk would not have ended it.
#[test]
fn a_token_of_a_disk_that_was_taken_away_stands_for_nothing() {
    let targets = cluster(&[0, 1]);
    let (mut host, mut idle) = (Host::log_in(&targets, "iqn.one"), Host::log_in(&targets, "iqn.two"));
    for lun in [0, 1] {
        host.settle(lun);
        idle.settle(lun); // and holds what it was offered until its next command
    }
    let range = [0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0];
    let populate = [[0; 14].as_slice(), &range].concat();
    let command = |action: u8, list: &[u8]| {
        let [high, low] = (list.len() as u16).to_be_bytes();
        [0x83, action, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, high, low, 0, 0]
    };
    assert_eq!(host.send(1, &command(0x10, &populate), &populate, 0).0, 0);
    let (_, info) = host.send(1, &[0x84, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[], 1024);
    let paste = [[0; 16].as_slice(), &info[38..], &[0; 6], &range].concat();
    assert_eq!(host.send(0, &command(0x11, &paste), &paste, 0).0, 0);
    assert!(targets.list()[0].remove_lun(1));
    host.settle(0);
    let (status, sense) = host.send(0, &command(0x11, &paste), &paste, 0);
    assert_eq!((status, sense[4], sense[14], sense[15]), (2, 5, 0x23, 6), "revoked");
}
