//! Duplicated inodes that are in memory, by block of the inode table.
//!
//! Nothing but a checkpoint and a recovery asks for a duplicated inode. What was bound since the last completed
//! checkpoint is here; of the others as many as memory has room for. A checkpoint that writes a block with
//! an inode that is not here takes it from the block as it is on the SSD ([`super::merge`]).

use super::slot::PackedInode;
use rustc_hash::FxHashMap;

/// Slots in a block of the table at most.
const SLOTS_MAX: usize = 16;

const BLOCK_HEAP: usize = size_of::<Block>() + size_of::<(u32, Box<Block>)>() * 3 / 2;

#[derive(Debug)]
struct Block {
    known: u16,
    inodes: [PackedInode; SLOTS_MAX],
}

/// See the file's documentation.
#[derive(Debug)]
pub(super) struct Inodes {
    blocks: FxHashMap<u32, Box<Block>>,
    per_block: u32,
}

impl Inodes {
    pub(super) fn new(per_block: u32) -> Inodes {
        Inodes { blocks: FxHashMap::default(), per_block }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.blocks.len() * BLOCK_HEAP
    }

    fn place(&self, slot: u32) -> (u32, usize) {
        (slot / self.per_block, (slot % self.per_block) as usize)
    }

    /// The duplicated inode of a head slot, if it is here.
    pub(super) fn get(&self, slot: u32) -> Option<&PackedInode> {
        let (block, index) = self.place(slot);
        let block = self.blocks.get(&block)?;
        (block.known >> index & 1 == 1).then(|| &block.inodes[index])
    }

    pub(super) fn set(&mut self, slot: u32, inode: PackedInode) {
        let (block, index) = self.place(slot);
        let none = || Box::new(Block { known: 0, inodes: [PackedInode::ZERO; SLOTS_MAX] });
        let block = self.blocks.entry(block).or_insert_with(none);
        block.known |= 1 << index;
        block.inodes[index] = inode;
    }

    /// A head slot was given back.
    pub(super) fn forget(&mut self, slot: u32) {
        let (number, index) = self.place(slot);
        let Some(block) = self.blocks.get_mut(&number) else { return };
        block.known &= !(1 << index);
        if block.known == 0 {
            self.blocks.remove(&number);
        }
    }

    /// The blocks with an inode that is here, in no order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.keys().copied()
    }

    /// Lets go of blocks that `may_go` names until at most `bytes` are held.
    pub(super) fn shrink_to(&mut self, bytes: usize, mut may_go: impl Iterator<Item = u32>) {
        while self.heap_bytes() > bytes
            && let Some(block) = may_go.next()
        {
            self.blocks.remove(&block);
        }
        self.blocks.shrink_to(self.blocks.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_stays_when_memory_is_short() {
        let mut inodes = Inodes::new(16);
        let of = |slot: u32| PackedInode([slot as u8; 64]);
        (0..1600).for_each(|slot| inodes.set(slot, of(slot)));
        inodes.shrink_to(30 * BLOCK_HEAP, 10..100);
        assert!((0..160).all(|slot| inodes.get(slot) == Some(&of(slot))));
        assert_eq!(inodes.heap_bytes(), 30 * BLOCK_HEAP);
        inodes.shrink_to(0, 10..100);
        (0..159).for_each(|slot| inodes.forget(slot));
        assert_eq!((inodes.get(158), inodes.get(159)), (None, Some(&of(159))));
        inodes.forget(159);
        assert_eq!(inodes.heap_bytes(), 0);
    }
}
