//! Page map: every logical page anywhere (the scheme of today's SSDs).
//!
//! Writes go to one open block a unit, unit after unit. When a unit runs out of free blocks (looked at when
//! the open block is full, or at each write: `begin`), a closed one is cleaned: its valid pages are copied to the unit's open block for copies and it is erased. Which one:
//!
//! - *greedy*: the fewest valid pages;
//! - *cost-benefit*: the most `age × (1 − u) ÷ 2u` (Kawaguchi, Nishioka, Motoda: A Flash-Memory Based File
//!   System, USENIX 1995), `u` the part of valid pages, age counted in writes since its last change.
//!
//! Of several that are equally good the least worn (`ties=lowest`: the lowest number, which wears the blocks at
//! the front: greedy cleaning often has a choice).
//!
//! Wear levelling. *dynamic*: of the free blocks the least worn is opened next. *static*: besides, when
//! an erase leaves a block more than `spread` erases ahead of others of its unit, the pages of that one of
//! them that has not changed for the longest (cold: they keep it from being erased) move to the most worn
//! free block.
//!
//! Superblocks (`superblock`): blocks of several units are allocated, cleaned and erased as one, and pages go to a stripe of
//! all of them before they go to the next group of units. What is said of blocks and units here holds of superblocks and
//! of groups of units ([`superblock`]).
//!
//! Map units (`map-unit`): what a map entry stands for may be a part of a page of the array. Then what is said of pages holds of
//! those units, which are gathered to pages before they are programmed ([`units`]).
//!
//! Placement handles (`handles`): pages that the host writes with the same handle go to an open block of their own.
//! Copies of all go to one: the handles are *initially isolated*, as NVMe's flexible data placement calls it.
//!
//! After power loss the map is what the tags say: of each logical page the version of the latest write, of
//! its copies the oldest. Blocks that were open go on being written after their last programmed page.
//!
//! Invariants: a unit keeps `reserve − 1` free blocks that only copies may use, so that cleaning can always
//! go on; the number of valid pages of a block is that of map entries that point into it. Memory: 4 bytes
//! a logical page, 20 a block. Cost: O(1) a request, O(blocks of a unit + pages) a cleaning.

mod blocks;
mod clean;
mod fewest;
mod level;
mod recover;
mod refresh;
mod slc;
mod superblock;
mod units;

use super::free::Levelling;
use super::settings::{LEVEL, LOGICAL, OVER_PROVISION, SPREAD, Settings};
use super::{Found, Ftl, FtlCounts, LOST, Scheme, error_of, read_page, version, worn_out};
use bimetal_base::options::OptionSpec;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::nand::{Cause, Failure, Nand, Page, Tag};
use blocks::{HANDLES_MAX, State, Unit};
use bytes::Bytes;
use clean::Moving;
use fewest::Groups;
use slc::Slc;
use std::ops::Range;
use std::time::Duration;
use superblock::Array;
pub(super) use superblock::Superblock;
pub(super) use units::of_settings as units_of_settings;

/// Settings of the page map that a layer on top of it has, too.
pub(super) const CLEAN: OptionSpec =
    OptionSpec::of("clean", "greedy|cost-benefit", "greedy", "which block is cleaned");
pub(super) const STREAMS: OptionSpec = OptionSpec::of(
    "streams",
    "two|one",
    "two",
    "copies go to a block of their own, or with the host's pages",
);
pub(super) const HANDLES: OptionSpec = OptionSpec::of(
    "handles",
    "1..8",
    "1",
    "placement handles: pages written with different ones go to blocks of their own",
);
pub(super) const RESERVE: OptionSpec =
    OptionSpec::of("reserve", "2..64", "3", "a unit is cleaned until it has so many free blocks");
pub(super) const BEGIN: OptionSpec = OptionSpec::of(
    "begin",
    "full|short",
    "full",
    "cleaning begins when the open block is full, or as soon as free blocks are short",
);

pub(super) const TIES: OptionSpec = OptionSpec::of(
    "ties",
    "worn|lowest",
    "worn",
    "which of equally good blocks is cleaned: the least worn, or the lowest number",
);

pub(super) const SUPERBLOCK: OptionSpec = OptionSpec::of(
    "superblock",
    "none|die|channel|device",
    "none",
    "whose blocks are written, cleaned and erased as one: those of a die's planes, of a channel, of all",
);

/// The page map's entry in the list of schemes.
pub const SCHEME: Scheme = Scheme {
    name: "page",
    about: "page map: every logical page anywhere, greedy or cost-benefit cleaning",
    options: &[
        CLEAN,
        STREAMS,
        HANDLES,
        RESERVE,
        BEGIN,
        TIES,
        SUPERBLOCK,
        units::MAP_UNIT,
        slc::SLC,
        slc::SIZE,
        slc::IDLE,
        LEVEL,
        SPREAD,
        OVER_PROVISION,
        LOGICAL,
    ],
    make: |nand, mut settings| {
        let map = PageMap::open(nand, &mut settings, None)?;
        settings.finish(SCHEME.options)?;
        Ok(Box::new(map))
    },
};

/// Owner of pages without contents: no logical page has it.
const PADDING: u32 = LOST - 1;

/// A map entry of a page that was never written; else the physical page + 1.
const UNMAPPED: u32 = 0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Clean {
    Greedy,
    CostBenefit,
}

/// Where pages are appended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Host,
    /// The host's, with this placement handle; from 1 on.
    Placed(u8),
    Copies,
    /// The host's, in the SLC cache.
    Slc,
    /// The own pages of a layer on top.
    Own,
}

/// A page-mapped translation layer.
///
/// A layer on top of it can have pages of its own behind the host's, and be told which pages were moved.
pub struct PageMap {
    array: Array,
    slc: Option<Slc>,
    map: Vec<u32>,
    /// Pages the host can address; the rest of `map` are a layer's own.
    host_pages: u64,
    /// Pages moved since they were last taken; nothing is noted without own pages.
    moved: Vec<u32>,
    /// Valid pages of each block.
    valid: Vec<u32>,
    groups: Groups,
    /// Number of the last write that changed each block; empty unless cleaning asks for it.
    changed: Vec<u64>,
    states: Vec<State>,
    units: Vec<Unit>,
    /// Whose turn it is to be written to by the host, with superblocks for each placement handle.
    next_units: [usize; HANDLES_MAX + 1],
    next_own_unit: usize,
    /// The number of the last write.
    sequence: u64,
    clean: Clean,
    levelling: Levelling,
    spread: u32,
    one_stream: bool,
    handles: u8,
    reserve: usize,
    /// Blocks of a unit without data of a full device: the reserve, and the open ones.
    kept: usize,
    /// Free blocks are counted at each write, not only at those that need one.
    begins_short: bool,
    /// Cleaning takes the least worn of equally good blocks, not the lowest.
    ties_worn: bool,
    pages_per_block: u32,
    /// Its logarithm, where it is a power of two.
    shift: Option<u32>,
    /// What is moved at once; kept to be used again.
    moving: Moving,
    read_only: bool,
    /// Whether a page ever stood for lost contents.
    any_lost: bool,
    counts: FtlCounts,
}

impl PageMap {
    /// Opens a page map on `nand`, with as many own pages as one for each `entries` host pages. Takes the
    /// settings it knows.
    ///
    /// Fails with [`Error::Invalid`] on wrong settings or too small an array.
    pub(super) fn open(mut nand: Nand, settings: &mut Settings, entries: Option<u64>) -> Result<PageMap> {
        let clean =
            settings.choice("clean", &[("greedy", Clean::Greedy), ("cost-benefit", Clean::CostBenefit)])?;
        let levelling = settings.choice("level", &Levelling::CHOICES)?;
        let spread = settings.number("spread", 1..=1_000_000, 16)? as u32;
        let one_stream = settings.choice("streams", &[("two", false), ("one", true)])?;
        let handles = settings.number("handles", 1..=8, 1)? as u8;
        let reserve = settings.number("reserve", 2..=64, 3)? as usize;
        let begins_short = settings.choice("begin", &[("full", false), ("short", true)])?;
        let ties_worn = settings.choice("ties", &[("worn", true), ("lowest", false)])?;
        let over_provision = settings.fraction("over-provision", 0.0..=90.0, 7.0)?;
        let superblock = settings.choice("superblock", &Superblock::CHOICES)?;
        let logical = settings.size("logical")?;
        let streams = if one_stream { 1 } else { 2 } + usize::from(entries.is_some());
        let scheme = settings.scheme().to_string();

        nand.set_cause(Cause::Host);
        let asks_age = clean == Clean::CostBenefit || levelling == Levelling::Static;
        // A layer on top has pages that are not the host's alone.
        let page_units = if entries.is_none() { units::page_units(&nand, settings)? } else { 1 };
        let mut array = Array::new(nand, superblock, page_units)
            .map_err(|why| Error::invalid(format!("{scheme}: map-unit: {why}")))?;
        let slc = if entries.is_none() { Slc::open(&mut array, settings, handles)? } else { None };
        let geometry = *array.geometry();
        let blocks = geometry.blocks() as usize;
        let mut ftl = PageMap {
            map: Vec::new(),
            host_pages: 0,
            moved: Vec::new(),
            valid: vec![0; blocks],
            groups: Groups::new(geometry.blocks()),
            changed: vec![0; if asks_age { blocks } else { 0 }],
            states: vec![State::Free; blocks],
            units: (0..geometry.units).map(|_| Unit::new(levelling)).collect(),
            next_units: [0; HANDLES_MAX + 1],
            next_own_unit: 0,
            sequence: 0,
            clean,
            levelling,
            spread,
            one_stream,
            handles,
            reserve,
            kept: reserve
                + streams
                + usize::from(handles - 1)
                + slc.as_ref().map_or(0, |slc| slc.kept() as usize),
            slc,
            begins_short,
            ties_worn,
            pages_per_block: geometry.pages_per_block,
            shift: geometry.shift(),
            moving: Moving::default(),
            read_only: false,
            any_lost: false,
            counts: FtlCounts::default(),
            array,
        };
        ftl.host_pages = ftl.logical_size(&scheme, over_provision, logical, entries)?;
        let own_pages = entries.map_or(0, |entries| ftl.host_pages.div_ceil(entries));
        ftl.map = vec![UNMAPPED; (ftl.host_pages + own_pages) as usize];
        ftl.find_pages()?;
        Ok(ftl)
    }

    /// The number of host pages: as asked for, if the array has room for them, own pages and the reserve.
    fn logical_size(
        &self,
        scheme: &str,
        over_provision: f64,
        asked_bytes: Option<u64>,
        entries: Option<u64>,
    ) -> Result<u64> {
        // In blocks, since superblocks lack what is bad of them.
        let geometry = self.array.nand().geometry();
        let pages = u64::from(geometry.pages_per_block * self.array.page_units());
        let good = u64::from(self.array.nand().good_when_new());
        let kept = u64::from(geometry.units) * self.kept as u64;
        let room = good.saturating_sub(kept) * pages;
        let most = entries.map_or(room, |entries| room - room.div_ceil(entries + 1));
        let asked = match asked_bytes {
            Some(bytes) => bytes.div_ceil(u64::from(self.array.geometry().page_bytes)),
            None => {
                // Of what may hold pages that are no longer valid: that is what makes cleaning cheap, and the same part
                // of it does so whether units have many blocks or few.
                let used = good as f64 - f64::from(geometry.units) * self.without_data();
                let share = most as f64 / room.max(1) as f64;
                (used * pages as f64 * (1.0 - over_provision / 100.0) * share) as u64
            }
        };
        let fits = if asked_bytes.is_some() { asked <= most } else { most > 0 };
        if !fits || asked == 0 || asked >= u64::from(LOST) {
            return Err(Error::invalid(format!(
                "{scheme}: {} has {good} good blocks of {pages} pages: {kept} blocks are needed beside the {asked} \
                 logical pages",
                self.array.nand().profile().model
            )));
        }
        Ok(asked.min(most))
    }

    /// Blocks of a unit that hold nothing when one is chosen to be cleaned, on average: one of the reserve is what the
    /// host has just filled, and of an open block it is three eighths. That is measured: with it write amplification is
    /// the same however many blocks units have (`tests/greedy.rs`).
    fn without_data(&self) -> f64 {
        let cached = self.slc.as_ref().map_or(0, |slc| slc.kept() as usize);
        let open = self.kept - self.reserve - cached;
        (self.reserve + cached) as f64 - 1.0 + open as f64 * 3.0 / 8.0
    }

    fn entry(&self, block: u32, page: u32) -> u32 {
        block * self.pages_per_block + page + 1
    }

    fn block_of(&self, entry: u32) -> u32 {
        match self.shift {
            Some(shift) => (entry - 1) >> shift,
            None => (entry - 1) / self.pages_per_block,
        }
    }

    fn place_of(&self, entry: u32) -> (u32, u32) {
        let block = self.block_of(entry);
        (block, entry - 1 - block * self.pages_per_block)
    }

    fn place_in_array(&self, entry: u32) -> (u32, u32) {
        let (block, page) = self.place_of(entry);
        self.array.place(block, page)
    }

    /// Reads the newest version of `page`, which lies at `place`; when that is done.
    fn read_at(&mut self, at: Time, place: (u32, u32), page: Lpn) -> Result<Time> {
        if self.array.waits(place) && !self.array.nand().is_off() {
            return Ok(at);
        }
        let place = self.array.place(place.0, place.1);
        read_page(self.array.nand_mut(), at, place, page)
    }

    fn sequence_at(&self, entry: u32) -> u64 {
        let (block, page) = self.place_of(entry);
        match self.array.page(block, page) {
            Page::Programmed(tag) => tag.sequence,
            _ => 0,
        }
    }

    fn look_up(&self, page: Lpn) -> Result<u32> {
        let pages = self.host_pages;
        let found = self.map.get(page.0 as usize).filter(|_| page.0 < pages);
        found.copied().ok_or_else(|| {
            Error::invalid(format!(
                "page {page} is past the {pages} pages of {}",
                self.array.nand().profile().model
            ))
        })
    }

    /// Notes that what `entry` points to is no longer valid.
    fn invalidate(&mut self, entry: u32) {
        if entry != UNMAPPED {
            let block = self.block_of(entry);
            self.valid[block as usize] -= 1;
            self.note_lost(block);
            if let Some(changed) = self.changed.get_mut(block as usize) {
                *changed = self.sequence;
            }
        }
    }

    /// Points logical page `owner` to a page just programmed.
    fn point(&mut self, owner: u32, block: u32, page: u32) {
        let entry = self.entry(block, page);
        let old = std::mem::replace(&mut self.map[owner as usize], entry);
        self.valid[block as usize] += 1;
        self.invalidate(old);
        if let Some(changed) = self.changed.get_mut(block as usize) {
            *changed = self.sequence;
        }
    }

    /// The next page of `unit` to program for `stream`, after cleaning if need be; none if the unit has no
    /// room.
    fn next_page(&mut self, at: Time, unit: usize, stream: Stream) -> Result<Option<(u32, u32)>> {
        let has_room = self.has_open_now(unit, stream) || self.open_block(at, unit, stream)?;
        Ok(has_room.then(|| self.take_pages(unit, stream, 1)))
    }

    /// Whether a block is open for `stream`, and nothing is to be cleaned before it is written to.
    fn has_open_now(&mut self, unit: usize, stream: Stream) -> bool {
        (stream == Stream::Copies || !self.begins_short) && self.has_open(unit, stream)
    }

    /// Has a block open for `stream`, after cleaning if need be; whether there is one.
    fn open_block(&mut self, at: Time, unit: usize, stream: Stream) -> Result<bool> {
        let was_open = self.has_open(unit, stream);
        if stream == Stream::Slc && !self.has_slc_room(unit) {
            return Ok(false);
        }
        let cleans = stream != Stream::Copies && (self.begins_short || !was_open);
        let made_room = !cleans || self.make_room(at, unit)?;
        // Cleaning may have opened a block, or filled it.
        let is_open = self.has_open(unit, stream);
        if is_open {
            return Ok(made_room || was_open);
        }
        if !made_room {
            return Ok(false);
        }
        // One is left for copies, whatever became of the power in between.
        self.erase_emptied(at, unit, if cleans { 2 } else { 1 })?;
        let free = &mut self.units[unit].free;
        // Copies are made after the erases that were decided on before them. The host's block is one of those erased
        // earlier, so that it does not wait for this cleaning, which has time until the next one.
        let taken = if cleans { free.take_least_worn() } else { free.take_late() };
        let Some(block) = taken else { return Ok(false) };
        if cleans {
            free.settle();
        }
        self.units[unit].lacking -= self.array.lacks(block);
        self.set_state(block, State::Open);
        if stream == Stream::Slc {
            self.begin_cached(unit, block);
        }
        *self.open_slot(unit, stream) = self.array.usable_from(block, 0).map(|page| (block, page));
        Ok(true)
    }

    /// Takes the next `count` pages of the block open for `stream`, and closes it after its last; the first of them.
    fn take_pages(&mut self, unit: usize, stream: Stream, count: u32) -> (u32, u32) {
        let slot = self.units[unit].slot_mut(stream, self.one_stream);
        let (block, page) = slot.expect("a block is open");
        *slot = self.array.usable_from(block, page + count).map(|next| (block, next));
        if slot.is_none() {
            self.set_state(block, State::Closed);
            self.note_cached(unit, block);
        }
        (block, page)
    }

    fn stream_of(&self, handle: u8) -> Stream {
        match handle.min(self.handles - 1) {
            0 => Stream::Host,
            handle => Stream::Placed(handle),
        }
    }

    fn open_slot(&mut self, unit: usize, stream: Stream) -> &mut Option<(u32, u32)> {
        self.units[unit].slot_mut(stream, self.one_stream)
    }

    fn has_open(&mut self, unit: usize, stream: Stream) -> bool {
        self.open_slot(unit, stream).is_some()
    }

    fn blocks_of(&self, unit: usize) -> Range<u32> {
        let count = self.array.geometry().blocks_per_unit;
        unit as u32 * count..(unit as u32 + 1) * count
    }

    /// Whether a page stands for lost contents.
    fn is_lost(&self, (block, page): (u32, u32)) -> bool {
        // Looked up only once there is one at all.
        self.any_lost
            && matches!(self.array.page(block, page), Page::Programmed(tag) if tag.owner & LOST != 0)
    }

    /// Does what is done for `cause`.
    fn done_for<T>(&mut self, cause: Cause, work: impl FnOnce(&mut PageMap) -> T) -> T {
        let before = self.array.nand_mut().set_cause(cause);
        let done = work(self);
        self.array.nand_mut().set_cause(before);
        done
    }

    /// No unit has room any more.
    fn give_up(&mut self) -> Error {
        self.read_only = true;
        worn_out(self.array.nand())
    }

    /// The unit whose turn it is. Own pages have turns of their own: often one follows each of the host's, and they
    /// would all go to the same units.
    fn turn(&mut self, stream: Stream) -> &mut usize {
        match stream {
            Stream::Own => &mut self.next_own_unit,
            Stream::Placed(handle) if self.array.width() > 1 => &mut self.next_units[usize::from(handle)],
            _ => &mut self.next_units[0],
        }
    }

    fn take_turn(&mut self, stream: Stream) -> usize {
        let units = self.units.len();
        let next = self.turn(stream);
        let unit = *next;
        *next = if unit + 1 == units { 0 } else { unit + 1 };
        unit
    }

    /// The next page to program for `stream`, of whichever unit is next and has room. A unit ahead in wear misses
    /// every fourth turn, one further ahead more of them, up to all that others have room for: with less that is valid
    /// in it, it needs less cleaning.
    #[inline]
    fn next_page_of_any(&mut self, at: Time, stream: Stream) -> Result<Option<(usize, (u32, u32))>> {
        if let Some(next) = self.next_of_open(stream) {
            return Ok(Some(next));
        }
        self.next_page_of_units(at, stream)
    }

    /// The same where all there is to do is to count: the next unit is not ahead, and more of what is open there is left
    /// than one page.
    #[inline]
    fn next_of_open(&mut self, stream: Stream) -> Option<(usize, (u32, u32))> {
        if self.begins_short || !self.array.is_plain() {
            return None;
        }
        let number = *self.turn(stream);
        let unit = &mut self.units[number];
        let is_ahead = unit.ahead > 0;
        let (block, page) = unit.slot_mut(stream, self.one_stream).as_mut()?;
        if is_ahead || *page + 1 >= self.pages_per_block {
            return None;
        }
        let next = (*block, *page);
        *page += 1;
        self.take_turn(stream);
        Some((number, next))
    }

    fn next_page_of_units(&mut self, at: Time, stream: Stream) -> Result<Option<(usize, (u32, u32))>> {
        for _ in 1..self.units.len() {
            let next = *self.turn(stream);
            if !self.units[next].misses_its_turn() {
                break;
            }
            self.take_turn(stream);
        }
        for _ in 0..self.units.len() {
            let unit = self.take_turn(stream);
            if let Some(next) = self.next_page(at, unit, stream)? {
                if self.is_mid_stripe(unit, stream, next) {
                    *self.turn(stream) = unit;
                }
                return Ok(Some((unit, next)));
            }
        }
        Ok(None)
    }
}

/// Stripes of superblocks.
impl PageMap {
    /// Whether what is open for `stream` goes on in the stripe of the page that was just taken: then it is written next.
    #[inline]
    fn is_mid_stripe(&mut self, unit: usize, stream: Stream, (block, page): (u32, u32)) -> bool {
        if self.array.stripe() == 1 {
            return false;
        }
        let open = *self.open_slot(unit, stream);
        let of_stripe = |page| self.array.stripe_of(block, page);
        open.is_some_and(|(open, next)| open == block && of_stripe(next) == of_stripe(page))
    }

    /// Pages that the next ones of a placement handle fill a stripe with.
    fn left_of_stripe(&mut self, handle: u8) -> u32 {
        if self.array.stripe() == 1 {
            return 1;
        }
        let stream = self.host_stream(handle);
        let unit = *self.turn(stream);
        match *self.open_slot(unit, stream) {
            Some((block, page)) => self.array.left_in_stripe(block, page).max(1),
            None if stream == Stream::Slc => self.array.width(),
            None => self.array.stripe(),
        }
    }

    /// Programs what is left of a stripe of word lines from a page on, if some of it was, with pages without contents.
    fn pad_stripe(&mut self, at: Time, unit: usize, (block, next): (u32, u32)) -> Result<()> {
        let end = next.next_multiple_of(self.array.whole(block));
        self.pad_to(at, unit, (block, next), end)
    }

    /// The same up to a page.
    fn pad_to(&mut self, at: Time, unit: usize, (block, next): (u32, u32), end: u32) -> Result<()> {
        if next == end {
            return Ok(());
        }
        // Before anything is programmed: what is moved out of a block that fails goes behind it.
        if self.units[unit].leave_out(block, |open| self.array.usable_from(block, open.max(end))) {
            self.set_state(block, State::Closed);
        }
        let tag = Tag { owner: PADDING, sequence: version(self.sequence) };
        for page in next..end {
            if !self.array.is_usable((block, page)) {
                continue;
            }
            match self.program(at, (block, page), tag, &[]) {
                Ok(_) => {}
                Err(Failure::Program) => self.retire(at, unit, (block, page))?,
                Err(failure) => return Err(error_of(self.array.nand(), failure, Lpn(0))),
            }
        }
        self.erase_freed(at)
    }

    /// The same of all that the host's pages go to.
    fn pad_host(&mut self, at: Time) -> Result<()> {
        if self.array.stripe() > self.array.width() * self.array.page_units() {
            self.pad_word_lines(at)?;
        }
        if self.array.page_units() > 1 { self.complete_fresh(at) } else { Ok(()) }
    }

    fn pad_word_lines(&mut self, at: Time) -> Result<()> {
        for unit in 0..self.units.len() {
            for handle in 0..self.handles {
                let stream = self.stream_of(handle);
                if let Some(next) = *self.open_slot(unit, stream) {
                    self.done_for(Cause::Padding, |map| map.pad_stripe(at, unit, next))?;
                }
            }
        }
        Ok(())
    }
}

/// What a layer with pages of its own needs.
impl PageMap {
    /// What the map says of a page, the host's or an own one; 0: it was never written.
    pub(super) fn entry_of(&self, page: u32) -> u32 {
        self.map[page as usize]
    }

    /// The place an entry stands for.
    pub(super) fn place_at(&self, entry: u32) -> Option<(u32, u32)> {
        (entry != UNMAPPED).then(|| self.place_in_array(entry))
    }

    /// Reads a page of the host's, and moves nothing.
    pub(super) fn read_where_it_is(&mut self, at: Time, page: Lpn) -> Result<Found> {
        let entry = self.look_up(page)?;
        self.counts.host_reads += 1;
        if entry == UNMAPPED {
            return Ok(Found { at, place: None });
        }
        let place = self.place_of(entry);
        if self.is_lost(place) {
            return Err(error_of(self.array.nand(), Failure::Unreadable, page));
        }
        let at = self.read_at(at, place, page)?;
        Ok(Found { at, place: Some(self.array.place(place.0, place.1)) })
    }

    /// Reads an own page that was written.
    pub(super) fn read_own(&mut self, at: Time, page: u32) -> Result<Time> {
        let place = self.place_of(self.map[page as usize]);
        if self.is_lost(place) {
            return Err(error_of(self.array.nand(), Failure::Unreadable, Lpn(page.into())));
        }
        self.done_for(Cause::Map, |map| map.read_at(at, place, Lpn(page.into())))
    }

    /// Writes an own page. Its tag has the number of the last write, since it counts as none.
    pub(super) fn write_own(&mut self, at: Time, page: u32) -> Result<Time> {
        let tag = Tag { owner: page, sequence: version(self.sequence) };
        self.done_for(Cause::Map, |map| map.append(at, Stream::Own, tag, &[]))
    }

    /// The pages moved since this was last asked.
    pub(super) fn take_moved(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.moved)
    }

    /// Programs the next version of a page.
    fn append(&mut self, at: Time, stream: Stream, tag: Tag, data: &[u8]) -> Result<Time> {
        loop {
            let found = match self.next_page_of_any(at, stream)? {
                None if stream == Stream::Slc => self.next_page_of_any(at, Stream::Host)?,
                found => found,
            };
            let Some((unit, (block, number))) = found else { return Err(self.give_up()) };
            match self.program(at, (block, number), tag, data) {
                Ok(done) => {
                    self.point(tag.owner, block, number);
                    self.erase_freed(at)?;
                    return Ok(done);
                }
                Err(Failure::Program) => self.retire(at, unit, (block, number))?,
                Err(failure) => return Err(error_of(self.array.nand(), failure, Lpn(tag.owner.into()))),
            }
        }
    }
}

impl Ftl for PageMap {
    fn stripe_pages(&self) -> u32 {
        self.array.stripe()
    }

    fn pad(&mut self, at: Time) -> Result<()> {
        self.pad_host(at)
    }

    fn page_units(&self) -> u32 {
        self.array.page_units()
    }

    fn padding_bytes(&self) -> u64 {
        self.array.padded() * u64::from(self.array.geometry().page_bytes)
    }

    fn waiting_pages(&self) -> u64 {
        self.array.fresh_units()
    }

    fn take_programmed(&mut self) -> Vec<(Lpn, Time)> {
        self.take_noted()
    }

    fn tag(&self, page: Lpn) -> Option<Tag> {
        let entry = self.look_up(page).ok().filter(|entry| *entry != UNMAPPED)?;
        let (block, number) = self.place_of(entry);
        match self.array.page(block, number) {
            Page::Programmed(tag) => Some(tag),
            _ => None,
        }
    }

    fn bytes(&self, page: Lpn) -> Result<Option<Bytes>> {
        self.bytes_of(page)
    }

    fn idle_after(&self) -> Option<Duration> {
        self.slc.as_ref().map(Slc::idle_after)
    }

    fn work_when_idle(&mut self, at: Time) -> Result<bool> {
        self.fold_all(at)
    }

    fn next_stripe(&mut self, handle: u8) -> u32 {
        self.left_of_stripe(handle)
    }

    fn handles(&self) -> u8 {
        self.handles
    }

    fn logical_pages(&self) -> u64 {
        self.host_pages
    }

    fn find(&self, page: Lpn) -> Option<(u32, u32)> {
        let entry = self.look_up(page).unwrap_or(UNMAPPED);
        self.place_at(entry)
    }

    fn read(&mut self, at: Time, page: Lpn) -> Result<Found> {
        self.look_up(page)?;
        // First, since it may move the page.
        self.refresh(at)?;
        self.read_where_it_is(at, page)
    }

    fn write(&mut self, at: Time, page: Lpn, data: &[u8]) -> Result<Time> {
        self.write_placed(at, page, data, 0)
    }

    fn write_placed(&mut self, at: Time, page: Lpn, data: &[u8], handle: u8) -> Result<Time> {
        self.look_up(page)?;
        if self.read_only {
            return Err(worn_out(self.array.nand()));
        }
        self.refresh(at)?;
        let tag = Tag { owner: page.0 as u32, sequence: version(self.sequence + 1) };
        let stream = self.host_stream(handle);
        let done = self.append(at, stream, tag, data)?;
        self.sequence += 1;
        self.counts.host_writes += 1;
        Ok(done)
    }

    fn trim(&mut self, at: Time, page: Lpn) -> Result<Time> {
        let old = self.look_up(page)?;
        self.counts.host_trims += 1;
        self.map[page.0 as usize] = UNMAPPED;
        self.invalidate(old);
        Ok(at)
    }

    fn counts(&self) -> FtlCounts {
        self.counts
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn nand(&self) -> &Nand {
        self.array.nand()
    }

    fn nand_mut(&mut self) -> &mut Nand {
        self.array.nand_mut()
    }

    fn into_nand(self: Box<Self>) -> Nand {
        self.array.into_nand()
    }
}
