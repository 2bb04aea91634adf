//! What Proxmox's stock storage providers run over ssh for "ZFS over iSCSI" with the comstar provider: the exact words,
//! and what their regular expressions take out of the answers. Facts: proxmox/pve-storage, `ZFSPlugin`, `ZFSPoolPlugin`,
//! `LunCmd/Comstar`.

use std::process::Command;

use crate::support::{Lab, Outcome, ask, served_as};

const BASE: &str = "/dev/zvol/rdsk";

/// The storage server as Proxmox sees it: one command line after the other, by a shell.
struct Server {
    lab: Lab,
}

impl Server {
    fn run(&self, line: &str) -> Outcome {
        let mut words = line.split_whitespace();
        let program = words.next().unwrap().rsplit('/').next().unwrap().to_owned();
        self.lab.run_args(&program, words)
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        self.run(line).ok()
    }

    /// `list_lu`: a line that ends in white space, digits, white space and the path; the word before that is the name.
    fn lu(&self, path: &str) -> Option<String> {
        let listed = self.ok("/usr/sbin/sbdadm list-lu");
        let line = listed.lines().find(|line| line.ends_with(path))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [guid, size, found] = words[..] else { panic!("{line}") };
        assert!(size.bytes().all(|b| b.is_ascii_digit()) && found == path, "{line}");
        Some(guid.to_owned())
    }

    /// `list_view`: the number in `^\s*LUN\s*:\s*(\d+)$`.
    #[track_caller]
    fn lun(&self, guid: &str) -> u16 {
        let listed = self.ok(&format!("/usr/sbin/stmfadm list-view -l {guid}"));
        let line = listed.lines().find(|line| line.trim_start().starts_with("LUN")).expect("a LUN");
        let (name, number) = line.split_once(':').unwrap();
        assert_eq!(name.trim(), "LUN");
        number.trim_start().parse().expect("digits up to the end of the line")
    }

    /// `zfs_create_lu` and `zfs_add_lun_mapping_entry`; the name is made of the path's MD5 on the other side.
    #[track_caller]
    fn publish(&self, volume: &str, guid: &str) {
        self.ok(&format!("/usr/sbin/stmfadm create-lu -p wcd=false -p guid={guid} {BASE}/tank/pve/{volume}"));
        self.ok(&format!("/usr/sbin/stmfadm add-view {guid}"));
    }
}

#[test]
fn disks_are_made_resized_snapshotted_cloned_and_freed_as_proxmox_does_it() {
    let lab = Lab::scratch();
    let disk = lab.cwd().join("a").display().to_string();
    lab.run(&format!("zpool create --size 192M tank {disk}")).ok();
    lab.run("zfs create tank/pve").ok();
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 tank");
    let server = Server { lab };
    let (first, second) =
        (format!("600144f{}", "0a".repeat(12) + "1"), format!("600144f{}", "0b".repeat(12) + "2"));

    // status, list_images, find_free_diskname
    let stats = server.ok("zfs get -o value -Hp available,used tank/pve");
    assert_eq!(stats.lines().filter(|line| line.parse::<u64>().is_ok()).count(), 2, "{stats}");
    assert_eq!(server.ok("zpool list -o name -H tank"), "tank\n");
    let none =
        server.ok("zfs list -o name,volsize,origin,type,refquota -t volume,filesystem -d1 -Hp tank/pve");
    let fields: Vec<&str> = none.trim_end().split('\t').collect();
    assert_eq!((fields[0], fields[1], fields[2], fields[3]), ("tank/pve", "-", "-", "filesystem"));

    // alloc_image, path
    assert_eq!(server.lu(&format!("{BASE}/tank/pve/vm-100-disk-0")), None);
    server.ok("zfs create -s -b 16k -V 8192k tank/pve/vm-100-disk-0");
    server.publish("vm-100-disk-0", &first);
    server.ok("zfs create -b 16k -V 4096k tank/pve/vm-100-disk-1");
    server.publish("vm-100-disk-1", &second);
    assert_eq!(server.lu(&format!("{BASE}/tank/pve/vm-100-disk-0")).as_deref(), Some(first.as_str()));
    assert_eq!((server.lun(&first), server.lun(&second)), (0, 1));
    let target = "iqn.2026-11.io.millpond:tank";
    assert!(served_as(&server.lab, "tank/pve/vm-100-disk-1", "iscsi").ends_with(&format!("/{target}/1")));
    let listed =
        server.ok("zfs list -o name,volsize,origin,type,refquota -t volume,filesystem -d1 -Hp tank/pve");
    assert!(listed.contains("tank/pve/vm-100-disk-0\t8388608\t-\tvolume\t-\n"), "{listed}");
    assert_eq!(
        server.ok("zfs get -o value -Hp volsize,usedbydataset tank/pve/vm-100-disk-0").lines().next(),
        Some("8388608")
    );

    // volume_resize
    server.ok("zfs set volsize=16384k tank/pve/vm-100-disk-0");
    server.ok(&format!("/usr/sbin/stmfadm modify-lu -s 16384K {first}"));
    let wrong = server.run(&format!("/usr/sbin/stmfadm modify-lu -s 32768K {first}")).fails(1);
    assert!(wrong.starts_with("stmfadm: ") && wrong.contains("zfs set volsize"), "{wrong}");
    if let Some(qemu_img) = fixtures::tool("qemu-img") {
        let url = served_as(&server.lab, "tank/pve/vm-100-disk-0", "iscsi");
        let output = Command::new(qemu_img).args(["info", "--output=json", &url]).output().unwrap();
        assert!(String::from_utf8(output.stdout).unwrap().contains("\"virtual-size\": 16777216"));
    }

    // volume_snapshot, volume_rollback_is_possible, volume_snapshot_info
    server.ok("zfs snapshot tank/pve/vm-100-disk-0@one");
    server.ok("zfs snapshot tank/pve/vm-100-disk-0@two");
    assert_eq!(
        server.ok("zfs list -H -r -t snapshot -o name -s creation tank/pve/vm-100-disk-0"),
        "tank/pve/vm-100-disk-0@one\ntank/pve/vm-100-disk-0@two\n"
    );
    let info = server.ok("zfs list -Hp -r -t snapshot -o name,guid,creation tank/pve/vm-100-disk-0");
    for line in info.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert!(fields.len() == 3 && fields[1..].iter().all(|field| field.parse::<u64>().is_ok()), "{line}");
    }
    server.ok("zfs destroy tank/pve/vm-100-disk-0@two");

    // volume_snapshot_rollback: the number stays although others came meanwhile
    server.ok(&format!("/usr/sbin/stmfadm delete-lu {first}"));
    assert_eq!(server.lu(&format!("{BASE}/tank/pve/vm-100-disk-0")), None);
    let third = format!("600144f{}", "0c".repeat(12) + "3");
    server.ok("zfs create -s -b 16k -V 4096k tank/pve/vm-101-disk-0");
    server.publish("vm-101-disk-0", &third);
    assert_eq!(server.lun(&third), 2);
    server.ok("zfs rollback tank/pve/vm-100-disk-0@one");
    server.ok(&format!("/usr/sbin/stmfadm import-lu {BASE}/tank/pve/vm-100-disk-0"));
    let back = server.lu(&format!("{BASE}/tank/pve/vm-100-disk-0")).unwrap();
    assert_eq!(back, first);
    server.ok(&format!("/usr/sbin/stmfadm add-view {back}"));
    assert_eq!(server.lun(&first), 0);

    // create_base
    server.ok(&format!("/usr/sbin/stmfadm delete-lu {second}"));
    server.ok("zfs rename tank/pve/vm-100-disk-1 tank/pve/base-100-disk-1");
    let base = format!("600144f{}", "0d".repeat(12) + "4");
    server.publish("base-100-disk-1", &base);
    server.ok("zfs snapshot tank/pve/base-100-disk-1@__base__");
    assert_eq!(server.lun(&base), 1);

    // clone_image, list_images
    server.ok("zfs clone tank/pve/base-100-disk-1@__base__ tank/pve/vm-102-disk-0");
    let clone = format!("600144f{}", "0e".repeat(12) + "5");
    server.publish("vm-102-disk-0", &clone);
    let listed =
        server.ok("zfs list -o name,volsize,origin,type,refquota -t volume,filesystem -d1 -Hp tank/pve");
    assert!(
        listed.contains("tank/pve/vm-102-disk-0\t4194304\ttank/pve/base-100-disk-1@__base__\tvolume\t-\n"),
        "{listed}"
    );

    // A disk of the name of one that was made a template is another one, under its name's old digits.
    server.ok("zfs create -s -b 16k -V 4096k tank/pve/vm-100-disk-1");
    server.publish("vm-100-disk-1", &second);

    // free_image
    for (guid, name) in [(&clone, "vm-102-disk-0"), (&first, "vm-100-disk-0"), (&third, "vm-101-disk-0")] {
        server.ok(&format!("/usr/sbin/stmfadm delete-lu {guid}"));
        server.ok(&format!("zfs destroy -r tank/pve/{name}"));
        let gone = server.run(&format!("zfs destroy -r tank/pve/{name}")).fails(1);
        assert!(gone.contains("dataset does not exist"), "{gone}");
    }
    // A template whose clones are gone goes, too.
    server.ok(&format!("/usr/sbin/stmfadm delete-lu {base}"));
    server.ok("zfs destroy -r tank/pve/base-100-disk-1");
}

/// Whether anybody can have it.
fn is_offered(server: &Server, volume: &str) -> bool {
    let served = ask(&server.lab, "/v1/served");
    served["served"].as_array().unwrap().iter().any(|served| served["dataset"] == volume)
}

/// Its name was given to the new disk, and without one it was a volume like any other: offered to everybody.
#[test]
fn a_disk_that_was_closed_stays_closed_when_another_gets_its_name() {
    let lab = Lab::scratch();
    let disk = lab.cwd().join("a").display().to_string();
    lab.run(&format!("zpool create --size 128M tank {disk}")).ok();
    lab.run("zfs create tank/pve").ok();
    lab.run("zfs create -s -V 4M tank/pve/a").ok();
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 tank");
    let server = Server { lab };
    let guid = format!("600144f{}", "0a".repeat(12) + "1");
    server.publish("a", &guid);
    server.ok(&format!("stmfadm delete-lu {guid}"));
    assert!(!is_offered(&server, "tank/pve/a"));
    server.ok("zfs rename tank/pve/a tank/pve/a-old");
    server.ok("zfs create -s -V 4M tank/pve/a");
    server.publish("a", &guid);
    assert!(is_offered(&server, "tank/pve/a") && !is_offered(&server, "tank/pve/a-old"));
    // It can be had again, by a name of its own.
    let back = server.ok(&format!("stmfadm import-lu {BASE}/tank/pve/a-old"));
    let back = back.trim().strip_prefix("Logical unit imported: ").unwrap();
    assert!(back.len() == 32 && back != guid, "{back}");
    assert_eq!(server.lu(&format!("{BASE}/tank/pve/a")).as_deref(), Some(guid.as_str()));
}

#[test]
fn views_go_where_they_are_told() {
    let lab = Lab::scratch();
    let disk = lab.cwd().join("a").display().to_string();
    lab.run(&format!("zpool create --size 128M tank {disk}")).ok();
    lab.run("zfs create -s -V 4M tank/v").ok();
    lab.run("share target create iqn.2026-11.com.example:one").ok();
    lab.run("share target create iqn.2026-11.com.example:two").ok();
    let server = Server { lab };
    let created = server.ok(&format!("stmfadm create-lu -p wcd=true {BASE}/tank/v"));
    let guid = created.trim().strip_prefix("Logical unit created: ").unwrap().to_owned();
    assert_eq!(guid.len(), 32);
    let said = server.run(&format!("stmfadm add-view {guid}")).fails(1);
    assert!(said.contains("--target-group") && said.contains("--default"), "{said}");
    let said = server.run(&format!("stmfadm add-view --host-group pve {guid}")).fails(1);
    assert!(said.contains("share access allow"), "{said}");
    server.ok(&format!("stmfadm add-view --target-group iqn.2026-11.com.example:two -n 7 {guid}"));
    assert_eq!(server.lun(&guid), 7);
    server.ok(&format!("stmfadm remove-view -l {guid} -a"));
    server.run(&format!("stmfadm list-view -l {guid}")).fails(1);
    server.ok("millpond share target set --default on iqn.2026-11.com.example:one");
    server.ok(&format!("stmfadm add-view {guid}"));
    let shown = server.ok(&format!("stmfadm list-view -l {guid}"));
    assert!(shown.contains("Target Group : iqn.2026-11.com.example:one"), "{shown}");
    let shown = server.ok("stmfadm list-lu -v");
    assert!(
        shown.contains("Writeback Cache   : Disabled") && shown.contains("Size              : 4194304"),
        "{shown}"
    );
    server.ok(&format!("sbdadm delete-lu {guid}"));
    assert_eq!(server.ok("sbdadm list-lu"), "");
    for line in [
        format!("stmfadm list-view -l {guid}"),
        format!("stmfadm delete-lu {guid}"),
        "stmfadm create-lu /dev/sda".to_owned(),
        format!("stmfadm create-lu {BASE}/tank/nothing"),
        format!("stmfadm create-lu -p guid=12 {BASE}/tank/v"),
        format!("stmfadm create-lu -p wp=true {BASE}/tank/v"),
        format!("stmfadm create-lu -p blk=4096 {BASE}/tank/v"),
        format!("stmfadm create-lu -p wdc=true {BASE}/tank/v"),
        format!("stmfadm import-lu {BASE}/tank/nothing"),
    ] {
        let said = server.run(&line).fails(1);
        assert!(said.starts_with("stmfadm: "), "{line}: {said}");
    }
    assert_eq!(server.ok("sbdadm list-lu"), "", "nothing of that was done");
    let harmless = format!("stmfadm create-lu -p blk=512 -p wp=false -p alias=disk {BASE}/tank/v");
    assert_eq!(server.run(&harmless).code, Some(0));
}
