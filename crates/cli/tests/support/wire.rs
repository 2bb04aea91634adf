//! Two small clients that say exactly what they are told and know what was acknowledged: NBD and iSCSI, one request
//! at a time, blocking. Stock clients do not tell which of their writes were answered when the server dies.
//!
//! Facts: the NBD protocol text (fixed newstyle handshake, simple replies), RFC 7143 §11, SBC-3.
#![allow(
    dead_code,
    reason = "each test program uses a part of it, and some of it is for reading in a panic only"
)]

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a request was not acknowledged.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection broke: the server died, or is not there yet.
    Gone(io::Error),
    /// The server answered, and said no.
    Refused(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Gone(error) => error,
            Trouble::Refused(why) => Self::other(why),
        }
    }
}

pub(crate) type Answer<T> = Result<T, Trouble>;

/// What both can do.
pub(crate) trait Wire: Send {
    /// Writes; with `fua` the answer means that it is durable.
    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Answer<()>;
    /// The range reads as zeroes afterwards, and its space is freed where it can be.
    fn zero(&mut self, offset: u64, len: u32, fua: bool) -> Answer<()>;
    /// What was answered before this, to anybody, is durable.
    fn flush(&mut self) -> Answer<()>;
    fn read(&mut self, offset: u64, len: u32) -> Answer<Vec<u8>>;
}

fn connect(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A connection to an NBD export.
pub(crate) struct Nbd {
    stream: TcpStream,
    cookie: u64,
}

impl Nbd {
    pub(crate) fn open(port: u16, export: &str) -> Answer<Self> {
        let mut stream = connect(here(port), PATIENCE)?;
        Self::choose(&mut stream, export)?;
        Ok(Self { stream, cookie: 0 })
    }

    /// What comes before the first request on a new connection.
    pub(crate) fn choose(stream: &mut TcpStream, export: &str) -> Answer<()> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        let mut hello = vec![0, 0, 0, 3];
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend(7_u32.to_be_bytes());
        hello.extend((export.len() as u32 + 6).to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        hello.extend([0, 0]);
        stream.write_all(&hello)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let kind = u32::from_be_bytes(head[12..16].try_into().expect("four bytes"));
            let mut body = vec![0; u32::from_be_bytes(head[16..].try_into().expect("four bytes")) as usize];
            stream.read_exact(&mut body)?;
            match kind {
                1 => return Ok(()),
                3 => {}
                other => return Err(Trouble::Refused(format!("option reply {other:#x}"))),
            }
        }
    }

    fn ask(
        &mut self,
        flags: u16,
        command: u16,
        offset: u64,
        len: u32,
        data: &[u8],
        back: usize,
    ) -> Answer<Vec<u8>> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(0x2560_9513_u32.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes(), "a simple reply");
        assert_eq!(reply[8..], self.cookie.to_be_bytes(), "to this request");
        let errno = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        if errno != 0 {
            return Err(Trouble::Refused(format!("command {command}: errno {errno}")));
        }
        let mut back = vec![0; back];
        self.stream.read_exact(&mut back)?;
        Ok(back)
    }
}

impl Nbd {
    /// The connection, for who wants to cut it.
    pub(crate) fn stream(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }
}

impl Wire for Nbd {
    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Answer<()> {
        self.ask(u16::from(fua), 1, offset, data.len() as u32, data, 0).map(drop)
    }

    fn zero(&mut self, offset: u64, len: u32, fua: bool) -> Answer<()> {
        self.ask(u16::from(fua), 6, offset, len, &[], 0).map(drop)
    }

    fn flush(&mut self) -> Answer<()> {
        self.ask(0, 3, 0, 0, &[], 0).map(drop)
    }

    fn read(&mut self, offset: u64, len: u32) -> Answer<Vec<u8>> {
        self.ask(0, 0, offset, len, &[], len as usize)
    }
}

/// A session with an iSCSI target: one connection, 512-byte blocks, LUN 0.
pub(crate) struct Iscsi {
    stream: TcpStream,
    itt: u32,
    command: u32,
    expected_status: u32,
    is_write_through: bool,
    /// Commands that others' resets ended, and those there was no room for, are sent again.
    is_patient: bool,
    /// The target asked for a logout.
    shall_leave: bool,
    /// Unit attentions it was told since somebody asked: additional sense code and qualifier.
    news: Vec<(u8, u8)>,
}

/// What a PDU is, and the data behind it.
type Pdu = ([u8; 48], Vec<u8>);

fn word(header: &[u8; 48], at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"))
}

impl Iscsi {
    /// Logs in as initiator `number`: who comes back with the same number takes over the session it lost.
    pub(crate) fn open(port: u16, iqn: &str, number: u8) -> Answer<Self> {
        Self::open_at(here(port), PATIENCE, iqn, number)
    }

    /// The same at a portal, waiting so long for an answer.
    pub(crate) fn open_at(portal: SocketAddr, patience: Duration, iqn: &str, number: u8) -> Answer<Self> {
        let mut this = Self {
            stream: connect(portal, patience)?,
            itt: 1,
            command: 1,
            expected_status: 0,
            is_write_through: false,
            is_patient: false,
            shall_leave: false,
            news: Vec::new(),
        };
        let text = [
            &format!("InitiatorName=iqn.2026-11.test:client{number}") as &str,
            "SessionType=Normal",
            &format!("TargetName={iqn}"),
            "HeaderDigest=None",
            "DataDigest=None",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "FirstBurstLength=262144",
            "MaxBurstLength=262144",
            "MaxRecvDataSegmentLength=262144",
        ];
        let text: Vec<u8> = text.iter().flat_map(|key| key.bytes().chain([0])).collect();
        let mut header = [0; 48];
        (header[0], header[1]) = (0x43, 0x87);
        header[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, number]);
        this.send(header, &text)?;
        let (reply, _) = this.receive()?;
        if (reply[0] & 0x3f, reply[36]) != (0x23, 0) || reply[1] & 0x80 == 0 {
            return Err(Trouble::Refused(format!("login: status {:#x}/{:#x}", reply[36], reply[37])));
        }
        // What a new nexus is told first is no failure.
        this.scsi(&[0], &[], 0)?;
        Ok(this)
    }

    /// What it was told by itself since this was asked last.
    pub(crate) fn news(&mut self) -> Vec<(u8, u8)> {
        std::mem::take(&mut self.news)
    }

    /// Switches the write cache off: every write is durable when it is answered, until the target restarts.
    pub(crate) fn write_through(&mut self) -> Answer<()> {
        let mut list = vec![0, 0, 0, 0, 0x08, 0x12, 0];
        list.resize(24, 0);
        self.scsi(&[0x15, 0x10, 0, 0, 24, 0], &list, 0)?;
        self.is_write_through = true;
        Ok(())
    }

    /// Bytes of a logical block (READ CAPACITY(10)).
    pub(crate) fn block_size(&mut self) -> Answer<u32> {
        let capacity = self.scsi(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8)?;
        Ok(u32::from_be_bytes(capacity[4..8].try_into().expect("four bytes")))
    }

    pub(crate) fn is_write_through(&self) -> bool {
        self.is_write_through
    }

    /// Sends again what a reset of others ended, as hosts do.
    pub(crate) fn patient(mut self) -> Self {
        self.is_patient = true;
        self
    }

    /// The connection, for who wants to cut it.
    pub(crate) fn stream(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// Whether the target asked for a logout.
    pub(crate) fn shall_leave(&self) -> bool {
        self.shall_leave
    }

    /// Logs out. The server may be faster.
    pub(crate) fn log_out(mut self) -> Answer<()> {
        let mut header = [0; 48];
        (header[0], header[1]) = (0x46, 0x80);
        self.itt += 1;
        self.send(header, &[])?;
        while self.receive()?.0[0] & 0x3f != 0x26 {}
        Ok(())
    }

    /// Sends a write and does not wait for its answer. Gives its tag.
    pub(crate) fn begin_write(&mut self, offset: u64, data: &[u8]) -> Answer<u32> {
        let cdb = Self::cdb16(0x8a, 0, offset, data.len() as u32);
        self.command(&cdb, data, 0)?;
        Ok(self.itt)
    }

    /// Aborts a command; returns the target's answer to that. When it comes, the command has ended, one way or the other.
    pub(crate) fn abort(&mut self, tag: u32) -> Answer<u8> {
        self.task_management(1, tag)
    }

    /// Resets the disk, for everybody.
    pub(crate) fn reset(&mut self) -> Answer<u8> {
        self.task_management(5, u32::MAX)
    }

    fn task_management(&mut self, function: u8, tag: u32) -> Answer<u8> {
        let mut header = [0; 48];
        (header[0], header[1]) = (0x42, 0x80 | function);
        header[20..24].copy_from_slice(&tag.to_be_bytes());
        header[32..36].copy_from_slice(&(self.command - 1).to_be_bytes());
        self.itt += 1;
        self.send(header, &[])?;
        loop {
            let (reply, _) = self.receive()?;
            match reply[0] & 0x3f {
                0x22 if word(&reply, 16) == self.itt => return Ok(reply[2]),
                // The command's own answer was faster.
                0x21 | 0x25 | 0x31 => self.expected_status = word(&reply, 24).wrapping_add(1),
                other => return Err(Trouble::Refused(format!("PDU {other:#x} in place of an answer"))),
            }
        }
    }

    fn send(&mut self, mut header: [u8; 48], data: &[u8]) -> io::Result<()> {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        header[16..20].copy_from_slice(&self.itt.to_be_bytes());
        header[24..28].copy_from_slice(&self.command.to_be_bytes());
        header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.stream.write_all(&bytes)
    }

    fn receive(&mut self) -> io::Result<Pdu> {
        loop {
            let mut header = [0; 48];
            self.stream.read_exact(&mut header)?;
            let len = (word(&header, 4) & 0x00ff_ffff) as usize;
            let mut data = vec![0; len.next_multiple_of(4)];
            self.stream.read_exact(&mut data)?;
            data.truncate(len);
            match header[0] & 0x3f {
                // A ping that wants an answer; and news of the target, which no test here waits for.
                0x20 if word(&header, 20) != u32::MAX => {
                    let mut pong = [0; 48];
                    (pong[0], pong[1]) = (0x40, 0x80);
                    pong[8..16].copy_from_slice(&header[8..16]);
                    pong[20..24].copy_from_slice(&header[20..24]);
                    let itt = std::mem::replace(&mut self.itt, u32::MAX);
                    self.send(pong, &[])?;
                    self.itt = itt;
                }
                0x32 => self.shall_leave |= header[36] == 1,
                0x20 => {}
                _ => return Ok((header, data)),
            }
        }
    }

    fn command(&mut self, cdb: &[u8], out: &[u8], back: usize) -> io::Result<()> {
        let mut header = [0; 48];
        header[0] = 0x01;
        header[1] = 0x81 | if back > 0 { 0x40 } else { 0 } | if out.is_empty() { 0 } else { 0x20 };
        header[20..24].copy_from_slice(&(out.len().max(back) as u32).to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.itt += 1;
        self.send(header, out)?;
        self.command += 1;
        Ok(())
    }

    /// One command with all of its Data-Out as immediate data; a unit attention is taken note of, and the command
    /// sent again.
    fn scsi(&mut self, cdb: &[u8], out: &[u8], back: usize) -> Answer<Vec<u8>> {
        for _ in 0..if self.is_patient { 200 } else { 8 } {
            self.command(cdb, out, back)?;
            let mut data = vec![0; back];
            let (status, sense) = loop {
                let (reply, bytes) = self.receive()?;
                if word(&reply, 16) != self.itt {
                    return Err(Trouble::Refused(format!("an answer to {:#x}, not asked", word(&reply, 16))));
                }
                let has_status = match reply[0] & 0x3f {
                    0x25 => {
                        let at = word(&reply, 40) as usize;
                        data[at..at + bytes.len()].copy_from_slice(&bytes);
                        reply[1] & 1 != 0
                    }
                    0x21 => true,
                    other => return Err(Trouble::Refused(format!("PDU {other:#x} in place of an answer"))),
                };
                if has_status {
                    self.expected_status = word(&reply, 24).wrapping_add(1);
                    break (reply[3], bytes);
                }
            };
            match (status, sense.get(4).map(|key| key & 0x0f)) {
                (0, _) => return Ok(data),
                (2, Some(6)) => self.news.extend(sense.get(14..16).map(|code| (code[0], code[1]))),
                // BUSY, TASK SET FULL, TASK ABORTED.
                (0x08 | 0x28 | 0x40, _) if self.is_patient => thread::sleep(Duration::from_millis(5)),
                _ => {
                    return Err(Trouble::Refused(format!(
                        "command {:#x}: status {status:#x}, {sense:x?}",
                        cdb[0]
                    )));
                }
            }
        }
        Err(Trouble::Refused("it never stops telling news".to_owned()))
    }

    fn cdb16(code: u8, flags: u8, offset: u64, len: u32) -> [u8; 16] {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (code, flags);
        cdb[2..10].copy_from_slice(&(offset / 512).to_be_bytes());
        cdb[10..14].copy_from_slice(&(len / 512).to_be_bytes());
        cdb
    }
}

impl Wire for Iscsi {
    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Answer<()> {
        let cdb = Self::cdb16(0x8a, if fua { 0x08 } else { 0 }, offset, data.len() as u32);
        self.scsi(&cdb, data, 0).map(drop)
    }

    /// WRITE SAME with UNMAP has no FUA: a flush follows where one was asked for.
    fn zero(&mut self, offset: u64, len: u32, fua: bool) -> Answer<()> {
        self.scsi(&Self::cdb16(0x93, 0x08, offset, len), &[0; 512], 0)?;
        if fua { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Answer<()> {
        self.scsi(&Self::cdb16(0x91, 0, 0, 0), &[], 0).map(drop)
    }

    fn read(&mut self, offset: u64, len: u32) -> Answer<Vec<u8>> {
        self.scsi(&Self::cdb16(0x88, 0, offset, len), &[], len as usize)
    }
}
