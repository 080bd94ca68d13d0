//! What the block-mapped schemes stand on: logical blocks, their data blocks, and the moves between blocks.
//!
//! A logical block is as many logical pages as an erase block has. Its *data block* holds pages in place:
//! page `o` of the logical block on page `o` of the block. Where a newer version of a page goes is what the
//! schemes differ in ([`Updates`]); [`Mapped`] makes a translation layer of one.
//!
//! For every logical page the place of its newest version is kept. A controller of the time kept less, and
//! found the rest by reading spare areas; but so every scheme finds a page in one step, and knows of each
//! block how many of its pages are valid: only a block without any is ever erased.
//!
//! After power loss the newest version of each page is found from the tags (of copies of one write the
//! original, and one in a good block first). Blocks with nothing valid are erased; the scheme sorts out the
//! others by what is in them, not by what they were for.
//!
//! Room: a block for an update is given only if another stays free, so that a merge always finds its target;
//! when blocks go bad, fewer updates are under way at once, until none can be: then the flash is worn out.
//! Memory: 4 bytes a logical page, 2 a block. Cost: O(1) a request, O(pages of a block) a merge.

mod recover;

pub(super) use recover::Contents;

use super::free::{Free, Levelling};
use super::settings::Settings;
use super::{Found, Ftl, FtlCounts, LOST, copied, error_of, read_page, version, worn_out};
use bimetal_base::options::OptionSpec;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::nand::{Cause, Failure, Nand, Page, PageOrder, Tag};

/// A block and a page of it.
pub(super) type Place = (u32, u32);

/// No block.
pub(super) const NONE: u32 = u32::MAX;
/// The newest version of a page never written; else the physical page + 1.
const UNMAPPED: u32 = 0;
/// Blocks kept beside those that hold data or updates: a merge's target, and one for the case that it fails.
const SPARE_BLOCKS: u64 = 2;
/// Blocks for updates unless set: the number of the paper that compares these schemes, where there is room.
const LOGS_DEFAULT: u64 = 64;

/// How a scheme treats updates: pages written again.
pub(super) trait Updates: Send {
    /// Takes over the blocks found on a used array.
    fn recover(&mut self, map: &mut BlockMap) -> Result<()>;

    /// Where the next version of `page` goes, once there is room for it; none if there is none any more.
    fn place(&mut self, map: &mut BlockMap, at: Time, page: u32) -> Result<Option<Place>>;

    /// Notes that it was programmed there.
    fn placed(&mut self, _map: &mut BlockMap, _at: Time, _page: u32, _place: Place) -> Result<()> {
        Ok(())
    }

    /// The data block of `logical` holds nothing valid any more: it can be erased.
    fn emptied(&mut self, map: &mut BlockMap, at: Time, logical: u32) -> Result<()> {
        let old = map.adopt(logical, NONE);
        map.release(at, old)
    }

    /// Merges what is in `block`, which holds updates, so that the block is free or a data block; false if that
    /// cannot be.
    fn vacate(&mut self, map: &mut BlockMap, at: Time, block: u32) -> Result<bool>;
}

/// A translation layer of data blocks and a way to treat updates.
pub(super) struct Mapped<U> {
    map: BlockMap,
    updates: U,
}

/// Logical blocks on an array.
pub(super) struct BlockMap {
    pub nand: Nand,
    pub counts: FtlCounts,
    /// The data block of each logical block.
    pub data: Vec<u32>,
    pub pages_per_block: u32,
    /// Its logarithm, where it is a power of two.
    shift: Option<u32>,
    newest: Vec<u32>,
    /// Valid pages of each block.
    valid: Vec<u16>,
    free: Vec<Free>,
    free_blocks: usize,
    logical_pages: u64,
    ascending: bool,
    /// The number of the last write.
    sequence: u64,
    read_only: bool,
    levelling: Levelling,
    spread: u32,
    /// When each logical block got its data block (number of the write); empty without static levelling.
    settled: Vec<u64>,
    /// Static levelling looks for cold blocks again at this write.
    level_again: u64,
    /// No good block has fewer erases.
    least: u32,
    /// The most erases of a block.
    most: u32,
    /// Erases of all blocks.
    erases: u64,
    /// What lags was looked for in vain when the most worn block had so many.
    looked_at: u32,
}

impl<U: Updates> Mapped<U> {
    /// Takes over what is on the array of `map`.
    pub fn open(mut map: BlockMap, mut updates: U) -> Result<Mapped<U>> {
        if !map.nand.is_new() {
            map.find_pages()?;
            map.erase_unused()?;
            updates.recover(&mut map)?;
        }
        Ok(Mapped { map, updates })
    }
}

impl BlockMap {
    /// Opens the array with the settings all schemes share, and `logs`: how many blocks may hold updates,
    /// at least `least`. Finds nothing yet.
    ///
    /// Fails with [`Error::Invalid`] on wrong settings or too small an array.
    pub fn open(
        mut nand: Nand,
        mut settings: Settings,
        known: &[OptionSpec],
        least: u64,
    ) -> Result<(BlockMap, usize)> {
        // What the host did not ask for is done for room.
        nand.set_cause(Cause::Cleaning);
        let geometry = *nand.geometry();
        let good = u64::from(nand.good_when_new());
        let pages = u64::from(geometry.pages_per_block);
        let asked = settings.size("logical")?.map(|bytes| bytes.div_ceil(u64::from(geometry.page_bytes)));
        let asked_blocks = asked.map_or(0, |asked| asked.div_ceil(pages));
        let left = good.saturating_sub(asked_blocks + SPARE_BLOCKS);
        let default = (good / 8).min(left).clamp(least, LOGS_DEFAULT);
        let logs = settings.number("logs", least..=u64::from(geometry.blocks()), default)?;
        let levelling = settings.choice("level", &Levelling::CHOICES)?;
        let spread = settings.number("spread", 1..=1_000_000, 16)? as u32;
        let over_provision = settings.fraction("over-provision", 0.0..=90.0, 7.0)?;
        let scheme = settings.scheme().to_string();
        settings.finish(known)?;

        let most = good.saturating_sub(logs + SPARE_BLOCKS) * pages;
        let logical_pages = asked.unwrap_or_else(|| {
            let blocks = (good as f64 * (1.0 - over_provision / 100.0)) as u64;
            (blocks * pages).min(most)
        });
        if logical_pages == 0 || logical_pages > most || logical_pages >= u64::from(LOST) {
            return Err(Error::invalid(format!(
                "{scheme}: {} has {good} good blocks of {pages} pages: {} blocks are needed beside the {} logical \
                 pages",
                nand.profile().model,
                logs + SPARE_BLOCKS,
                asked.unwrap_or(logical_pages),
            )));
        }
        let blocks = logical_pages.div_ceil(pages) as usize;
        let mut map = BlockMap {
            counts: FtlCounts::default(),
            data: vec![NONE; blocks],
            pages_per_block: geometry.pages_per_block,
            shift: geometry.shift(),
            newest: vec![UNMAPPED; blocks * pages as usize],
            valid: vec![0; geometry.blocks() as usize],
            free: (0..geometry.units).map(|_| Free::new(levelling)).collect(),
            free_blocks: 0,
            logical_pages,
            ascending: nand.profile().page_order == PageOrder::Ascending,
            sequence: 0,
            read_only: false,
            levelling,
            spread,
            settled: vec![0; if levelling == Levelling::Static { blocks } else { 0 }],
            level_again: 0,
            least: 0,
            most: nand.wear().max,
            erases: (0..geometry.blocks()).map(|block| u64::from(nand.erases(block))).sum(),
            looked_at: 0,
            nand,
        };
        for block in 0..geometry.blocks() {
            if !map.nand.is_bad(block) && !map.is_used(block) {
                map.give(block);
            }
        }
        Ok((map, logs as usize))
    }

    /// The logical block of a page, and the page's place in it.
    pub fn split(&self, page: u32) -> (u32, u32) {
        match self.shift {
            Some(shift) => (page >> shift, page & (self.pages_per_block - 1)),
            None => (page / self.pages_per_block, page % self.pages_per_block),
        }
    }

    /// The number of the last write.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether a page's newest version lies in `block`.
    pub fn is_newest_in(&self, page: u32, block: u32) -> bool {
        self.place_of(page).is_some_and(|place| place.0 == block)
    }

    /// Where a page's newest version lies.
    fn place_of(&self, page: u32) -> Option<Place> {
        let entry = self.newest.get(page as usize).copied().unwrap_or(UNMAPPED);
        (entry != UNMAPPED).then(|| self.split(entry - 1))
    }

    /// Whether a page of a block can be programmed now.
    pub fn is_programmable(&self, block: u32, page: u32) -> bool {
        block != NONE
            && !self.nand.is_bad(block)
            && (!self.ascending || page >= self.nand.next_page(block))
            && self.nand.page(block, page) == Page::Erased
    }

    /// A free block for data or updates of `logical`; none if it is the last, which merges need.
    pub fn take(&mut self, logical: u32) -> Option<u32> {
        if self.free_blocks < 2 { None } else { self.take_last(logical) }
    }

    /// A free block for a merge of `logical`: of its unit if that has one that is not too far ahead in wear.
    fn take_last(&mut self, logical: u32) -> Option<u32> {
        let own = logical as usize % self.free.len();
        let unit = self.unit_to_take_from(own);
        let block = self.free[unit].take_least_worn().or_else(|| {
            let richest = self.free.iter_mut().max_by_key(|free| free.len());
            richest.and_then(Free::take_least_worn)
        })?;
        self.free_blocks -= 1;
        Some(block)
    }

    /// The unit `own`, or the one with the least worn free block if that of `own` is ahead by a quarter of `spread`.
    fn unit_to_take_from(&self, own: usize) -> usize {
        if self.free.len() == 1 {
            return own;
        }
        let wear = |unit: usize| self.free[unit].wear().map(|(least, _)| least);
        let Some(here) = wear(own) else { return own };
        let least = (0..self.free.len()).filter_map(|unit| Some((wear(unit)?, unit))).min();
        least.filter(|(there, _)| there + self.spread / 4 < here).map_or(own, |(_, unit)| unit)
    }

    /// The most worn of all free blocks, if it is not the last.
    fn take_most_worn(&mut self) -> Option<u32> {
        if self.free_blocks < 2 {
            return None;
        }
        let most_worn = self.free.iter_mut().max_by_key(|free| free.wear().map(|(_, most)| most));
        let block = most_worn.and_then(Free::take_most_worn)?;
        self.free_blocks -= 1;
        Some(block)
    }

    /// Takes back an erased block.
    pub fn give(&mut self, block: u32) {
        debug_assert!(!self.is_used(block) && !self.nand.is_bad(block));
        let unit = self.nand.geometry().unit_of(block) as usize;
        self.free[unit].give(block, self.nand.erases(block));
        self.free_blocks += 1;
    }

    /// Whether anything was programmed in a block since it was erased, or its erase was cut off.
    fn is_used(&self, block: u32) -> bool {
        self.nand.next_page(block) > 0 || self.nand.page(block, 0) != Page::Erased
    }

    /// Makes `block` the data block of `logical`; returns the old one.
    pub fn adopt(&mut self, logical: u32, block: u32) -> u32 {
        if let Some(settled) = self.settled.get_mut(logical as usize) {
            *settled = self.sequence;
        }
        std::mem::replace(&mut self.data[logical as usize], block)
    }

    /// Notes that the newest version of `page` now lies at `place`.
    fn point(&mut self, page: u32, place: Place) {
        let entry = place.0 * self.pages_per_block + place.1 + 1;
        let old = std::mem::replace(&mut self.newest[page as usize], entry);
        self.valid[place.0 as usize] += 1;
        self.invalidate(old);
    }

    fn invalidate(&mut self, entry: u32) {
        if entry != UNMAPPED {
            let block = self.split(entry - 1).0;
            self.valid[block as usize] -= 1;
        }
    }

    /// Programs the host's next version of `page`; none if that failed and `place`'s block is bad.
    fn program(&mut self, at: Time, place: Place, page: u32, data: &[u8]) -> Result<Option<Time>> {
        let tag = Tag { owner: page, sequence: version(self.sequence + 1) };
        let before = self.nand.set_cause(Cause::Host);
        let programmed = self.nand.program(at, place.0, place.1, tag, data);
        self.nand.set_cause(before);
        match programmed {
            Ok(done) => {
                self.sequence += 1;
                self.counts.host_writes += 1;
                self.point(page, place);
                Ok(Some(done))
            }
            Err(Failure::Program) => Ok(None),
            Err(failure) => Err(error_of(&self.nand, failure, Lpn(page.into()))),
        }
    }

    /// Whether all valid pages of `logical` from offset `from` on are in place in `target`, or can still be
    /// copied there.
    pub fn fits(&self, logical: u32, from: u32, target: u32) -> bool {
        let first = logical * self.pages_per_block;
        (from..self.pages_per_block).all(|offset| match self.place_of(first + offset) {
            None => true,
            Some(place) if place.0 == target => place.1 == offset,
            Some(_) => self.is_programmable(target, offset),
        })
    }

    /// Whether the data block of `logical` holds the newest version of one of its pages `offsets`.
    pub fn holds_any_of(&self, logical: u32, offsets: std::ops::Range<u32>) -> bool {
        let (first, data) = (logical * self.pages_per_block, self.data[logical as usize]);
        offsets.into_iter().any(|offset| self.place_of(first + offset).is_some_and(|place| place.0 == data))
    }

    /// Copies the valid pages of `logical` from offset `from` on that are elsewhere in place into `target`;
    /// whether that could be done: if not, `target` is bad.
    pub fn gather(&mut self, at: Time, logical: u32, from: u32, target: u32) -> Result<bool> {
        let first = logical * self.pages_per_block;
        let pages = (first + from) as usize..(first + self.pages_per_block) as usize;
        if self.nand.copy_many(at, &self.newest[pages.clone()], (target, from), copied) {
            self.point_in_place(pages, (target, from));
            return Ok(true);
        }
        for offset in from..self.pages_per_block {
            let page = first + offset;
            let Some(from) = self.place_of(page).filter(|from| from.0 != target) else { continue };
            if !self.copy(at, page, from, (target, offset))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Notes that the valid ones of `pages` now lie one after the other from `place` on.
    fn point_in_place(&mut self, pages: std::ops::Range<usize>, place: Place) {
        let (block, first) = (place.0, place.0 * self.pages_per_block + place.1 + 1);
        let (shift, pages_per_block) = (self.shift, self.pages_per_block);
        // Most come from the same block: they are counted, and noted at once.
        let (mut count, mut usual, mut from_usual) = (0, block, 0);
        for (entry, newest) in (first..).zip(&mut self.newest[pages]) {
            if *newest == UNMAPPED {
                continue;
            }
            let old = std::mem::replace(newest, entry) - 1;
            let from = shift.map_or_else(|| old / pages_per_block, |shift| old >> shift);
            count += 1;
            if from == usual {
                from_usual += 1;
                continue;
            }
            self.valid[usual as usize] -= std::mem::replace(&mut from_usual, 1);
            usual = from;
        }
        self.valid[usual as usize] -= from_usual;
        self.valid[block as usize] += count;
    }

    /// How many valid pages of `logical` lie elsewhere than in `block`.
    pub fn count_elsewhere(&self, logical: u32, block: u32) -> usize {
        let first = logical * self.pages_per_block;
        let pages = first..first + self.pages_per_block;
        pages.filter(|page| self.place_of(*page).is_some_and(|place| place.0 != block)).count()
    }

    /// Copies a valid page; whether it could be done.
    fn copy(&mut self, at: Time, page: u32, from: Place, to: Place) -> Result<bool> {
        let Page::Programmed(tag) = self.nand.page(from.0, from.1) else {
            unreachable!("page {page} points to {from:?}, which is not programmed")
        };
        let tag = Tag { sequence: copied(tag.sequence), ..tag };
        let mut reads = 1;
        let copied = loop {
            match self.nand.copy(at, from, to, tag) {
                Err(Failure::Unreadable) if reads < self.nand.attempts() => reads += 1,
                Err(Failure::Unreadable) => {
                    self.counts.lost_pages += 1;
                    let lost = Tag { owner: page | LOST, ..tag };
                    break self.nand.program(at, to.0, to.1, lost, &[]);
                }
                other => break other,
            }
        };
        match copied {
            Ok(_) => {
                self.point(page, to);
                Ok(true)
            }
            Err(Failure::Program) => Ok(false),
            Err(failure) => Err(error_of(&self.nand, failure, Lpn(page.into()))),
        }
    }

    /// Gathers `logical` in a free block, which becomes its data block, and erases the old one; false if no
    /// free block is left.
    pub fn renew(&mut self, at: Time, logical: u32) -> Result<bool> {
        let target = loop {
            let Some(target) = self.take_last(logical) else { return Ok(false) };
            if self.gather(at, logical, 0, target)? {
                break target;
            }
        };
        let old = self.adopt(logical, target);
        self.release(at, old)?;
        Ok(true)
    }

    /// Erases a block without valid pages (or none at all) for new use; a bad one is left alone.
    pub fn release(&mut self, at: Time, block: u32) -> Result<()> {
        if block != NONE && self.erase(at, block)? && self.levelling == Levelling::Static {
            let before = self.nand.set_cause(Cause::Wear);
            let levelled = self.level(at, self.nand.erases(block));
            self.nand.set_cause(before);
            levelled?;
        }
        Ok(())
    }

    /// Erases a block; whether it is free now.
    fn erase(&mut self, at: Time, block: u32) -> Result<bool> {
        if self.nand.is_bad(block) {
            return Ok(false);
        }
        assert!(self.valid[block as usize] == 0, "block {block} holds valid pages and must not be erased");
        match self.nand.erase(at, block) {
            Ok(_) => {
                self.give(block);
                self.erases += 1;
                self.most = self.most.max(self.nand.erases(block));
                Ok(true)
            }
            Err(Failure::Erase) => Ok(false),
            Err(failure) => Err(error_of(&self.nand, failure, Lpn(0))),
        }
    }

    /// Static levelling after an erase: moves the pages of a data block that lags behind and has not changed
    /// for a while to the most worn free block.
    fn level(&mut self, at: Time, erases: u32) -> Result<()> {
        if self.sequence < self.level_again {
            return Ok(());
        }
        // On a device of a few blocks an eighth of it is written before any merge shows what is cold.
        let a_while = (self.newest.len() as u64 / 8).max(4 * u64::from(self.pages_per_block));
        let lags = |(logical, block): (usize, &u32)| {
            let is_cold = *block != NONE && self.settled[logical] + a_while <= self.sequence;
            is_cold
                .then(|| (self.nand.erases(*block), logical as u32))
                .filter(|found| found.0 + self.spread < erases)
        };
        let Some((_, logical)) = self.data.iter().enumerate().filter_map(lags).min() else {
            self.level_again = self.sequence + a_while / 4;
            return Ok(());
        };
        let target = self.take_most_worn();
        self.counts.wear_moves += u64::from(target.is_some());
        self.move_data(at, logical, target).map(drop)
    }

    /// Moves what is valid in the data block of `logical` to the free block `target`; false if there is none.
    fn move_data(&mut self, at: Time, logical: u32, target: Option<u32>) -> Result<bool> {
        let Some(target) = target else { return Ok(false) };
        let old = self.data[logical as usize];
        let first = logical * self.pages_per_block;
        for offset in 0..self.pages_per_block {
            if self.is_newest_in(first + offset, old)
                && !self.copy(at, first + offset, (old, offset), (target, offset))?
            {
                // The target is bad; what it holds by now is found there until the next merge.
                return Ok(true);
            }
        }
        self.adopt(logical, target);
        self.erase(at, old)
    }

    /// Under static levelling, the least worn block in use if it lags more than twice `spread` behind the most worn
    /// block, however warm it is.
    fn laggard(&mut self) -> Option<u32> {
        let bound = 2 * self.spread;
        let far = self.most > self.least + bound && self.most > self.looked_at;
        if !far || self.levelling != Levelling::Static {
            return None;
        }
        let good = (0..self.valid.len() as u32).filter(|block| !self.nand.is_bad(*block));
        let mut least_used = None;
        self.least = self.most;
        for block in good {
            let erases = self.nand.erases(block);
            self.least = self.least.min(erases);
            if least_used.is_none_or(|(least, _)| erases < least) && self.is_used(block) {
                least_used = Some((erases, block));
            }
        }
        let found = least_used.filter(|(erases, _)| erases + bound < self.most).map(|(_, block)| block);
        if found.is_none() {
            self.looked_at = self.most;
        }
        found
    }

    /// Under static levelling, whether a block is more than half of `spread` ahead of the mean in wear: what could as
    /// well be another is not to be this one.
    pub fn runs_away(&self, block: u32) -> bool {
        let mean = (self.erases / self.valid.len() as u64) as u32;
        self.levelling == Levelling::Static
            && block != NONE
            && self.nand.erases(block) > mean.saturating_add(self.spread / 2)
    }

    /// The logical block whose data block `block` is.
    fn logical_of(&self, block: u32) -> Option<u32> {
        let tags = (0..self.pages_per_block).filter_map(|page| match self.nand.page(block, page) {
            Page::Programmed(tag) => Some(tag.owner & !LOST),
            _ => None,
        });
        let logical = tags.map(|page| self.split(page).0).next()?;
        (self.data.get(logical as usize) == Some(&block)).then_some(logical)
    }
}

/// Whether a page stands for lost contents.
fn is_lost(nand: &Nand, (block, page): Place) -> bool {
    matches!(nand.page(block, page), Page::Programmed(tag) if tag.owner & LOST != 0)
}

/// What became of a block that was to be emptied.
enum Vacated {
    /// Nothing.
    Not,
    /// Its pages were moved to another one.
    Moved,
    /// They were merged, or there were none.
    Merged,
}

impl<U: Updates> Mapped<U> {
    /// Moves what keeps a block far behind in wear from being erased. One block a write: a write erases few.
    fn keep_level(&mut self, at: Time) -> Result<()> {
        let Some(block) = self.map.laggard() else { return Ok(()) };
        match self.done_for(Cause::Wear, |mapped| mapped.vacate(at, block))? {
            Vacated::Not => self.map.looked_at = self.map.most,
            Vacated::Moved => self.map.counts.wear_moves += 1,
            Vacated::Merged => {}
        }
        Ok(())
    }

    /// Moves what reads and time have brought into danger.
    fn refresh(&mut self, at: Time) -> Result<()> {
        while let Some(block) = self.map.nand.take_due().filter(|_| !self.map.read_only) {
            let before = self.map.nand.erases(block);
            self.done_for(Cause::Refresh, |mapped| mapped.vacate(at, block))?;
            match self.map.nand.erases(block) > before {
                true => self.map.counts.refreshed_blocks += 1,
                false => self.map.nand.leave_due(block),
            }
        }
        Ok(())
    }

    /// Does what is done for `cause`.
    fn done_for<T>(&mut self, cause: Cause, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.map.nand.set_cause(cause);
        let done = work(self);
        self.map.nand.set_cause(before);
        done
    }

    /// Moves what is valid in a block.
    fn vacate(&mut self, at: Time, block: u32) -> Result<Vacated> {
        match self.map.logical_of(block) {
            Some(logical) if self.map.valid[block as usize] == 0 => {
                self.updates.emptied(&mut self.map, at, logical).map(|()| Vacated::Merged)
            }
            // Warm as it may be, not to the most worn block, which would soon be erased again, and run away.
            Some(logical) => {
                let Some(target) = self.map.take(logical) else { return Ok(Vacated::Not) };
                let moved = self.map.move_data(at, logical, Some(target))?;
                Ok(if moved { Vacated::Moved } else { Vacated::Not })
            }
            None => {
                let merged = self.updates.vacate(&mut self.map, at, block)?;
                Ok(if merged { Vacated::Merged } else { Vacated::Not })
            }
        }
    }

    fn check(&self, page: Lpn) -> Result<u32> {
        if page.0 < self.map.logical_pages {
            return Ok(page.0 as u32);
        }
        let (pages, model) = (self.map.logical_pages, &self.map.nand.profile().model);
        Err(Error::invalid(format!("page {page} is past the {pages} pages of {model}")))
    }
}

impl<U: Updates> Ftl for Mapped<U> {
    fn logical_pages(&self) -> u64 {
        self.map.logical_pages
    }

    fn find(&self, page: Lpn) -> Option<Place> {
        self.check(page).ok().and_then(|page| self.map.place_of(page))
    }

    fn read(&mut self, at: Time, page: Lpn) -> Result<Found> {
        let page_number = self.check(page)?;
        // First, since it may move the page.
        self.refresh(at)?;
        let place = self.map.place_of(page_number);
        self.map.counts.host_reads += 1;
        let Some(found) = place else { return Ok(Found { at, place }) };
        // Looked up only once there is one at all.
        if self.map.counts.lost_pages > 0 && is_lost(&self.map.nand, found) {
            return Err(error_of(&self.map.nand, Failure::Unreadable, page));
        }
        let before = self.map.nand.set_cause(Cause::Host);
        let read = read_page(&mut self.map.nand, at, found, page);
        self.map.nand.set_cause(before);
        let at = read?;
        Ok(Found { at, place })
    }

    fn write(&mut self, at: Time, page: Lpn, data: &[u8]) -> Result<Time> {
        let page = self.check(page)?;
        self.refresh(at)?;
        while !self.map.read_only {
            let Some(place) = self.updates.place(&mut self.map, at, page)? else {
                self.map.read_only = true;
                break;
            };
            if let Some(done) = self.map.program(at, place, page, data)? {
                self.updates.placed(&mut self.map, at, page, place)?;
                self.keep_level(at)?;
                return Ok(done);
            }
        }
        Err(worn_out(&self.map.nand))
    }

    fn trim(&mut self, at: Time, page: Lpn) -> Result<Time> {
        let page = self.check(page)?;
        self.map.counts.host_trims += 1;
        let old = std::mem::replace(&mut self.map.newest[page as usize], UNMAPPED);
        self.map.invalidate(old);
        let logical = self.map.split(page).0;
        let block = self.map.data[logical as usize];
        if block != NONE && self.map.valid[block as usize] == 0 {
            self.updates.emptied(&mut self.map, at, logical)?;
        }
        Ok(at)
    }

    fn counts(&self) -> FtlCounts {
        self.map.counts
    }

    fn is_read_only(&self) -> bool {
        self.map.read_only
    }

    fn nand(&self) -> &Nand {
        &self.map.nand
    }

    fn nand_mut(&mut self) -> &mut Nand {
        &mut self.map.nand
    }

    fn into_nand(self: Box<Self>) -> Nand {
        self.map.nand
    }
}
