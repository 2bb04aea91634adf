//! Files and block devices (skeleton).
use std::{io, path::Path, sync::Arc};

use bytes::Bytes;

use crate::{Disk, DiskFuture, DiskInfo, IoBuf};

/// Whether the page cache is bypassed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// O_DIRECT where the file system takes it, the page cache elsewhere.
    #[default]
    Auto,
    /// Through the page cache.
    Never,
    /// O_DIRECT, or `open` fails.
    Always,
}

/// Who carries operations out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the kernel allows it, blocking calls elsewhere.
    #[default]
    Auto,
    /// Blocking calls on tokio's blocking pool.
    Blocking,
    /// io_uring, or `open` fails.
    Uring,
}

/// How to open a [`FileDisk`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open without permission to write.
    pub read_only: bool,
    /// Page cache or not.
    pub direct: Direct,
    /// io_uring or not.
    pub engine: Engine,
}

/// How a [`FileDisk`] really works, after all fallbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// io_uring, as opposed to the blocking pool.
    pub uring: bool,
    /// O_DIRECT, as opposed to the page cache.
    pub direct: bool,
}

/// A file or a block device as a [`Disk`].
#[derive(Debug)]
pub struct FileDisk {
    file: Arc<std::fs::File>,
    info: DiskInfo,
}

impl FileDisk {
    /// Opens `path`. Errors name the path.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<Self> {
        let path = path.as_ref();
        let file = std::fs::File::options().read(true).write(!options.read_only).open(path)?;
        let info = DiskInfo {
            size: file.metadata()?.len(),
            logical_sector: 512,
            physical_sector: 4096,
            rotational: false,
            read_only: options.read_only,
            path: path.display().to_string(),
        };
        Ok(Self { file: Arc::new(file), info })
    }

    /// Which way operations go.
    pub fn backend(&self) -> Backend {
        Backend { uring: false, direct: false }
    }
}

impl Disk for FileDisk {
    fn info(&self) -> DiskInfo {
        self.info.clone()
    }
    fn read(&self, offset: u64, mut buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        use std::os::unix::fs::FileExt;
        let file = Arc::clone(&self.file);
        Box::pin(async move {
            tokio::task::spawn_blocking(move || file.read_exact_at(&mut buf, offset).map(|()| buf))
                .await
                .map_err(io::Error::other)?
        })
    }
    fn write(&self, _offset: u64, _data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async { Err(io::ErrorKind::PermissionDenied.into()) })
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
    fn trim(&self, _offset: u64, _len: u64) -> DiskFuture<'_, ()> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}
