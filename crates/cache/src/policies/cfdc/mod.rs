//! CFDC: clean pages first, dirty ones by clusters of neighbours.
//!
//! The working region holds the most recently used pages. A page that falls out of it enters the priority
//! region: a clean one the clean queue, a dirty one the cluster of its neighbourhood (`cluster` pages). Each dirty
//! page that does so advances a global time. A cluster of n pages created (or last hit) at time ts, whose pages
//! arrived at distances summing to IPD (1 for a single page), has priority IPD / (n²·(now - ts)).
//!
//! Room: the oldest clean page; else the oldest page of the cluster of lowest priority, which from then on is 0
//! until the cluster is empty, so that its pages follow each other to the device. A hit in the priority
//! region takes the page back to the working region.
//!
//! Source: Ou, Härder, Jin, ADBIS'10. Readings: an age of 0 counts as 1; equal priorities: the
//! lower ts, then the lower address; a page that a sync cleans enters the clean queue as its most recent page. The sum of distances is
//! kept up to date, since pages join a cluster only at its end.
//! Cost: O(log n) for a dirty page that leaves the working region or the cache, n being the clusters: their order changes
//! with time, and a [`tournament`] keeps the lowest at hand. Everything else is O(1).

mod tournament;

use super::kit::*;
use tournament::{Contest, Tournament};

/// CFDC in the registry.
pub const ENTRY: Entry = Entry {
    name: "cfdc",
    about: "clean first, then dirty pages clustered by address",
    options: &[
        OptionSpec::new("window", "1/2", "working region: a share of the cache, or pages (32p)"),
        OptionSpec::new("cluster", "16", "pages of a cluster's neighbourhood"),
    ],
    make: Make { source: "Ou, Haerder, Jin, ADBIS 2010", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let window = order.share("window")?;
    let config = order.config().clone().block_pages(order.number_within("cluster", 1, 1 << 20)?);
    let blocks = Blocks::<X>::new(&config, 0);
    order.cache::<X, _>(Needs::lists(2), |pages| Cfdc {
        working: pages.list(0),
        clean: pages.list(1),
        arrivals: Links::new(pages.node_count()),
        states: vec![Cluster::default(); blocks.node_count()],
        blocks,
        lowest: Tournament::new(),
        window,
        now: 0,
        chosen: NIL,
    })
}

/// Where a page is: its tag.
const WORKING: u32 = 0;
const CLEAN: u32 = 1;
const CLUSTERED: u32 = 2;

/// Beside a block's node: its pages in the order of arrival, and what its priority is made of.
#[derive(Clone, Copy, Debug, Default)]
struct Cluster {
    oldest: u32,
    newest: u32,
    since: u64,
    /// Sum of the distances between pages that arrived one after the other.
    distance: u64,
}

struct Cfdc<X> {
    working: List,
    clean: List,
    /// Dirty pages of the priority region by cluster.
    blocks: Blocks<X>,
    states: Vec<Cluster>,
    /// Links the pages of a cluster: `prev` came before, `next` after.
    arrivals: Links,
    window: u32,
    now: u64,
    /// The cluster whose priority is 0, or [`NIL`].
    chosen: u32,
    /// Finds the cluster of lowest priority.
    lowest: Tournament,
}

/// The clusters at one time; the lower priority wins.
struct Now<'a, X> {
    blocks: &'a Blocks<X>,
    states: &'a [Cluster],
    now: u64,
}

impl<X: Index> Now<'_, X> {
    /// IPD and n² of a cluster.
    fn parts(&self, block: u32) -> (u128, u128) {
        let members = u128::from(self.blocks.members(block));
        (if members == 1 { 1 } else { self.states[block as usize].distance.into() }, members * members)
    }

    fn age(&self, block: u32) -> u64 {
        self.now - self.states[block as usize].since
    }
}

impl<X: Index> Contest for Now<'_, X> {
    /// Compares priorities exactly; equal ones by ts, then by address.
    fn beats(&self, a: u32, b: u32) -> bool {
        let ((distance_a, squared_a), (distance_b, squared_b)) = (self.parts(a), self.parts(b));
        let under_a = squared_a * u128::from(self.age(a).max(1));
        let under_b = squared_b * u128::from(self.age(b).max(1));
        let rank = |block: u32| (self.states[block as usize].since, self.blocks.number(block));
        (distance_a * under_b).cmp(&(distance_b * under_a)).then_with(|| rank(a).cmp(&rank(b))).is_lt()
    }

    /// The inverse of a priority, age·n²/IPD, is a line over time: the steeper one overtakes when they cross. Rounding
    /// is kept on the safe side by a margin.
    fn holds_until(&self, winner: u32, loser: u32) -> u64 {
        let (age, other_age) = (self.age(winner), self.age(loser));
        if age == 0 || other_age == 0 {
            return self.now + 1;
        }
        let slope = |(distance, squared): (u128, u128)| squared as f64 / distance as f64;
        let (steep, other) = (slope(self.parts(winner)), slope(self.parts(loser)));
        if other < steep * (1.0 - 1e-12) {
            return u64::MAX;
        }
        let gap = age as f64 * steep - other_age as f64 * other;
        let ticks = gap / (other - steep).max(0.0) * (1.0 - 1e-9) - 1.0;
        if ticks.is_nan() { self.now + 1 } else { self.now.saturating_add((ticks.max(1.0)) as u64) }
    }

    fn now(&self) -> u64 {
        self.now
    }
}

impl<X: Index> Cfdc<X> {
    fn distance(pages: &Pages<X>, a: u32, b: u32) -> u64 {
        if a == NIL || b == NIL { 0 } else { pages.page(a).abs_diff(pages.page(b)) }
    }

    /// Lets pages fall out of the working region until it has its size.
    fn settle(&mut self, pages: &mut Pages<X>) {
        while self.working.len() > self.window {
            let node = self.working.back(pages);
            self.working.remove(pages, node);
            if pages.is_dirty(node) {
                self.join(pages, node);
            } else {
                pages.set_tag(node, CLEAN);
                self.clean.push_front(pages, node);
            }
        }
    }

    fn join(&mut self, pages: &mut Pages<X>, node: u32) {
        pages.set_tag(node, CLUSTERED);
        self.now += 1;
        let (block, is_new) = self.blocks.enter(pages.page(node));
        if is_new {
            self.states.resize(self.blocks.node_count(), Cluster::default());
            self.states[block as usize] = Cluster { since: self.now, ..Cluster::default() };
        }
        let state = &mut self.states[block as usize];
        state.distance += Self::distance(pages, state.newest, node);
        *self.arrivals.link_mut(node) = Link { prev: state.newest, next: NIL };
        if state.newest == NIL {
            state.oldest = node;
        } else {
            self.arrivals.link_mut(state.newest).next = node;
        }
        state.newest = node;
        self.contest(block, true);
    }

    /// The cluster `block` has changed, or (`takes_part` false) is gone.
    fn contest(&mut self, block: u32, takes_part: bool) {
        let now = Now { blocks: &self.blocks, states: &self.states, now: self.now };
        self.lowest.set(block, takes_part, &now);
    }

    /// Takes a page out of its cluster; `hit`: because it was used again.
    fn part(&mut self, pages: &Pages<X>, node: u32, hit: bool) {
        let (block, left) = self.blocks.exit(pages.page(node));
        if left == 0 {
            self.contest(block, false);
            self.blocks.free(block);
            if self.chosen == block {
                self.chosen = NIL;
            }
            return;
        }
        let Link { prev, next } = self.arrivals.link(node);
        let state = &mut self.states[block as usize];
        state.distance -= Self::distance(pages, prev, node) + Self::distance(pages, node, next);
        state.distance += Self::distance(pages, prev, next);
        if hit {
            state.since = self.now;
        }
        match prev {
            NIL => state.oldest = next,
            _ => self.arrivals.link_mut(prev).next = next,
        }
        match next {
            NIL => state.newest = prev,
            _ => self.arrivals.link_mut(next).prev = prev,
        }
        self.contest(block, true);
    }

    /// Takes a page out of wherever it is.
    fn unlink(&mut self, pages: &mut Pages<X>, node: u32, hit: bool) {
        match pages.tag(node) {
            WORKING => self.working.remove(pages, node),
            CLEAN => self.clean.remove(pages, node),
            _ => self.part(pages, node, hit),
        }
    }

    /// The cluster of lowest priority: the one chosen before while it lasts.
    fn choose(&mut self) -> u32 {
        if self.chosen == NIL {
            let now = Now { blocks: &self.blocks, states: &self.states, now: self.now };
            self.chosen = self.lowest.winner(&now);
        }
        self.chosen
    }
}

impl<X: Index> Policy<X> for Cfdc<X> {
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        if pages.tag(node) == WORKING {
            return self.working.touch(pages, node);
        }
        self.unlink(pages, node, true);
        pages.set_tag(node, WORKING);
        self.working.push_front(pages, node);
        self.settle(pages);
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        if !self.clean.is_empty() {
            return Room::Drop(self.clean.back(pages));
        }
        match self.choose() {
            NIL => Room::Drop(self.working.back(pages)),
            block => Room::Drop(self.states[block as usize].oldest),
        }
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        self.working.push_front(pages, node);
        self.settle(pages);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.unlink(pages, node, false);
        Afterlife::Gone
    }

    fn cleaned(&mut self, pages: &mut Pages<X>, node: u32) {
        if pages.tag(node) == CLUSTERED {
            self.part(pages, node, false);
            pages.set_tag(node, CLEAN);
            self.clean.push_front(pages, node);
        }
    }

    fn bytes(&self) -> usize {
        self.blocks.bytes()
            + self.arrivals.bytes()
            + self.lowest.bytes()
            + self.states.len() * size_of::<Cluster>()
    }
}
