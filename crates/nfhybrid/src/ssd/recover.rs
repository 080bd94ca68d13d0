//! Opening an SSD: from whatever a power cut left to a state that the log vouches for.
//!
//! 1. The newer valid superblock, the whole log.
//! 2. The slots that were ever used, heads first, then entries. They are from the last checkpoint that was
//!    completed, or some of them from one that was not.
//! 3. The log's residency records, in order. Each sets what is bound absolutely, so the result is the state
//!    at the log's end, whichever slots were newer (`checkpoint` keeps the log ahead of the tables).
//! 4. What cannot be used goes: pieces without the SSD bit of `SSD_wr_done`, pieces that share a block,
//!    pieces whose checksums are damaged. For all of it unbind records are appended, so that it cannot come
//!    back when only some of its slots have been written again.
//! 5. The allocator is built from what remains and compared with the bitmaps; where they differ the bitmaps
//!    are wrong and will be written again.
//!
//! If the log is damaged where it was durable, an unbind may be missing, and a stale copy could pass for a
//! fresh one. Then only what the disk may not have counts, the copies that the disk has, too, are dropped, and the log says
//! so. What is left is what was fsynced before the gap, and what the tables have of after it: whoever applies it leaves
//! out what is of an operation that is not there. A block that was used again since has another checksum; only if the crash
//! came while the tables were written, too, may its new checksum be there already and its new place not.
//!
//! Opening writes nothing; doing it again gives the same.

use super::backing::Backing;
use super::checkpoint::{EXTENTS_PER_SECTOR, SLOTS_PER_SECTOR};
use super::config::Pairing;
use super::layout::{SUMS_PER_BLOCK, SUMS_PER_SECTOR, SectionLayout};
use super::log::Log;
use super::marks::MarkTable;
use super::memory::{MEMORY_DEFAULT, ONE_PIECE_BYTES};
use super::pieces::{Piece, Pieces};
use super::queue::Queues;
use super::reader::Reader;
use super::record::{self, Body};
use super::replay::{Orphan, Past, Replay, add_gaps};
use super::residency::{Changes, Residency};
use super::scan::scan;
use super::section::{EXTENTS_PER_BITMAP_BLOCK, Section};
use super::sector::{SECTORS_PER_BLOCK, Seal};
use super::segment::Marks;
use super::slot::{self, Entry, Slot};
use super::slots::{SLOTS_PER_BITMAP_BLOCK, Slots};
use super::sums::SumStore;
use super::superblock::Superblock;
use super::{Bits, CopyState, Data, DiskSide, DupInode, Run, Ssd, UncommittedBinding, sums, tag_reached};
use bimetal_base::Result;
use bimetal_base::units::{Ino, SsdBlock, show_size};
use bimetal_media::BlockDevice;
use bytes::Bytes;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;

/// Extents whose bitmaps are compared at once: a multiple of what a block of a bitmap has.
const STRIPE_EXTENTS: u32 = EXTENTS_PER_BITMAP_BLOCK * 64;

/// An SSD that was opened.
#[derive(Debug)]
pub struct Opened {
    /// It, ready for use.
    pub ssd: Ssd,
    /// What the log holds for the disk, by operation number.
    pub records: Vec<Record>,
    /// The last operation up to which it holds everything that was promised; see [`Ssd::append_complete`].
    pub complete: u64,
    /// Operations after this one are not to be run: nobody was promised them, and what they go with may be missing. That is
    /// [`complete`](Opened::complete), or no limit where the log lacks durable records, among which its last mark may be.
    pub until: u64,
    /// The last operation that the disk was known to have when the log was last written.
    pub disk_had: u64,
    /// What was damaged and dropped, or repaired, in words.
    pub notes: Vec<String>,
    /// What durable records of the log, or contents that only the SSD has, were lost to damage, as far as can be told.
    pub lost: Option<String>,
    /// Operations at the end of the log that do not count, as their contents are not whole, in words.
    pub unfinished: Option<String>,
    /// Operations that whole groups behind a damaged one hold, by number: they cannot be applied, but say what is lost.
    pub beyond: Vec<(u64, Bytes)>,
}

/// What of a log counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// What comes before the first damage.
    Log,
    /// All that can be read, for whoever writes nothing back.
    Everything,
    /// Nothing.
    Nothing,
}

/// Something the disk may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its operation's number.
    pub op: u64,
    /// What it is.
    pub body: RecordBody,
}

/// What a [`Record`] holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordBody {
    /// What the caller appended.
    Operation(Bytes),
    /// File blocks whose only copy is on the SSD (state 10).
    Fresh {
        /// The inode.
        ino: Ino,
        /// The first file block.
        file_block: u32,
        /// Where they are.
        run: Run,
        /// The inode as it was at the last bind.
        inode: DupInode,
    },
}

impl Ssd {
    /// Opens the SSD on `device`, which is only read. `known` is what the disk says.
    ///
    /// # Errors
    /// [`bimetal_base::Error::Corrupt`] without a valid superblock, [`bimetal_base::Error::Unsupported`] for another version,
    /// [`bimetal_base::Error::Mismatch`] for a device that is cut short, what the device says of a log that cannot be read.
    /// Damage elsewhere is noted, not an error.
    pub fn open(device: &dyn BlockDevice, known: DiskSide) -> Result<Opened> {
        Ssd::open_within(device, known, MEMORY_DEFAULT)
    }

    /// Whether a device begins as an SSD half does; `false` if it cannot be read.
    pub fn is_one(device: &dyn BlockDevice) -> bool {
        let begins = |bytes: bytes::Bytes| bytes.starts_with(&super::superblock::MAGIC);
        device.info().size_bytes >= 4096 && device.read(0, 4096).is_ok_and(begins)
    }

    /// Whether the first superblock is damaged, or gone, and the second one stands in for it.
    pub fn goes_by_second(device: &dyn BlockDevice) -> bool {
        Superblock::goes_by_second(device)
    }

    /// What an SSD half says of itself, read without opening it: its UUID, its pairing, and whether it was left in order.
    ///
    /// # Errors
    /// As [`Ssd::open`], as far as the superblock shows.
    pub fn peek(device: &dyn BlockDevice) -> Result<([u8; 16], Pairing, bool)> {
        let superblock = Superblock::read(device, &mut Vec::new())?;
        Ok((superblock.uuid, superblock.pairing, superblock.clean))
    }

    /// The same with a limit of memory, at least [`MEMORY_MIN`](super::memory::MEMORY_MIN). What is bound is never too much for a mount: if
    /// it exceeds the limit, that is noted, and files are evicted as the SSD is used.
    ///
    /// # Errors
    /// As [`Ssd::open`].
    pub fn open_within(device: &dyn BlockDevice, known: DiskSide, memory: u64) -> Result<Opened> {
        Ssd::open_with(device, known, Counts::Log, (memory, usize::MAX))
    }

    /// The same for whoever wants all that can be had off an SSD whose disk half is gone: of a damaged log what lies behind
    /// the damage, too, and the copies, some of which may be old then. [`Opened::lost`] says whether that is so.
    ///
    /// # Errors
    /// As [`Ssd::open`].
    pub fn open_everything(device: &dyn BlockDevice) -> Result<Opened> {
        Ssd::open_with(device, DiskSide::default(), Counts::Everything, (MEMORY_DEFAULT, usize::MAX))
    }

    /// The same for an SSD of which nothing counts any more, its log least of all: that may be unreadable.
    ///
    /// # Errors
    /// As [`Ssd::open`], but for the log.
    pub fn open_empty(device: &dyn BlockDevice, known: DiskSide, memory: u64) -> Result<Opened> {
        Ssd::open_with(device, known, Counts::Nothing, (memory, usize::MAX))
    }

    /// As [`Ssd::open_within`], with at most `cache_max` bytes of cache.
    #[cfg(test)]
    pub(super) fn open_limited(
        device: &dyn BlockDevice,
        known: DiskSide,
        memory: u64,
        cache_max: usize,
    ) -> Result<Opened> {
        Ssd::open_with(device, known, Counts::Log, (memory, cache_max))
    }

    /// `memory`: the limit, and that of the cache.
    fn open_with(
        device: &dyn BlockDevice,
        known: DiskSide,
        counts: Counts,
        (memory, cache_max): (u64, usize),
    ) -> Result<Opened> {
        let mut notes = Vec::new();
        let superblock = Superblock::read(device, &mut notes)?;
        let mut reader = Reader::new(device, Seal::new(&superblock.uuid), notes);
        let (log, log_bytes) = (superblock.layout.log, superblock.layout.log_bytes);
        let log = match counts {
            Counts::Log | Counts::Everything => reader.log(log, log_bytes)?,
            Counts::Nothing => reader.table(log, log_bytes)?,
        };
        let layout = superblock.layout.clone();
        let block_bytes = layout.block_bytes as usize;
        let known = DiskSide { reached: superblock.log_reached.max(known.reached), ..known };
        let mut missing = |backing: Backing| match counts {
            // Their readers are told what of them is not whole.
            Counts::Everything => Ok(None),
            Counts::Log | Counts::Nothing => backing.first_missing(device, block_bytes),
        };
        let (unit, id) = (layout.log_unit, superblock.log_id);
        let mut scanned = scan(&log, unit, id, known, &mut missing)?;
        if counts != Counts::Nothing
            && let Some(again) = reader.log_again(&log, layout.log, scanned.end(unit))?
        {
            let other = scan(&again, unit, id, known, &mut missing)?;
            // No bit that flips makes a group whole.
            if other.reached() > scanned.reached() {
                scanned = other;
            }
        }
        let unfinished = scanned.unbacked.filter(|count| *count > 0).map(|count| {
            format!(
                "the last operations of the SSD's log ({count}) do not count: their contents are not whole, as when the power fails \
                 before an fsync returns; if that fsync had returned, the SSD is damaged, and what there is could be got off by \
                 `bimetal rescue --ssd`, as long as it has not been mounted for writing since (keep a copy)"
            )
        });
        if superblock.free_marks {
            reader.expect_marks(scanned.position.slots_written);
        }
        let beyond = scanned.beyond.operations();
        match counts {
            Counts::Log => {}
            Counts::Everything => scanned.take_beyond(),
            Counts::Nothing => scanned.drop_all(),
        }
        let mut lost = scanned.lost.clone();
        let until = if lost.is_some() { u64::MAX } else { scanned.position.complete };
        // Nothing in the log explains a difference between tables.
        let exact = scanned.lost.is_none() && scanned.residency.is_empty() && scanned.undone.is_none();
        let (complete, disk_had) = (scanned.position.complete, scanned.position.trimmed);
        let log = Log::new(layout.log_place(), superblock.log_id, scanned.position);
        let mut ssd = Ssd::empty(superblock, log)?;
        (ssd.memory_limit, ssd.cache_max) = (memory as usize, cache_max);
        ssd.residency.slots.raise_high(scanned.slots_high);
        if counts == Counts::Nothing {
            reader.notes.push("its log is dropped; everything cached on the SSD is dropped".into());
            ssd.log.append(0, &Body::Forget);
            ssd.wipe_slots(&mut reader)?;
        } else {
            if let Some(why) = scanned.lost {
                let dropped = ssd.take_what_only_it_has(&mut reader, counts, known.op.max(disk_had))?;
                scanned.residency.extend(dropped);
                let copies = match counts {
                    Counts::Everything => "may be old",
                    Counts::Log | Counts::Nothing => "are dropped",
                };
                reader.notes.push(format!("{why}; the SSD's copies of what the disk has, too, {copies}"));
            }
            let past = Past::of(&scanned.residency);
            let mut replay = ssd.load_slots(&mut reader, exact, &past, &mut lost)?;
            scanned.residency.iter().for_each(|record| replay.play(record));
            ssd.take_over(replay, &mut reader, &mut lost);
            ssd.drop_unusable(&mut reader);
            ssd.load_sums(&mut reader, &scanned.residency, &mut lost)?;
        }
        if let Some(limits) = scanned.undone {
            ssd.log.append(0, &Body::Undone { limits });
        }
        if scanned.unbacked.is_some() {
            // The group after the last that counts must never become whole: something goes over it.
            ssd.log.append(0, &Body::RestartBegin);
        }
        ssd.adopt();
        ssd.compare_bitmaps(&mut reader, exact)?;
        ssd.compare_inode_bitmap(&mut reader, exact)?;
        ssd.load_inodes_of_fresh(&mut reader, &mut lost)?;
        let records = ssd.records(scanned.operations);
        ssd.note_memory(&mut reader);
        ssd.keep_to_memory();
        Ok(Opened { ssd, records, complete, until, disk_had, notes: reader.notes, lost, unfinished, beyond })
    }

    /// Prepares for a log that lacks durable records: any slot may be in use, and of copies that the disk has, too, it
    /// is not known whether they are current. Returns the record that drops them, which the log will say.
    fn take_what_only_it_has(
        &mut self,
        reader: &mut Reader,
        counts: Counts,
        disk_has: u64,
    ) -> Result<Option<record::Read>> {
        let layout = self.superblock.layout.clone();
        let slots = &mut self.residency.slots;
        reader.slots(&layout, layout.slot_count, |number, read| {
            if !matches!(read, Ok(None)) {
                slots.raise_high(number + 1);
            }
        })?;
        if counts == Counts::Everything {
            return Ok(None);
        }
        let tag = disk_has as u32;
        self.log.append(disk_has, &Body::ForgetOnDisk { tag });
        Ok(Some(Body::ForgetOnDisk { tag }))
    }

    /// An SSD with nothing on it.
    fn empty(superblock: Superblock, log: Log) -> Result<Ssd> {
        let layout = &superblock.layout;
        let mut data = Vec::new();
        for section in &layout.sections {
            let extents = section.extents;
            let of = |thousandths: u16| (u64::from(extents) * u64::from(thousandths) / 1000) as u32;
            let first = layout.first_block(section);
            data.push(Data {
                section: Section::new(layout.shape(section)?, first, extents, superblock.wait),
                sums: SumStore::default(),
                dirty_sums: Bits::new(section.blocks().div_ceil(SUMS_PER_BLOCK)),
                evict_below: of(superblock.evict_below).clamp(1, extents),
                evict_to: of(superblock.evict_to).clamp(1, extents),
                evicted_inodes: 0,
                hits: 0,
                misses: 0,
            });
        }
        let (head, overflow) = slot::entries_per_slot(layout.slot_bytes);
        let slots = Slots::new(layout.slot_count, layout.slots_per_block(), head, overflow);
        Ok(Ssd {
            seal: Seal::new(&superblock.uuid),
            log,
            residency: Residency::new(slots),
            queues: Queues::new(data.len(), layout.slot_count),
            data,
            freed: VecDeque::new(),
            fresh: VecDeque::new(),
            checkpoint: None,
            memory_limit: MEMORY_DEFAULT as usize,
            cache_max: usize::MAX,
            cache_seen: 0,
            tables_seen: 0,
            evicted: Default::default(),
            superblock,
        })
    }

    /// Reads the slots that were ever used. Inodes that the log speaks of are for the replay, all others are taken over.
    fn load_slots(
        &mut self,
        reader: &mut Reader,
        exact: bool,
        past: &Past,
        lost: &mut Option<String>,
    ) -> Result<Replay> {
        let layout = self.superblock.layout.clone();
        let high = self.residency.slots.high().min(layout.slot_count);
        let written = self.log.slots_written();
        let (mut replay, mut damaged) = (Replay::new(layout.slot_count), 0);
        let (mut found, mut overflow) = (Vec::<(u32, Slot)>::new(), Bits::new(layout.slot_count));
        let inode_bytes = self.cache_room().saturating_sub(high as usize * ONE_PIECE_BYTES) / 8;
        reader.slots(&layout, high, |number, read| match read {
            Ok(Some(_)) if past.forgets_all() => replay.is_dirty(number),
            Ok(Some(slot)) if past.speaks_of(slot.ino) => found.push((number, slot)),
            Ok(Some(slot)) if slot.inode.is_some() && self.residency.head_of(slot.ino).is_none() => {
                self.take_head(number, &slot, past, &mut replay);
                if self.residency.inodes.heap_bytes() < inode_bytes
                    && let Some(inode) = slot.inode
                {
                    self.residency.inodes.set(number, inode);
                }
            }
            Ok(Some(_)) => overflow.set(number),
            Ok(None) => {}
            // What no completed checkpoint wrote may hold anything; the log has all that matters.
            Err(_) => {
                damaged += u32::from(number < written);
                replay.is_dirty(number);
            }
        })?;
        reader.slots_in(&layout, overflow.iter(), |number, read| match read {
            Ok(Some(slot)) => self.take_overflow(number, &slot, past, &mut replay),
            // It could be read before.
            Ok(None) | Err(_) => {
                damaged += u32::from(number < written);
                replay.is_dirty(number);
            }
        })?;
        self.replay_slots(found, &mut replay);
        let orphans = replay.orphans.len();
        if damaged > 0 {
            let note = format!("{damaged} slots of the inode table are damaged; what they held is dropped");
            lost.get_or_insert_with(|| note.clone());
            reader.notes.push(note);
        }
        // A checkpoint that was cut short leaves entries without an inode too; the log knows them.
        if orphans > 0 && (damaged > 0 || exact) {
            reader.notes.push(format!("{orphans} extents of files have no inode on the SSD and are dropped"));
        }
        Ok(replay)
    }

    /// Slots of inodes that the log speaks of, heads first.
    fn replay_slots(&self, found: Vec<(u32, Slot)>, replay: &mut Replay) {
        for (number, slot) in &found {
            if let Some(inode) = slot.inode {
                replay.load_head(slot.ino, inode, *number);
            }
        }
        for (number, slot) in found {
            for entry in slot.entries {
                match self.piece_of(&entry) {
                    Some(piece) => replay.load(slot.ino, piece.in_slot(number)),
                    None => replay.orphans.push(Orphan::of(slot.ino, &entry.piece)),
                }
            }
        }
    }

    /// The pieces of a slot of an inode that the log does not speak of.
    fn pieces_of(&self, number: u32, slot: &Slot, past: &Past, replay: &mut Replay) -> SmallVec<[Piece; 2]> {
        let mut pieces = SmallVec::new();
        for entry in &slot.entries {
            match self.piece_of(entry) {
                None => replay.orphans.push(Orphan::of(slot.ino, &entry.piece)),
                Some(piece) if past.forgets(&piece) => replay.is_dirty(number),
                Some(piece)
                    if piece.state() == CopyState::Ssd && tag_reached(piece.tag, self.log.trimmed()) =>
                {
                    replay.is_dirty(number);
                    pieces.push(piece.with_state(CopyState::Both).in_slot(number));
                }
                Some(piece) => pieces.push(piece.in_slot(number)),
            }
        }
        pieces
    }

    /// Takes over the head slot of an inode that the log does not speak of.
    fn take_head(&mut self, number: u32, slot: &Slot, past: &Past, replay: &mut Replay) {
        let mut pieces = Pieces::new();
        for piece in self.pieces_of(number, slot, past, replay) {
            let mut gaps = SmallVec::<[Piece; 2]>::new();
            if !add_gaps(piece, |from, end| pieces.first_in(from, end), |gap| gaps.push(gap)) {
                replay.is_dirty(number);
            }
            gaps.into_iter().for_each(|gap| pieces.put(gap));
        }
        let left = self.residency.adopt(slot.ino, number, &pieces);
        left.into_iter().flatten().for_each(|piece| replay.orphans.push(Orphan::of(slot.ino, &piece)));
    }

    /// The same for a further slot, when all heads were taken over.
    fn take_overflow(&mut self, number: u32, slot: &Slot, past: &Past, replay: &mut Replay) {
        if slot.inode.is_some() {
            // The inode has another head.
            replay.is_dirty(number);
        }
        for piece in self.pieces_of(number, slot, past, replay) {
            let Some(found) = self.residency.node(slot.ino) else {
                replay.is_dirty(number);
                replay.orphans.push(Orphan::of(slot.ino, &piece));
                continue;
            };
            let mut gaps = Vec::new();
            if !add_gaps(piece, |from, end| found.pieces.first_in(from, end), |gap| gaps.push(gap)) {
                replay.is_dirty(number);
            }
            let left = gaps.into_iter().filter_map(|gap| self.residency.adopt_more(slot.ino, gap));
            left.for_each(|piece| replay.orphans.push(Orphan::of(slot.ino, &piece)));
        }
    }

    /// Ends the replay: what was recovered is what is bound.
    fn take_over(&mut self, mut replay: Replay, reader: &mut Reader, lost: &mut Option<String>) {
        let trimmed = self.log.trimmed();
        replay.finish_pieces(|piece| tag_reached(piece.tag, trimmed));
        self.forget_empty(&mut replay);
        let orphans = std::mem::take(&mut replay.orphans);
        let starts: Vec<u32> = self.data.iter().map(|data| data.section.range().start).collect();
        let placed = replay.finish(&mut self.residency, |_, next| starts.contains(&next.at));
        for (ino, piece) in placed.moved {
            self.log.append(0, &Body::Move { ino, piece });
        }
        if !placed.dropped.is_empty() {
            let count = placed.dropped.len();
            let note = format!("{count} extents of files found no slot of the inode table and are dropped");
            if placed.dropped.iter().any(|(_, piece)| piece.state() == CopyState::Ssd) {
                lost.get_or_insert_with(|| note.clone());
            }
            reader.notes.push(note);
        }
        self.drop_orphans(orphans);
        self.drop_orphans(placed.dropped.iter().map(|(ino, piece)| Orphan::of(*ino, piece)).collect());
    }

    /// Inodes that were taken over without a piece go.
    fn forget_empty(&mut self, replay: &mut Replay) {
        let empty = self.residency.nodes().filter(|found| found.pieces.len() == 0);
        let empty: Vec<(u64, u32)> = empty.map(|found| (found.ino, found.head)).collect();
        for (ino, head) in empty {
            self.residency.forget_if_empty(ino);
            replay.is_dirty(head);
        }
    }

    /// The piece an entry stands for, if its place is one of a section's extents.
    fn piece_of(&self, entry: &Entry) -> Option<Piece> {
        let section = &self.data[self.section_of(entry.extent)?].section;
        let (extent, start) = section.extent_address(entry.extent);
        let inside =
            extent == entry.extent && start == 0 && u32::from(entry.start) < section.shape().blocks();
        let piece = entry.piece.at_block(entry.extent.checked_add(entry.start.into())?);
        (inside && self.is_in_section(&piece)).then_some(piece)
    }

    /// Whether a piece lies in one section.
    fn is_in_section(&self, piece: &Piece) -> bool {
        let Some(section) = self.section_of(piece.at) else { return false };
        piece.len() <= self.data[section].section.range().end - piece.at
    }

    /// Sees to it that orphans stay away, but for what of them the log has bound.
    fn drop_orphans(&mut self, orphans: Vec<Orphan>) {
        for Orphan { ino, from: mut at, end } in orphans {
            while at < end {
                let next = self.residency.node(ino).and_then(|node| node.pieces.first_in(at, end));
                let gap_end = next.map_or(end, |piece| piece.file_block.into());
                if gap_end > at {
                    self.log.append(0, &Body::Unbind { ino, from: at, end: gap_end });
                }
                at = next.map_or(end, |piece| piece.end());
            }
        }
    }

    /// Unbinds what no block of the allocator stands for yet.
    fn discard(&mut self, ino: u64, (from, end): (u64, u64)) {
        let mut changes = Changes::default();
        self.residency.carve(ino, from, end, &mut changes);
        self.log.append(0, &Body::Unbind { ino, from, end });
        for piece in &changes.moved {
            self.log.append(0, &Body::Move { ino, piece: *piece });
        }
        for piece in changes.removed.iter().filter(|piece| u64::from(piece.file_block) >= end) {
            let (from, end) = (piece.file_block.into(), piece.end());
            self.log.append(0, &Body::Unbind { ino, from, end });
        }
        self.residency.forget_if_empty(ino);
    }

    /// Drops pieces that the SSD does not have (the paper's rule) and pieces that share a block.
    fn drop_unusable(&mut self, reader: &mut Reader) {
        let (mut claimed, mut disputed) = (self.bits_of_blocks(), self.bits_of_blocks());
        for piece in self.residency.all().flat_map(|found| found.pieces.iter()) {
            let blocks = piece.at..piece.at + piece.len();
            if claimed.any(blocks.clone()) {
                let twice = blocks.clone().filter(|block| claimed.get(*block));
                twice.for_each(|block| disputed.set(block));
            }
            claimed.set_range(blocks);
        }
        let all = |wanted: &dyn Fn(&Piece) -> bool| -> Vec<(Piece, u64)> {
            let pieces =
                self.residency.all().flat_map(|found| found.pieces.iter().map(move |p| (p, found.ino)));
            let mut found: Vec<_> = pieces.filter(|(piece, _)| wanted(piece)).collect();
            found.sort_unstable_by_key(|(piece, ino)| (piece.at, *ino, piece.file_block));
            found
        };
        let unwritten = all(&|piece| !piece.state().on_ssd());
        let is_shared = |piece: &Piece| disputed.any(piece.at..piece.at + piece.len());
        let shared = if disputed.is_empty() { Vec::new() } else { all(&is_shared) };
        let both = [(unwritten, "were not written to the SSD"), (shared, "share a block with another")];
        for (pieces, why) in both.into_iter().filter(|(pieces, _)| !pieces.is_empty()) {
            reader.notes.push(format!("{} extents of files {why} and are dropped", pieces.len()));
            for (piece, ino) in pieces {
                self.discard(ino, (piece.file_block.into(), piece.end()));
            }
        }
    }

    /// A set for all blocks of the sections.
    fn bits_of_blocks(&self) -> Bits {
        Bits::new(self.data.iter().map(|data| data.section.range().end).max().unwrap_or(0))
    }

    /// Reads the checksums of what is bound, as far as memory has room, and those of what the disk may not have; takes
    /// those of the log; drops what has none.
    fn load_sums(
        &mut self,
        reader: &mut Reader,
        records: &[record::Read],
        lost: &mut Option<String>,
    ) -> Result<()> {
        let mut damaged = Vec::new();
        for section in 0..self.data.len() {
            damaged.push(self.read_sums(reader, section)?);
        }
        let mut known = FxHashSet::default();
        let any_damaged = damaged.iter().any(|sectors| !sectors.is_empty());
        for body in records {
            let Body::Bind { piece, sums, .. } = body else { continue };
            let Some(section) = self.section_of(piece.at).filter(|_| self.is_in_section(piece)) else {
                continue;
            };
            let sums = sums.chunks_exact(4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]));
            self.data[section].set_sums(piece.at, sums);
            if any_damaged {
                known.extend(piece.at..piece.at + piece.len());
            }
        }
        if any_damaged {
            self.drop_without_sums(reader, &damaged, &known, lost);
        }
        Ok(())
    }

    /// Reads the sectors of a section's checksum table that something bound needs; the damaged ones.
    fn read_sums(&mut self, reader: &mut Reader, section: usize) -> Result<Bits> {
        let room = self.cache_room().saturating_sub(self.residency.inodes.heap_bytes()) / 2;
        let data = &mut self.data[section];
        let range = data.section.range();
        let mut needed = Bits::new((range.end - range.start).div_ceil(SUMS_PER_SECTOR));
        for piece in self.residency.all().flat_map(|found| found.pieces.iter()) {
            if range.contains(&piece.at) {
                let start = piece.at - range.start;
                needed.set_range(start / SUMS_PER_SECTOR..(start + piece.len()).div_ceil(SUMS_PER_SECTOR));
            }
        }
        sums::keep_first(&mut needed, room / self.superblock.layout.sections.len());
        // Damage of those that the disk may not have is to be known now.
        for piece in self.residency.nodes().flat_map(|found| found.pieces.iter()) {
            if range.contains(&piece.at) && piece.state() == CopyState::Ssd {
                let start = piece.at - range.start;
                needed.set_range(start / SUMS_PER_SECTOR..(start + piece.len()).div_ceil(SUMS_PER_SECTOR));
            }
        }
        let mut damaged = Bits::new((range.end - range.start).div_ceil(SUMS_PER_SECTOR));
        let start = self.superblock.layout.sections[section].sums;
        reader.sectors(start, &needed, |sector, payload| {
            let Some(payload) = payload else { return damaged.set(sector) };
            data.sums.fill(sector, payload);
        })?;
        Ok(damaged)
    }

    fn drop_without_sums(
        &mut self,
        reader: &mut Reader,
        damaged: &[Bits],
        known: &FxHashSet<u32>,
        lost: &mut Option<String>,
    ) {
        let trimmed = self.log.trimmed();
        let (mut gone, mut only_here) = (Vec::new(), 0);
        for node in self.residency.all() {
            for piece in node.pieces.iter() {
                let section = self.section_of_own(piece.at);
                let first = self.data[section].section.range().start;
                let without = |block: &u32| {
                    let at = piece.at + block;
                    damaged[section].get((at - first) / SUMS_PER_SECTOR) && !known.contains(&at)
                };
                let before = gone.len();
                let blocks = (0..piece.len()).filter(without);
                gone.extend(blocks.map(|block| (node.ino, u64::from(piece.file_block) + u64::from(block))));
                if piece.state() == CopyState::Ssd && !tag_reached(piece.tag, trimmed) {
                    only_here += gone.len() - before;
                }
            }
        }
        for (data, sectors) in self.data.iter_mut().zip(damaged) {
            sectors.iter().for_each(|sector| data.dirty_sums.set(sector / SECTORS_PER_BLOCK));
        }
        if !gone.is_empty() {
            let note = format!("checksums are damaged; {} blocks without one are dropped", gone.len());
            if only_here > 0 {
                lost.get_or_insert_with(|| note.clone());
            }
            reader.notes.push(note);
        }
        for (ino, block) in gone {
            self.discard(ino, (block, block + 1));
        }
    }

    /// Notes the slots that hold something in a table that does not count any more.
    fn wipe_slots(&mut self, reader: &mut Reader) -> Result<()> {
        let layout = self.superblock.layout.clone();
        let slots = &mut self.residency.slots;
        reader.slots(&layout, layout.slot_count, |number, read| {
            if !matches!(read, Ok(None)) {
                slots.raise_high(number + 1);
                slots.changed(number);
            }
        })
    }

    /// Builds the allocator and the queues from what is bound.
    fn adopt(&mut self) {
        for head in 0..self.residency.slots.high() {
            let Some(found) = self.residency.at(head) else { continue };
            let (ino, pieces) = (found.ino, found.pieces.iter().collect::<SmallVec<[Piece; 1]>>());
            for piece in pieces {
                let section = self.section_of_own(piece.at);
                self.data[section].section.adopt(piece.at, piece.len());
                self.queues.enter(section as u8, head);
                if piece.state() == CopyState::Ssd {
                    let op = self.op_of(&piece);
                    self.fresh.push_back(UncommittedBinding {
                        op,
                        ino,
                        from: piece.file_block.into(),
                        end: piece.end(),
                    });
                }
            }
        }
    }

    /// The disk may want the inodes of what it does not have.
    fn load_inodes_of_fresh(&mut self, reader: &mut Reader, lost: &mut Option<String>) -> Result<()> {
        let lacks = |head: &u32| self.residency.inodes.get(*head).is_none();
        let fresh =
            self.residency.nodes().filter(|found| found.pieces.iter().any(|p| p.state() == CopyState::Ssd));
        let mut heads: Vec<u32> = fresh.map(|found| found.head).filter(lacks).collect();
        heads.sort_unstable();
        let (layout, mut damaged) = (self.superblock.layout.clone(), 0);
        reader.slots_in(&layout, heads.into_iter(), |head, read| match read {
            Ok(Some(Slot { inode: Some(inode), .. })) => self.residency.inodes.set(head, inode),
            _ => damaged += 1,
        })?;
        if damaged > 0 {
            let note = format!("{damaged} inodes on the SSD are damaged, of which the disk may not have all");
            lost.get_or_insert_with(|| note.clone());
            reader.notes.push(note);
        }
        Ok(())
    }

    fn note_memory(&self, reader: &mut Reader) {
        if !self.has_memory(0) {
            reader.notes.push(format!(
                "what is cached on the SSD needs more memory than the limit of {}; as the SSD is used, the files \
                 read longest ago are evicted (memory= sets the limit)",
                show_size(self.memory_limit as u64)
            ));
        }
    }

    /// The duplicated inode, as of the last bind, read from `device` if it is not in memory: for tools without anything
    /// else to do meanwhile.
    ///
    /// # Errors
    /// Those of the device.
    pub fn read_dup_inode(&self, device: &dyn BlockDevice, ino: Ino) -> Result<Option<DupInode>> {
        let Some(head) = self.residency.head_of(ino.0) else { return Ok(None) };
        let mut found = self.residency.inodes.get(head).copied();
        if found.is_none() {
            let mut reader = Reader::new(device, self.seal.clone(), Vec::new());
            reader.slots_in(&self.superblock.layout, [head].into_iter(), |_, read| {
                found = read.ok().flatten().filter(|slot| slot.ino == ino.0).and_then(|slot| slot.inode);
            })?;
        }
        Ok(found.as_ref().map(DupInode::from))
    }

    /// Compares the bitmaps with the allocator. `exact`: the log had nothing that explains a difference.
    fn compare_bitmaps(&mut self, reader: &mut Reader, exact: bool) -> Result<()> {
        let (mut differ, mut damaged) = (0u64, 0u64);
        for (data, layout) in self.data.iter_mut().zip(&self.superblock.layout.sections) {
            let section = &mut data.section;
            let all = section.extents();
            for first in (0..all).step_by(STRIPE_EXTENTS as usize) {
                let extents = first..all.min(first + STRIPE_EXTENTS);
                let media = read_marks(reader, layout, section, extents.clone(), &mut damaged)?;
                differ += compare_marks(section, extents, &media);
            }
            section.adopted();
        }
        if damaged > 0 {
            reader.notes.push(format!("{damaged} sectors of extent bitmaps are damaged; they are made anew"));
        } else if exact && differ > 0 {
            reader.notes.push(format!(
                "the bitmaps of {differ} extents disagree with the inode table; they are made anew"
            ));
        }
        Ok(())
    }

    /// Compares the inode bitmap with the slots in use.
    fn compare_inode_bitmap(&mut self, reader: &mut Reader, exact: bool) -> Result<()> {
        let slots = &mut self.residency.slots;
        let mut sectors = Bits::new(slots.count().div_ceil(SLOTS_PER_SECTOR));
        sectors.set_range(0..slots.high().div_ceil(SLOTS_PER_SECTOR));
        let (mut differ, mut damaged) = (0u64, 0u64);
        reader.sectors(self.superblock.layout.inode_bitmap, &sectors, |sector, payload| {
            let first = sector * SLOTS_PER_SECTOR;
            let wrong = |slots: &Slots, payload: &[u8]| {
                let bit = |item: usize| payload[item / 8] >> (item % 8) & 1 == 1;
                let numbers = (first..slots.high()).take(SLOTS_PER_SECTOR as usize);
                numbers.enumerate().filter(|(item, slot)| bit(*item) != slots.is_used(*slot)).count()
            };
            let count = payload.map(|payload| wrong(slots, payload));
            damaged += u64::from(count.is_none());
            differ += count.unwrap_or(0) as u64;
            if count != Some(0) {
                slots.dirty_bitmap().set(first / SLOTS_PER_BITMAP_BLOCK);
            }
        })?;
        if damaged > 0 {
            reader
                .notes
                .push(format!("{damaged} sectors of the inode bitmap are damaged; they are made anew"));
        } else if exact && differ > 0 {
            reader.notes.push(format!("the inode bitmap is wrong for {differ} slots; it is made anew"));
        }
        Ok(())
    }

    /// What the disk may not have, by operation number.
    fn records(&self, operations: Vec<(u64, Bytes)>) -> Vec<Record> {
        let operation = |(op, payload)| Record { op, body: RecordBody::Operation(payload) };
        let mut records: Vec<Record> = operations.into_iter().map(operation).collect();
        let pieces =
            self.residency.nodes().flat_map(|node| node.pieces.iter().map(move |piece| (node, piece)));
        let mut fresh: Vec<_> = pieces.filter(|(_, piece)| piece.state() == CopyState::Ssd).collect();
        fresh.sort_unstable_by_key(|(node, piece)| (node.ino, piece.file_block));
        for (node, piece) in fresh {
            let body = RecordBody::Fresh {
                ino: Ino(node.ino),
                file_block: piece.file_block,
                run: Run { at: SsdBlock(piece.at.into()), len: piece.len() },
                inode: self.dup_inode(Ino(node.ino)).unwrap_or_default(),
            };
            records.push(Record { op: self.op_of(&piece), body });
        }
        records.sort_by_key(|record| record.op);
        records
    }
}

/// Reads the marks that the bitmaps have for a stretch of extents; parts in damaged sectors are as free.
fn read_marks(
    reader: &mut Reader,
    layout: &SectionLayout,
    section: &mut Section,
    extents: Range<u32>,
    damaged: &mut u64,
) -> Result<MarkTable> {
    let count = extents.end - extents.start;
    let mut media = MarkTable::new(section.shape(), count);
    let mut sectors = Bits::new(section.extents().div_ceil(EXTENTS_PER_SECTOR));
    sectors.set_range(extents.start / EXTENTS_PER_SECTOR..extents.end.div_ceil(EXTENTS_PER_SECTOR));
    for part in 0..section.shape().parts() {
        let start = layout.bitmaps + u64::from(part) * layout.bitmap_bytes;
        reader.sectors(start, &sectors, |sector, payload| {
            let Some(payload) = payload else {
                *damaged += 1;
                return section.dirty().set(sector * EXTENTS_PER_SECTOR / EXTENTS_PER_BITMAP_BLOCK);
            };
            let first = sector * EXTENTS_PER_SECTOR - extents.start;
            for (extent, marks) in in_use(payload).map(|(item, marks)| (first + item, marks)) {
                if extent < count {
                    media.set(extent, Marks(media.get(extent).0 | marks << (2 * part)));
                }
            }
        })?;
    }
    Ok(media)
}

/// The items of a sector of a bitmap that are not free, and their marks.
fn in_use(payload: &[u8]) -> impl Iterator<Item = (u32, u64)> {
    let bytes = (0u32..).zip(payload).filter(|(_, byte)| **byte != 0);
    bytes.flat_map(|(at, byte)| (0..4).map(move |item| (at * 4 + item, u64::from(byte >> (item * 2) & 3))))
}

/// Compares the marks of the media for the extents from `first` on; how many are wrong.
fn compare_marks(section: &mut Section, extents: Range<u32>, media: &MarkTable) -> u64 {
    let (mut differ, step) = (0, media.chunk_extents());
    for start in extents.clone().step_by(step as usize) {
        let end = extents.end.min(start + step);
        if media.chunk_is_clean(start - extents.start) && section.is_clean(start..end) {
            continue;
        }
        let wrong = |extent: &u32| !section.compare(*extent, media.get(extent - extents.start));
        differ += (start..end).filter(wrong).count() as u64;
    }
    differ
}
