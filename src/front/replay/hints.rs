//! Placement handles in a replay: which writes are told apart.
//!
//! The trace's own mark of metadata is handle 1, unless `--place` says otherwise: a range of bytes, a FAT volume's
//! metadata, or pages that are written again and again.

use super::nvram::{Takes, metadata_of};
use super::stack::{Filter, Io, Layer, Piece};
use crate::Result;
use crate::time::Time;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// What heat is counted in, bytes.
const PAGE_BYTES: u64 = 4096;

enum Rule {
    Ranges(Vec<Range<u64>>),
    /// Pages written so often within so many page writes: when each was last written, and how often in a row.
    Heat {
        writes: u32,
        within: u64,
        clock: u64,
        pages: FxHashMap<u64, (u64, u32)>,
    },
}

/// Gives writes their handle on the way to the layer below.
pub(super) struct Placing {
    below: Box<dyn Layer>,
    rule: Rule,
}

impl Placing {
    /// Handle 1 for what `takes` says.
    ///
    /// # Errors
    /// There is no FAT volume where one was named.
    pub fn new(below: Box<dyn Layer>, takes: &Takes) -> Result<Placing> {
        let rule = match takes {
            Takes::Range(range) => Rule::Ranges(std::iter::once(range.clone()).collect()),
            Takes::Fat(image) => Rule::Ranges(metadata_of(image)?),
            Takes::Heat(writes, within) => {
                Rule::Heat { writes: *writes, within: *within, clock: 0, pages: FxHashMap::default() }
            }
        };
        Ok(Placing { below, rule })
    }
}

impl Rule {
    fn handle(&mut self, piece: &Piece) -> u8 {
        match self {
            Rule::Ranges(ranges) => {
                let end = piece.offset.saturating_add(piece.len);
                u8::from(ranges.iter().any(|range| range.contains(&piece.offset) && end <= range.end))
            }
            Rule::Heat { writes, within, clock, pages } => {
                let mut hot = false;
                for page in piece.units(PAGE_BYTES) {
                    *clock += 1;
                    let (last, count) = pages.entry(page).or_default();
                    *count = if *clock - *last <= *within { count.saturating_add(1) } else { 1 };
                    *last = *clock;
                    hot = *count >= *writes;
                }
                u8::from(hot)
            }
        }
    }
}

impl Filter for Placing {
    fn below(&self) -> &dyn Layer {
        self.below.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Layer {
        self.below.as_mut()
    }

    fn pass(&mut self, at: Time, io: Io) -> Result<Time> {
        let io = match io {
            Io::Write(piece) => Io::Write(Piece { handle: self.rule.handle(&piece), ..piece }),
            io => io,
        };
        self.below.serve(at, io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_range_or_hot_gets_the_handle() {
        let piece = |offset| Piece { offset, len: 4096, durable: false, handle: 0 };
        let mut ranges = Rule::Ranges(vec![4096..8192, 8192..12288]);
        assert_eq!([0, 4096, 8192, 12288].map(|offset| ranges.handle(&piece(offset))), [0, 1, 1, 0]);
        let mut heat = Rule::Heat { writes: 3, within: 2, clock: 0, pages: FxHashMap::default() };
        let handles = [0, 4096, 0, 4096, 0, 4096, 8192, 8192, 0].map(|offset| heat.handle(&piece(offset)));
        assert_eq!(handles, [0, 0, 0, 0, 1, 1, 0, 0, 0]);
    }
}
