//! From inode numbers back to paths, by a walk over the tree: for messages about what was lost, where its cost (each
//! directory read once) is worth it.

use super::core::Core;
use crate::fs::Kind;
use crate::fs::ext4::ROOT_INO;
use crate::units::Ino;
use rustc_hash::{FxHashMap, FxHashSet};

impl Core {
    /// A path of each of these inodes that has one. Directories that cannot be read are passed over.
    pub(super) fn paths_of(&mut self, wanted: &FxHashSet<Ino>) -> FxHashMap<Ino, String> {
        let mut found = FxHashMap::default();
        if wanted.is_empty() {
            return found;
        }
        let mut todo = vec![(ROOT_INO, String::new())];
        let mut seen = FxHashSet::from_iter([ROOT_INO]);
        while let Some((dir, path)) = todo.pop().filter(|_| found.len() < wanted.len()) {
            let mut look = |ino: Ino, kind: Kind, name: &[u8]| {
                let path = || format!("{path}/{}", String::from_utf8_lossy(name));
                if wanted.contains(&ino) {
                    found.entry(ino).or_insert_with(path);
                }
                if kind == Kind::Dir && seen.insert(ino) {
                    todo.push((ino, path()));
                }
            };
            // What is lost is said with a number where no name is found.
            let _ = self.ext4.readdir(dir, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    look(entry.ino, entry.kind, entry.name);
                }
                true
            });
        }
        found
    }

    /// Notes what recovery could not bring to the disk, by its paths.
    pub(super) fn note_lost(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        if lost.is_empty() {
            return;
        }
        let paths = self.paths_of(&lost.iter().map(|(ino, _)| *ino).collect());
        for (ino, why) in lost {
            let file = paths.get(&ino).cloned().unwrap_or_else(|| format!("inode {ino}, which has no name"));
            self.late_notes.push(format!("what was fsynced of {file} is lost: {why}"));
        }
    }
}
