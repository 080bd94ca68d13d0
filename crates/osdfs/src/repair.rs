//! A repair of names, after the store's own: what the index lost of inodes is put where names need it.
//!
//! 1. A directory that cannot be read keeps the entries that can (`salvage`).
//! 2. A name without an object goes; an object that is named, and has no inode that can be read any more, gets one: of the
//!    kind that the name says, for its owner, the superuser, alone. Its other attributes are gone if they cannot be read.
//! 3. A directory has one name: in the directory that it says it is in, or where there is none there, in the first that has
//!    one, which it says then.
//! 4. An object without a name gets one in the root, `lost-NUMBER`, unless a directory cannot be read: the name may
//!    be there. What is in a directory that has none keeps its place there.
//! 5. What is in the directory of what has no name and has one, or says so, is taken out of it.
//! 6. Inodes say how many names they have.

use super::dir::{Dir, Target};
use super::inode::{Inode, Lack, has_files};
use super::{DIRECTORY_HINT, NAMELESS, ROOT, salvage};
use bimetal_base::runtime::Live;
use bimetal_base::{Error, Result};
use bimetal_osd_core::{Mended, ObjectId, Store};
use bimetal_vfs::Kind;
use bimetal_vfs::adapter::Mode;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Repairs what can be of a store and the file system on it; notes what was `done`. Nothing is written where nothing is wrong. Not
/// `lossy`, what costs something is left: a leaf of the index that cannot be read, with all else of the store's, a directory that
/// cannot, a name whose object is gone, an object whose owner is.
///
/// # Errors
/// Those of the store; what was done before them is noted.
pub fn repair(store: &mut Store, lossy: bool, done: &mut Vec<Mended>) -> Result<()> {
    if !lossy && store.loses_by_repair()? {
        return Ok(());
    }
    store.arrive(Live::wall_clock().into());
    // What says so may be gone after the repair of the store.
    let had_files = has_files(store)?;
    done.extend(store.repair()?);
    if !had_files && !has_files(store)? {
        return Ok(());
    }
    let objects = store.readable_objects()?;
    let before = done.len();
    // What is full can be repaired, too.
    store.mending(|store| {
        let repaired = Names { lossy, ..Names::default() }.repair(store, &objects, done);
        if done.len() > before {
            store.flush()?;
        }
        repaired
    })
}

/// What a walk over all directories finds.
#[derive(Default)]
struct Names {
    /// How many names each object should say that it has.
    counts: BTreeMap<u64, u32>,
    /// What cannot be read, and so says nothing of what is in it.
    closed: BTreeSet<u64>,
    /// Names of directories that say they are somewhere else.
    doubtful: VecDeque<Doubtful>,
    /// The root, once something is named in it or loses a name there.
    root: Option<Dir>,
    /// What costs something is done, too.
    lossy: bool,
    /// Something that would was left.
    left: bool,
}

/// A name of a directory that says it is somewhere else.
struct Doubtful {
    /// Where the name is.
    parent: u64,
    name: Vec<u8>,
    object: u64,
}

/// What became of attributes that nobody can read.
const GONE: &str = "its attributes could not be read and are gone";

fn blank(kind: Kind, parent: u64) -> Inode {
    let perm = if kind == Kind::Dir { 0o700 } else { 0o600 };
    let nlink = if kind == Kind::Dir { 2 } else { 1 };
    let parent = if kind == Kind::Dir { parent } else { 0 };
    Inode { mode: Mode { kind, perm, uid: 0, gid: 0 }, nlink, rdev: 0, parent }
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
            self.repair_root(store, object, done)?;
            self.counts.insert(object, 2);
        }
        self.walk(store, vec![ROOT], done)?;
        if self.is_whole() {
            self.settle(store, done)?;
        }
        // What has a name is known by then.
        self.walk(store, vec![NAMELESS], done)?;
        if self.is_whole() {
            self.name_what_has_none(store, objects, done)?;
        }
        self.correct_counts(store, done)
    }

    /// Sees to the inode of a directory that is in no other.
    fn repair_root(&mut self, store: &mut Store, object: u64, done: &mut Vec<Mended>) -> Result<()> {
        match store.exists(ObjectId(object)) {
            Ok(false) if self.may_lose() => store.create_as(ObjectId(object), DIRECTORY_HINT)?,
            Ok(_) => {}
            Err(Error::Corrupt { .. }) => return Ok(()),
            Err(why) => return Err(why),
        }
        if let Some(lack) = Inode::lack(store, object)? {
            if self.give(store, object, blank(Kind::Dir, object))? {
                done.push(Mended::less(match lack {
                    Lack::Inode => format!("directory {object}: it is made anew"),
                    Lack::Attributes => format!("directory {object}: {GONE}; it is the superuser's now"),
                }));
            }
            return Ok(());
        }
        let Ok(inode) = Inode::read(store, object) else { return Ok(()) };
        let mode = Mode { kind: Kind::Dir, ..inode.mode };
        let right = Inode { mode, parent: object, ..inode };
        if right != inode {
            right.write(store, object)?;
            done.push(Mended::whole(format!("directory {object}: it is a directory, and in no other")));
        }
        Ok(())
    }

    /// Gives an object an inode, if what that costs may be lost; whether it did.
    fn give(&mut self, store: &mut Store, object: u64, inode: Inode) -> Result<bool> {
        if !self.may_lose() {
            return Ok(false);
        }
        match inode.give(store, object) {
            Err(Error::Corrupt { .. }) => {
                self.left = true;
                Ok(false)
            }
            given => given.map(|()| true),
        }
    }

    /// Sees to directories and all below them.
    fn walk(&mut self, store: &mut Store, mut waiting: Vec<u64>, done: &mut Vec<Mended>) -> Result<()> {
        while let Some(object) = waiting.pop() {
            waiting.extend(self.repair_dir(store, object, done)?);
        }
        Ok(())
    }

    /// A directory, or what can be read of it; none if it cannot be read and stays so.
    fn open(&mut self, store: &mut Store, object: u64, done: &mut Vec<Mended>) -> Result<Option<Dir>> {
        let why = match Dir::read(store, object) {
            Err(why @ Error::Corrupt { .. }) => why,
            dir => return dir.map(Some),
        };
        if self.may_lose() {
            match salvage::mend(store, object) {
                Ok(salvaged) => {
                    done.push(Mended::less(format!(
                        "directory {object}: {} entries of it could be read; {} bytes with what else there was of them are lost: {why}",
                        salvaged.dir.len(),
                        salvaged.lost_bytes
                    )));
                    return Ok(Some(salvaged.dir));
                }
                Err(Error::Corrupt { .. }) => {}
                Err(why) => return Err(why),
            }
        }
        self.closed.insert(object);
        Ok(None)
    }

    /// Sees to the entries of a directory; the directories in it.
    fn repair_dir(&mut self, store: &mut Store, object: u64, done: &mut Vec<Mended>) -> Result<Vec<u64>> {
        let mut below = Vec::new();
        let Some(mut dir) = self.open(store, object, done)? else { return Ok(below) };
        let entries: Vec<(Vec<u8>, Target)> =
            dir.after(0).map(|(name, target, _)| (name.to_vec(), target)).collect();
        for (name, target) in entries {
            let shown = String::from_utf8_lossy(&name).into_owned();
            if object == NAMELESS && self.is_named(store, &name, target) {
                dir.remove(store, object, &name)?;
                done.push(Mended::whole(format!(
                    "directory {object}, of what has no name: '{shown}' led to object {}, and is gone",
                    target.object
                )));
                continue;
            }
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
            if let Some(lack) = Inode::lack(store, target.object)?
                && self.give(store, target.object, blank(target.kind, object))?
            {
                let its = format!("it is the superuser's now, as '{shown}'");
                done.push(Mended::less(match lack {
                    Lack::Inode => format!("object {}: {its}", target.object),
                    Lack::Attributes => format!("object {}: {GONE}; {its}", target.object),
                }));
            }
            let inode = match Inode::read(store, target.object) {
                Err(Error::Corrupt { .. }) => None,
                inode => Some(inode?),
            };
            let kind = inode.map_or(target.kind, |inode| inode.mode.kind);
            if kind != target.kind {
                dir.set(store, object, &name, Target { object: target.object, kind })?;
                let what = format!(
                    "directory {object}: '{shown}' said that object {} is of another kind",
                    target.object
                );
                done.push(Mended::whole(what));
            }
            if object == NAMELESS {
                self.counts.entry(target.object).or_insert(0);
            } else if kind != Kind::Dir {
                *self.counts.entry(target.object).or_default() += 1;
            } else if self.counts.contains_key(&target.object)
                || inode.is_some_and(|inode| inode.parent != object)
            {
                self.doubtful.push_back(Doubtful { parent: object, name, object: target.object });
            } else {
                self.count_dir(target.object, object);
                below.push(target.object);
            }
        }
        Ok(below)
    }

    /// Whether what an entry of the directory of what has no name leads to has a name, or should have one.
    fn is_named(&self, store: &mut Store, name: &[u8], target: Target) -> bool {
        let says = Inode::read(store, target.object).is_ok_and(|inode| inode.nlink > 0);
        !target.can_be_nameless(name) || self.counts.contains_key(&target.object) || says && self.is_whole()
    }

    /// A directory is in another.
    fn count_dir(&mut self, object: u64, parent: u64) {
        self.counts.insert(object, 2);
        *self.counts.entry(parent).or_default() += 1;
    }

    /// Sees to names of directories that say they are somewhere else: where they are not, they are here.
    fn settle(&mut self, store: &mut Store, done: &mut Vec<Mended>) -> Result<()> {
        while let Some(Doubtful { parent, name, object }) = self.doubtful.pop_front() {
            if self.counts.contains_key(&object) {
                match parent {
                    ROOT => self.root(store)?.remove(store, parent, &name)?,
                    _ => Dir::read(store, parent)?.remove(store, parent, &name)?,
                }
                let shown = String::from_utf8_lossy(&name);
                done.push(Mended::whole(format!(
                    "directory {parent}: '{shown}' was another name of directory {object}, and is gone"
                )));
                continue;
            }
            put_into(store, object, parent)?;
            done.push(Mended::whole(format!(
                "directory {object}: it is in directory {parent}, and says so now"
            )));
            self.count_dir(object, parent);
            self.walk(store, vec![object], done)?;
        }
        Ok(())
    }

    fn name_what_has_none(
        &mut self,
        store: &mut Store,
        objects: &[ObjectId],
        done: &mut Vec<Mended>,
    ) -> Result<()> {
        let nameless: Vec<u64> =
            objects.iter().map(|id| id.0).filter(|id| !self.counts.contains_key(id)).collect();
        // What is in a directory keeps its name there: those that are in none come first, those that are in one another next.
        let (mut dirs, mut inside) = (Vec::new(), BTreeSet::new());
        for object in &nameless {
            if Inode::read(store, *object).is_ok_and(|inode| inode.mode.kind == Kind::Dir)
                && let Some(dir) = self.open(store, *object, done)?
            {
                dirs.push(*object);
                inside.extend(dir.after(0).map(|(_, target, _)| target.object));
            }
        }
        if !self.is_whole() {
            return Ok(());
        }
        let (below, above): (Vec<u64>, Vec<u64>) = dirs.into_iter().partition(|dir| inside.contains(dir));
        for object in above.into_iter().chain(below).chain(nameless) {
            if !self.counts.contains_key(&object) {
                self.name(store, object, done)?;
                self.settle(store, done)?;
            }
        }
        Ok(())
    }

    /// The root, which is read once: nothing but what asks for it here changes it after the walk.
    fn root(&mut self, store: &mut Store) -> Result<&mut Dir> {
        let root = match self.root.take() {
            Some(root) => root,
            None => Dir::read(store, ROOT)?,
        };
        Ok(self.root.insert(root))
    }

    /// Gives an object a name in the root.
    fn name(&mut self, store: &mut Store, object: u64, done: &mut Vec<Mended>) -> Result<()> {
        if !store.exists(ObjectId(object))? {
            return Ok(());
        }
        match Inode::lack(store, object)? {
            Some(_) if !self.give(store, object, blank(Kind::File, ROOT))? => return Ok(()),
            Some(Lack::Attributes) => done.push(Mended::less(format!("object {object}: {GONE}"))),
            Some(Lack::Inode) | None => {}
        }
        let kind = match Inode::read(store, object) {
            Err(Error::Corrupt { .. }) => return Ok(()),
            inode => inode?.mode.kind,
        };
        let root = self.root(store)?;
        let names = (1..).map(|number| format!("lost-{object}.{number}"));
        let mut names = std::iter::once(format!("lost-{object}")).chain(names);
        let name = names.find(|name| root.get(name.as_bytes()).is_none()).ok_or(Error::Exists)?;
        root.set(store, ROOT, name.as_bytes(), Target { object, kind })?;
        done.push(Mended::whole(format!("object {object}: it had no name, and is '{name}' now")));
        if kind == Kind::Dir {
            put_into(store, object, ROOT)?;
            self.count_dir(object, ROOT);
            self.walk(store, vec![object], done)?;
        } else {
            self.counts.insert(object, 1);
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

/// Has a directory say in which other it is.
fn put_into(store: &mut Store, object: u64, parent: u64) -> Result<()> {
    let inode = Inode::read(store, object)?;
    Inode { parent, ..inode }.write(store, object)
}
