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
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        let old = may_replace(attr, target)?;
        // It has the name when it is whole: until then what had it stays.
        let beside = target.with_file_name(format!(".bimetal-get-{}", std::process::id()));
        let _ = fs::remove_file(&beside);
        let made = self.object(attr, &beside).and_then(|()| match old {
            // Nor is it lost when the power fails.
            Some(_) if attr.kind == Kind::File => {
                File::open(&beside).and_then(|new| new.sync_data()).map_err(|why| Error::io("writing", why))
            }
            _ => Ok(()),
        });
        let moved =
            made.and_then(|()| fs::rename(&beside, target).map_err(|why| Error::io("replacing", why)));
        if moved.is_err() {
            let _ = fs::remove_file(&beside);
        } else if attr.nlink > 1 {
            self.seen.entry(attr.ino).or_insert_with(|| target.into());
        }
        moved
    }

    /// Makes what is no directory.
    fn object(&mut self, attr: &Attr, target: &Path) -> Result<()> {
        if let Some(first) = self.seen.get(&attr.ino) {
            return fs::hard_link(first, target).map_err(|why| Error::io("linking", why));
        }
        match attr.kind {
            Kind::Dir => return Err(Error::IsDir),
            Kind::File => self.file(attr, target)?,
            Kind::Symlink => {
                let text = self.fs.readlink(attr.ino)?;
                rustix::fs::symlink(OsStr::from_bytes(&text), target).map_err(host("making the link"))?;
            }
            Kind::CharDevice => self.special(attr, target, FileType::CharacterDevice)?,
            Kind::BlockDevice => self.special(attr, target, FileType::BlockDevice)?,
            Kind::Fifo => self.special(attr, target, FileType::Fifo)?,
            Kind::Socket => self.special(attr, target, FileType::Socket)?,
        }
        self.dress(attr, target)
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

    fn file(&mut self, attr: &Attr, target: &Path) -> Result<()> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(target, how, Mode::RUSR | Mode::WUSR).map_err(host("making the file"))?;
        let file = File::from(file);
        let mut at = 0;
        while let Some((start, end)) = self.next_data(attr, at)? {
            self.stretch(attr.ino, start, end, &file)?;
            at = end;
        }
        file.set_len(attr.size).map_err(|why| Error::io("setting the size", why))
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

    fn special(&self, attr: &Attr, target: &Path, kind: FileType) -> Result<()> {
        let (major, minor) = (attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & !0xff);
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, target, kind, Mode::RUSR | Mode::WUSR, device)
            .map_err(host("making the special file"))
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
