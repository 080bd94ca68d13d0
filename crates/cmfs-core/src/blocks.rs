//! The blocks of the part: what state each is in, and which to use, clean or erase next.
//!
//! A block goes through *erased*, *open* (one at a time), *full*, *emptied* (no page of it is live any more, but
//! the NVRAM may still point into it), *erasable*, and erased again. A block that holds a header which cut a file,
//! or the mark of a hole, keeps older pages from coming to life in a scan: it is erased only when no older block
//! has dead pages, as in YAFFS2.

use crate::media::Geometry;
use crate::sorted::Set;
use alloc::vec::Vec;

/// The state of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockState {
    /// Nothing is programmed.
    #[default]
    Erased,
    /// Pages are written to it.
    Open,
    /// Written, and some of it is live.
    Full,
    /// Nothing of it is live; the NVRAM may not know yet.
    Emptied,
    /// Nothing points into it.
    Erasable,
    /// Not to be used by the log: it failed, or holds format records.
    Bad,
}

/// How erases are spread over the good blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Fewest erases of a block.
    pub min: u32,
    /// Most.
    pub max: u32,
    /// Erases in all.
    pub total: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub state: BlockState,
    pub sequence: u32,
    /// Pages that a map or an object points at.
    pub live: u32,
    /// Pages that were programmed, the summary not counted.
    pub written: u32,
    pub erases: u32,
    /// It keeps older pages dead.
    pub guards: bool,
    /// It failed, or had to be corrected: emptied next and then given up.
    pub retire: bool,
    /// It holds what cannot be moved: it is not cleaned again in this mount.
    pub kept: bool,
}

impl Block {
    /// One that is not to be used.
    pub fn bad(erases: u32) -> Block {
        Block { state: BlockState::Bad, erases, ..Block::default() }
    }

    /// It can be used again once it is erased.
    fn is_idle(&self) -> bool {
        matches!(self.state, BlockState::Emptied | BlockState::Erasable) && !self.retire
    }

    /// Whether cleaning it gains room, where `oldest` is the oldest full block with dead pages.
    fn gains(&self, oldest: u32, usable: u32) -> bool {
        let takes_less = self.live < usable || self.retire;
        let may_go = !self.guards || self.sequence <= oldest;
        self.state == BlockState::Full && !self.kept && takes_less && may_go
    }

    fn is_full_and_dirty(&self) -> bool {
        self.state == BlockState::Full && self.written > self.live
    }
}

/// The table of blocks.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    table: Vec<Block>,
    geometry: Geometry,
    usable: u32,
    /// Erased ones, the least worn first.
    erased: Set<(u32, u32)>,
    /// Emptied ones the NVRAM may still point into.
    emptied: Vec<u32>,
    /// By sequence number.
    erasable: Set<(u32, u32)>,
    live: u64,
    /// Blocks that are not bad.
    good: u32,
    /// Emptied and erasable blocks that guard, by sequence number.
    guarding: Set<(u32, u32)>,
    /// Emptied and erasable blocks that do not.
    unguarded: usize,
    /// The oldest full block with dead pages, if that is known at the moment.
    oldest_full: Option<u32>,
    /// Blocks whose entry changed since this was last taken.
    changed: Set<u32>,
}

impl Blocks {
    /// All blocks erased and good.
    pub fn new(geometry: Geometry, usable: u32) -> Blocks {
        let count = geometry.blocks;
        let mut erased = Set::new();
        for block in 0..count {
            erased.add((0, block));
        }
        Blocks {
            table: alloc::vec![Block::default(); count as usize],
            geometry,
            usable,
            erased,
            emptied: Vec::new(),
            erasable: Set::new(),
            live: 0,
            good: count,
            guarding: Set::new(),
            unguarded: 0,
            oldest_full: None,
            changed: Set::new(),
        }
    }

    pub fn get(&self, block: u32) -> Block {
        self.table
            .get(block as usize)
            .copied()
            .unwrap_or(Block { state: BlockState::Bad, ..Block::default() })
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        (0u32..).zip(self.table.iter())
    }

    /// Blocks whose entry changed, each once; forgets them.
    pub fn take_changed(&mut self) -> Set<u32> {
        core::mem::take(&mut self.changed)
    }

    /// What was taken was not written.
    pub fn still_changed(&mut self, blocks: Set<u32>) {
        self.changed.extend(blocks.into_iter().map(|(block, ())| block));
    }

    /// Pages of a block that hold data and headers.
    pub fn usable(&self) -> u32 {
        self.usable
    }

    /// Live pages in all.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// What a record says of a block.
    pub fn put(&mut self, block: u32, entry: Block) {
        self.change(block, |old| *old = entry);
    }

    /// The log leaves the block alone.
    pub fn exclude(&mut self, block: u32) {
        self.change(block, |entry| *entry = Block::bad(entry.erases));
    }

    /// The block is marked bad.
    pub fn mark_bad(&mut self, block: u32) {
        self.change(block, |entry| entry.state = BlockState::Bad);
    }

    /// The block looks erased, but may not be.
    pub fn blank(&mut self, block: u32) {
        self.change(block, |entry| {
            *entry = Block { state: BlockState::Erasable, erases: entry.erases, ..Block::default() };
        });
    }

    /// The block was erased.
    pub fn erased(&mut self, block: u32) {
        self.change(block, |entry| *entry = Block { erases: entry.erases + 1, ..Block::default() });
    }

    /// The block is the one that pages are written to.
    pub fn open(&mut self, block: u32, sequence: u32) {
        self.change(block, |entry| {
            *entry =
                Block { state: BlockState::Open, sequence, live: 0, written: 0, guards: false, ..*entry };
        });
    }

    /// A page of the open block was programmed, and is live.
    pub fn programmed(&mut self, block: u32) {
        self.change(block, |entry| {
            entry.live += 1;
            entry.written += 1;
        });
    }

    /// A page of the open block failed: nothing more is written to it.
    pub fn fail(&mut self, block: u32) {
        self.change(block, |entry| {
            entry.retire = true;
            entry.written += 1;
        });
        self.close(block);
    }

    /// The block is emptied next, and then given up.
    pub fn retire(&mut self, block: u32) {
        self.change(block, |entry| entry.retire = true);
    }

    /// The block holds what cannot be moved.
    pub fn keep(&mut self, block: u32) {
        self.change(block, |entry| entry.kept = true);
    }

    /// The block keeps older pages dead.
    pub fn guard(&mut self, block: u32) {
        self.change(block, |entry| entry.guards = true);
    }

    /// The block was read in a replay up to a page; with a sequence number it is another one than was known.
    pub fn replayed(&mut self, block: u32, sequence: Option<u32>, end: u32, guards: bool) {
        let written = end.min(self.usable);
        self.change(block, |entry| {
            let (sequence, guarded) = sequence.map_or((entry.sequence, entry.guards), |new| (new, false));
            let guards = guards || guarded;
            *entry = Block { state: BlockState::Full, sequence, written, guards, ..*entry };
        });
    }

    /// Changes a block's entry; queues and counts follow.
    fn change(&mut self, block: u32, change: impl FnOnce(&mut Block)) {
        let Some(entry) = self.table.get_mut(block as usize) else { return };
        let old = *entry;
        change(entry);
        let new = *entry;
        self.changed.add(block);
        let place = |entry: &Block| (entry.state, entry.erases, entry.sequence, entry.guards, entry.retire);
        if place(&old) != place(&new) {
            self.leave(block, &old);
            self.enter(block, &new);
        }
        self.live = self.live + u64::from(new.live) - u64::from(old.live);
        self.follow_oldest(&old, &new);
    }

    fn follow_oldest(&mut self, old: &Block, new: &Block) {
        let Some(oldest) = self.oldest_full else { return };
        if new.is_full_and_dirty() {
            self.oldest_full = Some(oldest.min(new.sequence));
        } else if old.sequence == oldest {
            self.oldest_full = None;
        }
    }

    fn leave(&mut self, block: u32, old: &Block) {
        match old.state {
            BlockState::Erased => drop(self.erased.remove(&(old.erases, block))),
            BlockState::Emptied => self.emptied.retain(|other| *other != block),
            BlockState::Erasable => drop(self.erasable.remove(&(old.sequence, block))),
            BlockState::Bad => self.good += 1,
            BlockState::Open | BlockState::Full => {}
        }
        match old.is_idle() {
            true if old.guards => drop(self.guarding.remove(&(old.sequence, block))),
            true => self.unguarded -= 1,
            false => {}
        }
    }

    fn enter(&mut self, block: u32, new: &Block) {
        match new.state {
            BlockState::Erased => self.erased.add((new.erases, block)),
            BlockState::Emptied => self.emptied.push(block),
            BlockState::Erasable => self.erasable.add((new.sequence, block)),
            BlockState::Bad => self.good -= 1,
            BlockState::Open | BlockState::Full => {}
        }
        match new.is_idle() {
            true if new.guards => self.guarding.add((new.sequence, block)),
            true => self.unguarded += 1,
            false => {}
        }
    }

    /// A page of `block` is of no use any more.
    pub fn page_dies(&mut self, block: u32) {
        self.change(block, |entry| {
            entry.live = entry.live.saturating_sub(1);
            if entry.live == 0 && entry.state == BlockState::Full {
                entry.state = BlockState::Emptied;
            }
        });
    }

    /// A page of `block` is of use again.
    pub fn page_revives(&mut self, block: u32) {
        self.change(block, |entry| {
            entry.live += 1;
            if matches!(entry.state, BlockState::Emptied | BlockState::Erasable) {
                entry.state = BlockState::Full;
            }
        });
    }

    /// The open block is done with.
    pub fn close(&mut self, block: u32) {
        self.change(block, |entry| {
            entry.state = if entry.live == 0 { BlockState::Emptied } else { BlockState::Full };
        });
    }

    /// The NVRAM says the same as memory: what is emptied may be erased.
    pub fn committed(&mut self) {
        for block in core::mem::take(&mut self.emptied) {
            self.change(block, |entry| entry.state = BlockState::Erasable);
        }
    }

    /// How many emptied blocks wait for a commit.
    pub fn waiting(&self) -> usize {
        self.emptied.len()
    }

    /// Blocks that can be written after at most an update of the NVRAM and an erase, whatever is removed first. What is
    /// to be given up does not count.
    pub fn free_for_sure(&self) -> usize {
        self.erased.len() + self.unguarded
    }

    /// Blocks that guard and may be erased as things are: the next page that dies in an older block makes them wait.
    pub fn free_guards(&mut self) -> usize {
        if self.guarding.is_empty() {
            return 0;
        }
        let oldest = self.oldest_full();
        self.guarding.range(..(oldest, 0)).count()
    }

    /// Blocks that can be written after at most an update of the NVRAM and an erase.
    pub fn free(&mut self) -> usize {
        self.free_for_sure() + self.free_guards()
    }

    /// Erased blocks.
    pub fn erased_count(&self) -> usize {
        self.erased.len()
    }

    /// The erased blocks in order of place.
    pub fn erased_in_place(&self) -> impl Iterator<Item = u32> {
        self.iter().filter(|(_, entry)| entry.state == BlockState::Erased).map(|(block, _)| block)
    }

    /// The erased block to write next: of the least worn, the next behind `after`.
    pub fn next_erased(&self, after: u32) -> Option<u32> {
        let (least, _) = *self.erased.keys().next()?;
        let behind = self
            .erased
            .range((least, after.saturating_add(1))..=(least, u32::MAX))
            .map(|(key, ())| key)
            .next();
        behind.or_else(|| self.erased.keys().next()).map(|(_, block)| *block)
    }

    /// The first erased block behind `after` in order of place, whatever its wear: where a driver that knows
    /// nothing but the flash would go on.
    pub fn next_erased_in_place(&self, after: u32) -> Option<u32> {
        let count = self.geometry.blocks;
        let first = after.min(count - 1) + 1;
        let place = |block: u32| (block + count - first) % count;
        self.erased.keys().map(|(_, block)| *block).min_by_key(|block| place(*block))
    }

    /// A block to erase: one that may look erased already, the next behind `after`; else the oldest that nothing
    /// forbids to.
    pub fn next_erasable(&self, after: u32) -> Option<u32> {
        let blank = self.erasable.range((0, after.saturating_add(1))..=(0, u32::MAX)).next();
        if let Some(((_, block), ())) = blank.or_else(|| self.erasable.range(..=(0, u32::MAX)).next()) {
            return Some(*block);
        }
        let oldest = self.oldest_dirty();
        let mut all = self.erasable.keys().map(|(_, block)| *block);
        all.find(|block| {
            let entry = self.get(*block);
            !entry.guards || entry.sequence <= oldest
        })
    }

    /// Whether a block may be erased or cleaned: if it keeps older pages dead, no older block may have dead ones.
    fn may_go(&self, block: u32) -> bool {
        let entry = self.get(block);
        !entry.guards || entry.sequence <= self.oldest_dirty()
    }

    /// The sequence number of the oldest block with dead pages.
    fn oldest_dirty(&self) -> u32 {
        let is_dirty = |entry: &&Block| {
            let holds = !matches!(entry.state, BlockState::Erased | BlockState::Bad | BlockState::Open);
            holds && entry.written > entry.live && entry.sequence != 0
        };
        self.table.iter().filter(is_dirty).map(|entry| entry.sequence).min().unwrap_or(u32::MAX)
    }

    /// The sequence number of the oldest full block with dead pages.
    fn oldest_full(&mut self) -> u32 {
        let find =
            || self.table.iter().filter(|entry| entry.is_full_and_dirty()).map(|entry| entry.sequence).min();
        let oldest = self.oldest_full.unwrap_or_else(|| find().unwrap_or(u32::MAX));
        self.oldest_full = Some(oldest);
        oldest
    }

    /// The full block that costs least to clean for what it gains, of those with at most `most` live pages. What guards
    /// can be cleaned only if no full block with dead pages is older; the oldest of these gains all the blocks that wait
    /// for it, too.
    pub fn cheapest(&mut self, most: u64) -> Option<u32> {
        let oldest = self.oldest_full();
        let usable = self.usable;
        let waiting = self.guarding.range((oldest, 0)..).count() as u64;
        let can = |entry: &Block| entry.gains(oldest, usable) && u64::from(entry.live) <= most;
        let key = |entry: &Block| {
            let gained = if entry.sequence == oldest { 1 + waiting } else { 1 };
            (!entry.retire, u64::from(entry.live) * 1024 / gained, entry.sequence)
        };
        let candidates = self.iter().filter(|(_, entry)| can(entry));
        candidates.min_by_key(|(_, entry)| key(entry)).map(|(block, _)| block)
    }

    /// Whether a block can be erased once it is cleaned, and has fewer live pages than it takes.
    pub fn gains(&mut self, block: u32) -> bool {
        let oldest = self.oldest_full();
        self.get(block).gains(oldest, self.usable)
    }

    /// The blocks that keep older pages dead and hold nothing live, the oldest first.
    pub fn guarding(&self) -> Vec<u32> {
        self.guarding.keys().map(|(_, block)| *block).collect()
    }

    /// Nothing is left that the block keeps dead.
    pub fn unguard(&mut self, block: u32) {
        self.change(block, |entry| entry.guards = false);
    }

    /// The least worn full block, if it is behind the most worn block by more than `limit` erases.
    pub fn coldest(&self, limit: u32) -> Option<u32> {
        let most = self.table.iter().filter(|e| e.state != BlockState::Bad).map(|e| e.erases).max()?;
        let full = self.iter().filter(|(_, entry)| entry.state == BlockState::Full && !entry.kept);
        let (block, entry) = full.min_by_key(|(_, entry)| (entry.erases, entry.sequence))?;
        let (behind, found) = (most.saturating_sub(entry.erases), block);
        (behind > limit && self.may_go(found)).then_some(found)
    }

    /// How erases are spread.
    pub fn wear(&self) -> Wear {
        let good = || self.table.iter().filter(|entry| entry.state != BlockState::Bad);
        Wear {
            min: good().map(|entry| entry.erases).min().unwrap_or(0),
            max: good().map(|entry| entry.erases).max().unwrap_or(0),
            total: good().map(|entry| u64::from(entry.erases)).sum(),
        }
    }

    /// Pages that can be live at once, a few blocks kept free for cleaning.
    pub fn capacity(&self, reserve: u32) -> u64 {
        u64::from(self.good.saturating_sub(reserve)) * u64::from(self.usable)
    }

    /// Counts live pages anew: `pages` are all that are.
    pub fn recount(&mut self, live: &[u32]) {
        for (block, count) in (0u32..).zip(live.iter().copied()) {
            self.change(block, |entry| entry.live = count);
            let entry = self.get(block);
            match entry.state {
                BlockState::Full if count == 0 => self.change(block, |e| e.state = BlockState::Emptied),
                BlockState::Emptied | BlockState::Erasable if count > 0 => {
                    self.change(block, |e| e.state = BlockState::Full);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks() -> Blocks {
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 8 };
        Blocks::new(geometry, 63)
    }

    fn fill(blocks: &mut Blocks, block: u32, sequence: u32, live: u32) {
        blocks.change(block, |entry| {
            *entry = Block { state: BlockState::Full, sequence, live, written: 63, ..*entry };
        });
    }

    #[test]
    fn a_block_is_erased_only_after_the_commit_that_follows_its_last_page() {
        let mut blocks = blocks();
        fill(&mut blocks, 3, 0x1001, 1);
        assert_eq!((blocks.live, blocks.free()), (1, 7));
        blocks.page_dies(3);
        assert_eq!((blocks.get(3).state, blocks.next_erasable(0)), (BlockState::Emptied, None));
        blocks.committed();
        assert_eq!((blocks.get(3).state, blocks.next_erasable(0)), (BlockState::Erasable, Some(3)));
    }

    #[test]
    fn a_guarding_block_waits_until_no_older_one_has_dead_pages() {
        let mut blocks = blocks();
        fill(&mut blocks, 0, 0x1001, 60);
        fill(&mut blocks, 1, 0x1002, 1);
        blocks.change(1, |entry| entry.guards = true);
        assert_eq!((blocks.cheapest(63), blocks.cheapest(59)), (Some(0), None));
        blocks.change(0, |entry| entry.live = 63);
        assert_eq!(blocks.cheapest(63), Some(1));
    }

    #[test]
    fn the_least_worn_block_behind_the_last_one_is_next() {
        let mut blocks = blocks();
        assert_eq!((blocks.next_erased(2), blocks.next_erased(7)), (Some(3), Some(0)));
        blocks.change(3, |entry| entry.erases = 1);
        assert_eq!(blocks.next_erased(2), Some(4));
        assert_eq!(blocks.next_erased_in_place(2), Some(3));
    }
}
