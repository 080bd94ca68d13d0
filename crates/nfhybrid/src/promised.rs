//! Of which files the SSD's log holds promised contents that the disk lacks, and which files' data must go into the log
//! with the operations so far.
//!
//! Invariants. A file whose contents were promised stays here until the disk has the operation of the last promise, or the
//! file is gone: a restart of the log must speak of it. A file to be carried stays until data and operations were
//! appended together, or its commit cycle is over.

use bimetal_base::units::Ino;
use rustc_hash::FxHashMap;

/// What was promised of files' contents.
#[derive(Default)]
pub struct Promised {
    /// The files, and the operation of the last promise.
    in_log: FxHashMap<Ino, u64>,
    carried: Vec<Ino>,
}

impl Promised {
    /// The log has contents of a file as of operation `op`.
    pub fn promise(&mut self, ino: Ino, op: u64) {
        self.in_log.insert(ino, op);
    }

    /// The file is gone.
    pub fn forget(&mut self, ino: Ino) {
        self.in_log.remove(&ino);
    }

    /// Whether nothing of a file was promised after operation `op`.
    pub fn is_settled(&self, ino: Ino, op: u64) -> bool {
        self.in_log.get(&ino).is_none_or(|&promised| promised <= op)
    }

    /// The disk has all up to `op`.
    pub fn committed_up_to(&mut self, op: u64) {
        self.in_log.retain(|_, promised| *promised > op);
    }

    /// Files with promised contents that the disk lacks, by number.
    pub fn files(&self) -> Vec<Ino> {
        let mut files: Vec<Ino> = self.in_log.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// The data of this inode goes into the log with the next operations.
    pub fn carry(&mut self, ino: Ino) {
        self.carried.push(ino);
    }

    /// The inodes whose data is to go along.
    pub fn carried(&self) -> &[Ino] {
        &self.carried
    }

    /// Those whose data is to go along are settled by a commit cycle, or appended.
    pub fn take_carried(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_lasts_until_the_disk_has_the_operation_of_the_last_one() {
        let mut promised = Promised::default();
        promised.promise(Ino(9), 5);
        promised.promise(Ino(4), 6);
        promised.promise(Ino(9), 8);
        promised.committed_up_to(7);
        assert_eq!(promised.files(), [Ino(9)]);
        assert!(
            !promised.is_settled(Ino(9), 7)
                && promised.is_settled(Ino(9), 8)
                && promised.is_settled(Ino(4), 0)
        );
        promised.forget(Ino(9));
        assert!(promised.files().is_empty());
    }
}
