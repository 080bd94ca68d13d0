//! A node of the tree: in memory a sorted list, on the flash one page.

use super::layout::{Input, Key, Output, Value};
use crate::Result;

/// Bytes of a node's page before its items.
pub(super) const HEADER_BYTES: usize = 12;

/// What a node holds, sorted by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Items {
    Leaf(Vec<(Key, Value)>),
    /// Children, each with a key that none of its items is below (of the first, any key).
    Inner(Vec<(Key, u32)>),
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Leaves are on level 0.
    pub level: u8,
    /// Bytes of its items on the flash.
    pub bytes: usize,
    pub items: Items,
}

pub(super) fn leaf_bytes(item: &(Key, Value)) -> usize {
    item.0.encoded_len() + item.1.encoded_len()
}

pub(super) fn inner_bytes(item: &(Key, u32)) -> usize {
    item.0.encoded_len() + 4
}

/// Where to split `len` items of `total` bytes: before the one in the middle, or the last.
fn middle(mut sizes: impl Iterator<Item = usize>, total: usize, len: usize, at_end: bool) -> usize {
    let mut sum = 0;
    let half = sizes.position(|bytes| {
        sum += bytes;
        sum * 2 > total
    });
    if at_end { len - 1 } else { half.unwrap_or(len / 2).clamp(1, len - 1) }
}

impl Node {
    pub fn empty_leaf() -> Node {
        Node { level: 0, bytes: 0, items: Items::Leaf(Vec::new()) }
    }

    pub fn of(level: u8, items: Items) -> Node {
        let bytes = match &items {
            Items::Leaf(items) => items.iter().map(leaf_bytes).sum(),
            Items::Inner(items) => items.iter().map(inner_bytes).sum(),
        };
        Node { level, bytes, items }
    }

    pub fn len(&self) -> usize {
        match &self.items {
            Items::Leaf(items) => items.len(),
            Items::Inner(items) => items.len(),
        }
    }

    /// The first key, of a node that has one.
    pub fn first_key(&self) -> Option<Key> {
        match &self.items {
            Items::Leaf(items) => items.first().map(|item| item.0),
            Items::Inner(items) => items.first().map(|item| item.0),
        }
    }

    /// Splits off about the second half of its bytes; everything before the last item if `at_end`.
    pub fn split(&mut self, at_end: bool) -> Node {
        let level = self.level;
        let right = match &mut self.items {
            Items::Leaf(items) => {
                let at = middle(items.iter().map(leaf_bytes), self.bytes, items.len(), at_end);
                Items::Leaf(items.split_off(at))
            }
            Items::Inner(items) => {
                let at = middle(items.iter().map(inner_bytes), self.bytes, items.len(), at_end);
                Items::Inner(items.split_off(at))
            }
        };
        let right = Node::of(level, right);
        self.bytes -= right.bytes;
        right
    }

    /// Takes over the items of its right neighbour.
    pub fn append(&mut self, right: Node) {
        match (&mut self.items, right.items) {
            (Items::Leaf(mine), Items::Leaf(theirs)) => mine.extend(theirs),
            (Items::Inner(mine), Items::Inner(theirs)) => mine.extend(theirs),
            _ => unreachable!("neighbours are on one level"),
        }
        self.bytes += right.bytes;
    }

    /// The node as node `id` has it on the flash.
    pub fn encode(&self, id: u32, out: &mut Output) {
        out.u32(id);
        out.u32(self.len() as u32);
        out.u32(u32::from(self.level));
        match &self.items {
            Items::Leaf(items) => items.iter().for_each(|(key, value)| {
                key.write(out);
                value.write(out);
            }),
            Items::Inner(items) => items.iter().for_each(|(key, child)| {
                key.write(out);
                out.u32(*child);
            }),
        }
    }

    /// Reads the page of node `id`.
    pub fn decode(id: u32, page: &[u8]) -> Result<Node> {
        let mut input = Input::new("a node of the object store", page);
        let (found, count, level) = (input.u32()?, input.u32()?, input.u32()?);
        if found != id || level > 32 || count as usize > page.len() {
            return Err(
                input.wrong(format_args!("it is node {found}, level {level}, {count} items, not node {id}"))
            );
        }
        let start = page.len() - HEADER_BYTES;
        let mut last = None;
        let mut next_key = |input: &mut Input| {
            let key = Key::read(input)?;
            if last.replace(key).is_some_and(|last| last >= key) {
                return Err(input.wrong("its keys are out of order"));
            }
            Ok(key)
        };
        let items = if level == 0 {
            let mut items = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let key = next_key(&mut input)?;
                items.push((key, Value::read(key, &mut input)?));
            }
            Items::Leaf(items)
        } else {
            let mut items = Vec::with_capacity(count as usize);
            for _ in 0..count {
                items.push((next_key(&mut input)?, input.u32()?));
            }
            if items.is_empty() {
                return Err(input.wrong("an inner node without children"));
            }
            Items::Inner(items)
        };
        let node = Node::of(level as u8, items);
        debug_assert!(node.bytes <= start);
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::osd::layout::{Extent, Fork};
    use proptest::prelude::*;

    fn leaf(count: u64) -> Node {
        let item =
            |n: u64| (Key::extent(n, Fork::Data, n * 3), Value::Extent(Extent { len: 9, at: n << 20 }));
        Node::of(0, Items::Leaf((0..count).map(item).collect()))
    }

    #[test]
    fn a_node_comes_back_from_its_page() {
        for node in [leaf(40), Node::of(2, Items::Inner(vec![(Key::onode(0), 7), (Key::onode(900), 8)]))] {
            let mut out = Output::default();
            node.encode(5, &mut out);
            assert_eq!(out.0.len(), HEADER_BYTES + node.bytes);
            out.0.resize(2048, 0);
            assert_eq!(Node::decode(5, &out.0).unwrap(), node);
            assert!(Node::decode(6, &out.0).is_err(), "another node's page");
        }
    }

    #[test]
    fn halves_are_even_or_the_left_one_full() {
        let (mut even, mut full) = (leaf(100), leaf(100));
        let (right, last) = (even.split(false), full.split(true));
        assert!((40..60).contains(&right.len()), "{}", right.len());
        assert_eq!((full.len(), last.len()), (99, 1));
        even.append(right);
        assert_eq!(even, leaf(100));
    }

    proptest! {
        #[test]
        fn noise_is_an_error_or_a_node_and_never_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 12..200)) {
            bytes[..4].copy_from_slice(&3u32.to_le_bytes());
            bytes[5..8].fill(0);
            let level = u32::from(bytes[8] & 1);
            bytes[8..12].copy_from_slice(&level.to_le_bytes());
            let _ = Node::decode(3, &bytes);
        }
    }
}
