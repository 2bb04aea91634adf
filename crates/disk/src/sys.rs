//! The system calls std does not have: sizes and sectors of devices, direct I/O limits, cached reads, trims.
#![expect(unsafe_code, reason = "ioctl, statx, preadv2 and fallocate have no safe wrapper in std")]

use std::{
    fs::{self, File, Metadata},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
};

/// Whether the kernel gives huge pages of `bytes`, in which usual ones have `page`, to those who ask for them.
pub(crate) fn has_huge_pages(bytes: usize, page: usize) -> bool {
    const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";
    let read = |name: &str| fs::read_to_string(format!("{SETTINGS}/{name}")).unwrap_or_default();
    // SAFETY: asks for a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let may_ask = ["[always]", "[madvise]"].iter().any(|setting| read("enabled").contains(setting));
    may_ask && read("hpage_pmd_size").trim().parse() == Ok(bytes) && usize::try_from(page_bytes) == Ok(page)
}

/// What an open file or device is made of. Bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) block_device: bool,
    pub(crate) logical_sector: u32,
    pub(crate) physical_sector: u32,
    pub(crate) rotational: bool,
    /// What offsets and lengths of direct I/O are multiples of; `None` where the kernel says it has none.
    pub(crate) direct_align: Option<u32>,
    /// A file in memory (tmpfs): no transfer ever waits for a device.
    pub(crate) in_memory: bool,
}

/// Asks the kernel about `file`. Fails for what is neither a regular file nor a block device.
pub(crate) fn geometry(file: &File) -> io::Result<Geometry> {
    let metadata = file.metadata()?;
    let rotational = rotational(&metadata).unwrap_or(false);
    let limits = direct_limits(file);
    if metadata.file_type().is_block_device() {
        let logical_sector = u32::try_from(block_ioctl::<libc::c_int>(file, libc::BLKSSZGET)?)
            .ok()
            .filter(|sector| sector.is_power_of_two())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a sector size"))?;
        let physical_sector = block_ioctl::<libc::c_uint>(file, libc::BLKPBSZGET)?.max(logical_sector);
        let direct_align = limits.unwrap_or(Some(logical_sector)).map(|align| align.max(logical_sector));
        return Ok(Geometry {
            block_device: true,
            logical_sector,
            physical_sector,
            rotational,
            direct_align,
            in_memory: false,
        });
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"));
    }
    // Kernels before 6.1 do not tell; 4096 suits every disk below the file system.
    let direct_align = limits.unwrap_or(Some(4096));
    let physical_sector = u32::try_from(metadata.blksize()).unwrap_or(4096).clamp(512, 4096);
    let in_memory = is_in_memory(file);
    Ok(Geometry {
        block_device: false,
        logical_sector: 512,
        physical_sector,
        rotational,
        direct_align,
        in_memory,
    })
}

/// Whether the file system keeps its files in memory only.
fn is_in_memory(file: &File) -> bool {
    const RAMFS: i64 = 0x8584_58f6;
    // SAFETY: `statfs` is plain integers, for which zero is a value.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the struct we own.
    let told = check(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut statfs) });
    told.is_ok() && (statfs.f_type == libc::TMPFS_MAGIC || statfs.f_type == RAMFS)
}

/// Bytes in the file or on the device now.
pub(crate) fn size(file: &File, block_device: bool) -> io::Result<u64> {
    /// `_IOR(0x12, 114, size_t)`: the one of the block ioctls that is missing from libc.
    const BLKGETSIZE64: libc::Ioctl = libc::_IOR::<libc::size_t>(0x12, 114);
    if block_device { block_ioctl::<u64>(file, BLKGETSIZE64) } else { Ok(file.metadata()?.len()) }
}

/// An ioctl whose only argument is where its answer goes.
fn block_ioctl<T: Default>(file: &File, request: libc::Ioctl) -> io::Result<T> {
    let mut answer = T::default();
    // SAFETY: the callers pass requests that write one `T` (int, unsigned int or u64) to the pointer.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut answer) })?;
    Ok(answer)
}

/// The alignment direct I/O needs: `Some(None)` if the file has no direct I/O, `None` if the kernel
/// does not say.
fn direct_limits(file: &File) -> Option<Option<u32>> {
    const STATX_DIOALIGN: libc::c_uint = 0x2000;
    // SAFETY: `statx` is plain integers, for which zero is a value.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor; the kernel fills the struct we own.
    let told = check(unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, &raw mut statx)
    });
    if told.is_err() || statx.stx_mask & STATX_DIOALIGN == 0 {
        return None;
    }
    let align = statx.stx_dio_offset_align.max(statx.stx_dio_mem_align);
    Some((statx.stx_dio_offset_align != 0 && align.is_power_of_two()).then_some(align))
}

/// Does the disk under the file spin? `None` if there is no such disk (overlay, network).
fn rotational(metadata: &Metadata) -> Option<bool> {
    let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    let (major, minor) = (libc::major(device), libc::minor(device));
    let disk = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue, the disk it is part of does.
    let answer = fs::read_to_string(format!("{disk}/queue/rotational"))
        .or_else(|_| fs::read_to_string(format!("{disk}/../queue/rotational")));
    Some(answer.ok()?.trim() == "1")
}

/// Whether `path` still leads to `file`: for a device node, to the same device.
pub(crate) fn leads_to(path: &str, file: &File) -> io::Result<bool> {
    let (there, open) = (fs::metadata(path)?, file.metadata()?);
    if open.file_type().is_block_device() {
        return Ok(there.file_type().is_block_device() && there.rdev() == open.rdev());
    }
    Ok((there.dev(), there.ino()) == (open.dev(), open.ino()))
}

/// Reads what the page cache has, without waiting for a disk: `WouldBlock` if it has not even the first byte,
/// `Unsupported` where the file system cannot tell.
pub(crate) fn read_cached(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let Ok(offset) = libc::off64_t::try_from(offset) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let vec = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: one vector, over memory borrowed for the length of the call.
    let read = unsafe { libc::preadv64v2(file.as_raw_fd(), &raw const vec, 1, offset, libc::RWF_NOWAIT) };
    match usize::try_from(read) {
        Ok(read) => Ok(read),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Writes, and waits until what was written is on stable media: one request to a device that can (FUA).
pub(crate) fn write_through(file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
    let Ok(offset) = libc::off64_t::try_from(offset) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let vec = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: one vector, over memory borrowed for the length of the call and only read.
    let written = unsafe { libc::pwritev64v2(file.as_raw_fd(), &raw const vec, 1, offset, libc::RWF_DSYNC) };
    match usize::try_from(written) {
        Ok(written) => Ok(written),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Writes what lies in several places; may write less.
///
/// The vectors are of memory that can be read as long as this runs.
pub(crate) fn write_vectors(file: &File, vectors: &[libc::iovec], offset: u64) -> io::Result<usize> {
    let Ok(offset) = libc::off64_t::try_from(offset) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let count = libc::c_int::try_from(vectors.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: so many vectors, over memory that the caller keeps and that is only read.
    let written = unsafe { libc::pwritev64(file.as_raw_fd(), vectors.as_ptr(), count, offset) };
    match usize::try_from(written) {
        Ok(written) => Ok(written),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Gives a file's blocks back; the range reads as zeroes.
pub(crate) fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let (Ok(offset), Ok(len)) = (libc::off64_t::try_from(offset), libc::off64_t::try_from(len)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is involved.
    check(unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset, len) })
}

/// Tells a block device that the sectors are unused. Offset and length are multiples of the sector.
pub(crate) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    /// `_IO(0x12, 119)`.
    const BLKDISCARD: libc::Ioctl = libc::_IO(0x12, 119);
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
