//! A repair of names, after the store's own: what the index lost of inodes is put where names need it.
//!
//! 1. A name without an object goes; an object that is named, and has no inode any more, gets one: of the kind that
//!    the name says, for its owner, the superuser, alone.
//! 2. An object without a name gets one in the root, `lost-NUMBER`, unless a directory cannot be read: the name may
//!    be there.
//! 3. Inodes say how many names they have.

use super::dir::{Dir, Target};
use super::inode::Inode;
use super::{DIRECTORY_HINT, NAMELESS, ROOT, is_a_file};
use bimetal_base::{Error, Result};
use bimetal_osd_core::{Mended, ObjectId, Store};
use bimetal_vfs::Kind;
use bimetal_vfs::adapter::Mode;
use std::collections::{BTreeMap, BTreeSet};

/// Repairs what can be of a store and the file system on it; what was done. Nothing is written where nothing is wrong. Not
/// `lossy`, what costs something is left: a leaf of the index that cannot be read, with all else of the store's, a name whose
/// object is gone, an object whose owner is.
///
/// # Errors
/// Those of the store.
pub fn repair(store: &mut Store, lossy: bool) -> Result<Vec<Mended>> {
    if !lossy && store.loses_by_repair()? {
        return Ok(Vec::new());
    }
    let mut done = store.repair()?;
    let mut objects = Vec::new();
    store.list(ObjectId(0), &mut |id| {
        objects.push(id);
        true
    })?;
    let mut has_files = false;
    for id in &objects {
        has_files |= is_a_file(store, *id).unwrap_or(false);
    }
    if !has_files {
        return Ok(done);
    }
    let before = done.len();
    Names { lossy, ..Names::default() }.repair(store, &objects, &mut done)?;
    if done.len() > before {
        store.flush()?;
    }
    Ok(done)
}

/// What a walk over all directories finds.
#[derive(Default)]
struct Names {
    /// How many names each object should say that it has.
    counts: BTreeMap<u64, u32>,
    /// What cannot be read, and so says nothing of what is in it.
    closed: BTreeSet<u64>,
    /// What costs something is done, too.
    lossy: bool,
    /// Something that would was left.
    left: bool,
}

fn blank(kind: Kind, parent: u64) -> Inode {
    let perm = if kind == Kind::Dir { 0o700 } else { 0o600 };
    let nlink = if kind == Kind::Dir { 2 } else { 1 };
    let parent = if kind == Kind::Dir { parent } else { 0 };
    Inode { mode: Mode { kind, perm, uid: 0, gid: 0 }, nlink, rdev: 0, parent }
}

/// Whether an object is there and has lost its inode.
fn has_lost_its_inode(store: &mut Store, object: u64) -> Result<bool> {
    Ok(store.exists(ObjectId(object))?
        && !store.list_attributes(ObjectId(object)).is_ok_and(|names| names.iter().any(|name| name == b"fs"))
        && is_a_file(store, ObjectId(object)).is_ok())
}

impl Names {
    /// Whether something that costs something is to be done now.
    fn may_lose(&mut self) -> bool {
        self.left |= !self.lossy;
        self.lossy
    }

    /// Whether all names are known and what they lead to is there.
    fn is_whole(&self) -> bool {
        self.closed.is_empty() && !self.left
    }

    fn repair(&mut self, store: &mut Store, objects: &[ObjectId], done: &mut Vec<Mended>) -> Result<()> {
        for object in [ROOT, NAMELESS] {
            let is_there = store.exists(ObjectId(object))?;
            if (!is_there || has_lost_its_inode(store, object)?) && self.may_lose() {
                if !is_there {
                    store.create_as(ObjectId(object), DIRECTORY_HINT)?;
                }
                blank(Kind::Dir, object).write(store, object)?;
                done.push(Mended::less(format!("directory {object}: it is made anew")));
            }
            self.counts.insert(object, 2);
        }
        let mut waiting = vec![ROOT, NAMELESS];
        while let Some(object) = waiting.pop() {
            let below = self.repair_dir(store, object, done)?;
            waiting.extend(below);
        }
        if self.is_whole() {
            self.name_what_has_none(store, objects, done)?;
        }
        self.correct_counts(store, done)
    }

    /// Sees to the entries of a directory; the directories in it.
    fn repair_dir(&mut self, store: &mut Store, object: u64, done: &mut Vec<Mended>) -> Result<Vec<u64>> {
        let mut below = Vec::new();
        let mut dir = match Dir::read(store, object) {
            Err(Error::Corrupt { .. }) => {
                self.closed.insert(object);
                return Ok(below);
            }
            dir => dir?,
        };
        let entries: Vec<(Vec<u8>, Target)> =
            dir.after(0).map(|(name, target, _)| (name.to_vec(), target)).collect();
        for (name, target) in entries {
            let shown = String::from_utf8_lossy(&name).into_owned();
            match store.exists(ObjectId(target.object)) {
                Ok(true) => {}
                Ok(false) => {
                    if self.may_lose() {
                        dir.remove(store, object, &name)?;
                        let what =
                            format!("directory {object}: '{shown}' is gone, object {} is", target.object);
                        done.push(Mended::less(what));
                    }
                    continue;
                }
                Err(Error::Corrupt { .. }) => continue,
                Err(why) => return Err(why),
            }
            if has_lost_its_inode(store, target.object)? && self.may_lose() {
                blank(target.kind, object).write(store, target.object)?;
                let what = format!("object {}: it is the superuser's now, as '{shown}'", target.object);
                done.push(Mended::less(what));
            }
            if object == NAMELESS {
                self.counts.entry(target.object).or_insert(0);
                continue;
            }
            let is_dir = target.kind == Kind::Dir;
            let is_new = !self.counts.contains_key(&target.object);
            *self.counts.entry(target.object).or_insert(u32::from(is_dir)) += 1;
            if is_dir {
                *self.counts.entry(object).or_default() += 1;
                if is_new {
                    below.push(target.object);
                }
            }
        }
        Ok(below)
    }

    fn name_what_has_none(
        &mut self,
        store: &mut Store,
        objects: &[ObjectId],
        done: &mut Vec<Mended>,
    ) -> Result<()> {
        let mut nameless: Vec<u64> =
            objects.iter().map(|id| id.0).filter(|id| !self.counts.contains_key(id)).collect();
        // A directory first, so that what is in it keeps its name.
        while let Some(object) = nameless.pop() {
            if self.counts.contains_key(&object) || !store.exists(ObjectId(object))? {
                continue;
            }
            if has_lost_its_inode(store, object)? {
                if !self.may_lose() {
                    continue;
                }
                blank(Kind::File, ROOT).write(store, object)?;
            }
            let mut inode = match Inode::read(store, object) {
                Err(Error::Corrupt { .. }) => continue,
                inode => inode?,
            };
            let kind = inode.mode.kind;
            let name = format!("lost-{object}");
            let mut root = Dir::read(store, ROOT)?;
            root.set(store, ROOT, name.as_bytes(), Target { object, kind })?;
            done.push(Mended::whole(format!("object {object}: it had no name, and is '{name}' now")));
            self.counts.insert(object, 1 + u32::from(kind == Kind::Dir));
            if kind == Kind::Dir {
                *self.counts.entry(ROOT).or_default() += 1;
                inode.parent = ROOT;
                inode.write(store, object)?;
                let mut waiting = vec![object];
                while let Some(dir) = waiting.pop() {
                    let below = self.repair_dir(store, dir, done)?;
                    waiting.extend(below);
                }
            }
        }
        Ok(())
    }

    fn correct_counts(&self, store: &mut Store, done: &mut Vec<Mended>) -> Result<()> {
        for (object, count) in &self.counts {
            let Ok(mut inode) = Inode::read(store, *object) else { continue };
            if inode.nlink != *count && self.is_whole() {
                let what = format!("object {object}: it has {count} names, and said {}", inode.nlink);
                done.push(Mended::whole(what));
                inode.nlink = *count;
                inode.write(store, *object)?;
            }
        }
        Ok(())
    }
}
