//! What is made on the host: files without a name until they are whole, and what belongs to a file, set by its descriptor or by its
//! path.

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timestamps, Uid, XattrFlags};
use rustix::io::{Errno, Result};
use std::ffi::CStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempPath};

/// Something on the host: an open file, or what a path leads to without following a link at its end.
#[derive(Clone, Copy)]
pub(super) enum On<'a> {
    File(&'a File),
    Path(&'a Path),
}

impl<'a> From<&'a Path> for On<'a> {
    fn from(path: &'a Path) -> On<'a> {
        On::Path(path)
    }
}

/// Device and inode number, by which one file is told from another.
pub(super) fn id_of<'a>(what: impl Into<On<'a>>) -> io::Result<(u64, u64)> {
    let found = what.into().found()?;
    Ok((found.dev(), found.ino()))
}

/// What tells one file from a later one that got its number: size, and time of modification.
pub(super) type State = (u64, i64, i64);

/// Which file it is, and how it looks.
pub(super) fn looked_at<'a>(what: impl Into<On<'a>>) -> io::Result<((u64, u64), State)> {
    let found = what.into().found()?;
    Ok(((found.dev(), found.ino()), (found.size(), found.mtime(), found.mtime_nsec())))
}

impl On<'_> {
    fn found(self) -> io::Result<Metadata> {
        match self {
            On::File(file) => file.metadata(),
            On::Path(path) => fs::symlink_metadata(path),
        }
    }

    /// The user and the group it belongs to.
    pub fn owner(self) -> io::Result<(u32, u32)> {
        let found = self.found()?;
        Ok((found.uid(), found.gid()))
    }

    pub fn set_owner(self, uid: u32, gid: u32) -> Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self {
            On::File(file) => rustix::fs::fchown(file, uid, gid),
            On::Path(path) => rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    pub fn set_mode(self, mode: Mode) -> Result<()> {
        match self {
            On::File(file) => rustix::fs::fchmod(file, mode),
            On::Path(path) => rustix::fs::chmod(path, mode),
        }
    }

    pub fn set_times(self, times: &Timestamps) -> Result<()> {
        match self {
            On::File(file) => rustix::fs::futimens(file, times),
            On::Path(path) => rustix::fs::utimensat(CWD, path, times, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    pub fn set_attribute(self, name: &CStr, value: &[u8]) -> Result<()> {
        match self {
            On::File(file) => rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()),
            On::Path(path) => rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()),
        }
    }

    /// Takes an attribute away, if it is there.
    pub fn remove_attribute(self, name: &CStr) -> Result<()> {
        let done = match self {
            On::File(file) => rustix::fs::fremovexattr(file, name),
            On::Path(path) => rustix::fs::lremovexattr(path, name),
        };
        match done {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            done => done,
        }
    }
}

/// A new file that gets its name at the end. Until then it has none, where the file system knows such files, so that nothing of it
/// stays whatever happens; else one beside it, which is taken away when this is dropped.
pub(super) struct NewFile {
    file: File,
    beside: Option<TempPath>,
}

impl NewFile {
    /// A file that is going to be called `target`.
    pub fn for_name(target: &Path) -> crate::Result<NewFile> {
        let made = match nameless(&dir_of(target)) {
            Ok(file) => Ok(NewFile { file, beside: None }),
            Err(_) => named_beside(target, new_file).map(|named| {
                let (file, beside) = named.into_parts();
                NewFile { file, beside: Some(beside) }
            }),
        };
        made.map_err(|why| crate::Error::io("making it", why))
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name. Only what `replaces` takes the place of what is there.
    pub fn name(self, target: &Path, replaces: bool) -> io::Result<()> {
        let beside = match self.beside {
            Some(beside) => beside,
            None if !replaces => return link(&self.file, target),
            None => named_beside(target, |path| link(&self.file, path))?.into_temp_path(),
        };
        let named = if replaces { beside.persist(target) } else { beside.persist_noclobber(target) };
        named.map_err(|why| why.error)
    }
}

/// A file without a name on the file system of a directory. Fails where there are none such.
fn nameless(dir: &Path) -> io::Result<File> {
    let how = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(dir, how, Mode::RUSR | Mode::WUSR)?))
}

fn link(file: &File, name: &Path) -> io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, open, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Makes something under a name that is free, beside the one it is to have.
pub(super) fn named_beside<T>(
    target: &Path,
    make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<NamedTempFile<T>> {
    tempfile::Builder::new().prefix(".bimetal-get-").make_in(dir_of(target), make)
}

pub(super) fn new_file(path: &Path) -> io::Result<File> {
    let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, how, Mode::RUSR | Mode::WUSR)?))
}

fn dir_of(target: &Path) -> PathBuf {
    target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).into()
}
