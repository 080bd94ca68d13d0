//! A device served as a file: a FUSE mount with one file `device`, so that the kernel can loop-mount real
//! file systems on it and any program can open it, and a file `stats` with its counters as JSON (the same as the
//! attribute of the directory that `bimetal status` reads).
//!
//! Reads and writes of `device` go round the page cache, straight to the device; `fsync` is a flush, a
//! punched hole a discard (where the device has no moving head; one that has refuses, as disks do). A
//! model answers each request when it is done, so that one slow request holds up no other. Requests that are not in whole blocks are served by reading, changing and
//! writing the blocks around them.

use crate::front::fuse::{Atime, MountOptions, Place, STATUS, Unmount, Unmounter};
use crate::front::stack::{Contents, Layers, Medium, Stack};
use crate::media::answers::Answers;
use crate::media::buffer::Pool;
use crate::media::counted::{Counted, Counts};
use crate::media::{BlockDevice, Gather, Request};
use crate::{Error, Result};
use bytes::Bytes;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyPoll, ReplyWrite, ReplyXattr, Session,
    SessionACL, WriteFlags,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name of the file that is the device.
pub const DEVICE: &str = "device";
/// The type of file system that the kernel shows, as `fuse.` and this.
const SUBTYPE: &str = "bimetal-device";
/// The name of the file with the counters.
pub const STATS: &str = "stats";

const DEVICE_INO: INodeNo = INodeNo(2);
const STATS_INO: INodeNo = INodeNo(3);
/// Attributes of `device` never change.
const TTL: Duration = Duration::from_secs(3600);
/// The largest request the kernel sends.
const REQUEST_BYTES: u32 = 1 << 20;

/// Gives what a model can tell about itself, for `stats` and `bimetal status`.
pub type ModelStats = Box<dyn Fn() -> Value + Send + Sync>;

/// What requests to a model without pages are counted in, bytes.
const PAGE_BYTES: u64 = 4096;
/// Room for a status to grow in between asking for its length and for itself.
const SLACK_BYTES: usize = 1024;

/// What to serve and how.
pub struct Export {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Answer when the model says, not at once. Only for simulated devices: their time begins with the
    /// serving, a real one's with the epoch.
    pub real_time: bool,
    /// What `stats` shows of the model, under `model`.
    pub model: Option<ModelStats>,
}

/// What a served device says of itself: its size, the requests so far, its model.
pub(super) fn state(device: &Counted, model: Option<&ModelStats>) -> Value {
    let info = device.info();
    let mut state =
        json!({ "device": info.name, "size_bytes": info.size_bytes, "requests": device.counts() });
    if let Some(model) = model {
        state["model"] = model();
    }
    state
}

/// The simulated device that the profile called `name` (built in, or a path) describes, over the device
/// that holds its data; and what it can tell about itself. A bare flash part is put behind the electronics of
/// the profile `ssd-tlc`. `ftl` is the translation layer, as `fast:logs=8`, instead of the profile's own; `layers` are put over it.
///
/// Fails with [`Error::Invalid`] on a profile of something that is no device of its own, or has no flash.
pub fn simulated(
    (name, ftl): (&str, Option<&str>),
    storage: Arc<dyn BlockDevice>,
    layers: &Layers,
    seed: u64,
) -> Result<(Arc<dyn BlockDevice>, ModelStats)> {
    let medium = Medium::framed(name, ftl)?;
    let scheme = medium.ftl();
    let Stack { device, told } = medium.build(Contents::On(storage), None, PAGE_BYTES, seed)?.with(layers)?;
    let stats = move || {
        let mut status = told.model.status();
        if let Some(scheme) = &scheme {
            status["ftl"] = json!(scheme);
        }
        if let Some(cache) = &told.cache {
            status["cache"] = json!(cache.status());
        }
        if let Some(nvram) = &told.nvram {
            status["nvram"] = json!(nvram.counts());
        }
        status
    };
    Ok((device, Box::new(stats)))
}

/// How requests to a served device are answered: at once, or when its model says.
///
/// Fails with [`Error::Io`] where the machine has no thread left.
pub(super) fn answers(device: &Arc<Counted>, real_time: bool) -> Result<Answers> {
    let device = Arc::clone(device) as Arc<dyn BlockDevice>;
    if real_time { Answers::in_real_time(device) } else { Ok(Answers::at_once(device)) }
}

/// A device that is being served; dropping it unmounts it.
pub struct Served {
    session: Option<JoinHandle<io::Result<()>>>,
    unmounter: Unmounter,
    counted: Arc<Counted>,
}

/// Serves `export` at `mountpoint`, an empty directory.
///
/// Fails with [`Error::Io`] if it cannot be mounted there, with [`Error::Invalid`] if there is no such directory, or
/// something is in it.
pub fn serve(export: Export, mountpoint: &Path) -> Result<Served> {
    check_empty(mountpoint)?;
    let counted = Arc::new(Counted::new(export.device));
    let files = Files {
        device: Arc::clone(&counted),
        answers: answers(&counted, export.real_time)?,
        model: export.model,
        pool: Pool::new(),
        unaligned: Mutex::new(()),
    };
    let options = MountOptions {
        fsname: counted.info().name.clone(),
        subtype: SUBTYPE,
        allow_other: false,
        default_permissions: false,
        suid: false,
        dev: false,
        atime: Atime::Never,
        ..MountOptions::for_me()
    };
    let (device, unmounter) = Place::take(mountpoint, &options)?.hand_over()?;
    let begin = || {
        let session = Session::from_fd(files, device, SessionACL::Owner, Config::default())?;
        thread::Builder::new().name("export".into()).spawn(move || session.run())
    };
    match begin() {
        Ok(session) => Ok(Served { session: Some(session), unmounter, counted }),
        Err(why) => {
            // Why nobody serves it is what is reported.
            let _ = unmounter.unmount(Unmount::Lazily);
            Err(Error::io(format!("{}: serving", mountpoint.display()), why))
        }
    }
}

/// An error if something would be hidden by what is served on a directory. What is no directory, or cannot be looked at as its
/// server is dead, is refused when it is mounted on.
fn check_empty(place: &Path) -> Result<()> {
    let name = place.display();
    match std::fs::read_dir(place).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::invalid(format!(
            "{name} is not empty; a device is served in an empty directory: mkdir one, and name that"
        ))),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Err(Error::invalid(format!(
            "{name}: there is no such directory to serve it in; make it: mkdir {name}"
        ))),
        Err(why) if why.kind() == io::ErrorKind::NotADirectory => Ok(()),
        Err(why) if why.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        Err(why) => Err(Error::io(name, why)),
    }
}

impl Served {
    /// The path of the file that is the device.
    pub fn device(&self) -> PathBuf {
        self.unmounter.mountpoint().join(DEVICE)
    }

    /// Something that can take this away while [`wait`](Self::wait) waits for just that.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// What was asked of the device so far.
    pub fn counts(&self) -> Counts {
        self.counted.counts()
    }

    /// Unmounts and waits for the end. Fails with [`Error::Io`] while somebody uses the device.
    pub fn unmount(mut self) -> Result<()> {
        self.unmounter.unmount(Unmount::IfIdle)?;
        self.end()
    }

    /// Waits until somebody else unmounts it.
    pub fn wait(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        let served = match session.join() {
            // A thread that was just taking a request when the mount went away hears this.
            Ok(Err(why)) if why.raw_os_error() == Some(libc::ECONNABORTED) && !self.unmounter.is_alive() => {
                Ok(())
            }
            Ok(served) => served,
            Err(_) => Err(io::Error::other("the serving thread panicked")),
        };
        if served.is_err() {
            // Nobody answers any more: an empty directory says so sooner than one that hangs.
            let _ = self.unmounter.unmount(Unmount::Lazily);
        }
        served.map_err(|why| Error::io(format!("{}: serving", self.unmounter.mountpoint().display()), why))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.session.is_none() {
            return;
        }
        match self.unmounter.unmount(Unmount::IfIdle) {
            Ok(()) => drop(self.end()),
            // In use: detach it, so that it ends with its last user.
            Err(_) => drop(self.unmounter.unmount(Unmount::Lazily)),
        }
    }
}

/// The file system of two files.
struct Files {
    device: Arc<Counted>,
    answers: Answers,
    model: Option<ModelStats>,
    pool: Arc<Pool>,
    /// Held while the blocks around an unaligned write are changed.
    unaligned: Mutex<()>,
}

impl Files {
    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            DEVICE_INO => (FileType::RegularFile, 0o600, self.device.info().size_bytes),
            STATS_INO => (FileType::RegularFile, 0o444, self.stats().len() as u64),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            flags: 0,
            blksize: 4096,
        })
    }

    fn stats(&self) -> String {
        format!("{:#}\n", state(&self.device, self.model.as_ref()))
    }

    /// Runs a request that arrives now; `then` is told how it ended.
    fn run(&self, request: Request, then: impl FnOnce(Result<Bytes>) + Send + 'static) {
        self.answers.asker().ask(request, then);
    }

    /// The whole blocks around a range, cut off at the end of the device.
    fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let block = u64::from(self.device.info().block_bytes);
        (offset / block * block, (offset + len).next_multiple_of(block).min(self.device.info().size_bytes))
    }

    /// Serves a read of `len` bytes that lie inside the device.
    fn read_device(&self, offset: u64, len: usize, reply: ReplyData) {
        let (first, last) = self.around(offset, len as u64);
        let skip = (offset - first) as usize;
        self.run(Request::Read { offset: first, len: (last - first) as usize }, move |result| match result {
            Ok(bytes) => reply.data(&bytes[skip..skip + len]),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn write_device(&self, offset: u64, data: &[u8], reply: ReplyWrite) {
        let (first, last) = self.around(offset, data.len() as u64);
        let mut buffer = self.pool.take((last - first) as usize);
        let mut locked = None;
        if last - first != data.len() as u64 {
            locked = Some(self.unaligned.lock());
            let len = (last - first) as usize;
            // Nobody else may come in between: the model goes on to the end of this read.
            let read = Request::Read { offset: first, len };
            match self.device.run(self.answers.asker().now(), read).result {
                Ok(bytes) => buffer.as_mut().copy_from_slice(&bytes),
                Err(error) => return reply.error(errno(&error)),
            }
        }
        let skip = (offset - first) as usize;
        buffer.as_mut()[skip..skip + data.len()].copy_from_slice(data);
        let written = data.len() as u32;
        let data = Gather::from_iter([buffer.freeze()]);
        self.run(Request::Write { offset: first, data, durable: false }, move |result| match result {
            Ok(_) => reply.written(written),
            Err(error) => reply.error(errno(&error)),
        });
        drop(locked);
    }

    fn run_empty(&self, request: Request, reply: ReplyEmpty) {
        self.run(request, move |result| match result {
            Ok(_) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        });
    }
}

/// The number a system call returns for an error of the device.
fn errno(error: &Error) -> Errno {
    match error {
        Error::Io { source, .. } => Errno::from_i32(source.raw_os_error().unwrap_or(libc::EIO)),
        Error::Gone { .. } => Errno::ENODEV,
        Error::ReadOnly => Errno::EROFS,
        Error::Invalid(_) => Errno::EINVAL,
        _ => Errno::EIO,
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Refused sizes and missing capabilities leave the kernel's defaults, which serve as well.
        let _ = config.set_max_write(REQUEST_BYTES);
        let _ = config.set_max_background(256);
        let _ = config.set_congestion_threshold(192);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ino = match name.to_str() {
            Some(DEVICE) => DEVICE_INO,
            Some(STATS) => STATS_INO,
            _ => return reply.error(Errno::ENOENT),
        };
        match self.attr(ino).filter(|_| parent == INodeNo::ROOT) {
            Some(attr) => reply.entry(&ttl(ino), &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&ttl(ino), &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A device keeps its size; times and owners of the file mean nothing.
        match size {
            Some(size) if ino != DEVICE_INO || size != self.device.info().size_bytes => {
                reply.error(Errno::EPERM);
            }
            _ => self.getattr(request, ino, fh, reply),
        }
    }

    /// A device is always ready, which is what the kernel takes from this answer.
    fn poll(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let parallel = match ino {
            DEVICE_INO => FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH,
            _ => FopenFlags::empty(),
        };
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | parallel);
    }

    fn read(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino == STATS_INO {
            let stats = self.stats();
            let rest = stats.as_bytes().get(offset as usize..).unwrap_or_default();
            return reply.data(&rest[..rest.len().min(size as usize)]);
        }
        let left = self.device.info().size_bytes.saturating_sub(offset);
        match left.min(u64::from(size)) as usize {
            0 => reply.data(&[]),
            len => self.read_device(offset, len, reply),
        }
    }

    fn write(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if ino != DEVICE_INO {
            return reply.error(Errno::EPERM);
        }
        let left = self.device.info().size_bytes.saturating_sub(offset);
        match left.min(data.len() as u64) as usize {
            0 if !data.is_empty() => reply.error(Errno::ENOSPC),
            0 => reply.written(0),
            len => self.write_device(offset, &data[..len], reply),
        }
    }

    fn fsync(&self, _: &fuser::Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match ino {
            DEVICE_INO => self.run_empty(Request::Flush, reply),
            _ => reply.ok(),
        }
    }

    fn ioctl(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: fuser::IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: fuser::ReplyIoctl,
    ) {
        // What asks a file whether it is a device (mkfs does) is told that it is none.
        reply.error(Errno::ENOTTY);
    }

    fn flush(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        if ino != DEVICE_INO || mode != punch || self.device.info().rotational {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.run_empty(Request::Discard { offset, len }, reply);
    }

    fn getxattr(&self, _: &fuser::Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if ino != INodeNo::ROOT || name != STATUS {
            return reply.error(Errno::ENODATA);
        }
        let stats = self.stats();
        match size as usize {
            0 => reply.size((stats.len() + SLACK_BYTES) as u32),
            room if room < stats.len() => reply.error(Errno::ERANGE),
            _ => reply.data(stats.as_bytes()),
        }
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (DEVICE_INO, FileType::RegularFile, DEVICE),
            (STATS_INO, FileType::RegularFile, STATS),
        ];
        for (index, (ino, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// How long the kernel may keep attributes: those of `stats` change with every request.
fn ttl(ino: INodeNo) -> Duration {
    if ino == STATS_INO { Duration::ZERO } else { TTL }
}
