//! The residency map: which block of which inode is on the SSD, where, and in what state.
//!
//! The paper keeps `SSD_active`, `SSD_wr_done` and `SSD_extent[]` per inode. A partly overwritten file has
//! no single state, so states are kept per piece here and summarised per inode. An inode is found by hash
//! ([`Index`]); its slots say what it has. A file of one piece from its first block on, in state 11, is in its
//! slot alone; any other has a [`Node`], with its pieces sorted by file block ([`Pieces`]). Before a change an inode
//! is given a node ([`Residency::open`]), and after it loses the node if it can ([`Residency::close`]).
//!
//! Each piece is an entry of one *slot* of the inode table, and stays in that slot for as long as it lives:
//! a slot is written in place as one sector, so a power cut between the writes of two slots can lose only
//! what moved from one to the other. The rare moves (a piece cut in two whose slot is full) are reported as
//! [`Changes::moved`]; they go into the log before either slot is written. The same goes for a piece that
//! would join two old neighbours: it extends the left one only.
//!
//! Memory: for a file of one piece 10 bytes of a slot and 7 to 9 of the index; for others [`NODE_HEAP`] bytes, 10 for
//! each slot, and [`PIECE_HEAP`] for each piece after the first.

mod adopt;

use super::index::Index;
use super::inodes::Inodes;
use super::nodes::{NODE_HEAP, Node, Nodes};
use super::pieces::{Piece, Pieces};
use super::slot::PackedInode;
use super::slots::{ONE_BLOCKS_MAX, Slots, Use};
use super::unsettled::Unsettled;
use super::{Cause, CopyState};
use smallvec::SmallVec;

/// Bytes of a piece after a node's first: vectors and trees are reckoned two thirds full.
const PIECE_HEAP: usize = size_of::<Piece>() * 3 / 2;

/// The most that a new file of one piece, or a piece more, takes in memory, with its part of the allocator's bits.
pub(super) const FILE_BYTES: usize = NODE_HEAP + PIECE_HEAP + 24;

/// What of an inode is on the SSD.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) ino: u64,
    /// The slot with the duplicated inode.
    pub(super) head: u32,
    pub(super) pieces: View<'a>,
}

/// Pieces of an inode.
#[derive(Clone, Copy)]
pub(super) enum View<'a> {
    /// The only one.
    One(Piece),
    /// Sorted.
    Many(&'a Pieces),
}

impl<'a> View<'a> {
    pub(super) fn len(self) -> usize {
        match self {
            View::One(_) => 1,
            View::Many(pieces) => pieces.len(),
        }
    }

    /// The piece that holds `file_block`.
    pub(super) fn holding(self, file_block: u32) -> Option<Piece> {
        match self {
            View::One(piece) => (u64::from(file_block) < piece.end()).then_some(piece),
            View::Many(pieces) => pieces.holding(file_block),
        }
    }

    /// The first piece with a block at or after `from` that begins before `end`.
    pub(super) fn first_in(self, from: u64, end: u64) -> Option<Piece> {
        match self {
            View::One(piece) => (from < piece.end() && end > 0).then_some(piece),
            View::Many(pieces) => pieces.first_in(from, end),
        }
    }

    /// All pieces, sorted.
    pub(super) fn iter(self) -> impl Iterator<Item = Piece> + 'a {
        let (one, many) = match self {
            View::One(piece) => (Some(piece), None),
            View::Many(pieces) => (None, Some(pieces)),
        };
        one.into_iter().chain(many.into_iter().flat_map(Pieces::iter))
    }
}

/// What a change of the map did beside what was asked.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// What makes them.
    pub(super) cause: Cause,
    /// What is no longer bound.
    pub(super) removed: SmallVec<[Piece; 4]>,
    /// What is bound as before, but recorded in another slot.
    pub(super) moved: SmallVec<[Piece; 2]>,
}

impl Changes {
    /// None yet, of what makes them.
    pub(super) fn of(cause: Cause) -> Changes {
        Changes { cause, ..Changes::default() }
    }
}

/// No slot of the inode table is free.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoSlot;

/// The map, with the slots that hold it.
#[derive(Debug)]
pub(super) struct Residency {
    index: Index,
    nodes: Nodes,
    /// Pieces of nodes after the first.
    more_pieces: usize,
    pub(super) slots: Slots,
    pub(super) inodes: Inodes,
    pub(super) unsettled: Unsettled,
}

/// The number of the inode with this head slot.
fn number(slots: &Slots, nodes: &Nodes, slot: u32) -> u64 {
    match slots.get(slot) {
        Use::Head { node } => nodes.get(node).map_or(0, |node| node.ino),
        _ => slots.ino_low(slot).into(),
    }
}

impl Residency {
    pub(super) fn new(slots: Slots) -> Residency {
        let inodes = Inodes::new(slots.per_block());
        Residency {
            index: Index::new(),
            nodes: Nodes::default(),
            more_pieces: 0,
            slots,
            inodes,
            unsettled: Unsettled::default(),
        }
    }

    /// Number of inodes with blocks on the SSD.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes on the heap, but for duplicated inodes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.index.heap_bytes()
            + self.slots.heap_bytes()
            + self.nodes.heap_bytes()
            + self.more_pieces * PIECE_HEAP
    }

    /// Bytes of nodes and their pieces.
    pub(super) fn node_bytes(&self) -> usize {
        self.nodes.len() * NODE_HEAP + self.more_pieces * PIECE_HEAP
    }

    /// All inodes, in the order of their head slots.
    pub(super) fn all(&self) -> impl Iterator<Item = Found<'_>> {
        self.slots.heads().filter_map(|slot| self.at(slot))
    }

    /// Inodes that are not said by their slot alone: all with a piece in another state than 11 are among them.
    pub(super) fn nodes(&self) -> impl Iterator<Item = Found<'_>> {
        self.nodes.iter().map(found)
    }

    pub(super) fn node(&self, ino: u64) -> Option<Found<'_>> {
        self.at(self.head_of(ino)?)
    }

    /// The head slot of an inode.
    pub(super) fn head_of(&self, ino: u64) -> Option<u32> {
        self.index.get(ino, |slot| number(&self.slots, &self.nodes, slot))
    }

    /// The inode with a head slot.
    pub(super) fn at(&self, head: u32) -> Option<Found<'_>> {
        match self.slots.get(head) {
            Use::One { ino, at, len } => {
                let piece = Piece::new(0, at, len, CopyState::Both, 0).in_slot(head);
                Some(Found { ino: ino.into(), head, pieces: View::One(piece) })
            }
            Use::Head { node } => self.nodes.get(node).map(found),
            Use::Free | Use::Overflow { .. } => None,
        }
    }

    /// The number of an inode's node; it gets one if it has none.
    fn open(&mut self, ino: u64) -> Option<u32> {
        let head = self.head_of(ino)?;
        match self.slots.get(head) {
            Use::Head { node } => Some(node),
            Use::One { at, len, .. } => {
                let mut pieces = Pieces::new();
                pieces.put(Piece::new(0, at, len, CopyState::Both, 0).in_slot(head));
                let index = self.nodes.add(Node { ino, pieces, head, room: head });
                self.slots.set_head(head, ino, index, 1);
                Some(index)
            }
            Use::Free | Use::Overflow { .. } => None,
        }
    }

    /// Takes a node away from its inode if its slot can say all of it.
    fn close(&mut self, index: u32) {
        let Some(node) = self.nodes.get(index) else { return };
        let only = if node.pieces.len() == 1 { node.pieces.first_in(0, u64::MAX) } else { None };
        let Some(piece) = only else { return };
        let fits = piece.file_block == 0
            && piece.state() == CopyState::Both
            && piece.len() <= ONE_BLOCKS_MAX
            && piece.slot == node.head;
        if let (true, Ok(ino)) = (fits, u32::try_from(node.ino)) {
            self.slots.set_one(node.head, ino, piece.at, piece.len());
            self.nodes.remove(index);
        }
    }

    /// Adds a piece to a node, or replaces the one that begins at the same block.
    fn put_piece(&mut self, index: u32, piece: Piece) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        let before = node.pieces.len();
        node.pieces.put(piece);
        self.more_pieces += node.pieces.len().saturating_sub(1) - before.saturating_sub(1);
    }

    fn take_piece(&mut self, index: u32, file_block: u32) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        let before = node.pieces.len();
        node.pieces.take(file_block);
        self.more_pieces -= before.saturating_sub(1) - node.pieces.len().saturating_sub(1);
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
        let index = match self.open(ino) {
            Some(index) => index,
            None => self.add(ino).ok_or(NoSlot)?,
        };
        let bound = self.bind_in(index, inode, piece, floor);
        self.close(index);
        bound
    }

    fn bind_in(
        &mut self,
        index: u32,
        inode: PackedInode,
        piece: Piece,
        floor: u32,
    ) -> Result<(u32, u32), NoSlot> {
        let Some(node) = self.nodes.get(index) else { return Err(NoSlot) };
        let head = node.head;
        self.inodes.set(head, inode);
        self.slots.touch(head);
        let left = node.pieces.at_or_before(piece.file_block);
        if let Some(left) = left.filter(|left| left.at >= floor)
            && let Some(longer) = left.extended(&piece)
        {
            self.put_piece(index, longer);
            self.slots.touch(left.slot);
            return Ok((left.slot, head));
        }
        let slot = self.slot_for(index, left.map(|left| left.slot)).ok_or(NoSlot)?;
        self.put(index, piece.in_slot(slot));
        Ok((slot, head))
    }

    /// A new node with a head slot, without pieces. Leaves the reserve of slots alone.
    fn add(&mut self, ino: u64) -> Option<u32> {
        if self.slots.free_for_inodes() == 0 {
            return None;
        }
        let head = self.slots.free.take_lowest()?;
        Some(self.add_with_head(ino, head))
    }

    fn add_with_head(&mut self, ino: u64, head: u32) -> u32 {
        let index = self.nodes.add(Node { ino, pieces: Pieces::new(), head, room: head });
        self.slots.set_head(head, ino, index, 0);
        self.slots.taken(head);
        let (slots, nodes) = (&self.slots, &self.nodes);
        self.index.insert(ino, head, |slot| number(slots, nodes, slot));
        index
    }

    fn put(&mut self, index: u32, piece: Piece) {
        self.slots.entry_came(piece.slot);
        self.put_piece(index, piece);
    }

    /// A slot of the node with room for an entry: `near` if it has, else the last one with room, else a new one.
    fn slot_for(&mut self, index: u32, near: Option<u32>) -> Option<u32> {
        let node = self.nodes.get_mut(index)?;
        for slot in [near.unwrap_or(node.head), node.room] {
            if self.slots.head_of(slot) == Some(node.head) && self.slots.room(slot) > 0 {
                return Some(slot);
            }
        }
        if self.slots.spare() == 0 {
            return None;
        }
        let slot = self.slots.free.take_lowest()?;
        node.room = slot;
        self.slots.take_overflow(slot, node.head);
        Some(slot)
    }

    /// An entry left a slot.
    fn entry_left(&mut self, index: u32, slot: u32, cause: Cause) {
        self.slots.entry_went(slot);
        if cause.op > 0 {
            self.slots.entry_waits(slot, cause);
        }
        let Some(node) = self.nodes.get_mut(index) else { return };
        if self.slots.entries(slot) == 0 && slot != node.head {
            self.slots.release(slot, self.unsettled.last(node.ino));
        } else if self.slots.room(slot) > 0 {
            node.room = slot;
        }
    }

    /// Slots, and places in them, that waited for what is settled now can be taken.
    pub(super) fn free_settled(&mut self, is_settled: impl Fn(Cause) -> bool) {
        let Residency { slots, nodes, .. } = self;
        for slot in slots.free_settled(is_settled) {
            if let Some(head) = slots.head_of(slot)
                && let Use::Head { node } = slots.get(head)
                && let Some(node) = nodes.get_mut(node)
            {
                node.room = slot;
            }
        }
    }

    fn first_in(&self, index: u32, from: u64, end: u64) -> Option<Piece> {
        self.nodes.get(index)?.pieces.first_in(from, end)
    }

    /// Unbinds file blocks `from..end`. When a remainder finds no slot it goes too.
    pub(super) fn carve(&mut self, ino: u64, from: u64, end: u64, changes: &mut Changes) {
        if self.node(ino).and_then(|found| found.pieces.first_in(from, end)).is_none() {
            return;
        }
        let Some(index) = self.open(ino) else { return };
        self.unsettled.unbound(ino, changes.cause);
        while let Some(old) = self.first_in(index, from, end) {
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
        self.close(index);
    }

    /// Puts `parts` (cut from `old`, in order) in the place of `old`.
    fn replace(&mut self, index: u32, old: Piece, parts: &[Piece], changes: &mut Changes) {
        self.take_piece(index, old.file_block);
        if parts.is_empty() {
            self.entry_left(index, old.slot, changes.cause);
        } else {
            // The first part takes the entry over.
            self.slots.entry_went(old.slot);
        }
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

    /// Removes an inode without pieces from the map; the head slot it had, if it was removed.
    pub(super) fn forget_if_empty(&mut self, ino: u64) -> Option<u32> {
        let head = self.head_of(ino)?;
        let Use::Head { node } = self.slots.get(head) else { return None };
        if !self.nodes.get(node)?.pieces.is_empty() {
            return None;
        }
        self.index.remove(ino, head);
        self.nodes.remove(node);
        self.inodes.forget(head);
        self.slots.release(head, self.unsettled.last(ino));
        Some(head)
    }

    /// Gives state 11 to the pieces in state 10 that touch `from..end` and for which `select` holds.
    pub(super) fn finish(&mut self, ino: u64, (from, end): (u64, u64), select: impl Fn(&Piece) -> bool) {
        let Some(Use::Head { node: index }) = self.head_of(ino).map(|head| self.slots.get(head)) else {
            return;
        };
        let mut at = from;
        while let Some(piece) = self.first_in(index, at, end) {
            at = piece.end();
            if piece.state() == CopyState::Ssd && select(&piece) {
                self.put_piece(index, piece.with_state(CopyState::Both));
                self.slots.touch(piece.slot);
            }
        }
        self.close(index);
    }

    /// Sets the state of every piece (or part of one) in `from..end`. A piece that would have to be cut and
    /// finds no slot for its parts stays as it is.
    pub(super) fn set_state(
        &mut self,
        ino: u64,
        (from, end): (u64, u64),
        state: CopyState,
        changes: &mut Changes,
    ) {
        let Some(index) = self.open(ino) else { return };
        let mut at = from;
        while let Some(old) = self.first_in(index, at, end) {
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
            if self.can_cut(old.slot, parts.len() as u32 - 1) {
                self.replace(index, old, &parts, changes);
            }
        }
        self.close(index);
    }

    /// Whether `from..end` begins inside a piece in state 10 that there is no slot to cut in two for. (It may be unbound in steps, so
    /// that it ends in there, too, does not count.)
    pub(super) fn lacks_slot(&self, ino: u64, from: u64, end: u64) -> bool {
        let around = self.node(ino).and_then(|found| found.pieces.first_in(from, end));
        around.is_some_and(|piece| {
            u64::from(piece.file_block) < from
                && piece.state() == CopyState::Ssd
                && !self.can_cut(piece.slot, 1)
        })
    }

    /// Whether `more` entries find room beside one in `slot`.
    fn can_cut(&self, slot: u32, more: u32) -> bool {
        more <= u32::from(self.slots.room(slot)) || self.slots.spare() > 0
    }

    /// Checks the slots against the pieces; for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut used = std::collections::BTreeMap::<u32, u8>::new();
        let mut more = 0;
        for found in self.all() {
            assert_eq!(self.head_of(found.ino), Some(found.head));
            used.entry(found.head).or_default();
            more +=
                if matches!(found.pieces, View::Many(_)) { found.pieces.len().saturating_sub(1) } else { 0 };
            let mut end = 0;
            for piece in found.pieces.iter() {
                assert!(u64::from(piece.file_block) >= end && piece.len() > 0, "{piece:?}");
                end = piece.end();
                let used = used.entry(piece.slot).or_default();
                *used += 1;
                assert_eq!(self.slots.head_of(piece.slot), Some(found.head));
                let head = piece.slot == found.head;
                assert!(*used <= if head { self.slots.head_entries } else { self.slots.overflow_entries });
            }
        }
        assert_eq!((self.all().count(), more), (self.len(), self.more_pieces));
        for slot in 0..self.slots.count() {
            let is_free = self.slots.free.contains(slot) || self.slots.is_released(slot);
            assert_eq!(!self.slots.is_used(slot), is_free, "slot {slot}");
            let entries = match self.slots.get(slot) {
                Use::Free => None,
                Use::One { .. } => Some(1),
                Use::Head { .. } | Use::Overflow { .. } => Some(self.slots.entries(slot)),
            };
            assert_eq!(entries, used.get(&slot).copied(), "slot {slot}");
        }
    }
}

fn found(node: &Node) -> Found<'_> {
    Found { ino: node.ino, head: node.head, pieces: View::Many(&node.pieces) }
}

#[cfg(test)]
mod tests;
