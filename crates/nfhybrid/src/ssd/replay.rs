//! From the slots on the media and the log's records to what is bound: the heart of a mount.
//!
//! Slots are from the last completed checkpoint, or some of them from one that was cut short. Every record
//! since the former says what is bound *after* it, and in which slot; so playing all of them in order ends
//! in the state the log ends with, slots included, whatever mixture it began with. While they are played a
//! slot may hold more than fits, or belong to two inodes: a newer slot meets older records. At the end it
//! does not, unless a slot was damaged.
//!
//! Only inodes that the log speaks of are replayed ([`Past`]). What the tables have of all others is so; it goes into the
//! map at once, since a mount has no memory for it twice.

use super::CopyState;
use super::bits::Bits;
use super::pieces::{Piece, Pieces};
use super::record::{self, Body};
use super::residency::Residency;
use super::slot::PackedInode;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// File blocks that a slot says are bound, and that are not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orphan {
    pub(super) ino: u64,
    pub(super) from: u64,
    pub(super) end: u64,
}

impl Orphan {
    /// All blocks of a piece.
    pub(super) fn of(ino: u64, piece: &Piece) -> Orphan {
        Orphan { ino, from: piece.file_block.into(), end: piece.end() }
    }
}

/// An inode being recovered.
#[derive(Debug)]
struct Inode {
    head: u32,
    inode: PackedInode,
    pieces: Pieces,
}

/// What the log says of inodes on the whole.
#[derive(Debug, Default)]
pub(super) struct Past {
    inodes: FxHashSet<u64>,
    /// The tables do not count.
    forget: bool,
    /// Nothing counts but what was bound in state 10 after each of these.
    forget_up_to: Vec<u32>,
}

impl Past {
    pub(super) fn of(records: &[record::Read]) -> Past {
        let mut past = Past::default();
        for record in records {
            match record {
                Body::Bind { ino, .. }
                | Body::Move { ino, .. }
                | Body::Unbind { ino, .. }
                | Body::UnbindOnDisk { ino, .. }
                | Body::UnbindAll { ino }
                | Body::SetState { ino, .. } => drop(past.inodes.insert(*ino)),
                Body::Forget => past.forget = true,
                Body::ForgetOnDisk { tag } => past.forget_up_to.push(*tag),
                Body::Operation(_) | Body::OperationAgain(_) | Body::RestartBegin | Body::RestartEnd => {}
                Body::Complete | Body::Undone { .. } => {}
            }
        }
        past
    }

    /// Whether an inode is to be replayed.
    pub(super) fn speaks_of(&self, ino: u64) -> bool {
        self.inodes.contains(&ino)
    }

    /// Whether nothing that the tables have counts.
    pub(super) fn forgets_all(&self) -> bool {
        self.forget
    }

    /// Whether a piece that the tables have of an inode that the log does not speak of is forgotten.
    pub(super) fn forgets(&self, piece: &Piece) -> bool {
        self.forget_up_to.iter().any(|tag| !piece.is_newer(*tag))
    }
}

/// Adds what of `piece` overlaps nothing; whether that was all of it.
///
/// Two entries overlap when one slot was written and another not. What they disagree about changed since
/// the last checkpoint, so the log has it. What they do not disagree about must be kept.
pub(super) fn add_gaps(
    piece: Piece,
    first_in: impl Fn(u64, u64) -> Option<Piece>,
    mut put: impl FnMut(Piece),
) -> bool {
    let (mut at, mut whole) = (u64::from(piece.file_block), true);
    let mut gaps = SmallVec::<[Piece; 2]>::new();
    while at < piece.end() {
        let next = first_in(at, piece.end());
        let gap_end = next.map_or(piece.end(), |next| u64::from(next.file_block).max(at));
        if gap_end > at {
            gaps.push(piece.from(at).before(gap_end));
        }
        whole &= next.is_none();
        at = next.map_or(piece.end(), |next| next.end());
    }
    gaps.into_iter().for_each(&mut put);
    whole
}

/// What is bound, while it is being recovered.
#[derive(Debug)]
pub(super) struct Replay {
    inodes: FxHashMap<u64, Inode>,
    /// Slots whose contents on the media differ, or may.
    dirty: Bits,
    slots: u32,
    /// What slots have, and cannot be taken.
    pub(super) orphans: Vec<Orphan>,
}

impl Replay {
    /// For a table of so many slots.
    pub(super) fn new(slots: u32) -> Replay {
        Replay { inodes: FxHashMap::default(), dirty: Bits::new(slots), slots, orphans: Vec::new() }
    }

    /// The contents of a slot on the media differ, or may.
    pub(super) fn is_dirty(&mut self, slot: u32) {
        if slot < self.slots {
            self.dirty.set(slot);
        }
    }

    /// Takes a head slot. If its inode has one already (the number was used again), the log has the truth.
    pub(super) fn load_head(&mut self, ino: u64, inode: PackedInode, head: u32) {
        let found = self.inodes.entry(ino).or_insert_with(|| Inode { head, inode, pieces: Pieces::new() });
        if found.head != head {
            self.is_dirty(head);
        }
    }

    /// Takes an entry of a slot; all heads were taken before.
    pub(super) fn load(&mut self, ino: u64, piece: Piece) {
        let Some(found) = self.inodes.get_mut(&ino) else {
            self.is_dirty(piece.slot);
            return self.orphans.push(Orphan::of(ino, &piece));
        };
        let mut gaps = Vec::new();
        let whole = add_gaps(piece, |from, end| found.pieces.first_in(from, end), |gap| gaps.push(gap));
        gaps.into_iter().for_each(|gap| found.pieces.put(gap));
        if !whole {
            self.is_dirty(piece.slot);
        }
    }

    /// Plays one record.
    pub(super) fn play(&mut self, record: &record::Read) {
        match record {
            Body::Bind { ino, piece, head, inode, .. } => {
                self.carve(*ino, piece.file_block.into(), piece.end());
                let fresh = || Inode { head: *head, inode: *inode, pieces: Pieces::new() };
                let found = self.inodes.entry(*ino).or_insert_with(fresh);
                let slots = [*head, found.head, piece.slot];
                (found.head, found.inode) = (*head, *inode);
                found.pieces.put(*piece);
                slots.into_iter().for_each(|slot| self.is_dirty(slot));
            }
            Body::Move { ino, piece } => {
                self.carve(*ino, piece.file_block.into(), piece.end());
                self.is_dirty(piece.slot);
                match self.inodes.get_mut(ino) {
                    Some(found) => found.pieces.put(*piece),
                    None => self.orphans.push(Orphan::of(*ino, piece)),
                }
            }
            Body::Unbind { ino, from, end } => {
                self.carve(*ino, *from, *end);
                self.drop_if_empty(*ino);
            }
            Body::UnbindOnDisk { ino, from, end, tag } => self.unbind_up_to(*ino, (*from, *end), *tag),
            Body::UnbindAll { ino } => {
                self.carve(*ino, 0, u64::MAX);
                self.drop_if_empty(*ino);
            }
            Body::SetState { ino, from, end, state } => self.set_state(*ino, (*from, *end), *state),
            Body::Forget => {
                let all: Vec<u64> = self.inodes.keys().copied().collect();
                for ino in all {
                    self.carve(ino, 0, u64::MAX);
                    self.drop_if_empty(ino);
                }
                self.orphans.clear();
            }
            Body::ForgetOnDisk { tag } => self.forget_up_to(*tag),
            Body::Operation(_) | Body::OperationAgain(_) | Body::RestartBegin | Body::RestartEnd => {}
            Body::Complete | Body::Undone { .. } => {}
        }
    }

    /// See [`Body::ForgetOnDisk`]. What slots have and cannot be taken is from before, too, or the log has it.
    fn forget_up_to(&mut self, tag: u32) {
        let all: Vec<u64> = self.inodes.keys().copied().collect();
        for ino in all {
            let pieces = self.inodes.get(&ino).into_iter().flat_map(|found| found.pieces.iter());
            let gone: Vec<Piece> = pieces.filter(|piece| !piece.is_newer(tag)).collect();
            gone.iter().for_each(|piece| self.carve(ino, piece.file_block.into(), piece.end()));
            self.drop_if_empty(ino);
        }
    }

    /// See [`Body::UnbindOnDisk`].
    fn unbind_up_to(&mut self, ino: u64, (from, end): (u64, u64), tag: u32) {
        let mut at = from;
        while let Some(found) = self.inodes.get(&ino)
            && let Some(piece) = found.pieces.first_in(at, end)
        {
            at = piece.end();
            if !piece.is_newer(tag) {
                self.carve(ino, from.max(piece.file_block.into()), end.min(at));
            }
        }
        self.drop_if_empty(ino);
    }

    fn carve(&mut self, ino: u64, from: u64, end: u64) {
        while let Some(found) = self.inodes.get_mut(&ino)
            && let Some(old) = found.pieces.first_in(from, end)
        {
            found.pieces.take(old.file_block);
            if u64::from(old.file_block) < from {
                found.pieces.put(old.before(from));
            }
            if old.end() > end {
                found.pieces.put(old.from(end));
            }
            self.is_dirty(old.slot);
        }
    }

    fn drop_if_empty(&mut self, ino: u64) {
        if self.inodes.get(&ino).is_some_and(|found| found.pieces.is_empty())
            && let Some(gone) = self.inodes.remove(&ino)
        {
            self.is_dirty(gone.head);
        }
    }

    fn set_state(&mut self, ino: u64, (from, end): (u64, u64), state: CopyState) {
        let Some(found) = self.inodes.get(&ino) else { return };
        let mut changed = Vec::new();
        let mut at = from;
        while let Some(old) = found.pieces.first_in(at, end) {
            at = old.end();
            let left = old.from(from.max(old.file_block.into()));
            changed.push(left.before(left.end().min(end)).with_state(state));
        }
        for piece in changed {
            self.carve(ino, piece.file_block.into(), piece.end());
            if let Some(found) = self.inodes.get_mut(&ino) {
                found.pieces.put(piece);
            }
        }
    }

    /// Ends the replay: everything goes into `residency`, each piece joined with the ones that go on from it
    /// in the same slot unless `apart` says that they lie in different sections.
    pub(super) fn finish(
        mut self,
        residency: &mut Residency,
        apart: impl Fn(&Piece, &Piece) -> bool,
    ) -> Placed {
        let mut inodes: Vec<(u64, Inode)> = std::mem::take(&mut self.inodes).into_iter().collect();
        inodes.sort_unstable_by_key(|(ino, _)| *ino);
        let mut homeless = Vec::new();
        for (ino, found) in inodes {
            if found.pieces.is_empty() {
                self.is_dirty(found.head);
                continue;
            }
            let pieces = join(&found.pieces, &apart);
            let left = residency.adopt(ino, found.head, &pieces);
            if left.is_some() {
                residency.inodes.set(found.head, found.inode);
            }
            let left = left.unwrap_or_else(|| pieces.iter().collect());
            homeless.extend(left.into_iter().map(|piece| (ino, found.inode, piece)));
        }
        // What was taken over is on the media as it is, but for what the replay changed.
        residency.slots.settled();
        self.dirty.iter().for_each(|slot| residency.slots.changed(slot));
        let mut placed = Placed::default();
        // What the disk has can do without a slot.
        homeless.sort_by_key(|(_, _, piece)| piece.state() != CopyState::Ssd);
        for (ino, inode, piece) in homeless {
            match residency.place(ino, inode, piece) {
                Some(piece) => placed.moved.push((ino, piece)),
                None => placed.dropped.push((ino, piece)),
            }
        }
        placed
    }

    /// State 10 is 11 for every piece that `select` takes.
    pub(super) fn finish_pieces(&mut self, select: impl Fn(&Piece) -> bool) {
        for found in self.inodes.values_mut() {
            let done: Vec<Piece> = found
                .pieces
                .iter()
                .filter(|piece| piece.state() == CopyState::Ssd && select(piece))
                .collect();
            for piece in done {
                if piece.slot < self.slots {
                    self.dirty.set(piece.slot);
                }
                found.pieces.put(piece.with_state(CopyState::Both));
            }
        }
    }
}

/// Pieces that could not stay in their slots.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// In another slot now.
    pub(super) moved: Vec<(u64, Piece)>,
    /// For which there was none.
    pub(super) dropped: Vec<(u64, Piece)>,
}

/// Joins pieces that go on from one another in the same slot: a record that extended a piece comes back as
/// one of its own.
fn join(pieces: &Pieces, apart: impl Fn(&Piece, &Piece) -> bool) -> Pieces {
    let mut joined = Pieces::new();
    let mut last: Option<Piece> = None;
    for piece in pieces.iter() {
        let before = last.filter(|last| last.slot == piece.slot && !apart(last, &piece));
        match before.and_then(|before| before.extended(&piece)) {
            Some(longer) => last = Some(longer),
            None => last.replace(piece).into_iter().for_each(|done| joined.put(done)),
        }
    }
    last.into_iter().for_each(|done| joined.put(done));
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssd::slots::Slots;

    const INODE: PackedInode = PackedInode([0; 64]);

    fn bind(ino: u64, file_block: u32, at: u32, len: u32, slot: u32, head: u32) -> record::Read {
        let piece = Piece::new(file_block, at, len, CopyState::Both, 0).in_slot(slot);
        Body::Bind { ino, piece, head, inode: INODE, sums: bytes::Bytes::new() }
    }

    fn found(replay: Replay) -> Vec<(u64, u32, u32, u32, u32)> {
        let mut residency = Residency::new(Slots::new(64, 16, 8, 11));
        let placed = replay.finish(&mut residency, |_, _| false);
        assert!(placed.moved.is_empty() && placed.dropped.is_empty(), "{placed:?}");
        residency.check();
        let mut all: Vec<_> = residency
            .all()
            .flat_map(|node| node.pieces.iter().map(move |p| (node.ino, p.file_block, p.at, p.len(), p.slot)))
            .collect();
        all.sort_unstable();
        all
    }

    /// One slot was written and another not, before the log's records are played over both.
    #[test]
    fn any_mixture_of_old_and_new_slots_ends_in_the_same_state() {
        // Slot 0 was inode 1's, which was deleted; inode 2 then took it. Inode 3 had its middle replaced, the
        // new blocks in slot 2.
        let old = [(0, 1, vec![(0, 100, 4)]), (1, 3, vec![(0, 200, 10)])];
        let new =
            [(0, 2, vec![(5, 300, 1)]), (1, 3, vec![(0, 200, 3), (6, 206, 4)]), (2, 3, vec![(3, 400, 3)])];
        let log = [Body::UnbindAll { ino: 1 }, bind(2, 5, 300, 1, 0, 0), bind(3, 3, 400, 3, 2, 1)];
        for mixture in 0..8 {
            let mut replay = Replay::new(64);
            let pick = |index: usize| {
                if mixture >> index & 1 == 1 { new.get(index) } else { old.get(index) }
            };
            for heads in [true, false] {
                for (slot, ino, entries) in (0..3).filter_map(pick) {
                    if heads && *slot < 2 {
                        replay.load_head(*ino, INODE, *slot);
                    } else if !heads {
                        entries.iter().for_each(|&(file_block, at, len)| {
                            replay.load(
                                *ino,
                                Piece::new(file_block, at, len, CopyState::Both, 0).in_slot(*slot),
                            );
                        });
                    }
                }
            }
            log.iter().for_each(|record| replay.play(record));
            let expected = [(2, 5, 300, 1, 0), (3, 0, 200, 3, 1), (3, 3, 400, 3, 2), (3, 6, 206, 4, 1)];
            assert_eq!(found(replay), expected, "mixture {mixture}");
        }
    }

    #[test]
    fn what_a_record_extended_is_one_piece_again_but_pieces_of_two_slots_stay_two() {
        let mut replay = Replay::new(64);
        for (file_block, slot) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0)] {
            replay.play(&bind(3, file_block, 10 + file_block, 1, slot, 0));
        }
        assert_eq!(found(replay), [(3, 0, 10, 2, 0), (3, 2, 12, 2, 1), (3, 4, 14, 1, 0)]);
    }

    #[test]
    fn entries_without_an_inode_are_orphans_and_forget_ends_all() {
        let mut replay = Replay::new(64);
        replay.load(7, Piece::new(1, 10, 2, CopyState::Both, 0).in_slot(5));
        assert_eq!((replay.orphans.len(), replay.dirty.get(5)), (1, true));
        replay.play(&bind(8, 0, 30, 1, 0, 0));
        replay.play(&Body::Forget);
        assert!(replay.orphans.is_empty());
        assert_eq!(found(replay), []);
    }

    #[test]
    fn pieces_that_claim_one_slot_are_moved_and_not_lost() {
        let mut replay = Replay::new(64);
        replay.play(&bind(1, 0, 10, 1, 0, 0));
        replay.play(&bind(2, 0, 20, 1, 0, 0));
        (0..9).for_each(|i| replay.play(&bind(3, i * 2, 30 + i * 2, 1, 4, 4)));
        let mut residency = Residency::new(Slots::new(64, 16, 8, 11));
        let placed = replay.finish(&mut residency, |_, _| false);
        let moved: Vec<_> = placed.moved.iter().map(|(ino, piece)| (*ino, piece.file_block)).collect();
        assert_eq!(moved, [(2, 0), (3, 16)]);
        assert!(placed.dropped.is_empty());
        residency.check();
    }
}
