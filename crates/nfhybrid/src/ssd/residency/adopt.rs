//! What a mount finds in the inode table, taken over: whatever does not fit the slots it names comes back.

use super::{Piece, Pieces, Residency};
use crate::ssd::slot::PackedInode;

impl Residency {
    /// Takes over an inode as a mount found it. What of it does not fit into the slots it names, because they
    /// are another's or full, is returned; `None` if the head slot is another's, or the inode is there.
    pub(in crate::ssd) fn adopt(&mut self, ino: u64, head: u32, pieces: &Pieces) -> Option<Vec<Piece>> {
        if head >= self.slots.count() || self.head_of(ino).is_some() || !self.slots.free.remove(head) {
            return None;
        }
        let index = self.add_with_head(ino, head);
        let left = pieces.iter().filter_map(|piece| self.adopt_piece(index, head, piece)).collect();
        self.close(index);
        Some(left)
    }

    /// Takes over a piece of an inode that is there, as a mount found it; it comes back if it does not fit into the
    /// slot it names.
    pub(in crate::ssd) fn adopt_more(&mut self, ino: u64, piece: Piece) -> Option<Piece> {
        let Some((index, head)) = self.open(ino).zip(self.head_of(ino)) else { return Some(piece) };
        let left = self.adopt_piece(index, head, piece);
        self.close(index);
        left
    }

    fn adopt_piece(&mut self, index: u32, head: u32, piece: Piece) -> Option<Piece> {
        let slot = piece.slot;
        if slot < self.slots.count() && self.slots.free.remove(slot) {
            self.slots.take_overflow(slot, head);
        }
        let stays =
            slot < self.slots.count() && self.slots.head_of(slot) == Some(head) && self.slots.room(slot) > 0;
        if stays {
            self.put(index, piece);
            return None;
        }
        Some(piece)
    }

    /// Puts a piece that was found at a mount into any slot, the last one, too; where it went.
    pub(in crate::ssd) fn place(&mut self, ino: u64, inode: PackedInode, piece: Piece) -> Option<Piece> {
        let index = match self.open(ino) {
            Some(index) => index,
            None => {
                let head = self.slots.free.take_lowest()?;
                self.inodes.set(head, inode);
                self.add_with_head(ino, head)
            }
        };
        // Whichever of its slots has room.
        let slots = self.nodes.get(index)?.pieces.iter().map(|piece| piece.slot);
        let near = slots.filter(|slot| self.slots.room(*slot) > 0).min();
        let slot = self.slot_for(index, near);
        let placed = slot.map(|slot| piece.in_slot(slot));
        placed.into_iter().for_each(|piece| self.put(index, piece));
        self.close(index);
        placed
    }
}
