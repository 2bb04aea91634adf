//! What a disk tells of itself unasked: which of its ports take data, and how much room is left.

use block::Space;
use scsi::{Access, NexusId, PortGroup};

use crate::{commands::register, lab::Lab};

#[test]
fn a_standby_port_tells_who_it_is_and_takes_no_data() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/csv");
    let here = lab.attach(&disk, "iqn.node1");
    let there_id = NexusId { initiator: "iqn.node1,i,0x000000000002".into(), port: 2 };
    let there = disk.unit.attach_at(there_id, None);
    disk.sense(&there, &[0], &[]);
    let head = |id, access, port| PortGroup { id, access, preferred: false, ports: vec![port] };
    lab.service.set_port_groups(vec![head(1, Access::ActiveOptimized, 1), head(2, Access::Standby, 2)]);
    for nexus in [&here, &there] {
        assert_eq!(disk.sense(nexus, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1], &[]), (6, 0x2a, 6));
    }
    let write: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1];
    disk.good(&here, write, &[1; 512]);
    assert_eq!(disk.sense(&there, write, &[1; 512]), (2, 4, 0x0b));
    assert_eq!(disk.sense(&there, &[0], &[]), (2, 4, 0x0b));
    disk.good(&there, &[0x12, 0, 0, 0, 96], &[]);
    let groups: &[u8] = &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(disk.good(&there, groups, &[]).len(), 4 + 12 + 12);
    let (cdb, list) = register(6, 0, 9, 0);
    disk.good(&there, &cdb, &list); // reservations are made by every path
    // It takes over.
    lab.service.set_port_groups(vec![head(1, Access::Unavailable, 1), head(2, Access::ActiveOptimized, 2)]);
    for nexus in [&here, &there] {
        assert_eq!(disk.sense(nexus, groups, &[]), (6, 0x2a, 6));
    }
    disk.good(&there, write, &[2; 512]);
    assert_eq!(disk.sense(&here, write, &[1; 512]), (2, 4, 0x0c));
    // States change here implicitly: a host cannot set them.
    assert_eq!(disk.sense(&there, &[0xa4, 0x0a], &[]), (5, 0x20, 0));
}

#[test]
fn falling_below_the_threshold_is_told_once() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/thin");
    let nexus = lab.attach(&disk, "iqn.node1");
    let space = |available| {
        disk.volume.set_space(Space { used: 1 << 20, available, wanted: 0 });
        disk.unit.announce();
    };
    space(100 << 20);
    disk.unit.set_threshold(50 << 20);
    disk.good(&nexus, &[0], &[]);
    space(49 << 20);
    space(48 << 20);
    assert_eq!(disk.sense(&nexus, &[0], &[]), (6, 0x38, 7));
    disk.good(&nexus, &[0], &[]);
    space(60 << 20);
    disk.good(&nexus, &[0], &[]);
    space(1 << 20);
    assert_eq!(disk.sense(&nexus, &[0], &[]), (6, 0x38, 7), "each crossing anew");
    let page = disk.good(&nexus, &[0x4d, 0, 0x4c, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!(page[8..12], [0, 0, 0, 1], "MiB that are left");
    let provisioning = disk.good(&nexus, &[0x12, 1, 0xb2, 0, 64], &[]);
    assert_eq!(provisioning[4], 11);
}

#[test]
fn a_threshold_that_was_chosen_is_told_to_all_and_one_that_follows_the_volume_to_nobody() {
    let lab = Lab::new();
    let disk = lab.shared_disk("tank/thin");
    let hosts = [lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2")];
    disk.unit.threshold_chosen();
    hosts.iter().for_each(|host| drop(disk.good(host, &[0], &[])));
    // It has room that can run short, and a page that says so.
    disk.volume.set_space(Space { used: 1 << 20, available: 100 << 20, wanted: 0 });
    disk.unit.set_threshold(50 << 20);
    hosts.iter().for_each(|host| drop(disk.good(host, &[0], &[])));
    disk.unit.set_threshold(20 << 20);
    disk.unit.threshold_chosen();
    for host in &hosts {
        assert_eq!(disk.sense(host, &[0], &[]), (6, 0x2a, 1));
        disk.good(host, &[0], &[]);
    }
}
