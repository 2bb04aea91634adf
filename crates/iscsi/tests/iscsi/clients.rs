//! Clients nobody here wrote, over loopback: libiscsi's tools and conformance suite, and QEMU.
//!
//! A missing client fails the test, unless `MILLPOND_ALLOW_MISSING_TOOLS` is set. Every conformance test
//! runs in a process of its own against a volume of its own, because one run of the whole list is
//! unsound in libiscsi 1.19 (a hook of one test stays on for later ones).

use std::{
    net::SocketAddr,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use block::{BlockVolume, Durability, MemVolume, Segment, Segments};
use bytes::Bytes;
use fixtures::suite;
use tokio::{process::Command, sync::oneshot, task::JoinHandle};

const MIB: u64 = 1 << 20;

/// A server with one volume and two portals.
struct Served {
    targets: Arc<iscsi::Targets>,
    iqn: String,
    portals: Vec<SocketAddr>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Served {
    async fn start(volume: Arc<dyn BlockVolume>) -> Self {
        Self::start_with(volume, 512).await
    }

    async fn start_with(volume: Arc<dyn BlockVolume>, block_size: u32) -> Self {
        let targets = iscsi::Targets::new(iscsi::Config::default());
        let iqn = iscsi::iqn::for_dataset(&volume.identity().name);
        let target = targets.create(&iqn, iscsi::Offer::default()).unwrap();
        target.add_lun(0, volume, iscsi::Form { block_size, ..iscsi::Form::default() }).unwrap();
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let server = iscsi::Server::bind(Arc::clone(&targets), &[any, any]).await.unwrap();
        let portals = server.local_addrs().unwrap();
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(server.run(async { drop(stopped.await) }));
        Self { targets, iqn, portals, stop, server }
    }

    fn url(&self, portal: usize) -> String {
        format!("iscsi://{}/{}/0", self.portals[portal], self.iqn)
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap();
    }
}

/// Runs a client for at most 60 s; `None` if it is not installed and that is allowed.
async fn client(program: &str, args: &[&str]) -> Option<(ExitStatus, String)> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(Duration::from_secs(60), command.output()).await {
        Ok(Ok(output)) => {
            let text = [output.stdout, output.stderr].concat();
            Some((output.status, String::from_utf8_lossy(&text).into_owned()))
        }
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            assert!(
                std::env::var_os("MILLPOND_ALLOW_MISSING_TOOLS").is_some(),
                "{program} is not installed (packages libiscsi-bin, qemu-utils, qemu-block-extra); \
                 MILLPOND_ALLOW_MISSING_TOOLS=1 leaves it out"
            );
            None
        }
        Ok(Err(error)) => panic!("{program}: {error}"),
        Err(_) => panic!("{program} {args:?} did not end within 60 s"),
    }
}

/// A volume with holes, whose data tells its place.
async fn patterned(name: &str, size: u64) -> (MemVolume, Vec<u8>) {
    let volume = MemVolume::new(name, size, 8192);
    let mut expected = vec![0; size as usize];
    for start in (0..size as usize).step_by(3 << 16) {
        let end = (start + (1 << 16) + 512).min(expected.len());
        for (i, byte) in expected[start..end].iter_mut().enumerate() {
            *byte = ((start + i) / 512 % 251) as u8;
        }
        let mut data = Segments::new();
        data.push(Segment::Data(Bytes::copy_from_slice(&expected[start..end])));
        volume.write(start as u64, data, Durability::Cached).await.unwrap();
    }
    (volume, expected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_and_identity_are_what_the_tools_expect() {
    let served =
        Served::start(Arc::new(MemVolume::new("tank/vm_1@Monday", 64 * MIB, 8192).read_only())).await;
    let portal = format!("iscsi://{}", served.portals[0]);
    if let Some((status, text)) = client("iscsi-ls", &["-s", &portal]).await {
        assert!(status.success(), "{text}");
        assert!(text.contains("iqn.2026-11.io.millpond:tank:vm.-1::.monday"), "{text}");
        assert!(text.contains(&served.portals[0].to_string()) && text.contains("DIRECT_ACCESS"), "{text}");
    }
    // Credentials that nobody asks for are no harm.
    let named = portal.replace("//", "//user%a-secret-of-hosts@");
    if let Some((status, text)) = client("iscsi-ls", &[&named]).await {
        assert!(status.success() && text.contains(&served.portals[0].to_string()), "{text}");
    }
    let named = served.url(0).replace("//", "//user%a-secret-of-hosts@");
    if let Some((status, text)) = client("iscsi-readcapacity16", &[&named]).await {
        assert!(status.success() && text.contains("Total size:67108864"), "{text}");
    }
    if let Some((status, text)) = client("iscsi-inq", &["-e", "1", "-c", "128", &served.url(0)]).await {
        assert!(status.success() && text.contains("Unit Serial Number:["), "{text}");
    }
    if let Some((status, text)) = client("iscsi-readcapacity16", &[&served.url(1)]).await {
        assert!(status.success() && text.contains("Total size:67108864"), "{text}");
        assert!(text.contains("EXPONENT:3") && text.contains("LBPME:1 LBPRZ:1"), "{text}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qemu_copies_a_volume_bit_by_bit() {
    let (volume, expected) = patterned("tank/image", 24 * MIB).await;
    let served = Served::start(Arc::new(volume.read_only())).await;
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("image.raw");
    let args = ["convert", "-f", "raw", "-O", "raw", &served.url(0), out.to_str().unwrap()];
    if let Some((status, text)) = client("qemu-img", &args).await {
        assert!(status.success(), "{text}");
        assert!(std::fs::read(&out).unwrap() == expected, "qemu-img read other bytes");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qemu_writes_where_it_may_and_is_refused_where_it_may_not() {
    let volume = Arc::new(MemVolume::new("tank/rw", 16 * MIB, 8192));
    let served = Served::start(Arc::clone(&volume) as Arc<dyn BlockVolume>).await;
    let commands = [
        "write -P 7 512 3M",
        "write -z -u 1M 64k",
        "discard 2M 64k",
        "flush",
        "read -P 0 1M 64k",
        "read -P 7 512 512k",
    ];
    let url = served.url(0);
    let mut args = vec!["-f", "raw"];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    args.push(&url);
    if let Some((status, text)) = client("qemu-io", &args).await {
        assert!(status.success() && !text.contains("verification failed"), "{text}");
        let read = volume.read(512, 1).await.unwrap();
        assert_eq!(read[0], Segment::Data(Bytes::from_static(&[7])));
        assert!(volume.flushes() > 0, "the flush never arrived");
    }
    served.stop().await;

    let served = Served::start(Arc::new(MemVolume::new("tank/ro", 16 * MIB, 8192).read_only())).await;
    if let Some((status, text)) = client("qemu-io", &["-f", "raw", "-c", "write 0 512", &served.url(0)]).await
    {
        assert!(!status.success(), "{text}");
    }
    if let Some((status, text)) =
        client("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0 0 1M", &served.url(0)]).await
    {
        assert!(status.success() && !text.contains("failed"), "{text}");
    }
    served.stop().await;
}

/// They could not connect to it, though listings and the URLs that we print named it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_above_255_is_reached_by_its_number() {
    let served = Served::start(Arc::new(MemVolume::new("tank/first", 16 * MIB, 8192))).await;
    let volume = Arc::new(MemVolume::new("tank/many", 16 * MIB, 8192));
    let disk = Arc::clone(&volume) as Arc<dyn BlockVolume>;
    served.targets.list().remove(0).add_lun(300, disk, iscsi::Form::default()).unwrap();
    let url = format!("iscsi://{}/{}/300", served.portals[0], served.iqn);
    if let Some((status, text)) = client("iscsi-inq", &[&url]).await {
        assert!(status.success() && text.contains("MILLPOND"), "{text}");
    }
    let args = ["-f", "raw", "-c", "write -P 7 0 64k", "-c", "read -P 7 0 64k", &url];
    if let Some((status, text)) = client("qemu-io", &args).await {
        assert!(status.success() && !text.contains("verification failed"), "{text}");
        assert_eq!(volume.read(0, 1).await.unwrap()[0], Segment::Data(Bytes::from_static(&[7])));
    }
    served.stop().await;
}

/// Runs tests of the suite, some at a time; returns the bad ones.
async fn conformance(tests: Vec<String>, volume: fn(&str) -> MemVolume) -> Option<Vec<String>> {
    client("iscsi-test-cu", &["--list"]).await?;
    let mut bad = Vec::new();
    let mut running = tokio::task::JoinSet::new();
    let mut rest = tests.into_iter();
    loop {
        while running.len() < 8 {
            let Some(test) = rest.next() else { break };
            running.spawn(async move {
                let served = Served::start(Arc::new(volume(&test))).await;
                let name = format!("ALL.{test}");
                let args = ["-d", "-t", &name, &served.url(0), &served.url(1)];
                let (_, text) = client("iscsi-test-cu", &args).await.unwrap();
                served.stop().await;
                suite::verdict(&text).err().map(|why| format!("{test} {why}:\n{text}"))
            });
        }
        match running.join_next().await {
            Some(outcome) => bad.extend(outcome.unwrap()),
            None => return Some(bad),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_every_test_that_a_serious_target_must_pass() {
    let bad = conformance(suite::must(), |name| MemVolume::new(name, 1024 * MIB, 8192)).await;
    let bad = bad.unwrap_or_default();
    assert!(bad.is_empty(), "{} tests did not pass:\n{}", bad.len(), bad.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_what_clusters_and_clones_use_besides() {
    let bad = conformance(suite::should(), |name| MemVolume::new(name, 1024 * MIB, 8192)).await;
    let bad = bad.unwrap_or_default();
    assert!(bad.is_empty(), "{} tests did not pass:\n{}", bad.len(), bad.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_clients_prove_themselves_and_are_proven_to() {
    let served = Served::start(Arc::new(MemVolume::new("tank/secret", 16 * MIB, 8192))).await;
    let auth = iscsi::Auth::new("host", b"a secret of hosts").unwrap();
    let auth = auth.mutual("pond", b"secretofpond").unwrap();
    let target = served.targets.list().remove(0);
    target.set_access(iscsi::Access { auth: vec![auth], ..iscsi::Access::default() });
    let address = served.portals[0];
    let url = |user: &str, query: &str| format!("iscsi://{user}{address}/{}/0{query}", served.iqn);
    let mutual = "?target_user=pond&target_password=secretofpond";
    for (user, query, let_in) in [
        ("host%a secret of hosts@", "", true),
        ("host%a secret of hosts@", mutual, true),
        ("host%a secret of hosts@", "?target_user=pond&target_password=anothersecret", false),
        ("host%another secret@", "", false),
        ("", "", false),
    ] {
        let Some((status, text)) = client("iscsi-inq", &[&url(user, query)]).await else { return };
        assert_eq!(status.success() && text.contains("MILLPOND"), let_in, "{user} {query}: {text}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_were_unmapped_alone_are_told_apart_on_native_4k_disks() {
    let volume = Arc::new(MemVolume::new("tank/native", 1024 * MIB, 4096));
    let served = Served::start_with(volume, 4096).await;
    let args = ["-d", "-t", "ALL.GetLBAStatus.UnmapSingle", &served.url(0), &served.url(1)];
    if let Some((_, text)) = client("iscsi-test-cu", &args).await {
        assert_eq!(suite::verdict(&text), Ok(()), "{text}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_volume_refuses_every_kind_of_write() {
    let tests = vec!["ReadOnly.ReadOnlySBC".to_owned()];
    let bad = conformance(tests, |name| MemVolume::new(name, 1024 * MIB, 8192).read_only()).await;
    assert_eq!(bad.unwrap_or_default(), Vec::<String>::new());
}
