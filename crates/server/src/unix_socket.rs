//! A Unix socket that listens at a path, in place of one whose daemon is gone.
//!
//! A socket file outlives a daemon that was killed. Whether anybody is behind it is found out by connecting: a dead one is
//! replaced, a living one refused, and a file that is no socket never touched. The new socket is made aside and renamed
//! into place, so that it never stands there with other permissions than it is to have.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another daemon answers there.
    #[error(
        "another daemon is listening on '{}'; stop it, or give this one another socket with {option}",
        path.display()
    )]
    Alive {
        /// Where.
        path: PathBuf,
        /// The option that says where.
        option: &'static str,
    },
    /// Something that is no socket has this name.
    #[error(
        "'{}' is in the way: it is not a socket; remove it, or give another path with {option}",
        path.display()
    )]
    NotASocket {
        /// Where.
        path: PathBuf,
        /// The option that says where.
        option: &'static str,
    },
    /// The system refused.
    #[error("cannot listen on '{}'", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

/// The file of a socket that listens; removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Only if it is still ours: someone may have removed it and started another daemon.
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, which `option` of the command line gave; with these permissions, or those that the umask leaves.
pub(crate) async fn listen(
    path: &Path,
    option: &'static str,
    mode: Option<u32>,
) -> Result<(UnixListener, SocketFile), SocketError> {
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.to_owned(), option });
        }
        Ok(_) => match tokio::net::UnixStream::connect(path).await {
            Ok(_) => return Err(SocketError::Alive { path: path.to_owned(), option }),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(failed(error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}", std::process::id()));
    let aside = PathBuf::from(aside);
    let placed = (|| {
        let listener = UnixListener::bind(&aside)?;
        if let Some(mode) = mode {
            fs::set_permissions(&aside, fs::Permissions::from_mode(mode))?;
        }
        fs::rename(&aside, path)?;
        Ok((listener, fs::symlink_metadata(path)?.ino()))
    })();
    let (listener, inode) = placed.map_err(|error: io::Error| {
        // The name aside carries our process id: nobody else's.
        let _gone = fs::remove_file(&aside);
        failed(error)
    })?;
    Ok((listener, SocketFile { path: path.to_owned(), inode }))
}
