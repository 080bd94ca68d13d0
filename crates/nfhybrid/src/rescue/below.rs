//! The directory that a rescue writes to. All that it makes is made through here.
//!
//! A path is walked part by part from the target's own descriptor, and each part is a real directory (`O_NOFOLLOW`), so that no name
//! of the volume, and no link among what is there already, leads out of the target; nor is a path ever too long.
//! Directories are made for their owner alone; what they are to be for others is set when all is in them. Cost: an `openat` a
//! part; the directory used last is kept.

use super::node::Node;
use rustix::fs::{
    AtFlags, FallocateFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bimetal_vfs::Kind;
use bimetal_vfs::acl::{ACCESS, DEFAULT};

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Bits that cap what others may do; those that lend rights are not brought over.
const FILE_BITS: u16 = 0o777;
const DIR_BITS: u16 = 0o1777;
/// Attributes that are anyone's.
const USER: &[u8] = b"user.";

/// A directory, and what is below it.
pub(super) struct Below {
    root: Rc<OwnedFd>,
    last: RefCell<Option<(PathBuf, Rc<OwnedFd>)>>,
}

/// Whether a part that is not there is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Leave,
}

impl Below {
    /// `path` may be a link: the user named it.
    pub fn new(path: &Path) -> io::Result<Below> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Rc::new(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(Below { root, last: RefCell::new(None) })
    }

    /// The directory at a path below; what of it is not there is made.
    pub fn dir(&self, path: &Path) -> io::Result<Rc<OwnedFd>> {
        self.walk(path, Missing::Make)
    }

    /// The same, where it is there.
    pub fn dir_if_there(&self, path: &Path) -> io::Result<Option<Rc<OwnedFd>>> {
        match self.walk(path, Missing::Leave) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    fn walk(&self, path: &Path, missing: Missing) -> io::Result<Rc<OwnedFd>> {
        if let Some((at, dir)) = &*self.last.borrow()
            && at == path
        {
            return Ok(dir.clone());
        }
        let mut dir = self.root.clone();
        for part in path {
            dir = Rc::new(enter(&dir, part, missing)?);
        }
        *self.last.borrow_mut() = Some((path.into(), dir.clone()));
        Ok(dir)
    }

    /// Moves a file to a path below, or gives it another name there; `false` where something has that name.
    pub fn give_name(&self, from: &Path, to: &Path, moved: bool) -> io::Result<bool> {
        let (above, name) = self.above(to)?;
        if !is_free(&above, name)? {
            return Ok(false);
        }
        let (dir, old) = self.above(from)?;
        match moved {
            true => rustix::fs::renameat(&dir, old, &above, name)?,
            false => rustix::fs::linkat(&dir, old, &above, name, AtFlags::empty())?,
        }
        Ok(true)
    }

    /// Makes a symbolic link, as the node is; `false` where something has that name.
    pub fn link(&self, to: &Path, node: &Node) -> io::Result<bool> {
        let (above, name) = self.above(to)?;
        if !is_free(&above, name)? {
            return Ok(false);
        }
        let target = CString::new(&node.target[..]).map_err(io::Error::other)?;
        rustix::fs::symlinkat(&target, &above, name)?;
        if let (Some((uid, gid)), true) = (node.owner, is_root()) {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(&above, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        rustix::fs::utimensat(&above, name, &times(node), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(true)
    }

    /// Makes a file that is not there.
    pub fn new_file(&self, path: &Path) -> io::Result<File> {
        let (above, name) = self.above(path)?;
        let mode = Mode::from_raw_mode(0o644);
        Ok(File::from(rustix::fs::openat(&above, name, FILE | OFlags::EXCL, mode)?))
    }

    /// The directory that something lies in, and its name there.
    fn above<'a>(&self, path: &'a Path) -> io::Result<(Rc<OwnedFd>, &'a OsStr)> {
        let above = self.dir(path.parent().unwrap_or(Path::new("")))?;
        path.file_name().map(|name| (above, name)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

fn enter(dir: &OwnedFd, part: &OsStr, missing: Missing) -> io::Result<OwnedFd> {
    match rustix::fs::openat(dir, part, DIR, Mode::empty()) {
        Err(Errno::NOENT) if missing == Missing::Make => {}
        found => return Ok(found?),
    }
    rustix::fs::mkdirat(dir, part, Mode::RWXU)?;
    let made = rustix::fs::openat(dir, part, DIR, Mode::empty())?;
    drop_lists(&made);
    Ok(made)
}

fn is_free(dir: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(true),
        found => Ok(found.map(|_| false)?),
    }
}

/// A file in a directory, for its owner alone if it is made.
pub(super) fn open_in(dir: &OwnedFd, name: &str) -> io::Result<File> {
    match rustix::fs::openat(dir, name, FILE.difference(OFlags::CREATE), Mode::empty()) {
        Err(Errno::NOENT) => {}
        found => return Ok(File::from(found?)),
    }
    let made = rustix::fs::openat(dir, name, FILE, Mode::RUSR | Mode::WUSR)?;
    drop_lists(&made);
    Ok(File::from(made))
}

/// Takes a file away; `false` where there was none.
pub(super) fn remove_in(dir: &OwnedFd, name: &str) -> io::Result<bool> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

/// Makes a hole where the file system has such; an error where it has none.
pub(super) fn punch(file: &File, from: u64, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, len)?)
}

/// What is new has no access control list of the directory around it.
fn drop_lists(made: &OwnedFd) {
    for list in [ACCESS, DEFAULT] {
        // There is none, or the file system has none.
        let _ = rustix::fs::fremovexattr(made, name_of(list).as_c_str());
    }
}

fn name_of(attribute: &[u8]) -> CString {
    CString::new(attribute).unwrap_or_default()
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether an attribute is brought over.
pub(super) fn is_brought(attribute: &[u8]) -> bool {
    attribute.starts_with(USER) || attribute == ACCESS || attribute == DEFAULT
}

/// Gives a file or directory owner, lists, permissions and times, as far as they are known; what of that could not be. Where it does
/// not get its owner or its list, its group may do no more than everyone.
pub(super) fn dress(fd: impl AsFd, node: &Node) -> Vec<String> {
    let mut troubles = Vec::new();
    let mut tell = |what: &str, why: Errno| troubles.push(format!("{what}: {}", io::Error::from(why)));
    let fd = fd.as_fd();
    let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut is_safe = node.owner == Some(ours);
    if let (Some((uid, gid)), true) = (node.owner, is_root()) {
        match rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
            Ok(()) => is_safe = true,
            Err(why) => {
                is_safe = false;
                tell("its owner", why);
            }
        }
    }
    let mut has_list = false;
    for (name, value) in node.attributes.iter().filter(|(name, _)| is_brought(name)) {
        let is_list = !name.starts_with(USER);
        if is_list && !is_safe {
            continue;
        }
        match rustix::fs::fsetxattr(fd, name_of(name).as_c_str(), value, XattrFlags::empty()) {
            Ok(()) => has_list |= name == ACCESS,
            Err(why) => tell(&format!("attribute {}", String::from_utf8_lossy(name)), why),
        }
    }
    if let Some(perm) = node.perm {
        let is_dir = node.kind == Some(Kind::Dir);
        let perm = perm & if is_dir { DIR_BITS } else { FILE_BITS };
        let lacks_list = !has_list && node.attributes.contains_key(ACCESS);
        let perm = if is_safe && !lacks_list { perm } else { perm & !(0o070 & !(perm << 3)) };
        if let Err(why) = rustix::fs::fchmod(fd, Mode::from_raw_mode(perm.into())) {
            tell("its permissions", why);
        }
    }
    if let Err(why) = rustix::fs::futimens(fd, &times(node)) {
        tell("its times", why);
    }
    troubles
}

fn times(node: &Node) -> Timestamps {
    let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let of = |when: Option<(i64, u32)>| {
        when.map_or(omitted, |(sec, nsec)| Timespec { tv_sec: sec, tv_nsec: nsec.min(999_999_999).into() })
    };
    Timestamps { last_access: of(node.atime), last_modification: of(node.mtime) }
}

/// Bytes as a part of a path.
pub(super) fn part(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}
