//! What a disk's memory holds: writes that are not on the platter yet, and what it read ahead.

use bimetal_base::time::Time;
use std::collections::BTreeMap;

/// A piece of cached writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First byte.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
    /// When the first of it arrived. Pieces only grow while the arm is busy, so all of it is there when the
    /// arm gets to it, but for the last transfer on the (faster) bus.
    pub since: Time,
}

/// Cached writes: pieces that neither overlap nor touch, by their first byte.
#[derive(Default)]
pub(super) struct WriteCache {
    pieces: BTreeMap<u64, (u64, Time)>,
    bytes: u64,
}

impl WriteCache {
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Whether all of `start..end` is here.
    pub fn holds(&self, start: u64, end: u64) -> bool {
        self.pieces.range(..=start).next_back().is_some_and(|(_, (last, _))| *last >= end)
    }

    /// Adds a write; pieces it meets become one with it.
    pub fn insert(&mut self, mut piece: Piece) {
        let before = self.pieces.range(..piece.start).next_back().map(|(&start, &(end, _))| (start, end));
        let mut next = before.filter(|(_, end)| *end >= piece.start).map_or(piece.start, |(start, _)| start);
        while let Some((&start, &(end, since))) = self.pieces.range(next..=piece.end).next() {
            self.pieces.remove(&start);
            self.bytes -= end - start;
            piece.start = piece.start.min(start);
            piece.end = piece.end.max(end);
            piece.since = piece.since.min(since);
            next = start;
        }
        self.bytes += piece.end - piece.start;
        self.pieces.insert(piece.start, (piece.end, piece.since));
    }

    /// Drops `start..end`: it is on the platter by another way.
    pub fn remove(&mut self, start: u64, end: u64) {
        let from = self.pieces.range(..start).next_back().map_or(start, |(&first, _)| first);
        let met: Vec<Piece> = self
            .pieces
            .range(from..end)
            .filter(|(_, (last, _))| *last > start)
            .map(|(&start, &(end, since))| Piece { start, end, since })
            .collect();
        for piece in met {
            self.pieces.remove(&piece.start);
            self.bytes -= piece.end - piece.start;
            for (start, end) in [(piece.start, start), (end, piece.end)] {
                if start < end {
                    self.bytes += end - start;
                    self.pieces.insert(start, (end, piece.since));
                }
            }
        }
    }

    /// The piece to write next with the head at `head`, C-LOOK: the nearest ahead, else the first of all.
    pub fn next(&self, head: u64) -> Option<Piece> {
        let ahead = self.pieces.range(head..).next();
        let (&start, &(end, since)) = ahead.or_else(|| self.pieces.first_key_value())?;
        Some(Piece { start, end, since })
    }

    /// Takes out the first `most` bytes of the piece that starts at `start`.
    pub fn take(&mut self, start: u64, most: u64) -> Option<Piece> {
        let (end, since) = self.pieces.remove(&start)?;
        let taken = Piece { start, end: end.min(start + most), since };
        self.bytes -= taken.end - start;
        if taken.end < end {
            self.pieces.insert(taken.end, (end, since));
        }
        Some(taken)
    }

    /// Whether pieces touch or overlap: they never do.
    #[cfg(test)]
    fn is_sound(&self) -> bool {
        let sizes: u64 = self.pieces.iter().map(|(start, (end, _))| end - start).sum();
        let apart = self.pieces.iter().all(|(start, (end, _))| {
            let next = self.pieces.range(start + 1..).next();
            start < end && next.is_none_or(|(next, _)| end < next)
        });
        sizes == self.bytes && apart
    }
}

/// What the drive reads on after a read, as long as nothing else needs the arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAhead {
    /// First byte in memory.
    pub start: u64,
    /// Byte the head was at …
    pub from: u64,
    /// … at this instant.
    pub at: Time,
    /// It stops here.
    pub limit: u64,
    /// Something else took the arm then.
    pub stopped: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(start: u64, end: u64) -> Piece {
        Piece { start, end, since: Time(start) }
    }

    #[test]
    fn neighbours_merge_and_the_next_piece_is_ahead_of_the_head() {
        let mut cache = WriteCache::default();
        for (start, end) in [(10, 20), (40, 50), (20, 30), (35, 40)] {
            cache.insert(piece(start, end));
        }
        assert_eq!((cache.pieces(), cache.bytes()), (2, 35));
        let next = |head| cache.next(head).map(|piece| (piece.start, piece.end));
        assert_eq!(next(0), Some((10, 30)));
        assert_eq!(next(11), Some((35, 50)));
        assert_eq!(next(36), Some((10, 30)), "past the last: from the first again");
        assert!(cache.holds(12, 30) && !cache.holds(12, 31));
    }

    #[test]
    fn a_piece_is_taken_in_parts() {
        let mut cache = WriteCache::default();
        cache.insert(piece(0, 100));
        assert_eq!(cache.take(0, 60), Some(piece(0, 60)));
        assert_eq!(cache.take(60, 60).map(|piece| piece.end), Some(100));
        assert!(cache.is_empty() && cache.bytes() == 0);
    }

    proptest! {
        #[test]
        fn the_cache_holds_exactly_what_was_written_and_not_removed(
            ops in proptest::collection::vec((any::<bool>(), 0u64..60, 1u64..20), 1..60)
        ) {
            let mut cache = WriteCache::default();
            let mut model = [false; 80];
            for (add, start, len) in ops {
                if add { cache.insert(piece(start, start + len)) } else { cache.remove(start, start + len) }
                model[start as usize..(start + len) as usize].fill(add);
                prop_assert!(cache.is_sound());
                for (byte, held) in model.iter().enumerate() {
                    prop_assert_eq!(cache.holds(byte as u64, byte as u64 + 1), *held);
                }
            }
        }
    }
}
