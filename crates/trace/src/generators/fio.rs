//! One job of fio (Axboe: Flexible I/O Tester), at file level: a file is laid out, then read and written in blocks.

use super::{Generator, OptionSpec, RATE, SEED, Values, steps};
use crate::{Op, Record, Records};
use bimetal_base::Result;
use bimetal_base::random::Random;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "fio-job",
    about: "a job of fio on one file: blocks read and written, in order or at random, with fsyncs",
    options: &[
        OptionSpec::new("size", "64MiB", "bytes of the file"),
        OptionSpec::new("block", "4KiB", "bytes of one call"),
        OptionSpec::new("requests", "16384", "calls, beside laying out the file"),
        OptionSpec::new("random", "100", "percent at random places, the others in order"),
        OptionSpec::new("read", "0", "percent that read"),
        OptionSpec::new("fsync", "0", "writes between two fsyncs; 0: one, at the end"),
        RATE,
        SEED,
    ],
    make: begin,
};

/// Bytes of one call that lays out the file.
const LAID_OUT_BYTES: u64 = 1 << 20;

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let (size, block) = (values.some_size("size")?, values.some_size("block")?);
    if block > size {
        return Err(values.wrong("block", "at most size"));
    }
    let (requests, every) = (values.count("requests")?, values.count("fsync")?);
    let (scattered, reads) = (values.percent("random")?, values.percent("read")?);
    let mut random = Random::new(values.count("seed")?, "fio");
    let mut pace = values.pace()?;
    let new = |op, offset, len| Record::new(Default::default(), op, offset, len);
    let layout = (0..size).step_by(LAID_OUT_BYTES as usize);
    let layout = layout.map(move |at| new(Op::Write, at, LAID_OUT_BYTES.min(size - at)));
    let (mut next, mut unsynced) = (0, 0);
    let job = (0..requests).flat_map(move |_| {
        let index = if random.chance(scattered) { random.below(size / block) } else { next };
        next = (index + 1) % (size / block);
        let op = if random.chance(reads) { Op::Read } else { Op::Write };
        unsynced += u64::from(op == Op::Write);
        let syncs = every > 0 && unsynced == every;
        if syncs {
            unsynced = 0;
        }
        [Some(new(op, index * block, block)), syncs.then(|| new(Op::Flush, 0, 0))].into_iter().flatten()
    });
    let begun = [new(Op::Create, 0, 0)].into_iter().chain(layout).chain([new(Op::Flush, 0, 0)]);
    let mut all = begun.chain(job).chain([new(Op::Flush, 0, 0)]);
    Ok(steps(move || all.next().map(|record| Record { at: pace.next(), ..record })))
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;

    #[test]
    fn a_job_lays_out_its_file_and_syncs_as_often_as_asked() {
        let records = generate("fio-job:size=2MiB:requests=100:fsync=10:read=0");
        let count = |op| records.iter().filter(|record| record.op == op).count();
        assert_eq!((count(Op::Create), count(Op::Write), count(Op::Flush)), (1, 2 + 100, 2 + 10));
        let mixed = generate("fio-job:size=2MiB:requests=1000:read=50:random=0");
        let reads = mixed.iter().filter(|record| record.op == Op::Read).count();
        assert!((400..600).contains(&reads), "{reads}");
    }
}
