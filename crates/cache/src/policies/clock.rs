//! CLOCK: first in, first out, with another round for pages that were used meanwhile.
//!
//! The pages stand on a ring; a hit only counts, up to 2ᵇ - 1. The hand passes pages whose count is above
//! zero, counting them down, and takes the first at zero. New pages go in behind the hand. A hit touches
//! nothing but the page's own node.
//!
//! Source: Corbató 1968; counters of `bits` bits as in libCacheSim, whose miss counts it agrees with exactly.
//! Cost: O(1) an access, amortised: a round of the hand is paid for by the hits that counted up.

use super::kit::*;

/// CLOCK in the registry.
pub const ENTRY: Entry = Entry {
    name: "clock",
    about: "second chance: a ring, a hand and a use count a page",
    options: &[OptionSpec::new("bits", "1", "bits of the use count, 1 to 8")],
    make: Make { source: "Corbato 1968", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let bits = order.number_within("bits", 1, 8)?;
    order.cache::<X, _>(Needs::lists(1), |pages| Clock {
        ring: pages.list(0),
        hand: NIL,
        used_max: (1 << bits) - 1,
    })
}

struct Clock {
    /// The ring, opened between its back and its front; the order runs from the back to the front.
    ring: List,
    /// The next page to look at, or [`NIL`] for the back.
    hand: u32,
    used_max: u32,
}

impl<X: Index> Policy<X> for Clock {
    const TOUCHES: Touches = Touches::Tag;

    #[inline(always)]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        let used = pages.tag(node);
        if used < self.used_max {
            pages.set_tag(node, used + 1);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let mut node = if self.hand == NIL { self.ring.back(pages) } else { self.hand };
        while pages.tag(node) > 0 {
            pages.set_tag(node, pages.tag(node) - 1);
            let next = self.ring.before(pages, node);
            node = if next == NIL { self.ring.back(pages) } else { next };
        }
        self.hand = node;
        Room::Drop(node)
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        if self.hand == NIL {
            self.ring.push_front(pages, node);
        } else {
            self.ring.insert_after(pages, node, self.hand);
        }
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        if self.hand == node {
            self.hand = self.ring.before(pages, node);
        }
        self.ring.remove(pages, node);
        Afterlife::Gone
    }
}
