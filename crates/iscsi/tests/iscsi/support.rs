//! A server on loopback with a volume in memory, and a host that says exactly what it is told.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use block::{BlockVolume, Extent, Geometry, Identity, MemVolume, Segments, VolumeFuture};
use iscsi::{
    Config, Server, Targets,
    pdu::{Header, Outbox, op},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

use crate::initiator::now;

pub(crate) const NAME: &str = "iqn.2026-11.io.millpond:tank:vm";

/// A volume that is in memory, and says so.
pub(crate) struct AtHand(MemVolume);

impl AtHand {
    /// Of a MiB.
    pub(crate) fn volume() -> Arc<dyn BlockVolume> {
        Arc::new(Self(MemVolume::new("tank/vm", 1 << 20, 8192)))
    }
}

impl BlockVolume for AtHand {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn identity(&self) -> Identity {
        self.0.identity()
    }
    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        now(self.0.read(offset, len)).ok()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        self.0.read(offset, len)
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.0.extents(offset, len, max)
    }
}

pub(crate) struct Served {
    pub(crate) targets: Arc<Targets>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) server: JoinHandle<()>,
}

pub(crate) async fn serve(config: Config) -> Served {
    serve_volume(config, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))).await
}

pub(crate) async fn serve_volume(config: Config, volume: Arc<dyn BlockVolume>) -> Served {
    let targets = Targets::new(config);
    targets.add(NAME, volume).unwrap();
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let server = Server::bind(Arc::clone(&targets), &[any]).await.unwrap();
    let address = server.local_addrs().unwrap()[0];
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(server.run(async { drop(stopped.await) }));
    Served { targets, address, stop, server }
}

pub(crate) fn quick() -> Config {
    Config {
        login_timeout: Duration::from_millis(200),
        logout_wait: Duration::from_millis(300),
        ..Config::default()
    }
}

pub(crate) async fn send(stream: &mut TcpStream, header: Header, data: &[u8]) {
    let mut out = Outbox::default();
    out.push(header, data);
    stream.write_all(&out.drain()).await.unwrap();
}

/// The next PDU; `None` once the server has closed.
pub(crate) async fn receive(stream: &mut TcpStream) -> Option<(Header, Vec<u8>)> {
    let read = async {
        let mut head = [0; 48];
        stream.read_exact(&mut head).await.ok()?;
        let len = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        stream.read_exact(&mut data).await.ok()?;
        data.truncate(len);
        Some((Header(head), data))
    };
    timeout(Duration::from_secs(5), read).await.expect("an answer or the end within 5 s")
}

/// Connects from 127.0.0.`host` and says nothing.
pub(crate) async fn connect_from(host: u8, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

pub(crate) async fn log_in(address: SocketAddr, isid: u8) -> TcpStream {
    log_in_from(1, address, isid).await.expect("a place")
}

/// Logs in to the target from 127.0.0.`host`; `None` if the server has no place for it.
pub(crate) async fn log_in_from(host: u8, address: SocketAddr, isid: u8) -> Option<TcpStream> {
    begin_session(host, address, isid, &format!("InitiatorName=iqn.test\0TargetName={NAME}\0")).await
}

/// Logs in to the target over that connection.
pub(crate) async fn log_in_over(stream: TcpStream, isid: u8) -> TcpStream {
    let text = format!("InitiatorName=iqn.test\0TargetName={NAME}\0");
    begin_session_over(stream, isid, &text).await.expect("a place")
}

/// Logs in with that text.
pub(crate) async fn begin_session(host: u8, address: SocketAddr, isid: u8, text: &str) -> Option<TcpStream> {
    begin_session_over(connect_from(host, address).await, isid, text).await
}

async fn begin_session_over(mut stream: TcpStream, isid: u8, text: &str) -> Option<TcpStream> {
    let mut h = Header::new(op::LOGIN | 0x40);
    (h.0[1], h.0[8], h.0[13]) = (0x87, 0x80, isid);
    [h.0[20], h.0[21]] = [0xc1, 0xd2];
    h.set(24, 1);
    let mut out = Outbox::default();
    out.push(h, text.as_bytes());
    // Who is turned away may find that out while it speaks.
    drop(stream.write_all(&out.drain()).await);
    let (reply, _) = receive(&mut stream).await?;
    assert_eq!((reply.opcode(), reply.0[1], reply.0[36]), (op::LOGIN_RESPONSE, 0x87, 0));
    assert_ne!([reply.0[14], reply.0[15]], [0, 0], "the session has a handle");
    Some(stream)
}

pub(crate) async fn test_unit_ready(stream: &mut TcpStream, cmd_sn: u32) -> Option<u8> {
    let mut h = Header::new(op::COMMAND);
    h.set(16, cmd_sn).set(24, cmd_sn);
    send(stream, h, &[]).await;
    receive(stream).await.map(|(h, _)| h.0[3])
}
