//! The deterministic page streams on which FTLs are compared: 64 pages a block, 400 logical blocks.
//!
//! Every stream first writes all 25 600 pages in order, then:
//!
//! - `seqow`: four times more the same.
//! - `uniform`: 100 000 pages at random.
//! - `hotseq`: a sequential pass over all but the first 640 pages, one of three hot pages after each write.
//! - `hotcold`: 100 000 pages, 80 % of them in the first fifth.
//! - `halfblock`: four times the first half of each block.
//! - `blockseq`: 2 000 random blocks, each written in order.
//! - `runs`: 6 000 runs of 1 to 32 pages from a random page on.
//!
//! Numbers come from the linear congruential generator that the published check values are of (Knuth's
//! MMIX multiplier, high 31 bits), whose seeds are part of the streams.

use super::{Generator, Parameter, RATE, Values, steps};
use crate::Result;
use crate::front::trace::{Op, Record, Records};

const PAGES_A_BLOCK: u64 = 64;
const BLOCKS: u64 = 400;
const PAGES: u64 = PAGES_A_BLOCK * BLOCKS;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "reference",
    about: "the page streams with published check values on which FTLs are compared",
    parameters: &[
        Parameter {
            name: "stream",
            default: "uniform",
            help: "seqow, uniform, hotseq, hotcold, halfblock, blockseq or runs",
        },
        Parameter { name: "page", default: "2KiB", help: "bytes of a page" },
        RATE,
    ],
    begin,
};

/// x ← 6364136223846793005·x + 1442695040888963407 modulo 2⁶⁴; a number is x's high 31 bits.
pub(super) struct Congruential(u64);

impl Congruential {
    pub fn new(seed: u64) -> Congruential {
        Congruential(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// The next number modulo `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

type Pages = Box<dyn Iterator<Item = u64> + Send>;

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let page = values.some_size("page")?;
    let Some(rest) = after_fill(values.text("stream")) else {
        return Err(values.wrong("stream", "one of the streams"));
    };
    let mut pages = (0..PAGES).chain(rest);
    let mut pace = values.pace()?;
    Ok(steps(move || Some(Record::new(pace.next(), Op::Write, pages.next()? * page, page))))
}

/// What a stream does once every page has been written.
fn after_fill(stream: &str) -> Option<Pages> {
    let random = |seed| Congruential::new(seed);
    Some(match stream {
        "seqow" => Box::new((0..4).flat_map(|_| 0..PAGES)),
        "uniform" => {
            let mut random = random(1);
            Box::new((0..100_000).map(move |_| random.below(PAGES)))
        }
        "hotseq" => {
            Box::new((0..50_000u64).flat_map(|i| [640 + i % (PAGES - 640), [1, 65, 130][i as usize % 3]]))
        }
        "hotcold" => {
            let mut random = random(2);
            Box::new((0..100_000).map(move |_| match (random.next(), random.next()) {
                (chance, page) if chance % 100 < 80 => page % 5120,
                (_, page) => 5120 + page % 20480,
            }))
        }
        "halfblock" => {
            let pass =
                || (0..BLOCKS).flat_map(|block| (0..PAGES_A_BLOCK / 2).map(move |page| block * 64 + page));
            Box::new((0..4).flat_map(move |_| pass()))
        }
        "blockseq" => {
            let mut random = random(3);
            let blocks = (0..2_000).map(move |_| random.below(BLOCKS) * PAGES_A_BLOCK);
            Box::new(blocks.flat_map(|first| first..first + PAGES_A_BLOCK))
        }
        "runs" => {
            let mut random = random(4);
            let runs = (0..6_000).map(move |_| (random.below(PAGES), 1 + random.below(32)));
            Box::new(runs.flat_map(|(start, len)| (start..start + len).map(|page| page % PAGES)))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fnv, generate};

    #[test]
    fn the_streams_are_the_published_ones() {
        for (stream, writes, check) in [
            ("seqow", 128_000, 0x3122690091cf9b83u64),
            ("uniform", 125_600, 0x01d881d75af02d48),
            ("hotseq", 125_600, 0x77e690a776ea24ff),
            ("hotcold", 125_600, 0x8ddb3644d8a88338),
            ("halfblock", 76_800, 0xdc7e28a47249fb83),
            ("blockseq", 153_600, 0x9b92ebeb13315c83),
            ("runs", 124_845, 0x51e2f0c1fe95ca2d),
        ] {
            let records = generate(&format!("reference:stream={stream}"));
            assert_eq!(records.len(), writes, "{stream}");
            let pages = records.iter().map(|record| record.offset / 2048);
            assert_eq!(fnv(pages), check, "{stream}");
        }
    }
}
