//! Three network paths between hosts and a server, each with a portal of its own, in network namespaces: one goes silent under
//! load and comes back, another is lost for good and its host goes on by way of a third.
//!
//! Checked: the other paths do not notice; a host that comes back under its old name takes the place of its lost session, which
//! the server cannot know to be dead; what the lost session had sent never lands late; nothing that was answered is lost.
//!
//! Needs network namespaces (root, or a user's own); where there are none the test says so and is not run.

use std::{
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::wire::{Answer, Iscsi, Trouble, Wire as _};
use crate::support::{Daemon, Lab, ask, wait_until};

const PATHS: usize = 3;
const SLOT: usize = 4096;
/// Slots of a host.
const REGION: usize = 40;
/// How long a host waits before it gives a connection up.
const PATIENCE: Duration = Duration::from_millis(800);
const IQN: &str = "iqn.2026-11.io.millpond:tank:v";
/// Set in the run that has a network of its own.
const INSIDE: &str = "MILLPOND_OWN_NETWORK";

/// Whether this is the run in a network of its own. The first one starts that and waits for it.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut ways: Vec<&[&str]> =
        vec![&["--net", "--mount"], &["--net", "--mount", "--user", "--map-root-user"]];
    ways.retain(|how| {
        let probe = "ip link add probe0 type veth peer name probe1 && command -v nsenter";
        let tried = Command::new("unshare").args(*how).args(["sh", "-c", probe]).output();
        tried.is_ok_and(|output| output.status.success())
    });
    let Some(how) = ways.first() else {
        eprintln!("SKIPPED {test}: no network namespaces can be had here (unshare, ip, nsenter)");
        return false;
    };
    let me = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(*how).arg(me).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    assert!(command.status().unwrap().success(), "{test}, in a network of its own");
    false
}

/// The server's side: a namespace that lives as long as this.
struct Far(Child);

impl Far {
    fn new() -> Self {
        let child =
            Command::new("unshare").args(["--net", "sleep", "600"]).stdin(Stdio::null()).spawn().unwrap();
        let far = Self(child);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", far.0.id());
        wait_until(|| std::fs::read_link(&theirs).is_ok_and(|theirs| theirs != own));
        far.ip("link set lo up");
        for path in 0..PATHS {
            near(&format!("link add c{path} type veth peer name s{path} netns {}", far.0.id()));
            near(&format!("addr add 10.72.{path}.2/24 dev c{path}"));
            near(&format!("link set c{path} up"));
            far.ip(&format!("addr add 10.72.{path}.1/24 dev s{path}"));
            far.ip(&format!("link set s{path} up"));
        }
        far
    }

    fn command(&self, program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("-t").arg(self.0.id().to_string()).arg("-n").arg(program);
        command
    }

    fn ip(&self, words: &str) {
        run(self.command("ip".as_ref()).args(words.split_whitespace()));
    }

    fn serve(&self, lab: &Lab, line: &str) -> Daemon {
        let inner = lab.command("millpond");
        let mut command = self.command(inner.get_program());
        command.args(line.split_whitespace()).current_dir(lab.cwd()).stdin(Stdio::null());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        lab.serve_by(&mut command)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn near(words: &str) {
    run(Command::new("ip").args(words.split_whitespace()));
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn portal(path: usize) -> SocketAddr {
    SocketAddr::from(([10, 72, path as u8, 1], 3260))
}

/// A host that writes and reads by one path, and what is known of it.
struct Host {
    number: usize,
    path: AtomicU64,
    done: AtomicU64,
    logins: AtomicU64,
    /// Longest time without an answer.
    longest: Mutex<Duration>,
}

impl Host {
    fn new(number: usize) -> Self {
        Self {
            number,
            path: AtomicU64::new(number as u64),
            done: AtomicU64::new(0),
            logins: AtomicU64::new(0),
            longest: Mutex::default(),
        }
    }

    fn content(&self, slot: usize, turn: u64) -> Vec<u8> {
        let words = [turn, (self.number * REGION + slot) as u64];
        words.iter().cycle().take(SLOT / 8).flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Until it is over: the next slot is written, however often it takes, and an older one read.
    fn work(&self, is_over: &AtomicBool) {
        let mut line: Option<Iscsi> = None;
        let (mut turn, mut turns) = (0, [0; REGION]);
        let mut last = Instant::now();
        while !is_over.load(SeqCst) {
            turn += 1;
            let (slot, older) = (turn as usize * 7 % REGION, turn as usize * 11 % REGION);
            while !is_over.load(SeqCst) {
                match self.attempt(&mut line, (slot, turn), (older, turns[older])) {
                    Ok(()) => {
                        turns[slot] = turn;
                        self.done.fetch_add(1, SeqCst);
                        let mut longest = self.longest.lock().unwrap();
                        *longest = last.elapsed().max(*longest);
                        last = Instant::now();
                        break;
                    }
                    Err(Trouble::Gone(_)) => {
                        // Lost, not closed: the server hears nothing of it.
                        std::mem::forget(line.take());
                    }
                    Err(Trouble::Refused(why)) => panic!("host {}: {why}", self.number),
                }
            }
        }
        let mut line = line.unwrap();
        for (slot, turn) in turns.into_iter().enumerate().filter(|(_, turn)| *turn > 0) {
            self.compare(&mut line, slot, turn).unwrap();
        }
        line.log_out().unwrap();
    }

    fn attempt(&self, line: &mut Option<Iscsi>, write: (usize, u64), read: (usize, u64)) -> Answer<()> {
        if line.is_none() {
            let portal = portal(self.path.load(SeqCst) as usize);
            *line = Some(Iscsi::open_at(portal, PATIENCE, IQN, self.number as u8)?);
            self.logins.fetch_add(1, SeqCst);
        }
        let line = line.as_mut().unwrap();
        let (slot, turn) = write;
        line.write(self.offset(slot), &self.content(slot, turn), turn.is_multiple_of(3))?;
        match read {
            // Just written, or never.
            (older, _) if older == slot => self.compare(line, slot, turn),
            (_, 0) => Ok(()),
            (older, turn) => self.compare(line, older, turn),
        }
    }

    fn compare(&self, line: &mut Iscsi, slot: usize, turn: u64) -> Answer<()> {
        let bytes = line.read(self.offset(slot), SLOT as u32)?;
        let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(
            bytes == self.content(slot, turn),
            "host {} slot {slot}: turn {found}, not {turn}",
            self.number
        );
        Ok(())
    }

    fn offset(&self, slot: usize) -> u64 {
        ((self.number * REGION + slot) * SLOT) as u64
    }

    fn longest(&self) -> Duration {
        std::mem::take(&mut *self.longest.lock().unwrap())
    }
}

#[test]
fn a_path_that_is_lost_and_comes_back_costs_its_host_a_pause_and_others_nothing() {
    let _turn = crate::alone();
    if !is_inside("a_path_that_is_lost_and_comes_back_costs_its_host_a_pause_and_others_nothing") {
        return;
    }
    let far = Far::new();
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 256M tank {}", lab.cwd().join("a").display())).ok();
    lab.run("zfs create -s -V 16M tank/v").ok();
    let portals: String = (0..PATHS).map(|path| format!(" --iscsi {}", portal(path))).collect();
    let daemon = far.serve(&lab, &format!("serve{portals} tank"));
    let sessions = || ask(&lab, "/v1/served")["iscsi_sessions"].as_u64().unwrap();
    let hosts: Vec<Host> = (0..PATHS).map(Host::new).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _over = Over(&is_over);
        for host in &hosts {
            let is_over = &is_over;
            scope.spawn(move || host.work(is_over));
        }
        let moves_on = |host: &Host| {
            let before = host.done.load(SeqCst);
            wait_until(|| host.done.load(SeqCst) > before + 20);
        };
        hosts.iter().for_each(moves_on);
        assert_eq!(sessions(), 3);

        // Silent: nobody is told anything. Long enough for its host to give up and to fail to come back.
        for host in &hosts {
            let _so_far = host.longest();
        }
        far.ip("link set s1 down");
        thread::sleep(PATIENCE * 2);
        let stands = hosts[1].done.load(SeqCst);
        moves_on(&hosts[0]);
        moves_on(&hosts[2]);
        assert!(hosts[1].done.load(SeqCst) - stands < 2, "path 1 is cut");
        assert_eq!(sessions(), 3, "a host that is silent is not given up at once");
        far.ip("link set s1 up");
        let back = Instant::now();
        moves_on(&hosts[1]);
        let (back, others) = (back.elapsed(), hosts[0].longest().max(hosts[2].longest()));
        eprintln!("paths: back {back:.2?} after the path was; others waited {others:.2?} at most");
        assert!(back < Duration::from_secs(5), "{back:?}");
        assert!(others < PATIENCE, "the others had to wait {others:?}");
        assert_eq!(sessions(), 3, "the lost session's place was taken");
        assert!(hosts[1].logins.load(SeqCst) >= 2);

        // Lost for good: the host comes by another path, under its name.
        hosts[2].path.store(0, SeqCst);
        far.ip("link set s2 down");
        moves_on(&hosts[2]);
        assert_eq!(sessions(), 3, "the lost session's place was taken");
        hosts.iter().for_each(moves_on);
    });
    wait_until(|| sessions() == 0);
    // The connections that were lost and not closed do not hold up a stop.
    let begun = Instant::now();
    assert_eq!(daemon.stop().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "a stop took {:?}", begun.elapsed());
}
