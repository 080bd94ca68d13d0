//! File systems, and the one trait the front ends see them by.
//!
//! A [`FileSystem`] works on inodes and names, never on paths. Names are bytes without `/` and NUL, at
//! most [`NAME_MAX`] long; `.` and `..` are accepted by `lookup` alone. Permission checks are the front's
//! (the kernel's `default_permissions`), ownership of new inodes is the file system's, from the [`Caller`].
//!
//! Every method may be called from any thread. What would have to wait for a slow device comes back as
//! [`Deferred`], so that one slow reader never holds up the loop that serves everyone.

pub mod acl;
pub mod adapter;
pub mod errno;
pub mod rules;

use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bytes::Bytes;

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// The attribute that says where a file's contents are, and why; with `.` and a number, from that byte on.
pub const EXPLAIN: &str = "bimetal.explain";

/// From which byte on a file's contents are asked for by an attribute of this name; `None` if it is another.
pub fn explained_from(name: &str) -> Option<u64> {
    match name.strip_prefix(EXPLAIN)? {
        "" => Some(0),
        rest => rest.strip_prefix('.')?.parse().ok(),
    }
}

/// Who asks, as the kernel tells it with each request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// User id: owner of what is created.
    pub uid: u32,
    /// Group id: group of what is created, unless the parent directory is set-group-ID.
    pub gid: u32,
    /// Bits of the mode that a new object does not get, unless the parent has a default ACL.
    pub umask: u32,
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Kind {
    /// What it is, for people.
    pub fn in_words(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Dir => "directory",
            Kind::Symlink => "symbolic link",
            Kind::CharDevice | Kind::BlockDevice => "device",
            Kind::Fifo => "named pipe",
            Kind::Socket => "socket",
        }
    }
}

/// What `stat` shows.
#[derive(Clone, Debug)]
pub struct Attr {
    /// Inode number; stable for the inode's life.
    pub ino: Ino,
    /// Distinguishes two uses of one inode number.
    pub generation: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Stamp,
    /// Last change of contents.
    pub mtime: Stamp,
    /// Last change of the inode.
    pub ctime: Stamp,
    /// Creation.
    pub crtime: Stamp,
    /// File, directory, …
    pub kind: Kind,
    /// Permission bits with set-ID and sticky bits, 0..0o7777.
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, as the kernel encodes it (`makedev`).
    pub rdev: u32,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
}

/// A new inode, for [`FileSystem::create`].
#[derive(Clone, Debug)]
pub struct NewNode<'a> {
    /// What to make.
    pub kind: Kind,
    /// Permission bits before the umask.
    pub perm: u16,
    /// Device number, for device files.
    pub rdev: u32,
    /// What it points at, for symbolic links.
    pub target: &'a [u8],
}

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    /// The present.
    Now,
    /// This instant.
    To(Stamp),
}

/// The attributes to change; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits, 0..0o7777.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: cuts or extends with zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of contents.
    pub mtime: Option<SetTime>,
    /// Last change of the inode; the kernel sends it with write-back caching.
    pub ctime: Option<Stamp>,
    /// Also clear set-user-ID and (if group-executable) set-group-ID, as a write, truncation or change of
    /// owner does. Without meaning for a directory: there the bits mean something else and stay.
    pub kill_suid: bool,
}

/// How `rename` treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rename {
    /// Replace it (POSIX).
    #[default]
    Replace,
    /// Fail with [`Error::Exists`] (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap the two names (`RENAME_EXCHANGE`).
    Exchange,
    /// Leave a whiteout (character device 0:0) under the old name (`RENAME_WHITEOUT`).
    Whiteout,
}

/// What is to be discarded (`struct fstrim_range` of linux/fs.h), bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Where the part of the file system's space begins.
    pub offset: u64,
    /// How long it is; `u64::MAX`: to the end.
    pub len: u64,
    /// Shorter stretches are left as they are.
    pub least: u64,
}

/// What `fallocate` does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Reserve space; extend the size if `keep_size` is not set.
    Reserve {
        /// Leave the size.
        keep_size: bool,
    },
    /// Free the space; the range reads as zeros; the size stays.
    Punch,
    /// The range reads as zeros and has its space reserved.
    Zero {
        /// Leave the size.
        keep_size: bool,
    },
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may not be zero.
    Data,
    /// The next hole (the end of the file counts as one).
    Hole,
}

/// How `setxattr` treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Make or replace.
    Either,
    /// Fail if it is there (`XATTR_CREATE`).
    Create,
    /// Fail if it is not there (`XATTR_REPLACE`).
    Replace,
}

/// One entry of a directory, handed to the visitor of [`FileSystem::readdir`].
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The inode.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// The name.
    pub name: &'a [u8],
    /// Pass it to `readdir` to go on after this entry.
    pub next: u64,
}

/// What the visitor of [`FileSystem::readdir_attrs`] is shown: an entry, and its attributes (none for `.`
/// and `..`, and where they cannot be read); `false` ends the walk before this entry.
pub type VisitAttrs<'a> = dyn FnMut(DirEntry, Option<&Attr>) -> bool + 'a;

/// Numbers of `statfs`, in blocks of `block_bytes`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FsStat {
    /// Unit of the other numbers, bytes.
    pub block_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for ordinary users.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// An answer that is here, or one that needs a slow device and is computed on another thread.
pub enum Deferred<T> {
    /// Here it is.
    Now(T),
    /// Call this where waiting hurts nobody.
    Wait(Box<dyn FnOnce() -> Result<T> + Send>),
}

impl<T> Deferred<T> {
    /// Waits here and now.
    pub fn get(self) -> Result<T> {
        match self {
            Deferred::Now(value) => Ok(value),
            Deferred::Wait(work) => work(),
        }
    }
}

/// A file system as a front end sees it.
///
/// `lookup`, `create` and `link` each count one reference to the inode they return, given back by
/// `forget`. An inode without names lives until its last reference is gone, open or not.
pub trait FileSystem: Send + Sync {
    /// The root directory's number.
    fn root(&self) -> Ino;

    /// The inode a name stands for; counts a reference. `.` and `..` are names too.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr>;

    /// Of a name that [`lookup`](Self::lookup) said is of something damaged: what it stands for, so that it can be removed; counts a
    /// reference.
    ///
    /// Provided: nothing, for a file system that cannot tell.
    fn lookup_damaged(&self, _parent: Ino, _name: &[u8]) -> Result<Option<(Ino, Kind)>> {
        Ok(None)
    }

    /// Gives back `count` references.
    fn forget(&self, ino: Ino, count: u64);

    /// Attributes of an inode.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes, all or none.
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// The target of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Makes a file, directory, symbolic link or special file under a name that is free; counts a reference.
    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr>;

    /// Removes a name of anything but a directory.
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()>;

    /// Moves a name.
    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()>;

    /// Gives an inode another name; counts a reference.
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;

    /// Reads up to `len` bytes at `offset`; short only at the end of the file. The parts follow one another.
    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Deferred<Vec<Bytes>>>;

    /// Writes `data` at `offset`; `kill_suid` clears set-ID bits as POSIX asks. The answer is how many bytes were
    /// written: fewer than all of them only if the space was used up on the way. A [`Deferred`] answer has a copy of the
    /// data, and writes it when a device has caught up; a reader sees it once the answer is there.
    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Deferred<usize>>;

    /// Makes an inode (and the names that lead to it) durable; `data_only` may leave times behind.
    fn fsync(&self, ino: Ino, data_only: bool) -> Result<Deferred<()>>;

    /// Shows the entries after `from` (0 at the start), `.` and `..` among them, until `visit` says `false`.
    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()>;

    /// [`readdir`](Self::readdir) with the attributes of each entry; counts one reference to each inode whose
    /// entry the visitor took, except `.` and `..`.
    ///
    /// Provided: copies the names, then looks each up. A file system that can do it in one walk should.
    fn readdir_attrs(&self, ino: Ino, from: u64, visit: &mut VisitAttrs) -> Result<()> {
        readdir_then_lookup(self, ino, from, visit)
    }

    /// The value of an extended attribute.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. `kill_sgid` is set with an access ACL whose setter loses set-group-ID.
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()>;

    /// The names of all extended attributes.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute.
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    /// The flags of an inode as lsattr(1) shows them (`FS_*_FL`).
    ///
    /// Provided: [`Error::NotSupported`], for a file system that has none.
    fn flags(&self, _ino: Ino) -> Result<u32> {
        Err(Error::NotSupported)
    }

    /// Sets them, as chattr(1) does; `flags` are all that the inode is to have.
    ///
    /// Provided: [`Error::NotSupported`], for a file system that has none, or for one that cannot change these.
    fn set_flags(&self, _ino: Ino, _flags: u32) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Tells the devices what they need not keep; how many bytes of it.
    ///
    /// Provided: [`Error::NotSupported`], for a file system that has nothing to tell.
    fn trim(&self, _trim: Trim) -> Result<Deferred<u64>> {
        Err(Error::NotSupported)
    }

    /// Reserves, punches or zeroes a range.
    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()>;

    /// The next data or hole at or after `offset`.
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64>;

    /// Space and inodes.
    fn statfs(&self) -> Result<FsStat>;

    /// Answers a question put through the mount itself, as a virtual extended attribute: `bimetal.status` of
    /// the root (JSON), `bimetal.section` of a directory, `bimetal.residency` of a file. `name` is the full name.
    fn control_get(&self, _ino: Ino, _name: &str) -> Result<Vec<u8>> {
        Err(Error::NotSupported)
    }

    /// Obeys an order given through the mount, by setting a virtual extended attribute. The front lets only
    /// root and the one who mounted do it.
    fn control_set(&self, _ino: Ino, _name: &str, _value: &[u8]) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Ends cleanly: everything durable on every medium. Nothing may be called after it.
    fn shutdown(&self) -> Result<()>;
}

/// The provided [`FileSystem::readdir_attrs`].
fn readdir_then_lookup<F: FileSystem + ?Sized>(
    fs: &F,
    ino: Ino,
    from: u64,
    visit: &mut VisitAttrs,
) -> Result<()> {
    const BATCH: usize = 256;
    let mut at = from;
    loop {
        let mut batch: Vec<(Ino, Kind, Vec<u8>, u64)> = Vec::new();
        let mut more = false;
        fs.readdir(ino, at, &mut |entry| {
            more = batch.len() == BATCH;
            if !more {
                batch.push((entry.ino, entry.kind, entry.name.to_vec(), entry.next));
            }
            !more
        })?;
        for (child, kind, name, next) in &batch {
            let entry = DirEntry { ino: *child, kind: *kind, name, next: *next };
            if !visit_with_attrs(fs, ino, entry, visit)? {
                return Ok(());
            }
            at = *next;
        }
        if !more {
            return Ok(());
        }
    }
}

/// One step of [`readdir_then_lookup`]; a name that is gone by now is passed over.
fn visit_with_attrs<F: FileSystem + ?Sized>(
    fs: &F,
    dir: Ino,
    entry: DirEntry,
    visit: &mut VisitAttrs,
) -> Result<bool> {
    if entry.name == b"." || entry.name == b".." {
        return Ok(visit(entry, None));
    }
    let attr = match fs.lookup(dir, entry.name) {
        Ok(attr) => attr,
        Err(Error::NotFound) => return Ok(true),
        // Its name is all that can be shown of it; the others are none the worse.
        Err(Error::Corrupt { .. } | Error::Stale) => return Ok(visit(entry, None)),
        Err(error) => return Err(error),
    };
    let taken = visit(DirEntry { ino: attr.ino, kind: attr.kind, ..entry }, Some(&attr));
    if !taken {
        fs.forget(attr.ino, 1);
    }
    Ok(taken)
}

/// The inode at the end of an absolute path, symbolic links not followed; references are given back.
pub fn resolve(fs: &dyn FileSystem, path: &str) -> Result<Attr> {
    resolve_bytes(fs, path.as_bytes())
}

/// [`resolve`] for a path that need not be text.
pub fn resolve_bytes(fs: &dyn FileSystem, path: &[u8]) -> Result<Attr> {
    let mut attr = fs.getattr(fs.root())?;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        if attr.kind != Kind::Dir {
            return Err(Error::NotDir);
        }
        let next = fs.lookup(attr.ino, name)?;
        fs.forget(next.ino, 1);
        attr = next;
    }
    Ok(attr)
}
