//! Where paths lead. A server of files may be away, and to look up a path there is to wait for it: that is done on threads of
//! their own, and not waited for for long.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::future::join_all;
use pool::import::look_up_within;

/// How long a path may take to be looked up.
const MOMENT: Duration = Duration::from_secs(1);

/// Where paths lead; themselves if that is nowhere, or is not told in a moment.
pub(crate) async fn real(paths: &[PathBuf]) -> Vec<PathBuf> {
    real_within(MOMENT, paths, lead).await
}

/// Of several paths, whether each leads to the same place as another one.
pub(crate) async fn lead_to(path: &Path, mut several: Vec<PathBuf>) -> Vec<bool> {
    several.push(path.to_owned());
    let mut places = real(&several).await;
    let place = places.pop();
    places.into_iter().map(|other| Some(other) == place).collect()
}

/// As [`real`]; `patience` is how long `look_up` may take.
async fn real_within(
    patience: Duration,
    paths: &[PathBuf],
    look_up: impl Fn(&Path) -> io::Result<PathBuf> + Clone + Send + 'static,
) -> Vec<PathBuf> {
    let mut looks = Vec::with_capacity(paths.len());
    for path in paths {
        looks.push(look_up_within(patience, path, look_up.clone()));
    }
    let told = join_all(looks).await.into_iter().zip(paths);
    told.map(|(told, path)| told.unwrap_or_else(|_| path.clone())).collect()
}

/// Of a device that is not there, the directory may be.
fn lead(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => {
            path.canonicalize().or_else(|_| dir.canonicalize().map(|dir| dir.join(name)))
        }
        _ => path.canonicalize(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::symlink,
        sync::{Arc, mpsc::channel},
    };

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn names_of_one_device_lead_to_it_whether_it_is_there_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("disks")).unwrap();
        symlink(at("disks"), at("shelf")).unwrap();
        fs::write(at("disks/a"), "").unwrap();
        symlink(at("disks/a"), at("b")).unwrap();
        let others = ["disks/a", "b", "shelf/c", "nowhere/a"].map(at);
        assert_eq!(lead_to(&at("shelf/a"), others.to_vec()).await, [true, true, false, false]);
        assert_eq!(lead_to(&at("disks/c"), others.to_vec()).await, [false, false, true, false]);
        assert_eq!(real(&[at("nowhere/a")]).await, [at("nowhere/a")]);
    }

    /// A file of a pool that was on a server that is away took a thread of the daemon with it when somebody named a device.
    #[tokio::test]
    async fn a_path_that_hangs_when_it_is_looked_up_leads_to_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (stuck, target) = (dir.path().join("stuck"), dir.path().join("a"));
        fs::write(&target, "").unwrap();
        symlink(&target, &stuck).unwrap();
        let (answers, hangs) = channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let look_up = move |path: &Path| {
            let _unblocked = hangs.lock().recv_timeout(Duration::from_secs(60));
            lead(path)
        };
        let found = real_within(Duration::from_millis(50), std::slice::from_ref(&stuck), look_up).await;
        assert_eq!(found, [stuck], "nobody waited until that was known");
        drop(answers);
    }
}
