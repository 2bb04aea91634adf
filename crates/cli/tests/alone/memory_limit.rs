//! The daemon keeps within its memory: in a cgroup that is small, under many clients that write as fast as they can, with
//! somebody else taking the machine's memory, it is never killed, no client sees an error, and what is resident stays
//! within the limit.
//!
//! The cgroup is one of version 1 that the test makes itself, which takes root and a kernel that has the memory
//! controller there; without them the test says that it did not run. `MILLPOND_MEMORY_SECONDS=600` with
//! `MILLPOND_MEMORY_SIZES=256,512,2048` is the long run of `make sim`.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use server::{engine::prewarm::Heat, pool::cache::Warmth};

use crate::support::{Lab, ask, served_as, wait_until, wire::Nbd};

/// Connections, half over each protocol.
const CONNECTIONS: usize = 64;
/// A client that hears nothing for so long says that it was forgotten.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the one beside it takes of the machine.
const HOG_MIB: usize = 1024;

/// What each client writes, and where.
#[derive(Clone, Copy)]
struct Load {
    /// Of how many disks the pool is, with 4 KiB sectors, and how they are put together.
    disks: usize,
    layout: &'static str,
    /// Requests that each client has under way, and bytes of one.
    depth: usize,
    request: usize,
    /// Bytes of each of the two volumes, and of their blocks.
    size: u64,
    block: u64,
    /// One request after another lies anywhere, or close to the last.
    scattered: bool,
}

/// Large requests that fill every buffer there is.
const BULK: Load = Load {
    disks: 1,
    layout: "",
    depth: 64,
    request: 1 << 20,
    size: 1 << 30,
    block: 64 << 10,
    scattered: false,
};

/// Small ones, each below an indirect block that no other is below: what the tree above a write takes in memory is 32
/// times what is written.
const SCATTERED: Load = Load { request: 4 << 10, size: 1 << 40, block: 4 << 10, scattered: true, ..BULK };

/// Blocks that take a sector each, eight times what is written in them.
const BELOW_A_SECTOR: Load = Load { depth: 4, size: 128 << 20, block: 512, ..BULK };

/// Blocks that get three times as much parity.
const PARITY: Load = Load { disks: 7, layout: "raidz3", depth: 4, size: 128 << 20, block: 4 << 10, ..BULK };

impl Load {
    /// Where the request of this number goes, in bytes.
    fn place(&self, client: u64, number: u64) -> u64 {
        let at = if self.scattered {
            (client << 32 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
        } else {
            client * 7919 + number * 13
        };
        at % (self.size / self.request as u64) * self.request as u64
    }
}

/// A memory cgroup of version 1, gone with its processes when the test ends.
struct Group(PathBuf);

impl Group {
    /// None where they cannot be made.
    fn new(mib: u64) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = mounts.lines().find(|line| {
            line.split_once(" - cgroup ")
                .is_some_and(|(_, more)| more.split([' ', ',']).any(|word| word == "memory"))
        })?;
        let top = PathBuf::from(line.split(' ').nth(4)?);
        let dir = top.join(format!("millpond-test-{}-{mib}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let this = Self(dir);
        fs::write(this.0.join("memory.limit_in_bytes"), format!("{mib}M")).ok()?;
        Some(this)
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.0.join(file)).unwrap_or_default().trim().parse().unwrap_or(0)
    }

    fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.oom_control")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was just reaped may still be leaving.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{} is left behind", self.0.display());
    }
}

/// Somebody outside of the cgroup who takes memory and uses all of it, again and again.
struct Hog(Child);

impl Hog {
    fn start() -> Self {
        let script = format!(
            "while :; do head -c {HOG_MIB}M /dev/zero | tail -c {HOG_MIB}M >/dev/null; sleep 0.2; done"
        );
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "sh", "-c", &script]);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a shell starts"))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // The shell's children end with their pipe.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// What all clients did.
#[derive(Default)]
struct Score {
    stop: AtomicBool,
    answered: AtomicU64,
    /// Longest time without an answer, in milliseconds.
    silence: AtomicU64,
}

impl Score {
    fn answer(&self, last: &mut Instant) {
        self.answered.fetch_add(1, SeqCst);
        self.silence.fetch_max(last.elapsed().as_millis() as u64, SeqCst);
        *last = Instant::now();
    }
}

fn connect(url: &str) -> (TcpStream, String) {
    let rest = url.split_once("://").expect("a URL").1;
    let (address, name) = rest.split_once('/').expect("with a path");
    let stream = TcpStream::connect(address).expect("the daemon listens");
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    (stream, name.to_owned())
}

/// Bytes that do not compress, other ones for each client.
fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out
}

/// Writes with [`Load::depth`] requests under way until it is told to stop; what went wrong, if anything.
fn nbd(url: &str, number: u64, load: Load, score: &Score) -> io::Result<()> {
    let (mut stream, name) = connect(url);
    Nbd::choose(&mut stream, &name)?;
    let data = payload(number, load.request);
    let mut writer = stream.try_clone()?;
    // As many as may be under way: the reader gives one back for each answer.
    let (done, free) = std::sync::mpsc::sync_channel::<()>(load.depth);
    thread::scope(|scope| {
        let sending = scope.spawn(move || -> io::Result<u64> {
            let mut sent = 0_u64;
            while !score.stop.load(SeqCst) {
                if sent >= load.depth as u64 && free.recv().is_err() {
                    break;
                }
                let mut request = Vec::with_capacity(28);
                request.extend(0x2560_9513_u32.to_be_bytes());
                request.extend([0, 0, 0, 1]);
                request.extend(sent.to_be_bytes());
                request.extend(load.place(number, sent).to_be_bytes());
                request.extend((load.request as u32).to_be_bytes());
                writer.write_all(&request)?;
                writer.write_all(&data)?;
                sent += 1;
            }
            let mut goodbye = 0x2560_9513_u32.to_be_bytes().to_vec();
            goodbye.extend([0, 0, 0, 2]);
            goodbye.resize(28, 0);
            writer.write_all(&goodbye)?;
            Ok(sent)
        });
        let mut last = Instant::now();
        let mut answered = 0_u64;
        let mut reply = [0; 16];
        let ended = loop {
            match stream.read_exact(&mut reply) {
                Ok(()) => {}
                Err(error) => break error,
            }
            if reply[4..8] != [0; 4] {
                break io::Error::other(format!("NBD errno {:?}", &reply[4..8]));
            }
            answered += 1;
            score.answer(&mut last);
            // The other side has stopped.
            let _nobody = done.send(());
        };
        drop(done);
        let sent = sending.join().unwrap()?;
        match ended.kind() {
            io::ErrorKind::UnexpectedEof if answered == sent => Ok(()),
            _ => Err(io::Error::other(format!("{answered} of {sent} answered: {ended}"))),
        }
    })
}

fn word(header: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().unwrap())
}

/// The same over iSCSI: as many commands under way as the target's window allows, up to [`Load::depth`]; data as the target asks
/// for it, the first of it unasked.
struct Initiator {
    stream: TcpStream,
    exp_stat_sn: u32,
    cmd_sn: u32,
    max_cmd_sn: u32,
    first_burst: usize,
    data: Vec<u8>,
}

impl Initiator {
    fn open(url: &str, number: u64, request: usize) -> io::Result<Self> {
        let (stream, name) = connect(url);
        let iqn = name.trim_end_matches("/0");
        let mut this = Self {
            stream,
            exp_stat_sn: 0,
            cmd_sn: 1,
            max_cmd_sn: 1,
            first_burst: 65_536,
            data: payload(number, request),
        };
        let text = [
            &format!("InitiatorName=iqn.2026-11.test:writer{number}") as &str,
            "SessionType=Normal",
            &format!("TargetName={iqn}"),
            "HeaderDigest=None",
            "DataDigest=None",
            "InitialR2T=Yes",
            "ImmediateData=Yes",
            "FirstBurstLength=262144",
            "MaxBurstLength=1048576",
            "MaxRecvDataSegmentLength=262144",
        ];
        let text: Vec<u8> = text.iter().flat_map(|key| key.bytes().chain([0])).collect();
        let mut header = [0; 48];
        (header[0], header[1]) = (0x43, 0x87);
        header[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, number as u8]);
        header[16..20].copy_from_slice(&0_u32.to_be_bytes());
        header[24..28].copy_from_slice(&1_u32.to_be_bytes());
        this.send(header, &text)?;
        let (reply, answers) = this.receive()?;
        if (reply[0] & 0x3f, reply[36]) != (0x23, 0) {
            return Err(io::Error::other(format!("login: {:#x}/{:#x}", reply[36], reply[37])));
        }
        let answers = String::from_utf8_lossy(&answers).into_owned();
        let burst = answers.split('\0').find_map(|pair| pair.strip_prefix("FirstBurstLength="));
        this.first_burst = burst.and_then(|burst| burst.parse().ok()).unwrap_or(65_536);
        Ok(this)
    }

    fn send(&mut self, mut header: [u8; 48], data: &[u8]) -> io::Result<()> {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        self.stream.write_all(&header)?;
        self.stream.write_all(data)?;
        let padding = data.len().next_multiple_of(4) - data.len();
        self.stream.write_all(&[0; 3][..padding])
    }

    fn receive(&mut self) -> io::Result<([u8; 48], Vec<u8>)> {
        let mut header = [0; 48];
        self.stream.read_exact(&mut header)?;
        let len = (word(&header, 4) & 0x00ff_ffff) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        self.stream.read_exact(&mut data)?;
        data.truncate(len);
        let max = word(&header, 32);
        if max.wrapping_sub(self.max_cmd_sn) < 1 << 31 {
            self.max_cmd_sn = max;
        }
        Ok((header, data))
    }

    fn write(&mut self, itt: u32, offset: u64) -> io::Result<()> {
        let mut header = [0; 48];
        (header[0], header[1]) = (0x01, 0xa1);
        header[16..20].copy_from_slice(&itt.to_be_bytes());
        header[20..24].copy_from_slice(&(self.data.len() as u32).to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        header[32] = 0x8a;
        header[34..42].copy_from_slice(&(offset / 512).to_be_bytes());
        header[42..46].copy_from_slice(&(self.data.len() as u32 / 512).to_be_bytes());
        let data = std::mem::take(&mut self.data);
        let sent = self.send(header, &data[..self.first_burst.min(data.len())]);
        self.data = data;
        sent
    }

    /// What an R2T asks for, in PDUs of 64 KiB.
    fn give(&mut self, r2t: &[u8; 48]) -> io::Result<()> {
        let (mut at, end) = (word(r2t, 40) as usize, (word(r2t, 40) + word(r2t, 44)) as usize);
        let data = std::mem::take(&mut self.data);
        let mut number = 0_u32;
        let mut outcome = Ok(());
        while at < end && outcome.is_ok() {
            let len = (end - at).min(64 << 10);
            let mut header = [0; 48];
            (header[0], header[1]) = (0x05, if at + len == end { 0x80 } else { 0 });
            header[8..16].copy_from_slice(&r2t[8..16]);
            header[16..24].copy_from_slice(&r2t[16..24]);
            header[36..40].copy_from_slice(&number.to_be_bytes());
            header[40..44].copy_from_slice(&(at as u32).to_be_bytes());
            outcome = self.send(header, &data[at..at + len]);
            (at, number) = (at + len, number + 1);
        }
        self.data = data;
        outcome
    }
}

fn iscsi(url: &str, number: u64, load: Load, score: &Score) -> io::Result<()> {
    let mut this = Initiator::open(url, number, load.request)?;
    let (mut sent, mut answered, mut again) = (0_u32, 0_u32, 0_u32);
    let mut last = Instant::now();
    loop {
        let stop = score.stop.load(SeqCst);
        while !stop
            && (sent - answered) < load.depth as u32
            && this.max_cmd_sn.wrapping_sub(this.cmd_sn) < 1 << 31
        {
            this.write(sent, load.place(number, u64::from(sent)))?;
            sent += 1;
        }
        if stop && sent == answered {
            return Ok(());
        }
        let (header, sense) = this.receive()?;
        match header[0] & 0x3f {
            0x31 => this.give(&header)?,
            0x21 => {
                this.exp_stat_sn = word(&header, 24).wrapping_add(1);
                answered += 1;
                match (header[3], sense.get(4).map(|key| key & 0x0f)) {
                    (0, _) => score.answer(&mut last),
                    // What a new nexus is told first is no failure.
                    (2, Some(6)) if again < 8 => again += 1,
                    (status, _) => {
                        return Err(io::Error::other(format!("SCSI status {status:#x}, {sense:x?}")));
                    }
                }
            }
            0x20 => {
                if word(&header, 20) != u32::MAX {
                    let mut pong = [0; 48];
                    (pong[0], pong[1]) = (0x40, 0x80);
                    pong[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
                    pong[20..24].copy_from_slice(&header[20..24]);
                    pong[24..28].copy_from_slice(&this.cmd_sn.to_be_bytes());
                    this.send(pong, &[])?;
                }
            }
            0x32 => {}
            other => return Err(io::Error::other(format!("PDU {other:#x}"))),
        }
    }
}

fn status(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

fn seconds() -> u64 {
    std::env::var("MILLPOND_MEMORY_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// All of it in a cgroup of so many MiB.
fn storm(mib: u64, load: Load, seconds: u64) {
    let Some(group) = Group::new(mib) else {
        eprintln!("NOT RUN: a memory cgroup of version 1 cannot be made here");
        return;
    };
    let lab = Lab::scratch();
    let mut layout = load.layout.to_owned();
    for number in 0..load.disks {
        let image = lab.cwd().join(format!("disk{number}"));
        fs::File::create(&image).unwrap().set_len(6 << 30).unwrap();
        layout += &format!(" {}", image.display());
    }
    lab.run(&format!("zpool create -o ashift=12 pond {layout}")).ok();
    for name in ["a", "b"] {
        let created =
            lab.run(&format!("zfs create -s -V {} -o volblocksize={} pond/{name}", load.size, load.block));
        // Of small blocks it says what they waste.
        assert_eq!(created.code, Some(0), "{}", created.stderr);
    }
    lab.run("zpool export pond").ok();
    let daemon =
        lab.serve_in(&group.0.join("cgroup.procs"), "serve -d . --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 pond");
    let pid = daemon.pid();
    let first = ask(&lab, "/v1/memory");
    let limit = first["limit"].as_u64().unwrap();
    assert!(limit < mib << 20, "{first:#}");
    assert!(first["limit_from"].as_str().unwrap().contains("memory.limit_in_bytes"), "{first:#}");

    let _hog = Hog::start();
    let score = Arc::new(Score::default());
    let begin = Instant::now();
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS as u64 {
        let volume = ["pond/a", "pond/b"][number as usize / 2 % 2];
        let is_nbd = number % 2 == 0;
        let url = served_as(&lab, volume, if is_nbd { "nbd" } else { "iscsi" });
        let score = Arc::clone(&score);
        clients.push(thread::spawn(move || {
            let outcome =
                if is_nbd { nbd(&url, number, load, &score) } else { iscsi(&url, number, load, &score) };
            outcome.map_err(|error| format!("client {number}: {error}"))
        }));
    }
    let mut most = 0;
    let (mut least_target, mut shed, mut dirty) = (u64::MAX, 0, 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        thread::sleep(Duration::from_millis(100));
        let resident = status(pid, "VmRSS:");
        most = most.max(resident);
        assert!(resident > 0, "the daemon is gone");
        assert_eq!(group.kills(), 0, "killed for want of memory");
        if begin.elapsed().as_millis() % 1000 < 100 {
            let memory = ask(&lab, "/v1/memory");
            least_target = least_target.min(memory["arc_target"].as_u64().unwrap());
            shed = memory["shed_times"].as_u64().unwrap();
            let parts = memory["parts"].as_array().unwrap();
            let part = parts.iter().find(|part| part["name"] == "dirty data of pond").unwrap();
            dirty = dirty.max(part["bytes"].as_u64().unwrap() * 100 / part["most"].as_u64().unwrap());
        }
    }
    let memory = ask(&lab, "/v1/memory");
    score.stop.store(true, SeqCst);
    let failures: Vec<String> =
        clients.into_iter().filter_map(|client| client.join().unwrap().err()).collect();
    let written = score.answered.load(SeqCst);
    eprintln!(
        "{mib} MiB, {seconds} s: {written} writes of {} KiB, {:.1} MiB/s; resident at most {} MiB (VmHWM {}), limit {} MiB; \
         cgroup max_usage {} MiB, failcnt {}, kills {}; longest silence of a client {} ms; ARC target at least {} MiB, \
         shed {shed} times",
        load.request >> 10,
        (written * load.request as u64) as f64 / 1_048_576.0 / begin.elapsed().as_secs_f64(),
        most >> 20,
        status(pid, "VmHWM:") >> 20,
        limit >> 20,
        group.number("memory.max_usage_in_bytes") >> 20,
        group.number("memory.failcnt"),
        group.kills(),
        score.silence.load(SeqCst),
        least_target >> 20,
    );
    if std::env::var_os("MILLPOND_MEMORY_SECONDS").is_some() {
        eprintln!("{}", lab.run("memory").stdout);
    }
    assert_eq!(failures, Vec::<String>::new(), "no client sees an error");
    assert!(written > CONNECTIONS as u64, "every client got on: {written}");
    assert!(status(pid, "VmHWM:") <= limit, "resident beyond the limit: {memory:#}");
    assert_eq!(group.kills(), 0);
    let is_full = if load.scattered { dirty >= 50 } else { memory["waits"].as_u64().unwrap() > 0 };
    assert!(is_full, "there was more to do than room for it: {dirty} % dirty, {memory:#}");
    let ended = daemon.stop();
    assert!(ended.success(), "{ended}");
}

#[test]
fn in_a_small_cgroup_many_writers_and_a_hog_beside_it_neither_kill_it_nor_see_errors() {
    let _turn = crate::alone();
    let sizes = std::env::var("MILLPOND_MEMORY_SIZES").unwrap_or_else(|_| "256".to_owned());
    for mib in sizes.split(',') {
        storm(mib.parse().expect("MiB, separated by commas"), BULK, seconds());
    }
}

/// The blocks of indirect pointers above such writes were in no account: 450 MiB for 1.8 MiB of dirty data.
#[test]
fn in_a_small_cgroup_writes_all_over_a_large_volume_neither_kill_it_nor_see_errors() {
    let _turn = crate::alone();
    let sizes = std::env::var("MILLPOND_MEMORY_SIZES").unwrap_or_else(|_| "256".to_owned());
    for mib in sizes.split(',') {
        storm(mib.parse().expect("MiB, separated by commas"), SCATTERED, seconds());
    }
}

/// Sectors filled up in buffers of their own, and parity, were kept until the commit and in no account: killed within half a
/// second.
#[test]
fn in_a_small_cgroup_blocks_that_take_much_more_than_is_written_neither_kill_it_nor_see_errors() {
    let _turn = crate::alone();
    let sizes = std::env::var("MILLPOND_MEMORY_SIZES").unwrap_or_else(|_| "256".to_owned());
    for mib in sizes.split(',') {
        for load in [BELOW_A_SECTOR, PARITY] {
            storm(mib.parse().expect("MiB, separated by commas"), load, seconds().min(60));
        }
    }
}

/// All properties of all snapshots were put together before a word of them was sent, for each who asked: most of a gigabyte
/// for a hundred thousand.
#[test]
fn lists_of_all_there_is_take_next_to_no_memory() {
    let _turn = crate::alone();
    let lab = Lab::scratch();
    let image = lab.cwd().join("disk");
    fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
    lab.run(&format!("zpool create pond {}", image.display())).ok();
    lab.run("zpool export pond").ok();
    let daemon = lab.serve("serve --memory-limit 256M -d . --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 pond");
    for number in 0..20 {
        lab.run(&format!("zfs create -s -V 1M pond/v{number}")).ok();
    }
    for number in 0..30 {
        lab.run(&format!("zfs snapshot -r pond@s{number}")).ok();
    }
    // What all inherit makes up for their number: 80 kB of text for each.
    for name in ["a", "b", "c", "d", "e"] {
        lab.run(&format!("zfs set org.example:{name}={} pond", "x".repeat(8000))).ok();
    }
    let before = status(daemon.pid(), "VmHWM:");
    let socket = lab.socket();
    let read = || {
        let mut stream = UnixStream::connect(&socket).expect("the daemon listens");
        stream.write_all(b"GET /v1/datasets HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        io::copy(&mut stream, &mut io::sink()).expect("it answers")
    };
    let lengths: Vec<u64> = thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    let more = status(daemon.pid(), "VmHWM:") - before;
    eprintln!("lists of {lengths:?} bytes at once: {} MiB more than before", more >> 20);
    assert!(lengths.iter().all(|length| *length > 40 << 20), "{lengths:?}");
    assert!(before > 0 && more < 64 << 20, "{before} and {more}");
    assert!(daemon.stop().success());
}

/// With the state of a large machine it was killed at every start: what had been warm there was taken into memory whole, more
/// than the cgroup has, before anybody had looked at it.
#[test]
fn what_was_warm_on_a_large_machine_does_not_kill_a_small_one() {
    const MIB: u64 = 256;
    const STRETCHES: u64 = 4 << 20;
    let _turn = crate::alone();
    let Some(group) = Group::new(MIB) else {
        eprintln!("NOT RUN: a memory cgroup of version 1 cannot be made here");
        return;
    };
    let lab = Lab::scratch();
    let image = lab.cwd().join("disk");
    fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
    lab.run(&format!("zpool create pond {}", image.display())).ok();
    let guid: u64 = lab.run("zpool list -H -o guid pond").ok().trim().parse().unwrap();
    lab.run("zpool export pond").ok();
    // Of a volume that is not there any more: what is read has to be in memory all the same.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut heat = Heat::new(guid, 1, now);
    (0..STRETCHES).for_each(|number| heat.note(1 << 40, number * 64, Some(Warmth::Frequent), true));
    fs::create_dir_all(lab.path("state")).unwrap();
    fs::write(lab.path("state").join(format!("heat-{guid}")), heat.encode()).unwrap();
    drop(heat);

    let daemon = lab.serve_in(&group.0.join("cgroup.procs"), "serve -d . --nbd 127.0.0.1:0 pond");
    let warmed = || ask(&lab, "/v1/prewarm")["pools"][0].clone();
    wait_until(|| !["none", "running"].contains(&warmed()["state"].as_str().unwrap()));
    let (memory, warmed) = (ask(&lab, "/v1/memory"), warmed());
    eprintln!("VmHWM {} MiB, {warmed}", status(daemon.pid(), "VmHWM:") >> 20);
    assert!(status(daemon.pid(), "VmHWM:") <= memory["limit"].as_u64().unwrap(), "{memory:#}");
    assert_eq!(group.kills(), 0);
    // As much of it as there is memory for is used, and that there is more is told.
    assert!((10_000..STRETCHES / 4).contains(&warmed["memory_total"].as_u64().unwrap()), "{warmed}");
    assert_eq!(warmed["state"], "full");
    assert!(daemon.stop().success());
}

#[test]
fn a_limit_that_cannot_be_kept_is_refused_before_anything_is_opened() {
    let _turn = crate::alone();
    let lab = Lab::empty();
    let said = lab.run("serve --memory-limit 20M").fails(1);
    assert!(said.contains("20M of memory are too little: serving takes 128M at least"), "{said}");
    let said = lab.run("serve --memory-limit 900T").fails(1);
    assert!(said.contains("--memory-limit 900T is more than"), "{said}");
    assert!(
        lab.run("serve --memory-limit much")
            .fails(2)
            .contains("give bytes, a size like 8G, or a share like 50%")
    );
    let said = lab.run("memory").fails(1);
    assert!(said.contains("no daemon answers on"), "{said}");
    assert!(!Path::new(&lab.socket()).exists());
}
