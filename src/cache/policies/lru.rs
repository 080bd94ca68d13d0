//! LRU: the page that was used longest ago leaves.
//!
//! One list; any use moves a page to its front. Source: the base line of Ramasamy and Karantharaj,
//! "Experimental setup". Cost: O(1) an access.

use super::kit::*;

/// LRU in the registry.
pub const ENTRY: Entry = Entry {
    name: "lru",
    about: "least recently used",
    source: "folklore; the base line of most papers",
    options: &[],
    dense: make::<Dense>,
    sparse: make::<Sparse>,
};

fn make<X: Index>(order: &Order) -> Result<Box<dyn PageCache>> {
    order.cache::<X, _>(Needs::lists(1), |pages| Lru { list: pages.list(0) })
}

struct Lru {
    list: List,
}

impl<X: Index> Policy<X> for Lru {
    #[inline]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        self.list.touch(pages, node);
    }

    #[inline]
    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let node = self.list.back(pages);
        pages.warm(self.list.before(pages, node));
        Room::Drop(node)
    }

    #[inline]
    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        self.list.push_front(pages, node);
    }

    #[inline]
    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.list.remove(pages, node);
        Afterlife::Gone
    }
}
