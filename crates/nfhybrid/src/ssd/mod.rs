//! The SSD half of nfhybrid: its format, its allocator, what of each file is on it, and its log.
//!
//! [`Ssd`] is all of it in memory, under its owner's lock. It does no I/O after [`Ssd::open`]: it says what is
//! to be written ([`LogWrite`], [`Checkpoint`], superblocks), the owner writes without holding the lock, and
//! reports back. The format is in `docs/format-ssd.md`.
//!
//! # What it promises
//!
//! - **Nothing bound points at a block with other contents**, whatever was torn or lost, as long as the
//!   owner keeps the order below. What is damaged is dropped and named in [`Opened::notes`].
//! - **What is durable stays**: a binding whose log group is durable is there after a power cut, unless it
//!   was replaced, unbound, or its table blocks are damaged.
//! - **Blocks are not reused early**: what is unbound can be allocated again only when the log says so durably.
//!
//! # The order the owner keeps
//!
//! 1. Data goes to allocated blocks before they are bound. What makes a [`LogWrite`] with `binds` durable is a
//!    flush that begins when it and everything written to bound blocks is complete.
//! 2. Log writes may be under way together; `sealed` is called in their order.
//! 3. A [`Checkpoint`]'s tables are written when all its log writes are durable, then flushed, then
//!    [`Ssd::checkpoint_end`] is called.
//!
//! # Reading order
//!
//! `segment` (the paper's extents and Algorithm 1), `marks`, `table` and `section` (Algorithm 2), `pieces`, `nodes`,
//! `slots`, `index` and `residency` (which block is where), `queue` (replacement), `record`, `log`, `packing`, `scan` (the log), `sector`,
//! `layout`, `superblock`, `slot` (the media), `change` (what binds and unbinds), `pages`, `inodes`, `sums` and `memory`
//! (what is in memory), `checkpoint` and `merge`, `backing`, `replay`, `recover`.

mod backing;
mod bits;
mod change;
mod checkpoint;
mod config;
mod format;
mod group;
mod index;
mod inodes;
mod layout;
mod log;
mod marks;
mod memory;
mod merge;
mod nodes;
mod packing;
mod pages;
mod pieces;
mod queue;
mod reader;
mod record;
mod recover;
mod replay;
mod residency;
mod scan;
mod section;
mod sector;
pub mod segment;
mod slot;
mod slots;
mod status;
mod sums;
mod superblock;
mod table;
mod unsettled;

pub use checkpoint::Checkpoint;
pub use config::{Config, Pairing, SECTION_NAME_MAX, SECTIONS_MAX, SectionConfig};
pub use group::{LogWrite, Token};
pub use memory::{MEMORY_DEFAULT, MEMORY_MIN, Memory};
pub use packing::{Packed, Packing};
pub use recover::{Opened, Record, RecordBody};
pub use scan::LOG_ENDS;
pub use status::{SectionStatus, Status};
pub use sums::Sums;
pub use superblock::FORMAT_VERSION;

use bimetal_base::time::Stamp;
use bimetal_base::units::{Ino, SsdBlock};
use bimetal_media::placed::Lifetimes;
use bits::Bits;
use bytes::Bytes;
use layout::SUMS_PER_BLOCK;
use log::Log;
use pieces::Piece;
use queue::Queues;
use residency::Residency;
use rustc_hash::FxHashSet;
use section::Section;
use sector::Seal;
use smallvec::SmallVec;
use std::collections::VecDeque;
use superblock::Superblock;

/// Adjacent blocks of the SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub at: SsdBlock,
    /// How many.
    pub len: u32,
}

/// The runs of one allocation, in the order the file's blocks go into them.
pub type Runs = SmallVec<[Run; 4]>;

/// Adds blocks to `runs`, to the last run where they go on from it.
fn add_run(runs: &mut Runs, at: u32, len: u32) {
    match runs.last_mut() {
        Some(last) if last.at.0 + u64::from(last.len) == u64::from(at) => last.len += len,
        _ => runs.push(Run { at: SsdBlock(at.into()), len }),
    }
}

/// The paper's `SSD_wr_done`: which halves have the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CopyState {
    /// 00: neither yet. Dropped at a mount.
    Init = 0b00,
    /// 01: the disk; the SSD's copy is not to be used. Dropped at a mount.
    Disk = 0b01,
    /// 10: the SSD only. Never evicted.
    Ssd = 0b10,
    /// 11: both.
    Both = 0b11,
}

impl CopyState {
    /// From the two low bits of `bits`.
    pub fn from_bits(bits: u8) -> CopyState {
        match bits & 3 {
            0 => CopyState::Init,
            1 => CopyState::Disk,
            2 => CopyState::Ssd,
            _ => CopyState::Both,
        }
    }

    /// The SSD has the data.
    pub fn on_ssd(self) -> bool {
        self as u8 & 2 != 0
    }

    /// The disk has the data.
    pub fn on_disk(self) -> bool {
        self as u8 & 1 != 0
    }
}

/// The duplicated inode: what a bind record and the inode table on the SSD hold of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DupInode {
    /// Size in bytes.
    pub size: u64,
    /// Type and permissions, as in ext4's `i_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Distinguishes two uses of one inode number.
    pub generation: u32,
    /// Last access.
    pub atime: Stamp,
    /// Last change of contents.
    pub mtime: Stamp,
    /// Last change of the inode.
    pub ctime: Stamp,
}

/// Where a file block is on the SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The SSD block.
    pub at: SsdBlock,
    /// This file block and the ones after it that lie behind it on the SSD, in the same state.
    pub len: u32,
    /// Which halves have them.
    pub state: CopyState,
}

/// A binding to be made, for [`Ssd::bind`].
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// The first file block.
    pub file_block: u32,
    /// Where its contents and those of the blocks after it lie: allocated, or part of an allocation.
    pub run: Run,
    /// CRC-32C of each block.
    pub sums: &'a [u32],
    /// Which halves have them.
    pub state: CopyState,
    /// The inode, to be duplicated.
    pub inode: &'a DupInode,
}

/// An inode's residency in sum: the paper's `SSD_active` and `SSD_wr_done`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Something of it is on the SSD.
    pub active: bool,
    /// What holds for all of it that is on the SSD; 01 when nothing is.
    pub wr_done: CopyState,
    /// Blocks on the SSD.
    pub blocks: u64,
}

/// The superblock's two copies: to be written in this order, each durably before the next.
pub type SuperblockWrites = [(u64, Bytes); 2];

/// A section with what belongs to it beside the allocator.
#[derive(Debug)]
struct Data {
    section: Section,
    /// CRC-32C of bound blocks, as far as they are in memory.
    sums: sums::SumStore,
    dirty_sums: Bits,
    evict_below: u32,
    evict_to: u32,
    evicted_inodes: u64,
    hits: u64,
    misses: u64,
}

impl Data {
    /// Takes the checksums of bound blocks from `at` on.
    fn set_sums(&mut self, at: u32, sums: impl ExactSizeIterator<Item = u32>) {
        let start = at - self.section.range().start;
        let end = start + sums.len() as u32;
        self.dirty_sums.set_range(start / SUMS_PER_BLOCK..end.div_ceil(SUMS_PER_BLOCK));
        self.sums.set(start, sums);
    }
}

/// Blocks bound in state 10, to be found when the disk has them.
#[derive(Clone, Copy, Debug)]
struct UncommittedBinding {
    op: u64,
    ino: u64,
    from: u64,
    end: u64,
}

/// What the disk says of the SSD's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSide {
    /// What [`Ssd::reached`] said when the disk last stored it; (0, 0) if that is not known.
    pub reached: (u32, u64),
    /// The last operation the disk has.
    pub op: u64,
}

impl Default for DiskSide {
    /// Of a disk that has everything and remembers nothing: all that is in the log counts.
    fn default() -> DiskSide {
        DiskSide { reached: (0, 0), op: u64::MAX }
    }
}

/// What changes residency: an operation's number, 0 if none does, and whether the change counts only once the
/// disk has the operation.
#[derive(Clone, Copy, Debug, Default)]
struct Cause {
    op: u64,
    on_disk: bool,
}

impl Cause {
    fn of(op: u64) -> Cause {
        Cause { op, on_disk: false }
    }
}

/// Blocks that can be allocated again once a batch of the log is durable and what freed them is settled.
#[derive(Clone, Copy, Debug)]
struct Freed {
    batch: u64,
    cause: Cause,
    at: u32,
    len: u32,
}

/// The SSD half. See the module's documentation.
#[derive(Debug)]
pub struct Ssd {
    superblock: Superblock,
    seal: Seal,
    log: Log,
    residency: Residency,
    queues: Queues,
    data: Vec<Data>,
    freed: VecDeque<Freed>,
    fresh: VecDeque<UncommittedBinding>,
    checkpoint: Option<checkpoint::UnderWay>,
    memory_limit: usize,
    /// Bytes the cache may take, whatever the limit.
    cache_max: usize,
    /// Bytes of the cache when it was last looked through.
    cache_seen: usize,
    /// Bytes of a checkpoint's tables, of late.
    tables_seen: usize,
    /// Inodes that were evicted last, in that order, and which of them still stand for what was evicted.
    evicted: (VecDeque<Ino>, FxHashSet<Ino>),
}

/// Evicted inodes that are remembered to be explained.
const EVICTED_MAX: usize = 1000;

/// What a block number that no section has says.
const NO_SECTION: &str = "a block of a data section";

impl Ssd {
    /// The SSD's own UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.superblock.uuid
    }

    /// Which parts of the device are overwritten at the same pace.
    pub fn lifetimes(&self) -> Lifetimes {
        self.superblock.layout.lifetimes()
    }

    /// What ties it to its disk, as of the last superblock.
    pub fn pairing(&self) -> &Pairing {
        &self.superblock.pairing
    }

    /// Whether the last use ended cleanly; `false` from the first [`set_pairing`](Ssd::set_pairing) on.
    pub fn is_clean(&self) -> bool {
        self.superblock.clean
    }

    /// Block size in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.superblock.layout.block_bytes
    }

    /// The configuration it was formatted with (sizes as they came out), to format it again.
    pub fn config(&self) -> Config {
        let (superblock, layout) = (&self.superblock, &self.superblock.layout);
        let block = u64::from(layout.block_bytes);
        let section = |s: &layout::SectionLayout| SectionConfig {
            name: s.name.clone(),
            extent_bytes: u64::from(s.extent_blocks) * block,
            size_bytes: Some(u64::from(s.blocks()) * block),
        };
        Config {
            block_bytes: layout.block_bytes,
            log_bytes: layout.log_bytes,
            flash_block_bytes: (layout.flash_block_bytes != 0).then_some(layout.flash_block_bytes),
            sections: layout.sections.iter().map(section).collect(),
            default_section: superblock.default_section.into(),
            wait: superblock.wait,
            threshold_blocks: layout.threshold_blocks,
            evict_below: superblock.evict_below,
            evict_to: superblock.evict_to,
            slot_bytes: layout.slot_bytes,
            bytes_per_slot: superblock.bytes_per_slot,
        }
    }

    /// The section that takes what no rule sends elsewhere.
    pub fn default_section(&self) -> usize {
        self.superblock.default_section.into()
    }

    /// The section with this name.
    pub fn section_named(&self, name: &str) -> Option<usize> {
        self.superblock.layout.sections.iter().position(|section| section.name == name)
    }

    /// The name of a section.
    pub fn section_name(&self, section: usize) -> Option<&str> {
        self.superblock.layout.sections.get(section).map(|section| section.name.as_str())
    }

    /// The name of the section that a block lies in.
    pub fn section_name_of(&self, at: SsdBlock) -> Option<&str> {
        self.section_name(self.section_of(u32::try_from(at.0).ok()?)?)
    }

    /// Whether an inode is among the last thousand that were evicted since the mount.
    pub fn was_evicted(&self, ino: Ino) -> bool {
        self.evicted.1.contains(&ino)
    }

    /// An inode's number is another file's from now on.
    pub fn forget_evicted(&mut self, ino: Ino) {
        self.evicted.1.remove(&ino);
    }

    fn remember_evicted(&mut self, ino: Ino) {
        let (order, known) = &mut self.evicted;
        if order.len() == EVICTED_MAX
            && let Some(first) = order.pop_front()
        {
            known.remove(&first);
        }
        order.push_back(ino);
        known.insert(ino);
    }

    /// The section a block belongs to.
    fn section_of(&self, at: u32) -> Option<usize> {
        self.data.iter().position(|data| data.section.range().contains(&at))
    }

    /// The section a run allocated by this SSD belongs to.
    fn section_of_own(&self, at: u32) -> usize {
        self.section_of(at).expect(NO_SECTION)
    }

    /// Where a file block is, if it is on the SSD.
    pub fn resident(&self, ino: Ino, file_block: u32) -> Option<Resident> {
        let piece = self.residency.node(ino.0)?.pieces.holding(file_block)?.from(file_block.into());
        Some(Resident { at: SsdBlock(piece.at.into()), len: piece.len(), state: piece.state() })
    }

    /// Whether any of `len` file blocks from `from` on is on the SSD.
    pub fn is_any_resident(&self, ino: Ino, from: u64, len: u64) -> bool {
        let node = self.residency.node(ino.0);
        node.is_some_and(|node| node.pieces.first_in(from, from.saturating_add(len)).is_some())
    }

    /// The first file block at or after `from` that is on the SSD.
    pub fn next_resident(&self, ino: Ino, from: u32) -> Option<u32> {
        let piece = self.residency.node(ino.0)?.pieces.first_in(from.into(), u64::MAX)?;
        Some(piece.file_block.max(from))
    }

    /// The number of data sections.
    pub fn sections(&self) -> usize {
        self.data.len()
    }

    /// Bytes of file data that all sections hold.
    pub fn data_bytes(&self) -> u64 {
        let blocks = |section| u64::from(self.extents(section)) * u64::from(self.extent_blocks(section));
        (0..self.sections()).map(blocks).sum::<u64>() * u64::from(self.block_bytes())
    }

    /// Extents of a section.
    pub fn extents(&self, section: usize) -> u32 {
        self.data[section].section.extents()
    }

    /// Blocks of an extent of a section.
    pub fn extent_blocks(&self, section: usize) -> u32 {
        self.data[section].section.shape().blocks()
    }

    /// The pieces of an inode that are on the SSD, by file block.
    pub fn residents(&self, ino: Ino) -> impl Iterator<Item = (u32, Resident)> + '_ {
        self.residents_as_of(ino).map(|(_, file_block, found)| (file_block, found))
    }

    /// The same, each with the operation as of which it is, at least.
    pub fn residents_as_of(&self, ino: Ino) -> impl Iterator<Item = (u64, u32, Resident)> + '_ {
        let pieces = self.residency.node(ino.0).into_iter().flat_map(|node| node.pieces.iter());
        pieces.map(|piece| {
            let at = SsdBlock(piece.at.into());
            let found = Resident { at, len: piece.len(), state: piece.state() };
            (self.op_of(&piece), piece.file_block, found)
        })
    }

    /// The inodes with blocks on the SSD, in no particular order.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> + '_ {
        self.residency.all().map(|found| Ino(found.ino))
    }

    /// The duplicated inode, as of the last bind, if it is in memory; [`Ssd::read_dup_inode`] reads it otherwise.
    pub fn dup_inode(&self, ino: Ino) -> Option<DupInode> {
        self.residency.inodes.get(self.residency.head_of(ino.0)?).map(DupInode::from)
    }

    /// What of an inode is on the SSD, in sum.
    pub fn summary(&self, ino: Ino) -> Summary {
        let Some(node) = self.residency.node(ino.0) else {
            return Summary { active: false, wr_done: CopyState::Disk, blocks: 0 };
        };
        let done = node.pieces.iter().fold(CopyState::Both as u8, |all, piece| all & piece.state() as u8);
        let blocks = node.pieces.iter().map(|piece| u64::from(piece.len())).sum();
        Summary { active: true, wr_done: CopyState::from_bits(done), blocks }
    }

    /// An inode was read: it goes to the head of its queue's highest level.
    pub fn touch(&mut self, ino: Ino) {
        if let Some(head) = self.residency.head_of(ino.0) {
            self.queues.touch(head);
        }
    }

    /// A read of what belongs into a section was answered from the SSD alone; `hit` false: the disk was needed.
    pub fn note_read(&mut self, section: usize, hit: bool) {
        let data = &mut self.data[section];
        data.hits += u64::from(hit);
        data.misses += u64::from(!hit);
    }

    /// New superblocks with this pairing; the SSD counts as in use from now on.
    pub fn set_pairing(&mut self, pairing: Pairing) -> SuperblockWrites {
        self.new_superblock(pairing, false)
    }

    /// New superblocks that say the SSD was left in order, with everything the log says on the disk and in
    /// the tables. To be written last.
    pub fn mark_clean(&mut self, pairing: Pairing) -> SuperblockWrites {
        self.new_superblock(pairing, true)
    }

    fn new_superblock(&mut self, pairing: Pairing, clean: bool) -> SuperblockWrites {
        self.superblock.pairing = pairing;
        self.superblock.clean = clean;
        self.superblock.generation += 1;
        self.superblock.log_reached = self.superblock.log_reached.max(self.log.durable());
        self.superblock.writes()
    }

    /// Bytes of the device where the log is.
    #[cfg(test)]
    pub(super) fn log_range(&self) -> std::ops::Range<u64> {
        let layout = &self.superblock.layout;
        layout.log..layout.log + layout.log_bytes
    }

    /// Bytes of the device where the inode table is.
    #[cfg(test)]
    pub(super) fn table_range(&self) -> std::ops::Range<u64> {
        let layout = &self.superblock.layout;
        layout.slots..layout.slots + u64::from(layout.slot_count) * u64::from(layout.slot_bytes)
    }

    /// Makes a block of the inode table at this offset one of free slots.
    #[cfg(test)]
    pub(super) fn free_slots(&self, offset: u64, block: &mut [u8]) {
        let size = self.superblock.layout.slot_bytes as usize;
        for (at, slot) in (offset..).step_by(size).zip(block.chunks_exact_mut(size)) {
            slot::write_free(slot, at, &self.seal);
        }
    }

    /// The full number of the operation that bound a piece: it may be after the last of a log whose end is damaged.
    fn op_of(&self, piece: &Piece) -> u64 {
        let last = self.log.last_op();
        last.saturating_add_signed((piece.tag.wrapping_sub(last as u32) as i32).into())
    }
}

/// Whether a tag is that of an operation up to `op`. Live operations are never 2^31 numbers apart.
fn tag_reached(tag: u32, op: u64) -> bool {
    tag.wrapping_sub(op as u32) as i32 <= 0
}

#[cfg(test)]
mod tests;
