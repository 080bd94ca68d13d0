//! Files that a trace goes on with after their name went: a program that has one open reads and writes it by its
//! descriptor, and the trace tells it by the path it had.
//!
//! What was moved is at its new path. What was removed gets a path of its own, below no directory, from the call that
//! removed its name to the last one that uses it.

use rustc_hash::FxHashMap;

/// Where what had a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// At another path.
    Moved(u32),
    /// A file without a name, since the call of this number.
    Removed(usize),
    /// A directory that was removed.
    Directory,
}

/// The names that went, and what stands for the files that had them.
#[derive(Debug, Default)]
pub(super) struct Unlinked {
    gone: FxHashMap<u32, Gone>,
    /// The path that stands for the file which had a name.
    stands: FxHashMap<u32, u32>,
    /// The last call on each path that stands for a file.
    last: FxHashMap<u32, u32>,
}

impl Unlinked {
    /// A name goes.
    pub fn goes(&mut self, path: u32, gone: Gone) {
        self.stands.remove(&path);
        self.gone.insert(path, gone);
    }

    /// A name is given again.
    pub fn is_named(&mut self, path: u32) {
        self.gone.remove(&path);
        self.stands.remove(&path);
    }

    /// Where what had the name is, if the name went.
    pub fn of(&self, path: u32) -> Option<Gone> {
        self.gone.get(&path).copied()
    }

    /// The path that stands for the file which had the name.
    pub fn stand_in(&self, path: u32) -> Option<u32> {
        self.stands.get(&path).copied()
    }

    /// `stand_in` stands for the file which had the name.
    pub fn stands_for(&mut self, path: u32, stand_in: u32) {
        self.stands.insert(path, stand_in);
        self.last.insert(stand_in, 0);
    }

    /// A path is used by the call of this number.
    pub fn is_used(&mut self, path: u32, call: usize) {
        if let Some(last) = self.last.get_mut(&path) {
            *last = call as u32;
        }
    }

    /// The paths that stand for files, by the number of the last call on each.
    pub fn last_uses(self) -> FxHashMap<u32, u32> {
        self.last.into_iter().map(|(path, call)| (call, path)).collect()
    }
}
