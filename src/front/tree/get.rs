//! From a file system onto the host.

use super::host::{NewFile, On, State, id_of, looked_at, named_beside, new_file};
use super::made::Made;
use super::way::{Step, Way};
use super::{ACCESS_LISTS, Copied, Lacks, PIECE, Watch, Whole};
use crate::fs::{Attr, FileSystem, Kind, Seek};
use crate::media::guard::{self, Claim};
use crate::time::Stamp;
use crate::units::Ino;
use crate::{Error, Result};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::HashSet;
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
/// A directory that is there already is filled up, and keeps what is its own: owner, mode, lists, times; a file that is there is replaced once the new one is whole, unless
/// [`guard::replaced`] refuses that, or it is itself a copy of this run; a link or device is replaced by its like only. Owners are
/// kept when root does it, and set-ID bits only with their owner. What cannot be copied is told to the watch and counted, and nothing
/// is made of it: no part of a file whose contents cannot all be read. What can
/// be, but not with all that belongs to it, replaces nothing; where nothing is, it is copied and told.
pub struct Getter<'a> {
    fs: &'a dyn FileSystem,
    watch: &'a mut dyn Watch,
    /// Host files of this run, by device and inode.
    made: Made<Ino, (u64, u64), First>,
    /// Directories below the source of now. A volume in order has none twice.
    met: HashSet<Ino>,
    copied: Copied,
    as_root: bool,
}

/// A directory on the way down.
struct Dir {
    attr: Attr,
    path: PathBuf,
    /// The reference to its inode is to be given back.
    is_held: bool,
    /// It was made here, and not there before.
    is_new: bool,
    /// Why not all of its names are known.
    unread: Option<Error>,
}

/// Where an inode with several names went first, and how that looked then: its number may be another file's by now.
struct First {
    path: PathBuf,
    state: State,
}

/// Copies one inode with everything below it; see [`Getter`].
pub fn get(fs: &dyn FileSystem, attr: &Attr, target: &Path, watch: &mut dyn Watch) -> Copied {
    let mut getter = Getter::new(fs, watch);
    getter.get(attr, target);
    getter.copied()
}

/// Makes a directory, unless it is there; whether it did.
fn make_dir(target: &Path) -> Result<bool> {
    match rustix::fs::mkdir(target, Mode::RWXU) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(why) => Err(Error::io("making the directory", why.into())),
    }
}

fn told(why: Errno) -> Error {
    Error::Invalid(io::Error::from(why).to_string())
}

/// What was to replace something lacks something of its own.
fn stays(lacks: Lacks) -> Error {
    Error::invalid(format!(
        "its {} cannot be copied: {}; what is there under its name stays, take that away first for a copy without",
        lacks.what, lacks.why
    ))
}

impl<'a> Getter<'a> {
    /// Copies out of `fs`.
    pub fn new(fs: &'a dyn FileSystem, watch: &'a mut dyn Watch) -> Getter<'a> {
        let as_root = rustix::process::geteuid().is_root();
        Getter { fs, watch, made: Made::new(), met: HashSet::new(), copied: Copied::default(), as_root }
    }

    /// What was copied so far.
    pub fn copied(&self) -> Copied {
        self.copied
    }

    /// Copies the inode `attr` describes, with everything below it, to `target` on the host.
    pub fn get(&mut self, attr: &Attr, target: &Path) {
        self.met.clear();
        let mut way = Way::new();
        self.object(attr.clone(), target.into(), false, &mut way);
        while let Some(step) = way.next() {
            match step {
                Step::Leave(dir) => self.leave(dir),
                Step::Name(_) if self.watch.is_over() => self.watch.left_out(),
                Step::Name(name) => self.name(&name, &mut way),
            }
        }
    }

    /// Copies what a name in the innermost directory leads to.
    fn name(&mut self, name: &[u8], way: &mut Way<Ino, Dir>) {
        let Some(dir) = way.innermost() else { return };
        let (ino, path) = (dir.attr.ino, dir.path.join(OsStr::from_bytes(name)));
        // A damaged image must not lead out of the target.
        let child = match name.contains(&b'/') {
            true => Err(Error::corrupt("a directory entry", "its name has a slash in it", ino)),
            false => self.fs.lookup(ino, name),
        };
        match child {
            Ok(child) => self.object(child, path, true, way),
            Err(why) => self.count(&path, Err(why)),
        }
    }

    /// Copies one object; of a directory the names come next.
    fn object(&mut self, attr: Attr, path: PathBuf, is_held: bool, way: &mut Way<Ino, Dir>) {
        if self.watch.is_over() {
            self.watch.left_out();
        } else {
            self.watch.next(&path);
            let done = match attr.kind {
                Kind::Dir => match self.enter(&attr, &path, way) {
                    Ok((names, unread, is_new)) => {
                        return way.enter(attr.ino, Dir { attr, path, is_held, is_new, unread }, names);
                    }
                    Err(why) => Err(why),
                },
                _ => self.one(&attr, &path),
            };
            self.count(&path, done);
        }
        if is_held {
            self.fs.forget(attr.ino, 1);
        }
    }

    /// Counts what came of an object, and tells what did not.
    fn count(&mut self, path: &Path, done: Result<Whole>) {
        match done {
            Ok(Ok(())) => self.copied.objects += 1,
            Ok(Err(lacks)) => {
                self.copied.failed += 1;
                self.watch.incomplete(path, &lacks.copied());
            }
            Err(why) => {
                self.copied.failed += 1;
                match self.watch.is_over() {
                    true => self.watch.left_out(),
                    false => self.watch.failed(path, &why),
                }
            }
        }
    }

    /// Makes a directory, unless it is there; the names that come into it, why not all of them are known, and whether it is new.
    fn enter(
        &mut self,
        attr: &Attr,
        target: &Path,
        way: &Way<Ino, Dir>,
    ) -> Result<(Vec<Vec<u8>>, Option<Error>, bool)> {
        if way.is_on(attr.ino) {
            return Err(Error::corrupt("a directory", "it is in itself", attr.ino));
        }
        if !self.met.insert(attr.ino) {
            return Err(Error::corrupt(
                "a directory",
                "it has two names, and is copied under the other",
                attr.ino,
            ));
        }
        if fs::symlink_metadata(target).is_ok_and(|old| !old.is_dir()) {
            return Err(Error::NotDir);
        }
        let mut names = Vec::new();
        let read = self.fs.readdir(attr.ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        });
        // Of what cannot be listed at all nothing is made.
        let unread = match read {
            Err(why) if names.is_empty() => return Err(why),
            read => read.err(),
        };
        let is_new = make_dir(target)?;
        Ok((names, unread, is_new))
    }

    /// A directory has everything that comes into it, and gets what belongs to itself, if it was made here.
    fn leave(&mut self, dir: Dir) {
        let dressed = if dir.is_new { self.dress(&dir.attr, On::Path(&dir.path)) } else { Ok(()) };
        self.count(&dir.path, dir.unread.map_or(Ok(dressed), Err));
        if dir.is_held {
            self.fs.forget(dir.attr.ino, 1);
        }
    }

    /// Copies what is no directory.
    fn one(&mut self, attr: &Attr, target: &Path) -> Result<Whole> {
        let old = id_of(target).ok();
        if let Some(old) = old
            && self.made.is_done(attr.ino, old)?
        {
            return Ok(Ok(()));
        }
        // Nobody takes it for an image while it is replaced.
        let _old = may_replace(attr, target)?;
        match (self.link(attr, target, old.is_some())?, attr.kind) {
            (true, _) => Ok(Ok(())),
            (false, Kind::File) => self.file(attr, target, old.is_some()),
            (false, _) => self.special(attr, target, old.is_some()),
        }
    }

    fn note(&mut self, attr: &Attr, (made, state): ((u64, u64), State), target: &Path) {
        match attr.nlink {
            0 | 1 => self.made.note(attr.ino, made),
            _ => self.made.note_linked(attr.ino, made, First { path: target.into(), state }),
        }
    }

    /// Makes another name of what this run has made of the same inode; whether that is still there.
    fn link(&mut self, attr: &Attr, target: &Path, replaces: bool) -> Result<bool> {
        let Some((made, first)) = self.made.first(attr.ino) else { return Ok(false) };
        let failed = |why| Error::io("making another name of it", why);
        let beside = match named_beside(target, |path| fs::hard_link(&first.path, path)) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(false),
            made => made.map_err(failed)?,
        };
        // Somebody may have put something else there.
        if looked_at(beside.path()).map_err(failed)? != (*made, first.state) {
            return Ok(false);
        }
        give_name(beside, target, replaces)?;
        Ok(true)
    }

    fn file(&mut self, attr: &Attr, target: &Path, replaces: bool) -> Result<Whole> {
        let made = NewFile::for_name(target)?;
        self.contents(attr, made.file(), replaces)?;
        let mut dressed = self.dress(attr, On::File(made.file()));
        if replaces {
            dressed = Ok(dressed.map_err(stays)?);
        }
        let id = looked_at(On::File(made.file())).map_err(|why| Error::io("looking at it", why))?;
        made.name(target, replaces).map_err(|why| Error::io("giving it its name", why))?;
        self.note(attr, id, target);
        Ok(dressed)
    }

    /// Makes what has no contents.
    fn special(&mut self, attr: &Attr, target: &Path, replaces: bool) -> Result<Whole> {
        let text = match attr.kind {
            Kind::Symlink => self.fs.readlink(attr.ino)?,
            _ => Vec::new(),
        };
        let make = |path: &Path| -> io::Result<()> {
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
        let failed = |why| Error::io("making it", why);
        let made = named_beside(target, make).map_err(failed)?;
        let mut dressed = self.dress(attr, On::Path(made.path()));
        if replaces {
            dressed = Ok(dressed.map_err(stays)?);
        }
        let id = looked_at(made.path()).map_err(failed)?;
        give_name(made, target, replaces)?;
        self.note(attr, id, target);
        Ok(dressed)
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
            if self.watch.is_over() {
                return Err(Error::invalid("ended before it was whole"));
            }
            let parts = self.fs.read(ino, offset, (end - offset).min(PIECE) as usize);
            let parts = parts.and_then(|parts| parts.get())?;
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

    /// Owner, then attributes (which who is not root may set while he may write), then access control lists and mode (a change of
    /// owner clears set-ID bits), then times. One that fails does not keep the others; the first is told.
    fn dress(&self, attr: &Attr, on: On) -> Whole {
        let mut first = Ok(());
        let mut note = |done: Whole| {
            if first.is_ok() {
                first = done;
            }
        };
        if self.as_root {
            note(on.set_owner(attr.uid, attr.gid).map_err(told).map_err(Lacks::of("owner")));
        }
        let names = self.fs.listxattr(attr.ino).unwrap_or_else(|why| {
            note(Err(Lacks { what: "attributes".into(), why }));
            Vec::new()
        });
        let is_list = |name: &[u8]| ACCESS_LISTS.iter().any(|list| list.to_bytes() == name);
        let (lists, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| is_list(name));
        for name in others {
            note(self.attribute(attr.ino, &name, on));
        }
        if attr.kind != Kind::Symlink {
            // Those of the directory around it are not its own.
            for list in ACCESS_LISTS.iter().filter(|list| !lists.iter().any(|name| name == list.to_bytes())) {
                let removed = on.remove_attribute(list).map_err(told);
                note(
                    removed
                        .map_err(Lacks::of("access control: a list of the directory around it stays on it")),
                );
            }
            // Set-ID bits lend the rights of the owner that the file had.
            let is_own = on.owner().is_ok_and(|owner| owner == (attr.uid, attr.gid));
            let perm = if is_own { attr.perm } else { attr.perm & !SET_ID };
            let mode = Mode::from_raw_mode(perm.into());
            note(on.set_mode(mode).map_err(told).map_err(Lacks::of("mode")));
        }
        for name in lists {
            note(self.attribute(attr.ino, &name, on));
        }
        let times = Timestamps { last_access: timespec(attr.atime), last_modification: timespec(attr.mtime) };
        note(on.set_times(&times).map_err(told).map_err(Lacks::of("times")));
        first
    }

    fn attribute(&self, ino: Ino, name: &[u8], on: On) -> Whole {
        let lacks = |why| Lacks { what: format!("attribute {}", String::from_utf8_lossy(name)), why };
        let value = self.fs.getxattr(ino, name).map_err(lacks)?;
        let Ok(text) = CString::new(name) else { return Ok(()) };
        match on.set_attribute(&text, &value) {
            Err(Errno::PERM) if !self.as_root && !name.starts_with(b"user.") => Ok(()),
            done => done.map_err(told).map_err(lacks),
        }
    }
}

/// What was made beside its name gets that. Only what `replaces` takes the place of what is there.
fn give_name(made: NamedTempFile<()>, target: &Path, replaces: bool) -> Result<()> {
    let beside = made.path().to_path_buf();
    let named = if replaces { made.persist(target) } else { made.persist_noclobber(target) };
    named.map_err(|why| Error::io("giving it its name", why.error))?;
    // Of two names of one inode neither goes.
    let _ = fs::remove_file(beside);
    Ok(())
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
    if is_same {
        return Ok(None);
    }
    if kind.is_file() && guard::is_read_only(target) {
        return Err(Error::invalid("is on a file system that takes no writes; name a target on another"));
    }
    guard::replaced(target)
}

fn timespec(stamp: Stamp) -> Timespec {
    Timespec { tv_sec: stamp.sec, tv_nsec: stamp.nsec.into() }
}
