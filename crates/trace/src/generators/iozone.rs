//! What IOzone's automatic tests do to one file (Norcott and Capps: IOzone Filesystem Benchmark), at file level.
//!
//! The file is written in records, written again, read, read again, then read and written at random, as many records
//! as it has each; every pass that writes ends with an fsync, and at the end the file is deleted.

use super::{Generator, OptionSpec, Pace, RATE, SEED, Values, steps};
use crate::{Op, Record, Records};
use bimetal_base::Result;
use bimetal_base::random::Random;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "iozone",
    about: "IOzone's passes over one file: write, rewrite, read, reread, random read, random write",
    options: &[
        OptionSpec::new("size", "64MiB", "bytes of the file"),
        OptionSpec::new("record", "64KiB", "bytes of one call"),
        RATE,
        SEED,
    ],
    make: begin,
};

/// What each pass does, and whether at random.
const PASSES: [(Op, bool); 6] = [
    (Op::Write, false),
    (Op::Write, false),
    (Op::Read, false),
    (Op::Read, false),
    (Op::Read, true),
    (Op::Write, true),
];

/// So many records can be counted in all passes.
const RECORDS_MAX: u64 = 1 << 56;

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let (size, record) = (values.some_size("size")?, values.some_size("record")?);
    if record > size {
        return Err(values.wrong("record", "at most size"));
    }
    let mut random = Random::new(values.count("seed")?, "iozone");
    let mut pace: Pace = values.pace()?;
    let records = size / record;
    if records > RECORDS_MAX {
        return Err(values.wrong("size", "at most 2^56 records"));
    }
    // A creation, the passes with their fsyncs, a deletion.
    let mut step = 0u64;
    let each = records + 1;
    Ok(steps(move || {
        loop {
            let at = step;
            step += 1;
            if at == 0 {
                return Some(Record::new(pace.next(), Op::Create, 0, 0));
            }
            let (pass, index) = ((at - 1) / each, (at - 1) % each);
            let Some((op, is_random)) = PASSES.get(pass as usize) else {
                return (at == 1 + each * PASSES.len() as u64)
                    .then(|| Record::new(pace.next(), Op::Delete, 0, 0));
            };
            match index == records {
                true if *op == Op::Write => return Some(Record::new(pace.next(), Op::Flush, 0, 0)),
                true => {}
                false => {
                    let index = if *is_random { random.below(records) } else { index };
                    return Some(Record::new(pace.next(), *op, index * record, record));
                }
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;

    #[test]
    fn each_pass_moves_the_file_once_and_those_that_write_end_with_an_fsync() {
        let records = generate("iozone:size=1MiB:record=64KiB");
        let count = |op| records.iter().filter(|record| record.op == op).count();
        assert_eq!((count(Op::Write), count(Op::Read), count(Op::Flush)), (48, 48, 3));
        assert_eq!((records[0].op, records.last().unwrap().op), (Op::Create, Op::Delete));
        assert!(records.iter().all(|record| record.end() <= 1 << 20));
    }
}
