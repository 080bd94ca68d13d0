//! Which closed block of a unit has the fewest valid pages, without a look at all of them.
//!
//! Blocks are in groups of 64. Of each group a bit a block says which are closed, and its best one is known until a block is
//! closed or the best is closed no more: then the next search looks at the group again. Otherwise what is closed only loses
//! pages, and is compared with the best when it does. (It is closed before its last pages are programmed, but nothing is
//! searched for in between.) A search compares the best of all groups. Cost: O(1) a page, O(blocks of a unit ÷ 64 + 64) a
//! search. Memory: 24 bytes a group.

use super::{PageMap, State};
use crate::free::Levelling;
use std::ops::Range;

/// Blocks of a group: as many as a number has bits.
const GROUP: u32 = u64::BITS;

/// How good a block is to be cleaned, the best first: its valid pages, its [`tie`](PageMap::tie), its number.
type Rank = (u32, u32, u32);

#[derive(Clone, Copy)]
struct Group {
    /// The closed ones.
    closed: u64,
    /// The best of them; [`UNKNOWN`] if that is to be found again.
    best: Rank,
}

/// No page that is lost makes a block better than this.
const UNKNOWN: Rank = (0, 0, u32::MAX);
const NONE: Rank = (u32::MAX, u32::MAX, u32::MAX);

/// The blocks in groups.
pub(super) struct Groups(Vec<Group>);

impl Groups {
    /// Of so many blocks, none of them closed.
    pub fn new(blocks: u32) -> Groups {
        Groups(vec![Group { closed: 0, best: UNKNOWN }; blocks.div_ceil(GROUP) as usize])
    }

    fn of(&mut self, block: u32) -> (&mut Group, u64) {
        (&mut self.0[(block / GROUP) as usize], 1 << (block % GROUP))
    }
}

impl PageMap {
    /// Notes what a block is used for from now on.
    pub(super) fn set_state(&mut self, block: u32, state: State) {
        self.states[block as usize] = state;
        let (group, bit) = self.groups.of(block);
        let was_closed = group.closed & bit != 0;
        group.closed = if state == State::Closed { group.closed | bit } else { group.closed & !bit };
        if group.best.2 == block || state == State::Closed && !was_closed {
            group.best = UNKNOWN;
        }
    }

    /// Notes that a page of a block is no longer valid.
    #[inline]
    pub(super) fn note_lost(&mut self, block: u32) {
        let valid = self.valid[block as usize];
        let (group, bit) = self.groups.of(block);
        if valid <= group.best.0 && group.closed & bit != 0 {
            self.rank(block);
        }
    }

    /// Compares a closed block with the best of its group.
    fn rank(&mut self, block: u32) {
        // What the blocks' ties are depends on the time where wear is levelled by them.
        let steady = self.ties_worn || self.levelling != Levelling::Static;
        let level = if self.ties_worn { 0 } else { u32::MAX };
        let rank = (self.valid[block as usize], self.tie(block, level), block);
        let (group, _) = self.groups.of(block);
        if group.best != UNKNOWN {
            group.best = if steady { group.best.min(rank) } else { UNKNOWN };
        }
    }

    /// The closed block of `unit` with the fewest valid pages, of several that with the least [`tie`](Self::tie), and of
    /// those the first.
    pub(super) fn fewest_valid(&mut self, unit: usize) -> Option<u32> {
        let blocks = self.blocks_of(unit);
        let level = self.level_of_ties(unit);
        let mut best = NONE;
        for group in blocks.start / GROUP..blocks.end.div_ceil(GROUP) {
            let known = self.groups.0[group as usize].best;
            let found = if known == UNKNOWN { self.best_in_group(group, &blocks, level) } else { known };
            best = best.min(found);
        }
        (best != NONE).then_some(best.2)
    }

    /// The best block of a group that is in `blocks`, by a look at all of them.
    fn best_in_group(&mut self, group: u32, blocks: &Range<u32>, level: u32) -> Rank {
        let first = group * GROUP;
        let (begin, end) = (blocks.start.saturating_sub(first), (blocks.end - first).min(GROUP));
        let of_unit = u64::MAX << begin & u64::MAX >> (GROUP - end);
        let mut closed = self.groups.0[group as usize].closed & of_unit;
        let valid = &self.valid[first as usize..(first + end) as usize];
        let (mut fewest, mut having) = (u32::MAX, 0u64);
        while closed != 0 {
            let (bit, number) = (closed & closed.wrapping_neg(), closed.trailing_zeros());
            closed ^= bit;
            let valid = valid[number as usize];
            if valid <= fewest {
                having = if valid < fewest { bit } else { having | bit };
                fewest = valid;
            }
        }
        let mut best = NONE;
        while having != 0 {
            let block = first + having.trailing_zeros();
            having &= having - 1;
            best = best.min((fewest, self.tie(block, level), block));
        }
        // Of a group that lies across two units there is no one best block, and where ties change none for long.
        let steady = self.ties_worn || self.levelling != Levelling::Static;
        if steady && begin == 0 && (end == GROUP || blocks.end as usize == self.states.len()) {
            self.groups.0[group as usize].best = best;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::SCHEME;
    use crate::settings::Settings;
    use crate::{Ftl, Lpn};
    use bimetal_base::random::Random;
    use bimetal_base::time::Time;
    use bimetal_media::nand::{Nand, NandProfile, Payload};
    use bimetal_media::profile;
    use proptest::prelude::*;

    /// The same by a look at all of them.
    fn by_all(map: &PageMap, unit: usize) -> Option<u32> {
        let level = map.level_of_ties(unit);
        let closed = map.blocks_of(unit).filter(|block| map.states[*block as usize] == State::Closed);
        closed.min_by_key(|block| (map.valid[*block as usize], map.tie(*block, level), *block))
    }

    proptest! {
        #[test]
        fn groups_show_what_a_look_at_all_blocks_does(
            seed in 0u64..1000,
            (dies, blocks, pages) in (1u32..4, 12u32..200, 2u32..9),
            settings in prop::sample::select(vec![
                "", "level=none", "level=static:spread=2", "ties=lowest", "streams=one", "begin=short",
                "handles=3", "ties=lowest:level=static:spread=4",
            ]),
            fails in any::<bool>(),
        ) {
            let part = profile::load::<NandProfile>("slc-2k").unwrap().ideal();
            let grown_bad_per_million = if fails { 100.0 } else { 0.0 };
            let part = NandProfile { blocks, pages, dies, grown_bad_per_million, ..part };
            let nand = Nand::new(part, seed, true, Payload::None);
            let mut settings = Settings::parse(SCHEME.name, settings).unwrap();
            let mut map = PageMap::open(nand, &mut settings, None).unwrap();
            let (mut random, count) = (Random::new(seed, "pages"), map.logical_pages());
            for write in 0..4 * count {
                // Some pages more often than others, so that blocks differ.
                let of = if random.below(4) > 0 { count.div_ceil(5) } else { count };
                let page = if write < count { write } else { random.below(of) };
                let done = map.write_placed(Time::ZERO, Lpn(page), &[], (page % 3) as u8);
                if done.is_err() {
                    break;
                }
                if random.below(50) == 0 {
                    map.trim(Time::ZERO, Lpn(random.below(count))).unwrap();
                }
                let unit = random.below(u64::from(dies)) as usize;
                prop_assert_eq!(map.fewest_valid(unit), by_all(&map, unit), "write {}", write);
            }
        }
    }
}
