//! Names: directories, links, making, moving and removing.
//!
//! Removing and moving are on flash when they return, because what they free must not be reused before; making is
//! on flash after a sync, or when the next few objects were made.

use super::Fs;
use super::headers::Move;
use crate::error::{Error, Result};
use crate::header::{ALIAS_MAX, NAME_MAX};
use crate::media::{Nand, Nvram};
use crate::object::{Details, Kind, LOST_FOUND, Object, ROOT, Rest};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A new object.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// What to make: a file, directory, symbolic link or special file.
    pub kind: Kind,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// What a symbolic link points at.
    pub target: &'a [u8],
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// What it stands for.
    pub id: u32,
    /// What that is.
    pub kind: Kind,
    /// The name.
    pub name: &'a [u8],
    /// Pass it to [`Fs::list`] to go on behind this entry.
    pub next: u64,
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// The object that a name stands for.
    pub fn lookup(&mut self, dir: u32, name: &[u8]) -> Result<u32> {
        self.begin([dir])?;
        let entry = self.volume.entry(dir, name)?.ok_or(Error::NotFound)?;
        self.volume.resolve(entry)
    }

    /// The directory that a directory is in; its own of the root.
    pub fn parent(&mut self, dir: u32) -> Result<u32> {
        self.begin([dir])?;
        let object = self.volume.objects.find(dir)?;
        match object.parent {
            _ if dir == ROOT => Ok(ROOT),
            _ if !object.is_named() => Err(Error::NotFound),
            parent => Ok(parent),
        }
    }

    /// Shows the entries behind `from` (0: from the first) until `visit` says `false`.
    pub fn list(&mut self, dir: u32, from: u64, visit: &mut dyn FnMut(Entry) -> bool) -> Result<()> {
        self.begin([dir])?;
        self.volume.load_dir(dir)?;
        let mut after = u32::try_from(from).unwrap_or(u32::MAX);
        loop {
            let child = self.volume.objects.dir(dir)?.entries(after.saturating_add(1)).next();
            let Some(child) = child else { break };
            after = child;
            // An empty place for what a scan found no place for is not worth showing.
            if child == LOST_FOUND && self.is_empty(child)? {
                continue;
            }
            let id = self.volume.resolve(child)?;
            self.volume.show(child)?;
            let objects = &self.volume.objects;
            let kind = objects.find(id)?.kind;
            if !visit(Entry { id, kind, name: objects.name_of(child), next: u64::from(child) }) {
                break;
            }
            if objects.is_bounded() {
                self.begin([dir])?;
                self.volume.load_dir(dir)?;
            }
        }
        Ok(())
    }

    /// Whether nothing is in a directory.
    fn is_empty(&mut self, dir: u32) -> Result<bool> {
        self.volume.load_dir(dir)?;
        Ok(self.volume.objects.dir(dir)?.is_empty())
    }

    /// A number for a new object, and room for its header.
    fn new_id(&mut self) -> Result<u32> {
        self.check_room(2)?;
        self.volume.objects.free_id().ok_or(Error::NoSpace)
    }

    fn check_new_name(&mut self, dir: u32, name: &[u8]) -> Result<()> {
        match name {
            b"" | b"." | b".." => return Err(Error::BadArgument),
            _ if name.len() > NAME_MAX => return Err(Error::NameTooLong),
            _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => return Err(Error::BadArgument),
            _ => {}
        }
        self.volume.objects.living_dir(dir)?;
        if self.volume.entry(dir, name)?.is_some() || dir == ROOT && name == b"lost+found" {
            return Err(Error::Exists);
        }
        Ok(())
    }

    /// Makes an object under a name that is free; its number.
    pub fn create(&mut self, dir: u32, name: &[u8], new: &NewObject) -> Result<u32> {
        self.begin_more([dir])?;
        self.check_new_name(dir, name)?;
        if matches!(new.kind, Kind::Unknown | Kind::HardLink) {
            return Err(Error::BadArgument);
        }
        if new.kind == Kind::Symlink && new.target.len() > ALIAS_MAX {
            return Err(Error::NameTooLong);
        }
        self.flush_idle()?;
        let id = self.new_id()?;
        let now = self.volume.now;
        let mut object = Object::new(new.kind, dir);
        object.size = if new.kind == Kind::Symlink { new.target.len() as u64 } else { 0 };
        let target = if new.kind == Kind::Symlink { new.target } else { &[] };
        object.details = Some(Box::new(Details {
            name: name.into(),
            mode: new.mode,
            uid: new.uid,
            gid: new.gid,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            rdev: new.rdev,
            rest: Some(Rest { alias: target.into(), attributes: Vec::new() }),
        }));
        self.volume.objects.insert(id, object);
        self.volume.add_new(dir, id)?;
        self.volume.touch_contents(dir)?;
        Ok(id)
    }

    /// Gives an object another name.
    pub fn link(&mut self, id: u32, dir: u32, name: &[u8]) -> Result<()> {
        self.begin_more([id, dir])?;
        self.check_new_name(dir, name)?;
        let object = self.volume.objects.find(id)?;
        match object.kind {
            Kind::Dir => return Err(Error::IsDir),
            _ if !object.is_named() => return Err(Error::NotFound),
            _ => {}
        }
        let entry = self.new_id()?;
        let mut link = Object::new(Kind::HardLink, dir);
        link.target = id;
        let now = self.volume.now;
        link.details = Some(Box::new(Details {
            name: name.into(),
            mode: 0o100_000,
            crtime: now,
            ctime: now,
            mtime: now,
            rest: Some(Rest::default()),
            ..Details::default()
        }));
        self.volume.objects.insert(entry, link);
        self.volume.objects.find_mut(id)?.links += 1;
        self.volume.add_new(dir, entry)?;
        self.volume.touch_status(id)?;
        self.volume.touch_contents(dir)
    }

    /// Removes a name of anything but a directory; what it stood for. If that has no other name it is gone, or
    /// with `keep` stays without a name until [`discard`](Fs::discard).
    pub fn unlink(&mut self, dir: u32, name: &[u8], keep: bool) -> Result<u32> {
        self.begin([dir])?;
        let entry = self.volume.entry(dir, name)?.ok_or(Error::NotFound)?;
        let id = self.volume.resolve(entry)?;
        if self.volume.objects.find(id)?.kind == Kind::Dir {
            return Err(Error::IsDir);
        }
        self.drop_entry(dir, entry, keep)?;
        self.volume.touch_contents(dir)?;
        Ok(id)
    }

    /// Removes an empty directory; its number. `keep` is as for [`unlink`](Fs::unlink).
    pub fn rmdir(&mut self, dir: u32, name: &[u8], keep: bool) -> Result<u32> {
        self.begin([dir])?;
        let entry = self.volume.entry(dir, name)?.ok_or(Error::NotFound)?;
        let removed = self.volume.resolve(entry)?;
        if !self.is_empty(removed)? {
            return Err(Error::NotEmpty);
        }
        if entry == LOST_FOUND {
            return Err(Error::BadArgument);
        }
        self.drop_entry(dir, entry, keep)?;
        self.volume.touch_contents(dir)?;
        Ok(entry)
    }

    /// Takes one name away from what it stands for.
    fn drop_entry(&mut self, dir: u32, entry: u32, keep: bool) -> Result<()> {
        self.volume.make_room()?;
        let object = self.volume.objects.find(entry)?;
        if object.links > 0 {
            return self.volume.promote(dir, entry);
        }
        let is_link = object.kind == Kind::HardLink;
        self.volume.load_details(entry, !is_link)?;
        self.volume.objects.remove_entry(dir, entry)?;
        self.end(entry, keep)
    }

    /// What has no entry any more goes, or with `keep` stays without a name.
    fn end(&mut self, id: u32, keep: bool) -> Result<()> {
        match self.volume.objects.find(id)?.kind {
            Kind::HardLink => self.volume.remove_link(id),
            _ if keep => self.volume.keep_unnamed(id),
            _ => self.remove_object(id),
        }
    }

    fn remove_object(&mut self, id: u32) -> Result<()> {
        self.volume.remove_object(id)?;
        self.cache.truncate(id, 0);
        self.reservations.remove(id, 0, u32::MAX);
        Ok(())
    }

    /// Ends the life of an object that was kept without a name.
    pub fn discard(&mut self, id: u32) -> Result<()> {
        self.begin([id])?;
        if self.volume.objects.find(id)?.is_named() {
            return Ok(());
        }
        self.volume.make_room()?;
        match self.volume.objects.get(id) {
            Some(_) => self.remove_object(id),
            None => Ok(()),
        }
    }

    /// Moves a name, in place of what stands there. `keep` says of what is replaced what it says for
    /// [`unlink`](Fs::unlink). The moved object is on flash before what it replaces goes.
    pub fn rename(&mut self, dir: u32, name: &[u8], to: u32, new_name: &[u8], keep: bool) -> Result<()> {
        self.begin([dir, to])?;
        let (entry, old) = self.check_rename(dir, name, to, new_name)?;
        match old {
            Some(old) if self.volume.resolve(old)? == self.volume.resolve(entry)? => return Ok(()),
            Some(old) => self.check_replace(entry, old)?,
            None => {}
        }
        self.volume.make_room()?;
        self.flush_contents(entry)?;
        // What keeps another name takes that one in the same step.
        if let Some(old) = old
            && self.volume.objects.find(old)?.links > 0
        {
            self.volume.replace_linked((entry, dir), (old, to), new_name)?;
            self.volume.touch_contents(dir)?;
            return self.volume.touch_contents(to);
        }
        if let Some(old) = old {
            self.volume.load_details(old, true)?;
            self.volume.objects.remove_entry(to, old)?;
        }
        self.volume.move_entry(entry, dir, to, new_name, old.unwrap_or(0))?;
        if let Some(old) = old {
            self.volume.make_room()?;
            self.end(old, keep)?;
        }
        self.volume.touch_contents(dir)?;
        self.volume.touch_contents(to)
    }

    /// Swaps two names, in one step.
    pub fn exchange(&mut self, dir: u32, name: &[u8], to: u32, new_name: &[u8]) -> Result<()> {
        self.begin([dir, to])?;
        let (entry, old) = self.check_rename(dir, name, to, new_name)?;
        let old = old.ok_or(Error::NotFound)?;
        let is_dir = self.volume.objects.find(old)?.kind == Kind::Dir;
        if old == LOST_FOUND || is_dir && self.volume.is_below(dir, old)? {
            return Err(Error::BadArgument);
        }
        if entry == old {
            return Ok(());
        }
        for id in [entry, old] {
            self.flush_contents(id)?;
        }
        let one = Move { id: entry, to, name: new_name.into(), shadows: 0 };
        let two = Move { id: old, to: dir, name: name.into(), shadows: 0 };
        self.volume.move_together((&one, dir), (&two, to), None)?;
        self.volume.touch_contents(dir)?;
        self.volume.touch_contents(to)
    }

    /// Gets what an entry that is to be moved stands for onto flash: a file, or that which a link leads to. Else a name of what was
    /// synced would lead to what a cut leaves nothing of.
    fn flush_contents(&mut self, entry: u32) -> Result<()> {
        let id = self.volume.resolve(entry)?;
        let is_file = self.volume.objects.find(id)?.kind == Kind::File;
        if is_file || id != entry { self.flush_object(id) } else { Ok(()) }
    }

    /// The entry to move, and what stands where it goes.
    fn check_rename(
        &mut self,
        dir: u32,
        name: &[u8],
        to: u32,
        new_name: &[u8],
    ) -> Result<(u32, Option<u32>)> {
        if new_name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let entry = self.volume.entry(dir, name)?.ok_or(Error::NotFound)?;
        self.volume.objects.living_dir(to)?;
        if matches!(new_name, b"" | b"." | b"..") || entry == LOST_FOUND {
            return Err(Error::BadArgument);
        }
        let old = self.volume.entry(to, new_name)?;
        if self.volume.objects.find(entry)?.kind == Kind::Dir && self.volume.is_below(to, entry)? {
            return Err(Error::BadArgument);
        }
        Ok((entry, old))
    }

    fn check_replace(&mut self, entry: u32, old: u32) -> Result<()> {
        let is_dir = |id: u32| Ok::<bool, Error>(self.volume.objects.find(id)?.kind == Kind::Dir);
        match (is_dir(entry)?, is_dir(old)?) {
            (true, false) => Err(Error::NotDir),
            (false, true) => Err(Error::IsDir),
            (true, true) if !self.is_empty(old)? => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }
}
