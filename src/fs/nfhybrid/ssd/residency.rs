//! The residency map: which block of which inode is on the SSD, where, and in what state.
//!
//! The paper keeps `SSD_active`, `SSD_wr_done` and `SSD_extent[]` per inode. A partly overwritten file has
//! no single state, so states are kept per piece here and summarised per inode. An inode is found by hash,
//! its pieces are sorted by file block ([`Pieces`]).
//!
//! Each piece is an entry of one *slot* of the inode table, and stays in that slot for as long as it lives:
//! a slot is written in place as one sector, so a power cut between the writes of two slots can lose only
//! what moved from one to the other. The rare moves (a piece cut in two whose slot is full) are reported as
//! [`Changes::moved`]; they go into the log before either slot is written. The same goes for a piece that
//! would join two old neighbours: it extends the left one only.

use super::WrDone;
use super::bits::{Bits, Pool};
use super::pieces::{Piece, Pieces};
use super::sector::{SECTOR_PAYLOAD, SECTORS_PER_BLOCK};
use super::slot::PackedInode;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// One inode with blocks on the SSD.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) ino: u64,
    pub(super) pieces: Pieces,
    pub(super) inode: PackedInode,
    /// The slot with the duplicated inode.
    pub(super) head: u32,
    /// A slot of it that had room when last looked at.
    room: u32,
    /// Its handles in the replacement queues, one for each section it has blocks in.
    pub(super) handles: SmallVec<[u32; 2]>,
}

/// Which slots of the inode table are whose.
#[derive(Debug)]
pub(super) struct Slots {
    /// Index of the owning node plus one; zero for a free slot.
    owner: Vec<u32>,
    used: Vec<u8>,
    free: Pool,
    /// Free slots that new inodes may not take: cutting pieces of old ones must go on.
    reserve: u32,
    head_entries: u8,
    overflow_entries: u8,
    per_block: u32,
    /// Slots at or after this one were never written.
    high: u32,
    dirty: Bits,
    dirty_bitmap: Bits,
}

/// Slots whose bits share one 4 KiB block of the inode bitmap.
pub(super) const SLOTS_PER_BITMAP_BLOCK: u32 = SECTORS_PER_BLOCK * SECTOR_PAYLOAD as u32 * 8;

impl Slots {
    /// A free table of `count` slots, `per_block` of them in a 4 KiB block.
    pub(super) fn new(count: u32, per_block: u32, head_entries: u8, overflow_entries: u8) -> Slots {
        Slots {
            owner: vec![0; count as usize],
            used: vec![0; count as usize],
            free: Pool::full(count),
            reserve: (count / 64).min(1024),
            head_entries,
            overflow_entries,
            per_block,
            high: 0,
            dirty: Bits::new(count.div_ceil(per_block)),
            dirty_bitmap: Bits::new(count.div_ceil(SLOTS_PER_BITMAP_BLOCK)),
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.owner.len() as u32
    }

    pub(super) fn used(&self) -> u32 {
        self.count() - self.free.len()
    }

    /// Slots that new inodes may take.
    pub(super) fn free_for_inodes(&self) -> u32 {
        self.free.len().saturating_sub(self.reserve)
    }

    /// The index of the node a slot belongs to.
    pub(super) fn owner(&self, slot: u32) -> Option<u32> {
        self.owner[slot as usize].checked_sub(1)
    }

    /// Blocks of the table with slots that changed since this was last taken.
    pub(super) fn dirty(&mut self) -> &mut Bits {
        &mut self.dirty
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

    fn take(&mut self, node: u32, slot: u32) {
        self.owner[slot as usize] = node + 1;
        self.used[slot as usize] = 0;
        self.high = self.high.max(slot + 1);
        self.changed(slot);
    }

    /// A slot was taken or freed.
    pub(super) fn changed(&mut self, slot: u32) {
        self.touch(slot);
        self.dirty_bitmap.set(slot / SLOTS_PER_BITMAP_BLOCK);
    }

    fn release(&mut self, slot: u32) {
        self.owner[slot as usize] = 0;
        self.free.insert(slot);
        self.changed(slot);
    }

    fn room(&self, node: &Node, slot: u32) -> u32 {
        let entries = if slot == node.head { self.head_entries } else { self.overflow_entries };
        u32::from(entries - self.used[slot as usize])
    }
}

/// What a change of the map did beside what was asked.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// What is no longer bound.
    pub(super) removed: SmallVec<[Piece; 4]>,
    /// What is bound as before, but recorded in another slot.
    pub(super) moved: SmallVec<[Piece; 2]>,
}

/// No slot of the inode table is free.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoSlot;

/// The map, with the slots that hold it.
#[derive(Debug)]
pub(super) struct Residency {
    by_ino: FxHashMap<u64, u32>,
    nodes: Vec<Option<Node>>,
    free_nodes: Vec<u32>,
    pub(super) slots: Slots,
}

impl Residency {
    pub(super) fn new(slots: Slots) -> Residency {
        Residency { by_ino: FxHashMap::default(), nodes: Vec::new(), free_nodes: Vec::new(), slots }
    }

    /// Number of inodes with blocks on the SSD.
    pub(super) fn len(&self) -> usize {
        self.by_ino.len()
    }

    /// All inodes, in no order of use.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    pub(super) fn node(&self, ino: u64) -> Option<&Node> {
        self.at(*self.by_ino.get(&ino)?)
    }

    pub(super) fn node_mut(&mut self, ino: u64) -> Option<&mut Node> {
        self.nodes.get_mut(*self.by_ino.get(&ino)? as usize)?.as_mut()
    }

    /// The node with an index, as [`Slots::owner`] gives it.
    pub(super) fn at(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)?.as_ref()
    }

    /// Binds `piece`, whose file blocks are bound to nothing. It may extend the piece before it if that
    /// lies at or after SSD block `floor` (where its section begins). The slot that holds the piece now, and
    /// the inode's head slot.
    pub(super) fn bind(
        &mut self,
        ino: u64,
        inode: PackedInode,
        piece: Piece,
        floor: u32,
    ) -> Result<(u32, u32), NoSlot> {
        let index = match self.by_ino.get(&ino) {
            Some(index) => *index,
            None => self.add(ino, inode).ok_or(NoSlot)?,
        };
        let Some(node) = self.nodes[index as usize].as_mut() else { return Err(NoSlot) };
        node.inode = inode;
        self.slots.touch(node.head);
        let left = node.pieces.at_or_before(piece.file_block);
        if let Some(left) = left.filter(|left| left.at >= floor)
            && let Some(longer) = left.extended(&piece)
        {
            node.pieces.put(longer);
            self.slots.touch(left.slot);
            return Ok((left.slot, node.head));
        }
        let head = node.head;
        let slot = self.slot_for(index, left.map(|left| left.slot)).ok_or(NoSlot)?;
        self.put(index, piece.in_slot(slot));
        Ok((slot, head))
    }

    /// A new node with a head slot, without pieces. Leaves the reserve of slots alone.
    fn add(&mut self, ino: u64, inode: PackedInode) -> Option<u32> {
        if self.slots.free_for_inodes() == 0 {
            return None;
        }
        let head = self.slots.free.take_lowest()?;
        Some(self.add_with_head(ino, inode, head))
    }

    fn add_with_head(&mut self, ino: u64, inode: PackedInode, head: u32) -> u32 {
        let node = Node { ino, pieces: Pieces::new(), inode, head, room: head, handles: SmallVec::new() };
        let index = self.free_nodes.pop().unwrap_or(self.nodes.len() as u32);
        if index as usize == self.nodes.len() {
            self.nodes.push(Some(node));
        } else {
            self.nodes[index as usize] = Some(node);
        }
        self.by_ino.insert(ino, index);
        self.slots.take(index, head);
        index
    }

    fn put(&mut self, index: u32, piece: Piece) {
        if let Some(node) = self.nodes[index as usize].as_mut() {
            self.slots.used[piece.slot as usize] += 1;
            self.slots.touch(piece.slot);
            node.pieces.put(piece);
        }
    }

    /// A slot of the node with room for an entry: `near` if it has, else the last one with room, else a new one.
    fn slot_for(&mut self, index: u32, near: Option<u32>) -> Option<u32> {
        let node = self.nodes[index as usize].as_mut()?;
        for slot in [near.unwrap_or(node.head), node.room] {
            if self.slots.owner(slot) == Some(index) && self.slots.room(node, slot) > 0 {
                return Some(slot);
            }
        }
        let slot = self.slots.free.take_lowest()?;
        node.room = slot;
        self.slots.take(index, slot);
        Some(slot)
    }

    /// An entry left a slot.
    fn entry_left(&mut self, index: u32, slot: u32) {
        self.slots.used[slot as usize] -= 1;
        self.slots.touch(slot);
        let Some(node) = self.nodes[index as usize].as_mut() else { return };
        if self.slots.used[slot as usize] == 0 && slot != node.head {
            self.slots.release(slot);
        } else {
            node.room = slot;
        }
    }

    /// Unbinds file blocks `from..end`. When a remainder finds no slot it goes too.
    pub(super) fn carve(&mut self, ino: u64, from: u64, end: u64, changes: &mut Changes) {
        let Some(&index) = self.by_ino.get(&ino) else { return };
        while let Some(old) = self.nodes[index as usize].as_ref().and_then(|n| n.pieces.first_in(from, end)) {
            let mut rest = SmallVec::<[Piece; 3]>::new();
            let mut middle = old;
            if u64::from(old.file_block) < from {
                rest.push(old.before(from));
                middle = middle.from(from);
            }
            if old.end() > end {
                rest.push(middle.from(end));
                middle = middle.before(end);
            }
            changes.removed.push(middle);
            self.replace(index, old, &rest, changes);
        }
    }

    /// Puts `parts` (cut from `old`, in order) in the place of `old`.
    fn replace(&mut self, index: u32, old: Piece, parts: &[Piece], changes: &mut Changes) {
        if let Some(node) = self.nodes[index as usize].as_mut() {
            node.pieces.take(old.file_block);
        }
        self.entry_left_unless_kept(index, old.slot, parts.is_empty());
        for (at, part) in parts.iter().enumerate() {
            if at == 0 {
                self.put(index, part.in_slot(old.slot));
            } else if let Some(slot) = self.slot_for(index, Some(old.slot)) {
                let part = part.in_slot(slot);
                self.put(index, part);
                if slot != old.slot {
                    changes.moved.push(part);
                }
            } else {
                changes.removed.push(*part);
            }
        }
    }

    /// The entry of a replaced piece: it goes, or is taken over by the first part.
    fn entry_left_unless_kept(&mut self, index: u32, slot: u32, gone: bool) {
        if gone {
            self.entry_left(index, slot);
        } else {
            self.slots.used[slot as usize] -= 1;
        }
    }

    /// Removes an inode without pieces from the map; its queue handles, if it was removed.
    pub(super) fn forget_if_empty(&mut self, ino: u64) -> Option<Node> {
        let index = *self.by_ino.get(&ino)?;
        if !self.nodes[index as usize].as_ref()?.pieces.is_empty() {
            return None;
        }
        let node = self.nodes[index as usize].take()?;
        self.by_ino.remove(&ino);
        self.free_nodes.push(index);
        self.slots.release(node.head);
        Some(node)
    }

    /// Gives state 11 to the pieces in state 10 that touch `from..end` and for which `select` holds.
    pub(super) fn finish(&mut self, ino: u64, (from, end): (u64, u64), select: impl Fn(&Piece) -> bool) {
        let Some(&index) = self.by_ino.get(&ino) else { return };
        let Some(node) = self.nodes[index as usize].as_mut() else { return };
        let mut at = from;
        while let Some(piece) = node.pieces.first_in(at, end) {
            at = piece.end();
            if piece.state() == WrDone::Ssd && select(&piece) {
                node.pieces.put(piece.with_state(WrDone::Both));
                self.slots.touch(piece.slot);
            }
        }
    }

    /// Sets the state of every piece (or part of one) in `from..end`. A piece that would have to be cut and
    /// finds no slot for its parts stays as it is.
    pub(super) fn set_state(
        &mut self,
        ino: u64,
        (from, end): (u64, u64),
        state: WrDone,
        changes: &mut Changes,
    ) {
        let Some(&index) = self.by_ino.get(&ino) else { return };
        let mut at = from;
        while let Some(old) = self.nodes[index as usize].as_ref().and_then(|n| n.pieces.first_in(at, end)) {
            at = old.end();
            if old.state() == state {
                continue;
            }
            let mut parts = SmallVec::<[Piece; 3]>::new();
            let mut middle = old;
            if u64::from(old.file_block) < from {
                parts.push(old.before(from));
                middle = middle.from(from);
            }
            let right = (old.end() > end).then(|| middle.from(end));
            middle = if right.is_some() { middle.before(end) } else { middle };
            parts.push(middle.with_state(state));
            parts.extend(right);
            if self.can_cut(index, old.slot, parts.len() as u32 - 1) {
                self.replace(index, old, &parts, changes);
            }
        }
    }

    /// Whether `more` entries find room beside one in `slot`.
    fn can_cut(&self, index: u32, slot: u32, more: u32) -> bool {
        let room = self.at(index).map_or(0, |node| self.slots.room(node, slot));
        more <= room || self.slots.free.len() > 0
    }

    /// Takes over an inode as a mount found it. What of it does not fit into the slots it names, because they
    /// are another's or full, is returned; `None` if the head slot is another's.
    pub(super) fn adopt(
        &mut self,
        ino: u64,
        head: u32,
        inode: PackedInode,
        pieces: &Pieces,
    ) -> Option<Vec<Piece>> {
        if head >= self.slots.count() || !self.slots.free.remove(head) {
            return None;
        }
        let index = self.add_with_head(ino, inode, head);
        let mut left = Vec::new();
        for piece in pieces.iter() {
            let slot = piece.slot;
            if slot < self.slots.count() && self.slots.free.remove(slot) {
                self.slots.take(index, slot);
            }
            let stays = slot < self.slots.count()
                && self.slots.owner(slot) == Some(index)
                && self.at(index).is_some_and(|node| self.slots.room(node, slot) > 0);
            if stays {
                self.put(index, piece);
            } else {
                left.push(piece);
            }
        }
        Some(left)
    }

    /// Puts a piece that was found at a mount into any slot; where it went.
    pub(super) fn place(&mut self, ino: u64, inode: PackedInode, piece: Piece) -> Option<Piece> {
        let index = match self.by_ino.get(&ino) {
            Some(index) => *index,
            None => self.add(ino, inode)?,
        };
        let piece = piece.in_slot(self.slot_for(index, None)?);
        self.put(index, piece);
        Some(piece)
    }

    /// Checks the slots against the pieces; for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut used = vec![0u8; self.slots.owner.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            assert_eq!(self.by_ino.get(&node.ino), Some(&(index as u32)));
            assert_eq!(self.slots.owner(node.head), Some(index as u32));
            let mut end = 0;
            for piece in node.pieces.iter() {
                assert!(u64::from(piece.file_block) >= end && piece.len() > 0, "{piece:?}");
                end = piece.end();
                used[piece.slot as usize] += 1;
                assert_eq!(self.slots.owner(piece.slot), Some(index as u32));
                let entries = if piece.slot == node.head {
                    self.slots.head_entries
                } else {
                    self.slots.overflow_entries
                };
                assert!(used[piece.slot as usize] <= entries);
            }
        }
        assert_eq!(used, self.slots.used);
        for slot in 0..self.slots.count() {
            assert_eq!(self.slots.owner(slot).is_none(), self.slots.free.contains(slot), "slot {slot}");
            if let Some(node) = self.slots.owner(slot).and_then(|owner| self.at(owner)) {
                assert!(used[slot as usize] > 0 || node.head == slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};
    use std::collections::BTreeMap;

    const INODE: PackedInode = PackedInode([0; 64]);

    fn residency(slots: u32) -> Residency {
        Residency::new(Slots::new(slots, 16, 8, 11))
    }

    /// Every bound file block with its SSD block and state.
    fn blocks(residency: &Residency, ino: u64) -> BTreeMap<u64, (u32, WrDone)> {
        let pieces = residency.node(ino).map(|node| node.pieces.iter().collect::<Vec<_>>());
        let each = |piece: Piece| {
            (0..piece.len()).map(move |i| (u64::from(piece.file_block + i), (piece.at + i, piece.state())))
        };
        pieces.into_iter().flatten().flat_map(each).collect()
    }

    #[test]
    fn random_binding_and_unbinding_agrees_with_a_map_of_blocks() {
        let mut random = SmallRng::seed_from_u64(5);
        let mut residency = residency(4096);
        let mut model: BTreeMap<u64, (u32, WrDone)> = BTreeMap::new();
        let mut next = 0;
        for _ in 0..6000 {
            let from = random.random_range(0..2000u64);
            let end = from + random.random_range(1..30u64);
            let mut changes = Changes::default();
            match random.random_range(0..4) {
                0 | 1 => {
                    residency.carve(1, from, end, &mut changes);
                    let state = if random.random() { WrDone::Ssd } else { WrDone::Both };
                    let piece = Piece::new(from as u32, next, (end - from) as u32, state, 0);
                    residency.bind(1, INODE, piece, 0).unwrap();
                    model.extend((from..end).map(|b| (b, (next + (b - from) as u32, state))));
                    next += (end - from) as u32;
                }
                2 => {
                    residency.carve(1, from, end, &mut changes);
                    let gone: u32 = changes.removed.iter().map(Piece::len).sum();
                    let before = model.len();
                    model.retain(|block, _| !(from..end).contains(block));
                    assert_eq!(gone as usize, before - model.len());
                    residency.forget_if_empty(1);
                }
                _ => {
                    residency.set_state(1, (from, end), WrDone::Both, &mut changes);
                    model.range_mut(from..end).for_each(|(_, block)| block.1 = WrDone::Both);
                }
            }
        }
        assert_eq!(blocks(&residency, 1), model);
        residency.check();
    }

    #[test]
    fn sequential_binding_makes_one_piece_and_never_joins_two_old_ones() {
        let mut residency = residency(64);
        for at in [0, 1, 3, 2] {
            residency.bind(1, INODE, Piece::new(at, 100 + at, 1, WrDone::Both, 0), 0).unwrap();
        }
        let pieces: Vec<_> =
            residency.node(1).unwrap().pieces.iter().map(|piece| (piece.file_block, piece.len())).collect();
        assert_eq!(pieces, [(0, 3), (3, 1)]);
    }

    #[test]
    fn a_remainder_stays_in_its_slot_or_is_reported_as_moved() {
        let mut residency = residency(64);
        for i in 0..8 {
            residency.bind(1, INODE, Piece::new(i * 10, i * 100, 5, WrDone::Both, 0), 0).unwrap();
        }
        let mut changes = Changes::default();
        residency.carve(1, 0, 1, &mut changes);
        assert!(changes.moved.is_empty(), "the right part takes over the entry");
        residency.carve(1, 12, 13, &mut changes);
        let moved: Vec<_> = changes.moved.iter().map(|piece| (piece.file_block, piece.len())).collect();
        assert_eq!(moved, [(13, 2)], "the head slot holds eight entries");
        residency.check();
    }

    #[test]
    fn without_slots_new_inodes_are_refused_and_remainders_go() {
        let mut residency = residency(65);
        let mut ino = 0;
        while residency.bind(ino, INODE, Piece::new(0, ino as u32 * 10, 8, WrDone::Both, 0), 0).is_ok() {
            ino += 1;
        }
        assert_eq!((ino, residency.slots.used()), (64, 64), "one slot is kept in reserve");
        for extra in 1..20 {
            residency.bind(0, INODE, Piece::new(extra * 20, 5000 + extra * 10, 3, WrDone::Both, 0), 0).ok();
        }
        assert_eq!(residency.slots.used(), 65);
        let mut changes = Changes::default();
        let pieces = residency.node(0).unwrap().pieces.len();
        residency.carve(0, 2, 3, &mut changes);
        assert_eq!(changes.removed.iter().map(Piece::len).sum::<u32>(), 6, "block 2 and the remainder 3-7");
        assert_eq!(residency.node(0).unwrap().pieces.len(), pieces);
        residency.check();
    }
}
