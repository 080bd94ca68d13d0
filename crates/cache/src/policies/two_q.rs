//! 2Q: pages used once in a queue, pages that come back after they left it in a list by recency.
//!
//! - A new page enters the queue A1in. A hit there changes nothing: it may be the same use once more.
//! - Room: if A1in is larger than its share, its oldest page leaves and is remembered in A1out; else the least
//!   recently used page of Am leaves, and is not remembered.
//! - A page that is remembered in A1out enters Am. A hit in Am moves the page to the front.
//!
//! Source: Johnson and Shasha, VLDB'94, the full version, with its shares of 25 and 50 %; its miss counts agree with
//! libCacheSim's exactly. Cost: O(1) an access.

use super::kit::*;

/// 2Q in the registry.
pub const ENTRY: Entry = Entry {
    name: "2q",
    about: "a queue, and by recency what came back after it left the queue",
    options: &[
        OptionSpec::new("in", "0.25", "size of the queue A1in: a share of the cache"),
        OptionSpec::new("out", "0.5", "pages remembered in A1out: a share of the cache"),
    ],
    make: Make { source: "Johnson and Shasha, VLDB 1994", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let (queue_max, ghosts_max) = (order.share("in")?, order.share("out")?);
    let needs = Needs { ghosts: ghosts_max + 1, lists: 3 };
    order.cache::<X, _>(needs, |pages| TwoQ {
        queue: pages.list(0),
        frequent: pages.list(1),
        ghosts: Ghosts::new(pages.list(2), ghosts_max),
        queue_max,
        remembered: false,
    })
}

const FREQUENT: u32 = 1;

struct TwoQ {
    /// A1in.
    queue: List,
    /// Am.
    frequent: List,
    /// A1out.
    ghosts: Ghosts,
    queue_max: u32,
    /// The page that is about to come in was in A1out.
    remembered: bool,
}

impl<X: Index> Policy<X> for TwoQ {
    #[inline(always)]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        if pages.tag(node) == FREQUENT {
            self.frequent.touch(pages, node);
        }
    }

    fn miss(&mut self, pages: &mut Pages<X>, ghost: u32) {
        self.remembered = ghost != NIL;
        if self.remembered {
            self.ghosts.recall(pages, ghost);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let from_queue = self.queue.len() > self.queue_max || self.frequent.is_empty();
        Room::Drop(if from_queue { self.queue.back(pages) } else { self.frequent.back(pages) })
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        if self.remembered {
            pages.set_tag(node, FREQUENT);
            self.frequent.push_front(pages, node);
        } else {
            self.queue.push_front(pages, node);
        }
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife {
        if pages.tag(node) == FREQUENT {
            self.frequent.remove(pages, node);
            return Afterlife::Gone;
        }
        self.queue.remove(pages, node);
        self.ghosts.remember(pages, node, why)
    }
}
