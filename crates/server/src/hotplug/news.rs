//! Which of the kernel's messages are a reason to look.
//!
//! udev has the kernel say that a device changed whenever somebody closes it who could have written to it, the daemon itself
//! after a look included: a daemon that looked again for that would never end to. So a change counts if a size is another.

use std::{collections::BTreeMap, ffi::OsString, fs, mem, path::PathBuf};

use super::uevent::{Action, Uevent};

/// The block devices of the machine.
#[derive(Debug)]
pub(crate) struct Devices {
    /// Where the kernel lists them: `/sys/class/block`.
    sysfs: PathBuf,
    /// How large each was, in the kernel's words.
    sizes: BTreeMap<OsString, Option<String>>,
}

impl Devices {
    /// As they are now.
    pub(crate) fn listed_in(sysfs: impl Into<PathBuf>) -> Self {
        let mut devices = Self { sysfs: sysfs.into(), sizes: BTreeMap::new() };
        devices.sizes = devices.read();
        devices
    }

    fn read(&self) -> BTreeMap<OsString, Option<String>> {
        let entries = fs::read_dir(&self.sysfs).into_iter().flatten().flatten();
        entries.map(|entry| (entry.file_name(), fs::read_to_string(entry.path().join("size")).ok())).collect()
    }

    /// Whether these messages tell of something new. None stands for messages that were lost.
    pub(crate) fn are_news(&mut self, messages: &[Option<Uevent>]) -> bool {
        let now = self.read();
        let before = mem::replace(&mut self.sizes, now);
        let is_change =
            |message: &Option<Uevent>| message.as_ref().is_some_and(|uevent| uevent.action == Action::Change);
        !messages.iter().all(is_change) || before != self.sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The daemon's own look at a disk that it does not take was a reason for the next look, for ever.
    #[test]
    fn a_device_that_was_only_closed_is_no_news() {
        let dir = tempfile::tempdir().unwrap();
        let size = |name: &str, sectors: &str| {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("size"), sectors).unwrap();
        };
        size("sda", "1000\n");
        let mut devices = Devices::listed_in(dir.path());
        let told = |action, name: &str| Some(Uevent { action, name: name.to_owned() });
        let changed = [told(Action::Change, "sda"), told(Action::Change, "sda")];
        assert!(!devices.are_news(&changed));
        size("sda", "2000\n");
        assert!(devices.are_news(&changed), "it grew");
        assert!(!devices.are_news(&changed));
        size("dm-0", "500\n");
        assert!(devices.are_news(&changed), "another is there");
        assert!(devices.are_news(&[told(Action::Change, "sda"), told(Action::Remove, "sdb")]));
        assert!(devices.are_news(&[told(Action::Add, "sdb")]));
        assert!(devices.are_news(&[None]), "nobody knows what was missed");
    }
}
