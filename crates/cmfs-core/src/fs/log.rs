//! The log: pages go one after the other into the open block, and a full block gets a summary of their tags.
//!
//! Invariants: nothing is programmed or erased before the session of this mount has begun, what a checkpoint said
//! is gone and the NVRAM says that it is out of date; a block is opened only when the NVRAM knows all before it, so
//! that recovery has one block to read; a block is erased only after a commit that says nothing of it.

use super::checkpoint::{self, Checkpoint};
use super::flash::Flash;
use super::memory::Memory;
use super::session::{Match, Session, why_foreign};
use super::{Config, UpdateReport};
use crate::blocks::{BlockState, Blocks};
use crate::checkpoint::Contents;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};
use crate::nvram::{Pairing, Snapshot, State, Store, identity_of_nvram};
use crate::object::{NONE, Objects};
use crate::summary;
use crate::tags::{Packed, PageKind, SEQUENCE_FIRST, SEQUENCE_LAST, SUMMARY_OBJECT, SpareState};
use alloc::vec::Vec;

/// Why the NVRAM of another part is refused.
pub(super) const DIFFER: &str = "their identities differ";

/// Erased blocks kept ready.
const ERASED_AHEAD: usize = 2;

/// The block that pages are written to.
#[derive(Clone, Debug)]
struct Open {
    block: u32,
    /// The next page in it.
    next: u32,
    /// The tags of the pages before it, for the summary; `None` where they are not all known.
    tags: Option<Vec<Packed>>,
}

/// The part and the NVRAM, and where the log on them goes on. What the NVRAM is to say of objects comes with each
/// call that may bring it up to date.
pub(super) struct Log<N, V> {
    pub(super) flash: Flash<N>,
    pub(super) blocks: Blocks,
    pub(super) memory: Memory<V>,
    open: Option<Open>,
    /// The last sequence number given.
    sequence: u32,
    /// The last block opened.
    last_block: u32,
    /// The sessions of the part; `None`: it has no format record.
    session: Option<Session>,
    /// Of YAFFS2, to be erased before anything is written.
    checkpoint: Checkpoint,
    /// Blocks that were opened.
    opened: u32,
    config: Config,
}

impl<N: Nand, V: Nvram> Log<N, V> {
    /// A log of which nothing is known yet.
    pub fn new(nand: N, config: Config) -> Result<Self> {
        let config = Config { summaries: config.summaries && cfg!(feature = "summaries"), ..config };
        let flash = Flash::new(nand, &config)?;
        let geometry = flash.geometry();
        let usable = geometry.pages_per_block - summary::pages(&geometry, config.summaries);
        Ok(Log {
            flash,
            blocks: Blocks::new(geometry, usable),
            memory: Memory::none(config.layout),
            open: None,
            sequence: SEQUENCE_FIRST - 1,
            last_block: geometry.blocks - 1,
            session: None,
            checkpoint: Checkpoint::default(),
            opened: 0,
            config,
        })
    }

    /// The same part, of which nothing is known but its sessions.
    pub fn start_over(mut self) -> Result<Self> {
        let (session, is_listed) = (self.session, !self.flash.has_unlisted());
        let passed_over = core::mem::take(self.flash.passed_over());
        let mut log = Log { session, ..Log::new(self.flash.into_nand(), self.config)? };
        *log.flash.passed_over() = passed_over;
        log.flash.set_listed(is_listed);
        Ok(log)
    }

    pub fn config(&self) -> Config {
        self.config
    }

    /// The number of the session that is under way, or of the last one; 0 of a part without a format record.
    pub fn session(&self) -> u32 {
        self.session.map_or(0, |session| session.number())
    }

    /// The log leaves the blocks of records alone.
    fn reserve_record_blocks(&mut self) {
        for block in self.session.iter().flat_map(Session::blocks) {
            self.blocks.exclude(block);
        }
    }

    /// Whether a page was written after another one.
    pub fn is_after(&self, page: u32, other: u32) -> bool {
        let geometry = self.flash.geometry();
        let place = |page: u32| (self.blocks.get(geometry.block_of(page)).sequence, page);
        other == NONE || place(page) > place(other)
    }

    /// Whether a block is one of records.
    pub fn holds_records(&self, block: u32) -> bool {
        self.session.is_some_and(|session| session.blocks().contains(&block))
    }

    /// Makes an erased part ours; the record is [written](Log::write_first_record) at last.
    pub fn plan_sessions(&mut self, identity: [u8; 16]) -> Result<()> {
        self.session = Some(Session::plan(self.flash.geometry(), identity, &self.blocks)?);
        self.reserve_record_blocks();
        Ok(())
    }

    pub fn write_first_record(&mut self) -> Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        session.write_first(&mut self.flash, &mut self.memory)
    }

    /// Finds the format record; a part without is refused, unless such a part was asked for.
    pub fn find_session(&mut self) -> Result<()> {
        if self.session.is_none() {
            self.session = Session::find(&mut self.flash)?;
        }
        self.reserve_record_blocks();
        match self.session {
            None if !self.config.plain => Err(why_foreign(&mut self.flash)),
            None => self.flash.find_tags().map(drop),
            Some(_) => Ok(()),
        }
    }

    /// What an NVRAM that says this is to the part.
    pub fn match_memory(&mut self, pairing: &Pairing) -> Result<Match> {
        let (found, session) = Session::of_memory(&mut self.flash, pairing)?;
        self.session = session;
        self.reserve_record_blocks();
        Ok(found)
    }

    /// An error for an NVRAM that says that it is another part's, whatever the shape of that: it is all that knows where
    /// things are there.
    pub fn refuse_anothers(&self, device: &mut V) -> Result<()> {
        let Some(session) = &self.session else { return Ok(()) };
        let mut front = [0; 512];
        let len = device.size_bytes().min(front.len());
        let says = match device.read(0, &mut front[..len]) {
            Ok(()) => identity_of_nvram(&front),
            Err(_) => None,
        };
        match says {
            Some(identity) if identity != session.identity() => Err(Error::Mismatch(DIFFER)),
            _ => Ok(()),
        }
    }

    /// Writes an NVRAM anew as the part's, by the number of a session; false of a part without a format record, which
    /// has none.
    pub fn format_memory(&mut self, device: V, number: u32) -> Result<bool> {
        let Some(session) = &self.session else { return Ok(false) };
        let (config, geometry) = (&self.config, self.flash.geometry());
        let store = Store::format(device, config.layout, config.names, &geometry, session.pairing(number))?;
        self.memory.set(Some(store));
        Ok(true)
    }

    /// Before the NAND changes for the first time in a mount: a new session begins.
    pub fn begin_session(&mut self) -> Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        if self.flash.has_unlisted() {
            // Its record says less than is known by now.
            session.end();
        }
        session.begin(&mut self.flash, &mut self.blocks, &mut self.memory, self.last_block)
    }

    /// The block of the newest format record.
    pub fn record_block(&self) -> Option<u32> {
        self.session.as_ref().map(|session| self.flash.geometry().block_of(session.page()))
    }

    /// Begins another session, whose record is in the other block, where the block of this one's is tired; whether it is.
    pub fn renew_session(&mut self) -> Result<bool> {
        let is_tired = self.record_block().is_some_and(|block| self.flash.watch().is_tired(block));
        if is_tired && let Some(session) = &mut self.session {
            session.end();
            self.begin_session()?;
        }
        Ok(is_tired)
    }

    /// As [`begin_session`](Log::begin_session), with a block at hand that may take the place of one of records.
    fn begin_writing(&mut self, objects: &Objects) -> Result<()> {
        let waits = self.session.is_some_and(|session| !session.has_begun()) && self.blocks.waiting() > 0;
        if waits && self.blocks.erased_count() == 0 && self.blocks.next_erasable(self.last_block).is_none() {
            self.commit(objects, false)?;
        }
        self.begin_session()
    }

    /// Goes on where the NVRAM, or a checkpoint, says; the objects it says there are.
    pub fn adopt(&mut self, state: State) -> Objects {
        (self.sequence, self.last_block) = (state.sequence, state.last_block);
        for (block, entry) in (0u32..).zip(state.blocks) {
            self.blocks.put(block, entry);
        }
        self.open = state.open.map(|(block, next)| Open { block, next, tags: None });
        self.reserve_record_blocks();
        // It was taken in the place of one that failed, and the NVRAM has it as erased.
        let begun = self.session.and_then(|session| session.cut_off());
        let begun = begun.filter(|block| self.blocks.get(*block).state == BlockState::Erased);
        begun.into_iter().for_each(|block| self.blocks.blank(block));
        state.objects
    }

    /// The open block and its next page, for a replay: it is not written to any more.
    pub fn take_open(&mut self) -> Option<(u32, u32)> {
        self.open.take().map(|open| (open.block, open.next))
    }

    /// Takes note of a block that holds something, read in a replay.
    pub fn replayed(&mut self, block: u32, sequence: u32) {
        if sequence >= self.sequence {
            (self.sequence, self.last_block) = (sequence, block);
        }
    }

    /// Whether another driver, which begins no session, wrote the NAND since the NVRAM did.
    pub fn others_wrote(&mut self, modified: bool) -> Result<bool> {
        if let Some(open) = &self.open
            && !modified
            && open.next < self.blocks.usable()
            && self.flash.read_tags(self.flash.geometry().first_page(open.block) + open.next)?
                != SpareState::Erased
        {
            return Ok(true);
        }
        Ok(self.config.layout == super::Layout::Compact && self.was_gone_on()?)
    }

    /// Whether the NAND was written behind the last block: any other driver, and a scan of ours, would have gone on
    /// in the first erased block there. What a checkpoint takes, which a write would have erased, is passed over.
    fn was_gone_on(&mut self) -> Result<bool> {
        let mut after = self.last_block;
        for _ in 0..self.flash.geometry().blocks {
            let Some(block) = self.blocks.next_erased_in_place(after) else { return Ok(false) };
            match self.flash.first_tags(block)? {
                SpareState::Erased => return Ok(false),
                SpareState::Tagged(tags) if tags.kind() == PageKind::Checkpoint => after = block,
                SpareState::Tagged(_) | SpareState::Unreadable => return Ok(true),
            }
        }
        Ok(true)
    }

    /// The open block and its next page.
    fn position(&self) -> Option<(u32, u32)> {
        self.open.as_ref().map(|open| (open.block, open.next))
    }

    /// Writes to NVRAM what changed since the last time. `clean` says that flash and memory agree.
    pub fn commit(&mut self, objects: &Objects, clean: bool) -> Result<UpdateReport> {
        // Once the NVRAM speaks of them no mount meets the pages again that are passed over.
        if self.flash.has_unlisted() {
            self.begin_session()?;
        }
        // What the NVRAM speaks of is there before it does, and copies are before what they are of is erased.
        self.flash.sync()?;
        let open = self.position();
        let changed_blocks = self.blocks.take_changed();
        let report = self.memory.commit(&Snapshot {
            objects,
            changed_blocks: &changed_blocks,
            blocks: &self.blocks,
            geometry: &self.flash.geometry(),
            open,
            sequence: self.sequence,
            last_block: self.last_block,
            session: self.session(),
            clean,
        });
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                self.blocks.still_changed(changed_blocks);
                return Err(error);
            }
        };
        self.blocks.committed();
        Ok(report)
    }

    /// Writes a page and counts it live; where it went. The sequence number is filled in.
    pub fn append(&mut self, objects: &Objects, tags: Packed, data: &[u8]) -> Result<u32> {
        self.append_as(Flash::program, objects, tags, data)
    }

    /// As [`append`](Log::append), of a page that is lost: it stays an error of what it is of, to a scan, too.
    pub fn append_lost(&mut self, objects: &Objects, tags: Packed, data: &[u8]) -> Result<u32> {
        self.append_as(Flash::program_lost, objects, tags, data)
    }

    fn append_as(
        &mut self,
        program: fn(&mut Flash<N>, u32, &Packed, &[u8]) -> Result<bool>,
        objects: &Objects,
        tags: Packed,
        data: &[u8],
    ) -> Result<u32> {
        self.begin_writing(objects)?;
        self.drop_checkpoint(objects)?;
        loop {
            let (block, page) = self.next_page(objects)?;
            let tags = Packed { sequence: self.blocks.get(block).sequence, ..tags };
            self.memory.announce()?;
            if program(&mut self.flash, page, &tags, data)? {
                self.blocks.programmed(block);
                self.advance(tags)?;
                return Ok(page);
            }
            // The block is not written to any more; what it holds is moved, then it is marked bad.
            self.open = None;
            self.blocks.fail(block);
        }
    }

    /// Where the next page goes: opens a block if none is.
    fn next_page(&mut self, objects: &Objects) -> Result<(u32, u32)> {
        if self.open.is_none() {
            self.open_block(objects)?;
        }
        let open = self.open.as_ref().ok_or(Error::NoSpace)?;
        Ok((open.block, self.flash.geometry().first_page(open.block) + open.next))
    }

    /// Takes note of a page written; a full block gets its summary and is closed.
    fn advance(&mut self, tags: Packed) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.next += 1;
        if let Some(all) = &mut open.tags {
            all.push(tags);
        }
        if open.next < self.blocks.usable() {
            return Ok(());
        }
        let block = open.block;
        let tags = self.open.take().and_then(|open| open.tags);
        if self.config.summaries {
            // Of a block that an earlier mount began, its pages say it: 1 ms on the SLC part.
            let tags = match tags {
                Some(tags) => Some(tags),
                None => self.flash.all_tags_of(block, self.blocks.usable())?,
            };
            if let Some(tags) = tags {
                self.write_summary(block, &tags)?;
            }
        }
        self.blocks.close(block);
        Ok(())
    }

    fn write_summary(&mut self, block: u32, tags: &[Packed]) -> Result<()> {
        let sequence = self.blocks.get(block).sequence;
        let bytes = summary::encode(block, sequence, tags);
        let page_bytes = self.flash.geometry().page_bytes as usize;
        for (part, chunk) in bytes.chunks(page_bytes).zip(1..) {
            let mut page = alloc::vec![0xff; page_bytes];
            page[..part.len()].copy_from_slice(part);
            let tags = Packed { sequence, object: SUMMARY_OBJECT, chunk, bytes: part.len() as u32 };
            let at = self.flash.geometry().first_page(block) + self.blocks.usable() + chunk - 1;
            if !self.flash.program(at, &tags, &page)? {
                self.blocks.retire(block);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Nothing more is written to a block, if it is the open one.
    pub fn leave(&mut self, block: u32) {
        if self.open.as_ref().is_some_and(|open| open.block == block) {
            self.open = None;
            self.blocks.close(block);
        }
    }

    /// Opens the next block. The NVRAM knows it before the first page is in it.
    fn open_block(&mut self, objects: &Objects) -> Result<()> {
        let block = match self.blocks.next_erased(self.last_block) {
            Some(block) => block,
            None => self.erase_one(objects)?,
        };
        if self.sequence >= SEQUENCE_LAST {
            return Err(Error::Unsupported("the sequence numbers of this part are used up"));
        }
        let before = (self.blocks.get(block), self.last_block);
        self.sequence += 1;
        self.blocks.open(block, self.sequence);
        self.last_block = block;
        self.open = Some(Open { block, next: 0, tags: Some(Vec::new()) });
        // What was not synced is in one block, which a replay reads whole.
        let known = match self.memory.commits_per_block() {
            true => self.commit(objects, false).map(drop),
            false => self.flash.sync(),
        };
        if let Err(error) = known {
            // What the NVRAM does not know must not be written to.
            self.open = None;
            self.sequence -= 1;
            self.last_block = before.1;
            self.blocks.put(block, before.0);
            return Err(error);
        }
        self.opened += 1;
        Ok(())
    }

    /// How many blocks were opened.
    pub fn opened(&self) -> u32 {
        self.opened
    }

    /// Pages that can be written before anything has to be cleaned, whatever is removed first.
    pub fn room(&self) -> u64 {
        let usable = self.blocks.usable();
        let rest = self.open.as_ref().map_or(0, |open| usable - open.next.min(usable));
        u64::from(rest) + self.blocks.free_for_sure() as u64 * u64::from(usable)
    }

    /// Whether two more pages go into the open block; true if none is.
    pub fn two_fit(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.next + 2 <= self.blocks.usable())
    }

    /// Erases a block if too few are ready and one can be.
    pub fn erase_ahead(&mut self, objects: &Objects) -> Result<()> {
        let few = self.blocks.erased_count() < ERASED_AHEAD || self.flash.is_crowded();
        if few && self.blocks.next_erasable(self.last_block).is_some() {
            match self.erase_one(objects) {
                // The only one was to be given up.
                Ok(_) | Err(Error::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Erases one block and returns its number.
    pub fn erase_one(&mut self, objects: &Objects) -> Result<u32> {
        self.begin_writing(objects)?;
        self.drop_checkpoint(objects)?;
        loop {
            if self.blocks.next_erasable(self.last_block).is_none() {
                if self.blocks.waiting() == 0 {
                    return Err(Error::NoSpace);
                }
                self.commit(objects, false)?;
            }
            let Some(block) = self.blocks.next_erasable(self.last_block) else { return Err(Error::NoSpace) };
            if self.blocks.get(block).retire {
                self.mark_bad(block)?;
            } else if self.erase(block)? {
                return Ok(block);
            }
        }
    }

    /// Erases a block; one where that fails is given up, and the answer is false.
    pub fn erase(&mut self, block: u32) -> Result<bool> {
        let done = self.flash.erase(block)?;
        match done {
            true => self.blocks.erased(block),
            false => self.mark_bad(block)?,
        }
        Ok(done)
    }

    /// A block is given up for good.
    pub fn mark_bad(&mut self, block: u32) -> Result<()> {
        self.begin_session()?;
        self.flash.mark_bad(block)?;
        self.blocks.mark_bad(block);
        Ok(())
    }

    /// A page is of no use any more.
    pub fn release(&mut self, page: u32) {
        if page != NONE {
            self.blocks.page_dies(self.flash.geometry().block_of(page));
        }
    }

    /// What a checkpoint says, if there is one that is whole. `firsts` collects what the first pages of blocks say,
    /// for the scan that follows if not.
    pub fn load_checkpoint(&mut self, firsts: &mut Vec<SpareState>) -> Result<Option<Objects>> {
        if !cfg!(feature = "yaffs2") {
            return Ok(None);
        }
        let usable = self.blocks.usable();
        let Some((state, found)) = Checkpoint::load(&mut self.flash, usable, firsts)? else {
            return Ok(None);
        };
        let objects = self.adopt(state);
        found.blocks().iter().for_each(|block| self.blocks.blank(*block));
        self.checkpoint = found;
        Ok(Some(objects))
    }

    /// Looks for a checkpoint beside NVRAM that agrees with the NAND.
    pub fn find_checkpoint(&mut self) -> Result<()> {
        self.checkpoint.find(&mut self.flash, &mut self.blocks)
    }

    /// A block of a checkpoint was met in a scan.
    pub fn met_checkpoint(&mut self, block: u32) {
        self.checkpoint.add(&mut self.blocks, block);
    }

    /// Before the NAND changes: the checkpoint goes; whether there was one. The NVRAM knows before that its blocks are
    /// not erased.
    pub fn drop_checkpoint(&mut self, objects: &Objects) -> Result<bool> {
        if self.checkpoint.blocks().is_empty() {
            return Ok(false);
        }
        self.begin_session()?;
        self.commit(objects, false)?;
        let gone = core::mem::take(&mut self.checkpoint);
        for block in gone.blocks() {
            // One that failed may have been replaced by one of these when the session began.
            if !self.holds_records(*block) {
                self.erase(*block)?;
            }
        }
        Ok(true)
    }

    /// Leaves a checkpoint of what is on flash; whether there was room for it.
    pub fn leave_checkpoint(&mut self, objects: &Objects, pointer_bytes: usize) -> Result<bool> {
        if !cfg!(feature = "yaffs2") {
            return Err(Error::Unsupported("checkpoints were left out of this build (feature yaffs2)"));
        }
        let mut stream = self.stream(objects, pointer_bytes);
        let count = checkpoint::blocks_of(&stream, &self.flash.geometry());
        // A driver looks for no more, and needs its reserve.
        let fits = count <= self.flash.geometry().blocks as usize / 16 + 1
            && self.blocks.free() >= count + self.config.reserve_blocks as usize;
        if !fits {
            return Ok(false);
        }
        if self.blocks.erased_count() < count {
            while self.blocks.erased_count() < count {
                match self.erase_one(objects) {
                    Ok(_) => {}
                    Err(Error::NoSpace) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            // The NVRAM looks for a checkpoint where it knows erased blocks.
            self.commit(objects, true)?;
            stream = self.stream(objects, pointer_bytes);
        }
        let blocks: Vec<u32> = self.blocks.erased_in_place().take(count).collect();
        self.begin_session()?;
        // The NVRAM must not take a block for erased in which a page may have been begun.
        blocks.iter().for_each(|block| self.blocks.blank(*block));
        self.commit(objects, true)?;
        let written = checkpoint::program(&mut self.flash, &stream, &blocks)?;
        blocks.into_iter().for_each(|block| self.met_checkpoint(block));
        if !written {
            // A page failed: nothing of it may be taken for a checkpoint.
            self.drop_checkpoint(objects)?;
            self.commit(objects, true)?;
        }
        self.flash.sync()?;
        Ok(written)
    }

    fn stream(&self, objects: &Objects, pointer_bytes: usize) -> Vec<u8> {
        let geometry = self.flash.geometry();
        let contents = Contents {
            objects,
            blocks: &self.blocks,
            geometry: &geometry,
            open: self.position(),
            sequence: self.sequence,
            summary_pages: summary::pages(&geometry, self.config.summaries),
        };
        crate::checkpoint::write(&contents, pointer_bytes)
    }

    /// The pages of the checkpoint that was found.
    #[cfg(test)]
    pub fn checkpoint_pages(&mut self) -> Vec<u32> {
        self.checkpoint.pages(&mut self.flash)
    }
}
