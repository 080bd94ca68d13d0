//! A NAND flash array: what it allows, what it takes, what goes wrong.
//!
//! - **Rules.** A page is programmed once between two erases of its block, in the order the part wants.
//!   Breaking a rule is a bug of the layer above and panics.
//! - **Time.** Asked directly, each unit (a plane) and each channel has its own time
//!   line. A read is its command on the bus, array → register (the unit), then the bus; a program the bus, then the array; the
//!   register keeps the unit busy all along. An operation begins when it arrives and its unit is free.
//! - **Wear.** An erase counts. At the end of its endurance a block fails to erase and is bad. Programs
//!   and erases may fail before, at a given rate. Bits read wrong, more as the block wears; up to so many
//!   a code word are corrected, beyond that the page is unreadable (this time). Where the part says so reads of a block and
//!   time add to them, and another read of the page is a step of read retry.
//! - **Power.** A cut during a program leaves a torn page, during an erase a torn block: both are
//!   unreadable until the block is erased.
//!
//! Beside its bytes ([`Payload`]) each page has a [`Tag`] in its spare area, by which the layer above
//! finds its way after power loss. Memory: 4 bytes a page, 8 more with sequence numbers (both are zero
//! pages of the system until used), 16 a block. Cost: a few additions an operation, no allocation.

mod clock;
mod copies;
mod damage;
mod image;
mod lanes;
mod ops;
mod payload;
mod profile;
mod schedule;
mod stress;
mod units;
mod work;

pub use lanes::Lane;
pub use ops::{Op, OpKind};
pub use payload::{Payload, Stored};
use profile::PAGES_MAX;
pub use profile::{Geometry, NandProfile, Ordering, PageOrder};
pub use schedule::{Schedule, ScheduleStats};
pub use work::{Cause, Causes, Work};

use super::guard::{self, Claim, Role};
use super::kept::Unsynced;
#[cfg(any(test, feature = "testing"))]
use super::kept::{HostWrite, Stall};
use bimetal_base::Error;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bytes::Bytes;
use clock::{Asked, Clock, Recorded, Timing};
use image::{BadBlock, BlockState, Image};
use lanes::Lanes;
use payload::{ImagePayload, Place};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use stress::Stress;
use units::Units;

/// What the spare area of a programmed page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Whose page it is: a logical page, or what the translation layer makes of it; below 2³² − 2.
    pub owner: u32,
    /// Tells versions apart, as the translation layer numbers them; 0 where they are not kept.
    pub sequence: u64,
}

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Erased: may be programmed.
    Erased,
    /// Cut off in a program or an erase: holds nothing.
    Torn,
    /// Programmed.
    Programmed(Tag),
}

/// Why an operation did not do what it should.
#[derive(Debug)]
pub enum Failure {
    /// The program failed: the page holds nothing and the block is bad from now on.
    Program,
    /// The erase failed: the block is bad from now on.
    Erase,
    /// More bits were wrong than can be corrected, or the page is torn or erased.
    Unreadable,
    /// There is no power.
    PowerOff,
    /// The bytes could not be kept or fetched.
    Storage(Box<Error>),
}

/// What was done, since the array was made; [`Nand::work`] has what of it was done for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NandCounts {
    /// Pages read to the controller.
    pub reads: u64,
    /// Spare areas read alone.
    pub spare_reads: u64,
    /// Pages programmed, those of copies included.
    pub programs: u64,
    /// Pages copied.
    pub copies: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Programs and erases that failed.
    pub failures: u64,
    /// Bits corrected.
    pub corrected_bits: u64,
    /// Reads with more wrong bits than can be corrected.
    pub unreadable: u64,
    /// Reads of a page again, right after such a one.
    pub retries: u64,
}

impl NandCounts {
    /// What was done since `before`.
    pub fn since(&self, before: &NandCounts) -> NandCounts {
        NandCounts {
            reads: self.reads - before.reads,
            spare_reads: self.spare_reads - before.spare_reads,
            programs: self.programs - before.programs,
            copies: self.copies - before.copies,
            erases: self.erases - before.erases,
            failures: self.failures - before.failures,
            corrected_bits: self.corrected_bits - before.corrected_bits,
            unreadable: self.unreadable - before.unreadable,
            retries: self.retries - before.retries,
        }
    }
}

/// How erases are spread over the blocks that are not bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Wear {
    /// Fewest erases of a block.
    pub min: u32,
    /// Mean.
    pub mean: f64,
    /// Most erases of a block.
    pub max: u32,
    /// Standard deviation.
    pub sd: f64,
    /// Blocks bad by now, those from the factory included.
    pub bad_blocks: u32,
}

#[derive(Clone, Copy)]
struct Block {
    erases: u32,
    /// Pages below this can no longer be programmed where the order is ascending; at most [`PAGES_MAX`].
    next_page: u16,
    bad: bool,
    /// It is used with one bit a cell until it is erased.
    slc: bool,
    /// A random number below this reads without a wrong bit.
    sure: u64,
}

// A terabyte of small blocks has four million of them.
const _: () = assert!(size_of::<Block>() == 16);

/// Stored owners: erased and torn pages, then owner + 2.
const ERASED: u32 = 0;
const TORN: u32 = 1;
const FIRST_OWNER: u32 = 2;

/// A NAND array.
pub struct Nand {
    profile: NandProfile,
    geometry: Geometry,
    timing: Timing,
    owners: Vec<u32>,
    /// Empty where sequence numbers are not kept.
    sequences: Vec<u64>,
    /// The tags of units where pages hold several.
    units: Option<Box<Units>>,
    blocks: Vec<Block>,
    clock: Clock,
    payload: Payload,
    counts: NandCounts,
    /// What was done, and for what what is done now is done.
    work: Causes,
    cause: Cause,
    random: Random,
    has_bit_errors: bool,
    /// Blocks can be used with one bit a cell.
    has_slc: bool,
    /// What reads and time do to blocks.
    stress: Stress,
    /// The page read last, if that had more wrong bits than can be corrected, and how many reads of it did one after the
    /// other.
    unread: Option<((u32, u32), u32)>,
    /// Programs and erases until the power goes; 0: it is off.
    until_cut: u64,
    /// Programs and erases before those that are planned to fail, and how many those are.
    planned: (u64, u64),
    /// Whether programs and erases fail, by chance or planned.
    can_fail: bool,
    /// Blocks that were good when it was new.
    good_when_new: u32,
}

/// No part lasts so many erases, nor so many times its endurance.
const ERASES_MAX: u32 = 1 << 20;
const ENDURANCES_MAX: u32 = 16;

/// Where a host lost its cache, the states of blocks and the tags of their pages may be of different moments. What comes before a page
/// that is programmed, or before the next one by the block's state, was programmed, too, where pages are in order: what
/// looks erased there is torn. A state that cannot be says nothing: of its pages their tags tell, and it is taken for as worn as
/// any other is.
fn agree(profile: &NandProfile, geometry: &Geometry, blocks: &mut [BlockState], owners: &mut [u32]) {
    let most = ERASES_MAX.max(profile.endurance.saturating_mul(ENDURANCES_MAX));
    let worn = blocks.iter().map(|block| block.erases).filter(|erases| *erases <= most).max().unwrap_or(0);
    for (block, owners) in blocks.iter_mut().zip(owners.chunks_exact_mut(geometry.pages_per_block as usize)) {
        let used = owners.iter().rposition(|owner| *owner != ERASED).map_or(0, |last| last + 1);
        if block.erases > most {
            block.erases = worn;
        }
        let said = usize::from(block.next_page);
        let next = if said > owners.len() { used } else { used.max(said) };
        if profile.page_order == PageOrder::Ascending {
            owners[..next].iter_mut().filter(|owner| **owner == ERASED).for_each(|owner| *owner = TORN);
        }
        block.next_page = next as u16;
    }
}

impl Nand {
    /// A new array as `profile` says. What is random about it comes from `seed`. Without
    /// `keep_sequences` it can count and serve, but not be rebuilt after power loss.
    ///
    /// # Panics
    /// If a block has more pages than a profile that was loaded can have.
    pub fn new(profile: NandProfile, seed: u64, keep_sequences: bool, payload: Payload) -> Nand {
        let geometry = profile.geometry();
        assert!(geometry.pages_per_block <= PAGES_MAX, "a block has at most {PAGES_MAX} pages");
        let timing = Timing::of(&profile);
        let mut factory = Random::new(seed, "factory bad blocks");
        let mut nand = Nand {
            owners: vec![ERASED; geometry.pages() as usize],
            sequences: vec![0; if keep_sequences { geometry.pages() as usize } else { 0 }],
            units: None,
            blocks: Vec::with_capacity(geometry.blocks() as usize),
            clock: Clock::Lanes(Lanes::new(geometry.units, geometry.channels)),
            counts: NandCounts::default(),
            work: Causes::default(),
            cause: Cause::Host,
            random: Random::new(seed, "nand"),
            has_bit_errors: profile.bit_errors_worn > 0.0
                || profile.read_disturb_errors > 0.0
                || profile.retention_errors_per_day > 0.0,
            has_slc: profile.slc_pages().is_some(),
            stress: Stress::of(&profile, geometry.blocks()),
            unread: None,
            until_cut: u64::MAX,
            planned: (0, 0),
            can_fail: profile.grown_bad_per_million > 0.0,
            good_when_new: 0,
            profile,
            geometry,
            timing,
            payload,
        };
        let sure = nand.sure(0);
        let bad = nand.profile.factory_bad_percent / 100.0;
        let block = |_| Block { erases: 0, next_page: 0, bad: factory.chance(bad), slc: false, sure };
        nand.blocks = (0..geometry.blocks()).map(block).collect();
        nand.good_when_new = nand.blocks.iter().filter(|block| !block.bad).count() as u32;
        nand
    }

    /// A new array in a file of its own, claimed to be overwritten; sequence numbers are kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn make_image(claim: Arc<Claim>, profile: NandProfile, seed: u64) -> bimetal_base::Result<Nand> {
        let image = Image::make(claim, profile.geometry())?;
        let payload = Payload::Image(ImagePayload(Box::new(image)));
        let mut nand = Nand::new(profile, seed, true, payload);
        for number in 0..nand.geometry.blocks() {
            let bad = if nand.is_bad(number) { BadBlock::Factory } else { BadBlock::No };
            if let Some(image) = nand.payload.image() {
                image.put_block(number, BlockState { erases: 0, next_page: 0, bad })?;
            }
        }
        Ok(nand)
    }

    /// The array in a file, as it was left. `profile` is that of the part; how many blocks there are the file knows.
    /// Not `writable`, nothing in the file changes.
    ///
    /// # Errors
    /// The file cannot be read, is in use, or is of another part.
    pub fn open_image(path: &Path, profile: NandProfile, writable: bool) -> bimetal_base::Result<Nand> {
        Nand::over_image(guard::claim_path(path, Role::changed_if(writable))?, profile)
    }

    /// [`open_image`](Nand::open_image) of what a command has claimed; writable if it was claimed for that.
    ///
    /// # Errors
    /// As that, but for those of the claim.
    pub fn over_image(claim: Arc<Claim>, profile: NandProfile) -> bimetal_base::Result<Nand> {
        let image = Image::open(claim, profile.geometry())?;
        let (mut blocks, mut owners, sequences) = image.load()?;
        let geometry = image.geometry();
        agree(&profile, &geometry, &mut blocks, &mut owners);
        let mut nand = Nand::new(profile, 0, false, Payload::Image(ImagePayload(Box::new(image))));
        nand.clock = Clock::Lanes(Lanes::new(geometry.units, geometry.channels));
        // The file does not say how often blocks were read, nor when they were programmed: that counts from now on.
        nand.stress = Stress::of(&nand.profile, geometry.blocks());
        (nand.geometry, nand.owners, nand.sequences) = (geometry, owners, sequences);
        nand.blocks = blocks
            .iter()
            .map(|state| Block {
                erases: state.erases,
                next_page: state.next_page,
                bad: state.bad != BadBlock::No,
                // The file does not say; it matters for times alone.
                slc: false,
                sure: nand.sure(state.erases),
            })
            .collect();
        nand.good_when_new = blocks.iter().filter(|state| state.bad != BadBlock::Factory).count() as u32;
        Ok(nand)
    }

    /// Whether a file is an image that [`make_image`](Nand::make_image) made.
    pub fn is_image(path: &Path) -> bool {
        Image::is_one(path)
    }

    /// Has the file of the array, if it lies in one, survive a power cut of the host.
    ///
    /// # Errors
    /// The host cannot write it.
    pub fn sync(&mut self) -> bimetal_base::Result<()> {
        self.written().keep()
    }

    /// What was programmed and erased so far, to have the host of its file keep it ([`sync`](Nand::sync) in two steps).
    pub fn written(&mut self) -> Unsynced {
        self.payload.image().map_or_else(Unsynced::default, |image| image.written())
    }

    /// Begins a record of what is done to its file; what was recorded so far.
    #[cfg(any(test, feature = "testing"))]
    pub fn host_writes(&mut self) -> Vec<HostWrite> {
        self.payload.image().map_or_else(Vec::new, |image| image.host_writes())
    }

    /// Keeps the host from answering when it is asked next.
    #[cfg(any(test, feature = "testing"))]
    pub fn stall(&mut self, stall: Stall) {
        if let Some(image) = self.payload.image() {
            image.stall(stall);
        }
    }

    fn note_block(&mut self, number: u32) -> Result<(), Failure> {
        let Block { erases, next_page, bad, .. } = self.blocks[number as usize];
        let Some(image) = self.payload.image() else { return Ok(()) };
        // Nothing is noted of a block that was bad from the beginning.
        let bad = if bad { BadBlock::Grown } else { BadBlock::No };
        image.put_block(number, BlockState { erases, next_page, bad }).map_err(kept)
    }

    /// Notes a page's tag, and its block, in the file.
    fn note_page(&mut self, block: u32, page: u32) -> Result<(), Failure> {
        let index = self.index(block, page);
        let tag = (self.owners[index], self.sequences.get(index).copied().unwrap_or(0));
        let Some(image) = self.payload.image() else { return Ok(()) };
        image.put_tags(index, std::iter::once(tag)).map_err(kept)?;
        self.note_block(block)
    }

    /// Notes that a block was erased, in the file.
    fn note_erased(&mut self, block: u32) -> Result<(), Failure> {
        let first = self.index(block, 0);
        let (owner, pages) = (self.owners[first], self.geometry.pages_per_block as usize);
        let Some(image) = self.payload.image() else { return Ok(()) };
        image.put_tags(first, std::iter::repeat_n((owner, 0), pages)).map_err(kept)?;
        self.note_block(block)
    }

    /// What it was made from.
    pub fn profile(&self) -> &NandProfile {
        &self.profile
    }

    /// The numbers that addresses are made of.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What was done so far.
    pub fn counts(&self) -> NandCounts {
        let Work { reads, programs, copies, erases } = self.work.total();
        NandCounts { reads, programs, copies, erases, ..self.counts }
    }

    /// Pages copied so far.
    pub fn copies(&self) -> u64 {
        self.work.copies()
    }

    /// What was done so far, by what it was done for.
    pub fn work(&self) -> Causes {
        self.work
    }

    /// Says what operations are done for from now on; what they were done for before.
    pub fn set_cause(&mut self, cause: Cause) -> Cause {
        std::mem::replace(&mut self.cause, cause)
    }

    fn done(&mut self) -> &mut Work {
        self.work.of(self.cause)
    }

    /// Whether tags keep their sequence numbers.
    pub fn keeps_sequences(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// Whether pages keep their bytes.
    pub fn keeps_bytes(&self) -> bool {
        self.payload.is_kept()
    }

    /// Whether nothing was ever programmed or erased.
    pub fn is_new(&self) -> bool {
        let done = self.work.total();
        done.programs == 0 && done.erases == 0
    }

    /// Whether a block is bad: from the factory, or grown.
    pub fn is_bad(&self, block: u32) -> bool {
        self.blocks[block as usize].bad
    }

    /// How many blocks were good when the array was new: what sizes are worked out from, so that they stay.
    pub fn good_when_new(&self) -> u32 {
        self.good_when_new
    }

    /// Erases of a block so far.
    pub fn erases(&self, block: u32) -> u32 {
        self.blocks[block as usize].erases
    }

    /// The first page of a block that can still be programmed in ascending order.
    pub fn next_page(&self, block: u32) -> u32 {
        u32::from(self.blocks[block as usize].next_page)
    }

    /// What a page is, without an operation: what a controller knows from having done it.
    pub fn page(&self, block: u32, page: u32) -> Page {
        let index = self.index(block, page);
        match self.owners[index] {
            ERASED => Page::Erased,
            TORN => Page::Torn,
            owner => Page::Programmed(Tag {
                owner: owner - FIRST_OWNER,
                sequence: self.sequences.get(index).copied().unwrap_or(0),
            }),
        }
    }

    /// Whose the pages of a block are, as their tags say; none of a page that is erased or torn.
    pub fn owners_in(&self, block: u32) -> impl Iterator<Item = Option<u32>> {
        let first = self.index(block, 0);
        let pages = &self.owners[first..first + self.geometry.pages_per_block as usize];
        pages.iter().map(|owner| owner.checked_sub(FIRST_OWNER))
    }

    /// When the unit of `block` has done all it was asked so far.
    pub fn free_at(&self, block: u32) -> Time {
        self.clock.free_at(self.geometry.unit_of(block))
    }

    /// Has operations put down in a list from now on, instead of timing them: what they are asked to begin after, and
    /// what they return, are then no instants but places in that list, from 1 on; [`Time::ZERO`] is none of them. The
    /// list is for a [`Schedule`]. With `joins_copies`, copies that nothing can come between are one operation.
    pub fn record(&mut self, joins_copies: bool) {
        self.clock = Clock::Recorded(Recorded::new(joins_copies && self.profile.copies_alone()));
    }

    /// Has operations take no time from now on: they are only counted.
    pub fn stop_clock(&mut self) {
        self.clock = Clock::Off;
    }

    /// Takes what was put down since, into `ops`, which is empty.
    pub fn take_ops(&mut self, ops: &mut Vec<Op>) {
        if let Clock::Recorded(recorded) = &mut self.clock {
            std::mem::swap(&mut recorded.list, ops);
            recorded.taken += 1;
        }
    }

    fn time(&mut self, at: Time, kind: OpKind, place: (u32, u32), from: (u32, u32)) -> Time {
        match self.clock {
            Clock::Off => return at,
            Clock::Lanes(_) => self.stress.see(at),
            Clock::Recorded(_) => {}
        }
        let is_slc = |block: u32| self.has_slc && self.blocks[block as usize].slc;
        let (slc, from_slc) = (is_slc(place.0), kind == OpKind::Copy && is_slc(from.0));
        let asked = Asked { kind, cause: self.cause, place, from, slc, from_slc };
        self.clock.time(at, &self.geometry, &self.timing, &asked)
    }

    /// How erases are spread.
    pub fn wear(&self) -> Wear {
        let good = || self.blocks.iter().filter(|block| !block.bad);
        let count = good().count().max(1) as f64;
        let mean = good().map(|block| f64::from(block.erases)).sum::<f64>() / count;
        let square = good().map(|block| (f64::from(block.erases) - mean).powi(2)).sum::<f64>() / count;
        Wear {
            min: good().map(|block| block.erases).min().unwrap_or(0),
            mean,
            max: self.blocks.iter().map(|block| block.erases).max().unwrap_or(0),
            sd: square.sqrt(),
            bad_blocks: self.blocks.iter().filter(|block| block.bad).count() as u32,
        }
    }

    /// Reads a page; when it is done.
    pub fn read(&mut self, at: Time, block: u32, page: u32) -> Result<Time, Failure> {
        if self.until_cut == 0 {
            return Err(Failure::PowerOff);
        }
        self.done().reads += 1;
        let done = self.time(at, OpKind::Read, (block, page), (0, 0));
        self.sense(block, page)?;
        Ok(done)
    }

    /// Reads a page's spare area alone: what the page is, and when that is known.
    pub fn read_spare(&mut self, at: Time, block: u32, page: u32) -> Result<(Page, Time), Failure> {
        if self.until_cut == 0 {
            return Err(Failure::PowerOff);
        }
        self.counts.spare_reads += 1;
        let done = self.time(at, OpKind::ReadSpare, (block, page), (0, 0));
        Ok((self.page(block, page), done))
    }

    /// The bytes of a programmed page; empty where none are kept.
    pub fn bytes(&self, block: u32, page: u32) -> Result<Bytes, Failure> {
        self.payload.get(self.place(block, page)).map_err(|error| Failure::Storage(Box::new(error)))
    }

    /// Where the bytes of a page are, to fetch them without the array; whoever does must know them for that page's.
    ///
    /// # Errors
    /// As [`bytes`](Nand::bytes).
    pub fn stored(&self, block: u32, page: u32) -> Result<Stored, Failure> {
        self.payload.find(self.place(block, page)).map_err(|error| Failure::Storage(Box::new(error)))
    }

    /// Programs an erased page with `tag` and (where bytes are kept) `data`, a whole page or nothing; when
    /// it is done.
    ///
    /// # Panics
    /// If the page is not erased or out of order.
    pub fn program(
        &mut self,
        at: Time,
        block: u32,
        page: u32,
        tag: Tag,
        data: &[u8],
    ) -> Result<Time, Failure> {
        let done = self.time(at, OpKind::Program, (block, page), (0, 0));
        self.settle(block, page, tag)?;
        if self.payload.is_kept() && !data.is_empty() {
            let put = self.payload.put(self.place(block, page), data);
            put.map_err(|error| Failure::Storage(Box::new(error)))?;
        }
        Ok(done)
    }

    /// Erases a block; when it is done.
    ///
    /// # Panics
    /// If the block is bad.
    pub fn erase(&mut self, at: Time, block: u32) -> Result<Time, Failure> {
        let torn = self.spend_power()?;
        self.erase_or_tear(at, block, torn)
    }

    /// Erases blocks of several units, which are erased at the same time: a power cut tears them all. When it is done; none
    /// if all of them failed. Which did is seen by [`is_bad`](Self::is_bad).
    ///
    /// # Panics
    /// If one of them is bad before.
    pub fn erase_together(&mut self, at: Time, blocks: &[u32]) -> Result<Option<Time>, Failure> {
        let mut torn = false;
        for _ in blocks {
            torn = torn || self.spend_power()?;
        }
        let (mut done, mut off) = (None, false);
        for block in blocks {
            match self.erase_or_tear(at, *block, torn) {
                Ok(end) => done = done.max(Some(end)),
                Err(Failure::Erase) => {}
                Err(Failure::PowerOff) => off = true,
                Err(other) => return Err(other),
            }
        }
        if off { Err(Failure::PowerOff) } else { Ok(done) }
    }

    fn erase_or_tear(&mut self, at: Time, block: u32, torn: bool) -> Result<Time, Failure> {
        let done = self.time(at, OpKind::Erase, (block, 0), (0, 0));
        let state = self.blocks[block as usize];
        assert!(!state.bad, "block {block} is bad and must not be used");
        if state.erases >= self.profile.endurance || self.fails() {
            let failed = self.fail(block, Failure::Erase);
            self.note_block(block)?;
            return Err(failed);
        }
        let sure = self.sure(state.erases + 1);
        self.blocks[block as usize] =
            Block { erases: state.erases + 1, next_page: 0, slc: false, sure, ..state };
        self.stress.erased(block);
        self.unread = self.unread.filter(|((unread, _), _)| *unread != block);
        let first = self.index(block, 0);
        let pages = first..first + self.geometry.pages_per_block as usize;
        self.owners[pages].fill(if torn { TORN } else { ERASED });
        self.done().erases += 1;
        self.note_erased(block)?;
        if torn {
            return Err(Failure::PowerOff);
        }
        let erased = self.payload.erase(self.place(block, 0));
        erased.map_err(|error| Failure::Storage(Box::new(error)))?;
        Ok(done)
    }

    /// Uses an erased block with one bit a cell, or not, until it is erased again: with so many times fewer pages, of the
    /// times that the part has for that.
    ///
    /// # Panics
    /// If something was programmed in it, or the part has no such times.
    pub fn use_as_slc(&mut self, block: u32, slc: bool) {
        assert!(self.profile.slc_pages().is_some(), "{} has no times of SLC blocks", self.profile.model);
        assert!(self.next_page(block) == 0, "block {block} is not erased");
        self.blocks[block as usize].slc = slc;
    }

    /// Whether a block is used with one bit a cell.
    pub fn is_slc(&self, block: u32) -> bool {
        self.blocks[block as usize].slc
    }

    /// Cuts the power in the `count`-th program or erase from now (1: the next).
    pub fn cut_power_in(&mut self, count: u64) {
        self.until_cut = count.max(1);
    }

    /// Has `times` programs and erases fail one after the other, the first of them the `count`-th from now (1: the next).
    pub fn fail_in(&mut self, count: u64, times: u64) {
        self.planned = (count.max(1) - 1, times);
        self.can_fail |= times > 0;
    }

    /// Turns the power on again; no cut is planned any more, and nothing is busy.
    pub fn power_on(&mut self) {
        self.until_cut = u64::MAX;
        match &mut self.clock {
            Clock::Lanes(lanes) => lanes.reset(),
            Clock::Recorded(recorded) => recorded.list.clear(),
            Clock::Off => {}
        }
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.until_cut == 0
    }

    /// Counts an operation against the planned cut; whether it is the one that is cut off.
    fn spend_power(&mut self) -> Result<bool, Failure> {
        match self.until_cut {
            0 => return Err(Failure::PowerOff),
            u64::MAX => return Ok(false),
            _ => self.until_cut -= 1,
        }
        Ok(self.until_cut == 0)
    }

    /// What becomes of the page of a program, noted in the file of the array.
    fn settle(&mut self, block: u32, page: u32, tag: Tag) -> Result<(), Failure> {
        let settled = self.settle_page(block, page, tag);
        if self.payload.image().is_some() && self.owners[self.index(block, page)] != ERASED {
            self.note_page(block, page)?;
        }
        settled
    }

    fn settle_page(&mut self, block: u32, page: u32, tag: Tag) -> Result<(), Failure> {
        let torn = self.spend_power()?;
        let index = self.index(block, page);
        let state = &mut self.blocks[block as usize];
        assert!(!state.bad, "block {block} is bad and must not be used");
        assert!(self.owners[index] == ERASED, "page {page} of block {block} is not erased");
        let ascending = self.profile.page_order == PageOrder::Ascending;
        assert!(
            !ascending || page >= u32::from(state.next_page),
            "page {page} of block {block} is out of order"
        );
        assert!(
            !state.slc || self.profile.slc_pages().is_some_and(|pages| page < pages),
            "block {block} has no page {page} with one bit a cell"
        );
        self.stress.programmed(block, state.next_page == 0);
        state.next_page = state.next_page.max(page as u16 + 1);
        if torn {
            self.owners[index] = TORN;
            return Err(Failure::PowerOff);
        }
        if self.fails() {
            self.owners[index] = TORN;
            return Err(self.fail(block, Failure::Program));
        }
        self.owners[index] = tag.owner + FIRST_OWNER;
        if let Some(sequence) = self.sequences.get_mut(index) {
            *sequence = tag.sequence;
        }
        self.done().programs += 1;
        Ok(())
    }

    /// Whether an operation fails, by chance or as planned.
    fn fails(&mut self) -> bool {
        self.can_fail && self.fails_now()
    }

    fn fails_now(&mut self) -> bool {
        let rate = self.profile.grown_bad_per_million;
        match &mut self.planned {
            (0, 0) => {
                self.can_fail = rate > 0.0;
                self.can_fail && self.random.chance(rate / 1e6)
            }
            (0, times) => {
                *times -= 1;
                true
            }
            (before, _) => {
                *before -= 1;
                rate > 0.0 && self.random.chance(rate / 1e6)
            }
        }
    }

    fn fail(&mut self, block: u32, failure: Failure) -> Failure {
        self.blocks[block as usize].bad = true;
        self.counts.failures += 1;
        failure
    }

    /// Whether a page can be read this time.
    fn sense(&mut self, block: u32, page: u32) -> Result<(), Failure> {
        if self.owners[self.index(block, page)] < FIRST_OWNER {
            return Err(Failure::Unreadable);
        }
        if !self.has_bit_errors {
            return Ok(());
        }
        let before = self.unread.filter(|(unread, _)| *unread == (block, page)).map_or(0, |(_, times)| times);
        self.counts.retries += u64::from(before > 0);
        let drawn = self.random.next();
        let read = match self.stress.is_kept() || before > 0 {
            false if drawn < self.blocks[block as usize].sure => Ok(()),
            false => self.correct(self.wrong_bits(self.blocks[block as usize].erases), drawn),
            true => {
                let step = before.checked_sub(1).and_then(|step| self.profile.read_retry.get(step as usize));
                let left = step.copied().unwrap_or(1.0);
                let added = self.stress.read(block) * f64::from(self.geometry.page_bytes) * 8.0;
                let mean = (self.wrong_bits(self.blocks[block as usize].erases) + added) * left;
                if drawn < sure(mean) { Ok(()) } else { self.correct(mean, drawn) }
            }
        };
        self.unread = read.is_err().then_some(((block, page), before + 1));
        read
    }

    /// A read with at least one wrong bit of `mean`: how many (Poisson, from the number drawn), and in which words.
    fn correct(&mut self, mean: f64, drawn: u64) -> Result<(), Failure> {
        let uniform = drawn as f64 / u64::MAX as f64;
        let mut chance = (-mean).exp();
        let (mut below, mut bits) = (chance, 0u32);
        while below < uniform && bits < 1 << 16 {
            bits += 1;
            chance *= mean / f64::from(bits);
            below += chance;
            if chance < f64::MIN_POSITIVE && f64::from(bits) > mean {
                break;
            }
        }
        let words = u64::from(self.geometry.page_bytes) / self.profile.ecc_bytes;
        let mut in_words = [0u32; 128];
        for _ in 0..bits {
            in_words[self.random.below(words.min(128)) as usize] += 1;
        }
        if in_words.iter().any(|&bits| bits > self.profile.ecc_bits) {
            self.counts.unreadable += 1;
            return Err(Failure::Unreadable);
        }
        self.counts.corrected_bits += u64::from(bits);
        Ok(())
    }

    /// Mean number of wrong bits in a page of a block after so many erases.
    fn wrong_bits(&self, erases: u32) -> f64 {
        let (new, worn) = (self.profile.bit_errors_new, self.profile.bit_errors_worn);
        let age = f64::from(erases) / f64::from(self.profile.endurance);
        (new + (worn - new) * age * age) * f64::from(self.geometry.page_bytes) * 8.0
    }

    /// The number below which a random one means no wrong bit.
    fn sure(&self, erases: u32) -> u64 {
        if !self.has_bit_errors {
            return u64::MAX;
        }
        sure(self.wrong_bits(erases))
    }

    fn index(&self, block: u32, page: u32) -> usize {
        debug_assert!(page < self.geometry.pages_per_block);
        block as usize * self.geometry.pages_per_block as usize + page as usize
    }

    fn place(&self, block: u32, page: u32) -> Place {
        let Geometry { pages_per_block, page_bytes, .. } = self.geometry;
        Place { block, page, pages_per_block, page_bytes }
    }
}

/// The number below which a random one means no wrong bit, of so many on average.
fn sure(mean: f64) -> u64 {
    ((-mean).exp() * u64::MAX as f64) as u64
}

fn kept(error: Error) -> Failure {
    Failure::Storage(Box::new(error))
}

impl NandProfile {
    /// The same part without bad blocks, failures and wrong bits: for counts that must come out exactly.
    pub fn ideal(self) -> NandProfile {
        NandProfile {
            factory_bad_percent: 0.0,
            grown_bad_per_million: 0.0,
            bit_errors_new: 0.0,
            bit_errors_worn: 0.0,
            read_disturb_errors: 0.0,
            retention_errors_per_day: 0.0,
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
