//! Between which operations a recovery had better not commit.
//!
//! The log has of each byte what the last operation made of it: blocks that were bound and then overwritten are bound no more, and
//! the newer contents come with the later operation. Run up to somewhere in between, the file is as long as the earlier
//! operation made it and has zeros there, on the disk alone. So has one that is cut, punched or removed later: nothing is bound of what goes. So a commit that may as well come later does. One that
//! must come, since a transaction takes no more, does not ask.

use super::record::{Record, fallocate_of};
use crate::ssd::{Record as LogRecord, RecordBody};
use bimetal_vfs::Fallocate;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Stretches of operation numbers, each from one that makes a file so long to one that brings contents within that length, or
/// takes some away, or removes it.
pub(super) struct Superseded(Vec<Range<u64>>);

/// How long a file was made, and by which operation first; longer ones are later.
#[derive(Default)]
struct Lengths(Vec<(u64, u64)>);

impl Lengths {
    fn reaches(&mut self, op: u64, size: u64) {
        if self.0.last().is_none_or(|&(_, longest)| longest < size) {
            self.0.push((op, size));
        }
    }

    /// What is cut off is none of its contents any more.
    fn cut(&mut self, size: u64) {
        let kept = self.0.partition_point(|&(_, length)| length <= size);
        if let Some(&(op, _)) = self.0.get(kept) {
            self.0.truncate(kept);
            self.reaches(op, size);
        }
    }

    /// The first operation that made it longer than up to this byte.
    fn first_beyond(&self, offset: u64) -> Option<u64> {
        self.0.get(self.0.partition_point(|&(_, length)| length <= offset)).map(|&(op, _)| op)
    }
}

/// Sorts ranges and makes one of those that touch.
pub(super) fn join(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
}

impl Superseded {
    /// Of the records of operations after `from` and up to `until`; what is bound counts up to `complete`. They are in order.
    pub fn of(records: &[LogRecord], from: u64, complete: u64, until: u64, block_bytes: u64) -> Superseded {
        let mut files: FxHashMap<u64, Lengths> = FxHashMap::default();
        let mut stretches = Vec::new();
        for LogRecord { op, body } in records {
            let op = *op;
            if op <= from || op > until {
                continue;
            }
            let mut brings = |lengths: &Lengths, offset| {
                stretches
                    .extend(lengths.first_beyond(offset).filter(|&first| first < op).map(|first| first..op));
            };
            match body {
                RecordBody::Fresh { ino, file_block, inode, .. } if op <= complete => {
                    let lengths = files.entry(ino.0).or_default();
                    brings(lengths, u64::from(*file_block) * block_bytes);
                    lengths.reaches(op, inode.size);
                }
                RecordBody::Fresh { .. } => {}
                RecordBody::Operation(bytes) => match Record::decode(bytes, op) {
                    Ok(Record::Data { ino, offset, .. }) => brings(files.entry(ino).or_default(), offset),
                    Ok(Record::Contents { ino, size, .. }) => files.entry(ino).or_default().reaches(op, size),
                    Ok(Record::Truncate { ino, size, .. }) => {
                        let lengths = files.entry(ino).or_default();
                        brings(lengths, size);
                        lengths.cut(size);
                        lengths.reaches(op, size);
                    }
                    Ok(Record::Fallocate { ino, what, offset, size, .. }) => {
                        let lengths = files.entry(ino).or_default();
                        if !matches!(fallocate_of(what, op), Ok(Fallocate::Reserve { .. })) {
                            brings(lengths, offset);
                        }
                        lengths.reaches(op, size);
                    }
                    // Nothing is bound any more of what goes.
                    Ok(
                        Record::Remove { was: Some((ino, _)), .. }
                        | Record::Rename { were: Some((_, Some((ino, _)))), .. }
                        | Record::Release { ino },
                    ) => brings(files.entry(ino).or_default(), 0),
                    // The number was another file's before.
                    Ok(Record::Create { ino, .. }) => drop(files.remove(&ino)),
                    _ => {}
                },
            }
        }
        join(&mut stretches);
        Superseded(stretches)
    }

    /// Whether a file would have holes in it once all up to this operation are run.
    pub fn has_holes_after(&self, op: u64) -> bool {
        let next = self.0.partition_point(|stretch| stretch.start <= op);
        next.checked_sub(1).is_some_and(|last| op < self.0[last].end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::fallocate_code;
    use super::*;
    use crate::ssd::{DupInode, Run};
    use bimetal_base::units::{Ino, SsdBlock};

    fn bound(op: u64, ino: u64, file_block: u32, size: u64) -> LogRecord {
        let (run, inode) = (Run { at: SsdBlock(0), len: 1 }, DupInode { size, ..DupInode::default() });
        LogRecord { op, body: RecordBody::Fresh { ino: Ino(ino), file_block, run, inode } }
    }

    fn logged(op: u64, record: &Record) -> LogRecord {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        LogRecord { op, body: RecordBody::Operation(bytes.into()) }
    }

    fn barred(records: &[LogRecord], from: u64, complete: u64) -> Vec<u64> {
        let superseded = Superseded::of(records, from, complete, 90, 4096);
        (0..100).filter(|&op| superseded.has_holes_after(op)).collect()
    }

    #[test]
    fn contents_within_what_was_there_before_are_waited_for_and_those_behind_it_are_not() {
        let data = |op, ino, offset| logged(op, &Record::Data { ino, offset, bytes: b"x" });
        let within = [bound(3, 12, 0, 20_000), data(6, 12, 8192)];
        assert_eq!(barred(&within, 0, 90), [3, 4, 5]);
        assert_eq!(barred(&within, 3, 90), [0; 0], "the disk has it");
        assert_eq!(barred(&within, 0, 2), [0; 0], "it is not brought");
        assert_eq!(barred(&[bound(3, 12, 0, 8192), data(6, 12, 8192)], 0, 90), [0; 0], "behind it");
        assert_eq!(barred(&[bound(3, 12, 0, 20_000), data(6, 13, 8192)], 0, 90), [0; 0], "another file");
        assert_eq!(barred(&[bound(3, 12, 0, 20_000), bound(3, 12, 3, 20_000)], 0, 90), [0; 0], "at once");
        let both = [bound(3, 12, 0, 20_000), bound(4, 13, 0, 9000), data(6, 12, 0), bound(8, 13, 1, 9000)];
        assert_eq!(barred(&both, 0, 90), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_is_cut_off_is_a_hole_until_it_is_and_what_is_removed_until_it_is_gone() {
        let data = |op, offset| logged(op, &Record::Data { ino: 12, offset, bytes: b"x" });
        let cut = logged(4, &Record::Truncate { ino: 12, size: 5000, old: 20_000, at: (0, 0) });
        let records = [bound(3, 12, 0, 20_000), cut, data(6, 8192), data(7, 4096)];
        assert_eq!(barred(&records, 0, 90), [3, 4, 5, 6], "what is left is brought at last");
        assert_eq!(barred(&records[..3], 0, 90), [3], "behind what is left nothing is");
        let longer = logged(3, &Record::Truncate { ino: 12, size: 20_000, old: 0, at: (0, 0) });
        assert_eq!(
            barred(&[longer, data(6, 8192)], 0, 90),
            [3, 4, 5],
            "what was there in between is bound no more"
        );
        let of_range = |what| {
            let (ino, what) = (12, fallocate_code(what));
            logged(6, &Record::Fallocate { ino, what, offset: 8192, len: 4096, size: 20_000, at: (0, 0) })
        };
        assert_eq!(barred(&[bound(3, 12, 0, 20_000), of_range(Fallocate::Punch)], 0, 90), [3, 4, 5]);
        let reserved = of_range(Fallocate::Reserve { keep_size: true });
        assert_eq!(barred(&[bound(3, 12, 0, 20_000), reserved], 0, 90), [0; 0], "it takes nothing away");
        let made = |ino| bound(3, ino, 0, 20_000);
        let removed = Record::Remove { parent: 2, name: b"a", dir: false, at: (0, 0), was: Some((12, 1)) };
        for gone in [removed, Record::Release { ino: 12 }] {
            assert_eq!(barred(&[made(12), logged(5, &gone)], 0, 90), [3, 4]);
            assert_eq!(barred(&[made(13), logged(5, &gone)], 0, 90), [0; 0]);
        }
    }
}
