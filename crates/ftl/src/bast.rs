//! BAST, the log-block scheme: each logical block that is updated has a log block of its own (Kim, Kim,
//! Noh, Min, Cho: A Space-Efficient Flash Translation Layer for CompactFlash Systems, IEEE Trans. Consumer
//! Electronics 2002).
//!
//! A page goes in place into its data block if nothing was written there yet, else to the next page of the
//! log block of its logical block. A log block that is full, or that has to make room for another's, is
//! merged:
//!
//! - *switch*: it holds all pages in order: it becomes the data block, the old one is erased;
//! - *partial*: it holds the first pages in order: the rest is copied to it, then as above;
//! - *full*: all valid pages are copied to a free block, then log and data block are erased.
//!
//! The paper leaves open, so there are settings for: which log makes room (`victim`), whether a full log is
//! merged at once or at the next write to it (`merge`), whether there are partial merges (`partial`), and
//! whether a first write goes to the data block or to a log (`first`). Other programs' counts are had with:
//! ftlsim (Desnoyers) the defaults; FlashSim with an LRU victim `victim=lru:merge=lazy:partial=no:first=log`.
//!
//! Where pages of a block must be programmed in order (large-page NAND), a first write below a page already
//! programmed goes to the log, too.
//!
//! Invariants: a logical block has at most one data and one log block; at most `logs` log blocks. Cost: O(1)
//! a request, O(pages of a block + logs) a merge.

use super::Scheme;
use super::blockmap::{BlockMap, Contents, Mapped, NONE, Place, Updates};
use super::settings::{LEVEL, LOGICAL, OVER_PROVISION, SPREAD, Settings};
use bimetal_base::Result;
use bimetal_base::options::OptionSpec;
use bimetal_base::time::Time;
use bimetal_media::nand::{Nand, Page};

/// BAST's entry in the list of schemes.
pub const SCHEME: Scheme = Scheme {
    name: "bast",
    about: "BAST: a log block for each data block that is updated",
    options: &[
        OptionSpec::of("logs", "1..", "64, or what there is room for", "log blocks"),
        OptionSpec::of(
            "victim",
            "fifo|lru",
            "fifo",
            "which log makes room: the oldest, or the one least recently written",
        ),
        OptionSpec::of(
            "merge",
            "eager|lazy",
            "eager",
            "a full log is merged at once, or at the next write to its logical block",
        ),
        OptionSpec::of(
            "partial",
            "yes|no",
            "yes",
            "a log with the first pages in order is completed, not copied",
        ),
        OptionSpec::of("first", "data|log", "data", "where a page goes that was never written"),
        LEVEL,
        SPREAD,
        OVER_PROVISION,
        LOGICAL,
    ],
    make: |nand, settings| Ok(Box::new(open(nand, settings)?)),
};

fn open(nand: Nand, mut settings: Settings) -> Result<Mapped<Bast>> {
    let lru = settings.choice("victim", &[("fifo", false), ("lru", true)])?;
    let lazy = settings.choice("merge", &[("eager", false), ("lazy", true)])?;
    let partial = settings.choice("partial", &[("yes", true), ("no", false)])?;
    let first_to_log = settings.choice("first", &[("data", false), ("log", true)])?;
    let (map, logs_max) = BlockMap::open(nand, settings, SCHEME.options, 1)?;
    let log_of = vec![NO_LOG; map.data.len()];
    Mapped::open(map, Bast { logs: Vec::new(), log_of, logs_max, lru, lazy, partial, first_to_log })
}

/// A logical block without a log.
const NO_LOG: u32 = u32::MAX;

struct Log {
    block: u32,
    logical: u32,
    /// Its next page.
    next: u32,
    /// Every page so far is in place.
    in_order: bool,
    /// The number of the write it was opened at, or (LRU) last written at.
    stamp: u64,
}

struct Bast {
    logs: Vec<Log>,
    /// The log of each logical block: an index into `logs`.
    log_of: Vec<u32>,
    logs_max: usize,
    lru: bool,
    lazy: bool,
    partial: bool,
    first_to_log: bool,
}

impl Bast {
    /// Opens a log for `logical`, merging another one if need be; false if there is no block for it.
    fn open_log(&mut self, map: &mut BlockMap, at: Time, logical: u32) -> Result<bool> {
        if self.logs.len() >= self.logs_max && !self.make_room(map, at)? {
            return Ok(false);
        }
        let Some(block) = self.take(map, at, logical)? else { return Ok(false) };
        self.add(Log { block, logical, next: 0, in_order: true, stamp: map.sequence() });
        Ok(true)
    }

    fn add(&mut self, log: Log) {
        self.log_of[log.logical as usize] = self.logs.len() as u32;
        self.logs.push(log);
    }

    /// A free block; logs are merged until there is one.
    fn take(&mut self, map: &mut BlockMap, at: Time, logical: u32) -> Result<Option<u32>> {
        loop {
            if let Some(block) = map.take(logical) {
                return Ok(Some(block));
            }
            if !self.make_room(map, at)? {
                return Ok(None);
            }
        }
    }

    /// Merges the log that is to make room; false if there is none or it cannot be merged.
    fn make_room(&mut self, map: &mut BlockMap, at: Time) -> Result<bool> {
        let oldest = self.logs.iter().enumerate().min_by_key(|(_, log)| log.stamp);
        let Some((index, _)) = oldest else { return Ok(false) };
        self.merge(map, at, index)
    }

    /// Merges a log; false if there is no block to merge into.
    fn merge(&mut self, map: &mut BlockMap, at: Time, index: usize) -> Result<bool> {
        let Log { block, logical, next, in_order, .. } = self.logs[index];
        let is_full = next == map.pages_per_block;
        let completes = in_order && (is_full || self.partial) && map.fits(logical, 0, block);
        if completes && map.gather(at, logical, 0, block)? {
            self.forget(index);
            let counts = &mut map.counts;
            *if is_full { &mut counts.switch_merges } else { &mut counts.partial_merges } += 1;
            let old = map.adopt(logical, block);
            map.release(at, old)?;
            return Ok(true);
        }
        if !map.renew(at, logical)? {
            return Ok(false);
        }
        map.counts.full_merges += 1;
        self.forget(index);
        map.release(at, block)?;
        Ok(true)
    }

    fn forget(&mut self, index: usize) {
        let log = self.logs.swap_remove(index);
        self.log_of[log.logical as usize] = NO_LOG;
        if let Some(moved) = self.logs.get(index) {
            self.log_of[moved.logical as usize] = index as u32;
        }
    }

    /// A place in the data block for a page first written.
    fn first_place(&mut self, map: &mut BlockMap, at: Time, page: u32) -> Result<Option<Place>> {
        let (logical, offset) = map.split(page);
        if map.data[logical as usize] == NONE && self.log_of[logical as usize] == NO_LOG {
            let Some(block) = self.take(map, at, logical)? else { return Ok(None) };
            map.adopt(logical, block);
        }
        let block = map.data[logical as usize];
        Ok(map.is_programmable(block, offset).then_some((block, offset)))
    }

    /// Takes over a block in place or a log of `logical`; false if it has both already.
    fn found(&mut self, map: &mut BlockMap, logical: u32, block: u32, in_place: bool) -> bool {
        let data = map.data[logical as usize];
        match (self.log_of[logical as usize] == NO_LOG, data == NONE, in_place) {
            (_, true, true) => drop(map.adopt(logical, block)),
            (true, false, true) => {
                // Two blocks in place: the log is the one written to last.
                let (data, log) = match map.youngest_in(block) > map.youngest_in(data) {
                    true => (data, block),
                    false => (block, data),
                };
                map.adopt(logical, data);
                self.add(found_log(map, logical, log));
            }
            (true, _, false) => self.add(found_log(map, logical, block)),
            _ => return false,
        }
        true
    }
}

/// The log that `block` is, going on after its last programmed page.
fn found_log(map: &BlockMap, logical: u32, block: u32) -> Log {
    let bad = map.nand.is_bad(block);
    let next = if bad { map.pages_per_block } else { map.nand.next_page(block) };
    let first = logical * map.pages_per_block;
    let in_order = (0..next).all(|offset| {
        map.is_newest_in(first + offset, block) && matches!(map.nand.page(block, offset), Page::Programmed(_))
    });
    Log { block, logical, next, in_order, stamp: map.youngest_in(block) }
}

impl Updates for Bast {
    fn recover(&mut self, map: &mut BlockMap) -> Result<()> {
        let mut unsorted = Vec::new();
        for block in map.blocks_in_use() {
            let (logical, in_place) = match map.contents(block) {
                Contents::InPlace(logical) => (logical, true),
                Contents::Log(logical) => (logical, false),
                Contents::Mixed => {
                    unsorted.extend(map.logical_blocks_in(block, true));
                    continue;
                }
            };
            if !self.found(map, logical, block, in_place) {
                unsorted.push(logical);
            }
        }
        // Left by an interrupted merge, or by another scheme.
        for logical in unsorted {
            map.renew(Time::ZERO, logical)?;
        }
        for index in (0..self.logs.len()).rev() {
            if !map.holds_valid(self.logs[index].block) {
                self.forget(index);
            }
        }
        map.erase_unused()
    }

    fn place(&mut self, map: &mut BlockMap, at: Time, page: u32) -> Result<Option<Place>> {
        let logical = map.split(page).0;
        if !self.first_to_log
            && let Some(place) = self.first_place(map, at, page)?
        {
            return Ok(Some(place));
        }
        loop {
            let index = self.log_of[logical as usize];
            let Some(log) = self.logs.get(index as usize) else {
                if !self.open_log(map, at, logical)? {
                    return Ok(None);
                }
                continue;
            };
            if log.next < map.pages_per_block && !map.nand.is_bad(log.block) {
                return Ok(Some((log.block, log.next)));
            }
            if !self.merge(map, at, index as usize)? {
                return Ok(None);
            }
        }
    }

    fn placed(&mut self, map: &mut BlockMap, at: Time, page: u32, place: Place) -> Result<()> {
        let (logical, offset) = map.split(page);
        let index = self.log_of[logical as usize];
        let Some(log) = self.logs.get_mut(index as usize).filter(|log| log.block == place.0) else {
            return Ok(());
        };
        log.in_order &= place.1 == offset;
        log.next += 1;
        if self.lru {
            log.stamp = map.sequence();
        }
        if !self.lazy && log.next == map.pages_per_block {
            self.merge(map, at, index as usize)?;
        }
        Ok(())
    }

    fn vacate(&mut self, map: &mut BlockMap, at: Time, block: u32) -> Result<bool> {
        match self.logs.iter().position(|log| log.block == block) {
            Some(index) => self.merge(map, at, index),
            None => Ok(false),
        }
    }
}
