//! Snapshots and what comes of them: a clone is what was said of it, and what was written since a snapshot, or comes from
//! it, is told right wherever the snapshot is by then.

use crate::support::{
    Lab,
    wire::{Nbd, Wire},
};

/// It was said to be done, and the clone had the size of its snapshot, with a stray property on the devices.
#[test]
fn a_clone_has_the_size_that_it_is_given() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 192M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 16M -b 16K tank/v").ok();
    lab.run("zfs snapshot tank/v@s").ok();
    lab.run("zfs clone -o volsize=32M tank/v@s tank/c").ok();
    let value = |property: &str, dataset: &str| {
        lab.run(&format!("zfs get -H -p -o value,source {property} {dataset}")).ok().trim().to_owned()
    };
    assert_eq!(value("volsize", "tank/c"), "33554432\tlocal");
    lab.run("zfs clone -o volsize=32M -o refreservation=auto tank/v@s tank/thick").ok();
    lab.run("zfs create -V 32M -b 16K tank/full").ok();
    assert_eq!(value("refreservation", "tank/thick"), value("refreservation", "tank/full"));
    for (size, why) in [
        ("8M", "'volsize' of a clone cannot be less than that of its snapshot (16M)"),
        ("16777217", "'volsize' must be a multiple of volume block size (16K)"),
    ] {
        let said = lab.run(&format!("zfs clone -o volsize={size} tank/v@s tank/none")).fails(1);
        assert!(said.starts_with(&format!("cannot create 'tank/none': {why}\n")), "{said}");
    }
    let daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    Nbd::open(daemon.port("nbd"), "tank/c").unwrap().write(31 << 20, &[7; 4096], true).unwrap();
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zpool export tank").ok();
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
    }
}

/// It was refused, because the snapshot was not an ancestor of its own clone.
#[test]
fn a_clone_can_have_a_bookmark_of_its_origin() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 64M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 1M tank/v").ok();
    lab.run("zfs snapshot tank/v@first").ok();
    lab.run("zfs snapshot tank/v@mon").ok();
    lab.run("zfs clone tank/v@mon tank/test").ok();
    lab.run("zfs snapshot tank/v@later").ok();
    lab.run("zfs bookmark tank/v@mon tank/test#mon").ok();
    // And what is left of one, which it comes from as well.
    lab.run("zfs bookmark tank/v@first #first").ok();
    lab.run("zfs bookmark tank/v@later #later").ok();
    lab.run("zfs destroy tank/v@first").ok();
    lab.run("zfs bookmark tank/v#first tank/test#first").ok();
    let guid = |name: &str| lab.run(&format!("zfs get -H -p -o value guid {name}")).ok();
    assert_eq!(guid("tank/test#mon"), guid("tank/v@mon"));
    assert_eq!(guid("tank/test#first"), guid("tank/v#first"));
    for source in ["tank/v@later", "tank/v#later"] {
        let said = lab.run(&format!("zfs bookmark {source} tank/test#later")).fails(1);
        let why = "source is not an ancestor of the new bookmark's dataset";
        assert_eq!(said, format!("cannot create bookmark 'tank/test#later': {why}\n"), "{source}");
    }
    let said = lab.run("zfs bookmark tank/v@mon lake/v#mon").fails(1);
    assert_eq!(said, "cannot create bookmark 'lake/v#mon': bookmark is in a different pool\n");
    let shown = lab.run("zfs list -H -o name -t bookmark tank/test").ok();
    assert_eq!(shown.lines().collect::<Vec<_>>(), ["tank/test#first", "tank/test#mon"]);
}

/// It was taken for a property and shown as `-`.
#[test]
fn what_was_written_since_any_snapshot_is_told_and_nothing_where_there_was_none() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 128M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 8M -b 16K -o compression=off tank/v").ok();
    let daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    let port = daemon.port("nbd");
    let write = |offset: u64, byte: u8| {
        Nbd::open(port, "tank/v").unwrap().write(offset, &vec![byte; 1 << 20], true).unwrap();
    };
    write(0, 1);
    lab.run("zfs snapshot tank/v@a").ok();
    write(0, 2);
    lab.run("zfs snapshot tank/v@b").ok();
    write(2 << 20, 3);
    lab.run("zfs clone tank/v@b tank/c").ok();
    lab.run("zpool sync tank").ok();
    let value = |property: &str, dataset: &str| {
        lab.run(&format!("zfs get -H -p -o value {property} {dataset}")).ok().trim().to_owned()
    };
    assert_eq!(value("written@b", "tank/v"), value("written", "tank/v"));
    assert_eq!(value("written@a", "tank/v@b"), value("written", "tank/v@b"));
    let number = |property: &str, dataset: &str| value(property, dataset).parse::<u64>().unwrap();
    let since_a = number("written@a", "tank/v");
    assert!((2 << 20..3 << 20).contains(&since_a), "what was overwritten counts, too: {since_a}");
    // A clone knows its origin's by their whole names.
    let of_both = number("written", "tank/v@b") + number("written", "tank/c");
    assert!((1 << 20..=of_both).contains(&number("written@tank/v@a", "tank/c")), "{of_both}");
    for none in [("written@a", "tank/c"), ("written@b", "tank/v@a"), ("written@nothing", "tank/v")] {
        assert_eq!(value(none.0, none.1), "-", "{none:?}");
    }
    let listed = lab.run("zfs list -H -p -o written@a tank/v").ok();
    assert_eq!(listed, format!("{since_a}\n"));
    // What came and went in between does not.
    write(4 << 20, 5);
    lab.run("zfs snapshot tank/v@c").ok();
    write(4 << 20, 6);
    lab.run("zpool sync tank").ok();
    for (property, megabytes) in [("written@c", 1), ("written@b", 2), ("written@a", 3)] {
        let written = number(property, "tank/v");
        assert!((megabytes << 20..(megabytes + 1) << 20).contains(&written), "{property}: {written}");
    }
}
