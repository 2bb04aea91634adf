//! What TLS costs in calls to the kernel.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use disk::Place;
use openssl::{
    asn1::Asn1Time,
    ec::{EcGroup, EcKey},
    hash::MessageDigest,
    nid::Nid,
    pkey::PKey,
    ssl::{Ssl, SslContext, SslMethod},
    x509::X509,
};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex,
};
use tokio_openssl::SslStream;

use super::{Proof, Tls};
use crate::wire::Wire;

/// A socket that counts what is asked of it.
struct Counted {
    socket: DuplexStream,
    calls: Arc<Calls>,
}

#[derive(Default)]
struct Calls {
    received: AtomicUsize,
    sent: AtomicUsize,
    sent_bytes: AtomicUsize,
}

impl Calls {
    /// Receives, sends, and bytes sent since somebody asked.
    fn take(&self) -> [usize; 3] {
        [&self.received, &self.sent, &self.sent_bytes].map(|count| count.swap(0, SeqCst))
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        self.calls.received.fetch_add(read.is_ready().into(), SeqCst);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        if let Poll::Ready(Ok(len)) = &written {
            self.calls.sent.fetch_add(1, SeqCst);
            self.calls.sent_bytes.fetch_add(*len, SeqCst);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl Wire for Counted {
    fn is_closed(&mut self) -> bool {
        false
    }
}

fn keys() -> Tls {
    Tls::with_keys(b"bob:000102030405060708090a0b0c0d0e0f", true).unwrap()
}

fn certificates() -> Tls {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut certificate = X509::builder().unwrap();
    certificate.set_version(2).unwrap();
    certificate.set_pubkey(&key).unwrap();
    certificate.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    certificate.set_not_after(&Asn1Time::days_from_now(9).unwrap()).unwrap();
    certificate.sign(&key, MessageDigest::sha256()).unwrap();
    let (chain, key) = (certificate.build().to_pem().unwrap(), key.private_key_to_pem_pkcs8().unwrap());
    Tls::new(&chain, &key, None, true).unwrap()
}

/// Who knows Bob's key, and takes any certificate.
fn client(socket: DuplexStream) -> SslStream<DuplexStream> {
    let mut context = SslContext::builder(SslMethod::tls_client()).unwrap();
    context.set_psk_client_callback(|_, _, user, key| {
        user[..4].copy_from_slice(b"bob\0");
        key[..16].copy_from_slice(&(0..16).collect::<Vec<u8>>());
        Ok(16)
    });
    SslStream::new(Ssl::new(&context.build()).unwrap(), socket).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8).collect()
}

/// What a client sends as short requests and then as data, as it arrives; and how often the kernel was asked for either.
async fn received(server: &mut impl Wire, client: &mut SslStream<DuplexStream>, calls: &Calls) -> [usize; 2] {
    let requests = pattern(2800);
    for request in requests.chunks(28) {
        client.write_all(request).await.unwrap();
    }
    calls.take();
    // The first of them alone: what it came with is held, all of it.
    let mut first = Vec::with_capacity(28);
    poll_fn(|cx| server.poll_receive(Place::one(&mut first, 28), cx)).await.unwrap();
    assert!(first == requests[..28] && server.memory() >= 64 << 10, "{}", server.memory());
    assert!([first, taken(server, requests.len() - 28).await].concat() == requests);
    let [of_requests, ..] = calls.take();
    let data = pattern(1 << 20);
    client.write_all(&data).await.unwrap();
    assert!(taken(server, data.len()).await == data);
    let [of_data, ..] = calls.take();
    assert_eq!(server.memory(), 0, "at rest it holds nothing");
    [of_requests, of_data]
}

async fn taken(server: &mut impl Wire, len: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < len {
        let room = (len - taken.len()).min(128 << 10);
        taken.reserve(room);
        poll_fn(|cx| server.poll_receive(Place::one(&mut taken, room), cx)).await.unwrap();
    }
    // Nothing is there any more.
    let waits = poll_fn(|cx| Poll::Ready(server.poll_receive(Place::one(&mut taken, 1), cx).is_pending()));
    assert!(waits.await);
    taken
}

/// A client's writes of 16 KiB cost two calls each, and a short request two more.
#[tokio::test]
async fn what_has_come_is_received_by_as_few_calls_as_without_tls() {
    for tls in [keys(), certificates()] {
        let (ours, theirs) = duplex(2 << 20);
        let calls = Arc::<Calls>::default();
        let (socket, mut client) = (Counted { socket: ours, calls: Arc::clone(&calls) }, client(theirs));
        let (name, [of_requests, of_data]) = match tls.proof {
            Proof::Keys(keys) => {
                let (server, connected) = tokio::join!(keys.accept(socket), Pin::new(&mut client).connect());
                connected.unwrap();
                ("keys", received(&mut server.unwrap(), &mut client, &calls).await)
            }
            Proof::Certificates(certificates) => {
                let (server, connected) =
                    tokio::join!(certificates.accept(socket), Pin::new(&mut client).connect());
                connected.unwrap();
                ("certificates", received(&mut server.unwrap(), &mut client, &calls).await)
            }
        };
        assert_eq!(of_requests, 1, "{name}");
        assert!(of_data <= (1 << 20) / (64 << 10) + 2, "{name}: {of_data}");
    }
}

/// Header and data were two packets, and each 16 KiB of a long answer another.
#[tokio::test]
async fn answers_are_whole_records_and_leave_together() {
    let Proof::Keys(keys) = keys().proof else { unreachable!() };
    let (ours, theirs) = duplex(1 << 20);
    let calls = Arc::<Calls>::default();
    let (socket, mut client) = (Counted { socket: ours, calls: Arc::clone(&calls) }, client(theirs));
    let (server, connected) = tokio::join!(keys.accept(socket), Pin::new(&mut client).connect());
    let mut server = server.unwrap();
    connected.unwrap();
    calls.take();
    let (head, data) = ([7; 16], pattern(128 << 10));
    for (pieces, records, most) in [
        (vec![&head[..], &data[..4096]], 1, 1),
        // Many small ones.
        ([&head[..], &data[..512]].repeat(31), 1, 1),
        ([&head[..], &data[..]].repeat(8), 64 + 8, 17),
    ] {
        let whole = pieces.concat();
        let mut sent = 0;
        while sent < whole.len() {
            // What is left of them, as an outbox has it.
            let mut left = sent;
            let slices: Vec<_> = pieces
                .iter()
                .filter_map(|piece| {
                    let skip = left.min(piece.len());
                    left -= skip;
                    Some(IoSlice::new(&piece[skip..])).filter(|slice| !slice.is_empty())
                })
                .collect();
            sent += poll_fn(|cx| Pin::new(&mut server).poll_write_vectored(cx, &slices)).await.unwrap();
        }
        let mut arrived = vec![0; whole.len()];
        let (flushed, read) = tokio::join!(server.flush(), client.read_exact(&mut arrived));
        flushed.unwrap();
        read.unwrap();
        assert!(arrived == whole);
        let [_, calls, bytes] = calls.take();
        assert!(calls <= most && bytes <= whole.len() + 22 * records, "{calls} calls, {bytes} bytes");
    }
}
