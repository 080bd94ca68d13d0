//! SIEVE: first in, first out, with a hand that spares pages used since it last passed.
//!
//! New pages enter at the front. A hit only marks the page. The hand goes from the back to the front: it clears
//! marks and takes the first page without one, and stays there; at the front it starts over at the back.
//! Unlike CLOCK, spared pages keep their place, so new pages are sifted apart from old ones.
//!
//! Source: Zhang, Yang, Yue, Vigfusson, Rashmi, NSDI'24; its miss counts agree with libCacheSim's exactly.
//! Cost: O(1) an access, amortised.

use super::kit::*;

/// SIEVE in the registry.
pub const ENTRY: Entry = Entry {
    name: "sieve",
    about: "a queue and a hand that spares what was used since it passed",
    options: &[],
    make: Make { source: "Zhang et al., NSDI 2024", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    order.cache::<X, _>(Needs::lists(1), |pages| Sieve { queue: pages.list(0), hand: NIL })
}

const USED: u32 = 1;

struct Sieve {
    queue: List,
    /// The next page to look at, or [`NIL`] for the back.
    hand: u32,
}

impl<X: Index> Policy<X> for Sieve {
    const TOUCHES: Touches = Touches::Tag;

    #[inline(always)]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        pages.set_tag(node, USED);
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let mut node = if self.hand == NIL { self.queue.back(pages) } else { self.hand };
        while pages.tag(node) == USED {
            pages.set_tag(node, 0);
            let next = self.queue.before(pages, node);
            node = if next == NIL { self.queue.back(pages) } else { next };
        }
        self.hand = node;
        Room::Drop(node)
    }

    #[inline]
    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        self.queue.push_front(pages, node);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        if self.hand == node {
            self.hand = self.queue.before(pages, node);
        }
        self.queue.remove(pages, node);
        Afterlife::Gone
    }
}
