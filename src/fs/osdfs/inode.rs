//! What a file system knows of an object beside its contents and times: the attribute `fs` of the object, and how
//! `stat` shows it.
//!
//! The attribute's value: varints mode (type and permission bits), owner, group, names, device number, and of a
//! directory the object of its parent.

use crate::fs::acl::{self, Acl, Inherited};
use crate::fs::osd::{ObjectId, Stat, Store};
use crate::fs::{Attr, Caller, Kind, NewNode};
use crate::units::Ino;
use crate::{Error, Result};

/// The name of the attribute. Users' names have a dot.
const NAME: &[u8] = b"fs";
/// What space and holes are counted in, bytes.
pub(super) const BLOCK_BYTES: u64 = 4096;
const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    pub kind: Kind,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    /// Of a directory: the one it is in.
    pub parent: u64,
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
        let mode = u64::from(number_of(self.kind)) << 12 | u64::from(self.perm);
        let numbers =
            [mode, self.uid.into(), self.gid.into(), self.nlink.into(), self.rdev.into(), self.parent];
        numbers.into_iter().for_each(|number| put(&mut out, number));
        out
    }

    fn decode(mut bytes: &[u8]) -> Option<Inode> {
        let mut numbers = [0u64; 6];
        for number in &mut numbers {
            *number = take(&mut bytes)?;
        }
        let [mode, uid, gid, nlink, rdev, parent] = numbers;
        Some(Inode {
            kind: kind_of(u8::try_from(mode >> 12).ok()?)?,
            perm: (mode & 0o7777) as u16,
            uid: u32::try_from(uid).ok()?,
            gid: u32::try_from(gid).ok()?,
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

    /// Sets the inode of an object.
    pub fn write(&self, store: &mut Store, object: u64) -> Result<()> {
        store.set_attribute(ObjectId(object), NAME, &self.encode())
    }

    /// What a write by someone without privilege does to set-ID bits.
    pub fn kill_set_id(&mut self) {
        if self.kind != Kind::Dir {
            self.perm &= !S_ISUID;
            if self.perm & GROUP_EXECUTES != 0 {
                self.perm &= !S_ISGID;
            }
        }
    }

    /// What `stat` shows.
    pub fn attr(&self, object: u64, stat: &Stat) -> Attr {
        let device = matches!(self.kind, Kind::CharDevice | Kind::BlockDevice);
        Attr {
            ino: Ino(object),
            generation: 0,
            size: stat.size,
            blocks: stat.stored.div_ceil(BLOCK_BYTES) * (BLOCK_BYTES / 512),
            atime: stat.accessed,
            mtime: stat.modified,
            ctime: stat.changed,
            crtime: stat.created,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: if device { self.rdev } else { 0 },
            blksize: BLOCK_BYTES as u32,
        }
    }
}

/// The attributes of an object that are users'.
pub(super) fn is_users(name: &[u8]) -> bool {
    name != NAME
}

/// Access control lists that a new inode begins with, by name.
pub(super) type Lists = Vec<(&'static [u8], Vec<u8>)>;

/// How a new inode begins, by its directory: set-group-ID and default access control list.
pub(super) fn shape(
    store: &mut Store,
    caller: &Caller,
    (dir, parent): (u64, &Inode),
    new: &NewNode,
) -> Result<(Inode, Lists)> {
    let inherits = parent.perm & S_ISGID != 0;
    let mut lists = Lists::new();
    let mut inode = Inode {
        kind: new.kind,
        perm: new.perm & 0o7777,
        uid: caller.uid,
        gid: if inherits { parent.gid } else { caller.gid },
        nlink: if new.kind == Kind::Dir { 2 } else { 1 },
        rdev: new.rdev,
        parent: if new.kind == Kind::Dir { dir } else { 0 },
    };
    if new.kind != Kind::Symlink {
        match list_of(store, dir, acl::DEFAULT)? {
            None => inode.perm &= !(caller.umask as u16 & 0o777),
            Some(list) => {
                let Inherited { perm, access, default } = list.inherit(new.perm, new.kind == Kind::Dir);
                inode.perm = perm;
                lists.extend(access.map(|list| (acl::ACCESS, list.to_wire())));
                lists.extend(default.map(|list| (acl::DEFAULT, list.to_wire())));
            }
        }
    }
    if inherits && new.kind == Kind::Dir {
        inode.perm |= S_ISGID;
    }
    Ok((inode, lists))
}

fn list_of(store: &mut Store, object: u64, name: &[u8]) -> Result<Option<Acl>> {
    match store.get_attribute(ObjectId(object), name) {
        Ok(value) => Acl::from_wire(&value),
        Err(Error::NoAttribute) => Ok(None),
        Err(why) => Err(why),
    }
}

/// Sets a list, or takes the one away that is there.
pub(super) fn set_list(store: &mut Store, object: u64, name: &[u8], list: Option<&Acl>) -> Result<()> {
    match list {
        Some(list) => store.set_attribute(ObjectId(object), name, &list.to_wire()),
        None => match store.remove_attribute(ObjectId(object), name) {
            Err(Error::NoAttribute) => Ok(()),
            removed => removed,
        },
    }
}

/// Sets permission bits of an inode, and the access list with them.
pub(super) fn chmod(store: &mut Store, object: u64, inode: &mut Inode, perm: u16) -> Result<()> {
    inode.perm = perm & 0o7777;
    match list_of(store, object, acl::ACCESS)? {
        Some(list) => set_list(store, object, acl::ACCESS, Some(&list.with_mode(inode.perm))),
        None => Ok(()),
    }
}

/// Sets an access list, and the mode with it; one that says no more than the mode is not kept.
pub(super) fn set_access(store: &mut Store, object: u64, list: Option<Acl>, kill_sgid: bool) -> Result<()> {
    let mut inode = Inode::read(store, object)?;
    let (perm, kept) = list.map_or((inode.perm, None), |list| list.set_on(inode.perm));
    inode.perm = if kill_sgid { perm & !S_ISGID } else { perm };
    set_list(store, object, acl::ACCESS, kept.as_ref())?;
    inode.write(store, object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_comes_back_and_noise_is_none() {
        let inode = Inode {
            kind: Kind::Socket,
            perm: 0o7654,
            uid: u32::MAX,
            gid: 5,
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
