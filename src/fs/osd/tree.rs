//! The index: one B+-tree over all objects, its nodes found by a table.
//!
//! One tree rather than one an object: a small object (onode and one extent, some 40 bytes) shares a leaf
//! with its neighbours instead of having pages of its own; a large object's extents are neighbours of one
//! another all the same. A node has a number, and a table says where its newest page lies. So moving or
//! rewriting a node never touches its parent: no chain of rewritten ancestors up to the root (the
//! "wandering tree"), and the cleaner may move any node by itself.
//!
//! Nodes change in memory only; a checkpoint writes those that did. Clean nodes beyond the cache's limit
//! are dropped, the ones not used for the longest time first (a clock). The root is node 0.
//!
//! Cost: O(log n) nodes an operation; memory: 16 bytes a node, and the nodes in the cache.

use super::flash::{Addr, Flash};
use super::layout::{Key, PageKind, Value};
use super::node::{HEADER_BYTES, Items, Node, inner_bytes, leaf_bytes};
use crate::{Error, Result};
use smallvec::SmallVec;

/// The number of the root.
const ROOT: u32 = 0;
/// The most levels a tree of 2³² nodes can have, with room to spare.
const LEVELS_MAX: usize = 24;
/// An address that is none.
pub(super) const NOWHERE: u32 = u32::MAX;

/// A node in the cache.
struct Cached {
    node: Node,
    /// It differs from its page.
    dirty: bool,
    /// It was used since the clock's hand last passed.
    used: bool,
}

/// What the table says of a node.
struct Slot {
    /// Its page, or [`NOWHERE`].
    addr: u32,
    cached: Option<Box<Cached>>,
    /// The number is in use.
    taken: bool,
}

/// A way down: nodes and the child taken in each.
type Path = SmallVec<[(u32, usize); 8]>;

/// The tree with its node table and cache.
pub(super) struct Tree {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Pages that nodes were on before, and numbers given up, since the last checkpoint.
    released: Vec<Addr>,
    given_up: Vec<u32>,
    cached: usize,
    dirty: usize,
    cache_nodes: usize,
    hand: usize,
    /// Bytes of items that fit into a node.
    capacity: usize,
}

impl Tree {
    /// An empty tree, its root not written yet.
    pub fn new(page_bytes: usize, cache_nodes: usize) -> Tree {
        let mut tree = Tree::of(&[NOWHERE], page_bytes, cache_nodes);
        tree.slots[0].taken = true;
        tree.free.clear();
        tree.keep(ROOT, Node::empty_leaf(), true);
        tree
    }

    /// The tree whose nodes lie at `table`.
    pub fn of(table: &[u32], page_bytes: usize, cache_nodes: usize) -> Tree {
        let slot = |addr: &u32| Slot { addr: *addr, cached: None, taken: *addr != NOWHERE };
        let slots: Vec<Slot> = table.iter().map(slot).collect();
        let free = (0..slots.len() as u32).rev().filter(|id| !slots[*id as usize].taken).collect();
        Tree {
            slots,
            free,
            released: Vec::new(),
            given_up: Vec::new(),
            cached: 0,
            dirty: 0,
            cache_nodes: cache_nodes.max(16),
            hand: 0,
            capacity: page_bytes - HEADER_BYTES,
        }
    }

    /// The largest item that can always be stored: four of them fit into a node.
    pub fn item_bytes_max(page_bytes: usize) -> usize {
        (page_bytes - HEADER_BYTES) / 4
    }

    /// Nodes that differ from their pages.
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// Numbers given out, free ones included.
    pub fn table_len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of memory that the table and the cached nodes take, roughly.
    pub fn memory_bytes(&self) -> usize {
        let node = |slot: &Slot| match slot.cached.as_deref().map(|cached| &cached.node.items) {
            None => 0,
            Some(Items::Leaf(items)) => items.capacity() * size_of::<(Key, Value)>() + onode_bytes(items),
            Some(Items::Inner(items)) => items.capacity() * size_of::<(Key, u32)>(),
        };
        self.slots.capacity() * size_of::<Slot>() + self.slots.iter().map(node).sum::<usize>()
    }

    /// Where a node's page lies.
    pub fn addr(&self, id: u32) -> u32 {
        self.slots.get(id as usize).map_or(NOWHERE, |slot| slot.addr)
    }

    /// All nodes with their pages.
    pub fn pages(&self) -> impl Iterator<Item = (u32, Addr)> + '_ {
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.addr != NOWHERE);
        slots.map(|(id, slot)| (id as u32, Addr(slot.addr)))
    }

    fn keep(&mut self, id: u32, node: Node, dirty: bool) {
        self.cached += 1;
        self.dirty += usize::from(dirty);
        self.slots[id as usize].cached = Some(Box::new(Cached { node, dirty, used: true }));
    }

    /// Brings a node into the cache.
    fn load(&mut self, flash: &mut Flash, id: u32) -> Result<()> {
        let Some(slot) = self.slots.get_mut(id as usize) else {
            return Err(Error::corrupt("the index of the object store", "a child that does not exist", id));
        };
        if let Some(cached) = &mut slot.cached {
            cached.used = true;
            return Ok(());
        }
        if slot.addr == NOWHERE {
            return Err(Error::corrupt("the index of the object store", "a node without a page", id));
        }
        let page = flash.read(Addr(slot.addr), PageKind::Node)?;
        let node = Node::decode(id, &page)?;
        self.keep(id, node, false);
        Ok(())
    }

    fn node(&self, id: u32) -> &Node {
        &self.slots[id as usize].cached.as_ref().expect("loaded").node
    }

    /// The node, to be changed.
    fn change(&mut self, id: u32) -> &mut Node {
        let cached = self.slots[id as usize].cached.as_mut().expect("loaded");
        self.dirty += usize::from(!cached.dirty);
        cached.dirty = true;
        &mut cached.node
    }

    /// Marks a node to be written by the next checkpoint, though nothing in it changed.
    pub fn rewrite(&mut self, flash: &mut Flash, id: u32) -> Result<()> {
        self.load(flash, id)?;
        self.change(id);
        Ok(())
    }

    /// Drops clean nodes until the cache is within its limit. Not while an operation is under way.
    pub fn trim(&mut self) {
        let mut left = 2 * self.slots.len();
        while self.cached > self.cache_nodes.max(self.dirty) && left > 0 {
            left -= 1;
            self.hand = if self.hand + 1 >= self.slots.len() { 0 } else { self.hand + 1 };
            let slot = &mut self.slots[self.hand];
            match &mut slot.cached {
                Some(cached) if cached.dirty => {}
                Some(cached) if cached.used => cached.used = false,
                Some(_) => {
                    slot.cached = None;
                    self.cached -= 1;
                }
                None => {}
            }
        }
    }

    /// Goes down to the leaf that `key` belongs to.
    fn descend(&mut self, flash: &mut Flash, key: Key) -> Result<(u32, Path)> {
        let mut path = Path::new();
        let mut id = ROOT;
        loop {
            self.load(flash, id)?;
            let node = self.node(id);
            let Items::Inner(children) = &node.items else { return Ok((id, path)) };
            if path.len() == LEVELS_MAX {
                return Err(Error::corrupt("the index of the object store", "it is too deep", id));
            }
            let index = children.partition_point(|(first, _)| *first <= key).saturating_sub(1);
            path.push((id, index));
            id = children[index].1;
        }
    }

    /// The first key that does not belong to the leaf at the end of `path`.
    fn upper(&self, path: &Path) -> Option<Key> {
        path.iter().rev().find_map(|(id, index)| match &self.node(*id).items {
            Items::Inner(children) => children.get(index + 1).map(|(key, _)| *key),
            Items::Leaf(_) => None,
        })
    }

    fn leaf(&self, id: u32) -> &Vec<(Key, Value)> {
        match &self.node(id).items {
            Items::Leaf(items) => items,
            Items::Inner(_) => unreachable!("a way down ends at a leaf"),
        }
    }

    /// The value at `key`.
    pub fn get(&mut self, flash: &mut Flash, key: Key) -> Result<Option<&Value>> {
        let (id, _) = self.descend(flash, key)?;
        let items = self.leaf(id);
        let found = items.binary_search_by_key(&key, |item| item.0).ok();
        Ok(found.map(|index| &items[index].1))
    }

    /// The last item at or before `key`.
    pub fn last_to(&mut self, flash: &mut Flash, key: Key) -> Result<Option<(Key, Value)>> {
        let (mut id, mut path) = self.descend(flash, key)?;
        loop {
            let items = self.leaf(id);
            let count = items.partition_point(|item| item.0 <= key);
            if count > 0 {
                return Ok(Some(items[count - 1].clone()));
            }
            // Nothing here: the leaf before it.
            loop {
                match path.pop() {
                    None => return Ok(None),
                    Some((_, 0)) => {}
                    Some((inner, index)) => {
                        path.push((inner, index - 1));
                        break;
                    }
                }
            }
            id = self.last_leaf_below(flash, &mut path)?;
        }
    }

    /// The last leaf under the child that `path` ends with.
    fn last_leaf_below(&mut self, flash: &mut Flash, path: &mut Path) -> Result<u32> {
        loop {
            let Some((inner, index)) = path.last().copied() else { return Ok(ROOT) };
            let Items::Inner(children) = &self.node(inner).items else { return Ok(inner) };
            let child = children[index].1;
            self.load(flash, child)?;
            match &self.node(child).items {
                Items::Leaf(_) => return Ok(child),
                Items::Inner(below) if path.len() < LEVELS_MAX => path.push((child, below.len() - 1)),
                Items::Inner(_) => {
                    return Err(Error::corrupt("the index of the object store", "it is too deep", child));
                }
            }
        }
    }

    /// The items from `from` up to, and without, `to`, in order, until `visit` says false.
    pub fn range(
        &mut self,
        flash: &mut Flash,
        mut from: Key,
        to: Key,
        mut visit: impl FnMut(Key, &Value) -> bool,
    ) -> Result<()> {
        while from < to {
            let (id, path) = self.descend(flash, from)?;
            let upper = self.upper(&path);
            let items = self.leaf(id);
            let first = items.partition_point(|item| item.0 < from);
            for (key, value) in &items[first..] {
                if *key >= to || !visit(*key, value) {
                    return Ok(());
                }
            }
            match upper {
                Some(upper) => from = upper,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sets the value at `key`; what was there.
    pub fn put(&mut self, flash: &mut Flash, key: Key, value: Value) -> Result<Option<Value>> {
        let (id, path) = self.descend(flash, key)?;
        let capacity = self.capacity;
        let node = self.change(id);
        let Items::Leaf(items) = &mut node.items else { unreachable!("a way down ends at a leaf") };
        let (old, at_end) = match items.binary_search_by_key(&key, |item| item.0) {
            Ok(index) => {
                let grown = value.encoded_len();
                let old = std::mem::replace(&mut items[index].1, value);
                node.bytes = node.bytes + grown - old.encoded_len();
                (Some(old), false)
            }
            Err(index) => {
                let item = (key, value);
                node.bytes += leaf_bytes(&item);
                items.insert(index, item);
                (None, index + 1 == items.len())
            }
        };
        if node.bytes > capacity {
            self.split(id, path, at_end)?;
        }
        Ok(old)
    }

    /// A number for a new node.
    fn number(&mut self) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { addr: NOWHERE, cached: None, taken: false });
            self.slots.len() as u32 - 1
        });
        self.slots[id as usize].taken = true;
        id
    }

    fn split(&mut self, mut id: u32, mut path: Path, mut at_end: bool) -> Result<()> {
        while self.node(id).bytes > self.capacity {
            let right = self.change(id).split(at_end);
            let key = right.first_key().expect("the right half holds something");
            let right_id = self.number();
            self.keep(right_id, right, true);
            let Some((parent, index)) = path.pop() else {
                self.raise(key, right_id);
                return Ok(());
            };
            let node = self.change(parent);
            let Items::Inner(children) = &mut node.items else { unreachable!("a parent has children") };
            children.insert(index + 1, (key, right_id));
            node.bytes += inner_bytes(&(key, right_id));
            at_end = index + 2 == children.len();
            id = parent;
        }
        Ok(())
    }

    /// Puts a new root over the old one, which gets another number, and its right half.
    fn raise(&mut self, key: Key, right: u32) {
        let left = self.number();
        let root = self.change(ROOT);
        let level = root.level;
        let old = std::mem::replace(root, Node::empty_leaf());
        let first = Key { object: 0, place: 0 };
        *root = Node::of(level + 1, Items::Inner(vec![(first, left), (key, right)]));
        self.keep(left, old, true);
    }

    /// Removes the item at `key`; what it was.
    pub fn delete(&mut self, flash: &mut Flash, key: Key) -> Result<Option<Value>> {
        let (id, path) = self.descend(flash, key)?;
        let Ok(index) = self.leaf(id).binary_search_by_key(&key, |item| item.0) else { return Ok(None) };
        let node = self.change(id);
        let Items::Leaf(items) = &mut node.items else { unreachable!("a way down ends at a leaf") };
        let item = items.remove(index);
        node.bytes -= leaf_bytes(&item);
        self.shrink(flash, id, path)?;
        Ok(Some(item.1))
    }

    /// Joins a node that holds little with a neighbour, and so on upwards.
    fn shrink(&mut self, flash: &mut Flash, mut id: u32, mut path: Path) -> Result<()> {
        while let Some((parent, index)) = path.pop() {
            if self.node(id).bytes * 4 > self.capacity {
                return Ok(());
            }
            let Items::Inner(children) = &self.node(parent).items else {
                unreachable!("a parent has children")
            };
            let count = children.len();
            if count > 1 {
                let left = if index + 1 < count { index } else { index - 1 };
                let (left_id, right_id) = (children[left].1, children[left + 1].1);
                self.load(flash, left_id)?;
                self.load(flash, right_id)?;
                let fits = (self.node(left_id).bytes + self.node(right_id).bytes) * 4 <= self.capacity * 3;
                if !fits && self.node(id).len() > 0 {
                    return Ok(());
                }
                if fits {
                    self.join(parent, left, left_id, right_id);
                } else {
                    // An empty node beside a full one.
                    self.cut(parent, index);
                    self.give_up(id);
                }
            }
            id = parent;
        }
        self.lower(flash)
    }

    fn join(&mut self, parent: u32, left: usize, left_id: u32, right_id: u32) {
        let right = std::mem::replace(self.change(right_id), Node::empty_leaf());
        self.change(left_id).append(right);
        self.give_up(right_id);
        self.cut(parent, left + 1);
    }

    /// Takes a child from its parent.
    fn cut(&mut self, parent: u32, index: usize) {
        let node = self.change(parent);
        let Items::Inner(children) = &mut node.items else { unreachable!("a parent has children") };
        let gone = children.remove(index);
        node.bytes -= inner_bytes(&gone);
    }

    fn give_up(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        if let Some(cached) = slot.cached.take() {
            self.cached -= 1;
            self.dirty -= usize::from(cached.dirty);
        }
        if slot.addr != NOWHERE {
            self.released.push(Addr(slot.addr));
        }
        slot.addr = NOWHERE;
        slot.taken = false;
        self.free.push(id);
        self.given_up.push(id);
    }

    /// A root with a single child becomes that child.
    fn lower(&mut self, flash: &mut Flash) -> Result<()> {
        while let Items::Inner(children) = &self.node(ROOT).items {
            let [(_, only)] = children[..] else { break };
            self.load(flash, only)?;
            let node = std::mem::replace(self.change(only), Node::empty_leaf());
            *self.change(ROOT) = node;
            self.give_up(only);
        }
        Ok(())
    }

    /// The nodes that a checkpoint has to write.
    pub fn dirty_nodes(&self) -> Vec<u32> {
        let dirty = |slot: &Slot| slot.cached.as_ref().is_some_and(|cached| cached.dirty);
        let all = self.slots.iter().enumerate();
        all.filter(|(_, slot)| dirty(slot)).map(|(id, _)| id as u32).collect()
    }

    /// A node in the cache, as its page will be.
    pub fn encode(&self, id: u32, out: &mut super::layout::Output) {
        self.node(id).encode(id, out);
    }

    /// Notes that a dirty node was written to `addr`.
    pub fn wrote(&mut self, id: u32, addr: Addr) {
        let slot = &mut self.slots[id as usize];
        let cached = slot.cached.as_mut().expect("it was dirty");
        self.dirty -= usize::from(cached.dirty);
        cached.dirty = false;
        if slot.addr != NOWHERE {
            self.released.push(Addr(slot.addr));
        }
        slot.addr = addr.0;
    }

    /// The numbers given up since this was last asked.
    pub fn take_given_up(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.given_up)
    }

    /// The pages that no node is on any more, which the last checkpoint needs.
    pub fn released(&self) -> impl Iterator<Item = Addr> + '_ {
        self.released.iter().copied()
    }

    /// The pages that no node is on any more since this was last asked.
    pub fn take_released(&mut self) -> Vec<Addr> {
        std::mem::take(&mut self.released)
    }
}

/// What the boxed values of a leaf take besides.
fn onode_bytes(items: &[(Key, Value)]) -> usize {
    let boxed = |value: &Value| match value {
        Value::Onode(_) => size_of::<super::layout::Onode>() + 16,
        Value::Attributes(bytes) => bytes.len() + 16,
        Value::Extent(_) => 0,
    };
    items.iter().map(|(_, value)| boxed(value)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::osd::layout::{Extent, Fork};
    use crate::media::nand::{Nand, NandProfile, Payload};
    use crate::media::{profile, random::Random};
    use std::collections::BTreeMap;

    fn flash() -> Flash {
        let profile = profile::load::<NandProfile>("slc-2k").unwrap().ideal();
        Flash::new(Nand::new(NandProfile { blocks: 64, ..profile }, 1, true, Payload::memory()), 1)
    }

    fn value(n: u64) -> Value {
        Value::Extent(Extent { len: 1 + (n % 1000) as u32, at: n << 12 })
    }

    /// Writes what is dirty, so that the cache may drop it.
    fn write_all(tree: &mut Tree, flash: &mut Flash, next: &mut u32) {
        for id in tree.dirty_nodes() {
            let mut out = super::super::layout::Output::default();
            tree.encode(id, &mut out);
            assert!(flash.program(Addr(*next), PageKind::Node, 1, &out.0).unwrap());
            tree.wrote(id, Addr(*next));
            *next += 1;
        }
        tree.trim();
    }

    #[test]
    fn it_holds_what_a_sorted_map_holds_through_splits_joins_and_evictions() {
        let (mut flash, mut random) = (flash(), Random::new(1, "tree"));
        let (mut tree, mut model) = (Tree::new(2048, 16), BTreeMap::new());
        let mut page = 0;
        for step in 0..20_000u64 {
            let key = Key::extent(random.below(40), Fork::Data, random.below(60) * 4096);
            // It grows for a while, then it shrinks.
            if random.chance(if step < 10_000 { 0.7 } else { 0.25 }) {
                assert_eq!(tree.put(&mut flash, key, value(step)).unwrap(), model.insert(key, value(step)));
            } else {
                assert_eq!(tree.delete(&mut flash, key).unwrap(), model.remove(&key));
            }
            let probe = Key::extent(random.below(40), Fork::Data, random.below(60 * 4096));
            let before = model.range(..=probe).next_back().map(|(key, value)| (*key, value.clone()));
            assert_eq!(tree.last_to(&mut flash, probe).unwrap(), before);
            if step % 2000 == 0 {
                write_all(&mut tree, &mut flash, &mut page);
            }
        }
        let mut seen = Vec::new();
        let all = (Key::onode(0), Key::onode(u64::MAX));
        tree.range(&mut flash, all.0, all.1, |key, value| {
            seen.push((key, value.clone()));
            true
        })
        .unwrap();
        assert_eq!(seen, model.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn an_emptied_tree_is_one_leaf_again_and_gives_its_numbers_back() {
        let (mut flash, mut tree) = (flash(), Tree::new(2048, 16));
        for n in 0..5000 {
            tree.put(&mut flash, Key::onode(n), value(n)).unwrap();
        }
        let full = tree.table_len();
        for n in 0..5000 {
            assert!(tree.delete(&mut flash, Key::onode(n)).unwrap().is_some());
        }
        assert_eq!((tree.node(ROOT).len(), tree.free.len()), (0, full - 1));
    }

    #[test]
    fn sequential_keys_fill_their_leaves() {
        let (mut flash, mut tree) = (flash(), Tree::new(2048, 1 << 20));
        for n in 0..20_000 {
            tree.put(&mut flash, Key::onode(n), value(n)).unwrap();
        }
        let bytes: usize =
            tree.slots.iter().filter_map(|slot| slot.cached.as_ref()).map(|c| c.node.bytes).sum();
        assert!(bytes * 100 > tree.table_len() * tree.capacity * 95, "{bytes} in {}", tree.table_len());
    }
}
