//! What can be seen of a file system: every name below its root, and fingerprints to compare two of them by.
//!
//! An object's *shape* is its path, kind, permissions, owner, links, extended attributes and the target of a
//! symbolic link; with the bytes of a file it is whole. A tree's fingerprints are the sums of its objects', so that a
//! change of one object changes them in one step. Sums are of 64 bits, contents count by CRC-32C a block.
//!
//! Cost: reading a tree reads all of its bytes once, but for long holes; they are not kept.

use crate::checksum::crc32c;
use crate::fs::{Attr, DirEntry, FileSystem, Kind, Seek};
use crate::units::Ino;
use crate::{Error, Result};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bytes of contents that count together.
pub(super) const BLOCK: usize = 4096;
/// Bytes read at once.
const READ: usize = 1 << 20;
/// Holes of so many bytes are not read: what is said to be one counts as zeros, and what should lie there is missed by its digest.
const LONG_HOLE: u64 = 16 << 20;

/// An object's shape but for its path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// File type as in `st_mode`, and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Number of a device file.
    pub rdev: u32,
    /// Extended attributes: a digest of names and values.
    pub attributes: u64,
    /// Where a symbolic link leads.
    pub target: Vec<u8>,
}

/// Contents of a file, as far as they are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contents {
    /// Size, bytes.
    pub size: u64,
    /// Sum of its blocks' digests; blocks of zeros count nothing.
    pub digest: u64,
}

/// One object.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its number in the file system it was seen in.
    pub ino: Ino,
    /// All but contents.
    pub shape: Shape,
    /// Of a file.
    pub contents: Contents,
}

/// A whole tree.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// By path; the root is the empty one. `/lost+found` is left out.
    pub objects: BTreeMap<Vec<u8>, Seen>,
}

/// Sums over a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Of shapes.
    pub shape: u64,
    /// Of shapes and contents.
    pub whole: u64,
}

fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What a block of a file adds to its digest; the last one may be short.
pub(super) fn block_digest(number: u64, bytes: &[u8]) -> u64 {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    // A block that ends early counts as one with zeros behind, so that a file may grow by a hole.
    if end == 0 { 0 } else { digest((number, crc32c(&bytes[..end]), end)) }
}

impl Fingerprint {
    /// What one object adds.
    pub fn of(path: &[u8], shape: &Shape, contents: Contents) -> Fingerprint {
        let shape = digest((path, shape));
        Fingerprint { shape, whole: digest((shape, contents)) }
    }

    pub(super) fn add(&mut self, other: Fingerprint) {
        self.shape = self.shape.wrapping_add(other.shape);
        self.whole = self.whole.wrapping_add(other.whole);
    }

    pub(super) fn remove(&mut self, other: Fingerprint) {
        self.shape = self.shape.wrapping_sub(other.shape);
        self.whole = self.whole.wrapping_sub(other.whole);
    }
}

impl Snapshot {
    /// Reads all of `fs`.
    pub fn of(fs: &dyn FileSystem) -> Result<Snapshot> {
        Snapshot::read(fs, &mut |_, _, _| {})
    }

    /// Reads all of `fs` and shows the contents: inode, offset and bytes.
    pub fn read(fs: &dyn FileSystem, show: &mut dyn FnMut(Ino, u64, &[u8])) -> Result<Snapshot> {
        let root = fs.root();
        let mut snapshot = Snapshot::default();
        snapshot.insert(fs, Vec::new(), &fs.getattr(root)?, Contents::default())?;
        let mut todo = vec![(root, Vec::new())];
        let mut shown: FxHashSet<Ino> = FxHashSet::default();
        let mut dirs = FxHashSet::from_iter([root]);
        while let Some((dir, path)) = todo.pop() {
            for name in names(fs, dir)? {
                if dir == root && name == b"lost+found" {
                    continue;
                }
                let path = [&path[..], b"/", &name].concat();
                let failed = |why: Error| named(&path, why);
                let attr = fs.lookup(dir, &name).map_err(failed)?;
                let first = shown.insert(attr.ino);
                let contents = contents(fs, &attr, &mut |at, bytes| {
                    if first {
                        show(attr.ino, at, bytes);
                    }
                });
                let done = contents.and_then(|seen| snapshot.insert(fs, path.clone(), &attr, seen));
                fs.forget(attr.ino, 1);
                done.map_err(failed)?;
                if attr.kind == Kind::Dir {
                    if !dirs.insert(attr.ino) {
                        let why = format!(
                            "directory {} is in itself, or in two places: the file system is damaged; `bimetal fsck` repairs it",
                            attr.ino
                        );
                        return Err(named(&path, Error::invalid(why)));
                    }
                    todo.push((attr.ino, path));
                }
            }
        }
        Ok(snapshot)
    }

    fn insert(&mut self, fs: &dyn FileSystem, path: Vec<u8>, attr: &Attr, contents: Contents) -> Result<()> {
        let shape = shape(fs, attr)?;
        self.objects.insert(path, Seen { ino: attr.ino, shape, contents });
        Ok(())
    }

    /// The sums over all objects.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut sum = Fingerprint::default();
        self.objects
            .iter()
            .for_each(|(path, seen)| sum.add(Fingerprint::of(path, &seen.shape, seen.contents)));
        sum
    }
}

/// An error, and the path it is about.
pub(super) fn named(path: &[u8], why: Error) -> Error {
    Error::invalid(format!("{}: {why}", show(path)))
}

/// A path for people.
pub(super) fn show(path: &[u8]) -> String {
    if path.is_empty() { "/".into() } else { path.escape_ascii().to_string() }
}

fn names(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry: DirEntry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    Ok(names)
}

/// The shape of an object.
pub(super) fn shape(fs: &dyn FileSystem, attr: &Attr) -> Result<Shape> {
    let target = if attr.kind == Kind::Symlink { fs.readlink(attr.ino)? } else { Vec::new() };
    Ok(Shape {
        mode: type_bits(attr.kind) | u32::from(attr.perm),
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        rdev: attr.rdev,
        attributes: attributes(fs, attr.ino)?,
        target,
    })
}

fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Dir => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
    }
}

fn attributes(fs: &dyn FileSystem, ino: Ino) -> Result<u64> {
    let mut sum = 0_u64;
    let names = match fs.listxattr(ino) {
        Err(Error::NotSupported) => return Ok(0),
        names => names?,
    };
    for name in names {
        let value = fs.getxattr(ino, &name)?;
        sum = sum.wrapping_add(u64::from(crc32c(&name)) << 32 | u64::from(crc32c(&value)));
    }
    Ok(sum)
}

/// Reads a file to its end.
fn contents(fs: &dyn FileSystem, attr: &Attr, show: &mut dyn FnMut(u64, &[u8])) -> Result<Contents> {
    let mut contents = Contents::default();
    if attr.kind != Kind::File {
        return Ok(contents);
    }
    contents.size = attr.size;
    let mut at = 0;
    while at < attr.size {
        let data = match fs.seek(attr.ino, at, Seek::Data) {
            Err(Error::NoOffset) => attr.size,
            Err(Error::NotSupported) => at,
            found => found?,
        };
        if data.saturating_sub(at) >= LONG_HOLE {
            at = data.min(attr.size) / READ as u64 * READ as u64;
            // The rest of the file is a hole.
            if data >= attr.size {
                break;
            }
        }
        let len = READ.min((attr.size - at) as usize);
        let bytes = fs.read(attr.ino, at, len)?.get()?.concat();
        if bytes.len() != len {
            return Err(Error::invalid(format!("{} bytes instead of {len} at {at}", bytes.len())));
        }
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            let number = at / BLOCK as u64 + index as u64;
            contents.digest = contents.digest.wrapping_add(block_digest(number, block));
        }
        show(at, &bytes);
        at += READ as u64;
    }
    Ok(contents)
}
