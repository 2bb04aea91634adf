//! Thick volumes stay thick: what is set aside for one is enough on the devices that its pool has, whatever sectors those
//! have, and on which devices it would not be is said before they come.

use crate::support::Lab;

/// The property was kept and shown, and nothing followed it: what was added to a pool that was made with larger sectors had those
/// of 4K, for good.
#[test]
fn devices_that_are_added_have_the_sectors_that_the_pool_was_told() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M -o ashift=13 tank {here}/a")).ok();
    assert_eq!(lab.run("zpool get -H -o value ashift tank").ok(), "13\n");
    let planned = lab.run(&format!("zpool add -n --size 128M tank {here}/b")).ok();
    assert!(planned.contains("smallest block on them, for good: 8K (ashift 13)"), "{planned}");
    lab.run(&format!("zpool add --size 128M tank {here}/b")).ok();
    lab.run(&format!("zpool add --size 128M -o ashift=9 tank {here}/c")).ok();
    lab.run(&format!("zpool add --size 128M -o ashift=0 tank {here}/d")).ok();
    lab.run("zpool set ashift=14 tank").ok();
    lab.run(&format!("zpool add --size 128M tank {here}/e")).ok();
    lab.run("zpool set ashift=0 tank").ok();
    lab.run(&format!("zpool add --size 128M tank {here}/f")).ok();
    for (device, shift) in [("a", 13), ("b", 13), ("c", 9), ("d", 12), ("e", 14), ("f", 12)] {
        let label = lab.run(&format!("dump -l {here}/{device}")).ok();
        assert!(label.contains(&format!("ashift: {shift}\n")), "{device}: {label}");
    }
}

/// A vdev of larger sectors came without a word, and thick volumes needed twice what they had reserved; one that was made larger
/// kept the reservation of its former size.
#[test]
fn devices_that_make_thick_volumes_thin_are_told_of() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let six =
        |of: &str| (0..6).map(|number| format!("{here}/{of}{number}")).collect::<Vec<String>>().join(" ");
    lab.run(&format!("zpool create --size 128M -o ashift=9 tank raidz2 {}", six("a"))).ok();
    // As OpenZFS leaves it.
    lab.run("zpool set ashift=0 tank").ok();
    lab.run("zfs create -V 64M -b 8K tank/thick").ok();
    lab.run("zfs create -s -V 64M -b 8K tank/thin").ok();
    let same = lab.run(&format!("zpool add -n --size 128M tank raidz2 {}", six("b")));
    assert!(same.code == Some(0) && same.stdout.contains("(ashift 9)"), "{} {}", same.stdout, same.stderr);
    assert!(!same.stderr.contains("refreservation"), "{}", same.stderr);
    let add = format!("--size 128M -o ashift=0 tank raidz2 {}", six("b"));
    let refused = lab.run(&format!("zpool add {add}")).fails(1);
    assert!(refused.contains("mismatched sector size: pool uses 512 bytes and new vdev 4096"), "{refused}");
    assert!(refused.contains("use '-f'") && refused.contains("-o ashift=9"), "{refused}");
    for line in [format!("zpool add -n -f {add}"), format!("zpool add -f {add}")] {
        let added = lab.run(&line);
        assert_eq!(added.code, Some(0), "{}", added.stderr);
        assert!(added.stderr.contains("'zfs set refreservation=auto tank/thick'"), "{}", added.stderr);
        assert!(!added.stderr.contains("tank/thin"), "{}", added.stderr);
    }
    let reserved = || lab.run("zfs get -H -p -o value refreservation tank/thick").ok();
    // A reservation that was less than what it needs by now rose when it was made smaller.
    let number = || reserved().trim().parse::<u64>().unwrap();
    let before = number();
    lab.run("zfs set volsize=56M tank/thick").ok();
    assert!((56 << 20..=before).contains(&number()), "{before} {}", number());
    lab.run("zfs set volsize=96M tank/thick").ok();
    let grown = reserved();
    assert!(grown.trim().parse::<u64>().unwrap() >= 192 << 20, "{grown}");
    lab.run("zfs set refreservation=auto tank/thick").ok();
    assert_eq!(reserved(), grown);
}

/// Where sectors are larger than a volume's blocks `auto` is not enough. What was advised instead was not kept up when the volume
/// grew, and nothing was advised where a device for metadata had such sectors already.
#[test]
fn volumes_of_blocks_that_are_smaller_than_sectors_stay_thick() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 512M -o ashift=9 tank {here}/a")).ok();
    lab.run("zpool set ashift=0 tank").ok();
    lab.run("zfs create -V 16M -b 512 tank/v").ok();
    let special = lab.run(&format!("zpool add --size 512M -o ashift=12 tank special {here}/s"));
    assert_eq!(special.code, Some(0), "{}", special.stderr);
    assert!(!special.stderr.contains("refreservation"), "{}", special.stderr);
    let add = format!("--size 512M -o ashift=0 tank {here}/b");
    let refused = lab.run(&format!("zpool add {add}")).fails(1);
    assert!(refused.contains("mismatched sector size: pool uses 512 bytes and new vdev 4096"), "{refused}");
    let added = lab.run(&format!("zpool add -f {add}"));
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    let (_, advised) = added.stderr.split_once("'zfs set refreservation=").expect(&added.stderr);
    let advised = advised.split(' ').next().unwrap();
    assert!(advised.parse::<u64>().unwrap() >= 8 * (16 << 20), "{advised}");
    lab.run(&format!("zfs set refreservation={advised} tank/v")).ok();
    lab.run("zfs set volsize=32M tank/v").ok();
    let grown = lab.run("zfs get -H -p -o value refreservation tank/v").ok();
    assert!(grown.trim().parse::<u64>().unwrap() >= 8 * (32 << 20), "{grown}");
    lab.run("zfs set volsize=16M tank/v").ok();
    let reserved = lab.run("zfs get -H -p -o value refreservation tank/v").ok();
    assert_eq!(reserved.trim(), advised);
}

/// What one copy takes was set aside, where two are kept: what could always be written in full found no room.
#[test]
fn a_thick_clone_has_room_for_the_copies_that_it_inherits() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 192M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 8M -b 16K tank/v").ok();
    lab.run("zfs snapshot tank/v@s").ok();
    lab.run("zfs create -o copies=2 tank/two").ok();
    lab.run("zfs clone -o refreservation=auto tank/v@s tank/two/clone").ok();
    lab.run("zfs create -V 8M -b 16K tank/two/full").ok();
    let reserved = |dataset: &str| lab.run(&format!("zfs get -H -p -o value refreservation {dataset}")).ok();
    assert_eq!(reserved("tank/two/clone"), reserved("tank/two/full"));
}
