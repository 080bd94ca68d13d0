//! What an SSD's memory holds: pages that wait, of which all or only some sectors were written, and pages whose program
//! is under way.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Sectors of one page, by bit. A page has at most 128 (64 KiB of 512 bytes).
pub(super) type Sectors = u128;

/// Queues of whole pages: one for each placement handle there can be.
pub(super) const QUEUES: usize = 8;

/// A page of which some sectors, or all, wait.
#[derive(Default)]
pub(super) struct Partial {
    /// Which sectors are here.
    pub have: Sectors,
    /// The placement handle of those written last.
    pub handle: u8,
    /// A whole page of bytes, of which those sectors count; empty where no bytes are kept.
    pub bytes: Vec<u8>,
    /// All of it is here: the queue of whole pages that it is in.
    whole_in: Option<u8>,
}

/// The memory.
#[derive(Default)]
pub(super) struct Cache {
    waiting: FxHashMap<u64, Partial>,
    /// Pages that wait, oldest first; those that no longer do are skipped.
    order: VecDeque<u64>,
    /// Those of them that are whole, in the order in which they became so; what is written in stripes by placement handle.
    whole: [VecDeque<u64>; QUEUES],
    /// How many those are.
    whole_pages: [usize; QUEUES],
    /// Programs under way, by their tokens.
    under_way: FxHashMap<u64, Program>,
    /// Pages that these are of.
    programs: usize,
    /// The latest program of a page under way.
    programming: FxHashMap<u64, u64>,
}

/// A program under way, of one page or of several logical ones that a page of the flash holds.
#[derive(Default)]
pub(super) struct Program {
    pages: SmallVec<[u64; 1]>,
    /// The requests that wait for it.
    pub waiters: SmallVec<[u64; 1]>,
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

    /// Notes that all of a page that waits is here, in a queue of whole pages.
    pub fn completed(&mut self, page: u64, queue: u8) {
        let queue = queue.min(QUEUES as u8 - 1);
        if let Some(partial) = self.waiting.get_mut(&page).filter(|partial| partial.whole_in.is_none()) {
            partial.whole_in = Some(queue);
            self.whole[usize::from(queue)].push_back(page);
            self.whole_pages[usize::from(queue)] += 1;
        }
    }

    /// The whole page that has waited the longest in a queue.
    pub fn oldest_whole(&mut self, queue: u8) -> Option<u64> {
        first_of(&mut self.whole[usize::from(queue)], &self.waiting)
    }

    /// Whole pages that wait in a queue.
    pub fn whole_pages(&self, queue: u8) -> usize {
        self.whole_pages[usize::from(queue)]
    }

    /// Takes out what waits of `page`.
    pub fn take(&mut self, page: u64) -> Option<Partial> {
        let taken = self.waiting.remove(&page);
        if let Some(queue) = taken.as_ref().and_then(|taken| taken.whole_in) {
            self.whole_pages[usize::from(queue)] -= 1;
        }
        if self.waiting.is_empty() {
            self.order.clear();
            self.whole.iter_mut().for_each(VecDeque::clear);
        }
        taken
    }

    /// The page that has waited the longest.
    pub fn oldest(&mut self) -> Option<u64> {
        first_of(&mut self.order, &self.waiting)
    }

    /// Puts back what was just taken and could not be programmed, behind all else.
    pub fn put_back(&mut self, page: u64, partial: Partial) {
        let queue = partial.whole_in;
        self.waiting.insert(page, Partial { whole_in: None, ..partial });
        self.order.push_back(page);
        if let Some(queue) = queue {
            self.completed(page, queue);
        }
    }

    /// Notes that `page` is being programmed.
    pub fn begin_program(&mut self, page: u64, token: u64) {
        self.under_way.entry(token).or_default().pages.push(page);
        self.programs += 1;
        self.programming.insert(page, token);
    }

    /// Forgets a program that has ended; who waits for it.
    pub fn end_program(&mut self, token: u64) -> Option<Program> {
        let program = self.under_way.remove(&token)?;
        self.programs -= program.pages.len();
        for page in &program.pages {
            if self.programming.get(page) == Some(&token) {
                self.programming.remove(page);
            }
        }
        Some(program)
    }

    /// Has a request wait for a program under way.
    pub fn wait_for(&mut self, token: u64, request: u64) {
        if let Some(program) = self.under_way.get_mut(&token) {
            program.waiters.push(request);
        }
    }

    /// Has a request wait for all of them.
    pub fn wait_for_all(&mut self, request: u64) {
        self.under_way.values_mut().for_each(|program| program.waiters.push(request));
    }

    /// Pages whose programs are under way.
    pub fn programs(&self) -> usize {
        self.programs
    }

    /// Programs under way.
    pub fn commands(&self) -> usize {
        self.under_way.len()
    }

    /// Whether `page` is being programmed, so that memory still has it.
    pub fn is_programming(&self, page: u64) -> bool {
        self.programming.contains_key(&page)
    }

    /// Sectors that wait.
    pub fn waiting_sectors(&self) -> u64 {
        self.waiting.values().map(|partial| u64::from(partial.have.count_ones())).sum()
    }

    /// Pages in memory.
    pub fn pages(&self) -> usize {
        self.waiting.len() + self.programs
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
