//! FAST: updates of all logical blocks share the log blocks (Lee, Park, Chung, Lee, Park, Song: A Log
//! Buffer-Based Flash Translation Layer Using Fully-Associative Sector Translation, ACM TECS 2007).
//!
//! A page goes in place into its data block if nothing was written there yet. Else:
//!
//! - page 0 of a logical block begins the one *sequential* log block anew, and pages that follow it in order
//!   are appended there; when it is full it becomes the data block (switch merge); when another takes its
//!   place before, the rest is copied to it first (partial merge);
//! - every other page goes to the *random* log blocks, one after the other, whichever logical block it is of.
//!   When there are `logs − 1` of them and all are full, the oldest makes room: each logical block with a
//!   valid page in it is gathered in a free block (full merge), from wherever its pages are, the sequential
//!   log included; then it is erased.
//!
//! A page that was appended to the sequential log and then written again lies in a random log: it stays the
//! newest when the sequential log becomes the data block. (Several programs get this or the full merge
//! wrong and lose data.)
//!
//! The paper leaves open, so there are settings for: whether a logical block is merged although all its pages
//! in the victim are stale (`merge`), what closes the sequential log (`close`), and whether it is then
//! completed or copied (`partial`), above all if pages of it were written again since.
//!
//! Invariants: at most one sequential and `logs − 1` random log blocks. Cost: O(1) a request; a full merge
//! O(pages of a block), of which one victim may cause as many as it has pages.

use super::Scheme;
use super::blockmap::{BlockMap, Contents, Mapped, NONE, Place, Updates};
use super::settings::{LEVEL, LOGICAL, OVER_PROVISION, SPREAD, Settings};
use bimetal_base::Result;
use bimetal_base::options::OptionSpec;
use bimetal_base::time::Time;
use bimetal_media::nand::{Nand, Page};
use std::collections::VecDeque;

/// FAST's entry in the list of schemes.
pub const SCHEME: Scheme = Scheme {
    name: "fast",
    about: "FAST: one sequential log block, and random ones that all data blocks share",
    options: &[
        OptionSpec::of(
            "logs",
            "2..",
            "64, or what there is room for",
            "log blocks, the sequential one included",
        ),
        OptionSpec::of(
            "merge",
            "valid|stale",
            "valid",
            "a victim's logical blocks are merged if it has a valid page of them, or any",
        ),
        OptionSpec::of(
            "close",
            "begin|owner|any",
            "begin",
            "what closes the sequential log: a new one; also another page of its logical block; any update elsewhere",
        ),
        OptionSpec::of(
            "partial",
            "yes|whole|no",
            "yes",
            "a sequential log that is closed is completed; only if nothing in it was written again since; never, but copied",
        ),
        LEVEL,
        SPREAD,
        OVER_PROVISION,
        LOGICAL,
    ],
    make: |nand, settings| Ok(Box::new(open(nand, settings)?)),
};

fn open(nand: Nand, mut settings: Settings) -> Result<Mapped<Fast>> {
    let stale = settings.choice("merge", &[("valid", false), ("stale", true)])?;
    let close =
        settings.choice("close", &[("begin", Close::Begin), ("owner", Close::Owner), ("any", Close::Any)])?;
    let partial = settings
        .choice("partial", &[("yes", Partial::Yes), ("whole", Partial::Whole), ("no", Partial::No)])?;
    let (map, logs) = BlockMap::open(nand, settings, SCHEME.options, 2)?;
    let fast = Fast {
        sequential: None,
        random: VecDeque::new(),
        random_max: logs - 1,
        begun: 0,
        stale,
        close,
        partial,
    };
    Mapped::open(map, fast)
}

/// What closes the sequential log block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Close {
    /// The beginning of another one.
    Begin,
    /// Also a page of its logical block that does not follow in order.
    Owner,
    /// Also any update elsewhere.
    Any,
}

/// When a sequential log block is completed rather than copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Partial {
    /// Always: what was written again stays the newest in a random log.
    Yes,
    /// If all that is in it is the newest.
    Whole,
    /// Only if it is full and all in it is the newest: then nothing is left to copy.
    No,
}

/// The sequential log block.
#[derive(Clone, Copy)]
struct Sequential {
    block: u32,
    logical: u32,
    /// Its next page.
    next: u32,
}

struct Fast {
    sequential: Option<Sequential>,
    /// The random log blocks, oldest first; the last one is written to.
    random: VecDeque<u32>,
    random_max: usize,
    /// Random log blocks begun so far: they go from unit to unit.
    begun: u32,
    stale: bool,
    close: Close,
    partial: Partial,
}

impl Fast {
    /// A free block; logs are merged until there is one.
    fn take(&mut self, map: &mut BlockMap, at: Time, near: u32) -> Result<Option<u32>> {
        loop {
            if let Some(block) = map.take(near) {
                return Ok(Some(block));
            }
            let made = match self.random.is_empty() {
                false => self.reclaim(map, at, 0)?,
                true => self.sequential.is_some() && self.close(map, at)?,
            };
            if !made {
                return Ok(None);
            }
        }
    }

    /// Makes the sequential log (if there is one) a data block; false if there is no block to merge into.
    fn close(&mut self, map: &mut BlockMap, at: Time) -> Result<bool> {
        let Some(Sequential { block, logical, next }) = self.sequential else { return Ok(true) };
        let is_full = next == map.pages_per_block;
        // What follows its last page is copied to it; all else may stay where it is, unless the old data block
        // is the place.
        let from = if self.partial == Partial::Yes { next } else { 0 };
        let completes = (is_full || self.partial != Partial::No)
            && map.fits(logical, from, block)
            && !map.holds_any_of(logical, 0..from);
        if completes && map.gather(at, logical, from, block)? {
            self.sequential = None;
            let counts = &mut map.counts;
            *if is_full { &mut counts.switch_merges } else { &mut counts.partial_merges } += 1;
            let old = map.adopt(logical, block);
            map.release(at, old)?;
            return Ok(true);
        }
        self.merge(map, at, logical)
    }

    /// Gathers a logical block in a free block; false if there is none.
    fn merge(&mut self, map: &mut BlockMap, at: Time, logical: u32) -> Result<bool> {
        if !map.renew(at, logical)? {
            return Ok(false);
        }
        map.counts.full_merges += 1;
        if let Some(sequential) = self.sequential.take_if(|sequential| sequential.logical == logical) {
            map.release(at, sequential.block)?;
        }
        Ok(true)
    }

    /// Empties the random log block of this age (0: the oldest) and erases it; false if that cannot be done.
    fn reclaim(&mut self, map: &mut BlockMap, at: Time, index: usize) -> Result<bool> {
        let Some(&victim) = self.random.get(index) else { return Ok(false) };
        for logical in map.logical_blocks_in(victim, !self.stale) {
            if !self.merge(map, at, logical)? {
                return Ok(false);
            }
        }
        self.random.remove(index);
        map.release(at, victim)?;
        Ok(true)
    }

    /// The next page of the random log blocks.
    fn random_place(&mut self, map: &mut BlockMap, at: Time) -> Result<Option<Place>> {
        if let Some(&block) = self.random.back() {
            let next = map.nand.next_page(block);
            if next < map.pages_per_block && map.is_programmable(block, next) {
                return Ok(Some((block, next)));
            }
        }
        while self.random.len() >= self.random_max {
            if !self.reclaim(map, at, 0)? {
                return Ok(None);
            }
        }
        let Some(block) = self.take(map, at, self.begun)? else { return Ok(None) };
        self.begun = self.begun.wrapping_add(1);
        self.random.push_back(block);
        Ok(Some((block, 0)))
    }

    /// A place in the data block for a page first written.
    fn first_place(&mut self, map: &mut BlockMap, at: Time, page: u32) -> Result<Option<Place>> {
        let (logical, offset) = map.split(page);
        if map.data[logical as usize] == NONE {
            let Some(block) = self.take(map, at, logical)? else { return Ok(None) };
            // Making room may have gathered what a random log had of it.
            match map.data[logical as usize] == NONE {
                true => drop(map.adopt(logical, block)),
                false => map.give(block),
            }
        }
        let block = map.data[logical as usize];
        Ok(map.is_programmable(block, offset).then_some((block, offset)))
    }

    /// Begins a sequential log block with the first page of `logical`.
    fn begin(&mut self, map: &mut BlockMap, at: Time, logical: u32) -> Result<Option<Place>> {
        if !self.close(map, at)? {
            return Ok(None);
        }
        let Some(block) = self.take(map, at, logical)? else { return Ok(None) };
        self.sequential = Some(Sequential { block, logical, next: 0 });
        Ok(Some((block, 0)))
    }

    /// Takes over a block in place; false if there are data block and sequential log already.
    fn found_in_place(&mut self, map: &mut BlockMap, logical: u32, block: u32) -> bool {
        let data = map.data[logical as usize];
        if data == NONE {
            map.adopt(logical, block);
            return true;
        }
        let log = if map.youngest_in(block) > map.youngest_in(data) { block } else { data };
        let next = map.nand.next_page(log);
        let whole = (0..next).all(|page| matches!(map.nand.page(log, page), Page::Programmed(_)));
        if self.sequential.is_some() || !whole || map.nand.is_bad(log) {
            return false;
        }
        map.adopt(logical, if log == block { data } else { block });
        self.sequential = Some(Sequential { block: log, logical, next });
        true
    }
}

impl Updates for Fast {
    fn recover(&mut self, map: &mut BlockMap) -> Result<()> {
        let (mut random, mut unsorted) = (Vec::new(), Vec::new());
        for block in map.blocks_in_use() {
            match map.contents(block) {
                Contents::InPlace(logical) if self.found_in_place(map, logical, block) => {}
                Contents::InPlace(logical) => unsorted.push(logical),
                Contents::Log(_) | Contents::Mixed => random.push((map.youngest_in(block), block)),
            }
        }
        random.sort_unstable();
        self.random = random.into_iter().map(|(_, block)| block).collect();
        // Left by an interrupted merge, or by another scheme.
        for logical in unsorted {
            map.renew(Time::ZERO, logical)?;
        }
        self.sequential.take_if(|sequential| !map.holds_valid(sequential.block));
        self.random.retain(|block| map.holds_valid(*block));
        map.erase_unused()?;
        while self.random.len() > self.random_max && self.reclaim(map, Time::ZERO, 0)? {}
        Ok(())
    }

    fn place(&mut self, map: &mut BlockMap, at: Time, page: u32) -> Result<Option<Place>> {
        if let Some(place) = self.first_place(map, at, page)? {
            return Ok(Some(place));
        }
        let (logical, offset) = map.split(page);
        // Where any interruption closes the sequential log, the page that interrupts goes to a random one.
        let interrupts = self.close == Close::Any && self.sequential.is_some();
        if offset == 0 && !interrupts {
            return self.begin(map, at, logical);
        }
        if let Some(sequential) = self.sequential {
            let owns = sequential.logical == logical;
            if owns && offset == sequential.next && map.is_programmable(sequential.block, offset) {
                return Ok(Some((sequential.block, offset)));
            }
            let closes = self.close == Close::Any || owns && self.close == Close::Owner;
            if closes && !self.close(map, at)? {
                return Ok(None);
            }
        }
        self.random_place(map, at)
    }

    fn placed(&mut self, map: &mut BlockMap, at: Time, _page: u32, place: Place) -> Result<()> {
        let Some(sequential) = self.sequential.as_mut().filter(|log| log.block == place.0) else {
            return Ok(());
        };
        sequential.next = place.1 + 1;
        if sequential.next == map.pages_per_block {
            self.close(map, at)?;
        }
        Ok(())
    }

    fn vacate(&mut self, map: &mut BlockMap, at: Time, block: u32) -> Result<bool> {
        if self.sequential.is_some_and(|sequential| sequential.block == block) {
            return self.close(map, at);
        }
        match self.random.iter().position(|random| *random == block) {
            Some(index) => self.reclaim(map, at, index),
            None => Ok(false),
        }
    }
}
