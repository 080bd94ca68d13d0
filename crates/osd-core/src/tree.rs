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
//! Cost: O(log n) nodes an operation; memory: 16 bytes a node, and what the nodes in the cache take, which is
//! counted as it is.

use super::flash::{Addr, Flash};
use super::is_damage;
use super::layout::{Key, PageKind, Value};
use super::node::{By, HEADER_BYTES, Node};
use bimetal_base::{Error, Result};
use smallvec::SmallVec;

/// The number of the root.
pub(super) const ROOT: u32 = 0;
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
    /// Where it is on the clock.
    place: u32,
}

impl Cached {
    /// Bytes of memory that a node takes in the cache.
    fn bytes(node: &Node) -> usize {
        node.memory_bytes() + size_of::<Cached>() - size_of::<Node>()
    }
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
    /// Bytes of memory that the cached nodes take, and the dirty ones of them.
    memory: usize,
    pinned: usize,
    dirty: usize,
    /// Nodes that were never written.
    unplaced: usize,
    /// Bytes of memory that cached nodes may take; dirty ones always stay.
    limit: usize,
    /// The cached nodes, and which of them is looked at next when one has to go.
    clock: Vec<u32>,
    hand: usize,
    /// Nodes that were looked at.
    #[cfg(test)]
    visits: u64,
    /// Bytes of items that fit into a node.
    capacity: usize,
}

impl Tree {
    /// An empty tree, its root not written yet.
    ///
    /// Its nodes may take `cache_bytes` of memory, or that of 16 pages where it is more.
    pub fn new(page_bytes: usize, cache_bytes: usize) -> Tree {
        let mut tree = Tree::of(&[NOWHERE], page_bytes, cache_bytes);
        tree.slots[0].taken = true;
        tree.unplaced = 1;
        tree.free.clear();
        tree.keep(ROOT, Node::empty_leaf(), true);
        tree
    }

    /// The tree whose nodes lie at `table`; `cache_bytes` as for [`Tree::new`].
    pub fn of(table: &[u32], page_bytes: usize, cache_bytes: usize) -> Tree {
        let slot = |addr: &u32| Slot { addr: *addr, cached: None, taken: *addr != NOWHERE };
        let slots: Vec<Slot> = table.iter().map(slot).collect();
        let free = (0..slots.len() as u32).rev().filter(|id| !slots[*id as usize].taken).collect();
        Tree {
            slots,
            free,
            released: Vec::new(),
            given_up: Vec::new(),
            memory: 0,
            pinned: 0,
            dirty: 0,
            unplaced: 0,
            limit: cache_bytes.max(16 * page_bytes),
            clock: Vec::new(),
            hand: 0,
            #[cfg(test)]
            visits: 0,
            capacity: page_bytes - HEADER_BYTES,
        }
    }

    /// The largest item that can always be stored: four of them fit into a node.
    pub fn item_bytes_max(page_bytes: usize) -> usize {
        (page_bytes - HEADER_BYTES) / 4
    }

    /// Bytes of items that a node has room for.
    pub fn node_bytes_max(&self) -> usize {
        self.capacity
    }

    /// Nodes that have no page yet, and will take one each.
    pub fn unplaced(&self) -> usize {
        self.unplaced
    }

    /// Nodes that were looked at so far.
    #[cfg(test)]
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Nodes that differ from their pages.
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// Bytes of memory that they take.
    pub fn dirty_bytes(&self) -> usize {
        self.pinned
    }

    /// Numbers given out, free ones included.
    pub fn table_len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of memory that the table and the cached nodes take.
    pub fn memory_bytes(&self) -> usize {
        let numbers = (self.clock.capacity() + self.free.capacity()) * size_of::<u32>();
        self.slots.capacity() * size_of::<Slot>() + numbers + self.memory
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

    /// The numbers of all nodes.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.taken).map(|(id, _)| id)
    }

    /// A node that is in the cache.
    pub fn cached(&self, id: u32) -> Option<&Node> {
        self.slots.get(id as usize)?.cached.as_ref().map(|cached| &cached.node)
    }

    /// Puts a node in the place of another.
    pub fn put_node(&mut self, id: u32, node: Node) {
        self.drop_cached(id);
        self.keep(id, node, true);
        if self.node(id).bytes() > self.capacity {
            // Keys that separate children may have become longer.
            let half = self.change(id, |node| node.split(false));
            let key = half.first_key().expect("the right half holds something");
            let (level, low) = (half.level, self.node(id).key(0));
            let halves = [self.change(id, |node| std::mem::replace(node, Node::empty_leaf())), half];
            let [left, right] = halves.map(|half| self.add(half));
            self.change(id, |node| *node = Node::inner(level + 1, &[(low, left), (key, right)]));
        }
    }

    /// Sees to it that a number is in use, whatever the table says.
    pub fn claim(&mut self, id: u32) {
        while self.slots.len() <= id as usize {
            self.free.push(self.slots.len() as u32);
            self.slots.push(Slot { addr: NOWHERE, cached: None, taken: false });
        }
        let slot = &mut self.slots[id as usize];
        if !slot.taken {
            slot.taken = true;
            self.unplaced += 1;
            self.free.retain(|free| *free != id);
        }
    }

    /// Adds a node under a new number.
    pub fn add(&mut self, node: Node) -> u32 {
        let id = self.number();
        self.keep(id, node, true);
        id
    }

    /// Gives up a node that nothing names.
    pub fn give_up_lost(&mut self, id: u32) {
        self.give_up(id);
    }

    /// The nodes that the root does not lead to.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: an inner node cannot be read.
    pub fn unled(&mut self, flash: &mut Flash) -> Result<Vec<u32>> {
        let (mut led, mut waiting) = (vec![false; self.slots.len()], vec![ROOT]);
        led[ROOT as usize] = true;
        while let Some(id) = waiting.pop() {
            self.load(flash, id)?;
            let node = self.node(id);
            let children = (0..node.len()).filter(|_| !node.is_leaf()).map(|index| node.child(index));
            for child in children {
                let Some(is_led) = led.get_mut(child as usize) else { continue };
                if !std::mem::replace(is_led, true) && node.level > 1 {
                    waiting.push(child);
                }
            }
        }
        Ok(self.numbers().filter(|id| !led[*id as usize]).collect())
    }

    /// Gives up the nodes that the root does not lead to; how many.
    ///
    /// # Errors
    /// As [`unled`](Tree::unled).
    pub fn give_up_unled(&mut self, flash: &mut Flash) -> Result<usize> {
        let unled = self.unled(flash)?;
        unled.iter().for_each(|id| self.give_up(*id));
        Ok(unled.len())
    }

    fn keep(&mut self, id: u32, node: Node, dirty: bool) {
        let bytes = Cached::bytes(&node);
        self.memory += bytes;
        if dirty {
            self.pinned += bytes;
            self.dirty += 1;
        }
        let place = self.clock.len() as u32;
        self.clock.push(id);
        self.slots[id as usize].cached = Some(Box::new(Cached { node, dirty, used: true, place }));
    }

    /// Brings a node into the cache.
    fn load(&mut self, flash: &mut Flash, id: u32) -> Result<()> {
        #[cfg(test)]
        {
            self.visits += 1;
        }
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

    /// Changes a node.
    fn change<R>(&mut self, id: u32, work: impl FnOnce(&mut Node) -> R) -> R {
        let cached = self.slots[id as usize].cached.as_mut().expect("loaded");
        let before = Cached::bytes(&cached.node);
        if !cached.dirty {
            cached.dirty = true;
            self.dirty += 1;
            self.pinned += before;
        }
        let result = work(&mut cached.node);
        let after = Cached::bytes(&cached.node);
        self.memory = self.memory + after - before;
        self.pinned = self.pinned + after - before;
        result
    }

    /// Takes a node out of the cache.
    fn drop_cached(&mut self, id: u32) {
        let Some(cached) = self.slots[id as usize].cached.take() else { return };
        self.clock.swap_remove(cached.place as usize);
        if let Some(moved) = self.clock.get(cached.place as usize) {
            let moved = self.slots[*moved as usize].cached.as_mut();
            moved.expect("what is on the clock is cached").place = cached.place;
        }
        let bytes = Cached::bytes(&cached.node);
        self.memory -= bytes;
        if cached.dirty {
            self.pinned -= bytes;
            self.dirty -= 1;
        }
    }

    /// Marks a node to be written by the next checkpoint, though nothing in it changed.
    pub fn rewrite(&mut self, flash: &mut Flash, id: u32) -> Result<()> {
        self.load(flash, id)?;
        self.change(id, |_| ());
        Ok(())
    }

    /// Drops clean nodes until the cache is within its limit. Not while an operation is under way.
    pub fn trim(&mut self) {
        let mut left = 2 * self.clock.len();
        while self.memory > self.limit.max(self.pinned) && left > 0 {
            left -= 1;
            if self.hand >= self.clock.len() {
                self.hand = 0;
            }
            let id = self.clock[self.hand];
            let cached = self.slots[id as usize].cached.as_mut().expect("what is on the clock is cached");
            if cached.dirty || cached.used {
                cached.used = false;
                self.hand += 1;
            } else {
                self.drop_cached(id);
            }
        }
    }

    /// Goes down to the leaf that `key` belongs to.
    fn descend(&mut self, flash: &mut Flash, key: Key) -> Result<(u32, Path)> {
        let mut path = Path::new();
        let leaf = self.descend_along(flash, key, &mut path)?;
        Ok((leaf, path))
    }

    /// As [`descend`](Tree::descend); where a node cannot be read, `path` is the way to it.
    fn descend_along(&mut self, flash: &mut Flash, key: Key, path: &mut Path) -> Result<u32> {
        let mut id = ROOT;
        loop {
            self.load(flash, id)?;
            let node = self.node(id);
            if node.is_leaf() {
                return Ok(id);
            }
            if path.len() == LEVELS_MAX {
                return Err(Error::corrupt("the index of the object store", "it is too deep", id));
            }
            let index = node.count(|first| first <= key).saturating_sub(1);
            path.push((id, index));
            id = node.child(index);
        }
    }

    /// The first key that does not belong to the leaf at the end of `path`.
    fn upper(&self, path: &Path) -> Option<Key> {
        path.iter().rev().find_map(|(id, index)| {
            let node = self.node(*id);
            (index + 1 < node.len()).then(|| node.key(index + 1))
        })
    }

    /// The value at `key`.
    pub fn get(&mut self, flash: &mut Flash, key: Key) -> Result<Option<Value>> {
        let (id, _) = self.descend(flash, key)?;
        let leaf = self.node(id);
        Ok(leaf.search(key).ok().map(|index| leaf.leaf_item(index).1))
    }

    /// The last item at or before `key`.
    pub fn last_to(&mut self, flash: &mut Flash, key: Key) -> Result<Option<(Key, Value)>> {
        let (mut id, mut path) = self.descend(flash, key)?;
        loop {
            let leaf = self.node(id);
            let count = leaf.count(|other| other <= key);
            if count > 0 {
                return Ok(Some(leaf.leaf_item(count - 1)));
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
            let child = self.node(inner).child(index);
            self.load(flash, child)?;
            let below = self.node(child);
            if below.is_leaf() {
                return Ok(child);
            }
            if path.len() == LEVELS_MAX {
                return Err(Error::corrupt("the index of the object store", "it is too deep", child));
            }
            path.push((child, below.len() - 1));
        }
    }

    /// The items from `from` up to, and without, `to`, in order, until `visit` says false.
    pub fn range(
        &mut self,
        flash: &mut Flash,
        mut from: Key,
        to: Key,
        mut visit: impl FnMut(Key, Value) -> bool,
    ) -> Result<()> {
        while from < to {
            let (id, path) = self.descend(flash, from)?;
            let upper = self.upper(&path);
            let leaf = self.node(id);
            for index in leaf.count(|key| key < from)..leaf.len() {
                let (key, value) = leaf.leaf_item(index);
                if key >= to || !visit(key, value) {
                    return Ok(());
                }
            }
            match upper {
                Some(upper) if upper > from => from = upper,
                Some(_) => {
                    let why = "its nodes lead back";
                    return Err(Error::corrupt("the index of the object store", why, format!("node {id}")));
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// As [`range`](Tree::range), past nodes that cannot be read: what of them is `lost` is told, with the error: keys
    /// from the first up to, and without, the second.
    pub fn range_past(
        &mut self,
        flash: &mut Flash,
        (mut from, to): (Key, Key),
        mut lost: impl FnMut((Key, Key), Error),
        mut visit: impl FnMut(Key, Value),
    ) -> Result<()> {
        while from < to {
            let mut path = Path::new();
            let leaf = self.descend_along(flash, from, &mut path);
            let upper = self.upper(&path);
            let leaf = match leaf {
                Ok(leaf) => Some(leaf),
                Err(why) if is_damage(&why) => {
                    lost((from, upper.map_or(to, |upper| upper.min(to))), why);
                    None
                }
                Err(why) => return Err(why),
            };
            if let Some(leaf) = leaf.map(|id| self.node(id)) {
                for index in leaf.count(|key| key < from)..leaf.len() {
                    let (key, value) = leaf.leaf_item(index);
                    if key >= to {
                        return Ok(());
                    }
                    visit(key, value);
                }
            }
            match upper {
                Some(upper) if upper > from => from = upper,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sets the value at `key`; what was there.
    pub fn put(&mut self, flash: &mut Flash, key: Key, value: &Value) -> Result<Option<Value>> {
        let (id, path) = self.descend(flash, key)?;
        let old = self.change(id, |leaf| leaf.put(key, value));
        let leaf = self.node(id);
        if leaf.bytes() > self.capacity {
            let at_end = old.is_none() && leaf.key(leaf.len() - 1) == key;
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
        self.unplaced += 1;
        id
    }

    fn split(&mut self, mut id: u32, mut path: Path, mut at_end: bool) -> Result<()> {
        while self.node(id).bytes() > self.capacity {
            let right = self.change(id, |node| node.split(at_end));
            let key = right.first_key().expect("the right half holds something");
            let right_id = self.number();
            self.keep(right_id, right, true);
            let Some((parent, index)) = path.pop() else {
                self.raise(key, right_id);
                return Ok(());
            };
            let low = self.node(id).first_key().expect("the left half holds something");
            self.change(parent, |node| {
                if index == 0 && node.key(0) >= key {
                    node.set_first_key(low);
                }
                node.insert_child(index + 1, key, right_id);
            });
            at_end = index + 2 == self.node(parent).len();
            id = parent;
        }
        Ok(())
    }

    /// Puts a new root over the old one, which gets another number, and its right half.
    fn raise(&mut self, key: Key, right: u32) {
        let left = self.number();
        let first = Key { object: 0, place: 0 };
        let old = self.change(ROOT, |root| {
            let raised = Node::inner(root.level + 1, &[(first, left), (key, right)]);
            std::mem::replace(root, raised)
        });
        self.keep(left, old, true);
    }

    /// Removes the item at `key`; what it was.
    pub fn delete(&mut self, flash: &mut Flash, key: Key) -> Result<Option<Value>> {
        let (id, path) = self.descend(flash, key)?;
        let Ok(index) = self.node(id).search(key) else { return Ok(None) };
        let (_, value) = self.node(id).leaf_item(index);
        self.change(id, |leaf| leaf.remove(index));
        self.shrink(flash, id, path);
        Ok(Some(value))
    }

    /// Joins a node that holds little with a neighbour, and so on upwards.
    fn shrink(&mut self, flash: &mut Flash, mut id: u32, mut path: Path) {
        while let Some((parent, index)) = path.pop() {
            if self.node(id).bytes() * 4 > self.capacity {
                return;
            }
            let children = self.node(parent);
            let count = children.len();
            if count > 1 {
                let left = if index + 1 < count { index } else { index - 1 };
                let (left_id, right_id) = (children.child(left), children.child(left + 1));
                // A neighbour that cannot be read stays as it is.
                let both = self.load(flash, left_id).is_ok() && self.load(flash, right_id).is_ok();
                let fits = both
                    && (self.node(left_id).bytes() + self.node(right_id).bytes()) * 4 <= self.capacity * 3;
                if !fits && self.node(id).len() > 0 {
                    return;
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
        self.lower(flash);
    }

    fn join(&mut self, parent: u32, left: usize, left_id: u32, right_id: u32) {
        let mut right = self.change(right_id, |node| std::mem::replace(node, Node::empty_leaf()));
        if !right.is_leaf() {
            // Its first child is no longer the first: its key is what separated the two.
            right.set_first_key(self.node(parent).key(left + 1));
        }
        self.change(left_id, |node| node.append(&right));
        self.give_up(right_id);
        self.cut(parent, left + 1);
    }

    /// Takes a child from its parent.
    fn cut(&mut self, parent: u32, index: usize) {
        self.change(parent, |node| node.remove(index));
    }

    fn give_up(&mut self, id: u32) {
        self.drop_cached(id);
        let slot = &mut self.slots[id as usize];
        if slot.addr != NOWHERE {
            self.released.push(Addr(slot.addr));
        } else {
            self.unplaced -= 1;
        }
        slot.addr = NOWHERE;
        slot.taken = false;
        self.free.push(id);
        self.given_up.push(id);
    }

    /// A root with a single child becomes that child.
    fn lower(&mut self, flash: &mut Flash) {
        while !self.node(ROOT).is_leaf() && self.node(ROOT).len() == 1 {
            let only = self.node(ROOT).child(0);
            if self.load(flash, only).is_err() {
                return;
            }
            let node = self.change(only, |node| std::mem::replace(node, Node::empty_leaf()));
            self.change(ROOT, |root| *root = node);
            self.give_up(only);
        }
    }

    /// The nodes that a checkpoint has to write.
    pub fn dirty_nodes(&self) -> Vec<u32> {
        let dirty = |slot: &Slot| slot.cached.as_ref().is_some_and(|cached| cached.dirty);
        let all = self.slots.iter().enumerate();
        all.filter(|(_, slot)| dirty(slot)).map(|(id, _)| id as u32).collect()
    }

    /// A node in the cache, as its page will be.
    pub fn encode(&self, id: u32, by: &By, out: &mut super::layout::Output) {
        self.node(id).encode(id, by, out);
    }

    /// Notes that a dirty node was written to `addr`.
    pub fn wrote(&mut self, id: u32, addr: Addr) {
        let slot = &mut self.slots[id as usize];
        let cached = slot.cached.as_mut().expect("it was dirty");
        if std::mem::take(&mut cached.dirty) {
            self.dirty -= 1;
            self.pinned -= Cached::bytes(&cached.node);
        }
        if slot.addr != NOWHERE {
            self.released.push(Addr(slot.addr));
        } else {
            self.unplaced -= 1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Extent, Fork};
    use bimetal_base::random::Random;
    use bimetal_media::nand::{Nand, NandProfile, Payload};
    use bimetal_media::profile;
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
            tree.encode(id, &By::default(), &mut out);
            assert!(flash.program(Addr(*next), PageKind::Node, 1, &out.0).unwrap());
            tree.wrote(id, Addr(*next));
            *next += 1;
        }
        tree.trim();
    }

    /// The cache's counters say what is in it, and it is within its limit.
    fn check_cache(tree: &Tree) {
        let cached = || tree.slots.iter().filter_map(|slot| slot.cached.as_ref());
        let bytes = |dirty: bool| -> usize {
            cached().filter(|c| c.dirty || !dirty).map(|c| Cached::bytes(&c.node)).sum()
        };
        assert_eq!(
            (tree.memory, tree.pinned, tree.clock.len()),
            (bytes(false), bytes(true), cached().count())
        );
        assert_eq!(tree.dirty, cached().filter(|cached| cached.dirty).count());
        assert!(tree.memory <= tree.limit, "{} bytes of {}", tree.memory, tree.limit);
    }

    #[test]
    fn it_holds_what_a_sorted_map_holds_through_splits_joins_and_evictions() {
        let (mut flash, mut random) = (flash(), Random::new(1, "tree"));
        let (mut tree, mut model) = (Tree::new(2048, 0), BTreeMap::new());
        let mut page = 0;
        for step in 0..20_000u64 {
            let key = Key::extent(random.below(40), Fork::Data, random.below(60) * 4096);
            // It grows for a while, then it shrinks.
            if random.chance(if step < 10_000 { 0.7 } else { 0.25 }) {
                assert_eq!(tree.put(&mut flash, key, &value(step)).unwrap(), model.insert(key, value(step)));
            } else {
                assert_eq!(tree.delete(&mut flash, key).unwrap(), model.remove(&key));
            }
            let probe = Key::extent(random.below(40), Fork::Data, random.below(60 * 4096));
            let before = model.range(..=probe).next_back().map(|(key, value)| (*key, value.clone()));
            assert_eq!(tree.last_to(&mut flash, probe).unwrap(), before);
            if step % 2000 == 0 {
                write_all(&mut tree, &mut flash, &mut page);
                check_cache(&tree);
            }
        }
        let mut seen = Vec::new();
        let all = (Key::onode(0), Key::onode(u64::MAX));
        tree.range(&mut flash, all.0, all.1, |key, value| {
            seen.push((key, value));
            true
        })
        .unwrap();
        assert_eq!(seen, model.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn an_emptied_tree_is_one_leaf_again_and_gives_its_numbers_back() {
        let (mut flash, mut tree) = (flash(), Tree::new(2048, 0));
        for n in 0..5000 {
            tree.put(&mut flash, Key::extent(n, Fork::Data, 0), &value(n)).unwrap();
        }
        let full = tree.table_len();
        for n in 0..5000 {
            assert!(tree.delete(&mut flash, Key::extent(n, Fork::Data, 0)).unwrap().is_some());
        }
        assert_eq!((tree.node(ROOT).len(), tree.free.len()), (0, full - 1));
    }

    /// All nodes come back from their pages.
    fn check_nodes(tree: &Tree) {
        for id in tree.numbers() {
            let mut out = super::super::layout::Output::default();
            tree.encode(id, &By::default(), &mut out);
            out.0.resize(2048, 0);
            assert_eq!(Node::decode(id, &out.0).unwrap(), *tree.node(id), "node {id}");
        }
    }

    #[test]
    fn a_tree_of_three_levels_holds_what_a_sorted_map_holds() {
        for seed in 0..6 {
            let (mut flash, mut random) = (flash(), Random::new(seed, "levels"));
            let (mut tree, mut model) = (Tree::new(2048, 1 << 30), BTreeMap::new());
            let mut levels = 0;
            for step in 0..1500u64 {
                let (from, run) = (random.below(4000), 1 + random.below(60));
                // It grows, and goes again in runs that empty leaves beside full ones.
                let puts = random.chance(if step % 500 < 250 { 0.6 } else { 0.35 });
                for n in from..from + run {
                    let key = Key::attributes(n);
                    if puts {
                        let value = Value::Attributes(vec![n as u8; 400].into());
                        assert_eq!(tree.put(&mut flash, key, &value).unwrap(), model.insert(key, value));
                    } else {
                        let gone = tree.delete(&mut flash, key).unwrap();
                        assert_eq!(gone, model.remove(&key), "seed {seed}, step {step}, {n}");
                    }
                }
                levels = levels.max(tree.node(ROOT).level);
            }
            check_nodes(&tree);
            for n in 0..4060 {
                let key = Key::attributes(n);
                assert_eq!(tree.get(&mut flash, key).unwrap(), model.get(&key).cloned(), "seed {seed}, {n}");
            }
            assert_eq!(levels, 2);
        }
    }

    #[test]
    fn what_comes_below_the_key_of_a_first_child_keeps_the_keys_in_order() {
        let (mut flash, mut tree) = (flash(), Tree::new(2048, 1 << 30));
        let key = |n| Key::extent(n, Fork::Data, 0);
        for n in 1000..2000 {
            tree.put(&mut flash, key(n), &value(n)).unwrap();
        }
        // The first leaf goes, for its neighbour is full: the one that is the first then has a key of its own.
        let first = tree.node(tree.node(ROOT).child(0)).len() as u64;
        for n in 1000..1000 + first {
            tree.delete(&mut flash, key(n)).unwrap();
        }
        assert!(tree.node(ROOT).key(0) > key(1000));
        for n in (500..1000).rev() {
            tree.put(&mut flash, key(n), &value(n)).unwrap();
        }
        check_nodes(&tree);
        for n in (500..1000).chain(1000 + first..2000) {
            assert_eq!(tree.get(&mut flash, key(n)).unwrap(), Some(value(n)), "{n}");
        }
    }

    #[test]
    fn sequential_keys_fill_their_leaves() {
        let (mut flash, mut tree) = (flash(), Tree::new(2048, 1 << 30));
        for n in 0..20_000 {
            tree.put(&mut flash, Key::extent(n, Fork::Data, 0), &value(n)).unwrap();
        }
        let bytes: usize =
            tree.slots.iter().filter_map(|slot| slot.cached.as_ref()).map(|c| c.node.bytes()).sum();
        assert!(bytes * 100 > tree.table_len() * tree.capacity * 95, "{bytes} in {}", tree.table_len());
    }
}
