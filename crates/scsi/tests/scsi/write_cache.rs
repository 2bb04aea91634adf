//! A write cache that is switched off while something is in it: it is off when all that was cached is stable, and not before,
//! for whoever asks. (Which promise writes make with and without it is a matter of [`durability`](crate::durability).)

use block::Durability;
use scsi::Status;

use crate::{
    commands::PATTERN,
    paced::{Asked, Disk, Running},
};

/// MODE SELECT(6) of the caching page, with WCE=0.
fn write_cache_off() -> ([u8; 6], Vec<u8>) {
    let mut list = vec![0, 0, 0, 0, 0x08, 0x12, 0];
    list.resize(24, 0);
    ([0x15, 0x10, 0, 0, 24, 0], list)
}

/// Whoever finds it off takes all it wrote for stable.
#[test]
fn a_write_cache_is_off_for_others_when_all_that_was_cached_is_stable_whoever_switched_it() {
    #[derive(Clone, Copy, Debug)]
    enum By {
        ModeSelect,
        Operator,
    }
    for by in [By::ModeSelect, By::Operator] {
        let disk = Disk::new();
        let (writer, other) = (disk.host(), disk.host());
        let write: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1];
        let (mut cached, _) = writer.run(write, &PATTERN);
        assert_eq!(cached.poll(), None);
        let mut off: Running<'_, ()> = match by {
            By::ModeSelect => {
                let (cdb, list) = write_cache_off();
                writer.run(&cdb, &list).0.good()
            }
            By::Operator => Running(Box::pin(async { disk.unit.set_write_cache(false).await.unwrap() })),
        };
        assert!(off.poll().is_none());
        let written = [Asked::Write(0, 512, Durability::Cached)];
        assert_eq!(disk.volume.asked(), written, "{by:?}: nothing is flushed before what has to be");
        disk.volume.let_through(1);
        assert_eq!(cached.poll().unwrap().status, Status::Good);
        assert!(off.poll().is_none());
        assert_eq!(disk.volume.asked(), [Asked::Flush], "{by:?}");
        assert_eq!(other.news(), [], "{by:?}: not yet");
        disk.volume.let_through(1);
        assert!(off.poll().is_some());
        assert_eq!(other.news(), [(0x2a, 1)], "{by:?}");
    }
}

/// Whoever switched it off as the second was told so at once, and what it had written before was not stable yet.
#[test]
fn a_write_cache_that_somebody_is_switching_off_is_not_off_yet_for_others_who_do() {
    let disk = Disk::new();
    let (first, second) = (disk.host(), disk.host());
    let is_on = || {
        let response = second.send(&[0x1a, 0x08, 0x08, 0, 255, 0], &[]);
        block::flatten(&response.data)[6] == 0x04
    };
    let (cdb, list) = write_cache_off();
    let (mut switched, _) = first.run(&cdb, &list);
    assert_eq!(switched.poll(), None);
    let (mut again, _) = second.run(&cdb, &list);
    assert_eq!(again.poll(), None);
    let mut by_operator: Running<'_, Result<(), block::VolumeError>> =
        Running(Box::pin(disk.unit.set_write_cache(false)));
    assert_eq!(by_operator.poll(), None);
    assert_eq!(disk.volume.asked(), [Asked::Flush]);
    assert!(is_on(), "not all is stable");
    // What is written from here on is.
    let (mut write, _) = second.run(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &PATTERN);
    assert_eq!(write.poll(), None);
    let stable = Durability::Stable(block::Asked::CacheOff);
    assert_eq!(disk.volume.asked(), [Asked::Write(0, 512, stable)]);
    disk.volume.let_through(1);
    for mut run in [switched, again] {
        assert_eq!(run.poll().unwrap().status, Status::Good);
    }
    assert_eq!(by_operator.poll(), Some(Ok(())));
    assert!(disk.volume.asked().is_empty(), "once is enough");
    assert_eq!(second.news(), [(0x2a, 1)]);
    assert!(!is_on());
}
