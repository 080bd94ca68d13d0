//! The operations that the disk half does not have yet, in order, as encoded records.
//!
//! One buffer and an index: appending allocates nothing once the buffer has grown, and dropping what a commit
//! covered is one move of memory a commit.

use super::record::Record;
use std::collections::VecDeque;

struct Operation {
    op: u64,
    len: u32,
}

/// Records after the last committed operation.
#[derive(Default)]
pub struct OpList {
    bytes: Vec<u8>,
    entries: VecDeque<Operation>,
    logged_entries: usize,
    logged_bytes: usize,
}

impl OpList {
    /// Appends the record of operation `op`.
    pub fn push(&mut self, op: u64, record: &Record) {
        let before = self.bytes.len();
        record.encode(&mut self.bytes);
        self.entries.push_back(Operation { op, len: (self.bytes.len() - before) as u32 });
    }

    /// Size of all records, bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Size of the records the log lacks, bytes.
    pub fn unlogged_bytes(&self) -> usize {
        self.bytes.len() - self.logged_bytes
    }

    /// Shows what the log lacks, oldest first, and takes it as logged, up to what the taker cannot take.
    ///
    /// # Errors
    /// The taker's.
    pub fn try_take_unlogged<E>(
        &mut self,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for entry in self.entries.range(self.logged_entries..) {
            let end = self.logged_bytes + entry.len as usize;
            take(entry.op, &self.bytes[self.logged_bytes..end])?;
            self.logged_bytes = end;
            self.logged_entries += 1;
        }
        Ok(())
    }

    /// Shows all, oldest first.
    pub fn show_all(&self, mut show: impl FnMut(u64, &[u8])) {
        let mut at = 0;
        for entry in &self.entries {
            let end = at + entry.len as usize;
            show(entry.op, &self.bytes[at..end]);
            at = end;
        }
    }

    /// The log has all.
    pub fn all_logged(&mut self) {
        self.logged_entries = self.entries.len();
        self.logged_bytes = self.bytes.len();
    }

    /// Drops the records up to `op`: the disk has them.
    pub fn trim(&mut self, op: u64) {
        let count = self.entries.partition_point(|entry| entry.op <= op);
        let bytes: usize = self.entries.drain(..count).map(|entry| entry.len as usize).sum();
        self.bytes.drain(..bytes);
        self.logged_entries = self.logged_entries.saturating_sub(count);
        self.logged_bytes = self.logged_bytes.saturating_sub(bytes);
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.trim(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The operations the log lacks; the taker refuses what comes after `most` of them.
    fn take(list: &mut OpList, most: usize) -> Vec<u64> {
        let mut seen = Vec::new();
        let taken = list.try_take_unlogged(|op, bytes| {
            if seen.len() == most {
                return Err(());
            }
            assert_eq!(Record::decode(bytes, op).unwrap(), Record::Release { ino: op * 1000 });
            seen.push(op);
            Ok(())
        });
        assert_eq!(taken.is_err(), seen.len() == most);
        seen
    }

    fn ops(list: &mut OpList) -> Vec<u64> {
        take(list, usize::MAX)
    }

    #[test]
    fn each_record_is_shown_once_until_the_log_starts_anew() {
        let mut list = OpList::default();
        for op in 1..=5 {
            list.push(op, &Record::Release { ino: op * 1000 });
        }
        assert_eq!(ops(&mut list), [1, 2, 3, 4, 5]);
        assert_eq!(ops(&mut list).len(), 0);
        list.push(6, &Record::Release { ino: 6000 });
        list.trim(2);
        assert_eq!(ops(&mut list), [6]);
        let mut all = Vec::new();
        list.show_all(|op, _| all.push(op));
        assert_eq!(all, [3, 4, 5, 6]);
        list.clear();
        assert_eq!((list.len_bytes(), ops(&mut list).len()), (0, 0));
    }

    #[test]
    fn what_the_log_does_not_take_is_offered_again() {
        let mut list = OpList::default();
        (1..=4).for_each(|op| list.push(op, &Record::Release { ino: op * 1000 }));
        assert_eq!(take(&mut list, 2), [1, 2]);
        assert_eq!(ops(&mut list), [3, 4]);
    }

    #[test]
    fn trimming_past_what_was_logged_keeps_the_rest_unlogged() {
        let mut list = OpList::default();
        list.push(1, &Record::Release { ino: 1000 });
        ops(&mut list);
        list.push(2, &Record::Release { ino: 2000 });
        list.push(3, &Record::Release { ino: 3000 });
        list.trim(2);
        assert_eq!(ops(&mut list), [3]);
    }
}
