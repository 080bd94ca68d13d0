//! Free blocks: the block bitmaps in memory, and taking and giving back runs of blocks.
//!
//! Each group has up to three views of its blocks. `disk` is what its bitmap says once the running
//! transaction is on the disk. `held` are blocks freed in a transaction that is not on the disk yet: after a
//! crash they still belong to their old owner, so they are not handed out before [`Space::release_held`].
//! `fresh` are blocks taken in the running transaction: nothing on the disk refers to them, so they may be
//! overwritten in place and are free again at once when given back.
//!
//! **Search.** At the wanted place if it is free; else first fit in the wanted group and the ones after it
//! for a run as long as wanted; then again for shorter ones. A group that was searched in vain remembers its
//! longest run. Bitmaps are read when first needed; the first pass reads only a few.
//!
//! **Promises.** Blocks are promised to data that has no place yet ([`Space::promise`]), and to the extent trees it will
//! be in as many as they can come to need ([`Space::promise_nodes`]); everything else is turned down when it would eat into
//! that. A slack (2 % of the blocks, at most 4096, like Linux) is kept for the trees: data is turned down when it would eat
//! into it, too.

use super::Space;
use super::bitmap::{Bitmap, next_one};
use super::group::{BLOCK_UNINIT, bitmap_sum};
use crate::buffers::Buffers;
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};

/// Bitmaps the first pass of a search may read from the device.
const READS_MAX: u32 = 8;

/// Free blocks in a row where short files are put one after the other.
const SHORT_FILES_RUN: u32 = 256;

/// Short files that a transaction continues where they end, each a place of its own for the disk to go to.
const CONTINUED_MAX: u32 = 16;

/// A file whose beginning is no longer is a short one.
pub(crate) const SHORT_FILE_BYTES: u32 = 64 << 10;

/// Blocks a caller may take beyond the promises once it has started to change something.
pub(crate) const GRANT: u64 = 8;

/// The blocks of a group.
pub(super) struct BlockMap {
    disk: Bitmap,
    held: Option<Bitmap>,
    fresh: Option<Bitmap>,
    held_count: u32,
    dirty: bool,
    /// No free block lies before it.
    hint: u32,
    /// No free run is longer.
    longest: u32,
    /// Blocks of the group.
    len: u32,
}

impl BlockMap {
    fn new(disk: Bitmap, len: u32) -> BlockMap {
        BlockMap { disk, held: None, fresh: None, held_count: 0, dirty: false, hint: 0, longest: len, len }
    }

    /// Word `index` of the blocks that may be handed out.
    fn usable(&self, index: usize) -> u64 {
        let held = self.held.as_ref().map_or(0, |held| held.words()[index]);
        !(self.disk.words()[index] | held)
    }

    fn is_usable(&self, at: u32) -> bool {
        self.usable(at as usize / 64) >> (at % 64) & 1 != 0
    }

    /// The length of the usable run at `at`, at most `want`.
    fn run_at(&self, at: u32, want: u32) -> u32 {
        let end = at.saturating_add(want).min(self.len);
        next_one(at, end, |index| !self.usable(index)) - at
    }

    /// The first usable run of at least `least` blocks, else the longest there is; cut to `want`.
    fn search(&mut self, want: u32, least: u32) -> Option<(u32, u32)> {
        let mut at = next_one(self.hint, self.len, |index| self.usable(index));
        self.hint = at;
        let mut best = (0, 0);
        while at < self.len {
            let run = self.run_at(at, want);
            if run >= least {
                return Some((at, run));
            }
            if run > best.1 {
                best = (at, run);
            }
            at = next_one(at + run, self.len, |index| self.usable(index));
        }
        self.longest = best.1;
        (best.1 > 0).then_some(best)
    }

    fn take(&mut self, at: u32, len: u32) {
        self.disk.set(at, len);
        let words = 64 * self.disk.words().len() as u32;
        self.fresh.get_or_insert_with(|| Bitmap::zeros(words)).set(at, len);
        self.dirty = true;
    }

    /// How many blocks from `at` on are all fresh, or all not; and which.
    fn fresh_run(&self, at: u32, len: u32) -> (u32, bool) {
        match &self.fresh {
            None => (len, false),
            Some(fresh) => (fresh.run(at, at + len), fresh.test(at)),
        }
    }

    /// Ends holding back `len` blocks from `at`.
    fn release(&mut self, at: u32, len: u32) {
        if let Some(held) = &mut self.held {
            held.clear(at, len);
        }
        self.held_count -= len;
        if self.held_count == 0 {
            self.held = None;
        }
        self.hint = self.hint.min(at);
        self.longest = self.len;
    }

    /// The image of what changed in the running transaction, if anything did; what was taken in it is fresh no more.
    pub fn freeze(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        self.fresh = None;
        Some(self.disk.to_bytes())
    }

    /// Has it written with the running transaction.
    pub fn touch(&mut self) {
        self.dirty = true;
    }

    /// Whether it can be dropped and read again.
    pub fn is_idle(&self) -> bool {
        !self.dirty && self.held_count == 0 && self.fresh.is_none()
    }
}

/// Where to look for blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The best block.
    pub at: u64,
    /// Any run there is welcome, however short: it continues an extent.
    pub exact: bool,
}

/// What a request for blocks may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Only what nobody was promised.
    Ordinary,
    /// Anything: it was promised before, or it is what the slack is for.
    Promised,
}

fn not_taken(at: u64, len: u32) -> Error {
    Error::corrupt("a block bitmap", "blocks of a file are marked as free", format!("{len} blocks from {at}"))
}

impl Space {
    /// Blocks that nobody has, was promised or is kept for trees; what was promised to those is of the slack first.
    fn spare(&self) -> u64 {
        self.spare_beside(if self.keeps_back { self.slack() } else { 0 })
    }

    /// What is kept for trees.
    fn slack(&self) -> u64 {
        (self.geometry.blocks / 50).min(4096)
    }

    fn spare_beside(&self, slack: u64) -> u64 {
        let tied = self.count.promised + self.count.nodes.max(slack);
        (self.count.blocks - self.count.held).saturating_sub(tied)
    }

    /// Blocks that nobody has or was promised.
    fn unpromised(&self) -> u64 {
        (self.count.blocks - self.count.held).saturating_sub(self.count.promised + self.count.nodes)
    }

    /// Promises `blocks` to data that will be placed later; `keep` more must stay free.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn promise(&mut self, blocks: u64, keep: u64) -> Result<()> {
        self.check_data(blocks, keep)?;
        self.count.promised += blocks;
        Ok(())
    }

    /// As [`promise`](Self::promise), to data that could stay where it is. So it leaves a part in 16 of the disk to what could
    /// not, and what is kept back otherwise, also where that is kept back from nothing else: what is repeated must find the room
    /// that it had.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn promise_to_move(&mut self, blocks: u64) -> Result<()> {
        let keep = self.geometry.root_blocks + self.geometry.blocks / 16;
        if blocks.saturating_add(keep) > self.spare_beside(self.slack()) {
            return Err(Error::NoSpace("too few free blocks to move what has its place"));
        }
        self.count.promised += blocks;
        Ok(())
    }

    /// Makes sure that so many blocks could be promised to data.
    pub fn check_data(&self, blocks: u64, keep: u64) -> Result<()> {
        let keep = if self.keeps_back { keep } else { 0 };
        if blocks > 0 && blocks.saturating_add(keep) > self.spare() {
            return Err(Error::NoSpace("all blocks are in use or promised"));
        }
        Ok(())
    }

    /// Takes back a promise.
    pub fn unpromise(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.count.promised, "more is taken back than was promised");
        self.count.promised = self.count.promised.saturating_sub(blocks);
    }

    /// Promises `blocks` more to extent trees, from the slack, too.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn promise_nodes(&mut self, blocks: u64) -> Result<()> {
        if blocks > self.unpromised() {
            return Err(Error::NoSpace("no free blocks for where a file's extents are listed"));
        }
        self.count.nodes += blocks;
        Ok(())
    }

    /// Takes back a promise to extent trees.
    pub fn unpromise_nodes(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.count.nodes, "more is taken back than was promised");
        self.count.nodes = self.count.nodes.saturating_sub(blocks);
    }

    /// The most that could be promised, with `keep` more left free, once nothing is held any more.
    pub fn promisable(&self, keep: u64) -> u64 {
        (self.spare() + self.count.held).saturating_sub(keep)
    }

    /// Makes sure that `blocks` can be taken beyond all promises.
    pub fn check_room(&self, blocks: u64, claim: Claim) -> Result<()> {
        let room = match claim {
            Claim::Ordinary => self.spare(),
            Claim::Promised => self.count.blocks - self.count.held,
        };
        if blocks > room { Err(Error::NoSpace("no free blocks")) } else { Ok(()) }
    }

    /// Takes a run of at most `want` blocks near `goal`; at least one, or an error.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; a bitmap that cannot be read or is wrong.
    pub fn take_blocks(&mut self, buffers: &Buffers, goal: Goal, want: u32) -> Result<(u64, u32)> {
        if self.count.blocks == self.count.held {
            return Err(Error::NoSpace("no free blocks"));
        }
        let at = goal.at.clamp(self.geometry.first_data_block, self.geometry.blocks - 1);
        let (first, place) = self.geometry.group_of(at);
        if goal.exact {
            let map = self.block_map(buffers, first)?;
            if map.is_usable(place) {
                let len = map.run_at(place, want);
                return Ok(self.take(first, place, len));
            }
        }
        let whole = self.geometry.blocks_per_group / 4 * 3;
        for (least, reads) in
            [(want.min(whole), READS_MAX), (want.min(whole).div_ceil(8), READS_MAX), (1, u32::MAX)]
        {
            if let Some((group, at, len)) = self.find_run(buffers, first, want, least, reads)? {
                return Ok(self.take(group, at, len));
            }
        }
        Err(Error::NoSpace("no free blocks"))
    }

    /// Takes blocks for a short file: behind those of the last short file, so that what is written at the same time
    /// reaches the disk in few long writes, whatever holes there are (ext4's locality groups do the same). A file that
    /// goes on at an exact goal, free for all of it, is continued there if that is behind blocks of the same
    /// transaction, and a few others in each transaction are. At most `want`; where no long run is free, as
    /// [`take_blocks`](Self::take_blocks).
    ///
    /// # Errors
    /// As there.
    pub fn take_for_short(&mut self, buffers: &Buffers, goal: Goal, want: u32) -> Result<(u64, u32)> {
        if self.count.blocks == self.count.held {
            return Err(Error::NoSpace("no free blocks"));
        }
        if goal.exact && self.are_free(buffers, goal.at, want)? {
            let beside = self.short_files == Some(goal.at) || self.fresh_run(goal.at - 1, 1).1;
            if beside || self.continued < CONTINUED_MAX {
                self.continued += u32::from(!beside);
                return self.take_blocks(buffers, goal, want);
            }
        }
        let near = self.short_files.unwrap_or(goal.at).min(self.geometry.blocks - 1);
        let (group, place) = self.geometry.group_of(near);
        let found = match self.short_files.is_some() && self.are_free(buffers, near, want)? {
            true => Some((group, place, want)),
            false => self.find_run(buffers, group, SHORT_FILES_RUN, SHORT_FILES_RUN, READS_MAX)?,
        };
        let taken = match found {
            Some((group, at, _)) => self.take(group, at, want),
            None => self.take_blocks(buffers, goal, want)?,
        };
        self.short_files = found.map(|_| taken.0 + u64::from(taken.1));
        Ok(taken)
    }

    /// Whether `len` blocks of one group from `at` on can be taken.
    fn are_free(&mut self, buffers: &Buffers, at: u64, len: u32) -> Result<bool> {
        if !(self.geometry.first_data_block..self.geometry.blocks).contains(&at) {
            return Ok(false);
        }
        let (group, place) = self.geometry.group_of(at);
        let map = self.block_map(buffers, group)?;
        Ok(map.is_usable(place) && map.run_at(place, len) == len)
    }

    /// A run of `least` to `want` usable blocks in the first group from `first` on that has one, with its group;
    /// bitmaps are read for at most `reads` groups.
    fn find_run(
        &mut self,
        buffers: &Buffers,
        first: u32,
        want: u32,
        least: u32,
        mut reads: u32,
    ) -> Result<Option<(u32, u32, u32)>> {
        let groups = self.geometry.groups;
        let mut unread = None;
        for step in 0..groups {
            let group = (first + step) % groups;
            let entry = &self.groups[group as usize];
            match &entry.blocks {
                _ if entry.desc.free_blocks < least => continue,
                Some(map) if map.longest < least || entry.desc.free_blocks - map.held_count < least => {
                    continue;
                }
                None if reads == 0 => continue,
                None => reads -= 1,
                Some(_) => {}
            }
            let map = match self.block_map(buffers, group) {
                Ok(map) => map,
                Err(error) => {
                    // What cannot be read is not handed out; there are other groups.
                    unread = Some(error);
                    continue;
                }
            };
            if let Some((at, len)) = map.search(want, least)
                && len >= least
            {
                return Ok(Some((group, at, len)));
            }
        }
        match unread {
            Some(error) if least == 1 => Err(error),
            _ => Ok(None),
        }
    }

    fn take(&mut self, group: u32, at: u32, len: u32) -> (u64, u32) {
        let entry = &mut self.groups[group as usize];
        entry.desc.free_blocks = entry.desc.free_blocks.saturating_sub(len);
        entry.desc.flags &= !BLOCK_UNINIT;
        if let Some(map) = &mut entry.blocks {
            map.take(at, len);
        }
        self.count.blocks -= u64::from(len);
        self.touch(group);
        (self.geometry.group_start(group) + u64::from(at), len)
    }

    /// Gives back a run of blocks. Those taken in the running transaction are free at once, the others
    /// once it is on the disk. Buffers of the run are dropped if `buffered`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one of the blocks is not in use; a bitmap that cannot be read.
    pub fn give_blocks(&mut self, buffers: &mut Buffers, at: u64, len: u32, buffered: bool) -> Result<()> {
        let (mut at, mut left) = (at, len);
        while left > 0 {
            let (group, place) = self.geometry.group_of(at);
            let part = left.min(self.geometry.group_blocks(group) - place);
            self.give_in_group(buffers, group, place, part)?;
            if buffered {
                (at..at + u64::from(part)).for_each(|block| buffers.forget(block));
            }
            at += u64::from(part);
            left -= part;
        }
        Ok(())
    }

    fn give_in_group(&mut self, buffers: &Buffers, group: u32, place: u32, len: u32) -> Result<()> {
        let start = self.geometry.group_start(group);
        let map = self.block_map(buffers, group)?;
        if map.disk.count(place, len) != len {
            return Err(not_taken(start + u64::from(place), len));
        }
        map.disk.clear(place, len);
        map.dirty = true;
        let words = 64 * map.disk.words().len() as u32;
        let (mut at, end, mut held) = (place, place + len, 0);
        let mut gone = Vec::new();
        while at < end {
            let (run, fresh) = map.fresh_run(at, end - at);
            if fresh {
                map.fresh.iter_mut().for_each(|bits| bits.clear(at, run));
                map.hint = map.hint.min(at);
                map.longest = map.len;
            } else {
                map.held.get_or_insert_with(|| Bitmap::zeros(words)).set(at, run);
                map.held_count += run;
                held += run;
                gone.push((DiskBlock(start + u64::from(at)), run));
            }
            at += run;
        }
        self.freed.append(&mut gone);
        self.groups[group as usize].desc.free_blocks += len;
        self.count.blocks += u64::from(len);
        self.count.held += u64::from(held);
        self.touch(group);
        Ok(())
    }

    /// The transaction that freed these runs is on the disk: they may be handed out again.
    pub fn release_held(&mut self, runs: &[(DiskBlock, u32)]) {
        for (at, len) in runs {
            let (mut at, mut left) = (at.0, *len);
            while left > 0 {
                let (group, place) = self.geometry.group_of(at);
                let part = left.min(self.geometry.group_blocks(group) - place);
                if let Some(map) = &mut self.groups[group as usize].blocks {
                    map.release(place, part);
                }
                self.count.held -= u64::from(part);
                at += u64::from(part);
                left -= part;
            }
        }
    }

    /// How many of the `len` blocks from `at` (in one group at least one) are all taken in the running
    /// transaction, or all not; and which.
    pub fn fresh_run(&self, at: u64, len: u32) -> (u32, bool) {
        let (group, place) = self.geometry.group_of(at);
        let part = len.min(self.geometry.group_blocks(group) - place);
        match &self.groups[group as usize].blocks {
            Some(map) => map.fresh_run(place, part),
            None => (part, false),
        }
    }

    /// Makes sure that all blocks of a run are marked as taken.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if not; a bitmap that cannot be read or is wrong.
    pub fn check_taken(&mut self, buffers: &Buffers, at: u64, len: u32) -> Result<()> {
        let (mut at, mut left) = (at, len);
        while left > 0 {
            let (group, place) = self.geometry.group_of(at);
            let part = left.min(self.geometry.group_blocks(group) - place);
            if self.block_map(buffers, group)?.disk.count(place, part) != part {
                return Err(not_taken(at, part));
            }
            at += u64::from(part);
            left -= part;
        }
        Ok(())
    }

    /// The block bitmap of a group, read or made if it is not in memory.
    pub(super) fn block_map(&mut self, buffers: &Buffers, group: u32) -> Result<&mut BlockMap> {
        if self.groups[group as usize].blocks.is_none() {
            let map = self.read_block_map(buffers, group)?;
            self.groups[group as usize].blocks = Some(Box::new(map));
            if self.groups[group as usize].inodes.is_none() {
                self.loaded.push(group);
            }
        }
        Ok(self.groups[group as usize].blocks.as_mut().expect("just put there"))
    }

    fn read_block_map(&self, buffers: &Buffers, group: u32) -> Result<BlockMap> {
        let len = self.geometry.group_blocks(group);
        let desc = self.desc(group);
        if desc.has(BLOCK_UNINIT) {
            return Ok(BlockMap::new(self.fresh_block_map(group), len));
        }
        let bytes = buffers.fetch_bitmap(desc.block_bitmap)?;
        let bad = |why: &str| {
            Err(Error::corrupt("a block bitmap", why, format!("group {group}, block {}", desc.block_bitmap)))
        };
        let sum = bitmap_sum(&bytes, self.geometry.blocks_per_group, &self.geometry);
        if sum.is_some_and(|sum| sum != desc.block_sum) {
            return bad("the checksum is wrong");
        }
        let mut map = Bitmap::from_bytes(&bytes);
        let start = self.geometry.group_start(group);
        for (from, to) in self.zones.within(start, start + u64::from(len)) {
            if map.count((from - start) as u32, (to - from) as u32) as u64 != to - from {
                return bad("it calls blocks of the file system itself free");
            }
        }
        if len - map.count(0, len) != desc.free_blocks {
            return bad("it disagrees with the group's count of free blocks");
        }
        map.set(len, 8 * self.geometry.block_bytes - len);
        Ok(BlockMap::new(map, len))
    }

    /// What the bitmap of a group that was never written would say.
    fn fresh_block_map(&self, group: u32) -> Bitmap {
        let bits = 8 * self.geometry.block_bytes;
        let len = self.geometry.group_blocks(group);
        let start = self.geometry.group_start(group);
        let mut map = Bitmap::zeros(bits);
        for (from, to) in self.zones.within(start, start + u64::from(len)) {
            map.set((from - start) as u32, (to - from) as u32);
        }
        map.set(len, bits - len);
        map
    }
}
