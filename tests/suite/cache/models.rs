//! Every policy once more, as plainly as it can be said: vectors that are searched from end to end, no lists through
//! slabs, no counters kept up to date. Slow on purpose; the product must agree with them access by access.
//!
//! In all order vectors the end that leaves first is at index 0.

use super::traces::Io;
use bimetal::cache::Access;
use std::collections::{BTreeMap, BTreeSet};

/// A policy with its cache.
pub trait Model {
    fn access(&mut self, access: Access, page: u64, io: &mut Vec<Io>);
}

pub fn without(order: &mut Vec<u64>, page: u64) -> bool {
    let at = order.iter().position(|&other| other == page);
    at.map(|at| order.remove(at)).is_some()
}

/// Policies that let one page go at a time: their order, and whom they name.
pub trait Single {
    fn hit(&mut self, page: u64, write: bool, was_dirty: bool);
    fn miss(&mut self, _page: u64) {}
    fn victim(&mut self, dirty: &BTreeSet<u64>) -> u64;
    fn insert(&mut self, page: u64, write: bool);
}

/// The cache around a [`Single`].
pub struct One<S> {
    capacity: usize,
    kept: BTreeSet<u64>,
    dirty: BTreeSet<u64>,
    policy: S,
}

impl<S: Single> One<S> {
    pub fn new(capacity: usize, policy: S) -> One<S> {
        One { capacity, kept: BTreeSet::new(), dirty: BTreeSet::new(), policy }
    }
}

impl<S: Single> Model for One<S> {
    fn access(&mut self, access: Access, page: u64, io: &mut Vec<Io>) {
        let write = access == Access::Write;
        if self.kept.contains(&page) {
            let was_dirty = self.dirty.contains(&page);
            if write {
                self.dirty.insert(page);
            }
            return self.policy.hit(page, write, was_dirty);
        }
        self.policy.miss(page);
        if self.kept.len() == self.capacity {
            let victim = self.policy.victim(&self.dirty);
            assert!(self.kept.remove(&victim));
            if self.dirty.remove(&victim) {
                io.push(Io::Write(victim, 1));
            }
        }
        self.kept.insert(page);
        if write {
            self.dirty.insert(page);
        } else {
            io.push(Io::Read(page, 1));
        }
        self.policy.insert(page, write);
    }
}

#[derive(Default)]
pub struct Lru(Vec<u64>);

impl Single for Lru {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        without(&mut self.0, page);
        self.0.push(page);
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        self.0.remove(0)
    }
    fn insert(&mut self, page: u64, _: bool) {
        self.0.push(page);
    }
}

pub struct Clock {
    pub queue: Vec<(u64, u32)>,
    pub used_max: u32,
}

impl Single for Clock {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        let entry = self.queue.iter_mut().find(|entry| entry.0 == page).unwrap();
        entry.1 = (entry.1 + 1).min(self.used_max);
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        loop {
            let (page, used) = self.queue.remove(0);
            if used == 0 {
                return page;
            }
            self.queue.push((page, used - 1));
        }
    }
    fn insert(&mut self, page: u64, _: bool) {
        self.queue.push((page, 0));
    }
}

#[derive(Default)]
pub struct Sieve {
    queue: Vec<(u64, bool)>,
    hand: usize,
}

impl Single for Sieve {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        self.queue.iter_mut().find(|entry| entry.0 == page).unwrap().1 = true;
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        loop {
            if self.hand >= self.queue.len() {
                self.hand = 0;
            }
            if !self.queue[self.hand].1 {
                return self.queue.remove(self.hand).0;
            }
            self.queue[self.hand].1 = false;
            self.hand += 1;
        }
    }
    fn insert(&mut self, page: u64, _: bool) {
        // The hand at the end means "start over": a new page must not stop it there.
        if self.hand >= self.queue.len() {
            self.hand = 0;
        }
        self.queue.push((page, false));
    }
}

pub struct S3Fifo {
    small: Vec<(u64, u32)>,
    main: Vec<(u64, u32)>,
    ghosts: Vec<u64>,
    capacity: usize,
    small_max: usize,
    ghosts_max: usize,
    was_full: bool,
    remembered: bool,
}

impl S3Fifo {
    pub fn new(capacity: usize) -> S3Fifo {
        let small_max = (capacity / 10).max(1);
        S3Fifo {
            small: Vec::new(),
            main: Vec::new(),
            ghosts: Vec::new(),
            capacity,
            small_max,
            ghosts_max: capacity * 9 / 10,
            was_full: false,
            remembered: false,
        }
    }
}

impl Single for S3Fifo {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        let mut entries = self.small.iter_mut().chain(&mut self.main);
        entries.find(|entry| entry.0 == page).unwrap().1 += 1;
    }
    fn miss(&mut self, page: u64) {
        self.remembered = without(&mut self.ghosts, page);
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        self.was_full = true;
        loop {
            if self.main.len() <= self.capacity - self.small_max && !self.small.is_empty() {
                while !self.small.is_empty() {
                    let (page, used) = self.small.remove(0);
                    if used >= 2 {
                        self.main.push((page, 0));
                        continue;
                    }
                    if self.ghosts.len() == self.ghosts_max {
                        self.ghosts.remove(0);
                    }
                    self.ghosts.push(page);
                    return page;
                }
            } else {
                loop {
                    let (page, used) = self.main.remove(0);
                    if used == 0 {
                        return page;
                    }
                    self.main.push((page, used.min(3) - 1));
                }
            }
        }
    }
    fn insert(&mut self, page: u64, _: bool) {
        if self.remembered || (!self.was_full && self.small.len() >= self.small_max) {
            self.main.push((page, 0));
        } else {
            self.small.push((page, 0));
        }
    }
}

#[derive(Default)]
pub struct Arc {
    capacity: usize,
    t1: Vec<u64>,
    t2: Vec<u64>,
    b1: Vec<u64>,
    b2: Vec<u64>,
    p: f64,
    /// The list of ghosts that the page came from: 1, 2, or 0 for none.
    from: u32,
}

impl Arc {
    pub fn new(capacity: usize) -> Arc {
        Arc { capacity, ..Arc::default() }
    }

    fn replace(&mut self) -> u64 {
        let above = self.t1.len() as f64 > self.p || (self.t1.len() as f64 == self.p && self.from == 2);
        if (!self.t1.is_empty() && above) || self.t2.is_empty() {
            let page = self.t1.remove(0);
            self.b1.push(page);
            page
        } else {
            let page = self.t2.remove(0);
            self.b2.push(page);
            page
        }
    }
}

impl Single for Arc {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        if !without(&mut self.t1, page) {
            without(&mut self.t2, page);
        }
        self.t2.push(page);
    }
    fn miss(&mut self, page: u64) {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        self.from = 0;
        if without(&mut self.b1, page) {
            self.from = 1;
            self.p = (self.p + (b2 / b1).max(1.0)).min(self.capacity as f64);
        } else if without(&mut self.b2, page) {
            self.from = 2;
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
        }
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        if self.from == 0 {
            if self.t1.len() + self.b1.len() == self.capacity {
                if self.t1.len() == self.capacity {
                    return self.t1.remove(0);
                }
                self.b1.remove(0);
            } else if self.t1.len() + self.b1.len() + self.t2.len() + self.b2.len() >= 2 * self.capacity {
                self.b2.remove(0);
            }
        }
        self.replace()
    }
    fn insert(&mut self, page: u64, _: bool) {
        if self.from == 0 { self.t1.push(page) } else { self.t2.push(page) }
    }
}

pub struct Lirs {
    /// Top of the stack last; page, whether LIR, whether resident.
    stack: Vec<(u64, bool, bool)>,
    queue: Vec<u64>,
    /// Ghosts by when they left.
    ghosts: Vec<u64>,
    lir_max: usize,
    ghosts_max: usize,
    remembered: bool,
}

impl Lirs {
    pub fn new(capacity: usize, hir: usize) -> Lirs {
        let (stack, queue, ghosts) = (Vec::new(), Vec::new(), Vec::new());
        Lirs { stack, queue, ghosts, lir_max: capacity - hir, ghosts_max: capacity, remembered: false }
    }

    fn prune(&mut self) {
        while self.stack.first().is_some_and(|entry| !entry.1) {
            let (page, _, _) = self.stack.remove(0);
            without(&mut self.ghosts, page);
        }
    }

    fn lirs(&self) -> usize {
        self.stack.iter().filter(|entry| entry.1).count()
    }

    /// Pushes `page` as a LIR page; the LIR page at the bottom makes way.
    fn push_lir(&mut self, page: u64) {
        self.stack.push((page, true, true));
        self.prune();
        while self.lirs() > self.lir_max {
            let (bottom, _, _) = self.stack.remove(0);
            self.queue.push(bottom);
            self.prune();
        }
    }
}

impl Single for Lirs {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        let at = self.stack.iter().position(|entry| entry.0 == page);
        let was_lir = at.map(|at| self.stack.remove(at).1);
        match was_lir {
            Some(true) => {
                self.stack.push((page, true, true));
                self.prune();
            }
            Some(false) => {
                without(&mut self.queue, page);
                self.push_lir(page);
            }
            None => {
                self.stack.push((page, false, true));
                without(&mut self.queue, page);
                self.queue.push(page);
            }
        }
    }
    fn miss(&mut self, page: u64) {
        self.remembered = without(&mut self.ghosts, page);
        if self.remembered {
            self.stack.retain(|entry| entry.0 != page);
        }
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        let page = self.queue.remove(0);
        if let Some(entry) = self.stack.iter_mut().find(|entry| entry.0 == page) {
            entry.2 = false;
            if self.ghosts.len() == self.ghosts_max {
                let oldest = self.ghosts.remove(0);
                self.stack.retain(|entry| entry.0 != oldest);
            }
            self.ghosts.push(page);
        }
        page
    }
    fn insert(&mut self, page: u64, _: bool) {
        if self.remembered || self.lirs() < self.lir_max {
            self.push_lir(page);
        } else {
            self.stack.push((page, false, true));
            self.queue.push(page);
        }
    }
}

pub struct Cflru {
    pub order: Vec<u64>,
    pub window: usize,
}

impl Single for Cflru {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        without(&mut self.order, page);
        self.order.push(page);
    }
    fn victim(&mut self, dirty: &BTreeSet<u64>) -> u64 {
        let region = &self.order[..self.window.min(self.order.len())];
        let at = region.iter().position(|page| !dirty.contains(page)).unwrap_or(0);
        self.order.remove(at)
    }
    fn insert(&mut self, page: u64, _: bool) {
        self.order.push(page);
    }
}

pub struct LruWsr {
    pub order: Vec<(u64, bool)>,
    pub moves: bool,
}

impl Single for LruWsr {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        self.order.retain(|entry| entry.0 != page);
        self.order.push((page, false));
    }
    fn victim(&mut self, dirty: &BTreeSet<u64>) -> u64 {
        let mut at = 0;
        loop {
            let (page, cold) = self.order[at];
            if cold || !dirty.contains(&page) {
                return self.order.remove(at).0;
            }
            self.order[at].1 = true;
            if self.moves {
                let entry = self.order.remove(0);
                self.order.push(entry);
            } else {
                at = (at + 1) % self.order.len();
            }
        }
    }
    fn insert(&mut self, page: u64, _: bool) {
        self.order.push((page, false));
    }
}

pub struct Casa {
    pub capacity: usize,
    pub ratio: f64,
    pub clean: Vec<u64>,
    pub dirty: Vec<u64>,
    pub tau: f64,
}

impl Single for Casa {
    fn hit(&mut self, page: u64, write: bool, was_dirty: bool) {
        let (clean, dirty) = (self.clean.len() as f64, self.dirty.len() as f64);
        if !write && !was_dirty {
            self.tau = (self.tau + 1.0 / (1.0 + self.ratio) * dirty / clean).min(self.capacity as f64);
        }
        if write && was_dirty {
            self.tau = (self.tau - self.ratio / (1.0 + self.ratio) * clean / dirty).max(0.0);
        }
        if !without(&mut self.clean, page) {
            without(&mut self.dirty, page);
        }
        if write || was_dirty { self.dirty.push(page) } else { self.clean.push(page) }
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        let clean = (self.clean.len() as f64 > self.tau || self.dirty.is_empty()) && !self.clean.is_empty();
        if clean { self.clean.remove(0) } else { self.dirty.remove(0) }
    }
    fn insert(&mut self, page: u64, write: bool) {
        if write { self.dirty.push(page) } else { self.clean.push(page) }
    }
}

#[derive(Clone)]
struct Cluster {
    pages: Vec<u64>,
    since: u64,
    chosen: bool,
}

pub struct Cfdc {
    window: usize,
    cluster: u64,
    working: Vec<u64>,
    clean: Vec<u64>,
    clusters: BTreeMap<u64, Cluster>,
    dirty: BTreeSet<u64>,
    now: u64,
}

impl Cfdc {
    pub fn new(window: usize, cluster: u64) -> Cfdc {
        let (working, clean, clusters) = (Vec::new(), Vec::new(), BTreeMap::new());
        Cfdc { window, cluster, working, clean, clusters, dirty: BTreeSet::new(), now: 0 }
    }

    fn enter(&mut self, page: u64) {
        self.working.push(page);
        if self.working.len() > self.window {
            let out = self.working.remove(0);
            if !self.dirty.contains(&out) {
                return self.clean.push(out);
            }
            self.now += 1;
            let fresh = Cluster { pages: Vec::new(), since: self.now, chosen: false };
            self.clusters.entry(out / self.cluster).or_insert(fresh).pages.push(out);
        }
    }

    /// Numerator and denominator of a cluster's priority.
    fn priority(&self, cluster: &Cluster) -> (u128, u128) {
        if cluster.chosen {
            return (0, 1);
        }
        let n = cluster.pages.len() as u128;
        let distance: u64 = cluster.pages.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
        (if n == 1 { 1 } else { distance.into() }, n * n * u128::from((self.now - cluster.since).max(1)))
    }
}

impl Single for Cfdc {
    fn hit(&mut self, page: u64, write: bool, _: bool) {
        if !without(&mut self.working, page) && !without(&mut self.clean, page) {
            let now = self.now;
            let cluster = self.clusters.get_mut(&(page / self.cluster)).unwrap();
            without(&mut cluster.pages, page);
            cluster.since = now;
            self.clusters.retain(|_, cluster| !cluster.pages.is_empty());
        }
        if write {
            self.dirty.insert(page);
        }
        self.enter(page);
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        let page = if !self.clean.is_empty() {
            self.clean.remove(0)
        } else if self.clusters.is_empty() {
            self.working.remove(0)
        } else {
            let lowest = self.clusters.iter().min_by(|(a_id, a), (b_id, b)| {
                let ((over_a, under_a), (over_b, under_b)) = (self.priority(a), self.priority(b));
                (over_a * under_b).cmp(&(over_b * under_a)).then((a.since, a_id).cmp(&(b.since, b_id)))
            });
            let id = *lowest.unwrap().0;
            let cluster = self.clusters.get_mut(&id).unwrap();
            cluster.chosen = true;
            let page = cluster.pages.remove(0);
            self.clusters.retain(|_, cluster| !cluster.pages.is_empty());
            page
        };
        self.dirty.remove(&page);
        page
    }
    fn insert(&mut self, page: u64, write: bool) {
        if write {
            self.dirty.insert(page);
        }
        self.enter(page);
    }
}
