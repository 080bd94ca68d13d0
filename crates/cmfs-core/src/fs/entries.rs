//! Entries of directories: loaded, and moved and dropped together with the headers that say so.
//!
//! Each step is one header, or two that name each other, so that a power cut leaves all of it or nothing. Cleaning
//! writes headers as they are in memory: none may happen between a change of a name and its header.

use super::headers::Move;
use super::volume::Volume;
use crate::dir::key;
use crate::error::{Error, Result};
use crate::header::NAME_MAX;
use crate::media::{Nand, Nvram};
use crate::object::{GROUP, Kind, LOST_FOUND, NONE, UNLINKED};
use crate::sorted::Map;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Where objects go whose half of a step of two moves did not get to flash: directory and name.
pub(super) type HalfMoves = Map<u32, (u32, Box<[u8]>)>;

impl<N: Nand, V: Nvram> Volume<N, V> {
    /// Gets all names of a directory into memory.
    pub fn load_names(&mut self, dir: u32) -> Result<()> {
        self.load_dir(dir)?;
        if self.objects.dir(dir)?.has_names() {
            return Ok(());
        }
        let children: Vec<u32> = self.objects.dir(dir)?.entries(0).collect();
        let mut names = Vec::with_capacity(children.len());
        for group in children.chunk_by(|one, two| one / GROUP == two / GROUP) {
            self.load_names_of(group, &mut names)?;
        }
        self.objects.dir_mut(dir)?.load(names.into_iter());
        Ok(())
    }

    /// The keys of the names of some objects of a group. Where memory is bounded, what was not in use goes again.
    fn load_names_of(&mut self, children: &[u32], names: &mut Vec<(u32, u32)>) -> Result<()> {
        let idle: Vec<u32> = children.iter().copied().filter(|child| !self.objects.is_used(*child)).collect();
        if children.iter().any(|child| self.objects.is_stored(*child)) {
            let wanted = |id: u32| children.binary_search(&id).is_ok();
            self.log.memory.bring(&mut self.objects, children[0] / GROUP, wanted)?;
        }
        for child in children {
            self.show(*child)?;
            names.push((key(self.objects.name_of(*child)), *child));
        }
        if self.objects.is_bounded() {
            idle.into_iter().for_each(|child| self.objects.unuse(child));
            self.make_memory();
        }
        Ok(())
    }

    /// Loads an entry's name. A header that cannot be read hides one name, not the directory.
    pub fn show(&mut self, entry: u32) -> Result<()> {
        match self.load_details(entry, false) {
            Ok(()) | Err(Error::Corrupt { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The entry of a name: an object, or the link that stands for one.
    pub fn entry(&mut self, dir: u32, name: &[u8]) -> Result<Option<u32>> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        self.load_names(dir)?;
        for entry in self.objects.dir(dir)?.find(key(name)) {
            self.show(entry)?;
            if self.objects.name_of(entry) == name {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Makes sure that flash knows the directories above an object.
    pub fn ensure_parent(&mut self, id: u32) -> Result<()> {
        let parent = self.objects.find(id)?.parent;
        self.ensure_dir(parent)
    }

    /// Makes sure that flash knows a directory, and those above it.
    pub fn ensure_dir(&mut self, dir: u32) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = dir;
        while at > LOST_FOUND
            && let Some(object) = self.objects.get(at)
            && object.header == NONE
        {
            missing.push(at);
            at = object.parent;
        }
        for dir in missing.into_iter().rev() {
            self.make_room()?;
            self.write_header(dir, false, 0)?;
        }
        Ok(())
    }

    /// Puts an object that has neither header nor contents into a directory.
    pub fn add_new(&mut self, dir: u32, entry: u32) -> Result<()> {
        self.objects.add_entry(dir, entry)?;
        self.touch(entry)
    }

    /// Removes a link that has no entry any more.
    pub fn remove_link(&mut self, link: u32) -> Result<()> {
        let target = self.objects.find(link)?.target;
        self.bring(target)?;
        self.remove_object(link)?;
        let object = self.objects.find_mut(target)?;
        object.links = object.links.saturating_sub(1);
        self.touch_status(target)
    }

    /// An object that has no entry any more stays without a name.
    pub fn keep_unnamed(&mut self, id: u32) -> Result<()> {
        self.touch_status(id)?;
        self.write_header_in(id, UNLINKED, false, 0)
    }

    /// An object that loses its own name takes that of one of its links, whose entry goes.
    pub fn promote(&mut self, dir: u32, id: u32) -> Result<()> {
        let (link, new_dir, name) = self.link_of(id)?;
        self.load_details(id, true)?;
        self.ensure_dir(new_dir)?;
        self.make_room()?;
        self.objects.remove_entry(dir, id)?;
        self.objects.remove_entry(new_dir, link)?;
        self.details(id)?.name = name;
        self.objects.find_mut(id)?.links -= 1;
        self.touch_status(id)?;
        self.objects.add_entry(new_dir, id)?;
        self.write_header_in(id, new_dir, false, link)?;
        self.make_room()?;
        self.remove_object(link)
    }

    /// One of the links that stand for an object, the directory it is in, and its name.
    pub fn link_of(&mut self, id: u32) -> Result<(u32, u32, Box<[u8]>)> {
        let mut found = None;
        self.log.memory.for_each(&self.objects, false, &mut |link, object| {
            let is_one = object.kind == Kind::HardLink && object.target == id && object.is_named();
            found = found.or(is_one.then_some(link));
        })?;
        let gone = Error::Corrupt { what: "object", why: "its links are gone", at: u64::from(id) };
        let link = found.ok_or(gone)?;
        self.load_details(link, false)?;
        let dir = self.objects.find(link)?.parent;
        self.bring(dir)?;
        Ok((link, dir, self.objects.name_of(link).into()))
    }

    /// Moves an entry and writes its header, which names what it replaces.
    pub fn move_entry(&mut self, entry: u32, dir: u32, to: u32, name: &[u8], shadows: u32) -> Result<()> {
        self.load_details(entry, true)?;
        let moved = self.resolve(entry)?;
        self.touch_status(moved)?;
        self.ensure_dir(to)?;
        self.make_room()?;
        self.objects.remove_entry(dir, entry)?;
        self.details(entry)?.name = name.into();
        self.objects.add_entry(to, entry)?;
        self.write_header_in(entry, to, false, shadows)
    }

    /// Moves an entry to where an object stands that has other names: it takes that of one of its links, which goes.
    pub fn replace_linked(&mut self, entry: (u32, u32), old: (u32, u32), name: &[u8]) -> Result<()> {
        let (link, link_dir, link_name) = self.link_of(old.0)?;
        let one = Move { id: entry.0, to: old.1, name: name.into(), shadows: link };
        let two = Move { id: old.0, to: link_dir, name: link_name, shadows: link };
        self.move_together((&one, entry.1), (&two, old.1), Some(link))?;
        self.objects.find_mut(old.0)?.links -= 1;
        self.make_room()?;
        self.remove_object(link)
    }

    /// Moves two entries, each out of a directory, in one step; `gone` is an entry that goes with it.
    pub fn move_together(&mut self, one: (&Move, u32), two: (&Move, u32), gone: Option<u32>) -> Result<()> {
        for (moved, _) in [one, two] {
            self.load_details(moved.id, true)?;
            let stands_for = self.resolve(moved.id)?;
            self.touch_status(stands_for)?;
            self.ensure_dir(moved.to)?;
        }
        // What an earlier mount left is removed before the first page is written, too.
        self.reap()?;
        self.make_room()?;
        self.make_room()?;
        // Two headers go into one block: with the block the NVRAM's idea of where the log goes on would pass the first.
        if !self.log.two_fit() {
            self.rewrite_header(one.0.id)?;
        }
        // Names are found by what they are now.
        for dir in [one.1, two.1, one.0.to, two.0.to] {
            self.objects.dir_mut(dir)?.forget_names();
        }
        self.write_together([one.0, two.0])?;
        for (moved, from) in [one, two] {
            self.objects.remove_entry(from, moved.id)?;
        }
        if let Some(gone) = gone {
            self.objects.remove_entry(two.0.to, gone)?;
        }
        for (moved, _) in [one, two] {
            self.objects.add_entry(moved.to, moved.id)?;
        }
        Ok(())
    }

    /// Finishes steps of two moves of which one got to flash. On media that cannot be written, in memory only.
    pub fn finish_moves(&mut self, moves: HalfMoves) -> Result<()> {
        for (id, (to, name)) in moves {
            self.objects.begin();
            self.make_memory();
            self.bring(id)?;
            self.bring(to)?;
            let is_dir = self.objects.get(to).is_some_and(|dir| dir.kind == Kind::Dir);
            if !is_dir || id <= LOST_FOUND || self.objects.get(id).is_none_or(|o| !o.is_named()) {
                continue;
            }
            match self.finish_move(id, to, name) {
                // Its header cannot be read: it stays where it was.
                Ok(()) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn finish_move(&mut self, id: u32, to: u32, name: Box<[u8]>) -> Result<()> {
        self.load_details(id, true)?;
        let from = self.objects.find(id)?.parent;
        self.bring(from)?;
        if from == to && self.details(id)?.name == name {
            return Ok(());
        }
        self.objects.remove_entry(from, id)?;
        self.details(id)?.name = name;
        match self.make_room().and_then(|()| self.write_header_in(id, to, false, 0)) {
            Ok(()) => {}
            Err(Error::Gone | Error::NoSpace) => {
                self.objects.find_mut(id)?.parent = to;
                self.touch(id)?;
            }
            Err(error) => return Err(error),
        }
        self.objects.add_entry(to, id)
    }
}
