//! Operations that happen whole or not at all, in memory: what each step replaced is kept until the operation is
//! over, and put back where it fails.
//!
//! **Invariant.** While steps are kept nothing is written out, committed or cleaned, so what was replaced is still
//! where it was. Every node that a step changed stays in memory until a checkpoint: putting back reads nothing.
//!
//! Memory: what one operation replaced. Cost: O(1) a step beside the step.

use super::Store;
use super::buffer::Waiting;
use super::layout::{Fork, Key, Value};
use bimetal_base::Result;
use bimetal_base::time::Stamp;

/// What a step replaced.
pub(super) enum Step {
    /// An item of the tree.
    Item(Key, Option<Value>),
    /// What waited of a fork.
    Waiting(Waiting),
    /// When an object was last read, as the journal has it.
    Accessed(u64, Stamp),
}

/// The steps of operations under way.
#[derive(Default)]
pub(super) struct Steps {
    all: Vec<Step>,
    /// Operations under way, one within the other.
    depth: u32,
}

impl Steps {
    /// Whether an operation is under way.
    pub fn are_kept(&self) -> bool {
        self.depth > 0
    }

    /// Keeps a step, if an operation is under way.
    pub fn keep(&mut self, step: impl FnOnce() -> Step) {
        if self.are_kept() {
            self.all.push(step());
        }
    }

    fn end(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 {
            self.all.clear();
        }
    }
}

impl Store {
    /// Keeps automatic commits out until [`release`](Store::release), so that what is between the two is seen
    /// whole or not at all after a power cut. Nests.
    ///
    /// # Errors
    /// As those of making room.
    pub fn hold(&mut self) -> Result<()> {
        if self.held == 0 {
            self.begin(0)?;
        }
        self.hold_now();
        Ok(())
    }

    /// As [`hold`](Store::hold), for what gives room back or takes none: it may use the room that other operations must
    /// leave, so that it works on a full store, too.
    ///
    /// # Errors
    /// Those of the flash.
    pub fn hold_giving(&mut self) -> Result<()> {
        self.giving += 1;
        let held = self.hold();
        if held.is_err() {
            self.giving -= 1;
        }
        held
    }

    /// Runs changes that are a repair, each by itself: they may use the room that other operations must leave, too.
    pub fn mending<T>(&mut self, work: impl FnOnce(&mut Store) -> T) -> T {
        let before = std::mem::replace(&mut self.mending, true);
        let done = work(self);
        self.mending = before;
        done
    }

    /// Whether what is under way may use the room that other operations must leave.
    pub(super) fn is_giving(&self) -> bool {
        self.giving > 0 || self.mending
    }

    fn hold_now(&mut self) {
        self.held += 1;
        self.index.steps.depth += 1;
    }

    /// The end of what [`hold`](Store::hold) began.
    pub fn release(&mut self) {
        self.held = self.held.saturating_sub(1);
        self.giving = self.giving.min(self.held);
        self.index.steps.end();
    }

    /// Takes back everything since the outermost [`hold`](Store::hold), and ends it, as after a failure in the midst
    /// of it; whether there was anything.
    pub fn take_back(&mut self) -> bool {
        let any = !self.index.steps.all.is_empty();
        self.put_back(0);
        self.release();
        any
    }

    /// Runs one operation: whole or not at all.
    pub(super) fn whole<T>(&mut self, work: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        let first = self.index.steps.all.len();
        self.index.steps.depth += 1;
        let done = work(self);
        if done.is_err() {
            self.put_back(first);
        }
        self.index.steps.end();
        done
    }

    /// Keeps what waits of a range of a fork.
    pub(super) fn keep_waiting(&mut self, object: u64, fork: Fork, from: u64, to: u64) {
        self.index.steps.keep(|| Step::Waiting(self.buffer.save(object, fork, from, to)));
    }

    /// Puts back what was replaced, the last first, until `first` steps are left.
    fn put_back(&mut self, first: usize) {
        for step in self.index.steps.all.split_off(first).into_iter().rev() {
            match step {
                Step::Item(key, old) => {
                    let put = self.index.put_back(key, old);
                    // The nodes are in memory; should that not be so, memory is ahead of itself.
                    let _ = self.or_fail(put);
                }
                Step::Waiting(waiting) => self.buffer.restore(waiting),
                Step::Accessed(object, at) => self.access.remember(object, at),
            }
        }
    }
}
