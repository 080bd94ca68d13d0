//! What of one inode is on the SSD: pieces of the file, sorted, none overlapping another.
//!
//! Most files have one piece, so the first lies in the inode itself; a file cut into more than
//! [`FEW_MAX`] pieces (a disk image written at random) keeps them in a tree, where inserting one in the
//! middle moves nothing.

use super::{CopyState, tag_reached};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Beyond so many pieces a tree takes over.
const FEW_MAX: usize = 96;

/// Blocks of one piece at most: 30 bits, beside two of state.
pub(super) const PIECE_BLOCKS_MAX: u32 = (1 << 30) - 1;

/// A run of blocks of a file that lie one after the other on the SSD, in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First block in the file.
    pub(super) file_block: u32,
    /// First block on the SSD.
    pub(super) at: u32,
    /// Low 32 bits of the number of the operation that bound it, of the oldest part of it.
    pub(super) tag: u32,
    /// The slot of the inode table that holds it.
    pub(super) slot: u32,
    /// Number of blocks, and the state in the two bits above.
    len_state: u32,
}

impl Piece {
    pub(super) fn new(file_block: u32, at: u32, len: u32, state: CopyState, tag: u32) -> Piece {
        Piece { file_block, at, tag, slot: 0, len_state: len | (state as u32) << 30 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len_state & PIECE_BLOCKS_MAX
    }

    pub(super) fn state(&self) -> CopyState {
        CopyState::from_bits((self.len_state >> 30) as u8)
    }

    pub(super) fn with_state(self, state: CopyState) -> Piece {
        Piece { len_state: self.len() | (state as u32) << 30, ..self }
    }

    /// Whether only the SSD has it, from an operation after the one `tag` stands for.
    pub(super) fn is_newer(&self, tag: u32) -> bool {
        self.state() == CopyState::Ssd && !tag_reached(self.tag, tag.into())
    }

    /// The same in another slot.
    pub(super) fn in_slot(self, slot: u32) -> Piece {
        Piece { slot, ..self }
    }

    /// The same at another place on the SSD.
    pub(super) fn at_block(self, at: u32) -> Piece {
        Piece { at, ..self }
    }

    fn with_len(self, len: u32) -> Piece {
        Piece { len_state: len | (self.state() as u32) << 30, ..self }
    }

    /// The file block after the last.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.file_block) + u64::from(self.len())
    }

    /// The part of it before file block `at`, which lies inside.
    pub(super) fn before(self, at: u64) -> Piece {
        self.with_len((at - u64::from(self.file_block)) as u32)
    }

    /// The part of it from file block `at`, which lies inside.
    pub(super) fn from(self, at: u64) -> Piece {
        let skip = (at - u64::from(self.file_block)) as u32;
        Piece { file_block: at as u32, at: self.at + skip, ..self.with_len(self.len() - skip) }
    }

    /// Whether `next` goes on where this ends, in the file and on the SSD, in the same state.
    fn continues_in(&self, next: &Piece) -> bool {
        self.end() == u64::from(next.file_block)
            && self.at + self.len() == next.at
            && self.state() == next.state()
            && (self.tag == next.tag || self.state() != CopyState::Ssd)
            && self.len() + next.len() <= PIECE_BLOCKS_MAX
    }

    /// The piece with `next` added to its end, if that is possible.
    pub(super) fn extended(self, next: &Piece) -> Option<Piece> {
        // Where both halves have it, the older number: no part of it is older than that.
        let tag = if tag_reached(self.tag, next.tag.into()) { self.tag } else { next.tag };
        self.continues_in(next).then(|| Piece { tag, ..self.with_len(self.len() + next.len()) })
    }
}

/// The pieces of one inode.
#[derive(Clone, Debug)]
pub(super) enum Pieces {
    /// Sorted.
    Few(SmallVec<[Piece; 1]>),
    /// By first file block.
    Many(BTreeMap<u32, Piece>),
}

impl Pieces {
    pub(super) fn new() -> Pieces {
        Pieces::Few(SmallVec::new())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Pieces::Few(few) => few.len(),
            Pieces::Many(many) => many.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last piece that begins at or before `file_block`.
    pub(super) fn at_or_before(&self, file_block: u32) -> Option<Piece> {
        match self {
            Pieces::Few(few) => {
                let after = few.partition_point(|piece| piece.file_block <= file_block);
                after.checked_sub(1).map(|index| few[index])
            }
            Pieces::Many(many) => many.range(..=file_block).next_back().map(|(_, piece)| *piece),
        }
    }

    /// The piece that holds `file_block`.
    pub(super) fn holding(&self, file_block: u32) -> Option<Piece> {
        self.at_or_before(file_block).filter(|piece| u64::from(file_block) < piece.end())
    }

    /// The first piece with a block at or after `from` that begins before `end`.
    pub(super) fn first_in(&self, from: u64, end: u64) -> Option<Piece> {
        let Ok(start) = u32::try_from(from) else { return None };
        let next = || match self {
            Pieces::Few(few) => few.get(few.partition_point(|piece| piece.file_block < start)).copied(),
            Pieces::Many(many) => many.range(start..).next().map(|(_, piece)| *piece),
        };
        self.holding(start).or_else(next).filter(|piece| u64::from(piece.file_block) < end)
    }

    /// Adds a piece that overlaps none, or replaces the one that begins at the same block.
    pub(super) fn put(&mut self, piece: Piece) {
        match self {
            Pieces::Few(few) => {
                let index = few.partition_point(|other| other.file_block < piece.file_block);
                match few.get_mut(index) {
                    Some(same) if same.file_block == piece.file_block => *same = piece,
                    _ => few.insert(index, piece),
                }
                if few.len() > FEW_MAX {
                    *self = Pieces::Many(few.iter().map(|piece| (piece.file_block, *piece)).collect());
                }
            }
            Pieces::Many(many) => {
                many.insert(piece.file_block, piece);
            }
        }
    }

    /// Removes the piece that begins at `file_block`.
    pub(super) fn take(&mut self, file_block: u32) -> Option<Piece> {
        match self {
            Pieces::Few(few) => {
                let index = few.binary_search_by_key(&file_block, |piece| piece.file_block).ok()?;
                Some(few.remove(index))
            }
            Pieces::Many(many) => many.remove(&file_block),
        }
    }

    /// All pieces, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = Piece> + '_ {
        let (few, many) = match self {
            Pieces::Few(few) => (Some(few.iter().copied()), None),
            Pieces::Many(many) => (None, Some(many.values().copied())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_pieces_answer_alike() {
        let mut pieces = Pieces::new();
        for i in (0..300u32).rev() {
            pieces.put(Piece::new(i * 10, i * 100, 4, CopyState::Both, 0));
            let first = pieces.first_in(0, u64::MAX).unwrap();
            assert_eq!((first.file_block, pieces.len()), (i * 10, 300 - i as usize));
        }
        assert!(matches!(pieces, Pieces::Many(_)));
        assert_eq!(pieces.holding(23).map(|piece| piece.at), Some(200));
        assert_eq!(pieces.holding(24), None);
        assert_eq!(pieces.first_in(24, 30), None);
        assert_eq!(pieces.first_in(24, 31).map(|piece| piece.file_block), Some(30));
        assert_eq!(pieces.first_in(1 << 40, u64::MAX), None);
        assert_eq!(pieces.take(20).map(|piece| piece.at), Some(200));
        assert_eq!((pieces.take(20), pieces.len()), (None, 299));
        assert!(pieces.iter().is_sorted_by_key(|piece| piece.file_block));
    }

    #[test]
    fn a_piece_is_cut_without_losing_a_block() {
        let piece = Piece::new(100, 1000, 10, CopyState::Ssd, 7);
        let (left, right) = (piece.before(103), piece.from(103));
        assert_eq!((left.file_block, left.at, left.len()), (100, 1000, 3));
        assert_eq!((right.file_block, right.at, right.len()), (103, 1003, 7));
        assert_eq!((right.state(), right.tag), (CopyState::Ssd, 7));
        assert_eq!(left.extended(&right), Some(piece));
        assert_eq!(right.extended(&left), None);
    }

    #[test]
    fn pieces_of_different_operations_join_only_when_the_disk_has_them() {
        let join = |state| {
            let next = Piece::new(4, 14, 4, state, 2);
            Piece::new(0, 10, 4, state, 1).extended(&next).is_some()
        };
        assert_eq!((join(CopyState::Ssd), join(CopyState::Both)), (false, true));
    }
}
