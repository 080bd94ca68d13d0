//! How much memory the SSD half takes, and what goes when that is too much.
//!
//! What must be in memory, for a read and a bind never wait for a table: the map of what is bound ([`super::residency`],
//! [`super::slots`], [`super::index`]), the allocator ([`super::section`]) and the queues. It grows with the files on
//! the SSD. When it would take more than the limit, files are evicted as when the inode table is full, and a new one
//! finds no room. What remains to the limit is a cache of checksums and duplicated inodes that the tables on the SSD
//! have.
//!
//! The limit holds for what the contents need, reckoned from their numbers: the structures give memory back in
//! stretches, so after an eviction they may hold more for a while, until new files fill them.

use super::Ssd;
use super::residency::FILE_BYTES;

/// The limit where none is given, in bytes.
pub const MEMORY_DEFAULT: u64 = 256 << 20;

/// The lowest limit that makes sense, in bytes.
pub const MEMORY_MIN: u64 = 8 << 20;

/// What a file of one piece takes, in bytes: 10 of a slot, 2 of the queue, 9 of the index at most, and 1 to spare.
pub(super) const ONE_PIECE_BYTES: usize = 22;

/// The cache is looked at again when it has grown by so many bytes.
const GROWTH: usize = 256 << 10;

/// Left for what is not counted, the program itself, groups of the log, requests on their way: so much, or five
/// sixteenths of a small limit.
const UNCOUNTED: usize = 10 << 20;

/// Bytes held, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// The limit.
    pub limit_bytes: u64,
    /// All that is held: the sum of the others.
    pub used_bytes: u64,
    /// What is bound where: slots, index, nodes and pieces.
    pub map_bytes: u64,
    /// The replacement queues.
    pub queue_bytes: u64,
    /// Marks, bits and the table of extents.
    pub allocator_bytes: u64,
    /// Duplicated inodes.
    pub inode_bytes: u64,
    /// Checksums.
    pub sum_bytes: u64,
    /// What waits for the log or the disk.
    pub waiting_bytes: u64,
}

impl Ssd {
    /// Sets how many bytes the SSD half may take, at least [`MEMORY_MIN`]. What exceeds it goes as it can be evicted.
    #[cfg(test)]
    pub fn set_memory_limit(&mut self, bytes: u64) {
        self.memory_limit = bytes as usize;
        self.cache_seen = 0;
        self.keep_to_memory();
    }

    /// Bytes held now.
    pub fn memory(&self) -> Memory {
        let mut memory = Memory {
            limit_bytes: self.memory_limit as u64,
            used_bytes: 0,
            map_bytes: self.residency.heap_bytes() as u64,
            queue_bytes: self.queues.heap_bytes() as u64,
            allocator_bytes: self.allocator_bytes() as u64,
            inode_bytes: self.residency.inodes.heap_bytes() as u64,
            sum_bytes: self.data.iter().map(|data| data.sums.heap_bytes() as u64).sum(),
            waiting_bytes: self.waiting_bytes() as u64,
        };
        let fixed = memory.map_bytes + memory.queue_bytes + memory.allocator_bytes + memory.waiting_bytes;
        memory.used_bytes = fixed + memory.inode_bytes + memory.sum_bytes;
        memory
    }

    /// Bytes held now, the cache apart.
    fn held_bytes(&self) -> usize {
        self.residency.heap_bytes() + self.queues.heap_bytes() + self.allocator_bytes() + self.waiting_bytes()
    }

    fn cache_bytes(&self) -> usize {
        let sums: usize = self.data.iter().map(|data| data.sums.heap_bytes()).sum();
        sums + self.residency.inodes.heap_bytes()
    }

    fn allocator_bytes(&self) -> usize {
        self.data.iter().map(|data| data.section.heap_bytes() + data.dirty_sums.heap_bytes()).sum()
    }

    fn waiting_bytes(&self) -> usize {
        self.freed.capacity() * size_of::<super::Freed>()
            + self.fresh.capacity() * size_of::<super::UncommittedBinding>()
            + self.residency.unsettled.heap_bytes()
            + self.residency.slots.released_bytes()
            + self.log.waiting_bytes() as usize
    }

    /// What the contents need, the cache apart.
    fn needed_bytes(&self) -> usize {
        self.residency.len() * ONE_PIECE_BYTES
            + self.residency.node_bytes()
            + self.allocator_bytes()
            + self.waiting_bytes()
    }

    /// Bytes of memory that `inodes` more would lack.
    fn lacking_bytes(&self, inodes: u32) -> usize {
        (self.needed_bytes() + inodes as usize * FILE_BYTES).saturating_sub(self.memory_limit)
    }

    /// Whether memory has room for so many more inodes.
    pub(super) fn has_memory(&self, inodes: u32) -> bool {
        self.lacking_bytes(inodes) == 0
    }

    /// How many inodes to evict so that memory has room for so many more, and some to spare.
    pub(super) fn lacking_for_memory(&self, inodes: u32) -> usize {
        match self.lacking_bytes(inodes) {
            0 => 0,
            lacking => (lacking + self.memory_limit / 64) / ONE_PIECE_BYTES,
        }
    }

    /// Bytes that the cache and a checkpoint's tables may have.
    fn spare_bytes(&self) -> usize {
        let uncounted = UNCOUNTED.min(self.memory_limit / 16 * 5);
        self.memory_limit.saturating_sub(self.needed_bytes().max(self.held_bytes()) + uncounted)
    }

    /// Bytes that the cache may have.
    pub(super) fn cache_room(&self) -> usize {
        let tables = self.table_bytes().max(self.tables_seen);
        self.spare_bytes().saturating_sub(tables).min(self.cache_max)
    }

    /// Whether what changed since the last checkpoint takes so much of what the map leaves that it is time for one.
    pub fn changes_fill_memory(&self) -> bool {
        self.table_bytes() > (self.spare_bytes() / 2).max(self.memory_limit / 16).max(GROWTH)
    }

    /// Lets go of what the SSD has when the cache is larger than memory has room for.
    pub(super) fn keep_to_memory(&mut self) {
        let (held, room) = (self.cache_bytes(), self.cache_room());
        if held <= room || held <= self.cache_seen + GROWTH.max(room / 32).min(room / 4) {
            return;
        }
        let goal = room - room / 8;
        let inodes = self.residency.inodes.heap_bytes().min(goal / 4);
        let mut store = self.residency.inodes.take();
        store.shrink_to(inodes, |block| !self.slots_are_clean(block));
        self.residency.inodes = store;
        let left = goal.saturating_sub(self.residency.inodes.heap_bytes());
        let all = (self.cache_bytes() - self.residency.inodes.heap_bytes()).max(1);
        for section in 0..self.data.len() {
            let share = self.data[section].sums.heap_bytes() as u128 * left as u128 / all as u128;
            let mut store = std::mem::take(&mut self.data[section].sums);
            store.shrink_to(share as usize, |block| !self.sums_are_clean(section, block));
            self.data[section].sums = store;
        }
        self.cache_seen = self.cache_bytes();
    }
}
