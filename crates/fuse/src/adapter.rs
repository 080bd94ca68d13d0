//! Requests of the FUSE protocol to calls of [`FileSystem`], and the answers back.
//!
//! A few threads take the requests, each on the processor of its client; what the file system answers with
//! [`Deferred::Wait`] they wait for themselves as long as another thread stays free to serve. A panic below is a bug;
//! it is logged, its request fails with `EIO`, and the mount goes on serving.
//!
//! What is refused on purpose, because the kernel then stops asking and does better by itself: FLUSH, OPEN and
//! OPENDIR (an open costs no message and keeps the page cache), ACCESS, COPY_FILE_RANGE, locks, POLL, BMAP.
//! Since OPEN never arrives, `O_TRUNC` must reach us as a truncation: `FUSE_ATOMIC_O_TRUNC` is never agreed to.

use super::affinity::CpuAffinity;
use super::attr::{
    NodeIds, fallocate_mode, file_type, kind_of_mode, no_such_name, perm, rename_how, set_time, stamp,
};
use super::caller::{loses_sgid, may_administer, may_take_set_id};
use super::control::Control;
use super::counts::{Counts, Op};
use super::errno::errno;
use super::negotiate::{REMEMBER, negotiate};
use super::seek::{Look, Seeker, written_back};
use super::send::{send_parts, send_statfs, send_xattr};
use super::workers::{Spare, Workers};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::acl::{self, Acl};
use bimetal_vfs::adapter::without_set_id;
use bimetal_vfs::{Attr, Caller, Deferred, FileSystem, Kind, NewNode, Seek, SetAttr, SetXattr, Trim};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::IFlags;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// `FS_IOC_GETFLAGS`, `FS_IOC_GETVERSION`, `FS_IOC_SETFLAGS` and `FS_IOC_FSGETXATTR` of linux/fs.h: `_IOR('f', 1, long)`,
/// `_IOR('v', 1, long)`, `_IOW('f', 2, long)`, `_IOR('X', 31, struct fsxattr)`.
const FS_IOC_GETFLAGS: u64 = request(READS, size_of::<libc::c_long>(), b'f', 1);
const FS_IOC_GETVERSION: u64 = request(READS, size_of::<libc::c_long>(), b'v', 1);
const FS_IOC_SETFLAGS: u64 = request(WRITES, size_of::<libc::c_long>(), b'f', 2);
const FS_IOC_FSGETXATTR: u64 = request(READS, FSXATTR_BYTES, b'X', 31);
/// `FITRIM` of linux/fs.h: `_IOWR('X', 121, struct fstrim_range)`.
const FITRIM: u64 = request(READS | WRITES, 24, b'X', 121);
/// The set-group-ID bit of a mode.
const S_ISGID: u16 = 0o2000;
const WRITES: u64 = 1;
const READS: u64 = 2;
/// `struct fsxattr`: flags (4), and what is 0 here.
const FSXATTR_BYTES: usize = 28;
/// Which flag of [`IFlags`] is which `FS_XFLAG_*`.
const XFLAGS: [(IFlags, u32); 5] = [
    (IFlags::IMMUTABLE, 0x8),
    (IFlags::APPEND, 0x10),
    (IFlags::SYNC, 0x20),
    (IFlags::NOATIME, 0x40),
    (IFlags::NODUMP, 0x80),
];

/// The number of a request that reads or writes so many bytes.
const fn request(direction: u64, bytes: usize, of: u8, number: u64) -> u64 {
    direction << 30 | (bytes as u64) << 16 | (of as u64) << 8 | number
}

/// What a mount serves its requests with.
pub(super) struct Adapter {
    pub fs: Arc<dyn FileSystem>,
    pub ids: NodeIds,
    pub control: Control,
    pub counts: Arc<Counts>,
    pub follower: Arc<CpuAffinity>,
    pub spare: Spare,
    pub workers: Workers,
    /// Tells the kernel to let go of what it has; there once the session is.
    pub notifier: Arc<OnceLock<Notifier>>,
    /// One thread for seeks that wait for the kernel, and thereby for its writes: these must not wait behind them.
    pub seekers: Workers,
    pub writeback: bool,
    pub default_permissions: bool,
    /// Nothing may change, whatever the kernel was told since: a remount makes its side writable, and not what lies below.
    pub read_only: bool,
}

impl Adapter {
    /// Counts a request and answers it; a panic drops the reply, which makes fuser answer `EIO`.
    fn serve(&self, op: Op, req: &Request, answer: impl FnOnce()) {
        self.counts.add(op);
        self.follower.request_from(req.pid());
        if catch_unwind(AssertUnwindSafe(answer)).is_err() {
            self.counts.panics.fetch_add(1, Relaxed);
            tracing::error!(request = op.name(), "a bug: the request panicked and fails with an I/O error");
        }
    }

    /// The file system, for something that changes it.
    fn writable(&self) -> Result<&dyn FileSystem> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(&*self.fs) }
    }

    fn empty(&self, op: Op, req: &Request, reply: ReplyEmpty, call: impl FnOnce() -> Result<()>) {
        self.serve(op, req, || match call() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(op.name(), &error)),
        });
    }

    fn entry(&self, op: Op, req: &Request, reply: ReplyEntry, call: impl FnOnce() -> Result<Attr>) {
        self.serve(op, req, || self.answer(op, reply, call()));
    }

    fn answer(&self, op: Op, reply: ReplyEntry, found: Result<Attr>) {
        match found {
            Ok(attr) => reply.entry(&REMEMBER, &self.ids.attr(&attr), Generation(attr.generation.into())),
            Err(Error::NotFound) if op == Op::Lookup => {
                reply.entry(&REMEMBER, &no_such_name(), Generation(0))
            }
            Err(error) => reply.error(errno(op.name(), &error)),
        }
    }

    /// Sends an answer that is here at once, or waits for it where that holds up nobody.
    fn now_or_later<T: 'static, R: Send + 'static>(
        &self,
        answer: Result<Deferred<T>>,
        reply: R,
        send: impl FnOnce(R, Result<T>) + Send + 'static,
    ) {
        match answer {
            Ok(Deferred::Now(value)) => send(reply, Ok(value)),
            Err(error) => send(reply, Err(error)),
            Ok(Deferred::Wait(wait)) => {
                self.counts.waited.fetch_add(1, Relaxed);
                match self.spare.take() {
                    Some(_waiting) => send(reply, wait()),
                    None => self.workers.run(move || send(reply, wait())),
                }
            }
        }
    }

    fn fsync_ino(&self, req: &Request, ino: INodeNo, data_only: bool, reply: ReplyEmpty) {
        self.serve(Op::Fsync, req, || {
            let answer = self.fs.fsync(self.ids.ino(ino), data_only);
            self.now_or_later(answer, reply, |reply, done| match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno("fsync", &error)),
            });
        });
    }

    fn make(&self, req: &Request, parent: INodeNo, name: &OsStr, umask: u32, node: &NewNode) -> Result<Attr> {
        let caller = Caller { uid: req.uid(), gid: req.gid(), umask };
        self.writable()?.create(&caller, self.ids.ino(parent), name.as_bytes(), node)
    }

    /// CREATE of a name that someone else made in between opens it, unless `O_EXCL` forbids.
    fn create_or_open(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask, flags): (u32, u32, i32),
    ) -> Result<Attr> {
        let node = NewNode { kind: Kind::File, perm: perm(mode), rdev: 0, target: &[] };
        match self.make(req, parent, name, umask, &node) {
            Err(Error::Exists) if flags & libc::O_EXCL == 0 => {
                let attr = self.fs.lookup(self.ids.ino(parent), name.as_bytes())?;
                if flags & libc::O_TRUNC == 0 || attr.kind != Kind::File {
                    return Ok(attr);
                }
                self.writable()?.setattr(
                    attr.ino,
                    &SetAttr { size: Some(0), kill_suid: req.uid() != 0, ..Default::default() },
                )
            }
            made => made,
        }
    }

    /// What lsattr(1) and chattr(1) ask of an inode; all numbers have 32 bits, whatever the name of the request says. The kernel
    /// asks for `struct fsxattr` itself before it lets flags be set, and newer ones have looked at who asks.
    fn fs_ioctl(&self, req: &Request, ino: Ino, request: u32, given: &[u8]) -> Result<Vec<u8>> {
        match u64::from(request) {
            FS_IOC_GETFLAGS => Ok(self.fs.flags(ino)?.to_ne_bytes().into()),
            FS_IOC_GETVERSION => Ok(self.fs.getattr(ino)?.generation.to_ne_bytes().into()),
            FS_IOC_FSGETXATTR => {
                let flags = IFlags::from_bits_retain(self.fs.flags(ino)?);
                let is_set = |(flag, _): &&(IFlags, u32)| flags.contains(*flag);
                let xflags = XFLAGS.iter().filter(is_set).fold(0, |all, (_, xflag)| all | xflag);
                let mut answer = vec![0; FSXATTR_BYTES];
                answer[..4].copy_from_slice(&xflags.to_ne_bytes());
                Ok(answer)
            }
            FS_IOC_SETFLAGS => {
                let flags = given.first_chunk().copied().map(u32::from_ne_bytes).ok_or(Error::BadArgument)?;
                let (old, attr) = (self.fs.flags(ino)?, self.fs.getattr(ino)?);
                let fixed = (IFlags::IMMUTABLE | IFlags::APPEND).bits();
                let is_roots = (old ^ flags) & fixed != 0;
                // What the kernel took for them would come after they are set, and in whole pages.
                if self.writeback && flags & !old & fixed != 0 {
                    return Err(Error::NotSupported);
                }
                if req.uid() != 0 && (is_roots || req.uid() != attr.uid) {
                    return Err(Error::NotPermitted);
                }
                self.writable()?.set_flags(ino, flags).map(|()| Vec::new())
            }
            _ => Err(Error::NotSupported),
        }
    }

    /// What fstrim(8) asks of a file system: where, how much, and what is too short to be told; how much it was goes back in the
    /// second place.
    fn trim(&self, req: &Request, given: &[u8]) -> Result<Deferred<Vec<u8>>> {
        if req.uid() != 0 || !may_administer(req.pid()) {
            return Err(Error::NotPermitted);
        }
        let [offset, len, least] = [0, 1, 2].map(|at| {
            let number = given.get(at * 8..)?.first_chunk()?;
            Some(u64::from_ne_bytes(*number))
        });
        let (Some(offset), Some(len), Some(least)) = (offset, len, least) else {
            return Err(Error::BadArgument);
        };
        let bytes = self.writable()?.trim(Trim { offset, len, least })?;
        Ok(Deferred::Wait(Box::new(move || {
            let numbers = [offset, bytes.get()?, least];
            Ok(numbers.iter().flat_map(|number| number.to_ne_bytes()).collect())
        })))
    }

    /// The mode of a file once a caller's change has cleared its set-ID bits. Where its group does not execute it, the
    /// set-group-ID bit stays for those who are in the group.
    fn without_set_id(&self, req: &Request, file: &Attr) -> u16 {
        let perm = without_set_id(file.kind, file.perm);
        let is_outsider = || loses_sgid(req.pid(), req.uid(), req.gid(), file.gid);
        match file.kind != Kind::Dir && perm & S_ISGID != 0 && is_outsider() {
            true => perm & !S_ISGID,
            false => perm,
        }
    }

    /// An error if a caller who asks for nothing but to clear a file's set-ID bits, as `chown(-1, -1)` does, may not. `fallocate`
    /// by somebody without privilege asks for the same, and did not have to own the file.
    fn check_may_take_set_id(&self, req: &Request, file: &Attr) -> Result<()> {
        let list = match self.fs.getxattr(file.ino, acl::ACCESS) {
            Ok(wire) => Acl::from_wire(&wire)?,
            Err(Error::NoAttribute | Error::NotSupported) => None,
            Err(error) => return Err(error),
        };
        let list = list.unwrap_or_else(|| Acl::of_mode(file.perm));
        match may_take_set_id((req.pid(), req.uid(), req.gid()), file, &list) {
            true => Ok(()),
            false => Err(Error::NotPermitted),
        }
    }

    fn ino(&self, node: INodeNo) -> Ino {
        self.ids.ino(node)
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, self.writeback, self.default_permissions);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (parent, name) = (self.ino(parent), name.as_bytes());
        self.serve(Op::Lookup, req, || {
            let found = self.fs.lookup(parent, name);
            if let Err(Error::Corrupt { .. }) = &found
                && let Ok(Some((ino, kind))) = self.fs.lookup_damaged(parent, name)
            {
                // Nothing of it is remembered: whoever wants more than to remove it asks, and is told.
                let shown = fuser::FileAttr { kind: file_type(kind), ..self.ids.dots_attr(ino) };
                return reply.entry(&Duration::ZERO, &shown, Generation(0));
            }
            self.answer(Op::Lookup, reply, found);
        });
    }

    fn forget(&self, req: &Request, ino: INodeNo, count: u64) {
        self.serve(Op::Forget, req, || self.fs.forget(self.ino(ino), count));
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.serve(Op::Getattr, req, || match self.fs.getattr(self.ino(ino)) {
            Ok(attr) => reply.attr(&REMEMBER, &self.ids.attr(&attr)),
            Err(error) => reply.error(errno("getattr", &error)),
        });
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // With FUSE_HANDLE_KILLPRIV_V2 clearing set-ID bits is ours: at each change of owner, at a truncation by
        // someone unprivileged, and when nothing else is asked (chown(-1, -1), and what the kernel asks before a write
        // or fallocate by such a one that would clear any).
        let owner_changes = uid.is_some() || gid.is_some();
        let nothing_else = mode.is_none() && atime.is_none() && mtime.is_none() && ctime.is_none();
        let only_kills = !owner_changes && size.is_none() && nothing_else;
        let kill_suid = owner_changes || only_kills || size.is_some() && req.uid() != 0;
        let set = SetAttr {
            perm: mode.map(perm),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(stamp),
            kill_suid,
        };
        let call = || {
            let (fs, ino) = (self.writable()?, self.ino(ino));
            let mut set = set;
            if kill_suid && mode.is_none() {
                let file = fs.getattr(ino)?;
                let perm = self.without_set_id(req, &file);
                if only_kills && perm != file.perm {
                    self.check_may_take_set_id(req, &file)?;
                }
                set.perm = (perm != without_set_id(file.kind, file.perm)).then_some(perm);
            }
            fs.setattr(ino, &set)
        };
        self.serve(Op::Setattr, req, || match call() {
            Ok(attr) => reply.attr(&REMEMBER, &self.ids.attr(&attr)),
            Err(error) => reply.error(errno("setattr", &error)),
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        self.serve(Op::Readlink, req, || match self.fs.readlink(self.ino(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno("readlink", &error)),
        });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.entry(Op::Mknod, req, reply, || {
            let kind = kind_of_mode(mode).ok_or(Error::BadArgument)?;
            self.make(req, parent, name, umask, &NewNode { kind, perm: perm(mode), rdev, target: &[] })
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let node = NewNode { kind: Kind::Dir, perm: perm(mode), rdev: 0, target: &[] };
        self.entry(Op::Mkdir, req, reply, || self.make(req, parent, name, umask, &node));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let node = NewNode { kind: Kind::Symlink, perm: 0o777, rdev: 0, target };
        self.entry(Op::Symlink, req, reply, || self.make(req, parent, name, 0, &node));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.serve(Op::Create, req, || match self.create_or_open(req, parent, name, (mode, umask, flags)) {
            Ok(attr) => {
                let generation = Generation(attr.generation.into());
                let open = FopenFlags::FOPEN_KEEP_CACHE;
                reply.created(&REMEMBER, &self.ids.attr(&attr), generation, FileHandle(0), open);
            }
            Err(error) => reply.error(errno("create", &error)),
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(Op::Unlink, req, reply, || self.writable()?.unlink(self.ino(parent), name.as_bytes()));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(Op::Rmdir, req, reply, || self.writable()?.rmdir(self.ino(parent), name.as_bytes()));
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.empty(Op::Rename, req, reply, || {
            let (from, to) = (self.ino(parent), self.ino(new_parent));
            self.writable()?.rename(from, name.as_bytes(), to, new_name.as_bytes(), rename_how(flags)?)
        });
    }

    fn link(&self, req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(Op::Link, req, reply, || {
            self.writable()?.link(self.ino(ino), self.ino(parent), name.as_bytes())
        });
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve(Op::Read, req, || {
            let answer = self.fs.read(self.ino(ino), offset, size as usize);
            self.now_or_later(answer, reply, |reply, read| match read {
                Ok(parts) => send_parts(reply, &parts),
                Err(error) => reply.error(errno("read", &error)),
            });
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill_suid = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        self.serve(Op::Write, req, || {
            let written = data.len() as u32;
            self.counts.written_bytes.fetch_add(u64::from(written), Relaxed);
            let answer = self.writable().and_then(|fs| fs.write(self.ino(ino), offset, data, kill_suid));
            self.now_or_later(answer, reply, move |reply, done| match done {
                // What the kernel writes back for nobody in particular it writes once, and looks at errors only.
                Ok(done) if from_cache && (done as u32) < written => reply.error(Errno::ENOSPC),
                Ok(done) => reply.written(done as u32),
                Err(error) => reply.error(errno("write", &error)),
            });
        });
    }

    fn release(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(Op::Release, req, reply, || Ok(()));
    }

    fn fsync(&self, req: &Request, ino: INodeNo, _fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.fsync_ino(req, ino, data_only, reply);
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.fsync_ino(req, ino, data_only, reply);
    }

    fn readdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, from: u64, mut reply: ReplyDirectory) {
        self.serve(Op::Readdir, req, || {
            let done = self.fs.readdir(self.ino(ino), from, &mut |entry| {
                let name = OsStr::from_bytes(entry.name);
                !reply.add(self.ids.node(entry.ino), entry.next, file_type(entry.kind), name)
            });
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno("readdir", &error)),
            }
        });
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        from: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.serve(Op::Readdirplus, req, || {
            let done = self.fs.readdir_attrs(self.ino(ino), from, &mut |entry, attr| {
                let generation = Generation(attr.map_or(0, |attr| attr.generation).into());
                let dots = matches!(entry.name, b"." | b"..");
                let shown = match attr {
                    Some(attr) => self.ids.attr(attr),
                    None => fuser::FileAttr { kind: file_type(entry.kind), ..self.ids.dots_attr(entry.ino) },
                };
                // The name is shown, and whoever wants more has to ask.
                let valid = if attr.is_none() && !dots { Duration::ZERO } else { REMEMBER };
                let name = OsStr::from_bytes(entry.name);
                !reply.add(shown.ino, entry.next, name, &valid, &shown, generation)
            });
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno("readdirplus", &error)),
            }
        });
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.serve(Op::Statfs, req, || match self.fs.statfs() {
            Ok(stat) => send_statfs(reply, &stat),
            Err(error) => reply.error(errno("statfs", &error)),
        });
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.empty(Op::Setxattr, req, reply, || {
            let how = match flags {
                libc::XATTR_CREATE => SetXattr::Create,
                libc::XATTR_REPLACE => SetXattr::Replace,
                _ => SetXattr::Either,
            };
            self.control.setxattr(self.writable(), req, self.ino(ino), name.as_bytes(), value, how)
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.serve(Op::Getxattr, req, || {
            let value = self.control.getxattr(&*self.fs, req, self.ino(ino), name.as_bytes(), size);
            send_xattr(reply, size, "getxattr", value);
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.serve(Op::Listxattr, req, || {
            let names = self.fs.listxattr(self.ino(ino)).map(|names| {
                let shown = names.iter().filter(|name| req.uid() == 0 || !name.starts_with(b"trusted."));
                shown.flat_map(|name| name.iter().copied().chain([0])).collect()
            });
            send_xattr(reply, size, "listxattr", names);
        });
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(Op::Removexattr, req, reply, || {
            self.writable()?.removexattr(self.ino(ino), name.as_bytes())
        });
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        if u64::from(cmd) == FITRIM {
            return self.serve(Op::Other, req, || {
                self.now_or_later(self.trim(req, in_data), reply, |reply, done| match done {
                    Ok(trimmed) => reply.ioctl(0, &trimmed),
                    Err(Error::NotSupported) => reply.error(Errno::EOPNOTSUPP),
                    Err(error) => reply.error(errno("fitrim", &error)),
                });
            });
        }
        self.serve(Op::Other, req, || match self.fs_ioctl(req, self.ino(ino), cmd, in_data) {
            Ok(answer) => reply.ioctl(0, &answer),
            Err(Error::NotSupported) if u64::from(cmd) != FS_IOC_SETFLAGS => reply.error(Errno::ENOTTY),
            Err(error) => reply.error(errno("ioctl", &error)),
        });
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _req: &Request, _ino: INodeNo, _blocksize: u32, _block: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.empty(Op::Fallocate, req, reply, || {
            self.writable()?.fallocate(self.ino(ino), offset, len, fallocate_mode(mode)?)
        });
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.serve(Op::Lseek, req, || {
            let send = |reply: ReplyLseek, found: Result<u64>| match found {
                Ok(offset) => reply.offset(offset as i64),
                Err(error) => reply.error(errno("lseek", &error)),
            };
            let what = match whence {
                libc::SEEK_DATA => Seek::Data,
                libc::SEEK_HOLE => Seek::Hole,
                _ => return send(reply, Err(Error::BadArgument)),
            };
            let Ok(offset) = u64::try_from(offset) else { return send(reply, Err(Error::NoOffset)) };
            let seeker = Seeker { fs: self.fs.clone(), ino: self.ino(ino), may_grow: self.writeback };
            match (seeker.look(offset, what), self.notifier.get().cloned()) {
                (Look::Sure(found), _) | (Look::Unless(_, found), None) => send(reply, found),
                (Look::Unless(hole, _), Some(notifier)) => self.seekers.run(move || {
                    let written = |hole: Range<u64>| written_back(&notifier, ino, hole);
                    send(reply, seeker.find(hole, offset, what, written));
                }),
            }
        });
    }
}
