//! A NAND part and an NVRAM in memory, for tests and trials, with one power supply that can be cut at any
//! program, erase or NVRAM word, and with the ways in which a cut leaves the medium.
//!
//! Words of the NVRAM written since the last `persist` are in no order: when the power goes, wherever it goes, each
//! of them holds what it held then or any of what was written to it since, whatever became of the others.
//!
//! The part keeps its users to the rules: a page that is programmed twice, out of order, or in a bad block panics.

use crate::media::{Geometry, Nand, NandError, Nvram, NvramError};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;

/// What a power cut leaves of the operation it hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Torn {
    /// A page or block that cannot be read.
    #[default]
    Unreadable,
    /// It looks as if nothing had been done: but what looks erased is not, and must not be programmed.
    Nothing,
    /// Half of the page's data is there, with all of its tags; half of the block is erased.
    Half,
    /// Everything was done, only not reported.
    All,
}

impl Torn {
    /// All ways.
    pub const ALL: [Torn; 4] = [Torn::Unreadable, Torn::Nothing, Torn::Half, Torn::All];
}

#[derive(Debug, Default)]
struct Supply {
    /// Operations until the power goes; 0: no cut is planned.
    left: Cell<u64>,
    off: Cell<bool>,
    done: Cell<u64>,
    torn: Cell<Torn>,
    /// How often the power went.
    cuts: Cell<u64>,
    /// What decides which words that were not persisted got there.
    luck: Cell<u64>,
}

/// The power supply of a part and its NVRAM.
#[derive(Clone, Debug, Default)]
pub struct Power(Rc<Supply>);

impl Power {
    /// Cuts the power in the `count`-th operation from now (1: the next), leaving it `torn`.
    pub fn cut_in(&self, count: u64, torn: Torn) {
        self.0.left.set(count);
        self.0.torn.set(torn);
    }

    /// Decides anew which words of the NVRAM that were not persisted get there in the next cut: with 0 none, with
    /// `u64::MAX` all, otherwise each by chance.
    pub fn set_luck(&self, luck: u64) {
        self.0.luck.set(luck);
    }

    /// Turns the power on; no cut is planned any more.
    pub fn on(&self) {
        self.0.off.set(false);
        self.0.left.set(0);
    }

    /// Whether it is off.
    pub fn is_off(&self) -> bool {
        self.0.off.get()
    }

    /// Programs, erases and NVRAM words so far.
    pub fn operations(&self) -> u64 {
        self.0.done.get()
    }

    /// Counts an operation; how it is torn, if it is the one.
    fn spend(&self) -> Option<Torn> {
        self.0.done.set(self.0.done.get() + 1);
        match self.0.left.get() {
            0 => None,
            1 => {
                self.0.left.set(0);
                self.0.off.set(true);
                self.0.cuts.set(self.0.cuts.get() + 1);
                Some(self.0.torn.get())
            }
            left => {
                self.0.left.set(left - 1);
                None
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
enum PageCell {
    #[default]
    Erased,
    /// Reads as erased and is not.
    Unstable,
    Unreadable,
    Written(Rc<[u8]>),
}

/// What was done to a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages read.
    pub reads: u64,
    /// Spare areas read alone.
    pub spare_reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
}

/// A NAND part in memory.
#[derive(Clone, Debug)]
pub struct RamNand {
    geometry: Geometry,
    pages: Vec<PageCell>,
    bad: Vec<bool>,
    erases: Vec<u32>,
    power: Power,
    counts: Counts,
    /// The next program or erase of this block fails.
    failing: Option<u32>,
    /// What a cut leaves of a part that is written back: its pages at the last sync, and the cuts it went through.
    synced: Option<(Vec<PageCell>, u64)>,
    /// A cut ends the file system alone, and not the host that caches what it wrote.
    host_lives: bool,
}

impl RamNand {
    /// An erased part on its own power supply.
    pub fn new(geometry: Geometry) -> RamNand {
        RamNand {
            geometry,
            pages: alloc::vec![PageCell::Erased; geometry.pages() as usize],
            bad: alloc::vec![false; geometry.blocks as usize],
            erases: alloc::vec![0; geometry.blocks as usize],
            power: Power::default(),
            counts: Counts::default(),
            failing: None,
            synced: None,
            host_lives: false,
        }
    }

    /// From now on a cut takes everything back to the last sync, as with an image on a host that caches its writes.
    pub fn write_back(&mut self) {
        self.synced = Some((self.pages.clone(), self.power.0.cuts.get()));
    }

    /// As [`write_back`](RamNand::write_back), on a host that lives on: a cut takes nothing back.
    pub fn write_to_host(&mut self) {
        self.write_back();
        self.host_lives = true;
    }

    /// Takes a page's data and leaves its tags, as a host does that lost its cache: a page lies in two of its own.
    pub fn tear(&mut self, page: u32) {
        if let PageCell::Written(bytes) = &mut self.pages[page as usize] {
            let mut torn = bytes.to_vec();
            torn[..self.geometry.page_bytes as usize].fill(0);
            *bytes = torn.into();
        }
    }

    /// The same part in the same state, on another power supply.
    pub fn copy_on(&self, power: Power) -> RamNand {
        RamNand { power, ..self.clone() }
    }

    /// Its power supply.
    pub fn power(&self) -> Power {
        self.power.clone()
    }

    /// What was done to it.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How often a block was erased.
    pub fn erases(&self, block: u32) -> u32 {
        self.erases[block as usize]
    }

    /// Lets the next program or erase of a block fail.
    pub fn fail_next(&mut self, block: u32) {
        self.failing = Some(block);
    }

    /// Makes a page unreadable, as too many wrong bits do.
    pub fn spoil(&mut self, page: u32) {
        self.pages[page as usize] = PageCell::Unreadable;
    }

    /// Makes a page read as an erased one, which it is not.
    pub fn blank(&mut self, page: u32) {
        self.pages[page as usize] = PageCell::Unstable;
    }

    /// Turns a bit of a written page over: the data's first, then the spare area's.
    pub fn flip(&mut self, page: u32, bit: usize) {
        if let PageCell::Written(bytes) = &mut self.pages[page as usize] {
            let mut turned = bytes.to_vec();
            turned[bit / 8] ^= 1 << (bit % 8);
            *bytes = turned.into();
        }
    }

    /// Puts something in place of a page, whatever was there.
    pub fn put(&mut self, page: u32, data: &[u8], spare: &[u8]) {
        self.pages[page as usize] = PageCell::Written([data, spare].concat().into());
    }

    /// All pages one after the other, each with its spare area: what `nanddump --oob` writes.
    pub fn dump(&mut self) -> Vec<u8> {
        let (data, spare) = (self.geometry.page_bytes as usize, self.geometry.spare_bytes as usize);
        let mut image = Vec::with_capacity(self.pages.len() * (data + spare));
        for page in &self.pages {
            match page {
                PageCell::Written(bytes) => image.extend_from_slice(bytes),
                _ => image.resize(image.len() + data + spare, 0xff),
            }
        }
        image
    }

    fn powered(&mut self) -> Result<(), NandError> {
        let cuts = self.power.0.cuts.get();
        if let Some((pages, seen)) =
            self.synced.as_mut().filter(|(_, seen)| *seen != cuts && !self.host_lives)
        {
            *seen = cuts;
            self.pages.clone_from(pages);
        }
        if self.power.is_off() { Err(NandError::Gone) } else { Ok(()) }
    }

    fn cells(&mut self, block: u32) -> &mut [PageCell] {
        let pages = self.geometry.pages_per_block as usize;
        &mut self.pages[block as usize * pages..][..pages]
    }

    fn tear_program(&mut self, page: u32, bytes: Vec<u8>, torn: Torn) {
        let half = self.geometry.page_bytes as usize / 2;
        self.pages[page as usize] = match torn {
            Torn::Unreadable => PageCell::Unreadable,
            Torn::Nothing => PageCell::Unstable,
            Torn::Half => {
                let mut bytes = bytes;
                bytes[half..2 * half].fill(0xff);
                PageCell::Written(bytes.into())
            }
            Torn::All => PageCell::Written(bytes.into()),
        };
    }

    fn tear_erase(&mut self, block: u32, torn: Torn) {
        let cells = self.cells(block);
        let count = match torn {
            Torn::Nothing => 0,
            Torn::Half => cells.len() / 2,
            Torn::Unreadable | Torn::All => cells.len(),
        };
        let left = if torn == Torn::Unreadable { PageCell::Unreadable } else { PageCell::Unstable };
        cells[..count].fill(left);
    }
}

impl Nand for RamNand {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn is_in_order(&self) -> bool {
        self.synced.is_none()
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        self.powered()?;
        Ok(self.bad[block as usize])
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        self.powered()?;
        self.bad[block as usize] = true;
        Ok(())
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        self.powered()?;
        self.counts.reads += 1;
        match &self.pages[page as usize] {
            PageCell::Erased | PageCell::Unstable => {
                data.fill(0xff);
                spare.fill(0xff);
            }
            PageCell::Unreadable => return Err(NandError::Unreadable),
            PageCell::Written(bytes) => {
                let (from, behind) = bytes.split_at(data.len());
                data.copy_from_slice(from);
                spare.copy_from_slice(&behind[..spare.len()]);
            }
        }
        Ok(0)
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        self.powered()?;
        self.counts.spare_reads += 1;
        match &self.pages[page as usize] {
            PageCell::Erased | PageCell::Unstable => spare.fill(0xff),
            PageCell::Unreadable => return Err(NandError::Unreadable),
            PageCell::Written(bytes) => spare.copy_from_slice(&bytes[self.geometry.page_bytes as usize..]),
        }
        Ok(0)
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        self.powered()?;
        let block = self.geometry.block_of(page);
        let in_block = (page % self.geometry.pages_per_block) as usize;
        assert!(!self.bad[block as usize], "block {block} is bad");
        let later = &self.cells(block)[in_block..];
        let erased = later.iter().all(|cell| matches!(cell, PageCell::Erased));
        assert!(erased, "page {in_block} of block {block} is not erased, or out of order");
        let bytes = [data, spare].concat();
        if let Some(torn) = self.power.spend() {
            self.tear_program(page, bytes, torn);
            return Err(NandError::Gone);
        }
        if self.failing == Some(block) {
            self.failing = None;
            self.pages[page as usize] = PageCell::Unreadable;
            return Err(NandError::Failed);
        }
        self.counts.programs += 1;
        self.pages[page as usize] = PageCell::Written(bytes.into());
        Ok(())
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        self.powered()?;
        assert!(!self.bad[block as usize], "block {block} is bad");
        if let Some(torn) = self.power.spend() {
            self.tear_erase(block, torn);
            return Err(NandError::Gone);
        }
        if self.failing == Some(block) {
            self.failing = None;
            return Err(NandError::Failed);
        }
        self.counts.erases += 1;
        self.erases[block as usize] += 1;
        self.cells(block).fill(PageCell::Erased);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), NandError> {
        self.powered()?;
        if let Some((pages, _)) = &mut self.synced {
            pages.clone_from(&self.pages);
        }
        Ok(())
    }
}

/// Bytes of a word, which is never torn.
const WORD: usize = 8;

/// An NVRAM in memory.
#[derive(Clone, Debug)]
pub struct RamNvram {
    /// What a read finds, while the power is on.
    bytes: Vec<u8>,
    /// Words written since they were last persisted: what each may hold after a cut, the oldest first.
    pending: BTreeMap<usize, Vec<[u8; WORD]>>,
    power: Power,
    /// Cuts that what is pending went through already.
    cuts: u64,
    /// Bytes read so far.
    pub read_bytes: u64,
    /// Bytes written so far.
    pub written_bytes: u64,
}

impl RamNvram {
    /// So many zeros, on this power supply.
    pub fn new(size_bytes: usize, power: Power) -> RamNvram {
        RamNvram {
            bytes: alloc::vec![0; size_bytes],
            pending: BTreeMap::new(),
            cuts: power.0.cuts.get(),
            power,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    /// The same memory in the same state, on another power supply.
    pub fn copy_on(&self, power: Power) -> RamNvram {
        RamNvram { cuts: power.0.cuts.get(), power, ..self.clone() }
    }

    /// What it holds, to be spoilt.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.settle();
        &mut self.bytes
    }

    /// How many words were written since they were last persisted.
    pub fn unpersisted(&self) -> usize {
        self.pending.len()
    }

    /// After a cut each pending word is one of what it may be.
    fn settle(&mut self) {
        if self.cuts == self.power.0.cuts.get() {
            return;
        }
        self.cuts = self.power.0.cuts.get();
        let luck = self.power.0.luck.get();
        for (at, versions) in core::mem::take(&mut self.pending) {
            let last = versions.len() as u64 - 1;
            let which = match luck {
                0 => 0,
                u64::MAX => last,
                _ => mix(luck ^ at as u64) % versions.len() as u64,
            };
            let end = (at + WORD).min(self.bytes.len());
            self.bytes[at..end].copy_from_slice(&versions[which as usize][..end - at]);
        }
    }

    fn word(&self, at: usize) -> [u8; WORD] {
        let mut word = [0; WORD];
        let end = (at + WORD).min(self.bytes.len());
        word[..end - at].copy_from_slice(&self.bytes[at..end]);
        word
    }
}

/// A number that looks like chance (the finaliser of SplitMix64).
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Nvram for RamNvram {
    fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), NvramError> {
        self.settle();
        let from = self.bytes.get(offset..offset.saturating_add(bytes.len())).ok_or(NvramError)?;
        if self.power.is_off() {
            return Err(NvramError);
        }
        bytes.copy_from_slice(from);
        self.read_bytes += bytes.len() as u64;
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), NvramError> {
        self.settle();
        if self.power.is_off() || self.bytes.get(offset..offset.saturating_add(bytes.len())).is_none() {
            return Err(NvramError);
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done;
            let part = (WORD - at % WORD).min(bytes.len() - done);
            let word = at - at % WORD;
            let old = self.word(word);
            self.bytes[at..at + part].copy_from_slice(&bytes[done..done + part]);
            let new = self.word(word);
            self.pending.entry(word).or_insert_with(|| alloc::vec![old]).push(new);
            if self.power.spend().is_some() {
                return Err(NvramError);
            }
            done += part;
        }
        self.written_bytes += bytes.len() as u64;
        Ok(())
    }

    fn persist(&mut self) -> Result<(), NvramError> {
        self.settle();
        if self.power.is_off() {
            return Err(NvramError);
        }
        self.pending.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_were_not_persisted_get_there_in_any_combination_and_persisted_ones_stay() {
        let mut seen = alloc::collections::BTreeSet::new();
        for luck in (0..200).chain([u64::MAX]) {
            let power = Power::default();
            let mut memory = RamNvram::new(32, power.clone());
            memory.write(0, &[1; 8]).unwrap();
            memory.persist().unwrap();
            power.set_luck(luck);
            power.cut_in(4, Torn::All);
            memory.write(8, &[2; 8]).unwrap();
            memory.write(16, &[3; 8]).unwrap();
            memory.write(16, &[4; 8]).unwrap();
            assert_eq!(memory.write(24, &[5; 8]), Err(NvramError));
            power.on();
            let mut bytes = [0; 32];
            memory.read(0, &mut bytes).unwrap();
            assert!(bytes[..8] == [1; 8]);
            let words = [bytes[8], bytes[16], bytes[24]];
            match luck {
                0 => assert_eq!(words, [0, 0, 0]),
                u64::MAX => assert_eq!(words, [2, 4, 5]),
                _ => drop(seen.insert(words)),
            }
        }
        assert_eq!(seen.len(), 2 * 3 * 2, "every combination comes up");
    }
}
