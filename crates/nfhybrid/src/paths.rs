//! From inode numbers back to paths, by a walk over the tree: for messages about what was lost, where its cost (each
//! directory read once) is worth it.

use super::aftermath::{Lost, WHAT_IS_LOST};
use super::core::Core;
use bimetal_base::error::shown;
use bimetal_base::units::Ino;
use bimetal_ext4::ROOT_INO;
use bimetal_vfs::Kind;
use rustc_hash::{FxHashMap, FxHashSet};

impl Core {
    /// A path of each of these inodes that has one. Directories that cannot be read are passed over.
    pub(super) fn paths_of(&mut self, wanted: &FxHashSet<Ino>) -> FxHashMap<Ino, String> {
        let mut found = FxHashMap::default();
        if wanted.is_empty() {
            return found;
        }
        if wanted.contains(&ROOT_INO) {
            found.insert(ROOT_INO, "/".into());
        }
        let mut todo = vec![(ROOT_INO, String::new())];
        let mut seen = FxHashSet::from_iter([ROOT_INO]);
        while let Some((dir, path)) = todo.pop().filter(|_| found.len() < wanted.len()) {
            let mut look = |ino: Ino, kind: Kind, name: &[u8]| {
                let path = || format!("{path}/{}", shown(name));
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
        let lost = self.aftermath.take_lost();
        if lost.is_empty() {
            return;
        }
        let paths = self.paths_of(&lost.iter().map(|lost| lost.ino).collect());
        // A line a file, not one a block.
        for same in lost.chunk_by(|a, b| (a.ino, &a.path) == (b.ino, &b.path)) {
            let Lost { ino, path, why } = &same[0];
            let file = match (paths.get(ino), path) {
                (Some(found), Some(path)) => format!("{}/{path}", found.trim_end_matches('/')),
                (Some(found), None) => found.clone(),
                (None, Some(path)) => format!("{path} in a directory that has no name (inode {ino})"),
                (None, None) => format!("inode {ino}, which has no name,"),
            };
            let more = match same.len() - 1 {
                0 => String::new(),
                more => format!("; and {more} more pieces of it"),
            };
            self.aftermath.note(format!("{WHAT_IS_LOST} {file} is lost: {why}{more}"));
        }
    }
}
