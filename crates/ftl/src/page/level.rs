//! Static wear levelling of a page map: within a unit, and between units.

use super::{PageMap, State};
use crate::free::Levelling;
use bimetal_base::Result;
use bimetal_base::time::Time;
use smallvec::SmallVec;

/// How far a unit can be ahead: all quarters of its turns.
const AHEAD_MOST: u32 = 4;

impl PageMap {
    /// Static levelling after `erased` was erased: moves cold data from a block that lags behind it.
    ///
    /// Of the lagging blocks the one unchanged for the longest, and for a while at all: a little worn block
    /// that is in use catches up by itself. One that lags twice as far behind the most worn of the unit moves however
    /// warm it is.
    pub(super) fn level(&mut self, at: Time, unit: usize, erased: u32) -> Result<()> {
        let behind = self.array.erases(erased).saturating_sub(self.spread);
        let far = self.units[unit].most.saturating_sub(2 * self.spread);
        let a_while = u64::from(self.array.geometry().blocks_per_unit * self.pages_per_block / 8);
        let is_cold = |block: &u32| self.sequence - self.changed[*block as usize] >= a_while;
        let coldest = self.lagging(unit, behind).min_by_key(|block| self.changed[*block as usize]);
        let least_worn = || self.lagging(unit, far).min_by_key(|block| self.array.erases(*block));
        let chosen = coldest.filter(is_cold).or_else(least_worn).map(|block| (unit, block));
        let chosen =
            chosen.or_else(|| self.lagging_elsewhere(unit, behind).filter(|(_, block)| is_cold(block)));
        self.close_lagging(at, unit, far, a_while)?;
        let Some((home, chosen)) = chosen else { return Ok(()) };
        let Some(target) = self.units[unit].free.take_most_worn() else { return Ok(()) };
        self.units[unit].lacking -= self.array.lacks(target);
        self.set_state(target, State::Closed);
        self.counts.wear_moves += 1;
        self.move_pages(at, unit, chosen, Some(target))?;
        self.complete_in(at, target)?;
        self.erase(at, home, chosen)
    }

    /// For a unit so far ahead that it is left out where others have room: the block of the least worn unit that lags
    /// and is unchanged for the longest, with its unit, if there is room for its pages: what units hold on average when
    /// the device is full, each has room for.
    fn lagging_elsewhere(&self, unit: usize, limit: u32) -> Option<(usize, u32)> {
        // One free block is left for copies.
        if self.units[unit].ahead < AHEAD_MOST || self.units[unit].free.len() < 2 {
            return None;
        }
        let good = self.blocks_of(unit).filter(|block| self.states[*block as usize] != State::Bad);
        let good: u64 = good.map(|block| u64::from(self.array.capacity(block))).sum();
        let valid: u64 = self.blocks_of(unit).map(|block| u64::from(self.valid[block as usize])).sum();
        let room = good.saturating_sub(self.kept as u64 * u64::from(self.pages_per_block));
        if valid + u64::from(self.pages_per_block) > room {
            return None;
        }
        let other = (0..self.units.len()).min_by_key(|other| self.units[*other].erases)?;
        let coldest = self.lagging(other, limit).min_by_key(|block| self.changed[*block as usize]);
        coldest.map(|block| (other, block))
    }

    /// The closed blocks of `unit` with fewer erases than `limit`.
    fn lagging(&self, unit: usize, limit: u32) -> impl Iterator<Item = u32> {
        let closed = |block: &u32| self.states[*block as usize] == State::Closed;
        self.blocks_of(unit).filter(move |block| closed(block) && self.array.erases(*block) < limit)
    }

    /// Closes open blocks of `unit` that have fewer erases than `limit` and were not written to for a while: one that is
    /// seldom needed, as that for copies or for a placement handle may be, would stay behind for ever.
    fn close_lagging(&mut self, at: Time, unit: usize, limit: u32, a_while: u64) -> Result<()> {
        let mut closed: SmallVec<[u32; 4]> = SmallVec::new();
        for slot in self.units[unit].slots_mut() {
            let lags = |block: u32| {
                self.array.erases(block) < limit && self.sequence - self.changed[block as usize] >= a_while
            };
            closed.extend(slot.take_if(|(block, _)| lags(*block)).map(|(block, _)| block));
        }
        closed.into_iter().try_for_each(|block| {
            self.set_state(block, State::Closed);
            self.complete_in(at, block)
        })
    }

    /// Notes how far units are ahead in wear, in quarters of `spread` erases a block.
    pub(super) fn find_ahead(&mut self) {
        if self.units.len() > 1 && self.levelling != Levelling::None {
            let margin = u64::from(self.spread) * u64::from(self.array.geometry().blocks_per_unit) / 4;
            let least = self.units.iter().map(|unit| unit.erases).min().unwrap_or(0);
            for unit in &mut self.units {
                unit.ahead =
                    ((unit.erases - least).saturating_sub(1) / margin.max(1)).min(AHEAD_MOST.into()) as u32;
            }
        }
    }
}
