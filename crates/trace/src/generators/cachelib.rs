//! What a flash cache in the manner of CacheLib writes: small objects into buckets at random places of a small area, large ones one
//! behind the other into an area that is filled over and over (Allison and others, Towards Efficient Flash Caches with Emerging NVMe
//! Flexible Data Placement SSDs, EuroSys 2025, section 2).
//!
//! The small objects' area, a set of buckets found by hash, is the end of the volume; a small object rewrites its bucket. Large objects
//! are gathered to regions, which are written in order of age. What is small is marked as metadata, so that it carries
//! placement handle 1.

use super::{Generator, OptionSpec, RATE, SEED, Values, steps};
use crate::{Flags, Op, Record, Records};
use bimetal_base::Result;
use bimetal_base::random::Random;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "cachelib",
    about: "writes of a flash cache: small objects at random places of a small area, large ones round and round",
    options: &[
        OptionSpec::new("size", "1GiB", "bytes of the cache"),
        OptionSpec::new("small", "4", "percent of them for small objects"),
        OptionSpec::new("written", "50", "percent of the bytes written that are small objects'"),
        OptionSpec::new("bucket", "4KiB", "bytes of a bucket of small objects"),
        OptionSpec::new("piece", "64KiB", "bytes of a write of large objects"),
        OptionSpec::new("passes", "4", "how often as many bytes are written as the cache has"),
        RATE,
        SEED,
    ],
    make: begin,
};

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let (size, bucket, piece) =
        (values.size("size")?, values.some_size("bucket")?, values.some_size("piece")?);
    let (small, written) = (values.percent("small")?, values.percent("written")?);
    let buckets = (size as f64 * small) as u64 / bucket;
    let pieces = size.saturating_sub(buckets * bucket) / piece;
    if written > 0.0 && buckets == 0 || written < 1.0 && pieces == 0 {
        return Err(values.wrong("size", "room for a bucket and a piece"));
    }
    let (mut left, mut pace) = (size.saturating_mul(values.count("passes")?), values.pace()?);
    let mut chance = Random::new(values.count("seed")?, "cachelib");
    // Of all requests so many are small, that the bytes are as asked.
    let of_requests = written / bucket as f64 / (written / bucket as f64 + (1.0 - written) / piece as f64);
    let mut next = 0;
    Ok(steps(move || {
        let is_small = chance.chance(of_requests);
        let len = if is_small { bucket } else { piece };
        left = left.checked_sub(len)?;
        if is_small {
            let offset = pieces * piece + chance.below(buckets) * bucket;
            return Some(Record { flags: Flags::META, ..Record::new(pace.next(), Op::Write, offset, len) });
        }
        let offset = next * piece;
        next = (next + 1) % pieces;
        Some(Record::new(pace.next(), Op::Write, offset, len))
    }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;

    #[test]
    fn small_objects_stay_in_their_area_and_large_ones_go_round() {
        let records = generate("cachelib:size=64MiB:written=30:passes=3");
        let (small, large): (Vec<&Record>, Vec<&Record>) =
            records.iter().partition(|record| record.flags.has(Flags::META));
        let border = large.iter().map(|record| record.end()).max().unwrap();
        assert!(
            small
                .iter()
                .all(|record| record.offset >= border && record.end() <= 64 << 20 && record.len == 4096)
        );
        assert!(small.iter().map(|record| record.end()).max().unwrap() - border > (64 << 20) / 26);
        assert!(large.windows(2).all(|two| two[1].offset == two[0].end() % border));
        let bytes = |of: &[&Record]| of.iter().map(|record| record.len).sum::<u64>() as f64;
        let all = bytes(&small) + bytes(&large);
        assert!((all / f64::from(192 << 20) - 1.0).abs() < 0.001, "{all}");
        assert!((bytes(&small) / all - 0.3).abs() < 0.01, "{}", bytes(&small) / all);
    }

    #[test]
    fn all_small_and_all_large_are_possible() {
        assert!(generate("cachelib:size=8MiB:written=100:passes=1").iter().all(|record| record.len == 4096));
        let large = generate("cachelib:size=8MiB:written=0:small=0:passes=2");
        assert_eq!((large.len(), large[128].offset), (256, 0));
    }
}
