//! The order in which nodes were last used, as a log: a use appends the node to it and touches nothing else.
//!
//! In a linked list a use changes the node and three others, and each is a look at memory that is seldom in the
//! processor's cache. Here each node has a mark, the number of its last entry in the log; entries that are no longer
//! their node's last are passed over. The oldest entry that still is one names the least recently used node, so the
//! order is exactly that of a list.
//!
//! When the log is full, what is passed over is taken out ([`Recency::compact`]): after `SLACK` times as many uses as
//! there are nodes, so that a use costs O(1) over time. A node can be in one log at a time; the mark says in which.
//!
//! Memory: 4 × (`SLACK` + 1) bytes a node. The mark is kept in the node's link.

use super::index::{Index, NIL};
use super::pages::Pages;
use crate::{Error, Result};

/// Entries of the log for each node, beside its last one.
const SLACK: usize = 4;

/// Bits of a mark that number an entry; those above say which log.
const ENTRY_BITS: u32 = 30;

/// The most nodes a log takes.
const NODES_MAX: u32 = (1 << ENTRY_BITS) / (SLACK as u32 + 1) - 1;

/// An order of use. Everything is asked with the [`Pages`] whose nodes it orders.
pub struct Recency {
    /// Nodes, the last used at the end.
    log: Vec<u32>,
    /// Entries before this are of no use.
    start: usize,
    /// Its number above the entry's in a mark; not zero, so that a mark of zero is in no log.
    which: u32,
    len: u32,
}

impl Recency {
    /// An empty order for up to `nodes` nodes; `which`, 1 to 3, tells the logs of one cache apart.
    pub fn new(nodes: u32, which: u32) -> Recency {
        debug_assert!((1..=3).contains(&which) && nodes <= NODES_MAX);
        Recency {
            log: Vec::with_capacity((nodes as usize + 1) * (SLACK + 1)),
            start: 0,
            which: which << ENTRY_BITS,
            len: 0,
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
    #[inline]
    pub fn touch<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        if self.log.len() == self.log.capacity() {
            self.compact(pages);
        }
        pages.set_mark(node, self.which | self.log.len() as u32);
        self.log.push(node);
    }

    /// Enters `node`, which is in no log, or in another one that was told to [leave](Recency::leave) it.
    #[inline]
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
        while self.start < self.log.len() {
            if self.is_last(pages, self.start) {
                return self.log[self.start];
            }
            self.start += 1;
        }
        NIL
    }

    /// What may be the next to be the oldest, or [`NIL`]: a hint.
    #[inline]
    pub fn soon_oldest(&self) -> u32 {
        self.log.get(self.start + 1).copied().unwrap_or(NIL)
    }

    /// Takes out the entries that are not their node's last.
    #[cold]
    fn compact<X: Index>(&mut self, pages: &mut Pages<X>) {
        let mut to = 0;
        for at in self.start..self.log.len() {
            if self.is_last(pages, at) {
                let node = self.log[at];
                self.log[to] = node;
                pages.set_mark(node, self.which | to as u32);
                to += 1;
            }
        }
        self.log.truncate(to);
        self.start = 0;
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.log.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::index::Sparse;

    #[test]
    fn two_logs_of_one_cache_agree_with_plain_lists() {
        const NODES: u32 = 40;
        let mut pages: Pages<Sparse> = Pages::new(NODES, 0, 0, None);
        let mut logs = [1, 2].map(|which| Recency::new(NODES, which));
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
        assert!(told.contains("lru: 214748364 pages"), "{told}");
    }
}
