//! What a replacement policy is to the cache.
//!
//! The engine knows pages, their being clean or dirty, and the device below. The policy knows only an order.
//! It is told of every hit, of every page that comes in or leaves, and of every page that becomes clean while
//! it stays. When room is needed it names what is to leave: one page ([`Room::Drop`]), or a plan
//! ([`Room::Planned`]) of pages to write together, pages to read in for that, and pages to drop.
//!
//! The division keeps data safe whatever a policy does: the engine writes a dirty page before it drops it,
//! marks it clean only after the device took it, and never holds more pages than its capacity. A policy that
//! errs costs hits, not data.

use super::index::Index;
use super::pages::Pages;

/// What is done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its contents are wanted.
    Read,
    /// Its contents are replaced.
    Write,
}

/// Why a page leaves the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// To make room; a policy may keep the node as a ghost.
    Evicted,
    /// Its contents are of no use any more.
    Discarded,
}

/// What becomes of a node whose page left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterlife {
    /// The node is freed.
    Gone,
    /// The policy keeps it, in a list of its own, until it calls [`Pages::forget`].
    Ghost,
}

/// A policy's answer when room is needed. At least one page must leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// This page leaves; if it is dirty it is written, alone.
    Drop(u32),
    /// The plan says what is written and what leaves.
    Planned,
}

/// A page to be written: resident, or ([`NIL`](super::index::NIL)) one that is read first and not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The page's number.
    pub page: u64,
    /// Its node, or [`NIL`](super::index::NIL).
    pub node: u32,
}

/// What a policy wants done: read what is missing, write in this order (neighbours in number and order
/// become one command), drop.
#[derive(Debug, Default)]
pub struct Plan {
    /// Pages to write, in order.
    pub write: Vec<Outgoing>,
    /// Resident pages that leave after the writes.
    pub drop: Vec<u32>,
    /// Pages to read in and keep, as far as there is room once the others have left.
    pub fetch: Vec<u64>,
}

impl Plan {
    /// Adds a resident page to the writes.
    pub fn write_page<X: Index>(&mut self, pages: &Pages<X>, node: u32) {
        self.write.push(Outgoing { page: pages.page(node), node });
    }

    pub(super) fn clear(&mut self) {
        self.write.clear();
        self.drop.clear();
        self.fetch.clear();
    }
}

/// A replacement policy: its order, nothing else. It is made with the cache's empty [`Pages`], in which it sets
/// up the lists it [needs](Needs).
pub trait Policy<X: Index>: Send + 'static {
    /// What a hit on a page touches: a batch loads it early.
    const TOUCHES: Touches = Touches::Neighbours;

    /// Whether a page that a read missed is kept. Write buffers say no.
    fn keeps_reads(&self) -> bool {
        true
    }

    /// A resident page is touched. `was_dirty`: before this access.
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, access: Access, was_dirty: bool);

    /// A page is not resident and about to come in; called before room is made. `ghost` is its node if the policy
    /// remembers it, else [`NIL`](super::index::NIL): the policy takes it out of its list here, and the page comes in with this node.
    fn miss(&mut self, _pages: &mut Pages<X>, _ghost: u32) {}

    /// The cache is full and `page` is to come in.
    fn make_room(&mut self, pages: &mut Pages<X>, page: u64, plan: &mut Plan) -> Room;

    /// A page came in; it is dirty already if it was written.
    fn insert(&mut self, pages: &mut Pages<X>, node: u32, access: Access);

    /// A page is about to leave; it is clean unless it is discarded. The policy takes it out of its order.
    fn remove(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife;

    /// A dirty page was written and stays, now clean.
    fn cleaned(&mut self, _pages: &mut Pages<X>, _node: u32) {}

    /// Everything dirty is to be written: plans the next group. False (the default) leaves it to the engine,
    /// which writes all dirty pages in ascending order.
    fn write_back(&mut self, _pages: &mut Pages<X>, _plan: &mut Plan) -> bool {
        false
    }

    /// Bytes of memory beside the pages' own.
    fn bytes(&self) -> usize {
        0
    }
}

/// What a policy touches when a page is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touches {
    /// The node alone.
    Node,
    /// Its tag, too.
    Tag,
    /// Its tag and its neighbours in the list, since it moves there.
    Neighbours,
}

/// What a policy needs of the slab.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Nodes for pages that left.
    pub ghosts: u32,
    /// Lists through the nodes.
    pub lists: u32,
}

impl Needs {
    /// Lists only.
    pub fn lists(lists: u32) -> Needs {
        Needs { ghosts: 0, lists }
    }
}
