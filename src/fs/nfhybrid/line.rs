//! The line before the SSD's log: one thread at a time writes it, for all who wait.
//!
//! Whoever wants something durable appends it under the core's lock and gets the number of its batch. Then it *joins*
//! the line: it returns as soon as that batch is durable, or it is the one that *leads*: it holds the gate, seals
//! whatever anybody appended, writes it, and says how far the log is durable. So fsyncs that come while one is being
//! written share the next write; a lone one never waits and wakes nobody.
//!
//! Who needs the log for itself (a commit cycle, a restart, tables) *claims* the gate. Claims go first: they are few, and
//! what they write takes along what others appended.
//!
//! Invariants. One gate at a time. What was durable stays so: [`Line::reached`] only rises. Whoever lets the gate go has
//! either told what it wrote, or has seen to it that the SSD counts no more: a write that failed must not be followed by
//! one that succeeds and makes those before it look durable.
//!
//! The line's own lock is the last of all and is held for a few instructions.

use crate::runtime::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    /// Somebody has the gate.
    held: bool,
    /// How many wait for the gate to have the log for themselves.
    claims: usize,
    /// How many wait for what they appended.
    waiting: usize,
    /// The log is durable up to this batch.
    durable: u64,
}

/// Who may write the log, and how far it is durable.
#[derive(Default)]
pub(super) struct Line {
    state: Mutex<State>,
    moved: Condvar,
}

/// The right to write the log, until it is dropped.
pub(super) struct Gate<'a>(&'a Line);

impl Line {
    /// Waits for the gate, before all who only wait for what they appended.
    pub fn claim(&self) -> Gate<'_> {
        let mut state = self.state.lock();
        state.claims += 1;
        while state.held {
            self.moved.wait(&mut state);
        }
        state.claims -= 1;
        state.held = true;
        Gate(self)
    }

    /// The gate, if nobody has it or waits to have it.
    pub fn lead(&self) -> Option<Gate<'_>> {
        let mut state = self.state.lock();
        if state.held || state.claims > 0 {
            return None;
        }
        state.held = true;
        Some(Gate(self))
    }

    /// Waits until `batch` is durable (`None`), or it is this thread's turn to write.
    pub fn join(&self, batch: u64) -> Option<Gate<'_>> {
        let mut state = self.state.lock();
        state.waiting += 1;
        while state.durable < batch && (state.held || state.claims > 0) {
            self.moved.wait(&mut state);
        }
        state.waiting -= 1;
        if state.durable >= batch {
            return None;
        }
        state.held = true;
        Some(Gate(self))
    }

    /// The log is durable up to `batch`; those who waited for that go on.
    pub fn reached(&self, batch: u64) {
        let mut state = self.state.lock();
        state.durable = state.durable.max(batch);
        drop(state);
        self.moved.notify_all();
    }

    /// Whether `batch` is durable.
    pub fn has_reached(&self, batch: u64) -> bool {
        self.state.lock().durable >= batch
    }

    /// How many wait for what they appended.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.state.lock().held = false;
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_gate_and_the_next_gets_it_when_it_is_dropped() {
        let line = Line::default();
        let gate = line.lead();
        assert!(gate.is_some() && line.lead().is_none());
        drop(gate);
        let gate = line.claim();
        assert!(line.lead().is_none());
        drop(gate);
        assert!(line.join(1).is_some());
    }

    #[test]
    fn whoever_finds_its_batch_durable_needs_no_gate() {
        let line = Line::default();
        line.reached(3);
        line.reached(2);
        let _gate = line.claim();
        assert!(line.has_reached(3) && line.join(3).is_none());
    }
}
