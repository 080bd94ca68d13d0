//! What an SSD's memory holds: pages of which only some sectors were written, and pages whose program is
//! under way.

use bimetal_base::time::Time;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Sectors of one page, by bit. A page has at most 128 (64 KiB of 512 bytes).
pub(super) type Sectors = u128;

/// A page of which some sectors wait.
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
    partial: FxHashMap<u64, Partial>,
    /// Partial pages, oldest first; those no longer partial are skipped.
    order: VecDeque<u64>,
    /// Programs under way, by their end.
    under_way: BinaryHeap<Reverse<(Time, u64)>>,
    /// The end of the latest program of a page under way.
    programming: FxHashMap<u64, Time>,
}

impl Cache {
    /// The partial page `page`, made if it was none.
    pub fn partial(&mut self, page: u64) -> &mut Partial {
        let order = &mut self.order;
        self.partial.entry(page).or_insert_with(|| {
            order.push_back(page);
            Partial::default()
        })
    }

    /// What waits of `page`.
    pub fn waiting(&self, page: u64) -> Option<&Partial> {
        self.partial.get(&page)
    }

    /// Takes out what waits of `page`.
    pub fn take(&mut self, page: u64) -> Option<Partial> {
        let taken = self.partial.remove(&page);
        if self.partial.is_empty() {
            self.order.clear();
        }
        taken
    }

    /// The page that has waited the longest.
    pub fn oldest(&mut self) -> Option<u64> {
        while let Some(page) = self.order.front() {
            if self.partial.contains_key(page) {
                return Some(*page);
            }
            self.order.pop_front();
        }
        None
    }

    /// Notes that `page` is being programmed until `end`.
    pub fn begin_program(&mut self, page: u64, end: Time) {
        self.under_way.push(Reverse((end, page)));
        self.programming.insert(page, end);
    }

    /// Forgets programs that have ended by `now`.
    pub fn end_programs(&mut self, now: Time) {
        while let Some(Reverse((end, page))) = self.under_way.peek().copied() {
            if end > now {
                return;
            }
            self.under_way.pop();
            if self.programming.get(&page) == Some(&end) {
                self.programming.remove(&page);
            }
        }
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
        self.partial.len() + self.under_way.len()
    }
}
