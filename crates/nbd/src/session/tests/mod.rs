//! The core byte by byte, with a volume in memory behind it and no socket in front. Here is who talks to it, and what is said
//! on the wire; the tests lie beside.

use std::task::Waker;

use block::{BlockVolume, Extent, MemVolume, VolumeError};
use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::{export::Registry, proto::*};

mod flow;
mod handshake;
mod noise;
mod transmission;

const SIZE: u64 = 64 << 10;

/// The exports of most tests: `tank/vm1` (4 KiB blocks; the second is data, the rest holes) and a snapshot.
fn exports() -> (Arc<Registry>, Arc<MemVolume>) {
    let volume = Arc::new(MemVolume::new("tank/vm1", SIZE, 4096));
    write(&*volume, 4096, &[0xaa; 4096]);
    let snapshot = Arc::new(MemVolume::new("tank/vm1@monday", SIZE, 4096).read_only());
    let registry = Arc::new(Registry::new());
    registry.insert("tank/vm1", "a disk", volume.clone()).unwrap();
    registry.insert("tank/vm1@monday", "", snapshot).unwrap();
    (registry, volume)
}

fn write(volume: &dyn BlockVolume, offset: u64, data: &[u8]) {
    let segments = std::iter::once(Segment::Data(Bytes::copy_from_slice(data))).collect();
    volume.write(offset, segments, Durability::Cached).now_or_never().unwrap().unwrap();
}

fn serve(volume: &dyn BlockVolume, op: Op) -> Result<Outcome, NbdError> {
    let unit = |f: block::VolumeFuture<'_, ()>| f.now_or_never().unwrap().map(|()| Outcome::Done);
    Ok(match op {
        Op::Read { offset, len } => volume.read(offset, len).now_or_never().unwrap().map(Outcome::Data),
        Op::BlockStatus { offset, len, max_extents } => {
            volume.extents(offset, len, max_extents).now_or_never().unwrap().map(Outcome::Extents)
        }
        Op::Write { offset, data, durability } => unit(volume.write(offset, data, durability)),
        Op::WriteZeroes { offset, len, allocate, durability } => {
            unit(volume.write_zeroes(offset, len, allocate, durability))
        }
        Op::Trim { offset, len, durability } => unit(volume.unmap(offset, len, durability)),
        Op::Flush => unit(volume.flush()),
        Op::Cache { .. } => Ok(Outcome::Done),
    }?)
}

/// A session, and all it said.
struct Talk {
    session: Session,
    said: Vec<u8>,
    error: Option<ProtocolError>,
}

impl Talk {
    fn new(exports: Arc<dyn Exports>) -> Self {
        let session = Session::new(exports, Limits::default(), Gate::new(1 << 30));
        Self { session, said: Vec::new(), error: None }
    }

    /// Serves all that can be served.
    fn settle(&mut self) {
        while self.error.is_none() {
            match self.session.poll_request() {
                Ok(Some(Request { op, tag })) => {
                    let volume = Arc::clone(&self.session.export().unwrap().volume);
                    self.session.complete(tag, serve(&*volume, op));
                }
                Ok(None) => {
                    let waiting = self.session.output_len();
                    while let Some(bytes) = self.session.poll_transmit() {
                        self.said.extend_from_slice(&bytes);
                    }
                    if waiting == 0 {
                        break;
                    }
                }
                Err(error) => self.error = Some(error),
            }
        }
    }

    fn hear(&mut self, mut bytes: &[u8]) {
        self.settle();
        while !bytes.is_empty() && self.error.is_none() && self.session.phase() != Phase::Leaving {
            let n = self.session.handle_bytes(bytes);
            assert!(n > 0, "everything was served and sent, so bytes are welcome");
            bytes = &bytes[n..];
            self.settle();
        }
    }

    /// What is said in answer to these bytes.
    fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.settle();
        self.said.clear();
        self.hear(bytes);
        assert_eq!(self.error, None);
        std::mem::take(&mut self.said)
    }
}

fn cat(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    cat(&[b"IHAVEOPT", &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data])
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    cat(&[
        &0x0003_e889_0455_65a9_u64.to_be_bytes(),
        &option.to_be_bytes(),
        &kind.to_be_bytes(),
        &(data.len() as u32).to_be_bytes(),
        data,
    ])
}

/// `answer` for errors, whose text is not compared.
fn error_code(reply: &[u8]) -> u32 {
    assert_eq!(reply[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
    assert_eq!(reply.len(), 20 + u32::from_be_bytes(reply[16..20].try_into().unwrap()) as usize);
    u32::from_be_bytes(reply[12..16].try_into().unwrap())
}

fn name(text: &str) -> Vec<u8> {
    cat(&[&(text.len() as u32).to_be_bytes(), text.as_bytes()])
}

fn go(export: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = name(export);
    data.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    for info in infos {
        data.extend_from_slice(&info.to_be_bytes());
    }
    data
}

fn queries(export: &str, texts: &[&str]) -> Vec<u8> {
    let mut data = name(export);
    data.extend_from_slice(&(texts.len() as u32).to_be_bytes());
    for text in texts {
        data.extend_from_slice(&name(text));
    }
    data
}

fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    cat(&[
        &0x2560_9513_u32.to_be_bytes(),
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ])
}

fn request_ext(flags: u16, command: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    cat(&[
        &0x21e4_1c71_u32.to_be_bytes(),
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ])
}

fn simple(errno: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
    cat(&[&0x6744_6698_u32.to_be_bytes(), &errno.to_be_bytes(), &cookie.to_be_bytes(), data])
}

fn chunk(flags: u16, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
    cat(&[
        &0x668e_33ef_u32.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &(body.len() as u32).to_be_bytes(),
        body,
    ])
}

fn chunk_ext(flags: u16, kind: u16, cookie: u64, offset: u64, body: &[u8]) -> Vec<u8> {
    cat(&[
        &0x6e8a_278c_u32.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &(body.len() as u64).to_be_bytes(),
        body,
    ])
}

const FLAGS: &[u8] = &[0, 0, 0, 3];

/// A client that said hello.
fn hello(exports: Arc<dyn Exports>) -> Talk {
    let mut talk = Talk::new(exports);
    assert_eq!(talk.ask(FLAGS), b"");
    talk
}

fn in_transmission(exports: Arc<dyn Exports>, export: &str, options: &[u32]) -> Talk {
    let mut talk = hello(exports);
    for each in options {
        assert_eq!(talk.ask(&option(*each, &[])), answer(*each, 1, &[]));
    }
    if !options.is_empty() {
        let set = option(10, &queries(export, &["base:allocation"]));
        let context = cat(&[&1_u32.to_be_bytes(), b"base:allocation"]);
        assert_eq!(talk.ask(&set), cat(&[&answer(10, 4, &context), &answer(10, 1, &[])]));
    }
    talk.ask(&option(7, &go(export, &[])));
    assert_eq!(talk.session.phase(), Phase::Transmission);
    talk
}

const STRUCTURED: &[u32] = &[8];
const EXTENDED: &[u32] = &[11];

/// The error number of a one-chunk structured reply.
fn chunk_errno(reply: &[u8]) -> u32 {
    assert_eq!(reply[..4], 0x668e_33ef_u32.to_be_bytes());
    assert_eq!(reply.len(), 20 + u32::from_be_bytes(reply[16..20].try_into().unwrap()) as usize);
    assert!(reply[6] & 0x80 != 0, "not an error chunk");
    u32::from_be_bytes(reply[20..24].try_into().unwrap())
}

/// The next request, without serving it.
fn next(talk: &mut Talk, bytes: &[u8]) -> Request {
    if !bytes.is_empty() {
        assert!(talk.session.poll_request().unwrap().is_none());
        assert_eq!(talk.session.handle_bytes(bytes), bytes.len());
    }
    talk.session.poll_request().unwrap().expect("a request")
}

fn said(talk: &mut Talk) -> Vec<u8> {
    std::iter::from_fn(|| talk.session.poll_transmit()).flatten().collect()
}

fn zeroes(len: usize) -> Result<Outcome, NbdError> {
    Ok(Outcome::Data(std::iter::once(Segment::Zero(len)).collect()))
}
