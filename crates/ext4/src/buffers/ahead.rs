//! Read-ahead of metadata: which blocks are read together with one that is not in memory.
//!
//! A disk needs some 8 ms to get to a block and 1 ms for each 128 KiB it then reads. Two things say that neighbours
//! are about to be wanted:
//!
//! - *Streams*. A block just after (or before) what was last read near it: the next read is four times as long, up to
//!   [`READ_MAX`]. Anything else begins a stream with a short read. It stays inside the bounds its caller gives, an
//!   inode table's used part or one extent of a directory, since only there neighbours are of one kind.
//! - *Hints*. Who lists a directory will ask for its inodes, and then for the blocks of the directories among them. The
//!   blocks of both are noted, and nothing is read for them alone; but a read that is made anyway goes on to those
//!   that lie near, over gaps of up to [`GAP_MAX`].
//!
//! So `find` of a cold tree reads the inode tables it needs once, in long requests, whatever order names hash to.
//!
//! Bounded: eight streams and [`HINTS_MAX`] hints (past that all are forgotten, they only cost speed).

use std::collections::BTreeSet;
use std::ops::Range;

/// Longest read, bytes: 9 ms at 120 MB/s, as long as getting there takes.
pub(super) const READ_MAX: u64 = 1 << 20;
/// Longest stretch nobody asked for that is read over, bytes: 2 ms.
const GAP_MAX: u64 = 256 << 10;
/// Blocks hinted at, at most: some 300 KiB of memory.
const HINTS_MAX: usize = 8192;
/// By how much reads of a stream grow.
const GROWTH: u64 = 4;
/// Streams followed at a time.
const STREAMS: usize = 8;

#[derive(Clone, Default)]
struct Stream {
    /// What was last read.
    last: Range<u64>,
    used: u64,
}

impl Stream {
    /// Whether a block comes just after or before what was read.
    fn is_near(&self, block: u64) -> bool {
        let loose = ((self.last.end - self.last.start) / GROWTH).max(2);
        (self.last.end..self.last.end + loose).contains(&block)
            || (self.last.start.saturating_sub(loose)..self.last.start).contains(&block)
    }
}

/// Streams and hints of one file system. All in blocks.
pub(super) struct Ahead {
    streams: [Stream; STREAMS],
    hints: BTreeSet<u64>,
    read_max: u64,
    gap_max: u64,
    turn: u64,
}

impl Ahead {
    /// For blocks of `1 << block_bits` bytes, of which `cache` stay in memory.
    pub fn new(block_bits: u32, cache: usize) -> Ahead {
        // A read that pushed out a good part of what is in memory would do more harm than good.
        let read_max = (READ_MAX >> block_bits).min(cache as u64 / 16).max(1);
        Ahead {
            streams: Default::default(),
            hints: BTreeSet::new(),
            read_max,
            gap_max: (GAP_MAX >> block_bits).min(read_max / 4),
            turn: 0,
        }
    }

    /// Notes that a block will be asked for, if it is not in memory.
    pub fn hint(&mut self, block: u64) {
        if self.hints.len() >= HINTS_MAX {
            self.hints.clear();
        }
        self.hints.insert(block);
    }

    /// What to read together, at least `block`, in order: of `bounds`, cut into parts of one length, the part it is in
    /// (of `least` blocks to begin with), and where hints lead. What lies between two of the answer's blocks and is not in it is read over.
    pub fn choose(&mut self, block: u64, bounds: &Range<u64>, least: u64) -> Vec<u64> {
        let len = self.stream_len(block, least);
        let aligned = block - block.saturating_sub(bounds.start) % len;
        let range = aligned.max(bounds.start)..(aligned + len).min(bounds.end);
        let range = range.start.min(block)..range.end.max(block + 1);
        let (range, met) = self.along_hints(range);
        self.note(block, &range);
        let is_met = |at: &u64| bounds.contains(at) || *at == block || met.binary_search(at).is_ok();
        range.filter(is_met).collect()
    }

    /// The length of the next read at `block`.
    fn stream_len(&self, block: u64, least: u64) -> u64 {
        let near = self.streams.iter().find(|stream| stream.is_near(block));
        let len = near.map_or(least, |stream| (stream.last.end - stream.last.start) * GROWTH);
        len.next_power_of_two().clamp(1, self.read_max.next_power_of_two()).min(self.read_max.max(1))
    }

    /// Goes on in both directions to blocks that were hinted at; these hints have done their work.
    fn along_hints(&mut self, mut range: Range<u64>) -> (Range<u64>, Vec<u64>) {
        while let Some(&next) = self.hints.range(range.end..).next()
            && next - range.end <= self.gap_max
            && next + 1 - range.start <= self.read_max
        {
            range.end = next + 1;
        }
        while let Some(&before) = self.hints.range(..range.start).next_back()
            && range.start - before - 1 <= self.gap_max
            && range.end - before <= self.read_max
        {
            range.start = before;
        }
        let met: Vec<u64> = self.hints.range(range.clone()).copied().collect();
        met.iter().for_each(|hint| {
            self.hints.remove(hint);
        });
        (range, met)
    }

    fn note(&mut self, block: u64, read: &Range<u64>) {
        self.turn += 1;
        let near = self.streams.iter().position(|stream| stream.is_near(block));
        let oldest = || (0..STREAMS).min_by_key(|&at| self.streams[at].used).expect("there are streams");
        let at = near.unwrap_or_else(oldest);
        self.streams[at] = Stream { last: read.clone(), used: self.turn };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Range<u64> = 1000..5096;

    fn ahead() -> Ahead {
        Ahead::new(12, 16_384)
    }

    fn span(blocks: &[u64]) -> u64 {
        blocks[blocks.len() - 1] + 1 - blocks[0]
    }

    /// Reads every block of `order` that no earlier read had; how many reads, and the longest.
    fn walk(ahead: &mut Ahead, order: impl IntoIterator<Item = u64>) -> (usize, u64) {
        let (mut have, mut reads, mut longest) = (BTreeSet::new(), 0, 0);
        for block in order {
            if !have.contains(&block) {
                let blocks = ahead.choose(block, &TABLE, 4);
                assert!(blocks.contains(&block) && blocks.iter().all(|at| TABLE.contains(at)), "{blocks:?}");
                (reads, longest) = (reads + 1, longest.max(span(&blocks)));
                have.extend(blocks);
            }
        }
        (reads, longest)
    }

    #[test]
    fn a_table_read_one_block_after_the_other_takes_long_reads_either_way() {
        let (forward, longest) = walk(&mut ahead(), TABLE);
        assert!(forward <= 4 + 4096 / 256 && longest == 256, "{forward} reads, the longest of {longest}");
        let (back, _) = walk(&mut ahead(), TABLE.rev());
        assert!(back <= 4 + 4096 / 256, "{back} reads");
    }

    #[test]
    fn blocks_here_and_there_are_read_with_a_few_neighbours_only() {
        let mut ahead = ahead();
        for step in 0..2000 {
            let blocks = ahead.choose(TABLE.start + step * 1_234_577 % 4000, &TABLE, 4);
            assert!(blocks.len() <= 16, "{blocks:?}");
        }
    }

    #[test]
    fn what_was_hinted_at_is_read_along_over_small_gaps_and_once() {
        let mut ahead = ahead();
        // The table blocks of a directory's 64 names, in the order of their hashes.
        let hinted: Vec<u64> = (0..64).map(|name| TABLE.start + name * 37 % 64 * 10).collect();
        hinted.iter().for_each(|block| ahead.hint(*block));
        let (reads, longest) = walk(&mut ahead, hinted);
        assert!(reads <= 4 && longest <= 256, "{reads} reads, the longest of {longest}");
        assert!(ahead.hints.is_empty());
    }

    #[test]
    fn hints_that_lie_far_away_lead_nowhere_and_are_bounded() {
        let mut ahead = ahead();
        ahead.hint(TABLE.start + 500);
        assert_eq!(ahead.choose(TABLE.start, &TABLE, 4), (TABLE.start..TABLE.start + 4).collect::<Vec<_>>());
        (0..100_000).for_each(|block| ahead.hint(block * 1000));
        assert!(ahead.hints.len() <= HINTS_MAX);
    }

    #[test]
    fn a_hint_outside_the_bounds_is_taken_and_what_lies_between_is_not() {
        let mut ahead = ahead();
        ahead.hint(TABLE.end + 10);
        let blocks = ahead.choose(TABLE.end - 1, &TABLE, 4);
        assert_eq!(blocks, [TABLE.end - 4, TABLE.end - 3, TABLE.end - 2, TABLE.end - 1, TABLE.end + 10]);
    }

    #[test]
    fn a_small_cache_is_not_pushed_out_by_read_ahead() {
        let mut ahead = Ahead::new(12, 64);
        (0..100).for_each(|step| ahead.hint(TABLE.start + step * 2));
        for block in TABLE {
            let blocks = ahead.choose(block, &TABLE, 4);
            assert!(span(&blocks) <= 4, "{blocks:?}");
        }
    }
}
