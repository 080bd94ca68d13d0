//! Which clean page leaves: by distance from the dirty ones, then by how often it was written, then by age.
//!
//! Pages are scanned once, from the LRU end, up to the first dirty page (or, if dirty pages are passed, to the MRU
//! end); a hit takes a page out of the scanned part again. A scanned clean page is either a candidate, in a heap by
//! (times written, place in the LRU order), or it waits because a dirty page is near. Whether one is near changes as
//! pages become dirty and clean: a candidate is looked at again when it comes to the top, and the waiting pages near
//! a page that became clean are looked at then.
//!
//! Cost: O(log n) a choice, amortised; O(block / 64) for each page that becomes clean.

use super::super::kit::*;
use crate::blocks::Geometry;
use crate::pages::TAG_MAX;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Tag bit: the page was scanned.
const SCANNED: u32 = 1;
/// Tag bit: the page is a candidate.
const CANDIDATE: u32 = 2;
/// Tag bit: the page waits for the dirty pages near it to be written.
const WAITING: u32 = 4;
/// The first tag bit that is free for others.
pub const FREE_TAG_BIT: u32 = 8;
/// The times a page was written while clean are counted from this tag bit on.
const TIMES_SHIFT: u32 = 8;

/// When a dirty page is near a clean one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Near {
    /// At most half an erase block away: the clean page is the centre of a block.
    Half,
    /// In the same erase block.
    Aligned,
    /// Less than an erase block away.
    Full,
}

impl Near {
    /// The pages around `page` that are near it.
    pub fn around(self, geometry: Geometry, page: u64) -> (u64, u64) {
        let block = u64::from(geometry.pages());
        let reach = match self {
            Near::Half => block / 2,
            Near::Full => block - 1,
            Near::Aligned => {
                let first = geometry.first(geometry.block(page));
                return (first, first + block - 1);
            }
        };
        (page.saturating_sub(reach), page + reach)
    }
}

/// The rules by which a clean page is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Pages near dirty ones stay.
    pub distance: Option<Near>,
    /// Those written least often leave first.
    pub frequency: bool,
    /// The whole list is scanned, not only the part before the first dirty page.
    pub passes_dirty: bool,
}

/// A page in the heap: times written, place in the order, node.
type Candidate = Reverse<(u32, u64, u32)>;

/// The scanned pages.
pub struct Candidates<X> {
    rules: Rules,
    /// The scanned page nearest to the MRU end, or [`NIL`].
    frontier: u32,
    /// The place of each scanned page in the LRU order.
    places: Vec<u64>,
    next_place: u64,
    heap: BinaryHeap<Candidate>,
    waiting: Blocks<X>,
    near: Vec<u64>,
}

impl<X: Index> Candidates<X> {
    pub fn new(rules: Rules, nodes: usize, waiting: Blocks<X>) -> Candidates<X> {
        Candidates {
            rules,
            frontier: NIL,
            places: vec![0; nodes],
            next_place: 0,
            heap: BinaryHeap::new(),
            waiting,
            near: Vec::new(),
        }
    }

    fn has(pages: &Pages<X>, node: u32, bit: u32) -> bool {
        pages.tag(node) & bit != 0
    }

    /// Scans on; the first dirty page met, or [`NIL`] if there is none.
    pub fn scan(&mut self, pages: &mut Pages<X>, list: &List, dirty: &Blocks<X>) -> u32 {
        loop {
            let next =
                if self.frontier == NIL { list.back(pages) } else { list.before(pages, self.frontier) };
            if next == NIL || (pages.is_dirty(next) && !self.rules.passes_dirty) {
                return next;
            }
            self.frontier = next;
            self.next_place += 1;
            self.places[next as usize] = self.next_place;
            pages.set_tag(next, pages.tag(next) | SCANNED);
            if !pages.is_dirty(next) {
                self.classify(pages, next, dirty);
            }
        }
    }

    fn classify(&mut self, pages: &mut Pages<X>, node: u32, dirty: &Blocks<X>) {
        let page = pages.page(node);
        if self.is_protected(page, dirty) {
            pages.set_tag(node, pages.tag(node) | WAITING);
            self.waiting.enter(page);
        } else {
            pages.set_tag(node, pages.tag(node) | CANDIDATE);
            self.push(pages, node);
        }
    }

    /// Whether a dirty page is near `page`.
    fn is_protected(&self, page: u64, dirty: &Blocks<X>) -> bool {
        self.rules.distance.is_some_and(|near| {
            let (first, last) = near.around(dirty.geometry(), page);
            dirty.any_within(first, last)
        })
    }

    fn rank(&self, pages: &Pages<X>, node: u32) -> Candidate {
        let times = if self.rules.frequency { pages.tag(node) >> TIMES_SHIFT } else { 0 };
        Reverse((times, self.places[node as usize], node))
    }

    fn push(&mut self, pages: &Pages<X>, node: u32) {
        if self.heap.len() > 2 * pages.node_count() {
            let mut entries = std::mem::take(&mut self.heap).into_vec();
            entries.retain(|entry| self.is_current(pages, entry));
            self.heap = BinaryHeap::from(entries);
        }
        self.heap.push(self.rank(pages, node));
    }

    /// Whether an entry of the heap still stands for a candidate.
    fn is_current(&self, pages: &Pages<X>, entry: &Candidate) -> bool {
        let Reverse((_, _, node)) = *entry;
        Self::has(pages, node, CANDIDATE) && self.rank(pages, node) == *entry
    }

    /// The clean page to leave, or [`NIL`]: none was scanned that may.
    pub fn best(&mut self, pages: &mut Pages<X>, dirty: &Blocks<X>) -> u32 {
        while let Some(&entry) = self.heap.peek() {
            let Reverse((_, _, node)) = entry;
            if self.is_current(pages, &entry) {
                if !self.is_protected(pages.page(node), dirty) {
                    return node;
                }
                pages.set_tag(node, pages.tag(node) & !CANDIDATE);
                self.classify(pages, node, dirty);
            }
            self.heap.pop();
        }
        NIL
    }

    /// A page is used, becomes dirty or leaves: it is not scanned any more. Called before the list changes.
    pub fn unscan(&mut self, pages: &mut Pages<X>, node: u32, list: &List) {
        let tag = pages.tag(node);
        if tag & SCANNED == 0 {
            return;
        }
        if self.frontier == node {
            self.frontier = list.after(pages, node);
        }
        if tag & WAITING != 0 {
            self.end_wait(pages.page(node));
        }
        pages.set_tag(node, tag & !(SCANNED | CANDIDATE | WAITING));
    }

    fn end_wait(&mut self, page: u64) {
        let (block, left) = self.waiting.exit(page);
        if left == 0 {
            self.waiting.free(block);
        }
    }

    /// The dirty page `page` was written or left; `node` is its node if it stays.
    pub fn cleaned(&mut self, pages: &mut Pages<X>, page: u64, node: u32, dirty: &Blocks<X>) {
        if node != NIL && Self::has(pages, node, SCANNED) {
            self.classify(pages, node, dirty);
        }
        let Some(near) = self.rules.distance else { return };
        let (first, last) = near.around(dirty.geometry(), page);
        let mut freed = std::mem::take(&mut self.near);
        freed.clear();
        freed.extend(self.waiting.pages_within(first, last).filter(|&page| !self.is_protected(page, dirty)));
        for &page in &freed {
            self.end_wait(page);
            let node = pages.find(page);
            pages.set_tag(node, (pages.tag(node) & !WAITING) | CANDIDATE);
            self.push(pages, node);
        }
        self.near = freed;
    }

    /// A clean page was written to fill a gap.
    pub fn written_while_clean(&mut self, pages: &mut Pages<X>, node: u32) {
        let tag = pages.tag(node);
        pages.set_tag(node, if tag > TAG_MAX - (1 << TIMES_SHIFT) { tag } else { tag + (1 << TIMES_SHIFT) });
        if tag & CANDIDATE != 0 {
            self.push(pages, node);
        }
    }

    pub fn bytes(&self) -> usize {
        self.places.len() * size_of::<u64>()
            + self.heap.capacity() * size_of::<Candidate>()
            + self.waiting.bytes()
    }
}
