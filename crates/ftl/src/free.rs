//! Erased blocks of one unit, and which of them is used next.

use std::collections::{BTreeSet, VecDeque};

/// How wear is spread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Levelling {
    /// Free blocks are used in the order they became free.
    None,
    /// The least worn free block is used next.
    Dynamic,
    /// As dynamic, and cold data moves to worn blocks.
    Static,
}

impl Levelling {
    /// The values of the setting `level`.
    pub const CHOICES: [(&'static str, Levelling); 3] =
        [("dynamic", Levelling::Dynamic), ("none", Levelling::None), ("static", Levelling::Static)];
}

/// The erased blocks of one unit. Cost: O(log n), without levelling O(1).
pub(super) enum Free {
    /// By erases, then number: both in one number, which is compared in one step. Beside them those that are only used
    /// when there is no other: they were decided to be erased, which takes time.
    Sorted(BTreeSet<u64>, Vec<u64>),
    /// In the order they came.
    Queue(VecDeque<u32>),
}

impl Free {
    /// None yet.
    pub fn new(levelling: Levelling) -> Free {
        match levelling {
            Levelling::None => Free::Queue(VecDeque::new()),
            _ => Free::Sorted(BTreeSet::new(), Vec::new()),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Free::Sorted(set, recent) => set.len() + recent.len(),
            Free::Queue(queue) => queue.len(),
        }
    }

    /// Adds an erased block.
    pub fn give(&mut self, block: u32, erases: u32) {
        match self {
            Free::Sorted(set, _) => drop(set.insert(key(block, erases))),
            Free::Queue(queue) => queue.push_back(block),
        }
    }

    /// Adds a block that is to be erased now: it is used after the others, until they are [`settled`](Self::settle).
    pub fn give_late(&mut self, block: u32, erases: u32) {
        match self {
            Free::Sorted(_, recent) => recent.push(key(block, erases)),
            Free::Queue(queue) => queue.push_back(block),
        }
    }

    /// All are used in the same order again: there was time to erase them.
    pub fn settle(&mut self) {
        if let Free::Sorted(set, recent) = self {
            set.extend(recent.drain(..));
        }
    }

    /// Takes the least worn block (without levelling: the one free the longest).
    pub fn take_least_worn(&mut self) -> Option<u32> {
        match self {
            Free::Sorted(set, recent) => {
                let least = || (0..recent.len()).min_by_key(|index| recent[*index]);
                match set.pop_first() {
                    None => least().map(|index| recent.swap_remove(index) as u32),
                    first => first.map(|key| key as u32),
                }
            }
            Free::Queue(queue) => queue.pop_front(),
        }
    }

    /// The erases of the least and of the most worn block; without levelling nobody asks, and there is no answer.
    pub fn wear(&self) -> Option<(u32, u32)> {
        match self {
            Free::Sorted(set, recent) => {
                let erases = |key: &u64| (key >> 32) as u32;
                let all = || set.iter().take(1).chain(set.last()).chain(recent).map(erases);
                all().min().zip(all().max())
            }
            Free::Queue(_) => None,
        }
    }

    /// Takes the least worn of the blocks that are to be erased now, if there are any, else of all: for what is written
    /// after they were.
    pub fn take_late(&mut self) -> Option<u32> {
        match self {
            Free::Sorted(_, recent) if !recent.is_empty() => {
                let least = (0..recent.len()).min_by_key(|index| recent[*index]);
                least.map(|index| recent.swap_remove(index) as u32)
            }
            _ => self.take_least_worn(),
        }
    }

    /// Takes the most worn block.
    pub fn take_most_worn(&mut self) -> Option<u32> {
        match self {
            Free::Sorted(set, recent) => {
                set.extend(recent.drain(..));
                set.pop_last().map(|key| key as u32)
            }
            Free::Queue(queue) => queue.pop_back(),
        }
    }
}

fn key(block: u32, erases: u32) -> u64 {
    u64::from(erases) << 32 | u64::from(block)
}
