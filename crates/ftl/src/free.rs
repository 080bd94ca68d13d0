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
    /// By erases, then number: both in one number, which is compared in one step.
    Sorted(BTreeSet<u64>),
    /// In the order they came.
    Queue(VecDeque<u32>),
}

impl Free {
    /// None yet.
    pub fn new(levelling: Levelling) -> Free {
        match levelling {
            Levelling::None => Free::Queue(VecDeque::new()),
            _ => Free::Sorted(BTreeSet::new()),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Free::Sorted(set) => set.len(),
            Free::Queue(queue) => queue.len(),
        }
    }

    /// Adds an erased block.
    pub fn give(&mut self, block: u32, erases: u32) {
        match self {
            Free::Sorted(set) => drop(set.insert(u64::from(erases) << 32 | u64::from(block))),
            Free::Queue(queue) => queue.push_back(block),
        }
    }

    /// Takes the least worn block (without levelling: the one free the longest).
    pub fn take_least_worn(&mut self) -> Option<u32> {
        match self {
            Free::Sorted(set) => set.pop_first().map(|key| key as u32),
            Free::Queue(queue) => queue.pop_front(),
        }
    }

    /// The erases of the least and of the most worn block; without levelling nobody asks, and there is no answer.
    pub fn wear(&self) -> Option<(u32, u32)> {
        match self {
            Free::Sorted(set) => {
                let erases = |key: &u64| (key >> 32) as u32;
                set.first().map(erases).zip(set.last().map(erases))
            }
            Free::Queue(_) => None,
        }
    }

    /// Takes the most worn block.
    pub fn take_most_worn(&mut self) -> Option<u32> {
        match self {
            Free::Sorted(set) => set.pop_last().map(|key| key as u32),
            Free::Queue(queue) => queue.pop_back(),
        }
    }
}
