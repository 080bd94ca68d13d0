//! Doubly linked lists of `u32` through one array: no allocation, no pointers.
//!
//! A [`List`] is a ring closed by a sentinel node of its own, so that linking and unlinking never test for
//! an end. The front is the most recent end, the back the least recent one. One slab can hold many lists,
//! and a node can be in one list of each slab.

use super::index::NIL;

/// The two neighbours of a node: `prev` towards the front, `next` towards the back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// The neighbour towards the front.
    pub prev: u32,
    /// The neighbour towards the back.
    pub next: u32,
}

/// Something that holds a [`Link`] a node.
pub trait Slab {
    /// The link of `node`.
    fn link(&self, node: u32) -> Link;
    /// The link of `node`, to change.
    fn link_mut(&mut self, node: u32) -> &mut Link;
}

/// A bare array of links, for lists beside the main one.
pub struct Links(Vec<Link>);

impl Links {
    /// Links for nodes 0 to `nodes` - 1.
    pub fn new(nodes: usize) -> Links {
        Links(vec![Link::default(); nodes])
    }

    /// One more node; its number.
    pub fn push(&mut self) -> u32 {
        self.0.push(Link::default());
        (self.0.len() - 1) as u32
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<Link>()
    }
}

impl Slab for Links {
    #[inline]
    fn link(&self, node: u32) -> Link {
        self.0[node as usize]
    }

    #[inline]
    fn link_mut(&mut self, node: u32) -> &mut Link {
        &mut self.0[node as usize]
    }
}

/// A list: its sentinel and its length.
#[derive(Clone, Copy, Debug)]
pub struct List {
    sentinel: u32,
    len: u32,
}

impl List {
    /// An empty list closed by node `sentinel`, which nothing else may use.
    pub fn new<S: Slab>(slab: &mut S, sentinel: u32) -> List {
        *slab.link_mut(sentinel) = Link { prev: sentinel, next: sentinel };
        List { sentinel, len: 0 }
    }

    /// The node that closes it.
    pub fn sentinel(&self) -> u32 {
        self.sentinel
    }

    /// How many nodes it has.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn or_nil(&self, node: u32) -> u32 {
        if node == self.sentinel { NIL } else { node }
    }

    /// The most recent node, or [`NIL`].
    #[inline]
    pub fn front<S: Slab>(&self, slab: &S) -> u32 {
        self.or_nil(slab.link(self.sentinel).next)
    }

    /// The least recent node, or [`NIL`].
    #[inline]
    pub fn back<S: Slab>(&self, slab: &S) -> u32 {
        self.or_nil(slab.link(self.sentinel).prev)
    }

    /// The neighbour of `node` towards the front, or [`NIL`].
    #[inline]
    pub fn before<S: Slab>(&self, slab: &S, node: u32) -> u32 {
        self.or_nil(slab.link(node).prev)
    }

    /// The neighbour of `node` towards the back, or [`NIL`].
    #[inline]
    pub fn after<S: Slab>(&self, slab: &S, node: u32) -> u32 {
        self.or_nil(slab.link(node).next)
    }

    /// Its nodes from the front.
    pub fn nodes<S: Slab>(&self, slab: &S) -> impl Iterator<Item = u32> {
        let known = |node: u32| (node != NIL).then_some(node);
        std::iter::successors(known(self.front(slab)), move |&node| known(self.after(slab, node)))
    }

    #[inline]
    fn link_between<S: Slab>(slab: &mut S, node: u32, prev: u32, next: u32) {
        *slab.link_mut(node) = Link { prev, next };
        slab.link_mut(prev).next = node;
        slab.link_mut(next).prev = node;
    }

    #[inline]
    fn cut<S: Slab>(slab: &mut S, node: u32) {
        let Link { prev, next } = slab.link(node);
        slab.link_mut(prev).next = next;
        slab.link_mut(next).prev = prev;
    }

    /// Enters `node` at the front.
    #[inline]
    pub fn push_front<S: Slab>(&mut self, slab: &mut S, node: u32) {
        let first = slab.link(self.sentinel).next;
        Self::link_between(slab, node, self.sentinel, first);
        self.len += 1;
    }

    /// Enters `node` at the back.
    #[inline]
    pub fn push_back<S: Slab>(&mut self, slab: &mut S, node: u32) {
        let last = slab.link(self.sentinel).prev;
        Self::link_between(slab, node, last, self.sentinel);
        self.len += 1;
    }

    /// Enters `node` right after `place` (towards the back).
    #[inline]
    pub fn insert_after<S: Slab>(&mut self, slab: &mut S, node: u32, place: u32) {
        let next = slab.link(place).next;
        Self::link_between(slab, node, place, next);
        self.len += 1;
    }

    /// Takes `node` out; it must be in this list.
    #[inline]
    pub fn remove<S: Slab>(&mut self, slab: &mut S, node: u32) {
        Self::cut(slab, node);
        self.len -= 1;
    }

    /// Moves `node`, which is in this list, to the front.
    #[inline]
    pub fn touch<S: Slab>(&mut self, slab: &mut S, node: u32) {
        let first = slab.link(self.sentinel).next;
        if first != node {
            Self::cut(slab, node);
            // `first` cannot have been cut: it is another node.
            Self::link_between(slab, node, self.sentinel, first);
        }
    }

    /// Moves `node`, which is in this list, to the back.
    #[inline]
    pub fn demote<S: Slab>(&mut self, slab: &mut S, node: u32) {
        self.remove(slab, node);
        self.push_back(slab, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn order(list: &List, links: &Links) -> Vec<u32> {
        let mut nodes = Vec::new();
        let mut node = list.front(links);
        while node != NIL {
            nodes.push(node);
            node = list.after(links, node);
        }
        nodes
    }

    #[test]
    fn a_list_agrees_with_a_deque() {
        let mut links = Links::new(42);
        let mut list = List::new(&mut links, 41);
        let mut model: VecDeque<u32> = VecDeque::new();
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let node = (x >> 33) as u32 % 40 + 1;
            let place = model.iter().position(|&n| n == node);
            match (place, (x >> 20) % 4) {
                (None, 0) => {
                    list.push_back(&mut links, node);
                    model.push_back(node);
                }
                (None, 1) if !model.is_empty() => {
                    let before = list.front(&links);
                    list.insert_after(&mut links, node, before);
                    model.insert(1, node);
                }
                (None, _) => {
                    list.push_front(&mut links, node);
                    model.push_front(node);
                }
                (Some(at), 0) => {
                    list.remove(&mut links, node);
                    model.remove(at);
                }
                (Some(at), 1) => {
                    list.demote(&mut links, node);
                    model.remove(at);
                    model.push_back(node);
                }
                (Some(at), _) => {
                    list.touch(&mut links, node);
                    model.remove(at);
                    model.push_front(node);
                }
            }
            assert_eq!(list.len() as usize, model.len());
        }
        assert_eq!(order(&list, &links), Vec::from(model));
    }
}
