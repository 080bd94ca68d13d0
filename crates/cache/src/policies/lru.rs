//! LRU: the page that was used longest ago leaves.
//!
//! The order of use is a log ([`Recency`]), which is the order of a list that any use moves a page to the front of.
//! Source: the base line of Ramasamy and Karantharaj, "Experimental setup". Cost: O(1) an access, over time.

use super::kit::*;

/// LRU in the registry.
pub const ENTRY: Entry = Entry {
    name: "lru",
    about: "least recently used",
    options: &[],
    make: Make {
        source: "folklore; the base line of most papers",
        dense: make::<Dense>,
        sparse: make::<Sparse>,
    },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let capacity = order.config().capacity;
    Recency::check(ENTRY.name, capacity)?;
    order.cache::<X, _>(Needs::lists(0), |_| Lru { order: Recency::new(capacity, 1, 4) })
}

struct Lru {
    order: Recency,
}

impl<X: Index> Policy<X> for Lru {
    const TOUCHES: Touches = Touches::Node;

    #[inline(always)]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        self.order.touch(pages, node);
    }

    #[inline]
    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        Room::Drop(self.order.oldest(pages))
    }

    #[inline]
    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        self.order.enter(pages, node);
    }

    #[inline]
    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.order.leave(pages, node);
        Afterlife::Gone
    }

    fn bytes(&self) -> usize {
        self.order.bytes()
    }
}
