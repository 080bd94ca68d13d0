//! What the cache holds: one slab of nodes, the index over it, and the list of dirty pages.
//!
//! A node stands for a page that is resident or, under a policy with a history, for a ghost: a page that left.
//! What a hit needs is 16 bytes, four to a cache line: the page's number, whose top bit marks a ghost, and two links
//! for the policy's main list. Beside it are four bytes of state: the dirty flag and 31 bits that are the policy's
//! own. Dirty pages are also in a second list in the order in which they became dirty, with the instant; only a
//! change from clean to dirty touches it.
//!
//! Invariants: at most `capacity` nodes are resident; a page has at most one node; a node is in the dirty
//! list if and only if its dirty flag is set; only resident nodes are dirty.
//!
//! Cost: every operation here is O(1).

use super::index::{Index, NIL};
use super::links::{Link, Links, List, Slab};
use super::policy::Touches;
use bimetal_base::time::Time;

/// Set in the page number of a ghost.
const GHOST: u64 = 1 << 63;

/// The page number of a node that stands for nothing.
const NO_PAGE: u64 = u64::MAX;

/// The highest page number.
pub const PAGE_MAX: u64 = (1 << 63) - 2;

/// The flag beside the policy's bits.
const DIRTY: u32 = 1 << 31;

/// The highest tag.
pub const TAG_MAX: u32 = DIRTY - 1;

/// One page or ghost.
#[derive(Clone, Copy)]
struct Node {
    page: u64,
    link: Link,
}

const EMPTY: Node = Node { page: NO_PAGE, link: Link { prev: NIL, next: NIL } };

/// The pages of a cache. Policies keep their order through it; only the engine adds and drops pages.
pub struct Pages<X> {
    index: X,
    nodes: Vec<Node>,
    states: Vec<u32>,
    free: u32,
    capacity: u32,
    resident: u32,
    dirty: List,
    dirty_links: Links,
    since: Vec<Time>,
}

impl<X> Slab for Pages<X> {
    #[inline]
    fn link(&self, node: u32) -> Link {
        self.nodes[node as usize].link
    }

    #[inline]
    fn link_mut(&mut self, node: u32) -> &mut Link {
        &mut self.nodes[node as usize].link
    }
}

impl<X: Index> Pages<X> {
    /// Room for `capacity` pages, `ghosts` nodes of pages that left and `lists` lists of the policy.
    pub(super) fn new(capacity: u32, ghosts: u32, lists: u32, space: Option<u64>) -> Pages<X> {
        let pages = capacity as usize + ghosts as usize;
        let mut nodes = vec![EMPTY; 1 + pages + lists as usize];
        for (at, node) in nodes.iter_mut().enumerate().take(pages).skip(1) {
            node.link.next = at as u32 + 1;
        }
        // The dirty list's sentinel is its node 0, which stands for no page.
        let mut dirty_links = Links::new(1 + pages);
        let dirty = List::new(&mut dirty_links, NIL);
        Pages {
            index: X::new(pages, space),
            states: vec![0; nodes.len()],
            nodes,
            free: 1,
            capacity,
            resident: 0,
            dirty,
            dirty_links,
            since: vec![Time::ZERO; 1 + pages],
        }
    }

    /// A list of the policy's through the nodes: number `which` of those it asked for.
    pub fn list(&mut self, which: u32) -> List {
        let sentinel = self.nodes.len() as u32 - 1 - which;
        List::new(self, sentinel)
    }

    /// How many nodes there are, sentinels too: the size of an array beside the nodes.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The most pages that may be resident.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many pages are resident.
    #[inline]
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// How many resident pages are dirty.
    #[inline]
    pub fn dirty_count(&self) -> u32 {
        self.dirty.len()
    }

    /// The page of a node.
    #[inline]
    pub fn page(&self, node: u32) -> u64 {
        self.nodes[node as usize].page & !GHOST
    }

    /// The policy's own bits at a node, up to [`TAG_MAX`]; zero when the page comes in.
    #[inline]
    pub fn tag(&self, node: u32) -> u32 {
        self.states[node as usize] & !DIRTY
    }

    /// Changes the policy's own bits.
    #[inline]
    pub fn set_tag(&mut self, node: u32, tag: u32) {
        debug_assert!(tag <= TAG_MAX);
        let state = &mut self.states[node as usize];
        *state = (*state & DIRTY) | tag;
    }

    /// The mark of a node that is in a [`Recency`](super::recency::Recency), which keeps it in the node's link; of
    /// another node a number below 2²⁹.
    #[inline]
    pub fn mark(&self, node: u32) -> u32 {
        self.nodes[node as usize].link.prev
    }

    /// Changes the mark.
    #[inline]
    pub(super) fn set_mark(&mut self, node: u32, mark: u32) {
        self.nodes[node as usize].link.prev = mark;
    }

    /// Whether a node's page is resident and dirty.
    #[inline]
    pub fn is_dirty(&self, node: u32) -> bool {
        self.states[node as usize] & DIRTY != 0
    }

    /// Whether a node's page is resident; otherwise the node is a ghost.
    #[inline]
    pub fn is_resident(&self, node: u32) -> bool {
        self.nodes[node as usize].page & GHOST == 0
    }

    /// Whether `node` is the resident node of `page`.
    #[inline]
    pub(super) fn holds(&self, node: u32, page: u64) -> bool {
        self.nodes[node as usize].page == page
    }

    /// When a dirty page became dirty.
    pub fn dirty_since(&self, node: u32) -> Time {
        self.since[node as usize]
    }

    /// The page that has been dirty longest, or [`NIL`].
    pub fn oldest_dirty(&self) -> u32 {
        self.dirty.back(&self.dirty_links)
    }

    /// The page that became dirty next after `node`, or [`NIL`].
    pub fn next_dirty(&self, node: u32) -> u32 {
        self.dirty.before(&self.dirty_links, node)
    }

    /// The node of `page`, resident or ghost, or [`NIL`].
    #[inline]
    pub fn find(&self, page: u64) -> u32 {
        self.index.find(page, |node| self.page(node) == page)
    }

    /// The node of `page` if it is resident, or [`NIL`].
    pub fn find_resident(&self, page: u64) -> u32 {
        let node = self.find(page);
        if self.is_resident(node) { node } else { NIL }
    }

    /// Lets a ghost go: the policy has taken it out of its list. [`NIL`] is no ghost.
    pub fn forget(&mut self, ghost: u32) {
        if ghost != NIL {
            debug_assert!(!self.is_resident(ghost));
            self.release(ghost);
        }
    }

    /// The node that `page` may have: a hint, to be compared before it is believed.
    #[inline(always)]
    pub(super) fn hint(&self, page: u64) -> u32 {
        self.index.guess(page)
    }

    /// Loads a node and what else a hit on it touches in its place, ahead of time; the result depends on it all.
    #[inline(always)]
    pub(super) fn preload(&self, node: u32, touches: Touches) -> u64 {
        let mut loaded = self.nodes[node as usize].page;
        if touches != Touches::Node {
            loaded ^= u64::from(self.states[node as usize]);
        }
        loaded
    }

    /// Loads the neighbours of a node that was loaded, ahead of time; the result depends on them.
    #[inline(always)]
    pub(super) fn preload_neighbours(&self, node: u32) -> u64 {
        let Link { prev, next } = self.nodes[node as usize].link;
        self.nodes[prev as usize].page ^ self.nodes[next as usize].page
    }

    /// Loads what dropping these nodes, of these pages, will need, ahead of time.
    #[inline]
    pub(super) fn warm(&self, nodes: &[u32], numbers: &[u64]) {
        let states = nodes.iter().fold(0, |loaded, node| loaded ^ self.states[*node as usize]);
        let entries = numbers.iter().fold(0, |loaded, number| loaded ^ self.index.guess(*number));
        std::hint::black_box(states ^ entries);
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.resident >= self.capacity
    }

    /// Makes `page` resident and clean, with the node of its ghost or, if that is [`NIL`], a free one.
    #[inline]
    pub(super) fn admit(&mut self, page: u64, ghost: u32) -> u32 {
        assert!(!self.is_full(), "a page came in without room for it");
        let node = if ghost == NIL { self.take(page) } else { ghost };
        self.nodes[node as usize].page = page;
        self.states[node as usize] = 0;
        self.resident += 1;
        node
    }

    /// Takes a free node for `page`.
    #[inline]
    fn take(&mut self, page: u64) -> u32 {
        let node = self.free;
        assert!(node != NIL, "the policy kept more ghosts than it asked for");
        self.free = self.nodes[node as usize].link.next;
        self.index.insert(page, node);
        node
    }

    /// Makes a clean resident node a ghost.
    #[inline]
    pub(super) fn retire(&mut self, node: u32) {
        debug_assert!(self.is_resident(node) && !self.is_dirty(node));
        self.nodes[node as usize].page |= GHOST;
        self.resident -= 1;
    }

    /// Frees a node that is not resident any more.
    #[inline]
    pub(super) fn release(&mut self, node: u32) {
        let Pages { index, nodes, .. } = self;
        let page_of = |node: u32| nodes[node as usize].page & !GHOST;
        index.remove(page_of(node), node, page_of);
        self.nodes[node as usize] = EMPTY;
        self.nodes[node as usize].link.next = self.free;
        self.free = node;
    }

    /// Marks a resident page dirty since `at`; whether it was clean.
    #[inline]
    pub(super) fn soil(&mut self, node: u32, at: Time) -> bool {
        let was_clean = !self.is_dirty(node);
        if was_clean {
            self.states[node as usize] |= DIRTY;
            self.dirty.push_front(&mut self.dirty_links, node);
            self.since[node as usize] = at;
        }
        was_clean
    }

    /// Marks a dirty page clean.
    pub(super) fn clean(&mut self, node: u32) {
        debug_assert!(self.is_dirty(node));
        self.states[node as usize] &= !DIRTY;
        self.dirty.remove(&mut self.dirty_links, node);
    }

    /// The resident nodes of pages `first` to `end` - 1, in no order.
    pub(super) fn resident_within(&self, first: u64, end: u64) -> Vec<u32> {
        if end - first <= self.nodes.len() as u64 {
            return (first..end).map(|page| self.find_resident(page)).filter(|&node| node != NIL).collect();
        }
        let wanted = |node: &u32| self.is_resident(*node) && (first..end).contains(&self.page(*node));
        (0..self.nodes.len() as u32).filter(wanted).collect()
    }

    /// Bytes of memory, the index included.
    pub(super) fn bytes(&self) -> usize {
        self.nodes.len() * (size_of::<Node>() + size_of::<u32>())
            + self.since.len() * size_of::<Time>()
            + self.dirty_links.bytes()
            + self.index.bytes()
    }
}
