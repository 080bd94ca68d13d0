//! An SLC cache: blocks that the host's pages are written to first, with one bit a cell, and folded from when there is
//! nothing else to do.
//!
//! A block that is used with one bit a cell takes a program of another kind, several times as fast, and holds as many
//! times fewer pages as its cells hold bits. What is in it is copied to blocks of the usual kind (*folded*) once the array
//! has had nothing to do for a while. When the cache is full pages go to blocks of the usual kind at once, at their speed.
//!
//! - *static*: the cache has blocks of its own, which the host does not see; cleaning leaves it alone.
//! - *dynamic*: it takes blocks that are free while there are more of them than cleaning keeps, and what it holds is folded
//!   before anything is cleaned.
//!
//! Which blocks it is takes turns, so that all wear alike. The least number of them in use that it takes is one of each unit.

use super::superblock::Array;
use super::{PageMap, State, Stream};
use crate::settings::Settings;
use bimetal_base::options::OptionSpec;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::nand::Cause;
use std::collections::VecDeque;
use std::time::Duration;

pub(super) const SLC: OptionSpec = OptionSpec::of(
    "slc",
    "none|static|dynamic",
    "none",
    "a cache of blocks with one bit a cell: none, of blocks of its own, or of free ones",
);
pub(super) const SIZE: OptionSpec = OptionSpec::of(
    "slc-size",
    "SIZE",
    "none",
    "what the SLC cache holds, a dynamic one at most; needed with slc",
);
pub(super) const IDLE: OptionSpec = OptionSpec::of(
    "slc-idle",
    "0..1000000",
    "10",
    "milliseconds without work after which the SLC cache is folded",
);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    None,
    Static,
    Dynamic,
}

/// An SLC cache.
pub(super) struct Slc {
    is_static: bool,
    /// Superblocks of a unit that it uses at most.
    most: u32,
    /// Those of each unit that it uses.
    pub used: Vec<u32>,
    /// Those that are written, the oldest first; what is no longer cached is skipped.
    written: Vec<VecDeque<u32>>,
    idle: Duration,
}

impl Slc {
    /// As `settings` say, of an array whose blocks can be used so; none if they say none.
    pub fn open(array: &mut Array, settings: &mut Settings, handles: u8) -> Result<Option<Slc>> {
        let kinds = [("none", Kind::None), ("static", Kind::Static), ("dynamic", Kind::Dynamic)];
        let (kind, size) = (settings.choice("slc", &kinds)?, settings.size("slc-size")?);
        let idle = Duration::from_millis(settings.number("slc-idle", 0..=1_000_000, 10)?);
        let model = array.nand().profile().model.clone();
        if kind == Kind::None {
            let unused = size
                .is_some()
                .then(|| Error::invalid("slc-size: there is no SLC cache without slc=static or dynamic"));
            return unused.map_or(Ok(None), Err);
        }
        let Some(pages) = array.nand().profile().slc_pages() else {
            return Err(Error::invalid(format!(
                "slc: {model} has no times of blocks with one bit a cell: give slc_read_us and slc_program_us in its profile"
            )));
        };
        let Some(size) = size.filter(|size| *size > 0) else {
            return Err(Error::invalid("slc: say what the cache holds, as slc-size=1GiB"));
        };
        if handles > 1 {
            return Err(Error::invalid("slc: placement handles go to blocks of their own: choose handles=1"));
        }
        let geometry = array.geometry();
        let each = u64::from(pages * array.width()) * u64::from(array.nand().geometry().page_bytes);
        let most = size.div_ceil(each).div_ceil(u64::from(geometry.units));
        let blocks = u64::from(geometry.blocks_per_unit);
        if kind == Kind::Static && most >= blocks {
            return Err(Error::invalid(format!(
                "slc: {model} has no room for a cache of {size} bytes: choose a smaller slc-size"
            )));
        }
        let units = geometry.units as usize;
        Ok(Some(Slc {
            is_static: kind == Kind::Static,
            most: most.min(blocks) as u32,
            used: vec![0; units],
            written: vec![VecDeque::new(); units],
            idle,
        }))
    }

    /// Superblocks of a unit that it has for itself.
    pub fn kept(&self) -> u32 {
        if self.is_static { self.most } else { 0 }
    }

    /// How long there has to be nothing to do before it is folded.
    pub fn idle_after(&self) -> Duration {
        self.idle
    }
}

impl PageMap {
    /// Where the host's next page goes.
    #[inline]
    pub(super) fn host_stream(&mut self, handle: u8) -> Stream {
        let stream = self.stream_of(handle);
        if self.slc.is_none() {
            return stream;
        }
        let unit = *self.turn(stream);
        if self.units[unit].slc.is_some() || self.has_slc_room(unit) { Stream::Slc } else { stream }
    }

    /// Whether the cache may take another superblock of a unit.
    pub(super) fn has_slc_room(&self, unit: usize) -> bool {
        let Some(slc) = &self.slc else { return false };
        let free = &self.units[unit].free;
        // A dynamic one never has cleaning begin.
        slc.used[unit] < slc.most && (slc.is_static || free.len() > self.reserve + 1)
    }

    /// A superblock was opened for the cache.
    pub(super) fn begin_cached(&mut self, unit: usize, block: u32) {
        self.array.use_as_slc(block, true);
        if let Some(slc) = &mut self.slc {
            slc.used[unit] += 1;
        }
    }

    /// Notes that a superblock of the cache is written, if it is one; whether it is.
    pub(super) fn note_cached(&mut self, unit: usize, block: u32) -> bool {
        if self.slc.is_none() || !self.array.is_slc(block) {
            return false;
        }
        if self.states[block as usize] == State::Closed {
            self.set_state(block, State::Cached);
            if let Some(slc) = &mut self.slc {
                slc.written[unit].push_back(block);
            }
        }
        true
    }

    /// The same of one that is found in a used array.
    pub(super) fn find_cached(&mut self, unit: usize, block: u32) -> bool {
        let found = self.note_cached(unit, block);
        if let Some(slc) = self.slc.as_mut().filter(|_| found) {
            slc.used[unit] += 1;
        }
        found
    }

    /// A superblock leaves the cache, if it was in it.
    pub(super) fn forget_cached(&mut self, unit: usize, was_slc: bool) {
        if let Some(slc) = self.slc.as_mut().filter(|_| was_slc) {
            slc.used[unit] = slc.used[unit].saturating_sub(1);
        }
    }

    /// Whether what the cache holds makes room for anything else.
    pub(super) fn folds_for_room(&self) -> bool {
        self.slc.as_ref().is_some_and(|slc| !slc.is_static)
    }

    /// Copies what is valid in the oldest superblock of a unit's cache to blocks of the usual kind, and erases it; whether
    /// there was one.
    pub(super) fn fold(&mut self, at: Time, unit: usize) -> Result<bool> {
        let Some(slc) = &mut self.slc else { return Ok(false) };
        let states = &self.states;
        let oldest = loop {
            match slc.written[unit].pop_front() {
                Some(block) if states[block as usize] != State::Cached => {}
                other => break other,
            }
        };
        let Some(block) = oldest else { return Ok(false) };
        self.done_for(Cause::Folding, |map| {
            map.move_pages(at, unit, block, None)?;
            map.erase(at, unit, block)
        })?;
        Ok(true)
    }

    /// Folds a superblock of each unit that has one; whether there was any.
    pub(super) fn fold_all(&mut self, at: Time) -> Result<bool> {
        let mut folded = false;
        for unit in 0..self.units.len() {
            // A copy needs what cleaning keeps.
            if self.slc.is_some() && (!self.lacks_room(unit) || self.make_room(at, unit)?) {
                folded |= self.fold(at, unit)?;
            }
        }
        Ok(folded)
    }
}
