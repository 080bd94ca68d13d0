//! A check of names: every entry leads to an object of its kind, every object has as many names as it says, and
//! what has none is nobody's.

use super::dir::Dir;
use super::inode::Inode;
use super::{NAMELESS, ROOT, is_a_file};
use bimetal_base::Result;
use bimetal_osd_core::{ObjectId, Store};
use bimetal_vfs::Kind;
use rustc_hash::FxHashMap;

/// Walks over all directories and compares; what is wrong, in words. Nothing for a store without a file system.
///
/// # Errors
/// The store's index cannot be read.
pub fn check(store: &mut Store) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    if !is_a_file(store, ObjectId(ROOT))? {
        return Ok(problems);
    }
    let mut names: FxHashMap<u64, u32> = FxHashMap::default();
    let mut waiting = vec![(ROOT, ROOT), (NAMELESS, NAMELESS)];
    names.insert(ROOT, 2);
    names.insert(NAMELESS, 2);
    while let Some((object, parent)) = waiting.pop() {
        let dir = match Inode::read(store, object).and_then(|inode| Ok((inode, Dir::read(store, object)?))) {
            Ok((inode, dir)) => {
                if inode.parent != parent {
                    problems
                        .push(format!("directory {object}: its parent is {parent}, not {}", inode.parent));
                }
                dir
            }
            Err(why) => {
                problems.push(format!("directory {object}: {why}"));
                continue;
            }
        };
        for (name, target, _) in dir.after(0).filter(|_| object != NAMELESS) {
            let first = !names.contains_key(&target.object);
            let is_dir = target.kind == Kind::Dir;
            *names.entry(target.object).or_insert(u32::from(is_dir)) += 1;
            if is_dir {
                *names.entry(object).or_default() += 1;
            }
            match Inode::read(store, target.object) {
                Ok(inode) if inode.mode.kind == target.kind && is_dir && first => {
                    waiting.push((target.object, object));
                }
                Ok(inode) if inode.mode.kind == target.kind && !is_dir => {}
                Ok(inode) if inode.mode.kind == target.kind => {
                    let name = String::from_utf8_lossy(name);
                    problems.push(format!(
                        "directory {object}: '{name}' is another name of directory {}",
                        target.object
                    ));
                }
                found => {
                    let name = String::from_utf8_lossy(name);
                    let what = found.map_or_else(|why| why.to_string(), |_| "it is of another kind".into());
                    problems.push(format!("directory {object}: '{name}', object {}: {what}", target.object));
                }
            }
        }
        if object == NAMELESS {
            for (_, target, _) in dir.after(0) {
                names.entry(target.object).or_insert(0);
            }
        }
    }
    compare(store, &names, &mut problems)?;
    Ok(problems)
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
