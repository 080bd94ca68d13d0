//! CFLRU: LRU in which the clean pages among the last `window` leave before the dirty ones.
//!
//! Room: the least recently used clean page if it is in the clean-first region, the `window` pages at the LRU
//! end; otherwise the least recently used page. A window of nothing is LRU, one of the whole cache writes only
//! when no clean page is left.
//!
//! Exact in O(1): beside the main list, a pointer to the edge of the region, and a list of the clean pages in the
//! region, in the same order, whose last page is the victim. A page enters the region at its edge, so that the
//! clean list grows at its front. A page that a sync cleans inside the region enters the clean list next to its
//! nearest clean neighbour, which is searched in both directions.
//!
//! Source: Park, Jung, Kang, Kim, Lee, CASES'06. Readings: the window is static, a third of the cache as
//! in the paper's kernel study; `adapt=yes` is its dynamic form: after each `period` of evictions the mean
//! cost of one is compared with that of the period before, and the window goes on in the same direction if it
//! fell, else turns back.

use super::kit::*;

/// CFLRU in the registry.
pub const ENTRY: Entry = Entry {
    name: "cflru",
    about: "clean pages near the LRU end first",
    source: "Park et al., CASES 2006",
    options: &[
        Choice {
            name: "window",
            default: "1/3",
            about: "clean-first region: a share of the cache, or pages (21p)",
        },
        Choice { name: "adapt", default: "no", about: "yes: the window climbs towards the lowest cost" },
        Choice { name: "period", default: "1", about: "adapt: evictions between two steps, times the cache" },
        Choice { name: "step", default: "1/16", about: "adapt: a step of the window: a share of the cache" },
        Choice { name: "ratio", default: "8", about: "adapt: cost of a page write over that of a page read" },
    ],
    dense: make::<Dense>,
    sparse: make::<Sparse>,
};

fn make<X: Index>(order: &Order) -> Result<Box<dyn PageCache>> {
    let window = order.share("window")?;
    let climber = if order.flag("adapt")? { Some(Climber::new(order)?) } else { None };
    order.cache::<X, _>(Needs::lists(1), |pages| {
        let nodes = pages.node_count();
        let mut links = Links::new(nodes + 1);
        let clean = List::new(&mut links, nodes as u32);
        Cflru { list: pages.list(0), clean, links, edge: NIL, inside: 0, window, climber }
    })
}

/// Tag bit of pages in the clean-first region.
const INSIDE: u32 = 1;
/// Tag bit of pages in the clean list.
const CLEAN: u32 = 2;

struct Cflru {
    list: List,
    /// The clean pages of the region, in the order of the main list.
    clean: List,
    links: Links,
    /// The most recent page of the region, or [`NIL`].
    edge: u32,
    /// How many pages are in the region.
    inside: u32,
    window: u32,
    climber: Option<Climber>,
}

/// Moves the window while the cost falls.
struct Climber {
    period: u64,
    step: u32,
    ratio: f64,
    evictions: u64,
    cost: f64,
    last_mean: f64,
    grows: bool,
}

impl Climber {
    fn new(order: &Order) -> Result<Climber> {
        let capacity = f64::from(order.config().capacity);
        Ok(Climber {
            period: (capacity * order.fraction("period")?).max(1.0) as u64,
            step: order.share("step")?.max(1),
            ratio: order.fraction("ratio")?,
            evictions: 0,
            cost: 0.0,
            last_mean: f64::INFINITY,
            grows: true,
        })
    }

    /// One more eviction; the new window at the end of a period.
    fn evicted(&mut self, dirty: bool, window: u32, capacity: u32) -> u32 {
        self.evictions += 1;
        self.cost += if dirty { 1.0 + self.ratio } else { 1.0 };
        if self.evictions < self.period {
            return window;
        }
        let mean = self.cost / self.evictions as f64;
        if mean >= self.last_mean {
            self.grows = !self.grows;
        }
        self.last_mean = mean;
        (self.evictions, self.cost) = (0, 0.0);
        if self.grows { (window + self.step).min(capacity) } else { window.saturating_sub(self.step) }
    }
}

impl Cflru {
    /// Takes a page out of the main list and of the region.
    #[inline]
    fn unlink<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        let tag = pages.tag(node);
        if tag & INSIDE != 0 {
            if tag & CLEAN != 0 {
                self.clean.remove(&mut self.links, node);
            }
            if self.edge == node {
                self.edge = self.list.after(pages, node);
            }
            self.inside -= 1;
            pages.set_tag(node, 0);
        }
        self.list.remove(pages, node);
    }

    /// Lets the region grow to its size.
    #[inline]
    fn refill<X: Index>(&mut self, pages: &mut Pages<X>) {
        while self.inside < self.window {
            let next =
                if self.edge == NIL { self.list.back(pages) } else { self.list.before(pages, self.edge) };
            if next == NIL {
                return;
            }
            if pages.is_dirty(next) {
                pages.set_tag(next, INSIDE);
            } else {
                pages.set_tag(next, INSIDE | CLEAN);
                self.clean.push_front(&mut self.links, next);
            }
            self.edge = next;
            self.inside += 1;
        }
    }

    /// Lets the region shrink to its size.
    fn shrink<X: Index>(&mut self, pages: &mut Pages<X>) {
        while self.inside > self.window {
            let node = self.edge;
            self.edge = self.list.after(pages, node);
            self.inside -= 1;
            if pages.tag(node) & CLEAN != 0 {
                self.clean.remove(&mut self.links, node);
            }
            pages.set_tag(node, 0);
        }
    }

    fn climb<X: Index>(&mut self, pages: &mut Pages<X>, victim: u32) {
        if let Some(climber) = &mut self.climber {
            self.window = climber.evicted(pages.is_dirty(victim), self.window, pages.capacity());
            self.shrink(pages);
            self.refill(pages);
        }
    }

    /// Enters a page of the region in the clean list, at its place.
    fn enter_clean<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        let is = |node: u32, bit: u32| pages.tag(node) & bit != 0;
        let (mut newer, mut older) = (node, node);
        loop {
            newer = self.list.before(pages, newer);
            if newer == NIL || !is(newer, INSIDE) {
                self.clean.push_front(&mut self.links, node);
                break;
            }
            if is(newer, CLEAN) {
                self.clean.insert_after(&mut self.links, node, newer);
                break;
            }
            older = self.list.after(pages, older);
            if older == NIL {
                self.clean.push_back(&mut self.links, node);
                break;
            }
            if is(older, CLEAN) {
                self.clean.insert_before(&mut self.links, node, older);
                break;
            }
        }
        pages.set_tag(node, INSIDE | CLEAN);
    }
}

impl<X: Index> Policy<X> for Cflru {
    #[inline]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        if pages.tag(node) == 0 {
            return self.list.touch(pages, node);
        }
        self.unlink(pages, node);
        self.list.push_front(pages, node);
        self.refill(pages);
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let clean = self.clean.back(&self.links);
        let victim = if clean == NIL { self.list.back(pages) } else { clean };
        self.climb(pages, victim);
        Room::Drop(victim)
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        self.list.push_front(pages, node);
        self.refill(pages);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.unlink(pages, node);
        self.refill(pages);
        Afterlife::Gone
    }

    fn cleaned(&mut self, pages: &mut Pages<X>, node: u32) {
        if pages.tag(node) & INSIDE != 0 {
            self.enter_clean(pages, node);
        }
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
