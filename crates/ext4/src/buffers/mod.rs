//! The buffer cache: blocks of metadata in memory, found by number, edited in place; and what stands below it, the
//! journal, whose images are newer than the device, and the device.
//!
//! A buffer is *dirty* from its first edit until the running transaction is frozen. Its image then goes
//! into the transaction without a copy; an edit after that copies the block first, so the image never
//! changes. A buffer stays while it is dirty or its image is not in the journal yet; all others make room
//! by second chance (a hand that goes round the slots) once the cache is full.
//!
//! Cost: one hash lookup a block; an edit of a buffer that is already dirty is a lookup and two tests.

mod ahead;
mod misses;

pub use misses::Wanted;

use super::journal::Journal;
use ahead::Ahead;
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bytes::Bytes;
use misses::Misses;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// How a block gets its checksum when it is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seal {
    /// It has none of its own, or already has it.
    Plain,
    /// A directory block; the number is the inode's checksum seed.
    Dir(u32),
    /// A block of extended attributes.
    Xattr,
}

/// A cached block.
struct Slot {
    block: u64,
    data: Arc<[u8]>,
    dirty: bool,
    used: bool,
    checked: bool,
    seal: Seal,
    /// The transaction its last image went into.
    frozen: u64,
}

/// Slots one call of [`Buffers::shrink`] looks at, at most: many may be in use, and it is called often.
const STEPS_MAX: usize = 128;
const NOWHERE: u64 = u64::MAX;

/// Cached blocks of metadata.
pub(super) struct Buffers {
    disk: Arc<dyn BlockDevice>,
    /// None before it was [found](Buffers::set_journal).
    journal: Option<Arc<Journal>>,
    block_bits: u32,
    /// Blocks of the file system.
    blocks: u64,
    index: FxHashMap<u64, u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    dirty: Vec<u32>,
    dirty_count: usize,
    capacity: usize,
    hand: usize,
    /// The last transaction that an image of a buffer that is gone went into.
    gone: u64,
    nothing: Arc<[u8]>,
    /// What is read together.
    ahead: RefCell<Ahead>,
    /// What was missing while reading is shunned.
    misses: RefCell<Misses>,
}

impl Buffers {
    /// An empty cache of at most `capacity_bytes` of clean blocks of the file system on `disk`, which has so many
    /// `blocks` of 2 to the `block_bits` bytes.
    pub fn new(
        disk: Arc<dyn BlockDevice>,
        (block_bits, blocks): (u32, u64),
        capacity_bytes: usize,
    ) -> Buffers {
        let capacity = capacity_bytes >> block_bits;
        Buffers {
            disk,
            journal: None,
            block_bits,
            blocks,
            ahead: RefCell::new(Ahead::new(block_bits, capacity)),
            misses: RefCell::default(),
            index: FxHashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            dirty_count: 0,
            capacity: capacity.max(16),
            hand: 0,
            gone: 0,
            nothing: Arc::from([]),
        }
    }

    /// Lets reads look into the journal first.
    pub fn set_journal(&mut self, journal: Arc<Journal>) {
        self.journal = Some(journal);
    }

    /// The journal.
    pub fn journal(&self) -> &Arc<Journal> {
        self.journal.as_ref().expect("set when the file system was opened")
    }

    /// The device, to read what lies in no block, such as the superblock.
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.disk
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        1 << self.block_bits
    }

    /// Reads `count` blocks from the device, whatever the journal holds.
    pub fn read_device(&self, block: u64, count: u32) -> Result<Bytes> {
        self.disk.read(block << self.block_bits, (count as usize) << self.block_bits)
    }

    /// Writes a block to the device, past the journal; not durable before [`flush_device`](Self::flush_device).
    pub fn write_device(&self, block: DiskBlock, image: Bytes) -> Result<()> {
        self.disk.write(block.0 << self.block_bits, image)
    }

    /// Makes what was written durable.
    pub fn flush_device(&self) -> Result<()> {
        self.disk.flush()
    }

    /// The newest contents of a block: of its buffer, else as committed.
    pub fn fetch(&self, block: u64) -> Result<Bytes> {
        match self.peek(block).or_else(|| self.newer(block)) {
            Some(bytes) => Ok(bytes),
            None => self.fetch_absent(block),
        }
    }

    /// The newest committed contents of a bitmap, which never is in a buffer.
    pub fn fetch_bitmap(&self, block: u64) -> Result<Bytes> {
        match self.newer(block) {
            Some(bytes) => Ok(bytes),
            None if self.is_shunned() => Err(misses::absent(block)),
            None => self.read_device(block, 1),
        }
    }

    /// The image of a block that is in the journal and not home yet.
    fn newer(&self, block: u64) -> Option<Bytes> {
        self.journal.as_ref().and_then(|journal| journal.latest(DiskBlock(block)))
    }

    /// The buffer of a block, read if need be.
    pub fn load(&mut self, block: u64) -> Result<u32> {
        self.load_among(block, &(block..block + 1), 1)
    }

    /// The buffer of a block, read if need be with others of the blocks in `bounds`, which are of its kind: `least` of
    /// them to begin with, more if they are read one after the other.
    pub fn load_among(&mut self, block: u64, bounds: &Range<u64>, least: u64) -> Result<u32> {
        if let Some(slot) = self.find(block) {
            return Ok(slot);
        }
        if block >= self.blocks {
            return Err(Error::corrupt("a block number", "it is past the end", format!("block {block}")));
        }
        if let Some(bytes) = self.newer(block) {
            return Ok(self.insert(block, Arc::from(&bytes[..])));
        }
        let bounds = bounds.start..bounds.end.min(self.blocks);
        self.read_in(block, &bounds, least)
    }

    /// A buffer of zeros for a block whose old contents are of no matter; dirty.
    pub fn blank(&mut self, block: u64, seal: Seal) -> u32 {
        let slot = match self.find(block) {
            Some(slot) => {
                self.edit(slot, seal).fill(0);
                slot
            }
            None => {
                let slot = self.insert(block, Arc::from(vec![0; self.block_bytes()]));
                self.edit(slot, seal);
                slot
            }
        };
        self.set_checked(slot);
        slot
    }

    /// Puts finished contents of a block into the running transaction.
    pub fn put(&mut self, block: u64, bytes: &[u8]) {
        let slot = self.blank(block, Seal::Plain);
        self.edit(slot, Seal::Plain).copy_from_slice(bytes);
    }

    /// The slot of a cached block.
    pub fn find(&mut self, block: u64) -> Option<u32> {
        let slot = *self.index.get(&block)?;
        self.slots[slot as usize].used = true;
        Some(slot)
    }

    /// Whether a block is cached.
    fn has(&self, block: u64) -> bool {
        self.index.contains_key(&block)
    }

    /// The contents of a cached block, without a mark that it was used.
    fn peek(&self, block: u64) -> Option<Bytes> {
        let slot = *self.index.get(&block)?;
        Some(Bytes::from_owner(self.slots[slot as usize].data.clone()))
    }

    /// The last transaction that an image of a block went into that is not cached any more: contents read from the
    /// device since an earlier one may be older than what it has now.
    fn gone(&self) -> u64 {
        self.gone
    }

    /// Puts a block in that is not cached; it is clean.
    fn insert(&mut self, block: u64, data: Arc<[u8]>) -> u32 {
        let fresh =
            Slot { block, data, dirty: false, used: true, checked: false, seal: Seal::Plain, frozen: 0 };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = fresh;
                slot
            }
            None => {
                self.slots.push(fresh);
                self.slots.len() as u32 - 1
            }
        };
        self.index.insert(block, slot);
        slot
    }

    /// The bytes of a slot.
    pub fn bytes(&self, slot: u32) -> &[u8] {
        &self.slots[slot as usize].data
    }

    /// Whether the contents were found valid since they were read.
    pub fn is_checked(&self, slot: u32) -> bool {
        self.slots[slot as usize].checked
    }

    /// Notes that the contents are valid.
    pub fn set_checked(&mut self, slot: u32) {
        self.slots[slot as usize].checked = true;
    }

    /// The bytes of a slot, to change; it becomes dirty and will get `seal` when frozen.
    pub fn edit(&mut self, slot: u32, seal: Seal) -> &mut [u8] {
        let entry = &mut self.slots[slot as usize];
        entry.seal = seal;
        if !entry.dirty {
            entry.dirty = true;
            self.dirty.push(slot);
            self.dirty_count += 1;
        }
        if Arc::get_mut(&mut entry.data).is_none() {
            entry.data = Arc::from(&entry.data[..]);
        }
        Arc::get_mut(&mut entry.data).expect("a copy nobody else holds")
    }

    /// Drops a block, dirty or not: it was freed.
    pub fn forget(&mut self, block: u64) {
        let Some(slot) = self.index.remove(&block) else { return };
        let entry = &mut self.slots[slot as usize];
        if entry.dirty {
            self.dirty_count -= 1;
        }
        self.gone = self.gone.max(entry.frozen);
        entry.dirty = false;
        entry.block = NOWHERE;
        entry.data = self.nothing.clone();
        self.free.push(slot);
    }

    /// Blocks changed since the last freeze.
    pub fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    /// Ends the dirty set: `seal` stores each block's checksum, then its image is handed to `take`.
    pub fn freeze(
        &mut self,
        tid: u64,
        mut seal: impl FnMut(u64, Seal, &mut [u8]),
        mut take: impl FnMut(u64, Bytes),
    ) {
        for slot in std::mem::take(&mut self.dirty) {
            let entry = &mut self.slots[slot as usize];
            if !entry.dirty {
                continue;
            }
            entry.dirty = false;
            entry.frozen = tid;
            if let Some(bytes) = Arc::get_mut(&mut entry.data) {
                seal(entry.block, entry.seal, bytes);
            }
            take(entry.block, Bytes::from_owner(entry.data.clone()));
        }
        self.dirty_count = 0;
    }

    /// Makes room: blocks that are clean and whose images are in the journal (`committed`) go, those not
    /// used for longest first, until the cache is within its capacity.
    pub fn shrink(&mut self, committed: u64) {
        let mut steps = STEPS_MAX.min(2 * self.slots.len());
        while self.index.len() > self.capacity && steps > 0 {
            steps -= 1;
            self.hand = (self.hand + 1) % self.slots.len();
            let entry = &mut self.slots[self.hand];
            if entry.block == NOWHERE || entry.dirty || entry.frozen > committed {
                continue;
            }
            if entry.used {
                entry.used = false;
            } else {
                let block = entry.block;
                self.forget(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::ram::Ram;

    /// A cache of 16 blocks, above a device that is not read.
    fn cache() -> Buffers {
        Buffers::new(Arc::new(Ram::from_bytes("disk", vec![0; 1 << 10])), (10, 1 << 20), 16 << 10)
    }

    fn block(value: u8) -> Arc<[u8]> {
        Arc::from([value; 8])
    }

    #[test]
    fn an_image_never_changes_after_it_was_frozen() {
        let mut buffers = cache();
        let slot = buffers.insert(5, block(1));
        buffers.edit(slot, Seal::Plain)[0] = 2;
        let mut images = Vec::new();
        buffers.freeze(1, |_, _, bytes| bytes[7] = 9, |at, image| images.push((at, image)));
        buffers.edit(slot, Seal::Plain)[0] = 3;
        assert_eq!(images.len(), 1);
        assert_eq!(&images[0].1[..], [2, 1, 1, 1, 1, 1, 1, 9]);
        assert_eq!(buffers.bytes(slot)[0], 3);
        assert_eq!(buffers.dirty_count(), 1);
    }

    #[test]
    fn only_clean_blocks_whose_images_are_in_the_journal_make_room() {
        let mut buffers = cache();
        for at in 0..64 {
            let slot = buffers.insert(at, block(0));
            if at < 8 {
                buffers.edit(slot, Seal::Plain);
            }
        }
        buffers.freeze(3, |_, _, _| (), |_, _| ());
        let slot = buffers.find(9).unwrap();
        buffers.edit(slot, Seal::Plain);
        (0..4).for_each(|_| buffers.shrink(2));
        assert_eq!(buffers.index.len(), 16);
        assert!((0..8).chain([9]).all(|at| buffers.has(at)));
        buffers.shrink(3);
        for at in 100..200 {
            buffers.insert(at, block(0));
        }
        (0..8).for_each(|_| buffers.shrink(3));
        assert_eq!(buffers.index.len(), 16);
        assert!(buffers.has(9));
    }

    #[test]
    fn a_freed_block_is_in_no_transaction() {
        let mut buffers = cache();
        let slot = buffers.insert(5, block(1));
        buffers.edit(slot, Seal::Plain);
        buffers.forget(5);
        let again = buffers.insert(6, block(1));
        assert_eq!(slot, again);
        buffers.freeze(1, |_, _, _| (), |at, _| panic!("block {at}"));
    }
}
