//! The plain models of the policies that count how often a page is used, or remember that it came back.

use super::models::{Single, without};
use bimetal::random::Random;
use std::collections::{BTreeMap, BTreeSet};

pub struct TwoQ {
    queue: Vec<u64>,
    frequent: Vec<u64>,
    ghosts: Vec<u64>,
    queue_max: usize,
    ghosts_max: usize,
    remembered: bool,
}

impl TwoQ {
    pub fn new(queue_max: usize, ghosts_max: usize) -> TwoQ {
        let (queue, frequent, ghosts) = (Vec::new(), Vec::new(), Vec::new());
        TwoQ { queue, frequent, ghosts, queue_max, ghosts_max, remembered: false }
    }
}

/// Adds `page` to ghosts that are at most `most`.
fn remember(ghosts: &mut Vec<u64>, page: u64, most: usize) {
    ghosts.push(page);
    if ghosts.len() > most {
        ghosts.remove(0);
    }
}

impl Single for TwoQ {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        if without(&mut self.frequent, page) {
            self.frequent.push(page);
        }
    }
    fn miss(&mut self, page: u64) {
        self.remembered = without(&mut self.ghosts, page);
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        if self.queue.len() <= self.queue_max && !self.frequent.is_empty() {
            return self.frequent.remove(0);
        }
        let page = self.queue.remove(0);
        remember(&mut self.ghosts, page, self.ghosts_max);
        page
    }
    fn insert(&mut self, page: u64, _: bool) {
        if self.remembered { self.frequent.push(page) } else { self.queue.push(page) }
    }
}

/// S3-FIFO with the two rules that S4-FIFO adds.
pub struct S4Fifo {
    /// Page, hits that count, returns.
    small: Vec<(u64, u32, u32)>,
    main: Vec<(u64, u32)>,
    /// Page, returns.
    ghosts: Vec<(u64, u32)>,
    capacity: usize,
    small_max: usize,
    skip: usize,
    returns: u32,
    returned: u32,
    was_full: bool,
}

impl S4Fifo {
    pub fn new(capacity: usize, skip: f64, returns: u32) -> S4Fifo {
        let small_max = (capacity / 10).max(1);
        let skip = (small_max as f64 * skip + 1e-9) as usize;
        let (small, main, ghosts) = (Vec::new(), Vec::new(), Vec::new());
        S4Fifo { small, main, ghosts, capacity, small_max, skip, returns, returned: 0, was_full: false }
    }

    /// The oldest of the small queue that has not been hit twice.
    fn small_victim(&mut self) -> Option<u64> {
        while !self.small.is_empty() {
            let (page, used, returned) = self.small.remove(0);
            if used < 2 {
                self.ghosts.push((page, returned));
                if self.ghosts.len() > self.capacity * 9 / 10 {
                    self.ghosts.remove(0);
                }
                return Some(page);
            }
            self.main.push((page, 0));
        }
        None
    }
}

impl Single for S4Fifo {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        let counts = self.small.len() - self.skip.min(self.small.len());
        if let Some(entry) = self.main.iter_mut().find(|entry| entry.0 == page) {
            entry.1 += 1;
        } else if let Some(entry) = self.small[..counts].iter_mut().find(|entry| entry.0 == page) {
            entry.1 += 1;
        }
    }
    fn miss(&mut self, page: u64) {
        let ghost = self.ghosts.iter().position(|ghost| ghost.0 == page);
        self.returned = ghost.map_or(0, |at| self.ghosts.remove(at).1 + 1);
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        self.was_full = true;
        let from_small = self.main.len() <= self.capacity - self.small_max;
        if let Some(page) = from_small.then(|| self.small_victim()).flatten() {
            return page;
        }
        loop {
            let (page, used) = self.main.remove(0);
            if used == 0 {
                return page;
            }
            self.main.push((page, used.min(3) - 1));
        }
    }
    fn insert(&mut self, page: u64, _: bool) {
        if self.returned >= self.returns || (!self.was_full && self.small.len() >= self.small_max) {
            self.main.push((page, 0));
        } else {
            self.small.push((page, 0, self.returned));
        }
    }
}

pub struct Lecar {
    capacity: usize,
    /// The order of use, and how often each page was used.
    order: Vec<u64>,
    uses: BTreeMap<u64, u32>,
    /// The order in which pages came to their frequency.
    reached: Vec<u64>,
    /// Page, when it left, how often it was used: by the expert that named it.
    histories: [Vec<(u64, u64, u32)>; 2],
    weights: [f64; 2],
    random: Random,
    now: u64,
    returning: u32,
}

impl Lecar {
    pub fn new(capacity: usize) -> Lecar {
        Lecar {
            capacity,
            order: Vec::new(),
            uses: BTreeMap::new(),
            reached: Vec::new(),
            histories: [Vec::new(), Vec::new()],
            weights: [0.5, 0.5],
            random: Random::new(1, "lecar"),
            now: 0,
            returning: 0,
        }
    }

    fn use_it(&mut self, page: u64, uses: u32) {
        without(&mut self.order, page);
        without(&mut self.reached, page);
        self.order.push(page);
        self.reached.push(page);
        self.uses.insert(page, uses);
    }
}

impl Single for Lecar {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        self.now += 1;
        self.use_it(page, self.uses[&page] + 1);
    }
    fn miss(&mut self, page: u64) {
        self.now += 1;
        self.returning = 0;
        for expert in 0..2 {
            let Some(at) = self.histories[expert].iter().position(|ghost| ghost.0 == page) else { continue };
            let (_, left, uses) = self.histories[expert].remove(at);
            self.returning = uses;
            let discount = 0.005_f64.powf(1.0 / self.capacity as f64);
            let regret = discount.powf((self.now - left) as f64);
            self.weights[expert] *= (-0.45 * regret).exp();
            let share = (self.weights[0] / (self.weights[0] + self.weights[1])).clamp(0.01, 0.99);
            self.weights = [share, 1.0 - share];
        }
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        let least = *self.uses.values().min().unwrap();
        let named = [self.order[0], *self.reached.iter().find(|page| self.uses[page] == least).unwrap()];
        let expert = usize::from(!self.random.chance(self.weights[0]));
        let page = named[expert];
        without(&mut self.order, page);
        without(&mut self.reached, page);
        let uses = self.uses.remove(&page).unwrap();
        if named[0] != named[1] {
            self.histories[expert].push((page, self.now, uses));
            if self.histories[expert].len() > self.capacity {
                self.histories[expert].remove(0);
            }
        }
        page
    }
    fn insert(&mut self, page: u64, _: bool) {
        self.use_it(page, self.returning + 1);
    }
}

pub struct TinyLfu {
    capacity: usize,
    window: Vec<u64>,
    probation: Vec<u64>,
    protected: Vec<u64>,
    /// By row and number.
    counters: BTreeMap<(u64, u64), u32>,
    counted: usize,
}

impl TinyLfu {
    pub fn new(capacity: usize) -> TinyLfu {
        let (window, probation, protected) = (Vec::new(), Vec::new(), Vec::new());
        TinyLfu { capacity, window, probation, protected, counters: BTreeMap::new(), counted: 0 }
    }

    fn window_max(&self) -> usize {
        (self.capacity / 100).max(1)
    }

    fn places(&self, page: u64) -> [(u64, u64); 4] {
        let row = (4 * self.capacity as u64).next_power_of_two().max(16);
        let first = page.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let second = (first ^ first >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1;
        [0, 1, 2, 3].map(|which| {
            let hash = (first ^ first >> 29).wrapping_add(second.wrapping_mul(which));
            (which, (hash ^ hash >> 32) % row)
        })
    }

    fn estimate(&self, page: u64) -> u32 {
        let counts = self.places(page).map(|place| self.counters.get(&place).copied().unwrap_or(0));
        counts.into_iter().min().unwrap()
    }

    fn count(&mut self, page: u64) {
        let least = self.estimate(page);
        for place in self.places(page) {
            let counter = self.counters.entry(place).or_default();
            if *counter == least && least < 15 {
                *counter += 1;
            }
        }
        self.counted += 1;
        if self.counted == 10 * self.capacity {
            self.counters.values_mut().for_each(|counter| *counter /= 2);
            self.counted /= 2;
        }
    }
}

impl Single for TinyLfu {
    fn hit(&mut self, page: u64, _: bool, _: bool) {
        self.count(page);
        if without(&mut self.window, page) {
            return self.window.push(page);
        }
        without(&mut self.probation, page);
        without(&mut self.protected, page);
        self.protected.push(page);
        if self.protected.len() > (self.capacity - self.window_max()) * 4 / 5 {
            self.probation.push(self.protected.remove(0));
        }
    }
    fn victim(&mut self, _: &BTreeSet<u64>) -> u64 {
        let candidate = self.window.remove(0);
        let main = if self.probation.is_empty() { &mut self.protected } else { &mut self.probation };
        let Some(&victim) = main.first() else { return candidate };
        if self.estimate(candidate) <= self.estimate(victim) {
            return candidate;
        }
        without(&mut self.probation, victim);
        without(&mut self.protected, victim);
        self.probation.push(candidate);
        victim
    }
    fn insert(&mut self, page: u64, _: bool) {
        self.count(page);
        self.window.push(page);
        if self.window.len() > self.window_max() {
            self.probation.push(self.window.remove(0));
        }
    }
}
