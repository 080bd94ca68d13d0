//! The flash as the store sees it: pages of segments, each with its kind, serial number and checksum.
//!
//! A segment is a few erase blocks, on different units where there are several, so that consecutive pages
//! work at the same time. Page `i` of segment `s` is page `i ÷ k` of the segment's block `i mod k`. A block
//! that is bad leaves gaps: its pages are passed over by whoever appends.
//!
//! The spare area of each page holds, as its tag, a checksum over the page (31 bits of CRC-32C, begun with
//! the other two), the serial number of the segment's use, and the kind of page. The checksum of a page of one object's
//! bytes begins with whose they are, too, so that nobody else can take them for theirs. Data pages of a store that
//! keeps no bytes have no checksum.

use super::layout::{Key, PageKind, VERSION};
use super::pieces;
use bimetal_base::checksum::crc32c_raw;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::kept::Unsynced;
use bimetal_media::nand::{Failure, Nand, Page, Stored, Tag};
use bytes::Bytes;

/// A page of the flash, numbered segment by segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Addr(pub u32);

/// Bytes that begin a page of the store's own, some of which are not 0.
const HEADER_BYTES: usize = 36;
/// Attempts at reading a page with too many wrong bits.
const READS_MAX: u32 = 3;
const KIND_BITS: u32 = 8;
const SUM_MASK: u32 = 0x7fff_ffff;

/// What a programmed page says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageTag {
    pub kind: PageKind,
    /// The number of the use of the segment that it was written in.
    pub serial: u64,
    sum: u32,
}

/// A page that was looked up and sensed: what it says of itself, and where its bytes are. It can be read without the array, also
/// after its block was erased and used again: then its bytes are not those that the tag is of, and that shows.
#[derive(Debug)]
pub(super) struct Found {
    segment: u32,
    index: u32,
    tag: PageTag,
    stored: Stored,
    /// The checksum of a page that was forged.
    #[cfg(any(test, feature = "testing"))]
    forged: Option<u32>,
}

impl Found {
    /// Reads the page and checks that `len` of its bytes from byte `at` on are those of the object whose place `first` is that of
    /// the page's first byte, or would be. `model` names the array.
    ///
    /// Fails with [`Error::Corrupt`] if it is no page of data, its checksum is wrong, or they are another's, or another part.
    pub fn read_data(self, model: &str, first: Key, at: u64, len: u64) -> Result<Bytes> {
        let corrupt = |why: String| corrupt(model, self.segment, self.index, why);
        let tag = self.tag;
        let whose = match tag.kind {
            PageKind::Data => Some(first),
            PageKind::Pieces => None,
            other => return Err(corrupt(format!("it is a {other:?} page"))),
        };
        let bytes = self.stored.fetch()?;
        #[cfg(any(test, feature = "testing"))]
        let is_forged = self.forged == Some(checksum(tag.kind, tag.serial, None, &bytes));
        #[cfg(not(any(test, feature = "testing")))]
        let is_forged = false;
        if tag.sum != checksum(tag.kind, tag.serial, whose, &bytes) && !is_forged {
            return Err(corrupt(wrong_sum(whose).into()));
        }
        if whose.is_none() && !pieces::holds(&bytes, first, at, len)? {
            return Err(corrupt("it does not hold them".into()));
        }
        Ok(bytes)
    }
}

/// What is wrong with a page whose checksum is.
fn wrong_sum(whose: Option<Key>) -> &'static str {
    match whose {
        None => "its checksum is wrong",
        Some(_) => "its checksum is wrong, or it is another's",
    }
}

fn corrupt(model: &str, segment: u32, index: u32, why: impl std::fmt::Display) -> Error {
    Error::corrupt("a page of the object store", why, format!("{model}: page {index} of segment {segment}"))
}

/// The array, in segments.
pub(super) struct Flash {
    nand: Nand,
    blocks_per_segment: u32,
    pages_per_block: u32,
    page_bytes: usize,
    /// When what is asked arrives.
    pub now: Time,
    /// When all that was asked so far is done.
    pub done: Time,
    /// A whole page to program from.
    scratch: Vec<u8>,
    /// The last commit: nothing is erased before the host keeps it.
    committed: Unsynced,
    /// Checksums of pages that were forged.
    #[cfg(any(test, feature = "testing"))]
    forged: rustc_hash::FxHashMap<(u32, u32), u32>,
    /// Pages that are damaged until their blocks are erased.
    #[cfg(test)]
    faults: rustc_hash::FxHashMap<(u32, u32), Fault>,
    /// Operations so far, and the one that does not go well.
    #[cfg(test)]
    operations: u64,
    #[cfg(test)]
    trouble: Option<(u64, Trouble)>,
}

/// What happens to one operation.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// What is below has an error of its own.
    Io,
    /// A page or spare area cannot be read, this time.
    Unreadable,
    /// A program or erase fails, and the block is bad.
    Bad,
}

/// What is wrong with a page.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The array's code cannot make it out, neither bytes nor spare area.
    Unreadable,
    /// It looks like one that a power cut tore.
    Torn,
    /// This bit of the spare area is wrong, and nobody says so: of its sequence, or from 64 on of its owner.
    SpareBit(u32),
}

impl Flash {
    pub fn new(mut nand: Nand, blocks_per_segment: u32) -> Flash {
        let geometry = *nand.geometry();
        // Whoever had the array before may have been ended before the host kept its last commit.
        let committed = nand.written();
        Flash {
            blocks_per_segment,
            pages_per_block: geometry.pages_per_block,
            page_bytes: geometry.page_bytes as usize,
            committed,
            now: Time::ZERO,
            done: Time::ZERO,
            scratch: vec![0; geometry.page_bytes as usize],
            nand,
            #[cfg(any(test, feature = "testing"))]
            forged: Default::default(),
            #[cfg(test)]
            faults: Default::default(),
            #[cfg(test)]
            operations: 0,
            #[cfg(test)]
            trouble: None,
        }
    }

    pub fn nand(&self) -> &Nand {
        &self.nand
    }

    pub fn nand_mut(&mut self) -> &mut Nand {
        &mut self.nand
    }

    pub fn into_nand(self) -> Nand {
        self.nand
    }

    /// What is programmed so far survives a power cut of the host, too, where the array lies in a file.
    pub fn sync(&mut self) -> Result<()> {
        self.nand.sync()?;
        self.committed = Unsynced::default();
        Ok(())
    }

    /// A commit is complete in the array: the host is to keep it before anything is erased.
    pub fn set_committed(&mut self) {
        self.committed = self.nand.written();
    }

    /// What was programmed so far.
    pub fn written(&mut self) -> Unsynced {
        self.nand.written()
    }

    /// The last commit, to have the host keep it.
    pub fn committed(&self) -> &Unsynced {
        &self.committed
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub fn pages_per_segment(&self) -> u32 {
        self.blocks_per_segment * self.pages_per_block
    }

    pub fn pages_per_block(&self) -> u32 {
        self.pages_per_block
    }

    /// Erase blocks of a segment.
    pub fn segment_blocks(&self) -> u32 {
        self.blocks_per_segment
    }

    /// The same array with another size of segments.
    pub fn with_segments(self, blocks: u32) -> Flash {
        Flash { blocks_per_segment: blocks, ..self }
    }

    /// Whole segments of the array.
    pub fn segments(&self) -> u32 {
        self.nand.geometry().blocks() / self.blocks_per_segment
    }

    pub fn addr(&self, segment: u32, index: u32) -> Addr {
        Addr(segment * self.pages_per_segment() + index)
    }

    pub fn segment_of(&self, addr: Addr) -> u32 {
        addr.0 / self.pages_per_segment()
    }

    pub fn index_of(&self, addr: Addr) -> u32 {
        addr.0 % self.pages_per_segment()
    }

    /// The erase block that is number `index` when blocks are counted across the units.
    fn block(&self, index: u32) -> u32 {
        let geometry = self.nand.geometry();
        index % geometry.units * geometry.blocks_per_unit + index / geometry.units
    }

    /// The erase block that a page is in, and its number there.
    pub fn place(&self, addr: Addr) -> (u32, u32) {
        let (segment, index) = (self.segment_of(addr), self.index_of(addr));
        let block = segment * self.blocks_per_segment + index % self.blocks_per_segment;
        (self.block(block), index / self.blocks_per_segment)
    }

    fn blocks_of(&self, segment: u32) -> impl Iterator<Item = u32> + '_ {
        let first = segment * self.blocks_per_segment;
        (first..first + self.blocks_per_segment).map(|index| self.block(index))
    }

    /// Pages of a segment that are in good blocks.
    pub fn good_pages(&self, segment: u32) -> u32 {
        let good = self.blocks_of(segment).filter(|block| !self.nand.is_bad(*block)).count();
        good as u32 * self.pages_per_block
    }

    /// Pages from `index` on that are in good blocks.
    pub fn good_pages_from(&self, segment: u32, index: u32) -> u32 {
        let rest = self.pages_per_segment() - index;
        if self.good_pages(segment) == self.pages_per_segment() {
            return rest;
        }
        let good = |index: &u32| !self.is_bad(self.addr(segment, *index));
        (index..self.pages_per_segment()).filter(good).count() as u32
    }

    /// Whether the block of a page is bad.
    pub fn is_bad(&self, addr: Addr) -> bool {
        self.nand.is_bad(self.place(addr).0)
    }

    /// Whether something was programmed to a page since its block was erased, also where the block is bad by now.
    pub fn is_programmed(&self, addr: Addr) -> bool {
        let (block, page) = self.place(addr);
        matches!(self.nand.page(block, page), Page::Programmed(_))
    }

    /// Whether a page can be programmed: what a controller knows.
    pub fn can_program(&self, addr: Addr) -> bool {
        let (block, page) = self.place(addr);
        !self.nand.is_bad(block)
            && page >= self.nand.next_page(block)
            && matches!(self.nand.page(block, page), Page::Erased)
    }

    /// Erases of the most worn block of a segment that is still good.
    pub fn wear(&self, segment: u32) -> u32 {
        let good = self.blocks_of(segment).filter(|block| !self.nand.is_bad(*block));
        good.map(|block| self.nand.erases(block)).max().unwrap_or(u32::MAX)
    }

    /// Whether every page of a segment can be programmed: what a controller knows from having erased it.
    pub fn is_erased(&self, segment: u32) -> bool {
        let mut good = self.blocks_of(segment).filter(|block| !self.nand.is_bad(*block));
        let is_erased = |block, page| matches!(self.nand.page(block, page), Page::Erased);
        good.all(|block| {
            self.nand.next_page(block) == 0 && (0..self.pages_per_block).all(|page| is_erased(block, page))
        })
    }

    fn tag_of(page: Page) -> Option<PageTag> {
        let Page::Programmed(tag) = page else { return None };
        let kind = PageKind::from_number((tag.sequence & ((1 << KIND_BITS) - 1)) as u8)?;
        Some(PageTag { kind, serial: tag.sequence >> KIND_BITS, sum: tag.owner })
    }

    /// Reads the spare area alone; none if the page is erased, torn or of somebody else.
    pub fn read_tag(&mut self, addr: Addr) -> Result<Option<PageTag>> {
        self.read_spare(addr).map(Self::tag_of)
    }

    fn read_spare(&mut self, addr: Addr) -> Result<Page> {
        let (block, page) = self.place(addr);
        let mut left = READS_MAX;
        loop {
            left -= 1;
            match self.try_spare(block, page) {
                Err(Failure::Unreadable) if left > 0 => {}
                read => return read.map_err(|failure| self.error_of(failure, addr)),
            }
        }
    }

    fn try_spare(&mut self, block: u32, page: u32) -> Result<Page, Failure> {
        #[cfg(test)]
        self.meet_trouble(true)?;
        let (_, done) = self.nand.read_spare(self.now, block, page)?;
        self.done = self.done.max(done);
        self.page(block, page)
    }

    /// What the spare area of a page says.
    fn page(&self, block: u32, page: u32) -> Result<Page, Failure> {
        let found = self.nand.page(block, page);
        #[cfg(test)]
        match (self.faults.get(&(block, page)), found) {
            (Some(Fault::Unreadable), _) => return Err(Failure::Unreadable),
            (Some(Fault::Torn), _) => return Ok(Page::Torn),
            (Some(Fault::SpareBit(bit)), Page::Programmed(tag)) => {
                let both = u128::from(tag.sequence) | u128::from(tag.owner) << 64;
                let wrong = both ^ 1 << bit;
                let (sequence, owner) = (wrong as u64, (wrong >> 64) as u32);
                return Ok(Page::Programmed(Tag { owner, sequence }));
            }
            _ => {}
        }
        Ok(found)
    }

    /// Whether nothing was ever written to a page since its block was erased: what its spare area shows.
    pub fn is_blank(&mut self, addr: Addr) -> Result<bool> {
        self.read_spare(addr).map(|page| page == Page::Erased)
    }

    /// Whether a page that cannot be read was whole once, as far as can be told: one that a power cut tore says so, and one
    /// whose bytes the host of an image lost before it kept them begins with zeros, as no page of the store's own does.
    pub fn was_whole(&mut self, addr: Addr) -> bool {
        let (block, page) = self.place(addr);
        match self.read_spare(addr) {
            Ok(Page::Programmed(_)) => {
                let bytes = self.nand.bytes(block, page);
                bytes.is_ok_and(|bytes| bytes.iter().take(HEADER_BYTES).any(|byte| *byte != 0))
            }
            Ok(_) => false,
            Err(_) => true,
        }
    }

    /// Whether any page of the block that a page is in is programmed or blank.
    pub fn has_readable(&mut self, addr: Addr) -> bool {
        let blocks = self.blocks_per_segment;
        let first = addr.0 - self.index_of(addr) + self.index_of(addr) % blocks;
        (0..self.pages_per_block)
            .any(|page| self.read_spare(Addr(first + page * blocks)).is_ok_and(|page| page != Page::Torn))
    }

    /// Reads a page without looking at its bytes.
    pub fn sense(&mut self, addr: Addr) -> Result<()> {
        let (block, page) = self.place(addr);
        #[cfg(test)]
        self.meet_trouble(true).map_err(|failure| self.error_of(failure, addr))?;
        for left in (0..READS_MAX).rev() {
            match self.nand.read(self.now, block, page) {
                Ok(done) => {
                    self.done = self.done.max(done);
                    return Ok(());
                }
                Err(Failure::Unreadable) if left > 0 => {}
                Err(failure) => return Err(self.error_of(failure, addr)),
            }
        }
        Err(self.error_of(Failure::Unreadable, addr))
    }

    /// Reads a page, with what it says about itself.
    fn fetch(&mut self, addr: Addr) -> Result<(PageTag, Bytes)> {
        self.sense(addr)?;
        let (block, page) = self.place(addr);
        let bytes = self.nand.bytes(block, page).map_err(|failure| self.error_of(failure, addr))?;
        let spare = self.page(block, page).map_err(|failure| self.error_of(failure, addr))?;
        match Self::tag_of(spare) {
            Some(tag) => Ok((tag, bytes)),
            None => Err(self.corrupt(addr, "its spare area is not of this store")),
        }
    }

    /// Reads a page of this kind and checks it.
    ///
    /// Fails with [`Error::Corrupt`] if it is not readable, of another kind, or its checksum is wrong.
    pub fn read(&mut self, addr: Addr, kind: PageKind) -> Result<Bytes> {
        let (tag, bytes) = self.fetch(addr)?;
        if tag.kind != kind {
            return Err(self.corrupt(addr, format!("it is a {:?} page, not a {kind:?} page", tag.kind)));
        }
        self.check_sum(addr, tag, None, &bytes)?;
        Ok(bytes)
    }

    /// Reads a page with bytes of objects and checks that `len` of them from byte `at` on are those of the object whose
    /// place `first` is that of the page's first byte, or would be.
    ///
    /// Fails with [`Error::Corrupt`] as [`read`](Flash::read), and if they are another's, or another part.
    pub fn read_data(&mut self, addr: Addr, first: Key, at: u64, len: u64) -> Result<Bytes> {
        self.find(addr)?.read_data(&self.nand.profile().model, first, at, len)
    }

    /// Looks a page up, to read it later.
    pub fn find(&mut self, addr: Addr) -> Result<Found> {
        self.sense(addr)?;
        let (block, page) = self.place(addr);
        let stored = self.nand.stored(block, page).map_err(|failure| self.error_of(failure, addr))?;
        let spare = self.page(block, page).map_err(|failure| self.error_of(failure, addr))?;
        let tag = Self::tag_of(spare);
        let tag = tag.ok_or_else(|| self.corrupt(addr, "its spare area is not of this store"))?;
        Ok(Found {
            segment: self.segment_of(addr),
            index: self.index_of(addr),
            tag,
            stored,
            #[cfg(any(test, feature = "testing"))]
            forged: self.forged.get(&(block, page)).copied(),
        })
    }

    fn check_sum(&self, addr: Addr, tag: PageTag, whose: Option<Key>, bytes: &[u8]) -> Result<()> {
        #[cfg(any(test, feature = "testing"))]
        if self.forged.get(&self.place(addr)) == Some(&checksum(tag.kind, tag.serial, None, bytes)) {
            return Ok(());
        }
        if tag.sum == checksum(tag.kind, tag.serial, whose, bytes) {
            return Ok(());
        }
        Err(self.corrupt(addr, wrong_sum(whose)))
    }

    /// Programs a page with `data` (shorter than a page: filled up with zeros), or with nothing. False: the
    /// program failed and the block is bad now.
    pub fn program(&mut self, addr: Addr, kind: PageKind, serial: u64, data: &[u8]) -> Result<bool> {
        let (block, page) = self.place(addr);
        self.program_at(block, page, (kind, None), serial, data)
    }

    /// As [`program`](Flash::program), bytes of one object from `first` on.
    pub fn program_data(&mut self, addr: Addr, first: Key, serial: u64, data: &[u8]) -> Result<bool> {
        let (block, page) = self.place(addr);
        self.program_at(block, page, (PageKind::Data, Some(first)), serial, data)
    }

    fn program_at(
        &mut self,
        block: u32,
        page: u32,
        (kind, whose): (PageKind, Option<Key>),
        serial: u64,
        data: &[u8],
    ) -> Result<bool> {
        #[cfg(test)]
        self.meet_trouble(false).map_err(|failure| self.error_of(failure, Addr(0)))?;
        let sequence = serial << KIND_BITS | kind as u64;
        let programmed = if data.is_empty() {
            self.nand.program(self.now, block, page, Tag { owner: 0, sequence }, &[])
        } else {
            self.scratch[..data.len()].copy_from_slice(data);
            self.scratch[data.len()..].fill(0);
            let owner = checksum(kind, serial, whose, &self.scratch);
            self.nand.program(self.now, block, page, Tag { owner, sequence }, &self.scratch)
        };
        match programmed {
            Ok(done) => {
                self.done = self.done.max(done);
                Ok(true)
            }
            Err(Failure::Program) => Ok(false),
            Err(failure) => Err(self.error_of(failure, Addr(0))),
        }
    }

    /// Turns a bit of a page, as damage does.
    #[cfg(any(test, feature = "testing"))]
    pub fn turn_bit(&mut self, addr: Addr, bit: u32) {
        let (block, page) = self.place(addr);
        self.nand.turn_bit(block, page, bit).expect("the page was programmed");
    }

    /// Has the `count`-th operation from now (1: the next) not go well.
    #[cfg(test)]
    pub fn plan(&mut self, count: u64, trouble: Trouble) {
        self.trouble = Some((self.operations + count, trouble));
    }

    /// Whether the trouble that was planned is yet to come; it will not.
    #[cfg(test)]
    pub fn calm(&mut self) -> bool {
        self.trouble.take().is_some()
    }

    #[cfg(test)]
    fn meet_trouble(&mut self, is_read: bool) -> Result<(), Failure> {
        self.operations += 1;
        let Some((_, trouble)) = self.trouble.take_if(|trouble| trouble.0 == self.operations) else {
            return Ok(());
        };
        match (trouble, is_read) {
            (Trouble::Io, _) => {
                let why = std::io::Error::from_raw_os_error(libc::EIO);
                Err(Failure::Storage(Box::new(Error::io("what is below", why))))
            }
            (Trouble::Unreadable, true) => Err(Failure::Unreadable),
            (Trouble::Bad, false) => {
                self.nand.fail_in(1, 1);
                Ok(())
            }
            (Trouble::Unreadable, false) | (Trouble::Bad, true) => Ok(()),
        }
    }

    /// Damages a page until its block is erased.
    #[cfg(test)]
    pub fn damage(&mut self, addr: Addr, fault: Fault) {
        let place = self.place(addr);
        self.faults.insert(place, fault);
    }

    /// Changes a byte of a page and gives it the checksum that it needs, as somebody does who means harm.
    #[cfg(any(test, feature = "testing"))]
    pub fn forge(&mut self, page: u32, place: u32, value: u8) {
        let all = self.segments() * self.pages_per_segment();
        let (block, page) = self.place(Addr(page % all));
        let Some(tag) = Self::tag_of(self.nand.page(block, page)) else { return };
        let Ok(bytes) = self.nand.bytes(block, page) else { return };
        let at = place as usize % self.page_bytes;
        let Some(old) = bytes.get(at).copied() else { return };
        for bit in (0..8).filter(|bit| (old ^ value) >> bit & 1 == 1) {
            drop(self.nand.turn_bit(block, page, (at * 8) as u32 + bit));
        }
        if let Ok(bytes) = self.nand.bytes(block, page) {
            self.forged.insert((block, page), checksum(tag.kind, tag.serial, None, &bytes));
        }
    }

    /// Erases what is good of a segment; blocks that fail are bad from now on.
    pub fn erase(&mut self, segment: u32) -> Result<()> {
        // What is erased was given up by it.
        self.committed.keep()?;
        let blocks: smallvec::SmallVec<[u32; 16]> = self.blocks_of(segment).collect();
        for block in blocks {
            if self.nand.is_bad(block) {
                continue;
            }
            #[cfg(test)]
            self.faults.retain(|place, _| place.0 != block);
            #[cfg(test)]
            self.meet_trouble(false).map_err(|failure| self.error_of(failure, Addr(0)))?;
            match self.nand.erase(self.now, block) {
                Ok(done) => self.done = self.done.max(done),
                Err(Failure::Erase) => {}
                Err(failure) => return Err(self.error_of(failure, self.addr(segment, 0))),
            }
        }
        Ok(())
    }

    /// Whether the block that is number `index` across the units is bad.
    pub fn raw_is_bad(&self, index: u32) -> bool {
        self.nand.is_bad(self.block(index))
    }

    /// Erases whatever was programmed; blocks that fail are bad from now on.
    pub fn erase_all(&mut self) -> Result<()> {
        for number in 0..self.segments() {
            if self.good_pages(number) > 0 && !self.is_erased(number) {
                self.erase(number)?;
            }
        }
        Ok(())
    }

    /// Erases one block; false: it failed and is bad now.
    pub fn raw_erase(&mut self, index: u32) -> Result<bool> {
        self.committed.keep()?;
        #[cfg(test)]
        {
            let block = self.block(index);
            self.faults.retain(|place, _| place.0 != block);
            self.meet_trouble(false).map_err(|failure| self.error_of(failure, Addr(0)))?;
        }
        match self.nand.erase(self.now, self.block(index)) {
            Ok(done) => {
                self.done = self.done.max(done);
                Ok(true)
            }
            Err(Failure::Erase) => Ok(false),
            Err(failure) => Err(self.error_of(failure, Addr(0))),
        }
    }

    /// Programs a page of one block; false: it failed and the block is bad now.
    pub fn raw_program(
        &mut self,
        index: u32,
        page: u32,
        kind: PageKind,
        serial: u64,
        data: &[u8],
    ) -> Result<bool> {
        self.program_at(self.block(index), page, (kind, None), serial, data)
    }

    fn corrupt(&self, addr: Addr, why: impl std::fmt::Display) -> Error {
        corrupt(&self.nand.profile().model, self.segment_of(addr), self.index_of(addr), why)
    }

    /// A failure of the array that nothing can be done about, as an error.
    fn error_of(&self, failure: Failure, addr: Addr) -> Error {
        match failure {
            Failure::PowerOff => Error::Gone { device: self.nand.profile().model.clone() },
            Failure::Storage(error) => *error,
            Failure::Unreadable => self.corrupt(addr, "more bits are wrong than can be corrected"),
            Failure::Program | Failure::Erase => self.worn_out(),
        }
    }

    /// The error of an array that takes no more writes.
    pub fn worn_out(&self) -> Error {
        let what = format!("{}: the flash is worn out and takes no more writes", self.nand.profile().model);
        Error::io(what, std::io::Error::from_raw_os_error(libc::EROFS))
    }
}

/// The checksum of a page: over its bytes, begun with its kind, the format's version and its serial number, and whose they
/// are where they are one object's. What says the version itself begins without it.
fn checksum(kind: PageKind, serial: u64, whose: Option<Key>, bytes: &[u8]) -> u32 {
    let version = match kind {
        PageKind::Anchor | PageKind::Format => 0,
        _ => VERSION << KIND_BITS,
    };
    let mut seed = crc32c_raw(kind as u32 | version, &serial.to_le_bytes());
    if let Some(Key { object, place }) = whose {
        seed = crc32c_raw(crc32c_raw(seed, &object.to_le_bytes()), &place.to_le_bytes());
    }
    crc32c_raw(seed, bytes) & SUM_MASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::nand::{NandProfile, Payload};
    use bimetal_media::profile;

    fn flash(change: impl FnOnce(&mut NandProfile)) -> Flash {
        let mut profile = profile::load::<NandProfile>("slc-2k").unwrap().ideal();
        profile.blocks = 16;
        change(&mut profile);
        Flash::new(Nand::new(profile, 1, true, Payload::memory()), 2)
    }

    #[test]
    fn a_segment_spreads_over_units_and_its_pages_are_programmed_in_order() {
        let mut flash = flash(|profile| profile.chips = 2);
        let units: Vec<u32> = (0..4).map(|page| flash.place(Addr(page)).0 / 16).collect();
        assert_eq!(units, [0, 1, 0, 1]);
        for page in 0..flash.pages_per_segment() {
            assert!(flash.program(flash.addr(3, page), PageKind::Data, 7, &[page as u8; 9]).unwrap());
        }
        let read = flash.read(flash.addr(3, 100), PageKind::Data).unwrap();
        assert_eq!((&read[..9], read[9]), (&[100u8; 9][..], 0));
        assert_eq!(flash.read_tag(flash.addr(3, 5)).unwrap().unwrap().serial, 7);
    }

    #[test]
    fn a_page_of_another_kind_or_with_other_bytes_is_refused() {
        let mut flash = flash(|_| ());
        let addr = flash.addr(0, 0);
        flash.program(addr, PageKind::Node, 1, b"node").unwrap();
        assert!(flash.read(addr, PageKind::Data).is_err());
        let sum = |kind, serial, whose| checksum(kind, serial, whose, b"a");
        assert_ne!(sum(PageKind::Node, 1, None), sum(PageKind::Node, 2, None));
        assert_ne!(sum(PageKind::Node, 1, None), sum(PageKind::Data, 1, None));
        let whose = [Key { object: 1, place: 2 }, Key { object: 2, place: 1 }].map(Some);
        assert_ne!(sum(PageKind::Data, 1, whose[0]), sum(PageKind::Data, 1, whose[1]));
    }
}
