//! The names that callers of a file system know, as a kernel's cache of names does: each with an inode, of which it has a
//! reference.

use bimetal_base::units::Ino;
use bimetal_trace::calls::Place;
use rustc_hash::{FxHashMap, FxHashSet};

/// Inodes by the numbers of their paths. Who takes a name out gives its reference back.
#[derive(Default)]
pub(super) struct Names {
    known: FxHashMap<u32, Ino>,
    /// The known paths in each directory.
    below: FxHashMap<u32, FxHashSet<u32>>,
}

impl Names {
    /// The inode of a path, if it is known.
    pub fn get(&self, path: u32) -> Option<Ino> {
        self.known.get(&path).copied()
    }

    /// Keeps the inode of a path; the one that was known by it until then.
    #[must_use]
    pub fn put(&mut self, places: &[Place], path: u32, ino: Ino) -> Option<Ino> {
        self.below.entry(places[path as usize].parent).or_default().insert(path);
        self.known.insert(path, ino)
    }

    /// Takes a path out.
    #[must_use]
    pub fn take(&mut self, places: &[Place], path: u32) -> Option<Ino> {
        let parent = places[path as usize].parent;
        if let Some(beside) = self.below.get_mut(&parent) {
            beside.remove(&path);
            if beside.is_empty() {
                self.below.remove(&parent);
            }
        }
        self.known.remove(&path)
    }

    /// Takes out what is known below a directory: after it moved these are no paths any more.
    #[must_use]
    pub fn take_below(&mut self, dir: u32) -> Vec<Ino> {
        let (mut left, mut taken) = (vec![dir], Vec::new());
        while let Some(dir) = left.pop() {
            let mut paths: Vec<u32> = self.below.remove(&dir).into_iter().flatten().collect();
            // In an order that does not depend on the set's.
            paths.sort_unstable();
            taken.extend(paths.iter().filter_map(|path| self.known.remove(path)));
            left.extend(paths);
        }
        taken
    }
}
