//! The drills there are.

use std::time::Duration;

use crate::{layout::LogDevices, load::LoadShape, script::Act};

const MIB: u64 = 1 << 20;

/// A scripted failure.
#[derive(Clone, Copy, Debug)]
pub struct Drill {
    /// What it is called.
    pub name: &'static str,
    /// What happens, in a sentence.
    pub about: &'static str,
    /// Log devices it needs.
    pub log: LogDevices,
    /// Bytes of a simulated disk.
    pub disk_bytes: u64,
    /// Bytes that may be dirty; none: as usual.
    pub dirty_max: Option<u64>,
    /// What the clients do.
    pub load: LoadShape,
    /// What is done.
    pub script: &'static [Act],
    /// How long the script's times are on copies, where they are real and dear: one on a simulated machine.
    pub pace_on_copies: f64,
    /// Clients are told that there is no space.
    pub fills: bool,
    /// The same under a worse assumption, for information: what it is, and the script.
    pub what_if: Option<(&'static str, &'static [Act])>,
    /// What this drill cannot judge yet, and why.
    pub caveat: Option<&'static str>,
}

const CALM: Act = Act::Wait(secs(20));
const LONG: Duration = secs(900);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const USUAL: LoadShape =
    LoadShape { clients: 6, bytes: 32 * MIB, think: Duration::from_millis(120), writes: 40, stable: 30 };

const BASE: Drill = Drill {
    name: "",
    about: "",
    log: LogDevices::None,
    disk_bytes: 4096 * MIB,
    dirty_max: None,
    load: USUAL,
    script: &[],
    pace_on_copies: 0.1,
    fills: false,
    what_if: None,
    caveat: None,
};

static DRILLS: [Drill; 8] = [
    Drill {
        name: "double-pull",
        about: "two disks are pulled out under load, ten seconds apart, and put back a minute later",
        script: &[
            CALM,
            Act::Pull(0),
            Act::Wait(secs(10)),
            Act::Pull(1),
            Act::Wait(secs(60)),
            Act::Return(0),
            Act::Wait(secs(5)),
            Act::Return(1),
            Act::UntilWhole(LONG),
            CALM,
        ],
        ..BASE
    },
    Drill {
        name: "slow-disk",
        about: "one disk takes a second for every command, for five minutes",
        script: &[
            CALM,
            Act::Slow(0, secs(1)),
            Act::Wait(secs(300)),
            Act::Heal(0),
            Act::Wait(secs(60)),
            Act::UntilWhole(LONG),
        ],
        // It takes looks in a row to find a disk slow, and those are not made more often on copies.
        pace_on_copies: 0.3,
        ..BASE
    },
    Drill {
        name: "corrupting-disk",
        about: "one disk gives wrong bytes in one of 20 reads, and rots in 200 places; after that a scrub",
        script: &[
            CALM,
            Act::Corrupt(0, 20),
            Act::Wait(secs(120)),
            Act::Heal(0),
            Act::Scrub(LONG),
            Act::UntilWhole(LONG),
            CALM,
        ],
        ..BASE
    },
    Drill {
        name: "lying-flush",
        about: "one disk acknowledges flushes and does nothing; then the power goes",
        script: &[
            CALM,
            Act::Lie(0),
            Act::Wait(secs(60)),
            Act::PowerCut,
            Act::Wait(secs(30)),
            Act::Scrub(LONG),
            Act::UntilWhole(LONG),
        ],
        what_if: Some(("if every disk lied", &[CALM, Act::AllLie, Act::Wait(secs(60)), Act::PowerCut])),
        ..BASE
    },
    Drill {
        name: "log-loss",
        about: "the only log device dies while clients ask for stable writes, and comes back",
        log: LogDevices::One,
        load: LoadShape { writes: 60, stable: 80, ..USUAL },
        script: &[CALM, Act::PullLog, Act::Wait(secs(60)), Act::ReturnLog, Act::UntilWhole(LONG), CALM],
        ..BASE
    },
    Drill {
        name: "log-loss-mirror",
        about: "one of two mirrored log devices dies, then the power goes",
        log: LogDevices::Mirror,
        load: LoadShape { writes: 60, stable: 80, ..USUAL },
        script: &[
            CALM,
            Act::PullLog,
            Act::Wait(secs(30)),
            Act::PowerCut,
            Act::Wait(secs(30)),
            Act::ReturnLog,
            Act::UntilWhole(LONG),
            CALM,
        ],
        ..BASE
    },
    Drill {
        name: "memory-hog",
        about: "memory for dirty data is down to 8 MiB, another program takes 256 MiB, and clients write all the time",
        dirty_max: Some(8 * MIB),
        load: LoadShape { clients: 16, think: Duration::from_millis(20), writes: 85, stable: 10, ..USUAL },
        script: &[CALM, Act::Hog(256 << 20), Act::Wait(secs(60))],
        caveat: Some(
            "only the limit of dirty data is rehearsed: one ceiling for all memory, and what gives way first under \
             pressure, are not built yet",
        ),
        ..BASE
    },
    Drill {
        name: "full-pool",
        about: "the pool is filled to the last byte while clients go on; then what filled it is destroyed",
        disk_bytes: 160 * MIB,
        load: LoadShape { bytes: 8 * MIB, ..USUAL },
        fills: true,
        script: &[CALM, Act::Fill, Act::Wait(secs(30)), Act::MakeRoom, Act::Wait(secs(30))],
        ..BASE
    },
];

/// All of them.
#[must_use]
pub fn all() -> &'static [Drill] {
    &DRILLS
}

/// By name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Drill> {
    DRILLS.iter().find(|drill| drill.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than it takes to find a disk slow: the simulated drill says 36 seconds.
    const FOUND_WITHIN: Duration = secs(60);

    /// It was well again before it could be found, and the card said that nobody would have been told.
    #[test]
    fn a_disk_is_slow_for_long_enough_to_be_found_on_copies_too() {
        let mut drills = 0;
        for drill in all() {
            let Some(at) = drill.script.iter().position(|act| matches!(act, Act::Slow(..))) else { continue };
            let slow = drill.script[at..].iter().take_while(|act| !matches!(act, Act::Heal(_)));
            let scripted: Duration =
                slow.map(|act| if let Act::Wait(time) = act { *time } else { Duration::ZERO }).sum();
            assert!(scripted.mul_f64(drill.pace_on_copies) >= FOUND_WITHIN, "{}", drill.name);
            drills += 1;
        }
        assert!(drills > 0);
    }
}
