//! The way down into a tree: the directories that are being copied, each with the names in it that come next. What walks it needs
//! no stack of its own, however deep the tree is, and no directory stays open.

use std::collections::HashSet;
use std::hash::Hash;
use std::vec;

/// From the top of a tree down to the directory whose names come next. `I` tells directories from each other, `D` is what is known
/// of one.
pub(super) struct Way<I, D> {
    levels: Vec<Level<I, D>>,
    ids: HashSet<I>,
}

struct Level<I, D> {
    id: I,
    dir: D,
    names: vec::IntoIter<Vec<u8>>,
}

/// What comes next.
pub(super) enum Step<D> {
    /// This name in the innermost directory.
    Name(Vec<u8>),
    /// All names of this directory were there; it is left.
    Leave(D),
}

impl<I: Copy + Eq + Hash, D> Way<I, D> {
    pub fn new() -> Way<I, D> {
        Way { levels: Vec::new(), ids: HashSet::new() }
    }

    /// Whether a directory is one of those on the way.
    pub fn is_on(&self, id: I) -> bool {
        self.ids.contains(&id)
    }

    /// Goes into a directory, which is not on the way so far.
    pub fn enter(&mut self, id: I, dir: D, names: Vec<Vec<u8>>) {
        self.ids.insert(id);
        self.levels.push(Level { id, dir, names: names.into_iter() });
    }

    /// The innermost directory.
    pub fn innermost(&mut self) -> Option<&mut D> {
        self.levels.last_mut().map(|level| &mut level.dir)
    }

    /// The next step; none where the tree is left.
    pub fn next(&mut self) -> Option<Step<D>> {
        if let Some(name) = self.levels.last_mut()?.names.next() {
            return Some(Step::Name(name));
        }
        let level = self.levels.pop()?;
        self.ids.remove(&level.id);
        Some(Step::Leave(level.dir))
    }
}
