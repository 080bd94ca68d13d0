//! CFLRU: LRU in which the clean pages among the last `window` leave before the dirty ones.
//!
//! Room: the least recently used clean page if it is in the clean-first region, the `window` pages at the LRU
//! end; otherwise the least recently used page. A window of nothing is LRU, one of the whole cache writes only
//! when no clean page is left.
//!
//! Exact in O(1) over time. The order of use is a log ([`Recency`]). The region is what lies before a place in it, its
//! `edge`, which moves on as pages leave the region. What is clean in it is looked for from the old end on, by a `cursor`
//! that has only dirty pages behind it. Pages behind it that a sync cleans are kept in a heap by their places
//! (O(log n) each).
//!
//! Source: Park, Jung, Kang, Kim, Lee, CASES'06. Readings: the window is static, a third of the cache as
//! in the paper's kernel study; `adapt=yes` is its dynamic form: after each `period` of evictions the mean
//! cost of one is compared with that of the period before, and the window goes on in the same direction if it
//! fell, else turns back.

use super::kit::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// CFLRU in the registry.
pub const ENTRY: Entry = Entry {
    name: "cflru",
    about: "clean pages near the LRU end first",
    options: &[
        OptionSpec::new("window", "1/3", "clean-first region: a share of the cache, or pages (21p)"),
        OptionSpec::new("adapt", "no", "yes: the window climbs towards the lowest cost"),
        OptionSpec::new("period", "1", "adapt: evictions between two steps, times the cache"),
        OptionSpec::new("step", "1/16", "adapt: a step of the window: a share of the cache"),
        OptionSpec::new("ratio", "8", "adapt: cost of a page write over that of a page read"),
    ],
    make: Make { source: "Park et al., CASES 2006", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let window = order.share("window")?;
    let climber = if order.flag("adapt")? { Some(Climber::new(order)?) } else { None };
    let capacity = order.config().capacity;
    Recency::check(ENTRY.name, capacity)?;
    order.cache::<X, _>(Needs::lists(0), |_| Cflru {
        order: Recency::new(capacity, 1, 4),
        edge: 0,
        inside: 0,
        cursor: 0,
        seen: 0,
        ready: 0,
        cleaned: BinaryHeap::new(),
        window,
        climber,
    })
}

struct Cflru {
    order: Recency,
    /// Pages with places before this are in the clean-first region.
    edge: usize,
    /// How many pages are.
    inside: u32,
    /// Of those with places before this, all are dirty but those in `cleaned`.
    cursor: usize,
    /// Places before which nodes are loaded ahead, for the edge and for the cursor.
    seen: usize,
    ready: usize,
    /// Places and nodes cleaned behind the cursor; what has moved or left since is of no account.
    cleaned: BinaryHeap<Reverse<(usize, u32)>>,
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
    fn new(order: &BuildContext) -> Result<Climber> {
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
    /// Notes that `node` leaves its place.
    #[inline]
    fn depart<X: Index>(&mut self, pages: &Pages<X>, node: u32) {
        self.inside -= u32::from(self.order.place(pages, node) < self.edge);
    }

    /// Lets the region grow to its size.
    #[inline]
    fn refill<X: Index>(&mut self, pages: &Pages<X>) {
        while self.inside < self.window && self.edge < self.order.end() {
            if self.edge >= self.seen {
                self.seen = self.order.preview(pages, self.edge);
            }
            self.inside += u32::from(self.order.node_at(pages, self.edge) != NIL);
            self.edge += 1;
        }
    }

    /// Lets the region shrink to its size.
    fn shrink<X: Index>(&mut self, pages: &Pages<X>) {
        while self.inside > self.window {
            self.edge -= 1;
            self.inside -= u32::from(self.order.node_at(pages, self.edge) != NIL);
        }
    }

    fn climb<X: Index>(&mut self, pages: &Pages<X>, victim: u32) {
        if let Some(climber) = &mut self.climber {
            self.window = climber.evicted(pages.is_dirty(victim), self.window, pages.capacity());
            self.shrink(pages);
            self.refill(pages);
        }
    }

    /// Makes room in the log, which moves all places.
    #[cold]
    fn compact<X: Index>(&mut self, pages: &mut Pages<X>) {
        let cleaned = std::mem::take(&mut self.cleaned);
        let valid: Vec<u32> = cleaned
            .into_iter()
            .filter(|Reverse((at, node))| self.order.node_at(pages, *at) == *node)
            .map(|Reverse((_, node))| node)
            .collect();
        [self.edge, self.cursor] = self.order.compact(pages, [self.edge, self.cursor]);
        (self.seen, self.ready) = (0, 0);
        let places = valid.into_iter().map(|node| Reverse((self.order.place(pages, node), node)));
        self.cleaned = places.collect();
    }

    /// The least recently used clean page of the region, or [`NIL`].
    fn oldest_clean<X: Index>(&mut self, pages: &Pages<X>) -> u32 {
        while let Some(&Reverse((at, node))) = self.cleaned.peek() {
            let is_there = self.order.node_at(pages, at) == node && !pages.is_dirty(node);
            if is_there && at < self.edge {
                return node;
            }
            if is_there {
                // The region has shrunk, and with it what is behind the cursor.
                break;
            }
            self.cleaned.pop();
        }
        while self.cursor < self.edge {
            if self.cursor >= self.ready {
                self.ready = self.order.make_ready(pages, self.cursor);
            }
            let node = self.order.node_at(pages, self.cursor);
            if node != NIL && !pages.is_dirty(node) {
                return node;
            }
            self.cursor += 1;
        }
        NIL
    }
}

impl<X: Index> Policy<X> for Cflru {
    const TOUCHES: Touches = Touches::Node;

    #[inline]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        if self.order.is_full() {
            self.compact(pages);
        }
        self.depart(pages, node);
        self.order.touch(pages, node);
        self.refill(pages);
    }

    #[inline]
    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let clean = self.oldest_clean(pages);
        let victim = if clean == NIL { self.order.oldest(pages) } else { clean };
        self.climb(pages, victim);
        Room::Drop(victim)
    }

    #[inline]
    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        if self.order.is_full() {
            self.compact(pages);
        }
        self.order.enter(pages, node);
        self.refill(pages);
    }

    #[inline]
    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.depart(pages, node);
        self.order.leave(pages, node);
        self.refill(pages);
        Afterlife::Gone
    }

    fn cleaned(&mut self, pages: &mut Pages<X>, node: u32) {
        let at = self.order.place(pages, node);
        if at < self.cursor {
            self.cleaned.push(Reverse((at, node)));
        }
    }

    fn bytes(&self) -> usize {
        self.order.bytes() + self.cleaned.capacity() * size_of::<(usize, u32)>()
    }
}
