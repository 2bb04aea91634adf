//! TLS by keys agreed on beforehand (PSK): no authority and nothing that expires, one line of a file for each user.
//!
//! The file is the one of `qemu-nbd`, `nbdkit` and GnuTLS's `psktool`: lines `USER:KEY`, the key in hexadecimal, and a user
//! that begins with `#` in hexadecimal as well. Either side proves that it has the key (RFC 8446 section 2.2); each connection
//! has fresh keys besides, so that who learns one later cannot read what was recorded.
//!
//! Certificates are left to `rustls`, which is memory-safe; it does not have keys for others than returning clients.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use block::shown;
use openssl::{
    error::ErrorStack,
    ex_data::Index,
    ssl::{self, Ssl, SslContext, SslMethod, SslMode, SslOptions, SslRef, SslSessionCacheMode, SslVersion},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_openssl::SslStream;

use super::{Buffered, Proof, Tls, TlsError};

/// A shorter key can be guessed: 128 bits (RFC 9257 section 6).
const KEY_MIN: usize = 16;
/// What every version of the library can take.
const KEY_MAX: usize = 256;
/// What every version of the library can take.
const USER_MAX: usize = 128;
/// Of TLS 1.2 what has fresh keys for each connection, and none of its padding. With 1.3 that goes without saying.
const CIPHERS: &str = "ECDHE-PSK-CHACHA20-POLY1305";
/// Of TLS 1.3 what fits a key as the file has them (SHA-256), best first. AES is twice as fast where the processor has it, but
/// wants fresh keys after 2^24.5 records (RFC 8446 section 5.5: 360 GiB, or forty minutes of small answers), and this
/// library makes none by itself, nor can it be asked to from here (`SSL_key_update` is not in `openssl`). A disk's connection
/// lasts for months: it is for clients that know nothing else.
const CIPHERS_1_3: &str = "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";

/// Whom a client claimed to be, and whether there is a key of that name.
struct Claim {
    user: Vec<u8>,
    is_known: bool,
}

/// Whom to let in.
#[derive(Clone)]
pub(crate) struct Keys(SslContext);

impl Tls {
    /// A server that knows the users of these lines (`USER:KEY`) by their keys, and is known by them. If it is required,
    /// nothing is served without it.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn with_keys(lines: &[u8], is_required: bool) -> Result<Self, TlsError> {
        let keys = Keys::new(parse(lines)?).map_err(|error| TlsError::Library(error.to_string()))?;
        Ok(Self { proof: Proof::Keys(keys), is_required, validities: Arc::default() })
    }
}

impl Keys {
    fn new(users: BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Self, ErrorStack> {
        let claims = claims()?;
        let mut context = SslContext::builder(SslMethod::tls_server())?;
        context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        context.set_cipher_list(CIPHERS)?;
        context.set_ciphersuites(CIPHERS_1_3)?;
        // What waits to be sent may move and grow meanwhile; and what was sent of a long piece is to be known at once.
        context.set_mode(
            SslMode::AUTO_RETRY | SslMode::ACCEPT_MOVING_WRITE_BUFFER | SslMode::ENABLE_PARTIAL_WRITE,
        );
        // Whoever comes back shows the key again.
        context.set_options(
            SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION | SslOptions::CIPHER_SERVER_PREFERENCE,
        );
        context.set_session_cache_mode(SslSessionCacheMode::OFF);
        context.set_num_tickets(0)?;
        context.set_psk_server_callback(move |ssl, user, room| {
            // A user who is not known has no key, and the library says so to the client.
            let key = user.and_then(|user| users.get(user)).map(Vec::as_slice).unwrap_or_default();
            if let Some(user) = user {
                ssl.set_ex_data(claims, Claim { user: user.to_vec(), is_known: !key.is_empty() });
            }
            let Some(room) = room.get_mut(..key.len()) else { return Ok(0) };
            room.copy_from_slice(key);
            Ok(key.len())
        });
        Ok(Self(context.build()))
    }

    /// The server's part of a handshake.
    pub(crate) async fn accept<S>(&self, socket: S) -> io::Result<Keyed<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut tls = SslStream::new(Ssl::new(&self.0)?, Buffered::new(socket))?;
        match Pin::new(&mut tls).accept().await {
            Ok(()) => {
                tls.get_mut().hold_back();
                Ok(Keyed { tls, record: Vec::new() })
            }
            Err(error) => Err(explained(tls.ssl(), error)),
        }
    }
}

/// The most that a record of TLS holds.
const RECORD: usize = 16 << 10;

/// A connection that is secured by a key. Many short pieces are one record, and many records leave together.
#[derive(Debug)]
pub(crate) struct Keyed<S> {
    tls: SslStream<Buffered<S>>,
    /// Where short pieces are put together.
    record: Vec<u8>,
}

impl<S> Keyed<S> {
    pub(crate) fn below(&self) -> &Buffered<S> {
        self.tls.get_ref()
    }

    /// Memory that it takes now beside the library's, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.below().memory().saturating_add(self.record.capacity())
    }

    pub(crate) fn below_mut(&mut self) -> &mut Buffered<S> {
        self.tls.get_mut()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Keyed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Keyed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { tls, record } = &mut *self;
        // What fills a record by itself is not copied.
        let whole = slices.first().filter(|first| first.len() >= RECORD || slices.len() == 1);
        if let Some(whole) = whole {
            return Pin::new(tls).poll_write(cx, whole);
        }
        record.clear();
        for slice in slices {
            let room = RECORD.saturating_sub(record.len());
            record.extend_from_slice(slice.get(..room).unwrap_or(slice));
        }
        Pin::new(tls).poll_write(cx, record)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.below_mut().poll_drain(cx))?;
        self.record = Vec::new();
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

/// Where it is kept with a connection whom its client claims to be. There is one such place for all.
fn claims() -> Result<Index<Ssl, Claim>, ErrorStack> {
    static CLAIMS: OnceLock<Index<Ssl, Claim>> = OnceLock::new();
    match CLAIMS.get() {
        Some(claims) => Ok(*claims),
        None => {
            let claims = Ssl::new_ex_index()?;
            Ok(*CLAIMS.get_or_init(|| claims))
        }
    }
}

/// Why a handshake failed, for whoever has to mend it. Where no key fits the library looks for a certificate, of which we have
/// none, and it is of that that it complains.
fn explained(ssl: &SslRef, error: ssl::Error) -> io::Error {
    if error.ssl_error().is_none() {
        return io::Error::other(error);
    }
    let claim = claims().ok().and_then(|claims| ssl.ex_data(claims));
    io::Error::other(match claim {
        None => format!("it named no user who has a key: {error}"),
        Some(Claim { user, is_known }) => {
            let user = shown(&String::from_utf8_lossy(user));
            match is_known {
                true => format!("user {user:?}: {error}"),
                false => format!("there is no key of user {user:?}"),
            }
        }
    })
}

/// Users and their keys.
fn parse(lines: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, TlsError> {
    let mut users = BTreeMap::new();
    for (number, text) in (1..).zip(lines.split(|byte| *byte == b'\n')) {
        let bad = |why| TlsError::Line { line: number, why };
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        // A user's name may have colons, a key has none.
        let mut parts = text.rsplitn(2, |byte| *byte == b':');
        let (Some(key), Some(user)) = (parts.next(), parts.next()) else {
            return Err(bad("it is not USER:KEY"));
        };
        let user = match user.strip_prefix(b"#") {
            Some(digits) => hexadecimal(digits).ok_or(bad("behind # the user is not hexadecimal"))?,
            None => user.to_vec(),
        };
        if !(1..=USER_MAX).contains(&user.len()) || user.contains(&0) {
            return Err(bad("a user's name has 1 to 128 bytes, none of them zero"));
        }
        let key = hexadecimal(key).ok_or(bad("the key is not hexadecimal"))?;
        if key.len() < KEY_MIN {
            return Err(bad(
                "a key of less than 16 bytes (32 digits) can be guessed: psktool and openssl rand -hex 32 make one",
            ));
        }
        if key.len() > KEY_MAX {
            return Err(bad("a key has 256 bytes (512 digits) at most"));
        }
        if users.insert(user, key).is_some() {
            return Err(bad("this user has a key already"));
        }
    }
    if users.is_empty() { Err(TlsError::NoKeys) } else { Ok(users) }
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, []) = digits.as_chunks() else { return None };
    pairs.iter().map(|[high, low]| Some(value(*high)? << 4 | value(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    const KEY: &str = "000102030405060708090a0b0C0D0E0F";

    #[test]
    fn lines_are_those_of_psktool() {
        let lines = format!("alice:{KEY}\r\n\n#626f62:{KEY}ff\nhost:7:{KEY}");
        let users = parse(lines.as_bytes()).unwrap();
        let key: Vec<u8> = (0..16).collect();
        assert_eq!(users[&b"alice"[..]], key);
        assert_eq!(users[&b"bob"[..]], [&key[..], &[0xff]].concat());
        assert_eq!(users[&b"host:7"[..]], key);
        assert_eq!(users.len(), 3);
    }

    #[test]
    fn a_line_of_no_use_is_named_and_its_key_is_not_told() {
        let (long, name) = ("ab".repeat(KEY_MAX + 1), "n".repeat(USER_MAX + 1));
        for (line, says) in [
            ("alice", "not USER:KEY"),
            (&format!(":{KEY}"), "1 to 128 bytes"),
            (&format!("{name}:{KEY}"), "1 to 128 bytes"),
            (&format!("#6100:{KEY}"), "none of them zero"),
            (&format!("#6x:{KEY}"), "not hexadecimal"),
            ("alice:secretsecretsecretsecretsecretse", "the key is not hexadecimal"),
            (&format!("alice:{KEY}0"), "the key is not hexadecimal"),
            ("alice:", "can be guessed"),
            ("alice:000102030405060708090a0b0c0d0e", "can be guessed"),
            (&format!("alice:{long}"), "at most"),
            (&format!("bob:{KEY}"), "has a key already"),
        ] {
            let error =
                Tls::with_keys(format!("bob:{KEY}\n{line}").as_bytes(), true).unwrap_err().to_string();
            assert!(error.starts_with("line 2: ") && error.contains(says), "{line}: {error}");
            assert!(!error.contains("0001") && !error.contains("secret"), "{error}");
        }
        assert_eq!(Tls::with_keys(b"\n \n", true).unwrap_err(), TlsError::NoKeys);
    }

    /// A client that has this key of this user, or none.
    fn client(key: Option<(&'static str, u8)>) -> SslContext {
        let mut client = SslContext::builder(SslMethod::tls_client()).unwrap();
        if let Some((user, first)) = key {
            client.set_psk_client_callback(move |_, _, room, key| {
                room[..user.len()].copy_from_slice(user.as_bytes());
                room[user.len()] = 0;
                key[..16].copy_from_slice(&(first..first + 16).collect::<Vec<u8>>());
                Ok(16)
            });
        }
        client.build()
    }

    /// The log named neither the user nor the file of keys, and sent whoever read it to look at certificates.
    #[tokio::test]
    async fn who_is_kept_out_is_told_by_name_and_why() {
        let server = Keys::new(parse(format!("bob:{KEY}").as_bytes()).unwrap()).unwrap();
        let long: &'static str = "mallory, of whom nobody knows anything but that the name is longer than the line \
                                  of a log should ever be";
        let beginning: &'static str = "there is no key of user \"mallory, of whom nobody";
        for (key, says) in [
            (Some(("alice\n", 0)), r#"there is no key of user "alice\n""#),
            (Some((long, 0)), beginning),
            (Some(("bob", 1)), r#"user "bob": "#),
            (None, "it named no user who has a key: "),
        ] {
            let (ours, theirs) = duplex(1 << 16);
            let mut client = SslStream::new(Ssl::new(&client(key)).unwrap(), theirs).unwrap();
            let accepted = async {
                let accepted = server.accept(ours).await;
                accepted.map(drop).unwrap_err().to_string()
            };
            let (error, _) = tokio::join!(accepted, Pin::new(&mut client).connect());
            assert!(error.starts_with(says) && error.len() < 250, "{key:?}: {error}");
        }
    }

    /// Answers that wait for the socket are joined by others, and all of them may move in memory. The library takes that for
    /// a mistake unless it was told, and ends the connection.
    #[tokio::test]
    async fn what_could_not_be_sent_at_once_may_be_elsewhere_in_memory_at_the_next_try() {
        let server = Keys::new(parse(format!("bob:{KEY}").as_bytes()).unwrap()).unwrap();
        let (ours, theirs) = duplex(1024);
        let mut client = SslStream::new(Ssl::new(&client(Some(("bob", 0)))).unwrap(), theirs).unwrap();
        let (server, connected) = tokio::join!(server.accept(ours), Pin::new(&mut client).connect());
        let mut server = server.unwrap();
        connected.unwrap();

        let content: Vec<u8> = (0..100_000_u32).map(|at| (at * 7) as u8).collect();
        let taken = tokio::spawn(async move {
            let mut taken = vec![0; 100_000];
            client.read_exact(&mut taken).await.unwrap();
            taken
        });
        let (mut sent, mut waits, mut places) = (0, 0, Vec::new());
        while sent < content.len() {
            sent += poll_fn(|cx| {
                // Each try has its bytes at another place, and more of them.
                let until = content.len().min(sent + 1000 * (places.len() + 1));
                places.push(content[sent..until].to_vec());
                let tried = Pin::new(&mut server).poll_write(cx, places.last().unwrap());
                waits += u32::from(tried.is_pending());
                tried
            })
            .await
            .unwrap();
        }
        poll_fn(|cx| Pin::new(&mut server).poll_flush(cx)).await.unwrap();
        assert!(waits > 3, "nothing had to wait");
        assert!(taken.await.unwrap() == content);
    }
}
