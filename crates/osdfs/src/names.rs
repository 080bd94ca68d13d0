//! What happens to names: each operation here is called with the store's changes held together.

use super::dir::{Dir, Target};
use super::inode::Inode;
use super::{DIRECTORY_HINT, NAMELESS, ROOT, State};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_osd_core::{Content, ObjectId, SetTimes};
use bimetal_vfs::adapter::{BATCH, Listed, Objects};
use bimetal_vfs::{Caller, Kind, NAME_MAX, NewNode, Rename};
use rustc_hash::FxHashSet;

/// As many as ext4 allows.
const LINKS_MAX: u32 = 65_000;

/// Refuses what can be no name of anything.
pub(super) fn check(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > NAME_MAX => Err(Error::NameTooLong),
        b"" | b"." | b".." => Err(Error::BadArgument),
        _ if name.iter().any(|byte| [0, b'/'].contains(byte)) => Err(Error::BadArgument),
        _ => Ok(()),
    }
}

impl State {
    /// Some entries of a directory; noting the access.
    pub(super) fn batch(&mut self, object: u64, from: u64) -> Result<Vec<Listed>> {
        if from == 0 {
            self.store.touch_if_possible(ObjectId(object));
        }
        let (dir, _) = self.dir(object)?;
        let entries = dir.after(from).take(BATCH);
        let listed = |(name, target, next): (&[u8], Target, u64)| {
            (Ino(target.object), target.kind, name.to_vec(), next)
        };
        Ok(entries.map(listed).collect())
    }

    /// A directory that something can be put into.
    fn living_dir(&mut self, object: u64) -> Result<Inode> {
        let inode = self.dir_inode(object)?;
        if inode.nlink == 0 { Err(Error::NotFound) } else { Ok(inode) }
    }

    fn set_entry(&mut self, dir: u64, name: &[u8], target: Target) -> Result<()> {
        let (entries, store) = self.dir(dir)?;
        entries.set(store, dir, name, target)?;
        self.cached += 1;
        Ok(())
    }

    fn remove_entry(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let (entries, store) = self.dir(dir)?;
        entries.remove(store, dir, name)?;
        self.cached = self.cached.saturating_sub(1);
        Ok(())
    }

    fn change_links(&mut self, object: u64, by: i32) -> Result<Inode> {
        let mut inode = Inode::read(&mut self.store, object)?;
        inode.nlink = inode.nlink.saturating_add_signed(by);
        inode.write(&mut self.store, object)?;
        Ok(inode)
    }

    fn has_changed(&mut self, object: u64) -> Result<()> {
        let changed = Some(self.store.arrived());
        self.store.set_times(ObjectId(object), &SetTimes { changed, ..SetTimes::default() })
    }

    pub(super) fn create(&mut self, caller: &Caller, dir: u64, name: &[u8], node: &NewNode) -> Result<u64> {
        let parent = self.living_dir(dir)?;
        if self.dir(dir)?.0.get(name).is_some() {
            return Err(Error::Exists);
        }
        if node.kind == Kind::Dir && parent.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let (mode, lists) = self.shape(caller, dir, node)?;
        let (nlink, parent) = if node.kind == Kind::Dir { (2, dir) } else { (1, 0) };
        let inode = Inode { mode, nlink, rdev: node.rdev, parent };
        let id = self.store.create(if node.kind == Kind::Dir { DIRECTORY_HINT } else { 0 })?;
        inode.write(&mut self.store, id.0)?;
        for (list, value) in &lists {
            self.store.set_attribute(id, list, value)?;
        }
        if node.kind == Kind::Symlink {
            self.store.write(id, 0, Content::Bytes(node.target))?;
        }
        if node.kind == Kind::Dir {
            self.change_links(dir, 1)?;
        }
        self.set_entry(dir, name, Target { object: id.0, kind: node.kind })?;
        Ok(id.0)
    }

    pub(super) fn unlink(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let target = self.find(dir, name)?;
        if target.kind == Kind::Dir {
            return Err(Error::IsDir);
        }
        self.remove_entry(dir, name)?;
        self.drop_name(target)
    }

    pub(super) fn rmdir(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let target = self.find(dir, name)?;
        self.check_empty(target.object)?;
        self.remove_entry(dir, name)?;
        self.change_links(dir, -1)?;
        self.drop_name(target)
    }

    /// Refuses a directory with something in it.
    fn check_empty(&mut self, object: u64) -> Result<()> {
        let len = match self.dir(object) {
            Ok((entries, _)) => entries.len(),
            // What is in it can be read where its attributes cannot.
            Err(Error::Corrupt { .. }) => Dir::read(&mut self.store, object)?.len(),
            Err(Error::Stale) => 0,
            Err(why) => return Err(why),
        };
        if len > 0 { Err(Error::NotEmpty) } else { Ok(()) }
    }

    /// What had a name has one less.
    fn drop_name(&mut self, target: Target) -> Result<()> {
        let mut inode = match Inode::read(&mut self.store, target.object) {
            Ok(inode) => inode,
            // The name was all that was left of it.
            Err(Error::Stale) => return Ok(()),
            Err(why @ Error::Corrupt { .. }) => return self.remove_damaged(target.object, &why),
            Err(why) => return Err(why),
        };
        inode.nlink = if target.kind == Kind::Dir { 0 } else { inode.nlink.saturating_sub(1) };
        if inode.nlink > 0 {
            inode.write(&mut self.store, target.object)?;
            return self.has_changed(target.object);
        }
        if self.references.is_held(target.object) {
            inode.write(&mut self.store, target.object)?;
            self.has_changed(target.object)?;
            return self.set_entry(NAMELESS, target.object.to_string().as_bytes(), target);
        }
        self.remove_object(target.object)
    }

    /// Removes an object of which it cannot be told how many names it has: nobody can open it by any of them. One that
    /// the index does not lead to any more stays behind without a name.
    fn remove_damaged(&mut self, object: u64, why: &Error) -> Result<()> {
        tracing::error!("osd: a file that cannot be read is removed, with all its names: {why}");
        match self.remove_object(object) {
            Err(Error::Corrupt { .. }) => Ok(()),
            removed => removed,
        }
    }

    fn remove_object(&mut self, object: u64) -> Result<()> {
        self.dirs.remove(&object);
        self.store.remove(ObjectId(object))
    }

    /// Gives back references; what has no name goes with the last.
    pub(super) fn forget(&mut self, object: u64, count: u64) -> Result<()> {
        if !self.references.give_back(object, count) {
            return Ok(());
        }
        let name = object.to_string();
        let Some(target) = self.dir(NAMELESS)?.0.get(name.as_bytes()) else { return Ok(()) };
        if !self.is_nameless(name.as_bytes(), target) {
            return Ok(());
        }
        self.giving(|state| {
            state.remove_entry(NAMELESS, name.as_bytes())?;
            state.remove_object(object)
        })
    }

    /// Whether what an entry of the directory of what has no name leads to says so itself, or is gone.
    fn is_nameless(&mut self, name: &[u8], target: Target) -> bool {
        let says = match Inode::read(&mut self.store, target.object) {
            Ok(inode) => inode.nlink == 0,
            Err(why) => matches!(why, Error::Stale),
        };
        says && target.can_be_nameless(name)
    }

    /// Removes what nobody can hold any more. What cannot be read stays, so does what says that it has a name, and so does all of it where too
    /// little room is left; it is no reason not to mount or unmount.
    pub(super) fn remove_nameless(&mut self) -> Result<()> {
        match self.remove_readable_nameless() {
            Err(why @ (Error::Corrupt { .. } | Error::NoSpace(_))) => {
                tracing::error!("osd: what was removed while it was in use could not be freed: {why}");
                Ok(())
            }
            removed => removed,
        }
    }

    fn remove_readable_nameless(&mut self) -> Result<()> {
        let (dir, _) = self.dir(NAMELESS)?;
        let left: Vec<(Vec<u8>, Target)> =
            dir.after(0).map(|(name, target, _)| (name.to_vec(), target)).collect();
        for (name, target) in left {
            if !self.is_nameless(&name, target) {
                tracing::error!(
                    "osd: object {} is among what has no name, and may have one; `bimetal fsck` says more",
                    target.object
                );
                continue;
            }
            self.giving(|state| {
                state.remove_entry(NAMELESS, &name)?;
                match state.remove_object(target.object) {
                    Err(Error::NotFound) => Ok(()),
                    Err(why @ Error::Corrupt { .. }) => {
                        tracing::error!("osd: object {} stays without a name: {why}", target.object);
                        Ok(())
                    }
                    removed => removed,
                }
            })?;
        }
        Ok(())
    }

    pub(super) fn link(&mut self, object: u64, dir: u64, name: &[u8]) -> Result<()> {
        let inode = Inode::read(&mut self.store, object)?;
        self.living_dir(dir)?;
        if self.dir(dir)?.0.get(name).is_some() {
            return Err(Error::Exists);
        }
        match inode.nlink {
            _ if inode.mode.kind == Kind::Dir => return Err(Error::NotPermitted),
            0 => return Err(Error::NotFound),
            LINKS_MAX.. => return Err(Error::TooManyLinks),
            _ => {}
        }
        self.change_links(object, 1)?;
        self.has_changed(object)?;
        self.set_entry(dir, name, Target { object, kind: inode.mode.kind })
    }

    /// Whether `object` is `above` or somewhere below it.
    fn is_below(&mut self, mut object: u64, above: u64) -> Result<bool> {
        let mut passed = FxHashSet::default();
        while object != above {
            if !passed.insert(object) {
                let why = "it is below itself";
                return Err(Error::corrupt("a directory", why, format!("object {object}")));
            }
            let parent = Inode::read(&mut self.store, object)?.parent;
            if object == ROOT || parent == object {
                return Ok(false);
            }
            object = parent;
        }
        Ok(true)
    }

    /// A directory moved: its parent and their links follow.
    fn move_parent(&mut self, moved: Target, from: u64, to: u64) -> Result<()> {
        if moved.kind == Kind::Dir && from != to {
            let mut inode = Inode::read(&mut self.store, moved.object)?;
            inode.parent = to;
            inode.write(&mut self.store, moved.object)?;
            self.change_links(from, -1)?;
            self.change_links(to, 1)?;
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), how: Rename) -> Result<()> {
        self.living_dir(to.0)?;
        let moved = self.find(from.0, from.1)?;
        let old = self.dir(to.0)?.0.get(to.1);
        if moved.kind == Kind::Dir && self.is_below(to.0, moved.object)? {
            return Err(Error::BadArgument);
        }
        match (how, old) {
            (Rename::NoReplace, Some(_)) => return Err(Error::Exists),
            (Rename::Exchange, None) => return Err(Error::NotFound),
            (Rename::Exchange, Some(old)) => {
                if old.kind == Kind::Dir && self.is_below(from.0, old.object)? {
                    return Err(Error::BadArgument);
                }
                self.set_entry(from.0, from.1, old)?;
                self.set_entry(to.0, to.1, moved)?;
                self.move_parent(moved, from.0, to.0)?;
                self.move_parent(old, to.0, from.0)?;
                self.has_changed(old.object)?;
            }
            (_, Some(old)) if old.object == moved.object => return Ok(()),
            (_, old) => self.replace(from, (to.0, to.1, old), moved)?,
        }
        if how == Rename::Whiteout {
            let (owner, mark) = self.whiteout(from.0)?;
            self.create(&owner, from.0, from.1, &mark)?;
        }
        self.has_changed(moved.object)
    }

    fn replace(&mut self, from: (u64, &[u8]), to: (u64, &[u8], Option<Target>), moved: Target) -> Result<()> {
        if let Some(old) = to.2 {
            match (moved.kind == Kind::Dir, old.kind == Kind::Dir) {
                (true, false) => return Err(Error::NotDir),
                (false, true) => return Err(Error::IsDir),
                (true, true) => self.check_empty(old.object)?,
                (false, false) => {}
            }
        }
        self.remove_entry(from.0, from.1)?;
        self.set_entry(to.0, to.1, moved)?;
        self.move_parent(moved, from.0, to.0)?;
        if let Some(old) = to.2 {
            if old.kind == Kind::Dir {
                self.change_links(to.0, -1)?;
            }
            self.drop_name(old)?;
        }
        Ok(())
    }
}
