//! Cleaning of a page map: which block, and what becomes of the pages in it.
//!
//! The valid pages of a block are copied one after the other, with all that can go wrong on the way, or at once where
//! nothing can: both do and count the same. Cost: O(blocks of a unit) to choose, many blocks at a time where cleaning is
//! greedy, and O(pages) to empty.

use super::{Clean, PageMap, State, Stream};
use crate::free::Levelling;
use crate::{LOST, READS_MAX, copied, error_of};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_media::nand::{Cause, Failure, Page, Tag};
use std::cmp::Reverse;
use std::ops::Range;

/// Blocks that are looked at together for one to clean.
const VICTIM_GROUP: usize = 64;

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
        while self.units[unit].free.len() < self.reserve {
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

    /// The closed block of `unit` to clean next; none if that would gain nothing.
    fn victim(&self, unit: usize) -> Option<u32> {
        let blocks = self.blocks_of(unit);
        let closed = blocks.filter(|block| self.states[*block as usize] == State::Closed);
        let valid = |block: &u32| self.valid[*block as usize];
        let best = match self.clean {
            Clean::Greedy => self.fewest_valid(unit),
            Clean::CostBenefit => {
                let level = self.level_of_ties(unit);
                let ranked =
                    closed.map(|block| (self.benefit(block), Reverse(self.tie(block, level)), block));
                ranked.reduce(|a, b| if (b.0, b.1) > (a.0, a.1) { b } else { a }).map(|(.., block)| block)
            }
        };
        best.filter(|block| u32::from(valid(block)) < self.pages_per_block)
    }

    /// The closed block of `unit` with the fewest valid pages. Looks at groups of blocks first, many at a time.
    fn fewest_valid(&self, unit: usize) -> Option<u32> {
        let Range { start, end } = self.blocks_of(unit);
        let blocks = start as usize..end as usize;
        let groups =
            self.valid[blocks.clone()].chunks(VICTIM_GROUP).zip(self.states[blocks].chunks(VICTIM_GROUP));
        let valid_if_closed = |(valid, state): (&u16, &State)| match state {
            State::Closed => *valid,
            _ => u16::MAX,
        };
        let level = self.level_of_ties(unit);
        let mut best: Option<((u16, u32), u32)> = None;
        for (begin, (valid, states)) in (start..).step_by(VICTIM_GROUP).zip(groups) {
            let all = || valid.iter().zip(states).map(valid_if_closed);
            let fewest = all().fold(u16::MAX, u16::min);
            if fewest == u16::MAX || best.is_some_and(|((least, _), _)| least < fewest) {
                continue;
            }
            for (block, _) in (begin..).zip(all()).filter(|(_, valid)| *valid == fewest) {
                let key = (fewest, self.tie(block, level));
                if best.is_none_or(|(least, _)| key < least) {
                    best = Some((key, block));
                }
            }
        }
        best.map(|(_, block)| block)
    }

    /// What a block is worse by than others that are equally good: its erases beyond `level`.
    fn tie(&self, block: u32, level: u32) -> u32 {
        self.nand.erases(block).saturating_sub(level)
    }

    /// Erases that do not count when blocks of `unit` are equally good. With `ties=lowest` none does, but that static
    /// levelling lets no block run away: one further ahead than half of `spread` is taken last.
    fn level_of_ties(&self, unit: usize) -> u32 {
        let blocks = u64::from(self.nand.geometry().blocks_per_unit);
        match (self.ties_worn, self.levelling) {
            (true, _) => 0,
            (false, Levelling::Static) => (self.units[unit].erases / blocks) as u32 + self.spread / 2,
            (false, _) => u32::MAX,
        }
    }

    /// What cost-benefit cleaning gains by a block.
    fn benefit(&self, block: u32) -> f64 {
        let used = f64::from(self.valid[block as usize]) / f64::from(self.pages_per_block);
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
        if self.nand.geometry().unit_of(from) as usize == unit && self.nand.copies_surely() {
            let mut moving = std::mem::take(&mut self.moving);
            let moved = self.move_at_once(at, unit, from, to, &mut moving);
            self.moving = moving;
            return moved;
        }
        let mut next = 0;
        for page in 0..self.pages_per_block {
            if self.valid[from as usize] == 0 {
                break;
            }
            let Page::Programmed(tag) = self.nand.page(from, page) else { continue };
            let owner = tag.owner & !LOST;
            if self.map.get(owner as usize) != Some(&self.entry(from, page)) {
                continue;
            }
            let target = to.map(|block| (block, next));
            next += 1;
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
        let mut done = 0;
        while done < moving.owners.len() {
            let left = (moving.owners.len() - done) as u32;
            let (target, count) = match to {
                Some(block) => ((block, done as u32), left),
                None if self.has_open(unit, Stream::Copies)
                    || self.open_block(at, unit, Stream::Copies)? =>
                {
                    let next = self.open_slot(unit, Stream::Copies).map_or(0, |(_, next)| next);
                    let count = left.min(self.pages_per_block - next);
                    (self.take_pages(unit, Stream::Copies, count), count)
                }
                None => return Err(self.give_up()),
            };
            let part = done..done + count as usize;
            let copied = self.nand.copy_many(at, &moving.sources[part.clone()], target, copied);
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
        let valid = usize::from(self.valid[block as usize]);
        for (source, owner) in (self.entry(block, 0)..).zip(self.nand.owners_in(block)) {
            if moving.owners.len() == valid {
                break;
            }
            let owner = owner.map(|owner| owner & !LOST);
            if let Some(owner) = owner.filter(|owner| self.map.get(*owner as usize) == Some(&source)) {
                moving.owners.push(owner);
                moving.sources.push(source);
            }
        }
    }

    /// Points logical pages, whose versions were in `from`, to the pages from `target` on.
    fn point_many(&mut self, owners: &[u32], from: u32, target: (u32, u32)) {
        for (entry, owner) in (self.entry(target.0, target.1)..).zip(owners) {
            self.map[*owner as usize] = entry;
        }
        self.valid[from as usize] -= owners.len() as u16;
        self.valid[target.0 as usize] += owners.len() as u16;
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
            let to = match target.take().filter(|(block, _)| !self.nand.is_bad(*block)) {
                Some(to) => to,
                None => match self.next_page(at, unit, Stream::Copies)? {
                    Some(to) => to,
                    None => return Err(self.give_up()),
                },
            };
            match self.nand.copy(at, from, to, tag) {
                Ok(_) => {
                    self.point(owner, to.0, to.1);
                    self.note_moved(owner);
                    return Ok(());
                }
                Err(Failure::Unreadable) if reads < READS_MAX => {
                    reads += 1;
                    target = Some(to);
                }
                Err(Failure::Unreadable) => return self.lose(at, unit, tag, to),
                Err(Failure::Program) => self.retire(at, unit, to.0)?,
                Err(failure) => return Err(error_of(&self.nand, failure, Lpn(owner.into()))),
            }
        }
    }

    /// The contents of a page are gone: programs one that says so in its place.
    fn lose(&mut self, at: Time, unit: usize, tag: Tag, mut to: (u32, u32)) -> Result<()> {
        let owner = tag.owner & !LOST;
        loop {
            match self.nand.program(at, to.0, to.1, Tag { owner: owner | LOST, ..tag }, &[]) {
                Ok(_) => break,
                Err(Failure::Program) => self.retire(at, unit, to.0)?,
                Err(failure) => return Err(error_of(&self.nand, failure, Lpn(owner.into()))),
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
        Ok(())
    }

    pub(super) fn note_moved(&mut self, page: u32) {
        if self.map.len() as u64 > self.host_pages {
            self.moved.push(page);
        }
    }

    /// A block failed to program: takes it out of use and moves what is valid in it.
    pub(super) fn retire(&mut self, at: Time, unit: usize, block: u32) -> Result<()> {
        self.states[block as usize] = State::Bad;
        self.units[unit].forget(block);
        self.done_for(Cause::Cleaning, |map| map.move_pages(at, unit, block, None))
    }

    pub(super) fn erase(&mut self, at: Time, unit: usize, block: u32) -> Result<()> {
        match self.nand.erase(at, block) {
            Ok(_) => {
                self.states[block as usize] = State::Free;
                self.units[unit].erased(block, self.nand.erases(block));
                self.find_ahead();
                Ok(())
            }
            Err(Failure::Erase) => {
                self.states[block as usize] = State::Bad;
                Ok(())
            }
            Err(failure) => Err(error_of(&self.nand, failure, Lpn(0))),
        }
    }
}
