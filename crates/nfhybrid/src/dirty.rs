//! What is dirty in memory and in no commit cycle yet: how much, since when, which files, and what freezing all of it
//! takes of the journal.
//!
//! Invariants. The files are those that have dirty frames, each once ([`super::node::Node`] knows whether it is listed);
//! the needs are the sum of their nodes'.

use bimetal_base::time::Time;
use bimetal_base::units::Ino;
use bimetal_ext4::TreeChange;

/// What the dirty data of a file, or of all, will put into the journal when it is frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Blocks of live data that are overwritten.
    pub overwrites: u64,
    /// Blocks that get places.
    pub placing: u64,
    /// Some of these have places already, others.
    pub moving: bool,
    /// Extents without data that become data as a whole.
    pub filled: u64,
    /// What these change of trees and bitmaps.
    pub tree: TreeChange,
    /// Blocks of the disk that are promised to the tree.
    pub nodes: u64,
    /// How many these are at least, for an operation that is under way.
    pub growth: u64,
    /// Extents that operations since the last commit may come to add when they are replayed, where free blocks lie otherwise.
    pub extents: usize,
}

impl Needs {
    /// These, with `old` of a file's replaced by `new`.
    pub fn with(mut self, old: &Needs, new: &Needs) -> Needs {
        self.overwrites = self.overwrites - old.overwrites + new.overwrites;
        self.placing = self.placing - old.placing + new.placing;
        self.filled = self.filled - old.filled + new.filled;
        self.nodes = self.nodes - old.nodes + new.nodes;
        self.tree.nodes = self.tree.nodes - old.tree.nodes + new.tree.nodes;
        self.tree.places = self.tree.places - old.tree.places + new.tree.places;
        self
    }
}

/// What is dirty.
#[derive(Default)]
pub struct Dirty {
    bytes: u64,
    since: Option<Time>,
    files: Vec<Ino>,
    zeros: u64,
    needs: Needs,
}

/// What was dirty when a commit cycle began.
pub struct Began {
    /// Bytes written.
    pub bytes: u64,
    /// When the first of it happened.
    pub since: Option<Time>,
    /// The files with dirty frames.
    pub files: Vec<Ino>,
}

impl Dirty {
    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the first of it happened.
    pub fn since(&self) -> Option<Time> {
        self.since
    }

    /// Something changes at `now`.
    pub fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// So many bytes were written.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// So many bytes of zeros are dirty, which nobody wrote.
    pub fn add_zeros(&mut self, bytes: u64) {
        self.zeros += bytes;
    }

    /// Bytes of zeros that nobody wrote.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// A file that was not listed has dirty frames.
    pub fn list(&mut self, ino: Ino) {
        self.files.push(ino);
    }

    /// The files with dirty frames.
    pub fn files(&self) -> &[Ino] {
        &self.files
    }

    /// What freezing all of it takes of the journal.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// A file's needs change.
    pub fn replace_needs(&mut self, old: &Needs, new: &Needs) {
        self.needs = self.needs.with(old, new);
    }

    /// A commit cycle takes all. What the files need stays until each is frozen.
    pub fn take(&mut self) -> Began {
        let Dirty { bytes, since, files, needs, .. } = std::mem::take(self);
        self.needs = needs;
        Began { bytes, since, files }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_takes_all_but_what_files_need_until_they_are_frozen() {
        let mut dirty = Dirty::default();
        let now = Time::ZERO;
        dirty.begin(now);
        dirty.begin(now + std::time::Duration::from_secs(1));
        dirty.add(100);
        dirty.list(Ino(7));
        let tree = TreeChange { nodes: 1, places: 4 };
        let needs = Needs { overwrites: 3, placing: 2, tree, ..Needs::default() };
        dirty.replace_needs(&Needs::default(), &needs);
        let Began { bytes, since, files } = dirty.take();
        assert_eq!((bytes, since, files), (100, Some(now), vec![Ino(7)]));
        assert!(dirty.since().is_none() && dirty.bytes() == 0 && dirty.files().is_empty());
        assert_eq!(dirty.needs(), needs);
        dirty.replace_needs(&needs, &Needs::default());
        assert_eq!(dirty.needs(), Needs::default());
    }
}
