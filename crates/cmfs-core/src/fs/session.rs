//! Sessions: finding the format record, telling by it whether an NVRAM speaks of the part as it is, and beginning a
//! session before the first change.
//!
//! Two blocks hold records. A session with the NVRAM of the one before goes behind that one's record: the NVRAM says
//! first which page it will be. Any other session, and one after a record that was cut off, erases the
//! block that the newest record is not in and begins it anew, with two copies; so does one with a list of pages that are
//! passed over. So a newer record is either where the
//! NVRAM says, or at the beginning of the other block, or right behind where an older NVRAM says, or the NVRAM's page is
//! gone: a mount reads one page and two spare areas to know, and a third while the other block is erased. Blocks of records are to the log as bad ones. Cost: one page a mount that writes, an erase
//! where it has not the NVRAM of the one before.

use super::Config;
use super::flash::Flash;
use super::memory::Memory;
use crate::blocks::{BlockState, Blocks};
use crate::error::{Error, Result};
use crate::media::{Geometry, Nand, Nvram};
use crate::nvram::Pairing;
use crate::record::{NoRecord, PassedOver, RECORD_BYTES, Record};
use crate::tags::{PageKind, SpareState};
use alloc::vec::Vec;

/// The part's sessions, as far as this mount knows. The NAND is not changed before the record is of this mount.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// The newest record.
    record: Record,
    /// Its page.
    page: u32,
    /// The page for the next one, if it is known to be erased.
    next: Option<u32>,
    /// The last number that was given out: the record's, or that of a session which was cut off before it began. It is
    /// not given out again: an NVRAM that names it may be put back.
    given_out: u32,
    /// The block that such a session was cut off in: there may be something in it.
    cut_off: Option<u32>,
    /// The record is of this mount.
    begun: bool,
}

/// What an NVRAM is to the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// Nobody wrote since without it.
    Holds,
    /// Somebody did.
    Stale,
    /// It is another part's.
    Foreign,
    /// The part has no format record.
    Plain,
}

impl Session {
    fn new(record: Record, page: u32, next: Option<u32>) -> Session {
        let own = record.geometry.block_of(page);
        let next = next.filter(|next| record.geometry.block_of(*next) == own);
        Session { record, page, next, given_out: record.session, cut_off: None, begun: false }
    }

    /// Makes the part ours, which must be erased at its end: the last two good blocks are for records. What they
    /// are is said before the first page is written, and the record is the last thing that making a file system
    /// writes: see [`write_first`](Session::write_first).
    pub fn plan(geometry: Geometry, identity: [u8; 16], blocks: &Blocks) -> Result<Session> {
        let good = |block: &u32| blocks.get(*block).state != BlockState::Bad;
        let mut last = (0..geometry.blocks).rev().filter(good);
        let (Some(one), Some(two)) = (last.next(), last.next()) else { return Err(Error::NoSpace) };
        let record = Record { geometry, identity, session: 1, memory: 1, blocks: [one, two] };
        Ok(Session { begun: true, ..Session::new(record, geometry.first_page(one), None) })
    }

    /// The last session of a part; `None`: it has no format record.
    pub fn find<N: Nand>(flash: &mut Flash<N>) -> Result<Option<Session>> {
        Ok(find_record(flash)?.map(|(page, record)| Session::new(record, page, None)))
    }

    /// What an NVRAM that says this is to the part, and the part's last session.
    pub fn of_memory<N: Nand>(flash: &mut Flash<N>, pairing: &Pairing) -> Result<(Match, Option<Session>)> {
        let geometry = flash.geometry();
        // At the beginning of a block there are two records.
        let behind = |page: u32| page + 1 + u32::from(page.is_multiple_of(geometry.pages_per_block));
        if u64::from(pairing.page) < geometry.pages()
            && let Some(record) = read_record(flash, pairing.page)?
            && (record.identity, record.session, record.memory)
                == (pairing.identity, pairing.session, pairing.memory)
            && !went_on_beside(flash, &record, pairing.page)?
            // A block that failed keeps its records, and the next session is in the one that took its place.
            && !flash.is_bad(geometry.block_of(pairing.page))?
        {
            // Had a session begun behind it, an NVRAM that is as it was then would name that one.
            let next = behind(pairing.page);
            let went_on = geometry.block_of(next) == geometry.block_of(pairing.page)
                && flash.read_tags(next)? != SpareState::Erased;
            if !went_on {
                flash.learn_passed_over();
                return Ok((Match::Holds, Some(Session::new(record, pairing.page, Some(next)))));
            }
        }
        let Some((page, record)) = find_record(flash)? else { return Ok((Match::Plain, None)) };
        if record.identity != pairing.identity {
            return Ok((Match::Foreign, None));
        }
        // A session that the NVRAM was told of, and that was cut off before it began; or the record has a copy. One of
        // that number elsewhere was begun with this NVRAM after it was as it is. An NVRAM that was brought up to date in a
        // session that the part has no record of says what was there before an older state of the part came back.
        let announced = record.session < pairing.session
            && ((1..=record.session).contains(&pairing.updated) || was_begun(flash, pairing.page)?);
        let copied = record.session == pairing.session && pairing.page.checked_add(1) == Some(page);
        let holds = record.memory == pairing.memory && (announced || copied);
        // Behind a page that may have been begun no record goes: records of a block follow each other.
        let next = copied.then_some(behind(pairing.page));
        let found = if holds { Match::Holds } else { Match::Stale };
        let given_out = if holds { pairing.session } else { record.session };
        let cut_off = (holds && announced).then(|| geometry.block_of(pairing.page));
        Ok((found, Some(Session { given_out, cut_off, ..Session::new(record, page, next) })))
    }

    /// The number of the session that is under way, or of the last one.
    pub fn number(&self) -> u32 {
        self.record.session
    }

    /// The page of the newest record.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Another session is to begin in this mount.
    pub fn end(&mut self) {
        self.begun = false;
    }

    /// Whether it is of this mount.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The part's random name.
    pub fn identity(&self) -> [u8; 16] {
        self.record.identity
    }

    /// What ties the part to an NVRAM that is formatted now.
    pub fn pairing(&self, memory: u32) -> Pairing {
        Pairing { identity: self.record.identity, memory, ..Pairing::default() }
    }

    /// The block that a session was cut off in before it began, if it was to be one of records for the first time.
    pub fn cut_off(&self) -> Option<u32> {
        self.cut_off.filter(|block| !self.record.blocks.contains(block))
    }

    /// The blocks of records.
    pub fn blocks(&self) -> [u32; 2] {
        self.record.blocks
    }

    /// Writes the record of a file system that was just made.
    pub fn write_first<N: Nand, V: Nvram>(
        &mut self,
        flash: &mut Flash<N>,
        memory: &mut Memory<V>,
    ) -> Result<()> {
        self.record.memory = memory.number();
        memory.begin_session(self.record.session, self.page)?;
        self.write(flash, false)
    }

    /// Before the NAND changes for the first time in a mount: a new session begins. `last` is the block that was
    /// opened last.
    pub fn begin<N: Nand, V: Nvram>(
        &mut self,
        flash: &mut Flash<N>,
        blocks: &mut Blocks,
        memory: &mut Memory<V>,
        last: u32,
    ) -> Result<()> {
        if self.begun {
            return Ok(());
        }
        let (old, number) = (self.record, memory.number());
        let record = Record { session: self.given_out.wrapping_add(1), memory: number, ..old };
        let geometry = flash.geometry();
        flash.passed_over().retain(&geometry, |block, sequence| {
            let block = blocks.get(block);
            // Of a block that a checkpoint speaks of the number is not known; it is what it was unless it was erased.
            block.sequence == sequence || block.sequence == 0 && block.state != BlockState::Erased
        });
        flash.thin_out();
        // What is tired is erased in the session after this one.
        let is_tired = flash.watch().is_tired(geometry.block_of(self.page));
        // A list of pages is in two copies, as at the beginning of a block: no other record says the same.
        let has_list = !flash.passed_over().is_empty();
        let next = self.next.filter(|_| number != 0 && number == old.memory && !is_tired && !has_list);
        let page = match (next, other_of(&record, geometry.block_of(self.page))) {
            (Some(next), _) => next,
            (None, Some(other)) => geometry.first_page(other),
            (None, None) => return Err(Error::NoSpace),
        };
        let mut new = Session { begun: true, ..Session::new(record, page, None) };
        let mut failed = Vec::new();
        loop {
            memory.begin_session(new.record.session, new.page)?;
            match new.write(flash, true) {
                Ok(()) => break,
                Err(Error::NoSpace) => failed.push(new.replace_block(flash, blocks, last)?),
                Err(error) => return Err(error),
            }
        }
        // The pages it passes over are, before anything is written that comes after them.
        flash.keep_order()?;
        flash.set_listed(true);
        *self = new;
        // What failed may hold the record before, which counts until the new one is there.
        failed.iter().try_for_each(|block| flash.mark_bad(*block))?;
        if !failed.is_empty()
            && let Some(other) = other_of(&new.record, geometry.block_of(new.page))
        {
            // What it says of where records are is not true any more.
            let _ = flash.erase(other);
        }
        Ok(())
    }

    /// Another block takes the place of the one that failed, which is returned.
    fn replace_block<N: Nand>(
        &mut self,
        flash: &mut Flash<N>,
        blocks: &mut Blocks,
        last: u32,
    ) -> Result<u32> {
        let failed = flash.geometry().block_of(self.page);
        let spare = blocks.next_erased(last).or_else(|| blocks.next_erasable(last));
        let spare = spare.ok_or(Error::NoSpace)?;
        blocks.exclude(spare);
        self.record.blocks.iter_mut().filter(|block| **block == failed).for_each(|block| *block = spare);
        self.page = flash.geometry().first_page(spare);
        Ok(failed)
    }

    /// Writes the record; two of them at the beginning of a block, which is erased before unless it is.
    /// [`Error::NoSpace`] where the block fails.
    fn write<N: Nand>(&self, flash: &mut Flash<N>, erase: bool) -> Result<()> {
        let geometry = flash.geometry();
        let block = geometry.block_of(self.page);
        let begins = self.page == geometry.first_page(block);
        let list = flash.passed_over().to_bytes(&geometry).ok_or(Error::Unsupported(TOO_MANY))?;
        if begins && erase && !flash.erase(block)? {
            return Err(Error::NoSpace);
        }
        let mut page = alloc::vec![0xff; geometry.page_bytes as usize];
        page[..RECORD_BYTES].copy_from_slice(&self.record.to_bytes());
        page[RECORD_BYTES..RECORD_BYTES + list.len()].copy_from_slice(&list);
        for at in self.page..=self.page + u32::from(begins) {
            if !flash.program(at, &self.record.tags(), &page)? {
                return Err(Error::NoSpace);
            }
        }
        Ok(())
    }
}

const TOO_MANY: &str = "its host lost its cache too often: there is no room for another list of pages that were torn; \
                        copy what it holds to a new volume";

/// Why an erased part is refused, of [`Error::Foreign`].
pub const ERASED: &str = "it is erased";

/// The random name of a part; `None` if it has no format record.
///
/// # Errors
/// It cannot be read, is of another shape, or of a version that is not known.
pub fn identity_of_nand<N: Nand>(nand: &mut N) -> Result<Option<[u8; 16]>> {
    let mut flash = Flash::new(nand, &Config::default())?;
    Ok(find_record(&mut flash)?.map(|(_, record)| record.identity))
}

/// Why a part without a format record is refused.
pub(super) fn why_foreign<N: Nand>(flash: &mut Flash<N>) -> Error {
    Error::Foreign(match flash.find_tags() {
        Ok(true) if flash.place().ecc => "its pages have tags of YAFFS2, but it has no format record of cmfs",
        Ok(false) => ERASED,
        Err(Error::Gone) => return Error::Gone,
        _ => "what it holds is something else, or of another shape",
    })
}

/// What the first page of a block of records says: of two, the first that can be read and does not read as erased.
fn first_record<N: Nand>(flash: &mut Flash<N>, block: u32) -> Result<SpareState> {
    let first = flash.geometry().first_page(block);
    match flash.read_tags(first)? {
        SpareState::Unreadable | SpareState::Erased => flash.read_tags(first + 1),
        found => Ok(found),
    }
}

/// Whether the block that a record is not in begins with one as new, or may have failed when it was to: then the newest is in the
/// block that took its place.
fn went_on_beside<N: Nand>(flash: &mut Flash<N>, record: &Record, page: u32) -> Result<bool> {
    let Some(other) = other_of(record, flash.geometry().block_of(page)) else { return Ok(true) };
    if flash.is_bad(other)? {
        return Ok(true);
    }
    Ok(match first_record(flash, other)? {
        SpareState::Erased => false,
        SpareState::Tagged(tags) => tags.kind() != PageKind::Format || tags.chunk >= record.session,
        SpareState::Unreadable => true,
    })
}

/// The newest record and its page, of all blocks that hold some: those of the part's end, unless one failed.
fn find_record<N: Nand>(flash: &mut Flash<N>) -> Result<Option<(u32, Record)>> {
    let mut newest: Option<(u32, Record)> = None;
    for block in (0..flash.geometry().blocks).rev() {
        let first = first_record(flash, block)?;
        let is_format = matches!(first, SpareState::Tagged(tags) if tags.kind() == PageKind::Format);
        if !is_format || flash.is_bad(block)? {
            continue;
        }
        let Some(found) = newest_in(flash, block)? else { continue };
        let is_newer = newest.as_ref().is_none_or(|(_, record)| {
            record.identity == found.1.identity && found.1.session > record.session
        });
        if is_newer && other_of(&found.1, block).is_some() {
            newest = Some(found);
        }
    }
    if let Some((page, _)) = &newest {
        flash.read(*page)?;
        flash.learn_passed_over();
    }
    Ok(newest)
}

/// The last record of a block.
fn newest_in<N: Nand>(flash: &mut Flash<N>, block: u32) -> Result<Option<(u32, Record)>> {
    let first = flash.geometry().first_page(block);
    for page in (first..first + flash.geometry().pages_per_block).rev() {
        if let SpareState::Tagged(tags) = flash.read_tags(page)?
            && tags.kind() == PageKind::Format
            && let Some(record) = read_record(flash, page)?
        {
            return Ok(Some((page, record)));
        }
    }
    Ok(None)
}

/// The record of a page; a wrong version or shape is an error, since it is ours all the same.
fn read_record<N: Nand>(flash: &mut Flash<N>, page: u32) -> Result<Option<Record>> {
    if flash.read(page)?.is_none() {
        return Ok(None);
    }
    match Record::from_bytes(flash.page()) {
        Ok(record) if record.geometry != flash.geometry() => {
            Err(Error::Foreign("its format record says that the part is of another shape"))
        }
        Ok(record) => Ok(PassedOver::from_page(flash.page(), &record.geometry).is_some().then_some(record)),
        Err(NoRecord::Version) => {
            Err(Error::Unsupported("its format record has a version that is not known here"))
        }
        Err(NoRecord::Other) => Ok(None),
    }
}

/// Whether a page that cannot be read, or says nothing, was a record once.
fn was_begun<N: Nand>(flash: &mut Flash<N>, page: u32) -> Result<bool> {
    if u64::from(page) >= flash.geometry().pages() {
        return Ok(false);
    }
    Ok(match flash.read_tags(page)? {
        SpareState::Unreadable => true,
        SpareState::Tagged(tags) => tags.kind() == PageKind::Format && read_record(flash, page)?.is_none(),
        SpareState::Erased => false,
    })
}

/// The other block of records.
fn other_of(record: &Record, block: u32) -> Option<u32> {
    match record.blocks {
        [one, two] if one == block => Some(two),
        [one, two] if two == block => Some(one),
        _ => None,
    }
}
