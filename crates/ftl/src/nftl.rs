//! NFTL, the replacement-block scheme: updates go in place into replacement blocks (Ban: Flash File System,
//! US patent 5,404,485, 1995; as the Linux driver `nftlcore` does it).
//!
//! A logical block has a chain of blocks: its data block, then replacement blocks. A page goes to its own
//! place in the first block of the chain where that is still free; if there is none, a replacement block is
//! appended. When `logs` replacement blocks are in use, a chain is folded first: its valid pages are gathered
//! in its last block (or, where that cannot be, in a free one), and the rest of the chain is erased.
//!
//! Which chain is a setting. Linux folds the *longest*, of several the one of the lowest number: that may be
//! a chain that is needed again at once, and the paper of the camera workload shows what that costs.
//!
//! Counted as merges: folds that found everything in the last block (switch), that completed it (partial),
//! that needed a free block (full). Where pages of a block must be programmed in order (large-page NAND), a
//! place below one already programmed counts as taken.
//!
//! Invariants: at most `logs` replacement blocks. Cost: O(blocks of the chain) a request, O(pages of a block)
//! a fold, and with `victim=cheapest` as much for each chain there is.

use super::Scheme;
use super::blockmap::{BlockMap, Contents, Mapped, NONE, Place, Updates};
use super::settings::{LEVEL, LOGICAL, OVER_PROVISION, SPREAD, Settings};
use bimetal_base::Result;
use bimetal_base::options::OptionSpec;
use bimetal_base::time::Time;
use bimetal_media::nand::Nand;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// NFTL's entry in the list of schemes.
pub const SCHEME: Scheme = Scheme {
    name: "nftl",
    about: "NFTL: chains of replacement blocks, written in place",
    options: &[
        OptionSpec::of("logs", "1..", "64, or what there is room for", "replacement blocks"),
        OptionSpec::of(
            "victim",
            "longest|lru|cheapest",
            "longest",
            "which chain is folded: the longest, the one least recently written, or that with the fewest copies",
        ),
        OptionSpec::of(
            "fold",
            "in-place|new",
            "in-place",
            "chains are folded into their last block, or always into a free one",
        ),
        LEVEL,
        SPREAD,
        OVER_PROVISION,
        LOGICAL,
    ],
    make: |nand, settings| Ok(Box::new(open(nand, settings)?)),
};

fn open(nand: Nand, mut settings: Settings) -> Result<Mapped<Nftl>> {
    let victims = [("longest", Victim::Longest), ("lru", Victim::Lru), ("cheapest", Victim::Cheapest)];
    let victim = settings.choice("victim", &victims)?;
    let in_place = settings.choice("fold", &[("in-place", true), ("new", false)])?;
    let (map, replacements_max) = BlockMap::open(nand, settings, SCHEME.options, 1)?;
    let blocks = map.data.len();
    let nftl = Nftl {
        replacements: vec![Vec::new(); blocks],
        long: BTreeSet::new(),
        used: 0,
        replacements_max,
        written: vec![0; if victim == Victim::Lru { blocks } else { 0 }],
        victim,
        in_place,
    };
    Mapped::open(map, nftl)
}

/// Which chain is folded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Longest,
    Lru,
    Cheapest,
}

struct Nftl {
    /// The blocks after the data block of each chain.
    replacements: Vec<Vec<u32>>,
    /// The chains with any, longest first.
    long: BTreeSet<(Reverse<usize>, u32)>,
    /// Replacement blocks in use.
    used: usize,
    replacements_max: usize,
    /// The number of the last write that came for each chain; empty unless asked for.
    written: Vec<u64>,
    victim: Victim,
    in_place: bool,
}

impl Nftl {
    /// Gives `logical` these replacement blocks; returns those it had.
    fn set(&mut self, logical: u32, blocks: Vec<u32>) -> Vec<u32> {
        if !blocks.is_empty() {
            self.long.insert((Reverse(blocks.len()), logical));
        }
        self.used += blocks.len();
        let old = std::mem::replace(&mut self.replacements[logical as usize], blocks);
        if old.len() != self.replacements[logical as usize].len() {
            self.long.remove(&(Reverse(old.len()), logical));
        }
        self.used -= old.len();
        old
    }

    /// A free block; chains are folded until there is one.
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

    /// Folds a chain; false if there is none, or no block to fold it into.
    fn make_room(&mut self, map: &mut BlockMap, at: Time) -> Result<bool> {
        let chains = || self.long.iter().map(|(_, logical)| *logical);
        let victim = match self.victim {
            Victim::Longest => chains().next(),
            Victim::Lru => chains().min_by_key(|logical| self.written[*logical as usize]),
            // The cheapest may always be the same one.
            Victim::Cheapest => chains().min_by_key(|logical| {
                let last = self.replacements[*logical as usize].last();
                let copies = last.map(|last| map.count_elsewhere(*logical, *last));
                (map.runs_away(map.data[*logical as usize]), copies, *logical)
            }),
        };
        victim.map_or(Ok(false), |logical| self.fold(map, at, logical))
    }

    /// Folds the chain of `logical` into one block; false if there is no block for that.
    fn fold(&mut self, map: &mut BlockMap, at: Time, logical: u32) -> Result<bool> {
        let Some(&last) = self.replacements[logical as usize].last() else { return Ok(false) };
        if self.in_place && map.fits(logical, 0, last) {
            let copies = map.nand.copies();
            if map.gather(at, logical, 0, last)? {
                let copied = map.nand.copies() > copies;
                let counts = &mut map.counts;
                *if copied { &mut counts.partial_merges } else { &mut counts.switch_merges } += 1;
                let mut blocks = self.set(logical, Vec::new());
                blocks.pop();
                blocks.insert(0, map.adopt(logical, last));
                blocks.into_iter().try_for_each(|block| map.release(at, block))?;
                return Ok(true);
            }
        }
        if !map.renew(at, logical)? {
            return Ok(false);
        }
        map.counts.full_merges += 1;
        let blocks = self.set(logical, Vec::new());
        blocks.into_iter().try_for_each(|block| map.release(at, block))?;
        Ok(true)
    }
}

impl Updates for Nftl {
    fn recover(&mut self, map: &mut BlockMap) -> Result<()> {
        let (mut chains, mut unsorted) = (vec![Vec::new(); map.data.len()], Vec::new());
        for block in map.blocks_in_use() {
            match map.contents(block) {
                Contents::InPlace(logical) => {
                    let left =
                        (0..map.pages_per_block).filter(|page| map.is_programmable(block, *page)).count();
                    chains[logical as usize].push((left, map.youngest_in(block), block));
                }
                Contents::Log(_) | Contents::Mixed => unsorted.extend(map.logical_blocks_in(block, true)),
            }
        }
        for (logical, mut chain) in chains.into_iter().enumerate() {
            // The fuller comes before the emptier.
            chain.sort_unstable();
            let mut blocks = chain.into_iter().map(|(.., block)| block);
            let Some(first) = blocks.next() else { continue };
            map.adopt(logical as u32, first);
            let blocks = blocks.collect();
            self.set(logical as u32, blocks);
        }
        // Left by another scheme.
        for logical in unsorted {
            map.renew(Time::ZERO, logical)?;
        }
        for logical in 0..map.data.len() as u32 {
            let mut blocks = self.set(logical, Vec::new());
            blocks.retain(|block| map.holds_valid(*block));
            self.set(logical, blocks);
        }
        map.erase_unused()?;
        while self.used > self.replacements_max && self.make_room(map, Time::ZERO)? {}
        Ok(())
    }

    fn place(&mut self, map: &mut BlockMap, at: Time, page: u32) -> Result<Option<Place>> {
        let (logical, offset) = map.split(page);
        // Used from here on: what this very write folds is another chain.
        if let Some(written) = self.written.get_mut(logical as usize) {
            *written = map.sequence() + 1;
        }
        loop {
            if map.data[logical as usize] == NONE {
                let Some(block) = self.take(map, at, logical)? else { return Ok(None) };
                map.adopt(logical, block);
            }
            let chain =
                std::iter::once(&map.data[logical as usize]).chain(&self.replacements[logical as usize]);
            if let Some(&block) = chain.into_iter().find(|block| map.is_programmable(**block, offset)) {
                return Ok(Some((block, offset)));
            }
            // A fold may be of this very chain: then there may be room in it.
            if self.used >= self.replacements_max {
                if !self.make_room(map, at)? {
                    return Ok(None);
                }
                continue;
            }
            let Some(block) = self.take(map, at, logical)? else { return Ok(None) };
            let mut blocks = self.set(logical, Vec::new());
            blocks.push(block);
            self.set(logical, blocks);
        }
    }

    fn emptied(&mut self, map: &mut BlockMap, at: Time, logical: u32) -> Result<()> {
        let mut blocks = self.set(logical, Vec::new());
        let next = if blocks.is_empty() { NONE } else { blocks.remove(0) };
        self.set(logical, blocks);
        let old = map.adopt(logical, next);
        map.release(at, old)
    }

    fn vacate(&mut self, map: &mut BlockMap, at: Time, block: u32) -> Result<bool> {
        let mut chains = self.long.iter().map(|(_, logical)| *logical);
        let its = chains.find(|logical| self.replacements[*logical as usize].contains(&block));
        its.map_or(Ok(false), |logical| self.fold(map, at, logical))
    }
}
