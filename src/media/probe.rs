//! Opening a file or block device: what it is, and that nobody else uses it.

use super::file::Options;
use crate::{Error, Result};
use rustix::fs::{FlockOperation, StatxFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// What opening found out.
pub(super) struct Opened {
    pub file: File,
    pub size_bytes: u64,
    /// It is a block special file.
    pub block_device: bool,
    pub rotational: bool,
    /// The unit of requests, bytes.
    pub block_bytes: u32,
    /// How memory has to be aligned, bytes; 1 without direct I/O.
    pub memory_align: usize,
}

/// How often, and how far apart, a device in use is asked for again before it counts as in use.
const PATIENCE: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);

/// Opens `path` as `options` say. `name` is how messages call it.
pub(super) fn open(path: &Path, name: &str, options: &Options) -> Result<Opened> {
    let failed = |what: &str, error: io::Error| Error::io(format!("{name}: {what}"), error);
    let kind = fs::metadata(path).map_err(|error| failed("open", error))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::invalid(format!("{name} is neither a file nor a block device")));
    }
    let block_device = kind.is_block_device();
    let mut file = open_file(path, name, options, block_device)?;
    if options.exclusive {
        lock(path, name, &file, block_device)?;
    }
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(|error| failed("size", error))?;
    let (block_bytes, memory_align) = alignment(&file, options.direct, block_device);
    let meta = file.metadata().map_err(|error| failed("stat", error))?;
    let disk = if block_device { meta.rdev() } else { meta.dev() };
    Ok(Opened { file, size_bytes, block_device, rotational: rotational(disk), block_bytes, memory_align })
}

fn open_file(path: &Path, name: &str, options: &Options, block_device: bool) -> Result<File> {
    let mut flags = 0;
    if options.direct {
        flags |= libc::O_DIRECT;
    }
    if options.exclusive && block_device {
        flags |= libc::O_EXCL;
    }
    let open = || OpenOptions::new().read(true).write(options.writable).custom_flags(flags).open(path);
    let mut result = open();
    // The kernel takes an io_uring apart after its owner has gone; until then it keeps what was open.
    for _ in 0..PATIENCE {
        if !matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EBUSY)) {
            break;
        }
        thread::sleep(PAUSE);
        result = open();
    }
    result.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => in_use(name, "another program (is it mounted? see findmnt)"),
        Some(libc::EINVAL) if options.direct => {
            Error::unsupported(format!("{name}: direct I/O"), "its file system has none; open it without")
        }
        _ => Error::io(format!("{name}: open"), error),
    })
}

fn in_use(name: &str, by: &str) -> Error {
    Error::invalid(format!("{name} is in use by {by}"))
}

/// Takes the lock that other bimetals respect, and looks for a loop device over an image file.
fn lock(path: &Path, name: &str, file: &File, block_device: bool) -> Result<()> {
    let take = || rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
    let mut taken = take();
    for _ in 0..PATIENCE {
        if taken.is_ok() {
            break;
        }
        thread::sleep(PAUSE);
        taken = take();
    }
    taken.map_err(|_| in_use(name, "another program (is it mounted? see `bimetal status` or fuser)"))?;
    if block_device {
        return Ok(());
    }
    // The kernel lets go of a loop device a moment after its last user did.
    for _ in 0..PATIENCE {
        match loop_device_over(path) {
            None => return Ok(()),
            Some(_) => thread::sleep(PAUSE),
        }
    }
    match loop_device_over(path) {
        Some(device) => Err(in_use(name, &format!("{device} (is it mounted? see losetup -a)"))),
        None => Ok(()),
    }
}

/// The loop device whose backing file is `path`, if there is one.
fn loop_device_over(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        (Path::new(backing.trim_end_matches('\n')) == path)
            .then(|| format!("/dev/{}", entry.file_name().to_string_lossy()))
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
