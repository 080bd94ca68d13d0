//! Cleaning of a page map: which block, and what becomes of the pages in it.
//!
//! The valid pages of a block are copied one after the other, with all that can go wrong on the way, or at once where
//! nothing can: both do and count the same. Cost: O(blocks of a unit) to choose, a 64th of that where cleaning is
//! greedy ([`fewest`](super::fewest)), and O(pages) to empty.

use super::{Clean, PageMap, State, Stream};
use crate::free::Levelling;
use crate::{LOST, copied, error_of};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_media::nand::{Cause, Failure, Page, Tag};
use std::cmp::Reverse;

/// Valid pages of a block that are moved.
#[derive(Default)]
pub(super) struct Moving {
    /// Whose they are.
    owners: Vec<u32>,
    /// Where they are, as map entries.
    sources: Vec<u32>,
}

impl PageMap {
    /// Cleans until `unit` has its reserve of free blocks; whether it has.
    pub(super) fn make_room(&mut self, at: Time, unit: usize) -> Result<bool> {
        self.done_for(Cause::Cleaning, |map| map.clean_until_room(at, unit))
    }

    fn clean_until_room(&mut self, at: Time, unit: usize) -> Result<bool> {
        while self.lacks_room(unit) {
            if self.folds_for_room() && self.fold(at, unit)? {
                continue;
            }
            let Some(victim) = self.victim(unit) else {
                return Ok(false);
            };
            self.empty(at, unit, victim)?;
            if self.levelling == Levelling::Static {
                self.done_for(Cause::Wear, |map| map.level(at, unit, victim))?;
            }
        }
        Ok(true)
    }

    /// Whether `unit` has fewer free blocks than its reserve; narrow superblocks count for what they have.
    pub(super) fn lacks_room(&self, unit: usize) -> bool {
        let (width, unit) = (self.array.width() as usize, &self.units[unit]);
        (unit.free.len() + unit.emptied.len()) * width < self.reserve * width + unit.lacking as usize
    }

    /// The closed block of `unit` to clean next; none if that would gain nothing.
    fn victim(&mut self, unit: usize) -> Option<u32> {
        let best = match self.clean {
            Clean::Greedy if self.array.are_unequal() => self.emptiest(unit),
            Clean::Greedy => self.fewest_valid(unit),
            Clean::CostBenefit => {
                let level = self.level_of_ties(unit);
                let closed =
                    self.blocks_of(unit).filter(|block| self.states[*block as usize] == State::Closed);
                let ranked =
                    closed.map(|block| (self.benefit(block), Reverse(self.tie(block, level)), block));
                ranked.reduce(|a, b| if (b.0, b.1) > (a.0, a.1) { b } else { a }).map(|(.., block)| block)
            }
        };
        best.filter(|block| self.valid[*block as usize] < self.array.capacity(*block))
    }

    /// The closed superblock of `unit` of whose pages the smallest part is valid: of those that lack members not the one
    /// with the fewest.
    fn emptiest(&self, unit: usize) -> Option<u32> {
        let level = self.level_of_ties(unit);
        let closed = self.blocks_of(unit).filter(|block| self.states[*block as usize] == State::Closed);
        closed.min_by_key(|block| {
            let valid = u64::from(self.valid[*block as usize]) << 32;
            (valid / u64::from(self.array.capacity(*block)).max(1), self.tie(*block, level))
        })
    }

    /// What a block is worse by than others that are equally good: its erases beyond `level`.
    pub(super) fn tie(&self, block: u32, level: u32) -> u32 {
        self.array.erases(block).saturating_sub(level)
    }

    /// Erases that do not count when blocks of `unit` are equally good. With `ties=lowest` none does, but that static
    /// levelling lets no block run away: one further ahead than half of `spread` is taken last.
    pub(super) fn level_of_ties(&self, unit: usize) -> u32 {
        let blocks = u64::from(self.array.geometry().blocks_per_unit);
        match (self.ties_worn, self.levelling) {
            (true, _) => 0,
            (false, Levelling::Static) => (self.units[unit].erases / blocks) as u32 + self.spread / 2,
            (false, _) => u32::MAX,
        }
    }

    /// What cost-benefit cleaning gains by a block.
    fn benefit(&self, block: u32) -> f64 {
        let used = f64::from(self.valid[block as usize]) / f64::from(self.array.capacity(block));
        let age = (self.sequence - self.changed[block as usize]) as f64 + 1.0;
        if used == 0.0 { f64::INFINITY } else { age * (1.0 - used) / (2.0 * used) }
    }

    /// Copies the valid pages of a closed block elsewhere and erases it.
    fn empty(&mut self, at: Time, unit: usize, block: u32) -> Result<()> {
        self.move_pages(at, unit, block, None)?;
        self.erase(at, unit, block)
    }

    /// Copies the valid pages of `from` to the unit's open block, or to `to` from its first page on.
    pub(super) fn move_pages(&mut self, at: Time, unit: usize, from: u32, to: Option<u32>) -> Result<()> {
        let is_near = self.array.geometry().unit_of(from) as usize == unit;
        if is_near && self.array.page_units() == 1 && self.array.nand().copies_surely() {
            let mut moving = std::mem::take(&mut self.moving);
            let moved = self.move_at_once(at, unit, from, to, &mut moving);
            self.moving = moving;
            return moved;
        }
        self.move_one_by_one(at, unit, (from, 0..self.pages_per_block), to)
    }

    /// The same of some pages, each with all that can go wrong.
    fn move_one_by_one(
        &mut self,
        at: Time,
        unit: usize,
        (from, pages): (u32, impl Iterator<Item = u32>),
        to: Option<u32>,
    ) -> Result<()> {
        let mut next = 0;
        self.array.forget_fetched();
        for page in pages {
            if self.valid[from as usize] == 0 {
                break;
            }
            let Page::Programmed(tag) = self.array.page(from, page) else { continue };
            let owner = tag.owner & !LOST;
            if self.map.get(owner as usize) != Some(&self.entry(from, page)) {
                continue;
            }
            let target = to.and_then(|block| Some((block, self.array.usable_from(block, next)?)));
            next = target.map_or(next, |(_, page)| page + 1);
            self.copy(at, unit, tag, (from, page), target)?;
        }
        Ok(())
    }

    /// As [`move_pages`](Self::move_pages), within a unit and where no copy can fail.
    fn move_at_once(
        &mut self,
        at: Time,
        unit: usize,
        from: u32,
        to: Option<u32>,
        moving: &mut Moving,
    ) -> Result<()> {
        self.find_valid(from, moving);
        let (mut done, mut next) = (0, 0);
        while done < moving.owners.len() {
            let left = (moving.owners.len() - done) as u32;
            let given = to.and_then(|block| Some((block, self.array.usable_from(block, next)?)));
            let (target, count) = match given {
                Some(target) => {
                    let count = self.array.run(target, left);
                    next = target.1 + count;
                    (target, count)
                }
                None if self.has_open(unit, Stream::Copies)
                    || self.open_block(at, unit, Stream::Copies)? =>
                {
                    let open = *self.open_slot(unit, Stream::Copies);
                    let count = open.map_or(0, |open| self.array.run(open, left));
                    (self.take_pages(unit, Stream::Copies, count), count)
                }
                None => return Err(self.give_up()),
            };
            let part = done..done + count as usize;
            let copied = self.array.copy_many(at, &moving.sources[part.clone()], target, copied);
            assert!(copied, "copies within a unit that cannot fail");
            self.point_many(&moving.owners[part], from, target);
            done += count as usize;
        }
        Ok(())
    }

    /// The valid pages of a block, in order.
    fn find_valid(&self, block: u32, moving: &mut Moving) {
        moving.owners.clear();
        moving.sources.clear();
        let valid = self.valid[block as usize] as usize;
        let first = self.entry(block, 0);
        let mut take = |(source, owner): (u32, Option<u32>)| {
            let owner = owner.map(|owner| owner & !LOST);
            if let Some(owner) = owner.filter(|owner| self.map.get(*owner as usize) == Some(&source)) {
                moving.owners.push(owner);
                moving.sources.push(source);
            }
            moving.owners.len() < valid
        };
        if valid > 0 && self.array.width() == 1 {
            let _ = (first..).zip(self.array.nand().owners_in(block)).all(&mut take);
        } else if valid > 0 {
            let owner = |page| (first + page, self.array.owner(block, page));
            let _ = (0..self.pages_per_block).map(owner).all(&mut take);
        }
    }

    /// Points logical pages, whose versions were in `from`, to the pages from `target` on.
    fn point_many(&mut self, owners: &[u32], from: u32, target: (u32, u32)) {
        for (entry, owner) in (self.entry(target.0, target.1)..).zip(owners) {
            self.map[*owner as usize] = entry;
        }
        self.valid[from as usize] -= owners.len() as u32;
        self.note_lost(from);
        self.valid[target.0 as usize] += owners.len() as u32;
        for block in [from, target.0] {
            if let Some(changed) = self.changed.get_mut(block as usize) {
                *changed = self.sequence;
            }
        }
        if self.map.len() as u64 > self.host_pages {
            self.moved.extend_from_slice(owners);
        }
    }

    /// Copies one valid page, to `target` if that is given and good.
    fn copy(
        &mut self,
        at: Time,
        unit: usize,
        tag: Tag,
        from: (u32, u32),
        mut target: Option<(u32, u32)>,
    ) -> Result<()> {
        let owner = tag.owner & !LOST;
        let tag = Tag { sequence: copied(tag.sequence), ..tag };
        let mut reads = 1;
        loop {
            let to = match target.take().filter(|to| self.array.is_usable(*to)) {
                Some(to) => to,
                None => match self.next_page(at, unit, Stream::Copies)? {
                    Some(to) => to,
                    None => return Err(self.give_up()),
                },
            };
            match self.copy_one(at, from, to, tag) {
                Ok(_) => {
                    self.point(owner, to.0, to.1);
                    self.note_moved(owner);
                    return self.erase_freed(at);
                }
                Err(Failure::Unreadable) if reads < self.array.nand().attempts() => {
                    reads += 1;
                    target = Some(to);
                }
                Err(Failure::Unreadable) => return self.lose(at, unit, tag, to),
                Err(Failure::Program) => self.retire(at, unit, to)?,
                Err(failure) => return Err(error_of(self.array.nand(), failure, Lpn(owner.into()))),
            }
        }
    }

    /// The contents of a page are gone: programs one that says so in its place.
    fn lose(&mut self, at: Time, unit: usize, tag: Tag, mut to: (u32, u32)) -> Result<()> {
        let owner = tag.owner & !LOST;
        loop {
            match self.program(at, to, Tag { owner: owner | LOST, ..tag }, &[]) {
                Ok(_) => break,
                Err(Failure::Program) => self.retire(at, unit, to)?,
                Err(failure) => return Err(error_of(self.array.nand(), failure, Lpn(owner.into()))),
            }
            match self.next_page(at, unit, Stream::Copies)? {
                Some(next) => to = next,
                None => return Err(self.give_up()),
            }
        }
        self.point(owner, to.0, to.1);
        self.note_moved(owner);
        self.any_lost = true;
        self.counts.lost_pages += u64::from(u64::from(owner) < self.host_pages);
        self.erase_freed(at)
    }

    pub(super) fn note_moved(&mut self, page: u32) {
        if self.map.len() as u64 > self.host_pages {
            self.moved.push(page);
        }
    }

    /// A page failed to program: takes its block, of a superblock the member, out of use and moves what is valid in it.
    pub(super) fn retire(&mut self, at: Time, unit: usize, (block, page): (u32, u32)) -> Result<()> {
        let is_bad = self.array.is_bad(block);
        let closed =
            self.units[unit].leave_out(block, |next| self.array.usable_from(block, next).filter(|_| !is_bad));
        if is_bad {
            self.forget_cached(unit, self.array.is_slc(block));
        }
        if is_bad || closed {
            self.set_state(block, if is_bad { State::Bad } else { State::Closed });
        }
        self.done_for(Cause::Cleaning, |map| match map.array.width() {
            1 => map.move_pages(at, unit, block, None),
            _ => map.move_one_by_one(at, unit, (block, map.array.pages_on(map.array.lane_of(page))), None),
        })?;
        // What was valid of the page itself, too.
        self.array.forget_failed((block, page));
        self.erase_freed(at)
    }

    pub(super) fn erase(&mut self, at: Time, unit: usize, block: u32) -> Result<()> {
        if self.erases_later(unit, block) {
            return Ok(());
        }
        let was_slc = self.array.is_slc(block);
        match self.array.erase(at, block) {
            Ok(_) => {
                self.forget_cached(unit, was_slc);
                self.set_state(block, State::Free);
                self.units[unit].erased(block, self.array.erases(block), self.array.lacks(block));
                self.find_ahead();
                Ok(())
            }
            Err(Failure::Erase) => {
                self.forget_cached(unit, was_slc);
                self.set_state(block, State::Bad);
                Ok(())
            }
            Err(failure) => Err(error_of(self.array.nand(), failure, Lpn(0))),
        }
    }
}
