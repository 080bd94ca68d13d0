//! From a file system onto the host.

use super::{Copied, PIECE, Watch};
use crate::fs::{Attr, FileSystem, Kind, Seek};
use crate::media::guard::{self, Claim};
use crate::time::Stamp;
use crate::units::Ino;
use crate::{Error, Result};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;

/// Copies the inode `attr` describes, with everything below it, to `target` on the host.
///
/// A directory that is there already is filled up; a file that is there is replaced once the new one is whole, unless
/// [`guard::replaced`] refuses that; a link or device is replaced by its like only. Owners are kept when root does it. What cannot be copied is told to `watch` and counted.
pub fn get(fs: &dyn FileSystem, attr: &Attr, target: &Path, watch: &mut dyn Watch) -> Copied {
    let as_root = rustix::process::geteuid().is_root();
    let mut getter = Getter { fs, watch, seen: HashMap::new(), copied: Copied::default(), as_root };
    getter.get(attr, target);
    getter.copied
}

struct Getter<'a> {
    fs: &'a dyn FileSystem,
    watch: &'a mut dyn Watch,
    /// Where an inode with several names went first.
    seen: HashMap<Ino, PathBuf>,
    copied: Copied,
    as_root: bool,
}

fn host(what: &'static str) -> impl Fn(Errno) -> Error {
    move |why| Error::io(what, why.into())
}

impl Getter<'_> {
    fn get(&mut self, attr: &Attr, target: &Path) {
        self.watch.next(target);
        match self.one(attr, target) {
            Ok(()) => self.copied.objects += 1,
            Err(why) => {
                self.copied.failed += 1;
                self.watch.failed(target, &why);
            }
        }
    }

    fn one(&mut self, attr: &Attr, target: &Path) -> Result<()> {
        if attr.kind == Kind::Dir {
            if fs::symlink_metadata(target).is_ok_and(|old| !old.is_dir()) {
                return Err(Error::NotDir);
            }
            self.dir(attr, target)?;
            return self.dress(attr, target);
        }
        // Nobody takes it for an image while it is replaced.
        let _old = may_replace(attr, target)?;
        let replaces = fs::symlink_metadata(target).is_ok();
        let first = self.seen.get(&attr.ino).cloned();
        let made = self.beside(attr, first.as_deref(), target)?;
        let filled = match made.as_file() {
            Some(file) => self.contents(attr, file, replaces),
            None => Ok(()),
        };
        // What can be read of a file is worth more than nothing, and less than what it would replace.
        if replaces && filled.is_err() {
            return filled;
        }
        let dressed = if first.is_none() { self.dress(attr, made.path()) } else { Ok(()) };
        let beside = made.path().to_path_buf();
        made.persist(target).map_err(|why| Error::io("replacing", why.error))?;
        // Of two names of one inode neither goes.
        let _ = fs::remove_file(beside);
        if attr.nlink > 1 {
            self.seen.entry(attr.ino).or_insert_with(|| target.into());
        }
        filled.and(dressed)
    }

    /// Makes what is no directory, or another name of the `first` of its inode, beside the name that it is to have, and without
    /// contents.
    fn beside(
        &self,
        attr: &Attr,
        first: Option<&Path>,
        target: &Path,
    ) -> Result<NamedTempFile<Option<File>>> {
        let text = match attr.kind {
            Kind::Symlink => self.fs.readlink(attr.ino)?,
            _ => Vec::new(),
        };
        let make = |path: &Path| -> io::Result<Option<File>> {
            let special = match attr.kind {
                _ if first.is_some() => {
                    return first.map_or(Ok(()), |first| fs::hard_link(first, path)).map(|()| None);
                }
                Kind::Symlink => {
                    return Ok(rustix::fs::symlink(OsStr::from_bytes(&text), path).map(|()| None)?);
                }
                Kind::Dir | Kind::File => return new_file(path).map(Some),
                Kind::CharDevice => FileType::CharacterDevice,
                Kind::BlockDevice => FileType::BlockDevice,
                Kind::Fifo => FileType::Fifo,
                Kind::Socket => FileType::Socket,
            };
            make_special(attr, path, special).map(|()| None)
        };
        let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let made = tempfile::Builder::new().prefix(".bimetal-get-").make_in(dir, make);
        made.map_err(|why| Error::io("making it", why))
    }

    fn dir(&mut self, attr: &Attr, target: &Path) -> Result<()> {
        match rustix::fs::mkdir(target, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(why) => return Err(host("making the directory")(why)),
        }
        let mut names = Vec::new();
        self.fs.readdir(attr.ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        for name in names {
            let path = target.join(OsStr::from_bytes(&name));
            // A damaged image must not lead out of the target.
            let child = match name.contains(&b'/') {
                true => Err(Error::corrupt("a directory entry", "its name has a slash in it", attr.ino)),
                false => self.fs.lookup(attr.ino, &name),
            };
            match child {
                Ok(child) => {
                    self.get(&child, &path);
                    self.fs.forget(child.ino, 1);
                }
                Err(why) => {
                    self.copied.failed += 1;
                    self.watch.failed(&path, &why);
                }
            }
        }
        Ok(())
    }

    /// Fills a file; what takes the place of another is on the disk then.
    fn contents(&mut self, attr: &Attr, file: &File, replaces: bool) -> Result<()> {
        let mut at = 0;
        while let Some((start, end)) = self.next_data(attr, at)? {
            self.stretch(attr.ino, start, end, file)?;
            at = end;
        }
        file.set_len(attr.size).map_err(|why| Error::io("setting the size", why))?;
        if replaces { file.sync_data().map_err(|why| Error::io("writing", why)) } else { Ok(()) }
    }

    fn next_data(&self, attr: &Attr, at: u64) -> Result<Option<(u64, u64)>> {
        match self.fs.seek(attr.ino, at, Seek::Data) {
            Ok(start) => Ok(Some((start, self.fs.seek(attr.ino, start, Seek::Hole)?))),
            Err(Error::NoOffset) => Ok(None),
            Err(Error::NotSupported) => Ok((at < attr.size).then_some((at, attr.size))),
            Err(why) => Err(why),
        }
    }

    fn stretch(&mut self, ino: Ino, start: u64, end: u64, file: &File) -> Result<()> {
        let mut offset = start;
        while offset < end {
            let parts = self.fs.read(ino, offset, (end - offset).min(PIECE) as usize)?.get()?;
            let before = offset;
            for part in &parts {
                file.write_all_at(part, offset).map_err(|why| Error::io("writing", why))?;
                offset += part.len() as u64;
            }
            if offset == before {
                break;
            }
            self.copied.bytes += offset - before;
            self.watch.moved(offset - before);
        }
        Ok(())
    }

    /// Owner, then mode (a change of owner clears set-ID bits), then attributes, then times.
    fn dress(&self, attr: &Attr, target: &Path) -> Result<()> {
        if self.as_root {
            let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
            rustix::fs::chownat(CWD, target, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(host("setting the owner"))?;
        }
        if attr.kind != Kind::Symlink {
            let mode = Mode::from_raw_mode(u32::from(attr.perm));
            rustix::fs::chmod(target, mode).map_err(host("setting the mode"))?;
        }
        self.xattrs(attr.ino, target)?;
        let times = Timestamps { last_access: timespec(attr.atime), last_modification: timespec(attr.mtime) };
        rustix::fs::utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(host("setting the times"))
    }

    fn xattrs(&self, ino: Ino, target: &Path) -> Result<()> {
        for name in self.fs.listxattr(ino)? {
            let value = self.fs.getxattr(ino, &name)?;
            let Ok(text) = CString::new(name) else { continue };
            match rustix::fs::lsetxattr(target, &text, &value, XattrFlags::empty()) {
                Err(Errno::PERM) if !self.as_root && !text.as_bytes().starts_with(b"user.") => {}
                done => done
                    .map_err(|why| Error::io(format!("attribute {}", text.to_string_lossy()), why.into()))?,
            }
        }
        Ok(())
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, how, Mode::RUSR | Mode::WUSR)?))
}

fn make_special(attr: &Attr, path: &Path, kind: FileType) -> io::Result<()> {
    let (major, minor) = (attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & !0xff);
    let device = rustix::fs::makedev(major, minor);
    Ok(rustix::fs::mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, device)?)
}

/// An error if what `attr` describes must not take the place of what is there.
fn may_replace(attr: &Attr, target: &Path) -> Result<Option<Arc<Claim>>> {
    let Ok(old) = fs::symlink_metadata(target) else { return Ok(None) };
    let kind = old.file_type();
    if kind.is_dir() {
        return Err(Error::IsDir);
    }
    let is_same = match attr.kind {
        Kind::Symlink => kind.is_symlink(),
        Kind::CharDevice => kind.is_char_device(),
        Kind::BlockDevice => kind.is_block_device(),
        Kind::Fifo => kind.is_fifo(),
        Kind::Socket => kind.is_socket(),
        _ => false,
    };
    if is_same { Ok(None) } else { guard::replaced(target) }
}

fn timespec(stamp: Stamp) -> Timespec {
    Timespec { tv_sec: stamp.sec, tv_nsec: stamp.nsec.into() }
}
