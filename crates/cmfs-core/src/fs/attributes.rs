//! Attributes of objects, plain and extended.

use super::Fs;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};
use crate::object::{Kind, LOST_FOUND, Time};
use alloc::vec::Vec;

/// What an object is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Its number.
    pub id: u32,
    /// What it is.
    pub kind: Kind,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of the object.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Bytes of a file, or of what a symbolic link points at.
    pub size: u64,
    /// Pages it takes.
    pub pages: u64,
    /// Device number.
    pub rdev: u32,
    /// How many names it has.
    pub links: u32,
}

/// What to change; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (the type stays).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of contents.
    pub mtime: Option<Time>,
    /// Last change of the object; otherwise it is now.
    pub ctime: Option<Time>,
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// What an object is like.
    pub fn attr(&mut self, id: u32) -> Result<Attr> {
        self.begin([id])?;
        self.volume.ensure_size(id)?;
        if self.volume.objects.find(id)?.kind == Kind::Dir {
            self.volume.load_dir(id)?;
        }
        if self.volume.objects.find(id)?.kind == Kind::Symlink && self.volume.objects.find(id)?.size == 0 {
            let size = match self.volume.rest(id) {
                Ok(rest) => rest.alias.len() as u64,
                Err(Error::Corrupt { .. }) => 0,
                Err(error) => return Err(error),
            };
            self.volume.objects.find_mut(id)?.size = size;
        }
        let pages = self.pages_taken(id)?;
        self.volume.load_details(id, false)?;
        let object = self.volume.objects.find(id)?;
        let details = object.details.as_deref().ok_or(Error::Stale)?;
        let links = match object.kind {
            Kind::Dir if !object.is_named() => 0,
            Kind::Dir => 2 + object.dir.as_ref().map_or(0, |dir| dir.subdirs()),
            _ => u32::from(object.is_named()) + object.links,
        };
        Ok(Attr {
            id,
            kind: object.kind,
            mode: details.mode,
            uid: details.uid,
            gid: details.gid,
            atime: details.atime,
            mtime: details.mtime,
            ctime: details.ctime,
            crtime: details.crtime,
            size: object.size,
            pages,
            rdev: details.rdev,
            links,
        })
    }

    /// Changes attributes.
    pub fn set_attr(&mut self, id: u32, set: &SetAttr) -> Result<()> {
        self.begin_more([id])?;
        let now = self.volume.now;
        self.volume.details(id)?;
        self.volume.ensure_whole(id)?;
        let details = self.volume.details(id)?;
        details.mode = set.perm.map_or(details.mode, |perm| details.mode & !0o7777 | perm & 0o7777);
        details.uid = set.uid.unwrap_or(details.uid);
        details.gid = set.gid.unwrap_or(details.gid);
        details.atime = set.atime.unwrap_or(details.atime);
        details.mtime = set.mtime.unwrap_or(details.mtime);
        details.ctime = set.ctime.unwrap_or(now);
        self.volume.touch(id)
    }

    /// What a symbolic link points at.
    pub fn read_link(&mut self, id: u32) -> Result<Vec<u8>> {
        self.begin([id])?;
        if self.volume.objects.find(id)?.kind != Kind::Symlink {
            return Err(Error::BadArgument);
        }
        Ok(self.volume.rest(id)?.alias.to_vec())
    }

    /// The value of an extended attribute.
    pub fn attribute(&mut self, id: u32, name: &[u8]) -> Result<Vec<u8>> {
        self.begin([id])?;
        let found = self.volume.rest(id)?.attributes.iter().find(|(other, _)| **other == *name);
        found.map(|(_, value)| value.to_vec()).ok_or(Error::NoAttribute)
    }

    /// The names of all extended attributes.
    pub fn attributes(&mut self, id: u32) -> Result<Vec<Vec<u8>>> {
        self.begin([id])?;
        Ok(self.volume.rest(id)?.attributes.iter().map(|(name, _)| name.to_vec()).collect())
    }

    /// Sets an extended attribute, or with `None` removes it. All of an object's must fit its header page.
    pub fn set_attribute(&mut self, id: u32, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        if name.is_empty() || name.contains(&0) || id == LOST_FOUND {
            return Err(Error::BadArgument);
        }
        if value.is_some() {
            self.begin_more([id])?
        } else {
            self.begin([id])?
        }
        let room = (self.volume.page_bytes() as usize).saturating_sub(crate::header::HEADER_BYTES + 96);
        let rest = self.volume.rest(id)?;
        let there = rest.attributes.iter().position(|(other, _)| **other == *name);
        let Some(value) = value else {
            let at = there.ok_or(Error::NoAttribute)?;
            rest.attributes.remove(at);
            return self.volume.touch_status(id);
        };
        let others = rest.attributes.iter().filter(|(other, _)| **other != *name);
        let taken: usize = others.map(|(name, value)| 5 + name.len() + value.len()).sum();
        if taken + 5 + name.len() + value.len() > room {
            return Err(Error::AttributesFull);
        }
        match there {
            Some(at) => rest.attributes[at].1 = value.into(),
            None => rest.attributes.push((name.into(), value.into())),
        }
        self.volume.touch_status(id)
    }
}
