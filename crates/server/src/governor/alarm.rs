//! The kernel's own word that somebody waits for memory: a trigger on a pressure file (PSI), which costs nothing as long
//! as nobody does.
//!
//! Not every kernel has it, and not everybody may set one: then the regular look has to do.

use std::{fs::File, io::Write as _, path::Path};

use tokio::io::{Interest, unix::AsyncFd};

/// 100 ms of waiting within two seconds; unprivileged processes may have windows of such lengths only.
const TRIGGER: &[u8] = b"some 100000 2000000\0";

/// A trigger, if it could be had.
#[derive(Debug)]
pub(super) struct Alarm(Option<AsyncFd<File>>);

impl Alarm {
    pub(super) fn new(pressure: &Path) -> Self {
        let armed = File::options().read(true).write(true).open(pressure).and_then(|mut file| {
            file.write_all(TRIGGER)?;
            #[expect(
                deprecated,
                reason = "its successor is unsafe; a File keeps its descriptor as long as it lives"
            )]
            AsyncFd::with_interest(file, Interest::PRIORITY)
        });
        if let Err(error) = &armed {
            tracing::debug!(%error, path = %pressure.display(), "no alarm for pressure on memory: it is looked at instead");
        }
        Self(armed.ok())
    }

    /// Whether there is one.
    pub(super) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until it rings; for ever if there is none.
    pub(super) async fn rings(&mut self) {
        let Some(fd) = &self.0 else { return std::future::pending().await };
        match fd.ready(Interest::PRIORITY).await {
            Ok(mut guard) => guard.clear_ready(),
            Err(error) => {
                tracing::debug!(%error, "the alarm for pressure on memory is gone");
                self.0 = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn without_a_pressure_file_it_never_rings_and_nobody_minds() {
        let mut alarm = Alarm::new(Path::new("/nonexistent/memory.pressure"));
        assert!(!alarm.is_set());
        assert!(tokio::time::timeout(Duration::from_millis(20), alarm.rings()).await.is_err());
        // An ordinary file takes the text and cannot be waited for.
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut alarm = Alarm::new(file.path());
        assert!(tokio::time::timeout(Duration::from_millis(20), alarm.rings()).await.is_err());
    }
}
