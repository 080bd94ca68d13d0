//! PostMark's transactions (Katcher: PostMark, a New File System Benchmark, NetApp TR-3022, 1997), at file
//! level: a mail server's small files.
//!
//! First `files` files are made. Each transaction then either reads a whole file or appends to one, and
//! either makes a file or deletes one, each pair drawn by its bias (0 to 10: how many of ten are the
//! first). At the end all files are deleted. Sizes are uniform between `min` and `max`; an append is of
//! 1 to `min` bytes, at most up to `max`. Files are written and read in calls of `block` bytes. Every file
//! is a unit of its own, numbers are not used again.

use super::{Generator, OptionSpec, RATE, SEED, Values, steps};
use crate::{Op, Record, Records};
use bimetal_base::Result;
use bimetal_base::random::Random;
use std::collections::VecDeque;
use std::ops::Range;

/// More calls than this are not made on a file, one after the other.
const BLOCKS_MAX: u64 = 1 << 24;
/// More files than this are not made: each that is there at a time takes 16 bytes.
const FILES_MAX: u64 = 1 << 28;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "postmark",
    about: "PostMark: small files made, read, appended to and deleted",
    options: &[
        OptionSpec::new("files", "1000", "files at the start"),
        OptionSpec::new("transactions", "20000", "how many"),
        OptionSpec::new("min", "500", "bytes of the smallest file"),
        OptionSpec::new("max", "10240", "bytes of the largest file"),
        OptionSpec::new("read", "5", "of ten reads and appends, how many are reads"),
        OptionSpec::new("create", "5", "of ten creations and deletions, how many are creations"),
        OptionSpec::new("block", "4KiB", "bytes of one call"),
        RATE,
        SEED,
    ],
    make: begin,
};

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let (min, max) = (values.some_size("min")?, values.some_size("max")?);
    if max < min {
        return Err(values.wrong("max", "at least min"));
    }
    let block = values.some_size("block")?;
    if max.div_ceil(block) > BLOCKS_MAX {
        return Err(values.wrong("max", "at most 16777216 blocks; choose a larger block"));
    }
    let (files, transactions) = (values.count("files")?, values.count("transactions")?);
    if files.checked_add(transactions).is_none_or(|made| made > FILES_MAX) {
        return Err(values.wrong("files", "at most 268435456 together with transactions"));
    }
    let bias = |name| match values.count(name)? {
        bias @ 0..=10 => Ok(bias as f64 / 10.0),
        _ => Err(values.wrong(name, "from 0 to 10")),
    };
    let mut mark = PostMark {
        random: Random::new(values.count("seed")?, "postmark"),
        sizes: (min, max),
        block,
        read: bias("read")?,
        create: bias("create")?,
        to_make: files,
        to_transact: transactions,
        made: 0,
        files: Vec::new(),
        parts: VecDeque::new(),
    };
    let mut pace = values.pace()?;
    Ok(steps(move || {
        loop {
            match mark.next_call() {
                Some(call) => return Some(Record { at: pace.next(), ..call }),
                None => mark.step()?,
            }
        }
    }))
}

/// Calls on a file that come one after the other: what is left of a range, or one call on the whole file.
struct Part {
    file: u32,
    op: Op,
    range: Range<u64>,
}

struct PostMark {
    random: Random,
    sizes: (u64, u64),
    block: u64,
    read: f64,
    create: f64,
    to_make: u64,
    to_transact: u64,
    made: u32,
    /// The files there are, with their sizes.
    files: Vec<(u32, u64)>,
    /// What a step does, not yet in calls: a file may be as long as there are numbers.
    parts: VecDeque<Part>,
}

impl PostMark {
    /// The next creation, transaction or deletion. `None`: all is done.
    fn step(&mut self) -> Option<()> {
        if let Some(left) = self.to_make.checked_sub(1) {
            self.to_make = left;
            self.make();
        } else if let Some(left) = self.to_transact.checked_sub(1) {
            self.to_transact = left;
            self.transact();
        } else {
            let (file, _) = self.files.pop()?;
            self.call(file, Op::Delete);
        }
        Some(())
    }

    fn transact(&mut self) {
        if !self.files.is_empty() {
            let which = self.random.below(self.files.len() as u64) as usize;
            if self.random.chance(self.read) { self.read_whole(which) } else { self.append(which) }
        }
        if self.random.chance(self.create) || self.files.is_empty() {
            self.make();
        } else {
            let which = self.random.below(self.files.len() as u64) as usize;
            let (file, _) = self.files.swap_remove(which);
            self.call(file, Op::Delete);
        }
    }

    fn make(&mut self) {
        let (min, max) = self.sizes;
        let size = min + self.random.below(max - min + 1);
        let file = self.made;
        self.made += 1;
        self.call(file, Op::Create);
        self.pieces(file, Op::Write, 0, size);
        self.files.push((file, size));
    }

    fn read_whole(&mut self, which: usize) {
        let (file, size) = self.files[which];
        self.pieces(file, Op::Read, 0, size);
    }

    fn append(&mut self, which: usize) {
        let (file, size) = self.files[which];
        let (min, max) = self.sizes;
        let more = (1 + self.random.below(min)).min(max - size.min(max));
        self.pieces(file, Op::Write, size, more);
        self.files[which].1 += more;
    }

    fn pieces(&mut self, file: u32, op: Op, from: u64, len: u64) {
        self.parts.push_back(Part { file, op, range: from..from + len });
    }

    fn call(&mut self, file: u32, op: Op) {
        self.parts.push_back(Part { file, op, range: 0..0 });
    }

    /// The next call of what was begun. `None`: a further step is due.
    fn next_call(&mut self) -> Option<Record> {
        loop {
            let Part { file, op, range } = self.parts.front_mut()?;
            let record =
                |offset, len| Record { unit: *file, ..Record::new(Default::default(), *op, offset, len) };
            if !op.is_data() {
                let whole = record(0, 0);
                self.parts.pop_front();
                return Some(whole);
            }
            if !range.is_empty() {
                let len = self.block.min(range.end - range.start);
                let piece = record(range.start, len);
                range.start += len;
                return Some(piece);
            }
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;
    use rustc_hash::FxHashMap;

    #[test]
    fn files_are_made_before_use_and_gone_at_the_end() {
        let records = generate("postmark:files=100:transactions=2000");
        let mut sizes = FxHashMap::default();
        for record in &records {
            match record.op {
                Op::Create => assert!(sizes.insert(record.unit, 0).is_none()),
                Op::Delete => assert!(sizes.remove(&record.unit).is_some_and(|size| size <= 10240)),
                Op::Write => {
                    let size = sizes.get_mut(&record.unit).unwrap();
                    assert_eq!(*size, record.offset);
                    *size = record.end();
                }
                Op::Read => assert!(record.end() <= sizes[&record.unit]),
                other => panic!("{other}"),
            }
        }
        assert!(sizes.is_empty());
    }

    #[test]
    fn biases_are_kept() {
        let records = generate("postmark:files=500:transactions=4000:read=10:create=10");
        let count = |op| records.iter().filter(|record| record.op == op).count();
        assert_eq!((count(Op::Create), count(Op::Delete)), (4500, 4500));
        assert!(records.iter().all(|record| record.op != Op::Write || record.offset % 4096 == 0));
    }
}
