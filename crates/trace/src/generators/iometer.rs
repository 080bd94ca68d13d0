//! Requests like Iometer's: of one size, a part of them at random places, the others each where the last
//! one ended; a part reads, the others writes.
//!
//! The two parts are drawn for each request by itself, as Iometer does: a sequential request continues
//! from the last one whether that was random or not. Places are multiples of the request's size; the end
//! of the area is followed by its start. With `random=100` and `random=60` these are the 4 KiB overwrites
//! of Lee and others (CSWLRU, figures 10 to 12); `random=0` is purely sequential.

use super::{Generator, OptionSpec, RATE, SEED, Values, steps};
use crate::{Op, Record, Records};
use bimetal_base::Result;
use bimetal_base::random::Random;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "iometer",
    about: "requests of one size, part random and part sequential, part reads and part writes",
    options: &[
        OptionSpec::new("size", "1GiB", "bytes of the area"),
        OptionSpec::new("block", "4KiB", "bytes of a request"),
        OptionSpec::new("requests", "262144", "how many"),
        OptionSpec::new("random", "100", "percent at random places"),
        OptionSpec::new("read", "0", "percent reads"),
        RATE,
        SEED,
    ],
    make: begin,
};

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let block = values.some_size("block")?;
    let places = values.size("size")? / block;
    if places == 0 {
        return Err(values.wrong("size", "as large as one block"));
    }
    let (random, read) = (values.percent("random")?, values.percent("read")?);
    let mut left = values.count("requests")?;
    let mut pace = values.pace()?;
    let mut chance = Random::new(values.count("seed")?, "iometer");
    let mut next = 0;
    Ok(steps(move || {
        left = left.checked_sub(1)?;
        let place = if chance.chance(random) { chance.below(places) } else { next };
        next = (place + 1) % places;
        let op = if chance.chance(read) { Op::Read } else { Op::Write };
        Some(Record::new(pace.next(), op, place * block, block))
    }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;

    fn continues(records: &[Record]) -> f64 {
        let pairs = records.windows(2).filter(|pair| pair[1].offset == pair[0].end()).count();
        pairs as f64 / (records.len() - 1) as f64
    }

    #[test]
    fn the_parts_are_as_asked() {
        let mixed = generate("iometer:random=60:read=30:requests=20000");
        assert_eq!(mixed.len(), 20000);
        assert!((continues(&mixed) - 0.4).abs() < 0.02);
        let reads = mixed.iter().filter(|record| record.op == Op::Read).count() as f64 / 20000.0;
        assert!((reads - 0.3).abs() < 0.02, "{reads}");
        assert!(mixed.iter().all(|record| record.len == 4096 && record.end() <= 1 << 30));
    }

    #[test]
    fn a_sequential_trace_goes_round() {
        let records = generate("iometer:random=0:size=16KiB:requests=6");
        let offsets: Vec<_> = records.iter().map(|record| record.offset / 4096).collect();
        assert_eq!(offsets, [0, 1, 2, 3, 0, 1]);
        assert_eq!(records[5].at.0, 5_000_000);
    }
}
