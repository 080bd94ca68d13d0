//! Cleaning: what is live in a block moves to the log's end, so that the block can be erased.
//!
//! The block with the fewest live pages is cleaned, a few pages for every page written: as many as it takes to
//! gain more than is written, at most [`Config::copies_max`](super::Config::copies_max). With each copy taking a
//! read and a program, and one erase at most, that bounds the pause. When the least worn full block is
//! [`Config::wear_limit`](super::Config::wear_limit) erases behind the most worn, it is cleaned too, so that its
//! cold pages do not keep it from being used.
//!
//! Whatever is done, room for two blocks of pages is left behind: with that of one any block can be cleaned, the oldest one
//! with dead pages among them, which all blocks that guard wait for, and each that gains leaves more room than there was.
//! So what is dead can be had back, all of it, and a part that is full can be emptied. Blocks that guard are not counted:
//! the next page that dies may make them wait. The power costs the rest of the open block each time it goes; that is why
//! it is two. Where it went again and again while a block was cleaned, and nothing is left, the copies it left are
//! [given up](Volume::give_up_copies).
//!
//! A live page that cannot be read is moved like others: with its tags, and a checksum that it has not. So it stays an error
//! of its object, and the block can be erased.

use super::Stats;
use super::volume::Volume;
use crate::blocks::{Block, BlockState};
use crate::error::{Error, Result};
use crate::media::{Geometry, Nand, Nvram};
use crate::object::{DELETED, NONE};
use crate::sorted;
use crate::tags::{Packed, PageKind};
use alloc::vec::Vec;

/// A block being cleaned.
#[derive(Clone, Debug)]
pub(super) struct Cleaning {
    block: u32,
    /// Its sequence number: with another it is another block.
    sequence: u32,
    /// Its pages still to be looked at, with their tags, the last first.
    pages: Vec<(u32, Packed)>,
    /// Copies for each page written.
    pace: u32,
}

/// What a page that guards keeps dead in older blocks: pages of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    object: u32,
    from: u32,
    to: u32,
    /// Its headers, too.
    headers: bool,
    /// The tags do not say: it may do less.
    may_do_less: bool,
}

impl Mark {
    pub fn of(tags: &Packed, geometry: &Geometry) -> Option<Mark> {
        let all = |object| Mark { object, from: 0, to: u32::MAX, headers: true, may_do_less: false };
        match tags.kind() {
            PageKind::Header { object, extra: None } => Some(Mark { may_do_less: true, ..all(object) }),
            PageKind::Header { object, extra: Some(extra) } if extra.parent == DELETED => Some(all(object)),
            PageKind::Header { object, extra: Some(extra) } if extra.shrink => {
                let from = geometry.pages_of(u64::from(extra.size_or_target));
                Some(Mark { from, headers: false, ..all(object) })
            }
            PageKind::Data { object, index, bytes: 0 } => {
                Some(Mark { from: index, to: index.saturating_add(1), headers: false, ..all(object) })
            }
            _ => None,
        }
    }

    fn does_all_of(&self, other: &Mark) -> bool {
        let covers = self.from <= other.from && self.to >= other.to;
        !self.may_do_less && self.object == other.object && covers && (self.headers || !other.headers)
    }

    pub fn keeps_dead(&self, tags: &Packed) -> bool {
        match tags.kind() {
            PageKind::Header { object, extra } => {
                let is_deletion = extra.is_some_and(|extra| extra.parent == DELETED);
                self.headers && object == self.object && !is_deletion
            }
            PageKind::Data { object, index, bytes: 1.. } => {
                object == self.object && (self.from..self.to).contains(&index)
            }
            _ => false,
        }
    }
}

/// What is being cleaned, and what was.
#[derive(Clone, Debug, Default)]
pub(super) struct Cleaner {
    pub(super) cleaning: Option<Cleaning>,
    /// How many blocks had been opened when wear was last looked at.
    looked_at: u32,
    copies: u64,
    most_copies: u32,
    levelled: u64,
    refreshed: u64,
    lost_pages: u64,
}

impl Cleaner {
    pub fn count(&self, stats: &mut Stats) {
        (stats.copies, stats.copies_in_a_pause) = (self.copies, self.most_copies);
        (stats.levelled, stats.lost_pages) = (self.levelled, self.lost_pages);
        stats.refreshed = self.refreshed;
    }
}

impl<N: Nand, V: Nvram> Volume<N, V> {
    /// Cleans and erases a little, before a page is written: never more than `copies_max` copies and an erase,
    /// unless there is nothing else left.
    pub fn make_room(&mut self) -> Result<()> {
        // Cleaning must not move what is about to be removed.
        self.reap()?;
        let low = self.config.reserve_blocks as usize + 2;
        let mut copies = 0;
        let opened = self.log.opened();
        if self.cleaner.cleaning.is_some() || self.log.blocks.free() < low {
            copies += self.clean(self.config.copies_max)?;
        } else if self.next_tired().is_some() {
            copies += self.rewrite_tired(self.config.refresh_copies.min(self.config.copies_max))?;
        } else if opened - self.cleaner.looked_at >= self.config.wear_limit {
            self.cleaner.looked_at = opened;
            if let Some(block) = self.log.blocks.coldest(self.config.wear_limit)
                && self.begin_cleaning(block).is_ok()
            {
                self.cleaner.levelled += 1;
            }
        }
        copies += self.keep_room(2)?;
        self.cleaner.most_copies = self.cleaner.most_copies.max(copies);
        self.log.erase_ahead(&self.objects)
    }

    /// Cleans until as many pages can be written as go into some blocks, if there is anything to clean; how many were
    /// copied.
    pub fn keep_room(&mut self, blocks: u32) -> Result<u32> {
        let mut copies = 0;
        while self.log.room() < u64::from(blocks * self.log.blocks.usable()) {
            let guards = self.log.blocks.free_guards();
            if guards > 0 {
                match self.log.erase_one(&self.objects) {
                    Ok(_) => continue,
                    // The only one could not be erased, and is bad now.
                    Err(Error::NoSpace) if self.log.blocks.free_guards() < guards => continue,
                    Err(error) => return Err(error),
                }
            }
            let room = self.log.room();
            // What gains nothing now waits.
            let under_way = self.cleaner.cleaning.as_ref().map(|cleaning| cleaning.block);
            let fits = |block: &u32| u64::from(self.log.blocks.get(*block).live) <= room;
            let under_way = under_way.filter(fits).filter(|block| self.log.blocks.gains(*block));
            let Some(block) = under_way.or_else(|| self.log.blocks.cheapest(room)) else {
                match self.free_a_guard()? || self.give_up_copies()? {
                    true => continue,
                    false => break,
                }
            };
            if under_way.is_none() {
                self.begin_cleaning(block)?;
            }
            copies += self.clean(u32::MAX)?;
        }
        Ok(copies)
    }

    /// Copies a few pages, at most `limit`; how many.
    pub fn clean(&mut self, limit: u32) -> Result<u32> {
        if self.cleaner.cleaning.is_none() {
            let room = self.log.room();
            let Some(block) = self.log.blocks.cheapest(room) else { return Ok(0) };
            self.begin_cleaning(block)?;
        }
        let Some(mut cleaning) = self.cleaner.cleaning.take() else { return Ok(0) };
        if self.log.blocks.get(cleaning.block).sequence != cleaning.sequence {
            return Ok(0);
        }
        let budget = if limit > self.config.copies_max { limit } else { cleaning.pace.min(limit) };
        let mut copies = 0;
        while copies < budget {
            let Some((page, tags)) = cleaning.pages.pop() else {
                self.end_cleaning(cleaning.block)?;
                return Ok(copies);
            };
            if let Some((object, index)) = self.owner(page, &tags)? {
                self.move_page(page, object, index, tags.bytes)?;
                copies += 1;
            }
        }
        if cleaning.pages.is_empty() {
            self.end_cleaning(cleaning.block)?;
        } else {
            self.cleaner.cleaning = Some(cleaning);
        }
        Ok(copies)
    }

    /// Where nothing can be cleaned with the room there is: finds a block that guards and of which no mark is needed any
    /// more, since what it keeps dead is gone, or a later mark does so; whether there was one. Cost: the summaries of all
    /// blocks for each that guards.
    fn free_a_guard(&mut self) -> Result<bool> {
        for block in self.log.blocks.guarding() {
            if !self.is_needed(block)? {
                self.log.blocks.unguard(block);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a block that guards keeps something dead that no later one does.
    fn is_needed(&mut self, block: u32) -> Result<bool> {
        let geometry = self.log.flash.geometry();
        let age = |entry: &Block, block: u32| (entry.sequence, block);
        let own = age(&self.log.blocks.get(block), block);
        let tags = self.log.flash.tags_of(block)?;
        let mut marks: Vec<Mark> = tags.iter().filter_map(|(_, tags)| Mark::of(tags, &geometry)).collect();
        let mut others: Vec<(u32, u32)> = Vec::new();
        for (other, entry) in self.log.blocks.iter() {
            if !matches!(entry.state, BlockState::Erased | BlockState::Bad) && other != block {
                others.push(age(entry, other));
            }
        }
        // Later marks first.
        sorted::sort(&mut others);
        for other in others.into_iter().rev() {
            let tags = self.log.flash.tags_of(other.1)?;
            if other > own {
                let later = |mark: &Mark| {
                    let mut all = tags.iter().filter_map(|(_, tags)| Mark::of(tags, &geometry));
                    all.any(|other| other.does_all_of(mark))
                };
                marks.retain(|mark| !later(mark));
            } else if tags.iter().any(|(_, tags)| marks.iter().any(|mark| mark.keeps_dead(tags))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A block that was read often, or had to be corrected, and holds something.
    pub fn next_tired(&self) -> Option<u32> {
        let holds = |block: &u32| {
            let entry = self.log.blocks.get(*block);
            matches!(entry.state, BlockState::Full | BlockState::Open) && entry.live > 0 && !entry.kept
        };
        self.log.flash.watch().tired().find(holds)
    }

    /// Copies pages of tired blocks to the log's end, at most `limit`; how many.
    pub fn rewrite_tired(&mut self, limit: u32) -> Result<u32> {
        let mut copies = 0;
        while copies < limit {
            if self.cleaner.cleaning.is_none() {
                let Some(block) = self.next_tired() else { break };
                self.log.leave(block);
                self.begin_cleaning(block)?;
                self.cleaner.refreshed += 1;
            }
            copies += self.clean((limit - copies).min(self.config.copies_max))?;
        }
        Ok(copies)
    }

    pub fn begin_cleaning(&mut self, block: u32) -> Result<()> {
        let entry = self.log.blocks.get(block);
        let mut pages = self.log.flash.tags_of(block)?;
        pages.reverse();
        let gain = self.log.blocks.usable().saturating_sub(entry.live).max(1);
        let pace = entry.live.div_ceil(gain) + 1;
        self.cleaner.cleaning = Some(Cleaning { block, sequence: entry.sequence, pages, pace });
        Ok(())
    }

    /// Live pages that are left have lost their tags: memory knows what they are of. Where no checksum can say that a page
    /// is lost, those that cannot be read stay where they are, and with them the block.
    fn end_cleaning(&mut self, block: u32) -> Result<()> {
        if self.holds_live(block) {
            for (page, object, index) in self.owners_in(block)? {
                self.bring(object)?;
                let page_bytes = self.log.flash.geometry().page_bytes;
                self.move_page(page, object, index, page_bytes)?;
            }
        }
        if self.holds_live(block) {
            self.log.blocks.keep(block);
        }
        Ok(())
    }

    fn holds_live(&self, block: u32) -> bool {
        let entry = self.log.blocks.get(block);
        entry.live > 0 && entry.state == BlockState::Full
    }

    /// The live pages of a block, by what memory knows.
    fn owners_in(&mut self, block: u32) -> Result<Vec<(u32, u32, Option<u32>)>> {
        let (geometry, mut found) = (self.log.flash.geometry(), Vec::new());
        self.log.memory.for_each(&self.objects, true, &mut |id, object| {
            let header = (object.header != NONE).then_some((None, object.header));
            let pages = object.map.iter().map(|(index, page)| (Some(index), page));
            let own = header.into_iter().chain(pages).filter(|(_, page)| geometry.block_of(*page) == block);
            found.extend(own.map(|(index, page)| (page, id, index)));
        })?;
        Ok(found)
    }

    /// The object that points at a page with these tags, and as which page of its data; else as its header.
    pub fn owner(&mut self, page: u32, tags: &Packed) -> Result<Option<(u32, Option<u32>)>> {
        let (id, index) = match tags.kind() {
            PageKind::Header { object, .. } => (object, None),
            PageKind::Data { object, index, .. } => (object, Some(index)),
            PageKind::Summary | PageKind::Checkpoint | PageKind::Format | PageKind::Unknown => {
                return Ok(None);
            }
        };
        self.bring(id)?;
        let is_live = self.objects.get(id).is_some_and(|object| match index {
            None => object.header == page,
            Some(index) => object.map.get(index) == Some(page),
        });
        Ok(is_live.then_some((id, index)))
    }

    /// Moves a live page, of which so many bytes are valid, to the log's end; one that cannot be read as lost, so that it
    /// stays an error of its object wherever it goes.
    pub fn move_page(&mut self, page: u32, id: u32, index: Option<u32>, valid: u32) -> Result<()> {
        self.cleaner.copies += 1;
        let can_say_lost = self.log.flash.place().ecc;
        let Some(index) = index else {
            return match self.rewrite_header(id) {
                Err(Error::Corrupt { .. }) => {
                    self.cleaner.lost_pages += 1;
                    if can_say_lost { self.move_lost_header(id) } else { Ok(()) }
                }
                done => done,
            };
        };
        // A page that a truncation shortened says so where it goes: behind the header that cut the file.
        self.ensure_size(id)?;
        let begins = u64::from(index) * self.page_bytes();
        let known = self.objects.find(id)?.flash_size.saturating_sub(begins).max(1);
        let bytes = u64::from(valid).min(known) as u32;
        let is_whole = self.log.flash.fetch_to_move(page, id, index)?;
        self.cleaner.lost_pages += u64::from(!is_whole);
        let data = self.log.flash.lend();
        let tags = Packed::data(0, id, index, bytes);
        let at = match is_whole {
            true => self.log.append(&self.objects, tags, &data).map(Some),
            false if can_say_lost => self.log.append_lost(&self.objects, tags, &data).map(Some),
            false => Ok(None),
        };
        self.log.flash.give_back(data);
        at?.map_or(Ok(()), |at| self.take_page(id, index, bytes, at))
    }
}
