//! The deterministic page streams on which translation layers are compared: see
//! [`streams`](bimetal_ftl::streams), where they are defined and checked against published values.
//!
//! With the default size, 400 logical blocks of 64 pages, they are the published ones; other sizes keep
//! their shape. Every stream first writes all pages in order.

use super::{Generator, OptionSpec, RATE, Values, steps};
use crate::{Op, Record, Records};
use bimetal_base::Result;
use bimetal_ftl::streams::Stream;

/// The streams by name.
const STREAMS: [(&str, Stream); 7] = [
    ("seqow", Stream::Sequential),
    ("uniform", Stream::Uniform),
    ("hotseq", Stream::HotSequential),
    ("hotcold", Stream::HotCold),
    ("halfblock", Stream::HalfBlocks),
    ("blockseq", Stream::WholeBlocks),
    ("runs", Stream::Runs),
];

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "reference",
    about: "the page streams with published check values on which FTLs are compared",
    options: &[
        OptionSpec::new("stream", "uniform", "seqow, uniform, hotseq, hotcold, halfblock, blockseq or runs"),
        OptionSpec::new("blocks", "400", "logical blocks"),
        OptionSpec::new("pages", "64", "pages of a block"),
        OptionSpec::new("page", "2KiB", "bytes of a page"),
        RATE,
    ],
    make: begin,
};

/// More pages than this do not fit the list that a stream is made as.
const PAGES_MAX: u64 = 1 << 24;
/// Fewer blocks than this have no place for the hot pages.
const BLOCKS_MIN: u64 = 11;

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let page = values.some_size("page")?;
    let name = values.text("stream");
    let Some((_, stream)) = STREAMS.iter().find(|(known, _)| *known == name) else {
        return Err(values.wrong("stream", "one of the streams"));
    };
    let (blocks, pages) = (values.count("blocks")?, values.count("pages")?);
    if blocks < BLOCKS_MIN || pages < 4 || blocks.checked_mul(pages).is_none_or(|all| all > PAGES_MAX) {
        return Err(values.wrong("blocks", "11 or more, with pages 4 or more and 2^24 pages in all"));
    }
    if (blocks * pages).checked_mul(page).is_none() {
        return Err(values.wrong("page", "a size of which all pages end before 2^64"));
    }
    let mut pace = values.pace()?;
    let mut list = None;
    let stream = *stream;
    Ok(steps(move || {
        let list = list.get_or_insert_with(|| stream.pages(blocks, pages).into_iter());
        Some(Record::new(pace.next(), Op::Write, list.next()? * page, page))
    }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fnv, generate};

    #[test]
    fn the_streams_are_the_published_ones() {
        for (stream, writes, check) in [
            ("seqow", 128_000, 0x3122690091cf9b83u64),
            ("uniform", 125_600, 0x01d881d75af02d48),
            ("runs", 124_845, 0x51e2f0c1fe95ca2d),
        ] {
            let records = generate(&format!("reference:stream={stream}"));
            assert_eq!(records.len(), writes, "{stream}");
            let pages = records.iter().map(|record| record.offset / 2048);
            assert_eq!(fnv(pages), check, "{stream}");
        }
    }
}
