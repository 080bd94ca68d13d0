//! A check of names: every entry leads to an object of its kind, every object has as many names as it says, and
//! what has none is nobody's.

use super::dir::Dir;
use super::inode::Inode;
use super::{NAMELESS, ROOT, is_a_file};
use bimetal_base::{Error, Result};
use bimetal_osd_core::{ObjectId, Store};
use bimetal_vfs::Kind;
use rustc_hash::FxHashMap;

/// Walks over all directories and compares; what is wrong, in words. Nothing for a store without a file system.
///
/// # Errors
/// The store's index cannot be read.
pub fn check(store: &mut Store) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    if !is_a_file(store, ObjectId(ROOT))? && !has_files(store)? {
        return Ok(problems);
    }
    let mut names: FxHashMap<u64, u32> = FxHashMap::default();
    let mut waiting = vec![(ROOT, ROOT), (NAMELESS, NAMELESS)];
    names.insert(ROOT, 2);
    names.insert(NAMELESS, 2);
    while let Some((object, parent)) = waiting.pop() {
        let dir = match Inode::read(store, object).and_then(|inode| Ok((inode, Dir::read(store, object)?))) {
            Ok((inode, dir)) => {
                if inode.mode.kind != Kind::Dir {
                    problems.push(format!("directory {object}: its inode is that of something else"));
                }
                if inode.parent != parent {
                    problems
                        .push(format!("directory {object}: its parent is {parent}, not {}", inode.parent));
                }
                dir
            }
            Err(Error::Stale) => {
                problems.push(format!("directory {object}: there is none"));
                continue;
            }
            Err(why) => {
                problems.push(format!("directory {object}: {why}"));
                continue;
            }
        };
        for (name, target, _) in dir.after(0) {
            let is_first = !names.contains_key(&target.object);
            let is_dir = target.kind == Kind::Dir;
            let counted = if object == NAMELESS { 0 } else { 1 };
            *names.entry(target.object).or_insert(counted * u32::from(is_dir)) += counted;
            if is_dir {
                *names.entry(object).or_default() += counted;
            }
            let why = match Inode::read(store, target.object) {
                Ok(inode) if inode.mode.kind != target.kind => "it is of another kind".into(),
                Ok(_) if is_dir && !is_first && object != NAMELESS => "a directory has one name".into(),
                Ok(_) => {
                    if is_dir && object != NAMELESS {
                        waiting.push((target.object, object));
                    }
                    continue;
                }
                Err(why) => why.to_string(),
            };
            let name = String::from_utf8_lossy(name);
            problems.push(format!("directory {object}: '{name}', object {}: {why}", target.object));
        }
    }
    compare(store, &names, &mut problems)?;
    Ok(problems)
}

/// Whether there is a file system on a store: an object of its.
///
/// # Errors
/// The store's index cannot be read.
pub(super) fn has_files(store: &mut Store) -> Result<bool> {
    let mut objects = Vec::new();
    store.list(ObjectId(0), &mut |id| {
        objects.push(id);
        true
    })?;
    Ok(objects.into_iter().any(|id| is_a_file(store, id).unwrap_or(false)))
}

fn compare(store: &mut Store, names: &FxHashMap<u64, u32>, problems: &mut Vec<String>) -> Result<()> {
    let mut objects = Vec::new();
    store.list(ObjectId(0), &mut |id| {
        objects.push(id);
        true
    })?;
    for id in objects {
        if !is_a_file(store, id)? {
            continue;
        }
        match (names.get(&id.0), Inode::read(store, id.0)) {
            (None, _) => problems.push(format!("object {id}: a file without a name")),
            (Some(count), Ok(inode)) if inode.nlink != *count => {
                problems.push(format!("object {id}: it has {count} names, and says {}", inode.nlink));
            }
            (_, Err(why)) => problems.push(format!("object {id}: {why}")),
            _ => {}
        }
    }
    Ok(())
}
