//! The stock clients against a volume in memory: nbdinfo, nbdcopy, qemu-io, qemu-img, fio.

use std::sync::Arc;

use block::{BlockVolume, MemVolume};

use crate::support::{Served, run, tool};

const MIB: u64 = 1 << 20;

fn volume(size: u64) -> Arc<MemVolume> {
    Arc::new(MemVolume::new("tank/vm1", size, 4096))
}

/// Bytes that differ from block to block.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at >> 12) as u8).wrapping_mul(31) ^ (at as u8) | 1).collect()
}

async fn bytes_of(volume: &MemVolume, offset: u64, len: usize) -> Vec<u8> {
    block::flatten(&volume.read(offset, len).await.expect("in memory"))
}

#[tokio::test(flavor = "multi_thread")]
async fn nbdinfo_sees_what_is_offered() {
    let served = Served::of("tank/vm1", volume(8 * MIB)).await;
    let snapshot = Arc::new(MemVolume::new("tank/vm1@monday", MIB, 8192).read_only());
    served.registry.insert("tank/vm1@monday", "before the upgrade", snapshot).unwrap();
    let Some(json) = run("nbdinfo", &["--json", &served.url("tank/vm1")]).await else { return };
    for fact in [
        r#""protocol": "newstyle-fixed""#,
        r#""structured": true"#,
        r#""export-size": 8388608"#,
        r#""is_read_only": false"#,
        r#""can_cache": true"#,
        r#""can_df": true"#,
        r#""can_fast_zero": true"#,
        r#""can_flush": true"#,
        r#""can_fua": true"#,
        r#""can_multi_conn": true"#,
        r#""can_trim": true"#,
        r#""can_zero": true"#,
        r#""block_size_minimum": 1"#,
        r#""block_size_preferred": 4096"#,
        r#""block_size_maximum": 33554432"#,
        "base:allocation",
    ] {
        assert!(json.contains(fact), "{fact} is not in {json}");
    }
    let json = run("nbdinfo", &["--json", &served.url("tank/vm1@monday")]).await.unwrap();
    for fact in [r#""is_read_only": true"#, r#""can_trim": false"#, r#""can_zero": false"#] {
        assert!(json.contains(fact), "{fact} is not in {json}");
    }
    let json = run("nbdinfo", &["--list", "--json", &served.url("")]).await.unwrap();
    for fact in [r#""export-name": "tank/vm1""#, r#""tank/vm1@monday""#, "before the upgrade"] {
        assert!(json.contains(fact), "{fact} is not in {json}");
    }
    // The empty name is what it is said to be; a name that is gone is refused in words.
    served.registry.set_unnamed(|| Some("tank/vm1".to_owned()));
    served.registry.remove("tank/vm1@monday");
    run("nbdinfo", &["--size", &served.url("")]).await.unwrap();
    let gone = tool("nbdinfo", &["--size", &served.url("tank/vm1@monday")]).await.unwrap();
    assert!(!gone.status.success());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nbdcopy_brings_a_file_in_and_out_over_four_connections_and_keeps_holes() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let mut data = pattern(16 << 20);
    data[3 << 20..7 << 20].fill(0);
    std::fs::write(&source, &data).unwrap();
    let volume = volume(16 * MIB);
    let served = Served::of("tank/vm1", volume.clone()).await;
    let url = served.url("tank/vm1");
    let options = ["--connections=4", "--requests=64", "--flush", source.to_str().unwrap(), &url];
    let Some(_) = run("nbdcopy", &options).await else { return };
    assert!(bytes_of(&volume, 0, data.len()).await == data);
    assert!(volume.flushes() > 0, "nbdcopy --flush flushes");
    run("nbdcopy", &["--connections=4", &url, target.to_str().unwrap()]).await.unwrap();
    assert!(std::fs::read(&target).unwrap() == data);
    let map = run("nbdinfo", &["--map", &url]).await.unwrap();
    assert!(map.contains("hole,zero"), "{map}");
    let totals = served.server.totals();
    assert!(
        totals.read_bytes >= 12 * MIB && totals.write_bytes >= 12 * MIB && totals.errors == 0,
        "{totals:?}"
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qemu_io_writes_zeroes_discards_and_syncs() {
    let volume = volume(8 * MIB);
    let served = Served::of("tank/vm1", volume.clone()).await;
    let url = served.url("tank/vm1");
    let commands = [
        "write -P 5 0 64k",
        "write -f -P 6 64k 4k",
        "read -P 5 0 64k",
        "read -P 6 64k 4k",
        "write -P 7 1000 1000",
        "read -P 5 0 1000",
        "read -P 7 1000 1000",
        "write -z 8k 8k",
        "read -P 0 8k 8k",
        "write -z -u 16k 8k",
        "discard 24k 8k",
        "read -P 0 24k 8k",
        "discard 33k 6k",
        "read -P 5 32k 4k",
        "aio_write -P 9 1M 1M",
        "aio_write -P 10 2M 1M",
        "aio_flush",
        "read -P 9 1M 1M",
        "read -P 10 2M 1M",
        "flush",
    ];
    let mut args = vec!["-f", "raw"];
    for command in &commands {
        args.extend_from_slice(&["-c", command]);
    }
    args.push(&url);
    let Some(said) = run("qemu-io", &args).await else { return };
    assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    assert!(volume.flushes() >= 2, "one FUA and one flush at least, saw {}", volume.flushes());
    // 8k..16k was zeroed and kept, 16k..32k was freed.
    let extents = volume.extents(0, 64 << 10, 100).await.unwrap();
    assert_eq!(
        extents.iter().map(|e| (e.len >> 10, e.hole)).collect::<Vec<_>>(),
        [(16, false), (16, true), (32, false)]
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fua_write_is_one_stable_write() {
    let volume = volume(MIB);
    let served = Served::of("tank/vm1", volume.clone()).await;
    let url = served.url("tank/vm1");
    let before = volume.flushes();
    let options =
        ["-t", "none", "-f", "raw", "-c", "write -f 0 4k", "-c", "write -f 4k 4k", "-c", "write -f -z 8k 4k"];
    let Some(_) = run("qemu-io", &[&options[..], &[&url]].concat()).await else { return };
    // What a connection did is counted a moment after its answer is on its way; stopping waits for that.
    let server = served.server.clone();
    served.stop().await;
    let totals = server.totals();
    // qemu-io flushes once more as it closes; every other one is a FUA.
    assert_eq!(volume.flushes() - before - totals.flushes, 3, "{totals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_export_refuses_qemu_and_nbdcopy() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::write(&source, pattern(1 << 20)).unwrap();
    let snapshot = Arc::new(MemVolume::new("tank/vm1@monday", MIB, 4096).read_only());
    let served = Served::of("tank/vm1@monday", snapshot).await;
    let url = served.url("tank/vm1@monday");
    let Some(wrote) = tool("qemu-io", &["-f", "raw", "-c", "write 0 4k", &url]).await else { return };
    assert!(!wrote.status.success());
    let copied = tool("nbdcopy", &[source.to_str().unwrap(), &url]).await.unwrap();
    assert!(!copied.status.success());
    run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0 0 1M", &url]).await.unwrap();
    assert_eq!(served.server.totals().write_bytes, 0);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qemu_img_converts_compares_and_maps_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, source) = (dir.path().join("nbd.sock"), dir.path().join("source"));
    let mut data = pattern(4 << 20);
    data[1 << 20..2 << 20].fill(0);
    std::fs::write(&source, &data).unwrap();
    let source = source.to_str().unwrap();
    let volume = volume(4 * MIB);
    let served = Served::unix(&socket).await;
    served.registry.insert("tank/vm1", "", volume.clone()).unwrap();
    let url = format!("nbd+unix:///tank/vm1?socket={}", socket.display());
    let convert = ["convert", "-n", "-W", "-m", "8", "-f", "raw", "-O", "raw", source, &url];
    let Some(_) = run("qemu-img", &convert).await else { return };
    assert!(bytes_of(&volume, 0, data.len()).await == data);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &url]).await.unwrap();
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", &url]).await.unwrap();
    let hole = map.lines().find(|line| line.contains(r#""start": 1048576, "length": 1048576"#));
    let hole = hole.unwrap_or_else(|| panic!("{map}"));
    assert!(hole.contains(r#""zero": true, "data": false"#), "{hole}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fio_verifies_what_two_jobs_wrote() {
    let served = Served::of("tank/vm1", volume(16 * MIB)).await;
    let uri = format!("--uri={}", served.url("tank/vm1"));
    let args = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=32",
        "--size=4m",
        "--offset_increment=4m",
        "--numjobs=2",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--end_fsync=1",
        "--randrepeat=0",
    ];
    let dir = tempfile::tempdir().unwrap();
    let aux = format!("--aux-path={}", dir.path().display());
    let Some(said) = run("fio", &[&args[..], &[&aux]].concat()).await else { return };
    assert!(said.contains("err= 0"), "{said}");
    let totals = served.server.totals();
    assert!(totals.writes >= 2048 && totals.reads >= 2048 && totals.errors == 0, "{totals:?}");
    served.stop().await;
}
