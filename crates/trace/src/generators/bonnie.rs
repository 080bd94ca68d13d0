//! What Bonnie++ does (Bray, Coker), at file level: a large file, then many small ones.
//!
//! The file is written in blocks, then each block is read, changed and written again, then the file is read. `seeks`
//! blocks at random places are read, one in ten of them changed. Then `files` empty files are made, in order, and
//! deleted at random.

use super::{Generator, OptionSpec, RATE, SEED, Values, steps};
use crate::{Op, Record, Records};
use bimetal_base::Result;
use bimetal_base::random::Random;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "bonnie",
    about: "Bonnie++: a file written, rewritten, read and sought in, then many small files",
    options: &[
        OptionSpec::new("size", "64MiB", "bytes of the file"),
        OptionSpec::new("block", "8KiB", "bytes of one call"),
        OptionSpec::new("seeks", "8000", "reads at random places"),
        OptionSpec::new("files", "4096", "small files"),
        RATE,
        SEED,
    ],
    make: begin,
};

/// More files than this are not made: the order in which they go is laid out in memory, 4 bytes each.
const FILES_MAX: u32 = 1 << 24;
/// Of so many blocks that are sought one is written again.
const CHANGED_ONE_IN: u64 = 10;

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let (size, block) = (values.some_size("size")?, values.some_size("block")?);
    let (seeks, files) = (values.count("seeks")?, values.count("files")?);
    let Some(files) = u32::try_from(files).ok().filter(|files| *files <= FILES_MAX) else {
        return Err(values.wrong("files", "at most 16777216"));
    };
    if block > size {
        return Err(values.wrong("block", "at most size"));
    }
    let mut random = Random::new(values.count("seed")?, "bonnie");
    let mut pace = values.pace()?;
    let blocks = size / block;
    let at_block = move |op, index: u64| Record::new(Default::default(), op, index * block, block);
    let whole = |op, unit| Record { unit, ..Record::new(Default::default(), op, 0, 0) };
    let written = (0..blocks).map(move |index| at_block(Op::Write, index));
    let rewritten =
        (0..blocks).flat_map(move |index| [at_block(Op::Read, index), at_block(Op::Write, index)]);
    let read = (0..blocks).map(move |index| at_block(Op::Read, index));
    let mut order: Vec<u32> = (1..=files).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    let sought = (0..seeks).flat_map(move |_| {
        let index = random.below(blocks);
        let changed = random.below(CHANGED_ONE_IN) == 0;
        [Some(at_block(Op::Read, index)), changed.then(|| at_block(Op::Write, index))].into_iter().flatten()
    });
    let mut all = std::iter::once(whole(Op::Create, 0))
        .chain(written)
        .chain([whole(Op::Flush, 0)])
        .chain(rewritten)
        .chain([whole(Op::Flush, 0)])
        .chain(read)
        .chain(sought)
        .chain([whole(Op::Delete, 0)])
        .chain((1..=files).map(move |unit| whole(Op::Create, unit)))
        .chain(order.into_iter().map(move |unit| whole(Op::Delete, unit)));
    Ok(steps(move || all.next().map(|record| Record { at: pace.next(), ..record })))
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;

    #[test]
    fn a_file_is_moved_four_times_and_all_that_is_made_is_deleted() {
        let records = generate("bonnie:size=1MiB:block=8KiB:seeks=100:files=50");
        let count = |op| records.iter().filter(|record| record.op == op).count();
        assert_eq!((count(Op::Create), count(Op::Delete), count(Op::Flush)), (51, 51, 2));
        assert_eq!(count(Op::Read), 128 + 128 + 100);
        let changed = count(Op::Write) - 256;
        assert!((1..30).contains(&changed), "{changed}");
    }
}
