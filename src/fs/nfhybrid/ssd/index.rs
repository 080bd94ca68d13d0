//! From an inode's number to its head slot.
//!
//! Four bytes and one of a hash a place; the number itself is compared in the slot. The table is cut into
//! [`PARTS`] that grow by themselves, so that none of them takes long: at ten million inodes one holds ten thousand.

use hashbrown::HashTable;

/// Parts of the table.
const PARTS: usize = 1024;

/// See the file's documentation.
#[derive(Debug)]
pub(super) struct Index {
    parts: Vec<HashTable<u32>>,
    len: usize,
    heap: usize,
}

fn hash(ino: u64) -> u64 {
    let mixed = (ino ^ ino >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn part(hash: u64) -> usize {
    (hash >> 32) as usize % PARTS
}

impl Index {
    pub(super) fn new() -> Index {
        let parts = std::iter::repeat_with(HashTable::new).take(PARTS).collect();
        Index { parts, len: 0, heap: PARTS * size_of::<HashTable<u32>>() }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.heap
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The head slot of an inode; `number` gives the inode of a head slot.
    pub(super) fn get(&self, ino: u64, number: impl Fn(u32) -> u64) -> Option<u32> {
        let hash = hash(ino);
        self.parts[part(hash)].find(hash, |slot| number(*slot) == ino).copied()
    }

    /// Adds an inode that is not there.
    pub(super) fn insert(&mut self, ino: u64, slot: u32, number: impl Fn(u32) -> u64) {
        let place = hash(ino);
        let table = &mut self.parts[part(place)];
        let before = table.allocation_size();
        table.insert_unique(place, slot, |slot| hash(number(*slot)));
        self.heap = self.heap + table.allocation_size() - before;
        self.len += 1;
    }

    /// Takes an inode with this head slot out.
    pub(super) fn remove(&mut self, ino: u64, slot: u32) {
        let hash = hash(ino);
        if let Ok(found) = self.parts[part(hash)].find_entry(hash, |other| *other == slot) {
            found.remove();
            self.len -= 1;
        }
    }
}
