//! Images made of a directory: a NAND part and its NVRAM, as they would be had the files been written there.
//!
//! Directories are gone through by name, each before what is in it, and pages that hold zeros only are holes, wherever they
//! are holes on the host. So one directory, seed and epoch give one image, byte for byte. Contents, modes, owners, times,
//! hard and symbolic links, special files and `user.` attributes go along.

use super::mounted::{Memory, Part};
use super::volume::{self, Plan};
use super::{attributes, error};
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use bimetal_vfs::Kind as HostKind;
use cmfs_core::{Fs, Kind, NewObject, ROOT, SetAttr, Time};
use rustc_hash::FxHashMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes read at a time: whole pages of any part.
const PIECE: usize = 1 << 16;
/// Attributes that go along.
const ATTRIBUTES: &[u8] = b"user.";

/// What goes into an image, and how.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The directory that becomes the root.
    pub dir: PathBuf,
    /// What the volume's identity follows from; `None`: it is random.
    pub seed: Option<u64>,
    /// No time in the image is later, seconds since 1970; `None`: times are as they are.
    pub epoch: Option<i64>,
    /// Owner and group of everything; `None`: as on the host.
    pub owner: Option<(u32, u32)>,
}

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Names, the root not counted.
    pub names: u64,
    /// Bytes of files, holes included.
    pub bytes: u64,
    /// Pages of the NAND that hold something, and those that may.
    pub pages: (u64, u64),
    /// Bytes of the NVRAM that hold something, and those there are; 0 without.
    pub nvram: (usize, usize),
}

/// 16 bytes that follow from a seed, as random as its own.
fn identity(seed: u64) -> [u8; 16] {
    let mut state = seed;
    let mut next = || {
        // splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    (u128::from(next()) << 64 | u128::from(next())).to_le_bytes()
}

/// Makes images of a directory. Files get what was made whole; before that they are what they were, or not there.
///
/// # Errors
/// Something of the directory cannot be read, or does not fit; those of [`volume::make`].
pub fn make(plan: &Plan, contents: &Contents) -> Result<Made> {
    let root = std::fs::metadata(&contents.dir).map_err(|why| Error::io(contents.dir.display(), why))?;
    if !root.is_dir() {
        return Err(Error::invalid(format!("{}: not a directory", contents.dir.display())));
    }
    let targets = volume::claim(plan)?;
    if targets.iter().any(|claim| !claim.file().metadata().is_ok_and(|found| found.is_file())) {
        // A device is made where it is.
        drop(targets);
        return fill(plan, contents, &root);
    }
    volume::check_length(plan, &targets[0])?;
    // What a link leads to is replaced, and the link stays.
    let places = targets.iter().map(|claim| Path::new(&claim.name()).canonicalize());
    let places: Vec<PathBuf> = places.collect::<std::io::Result<_>>().map_err(|why| host(&plan.nand, why))?;
    let beside = places.iter().map(|place| guard::beside(place)).collect::<Result<Vec<_>>>()?;
    let mut paths = beside.iter().map(|file| file.path().to_path_buf());
    let nand = paths.next().ok_or(Error::BadArgument)?;
    let made = fill(&Plan { nand, nvram: paths.next(), ..plan.clone() }, contents, &root)?;
    for (file, place) in beside.iter().zip(&places) {
        file.as_file().sync_all().map_err(|why| host(place, why))?;
    }
    guard::take_places(beside.into_iter().zip(places.iter().map(PathBuf::as_path)).collect())?;
    Ok(made)
}

/// Makes the images where the plan says.
fn fill(plan: &Plan, contents: &Contents, root: &Metadata) -> Result<Made> {
    let identity = contents.seed.map_or_else(|| *uuid::Uuid::new_v4().as_bytes(), identity);
    let (fs, _) = volume::format(plan, identity)?;
    let mut image = Image { fs, contents, links: FxHashMap::default(), made: Made::default() };
    image.attributes(ROOT, &contents.dir, root)?;
    image.fill(&contents.dir, ROOT)?;
    image.fs.update().map_err(error)?;
    let pages = (image.fs.used_pages(), image.fs.capacity_pages());
    let nvram = image.fs.nvram_used().unwrap_or((0, 0));
    if image.fs.nvram_overflows() {
        return Err(Error::invalid(format!(
            "--nvram: {} bytes are too little for these files; each mount would scan the NAND. Give more with --nvram-size",
            nvram.1
        )));
    }
    image.fs.close().map_err(error)?;
    Ok(Made { pages, nvram, ..image.made })
}

struct Image<'a> {
    fs: Fs<Part, Memory>,
    contents: &'a Contents,
    /// Objects that have more names on the host, by device and number there.
    links: FxHashMap<(u64, u64), u32>,
    made: Made,
}

/// The error of a path, with what to do about it.
fn at(path: &Path, why: cmfs_core::Error) -> Error {
    match why {
        cmfs_core::Error::NoSpace => Error::invalid(format!(
            "{}: it does not fit the NAND; a larger one is made with --size, or named with --device",
            path.display()
        )),
        other => Error::invalid(format!("{}: {}", path.display(), error(other))),
    }
}

fn host(path: &Path, why: std::io::Error) -> Error {
    Error::io(path.display(), why)
}

/// A device number as the kernel writes it in 32 bits.
fn device_number(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

impl Image<'_> {
    /// What is in a directory, by name.
    fn fill(&mut self, dir: &Path, id: u32) -> Result<()> {
        let entries = std::fs::read_dir(dir).map_err(|why| host(dir, why))?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_vec()));
        let mut names: Vec<Vec<u8>> = names.collect::<std::io::Result<_>>().map_err(|why| host(dir, why))?;
        names.sort_unstable();
        for name in names {
            let path = dir.join(std::ffi::OsStr::from_bytes(&name));
            let meta = path.symlink_metadata().map_err(|why| host(&path, why))?;
            let child = self.entry(&path, id, &name, &meta)?;
            if meta.is_dir() {
                self.fill(&path, child)?;
                // What was made in it changed its times.
                self.times(child, &path, &meta)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, dir: u32, name: &[u8], meta: &Metadata) -> Result<u32> {
        self.made.names += 1;
        let key = (meta.dev(), meta.ino());
        if let Some(id) = self.links.get(&key).copied() {
            self.fs.link(id, dir, name).map_err(|why| at(path, why))?;
            return Ok(id);
        }
        let target = match meta.is_symlink() {
            true => std::fs::read_link(path).map_err(|why| host(path, why))?.into_os_string().into_vec(),
            false => Vec::new(),
        };
        let kind = match meta.file_type() {
            kind if kind.is_dir() => HostKind::Dir,
            kind if kind.is_symlink() => HostKind::Symlink,
            kind if kind.is_fifo() => HostKind::Fifo,
            kind if kind.is_socket() => HostKind::Socket,
            kind if kind.is_block_device() => HostKind::BlockDevice,
            kind if kind.is_char_device() => HostKind::CharDevice,
            _ => HostKind::File,
        };
        let new = NewObject {
            kind: match kind {
                HostKind::Dir => Kind::Dir,
                HostKind::Symlink => Kind::Symlink,
                HostKind::File => Kind::File,
                _ => Kind::Special,
            },
            mode: attributes::type_bits(kind) | meta.mode() & 0o7777,
            uid: 0,
            gid: 0,
            rdev: if kind == HostKind::File { 0 } else { device_number(meta.rdev()) },
            target: &target,
        };
        self.fs.set_now(self.time(meta.mtime(), meta.mtime_nsec()));
        let id = self.fs.create(dir, name, &new).map_err(|why| at(path, why))?;
        if meta.nlink() > 1 && !meta.is_dir() {
            self.links.insert(key, id);
        }
        if kind == HostKind::File {
            self.contents(id, path)?;
        }
        self.attributes(id, path, meta)?;
        Ok(id)
    }

    fn contents(&mut self, id: u32, path: &Path) -> Result<()> {
        let mut file = File::open(path).map_err(|why| host(path, why))?;
        let (mut size, mut piece) = (0, vec![0; PIECE]);
        loop {
            let mut len = 0;
            while len < PIECE {
                match file.read(&mut piece[len..]) {
                    Ok(0) => break,
                    Ok(count) => len += count,
                    Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(why) => return Err(host(path, why)),
                }
            }
            let page = cmfs_core::Nand::geometry(self.fs.nand()).page_bytes as usize;
            for (part, begins) in piece[..len].chunks(page).zip((size..).step_by(page)) {
                if part.iter().any(|byte| *byte != 0) {
                    self.fs.write(id, begins, part).map_err(|why| at(path, why))?;
                }
            }
            size += len as u64;
            if len < PIECE {
                break;
            }
        }
        self.made.bytes += size;
        self.fs.truncate(id, size).map_err(|why| at(path, why))
    }

    /// A time on the host, in the image.
    fn time(&self, sec: i64, nsec: i64) -> Time {
        let time = Time { sec, nsec: nsec as u32 };
        match self.contents.epoch {
            Some(epoch) => time.min(Time { sec: epoch, nsec: 0 }),
            None => time,
        }
    }

    fn attributes(&mut self, id: u32, path: &Path, meta: &Metadata) -> Result<()> {
        for name in attribute_names(path)? {
            let mut value = vec![0; PIECE];
            let read = rustix::fs::lgetxattr(path, name.as_slice(), &mut value[..]);
            value.truncate(read.map_err(|why| host(path, why.into()))?);
            self.fs.set_attribute(id, &name, Some(&value)).map_err(|why| at(path, why))?;
        }
        self.times(id, path, meta)
    }

    fn times(&mut self, id: u32, path: &Path, meta: &Metadata) -> Result<()> {
        let (uid, gid) = self.contents.owner.unwrap_or((meta.uid(), meta.gid()));
        let mtime = self.time(meta.mtime(), meta.mtime_nsec());
        let set = SetAttr {
            perm: Some(meta.mode() & 0o7777),
            uid: Some(uid),
            gid: Some(gid),
            // When it was read last, and when the host changed it, says nothing of the image.
            atime: Some(mtime),
            mtime: Some(mtime),
            ctime: Some(mtime),
        };
        self.fs.set_attr(id, &set).map_err(|why| at(path, why))
    }
}

fn attribute_names(path: &Path) -> Result<Vec<Vec<u8>>> {
    let mut names = vec![0; PIECE];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        // A file system without them.
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(why) => return Err(host(path, why.into())),
    };
    let names = names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(ATTRIBUTES));
    let mut names: Vec<Vec<u8>> = names.map(Vec::from).collect();
    names.sort_unstable();
    Ok(names)
}

/// What `SOURCE_DATE_EPOCH` says, seconds since 1970; `None`: nothing.
///
/// # Errors
/// It is no number.
pub fn source_date_epoch() -> Result<Option<i64>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let number = text.to_str().and_then(|text| text.trim().parse::<i64>().ok());
    number.map(Some).ok_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Error::invalid(format!(
            "SOURCE_DATE_EPOCH is {}, which is no number of seconds since 1970 (now: {now})",
            text.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::Volume;
    use cmfs_core::Layout;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    fn tree(dir: &Path, order: &[usize]) {
        let files: [(&str, Vec<u8>); 4] = [
            ("a/large", (0..300_000u32).map(|at| (at / 7) as u8).collect()),
            ("a/b/small", b"hello".to_vec()),
            ("empty", Vec::new()),
            ("holes", [vec![0; 100_000], vec![7; 5], vec![0; 100_000]].concat()),
        ];
        std::fs::create_dir_all(dir.join("a/b")).unwrap();
        for number in order {
            let (name, bytes) = &files[*number];
            std::fs::write(dir.join(name), bytes).unwrap();
            let file = File::options().write(true).open(dir.join(name)).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::new(1_700_000_000, 5)).unwrap();
        }
        std::fs::hard_link(dir.join("a/b/small"), dir.join("z")).unwrap();
        symlink("a/b/small", dir.join("link")).unwrap();
    }

    fn plan(dir: &Path, name: &str, size: u64) -> Plan {
        Plan {
            nand: dir.join(format!("{name}.nand")),
            nvram: Some(dir.join(format!("{name}.nvram"))),
            device: "slc-2k".into(),
            size_bytes: Some(size),
            nvram_bytes: None,
            layout: Layout::Compact,
            force: false,
        }
    }

    #[test]
    fn an_image_holds_what_the_directory_does_and_is_the_same_whenever_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let mut images = Vec::new();
        for (name, order) in [("one", [0, 1, 2, 3]), ("two", [3, 1, 0, 2])] {
            let from = dir.path().join(name);
            tree(&from, &order);
            let epoch = Some(1_600_000_000);
            let contents = Contents { dir: from, seed: Some(5), epoch, owner: Some((3, 4)) };
            let plan = plan(dir.path(), name, 8 << 20);
            let made = make(&plan, &contents).unwrap();
            assert_eq!((made.names, made.bytes), (8, 300_000 + 5 + 200_005));
            images.push((std::fs::read(&plan.nand).unwrap(), std::fs::read(plan.nvram.unwrap()).unwrap()));
        }
        assert!(images[0] == images[1], "two directories of the same files give one image");

        let plan = plan(dir.path(), "one", 8 << 20);
        let (scan, checkpoint, plain) = (false, None, false);
        let volume = Volume {
            nand: &plan.nand,
            nvram: plan.nvram.as_deref(),
            device: "slc-2k",
            scan,
            checkpoint,
            plain,
        };
        let mut fs = volume.open(false).unwrap();
        assert_eq!(fs.report().kind, cmfs_core::MountKind::Clean);
        assert_eq!(fs.check(true), Ok(Vec::new()));
        let a = fs.lookup(ROOT, b"a").unwrap();
        let large = fs.lookup(a, b"large").unwrap();
        let mut bytes = vec![0; 300_001];
        assert_eq!(fs.read(large, 0, &mut bytes), Ok(300_000));
        assert!(bytes[..300_000] == std::fs::read(dir.path().join("one/a/large")).unwrap());
        let attr = fs.attr(large).unwrap();
        assert_eq!((attr.mtime, attr.uid, attr.gid), (Time { sec: 1_600_000_000, nsec: 0 }, 3, 4));
        let b = fs.lookup(a, b"b").unwrap();
        let small = fs.lookup(b, b"small").unwrap();
        assert_eq!((fs.lookup(ROOT, b"z"), fs.attr(small).unwrap().links), (Ok(small), 2));
        let link = fs.lookup(ROOT, b"link").unwrap();
        assert_eq!(fs.read_link(link), Ok(b"a/b/small".to_vec()));
        let holes = fs.lookup(ROOT, b"holes").unwrap();
        let attr = fs.attr(holes).unwrap();
        assert_eq!((attr.size, attr.pages), (200_005, 1));
    }

    #[test]
    fn what_does_not_fit_is_said_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join("big"), vec![1; 4 << 20]).unwrap();
        let contents = Contents { dir: from, seed: Some(1), epoch: None, owner: None };
        let why = make(&plan(dir.path(), "full", 2 << 20), &contents).unwrap_err().to_string();
        assert!(why.contains("from/big: it does not fit the NAND") && why.contains("--size"), "{why}");
        let none = Contents { dir: dir.path().join("none"), ..contents };
        assert!(make(&plan(dir.path(), "none", 2 << 20), &none).unwrap_err().to_string().contains("none"));
        assert!(!dir.path().join("none.nand").exists(), "nothing is made for a directory that is not there");
    }
}
