//! What every fuzz target of a protocol core does with its input: bytes of a peer that means no good.
//!
//! The same source serves two runners: the libFuzzer targets beside it, and `crates/iscsi/tests/iscsi/strangers.rs` on a
//! stable toolchain. A body must return on every input, and may panic only to say that a promise is broken.

use std::{
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use block::{BlockVolume, MemVolume, Segment, Segments};
use bytes::Bytes;
use iscsi::{
    Config, Targets,
    inbox::Inbox,
    login::{Login, Step},
    pdu::{Frame, Framing, Header, Outbox},
    session::Session,
};
use scsi::{Begin, Cancel, LogicalUnit};

/// A target's name and what to do with bytes that claim to be its input.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets. The names are those of the libFuzzer binaries.
pub(crate) const TARGETS: &[Target] =
    &[("scsi_commands", scsi_commands), ("iscsi_login", iscsi_login), ("iscsi_session", iscsi_session)];

/// Answers waiting for the socket at most: the session stops parsing far below.
const OUTBOX_MAX: usize = 64 << 20;

fn volume() -> Arc<dyn BlockVolume> {
    Arc::new(MemVolume::new("tank/fuzz", 1 << 20, 8192))
}

/// A volume in memory never waits; a lock that somebody else holds would be a deadlock here.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a command waits for nothing"),
    }
}

/// Commands of two initiators: { who 1 │ CDB 16 │ data length 2 │ data }…
fn scsi_commands(mut input: &[u8]) {
    let unit = LogicalUnit::new(volume(), "iqn.fuzz");
    let nexuses = ["iqn.one,i,0x000000000001", "iqn.two,i,0x000000000001"].map(|port| unit.attach(port));
    while let Some((head, rest)) = input.split_first_chunk::<19>() {
        let len = usize::from(u16::from_be_bytes([head[17], head[18]])).min(rest.len());
        let (data, rest) = rest.split_at(len);
        input = rest;
        let nexus = &nexuses[usize::from(head[0] & 1)];
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&head[1..17]);
        let offered = if head[0] & 2 == 0 { len as u32 } else { u32::MAX };
        if let Begin::Job(job) = unit.begin(nexus, &cdb, offered) {
            let mut out = Segments::new();
            if !data.is_empty() {
                out.push(Segment::Data(Bytes::copy_from_slice(data)));
            }
            now(unit.run_until(nexus, job, out, Cancel::default()));
        }
    }
}

fn targets() -> Arc<Targets> {
    let targets = Targets::new(Config::default());
    let target = targets.add("iqn.fuzz", volume()).expect("a valid name, once");
    target.add_lun(3, volume(), iscsi::Form { block_size: 4096, ..iscsi::Form::default() }).expect("once");
    let secured = targets.add("iqn.fuzz:secured", volume()).expect("a valid name, once");
    let auth = vec![iscsi::Auth::new("host", b"a secret of hosts").expect("long enough")];
    secured.set_access(iscsi::Access { auth, ..iscsi::Access::default() });
    targets
}

/// A login: whole PDUs, as the framing finds them. Nobody who has not proven itself may get in.
fn iscsi_login(mut input: &[u8]) {
    let targets = targets();
    let framing = Framing { data_max: 8192, ..Framing::default() };
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 3260));
    let (mut login, mut outbox) = (Login::new(nowhere, nowhere), Outbox::default());
    while let Ok(Frame::Whole { header, data_at, data_len, total }) = framing.next(input) {
        let data = &input[data_at..data_at + data_len];
        match login.handle(&header, data, &targets, &mut outbox) {
            Ok(Step::Continue) => input = &input[total..],
            Ok(Step::Accepted) => {
                if let Some(accepted) = login.finish(1, &mut outbox) {
                    drop(Session::new(accepted, targets, nowhere, outbox));
                }
                return;
            }
            Ok(Step::Refused(_)) | Err(_) => return,
        }
        assert!(outbox.len() < OUTBOX_MAX, "a login's answers pile up");
    }
}

/// A session of the full feature phase, its jobs run as they come. The first byte says into how many pieces the
/// stream is cut, and which digests were agreed on.
fn iscsi_session(input: &[u8]) {
    let Some((mode, mut input)) = input.split_first() else { return };
    let targets = targets();
    let mut text = b"InitiatorName=iqn.host\0TargetName=iqn.fuzz\0InitialR2T=No\0".to_vec();
    if mode & 1 != 0 {
        text.extend(b"HeaderDigest=CRC32C\0");
    }
    let mut header = Header::new(0x43);
    header.0[1] = 0x87;
    header.set(24, 1);
    let (mut login, mut outbox) = (Login::default(), Outbox::default());
    let step = login.handle(&header, &text, &targets, &mut outbox);
    assert!(matches!(step, Ok(Step::Accepted)), "{step:?}");
    let accepted = login.finish(1, &mut outbox).expect("accepted");
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 3260));
    let mut session = Session::new(accepted, targets, nowhere, outbox);
    let mut buffer = Inbox::default();
    let piece = usize::from(mode >> 1).saturating_mul(16).max(1);
    while !input.is_empty() && !session.ended() {
        let (now_here, rest) = input.split_at(piece.min(input.len()));
        input = rest;
        buffer.extend(now_here);
        if session.handle_bytes(&mut buffer).is_err() {
            return;
        }
        while let Some(work) = session.poll_work() {
            let (itt, answer) = now(work.run());
            session.complete(itt, answer);
        }
        assert!(session.outbox().len() < OUTBOX_MAX, "answers pile up");
        session.outbox().drain();
    }
}
