//! From a file system onto the host.

use super::{Copied, PIECE, Watch};
use crate::fs::{Attr, FileSystem, Kind, Seek};
use crate::time::Stamp;
use crate::units::Ino;
use crate::{Error, Result};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Copies the inode `attr` describes, with everything below it, to `target` on the host.
///
/// A directory that is there already is filled up; anything else that is there is replaced. Owners are kept
/// when root does it. What cannot be copied is told to `watch` and counted.
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
        self.make_room(attr, target)?;
        if attr.kind != Kind::Dir && attr.nlink > 1 {
            if let Some(first) = self.seen.get(&attr.ino) {
                return fs::hard_link(first, target).map_err(|why| Error::io("linking", why));
            }
            self.seen.insert(attr.ino, target.into());
        }
        match attr.kind {
            Kind::Dir => self.dir(attr, target)?,
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

    /// Removes what is in the way, unless both are directories.
    fn make_room(&self, attr: &Attr, target: &Path) -> Result<()> {
        let Ok(old) = fs::symlink_metadata(target) else { return Ok(()) };
        match (attr.kind == Kind::Dir, old.is_dir()) {
            (true, true) => Ok(()),
            (false, true) => Err(Error::IsDir),
            (true, false) => Err(Error::NotDir),
            (false, false) => fs::remove_file(target).map_err(|why| Error::io("replacing", why)),
        }
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

fn timespec(stamp: Stamp) -> Timespec {
    Timespec { tv_sec: stamp.sec, tv_nsec: stamp.nsec.into() }
}
