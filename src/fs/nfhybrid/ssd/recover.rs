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
//! fresh one. Then nothing in the tables counts, and the log says so before anything else.
//!
//! Opening writes nothing; doing it again gives the same.

use super::backing::Backing;
use super::checkpoint::{EXTENTS_PER_SECTOR, SLOTS_PER_SECTOR};
use super::layout::{SUMS_PER_BLOCK, SUMS_PER_SECTOR};
use super::log::Log;
use super::pieces::Piece;
use super::queue::Queues;
use super::reader::Reader;
use super::record::{self, Body};
use super::replay::{Orphan, Replay};
use super::residency::{Changes, Residency, SLOTS_PER_BITMAP_BLOCK, Slots};
use super::scan::scan;
use super::section::{EXTENTS_PER_BITMAP_BLOCK, Section};
use super::sector::{SECTORS_PER_BLOCK, Seal};
use super::segment::Marks;
use super::slot::{self, Entry, Slot};
use super::superblock::Superblock;
use super::{Bits, Data, DiskSide, DupInode, Fresh, Run, Ssd, WrDone, tag_reached};
use crate::Result;
use crate::media::BlockDevice;
use crate::units::{Ino, SsdBlock};
use bytes::Bytes;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;

/// An SSD that was opened.
#[derive(Debug)]
pub struct Opened {
    /// It, ready for use.
    pub ssd: Ssd,
    /// What the log holds for the disk, by operation number.
    pub records: Vec<Record>,
    /// The last operation up to which it holds everything that was promised; see [`Ssd::append_complete`].
    pub complete: u64,
    /// The last operation that the disk was known to have when the log was last written.
    pub disk_had: u64,
    /// What was damaged and dropped, or repaired, in words.
    pub notes: Vec<String>,
    /// What the log has lost of that was durable in it: operations, and so perhaps fsynced data.
    pub lost: Option<String>,
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
    /// [`crate::Error::Corrupt`] without a valid superblock, [`crate::Error::Unsupported`] for another version,
    /// [`crate::Error::Mismatch`] for a device that is cut short. Damage elsewhere is noted, not an error.
    pub fn open(device: &dyn BlockDevice, known: DiskSide) -> Result<Opened> {
        let mut notes = Vec::new();
        let superblock = Superblock::read(device, &mut notes)?;
        let mut reader = Reader::new(device, Seal::new(&superblock.uuid), notes);
        let log = reader.table(superblock.layout.log, superblock.layout.log_bytes)?;
        let layout = superblock.layout.clone();
        layout.tell_lifetimes(device);
        let block_bytes = layout.block_bytes as usize;
        let known = DiskSide { reached: superblock.log_reached.max(known.reached), ..known };
        let mut missing = |backing: Backing| backing.first_missing(device, block_bytes);
        let scanned = scan(&log, layout.log_unit, superblock.log_id, known, &mut missing)?;
        // Nothing in the log explains a difference between tables.
        let exact = scanned.lost.is_none() && scanned.residency.is_empty() && scanned.undone.is_none();
        let (complete, disk_had) = (scanned.position.complete, scanned.position.trimmed);
        let log = Log::new(layout.log_place(), superblock.log_id, scanned.position);
        let mut ssd = Ssd::empty(superblock, log)?;
        let lost = scanned.lost.clone();
        ssd.residency.slots.raise_high(scanned.slots_high);
        match scanned.lost {
            None => {
                let mut replay = ssd.load_slots(&mut reader, exact)?;
                scanned.residency.iter().for_each(|record| replay.play(record));
                ssd.take_over(replay, &mut reader);
                ssd.drop_unusable(&mut reader);
                ssd.load_sums(&mut reader, &scanned.residency)?;
            }
            Some(why) => {
                reader.notes.push(format!("{why}; everything cached on the SSD is dropped"));
                ssd.log.append(0, &Body::Forget);
                ssd.wipe_slots(&mut reader)?;
            }
        }
        if let Some(limits) = scanned.undone {
            ssd.log.append(0, &Body::Undone { limits });
        }
        if scanned.unbacked {
            // The group after the last that counts must never become whole: something goes over it.
            ssd.log.append(0, &Body::RestartBegin);
        }
        ssd.adopt();
        ssd.compare_bitmaps(&mut reader, exact)?;
        ssd.compare_inode_bitmap(&mut reader, exact)?;
        let records = ssd.records(scanned.operations);
        Ok(Opened { ssd, records, complete, disk_had, notes: reader.notes, lost })
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
                sums: vec![0; section.blocks() as usize],
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
            queues: Queues::new(data.len()),
            data,
            freed: VecDeque::new(),
            fresh: VecDeque::new(),
            checkpoint: None,
            superblock,
        })
    }

    /// Reads the slots that were ever used.
    fn load_slots(&mut self, reader: &mut Reader, exact: bool) -> Result<Replay> {
        let layout = self.superblock.layout.clone();
        let high = self.residency.slots.high().min(layout.slot_count);
        let written = self.log.slots_written();
        let (mut replay, mut damaged) = (Replay::default(), 0);
        let mut found: Vec<(u32, Slot)> = Vec::new();
        reader.slots(&layout, high, |number, read| match read {
            Ok(Some(slot)) => found.push((number, slot)),
            Ok(None) => {}
            // What no completed checkpoint wrote may hold anything; the log has all that matters.
            Err(_) => {
                damaged += u32::from(number < written);
                replay.dirty.insert(number);
            }
        })?;
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
        let orphans = replay.orphans.len();
        if damaged > 0 {
            let note = format!("{damaged} slots of the inode table are damaged; what they held is dropped");
            reader.notes.push(note);
        }
        // A checkpoint that was cut short leaves entries without an inode too; the log knows them.
        if orphans > 0 && (damaged > 0 || exact) {
            reader.notes.push(format!("{orphans} extents of files have no inode on the SSD and are dropped"));
        }
        Ok(replay)
    }

    /// Ends the replay: what was recovered is what is bound.
    fn take_over(&mut self, mut replay: Replay, reader: &mut Reader) {
        let trimmed = self.log.trimmed();
        replay.finish_pieces(|piece| tag_reached(piece.tag, trimmed));
        let orphans = std::mem::take(&mut replay.orphans);
        let starts: Vec<u32> = self.data.iter().map(|data| data.section.range().start).collect();
        let placed = replay.finish(&mut self.residency, |_, next| starts.contains(&next.at));
        for (ino, piece) in placed.moved {
            self.log.append(0, &Body::Move { ino, piece });
        }
        if !placed.dropped.is_empty() {
            let count = placed.dropped.len();
            reader
                .notes
                .push(format!("{count} extents of files found no slot of the inode table and are dropped"));
        }
        self.drop_orphans(orphans);
        self.drop_orphans(placed.dropped.iter().map(|(ino, piece)| Orphan::of(*ino, piece)).collect());
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
        let mut all: Vec<(Piece, u64)> = self
            .residency
            .nodes()
            .flat_map(|node| node.pieces.iter().map(|piece| (piece, node.ino)))
            .collect();
        let unwritten: Vec<_> = all.iter().filter(|(piece, _)| !piece.state().on_ssd()).copied().collect();
        all.sort_unstable_by_key(|(piece, ino)| (piece.at, *ino, piece.file_block));
        let mut shared = Vec::new();
        let mut last: Option<(Piece, u64)> = None;
        for one in all {
            let end = |piece: &Piece| u64::from(piece.at) + u64::from(piece.len());
            if let Some(before) = last.filter(|before| end(&before.0) > u64::from(one.0.at)) {
                shared.extend([before, one]);
            }
            last = last.filter(|before| end(&before.0) > end(&one.0)).or(Some(one));
        }
        let both = [(unwritten, "were not written to the SSD"), (shared, "share a block with another")];
        for (pieces, why) in both.into_iter().filter(|(pieces, _)| !pieces.is_empty()) {
            reader.notes.push(format!("{} extents of files {why} and are dropped", pieces.len()));
            for (piece, ino) in pieces {
                self.discard(ino, (piece.file_block.into(), piece.end()));
            }
        }
    }

    /// Reads the checksums of what is bound, then those of the log; drops what has none.
    fn load_sums(&mut self, reader: &mut Reader, records: &[record::Read]) -> Result<()> {
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
            self.drop_without_sums(reader, &damaged, &known);
        }
        Ok(())
    }

    /// Reads the sectors of a section's checksum table that something bound needs; the damaged ones.
    fn read_sums(&mut self, reader: &mut Reader, section: usize) -> Result<Bits> {
        let data = &mut self.data[section];
        let range = data.section.range();
        let mut needed = Bits::new((range.end - range.start).div_ceil(SUMS_PER_SECTOR));
        for piece in self.residency.nodes().flat_map(|node| node.pieces.iter()) {
            if range.contains(&piece.at) {
                let start = piece.at - range.start;
                needed.set_range(start / SUMS_PER_SECTOR..(start + piece.len()).div_ceil(SUMS_PER_SECTOR));
            }
        }
        let mut damaged = Bits::new((range.end - range.start).div_ceil(SUMS_PER_SECTOR));
        let start = self.superblock.layout.sections[section].sums;
        reader.sectors(start, &needed, |sector, payload| {
            let Some(payload) = payload else { return damaged.set(sector) };
            let first = (sector * SUMS_PER_SECTOR) as usize;
            for (to, sum) in data.sums[first..].iter_mut().zip(payload.chunks_exact(4)) {
                *to = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
            }
        })?;
        Ok(damaged)
    }

    fn drop_without_sums(&mut self, reader: &mut Reader, damaged: &[Bits], known: &FxHashSet<u32>) {
        let mut lost = Vec::new();
        for node in self.residency.nodes() {
            for piece in node.pieces.iter() {
                let section = self.section_of_own(piece.at);
                let first = self.data[section].section.range().start;
                let without = |block: &u32| {
                    let at = piece.at + block;
                    damaged[section].get((at - first) / SUMS_PER_SECTOR) && !known.contains(&at)
                };
                let blocks = (0..piece.len()).filter(without);
                lost.extend(blocks.map(|block| (node.ino, u64::from(piece.file_block) + u64::from(block))));
            }
        }
        for (data, sectors) in self.data.iter_mut().zip(damaged) {
            sectors.iter().for_each(|sector| data.dirty_sums.set(sector / SECTORS_PER_BLOCK));
        }
        if !lost.is_empty() {
            reader
                .notes
                .push(format!("checksums are damaged; {} blocks without one are dropped", lost.len()));
        }
        for (ino, block) in lost {
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
        let mut all: Vec<u64> = self.residency.nodes().map(|node| node.ino).collect();
        all.sort_unstable();
        for ino in all {
            let pieces: Vec<Piece> =
                self.residency.node(ino).into_iter().flat_map(|n| n.pieces.iter()).collect();
            for piece in pieces {
                let section = self.section_of_own(piece.at);
                self.data[section].section.adopt(piece.at, piece.len());
                self.queue(ino, section);
                if piece.state() == WrDone::Ssd {
                    let op = self.op_of(&piece);
                    self.fresh.push_back(Fresh { op, ino, from: piece.file_block.into(), end: piece.end() });
                }
            }
        }
    }

    /// Compares the bitmaps with the allocator. `exact`: the log had nothing that explains a difference.
    fn compare_bitmaps(&mut self, reader: &mut Reader, exact: bool) -> Result<()> {
        let (mut differ, mut damaged) = (0u64, 0u64);
        for (data, layout) in self.data.iter_mut().zip(&self.superblock.layout.sections) {
            let section = &mut data.section;
            let mut media = vec![Marks::default(); section.extents() as usize];
            for part in 0..section.shape().parts() {
                let start = layout.bitmaps + u64::from(part) * layout.bitmap_bytes;
                let mut sectors = Bits::new(section.extents().div_ceil(EXTENTS_PER_SECTOR));
                sectors.set_range(0..section.extents().div_ceil(EXTENTS_PER_SECTOR));
                reader.sectors(start, &sectors, |sector, payload| {
                    let Some(payload) = payload else {
                        damaged += 1;
                        return section.dirty().set(sector * EXTENTS_PER_SECTOR / EXTENTS_PER_BITMAP_BLOCK);
                    };
                    let marks = media[(sector * EXTENTS_PER_SECTOR) as usize..].iter_mut();
                    for (item, marks) in marks.take(EXTENTS_PER_SECTOR as usize).enumerate() {
                        marks.0 |= u64::from(payload[item / 4] >> (item % 4 * 2) & 3) << (2 * part);
                    }
                })?;
            }
            let wrong = media.iter().enumerate().filter(|(at, marks)| !section.compare(*at as u32, **marks));
            differ += wrong.count() as u64;
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
                numbers.enumerate().filter(|(item, slot)| bit(*item) != slots.owner(*slot).is_some()).count()
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
        let mut inodes: Vec<_> = self.residency.nodes().collect();
        inodes.sort_unstable_by_key(|node| node.ino);
        for node in inodes {
            for piece in node.pieces.iter().filter(|piece| piece.state() == WrDone::Ssd) {
                let body = RecordBody::Fresh {
                    ino: Ino(node.ino),
                    file_block: piece.file_block,
                    run: Run { at: SsdBlock(piece.at.into()), len: piece.len() },
                    inode: DupInode::from(&node.inode),
                };
                records.push(Record { op: self.op_of(&piece), body });
            }
        }
        records.sort_by_key(|record| record.op);
        records
    }
}
