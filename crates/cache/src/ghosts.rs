//! A queue of ghosts with a limit: the pages that left last.

use super::index::{Index, NIL};
use super::links::List;
use super::pages::Pages;
use super::policy::{Afterlife, Leaving};

/// Nodes of pages that left, the latest at the front.
pub struct Ghosts {
    queue: List,
    most: u32,
}

impl Ghosts {
    /// Remembers up to `most` pages in `queue`, which is empty. The policy [needs](super::policy::Needs) one node
    /// more: a page leaves while its predecessors are remembered.
    pub fn new(queue: List, most: u32) -> Ghosts {
        Ghosts { queue, most }
    }

    /// Remembers `node`, whose page is about to leave to make room; the oldest ghost is forgotten where there is no room.
    pub fn remember<X: Index>(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife {
        if self.most == 0 || why == Leaving::Discarded {
            return Afterlife::Gone;
        }
        if self.queue.len() == self.most {
            let oldest = self.queue.back(pages);
            let next = self.queue.before(pages, oldest);
            pages.warm(&[next], &[pages.page(next)]);
            self.recall(pages, oldest);
            pages.forget(oldest);
        }
        self.queue.push_front(pages, node);
        Afterlife::Ghost
    }

    /// Takes `ghost` out: its page comes in with this node, or is forgotten.
    pub fn recall<X: Index>(&mut self, pages: &mut Pages<X>, ghost: u32) {
        debug_assert!(ghost != NIL);
        self.queue.remove(pages, ghost);
    }
}
