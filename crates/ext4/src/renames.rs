//! Moving names.
//!
//! All that can fail happens first: both names are looked up, both inodes loaded, the rules checked, a
//! whiteout made. Then the new name is set (the last step that may need a block), and only then the old one
//! taken away.

use super::inode::flag;
use super::names::{Create, Removed, count_down, count_up};
use super::superblock::ROOT_INO;
use super::{Ext4, dir};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::{Kind, Rename};

/// Both ends of a move.
#[derive(Clone, Copy)]
struct Move<'a> {
    from: Ino,
    name: &'a [u8],
    to: Ino,
    new_name: &'a [u8],
    now: Stamp,
    /// Slots of the directories and of what the names stand for.
    from_slot: u32,
    to_slot: u32,
    moved: u32,
    /// Where the old name was found.
    place: dir::Place,
    target: Option<u32>,
}

impl Ext4 {
    /// Moves a name; the answer is what lost its name to it. The whiteout of [`Rename::Whiteout`] gets any
    /// free inode number: who has to repeat operations exactly makes it with [`Ext4::create`] instead.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`] with [`Rename::NoReplace`], [`Error::NotDir`],
    /// [`Error::IsDir`], [`Error::NotEmpty`], [`Error::BadArgument`] for a directory into itself,
    /// [`Error::TooManyLinks`], [`Error::NotPermitted`], [`Error::NoSpace`]; as [`Ext4::inode_mut`].
    pub fn rename(
        &mut self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        how: Rename,
        now: Stamp,
    ) -> Result<Option<Removed>> {
        self.make_room();
        if [name, new_name].iter().any(|name| *name == b"." || *name == b"..") {
            return Err(Error::BadArgument);
        }
        let (from_slot, to_slot) = (self.load_changing_dir(parent)?, self.load_changing_dir(new_parent)?);
        let now = self.note_time(now);
        let (moved, place) = self.load_victim(parent, name)?.ok_or(Error::NotFound)?;
        let target = self.load_victim(new_parent, new_name)?.map(|(slot, _)| slot);
        let ends = Move {
            from: parent,
            name,
            to: new_parent,
            new_name,
            now,
            from_slot,
            to_slot,
            moved,
            place,
            target,
        };
        match (how, target) {
            (Rename::NoReplace, Some(_)) => Err(Error::Exists),
            (Rename::Exchange, None) => Err(Error::NotFound),
            (_, Some(target)) if target == moved => Ok(None),
            (Rename::Exchange, Some(target)) => self.exchange(&ends, target).map(|()| None),
            (Rename::Replace | Rename::NoReplace | Rename::Whiteout, _) => {
                self.replace(&ends, how == Rename::Whiteout)
            }
        }
    }

    fn is_dir(&mut self, slot: u32) -> bool {
        self.inodes.entry(slot).inode.kind() == Kind::Dir
    }

    fn replace(&mut self, ends: &Move, whiteout: bool) -> Result<Option<Removed>> {
        let is_dir = self.is_dir(ends.moved);
        self.check_movable(ends.from_slot, ends.moved)?;
        if let Some(target) = ends.target {
            self.check_victim(ends.to_slot, target, is_dir)?;
        } else if is_dir && ends.from != ends.to {
            self.check_subdirs(ends.to_slot)?;
        }
        self.check_not_inside(ends.moved, ends.from, ends.to)?;
        let white = if whiteout { Some(self.whiteout(ends)?) } else { None };
        if let Err(error) = self.set_name(ends.to, ends.new_name, ends.moved, ends.target.is_some()) {
            if let Some(slot) = white {
                self.discard_new(slot)?;
            }
            return Err(error);
        }
        match white {
            Some(slot) => self.set_name(ends.from, ends.name, slot, true)?,
            // The new name may have moved the old one about in the same directory.
            None if ends.from == ends.to && ends.target.is_none() => {
                self.view(ends.from, |view| dir::remove(view, ends.name)).map(drop)?;
            }
            None => self.view(ends.from, |view| dir::remove_at(view, &ends.place)).map(drop)?,
        }
        self.moved_dir(ends.moved, ends.from, ends.to, ends.target.is_some())?;
        self.stamp(ends);
        match ends.target {
            Some(target) => self.lose_name(target, ends.now).map(Some),
            None => Ok(None),
        }
    }

    /// Counts, and `..`, after something was moved; `replaced` if it took the place of a like thing.
    fn moved_dir(&mut self, moved: u32, from: Ino, to: Ino, replaced: bool) -> Result<()> {
        if !self.is_dir(moved) {
            return Ok(());
        }
        let (from_slot, to_slot) = (self.load(from)?, self.load(to)?);
        if from != to {
            let ino = self.inodes.entry(moved).inode.ino;
            self.view(ino, |view| dir::set_parent(view, to.0 as u32))?;
            count_up(&mut self.inodes.entry(to_slot).inode);
            count_down(&mut self.inodes.entry(from_slot).inode);
        }
        if replaced {
            count_down(&mut self.inodes.entry(to_slot).inode);
        }
        Ok(())
    }

    fn exchange(&mut self, ends: &Move, target: u32) -> Result<()> {
        self.check_movable(ends.from_slot, ends.moved)?;
        self.check_movable(ends.to_slot, target)?;
        self.check_not_inside(ends.moved, ends.from, ends.to)?;
        self.check_not_inside(target, ends.to, ends.from)?;
        if ends.from != ends.to {
            match (self.is_dir(ends.moved), self.is_dir(target)) {
                (true, false) => self.check_subdirs(ends.to_slot)?,
                (false, true) => self.check_subdirs(ends.from_slot)?,
                _ => {}
            }
        }
        self.set_name(ends.to, ends.new_name, ends.moved, true)?;
        self.set_name(ends.from, ends.name, target, true)?;
        self.moved_dir(ends.moved, ends.from, ends.to, false)?;
        self.moved_dir(target, ends.to, ends.from, false)?;
        self.stamp(ends);
        self.inodes.entry(target).inode.ctime = ends.now;
        Ok(())
    }

    /// Makes a name stand for an inode.
    fn set_name(&mut self, parent: Ino, name: &[u8], slot: u32, taken: bool) -> Result<()> {
        let inode = &self.inodes.entry(slot).inode;
        let (ino, kind) = (inode.ino.0 as u32, inode.kind());
        self.view(parent, |view| match taken {
            true => dir::replace(view, name, ino, kind).map(drop),
            false => dir::insert(view, name, ino, kind),
        })
    }

    fn stamp(&mut self, ends: &Move) {
        for slot in [ends.from_slot, ends.to_slot] {
            let dir = &mut self.inodes.entry(slot).inode;
            (dir.mtime, dir.ctime) = (ends.now, ends.now);
        }
        self.inodes.entry(ends.moved).inode.ctime = ends.now;
    }

    fn check_movable(&mut self, parent: u32, slot: u32) -> Result<()> {
        let fixed = flag::IMMUTABLE | flag::APPEND;
        let held = self.inodes.entry(parent).inode.has(flag::APPEND);
        if held || self.inodes.entry(slot).inode.has(fixed) { Err(Error::NotPermitted) } else { Ok(()) }
    }

    /// A directory must not end up below itself; its `..` must be readable.
    fn check_not_inside(&mut self, moved: u32, from: Ino, to: Ino) -> Result<()> {
        if !self.is_dir(moved) || from == to {
            return Ok(());
        }
        let ino = self.inodes.entry(moved).inode.ino;
        self.parent_of(ino)?;
        let (mut at, mut steps) = (to, 0);
        while at != ROOT_INO {
            if at == ino {
                return Err(Error::BadArgument);
            }
            at = self.parent_of(at)?;
            steps += 1;
            if steps > self.store.geometry.inodes {
                return Err(Error::corrupt("a directory", "it is below itself", format!("inode {to}")));
            }
        }
        Ok(())
    }

    fn parent_of(&mut self, ino: Ino) -> Result<Ino> {
        self.load_dir(ino)?;
        match self.view(ino, |view| dir::lookup(view, b".."))? {
            Some(entry) => self.named(entry.ino, ino),
            None => Err(Error::corrupt("a directory", "it has no ..", format!("inode {ino}"))),
        }
    }

    /// The device file that hides a name of a lower layer.
    fn whiteout(&mut self, ends: &Move) -> Result<u32> {
        let moved = &self.inodes.entry(ends.moved).inode;
        let (uid, gid) = (moved.uid, moved.gid);
        self.new_inode(&Create {
            parent: ends.from,
            name: ends.name,
            kind: Kind::CharDevice,
            perm: 0,
            uid,
            gid,
            rdev: 0,
            target: b"",
            now: ends.now,
            ino: None,
            generation: None,
        })
    }
}
