//! From the host into a file system.

use super::made::Made;
use super::way::{Step, Way};
use super::{ACCESS_LISTS, Copied, Lacks, PIECE, Watch, Whole, look};
use crate::fs::{Caller, FileSystem, Kind, NewNode, Rename, SetAttr, SetTime, SetXattr};
use crate::time::Stamp;
use crate::units::Ino;
use crate::{Error, Result};
use rustix::fs::{Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What is read of a file at once, bytes, however short it says it is.
const LEAST_PIECE: u64 = 4096;

/// Copies the host's `source`, with everything below it, to `name` in the directory `parent`; see [`Putter`].
pub fn put(fs: &dyn FileSystem, source: &Path, parent: Ino, name: &[u8], watch: &mut dyn Watch) -> Copied {
    let mut putter = Putter::new(fs, watch);
    putter.put(source, parent, name);
    putter.copied()
}

/// Writes everything that `source` gives to a new file `name` in `parent`.
pub fn put_stream(
    fs: &dyn FileSystem,
    source: &mut dyn Read,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    watch: &mut dyn Watch,
) -> Result<u64> {
    let place = Place::of(fs, parent, name)?;
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let attr = fs.create(caller, parent, place.name(), &node)?;
    let mut piece = vec![0; PIECE as usize];
    let mut offset = 0;
    let done = loop {
        match source.read(&mut piece) {
            Ok(0) => break Ok(offset),
            Ok(len) => {
                if let Err(why) = write_all(fs, attr.ino, offset, &piece[..len]) {
                    break Err(why);
                }
                offset += len as u64;
                watch.moved(len as u64);
            }
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            Err(why) => break Err(Error::io("the input", why)),
        }
    };
    fs.forget(attr.ino, 1);
    place.end(done)
}

/// Writes all of a piece, or says that there is no room for it.
fn write_all(fs: &dyn FileSystem, ino: Ino, offset: u64, piece: &[u8]) -> Result<()> {
    match fs.write(ino, offset, piece, false)?.get()? {
        written if written == piece.len() => Ok(()),
        _ => Err(Error::NoSpace("the file system is full")),
    }
}

/// Where something is made: under its own name, or, where something has that, beside it until it is whole.
struct Place<'a> {
    fs: &'a dyn FileSystem,
    parent: Ino,
    name: &'a [u8],
    beside: Option<Vec<u8>>,
}

impl<'a> Place<'a> {
    /// A place in `parent` for what is to have `name`.
    ///
    /// Fails with [`Error::IsDir`] if a directory has it.
    fn of(fs: &'a dyn FileSystem, parent: Ino, name: &'a [u8]) -> Result<Place<'a>> {
        let beside = match look(fs, parent, name)? {
            None => None,
            Some(old) if old.kind == Kind::Dir => return Err(Error::IsDir),
            Some(_) => Some(free_name(fs, parent)?),
        };
        Ok(Place { fs, parent, name, beside })
    }

    /// Under which name it is made.
    fn name(&self) -> &[u8] {
        self.beside.as_deref().unwrap_or(self.name)
    }

    /// What is whole gets its name; of what is not, nothing stays.
    fn end<T>(self, made: Result<T>) -> Result<T> {
        let named = made.and_then(|made| match &self.beside {
            Some(beside) => {
                self.fs.rename(self.parent, beside, self.parent, self.name, Rename::Replace).map(|()| made)
            }
            None => Ok(made),
        });
        if named.is_err() {
            // The first error says more.
            let _ = self.fs.unlink(self.parent, self.name());
        }
        named
    }
}

/// A name that nothing has in a directory.
fn free_name(fs: &dyn FileSystem, parent: Ino) -> Result<Vec<u8>> {
    for number in 0_u32.. {
        let name = format!(".bimetal-put-{number}").into_bytes();
        if look(fs, parent, &name)?.is_none() {
            return Ok(name);
        }
    }
    Err(Error::Exists)
}

/// Device and inode, by which one file of the host is told from another.
type HostId = (u64, u64);

/// How far a time may be off that a file system keeps in larger units than the host, seconds.
const COARSEST_TIME: u64 = 2;

/// Copies trees of the host. Names of one file stay names of one, also where different calls meet them.
///
/// A directory that is there already is filled up; anything else that is there is replaced once the new one is whole, unless it is
/// itself a copy of this run. What cannot be copied is told to the watch and counted.
pub struct Putter<'a> {
    fs: &'a dyn FileSystem,
    watch: &'a mut dyn Watch,
    /// Inodes of this run here, and how files with several names looked: their numbers may be other files' by now.
    made: Made<HostId, Ino, State>,
    /// Files that the volume itself lies on.
    below: HashSet<HostId>,
    copied: Copied,
}

/// A directory of the host on the way down.
struct Dir {
    path: PathBuf,
    stat: Stat,
    /// What it has become; the reference is to be given back.
    ino: Ino,
    /// Why not all of its names are known.
    unread: Option<Error>,
}

impl<'a> Putter<'a> {
    /// Copies into `fs`.
    pub fn new(fs: &'a dyn FileSystem, watch: &'a mut dyn Watch) -> Putter<'a> {
        Putter { fs, watch, made: Made::new(), below: HashSet::new(), copied: Copied::default() }
    }

    /// Copies none of these files, by device and inode: the volume lies on them.
    pub fn leave_out(&mut self, below: impl IntoIterator<Item = HostId>) {
        self.below.extend(below);
    }

    /// What was copied so far.
    pub fn copied(&self) -> Copied {
        self.copied
    }

    /// Copies the host's `source`, with everything below it, to `name` in the directory `parent`.
    pub fn put(&mut self, source: &Path, parent: Ino, name: &[u8]) {
        let mut way = Way::new();
        self.object(source.into(), parent, name, &mut way);
        while let Some(step) = way.next() {
            match step {
                Step::Leave(dir) => self.leave(dir),
                Step::Name(_) if self.watch.is_over() => self.watch.left_out(),
                Step::Name(name) => {
                    let Some(dir) = way.innermost() else { continue };
                    let (ino, path) = (dir.ino, dir.path.join(OsStr::from_bytes(&name)));
                    self.object(path, ino, &name, &mut way);
                }
            }
        }
    }

    /// Copies one object; of a directory the names come next.
    fn object(&mut self, source: PathBuf, parent: Ino, name: &[u8], way: &mut Way<HostId, Dir>) {
        if self.watch.is_over() {
            return self.watch.left_out();
        }
        self.watch.next(&source);
        let done = match rustix::fs::lstat(&source) {
            Err(why) => Err(Error::io("lstat", why.into())),
            Ok(stat) => match kind_of(&stat) {
                Ok(Kind::Dir) => match self.enter(&source, &stat, parent, name, way) {
                    Ok((ino, names, unread)) => {
                        let dir = Dir { path: source, stat, ino, unread };
                        return way.enter(id_of(&stat), dir, names);
                    }
                    Err(why) => Err(why),
                },
                Ok(kind) => self.one(&source, &stat, kind, parent, name),
                Err(why) => Err(why),
            },
        };
        self.count(&source, done);
    }

    /// Counts what came of an object, and tells what did not.
    fn count(&mut self, source: &Path, done: Result<Whole>) {
        match done {
            Ok(Ok(())) => self.copied.objects += 1,
            Ok(Err(lacks)) => {
                self.copied.failed += 1;
                self.watch.incomplete(source, &lacks.copied());
            }
            Err(why) => {
                self.copied.failed += 1;
                match self.watch.is_over() {
                    true => self.watch.left_out(),
                    false => self.watch.failed(source, &why),
                }
            }
        }
    }

    /// Makes a directory, unless it is there: what it is here, the names that come into it, and why not all of them are known.
    fn enter(
        &mut self,
        source: &Path,
        stat: &Stat,
        parent: Ino,
        name: &[u8],
        way: &Way<HostId, Dir>,
    ) -> Result<(Ino, Vec<Vec<u8>>, Option<Error>)> {
        if way.is_on(id_of(stat)) {
            return Err(Error::invalid("is the same as a directory that it lies in; not copied again"));
        }
        let ino = match look(self.fs, parent, name)? {
            Some(old) if old.kind == Kind::Dir => self.fs.lookup(parent, name)?.ino,
            Some(_) => return Err(Error::NotDir),
            None => self.make(source, stat, Kind::Dir, parent, name)?,
        };
        let mut names = Vec::new();
        let listed = fs::read_dir(source).and_then(|mut list| {
            list.try_for_each(|entry| entry.map(|entry| names.push(entry.file_name().as_bytes().to_vec())))
        });
        let unread = listed.err().map(|why| Error::io("listing", why));
        Ok((ino, names, unread))
    }

    /// A directory has everything that comes into it, and gets what belongs to itself.
    fn leave(&mut self, dir: Dir) {
        let dressed = self.dress(&dir.path, &dir.stat, Kind::Dir, dir.ino);
        self.fs.forget(dir.ino, 1);
        self.count(&dir.path, dir.unread.map_or(dressed, Err));
    }

    /// Copies what is no directory.
    fn one(&mut self, source: &Path, stat: &Stat, kind: Kind, parent: Ino, name: &[u8]) -> Result<Whole> {
        let id = id_of(stat);
        if self.below.contains(&id) {
            return Err(own_part());
        }
        if let Some(old) = look(self.fs, parent, name)?
            && self.made.is_done(id, old.ino)?
        {
            return Ok(Ok(()));
        }
        if stat.st_nlink > 1
            && let Some((known, state)) = self.made.first(id)
            && *state == state_of(stat)
        {
            return self.link(*known, parent, name).map(Ok);
        }
        let place = Place::of(self.fs, parent, name)?;
        let ino = self.make(source, stat, kind, parent, place.name())?;
        let filled = match kind {
            Kind::File => self.contents(source, stat, ino),
            _ => Ok(()),
        };
        let dressed = filled.and_then(|()| self.dress(source, stat, kind, ino));
        self.fs.forget(ino, 1);
        let whole = place.end(dressed)?;
        match stat.st_nlink {
            0 | 1 => self.made.note(id, ino),
            _ => self.made.note_linked(id, ino, state_of(stat)),
        }
        Ok(whole)
    }

    fn link(&self, known: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        let place = Place::of(self.fs, parent, name)?;
        let attr = self.fs.link(known, parent, place.name())?;
        self.fs.forget(attr.ino, 1);
        place.end(Ok(()))
    }

    /// Makes the object without contents; the reference is the caller's to give back.
    fn make(&self, source: &Path, stat: &Stat, kind: Kind, parent: Ino, name: &[u8]) -> Result<Ino> {
        let target = match kind {
            Kind::Symlink => fs::read_link(source).map_err(|why| Error::io("reading the link", why))?,
            _ => Default::default(),
        };
        let caller = Caller { uid: stat.st_uid, gid: stat.st_gid, umask: 0 };
        // Closed to others until it is whole.
        let perm = if kind == Kind::Dir { 0o700 } else { 0o600 };
        let node = NewNode { kind, perm, rdev: device_number(stat), target: target.as_os_str().as_bytes() };
        Ok(self.fs.create(&caller, parent, name, &node)?.ino)
    }

    /// Owner, mode, times and attributes. What of these the volume cannot hold is told; the rest it has to take.
    fn dress(&self, source: &Path, stat: &Stat, kind: Kind, ino: Ino) -> Result<Whole> {
        let names = host_xattrs(source)?;
        if kind != Kind::Symlink {
            self.remove_lists(&names, ino)?;
        }
        let owner = SetAttr { uid: Some(stat.st_uid), gid: Some(stat.st_gid), ..SetAttr::default() };
        self.fs.setattr(ino, &owner)?;
        let atime = Stamp { sec: stat.st_atime, nsec: stat.st_atime_nsec as u32 };
        let mtime = Stamp { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 };
        let set = SetAttr {
            perm: (kind != Kind::Symlink).then_some((stat.st_mode & 0o7777) as u16),
            atime: Some(SetTime::To(atime)),
            mtime: Some(SetTime::To(mtime)),
            ..SetAttr::default()
        };
        let kept = self.fs.setattr(ino, &set)?;
        self.xattrs(source, names, ino)?;
        let cut = [("time of access", atime, kept.atime), ("time of modification", mtime, kept.mtime)];
        // The one of modification is the one that people look at.
        let cut = cut.into_iter().rfind(|(_, from, to)| from.sec.abs_diff(to.sec) > COARSEST_TIME);
        Ok(cut.map_or(Ok(()), |(what, from, to)| {
            let why = format!("{} is none that the volume can hold, and became {}", day(from), day(to));
            Err(Lacks { what: what.into(), why: Error::Invalid(why) })
        }))
    }

    /// Access control lists that came from the directory around it are not its own.
    fn remove_lists(&self, own: &[CString], ino: Ino) -> Result<()> {
        for list in ACCESS_LISTS.iter().filter(|list| !own.iter().any(|name| name.as_c_str() == **list)) {
            match self.fs.removexattr(ino, list.to_bytes()) {
                Err(Error::NoAttribute | Error::NotSupported) => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    fn contents(&mut self, source: &Path, stat: &Stat, ino: Ino) -> Result<()> {
        // Somebody may have put a link, a FIFO or another file there since it was looked at.
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::open(source, how, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::LOOP | Errno::NXIO) => return Err(replaced_meanwhile()),
            Err(why) => return Err(Error::io("opening", why.into())),
        };
        let now = rustix::fs::fstat(&file).map_err(|why| Error::io("opening", why.into()))?;
        if id_of(&now) != id_of(stat) || kind_of(&now)? != Kind::File {
            return Err(replaced_meanwhile());
        }
        let told = stat.st_size as u64;
        let mut piece = vec![0; PIECE.min(told.max(LEAST_PIECE)) as usize];
        let (mut at, mut size) = (0, told);
        while let Some((start, end)) = next_data(&file, at, size)? {
            at = self.stretch(&file, ino, start..end, &mut piece)?;
            if at < end {
                // It became shorter, or was never as long as it said.
                size = at;
            }
        }
        // Files of /proc have no size.
        if told == 0 {
            size = self.stretch(&file, ino, size..u64::MAX, &mut piece)?;
        }
        self.fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    }

    /// Copies a stretch of a host file up to where that ends; where it ended.
    fn stretch(&mut self, file: &File, ino: Ino, bytes: Range<u64>, piece: &mut [u8]) -> Result<u64> {
        let mut offset = bytes.start;
        while offset < bytes.end {
            if self.watch.is_over() {
                return Err(Error::invalid("ended before it was whole"));
            }
            let want = (bytes.end - offset).min(piece.len() as u64) as usize;
            let got = match file.read_at(&mut piece[..want], offset) {
                Ok(0) => break,
                Ok(got) => got,
                Err(why) if why.kind() == ErrorKind::Interrupted => continue,
                Err(why) => return Err(Error::io("reading", why)),
            };
            write_all(self.fs, ino, offset, &piece[..got])?;
            offset += got as u64;
            self.copied.bytes += got as u64;
            self.watch.moved(got as u64);
        }
        Ok(offset)
    }

    fn xattrs(&self, source: &Path, names: Vec<CString>, ino: Ino) -> Result<()> {
        for name in names {
            let mut value = Vec::with_capacity(64 << 10);
            let space = rustix::buffer::spare_capacity(&mut value);
            rustix::fs::lgetxattr(source, &name, space)
                .map_err(|why| Error::io(format!("attribute {}", name.to_string_lossy()), why.into()))?;
            match self.fs.setxattr(ino, name.as_bytes(), &value, SetXattr::Either, false) {
                // A name space that the target does not keep, such as another system's labels.
                Err(Error::NotSupported) => {}
                set => set?,
            }
        }
        Ok(())
    }
}

/// What tells a file that had several names from a later one that got its number: nobody sets the time of a change.
type State = (u64, [i64; 4]);

fn state_of(stat: &Stat) -> State {
    let times = [stat.st_mtime, stat.st_mtime_nsec as i64, stat.st_ctime, stat.st_ctime_nsec as i64];
    (stat.st_size as u64, times)
}

fn replaced_meanwhile() -> Error {
    Error::invalid("was replaced while it was copied; copy it again")
}

fn id_of(stat: &Stat) -> HostId {
    (stat.st_dev, stat.st_ino)
}

/// The refusal of a file that the volume lies on.
pub fn own_part() -> Error {
    Error::invalid(
        "is what the volume itself lies on, and changes while it is copied; copy it with another program",
    )
}

/// The day of a time, as people write it. (H. Hinnant, "chrono-compatible low-level date algorithms": civil_from_days.)
fn day(time: Stamp) -> String {
    let days = time.sec.div_euclid(86_400) + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

/// The names of the attributes of a host file; none where its file system has none.
fn host_xattrs(path: &Path) -> Result<Vec<CString>> {
    let mut names = Vec::with_capacity(64 << 10);
    match rustix::fs::llistxattr(path, rustix::buffer::spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(why) => return Err(Error::io("listing attributes", why.into())),
    }
    let split = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(split.filter_map(|name| CString::new(name).ok()).collect())
}

/// The next stretch of data of a host file at or after `at`; all of it where holes cannot be asked for.
fn next_data(file: &File, at: u64, size: u64) -> Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(why) => return Err(Error::io("looking for data", why.into())),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))
        .map_err(|why| Error::io("looking for a hole", why.into()))?;
    Ok((start < size).then_some((start, end.min(size))))
}

fn kind_of(stat: &Stat) -> Result<Kind> {
    use rustix::fs::FileType;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Unknown => return Err(Error::unsupported("this kind of file", "it is none of POSIX")),
    })
}

/// The number in the kernel's own 32-bit form (`new_encode_dev`).
fn device_number(stat: &Stat) -> u32 {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::memfs::MemFs;
    use std::os::unix::fs::symlink;

    /// Puts something where a file was.
    type PutThere<'a> = &'a dyn Fn(&Path);

    struct Quiet;

    impl Watch for Quiet {
        fn next(&mut self, _path: &Path) {}
        fn moved(&mut self, _bytes: u64) {}
        fn failed(&mut self, _path: &Path, _why: &Error) {}
    }

    /// What has taken the place of a file since that was looked at.
    #[test]
    fn what_was_put_in_the_place_of_a_file_since_it_was_looked_at_is_not_copied() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let fs = MemFs::new(1 << 20, &Caller::default());
        let mut quiet = Quiet;
        let mut putter = Putter::new(&fs, &mut quiet);
        std::fs::write(at("secret"), "secret").unwrap();
        let replace: [(&str, PutThere); 4] = [
            ("link", &|path| symlink("secret", path).unwrap()),
            ("FIFO", &|path| {
                let mode = Mode::RUSR | Mode::WUSR;
                rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            }),
            ("file", &|path| std::fs::rename(at("secret"), path).unwrap()),
            ("directory", &|path| std::fs::create_dir(path).unwrap()),
        ];
        for (what, put_there) in replace {
            let path = at(what);
            std::fs::write(&path, "harmless").unwrap();
            let stat = rustix::fs::lstat(&path).unwrap();
            // It stays, so that its number is nobody else's.
            std::fs::rename(&path, at("old")).unwrap();
            put_there(&path);
            let node = NewNode { kind: Kind::File, perm: 0o600, rdev: 0, target: &[] };
            let ino = fs.create(&Caller::default(), fs.root(), what.as_bytes(), &node).unwrap().ino;
            let why = putter.contents(&path, &stat, ino).unwrap_err().to_string();
            assert!(why.contains("was replaced while it was copied"), "{what}: {why}");
            assert_eq!(fs.getattr(ino).unwrap().size, 0, "{what}");
        }
    }
}
