//! Map units smaller than a page: pages of the array that hold several.
//!
//! What made a logical and a physical page the same was [`Array`]: it shows the map its NAND as pages. With `map-unit` it shows
//! units, so that the map, validity, cleaning and recovery are of units without another line. What is left is that a NAND
//! programs whole pages:
//!
//! - *Gathering.* Units that are written to a page wait in memory until it is whole, then it is one program. One that waits is
//!   read from there. What a flush leaves incomplete is padded with units without contents, which are counted in bytes; a page
//!   is done for what its first unit with contents is done for.
//! - *Copies.* A page of which several units are copied one after the other is read once.
//! - *Power.* What waits is lost with it, so an older version that is in the array must not be: a block in which there is one of
//!   a unit that waits is *guarded*, and is erased when that was programmed. Until then it counts as free. If it is needed
//!   before, the pages that guard it are padded.
//! - *Failures.* Units of a page that fails to program are still in memory, and are written elsewhere from there.
//!
//! Invariants: an open block has one incomplete page at most, that of its next unit; of a unit that waits the version before
//! is in the array, or in a page that waits, too. Memory: 4 bytes a block, and the pages that wait. Cost: one look-up in a table
//! of the pages that wait for each unit that is written, read or looked at there.

use super::superblock::Array;
use super::{PADDING, PageMap, State, UNMAPPED};
use crate::settings::Settings;
use crate::{LOST, error_of, worn_out};
use bimetal_base::options::OptionSpec;
use bimetal_base::time::Time;
use bimetal_base::units::{Lpn, parse_size, show_size};
use bimetal_base::{Error, Result};
use bimetal_media::nand::{Cause, Failure, Nand, Page, Tag};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub(super) const MAP_UNIT: OptionSpec = OptionSpec::of(
    "map-unit",
    "512B..page",
    "page",
    "what a map entry stands for: pages hold several such units, which are gathered before they are programmed",
);

/// The least unit, bytes: a sector.
const UNIT_MIN: u64 = 512;

/// A page of which not all units are written yet, or that failed to program.
struct Gathered {
    tags: SmallVec<[Tag; 8]>,
    /// Their bytes, where such are kept.
    bytes: Vec<u8>,
    /// Blocks of the versions before.
    sources: SmallVec<[u32; 8]>,
    /// What the program begins after, and the list of operations that this is of.
    after: (Time, u64),
    cause: Cause,
    /// The first of its units with contents is copied.
    copied: bool,
    /// Some of its units are in memory alone: a flush has them programmed.
    fresh: bool,
    failed: bool,
}

/// The pages that wait.
#[derive(Default)]
pub(super) struct Gathering {
    /// By their number.
    pages: FxHashMap<u32, Gathered>,
    /// By block, how many units wait that had a version there before.
    guards: Vec<u32>,
    /// Blocks that are no longer guarded.
    freed: Vec<u32>,
    /// The page read last to be copied, when that was done, and its bytes.
    fetched: Option<((u32, u32), Time, Bytes)>,
    /// Units programmed since they were last asked for, with the program's place; nothing is noted before.
    programmed: Option<Vec<(Lpn, Time)>>,
    /// Units without contents in pages that have some.
    padded: u64,
}

impl Gathering {
    /// Of an array of so many blocks.
    pub fn new(blocks: u32) -> Gathering {
        Gathering { guards: vec![0; blocks as usize], ..Gathering::default() }
    }

    fn release(&mut self, page: u32) {
        let Some(gathered) = self.pages.remove(&page) else { return };
        for block in gathered.sources {
            let guards = &mut self.guards[block as usize];
            *guards -= 1;
            if *guards == 0 {
                self.freed.push(block);
            }
        }
    }
}

/// What is written to a unit of a page.
pub(super) struct Unit<'a> {
    pub tag: Tag,
    /// Its bytes, or none.
    pub data: &'a [u8],
    /// Where the version before lies.
    pub before: Option<(u32, u32)>,
    pub copied: bool,
    /// It is in memory alone.
    pub fresh: bool,
}

impl Array {
    /// The number of a page among all.
    fn number_of(&self, (block, unit): (u32, u32)) -> u32 {
        (block * self.geometry().pages_per_block + unit) / self.page_units()
    }

    /// The page that waits, or failed, in which a unit lies.
    fn gathered(&self, at: (u32, u32)) -> Option<&Gathered> {
        let gathered = self.gathering.pages.get(&self.number_of(at))?;
        ((at.1 % self.page_units()) < gathered.tags.len() as u32).then_some(gathered)
    }

    /// Whether a unit is in memory alone.
    pub fn waits(&self, at: (u32, u32)) -> bool {
        self.page_units() > 1 && self.gathered(at).is_some()
    }

    /// What a unit is.
    pub fn unit(&self, block: u32, unit: u32) -> Page {
        let ((member, page), index) = (self.place(block, unit), unit % self.page_units());
        match self.nand().unit(member, page, index) {
            Page::Programmed(tag) => Page::Programmed(tag),
            other => match self.gathered((block, unit)) {
                Some(gathered) => Page::Programmed(gathered.tags[index as usize]),
                None => other,
            },
        }
    }

    /// The bytes of a unit.
    pub fn bytes(&self, (block, unit): (u32, u32)) -> Result<Bytes, Failure> {
        let unit_bytes = self.geometry().page_bytes as usize;
        let first = (unit % self.page_units()) as usize * unit_bytes;
        if let Some(gathered) = self.gathered((block, unit)) {
            return Ok(Bytes::copy_from_slice(&gathered.bytes[first..first + unit_bytes]));
        }
        let (member, page) = self.place(block, unit);
        Ok(self.nand().bytes(member, page)?.slice(first..first + unit_bytes))
    }

    /// Whether an older version of a unit that waits is in a block.
    pub fn is_guarded(&self, block: u32) -> bool {
        self.gathering.guards.get(block as usize).is_some_and(|guards| *guards > 0)
    }

    /// Writes the next unit of a page, which is programmed with its last one; what there is to wait for.
    pub fn gather(&mut self, at: Time, place: (u32, u32), unit: &Unit<'_>) -> Result<Time, Failure> {
        if self.nand().is_off() {
            return Err(Failure::PowerOff);
        }
        let (number, units, unit_bytes) =
            (self.number_of(place), self.page_units(), self.geometry().page_bytes);
        let mut sources: SmallVec<[u32; 8]> = unit.before.iter().map(|(block, _)| *block).collect();
        let waits_too = unit.before.filter(|before| self.number_of(*before) != number);
        if let Some(page) = waits_too.and_then(|before| self.gathered(before)) {
            sources.extend_from_slice(&page.sources);
        }
        let list = self.nand().times_taken();
        let keeps_bytes = self.nand().keeps_bytes();
        let cause = self.nand().cause();
        let Gathering { pages, guards, .. } = &mut self.gathering;
        let page = pages.entry(number).or_insert_with(|| Gathered {
            tags: SmallVec::new(),
            bytes: Vec::new(),
            sources: SmallVec::new(),
            after: (Time::ZERO, list),
            cause,
            copied: unit.copied,
            fresh: false,
            failed: false,
        });
        assert_eq!(page.tags.len() as u32, place.1 % units, "units of a page are written in order");
        sources.iter().for_each(|block| guards[*block as usize] += 1);
        page.sources.extend(sources);
        page.tags.push(unit.tag);
        page.fresh |= unit.fresh;
        page.after = (if page.after.1 == list { page.after.0.max(at) } else { at }, list);
        if keeps_bytes {
            page.bytes.extend_from_slice(unit.data);
            page.bytes.resize(page.tags.len() * unit_bytes as usize, 0);
        }
        if (page.tags.len() as u32) < units {
            return Ok(at);
        }
        self.program_gathered(place, number)
    }

    /// Programs a page whose units are all there.
    fn program_gathered(&mut self, (block, unit): (u32, u32), number: u32) -> Result<Time, Failure> {
        let Some(page) = self.gathering.pages.get(&number) else { return Ok(Time::ZERO) };
        let (tags, bytes, cause, copied) = (page.tags.clone(), page.bytes.clone(), page.cause, page.copied);
        let after = if page.after.1 == self.nand().times_taken() { page.after.0 } else { Time::ZERO };
        let place = self.place(block, unit);
        let before = self.nand_mut().set_cause(cause);
        let programmed = self.nand_mut().program_units(after, place, &tags, &bytes, copied);
        self.nand_mut().set_cause(before);
        self.note(block, &programmed);
        match &programmed {
            Ok(done) => {
                let empty = tags.iter().filter(|tag| tag.owner == PADDING).count();
                if empty < tags.len() {
                    self.gathering.padded += empty as u64;
                }
                if let Some(list) = &mut self.gathering.programmed {
                    let with_contents = tags.iter().filter(|tag| tag.owner != PADDING);
                    list.extend(with_contents.map(|tag| (Lpn(u64::from(tag.owner & !LOST)), *done)));
                }
                self.gathering.release(number);
            }
            // Its units are to be written elsewhere.
            Err(Failure::Program) => {
                if let Some(page) = self.gathering.pages.get_mut(&number) {
                    page.failed = true;
                }
            }
            Err(_) => {}
        }
        programmed
    }

    /// Copies a unit; a page that several are copied of one after the other is read once.
    pub fn copy_unit(
        &mut self,
        at: Time,
        from: (u32, u32),
        to: (u32, u32),
        tag: Tag,
    ) -> Result<Time, Failure> {
        if self.waits(from) {
            let bytes = if self.nand().keeps_bytes() { self.bytes(from)? } else { Bytes::new() };
            let unit = Unit { tag, data: &bytes, before: Some(from), copied: true, fresh: true };
            return self.gather(at, to, &unit);
        }
        let source = self.place(from.0, from.1);
        let fetched = self.gathering.fetched.take().filter(|(page, ..)| *page == source);
        let (read, bytes) = match fetched {
            Some((_, read, bytes)) => (read, bytes),
            None => {
                let read = self.nand_mut().read(at, source.0, source.1)?;
                let keeps_bytes = self.nand().keeps_bytes();
                (read, if keeps_bytes { self.nand().bytes(source.0, source.1)? } else { Bytes::new() })
            }
        };
        let first = (from.1 % self.page_units() * self.geometry().page_bytes) as usize;
        let of_unit = bytes.get(first..first + self.geometry().page_bytes as usize).unwrap_or_default();
        let unit = Unit { tag, data: of_unit, before: Some(from), copied: true, fresh: false };
        let gathered = self.gather(read, to, &unit);
        self.gathering.fetched = Some((source, read, bytes));
        gathered
    }

    /// Units of the host's that are in memory alone.
    pub fn fresh_units(&self) -> u64 {
        let pages = self.gathering.pages.values().filter(|page| page.fresh && !page.copied);
        pages.map(|page| page.tags.iter().filter(|tag| tag.owner != PADDING).count() as u64).sum()
    }

    /// What was read to be copied is not kept any longer.
    pub fn forget_fetched(&mut self) {
        self.gathering.fetched = None;
    }

    /// Units without contents so far, of pages that have some.
    pub fn padded(&self) -> u64 {
        self.gathering.padded
    }

    /// A page that failed to program was written elsewhere.
    pub fn forget_failed(&mut self, place: (u32, u32)) {
        let number = self.number_of(place);
        if self.gathering.pages.get(&number).is_some_and(|page| page.failed) {
            self.gathering.release(number);
        }
    }

    /// The next unit of the incomplete page in a block.
    fn incomplete_in(&self, block: u32) -> Option<(u32, u32)> {
        let pages = self.geometry().pages_per_block / self.page_units();
        let in_block = |number: &&u32| **number / pages == block;
        let numbers = self.gathering.pages.iter().filter(|(_, page)| !page.failed).map(|(number, _)| number);
        numbers.filter(in_block).map(|number| self.next_unit(*number)).next()
    }

    /// The next unit of the first incomplete page like that.
    fn incomplete(&self, which: impl Fn(&Gathered) -> bool) -> Option<(u32, u32)> {
        let pages = self.gathering.pages.iter().filter(|(_, page)| !page.failed && which(page));
        pages.map(|(number, _)| *number).min().map(|number| self.next_unit(number))
    }

    fn next_unit(&self, number: u32) -> (u32, u32) {
        let (units, pages) = (self.page_units(), self.geometry().pages_per_block / self.page_units());
        let written = self.gathering.pages.get(&number).map_or(0, |page| page.tags.len() as u32);
        (number / pages, number % pages * units + written)
    }
}

/// Units of the map in a page of an array, as the setting says.
pub(super) fn page_units(nand: &Nand, settings: &mut Settings) -> Result<u32> {
    let page_bytes = u64::from(nand.geometry().page_bytes);
    let unit = match settings.size_or("map-unit", "page")? {
        None => return Ok(1),
        Some(unit) => unit,
    };
    if !unit.is_power_of_two() || !(UNIT_MIN..=page_bytes).contains(&unit) {
        return Err(Error::invalid(format!(
            "{}: map-unit={unit} must be page, or a power of two from 512 bytes to the {} of a page of {}",
            settings.scheme(),
            show_size(page_bytes),
            nand.profile().model
        )));
    }
    let units = page_bytes / unit;
    if nand.geometry().pages() * units >= u64::from(u32::MAX) {
        return Err(Error::invalid(format!(
            "{}: map-unit={unit} makes more than 2^32 units of {}: choose a larger one",
            settings.scheme(),
            nand.profile().model
        )));
    }
    Ok(units as u32)
}

/// The same of what settings of the page map say, `name=value:name=value`; what is wrong is for the page map to refuse.
pub(crate) fn of_settings(settings: &str, page_bytes: u64) -> u32 {
    let mut set = settings.split(':').filter_map(|setting| setting.trim().strip_prefix("map-unit="));
    let unit = set.next().and_then(|unit| parse_size(unit.trim()).ok());
    let unit = unit.filter(|unit| (UNIT_MIN..=page_bytes).contains(unit));
    unit.map_or(1, |unit| (page_bytes / unit) as u32)
}

impl PageMap {
    /// Programs a version of a page, or writes a unit of one.
    #[inline]
    pub(super) fn program(
        &mut self,
        at: Time,
        to: (u32, u32),
        tag: Tag,
        data: &[u8],
    ) -> Result<Time, Failure> {
        if self.array.page_units() == 1 {
            return self.array.program(at, to, tag, data);
        }
        let entry = self.map.get((tag.owner & !LOST) as usize).filter(|entry| **entry != UNMAPPED);
        let before = entry.map(|entry| self.place_of(*entry));
        self.array.gather(at, to, &Unit { tag, data, before, copied: false, fresh: tag.owner != PADDING })
    }

    /// Copies a version of a page.
    pub(super) fn copy_one(
        &mut self,
        at: Time,
        from: (u32, u32),
        to: (u32, u32),
        tag: Tag,
    ) -> Result<Time, Failure> {
        match self.array.page_units() {
            1 => self.array.copy(at, from, to, tag),
            _ => self.array.copy_unit(at, from, to, tag),
        }
    }

    /// Whether a block that is to be erased has to wait; then it is erased in time.
    pub(super) fn erases_later(&mut self, unit: usize, block: u32) -> bool {
        let is_guarded = self.array.is_guarded(block);
        if is_guarded {
            self.set_state(block, State::Emptied);
            self.units[unit].lacking += self.array.lacks(block);
            let cause = self.array.nand().cause();
            self.units[unit].emptied.push((block, cause));
        }
        is_guarded
    }

    /// Erases the blocks that waited for what was programmed by now.
    #[inline]
    pub(super) fn erase_freed(&mut self, at: Time) -> Result<()> {
        match self.array.gathering.freed.is_empty() {
            true => Ok(()),
            false => self.erase_all_freed(at),
        }
    }

    fn erase_all_freed(&mut self, at: Time) -> Result<()> {
        while let Some(block) = self.array.gathering.freed.pop() {
            if self.states[block as usize] != State::Emptied || self.array.is_guarded(block) {
                continue;
            }
            let unit = self.array.geometry().unit_of(block) as usize;
            let emptied = &mut self.units[unit].emptied;
            let Some(place) = emptied.iter().position(|(other, _)| *other == block) else { continue };
            let (_, cause) = emptied.remove(place);
            self.units[unit].lacking -= self.array.lacks(block);
            self.done_for(cause, |map| map.erase(at, unit, block))?;
        }
        Ok(())
    }

    /// Has so many blocks of `unit` erased as there have to be, if some wait for it: pads what they wait for.
    pub(super) fn erase_emptied(&mut self, at: Time, unit: usize, least: usize) -> Result<()> {
        while self.units[unit].free.len() < least {
            let Some((block, _)) = self.units[unit].emptied.first().copied() else { return Ok(()) };
            let guard = self.array.incomplete(|page| page.sources.contains(&block));
            let Some(next) = guard else { return Ok(()) };
            self.complete(at, next)?;
        }
        Ok(())
    }

    /// Pads the incomplete page in a block, if there is one.
    pub(super) fn complete_in(&mut self, at: Time, block: u32) -> Result<()> {
        if self.array.page_units() == 1 {
            return Ok(());
        }
        self.array.incomplete_in(block).map_or(Ok(()), |next| self.complete(at, next))
    }

    /// Pads all pages with units that are in memory alone.
    pub(super) fn complete_fresh(&mut self, at: Time) -> Result<()> {
        // Those of one that fails go to another page.
        while let Some(next) = self.array.incomplete(|page| page.fresh) {
            self.complete(at, next)?;
        }
        // Where there was no room for them any more.
        match self.array.gathering.pages.values().any(|page| page.failed && page.fresh) {
            true => Err(worn_out(self.array.nand())),
            false => Ok(()),
        }
    }

    /// Pads the page whose next unit is given.
    fn complete(&mut self, at: Time, (block, next): (u32, u32)) -> Result<()> {
        if self.array.nand().is_off() {
            return Err(error_of(self.array.nand(), Failure::PowerOff, Lpn(0)));
        }
        let unit = self.array.geometry().unit_of(block) as usize;
        let end = next.next_multiple_of(self.array.page_units());
        // All of its units are there, and what keeps bytes refused it.
        if next == end {
            return Err(worn_out(self.array.nand()));
        }
        self.done_for(Cause::Padding, |map| map.pad_to(at, unit, (block, next), end))
    }

    /// The bytes of the newest version of a page.
    pub(super) fn bytes_of(&self, page: Lpn) -> Result<Option<Bytes>> {
        let entry = self.look_up(page)?;
        let bytes = (entry != UNMAPPED).then(|| self.array.bytes(self.place_of(entry)));
        bytes.transpose().map_err(|failure| error_of(self.array.nand(), failure, page))
    }

    /// Bytes of the map.
    #[cfg(test)]
    pub(crate) fn map_bytes(&self) -> u64 {
        size_of_val(&self.map[..]) as u64
    }

    /// What was programmed since this was last asked.
    pub(super) fn take_noted(&mut self) -> Vec<(Lpn, Time)> {
        self.array.gathering.programmed.replace(Vec::new()).unwrap_or_default()
    }
}
