//! A check of names: every entry leads to an object of its kind, every object has as many names as it says, and
//! what has none is nobody's.

use super::dir::Dir;
use super::inode::{Inode, has_files};
use super::{NAMELESS, ROOT, is_a_file};
use bimetal_base::{Error, Result};
use bimetal_osd_core::Store;
use bimetal_vfs::Kind;
use rustc_hash::FxHashMap;

/// What a check of names found.
#[derive(Debug, Default)]
pub struct Checked {
    /// What is wrong, in words.
    pub problems: Vec<String>,
    /// A directory cannot be read, and so nobody can tell what has a name.
    pub is_closed: bool,
    /// Something is there without an inode that can be read, or named and not there.
    pub is_lost: bool,
}

/// What an object is that no name leads to and that knows nothing of files.
const NO_FILE: &str = "it is no file: it has neither a name nor an inode, as what `osd put` makes; `bimetal osd rm` takes it away, and \
                       `fsck --yes` makes it a file of the root directory";

/// How many names each object should say that it has.
type Counts = FxHashMap<u64, u32>;

/// Walks over all directories and compares. Nothing for a store without a file system.
///
/// # Errors
/// Those of the store, but for what cannot be read.
pub fn check(store: &mut Store) -> Result<Checked> {
    let mut checked = Checked::default();
    if !has_files(store)? {
        return Ok(checked);
    }
    let mut names = Counts::default();
    // What has a name is known before what has none is looked at.
    let mut waiting = vec![(NAMELESS, NAMELESS), (ROOT, ROOT)];
    names.insert(ROOT, 2);
    names.insert(NAMELESS, 2);
    while let Some((object, parent)) = waiting.pop() {
        checked.look_at(store, object, parent)?;
        match Dir::read(store, object) {
            Ok(dir) => checked.walk(store, object, &dir, &mut names, &mut waiting)?,
            // It was looked for.
            Err(Error::NotFound) => checked.is_closed = true,
            Err(why @ Error::Corrupt { .. }) => {
                checked.is_closed = true;
                checked.problems.push(format!("directory {object}: {why}"));
            }
            Err(why) => return Err(why),
        }
    }
    if !checked.is_closed {
        checked.compare(store, &names)?;
    }
    Ok(checked)
}

impl Checked {
    /// Checks what a directory says of itself.
    fn look_at(&mut self, store: &mut Store, object: u64, parent: u64) -> Result<()> {
        let why = match Inode::read(store, object) {
            Ok(inode) if inode.mode.kind != Kind::Dir => "its inode is that of something else".into(),
            Ok(inode) if inode.parent != parent => format!("its parent is {parent}, not {}", inode.parent),
            Ok(_) => return Ok(()),
            // What names it says so.
            Err(Error::Stale | Error::Corrupt { .. }) if ![ROOT, NAMELESS].contains(&object) => return Ok(()),
            Err(why @ (Error::Stale | Error::Corrupt { .. })) => {
                // Where the index does not lead to it, it cannot be walked over either, which is told then.
                if !self.lacks_inode(store, object, &why)? {
                    return Ok(());
                }
                if matches!(why, Error::Stale) { "there is none".into() } else { why.to_string() }
            }
            Err(why) => return Err(why),
        };
        self.problems.push(format!("directory {object}: {why}"));
        Ok(())
    }

    /// Whether an object whose inode cannot be read is gone, or is there without one.
    fn lacks_inode(&mut self, store: &mut Store, object: u64, why: &Error) -> Result<bool> {
        let lacks = matches!(why, Error::Stale) || Inode::lack(store, object)?.is_some();
        self.is_lost |= lacks;
        Ok(lacks)
    }

    /// Checks the entries of a directory, and has those below it wait.
    fn walk(
        &mut self,
        store: &mut Store,
        object: u64,
        dir: &Dir,
        names: &mut Counts,
        waiting: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        for (name, target, _) in dir.after(0) {
            if object == NAMELESS && (names.contains_key(&target.object) || !target.can_be_nameless(name)) {
                let name = String::from_utf8_lossy(name);
                self.problems.push(format!(
                    "directory {object}, of what has no name: '{name}', object {}: it has one, or is another object",
                    target.object
                ));
                continue;
            }
            let is_first = !names.contains_key(&target.object);
            let is_dir = target.kind == Kind::Dir;
            let counted = if object == NAMELESS { 0 } else { 1 };
            *names.entry(target.object).or_insert(counted * u32::from(is_dir)) += counted;
            if is_dir {
                *names.entry(object).or_default() += counted;
            }
            let inode = Inode::read(store, target.object);
            let is_there = matches!(inode, Ok(_) | Err(Error::Corrupt { .. }));
            if is_dir && is_first && is_there && object != NAMELESS {
                waiting.push((target.object, object));
            }
            let why = match inode {
                Ok(inode) if inode.mode.kind != target.kind => "it is of another kind".into(),
                Ok(_) if is_dir && !is_first && object != NAMELESS => "a directory has one name".into(),
                Ok(_) => continue,
                Err(why @ (Error::Stale | Error::Corrupt { .. })) => {
                    self.lacks_inode(store, target.object, &why)?;
                    why.to_string()
                }
                Err(why) => return Err(why),
            };
            let name = String::from_utf8_lossy(name);
            self.problems.push(format!("directory {object}: '{name}', object {}: {why}", target.object));
        }
        Ok(())
    }

    /// Compares how many names objects have with what they say.
    fn compare(&mut self, store: &mut Store, names: &Counts) -> Result<()> {
        for id in store.readable_objects()? {
            match (names.get(&id.0), Inode::read(store, id.0)) {
                (None, Ok(_)) => self.problems.push(format!("object {id}: a file without a name")),
                (None, Err(why)) => {
                    self.lacks_inode(store, id.0, &why)?;
                    self.problems.push(match is_a_file(store, id) {
                        Ok(false) => format!("object {id}: {NO_FILE}"),
                        _ => format!("object {id}: it has no name, and {why}"),
                    });
                }
                (Some(count), Ok(inode)) if inode.nlink != *count => {
                    self.problems
                        .push(format!("object {id}: it has {count} names, and says {}", inode.nlink));
                }
                // What names it says so.
                (Some(_), _) => {}
            }
        }
        Ok(())
    }
}
