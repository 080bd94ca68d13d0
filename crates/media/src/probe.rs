//! Opening a file or block device, and what it is. That nobody else uses it is for the [`guard`](super::guard).

use super::file::{Cached, Options};
use bimetal_base::{Error, Result};
use rustix::fs::StatxFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What opening found out.
pub(super) struct Opened {
    pub file: File,
    /// It goes round the page cache.
    pub direct: bool,
    pub size_bytes: u64,
    /// It is a block special file.
    pub block_device: bool,
    pub rotational: bool,
    /// The unit of requests, bytes.
    pub block_bytes: u32,
    /// How memory has to be aligned, bytes; 1 without direct I/O.
    pub memory_align: usize,
}

/// Opens `path` as `options` say. `name` is how messages call it.
pub(super) fn open(path: &Path, name: &str, options: &Options) -> Result<Opened> {
    let failed = |what: &str, error: io::Error| Error::io(format!("{name}: {what}"), error);
    let kind = fs::metadata(path).map_err(|error| failed("open", error))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::invalid(format!("{name} is neither a file nor a block device")));
    }
    let block_device = kind.is_block_device();
    let direct = match options.cached {
        Cached::All => false,
        Cached::Files => block_device,
        Cached::Nothing => true,
    };
    let mut file = open_file(path, name, options.writable, direct)?;
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(|error| failed("size", error))?;
    if block_device && size_bytes == 0 {
        return Err(Error::invalid(format!(
            "{name} has no size: nothing is attached to it, or no medium is in it (see lsblk)"
        )));
    }
    let (block_bytes, memory_align) = alignment(&file, direct, block_device);
    let meta = file.metadata().map_err(|error| failed("stat", error))?;
    let disk = if block_device { meta.rdev() } else { meta.dev() };
    Ok(Opened {
        file,
        direct,
        size_bytes,
        block_device,
        rotational: rotational(disk),
        block_bytes,
        memory_align,
    })
}

fn open_file(path: &Path, name: &str, writable: bool, direct: bool) -> Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).write(writable).custom_flags(flags).open(path);
    file.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) if direct => {
            Error::unsupported(format!("{name}: direct I/O"), "its file system has none; open it without")
        }
        _ => Error::io(format!("{name}: open"), error),
    })
}

/// The unit of requests and the alignment of memory, in bytes.
fn alignment(file: &File, direct: bool, block_device: bool) -> (u32, usize) {
    let sector = if block_device { rustix::fs::ioctl_blksszget(file).unwrap_or(512) } else { 512 };
    if !direct {
        return (sector, 1);
    }
    let told = rustix::fs::statx(file, c"", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    match told.filter(|told| told.stx_dio_offset_align != 0) {
        Some(told) => (told.stx_dio_offset_align.max(sector), told.stx_dio_mem_align.max(1) as usize),
        None => (sector.max(512), 4096),
    }
}

/// Whether the disk with device number `dev` has a moving head, as sysfs says; false where it says nothing.
fn rotational(dev: u64) -> bool {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    [node.join("queue/rotational"), node.join("../queue/rotational")]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .is_some_and(|text| text.trim() == "1")
}
