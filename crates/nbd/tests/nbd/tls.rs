//! TLS as the stock clients speak it (GnuTLS under libnbd and QEMU): certificates of both sides or keys agreed on
//! beforehand, whom it keeps out, and that data comes through whole.

use std::{
    path::Path,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use block::{BlockVolume, Durability, MemVolume, Segment, Segments};
use fixtures::Log;
use nbd::{Credential, ServeLimits};
use openssl::ssl::{Ssl, SslContext, SslFiletype, SslMethod, SslVersion};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_openssl::SslStream;

use crate::support::{Served, connect_from, run, tool};

const MIB: u64 = 1 << 20;

/// Extensions of certificates: an authority, and somebody it vouches for.
const CONFIG: &str = "\
[req]
distinguished_name = dn
[dn]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = keyCertSign,cRLSign
[member]
basicConstraints = critical,CA:FALSE
subjectAltName = DNS:localhost,IP:127.0.0.1
";

/// An authority, and a server and a client it vouches for, in the files that libnbd, QEMU and we look for.
async fn certificates(dir: &Path) -> Option<()> {
    std::fs::write(dir.join("config"), CONFIG).unwrap();
    certify(dir, &["ca", "server", "client"]).await
}

/// Certificates of the authority for these, or of itself.
async fn certify(dir: &Path, names: &[&str]) -> Option<()> {
    let at = |name: &str| dir.join(name).display().to_string();
    for who in names {
        let (key, certificate) = (at(&format!("{who}-key.pem")), at(&format!("{who}-cert.pem")));
        let (subject, config) = (format!("/CN={who}"), at("config"));
        let (authority, authority_key) = (at("ca-cert.pem"), at("ca-key.pem"));
        let mut args = vec!["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        args.extend(["-nodes", "-days", "2", "-subj", &subject, "-config", &config]);
        args.extend(["-keyout", &key, "-out", &certificate, "-extensions"]);
        if *who == "ca" {
            args.push("authority");
        } else {
            args.extend(["member", "-CA", &authority, "-CAkey", &authority_key]);
        }
        run("openssl", &args).await?;
    }
    Some(())
}

/// The authority takes this one's certificate back; it says so in `ca-crl.pem`.
async fn revoke(dir: &Path, who: &str) -> Option<()> {
    let at = |name: &str| dir.join(name).display().to_string();
    let register = format!(
        "[ca]\ndefault_ca = all\n[all]\ndatabase = {}\ncrlnumber = {}\ndefault_md = sha256\ndefault_crl_days = 2\n",
        at("register"),
        at("number")
    );
    for (name, text) in [("register.config", &*register), ("register", ""), ("number", "01\n")] {
        std::fs::write(at(name), text).unwrap();
    }
    let (config, authority, key) = (at("register.config"), at("ca-cert.pem"), at("ca-key.pem"));
    let common = ["ca", "-config", &config, "-cert", &authority, "-keyfile", &key];
    let (certificate, list) = (at(&format!("{who}-cert.pem")), at("ca-crl.pem"));
    run("openssl", &[&common[..], &["-revoke", &certificate]].concat()).await?;
    run("openssl", &[&common[..], &["-gencrl", "-out", &list]].concat()).await?;
    Some(())
}

fn tls(dir: &Path, verifies_clients: bool, is_required: bool) -> nbd::Tls {
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let certificates = verifies_clients.then(|| read("ca-cert.pem"));
    let revoked = std::fs::read(dir.join("ca-crl.pem")).ok();
    let authority = certificates
        .as_deref()
        .map(|certificates| nbd::Authority { certificates, revoked: revoked.as_deref() });
    let (chain, key) = (read("server-cert.pem"), read("server-key.pem"));
    nbd::Tls::new(&chain, &key, authority, is_required).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at >> 12) as u8).wrapping_mul(31) ^ (at as u8) | 1).collect()
}

/// Fills the volume of 16 MiB at the first of these addresses, and reads it at the second, and as QEMU with this object;
/// nothing if the clients are not there.
async fn stock_clients_move_data(dir: &Path, port: u16, [fill, read]: [&str; 2], object: &str) -> Option<()> {
    let json = run("nbdinfo", &["--json", fill]).await?;
    for fact in [r#""TLS": true"#, r#""structured": true"#, r#""export-size": 16777216"#] {
        assert!(json.contains(fact), "{fact} is not in {json}");
    }
    let at = |name: &str| dir.join(name).display().to_string();
    let (source, target, copy) = (at("source"), at("target"), at("copy"));
    let mut data = pattern(16 << 20);
    data[3 << 20..7 << 20].fill(0);
    std::fs::write(&source, &data).unwrap();
    run("nbdcopy", &["--flush", &source, fill]).await.unwrap();
    run("nbdcopy", &[read, &target]).await.unwrap();
    assert!(std::fs::read(&target).unwrap() == data, "what comes back is what went in");
    let image = format!("driver=nbd,host=localhost,port={port},export=tank/vm1,tls-creds=t");
    let convert = ["convert", "--object", object, "--image-opts", &image, "-O", "raw", &copy];
    run("qemu-img", &convert).await.unwrap();
    assert!(std::fs::read(&copy).unwrap() == data, "QEMU reads the same");
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_clients_with_certificates_move_data_and_others_are_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    if certificates(dir.path()).await.is_none() {
        return;
    }
    let served = Served::tls(tls(dir.path(), true, true)).await;
    let volume = Arc::new(MemVolume::new("tank/vm1", 16 * MIB, 4096));
    served.registry.insert("tank/vm1", "", Arc::clone(&volume) as Arc<dyn BlockVolume>).unwrap();
    let port = served.port;
    let url = format!("nbds://localhost:{port}/tank/vm1?tls-certificates={}", dir.path().display());
    let object = format!("tls-creds-x509,id=t,endpoint=client,dir={}", dir.path().display());
    if stock_clients_move_data(dir.path(), port, [&url, &url], &object).await.is_none() {
        return;
    }

    // In the clear nothing is told, not even a list.
    let plain = tool("nbdinfo", &["--list", &served.url("")]).await.unwrap();
    assert!(!plain.status.success());
    let plain = tool("nbdinfo", &["--size", &served.url("tank/vm1")]).await.unwrap();
    assert!(!plain.status.success());
    // A client that only knows the authority has no certificate to show.
    let stranger = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("ca-cert.pem"), stranger.path().join("ca-cert.pem")).unwrap();
    let url = format!("nbds://localhost:{port}/tank/vm1?tls-certificates={}", stranger.path().display());
    let refused = tool("nbdinfo", &["--size", &url]).await.unwrap();
    assert!(!refused.status.success(), "no certificate, no service");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_certificate_was_taken_back_is_kept_out_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    if certificates(dir.path()).await.is_none() {
        return;
    }
    certify(dir.path(), &["thief"]).await.unwrap();
    for is_revoked in [false, true] {
        if is_revoked {
            revoke(dir.path(), "thief").await.unwrap();
        }
        let served = Served::tls(tls(dir.path(), true, true)).await;
        for (who, is_let_in) in [("client", true), ("thief", !is_revoked)] {
            let mut stream = holder(at_the_door(served.port).await, dir.path(), who);
            assert_eq!(is_answered(&mut stream).await, is_let_in, "{who}, revoked: {is_revoked}");
        }
        served.stop().await;
    }
}

/// What was read at the start held until the server ended.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_read_again_hold_for_who_comes_then() {
    let dir = tempfile::tempdir().unwrap();
    if certificates(dir.path()).await.is_none() {
        return;
    }
    certify(dir.path(), &["thief"]).await.unwrap();
    let served = Served::tls(tls(dir.path(), true, true)).await;
    let mut before = holder(at_the_door(served.port).await, dir.path(), "thief");
    assert!(is_answered(&mut before).await);
    revoke(dir.path(), "thief").await.unwrap();
    served.server.set_tls(tls(dir.path(), true, true));
    for (who, is_let_in) in [("client", true), ("thief", false)] {
        let mut stream = holder(at_the_door(served.port).await, dir.path(), who);
        assert_eq!(is_answered(&mut stream).await, is_let_in, "{who}");
    }
    served.stop().await;
}

/// A client with a certificate, before it says anything.
fn holder(stream: TcpStream, dir: &Path, who: &str) -> SslStream<TcpStream> {
    let mut client = SslContext::builder(SslMethod::tls_client()).unwrap();
    client.set_certificate_chain_file(dir.join(format!("{who}-cert.pem"))).unwrap();
    client.set_private_key_file(dir.join(format!("{who}-key.pem")), SslFiletype::PEM).unwrap();
    SslStream::new(Ssl::new(&client.build()).unwrap(), stream).unwrap()
}

/// Whether the server lets a client in. With TLS 1.3 the client is done before the server is: what tells is an answer.
async fn is_answered(stream: &mut SslStream<TcpStream>) -> bool {
    let mut answer = [0; 20];
    let said = async {
        Pin::new(&mut *stream).connect().await.map_err(std::io::Error::other)?;
        stream.write_all(&option(opt::ABORT, &[])).await?;
        stream.read_exact(&mut answer).await
    };
    let is_let_in = timeout(Duration::from_secs(10), said).await.expect("answered").is_ok();
    assert_eq!(answer[8..16] == [0, 0, 0, 2, 0, 0, 0, 1], is_let_in, "{answer:?}");
    is_let_in
}

#[tokio::test(flavor = "multi_thread")]
async fn where_tls_is_offered_both_ways_in_lead_to_the_same_volume() {
    let dir = tempfile::tempdir().unwrap();
    if certificates(dir.path()).await.is_none() {
        return;
    }
    let served = Served::tls(tls(dir.path(), false, false)).await;
    let volume = Arc::new(MemVolume::new("tank/vm1", MIB, 4096));
    let mut piece = Segments::new();
    piece.push(Segment::Data(pattern(4096).into()));
    volume.write(0, piece, Durability::Cached).await.unwrap();
    served.registry.insert("tank/vm1", "", Arc::clone(&volume) as Arc<dyn BlockVolume>).unwrap();
    let stranger = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("ca-cert.pem"), stranger.path().join("ca-cert.pem")).unwrap();
    let secure =
        format!("nbds://localhost:{}/tank/vm1?tls-certificates={}", served.port, stranger.path().display());
    for (url, is_secure) in [(secure, true), (served.url("tank/vm1"), false)] {
        let Some(json) = run("nbdinfo", &["--json", &url]).await else { return };
        assert!(json.contains(&format!(r#""TLS": {is_secure}"#)), "{json}");
        let target = dir.path().join("target");
        run("nbdcopy", &[&url, target.to_str().unwrap()]).await.unwrap();
        let mut want = pattern(4096);
        want.resize(MIB as usize, 0);
        assert!(std::fs::read(&target).unwrap() == want);
    }
    served.stop().await;
}

mod opt {
    pub(super) const ABORT: u32 = 2;
    pub(super) const STARTTLS: u32 = 5;
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// What a client says first.
fn starttls() -> Vec<u8> {
    [&3_u32.to_be_bytes()[..], &option(opt::STARTTLS, &[])].concat()
}

const ALICE: &str = "8f4a1c0e5b7d92366a1f00c4d8e37b1590aa5be1c2d3e4f5061728394a5b6c7d";
const BOB: &str = "00112233445566778899aabbccddeeff";

fn keys() -> nbd::Tls {
    nbd::Tls::with_keys(format!("alice:{ALICE}\nbob:{BOB}\n").as_bytes(), true).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_clients_with_keys_move_data_and_others_are_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::tls(keys()).await;
    let volume = Arc::new(MemVolume::new("tank/vm1", 16 * MIB, 4096));
    served.registry.insert("tank/vm1", "", Arc::clone(&volume) as Arc<dyn BlockVolume>).unwrap();
    let port = served.port;
    let file = |name: &str, lines: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, lines).unwrap();
        path.display().to_string()
    };
    let good = file("keys.psk", &format!("alice:{ALICE}\nbob:{BOB}\nmallory:{BOB}\n"));
    let url = |user: &str, keys: &str| format!("nbds://{user}@localhost:{port}/tank/vm1?tls-psk-file={keys}");
    let object = format!("tls-creds-psk,id=t,endpoint=client,username=bob,dir={}", dir.path().display());
    let urls = [&*url("alice", &good), &*url("bob", &good)];
    if stock_clients_move_data(dir.path(), port, urls, &object).await.is_none() {
        return;
    }

    let swapped = file("swapped.psk", &format!("alice:{BOB}\nbob:{ALICE}\n"));
    for (why, url) in [
        ("in the clear", served.url("tank/vm1")),
        ("another's key", url("alice", &swapped)),
        ("a user who is not known", url("mallory", &good)),
    ] {
        let refused = tool("nbdinfo", &["--size", &url]).await.unwrap();
        assert!(!refused.status.success(), "{why}");
    }
    run("nbdinfo", &["--size", &url("alice", &good)]).await.expect("nobody else is disturbed");
    served.stop().await;
}

/// A client's part, up to TLS.
async fn at_the_door(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.read_exact(&mut [0; 18]).await.unwrap();
    stream.write_all(&starttls()).await.unwrap();
    stream.read_exact(&mut [0; 20]).await.unwrap();
    stream
}

/// What the stock clients choose is up to the library and the policy of their machine.
#[tokio::test(flavor = "multi_thread")]
async fn keys_serve_both_versions_of_tls_and_no_cipher_without_fresh_keys() {
    let served = Served::tls(keys()).await;
    for (version, ciphers, is_let_in) in [
        (SslVersion::TLS1_3, "PSK", true),
        (SslVersion::TLS1_2, "ECDHE-PSK-CHACHA20-POLY1305", true),
        (SslVersion::TLS1_2, "PSK-AES256-GCM-SHA384", false),
    ] {
        let mut stream = bob(at_the_door(served.port).await, version, ciphers);
        assert_eq!(is_answered(&mut stream).await, is_let_in, "{version:?} {ciphers}");
    }
    served.stop().await;
}

const CHACHA: &str = "TLS_CHACHA20_POLY1305_SHA256";
const AES: &str = "TLS_AES_128_GCM_SHA256";

/// Under AES-GCM keys are used up after 2^24 records: a client of TLS 1.2 lost its disk then, and one with keys agreed on
/// beforehand went on beyond what is safe.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_has_no_fresh_keys_has_a_cipher_that_needs_none_if_the_client_knows_it() {
    const OLD: [&str; 2] = ["ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-GCM-SHA256"];
    let dir = tempfile::tempdir().unwrap();
    let chosen = async |mut stream: SslStream<TcpStream>| {
        assert!(is_answered(&mut stream).await);
        stream.ssl().current_cipher().unwrap().name()
    };
    let served = Served::tls(keys()).await;
    for (ciphers, best) in [(&[AES, CHACHA][..], CHACHA), (&[AES], AES)] {
        let stream = at_the_door(served.port).await;
        let client = bob_with(stream, SslVersion::TLS1_3, "PSK", ciphers);
        assert_eq!(chosen(client).await, best, "{ciphers:?}");
    }
    served.stop().await;
    if certificates(dir.path()).await.is_none() {
        return;
    }
    let served = Served::tls(tls(dir.path(), false, true)).await;
    for (is_current, ciphers, best) in [
        (false, &[OLD[1], OLD[0]][..], OLD[0]),
        (false, &OLD[1..], OLD[1]),
        // Here rustls has fresh keys in time, and the client knows what it does best.
        (true, &[AES, CHACHA], AES),
        (true, &[CHACHA, AES], CHACHA),
    ] {
        let mut client = SslContext::builder(SslMethod::tls_client()).unwrap();
        let (version, list) =
            (if is_current { SslVersion::TLS1_3 } else { SslVersion::TLS1_2 }, ciphers.join(":"));
        client.set_max_proto_version(Some(version)).unwrap();
        let set = if is_current { client.set_ciphersuites(&list) } else { client.set_cipher_list(&list) };
        set.unwrap();
        let stream = at_the_door(served.port).await;
        let client = SslStream::new(Ssl::new(&client.build()).unwrap(), stream).unwrap();
        assert_eq!(chosen(client).await, best, "{ciphers:?}");
    }
    served.stop().await;
}

/// A client that knows Bob's key, before it says anything.
fn bob(stream: TcpStream, version: SslVersion, ciphers: &str) -> SslStream<TcpStream> {
    bob_with(stream, version, ciphers, &[AES, CHACHA])
}

/// The same, and these ciphers of TLS 1.3, what it likes best first.
fn bob_with(stream: TcpStream, version: SslVersion, ciphers: &str, current: &[&str]) -> SslStream<TcpStream> {
    let mut client = SslContext::builder(SslMethod::tls_client()).unwrap();
    client.set_min_proto_version(Some(version)).unwrap();
    client.set_max_proto_version(Some(version)).unwrap();
    client.set_cipher_list(ciphers).unwrap();
    client.set_ciphersuites(&current.join(":")).unwrap();
    client.set_psk_client_callback(|_, _, user, room| {
        user[..4].copy_from_slice(b"bob\0");
        let key: Vec<u8> = (0..16).map(|byte| byte * 0x11).collect();
        room[..16].copy_from_slice(&key);
        Ok(16)
    });
    SslStream::new(Ssl::new(&client.build()).unwrap(), stream).unwrap()
}

/// The connection was cut where TLS has a good-bye: clients that look for it took that for an attack.
#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_is_told_that_tls_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut proofs = vec![(keys(), false)];
    if certificates(dir.path()).await.is_some() {
        proofs.push((tls(dir.path(), false, true), true));
    }
    for (proof, by_certificate) in proofs {
        let served = Served::tls(proof).await;
        let stream = at_the_door(served.port).await;
        let mut stream = if by_certificate {
            let context = SslContext::builder(SslMethod::tls_client()).unwrap().build();
            SslStream::new(Ssl::new(&context).unwrap(), stream).unwrap()
        } else {
            bob(stream, SslVersion::TLS1_3, "PSK")
        };
        assert!(is_answered(&mut stream).await);
        let mut rest = Vec::new();
        let end = timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await.expect("it ends");
        assert_eq!((end.map_err(|error| error.to_string()), rest.len()), (Ok(0), 0));
        served.stop().await;
    }
}

/// A guest that was killed had a warning with a link to the manual of a library, where without TLS nobody is warned.
#[tokio::test]
async fn who_is_gone_without_a_word_is_no_more_of_a_warning_than_without_tls() {
    let log = Log::begin();
    let dir = tempfile::tempdir().unwrap();
    let mut proofs = vec![(keys(), false)];
    if certificates(dir.path()).await.is_some() {
        proofs.push((tls(dir.path(), false, true), true));
    }
    for (proof, by_certificate) in proofs {
        let served = Served::tls(proof).await;
        let stream = at_the_door(served.port).await;
        let mut stream = if by_certificate {
            holder(stream, dir.path(), "client")
        } else {
            bob(stream, SslVersion::TLS1_3, "PSK")
        };
        Pin::new(&mut stream).connect().await.unwrap();
        let unknown = option(99, &[]);
        stream.write_all(&unknown).await.unwrap();
        stream.read_exact(&mut [0; 20]).await.unwrap();
        drop(stream);
        served.only(0).await;
        assert_eq!(log.lines("WARN"), Vec::<String>::new(), "by certificate: {by_certificate}");
        served.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_where_tls_with_keys_begins_ends_that_connection_only() {
    let served = Served::tls(keys()).await;
    for noise in
        [&[0xff; 4096][..], &[0x16, 3, 1, 0xff, 0xff][..], &[0x16, 3, 3, 0, 4, 1, 0, 0, 0][..], &[0; 70][..]]
    {
        let mut stream = at_the_door(served.port).await;
        stream.write_all(noise).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut said = Vec::new();
        drop(
            timeout(Duration::from_secs(10), stream.read_to_end(&mut said)).await.expect("it is hung up on"),
        );
        assert!(said.len() < 64, "{said:?}");
    }
    at_the_door(served.port).await;
    served.stop().await;
}

#[test]
fn certificates_of_no_use_are_refused_by_name() {
    for (chain, key, says) in [
        (&b""[..], &b""[..], "server's certificate cannot be used"),
        (
            &b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"[..],
            &b"no key"[..],
            "server's key",
        ),
    ] {
        let error = nbd::Tls::new(chain, key, None, true).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Nobody knew before clients were kept out.
#[tokio::test]
async fn it_is_known_how_long_certificates_and_lists_are_good() {
    const DAY: u64 = 86_400;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let dir = tempfile::tempdir().unwrap();
    // The clock that is asked for whole seconds is a moment behind.
    let begun = now() - 1;
    if certificates(dir.path()).await.is_none() {
        return;
    }
    revoke(dir.path(), "client").await.unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (short, key, long) = (at("server-cert.pem"), at("server-key.pem"), at("long.pem"));
    run("openssl", &["x509", "-in", &short, "-signkey", &key, "-days", "9", "-out", &long]).await.unwrap();
    let made = begun..=now();
    let assert_good_for = |tls: &nbd::Tls, of: &[Credential], days: u64| {
        let validities = tls.validities();
        assert_eq!(validities.iter().map(|validity| validity.of).collect::<Vec<_>>(), of);
        for validity in validities {
            assert!(made.contains(&validity.from), "{validity:?}");
            assert!(made.contains(&(validity.until - days * DAY)), "{validity:?}");
        }
    };
    let all = [Credential::Chain, Credential::Authority, Credential::Revoked];
    assert_good_for(&tls(dir.path(), true, true), &all, 2);
    assert_good_for(&tls(dir.path(), false, true), &all[..1], 2);
    assert!(keys().validities().is_empty());
    let [short, key, long] = [short, key, long].map(|path| std::fs::read(path).unwrap());
    for (chain, days) in [(long.clone(), 9), ([&long[..], &short].concat(), 2)] {
        assert_good_for(&nbd::Tls::new(&chain, &key, None, true).unwrap(), &all[..1], days);
    }
}

/// All parts of a handshake share its time: it does not begin anew with TLS.
#[tokio::test]
async fn a_client_that_dawdles_on_its_way_into_tls_is_dropped_in_time() {
    let dir = tempfile::tempdir().unwrap();
    if certificates(dir.path()).await.is_none() {
        return;
    }
    for tls in [tls(dir.path(), false, true), keys()] {
        let limits = ServeLimits { handshake: Duration::from_secs(2), ..ServeLimits::default() };
        let served = Served::tls_within(limits, tls).await;
        let mut dawdler = connect_from(1, &served).await;
        let begun = Instant::now();
        sleep(Duration::from_millis(1500)).await;
        dawdler.write_all(&starttls()).await.unwrap();
        let mut said = Vec::new();
        drop(timeout(Duration::from_secs(10), dawdler.read_to_end(&mut said)).await.expect("dropped"));
        assert_eq!(said.len(), 18 + 20, "TLS was begun");
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        served.stop().await;
    }
}
