//! S3-FIFO: a small queue that filters out pages used once, a main queue, and a queue of ghosts.
//!
//! - A new page enters the small queue; one whose ghost is remembered enters the main queue. Until the cache
//!   has been full once, new pages that find the small queue full enter the main queue.
//! - A hit only counts, up to 3.
//! - Room: while the main queue is within its size and the small one has pages, the oldest page of the small
//!   queue leaves and is remembered, unless it was hit `promote` times: then it moves to the main queue with
//!   its count at zero. Otherwise the oldest of the main queue leaves, unless it was hit: then its count goes
//!   down and it goes round again.
//!
//! Source: Yang, Zhang, Qiu, Yue, Rashmi, SOSP'23, in the form libCacheSim 0.3.5 gives it (its authors'):
//! its miss counts agree exactly. Cost: O(1) an access, amortised.

use super::kit::*;

/// S3-FIFO in the registry.
pub const ENTRY: Entry = Entry {
    name: "s3fifo",
    about: "small, main and ghost queues",
    options: &[
        OptionSpec::new("small", "0.1", "size of the small queue: a share of the cache"),
        OptionSpec::new("ghosts", "0.9", "ghosts remembered: a share of the cache"),
        OptionSpec::new("promote", "2", "hits that take a page to the main queue, 1 to 3"),
    ],
    make: Make { source: "Yang et al., SOSP 2023", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let small_max = order.share("small")?.max(1);
    let ghosts_max = order.share("ghosts")?;
    let promote = order.number_within("promote", 1, 3)?;
    let needs = Needs { ghosts: ghosts_max + 1, lists: 3 };
    order.cache::<X, _>(needs, |pages| S3Fifo {
        small: pages.list(0),
        main: pages.list(1),
        ghosts: pages.list(2),
        small_max,
        main_max: pages.capacity().saturating_sub(small_max),
        ghosts_max,
        promote,
        remembered: false,
        was_full: false,
    })
}

const USED_MAX: u32 = 3;
const USED: u32 = 3;
const IN_MAIN: u32 = 4;

struct S3Fifo {
    small: List,
    main: List,
    ghosts: List,
    small_max: u32,
    main_max: u32,
    ghosts_max: u32,
    promote: u32,
    /// The page that is about to come in had a ghost.
    remembered: bool,
    was_full: bool,
}

impl S3Fifo {
    /// The oldest page of the small queue that was not hit enough; those before it move on.
    fn small_victim<X: Index>(&mut self, pages: &mut Pages<X>) -> u32 {
        loop {
            let node = self.small.back(pages);
            if node == NIL || pages.tag(node) & USED < self.promote {
                return node;
            }
            self.small.remove(pages, node);
            self.main.push_front(pages, node);
            pages.set_tag(node, IN_MAIN);
        }
    }

    fn main_victim<X: Index>(&mut self, pages: &mut Pages<X>) -> u32 {
        loop {
            let node = self.main.back(pages);
            let used = pages.tag(node) & USED;
            if node == NIL || used == 0 {
                return node;
            }
            pages.set_tag(node, IN_MAIN | (used - 1));
            self.main.touch(pages, node);
        }
    }

    fn remember<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) -> Afterlife {
        if self.ghosts_max == 0 {
            return Afterlife::Gone;
        }
        if self.ghosts.len() == self.ghosts_max {
            let oldest = self.ghosts.back(pages);
            let next = self.ghosts.before(pages, oldest);
            pages.warm(&[next], &[pages.page(next)]);
            self.ghosts.remove(pages, oldest);
            pages.forget(oldest);
        }
        self.ghosts.push_front(pages, node);
        Afterlife::Ghost
    }
}

impl<X: Index> Policy<X> for S3Fifo {
    const TOUCHES: Touches = Touches::Tag;

    #[inline(always)]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        let tag = pages.tag(node);
        if tag & USED < USED_MAX {
            pages.set_tag(node, tag + 1);
        }
    }

    fn miss(&mut self, pages: &mut Pages<X>, ghost: u32) {
        self.remembered = ghost != NIL;
        if self.remembered {
            self.ghosts.remove(pages, ghost);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        self.was_full = true;
        if self.main.len() <= self.main_max && !self.small.is_empty() {
            let node = self.small_victim(pages);
            if node != NIL {
                return Room::Drop(node);
            }
        }
        let node = self.main_victim(pages);
        Room::Drop(if node == NIL { self.small_victim(pages) } else { node })
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        let fills_main = !self.was_full && self.small.len() >= self.small_max;
        if self.remembered || fills_main {
            pages.set_tag(node, IN_MAIN);
            self.main.push_front(pages, node);
        } else {
            self.small.push_front(pages, node);
        }
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife {
        if pages.tag(node) & IN_MAIN != 0 {
            self.main.remove(pages, node);
            return Afterlife::Gone;
        }
        self.small.remove(pages, node);
        if why == Leaving::Evicted { self.remember(pages, node) } else { Afterlife::Gone }
    }
}
