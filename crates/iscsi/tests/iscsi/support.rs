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
    time::{sleep, timeout},
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

/// Looks until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let looking = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(10), looking).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

/// A command of the host that is logged in over this stream.
pub(crate) fn command(cmd_sn: u32, cdb: &[u8], flags: u8, expected: u32) -> Header {
    let mut h = Header::new(op::COMMAND);
    h.0[1] = 0x81 | flags;
    h.set(16, cmd_sn).set(20, expected).set(24, cmd_sn);
    h.0[32..32 + cdb.len()].copy_from_slice(cdb);
    h
}

/// EXTENDED COPY (LID4) of so many blocks from the beginning of one disk to somewhere on another.
pub(crate) async fn order_copy(
    stream: &mut TcpStream,
    cmd_sn: u32,
    disks: [&dyn BlockVolume; 2],
    (blocks, to): (u16, u64),
    immediate: bool,
) {
    let mut list = vec![0; 48];
    (list[0], list[3], list[15], list[16], list[23]) = (1, 0x20, u8::from(immediate), 0xff, 9);
    (list[43], list[45]) = (64, 28);
    for disk in disks {
        let mut target = [0; 32];
        (target[0], target[4], target[5], target[7]) = (0xe4, 1, 3, 16);
        target[8..24].copy_from_slice(&scsi::naa(&disk.identity()));
        target[30] = 2;
        list.extend(target);
    }
    list.extend([2, 0, 0, 24, 0, 0, 0, 1, 0, 0]);
    list.extend(blocks.to_be_bytes());
    list.extend([0; 8]);
    list.extend(to.to_be_bytes());
    let cdb = [0x83, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
    send(stream, command(cmd_sn, &cdb, 0x20, list.len() as u32), &list).await;
}

/// A task management function, immediate, of the command whose tag and number are 2: what came of it.
pub(crate) async fn manage(stream: &mut TcpStream, function: u8, cmd_sn: u32) -> Option<u8> {
    let mut h = Header::new(op::TASK_MANAGEMENT | 0x40);
    h.0[1] = 0x80 | function;
    h.set(16, 99).set(20, 2).set(24, cmd_sn).set(32, 2);
    send(stream, h, &[]).await;
    let (h, _) = receive(stream).await?;
    (h.opcode() == op::TASK_MANAGEMENT_RESPONSE).then_some(h.0[2])
}
