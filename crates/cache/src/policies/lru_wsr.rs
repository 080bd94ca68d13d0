//! LRU-WSR: LRU that gives a dirty page a second chance before it is written.
//!
//! Each page has a cold flag. From the LRU end: a clean page leaves; a dirty cold page is written and leaves;
//! a dirty page that is not cold becomes cold and moves to the MRU end. Any hit clears the flag.
//!
//! Source: Jung, Shim, Park, Kang, Cha, IEEE TCE 54(3), 2008. Ramasamy and Karantharaj describe it without the
//! move ("marked cold and the search continues"): `second=stay`. Cost: O(1) an access, amortised with `move`:
//! a page is moved at most once for each hit or arrival.

use super::kit::*;

/// LRU-WSR in the registry.
pub const ENTRY: Entry = Entry {
    name: "lru-wsr",
    about: "LRU; a dirty page goes round once before it is written",
    options: &[OptionSpec::new(
        "second",
        "move",
        "a dirty page's second chance: move (to the MRU end) or stay (marked cold where it is)",
    )],
    make: Make { source: "Jung et al., IEEE TCE 2008", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let moves = order.one_of("second", &[("move", true), ("stay", false)])?;
    order.cache::<X, _>(Needs::lists(1), |pages| LruWsr { list: pages.list(0), moves })
}

const COLD: u32 = 1;

struct LruWsr {
    list: List,
    moves: bool,
}

impl LruWsr {
    /// The second chance without a move: the walk goes on towards the MRU end.
    fn first_cold_or_clean<X: Index>(&self, pages: &mut Pages<X>) -> u32 {
        let mut node = self.list.back(pages);
        while node != NIL && pages.is_dirty(node) && pages.tag(node) != COLD {
            pages.set_tag(node, COLD);
            node = self.list.before(pages, node);
        }
        if node == NIL { self.list.back(pages) } else { node }
    }
}

impl<X: Index> Policy<X> for LruWsr {
    #[inline]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        pages.set_tag(node, 0);
        self.list.touch(pages, node);
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        if !self.moves {
            return Room::Drop(self.first_cold_or_clean(pages));
        }
        loop {
            let node = self.list.back(pages);
            if !pages.is_dirty(node) || pages.tag(node) == COLD {
                return Room::Drop(node);
            }
            pages.set_tag(node, COLD);
            self.list.touch(pages, node);
        }
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        self.list.push_front(pages, node);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.list.remove(pages, node);
        Afterlife::Gone
    }
}
