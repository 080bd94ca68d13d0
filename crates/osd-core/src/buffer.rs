//! What users wrote and is not on the flash yet: pieces of objects, in memory.
//!
//! Invariant: the pieces of a fork are sorted, do not overlap, and none ends where the next begins. Cost: O(1)
//! for the next piece of a sequential write, O(pieces of the fork) otherwise.

use super::layout::Fork;
use bimetal_base::time::Stamp;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Bytes to write: given, or (in a store that keeps none) only counted.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// These.
    Bytes(&'a [u8]),
    /// So many.
    Count(u64),
}

impl<'a> Content<'a> {
    /// How many they are.
    pub fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Count(count) => *count,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its part from `skip` on, `len` bytes long.
    pub(super) fn part(&self, skip: u64, len: u64) -> Content<'a> {
        match self {
            Content::Bytes(bytes) => Content::Bytes(&bytes[skip as usize..(skip + len) as usize]),
            Content::Count(_) => Content::Count(len),
        }
    }
}

/// Bytes of a fork that follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub offset: u64,
    pub len: u64,
    /// Empty where none are kept.
    pub bytes: Vec<u8>,
}

impl Piece {
    pub fn new(offset: u64, content: Content) -> Piece {
        let bytes = match content {
            Content::Bytes(bytes) => bytes.to_vec(),
            Content::Count(_) => Vec::new(),
        };
        Piece { offset, len: content.len(), bytes }
    }

    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    fn content(&self) -> Content<'_> {
        if self.bytes.is_empty() { Content::Count(self.len) } else { Content::Bytes(&self.bytes) }
    }

    /// A copy of its part within a range that it overlaps.
    fn within(&self, from: u64, to: u64) -> Piece {
        let (first, last) = (self.offset.max(from), self.end().min(to));
        Piece::new(first, self.content().part(first - self.offset, last - first))
    }

    fn append(&mut self, content: Content) {
        self.len += content.len();
        if let Content::Bytes(bytes) = content {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Goes on with the piece that follows it.
    pub fn join(&mut self, mut next: Piece) {
        self.len += next.len;
        self.bytes.append(&mut next.bytes);
    }

    /// Keeps what is before `offset`, returns the rest.
    pub fn split_off(&mut self, offset: u64) -> Piece {
        let keep = offset - self.offset;
        let bytes = if self.bytes.is_empty() { Vec::new() } else { self.bytes.split_off(keep as usize) };
        let rest = Piece { offset, len: self.len - keep, bytes };
        self.len = keep;
        rest
    }
}

/// The pieces of one fork.
#[derive(Default)]
pub(super) struct Dirty {
    pub pieces: Vec<Piece>,
    /// The end of what was written since the last write-out: the object is at least so long.
    pub end: u64,
    /// When it was last written to; none if its onode knows better.
    pub modified: Option<Stamp>,
    /// Each of its pieces is written with all of its block.
    whole: bool,
}

impl Dirty {
    /// The first piece that ends after `offset`.
    pub fn first_after(&self, offset: u64) -> usize {
        self.pieces.partition_point(|piece| piece.end() <= offset)
    }

    /// Removes the range; how many bytes that were.
    fn cut(&mut self, from: u64, to: u64) -> u64 {
        let mut gone = 0;
        let first = self.first_after(from);
        let Some(piece) = self.pieces.get_mut(first) else { return 0 };
        if piece.offset < from {
            let rest = piece.split_off(from);
            self.pieces.insert(first + 1, rest);
        }
        let first = self.first_after(from);
        let mut last = first;
        while let Some(piece) = self.pieces.get_mut(last) {
            if piece.offset >= to {
                break;
            }
            if piece.end() > to {
                let rest = piece.split_off(to);
                self.pieces.insert(last + 1, rest);
            }
            gone += self.pieces[last].len;
            last += 1;
        }
        self.pieces.drain(first..last);
        gone
    }

    /// Puts bytes in the place of what is there; how many more there are now.
    fn put(&mut self, offset: u64, content: Content) -> u64 {
        let end = offset + content.len();
        self.end = self.end.max(end);
        if let Some(last) = self.pieces.last_mut()
            && last.end() == offset
        {
            last.append(content);
            return content.len();
        }
        let at = self.first_after(offset);
        if let Some(piece) = self.pieces.get_mut(at)
            && piece.offset <= offset
            && end <= piece.end()
        {
            if let Content::Bytes(bytes) = content {
                let from = (offset - piece.offset) as usize;
                piece.bytes[from..from + bytes.len()].copy_from_slice(bytes);
            }
            return 0;
        }
        let gone = self.cut(offset, end);
        let mut at = self.first_after(offset);
        if at > 0 && self.pieces[at - 1].end() == offset {
            at -= 1;
            self.pieces[at].append(content);
        } else {
            self.pieces.insert(at, Piece::new(offset, content));
        }
        if self.pieces.get(at + 1).is_some_and(|next| next.offset == end) {
            let next = self.pieces.remove(at + 1);
            self.pieces[at].len += next.len;
            self.pieces[at].bytes.extend_from_slice(&next.bytes);
        }
        content.len() - gone
    }
}

/// What waited of a range of a fork, as it was.
pub(super) struct Waiting {
    key: (u64, Fork),
    /// The end of the fork's pieces, and when it was written to; none if nothing of it waited.
    state: Option<(u64, Option<Stamp>)>,
    range: (u64, u64),
    pieces: Vec<Piece>,
}

/// The pieces of all objects, in the order in which the objects were first written to.
#[derive(Default)]
pub(super) struct Buffer {
    forks: FxHashMap<(u64, Fork), Dirty>,
    order: VecDeque<(u64, Fork)>,
    bytes: u64,
    pieces: usize,
    /// Pieces that take a block each, and its bytes.
    blocks: usize,
    block_bytes: u64,
}

/// What a piece takes of the flash beside its bytes, roughly: its items in the index, a summary and a directory.
const BESIDE_A_PIECE: u64 = 128;

impl Buffer {
    /// An empty one, for a flash with pages of `block_bytes`.
    pub fn new(block_bytes: u64) -> Buffer {
        Buffer { block_bytes, ..Buffer::default() }
    }

    /// Bytes that wait.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the flash that what waits will take, roughly.
    pub fn cost(&self) -> u64 {
        self.bytes + self.pieces as u64 * BESIDE_A_PIECE + self.blocks as u64 * self.block_bytes
    }

    pub fn get(&self, object: u64, fork: Fork) -> Option<&Dirty> {
        self.forks.get(&(object, fork))
    }

    pub fn put(&mut self, object: u64, fork: Fork, offset: u64, content: Content, now: Stamp) {
        let dirty = self.forks.entry((object, fork)).or_insert_with(|| {
            self.order.push_back((object, fork));
            Dirty::default()
        });
        dirty.modified = Some(now);
        let before = dirty.pieces.len();
        self.bytes += dirty.put(offset, content);
        let after = dirty.pieces.len();
        self.pieces = self.pieces + after - before;
        if dirty.whole {
            self.blocks = self.blocks + after - before;
        }
    }

    /// Each piece that waits of a fork will be written with all of its block.
    pub fn keep_whole(&mut self, object: u64, fork: Fork) {
        if let Some(dirty) = self.forks.get_mut(&(object, fork)).filter(|dirty| !dirty.whole) {
            dirty.whole = true;
            self.blocks += dirty.pieces.len();
        }
    }

    /// Forgets what waits of a range; the object is no longer than `end` by what is left.
    pub fn cut(&mut self, object: u64, fork: Fork, from: u64, to: u64) {
        if let Some(dirty) = self.forks.get_mut(&(object, fork)) {
            let before = dirty.pieces.len();
            self.bytes -= dirty.cut(from, to);
            let after = dirty.pieces.len();
            self.pieces = self.pieces + after - before;
            if dirty.whole {
                self.blocks = self.blocks + after - before;
            }
        }
    }

    /// As [`cut`](Buffer::cut) to the end: it is no longer than `size` now.
    pub fn truncate(&mut self, object: u64, fork: Fork, size: u64) {
        self.cut(object, fork, size, u64::MAX);
        if let Some(dirty) = self.forks.get_mut(&(object, fork)) {
            dirty.end = dirty.end.min(size);
        }
    }

    /// The onode says when the object was last changed.
    pub fn forget_times(&mut self, object: u64) {
        if let Some(dirty) = self.forks.get_mut(&(object, Fork::Data)) {
            dirty.modified = None;
        }
    }

    /// Forgets a fork.
    pub fn drop_fork(&mut self, object: u64, fork: Fork) {
        if let Some(dirty) = self.forks.remove(&(object, fork)) {
            self.bytes -= dirty.pieces.iter().map(|piece| piece.len).sum::<u64>();
            self.pieces -= dirty.pieces.len();
            self.blocks -= if dirty.whole { dirty.pieces.len() } else { 0 };
        }
    }

    /// A copy of what waits of a range.
    pub fn save(&self, object: u64, fork: Fork, from: u64, to: u64) -> Waiting {
        let dirty = self.forks.get(&(object, fork));
        let pieces = dirty.map_or(&[][..], |dirty| &dirty.pieces);
        let within = pieces.iter().filter(|piece| piece.offset < to && piece.end() > from);
        let pieces = within.map(|piece| piece.within(from, to)).collect();
        let state = dirty.map(|dirty| (dirty.end, dirty.modified));
        Waiting { key: (object, fork), state, range: (from, to), pieces }
    }

    /// Makes what waits of a range what it was when it was saved.
    pub fn restore(&mut self, saved: Waiting) {
        let (object, fork) = saved.key;
        let Some((end, modified)) = saved.state else { return self.drop_fork(object, fork) };
        self.cut(object, fork, saved.range.0, saved.range.1);
        for piece in &saved.pieces {
            self.put(object, fork, piece.offset, piece.content(), Stamp::default());
        }
        let dirty = self.forks.entry(saved.key).or_insert_with(|| {
            self.order.push_back(saved.key);
            Dirty::default()
        });
        (dirty.end, dirty.modified) = (end, modified);
    }

    /// The objects of which something waits.
    pub fn objects(&self) -> impl Iterator<Item = u64> + '_ {
        self.order.iter().filter(|key| self.forks.contains_key(*key)).map(|key| key.0)
    }

    /// Puts back what was taken of a fork; nothing was written to it since.
    pub fn put_back(&mut self, key: (u64, Fork), dirty: Dirty) {
        self.bytes += dirty.pieces.iter().map(|piece| piece.len).sum::<u64>();
        self.pieces += dirty.pieces.len();
        self.blocks += if dirty.whole { dirty.pieces.len() } else { 0 };
        self.order.push_back(key);
        self.forks.insert(key, dirty);
    }

    /// Puts back a piece of a fork of which the onode knows already what there is to know.
    pub fn wait_again(&mut self, object: u64, fork: Fork, piece: Piece) {
        self.put(object, fork, piece.offset, piece.content(), Stamp::default());
        if let Some(dirty) = self.forks.get_mut(&(object, fork)) {
            dirty.modified = None;
        }
    }

    /// Takes everything.
    pub fn take(&mut self) -> Vec<((u64, Fork), Dirty)> {
        (self.bytes, self.pieces, self.blocks) = (0, 0, 0);
        let order = std::mem::take(&mut self.order);
        order.into_iter().filter_map(|key| Some((key, self.forks.remove(&key)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_saved_comes_back_whatever_happened_to_its_range(
            steps in prop::collection::vec((0u64..200, 1u64..60, any::<u8>(), 0u8..4), 1..40), kept in 0usize..40,
        ) {
            let mut buffer = Buffer::default();
            let shown = |buffer: &Buffer| buffer.get(1, Fork::Data).map(|dirty| {
                (dirty.pieces.clone(), dirty.end, dirty.modified)
            });
            let (mut saved, mut before) = (Vec::new(), None);
            for (number, (offset, len, byte, what)) in steps.into_iter().enumerate() {
                if number == kept {
                    before = Some((shown(&buffer), buffer.bytes()));
                }
                let (from, to) = if what < 2 { (offset, offset + len) } else { (0, u64::MAX) };
                if before.is_some() {
                    saved.push(buffer.save(1, Fork::Data, from, to));
                }
                match what {
                    0 => {
                        let bytes = vec![byte; len as usize];
                        let now = Stamp { sec: number as i64, nsec: 0 };
                        buffer.put(1, Fork::Data, offset, Content::Bytes(&bytes), now);
                    }
                    1 => buffer.cut(1, Fork::Data, from, to),
                    2 => buffer.truncate(1, Fork::Data, offset),
                    _ => buffer.drop_fork(1, Fork::Data),
                }
            }
            saved.into_iter().rev().for_each(|saved| buffer.restore(saved));
            if let Some(before) = before {
                prop_assert_eq!((shown(&buffer), buffer.bytes()), before);
            }
        }

        #[test]
        fn pieces_are_what_a_plain_array_is(
            steps in prop::collection::vec((0u64..200, 0u64..60, any::<u8>(), any::<bool>()), 1..60),
        ) {
            let (mut buffer, mut model) = (Buffer::default(), vec![None; 300]);
            for (offset, len, byte, cut) in steps {
                let range = offset as usize..(offset + len) as usize;
                if cut {
                    buffer.cut(1, Fork::Data, offset, offset + len);
                    model[range].fill(None);
                } else {
                    buffer.put(1, Fork::Data, offset, Content::Bytes(&vec![byte; len as usize]), Stamp::default());
                    model[range].fill(Some(byte));
                }
                let mut seen = vec![None; 300];
                let pieces = buffer.get(1, Fork::Data).map_or(&[][..], |dirty| &dirty.pieces);
                for piece in pieces {
                    for (index, byte) in piece.bytes.iter().enumerate() {
                        seen[piece.offset as usize + index] = Some(*byte);
                    }
                }
                prop_assert!(pieces.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
                prop_assert_eq!(&seen, &model);
                let count = model.iter().flatten().count() as u64;
                prop_assert_eq!((buffer.bytes(), buffer.pieces), (count, pieces.len()));
            }
        }
    }
}
