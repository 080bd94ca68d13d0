//! Duplicated inodes that are in memory, by stretches of the inode table: a page holds those of 64 slots.
//!
//! Nothing but a checkpoint and a recovery asks for a duplicated inode. What was bound since the last completed
//! checkpoint is here; of the others as many as memory has room for. A checkpoint that writes a block with
//! an inode that is not here takes it from the block as it is on the SSD ([`super::merge`]).

use super::pages::Page;
use super::slot::PackedInode;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Slots in a stretch.
const STRETCH: u32 = 64;

const STRETCH_HEAP: usize =
    Page::<[PackedInode; STRETCH as usize]>::BYTES + size_of::<(u32, Stretch)>() * 3 / 2;

#[derive(Debug)]
struct Stretch {
    /// Which are here: a bit each.
    known: u64,
    inodes: Page<[PackedInode; STRETCH as usize]>,
}

/// See the file's documentation.
#[derive(Debug)]
pub(super) struct Inodes {
    stretches: FxHashMap<u32, Stretch>,
    /// Slots in a block of the table.
    per_block: u32,
}

fn place(slot: u32) -> (u32, usize) {
    (slot / STRETCH, (slot % STRETCH) as usize)
}

impl Inodes {
    pub(super) fn new(per_block: u32) -> Inodes {
        Inodes { stretches: FxHashMap::default(), per_block }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.stretches.len() * STRETCH_HEAP
    }

    /// The duplicated inode of a head slot, if it is here.
    pub(super) fn get(&self, slot: u32) -> Option<&PackedInode> {
        let (stretch, index) = place(slot);
        let stretch = self.stretches.get(&stretch)?;
        (stretch.known >> index & 1 == 1).then(|| &stretch.inodes[index])
    }

    pub(super) fn set(&mut self, slot: u32, inode: PackedInode) {
        let (stretch, index) = place(slot);
        let none = || Stretch { known: 0, inodes: Page::zeroed() };
        let stretch = self.stretches.entry(stretch).or_insert_with(none);
        stretch.known |= 1 << index;
        stretch.inodes[index] = inode;
    }

    /// A head slot was given back.
    pub(super) fn forget(&mut self, slot: u32) {
        let (number, index) = place(slot);
        let Some(stretch) = self.stretches.get_mut(&number) else { return };
        stretch.known &= !(1 << index);
        if stretch.known == 0 {
            self.stretches.remove(&number);
        }
    }

    /// All of it; nothing is here any more.
    pub(super) fn take(&mut self) -> Inodes {
        std::mem::replace(self, Inodes::new(self.per_block))
    }

    /// Lets go of stretches until at most `bytes` are held, but for those with a block of the table that `keep` names.
    pub(super) fn shrink_to(&mut self, bytes: usize, keep: impl Fn(u32) -> bool) {
        let mut excess = self.stretches.len().saturating_sub(bytes / STRETCH_HEAP);
        let per_block = self.per_block;
        let blocks = |stretch: u32| -> Range<u32> {
            stretch * STRETCH / per_block..((stretch + 1) * STRETCH).div_ceil(per_block)
        };
        self.stretches.retain(|stretch, _| {
            let goes = excess > 0 && !blocks(*stretch).any(&keep);
            excess -= usize::from(goes);
            !goes
        });
        self.stretches.shrink_to(self.stretches.len() * 2);
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
        // A block in the middle of the third stretch keeps all of it.
        inodes.shrink_to(5 * STRETCH_HEAP, |block| block == 9);
        assert!((128..192).all(|slot| inodes.get(slot) == Some(&of(slot))));
        assert_eq!(inodes.heap_bytes(), 5 * STRETCH_HEAP);
        inodes.shrink_to(0, |block| block == 9);
        (128..191).for_each(|slot| inodes.forget(slot));
        assert_eq!((inodes.get(190), inodes.get(191)), (None, Some(&of(191))));
        inodes.forget(191);
        assert_eq!(inodes.heap_bytes(), 0);
    }
}
