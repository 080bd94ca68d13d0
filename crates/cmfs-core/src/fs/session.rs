//! Sessions: finding the format record, telling by it whether an NVRAM speaks of the part as it is, and beginning a
//! session before the first change.
//!
//! Two blocks hold records. A session with the NVRAM of the one before goes behind that one's record: the NVRAM says
//! first which page it will be, so that no page is programmed that may have been begun. Any other session erases the
//! block that the newest record is not in and begins it anew, with two copies. So a newer record is either where the
//! NVRAM says, or at the beginning of the other block, or the NVRAM's page is gone: a mount reads one page and one
//! spare area to know. Blocks of records are to the log as bad ones. Cost: one page a mount that writes, an erase
//! where it has not the NVRAM of the one before.

use super::Fs;
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::media::{Nand, NandError, Nvram};
use crate::nvram::{Store, Tie};
use crate::record::{NoRecord, Record};
use crate::tags::{PageKind, SpareState};

/// The part's sessions, as far as this mount knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// The newest record.
    record: Record,
    /// Its page.
    page: u32,
    /// The page for the next one, if it is known to be erased.
    next: Option<u32>,
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

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// The number of the session that is under way, or of the last one; 0 of a part without a format record.
    pub fn session(&self) -> u32 {
        self.session.map_or(0, |session| session.record.session)
    }

    /// The number by which an NVRAM that is formatted now is known.
    pub(super) fn next_memory(&self) -> u32 {
        self.session().wrapping_add(1)
    }

    /// Makes the part ours, which must be erased at its end: the last two good blocks are for records. What they
    /// are is said before the first page is written, and the record is the last thing that making a file system
    /// writes: see [`write_first_record`](Fs::write_first_record).
    pub(super) fn plan_sessions(&mut self) -> Result<()> {
        let good = |block: &u32| self.blocks.get(*block).state != BlockState::Bad;
        let mut last = (0..self.geometry.blocks).rev().filter(good);
        let (Some(one), Some(two)) = (last.next(), last.next()) else { return Err(Error::NoSpace) };
        let record = Record {
            geometry: self.geometry,
            identity: self.identity,
            session: 1,
            memory: 1,
            blocks: [one, two],
        };
        self.adopt(record, self.geometry.first_page(one), None);
        if let Some(session) = &mut self.session {
            session.begun = true;
        }
        Ok(())
    }

    /// Writes the record of a file system that was just made.
    pub(super) fn write_first_record(&mut self) -> Result<()> {
        let Some(mut session) = self.session else { return Ok(()) };
        session.record.memory = self.store.as_ref().map_or(0, Store::memory);
        if let Some(store) = &mut self.store {
            store.begin_session(session.record.session, session.page)?;
        }
        self.write_records(session, false)
    }

    /// Finds the format record; a part without is refused, unless such a part was asked for.
    pub(super) fn find_session(&mut self) -> Result<()> {
        if self.session.is_some() {
            return Ok(());
        }
        match self.find_record()? {
            Some((page, record)) => {
                self.identity = record.identity;
                self.adopt(record, page, None);
                Ok(())
            }
            None if self.config.plain => Ok(()),
            None => Err(self.why_foreign()?),
        }
    }

    fn why_foreign(&mut self) -> Result<Error> {
        Ok(Error::Foreign(match self.find_tags() {
            Ok(true) if self.place.ecc => {
                "its pages have tags of YAFFS2, but it has no format record of cmfs"
            }
            Ok(false) => "it is erased",
            Err(Error::Gone) => return Err(Error::Gone),
            _ => "what it holds is something else, or of another shape",
        }))
    }

    /// What an NVRAM that says this is to the part.
    pub(super) fn match_memory(&mut self, tie: &Tie) -> Result<Match> {
        if u64::from(tie.page) < self.geometry.pages()
            && let Some(record) = self.read_record(tie.page)?
            && (record.identity, record.session, record.memory) == (tie.identity, tie.session, tie.memory)
            && !self.went_on_beside(&record, tie.page)?
        {
            self.identity = record.identity;
            self.adopt(record, tie.page, Some(self.behind(tie.page)));
            return Ok(Match::Holds);
        }
        let Some((page, record)) = self.find_record()? else { return Ok(Match::Plain) };
        if record.identity != tie.identity {
            return Ok(Match::Foreign);
        }
        self.identity = record.identity;
        // A session that the NVRAM was told of, and that was cut off before it began.
        let announced = record.session.wrapping_add(1) == tie.session;
        let holds = record.memory == tie.memory && (announced || record.session == tie.session);
        let here = self.geometry.block_of(page) == self.geometry.block_of(tie.page);
        self.adopt(record, page, (holds && here && tie.page >= page).then_some(self.behind(tie.page)));
        Ok(if holds { Match::Holds } else { Match::Stale })
    }

    /// The page for a record behind the one on this page; at the beginning of a block there are two.
    fn behind(&self, page: u32) -> u32 {
        page + 1 + u32::from(page.is_multiple_of(self.geometry.pages_per_block))
    }

    /// Whether the block that a record is not in begins with one as new.
    fn went_on_beside(&mut self, record: &Record, page: u32) -> Result<bool> {
        let own = self.geometry.block_of(page);
        let Some(other) = other_of(record, own) else { return Ok(true) };
        let first = self.geometry.first_page(other);
        for page in [first, first + 1] {
            match self.read_tags(page)? {
                SpareState::Erased => return Ok(false),
                SpareState::Tagged(tags) => {
                    return Ok(tags.kind() == PageKind::Format && tags.chunk >= record.session);
                }
                SpareState::Unreadable => {}
            }
        }
        Ok(false)
    }

    fn adopt(&mut self, record: Record, page: u32, next: Option<u32>) {
        let own = self.geometry.block_of(page);
        let next = next.filter(|next| self.geometry.block_of(*next) == own);
        self.session = Some(Session { record, page, next, begun: false });
        self.reserve_record_blocks();
    }

    /// The log leaves the blocks of records alone.
    pub(super) fn reserve_record_blocks(&mut self) {
        for block in self.session.iter().flat_map(|session| session.record.blocks) {
            self.blocks.change(block, |entry| *entry = crate::blocks::Block::bad(entry.erases));
        }
    }

    /// Whether a block is one of records.
    pub(super) fn holds_records(&self, block: u32) -> bool {
        self.session.is_some_and(|session| session.record.blocks.contains(&block))
    }

    /// The newest record and its page: blocks of records are the last of the part, unless one failed.
    fn find_record(&mut self) -> Result<Option<(u32, Record)>> {
        for block in (0..self.geometry.blocks).rev() {
            if !self.begins_with_record(block)? || self.is_marked_bad(block)? {
                continue;
            }
            let Some(found) = self.newest_in(block)? else { continue };
            let Some(other) = other_of(&found.1, block) else { continue };
            let beside = self.newest_in(other)?.filter(|(_, record)| record.identity == found.1.identity);
            return Ok([Some(found), beside].into_iter().flatten().max_by_key(|(_, record)| record.session));
        }
        Ok(None)
    }

    fn begins_with_record(&mut self, block: u32) -> Result<bool> {
        let first = self.geometry.first_page(block);
        for page in [first, first + 1] {
            match self.read_tags(page)? {
                SpareState::Erased => return Ok(false),
                SpareState::Tagged(tags) => return Ok(tags.kind() == PageKind::Format),
                SpareState::Unreadable => {}
            }
        }
        Ok(false)
    }

    /// The last record of a block.
    fn newest_in(&mut self, block: u32) -> Result<Option<(u32, Record)>> {
        let first = self.geometry.first_page(block);
        for page in (first..first + self.geometry.pages_per_block).rev() {
            if let SpareState::Tagged(tags) = self.read_tags(page)?
                && tags.kind() == PageKind::Format
                && let Some(record) = self.read_record(page)?
            {
                return Ok(Some((page, record)));
            }
        }
        Ok(None)
    }

    /// The record of a page; a wrong version or shape is an error, since it is ours all the same.
    fn read_record(&mut self, page: u32) -> Result<Option<Record>> {
        match self.nand.read(page, &mut self.page, &mut self.spare) {
            Ok(()) => {}
            Err(NandError::Gone) => return Err(Error::Gone),
            Err(_) => return Ok(None),
        }
        match Record::from_bytes(&self.page) {
            Ok(record) if record.geometry != self.geometry => {
                Err(Error::Foreign("its format record says that the part is of another shape"))
            }
            Ok(record) => Ok(Some(record)),
            Err(NoRecord::Version) => {
                Err(Error::Unsupported("its format record has a version that is not known here"))
            }
            Err(NoRecord::Other) => Ok(None),
        }
    }

    /// Before the NAND changes for the first time in a mount: a new session begins.
    pub(super) fn begin_session(&mut self) -> Result<()> {
        let Some(old) = self.session.filter(|session| !session.begun) else { return Ok(()) };
        let memory = self.store.as_ref().map_or(0, Store::memory);
        let mut record = Record { session: old.record.session.wrapping_add(1), memory, ..old.record };
        let own = self.geometry.block_of(old.page);
        let next = old.next.filter(|_| memory != 0 && memory == old.record.memory);
        let mut page = match (next, other_of(&record, own)) {
            (Some(next), _) => next,
            (None, Some(other)) => self.geometry.first_page(other),
            (None, None) => return Err(Error::NoSpace),
        };
        let mut replaced = false;
        loop {
            if let Some(store) = &mut self.store {
                store.begin_session(record.session, page)?;
            }
            match self.write_records(Session { record, page, next: None, begun: true }, true) {
                Ok(()) => break,
                Err(Error::NoSpace) => {}
                Err(error) => return Err(error),
            }
            page = self.replace_record_block(&mut record, self.geometry.block_of(page))?;
            replaced = true;
        }
        if replaced && let Some(other) = other_of(&record, self.geometry.block_of(page)) {
            // What it says of where records are is not true any more.
            let _ = self.nand.erase(other);
        }
        Ok(())
    }

    /// Another block takes the place of one of records that failed; its first page.
    fn replace_record_block(&mut self, record: &mut Record, failed: u32) -> Result<u32> {
        self.stats.failures += 1;
        if self.nand.mark_bad(failed) == Err(NandError::Gone) {
            return Err(Error::Gone);
        }
        let last = self.last_block;
        let spare = self.blocks.next_erased(last).or_else(|| self.blocks.next_erasable(last));
        let spare = spare.ok_or(Error::NoSpace)?;
        self.blocks.change(spare, |entry| *entry = crate::blocks::Block::bad(entry.erases));
        record.blocks.iter_mut().filter(|block| **block == failed).for_each(|block| *block = spare);
        Ok(self.geometry.first_page(spare))
    }

    /// Writes the record of a session; two of them at the beginning of a block, which is erased before unless it is.
    /// [`Error::NoSpace`] where the block fails.
    fn write_records(&mut self, session: Session, erase: bool) -> Result<()> {
        let failed = |error: NandError| if error == NandError::Gone { Error::Gone } else { Error::NoSpace };
        let block = self.geometry.block_of(session.page);
        let begins = session.page == self.geometry.first_page(block);
        if begins && erase {
            self.nand.erase(block).map_err(failed)?;
            self.stats.erases += 1;
        }
        let mut page = alloc::vec![0xff; self.geometry.page_bytes as usize];
        page[..crate::record::RECORD_BYTES].copy_from_slice(&session.record.to_bytes());
        self.place.write(&session.record.tags(), &page, &mut self.spare);
        let last = session.page + u32::from(begins);
        for at in session.page..=last {
            self.nand.program(at, &page, &self.spare).map_err(failed)?;
            self.stats.programs += 1;
        }
        self.session = Some(Session { begun: true, ..session });
        Ok(())
    }
}

/// The other block of records.
fn other_of(record: &Record, block: u32) -> Option<u32> {
    match record.blocks {
        [one, two] if one == block => Some(two),
        [one, two] if two == block => Some(one),
        _ => None,
    }
}
