//! The operations: their numbers, how many of them the disk half has, who waits for that, and the records of those it lacks.
//!
//! Invariants. Numbers rise by one, and none is used twice; only recovery, which runs old operations again, goes back.
//! What the disk has only rises. Records are of operations it lacks, in order; which of them the SSD's log has is known.

use super::oplist::OpList;
use super::record::Record;

/// The operations of a volume.
pub struct Operations {
    last: u64,
    committed: u64,
    wanted: u64,
    records: OpList,
}

impl Operations {
    /// Of a volume whose disk half has all up to `committed`.
    pub fn new(committed: u64) -> Operations {
        Operations { last: committed, committed, wanted: 0, records: OpList::default() }
    }

    /// The number of the last one.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The last one that the disk has.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// The number of the next one, which begins.
    pub fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Numbers up to `op` were used elsewhere.
    pub fn skip_to(&mut self, op: u64) {
        self.last = self.last.max(op);
    }

    /// Recovery is about to go on after operation `op`.
    pub fn run_again_after(&mut self, op: u64) {
        self.last = op;
    }

    /// Whether the disk has operation `op` and all before it.
    pub fn are_on_disk(&self, op: u64) -> bool {
        self.committed >= op
    }

    /// Whether the disk has all.
    pub fn all_on_disk(&self) -> bool {
        self.are_on_disk(self.last)
    }

    /// Somebody waits for the disk to have `op`.
    pub fn want(&mut self, op: u64) {
        self.wanted = self.wanted.max(op);
    }

    /// Whether somebody waits for what the disk does not have.
    pub fn is_wanted(&self) -> bool {
        self.wanted > self.committed
    }

    /// The disk has all up to `op`.
    pub fn committed_up_to(&mut self, op: u64) {
        debug_assert!(op >= self.committed, "the disk went back from {} to {op}", self.committed);
        self.committed = op;
        self.records.trim(op);
    }

    /// The records of what the disk lacks.
    pub fn records(&self) -> &OpList {
        &self.records
    }

    /// Lists the record of operation `op`.
    pub fn list(&mut self, op: u64, record: &Record) {
        self.records.push(op, record);
    }

    /// Shows the records that the log lacks, oldest first, and takes them as logged, up to what the taker cannot take.
    ///
    /// # Errors
    /// The taker's.
    pub fn log<E>(&mut self, take: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        self.records.try_take_unlogged(take)
    }

    /// The log has all records.
    pub fn all_logged(&mut self) {
        self.records.all_logged();
    }

    /// There is no log any more that records could go to.
    pub fn forget_records(&mut self) {
        self.records.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_satisfies_who_waits_and_drops_the_records_it_covers() {
        let mut ops = Operations::new(10);
        assert!(ops.all_on_disk() && !ops.is_wanted());
        for _ in 0..3 {
            let op = ops.begin();
            ops.list(op, &Record::Release { ino: op });
        }
        ops.want(12);
        assert!(ops.is_wanted() && !ops.are_on_disk(12) && ops.are_on_disk(10));
        ops.committed_up_to(12);
        assert!(!ops.is_wanted() && !ops.all_on_disk());
        let mut left = Vec::new();
        ops.records().show_all(|op, _| left.push(op));
        assert_eq!((left, ops.last()), (vec![13], 13));
    }

    #[test]
    fn what_the_disk_has_already_wakes_nobody() {
        let mut ops = Operations::new(10);
        ops.want(9);
        assert!(!ops.is_wanted());
        ops.skip_to(7);
        assert_eq!(ops.begin(), 11);
    }
}
