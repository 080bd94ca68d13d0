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
//! `skip` and `returns` are what S4-FIFO adds, as libCacheSim's author describes it; its learned model, which sets all
//! five numbers, is not here. A hit on a page among the newest `skip` of the small queue does not count, so that a
//! burst of uses is one use. A page whose ghost is remembered enters the main queue at its `returns`-th return; before,
//! it enters the small queue again, so that a cycle longer than the cache does not push out the main queue.
//!
//! Source: Yang, Zhang, Qiu, Yue, Rashmi, SOSP'23, in the form libCacheSim 0.3.5 gives it (its authors'):
//! its miss counts agree exactly. Xia et al., OSDI'26 (S4-FIFO). Cost: O(1) an access, amortised.

use super::kit::*;

/// S3-FIFO in the registry.
pub const ENTRY: Entry = Entry {
    name: "s3fifo",
    about: "small, main and ghost queues",
    options: &[
        OptionSpec::new("small", "0.1", "size of the small queue: a share of the cache"),
        OptionSpec::new("ghosts", "0.9", "ghosts remembered: a share of the cache"),
        OptionSpec::new("promote", "2", "hits that take a page to the main queue, 1 to 3"),
        OptionSpec::new("skip", "0", "the newest of the small queue, whose hits do not count: a share of it"),
        OptionSpec::new("returns", "1", "returns that take a ghost's page to the main queue, 1 to 255"),
    ],
    make: Make { source: "Yang et al., SOSP 2023", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let small_max = order.share("small")?.max(1);
    let ghosts_max = order.share("ghosts")?;
    let promote = order.number_within("promote", 1, 3)?;
    let returns = order.number_within("returns", 1, RETURNS_MAX)?;
    let skip = (f64::from(small_max) * order.fraction_to("skip", 1.0)? + 1e-9) as u32;
    let needs = Needs { ghosts: ghosts_max + 1, lists: 3 };
    order.cache::<X, _>(needs, |pages| S3Fifo {
        small: pages.list(0),
        main: pages.list(1),
        ghosts: Ghosts::new(pages.list(2), ghosts_max),
        small_max,
        main_max: pages.capacity().saturating_sub(small_max),
        promote,
        returns,
        skip,
        entered: 0,
        entries: if skip > 0 { vec![0; pages.node_count()] } else { Vec::new() },
        returned: 0,
        was_full: false,
    })
}

const USED_MAX: u32 = 3;
const USED: u32 = 3;
const IN_MAIN: u32 = 4;
/// Above the bits of use: how often the page came back to the small queue.
const RETURNED_SHIFT: u32 = 3;
const RETURNS_MAX: u32 = 255;

struct S3Fifo {
    small: List,
    main: List,
    ghosts: Ghosts,
    small_max: u32,
    main_max: u32,
    promote: u32,
    returns: u32,
    /// Hits on so many of the newest pages of the small queue do not count.
    skip: u32,
    /// How many pages entered the small queue; wraps around.
    entered: u32,
    /// For each node its number among them, if hits are skipped.
    entries: Vec<u32>,
    /// How often the page that is about to come in came back; 0 if it has no ghost.
    returned: u32,
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

    /// Whether `node` is among the newest of the small queue.
    fn is_new(&self, node: u32, tag: u32) -> bool {
        tag & IN_MAIN == 0 && self.entered.wrapping_sub(self.entries[node as usize]) < self.skip
    }
}

impl<X: Index> Policy<X> for S3Fifo {
    const TOUCHES: Touches = Touches::Tag;

    #[inline(always)]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        let tag = pages.tag(node);
        if tag & USED < USED_MAX && !(self.skip > 0 && self.is_new(node, tag)) {
            pages.set_tag(node, tag + 1);
        }
    }

    fn miss(&mut self, pages: &mut Pages<X>, ghost: u32) {
        self.returned = 0;
        if ghost != NIL {
            self.returned = (pages.tag(ghost) >> RETURNED_SHIFT) + 1;
            self.ghosts.recall(pages, ghost);
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
        if self.returned >= self.returns || fills_main {
            pages.set_tag(node, IN_MAIN);
            self.main.push_front(pages, node);
            return;
        }
        pages.set_tag(node, self.returned << RETURNED_SHIFT);
        self.small.push_front(pages, node);
        if self.skip > 0 {
            self.entered = self.entered.wrapping_add(1);
            self.entries[node as usize] = self.entered;
        }
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife {
        if pages.tag(node) & IN_MAIN != 0 {
            self.main.remove(pages, node);
            return Afterlife::Gone;
        }
        self.small.remove(pages, node);
        self.ghosts.remember(pages, node, why)
    }

    fn bytes(&self) -> usize {
        self.entries.len() * size_of::<u32>()
    }
}
