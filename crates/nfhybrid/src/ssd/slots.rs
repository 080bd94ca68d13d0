//! Which slots of the inode table are whose, and what files of one piece have in theirs.
//!
//! Almost every file on the SSD is one run of blocks from its first on that both halves have. Its head slot says
//! all there is to say of it in ten bytes: the inode's number, the SSD block, the length. Everything else is a
//! [`Node`](super::residency::Node), whose number stands in the block's place.
//!
//! ```text
//!                 ino (4)           at (4)             length (14 bits), kind (2)
//! free            0                 0                  0
//! one piece       inode number      first SSD block    its blocks
//! node            low 32 bits       the node's number  entries in the slot
//! overflow        0                 head slot          entries in the slot
//! ```
//!
//! An entry that an operation unbinds is there again for a mount that does not have the operation, beside what was bound since and
//! counts whatever happens. So its place in the slot stays taken until that is settled ([`Slots::entry_waits`]): a mount finds room
//! for both.
//!
//! Memory: 8 bytes for each 409 slots of the table, and a page (10 bytes a slot) for each of these stretches with a
//! slot in use. Slots are taken from the lowest on, so stretches fill up.

use super::Cause;
use super::bits::{Bits, Pool};
use super::pages::Page;
use super::sector::{SECTOR_PAYLOAD, SECTORS_PER_BLOCK};
use super::unsettled::Last;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use zerocopy::FromZeros;

/// Slots whose bits share one 4 KiB block of the inode bitmap.
pub(super) const SLOTS_PER_BITMAP_BLOCK: u32 = SECTORS_PER_BLOCK * SECTOR_PAYLOAD as u32 * 8;

/// A bind may need so many slots: for what it binds, and for the rest of a piece that it cuts in two. (A new inode cuts none, and
/// what it binds is in its own slot.)
pub(super) const SLOTS_OF_A_BIND: u32 = 2;

/// The longest piece that a slot holds by itself, in blocks.
pub(super) const ONE_BLOCKS_MAX: u32 = (1 << 14) - 1;

/// As many as fit into a page.
const CHUNK_SLOTS: u32 = 409;

#[derive(Debug, FromZeros)]
struct Chunk {
    ino: [u32; CHUNK_SLOTS as usize],
    at: [u32; CHUNK_SLOTS as usize],
    len_kind: [u16; CHUNK_SLOTS as usize],
    in_use: u16,
}

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Nothing.
    Free,
    /// Inode `ino` has `len` blocks from its first on, at SSD block `at`, on both halves.
    One { ino: u32, at: u32, len: u32 },
    /// The head slot of a node.
    Head { node: u32 },
    /// A further slot of the inode with this head slot.
    Overflow { head: u32 },
}

const ONE: u16 = 1;
const HEAD: u16 = 2;
const OVERFLOW: u16 = 3;

/// See the file's documentation.
#[derive(Debug)]
pub(super) struct Slots {
    chunks: Vec<Option<Page<Chunk>>>,
    held: usize,
    pub(super) free: Pool,
    count: u32,
    /// Slots that are free once what took their entries away is settled: until then a mount may find them in use.
    released: VecDeque<(Last, u32)>,
    /// Entries that left their slots, in order: why, and the slot. Those that wait for the disk are by themselves, so that the others
    /// do not wait for them.
    waiting: [VecDeque<(Cause, u32)>; 2],
    /// How many of these each slot has.
    waiting_in: FxHashMap<u32, u8>,
    /// Binds to inodes of which a commit unbinds something: without it a bind may lie in the middle of what is there again, which is
    /// an entry more, and perhaps a slot. So many free slots are left alone.
    owed: VecDeque<Cause>,
    /// Free slots that new inodes may not take: cutting pieces of old ones must go on.
    reserve: u32,
    pub(super) head_entries: u8,
    pub(super) overflow_entries: u8,
    per_block: u32,
    /// Slots at or after this one were never written.
    high: u32,
    dirty: Bits,
    dirty_bitmap: Bits,
}

fn place(slot: u32) -> (usize, usize) {
    ((slot / CHUNK_SLOTS) as usize, (slot % CHUNK_SLOTS) as usize)
}

impl Slots {
    /// A free table of `count` slots, `per_block` of them in a 4 KiB block.
    pub(super) fn new(count: u32, per_block: u32, head_entries: u8, overflow_entries: u8) -> Slots {
        let mut chunks = Vec::new();
        chunks.resize_with(count.div_ceil(CHUNK_SLOTS) as usize, || None);
        Slots {
            chunks,
            held: 0,
            free: Pool::full(count),
            count,
            released: VecDeque::new(),
            waiting: Default::default(),
            waiting_in: FxHashMap::default(),
            owed: VecDeque::new(),
            reserve: (count / 64).clamp(SLOTS_OF_A_BIND - 1, 1024),
            head_entries,
            overflow_entries,
            per_block,
            high: 0,
            dirty: Bits::new(count.div_ceil(per_block)),
            dirty_bitmap: Bits::new(count.div_ceil(SLOTS_PER_BITMAP_BLOCK)),
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.chunks.len() * size_of::<Option<Page<Chunk>>>()
            + self.held * Page::<Chunk>::BYTES
            + self.free.heap_bytes()
            + self.dirty.heap_bytes()
            + self.dirty_bitmap.heap_bytes()
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn used(&self) -> u32 {
        self.count() - self.free.len()
    }

    /// Slots that new inodes may take.
    pub(super) fn free_for_inodes(&self) -> u32 {
        self.spare().saturating_sub(self.reserve)
    }

    /// Free slots that can be taken.
    pub(super) fn spare(&self) -> u32 {
        self.free.len().saturating_sub(self.owed.len() as u32)
    }

    /// Something was bound to an inode of which this unbinds something.
    pub(super) fn owe(&mut self, cause: Cause) {
        self.owed.push_back(cause);
    }

    pub(super) fn per_block(&self) -> u32 {
        self.per_block
    }

    /// What a slot is used for.
    pub(super) fn get(&self, slot: u32) -> Use {
        let (chunk, index) = place(slot);
        let Some(chunk) = &self.chunks[chunk] else { return Use::Free };
        let (at, len_kind) = (chunk.at[index], chunk.len_kind[index]);
        match len_kind >> 14 {
            ONE => Use::One { ino: chunk.ino[index], at, len: u32::from(len_kind & 0x3fff) },
            HEAD => Use::Head { node: at },
            OVERFLOW => Use::Overflow { head: at },
            _ => Use::Free,
        }
    }

    /// Whether anything is in a slot.
    pub(super) fn is_used(&self, slot: u32) -> bool {
        self.get(slot) != Use::Free
    }

    /// The head slot of the inode that a slot belongs to.
    pub(super) fn head_of(&self, slot: u32) -> Option<u32> {
        match self.get(slot) {
            Use::Free => None,
            Use::One { .. } | Use::Head { .. } => Some(slot),
            Use::Overflow { head } => Some(head),
        }
    }

    /// The low 32 bits of the number of the inode with this head slot.
    pub(super) fn ino_low(&self, slot: u32) -> u32 {
        let (chunk, index) = place(slot);
        self.chunks[chunk].as_ref().map_or(0, |chunk| chunk.ino[index])
    }

    fn chunk_of(&mut self, slot: u32) -> (&mut Chunk, usize) {
        let (number, index) = place(slot);
        let place = &mut self.chunks[number];
        self.held += usize::from(place.is_none());
        (place.get_or_insert_with(Page::zeroed), index)
    }

    fn put(&mut self, slot: u32, ino: u32, at: u32, len_kind: u16) {
        let (chunk, index) = self.chunk_of(slot);
        chunk.in_use += u16::from(chunk.len_kind[index] == 0);
        (chunk.ino[index], chunk.at[index], chunk.len_kind[index]) = (ino, at, len_kind);
    }

    /// The slot is the head slot of a node, with so many entries.
    pub(super) fn set_head(&mut self, slot: u32, ino: u64, node: u32, entries: u8) {
        self.put(slot, ino as u32, node, HEAD << 14 | u16::from(entries));
    }

    /// The slot holds the one piece of an inode: [`Use::One`].
    pub(super) fn set_one(&mut self, slot: u32, ino: u32, at: u32, len: u32) {
        self.put(slot, ino, at, ONE << 14 | len as u16);
    }

    /// Takes a slot, which is out of the free ones, as a further one of the inode with head slot `head`.
    pub(super) fn take_overflow(&mut self, slot: u32, head: u32) {
        self.put(slot, 0, head, OVERFLOW << 14);
        self.taken(slot);
    }

    /// A slot, which is out of the free ones, was given its use.
    pub(super) fn taken(&mut self, slot: u32) {
        self.high = self.high.max(slot + 1);
        self.changed(slot);
    }

    /// Entries in a slot of a node.
    pub(super) fn entries(&self, slot: u32) -> u8 {
        let (chunk, index) = place(slot);
        self.chunks[chunk].as_ref().map_or(0, |chunk| (chunk.len_kind[index] & 0xff) as u8)
    }

    /// A slot of a node has one entry more.
    pub(super) fn entry_came(&mut self, slot: u32) {
        let (chunk, index) = self.chunk_of(slot);
        chunk.len_kind[index] += 1;
        self.touch(slot);
    }

    /// A slot of a node has one entry less.
    pub(super) fn entry_went(&mut self, slot: u32) {
        let (chunk, index) = self.chunk_of(slot);
        chunk.len_kind[index] -= 1;
        self.touch(slot);
    }

    /// Entries that a slot of a node has room for.
    pub(super) fn room(&self, slot: u32) -> u8 {
        let all = match self.get(slot) {
            Use::Overflow { .. } => self.overflow_entries,
            _ => self.head_entries,
        };
        let waiting = self.waiting_in.get(&slot).copied().unwrap_or(0);
        all.saturating_sub(self.entries(slot) + waiting)
    }

    /// An entry that left a slot is there again for a mount that does not have what made it leave.
    pub(super) fn entry_waits(&mut self, slot: u32, cause: Cause) {
        self.waiting[usize::from(cause.on_disk)].push_back((cause, slot));
        *self.waiting_in.entry(slot).or_default() += 1;
    }

    /// The place of what waited for what is settled can be taken.
    fn free_entries(&mut self, is_settled: impl Fn(Cause) -> bool) -> SmallVec<[u32; 4]> {
        let mut with_room = SmallVec::new();
        for waiting in &mut self.waiting {
            while let Some((_, slot)) = waiting.pop_front_if(|(cause, _)| is_settled(*cause)) {
                with_room.push(slot);
                if let Some(count) = self.waiting_in.get_mut(&slot) {
                    *count -= 1;
                    if *count == 0 {
                        self.waiting_in.remove(&slot);
                    }
                }
            }
        }
        with_room
    }

    /// Gives a slot back, which is free once all of its inode is settled; at once where there is nothing to wait for.
    pub(super) fn release(&mut self, slot: u32, last: Last) {
        let (number, _) = place(slot);
        let (chunk, index) = self.chunk_of(slot);
        (chunk.ino[index], chunk.at[index], chunk.len_kind[index]) = (0, 0, 0);
        chunk.in_use -= 1;
        if chunk.in_use == 0 {
            self.chunks[number] = None;
            self.held -= 1;
        }
        match last.is_none() {
            true => self.free.insert(slot),
            false => self.released.push_back((last, slot)),
        }
        self.changed(slot);
    }

    /// Frees what waited for what is settled, in order; the slots with a place that can be taken now.
    pub(super) fn free_settled(&mut self, is_settled: impl Fn(Cause) -> bool) -> SmallVec<[u32; 4]> {
        let with_room = self.free_entries(&is_settled);
        while self.owed.pop_front_if(|cause| is_settled(*cause)).is_some() {}
        while let Some((_, slot)) = self.released.pop_front_if(|(last, _)| !last.waits(&is_settled)) {
            self.free.insert(slot);
        }
        with_room
    }

    /// Bytes that what waits takes.
    pub(super) fn released_bytes(&self) -> usize {
        self.released.capacity() * size_of::<(Last, u32)>()
            + self.waiting.iter().map(VecDeque::capacity).sum::<usize>() * size_of::<(Cause, u32)>()
            + self.owed.capacity() * size_of::<Cause>()
            + self.waiting_in.capacity() * (size_of::<(u32, u8)>() + 1)
    }

    /// Whether a slot waits for what released it.
    #[cfg(test)]
    pub(super) fn is_released(&self, slot: u32) -> bool {
        self.released.iter().any(|(_, released)| *released == slot)
    }

    /// The head slots, ascending.
    pub(super) fn heads(&self) -> impl Iterator<Item = u32> + '_ {
        let chunks = (0u32..).zip(&self.chunks).filter_map(|(number, chunk)| Some((number, chunk.as_ref()?)));
        chunks.flat_map(|(number, chunk)| {
            let kinds = (0u32..).zip(&chunk.len_kind);
            let heads = kinds.filter(|(_, kind)| matches!(**kind >> 14, ONE | HEAD));
            heads.map(move |(index, _)| number * CHUNK_SLOTS + index)
        })
    }

    /// Blocks of the table with slots that changed since this was last taken.
    pub(super) fn dirty(&mut self) -> &mut Bits {
        &mut self.dirty
    }

    /// Whether a block of the table has slots that changed since [`Slots::dirty`] was last taken.
    pub(super) fn is_dirty(&self, block: u32) -> bool {
        self.dirty.get(block)
    }

    /// How many blocks of the table and of the inode bitmap changed.
    pub(super) fn dirty_blocks(&self) -> usize {
        self.dirty.len() + self.dirty_bitmap.len()
    }

    /// Blocks of the inode bitmap that changed since this was last taken.
    pub(super) fn dirty_bitmap(&mut self) -> &mut Bits {
        &mut self.dirty_bitmap
    }

    /// The number of the first slot that was never used. Slots are taken from the lowest on, so that a
    /// mount reads no more of the table than was ever in use at once.
    pub(super) fn high(&self) -> u32 {
        self.high
    }

    /// Everything is on the media as it is here.
    pub(super) fn settled(&mut self) {
        self.dirty.take();
        self.dirty_bitmap.take();
    }

    /// Slots below `high` were used at some time.
    pub(super) fn raise_high(&mut self, high: u32) {
        self.high = self.high.max(high.min(self.count()));
    }

    /// Has the slot written again at the next checkpoint.
    pub(super) fn touch(&mut self, slot: u32) {
        self.dirty.set(slot / self.per_block);
    }

    /// A slot was taken or freed.
    pub(super) fn changed(&mut self, slot: u32) {
        self.touch(slot);
        self.dirty_bitmap.set(slot / SLOTS_PER_BITMAP_BLOCK);
    }
}
