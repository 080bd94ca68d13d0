//! What changes residency: allocating, binding, unbinding, evicting; and the log's part in it.
//!
//! Every change appends its record before it counts. Blocks that lose their binding wait in [`Ssd::freed`]
//! for the batch with that record to be durable, and for the operation that took it to be durable too: until then
//! a mount may find them bound.

use super::group::{LogWrite, Token};
use super::packing::{Packed, Packing};
use super::pieces::{PIECE_BLOCKS_MAX, Piece};
use super::record::{BIND_BYTES, Body, RECORD_HEADER};
use super::residency::Changes;
use super::slot::PackedInode;
use super::slots::SLOTS_OF_A_BIND;
use super::{Binding, Cause, CopyState, Data, Freed, Run, Runs, Ssd, UncommittedBinding, tag_reached};
use bimetal_base::time::Time;
use bimetal_base::units::{Ino, SsdBlock};
use bimetal_base::{Error, Result};
use smallvec::SmallVec;
use std::ops::Range;

/// Sixteenths of the log in use from which nothing is evicted: the owner needs the rest.
const EVICT_FILL: u64 = 13;

impl Ssd {
    /// Algorithm 2: room for `blocks` blocks of one file in a section. `None` when there is none: evict, make
    /// the log durable, and try again. The blocks are the caller's until bound or released.
    pub fn allocate(&mut self, section: usize, blocks: u32, now: Time) -> Option<Runs> {
        if blocks == 0 {
            return Some(Runs::new());
        }
        self.data[section].section.allocate(blocks, now)
    }

    /// Reserves blocks that nothing on the media refers to, to be discarded: clean extents of one section that follow one another, the
    /// first in a range of the device's blocks, in which sections lie in their order. No more than `most` blocks (if an extent has no more), and half of what
    /// its section has; `None` where there are none. They are the caller's until released.
    pub fn reserve_clean(&mut self, range: Range<u32>, most: u32) -> Option<Run> {
        let mut sections = self.data.iter_mut().map(|data| &mut data.section);
        let (at, len) = sections.find_map(|section| section.reserve_clean(range.clone(), most))?;
        Some(Run { at: SsdBlock(at.into()), len })
    }

    /// From now on the device is told of clean extents, see [`reserve_untold`](Ssd::reserve_untold).
    pub fn tell_of_clean(&mut self) {
        self.data.iter_mut().for_each(|data| data.section.tell_of_clean());
    }

    /// Bytes of clean extents that the device has not been told of.
    pub fn untold_bytes(&self) -> u64 {
        let blocks: u64 = self.data.iter().map(|data| data.section.untold_blocks()).sum();
        blocks * self.block_bytes() as u64
    }

    /// As [`reserve_clean`](Ssd::reserve_clean), extents that the device has not been told of.
    pub fn reserve_untold(&mut self, most: u32) -> Option<Run> {
        let mut sections = self.data.iter_mut().map(|data| &mut data.section);
        let (at, len) = sections.find_map(|section| section.reserve_untold(most))?;
        Some(Run { at: SsdBlock(at.into()), len })
    }

    /// Gives back what [`reserve_untold`](Ssd::reserve_untold) gave, of which the device knows now.
    pub fn release_told(&mut self, run: Run) {
        let (section, at) = self.reserved(run);
        self.data[section].section.release_told(at, run.len);
    }

    /// Gives back blocks that were allocated and never bound, with no write to them under way.
    pub fn release(&mut self, run: Run) {
        let (section, at) = self.reserved(run);
        self.data[section].section.release(at, run.len);
    }

    /// The section and first block of a run that is allocated and not bound.
    fn reserved(&self, run: Run) -> (usize, u32) {
        let at = u32::try_from(run.at.0).expect(super::NO_SECTION);
        let section = self.section_of_own(at);
        assert!(self.data[section].section.is_reserved(at, run.len), "{run:?} is not an allocation");
        (section, at)
    }

    /// Binds file blocks to SSD blocks that hold their contents. Whatever these file blocks were bound to is
    /// freed. `op` is the operation that wrote them, from 1; state 10 becomes 11 when it is trimmed.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the inode table is full: the run is released, the file blocks are bound to what they were, and
    /// something must be evicted.
    pub fn bind(&mut self, op: u64, ino: Ino, binding: &Binding) -> Result<()> {
        let Binding { file_block, run, sums, state, inode } = *binding;
        let (section, at) = self.reserved(run);
        let end = u64::from(file_block) + u64::from(run.len);
        assert!(sums.len() == run.len as usize && run.len > 0, "a checksum for each block");
        assert!(end <= 1 << 32 && run.len <= PIECE_BLOCKS_MAX, "file blocks are numbered in 32 bits");
        let packed = PackedInode::from(inode);
        let piece = Piece::new(file_block, at, run.len, state, op as u32);
        let range = (u64::from(file_block), end);
        let slots = &self.residency.slots;
        let is_known = self.residency.head_of(ino.0).is_some();
        let is_taken = is_known || slots.free_for_inodes() > 0 && self.has_memory(1);
        let log = &self.log;
        let unbinding = self.residency.unsettled.last(ino.0);
        let unbinding = unbinding.of_disk(|cause| log.is_settled(cause.op, cause.on_disk));
        if slots.spare() < SLOTS_OF_A_BIND + u32::from(unbinding.is_some()) || !is_taken {
            self.data[section].section.release(at, run.len);
            return Err(Error::NoSpace("the SSD's inode table"));
        }
        let mut changes = Changes::of(Cause::of(op));
        self.residency.carve(ino.0, range.0, range.1, &mut changes);
        let floor = self.data[section].section.range().start;
        let bound = self.residency.bind(ino.0, packed, piece, floor);
        let (slot, head) = bound.expect("so many slots are free");
        unbinding.into_iter().for_each(|cause| self.residency.slots.owe(cause));
        self.log_bind(op, ino.0, piece.in_slot(slot), head, packed, sums);
        self.settle(ino.0, range, &changes);
        self.take_block(section, at, sums);
        self.queue(ino.0, section);
        if state == CopyState::Ssd {
            self.fresh.push_back(UncommittedBinding { op, ino: ino.0, from: range.0, end: range.1 });
        }
        Ok(())
    }

    /// The records of a bind; long ones are cut so that each fits a group.
    fn log_bind(&mut self, op: u64, ino: u64, piece: Piece, head: u32, inode: PackedInode, sums: &[u32]) {
        let most = (self.log.record_max() - RECORD_HEADER - BIND_BYTES) / 4;
        for (index, sums) in sums.chunks(most).enumerate() {
            let from = u64::from(piece.file_block) + (index * most) as u64;
            let piece = piece.from(from).before(from + sums.len() as u64);
            self.log.append(op, &Body::Bind { ino, piece, head, inode, sums });
        }
    }

    /// Blocks become live, with their checksums.
    fn take_block(&mut self, section: usize, at: u32, sums: &[u32]) {
        let data = &mut self.data[section];
        data.section.bind(at, sums.len() as u32);
        data.set_sums(at, sums.iter().copied());
    }

    /// Sees to it that the inode is in the section's queue, at the top.
    pub(super) fn queue(&mut self, ino: u64, section: usize) {
        if let Some(head) = self.residency.head_of(ino) {
            self.queues.enter(section as u8, head);
        }
    }

    /// Accounts for what a change in `range` removed and moved; its own record is in the log already.
    fn settle(&mut self, ino: u64, range: (u64, u64), changes: &Changes) {
        let cause = changes.cause;
        for piece in &changes.moved {
            self.log.append(0, &Body::Move { ino, piece: *piece });
        }
        for piece in &changes.removed {
            if u64::from(piece.file_block) >= range.1 || piece.end() <= range.0 {
                let (from, end) = (piece.file_block.into(), piece.end());
                // Until the disk has the operation, only this copy may be what was promised.
                let (op, rest) = match cause {
                    Cause { op, on_disk: true } => {
                        (op, Body::UnbindOnDisk { ino, from, end, tag: op as u32 })
                    }
                    Cause { .. } => (0, Body::Unbind { ino, from, end }),
                };
                self.log.append(op, &rest);
            }
        }
        let batch = self.log.batch();
        for piece in &changes.removed {
            let section = self.section_of_own(piece.at);
            self.data[section].section.unbind(piece.at, piece.len());
            self.freed.push_back(Freed { batch, cause, at: piece.at, len: piece.len() });
        }
        if let Some(head) = self.residency.forget_if_empty(ino) {
            self.queues.leave_all(head);
        }
    }

    /// Whether unbinding these file blocks would cost a piece in state 10 a part that they are not: it is cut in two, and there is
    /// no slot for the second.
    pub fn would_lose(&self, ino: Ino, from: u64, len: u64) -> bool {
        self.residency.lacks_slot(ino.0, from, from.saturating_add(len))
    }

    /// Unbinds `len` file blocks from `from` on (`u64::MAX`: to the end), as `op` asks. Ask [`Ssd::would_lose`] before.
    pub fn unbind(&mut self, op: u64, ino: Ino, from: u64, len: u64) {
        let range = (from, from.saturating_add(len));
        let mut changes = Changes::of(Cause::of(op));
        self.residency.carve(ino.0, range.0, range.1, &mut changes);
        if !changes.removed.is_empty() {
            self.log.append(op, &Body::Unbind { ino: ino.0, from: range.0, end: range.1 });
            self.settle(ino.0, range, &changes);
        }
    }

    /// Unbinds, of `len` file blocks from `from` on, what is bound to the SSD's blocks from `at` on and the disk has, too: a
    /// copy that was found wrong. What was bound meanwhile stays, and what only the SSD has: whether any of it is still
    /// bound there for that.
    pub fn unbind_bad_copies(&mut self, op: u64, ino: Ino, (from, len): (u64, u64), at: SsdBlock) -> bool {
        let end = from.saturating_add(len);
        let mut bad = SmallVec::<[(u64, u64, bool); 4]>::new();
        let mut next = from;
        while let Some(piece) = self.residency.node(ino.0).and_then(|node| node.pieces.first_in(next, end)) {
            let first = next.max(piece.file_block.into());
            next = piece.end();
            let found = u64::from(piece.at) + (first - u64::from(piece.file_block));
            if found == at.0 + (first - from) {
                bad.push((first, end.min(next), piece.state().on_disk()));
            }
        }
        for &(from, end, _) in bad.iter().filter(|(.., on_disk)| *on_disk) {
            self.unbind(op, ino, from, end - from);
        }
        bad.iter().any(|(.., on_disk)| !on_disk)
    }

    /// Contents that only the disk will have took the place of what is bound: it is bound as before unless the disk has
    /// operation `op`. What later operations bound in state 10 stays. Said whether anything is bound or not: what unbound it
    /// meanwhile may be an operation that a crash takes back.
    pub fn unbind_on_disk(&mut self, op: u64, ino: Ino, from: u64, len: u64) {
        let end = from.saturating_add(len);
        self.log.append(op, &Body::UnbindOnDisk { ino: ino.0, from, end, tag: op as u32 });
        let mut changes = Changes::of(Cause { op, on_disk: true });
        for (from, end) in self.older_parts(op as u32, ino, from, end) {
            self.residency.carve(ino.0, from, end, &mut changes);
        }
        if !changes.removed.is_empty() {
            self.settle(ino.0, (from, end), &changes);
        }
    }

    /// What is bound of file blocks `from..end`, but for what operations after the one of `tag` bound in state 10.
    fn older_parts(&self, tag: u32, ino: Ino, from: u64, end: u64) -> SmallVec<[(u64, u64); 8]> {
        let Some(node) = self.residency.node(ino.0) else { return SmallVec::new() };
        let (mut parts, mut at) = (SmallVec::new(), from);
        while let Some(piece) = node.pieces.first_in(at, end) {
            at = piece.end();
            if !piece.is_newer(tag) {
                parts.push((from.max(piece.file_block.into()), end.min(at)));
            }
        }
        parts
    }

    /// Unbinds, of `len` file blocks from `from` on, what is older than operation `op`, which the disk has: recovery ran
    /// `op` again, and what later operations bound stays.
    pub fn unbind_before(&mut self, op: u64, ino: Ino, from: u64, len: u64) {
        let end = from.saturating_add(len);
        let parts = self.older_parts(op.saturating_sub(1) as u32, ino, from, end);
        for (from, end) in parts {
            self.unbind(0, ino, from, end - from);
        }
    }

    /// Unbinds everything of an inode.
    pub fn unbind_all(&mut self, op: u64, ino: Ino) {
        if self.residency.node(ino.0).is_some() {
            let mut changes = Changes::of(Cause::of(op));
            self.residency.carve(ino.0, 0, u64::MAX, &mut changes);
            self.log.append(op, &Body::UnbindAll { ino: ino.0 });
            self.settle(ino.0, (0, u64::MAX), &changes);
        }
    }

    /// Unbinds everything but what operations after `op` bound in state 10, once the disk has `op`: one record, for
    /// when more is to be unbound than the log has room to say.
    pub fn forget_on_disk(&mut self, op: u64) {
        self.log.append(op, &Body::ForgetOnDisk { tag: op as u32 });
        let cause = Cause { op, on_disk: true };
        let all: Vec<u64> = self.residency.all().map(|found| found.ino).collect();
        for ino in all {
            let pieces = self.residency.node(ino).into_iter().flat_map(|node| node.pieces.iter());
            let gone: Vec<Piece> = pieces.filter(|piece| !piece.is_newer(op as u32)).collect();
            let mut changes = Changes::of(cause);
            for piece in gone {
                self.residency.carve(ino, piece.file_block.into(), piece.end(), &mut changes);
            }
            self.settle(ino, (0, u64::MAX), &changes);
        }
    }

    /// Unbinds everything of every inode: for an SSD whose disk was used without it.
    pub fn drop_all(&mut self) {
        self.log.append(0, &Body::Forget);
        let all: Vec<u64> = self.residency.all().map(|found| found.ino).collect();
        for ino in all {
            let mut changes = Changes::default();
            self.residency.carve(ino, 0, u64::MAX, &mut changes);
            self.settle(ino, (0, u64::MAX), &changes);
        }
        self.fresh.clear();
    }

    /// Sets the state of what is bound of `len` file blocks from `from` on.
    pub fn set_state(&mut self, op: u64, ino: Ino, from: u64, len: u64, state: CopyState) {
        let range = (from, from.saturating_add(len));
        let mut changes = Changes::of(Cause::of(op));
        self.log.append(op, &Body::SetState { ino: ino.0, from: range.0, end: range.1, state });
        self.residency.set_state(ino.0, range, state, &mut changes);
        self.settle(ino.0, range, &changes);
    }

    /// The disk has every operation up to `op`: what they bound in state 10 is in state 11 now, and their
    /// records in the log are dead. The log's tail moves with the next seal.
    pub fn trim(&mut self, op: u64) {
        self.log.trim(op);
        let residency = &mut self.residency;
        self.fresh.retain(|fresh| {
            if fresh.op <= op {
                residency.finish(fresh.ino, (fresh.from, fresh.end), |piece| tag_reached(piece.tag, op));
            }
            fresh.op > op
        });
        let log = &self.log;
        residency.unsettled.settle(|cause| log.is_settled(cause.op, cause.on_disk));
        self.free_settled();
    }

    /// Evicts inodes from the bottom of the section's queue when fewer of its extents are clean than its
    /// threshold, or than `room`, until enough are; how many inodes. Nothing is read or written:
    /// what is unbound can be allocated when the log is durable. Blocks in state 10 stay, and so do inodes
    /// that `busy` names.
    pub fn evict(&mut self, section: usize, room: u32, busy: impl FnMut(Ino) -> bool) -> usize {
        let data = &self.data[section];
        if data.section.counts().clean_soon >= data.evict_below.max(room) {
            return 0;
        }
        let goal = data.evict_to.max(room);
        self.evict_until(section, |data, _| data.section.counts().clean_soon >= goal, busy)
    }

    /// Whether so many extents of a section are clean.
    pub fn has_clean(&self, section: usize, extents: u32) -> bool {
        self.data[section].section.counts().clean >= extents
    }

    /// Whether the inode table and memory take so many more inodes, or half of all the table has.
    pub fn has_slots(&self, inodes: u32) -> bool {
        let wanted = self.slots_wanted(inodes);
        self.residency.slots.free_for_inodes() >= wanted && self.has_memory(wanted)
    }

    fn slots_wanted(&self, inodes: u32) -> u32 {
        inodes.min(self.residency.slots.count() / 2)
    }

    /// Evicts inodes when fewer slots of the inode table are free than its threshold, which is that of extents, or
    /// than `inodes` need, or memory has no room for these, until enough are; from the bottom of the longest queue. How
    /// many. As [`Ssd::evict`].
    pub fn evict_for_slots(&mut self, inodes: u32, busy: impl FnMut(Ino) -> bool) -> usize {
        let slots = &self.residency.slots;
        let of = |thousandths: u16| (u64::from(slots.count()) * u64::from(thousandths) / 1000) as u32;
        let (wanted, free) = (self.slots_wanted(inodes), slots.free_for_inodes());
        let short = free < of(self.superblock.evict_below).max(wanted);
        let slots =
            if short { of(self.superblock.evict_to).max(wanted).saturating_sub(free) as usize } else { 0 };
        let lacking = slots.max(self.lacking_for_memory(wanted));
        if lacking == 0 {
            return 0;
        }
        let longest = (0..self.sections()).max_by_key(|section| self.queues.len(*section));
        longest.map_or(0, |section| self.evict_until(section, |_, evicted| evicted >= lacking, busy))
    }

    fn evict_until(
        &mut self,
        section: usize,
        done: impl Fn(&Data, usize) -> bool,
        mut busy: impl FnMut(Ino) -> bool,
    ) -> usize {
        let mut evicted = 0;
        for _ in 0..self.queues.len(section) {
            if done(&self.data[section], evicted) || self.is_filled(0, EVICT_FILL) {
                break;
            }
            let Some(head) = self.queues.victim(section) else { break };
            let Some(ino) = self.residency.at(head).map(|found| found.ino) else { break };
            if busy(Ino(ino)) || self.is_unsettled(ino) {
                self.queues.touch(head);
            } else if self.evict_inode(section, head, ino) {
                self.remember_evicted(Ino(ino));
                evicted += 1;
            }
        }
        self.data[section].evicted_inodes += evicted as u64;
        evicted
    }

    /// Whether a crash may take back what unbound something of an inode: it has that again then, and forgetting the rest would
    /// count.
    fn is_unsettled(&self, ino: u64) -> bool {
        self.residency.unsettled.waits(ino, |cause| self.log.is_settled(cause.op, cause.on_disk))
    }

    /// Evicts what an inode has in a section, but for blocks in state 10; whether there was anything. It
    /// leaves the section's queue unless something stays.
    fn evict_inode(&mut self, section: usize, head: u32, ino: u64) -> bool {
        let range = self.data[section].section.range();
        let Some(node) = self.residency.node(ino) else { return false };
        let goes = |piece: &Piece| range.contains(&piece.at) && piece.state().on_disk();
        if node.pieces.iter().all(|piece| goes(&piece)) {
            self.unbind_all(0, Ino(ino));
            return true;
        }
        let stays = node.pieces.iter().any(|piece| range.contains(&piece.at) && !goes(&piece));
        let victims = stretches(node.pieces.iter(), goes);
        for &(from, end) in &victims {
            self.unbind(0, Ino(ino), from, end - from);
        }
        if stays {
            self.queues.touch(head);
        } else if self.residency.at(head).is_some() {
            self.queues.leave(section as u8, head);
        }
        !victims.is_empty()
    }

    /// Appends an operation of the caller to the log. It is durable once a group sealed after this is.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the payload is longer than a sixteenth of the log (8 KiB at least) less 360 bytes.
    pub fn append(&mut self, op: u64, payload: &[u8]) -> Result<()> {
        let record = Body::Operation(payload);
        self.check_length(payload)?;
        self.log.append(op, &record);
        Ok(())
    }

    /// Appends the mark that every operation up to `op` is in the log or on the disk, with all data that was
    /// promised: after a crash, what they changed on the SSD counts.
    pub fn append_complete(&mut self, op: u64) {
        if !self.log.is_marked(op) {
            self.log.append(op, &Body::Complete);
        }
    }

    fn check_length(&self, payload: &[u8]) -> Result<()> {
        let most = self.log.record_max() - RECORD_HEADER;
        if payload.len() <= most {
            return Ok(());
        }
        Err(Error::invalid(format!("a log record of {} bytes: this log takes {most} at most", payload.len())))
    }

    /// What was appended since the last seal, to be packed before it is sealed; `None` where that would gain nothing. What
    /// comes of it is handed to [`end_packing`](Ssd::end_packing) before the next seal.
    pub fn begin_packing(&mut self) -> Option<Packing> {
        self.log.begin_packing()
    }

    /// Takes back what was packed.
    pub fn end_packing(&mut self, packed: Packed) {
        self.log.end_packing(packed);
    }

    /// Closes what was appended into a group to write; `None` when there is nothing. Several groups may
    /// come: call it until it says `None`. What is appended later goes into a later group.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the log has no room. Groups under way, `trim`, a checkpoint or a restart can make
    /// some; nothing is lost meanwhile.
    pub fn seal(&mut self) -> Result<Option<LogWrite>> {
        self.log.seal(self.residency.slots.high())
    }

    /// A group to write that says no more than where the log's tail is now: once it is durable, what a checkpoint or
    /// [`trim`](Ssd::trim) let go of is free. `None` where that is nothing.
    pub fn advance(&mut self) -> Option<LogWrite> {
        self.log.advance(self.residency.slots.high())
    }

    /// The group `upto` and all groups sealed before it are durable. What was unbound before they were
    /// sealed can be allocated once its operation is settled.
    pub fn sealed(&mut self, upto: Token) {
        self.log.sealed(upto);
        self.free_settled();
        self.keep_to_memory();
    }

    fn free_settled(&mut self) {
        let log = &self.log;
        self.residency.free_settled(|cause| log.is_settled(cause.op, cause.on_disk));
        let free = |freed: &Freed| {
            freed.batch <= log.durable_batch() && log.is_settled(freed.cause.op, freed.cause.on_disk)
        };
        while let Some(freed) = self.freed.front().copied().filter(free) {
            self.freed.pop_front();
            let section = self.section_of_own(freed.at);
            self.data[section].section.free(freed.at, freed.len);
        }
    }

    /// The number of the last batch of the log that something was appended to: all of it is durable once
    /// [`durable_batch`](Ssd::durable_batch) has come as far.
    pub fn last_batch(&self) -> u64 {
        self.log.last_batch()
    }

    /// Everything up to this batch of the log is durable.
    pub fn durable_batch(&self) -> u64 {
        self.log.durable_batch()
    }

    /// Whether everything appended so far is durable.
    #[cfg(test)]
    pub fn is_durable(&self) -> bool {
        self.log.waiting_bytes() == 0 && self.log.durable_batch() + 1 == self.log.batch()
    }

    /// Appends the caller's live operations again, each with its number: those appended so far, sealed or
    /// not, that are not trimmed. Once they are durable, the ones before count no more and the tail moves
    /// past them, as far as no residency record holds it (a checkpoint after the restart lets go of those).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a payload that is too long; the old records then go on counting.
    pub fn restart<P: AsRef<[u8]>>(&mut self, live: impl IntoIterator<Item = (u64, P)>) -> Result<()> {
        let first = self.log.batch();
        self.log.append(0, &Body::RestartBegin);
        for (op, payload) in live {
            self.check_length(payload.as_ref())?;
            self.log.append(op, &Body::OperationAgain(payload.as_ref()));
        }
        self.log.append(0, &Body::RestartEnd);
        self.log.restarted(first);
        Ok(())
    }

    /// Bytes of the log in use, with what waits to be sealed.
    pub fn used(&self) -> u64 {
        self.log.used()
    }

    /// Whether more than so many sixteenths of the log are in use with `more` bytes, or, where the longest group is
    /// more than a sixteenth, so much less that there is room for one.
    pub fn is_filled(&self, more: u64, sixteenths: u64) -> bool {
        let part = self.log.capacity() / 16;
        self.log.used() + more + (self.log.group_max() as u64 - part) > part * sixteenths
    }

    /// Bytes of the log.
    pub fn capacity(&self) -> u64 {
        self.log.capacity()
    }

    /// The log is half full: time for a checkpoint and a restart.
    pub fn needs_restart(&self) -> bool {
        self.log.used() >= self.log.capacity() / 2
    }

    /// Bytes of the log that a restart lets go of without a checkpoint after it.
    pub fn freed_by_restart(&self) -> u64 {
        self.log.used().saturating_sub(self.log.residency_bytes())
    }

    /// Residency records hold a quarter of the log, or what changed more of memory than there is room for: time for a
    /// checkpoint.
    #[cfg(test)]
    pub fn needs_checkpoint(&self) -> bool {
        self.log.residency_bytes() >= self.log.capacity() / 4 || self.changes_fill_memory()
    }

    /// The highest operation number in any record so far.
    pub fn last_op(&self) -> u64 {
        self.log.last_op()
    }

    /// The highest number of an operation that it knows of: in its log, or once on a disk.
    pub fn last_number(&self) -> u64 {
        self.log.last_op().max(self.log.trimmed())
    }

    /// How far the log is durable: incarnation and sequence number, to be compared in this order. A log
    /// that lost its very end to damage looks like one that was cut there. An owner that stores this on the
    /// disk with each transaction (once the unbinds of the transaction are durable) can tell: if the log
    /// reaches less far at the next mount, what is bound may be stale, and [`drop_all`](Ssd::drop_all) is
    /// called for.
    pub fn reached(&self) -> (u32, u64) {
        self.log.durable()
    }
}

/// The stretches of file blocks of the pieces that `goes` takes, with what lies between two of them if nothing else
/// does: a record for each is all the log needs.
fn stretches(
    pieces: impl Iterator<Item = Piece>,
    goes: impl Fn(&Piece) -> bool,
) -> SmallVec<[(u64, u64); 16]> {
    let mut found = SmallVec::<[(u64, u64); 16]>::new();
    let mut open = false;
    for piece in pieces {
        let going = goes(&piece);
        match found.last_mut() {
            Some(last) if going && open => last.1 = piece.end(),
            _ if going => found.push((piece.file_block.into(), piece.end())),
            _ => {}
        }
        open = going;
    }
    found
}
