//! The part: every access of it goes through here.
//!
//! One page is held, the last that was read whole, with its spare area. What the file system programs or erases is
//! counted; an error of the medium is told from the loss of it: what failed is `false` or `None`, and only
//! [`Error::Gone`] ends an operation at once.

use super::watch::Watch;
use super::{Config, Stats};
use crate::error::{Error, Result};
use crate::media::{Geometry, Nand, NandError};
use crate::record::PassedOver;
use crate::summary;
use crate::tags::{Packed, PageKind, SpareState, TagPlace};
use alloc::vec::Vec;

const ANOTHER: &str = "it is another one by its tags";

/// Pages that are looked at behind one that reads as erased.
const LOOK_BEHIND: u32 = 2;

/// Pages with their tags.
pub(super) type Tagged = Vec<(u32, Packed)>;

/// What the end of a block says.
#[derive(Default)]
pub(super) struct BlockTail {
    /// Its pages with tags, the last of them whole.
    pub pages: Tagged,
    /// The first page that is erased, as are all behind it.
    pub end: u32,
    /// Pages that could not be read.
    pub unreadable: u32,
    /// Those of them that others follow: no power cut did that.
    pub lost: Vec<u32>,
    /// Pages with tags, and without the data that these are of.
    pub torn: Vec<u32>,
}

pub(super) struct Flash<N> {
    nand: N,
    geometry: Geometry,
    place: TagPlace,
    page: Vec<u8>,
    spare: Vec<u8>,
    programs: u64,
    erases: u64,
    failures: u64,
    watch: Watch,
    passed_over: PassedOver,
    /// Some of those no record lists yet.
    unlisted: bool,
}

impl<N: Nand> Flash<N> {
    pub fn new(nand: N, config: &Config) -> Result<Flash<N>> {
        let geometry = nand.geometry();
        geometry.check()?;
        if nand.cell_bits() > 1 {
            return Err(Error::Unsupported(
                "its cells hold more than one bit (MLC, TLC, QLC): a power cut while a page is programmed may destroy the \
                 one it is paired with; use a part with one bit a cell, or this one in its mode for that",
            ));
        }
        Ok(Flash {
            geometry,
            place: TagPlace::for_spare(geometry.spare_bytes),
            page: alloc::vec![0; geometry.page_bytes as usize],
            spare: alloc::vec![0; geometry.spare_bytes as usize],
            programs: 0,
            erases: 0,
            failures: 0,
            watch: Watch::new(&geometry, nand.correctable(), config),
            passed_over: PassedOver::default(),
            unlisted: false,
            nand,
        })
    }

    pub fn nand(&self) -> &N {
        &self.nand
    }

    pub fn nand_mut(&mut self) -> &mut N {
        &mut self.nand
    }

    pub fn into_nand(self) -> N {
        self.nand
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Where the tags are in a spare area.
    pub fn place(&self) -> TagPlace {
        self.place
    }

    pub fn count(&self, stats: &mut Stats) {
        (stats.programs, stats.erases, stats.failures) = (self.programs, self.erases, self.failures);
        self.watch.count(stats);
    }

    /// Blocks that are to be rewritten before they are lost.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The pages that are as if they had never been written: whoever reads their tags finds nothing that is known.
    pub fn passed_over(&mut self) -> &mut PassedOver {
        &mut self.passed_over
    }

    /// From now on a page of a block with this sequence number is passed over.
    pub fn pass_over(&mut self, page: u32, sequence: u32) {
        self.passed_over.add(page, sequence);
        self.unlisted = true;
    }

    /// Whether a page is passed over that no record lists: one has to, before anything is written that comes after it.
    pub fn has_unlisted(&self) -> bool {
        self.unlisted
    }

    /// The newest record lists the pages that are passed over, or does not.
    pub fn set_listed(&mut self, is_listed: bool) {
        self.unlisted = !is_listed;
    }

    /// Those are the pages passed over that the record says whose page was read last.
    pub fn learn_passed_over(&mut self) {
        self.passed_over = PassedOver::from_page(&self.page, &self.geometry).unwrap_or_default();
        self.unlisted = false;
    }

    /// Whether the list of pages that are passed over fills more than half of its room: blocks are to be erased for it.
    pub fn is_crowded(&self) -> bool {
        self.passed_over.blocks(&self.geometry).len() * 2 > PassedOver::blocks_max(&self.geometry)
    }

    /// The blocks with such pages are rewritten, if there are too many of them.
    pub fn thin_out(&mut self) {
        if self.is_crowded() {
            self.passed_over.blocks(&self.geometry).into_iter().for_each(|block| self.watch.tire(block));
        }
    }

    /// What the spare area that was read last says of a page.
    fn tags_read(&self, page: u32) -> SpareState {
        match self.place.read(&self.spare) {
            SpareState::Tagged(tags) => SpareState::Tagged(self.unless_passed_over(page, tags)),
            other => other,
        }
    }

    fn unless_passed_over(&self, page: u32, tags: Packed) -> Packed {
        if self.passed_over.contains(page, tags.sequence) { Packed::unknown(tags.sequence) } else { tags }
    }

    /// Reads a page into the one that is held.
    fn read_whole(&mut self, page: u32) -> core::result::Result<(), NandError> {
        let read = self.nand.read(page, &mut self.page, &mut self.spare);
        self.watch.read(self.geometry.block_of(page), read)
    }

    /// Reads the spare area of a page.
    fn read_spare(&mut self, page: u32) -> core::result::Result<(), NandError> {
        let read = self.nand.read_spare(page, &mut self.spare);
        self.watch.read(self.geometry.block_of(page), read)
    }

    /// The page that was read last.
    pub fn page(&self) -> &[u8] {
        &self.page
    }

    /// Takes the page that was read last, to be [given back](Flash::give_back).
    pub fn lend(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.page)
    }

    pub fn give_back(&mut self, page: Vec<u8>) {
        self.page = page;
    }

    /// Reads a page whole; what its spare area says, or `None` if it cannot be read.
    pub fn read(&mut self, page: u32) -> Result<Option<SpareState>> {
        match self.read_whole(page) {
            Ok(()) => Ok(Some(self.tags_read(page))),
            Err(NandError::Gone) => Err(Error::Gone),
            Err(_) => Ok(None),
        }
    }

    /// Whether the page that was read last has the checksum that its spare area says.
    pub fn is_whole(&self) -> bool {
        self.place.data_is_whole(&self.page, &self.spare)
    }

    /// Reads a page that must be one of the log; its tags.
    pub fn fetch(&mut self, page: u32) -> Result<Packed> {
        let damaged = |why| Error::Corrupt { what: "page", why, at: u64::from(page) };
        match self.read_whole(page) {
            Ok(()) => {}
            Err(NandError::Gone | NandError::Failed) => return Err(Error::Gone),
            Err(NandError::Unreadable) => return Err(damaged("more bits are wrong than can be corrected")),
        }
        match self.place.read(&self.spare) {
            SpareState::Tagged(tags) if self.is_whole() => Ok(tags),
            SpareState::Tagged(_) => Err(damaged("its checksum is wrong")),
            SpareState::Erased | SpareState::Unreadable => Err(damaged("it has no tags")),
        }
    }

    /// As [`fetch`](Flash::fetch), of a page that must be this one of this file.
    pub fn fetch_data(&mut self, page: u32, id: u32, index: u32) -> Result<()> {
        match self.fetch(page)?.kind() {
            PageKind::Data { object, index: own, bytes: 1.. } if (object, own) == (id, index) => Ok(()),
            _ => Err(Error::Corrupt { what: "page", why: ANOTHER, at: u64::from(page) }),
        }
    }

    /// As [`fetch`](Flash::fetch), of a page that must be this object's header.
    pub fn fetch_header(&mut self, page: u32, id: u32) -> Result<()> {
        match self.fetch(page)?.kind() {
            PageKind::Header { object, .. } if object == id => Ok(()),
            _ => Err(Error::Corrupt { what: "page", why: ANOTHER, at: u64::from(page) }),
        }
    }

    /// Reads a page of a file to move it; false where it is lost. Its tags may be: another place told them, too.
    pub fn fetch_to_move(&mut self, page: u32, id: u32, index: u32) -> Result<bool> {
        match self.read_whole(page) {
            Ok(()) => {}
            Err(NandError::Gone | NandError::Failed) => return Err(Error::Gone),
            Err(NandError::Unreadable) => {
                self.page.fill(0);
                return Ok(false);
            }
        }
        let is_it = match self.place.read(&self.spare) {
            SpareState::Tagged(tags) => matches!(tags.kind(),
                PageKind::Data { object, index: own, bytes: 1.. } if (object, own) == (id, index)),
            SpareState::Unreadable => true,
            SpareState::Erased => false,
        };
        Ok(is_it && self.is_whole())
    }

    /// The tags of one page.
    pub fn read_tags(&mut self, page: u32) -> Result<SpareState> {
        match self.read_spare(page) {
            Ok(()) => Ok(self.tags_read(page)),
            Err(NandError::Unreadable) => Ok(SpareState::Unreadable),
            Err(_) => Err(Error::Gone),
        }
    }

    /// What the first page of a block says.
    pub fn first_tags(&mut self, block: u32) -> Result<SpareState> {
        self.read_tags(self.geometry.first_page(block))
    }

    /// The summary of a full block, if it has one that is whole.
    pub fn read_summary(&mut self, block: u32) -> Result<Option<Vec<Packed>>> {
        if !cfg!(feature = "summaries") {
            return Ok(None);
        }
        let count = summary::pages(&self.geometry, true);
        let usable = self.geometry.pages_per_block - count;
        let first = self.geometry.first_page(block) + usable;
        let mut bytes = Vec::new();
        let mut sequence = 0;
        for page in first..first + count {
            match self.read(page)? {
                Some(SpareState::Tagged(tags)) if tags.kind() == PageKind::Summary => {
                    sequence = tags.sequence
                }
                _ => return Ok(None),
            }
            bytes.extend_from_slice(&self.page);
        }
        let mut tags = summary::decode(&bytes, sequence, usable);
        for (page, tags) in (self.geometry.first_page(block)..).zip(tags.iter_mut().flatten()) {
            *tags = self.unless_passed_over(page, *tags);
        }
        Ok(tags)
    }

    /// The tags of a block's pages: from its summary, or one by one.
    pub fn tags_of(&mut self, block: u32) -> Result<Tagged> {
        let first = self.geometry.first_page(block);
        if let Some(tags) = self.read_summary(block)? {
            return Ok((first..).zip(tags).collect());
        }
        let mut found = Vec::new();
        for page in first..first + self.geometry.pages_per_block {
            if let SpareState::Tagged(tags) = self.read_tags(page)? {
                found.push((page, tags));
            }
        }
        Ok(found)
    }

    /// The tags of the first `count` pages of a block; `None` where some cannot be read.
    pub fn all_tags_of(&mut self, block: u32, count: u32) -> Result<Option<Vec<Packed>>> {
        let first = self.geometry.first_page(block);
        let mut found = Vec::with_capacity(count as usize);
        for page in first..first + count {
            match self.read_tags(page)? {
                SpareState::Tagged(tags) => found.push(tags),
                SpareState::Erased | SpareState::Unreadable => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// Whether something was programmed behind a page of a block that reads as erased, so that it is not: pages are
    /// programmed in order. The next pages are looked at, and with `to_end` the last of the block.
    pub fn goes_on(&mut self, block: u32, page: u32, to_end: bool) -> Result<bool> {
        let (first, end) = (self.geometry.first_page(block), self.geometry.pages_per_block);
        let near = (page + 1).min(end)..(page + 1 + LOOK_BEHIND).min(end);
        let last = (to_end && near.end < end).then_some(end - 1);
        for behind in near.chain(last) {
            if matches!(self.read_tags(first + behind)?, SpareState::Tagged(_)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The tags of a block's pages from `from` on, the last one checked to be whole: if it is not, it was never written.
    pub fn read_tail(&mut self, block: u32, from: u32) -> Result<BlockTail> {
        let first = self.geometry.first_page(block);
        let mut tail = BlockTail { end: from, ..BlockTail::default() };
        let mut pending = Vec::new();
        for page in from..self.geometry.pages_per_block {
            match self.read_tags(first + page)? {
                SpareState::Erased if !self.goes_on(block, page, true)? => break,
                SpareState::Tagged(tags) => {
                    tail.pages.push((first + page, tags));
                    tail.lost.append(&mut pending);
                }
                SpareState::Erased | SpareState::Unreadable => {
                    tail.unreadable += 1;
                    pending.push(first + page);
                }
            }
            tail.end = page + 1;
        }
        if let Some((last, _)) = tail.pages.last().copied() {
            match self.fetch(last) {
                Ok(_) => {}
                Err(Error::Gone) => return Err(Error::Gone),
                Err(_) => {
                    tail.unreadable += 1;
                    tail.pages.pop();
                }
            }
        }
        Ok(tail)
    }

    /// Adds what a block's end says of pages that are not whole. Where a host may keep what was written later alone, every page is
    /// read that was written since the last sync: none of a block before the one opened last.
    pub fn find_torn(&mut self, tail: &mut BlockTail) -> Result<()> {
        if self.nand.is_in_order() {
            return Ok(());
        }
        for (page, tags) in &tail.pages {
            if self.passed_over.contains(*page, tags.sequence) {
                continue;
            }
            match self.fetch(*page) {
                Ok(found) if found.kind() == tags.kind() => {}
                Err(Error::Gone) => return Err(Error::Gone),
                _ => {
                    tail.unreadable += 1;
                    tail.torn.push(*page);
                }
            }
        }
        Ok(())
    }

    /// Where the tags are, which each driver decides by itself: the first place that makes sense of a page. False
    /// where everything is erased.
    pub fn find_tags(&mut self) -> Result<bool> {
        let usual = TagPlace::for_spare(self.geometry.spare_bytes);
        let places = [
            usual,
            TagPlace::IMAGE,
            TagPlace::MTD,
            TagPlace { ecc: false, ..usual },
            TagPlace { offset: 0, ecc: false },
        ];
        let mut looked = 0;
        for block in 0..self.geometry.blocks {
            let page = self.geometry.first_page(block);
            match self.read_spare(page) {
                Ok(()) => {}
                Err(NandError::Gone) => return Err(Error::Gone),
                Err(_) => continue,
            }
            if self.spare.iter().all(|byte| *byte == 0xff) {
                continue;
            }
            let fits = |place: &&TagPlace| matches!(place.read(&self.spare), SpareState::Tagged(_));
            if let Some(place) = places.iter().find(fits) {
                self.place = *place;
                return Ok(true);
            }
            looked += 1;
            // Blocks that were cut off in an erase look like anything.
            if looked > 64 {
                return Err(Error::Corrupt {
                    what: "NAND",
                    why: "no page has tags of YAFFS2",
                    at: u64::from(page),
                });
            }
        }
        Ok(false)
    }

    /// Programs a page with its tags; false where that failed.
    pub fn program(&mut self, page: u32, tags: &Packed, data: &[u8]) -> Result<bool> {
        self.place.write(tags, data, &mut self.spare);
        self.program_spare(page, data)
    }

    /// As [`program`](Flash::program), of a page that is lost: whoever reads it finds a wrong checksum.
    pub fn program_lost(&mut self, page: u32, tags: &Packed, data: &[u8]) -> Result<bool> {
        self.place.write_lost(tags, data, &mut self.spare);
        self.program_spare(page, data)
    }

    fn program_spare(&mut self, page: u32, data: &[u8]) -> Result<bool> {
        let done = self.nand.program(page, data, &self.spare);
        let done = self.succeeded(done)?;
        self.programs += u64::from(done);
        Ok(done)
    }

    /// Erases a block; false where that failed, or it is marked bad, which the NVRAM may not have been told.
    pub fn erase(&mut self, block: u32) -> Result<bool> {
        if self.is_bad(block)? {
            return Ok(false);
        }
        let done = self.nand.erase(block);
        let done = self.succeeded(done)?;
        self.erases += u64::from(done);
        if done {
            self.watch.erased(block);
            self.passed_over.retain(&self.geometry, |other, _| other != block);
        }
        Ok(done)
    }

    fn succeeded(&mut self, done: Result<(), NandError>) -> Result<bool> {
        match done {
            Ok(()) => Ok(true),
            Err(NandError::Gone) => Err(Error::Gone),
            Err(_) => {
                self.failures += 1;
                Ok(false)
            }
        }
    }

    /// Whether a block is marked bad, or its mark cannot be read.
    pub fn is_bad(&mut self, block: u32) -> Result<bool> {
        match self.nand.is_bad(block) {
            Ok(bad) => Ok(bad),
            Err(NandError::Gone) => Err(Error::Gone),
            Err(_) => Ok(true),
        }
    }

    /// Marks a block bad. One that cannot even be marked will fail again when it is tried after a scan.
    pub fn mark_bad(&mut self, block: u32) -> Result<()> {
        match self.nand.mark_bad(block) {
            Err(NandError::Gone) => Err(Error::Gone),
            _ => Ok(()),
        }
    }

    /// What was programmed so far stays if anything after it does.
    pub fn keep_order(&mut self) -> Result<()> {
        if self.nand.is_in_order() { Ok(()) } else { self.sync() }
    }

    /// Returns when what was programmed and erased stays.
    pub fn sync(&mut self) -> Result<()> {
        self.nand.sync().map_err(|_| Error::Gone)
    }
}
