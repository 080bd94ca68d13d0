//! The order in which nodes were last used, as a log: a use appends the node to it and touches nothing else.
//!
//! In a linked list a use changes the node and three others, and each is a look at memory that is seldom in the
//! processor's cache. Here each node has a mark, the number of its last entry in the log; entries that are no longer
//! their node's last are passed over. The oldest entry that still is one names the least recently used node, so the
//! order is exactly that of a list.
//!
//! When the log is full, what is passed over is taken out ([`Recency::compact`]): after `slack` times as many uses as
//! there are nodes, so that a use costs O(1) over time. It goes from the last use back and knows by a bit a node which
//! it has seen, so it looks at each node once and not at every use of it, and what it decides by chance it decides
//! without a branch. A node can be in one log at a time; the mark says in which.
//!
//! The oldest come one after the other, so what dropping them will need is loaded for many at once.
//!
//! Memory: 4 × (`slack` + 1) bytes a node, and a bit. The mark is kept in the node's link.

use super::index::{Index, NIL};
use super::pages::Pages;
use bimetal_base::{Error, Result};

/// Bits of a mark that number an entry; those above say which log.
const ENTRY_BITS: u32 = 29;

/// The most entries of a log for each node, beside its last one.
const SLACK_MAX: u32 = 4;

/// The most nodes a log takes.
const NODES_MAX: u32 = (1 << ENTRY_BITS) / (SLACK_MAX + 1) - 2;

/// How many of the oldest entries are made ready at once.
const READY: usize = 64;

/// An order of use. Everything is asked with the [`Pages`] whose nodes it orders.
pub struct Recency {
    /// Nodes, in the order of their uses.
    log: Vec<u32>,
    /// Where the next use goes.
    end: usize,
    /// Entries before this are of no use.
    start: usize,
    /// Entries before this are ready to be dropped.
    ready: usize,
    /// Its number above the entry's in a mark; not zero, so that a mark of zero is in no log.
    which: u32,
    len: u32,
    /// A bit a node, for [`compact`](Recency::compact); made at its first use.
    seen: Vec<u64>,
}

impl Recency {
    /// An empty order for up to `nodes` nodes; `which`, 1 to 7, tells the logs of one cache apart. `slack`, 1 to 4: more
    /// where nodes are used often while they are in it.
    pub fn new(nodes: u32, which: u32, slack: u32) -> Recency {
        debug_assert!((1..=7).contains(&which) && (1..=SLACK_MAX).contains(&slack) && nodes <= NODES_MAX + 1);
        Recency {
            log: vec![NIL; (nodes as usize + 1) * (slack as usize + 1)],
            end: 0,
            start: 0,
            ready: 0,
            which: which << ENTRY_BITS,
            len: 0,
            seen: Vec::new(),
        }
    }

    /// Refuses a cache of more pages than a log takes, with [`Error::Invalid`].
    pub fn check(policy: &str, capacity: u32) -> Result<()> {
        match capacity {
            0..=NODES_MAX => Ok(()),
            _ => Err(Error::invalid(format!("{policy}: {capacity} pages are more than its {NODES_MAX}"))),
        }
    }

    /// How many nodes it has.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `node` is in this log.
    #[inline]
    pub fn holds<X: Index>(&self, pages: &Pages<X>, node: u32) -> bool {
        pages.mark(node) >> ENTRY_BITS == self.which >> ENTRY_BITS
    }

    /// Whether entry `at` is its node's last.
    #[inline]
    fn is_last<X: Index>(&self, pages: &Pages<X>, at: usize) -> bool {
        pages.mark(self.log[at]) == self.which | at as u32
    }

    /// `node`, which is in this log, is used.
    #[inline(always)]
    pub fn touch<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        if self.is_full() {
            self.compact(pages, []);
        }
        pages.set_mark(node, self.which | self.end as u32);
        self.log[self.end] = node;
        self.end += 1;
    }

    /// Enters `node`, which is in no log, or in another one that was told to [leave](Recency::leave) it.
    #[inline(always)]
    pub fn enter<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        self.len += 1;
        self.touch(pages, node);
    }

    /// `node` is in this log no more.
    #[inline]
    pub fn leave<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        debug_assert!(self.holds(pages, node));
        pages.set_mark(node, 0);
        self.len -= 1;
    }

    /// The least recently used node, or [`NIL`].
    #[inline]
    pub fn oldest<X: Index>(&mut self, pages: &Pages<X>) -> u32 {
        while self.start < self.end {
            if self.start >= self.ready {
                self.ready = self.make_ready(pages, self.start);
            }
            if self.is_last(pages, self.start) {
                return self.log[self.start];
            }
            self.start += 1;
        }
        NIL
    }

    /// Loads what dropping the nodes at places from `from` on will need: first the nodes of all, then what follows from
    /// them, so that the cache misses of the processor overlap. Returns the place up to which it did.
    #[inline(never)]
    pub fn make_ready<X: Index>(&self, pages: &Pages<X>, from: usize) -> usize {
        let end = self.end.min(from + READY);
        let mut numbers = [0; READY];
        for (number, at) in numbers.iter_mut().zip(from..end) {
            // Not a branch, which would be a matter of chance.
            *number = pages.page(self.log[at]) * u64::from(self.is_last(pages, at));
        }
        let nodes = &self.log[from..end];
        pages.warm(nodes, &numbers[..nodes.len()]);
        end
    }

    /// Loads the nodes at places from `from` on alone. Returns the place up to which it did.
    #[inline(never)]
    pub fn preview<X: Index>(&self, pages: &Pages<X>, from: usize) -> usize {
        let end = self.end.min(from + READY);
        std::hint::black_box(self.log[from..end].iter().fold(0, |marks, node| marks ^ pages.mark(*node)));
        end
    }

    /// Whether the next use takes entries out, and so changes places.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.end == self.log.len()
    }

    /// The place of `node`'s entry: smaller than that of what was used later.
    #[inline]
    pub fn place<X: Index>(&self, pages: &Pages<X>, node: u32) -> usize {
        debug_assert!(self.holds(pages, node));
        (pages.mark(node) & !self.which) as usize
    }

    /// The node whose place is `at`, or [`NIL`].
    #[inline]
    pub fn node_at<X: Index>(&self, pages: &Pages<X>, at: usize) -> u32 {
        if self.is_last(pages, at) { self.log[at] } else { NIL }
    }

    /// Past the last place.
    #[inline]
    pub fn end(&self) -> usize {
        self.end
    }

    /// Takes out the entries that are not their node's last. Returns where `places` are then: with as many nodes
    /// before them.
    #[cold]
    pub fn compact<X: Index, const N: usize>(
        &mut self,
        pages: &mut Pages<X>,
        places: [usize; N],
    ) -> [usize; N] {
        let (first, cuts) = self.gather(pages.node_count(), places);
        let mut moved = [0; N];
        let mut to = 0;
        for at in first..self.end {
            moved.iter_mut().zip(cuts).for_each(|(moved, cut)| *moved = if at == cut { to } else { *moved });
            let node = self.log[at];
            // A node that left, perhaps to another log, has its last use here, too; its mark is not ours.
            if self.holds(pages, node) {
                self.log[to] = node;
                pages.set_mark(node, self.which | to as u32);
                to += 1;
            }
        }
        moved
            .iter_mut()
            .zip(cuts)
            .for_each(|(moved, cut)| *moved = if cut == self.end { to } else { *moved });
        (self.start, self.ready, self.end) = (0, 0, to);
        moved
    }

    /// Moves the last entry of every node to the end of the log, in order. Returns the first of them, and for each of
    /// `places` the first that was not before it.
    fn gather<const N: usize>(&mut self, nodes: usize, places: [usize; N]) -> (usize, [usize; N]) {
        self.seen.clear();
        self.seen.resize(nodes.div_ceil(64), 0);
        let mut cuts = [self.end; N];
        let mut first = self.end;
        for at in (self.start..self.end).rev() {
            let node = self.log[at];
            let word = &mut self.seen[node as usize / 64];
            let is_last = !(*word >> (node % 64)) & 1;
            *word |= 1 << (node % 64);
            // What is written here is kept only if `first` moves; it is never before `at`.
            self.log[first - 1] = node;
            first -= is_last as usize;
            cuts.iter_mut()
                .zip(places)
                .for_each(|(cut, place)| *cut = if at >= place { first } else { *cut });
        }
        (first, cuts)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.log.len() * size_of::<u32>() + self.seen.len() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Sparse;

    #[test]
    fn two_logs_of_one_cache_agree_with_plain_lists() {
        const NODES: u32 = 40;
        let mut pages: Pages<Sparse> = Pages::new(NODES, 0, 0, None);
        let mut logs = [1, 2].map(|which| Recency::new(NODES, which, which));
        let mut models = [Vec::new(), Vec::new()];
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let node = (x >> 33) as u32 % NODES + 1;
            let into = (x >> 20) as usize % 2;
            let found = [0, 1].into_iter().find(|which| models[*which].contains(&node));
            if let Some(from) = found {
                assert!(logs[from].holds(&pages, node) && !logs[1 - from].holds(&pages, node));
                models[from].retain(|other| *other != node);
                match from == into {
                    true => logs[from].touch(&mut pages, node),
                    false => logs[from].leave(&mut pages, node),
                }
            }
            if found != Some(into) && x >> 40 & 3 > 0 {
                logs[into].enter(&mut pages, node);
            } else if found != Some(into) {
                continue;
            }
            models[into].push(node);
            for (log, model) in logs.iter_mut().zip(&models) {
                assert_eq!(log.oldest(&pages), model.first().copied().unwrap_or(NIL));
                assert_eq!((log.len() as usize, log.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }

    #[test]
    fn more_pages_than_a_mark_can_number_are_refused() {
        assert!(Recency::check("lru", NODES_MAX).is_ok());
        let told = Recency::check("lru", NODES_MAX + 1).unwrap_err().to_string();
        assert!(told.contains("lru: 107374181 pages"), "{told}");
    }
}
