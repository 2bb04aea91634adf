//! `millpond image`: a volume or volume snapshot as a raw image, sparse where the volume has nothing.
//!
//! A file appears under its name only when it is complete, and takes the place of another only with `-f`, and with its mode: a
//! new one is its owner's only, for it is all that is in the volume. A block device is written from its first byte to the
//! volume's last, zeroes included. `-` is standard output.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::{Context as _, bail};
use server::{
    block::BlockVolume as _,
    pool::{Pool, volume::Volume},
};

use crate::{
    args::Image,
    context::{Context, foreign},
    output::{self, May},
    progress::{Amount, watch},
    sparse::{Sink, Stream, copy},
};

pub(crate) async fn run(args: Image, context: &Context) -> anyhow::Result<ExitCode> {
    let to_stdout = args.output == Path::new("-");
    if !to_stdout && args.output.is_dir() {
        bail!("cannot write '{}': it is a directory; name a file in it", args.output.display());
    }
    let pool =
        context.open_content_of(&args.search.search, &args.volume, foreign(args.force), &args.rewind).await?;
    if !to_stdout {
        output::refuse_members(&pool, &args.output)?;
        output::check(&args.output, May { fill_devices: true, ..May::default() }).await?;
        if args.output.is_file() && !args.force {
            bail!("cannot write {}: it exists; use '-f' to replace it", named(&args.output));
        }
    }
    let volume = pool.open_volume(&args.volume).await?;
    let size = volume.geometry().size;
    let done = Arc::new(AtomicU64::new(0));
    let amount = || Amount { done: done.load(Relaxed), total: size };
    let write = Box::pin(async {
        tokio::select! {
            result = write(&pool, &volume, size, &args.output, &done) => result,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    });
    let outcome = watch(&format!("image {}", args.volume), amount, write).await;
    outcome.with_context(|| format!("cannot write an image of '{}'", args.volume))?;
    Ok(ExitCode::SUCCESS)
}

async fn write(
    pool: &Arc<Pool>,
    volume: &Volume,
    size: u64,
    output: &Path,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let io = pool.io();
    if output == Path::new("-") {
        let mut sink = Counted { inner: Stream::new(io::stdout()), done };
        copy(volume.data(), io, size, &mut sink).await?;
        sink.inner.finish(size)?;
        return Ok(());
    }
    let there = fs::metadata(output).ok().map(|metadata| metadata.file_type());
    if let Some(kind) = there.filter(|kind| !kind.is_file()) {
        // A device, a pipe: written in place, never replaced by a file.
        let special = OpenOptions::new().write(true).open(output).with_context(|| named(output))?;
        let mut sink = Counted { inner: Stream::new(special), done };
        copy(volume.data(), io, size, &mut sink).await?;
        sink.inner.finish(size)?;
        if kind.is_block_device() {
            OpenOptions::new().write(true).open(output)?.sync_all().with_context(|| named(output))?;
        }
        return Ok(());
    }
    let partial = Partial::create(output)?;
    let mut sink = Counted { inner: partial.file.try_clone()?, done };
    sink.inner.set_len(size).with_context(|| named(output))?;
    copy(volume.data(), io, size, &mut sink).await?;
    partial.finish(output)
}

fn named(path: &Path) -> String {
    format!("'{}'", path.display())
}

/// Tells the bar how far it is.
struct Counted<'a, S> {
    inner: S,
    done: &'a AtomicU64,
}

impl<S: Sink> Sink for Counted<'_, S> {
    fn put(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.put(offset, data)
    }

    fn reached(&mut self, offset: u64) {
        self.done.fetch_max(offset, Relaxed);
    }
}

/// A file beside the final one, removed unless it is finished.
struct Partial {
    file: File,
    path: Option<PathBuf>,
}

impl Partial {
    fn create(output: &Path) -> anyhow::Result<Self> {
        let name = output.file_name().with_context(|| format!("{} names no file", named(output)))?;
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(format!(".{}.partial", std::process::id()));
        let path = output.with_file_name(partial);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| named(output))?;
        Ok(Self { file, path: Some(path) })
    }

    fn finish(mut self, output: &Path) -> anyhow::Result<()> {
        if let Ok(replaced) = fs::metadata(output) {
            self.file.set_permissions(replaced.permissions()).with_context(|| named(output))?;
        }
        self.file.sync_all().with_context(|| named(output))?;
        if let Some(path) = &self.path {
            fs::rename(path, output).with_context(|| named(output))?;
        }
        self.path = None;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _nothing_more_to_do = fs::remove_file(path);
        }
    }
}
