//! What a file system knows of an object beside its contents and times: the attribute `fs` of the object, and how
//! `stat` shows it.
//!
//! The attribute's value: varints mode (type and permission bits), owner, group, names, device number, and of a
//! directory the object of its parent.

use super::{ROOT, salvage};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_osd_core::{ObjectId, Stat, Store};
use bimetal_vfs::adapter::Mode;
use bimetal_vfs::{Attr, Kind};

/// The name of the attribute. Users' names have a dot.
const NAME: &[u8] = b"fs";
/// What space and holes are counted in, bytes.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    pub mode: Mode,
    pub nlink: u32,
    pub rdev: u32,
    /// Of a directory: the one it is in.
    pub parent: u64,
}

/// What an object can lack of its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// It has none, or one that makes no sense.
    Inode,
    /// Nothing of its attributes can be read.
    Attributes,
}

const KINDS: [Kind; 7] =
    [Kind::Fifo, Kind::CharDevice, Kind::Dir, Kind::BlockDevice, Kind::File, Kind::Symlink, Kind::Socket];

/// The number of a kind in directories.
pub(super) fn number_of(kind: Kind) -> u8 {
    KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u8
}

pub(super) fn kind_of(number: u8) -> Option<Kind> {
    KINDS.get(usize::from(number)).copied()
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

impl Inode {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        let Mode { kind, perm, uid, gid } = self.mode;
        let mode = u64::from(number_of(kind)) << 12 | u64::from(perm);
        let numbers = [mode, uid.into(), gid.into(), self.nlink.into(), self.rdev.into(), self.parent];
        numbers.into_iter().for_each(|number| put(&mut out, number));
        out
    }

    fn decode(mut bytes: &[u8]) -> Option<Inode> {
        let mut numbers = [0u64; 6];
        for number in &mut numbers {
            *number = take(&mut bytes)?;
        }
        let [mode, uid, gid, nlink, rdev, parent] = numbers;
        let kind = kind_of(u8::try_from(mode >> 12).ok()?)?;
        let (uid, gid) = (u32::try_from(uid).ok()?, u32::try_from(gid).ok()?);
        Some(Inode {
            mode: Mode { kind, perm: (mode & 0o7777) as u16, uid, gid },
            nlink: u32::try_from(nlink).ok()?,
            rdev: u32::try_from(rdev).ok()?,
            parent,
        })
    }

    /// The inode of an object.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such object; [`Error::Corrupt`] if it is none of a file system's.
    pub fn read(store: &mut Store, object: u64) -> Result<Inode> {
        let corrupt = |why: &str| Error::corrupt("an inode", why, format!("object {object}"));
        let bytes = store.get_attribute(ObjectId(object), NAME).map_err(|why| match why {
            Error::NotFound => Error::Stale,
            Error::NoAttribute => corrupt("the object is not of a file system"),
            why => why,
        })?;
        Inode::decode(&bytes).ok_or_else(|| corrupt("its attribute makes no sense"))
    }

    /// What an object that is there lacks of its inode; of one that the index does not lead to any more nobody can tell.
    ///
    /// # Errors
    /// Those of the store, but for what cannot be read.
    pub fn lack(store: &mut Store, object: u64) -> Result<Option<Lack>> {
        match store.get_attribute(ObjectId(object), NAME) {
            Ok(bytes) => Ok(Inode::decode(&bytes).is_none().then_some(Lack::Inode)),
            Err(Error::NoAttribute) => Ok(Some(Lack::Inode)),
            Err(Error::NotFound) => Ok(None),
            Err(Error::Corrupt { .. }) => {
                Ok(store.stat(ObjectId(object)).is_ok().then_some(Lack::Attributes))
            }
            Err(why) => Err(why),
        }
    }

    /// Whether an attribute's value is the inode of a root directory.
    pub fn is_of_a_root(value: &[u8]) -> bool {
        Inode::decode(value).is_some_and(|inode| inode.mode.kind == Kind::Dir && inode.parent == ROOT)
    }

    /// Sets the inode of an object, in the place of attributes that cannot be read.
    pub fn give(&self, store: &mut Store, object: u64) -> Result<()> {
        match self.write(store, object) {
            Err(Error::Corrupt { .. }) => {
                store.drop_attributes(ObjectId(object))?;
                self.write(store, object)
            }
            given => given,
        }
    }

    /// Sets the inode of an object.
    pub fn write(&self, store: &mut Store, object: u64) -> Result<()> {
        store.set_attribute(ObjectId(object), NAME, &self.encode())
    }

    /// What `stat` shows.
    pub fn attr(&self, object: u64, stat: &Stat) -> Attr {
        let device = matches!(self.mode.kind, Kind::CharDevice | Kind::BlockDevice);
        Attr {
            ino: Ino(object),
            generation: 0,
            size: stat.size,
            blocks: stat.stored.div_ceil(BLOCK_BYTES) * (BLOCK_BYTES / 512),
            atime: stat.accessed,
            mtime: stat.modified,
            ctime: stat.changed,
            crtime: stat.created,
            kind: self.mode.kind,
            perm: self.mode.perm,
            nlink: self.nlink,
            uid: self.mode.uid,
            gid: self.mode.gid,
            rdev: if device { self.rdev } else { 0 },
            blksize: BLOCK_BYTES as u32,
        }
    }
}

/// Whether there is a file system on a store, or was before a part of the index was lost. Nothing on the flash says it outright;
/// what does is the first of these that there is:
///
/// 1. an object with an inode;
/// 2. a page of the index or the log, of whatever time, with the inode of the root directory;
/// 3. contents of the objects of the root and of what has no name that are those of such directories (`salvage`).
///
/// # Errors
/// Those of the store, but for what cannot be read.
pub(super) fn has_files(store: &mut Store) -> Result<bool> {
    for id in store.readable_objects()? {
        if Inode::read(store, id.0).is_ok() {
            return Ok(true);
        }
    }
    let mut was_root = false;
    store.past_attributes(ObjectId(ROOT), NAME, &mut |value| {
        was_root = Inode::is_of_a_root(value);
        !was_root
    })?;
    Ok(was_root || salvage::are_those_of_a_file_system(store)?)
}

/// The attributes of an object that are users'.
pub(super) fn is_users(name: &[u8]) -> bool {
    name != NAME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_comes_back_and_noise_is_none() {
        let inode = Inode {
            mode: Mode { kind: Kind::Socket, perm: 0o7654, uid: u32::MAX, gid: 5 },
            nlink: 3,
            rdev: 77,
            parent: u64::MAX,
        };
        let bytes = inode.encode();
        assert_eq!(Inode::decode(&bytes), Some(inode));
        for len in 0..bytes.len() {
            assert_eq!(Inode::decode(&bytes[..len]), None);
        }
        assert_eq!(Inode::decode(&[0xff; 80]), None);
    }
}
