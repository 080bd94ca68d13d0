//! From a file system onto the host.

use super::host::{NewFile, On, named_beside, new_file};
use super::{ACCESS_LISTS, Copied, PIECE, Watch};
use crate::fs::{Attr, FileSystem, Kind, Seek};
use crate::media::guard::{self, Claim};
use crate::time::Stamp;
use crate::units::Ino;
use crate::{Error, Result};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps};
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

/// Mode bits that lend the rights of an owner.
const SET_ID: u16 = 0o6000;

/// Copies trees to the host. Names of one inode stay names of one, also where different calls meet them.
///
/// A directory that is there already is filled up; a file that is there is replaced once the new one is whole, unless
/// [`guard::replaced`] refuses that; a link or device is replaced by its like only. Owners are kept when root does it, and set-ID
/// bits only with their owner. What cannot be copied is told to the watch and counted.
pub struct Getter<'a> {
    fs: &'a dyn FileSystem,
    watch: &'a mut dyn Watch,
    /// Where an inode with several names went first.
    seen: HashMap<Ino, PathBuf>,
    copied: Copied,
    as_root: bool,
}

/// Why a file has not all of its contents.
enum Stopped {
    /// The volume does not give more of it.
    Volume(Error),
    /// The host takes no more of it, or nobody wants it any more.
    Host(Error),
}

impl Stopped {
    fn writing(what: &'static str) -> impl Fn(io::Error) -> Stopped {
        move |why| Stopped::Host(Error::io(what, why))
    }
}

/// Copies one inode with everything below it; see [`Getter`].
pub fn get(fs: &dyn FileSystem, attr: &Attr, target: &Path, watch: &mut dyn Watch) -> Copied {
    let mut getter = Getter::new(fs, watch);
    getter.get(attr, target);
    getter.copied()
}

fn host(what: &'static str) -> impl Fn(Errno) -> Error {
    move |why| Error::io(what, why.into())
}

impl<'a> Getter<'a> {
    /// Copies out of `fs`.
    pub fn new(fs: &'a dyn FileSystem, watch: &'a mut dyn Watch) -> Getter<'a> {
        let as_root = rustix::process::geteuid().is_root();
        Getter { fs, watch, seen: HashMap::new(), copied: Copied::default(), as_root }
    }

    /// What was copied so far.
    pub fn copied(&self) -> Copied {
        self.copied
    }

    /// Copies the inode `attr` describes, with everything below it, to `target` on the host.
    pub fn get(&mut self, attr: &Attr, target: &Path) {
        if self.watch.is_over() {
            return;
        }
        self.watch.next(target);
        match self.one(attr, target) {
            Ok(()) => self.copied.objects += 1,
            Err(_) if self.watch.is_over() => self.copied.failed += 1,
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
            return self.dress(attr, On::Path(target));
        }
        // Nobody takes it for an image while it is replaced.
        let _old = may_replace(attr, target)?;
        let first = self.seen.get(&attr.ino).cloned();
        if attr.kind == Kind::File && first.is_none() {
            self.file(attr, target)?;
        } else {
            let made = self.beside(attr, first.as_deref(), target)?;
            let dressed = if first.is_none() { self.dress(attr, On::Path(made.path())) } else { Ok(()) };
            let beside = made.path().to_path_buf();
            made.persist(target).map_err(|why| Error::io("replacing", why.error))?;
            // Of two names of one inode neither goes.
            let _ = fs::remove_file(beside);
            dressed?;
        }
        if attr.nlink > 1 {
            self.seen.entry(attr.ino).or_insert_with(|| target.into());
        }
        Ok(())
    }

    fn file(&mut self, attr: &Attr, target: &Path) -> Result<()> {
        let replaces = fs::symlink_metadata(target).is_ok();
        let made = NewFile::for_name(target)?;
        let read = match self.contents(attr, made.file(), replaces) {
            Ok(()) => Ok(()),
            Err(Stopped::Host(why)) => return Err(why),
            // What can be read of a file is worth more than nothing, and less than what it would replace.
            Err(Stopped::Volume(why)) if replaces => return Err(why),
            Err(Stopped::Volume(why)) => Err(why),
        };
        let dressed = self.dress(attr, On::File(made.file()));
        made.name(target, replaces).map_err(|why| Error::io("giving it its name", why))?;
        if attr.nlink > 1 {
            self.seen.insert(attr.ino, target.into());
        }
        read.and(dressed)
    }

    /// Makes what has no contents, or another name of the `first` of its inode, beside the name that it is to have.
    fn beside(&self, attr: &Attr, first: Option<&Path>, target: &Path) -> Result<NamedTempFile<()>> {
        let text = match attr.kind {
            Kind::Symlink => self.fs.readlink(attr.ino)?,
            _ => Vec::new(),
        };
        let make = |path: &Path| -> io::Result<()> {
            if let Some(first) = first {
                return fs::hard_link(first, path);
            }
            let special = match attr.kind {
                Kind::Symlink => return Ok(rustix::fs::symlink(OsStr::from_bytes(&text), path)?),
                Kind::Dir | Kind::File => return new_file(path).map(drop),
                Kind::CharDevice => FileType::CharacterDevice,
                Kind::BlockDevice => FileType::BlockDevice,
                Kind::Fifo => FileType::Fifo,
                Kind::Socket => FileType::Socket,
            };
            make_special(attr, path, special)
        };
        named_beside(target, make).map_err(|why| Error::io("making it", why))
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
    fn contents(&mut self, attr: &Attr, file: &File, replaces: bool) -> Result<(), Stopped> {
        let mut at = 0;
        while let Some((start, end)) = self.next_data(attr, at).map_err(Stopped::Volume)? {
            self.stretch(attr.ino, start, end, file)?;
            at = end;
        }
        file.set_len(attr.size).map_err(Stopped::writing("setting the size"))?;
        if replaces { file.sync_data().map_err(Stopped::writing("writing")) } else { Ok(()) }
    }

    fn next_data(&self, attr: &Attr, at: u64) -> Result<Option<(u64, u64)>> {
        match self.fs.seek(attr.ino, at, Seek::Data) {
            Ok(start) => Ok(Some((start, self.fs.seek(attr.ino, start, Seek::Hole)?))),
            Err(Error::NoOffset) => Ok(None),
            Err(Error::NotSupported) => Ok((at < attr.size).then_some((at, attr.size))),
            Err(why) => Err(why),
        }
    }

    fn stretch(&mut self, ino: Ino, start: u64, end: u64, file: &File) -> Result<(), Stopped> {
        let mut offset = start;
        while offset < end {
            if self.watch.is_over() {
                return Err(Stopped::Host(Error::invalid("ended before it was whole")));
            }
            let parts = self.fs.read(ino, offset, (end - offset).min(PIECE) as usize);
            let parts = parts.and_then(|parts| parts.get()).map_err(Stopped::Volume)?;
            let before = offset;
            for part in &parts {
                file.write_all_at(part, offset).map_err(Stopped::writing("writing"))?;
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

    /// Owner, then access control lists and mode (a change of owner clears set-ID bits), then attributes, then times.
    fn dress(&self, attr: &Attr, on: On) -> Result<()> {
        if self.as_root {
            on.set_owner(attr.uid, attr.gid).map_err(host("setting the owner"))?;
        }
        let names = self.fs.listxattr(attr.ino)?;
        if attr.kind != Kind::Symlink {
            // Those of the directory around it are not its own.
            for list in ACCESS_LISTS.iter().filter(|list| !names.iter().any(|name| name == list.to_bytes())) {
                on.remove_attribute(list).map_err(host("taking away an access control list"))?;
            }
            // Set-ID bits lend the rights of the owner that the file had.
            let is_own = self.as_root || on.owner().is_ok_and(|owner| owner == (attr.uid, attr.gid));
            let perm = if is_own { attr.perm } else { attr.perm & !SET_ID };
            on.set_mode(Mode::from_raw_mode(perm.into())).map_err(host("setting the mode"))?;
        }
        self.attributes(attr.ino, names, on)?;
        let times = Timestamps { last_access: timespec(attr.atime), last_modification: timespec(attr.mtime) };
        on.set_times(&times).map_err(host("setting the times"))
    }

    fn attributes(&self, ino: Ino, names: Vec<Vec<u8>>, on: On) -> Result<()> {
        for name in names {
            let value = self.fs.getxattr(ino, &name)?;
            let Ok(text) = CString::new(name) else { continue };
            match on.set_attribute(&text, &value) {
                Err(Errno::PERM) if !self.as_root && !text.as_bytes().starts_with(b"user.") => {}
                done => done
                    .map_err(|why| Error::io(format!("attribute {}", text.to_string_lossy()), why.into()))?,
            }
        }
        Ok(())
    }
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
