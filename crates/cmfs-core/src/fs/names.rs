//! Names: directories, links, making, moving and removing.
//!
//! Removing and moving are on flash when they return, because what they free must not be reused before; making is
//! on flash after a sync, or when the next few objects were made. Each is one header, or two that name each other,
//! so that a power cut leaves all of it or nothing.

use super::Fs;
use super::log::Move;
use crate::error::{Error, Result};
use crate::header::{ALIAS_MAX, NAME_MAX};
use crate::media::{Nand, Nvram};
use crate::object::{Details, Dir, Kind, LOST_FOUND, NONE, Object, ROOT, Rest, UNLINKED};
use alloc::boxed::Box;
use alloc::vec::Vec;
use hashbrown::HashTable;

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

/// FNV-1a.
fn hash(name: &[u8]) -> u64 {
    name.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    fn dir(&self, id: u32) -> Result<&Dir> {
        self.object(id)?.dir.as_deref().ok_or(Error::NotDir)
    }

    fn dir_mut(&mut self, id: u32) -> Result<&mut Dir> {
        self.object_mut(id)?.dir.as_deref_mut().ok_or(Error::NotDir)
    }

    fn name_of(&self, id: u32) -> &[u8] {
        self.objects.get(id).and_then(|o| o.details.as_deref()).map_or(&[], |details| &details.name)
    }

    /// Gets all names of a directory into memory.
    fn load_names(&mut self, dir: u32) -> Result<()> {
        if self.dir(dir)?.names.is_some() {
            return Ok(());
        }
        let children: Vec<u32> = self.dir(dir)?.children.iter().copied().collect();
        let mut names = HashTable::with_capacity(children.len());
        for child in children {
            // A header that cannot be read hides one name, not the directory.
            match self.load_details(child, false) {
                Ok(()) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
            let own = hash(self.name_of(child));
            names.insert_unique(own, child, |other| hash(self.name_of(*other)));
        }
        self.dir_mut(dir)?.names = Some(names);
        Ok(())
    }

    /// The entry of a name: an object, or the link that stands for one.
    fn entry(&mut self, dir: u32, name: &[u8]) -> Result<Option<u32>> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        self.load_names(dir)?;
        let names = self.dir(dir)?.names.as_ref();
        Ok(names.and_then(|names| names.find(hash(name), |id| self.name_of(*id) == name)).copied())
    }

    /// What an entry stands for.
    fn resolve(&self, entry: u32) -> Result<u32> {
        let object = self.object(entry)?;
        Ok(if object.kind == Kind::HardLink { object.target } else { entry })
    }

    /// The object that a name stands for.
    pub fn lookup(&mut self, dir: u32, name: &[u8]) -> Result<u32> {
        let entry = self.entry(dir, name)?.ok_or(Error::NotFound)?;
        self.resolve(entry)
    }

    /// The directory that a directory is in; its own of the root.
    pub fn parent(&self, dir: u32) -> Result<u32> {
        let object = self.object(dir)?;
        match object.parent {
            _ if dir == ROOT => Ok(ROOT),
            _ if !object.is_named() => Err(Error::NotFound),
            parent => Ok(parent),
        }
    }

    /// Shows the entries behind `from` (0: from the first) until `visit` says `false`.
    pub fn list(&mut self, dir: u32, from: u64, visit: &mut dyn FnMut(Entry) -> bool) -> Result<()> {
        self.load_names(dir)?;
        let after = u32::try_from(from).unwrap_or(u32::MAX);
        for &child in self.dir(dir)?.children.range(after.saturating_add(1)..) {
            let id = self.resolve(child)?;
            let kind = self.object(id)?.kind;
            // An empty place for what a scan found no place for is not worth showing.
            if child == LOST_FOUND && self.dir(child)?.children.is_empty() {
                continue;
            }
            if !visit(Entry { id, kind, name: self.name_of(child), next: u64::from(child) }) {
                break;
            }
        }
        Ok(())
    }

    /// A directory that takes new names.
    fn living_dir(&self, id: u32) -> Result<()> {
        self.dir(id)?;
        if id != ROOT && !self.object(id)?.is_named() {
            return Err(Error::NotFound);
        }
        Ok(())
    }

    pub(super) fn add_entry(&mut self, dir: u32, entry: u32) -> Result<()> {
        let is_dir = self.object(entry)?.kind == Kind::Dir;
        let mut names = self.dir_mut(dir)?.names.take();
        if let Some(names) = &mut names {
            names.insert_unique(hash(self.name_of(entry)), entry, |other| hash(self.name_of(*other)));
        }
        let dir = self.dir_mut(dir)?;
        dir.names = names;
        dir.children.insert(entry);
        dir.subdirs += u32::from(is_dir);
        Ok(())
    }

    pub(super) fn remove_entry(&mut self, dir: u32, entry: u32) -> Result<()> {
        let is_dir = self.object(entry)?.kind == Kind::Dir;
        let key = hash(self.name_of(entry));
        let dir = self.dir_mut(dir)?;
        if let Some(names) = &mut dir.names
            && let Ok(found) = names.find_entry(key, |other| *other == entry)
        {
            found.remove();
        }
        dir.children.remove(&entry);
        dir.subdirs = dir.subdirs.saturating_sub(u32::from(is_dir));
        Ok(())
    }

    /// A directory's contents changed.
    fn touch_dir(&mut self, dir: u32) -> Result<()> {
        let now = self.now;
        let details = self.details(dir)?;
        (details.mtime, details.ctime) = (now, now);
        self.touch(dir)
    }

    fn touch_status(&mut self, id: u32) -> Result<()> {
        let now = self.now;
        self.details(id)?.ctime = now;
        self.touch(id)
    }

    /// A number for a new object, and room for its header.
    fn new_id(&mut self) -> Result<u32> {
        self.check_room(2)?;
        self.objects.free_id().ok_or(Error::NoSpace)
    }

    fn check_new_name(&mut self, dir: u32, name: &[u8]) -> Result<()> {
        match name {
            b"" | b"." | b".." => return Err(Error::BadArgument),
            _ if name.len() > NAME_MAX => return Err(Error::NameTooLong),
            _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => return Err(Error::BadArgument),
            _ => {}
        }
        self.living_dir(dir)?;
        if self.entry(dir, name)?.is_some() || dir == ROOT && name == b"lost+found" {
            return Err(Error::Exists);
        }
        Ok(())
    }

    /// Makes an object under a name that is free; its number.
    pub fn create(&mut self, dir: u32, name: &[u8], new: &NewObject) -> Result<u32> {
        self.check_new_name(dir, name)?;
        if matches!(new.kind, Kind::Unknown | Kind::HardLink) {
            return Err(Error::BadArgument);
        }
        if new.kind == Kind::Symlink && new.target.len() > ALIAS_MAX {
            return Err(Error::NameTooLong);
        }
        self.flush_idle()?;
        let id = self.new_id()?;
        let now = self.now;
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
        self.objects.insert(id, object);
        self.add_entry(dir, id)?;
        self.touch(id)?;
        self.touch_dir(dir)?;
        Ok(id)
    }

    /// Gives an object another name.
    pub fn link(&mut self, id: u32, dir: u32, name: &[u8]) -> Result<()> {
        self.check_new_name(dir, name)?;
        let object = self.object(id)?;
        match object.kind {
            Kind::Dir => return Err(Error::IsDir),
            _ if !object.is_named() => return Err(Error::NotFound),
            _ => {}
        }
        let entry = self.new_id()?;
        let mut link = Object::new(Kind::HardLink, dir);
        link.target = id;
        let now = self.now;
        link.details = Some(Box::new(Details {
            name: name.into(),
            mode: 0o100_000,
            crtime: now,
            ctime: now,
            mtime: now,
            rest: Some(Rest::default()),
            ..Details::default()
        }));
        self.objects.insert(entry, link);
        self.object_mut(id)?.links += 1;
        self.add_entry(dir, entry)?;
        self.touch(entry)?;
        self.touch_status(id)?;
        self.touch_dir(dir)
    }

    /// Removes a name of anything but a directory; what it stood for. If that has no other name it is gone, or
    /// with `keep` stays without a name until [`discard`](Fs::discard).
    pub fn unlink(&mut self, dir: u32, name: &[u8], keep: bool) -> Result<u32> {
        let entry = self.entry(dir, name)?.ok_or(Error::NotFound)?;
        let id = self.resolve(entry)?;
        if self.object(id)?.kind == Kind::Dir {
            return Err(Error::IsDir);
        }
        self.drop_entry(dir, entry, keep)?;
        self.touch_dir(dir)?;
        Ok(id)
    }

    /// Removes an empty directory; its number. `keep` is as for [`unlink`](Fs::unlink).
    pub fn rmdir(&mut self, dir: u32, name: &[u8], keep: bool) -> Result<u32> {
        let entry = self.entry(dir, name)?.ok_or(Error::NotFound)?;
        if !self.dir(self.resolve(entry)?)?.children.is_empty() {
            return Err(Error::NotEmpty);
        }
        if entry == LOST_FOUND {
            return Err(Error::BadArgument);
        }
        self.drop_entry(dir, entry, keep)?;
        self.touch_dir(dir)?;
        Ok(entry)
    }

    /// Takes one name away from what it stands for.
    fn drop_entry(&mut self, dir: u32, entry: u32, keep: bool) -> Result<()> {
        self.make_room()?;
        let object = self.object(entry)?;
        if object.kind == Kind::HardLink {
            return self.drop_link(dir, entry);
        }
        if object.links > 0 {
            return self.promote(dir, entry);
        }
        self.load_details(entry, true)?;
        self.remove_entry(dir, entry)?;
        if keep {
            self.touch_status(entry)?;
            return self.write_header_in(entry, UNLINKED, false, 0);
        }
        self.remove_object(entry)
    }

    fn drop_link(&mut self, dir: u32, entry: u32) -> Result<()> {
        let target = self.object(entry)?.target;
        self.remove_entry(dir, entry)?;
        self.remove_object(entry)?;
        let object = self.object_mut(target)?;
        object.links = object.links.saturating_sub(1);
        self.touch_status(target)
    }

    /// An object that loses its own name takes that of one of its links, whose entry goes.
    fn promote(&mut self, dir: u32, id: u32) -> Result<()> {
        let (link, new_dir, name) = self.link_of(id)?;
        self.load_details(id, true)?;
        self.ensure_dir(new_dir)?;
        self.make_room()?;
        self.remove_entry(dir, id)?;
        self.remove_entry(new_dir, link)?;
        self.details(id)?.name = name;
        self.object_mut(id)?.links -= 1;
        self.touch_status(id)?;
        self.add_entry(new_dir, id)?;
        self.write_header_in(id, new_dir, false, link)?;
        self.make_room()?;
        self.remove_object(link)
    }

    /// Removes an object that has no entry any more: first on flash, then in memory.
    fn remove_object(&mut self, id: u32) -> Result<()> {
        let object = self.object(id)?;
        if object.header != NONE || object.map.count() > 0 {
            self.write_deletion(id)?;
        }
        self.forget_object(id);
        Ok(())
    }

    /// Drops an object from memory; its pages are dead.
    pub(super) fn forget_object(&mut self, id: u32) {
        self.cache.truncate(id, 0);
        self.dirty.remove(&id);
        self.reserving.remove(&id);
        let Some(object) = self.objects.remove(id) else { return };
        self.release(object.header);
        object.map.iter().for_each(|(_, page)| self.release(page));
        if let Some(store) = &mut self.store {
            store.note_segments_from(id, 0);
            store.note_object(id);
        }
    }

    /// Ends the life of an object that was kept without a name.
    pub fn discard(&mut self, id: u32) -> Result<()> {
        if self.object(id)?.is_named() {
            return Ok(());
        }
        self.make_room()?;
        match self.objects.get(id) {
            Some(_) => self.remove_object(id),
            None => Ok(()),
        }
    }

    /// Ends the life of what an earlier mount kept without a name, or replaced without saying so any more: before
    /// anything else is written, so that flash never says less of it than now.
    pub(super) fn reap(&mut self) -> Result<()> {
        let mut left = core::mem::take(&mut self.report.to_reap);
        while let Some(id) = left.pop() {
            if self.objects.get(id).is_none_or(Object::is_named) {
                continue;
            }
            let done = match self.remove_object(id) {
                // Cleaning, which would write other things first, is for a part without any room.
                Err(Error::NoSpace) => self.make_room().and_then(|()| self.remove_object(id)),
                done => done,
            };
            if let Err(error) = done {
                left.push(id);
                self.report.to_reap = left;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Moves a name, in place of what stands there. `keep` says of what is replaced what it says for
    /// [`unlink`](Fs::unlink). The moved object is on flash before what it replaces goes.
    pub fn rename(&mut self, dir: u32, name: &[u8], to: u32, new_name: &[u8], keep: bool) -> Result<()> {
        let (entry, old) = self.check_rename(dir, name, to, new_name)?;
        match old {
            Some(old) if self.resolve(old)? == self.resolve(entry)? => return Ok(()),
            Some(old) => self.check_replace(entry, old)?,
            None => {}
        }
        self.make_room()?;
        if self.object(entry)?.kind == Kind::File {
            self.flush_object(entry)?;
        }
        // What keeps another name takes that one in the same step.
        if let Some(old) = old
            && self.object(old)?.links > 0
        {
            self.replace_linked((entry, dir), (old, to), new_name)?;
            self.touch_dir(dir)?;
            return self.touch_dir(to);
        }
        if let Some(old) = old {
            self.load_details(old, true)?;
            self.remove_entry(to, old)?;
        }
        self.move_entry(entry, dir, to, new_name, old.unwrap_or(0))?;
        if let Some(old) = old {
            self.drop_replaced(old, keep)?;
        }
        self.touch_dir(dir)?;
        self.touch_dir(to)
    }

    fn drop_replaced(&mut self, old: u32, keep: bool) -> Result<()> {
        self.make_room()?;
        let object = self.object(old)?;
        if object.kind == Kind::HardLink {
            let target = object.target;
            self.remove_object(old)?;
            let object = self.object_mut(target)?;
            object.links = object.links.saturating_sub(1);
            return self.touch_status(target);
        }
        if keep {
            self.touch_status(old)?;
            return self.write_header_in(old, UNLINKED, false, 0);
        }
        self.remove_object(old)
    }

    /// Moves an entry to where an object stands that has other names: it takes that of one of its links, which goes.
    fn replace_linked(&mut self, entry: (u32, u32), old: (u32, u32), new_name: &[u8]) -> Result<()> {
        let (link, link_dir, link_name) = self.link_of(old.0)?;
        let one = Move { id: entry.0, to: old.1, name: new_name.into(), shadows: link };
        let two = Move { id: old.0, to: link_dir, name: link_name, shadows: link };
        self.move_together((&one, entry.1), (&two, old.1), Some(link))?;
        self.object_mut(old.0)?.links -= 1;
        self.make_room()?;
        self.remove_object(link)
    }

    /// One of the links that stand for an object, the directory it is in, and its name.
    fn link_of(&mut self, id: u32) -> Result<(u32, u32, Box<[u8]>)> {
        let is_link =
            |object: &Object| object.kind == Kind::HardLink && object.target == id && object.is_named();
        let link = self.objects.iter().find(|(_, object)| is_link(object)).map(|(link, _)| link);
        let link =
            link.ok_or(Error::Corrupt { what: "object", why: "its links are gone", at: u64::from(id) })?;
        self.load_details(link, false)?;
        Ok((link, self.object(link)?.parent, self.name_of(link).into()))
    }

    /// Swaps two names, in one step.
    pub fn exchange(&mut self, dir: u32, name: &[u8], to: u32, new_name: &[u8]) -> Result<()> {
        let (entry, old) = self.check_rename(dir, name, to, new_name)?;
        let old = old.ok_or(Error::NotFound)?;
        if old == LOST_FOUND || self.object(old)?.kind == Kind::Dir && self.is_below(dir, old) {
            return Err(Error::BadArgument);
        }
        if entry == old {
            return Ok(());
        }
        for id in [entry, old] {
            if self.object(id)?.kind == Kind::File {
                self.flush_object(id)?;
            }
        }
        let one = Move { id: entry, to, name: new_name.into(), shadows: 0 };
        let two = Move { id: old, to: dir, name: name.into(), shadows: 0 };
        self.move_together((&one, dir), (&two, to), None)?;
        self.touch_dir(dir)?;
        self.touch_dir(to)
    }

    /// Moves two entries, each out of a directory, in one step; `gone` is an entry that goes with it.
    fn move_together(&mut self, one: (&Move, u32), two: (&Move, u32), gone: Option<u32>) -> Result<()> {
        for (moved, _) in [one, two] {
            self.load_details(moved.id, true)?;
            let stands_for = self.resolve(moved.id)?;
            self.touch_status(stands_for)?;
            self.ensure_dir(moved.to)?;
        }
        // Cleaning writes headers as they are in memory, and what an earlier mount left is removed before the first page is
        // written: none may happen between the two.
        self.reap()?;
        self.make_room()?;
        self.make_room()?;
        self.keep_together(one.0.id)?;
        // Names are found by what they are now.
        self.forget_names([one.1, two.1, one.0.to, two.0.to])?;
        self.write_together([one.0, two.0])?;
        for (moved, from) in [one, two] {
            self.remove_entry(from, moved.id)?;
        }
        if let Some(gone) = gone {
            self.remove_entry(two.0.to, gone)?;
        }
        for (moved, _) in [one, two] {
            self.add_entry(moved.to, moved.id)?;
        }
        Ok(())
    }

    /// Two headers go into one block: with the block the NVRAM's idea of where the log goes on would pass the first.
    fn keep_together(&mut self, id: u32) -> Result<()> {
        match &self.open {
            Some(open) if open.next + 2 > self.blocks.usable => self.rewrite_header(id),
            _ => Ok(()),
        }
    }

    /// Names of these directories are to be loaded again when they are asked for.
    fn forget_names(&mut self, dirs: [u32; 4]) -> Result<()> {
        dirs.into_iter().try_for_each(|dir| {
            self.dir_mut(dir)?.names = None;
            Ok(())
        })
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
        let entry = self.entry(dir, name)?.ok_or(Error::NotFound)?;
        self.living_dir(to)?;
        if matches!(new_name, b"" | b"." | b"..") || entry == LOST_FOUND {
            return Err(Error::BadArgument);
        }
        let old = self.entry(to, new_name)?;
        if self.object(entry)?.kind == Kind::Dir && self.is_below(to, entry) {
            return Err(Error::BadArgument);
        }
        Ok((entry, old))
    }

    fn check_replace(&self, entry: u32, old: u32) -> Result<()> {
        let is_dir = |id: u32| Ok::<bool, Error>(self.object(id)?.kind == Kind::Dir);
        match (is_dir(entry)?, is_dir(old)?) {
            (true, false) => Err(Error::NotDir),
            (false, true) => Err(Error::IsDir),
            (true, true) if !self.dir(old)?.children.is_empty() => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    fn is_below(&self, mut dir: u32, ancestor: u32) -> bool {
        // No chain is longer than there are objects.
        for _ in 0..=self.objects.count() {
            if dir == ancestor {
                return true;
            }
            match self.objects.get(dir) {
                Some(object) if dir != ROOT => dir = object.parent,
                _ => return false,
            }
        }
        false
    }

    /// Moves an entry and writes its header, which names what it replaces.
    fn move_entry(&mut self, entry: u32, dir: u32, to: u32, new_name: &[u8], shadows: u32) -> Result<()> {
        self.load_details(entry, true)?;
        let moved = self.resolve(entry)?;
        self.touch_status(moved)?;
        self.ensure_dir(to)?;
        // Cleaning writes headers as they are in memory: none may happen between name and header.
        self.make_room()?;
        self.remove_entry(dir, entry)?;
        self.details(entry)?.name = new_name.into();
        self.add_entry(to, entry)?;
        self.write_header_in(entry, to, false, shadows)
    }
}
