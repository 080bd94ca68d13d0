//! A node of the tree: sorted items, in memory as they are on the flash.
//!
//! A node keeps the bytes of its page, and for each item its key and where in the bytes it begins. So it takes its
//! page's bytes of memory and 20 an item, about twice its page (a list of keys and values takes four to five times
//! that), is written as it is, and a value is decoded once it is found.
//!
//! **Invariant.** `bytes` is the items' encodings one after the other, each whole and in order of their keys:
//! [`Node::decode`] checks that of what comes from the flash.
//!
//! Cost: a search is one over an array of keys; a change moves what is behind it.

use super::layout::{Input, Key, Output, Value};
use bimetal_base::Result;

/// Bytes of a node's page before its items.
pub(super) const HEADER_BYTES: usize = 44;
/// What its items are, in errors.
const NAME: &str = "a node of the object store";
/// Why reading an item again cannot fail.
const CHECKED: &str = "items are checked when they come into the node";

/// Room that is made at once when a node grows: it grows to a page, not to twice its bytes.
const BYTES_AHEAD: usize = 512;
const ITEMS_AHEAD: usize = 16;

/// Makes room for `more` elements, and some ahead.
fn reserve<T>(list: &mut Vec<T>, more: usize, ahead: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more + ahead);
    }
}

/// The checkpoint that wrote a node: what puts the index together again when nothing else says where it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct By {
    /// Which of the nodes that it wrote this is, and how many these are.
    pub which: u32,
    pub count: u32,
    /// When it was begun, as summaries have it: no other has the same.
    pub mark: u64,
    /// The mark of the newest checkpoint that was complete then.
    pub base: u64,
    /// The number of the last commit then.
    pub commit: u64,
}

/// The number of the node on a page, and what wrote it.
pub(super) fn read_by(page: &[u8]) -> Result<(u32, By)> {
    let mut input = Input::new(NAME, page);
    let id = input.u32()?;
    input.take(8)?;
    let (which, count) = (input.u32()?, input.u32()?);
    Ok((id, By { which, count, mark: input.u64()?, base: input.u64()?, commit: input.u64()? }))
}

/// A node of the tree: a leaf holds keys and values, an inner node keys and children. No item of a child is
/// below its key, but for the first child: its key may be above what was put into it since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Leaves are on level 0.
    pub level: u8,
    bytes: Vec<u8>,
    keys: Vec<Key>,
    /// Where in `bytes` each item begins.
    starts: Vec<u32>,
}

impl Node {
    pub fn empty_leaf() -> Node {
        Node { level: 0, bytes: Vec::new(), keys: Vec::new(), starts: Vec::new() }
    }

    /// An inner node.
    pub fn inner(level: u8, children: &[(Key, u32)]) -> Node {
        let mut node = Node { level, ..Node::empty_leaf() };
        for (index, (key, child)) in children.iter().enumerate() {
            node.insert_child(index, *key, *child);
        }
        node
    }

    pub fn is_leaf(&self) -> bool {
        self.level == 0
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Bytes of its items on the flash.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory it takes.
    pub fn memory_bytes(&self) -> usize {
        let items = self.keys.capacity() * size_of::<Key>() + self.starts.capacity() * size_of::<u32>();
        size_of::<Node>() + self.bytes.capacity() + items
    }

    /// What an item has behind its key.
    fn behind_key(&self, index: usize) -> Input<'_> {
        let from = self.starts[index] as usize + self.keys[index].encoded_len();
        Input::new(NAME, &self.bytes[from..])
    }

    /// The range of an item's bytes.
    fn place(&self, index: usize) -> std::ops::Range<usize> {
        let end = self.starts.get(index + 1).map_or(self.bytes.len(), |start| *start as usize);
        self.starts[index] as usize..end
    }

    pub fn key(&self, index: usize) -> Key {
        self.keys[index]
    }

    /// The first key, of a node that has one.
    pub fn first_key(&self) -> Option<Key> {
        self.keys.first().copied()
    }

    /// An item of a leaf.
    pub fn leaf_item(&self, index: usize) -> (Key, Value) {
        let key = self.keys[index];
        (key, Value::read(key, &mut self.behind_key(index)).expect(CHECKED))
    }

    /// A child of an inner node.
    pub fn child(&self, index: usize) -> u32 {
        self.behind_key(index).u32().expect(CHECKED)
    }

    /// How many keys, from the first on, are `before`.
    pub fn count(&self, before: impl Fn(Key) -> bool) -> usize {
        self.keys.partition_point(|key| before(*key))
    }

    /// Where `key` is, or where it would be.
    pub fn search(&self, key: Key) -> std::result::Result<usize, usize> {
        self.keys.binary_search(&key)
    }

    /// Puts `item` where the bytes of `old` are, and moves the items from `next` on accordingly.
    fn splice(&mut self, old: std::ops::Range<usize>, item: &[u8], next: usize) {
        let removed = old.len() as u32;
        reserve(&mut self.bytes, item.len(), BYTES_AHEAD);
        self.bytes.splice(old, item.iter().copied());
        for start in &mut self.starts[next..] {
            *start = *start + item.len() as u32 - removed;
        }
    }

    /// Puts an item before the one at `index`.
    fn insert(&mut self, index: usize, key: Key, item: &[u8]) {
        let begin = self.starts.get(index).map_or(self.bytes.len(), |start| *start as usize);
        reserve(&mut self.keys, 1, ITEMS_AHEAD);
        self.keys.insert(index, key);
        reserve(&mut self.starts, 1, ITEMS_AHEAD);
        self.starts.insert(index, begin as u32);
        self.splice(begin..begin, item, index + 1);
    }

    /// Sets an item of a leaf; what was there.
    pub fn put(&mut self, key: Key, value: &Value) -> Option<Value> {
        let mut item = Output::default();
        key.write(&mut item);
        value.write(&mut item);
        match self.search(key) {
            Ok(index) => {
                let old = self.leaf_item(index).1;
                self.splice(self.place(index), &item.0, index + 1);
                Some(old)
            }
            Err(index) => {
                self.insert(index, key, &item.0);
                None
            }
        }
    }

    pub fn insert_child(&mut self, index: usize, key: Key, child: u32) {
        let mut item = Output::default();
        key.write(&mut item);
        item.u32(child);
        self.insert(index, key, &item.0);
    }

    /// Gives the first child of an inner node another key.
    pub fn set_first_key(&mut self, key: Key) {
        let child = self.child(0);
        self.remove(0);
        self.insert_child(0, key, child);
    }

    pub fn remove(&mut self, index: usize) {
        let place = self.place(index);
        self.keys.remove(index);
        self.starts.remove(index);
        self.splice(place, &[], index);
    }

    /// Splits off about the second half of its bytes; its last item alone if `at_end`. It has two items or more.
    pub fn split(&mut self, at_end: bool) -> Node {
        let last = self.len() - 1;
        let half = self.starts.partition_point(|start| *start as usize * 2 <= self.bytes.len()) - 1;
        let at = if at_end { last } else { half.clamp(1, last) };
        let begin = self.starts[at];
        let mut starts = self.starts.split_off(at);
        starts.iter_mut().for_each(|start| *start -= begin);
        let (bytes, keys) = (self.bytes.split_off(begin as usize), self.keys.split_off(at));
        Node { level: self.level, bytes, keys, starts }
    }

    /// Takes over the items of its right neighbour, on the same level.
    pub fn append(&mut self, right: &Node) {
        let begin = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&right.bytes);
        self.keys.extend_from_slice(&right.keys);
        self.starts.extend(right.starts.iter().map(|start| begin + start));
    }

    /// The node as node `id` has it on the flash, written by a checkpoint.
    pub fn encode(&self, id: u32, by: &By, out: &mut Output) {
        out.u32(id);
        out.u32(self.len() as u32);
        out.u32(u32::from(self.level));
        out.u32(by.which);
        out.u32(by.count);
        out.u64(by.mark);
        out.u64(by.base);
        out.u64(by.commit);
        out.0.extend_from_slice(&self.bytes);
    }

    /// Reads the page of node `id`.
    pub fn decode(id: u32, page: &[u8]) -> Result<Node> {
        let mut input = Input::new(NAME, page);
        let (found, count, level) = (input.u32()?, input.u32()?, input.u32()?);
        input.take(HEADER_BYTES - 12)?;
        if found != id || level > 32 || count as usize > page.len() {
            return Err(
                input.wrong(format_args!("it is node {found}, level {level}, {count} items, not node {id}"))
            );
        }
        if level > 0 && count == 0 {
            return Err(input.wrong("an inner node without children"));
        }
        let (mut starts, mut keys) = (Vec::with_capacity(count as usize), Vec::with_capacity(count as usize));
        for _ in 0..count {
            starts.push((page.len() - HEADER_BYTES - input.len()) as u32);
            let key = Key::read(&mut input)?;
            if keys.last().is_some_and(|last| *last >= key) {
                return Err(input.wrong("its keys are out of order"));
            }
            keys.push(key);
            if level == 0 {
                Value::read(key, &mut input)?;
            } else {
                input.u32()?;
            }
        }
        let bytes = page[HEADER_BYTES..page.len() - input.len()].to_vec();
        Ok(Node { level: level as u8, bytes, keys, starts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Extent, Fork};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BY: By = By { which: 1, count: 2, mark: 3, base: 4, commit: 5 };

    fn item(n: u64) -> (Key, Value) {
        (Key::extent(n, Fork::Data, n * 3), Value::Extent(Extent { len: 9, at: n << 20 }))
    }

    fn leaf(count: u64) -> Node {
        let mut node = Node::empty_leaf();
        for (key, value) in (0..count).map(item) {
            assert_eq!(node.put(key, &value), None);
        }
        node
    }

    #[test]
    fn a_node_comes_back_from_its_page() {
        for node in [leaf(40), Node::inner(2, &[(Key::onode(0), 7), (Key::onode(900), 8)])] {
            let mut out = Output::default();
            node.encode(5, &BY, &mut out);
            assert_eq!(out.0.len(), HEADER_BYTES + node.bytes());
            out.0.resize(2048, 0);
            assert_eq!(Node::decode(5, &out.0).unwrap(), node);
            assert!(Node::decode(6, &out.0).is_err(), "another node's page");
            assert_eq!(read_by(&out.0).unwrap(), (5, BY));
        }
    }

    #[test]
    fn a_node_from_the_flash_takes_its_bytes_and_twenty_an_item() {
        let (node, mut out) = (leaf(200), Output::default());
        node.encode(5, &BY, &mut out);
        let read = Node::decode(5, &out.0).unwrap();
        assert_eq!(read.memory_bytes(), size_of::<Node>() + node.bytes() + 20 * 200);
    }

    #[test]
    fn halves_are_even_or_the_left_one_full() {
        let (mut even, mut full) = (leaf(100), leaf(100));
        let (right, last) = (even.split(false), full.split(true));
        assert!((40..60).contains(&right.len()), "{}", right.len());
        assert_eq!((full.len(), last.len()), (99, 1));
        even.append(&right);
        assert_eq!(even, leaf(100));
        let mut two = leaf(2);
        assert_eq!((two.split(false).len(), two.len()), (1, 1));
    }

    proptest! {
        #[test]
        fn it_holds_what_a_sorted_map_holds(steps in prop::collection::vec((0u64..30, any::<u64>(), any::<bool>()), 0..200)) {
            let (mut node, mut model) = (Node::empty_leaf(), BTreeMap::new());
            for (place, at, put) in steps {
                let key = Key::extent(place % 3, Fork::Data, place);
                if put {
                    let value = Value::Extent(Extent { len: 1 + at as u32 / 2, at });
                    prop_assert_eq!(node.put(key, &value), model.insert(key, value));
                } else {
                    let found = node.search(key).ok();
                    prop_assert_eq!(found.map(|index| node.leaf_item(index).1), model.remove(&key));
                    found.into_iter().for_each(|index| node.remove(index));
                }
                let items: Vec<_> = (0..node.len()).map(|index| node.leaf_item(index)).collect();
                prop_assert_eq!(items, model.clone().into_iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn noise_is_an_error_or_a_node_and_never_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 44..200)) {
            bytes[..4].copy_from_slice(&3u32.to_le_bytes());
            bytes[5..8].fill(0);
            let level = u32::from(bytes[8] & 1);
            bytes[8..12].copy_from_slice(&level.to_le_bytes());
            let _ = Node::decode(3, &bytes);
        }
    }
}
