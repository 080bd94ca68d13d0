//! Checkpoints: bringing the tables on the SSD up to date, so that the log can forget residency records.
//!
//! Tables are written in place, one 4 KiB block or more at a time. All that was logged before the
//! checkpoint began is made durable first; so whatever mixture of old and new sectors a power cut leaves,
//! replaying the log over it gives the state at the end of the log.

use super::bits::Bits;
use super::group::LogWrite;
use super::layout::{SUMS_PER_BLOCK, SUMS_PER_SECTOR};
use super::merge::{Lacking, Merge};
use super::pages::Page;
use super::pieces::Piece;
use super::residency::View;
use super::section::{EXTENTS_PER_BITMAP_BLOCK, Section};
use super::sector::{SECTOR_BYTES, SECTOR_PAYLOAD, Seal, TABLE_BLOCK};
use super::slot::PackedInode;
use super::slots::SLOTS_PER_BITMAP_BLOCK;
use super::sums::is_known;
use super::{Ssd, slot};
use bimetal_base::Result;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub(super) const BLOCK: usize = TABLE_BLOCK as usize;

/// Marks in one sector of a bitmap.
pub(super) const EXTENTS_PER_SECTOR: u32 = (SECTOR_PAYLOAD * 4) as u32;

/// Bits in one sector of the inode bitmap.
pub(super) const SLOTS_PER_SECTOR: u32 = (SECTOR_PAYLOAD * 8) as u32;

/// A block of a table to be written.
pub(super) type Block = Page<[u8; BLOCK]>;

/// What a checkpoint has to write.
#[derive(Debug)]
pub struct Checkpoint {
    /// First: everything logged so far, as from [`Ssd::seal`]; groups already under way come before it.
    pub log: Vec<LogWrite>,
    /// When all of that is durable: table blocks with their device offsets, in any order, best with adjacent ones in one
    /// write; then a flush.
    pub tables: Vec<(u64, Bytes)>,
    /// What is to be added to them by [`Checkpoint::merge`], before they are written.
    pub(super) merges: Vec<Merge>,
    pub(super) seal: Seal,
}

/// Which table blocks are dirty.
#[derive(Debug)]
struct Dirty {
    slots: Bits,
    inode_bitmap: Bits,
    /// For each section: blocks of its bitmaps, blocks of its checksum table.
    sections: Vec<(Bits, Bits)>,
}

impl Dirty {
    fn blocks(&self, parts: impl Iterator<Item = u32>) -> usize {
        let sections = self.sections.iter().zip(parts);
        let of_sections = sections.map(|((marks, sums), parts)| marks.len() * parts as usize + sums.len());
        self.slots.len() + self.inode_bitmap.len() + of_sections.sum::<usize>()
    }
}

/// A checkpoint that began and did not end.
#[derive(Debug)]
pub(super) struct UnderWay {
    /// Records before this batch are in its tables.
    batch: u64,
    slots_high: u32,
    dirty: Dirty,
}

/// Where in a table block of `per_sector` items a sector's item lies: its sector, its place in it.
fn place(item: u32, per_sector: u32) -> (usize, usize) {
    ((item / per_sector) as usize, (item % per_sector) as usize)
}

impl Ssd {
    /// Begins a checkpoint: what to write. One that began and never ended is begun anew.
    ///
    /// # Errors
    /// [`bimetal_base::Error::NoSpace`] when the log has no room for what waits; nothing has changed then.
    pub fn checkpoint_begin(&mut self) -> Result<Checkpoint> {
        let mut log = Vec::new();
        while let Some(write) = self.seal()? {
            log.push(write);
        }
        self.tables_seen = self.table_bytes().max(self.tables_seen / 2);
        let dirty = self.take_dirty();
        let mut writes = Writes::default();
        self.write_bitmaps(&dirty, &mut writes);
        self.write_inode_bitmap(&dirty, &mut writes);
        self.write_slots(&dirty, &mut writes);
        self.write_sums(&dirty, &mut writes);
        let slots_high = self.residency.slots.high();
        self.checkpoint = Some(UnderWay { batch: self.log.batch(), slots_high, dirty });
        Ok(Checkpoint { log, tables: writes.done, merges: writes.merges, seal: self.seal.clone() })
    }

    /// The tables of the checkpoint that began last are written and flushed: residency records from before
    /// it are dead.
    pub fn checkpoint_end(&mut self) {
        if let Some(under_way) = self.checkpoint.take() {
            assert!(self.log.durable_batch() + 1 >= under_way.batch, "the log was to be durable first");
            self.log.checkpointed(under_way.batch, under_way.slots_high);
        }
        self.keep_to_memory();
    }

    /// Bytes that the next checkpoint's tables take while they are written, with those of one that began and did not end.
    pub(super) fn table_bytes(&self) -> usize {
        let sections = self.data.iter().map(|data| data.section.dirty_blocks() + data.dirty_sums.len());
        let parts = self.data.iter().map(|data| data.section.shape().parts());
        let under_way = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.dirty.blocks(parts));
        (self.residency.slots.dirty_blocks() + sections.sum::<usize>() + under_way) * BLOCK
    }

    /// Whether a block of the inode table is as it is on the SSD.
    pub(super) fn slots_are_clean(&self, block: u32) -> bool {
        let under_way = self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.dirty.slots.get(block));
        !under_way && !self.residency.slots.is_dirty(block)
    }

    /// Whether a block of a section's checksum table is.
    pub(super) fn sums_are_clean(&self, section: usize, block: u32) -> bool {
        let under_way = self
            .checkpoint
            .as_ref()
            .is_some_and(|checkpoint| checkpoint.dirty.sections[section].1.get(block));
        !under_way && !self.data[section].dirty_sums.get(block)
    }

    fn take_dirty(&mut self) -> Dirty {
        let (written, per_block) = (self.log.slots_written(), self.superblock.layout.slots_per_block());
        let slots = &mut self.residency.slots;
        // What the next groups say is written is written, used or not.
        for block in written / per_block..slots.high().div_ceil(per_block) {
            if slots.high() > written && self.superblock.free_marks {
                slots.dirty().set(block);
            }
        }
        let mut dirty = Dirty {
            slots: slots.dirty().take(),
            inode_bitmap: slots.dirty_bitmap().take(),
            sections: Vec::new(),
        };
        for data in &mut self.data {
            dirty.sections.push((data.section.dirty().take(), data.dirty_sums.take()));
        }
        if let Some(earlier) = self.checkpoint.take() {
            dirty.slots.add_all(&earlier.dirty.slots);
            dirty.inode_bitmap.add_all(&earlier.dirty.inode_bitmap);
            for (to, from) in dirty.sections.iter_mut().zip(&earlier.dirty.sections) {
                to.0.add_all(&from.0);
                to.1.add_all(&from.1);
            }
        }
        dirty
    }

    /// One bitmap a part; in each, two bits an extent.
    fn write_bitmaps(&self, dirty: &Dirty, writes: &mut Writes) {
        let sections = self.data.iter().zip(&self.superblock.layout.sections).zip(&dirty.sections);
        for ((data, layout), (blocks, _)) in sections {
            for block in blocks.iter() {
                for (part, mut bytes) in (0..).zip(bitmap_blocks(&data.section, block)) {
                    let offset = layout.bitmaps + part * layout.bitmap_bytes + u64::from(block) * TABLE_BLOCK;
                    self.seal.close(offset, &mut bytes[..]);
                    writes.add(offset, bytes);
                }
            }
        }
    }

    /// A bit for each slot in use.
    fn write_inode_bitmap(&self, dirty: &Dirty, writes: &mut Writes) {
        let slots = &self.residency.slots;
        for block in dirty.inode_bitmap.iter() {
            let first = block * SLOTS_PER_BITMAP_BLOCK;
            let mut bytes = Block::zeroed();
            for number in first..slots.high().min(first + SLOTS_PER_BITMAP_BLOCK) {
                let (sector, item) = place(number - first, SLOTS_PER_SECTOR);
                let used = slots.is_used(number);
                bytes[sector * SECTOR_BYTES + item / 8] |= u8::from(used) << (item % 8);
            }
            let offset = self.superblock.layout.inode_bitmap + u64::from(block) * TABLE_BLOCK;
            self.seal.close(offset, &mut bytes[..]);
            writes.add(offset, bytes);
        }
    }

    fn write_slots(&self, dirty: &Dirty, writes: &mut Writes) {
        let layout = &self.superblock.layout;
        let (slots, per_block) = (&self.residency.slots, layout.slots_per_block());
        let mut sorted = FxHashMap::default();
        for block in dirty.slots.iter() {
            let (mut bytes, mut lacking) = (Block::zeroed(), 0u16);
            let offset = layout.slots + u64::from(block) * TABLE_BLOCK;
            for (index, bytes) in bytes.chunks_exact_mut(layout.slot_bytes as usize).enumerate() {
                let number = block * per_block + index as u32;
                let at = offset + index as u64 * u64::from(layout.slot_bytes);
                let Some(found) = slots.head_of(number).and_then(|head| self.residency.at(head)) else {
                    if self.superblock.free_marks {
                        slot::write_free(bytes, at, &self.seal);
                    }
                    continue;
                };
                let pieces = pieces_of_slot(found.ino, found.pieces, number, &mut sorted);
                let section = pieces.first().and_then(|piece| self.section_of(piece.at)).unwrap_or(0);
                let is_head = found.head == number;
                let inode = self.residency.inodes.get(number);
                lacking |= u16::from(is_head && inode.is_none()) << index;
                let content = slot::Content {
                    ino: found.ino,
                    inode: is_head.then_some(inode.unwrap_or(&PackedInode::ZERO)),
                    section: section as u8,
                    pieces: &pieces,
                };
                let address = |block| self.data[self.section_of_own(block)].section.extent_address(block);
                slot::write(bytes, at, &self.seal, &content, address);
            }
            let slot_bytes = layout.slot_bytes as usize;
            writes.add_or_merge(
                offset,
                bytes,
                (lacking != 0).then_some(Lacking::Inodes { slots: lacking, slot_bytes }),
            );
        }
    }

    fn write_sums(&self, dirty: &Dirty, writes: &mut Writes) {
        for ((data, layout), (_, blocks)) in
            self.data.iter().zip(&self.superblock.layout.sections).zip(&dirty.sections)
        {
            for block in blocks.iter() {
                let mut bytes = Block::zeroed();
                let chunk = data.sums.get(block);
                let known = chunk.map_or([0; _], |chunk| chunk.known());
                for (number, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
                    let first = number * SUMS_PER_SECTOR as usize;
                    for (index, to) in (first..).zip(sector[..SECTOR_PAYLOAD].chunks_exact_mut(4)) {
                        if let Some(sum) = chunk.and_then(|chunk| chunk.get(index)) {
                            to.copy_from_slice(&sum.to_le_bytes());
                        }
                    }
                }
                let lives = data.section.live_in(block * SUMS_PER_BLOCK, SUMS_PER_BLOCK);
                let lacks = lives.into_iter().any(|index| !is_known(&known, index));
                let offset = layout.sums + u64::from(block) * TABLE_BLOCK;
                self.seal.close(offset, &mut bytes[..]);
                writes.add_or_merge(offset, bytes, lacks.then(|| Lacking::Sums { known: Box::new(known) }));
            }
        }
    }
}

/// Block `block` of each of a section's bitmaps.
fn bitmap_blocks(section: &Section, block: u32) -> Vec<Block> {
    let mut bitmaps: Vec<Block> = (0..section.shape().parts()).map(|_| Block::zeroed()).collect();
    let first = block * EXTENTS_PER_BITMAP_BLOCK;
    for extent in first..section.extents().min(first + EXTENTS_PER_BITMAP_BLOCK) {
        let mut marks = section.media_marks(extent).0;
        if marks == 0 {
            continue;
        }
        let (sector, item) = place(extent - first, EXTENTS_PER_SECTOR);
        for bytes in &mut bitmaps {
            bytes[sector * SECTOR_BYTES + item / 4] |= (marks as u8 & 3) << (item % 4 * 2);
            marks >>= 2;
        }
    }
    bitmaps
}

/// The pieces of a node with many, by slot; made once a checkpoint.
type Sorted = FxHashMap<u64, Vec<Piece>>;

/// A node with more pieces is sorted by slot instead of searched.
const SEARCH_MAX: usize = 48;

/// The pieces of an inode that one slot holds.
fn pieces_of_slot(ino: u64, pieces: View<'_>, number: u32, sorted: &mut Sorted) -> SmallVec<[Piece; 11]> {
    if pieces.len() <= SEARCH_MAX {
        return pieces.iter().filter(|piece| piece.slot == number).collect();
    }
    let all = sorted.entry(ino).or_insert_with(|| {
        let mut all: Vec<Piece> = pieces.iter().collect();
        all.sort_by_key(|piece| piece.slot);
        all
    });
    let from = all.partition_point(|piece| piece.slot < number);
    all[from..].iter().take_while(|piece| piece.slot == number).copied().collect()
}

/// Table blocks to write.
#[derive(Default)]
struct Writes {
    done: Vec<(u64, Bytes)>,
    merges: Vec<Merge>,
}

impl Writes {
    fn add(&mut self, offset: u64, block: Block) {
        self.done.push((offset, Bytes::from_owner(block)));
    }

    fn add_or_merge(&mut self, offset: u64, bytes: Block, what: Option<Lacking>) {
        match what {
            None => self.add(offset, bytes),
            Some(what) => self.merges.push(Merge { offset, bytes, what }),
        }
    }
}
