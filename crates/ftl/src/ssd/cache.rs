//! What an SSD's memory holds: pages that wait, of which all or only some sectors were written, and pages whose program
//! is under way.

use bimetal_base::time::Time;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Sectors of one page, by bit. A page has at most 128 (64 KiB of 512 bytes).
pub(super) type Sectors = u128;

/// A page of which some sectors, or all, wait.
#[derive(Default)]
pub(super) struct Partial {
    /// Which sectors are here.
    pub have: Sectors,
    /// The placement handle of those written last.
    pub handle: u8,
    /// A whole page of bytes, of which those sectors count; empty where no bytes are kept.
    pub bytes: Vec<u8>,
}

/// The memory.
#[derive(Default)]
pub(super) struct Cache {
    waiting: FxHashMap<u64, Partial>,
    /// Pages that wait, oldest first; those that no longer do are skipped.
    order: VecDeque<u64>,
    /// Those of them that are whole, in the order in which they became so.
    whole: VecDeque<u64>,
    /// Programs under way, by their end.
    under_way: BinaryHeap<Reverse<(Time, u64)>>,
    /// The end of the latest program of a page under way.
    programming: FxHashMap<u64, Time>,
}

impl Cache {
    /// What waits of `page`, from now on if nothing did.
    pub fn wait(&mut self, page: u64) -> &mut Partial {
        let order = &mut self.order;
        self.waiting.entry(page).or_insert_with(|| {
            order.push_back(page);
            Partial::default()
        })
    }

    /// What waits of `page`.
    pub fn waiting(&self, page: u64) -> Option<&Partial> {
        self.waiting.get(&page)
    }

    /// Notes that all of a page that waits is here.
    pub fn completed(&mut self, page: u64) {
        self.whole.push_back(page);
    }

    /// The whole page that has waited the longest.
    pub fn oldest_whole(&mut self) -> Option<u64> {
        first_of(&mut self.whole, &self.waiting)
    }

    /// Takes out what waits of `page`.
    pub fn take(&mut self, page: u64) -> Option<Partial> {
        let taken = self.waiting.remove(&page);
        if self.waiting.is_empty() {
            self.order.clear();
            self.whole.clear();
        }
        taken
    }

    /// The page that has waited the longest.
    pub fn oldest(&mut self) -> Option<u64> {
        first_of(&mut self.order, &self.waiting)
    }

    /// Notes that `page` is being programmed until `end`.
    pub fn begin_program(&mut self, page: u64, end: Time) {
        self.under_way.push(Reverse((end, page)));
        self.programming.insert(page, end);
    }

    /// Forgets the program that ends first, if it has by `now`; when it did.
    pub fn end_program(&mut self, now: Time) -> Option<Time> {
        let Reverse((end, page)) = self.under_way.peek().copied().filter(|Reverse((end, _))| *end <= now)?;
        self.under_way.pop();
        if self.programming.get(&page) == Some(&end) {
            self.programming.remove(&page);
        }
        Some(end)
    }

    /// Programs under way.
    pub fn programs(&self) -> usize {
        self.under_way.len()
    }

    /// Whether `page` is being programmed, so that memory still has it.
    pub fn is_programming(&self, page: u64) -> bool {
        self.programming.contains_key(&page)
    }

    /// The end of the program that ends first.
    pub fn first_end(&self) -> Option<Time> {
        self.under_way.peek().map(|Reverse((end, _))| *end)
    }

    /// Pages in memory.
    pub fn pages(&self) -> usize {
        self.waiting.len() + self.under_way.len()
    }
}

/// The first page of `order` that waits; what stands before it is dropped.
fn first_of(order: &mut VecDeque<u64>, waiting: &FxHashMap<u64, Partial>) -> Option<u64> {
    while let Some(page) = order.front() {
        if waiting.contains_key(page) {
            return Some(*page);
        }
        order.pop_front();
    }
    None
}
