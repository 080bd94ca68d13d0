//! ARC: two lists, of pages used once and more often, with a ghost list each that shifts memory between them.
//!
//! T1 holds pages used once recently, T2 those used again; B1 and B2 remember what left them. The target p is
//! how much of the cache T1 should have. A hit on a ghost in B1 says T1 was too small: p grows by
//! max(1, |B2|/|B1|); one in B2 shrinks it by max(1, |B1|/|B2|). Room is made in T1 if it is above p (or at p
//! and the page came from B2), else in T2. |T1|+|B1| stays within the cache's size, all four within twice that.
//!
//! p and its steps are fractions (the paper leaves open whether they are whole), as in libCacheSim, whose miss
//! counts it agrees with exactly. All four lists are logs ([`Recency`]). Source: Megiddo and Modha,
//! FAST'03. Cost: O(1) an access, over time.

use super::kit::*;

/// ARC in the registry.
pub const ENTRY: Entry = Entry {
    name: "arc",
    about: "adaptive between recency and frequency",
    options: &[],
    make: Make { source: "Megiddo and Modha, FAST 2003", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let capacity = order.config().capacity;
    Recency::check(ENTRY.name, capacity)?;
    let needs = Needs { ghosts: capacity + 1, lists: 0 };
    order.cache::<X, _>(needs, |_| Arc {
        recent: Recency::new(capacity, 1, 1),
        frequent: Recency::new(capacity, 2, 4),
        recent_ghosts: Recency::new(capacity + 1, 3, 1),
        frequent_ghosts: Recency::new(capacity + 1, 4, 1),
        target: 0.0,
        came_from: Past::None,
        leaves_no_ghost: false,
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Past {
    None,
    Recent,
    Frequent,
}

struct Arc {
    recent: Recency,
    frequent: Recency,
    recent_ghosts: Recency,
    frequent_ghosts: Recency,
    /// p: how many pages T1 should hold.
    target: f64,
    came_from: Past,
    leaves_no_ghost: bool,
}

impl Arc {
    fn drop_ghost<X: Index>(order: &mut Recency, pages: &mut Pages<X>) {
        let ghost = order.oldest(pages);
        if ghost != NIL {
            order.leave(pages, ghost);
            pages.forget(ghost);
        }
    }

    /// Case IV of the paper: keeps the history within bounds. Whether T1 alone fills its half, so that its
    /// oldest page leaves without a trace.
    fn trim<X: Index>(&mut self, pages: &mut Pages<X>) -> bool {
        let capacity = pages.capacity();
        let once = self.recent.len() + self.recent_ghosts.len();
        if once >= capacity {
            if self.recent_ghosts.is_empty() {
                return true;
            }
            Self::drop_ghost(&mut self.recent_ghosts, pages);
        } else if once + self.frequent.len() + self.frequent_ghosts.len() >= 2 * capacity {
            Self::drop_ghost(&mut self.frequent_ghosts, pages);
        }
        false
    }
}

impl<X: Index> Policy<X> for Arc {
    const TOUCHES: Touches = Touches::Node;

    #[inline(always)]
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        if self.frequent.holds(pages, node) {
            self.frequent.touch(pages, node);
        } else {
            self.recent.leave(pages, node);
            self.frequent.enter(pages, node);
        }
    }

    fn miss(&mut self, pages: &mut Pages<X>, ghost: u32) {
        self.came_from = Past::None;
        if ghost == NIL {
            return;
        }
        let (recent, frequent) = (f64::from(self.recent_ghosts.len()), f64::from(self.frequent_ghosts.len()));
        if self.frequent_ghosts.holds(pages, ghost) {
            self.came_from = Past::Frequent;
            self.target = (self.target - (recent / frequent).max(1.0)).max(0.0);
            self.frequent_ghosts.leave(pages, ghost);
        } else {
            self.came_from = Past::Recent;
            self.target = (self.target + (frequent / recent).max(1.0)).min(f64::from(pages.capacity()));
            self.recent_ghosts.leave(pages, ghost);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        self.leaves_no_ghost = self.came_from == Past::None && self.trim(pages);
        let once = f64::from(self.recent.len());
        let above = once > self.target || (once == self.target && self.came_from == Past::Frequent);
        let from_recent =
            self.leaves_no_ghost || (!self.recent.is_empty() && above) || self.frequent.is_empty();
        let order = if from_recent { &mut self.recent } else { &mut self.frequent };
        Room::Drop(order.oldest(pages))
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        if self.came_from == Past::None {
            self.recent.enter(pages, node);
        } else {
            self.frequent.enter(pages, node);
        }
        self.came_from = Past::None;
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife {
        let frequent = self.frequent.holds(pages, node);
        if frequent {
            self.frequent.leave(pages, node);
        } else {
            self.recent.leave(pages, node);
        }
        if why == Leaving::Discarded || (!frequent && self.leaves_no_ghost) {
            return Afterlife::Gone;
        }
        if frequent {
            self.frequent_ghosts.enter(pages, node);
        } else {
            self.recent_ghosts.enter(pages, node);
        }
        Afterlife::Ghost
    }

    fn bytes(&self) -> usize {
        let orders = [&self.recent, &self.frequent, &self.recent_ghosts, &self.frequent_ghosts];
        orders.into_iter().map(Recency::bytes).sum()
    }
}
