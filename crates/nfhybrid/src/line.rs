//! The line before the SSD's log: one thread at a time writes it, for all who wait.
//!
//! Whoever wants something durable appends it under the core's lock, gets the number of its batch and *stands* in line with
//! it. Then it *joins*: it returns as soon as that batch is durable, or it is the one that *leads*: it holds the gate, seals
//! whatever anybody appended, writes it, and says how far the log is durable. So fsyncs that come while one is being
//! written share the next write, which waits a moment for those who are expected back ([`Company`]); a lone one never
//! waits and wakes nobody.
//!
//! Who needs the log for itself (a commit cycle, a restart, tables) *claims* the gate. Claims go first: they are few, and
//! what they write takes along what others appended.
//!
//! Invariants. One gate at a time. What was durable stays so: [`Line::reached`] only rises. Whoever lets the gate go has
//! either told what it wrote, or has seen to it that the SSD counts no more: a write that failed must not be followed by
//! one that succeeds and makes those before it look durable.
//!
//! The line's own lock is the last of all and is held for a few instructions.

use super::company::Company;
use bimetal_base::runtime::Clock;
use bimetal_base::runtime::sync::{Condvar, Mutex};
use bimetal_base::time::Time;

#[derive(Default)]
struct State {
    /// Somebody has the gate.
    held: bool,
    /// Since when somebody leads.
    leads: Option<Time>,
    /// How many wait for the gate to have the log for themselves.
    claims: usize,
    /// How many wait for what they appended.
    waiting: usize,
    /// The batches of all who stand in line and that are not durable.
    standing: Vec<u64>,
    /// The log is durable up to this batch.
    durable: u64,
    /// Who is expected before the next write, and whether somebody looks at the time for that.
    company: Company,
    watched: bool,
    /// How many the last write served, and how many stood in line then, until the gate is let go.
    served: Option<(usize, usize)>,
}

/// Who may write the log, and how far it is durable.
pub(super) struct Line {
    state: Mutex<State>,
    moved: Condvar,
    clock: Clock,
}

/// The right to write the log, until it is dropped.
pub(super) struct Gate<'a>(&'a Line);

/// A place in line, until it is dropped.
pub(super) struct Standing<'a> {
    line: &'a Line,
    batch: u64,
}

impl Line {
    /// A line before a log of which nothing is durable.
    pub fn new(clock: Clock) -> Line {
        Line { state: Mutex::default(), moved: Condvar::new(), clock }
    }

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

    /// Stands in line for `batch`, which was appended.
    pub fn stand(&self, batch: u64) -> Standing<'_> {
        let mut state = self.state.lock();
        if state.durable < batch {
            state.standing.push(batch);
        }
        Standing { line: self, batch }
    }

    /// The log is durable up to `batch`; those who waited for that go on. The caller has the gate.
    pub fn reached(&self, batch: u64) {
        let mut state = self.state.lock();
        state.durable = state.durable.max(batch);
        let (before, durable) = (state.standing.len(), state.durable);
        state.standing.retain(|batch| *batch > durable);
        let left = state.standing.len();
        if left < before {
            state.served = Some((before - left, left));
        }
        if let Some(since) = state.leads {
            state.company.wrote(self.clock.now().since(since));
        }
        drop(state);
        self.moved.notify_all();
    }

    /// How many wait for what they appended.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

impl<'a> Standing<'a> {
    /// The gate, if nobody has it or waits to have it, and nobody else is expected.
    pub fn lead(&self) -> Option<Gate<'a>> {
        let mut state = self.line.state.lock();
        if state.held || state.claims > 0 {
            return None;
        }
        let now = self.line.clock.now();
        match state.wait_until(now) {
            Some(_) => None,
            None => Some(state.lead(self.line, now)),
        }
    }

    /// Waits until what was appended is durable (`None`), or it is this thread's turn to write.
    pub fn join(&self) -> Option<Gate<'a>> {
        let Line { state, moved, clock } = self.line;
        let mut state = state.lock();
        state.waiting += 1;
        let gate = loop {
            if state.durable >= self.batch {
                break None;
            }
            if state.held || state.claims > 0 {
                moved.wait(&mut state);
                continue;
            }
            let now = clock.now();
            match state.wait_until(now) {
                None => break Some(state.lead(self.line, now)),
                Some(_) if state.watched => moved.wait(&mut state),
                Some(until) => {
                    state.watched = true;
                    moved.wait_until(&mut state, clock.as_ref(), until);
                    state.watched = false;
                    if state.durable >= self.batch {
                        // Those who left the time to this one may have looked before it was served.
                        moved.notify_all();
                    }
                }
            }
        };
        state.waiting -= 1;
        gate
    }

    /// Whether what was appended is durable.
    pub fn is_served(&self) -> bool {
        self.line.state.lock().durable >= self.batch
    }
}

impl State {
    fn wait_until(&mut self, now: Time) -> Option<Time> {
        let present = self.standing.len();
        self.company.wait_until(now, present)
    }

    fn lead<'a>(&mut self, line: &'a Line, now: Time) -> Gate<'a> {
        let present = self.standing.len();
        self.company.set_off(now, present);
        self.held = true;
        self.leads = Some(now);
        Gate(line)
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut state = self.line.state.lock();
        if state.durable < self.batch
            && let Some(place) = state.standing.iter().position(|batch| *batch == self.batch)
        {
            state.standing.swap_remove(place);
        }
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.held = false;
        state.leads = None;
        if let Some((served, left)) = state.served.take() {
            state.company.parted(self.0.clock.now(), served, left);
        }
        drop(state);
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_base::runtime::{Runtime, Sim};
    use std::sync::Arc;
    use std::time::Duration;

    fn live() -> Line {
        Line::new(bimetal_base::runtime::live())
    }

    #[test]
    fn one_has_the_gate_and_the_next_gets_it_when_it_is_dropped() {
        let line = live();
        let gate = line.stand(1).lead();
        assert!(gate.is_some() && line.stand(1).lead().is_none());
        drop(gate);
        let gate = line.claim();
        assert!(line.stand(1).lead().is_none());
        drop(gate);
        assert!(line.stand(1).join().is_some());
    }

    #[test]
    fn whoever_finds_its_batch_durable_needs_no_gate() {
        let line = live();
        let _gate = line.claim();
        line.reached(3);
        line.reached(2);
        let standing = line.stand(3);
        assert!(standing.is_served() && standing.join().is_none());
    }

    /// Clients that append, stand in line, and come back after a while, on a log whose write takes a millisecond: how
    /// many each write served.
    fn served(pauses: &'static [u64], rounds: u64) -> Vec<usize> {
        let sim = Sim::new(3);
        let inner = sim.clone();
        sim.run(move || {
            let line = Arc::new(Line::new(Arc::new(inner.clone())));
            let log = Arc::new(parking_lot::Mutex::new((1_u64, Vec::new())));
            let tasks: Vec<_> = pauses
                .iter()
                .map(|&pause| {
                    let (line, log, sim) = (line.clone(), log.clone(), inner.clone());
                    let client = move || {
                        for _ in 0..rounds {
                            let standing = line.stand(log.lock().0);
                            if let Some(_gate) = standing.lead().or_else(|| standing.join()) {
                                let batch = log.lock().0;
                                log.lock().0 += 1;
                                sim.sleep(Duration::from_millis(1));
                                let before = line.state.lock().standing.len();
                                line.reached(batch);
                                log.lock().1.push(before - line.state.lock().standing.len());
                            }
                            drop(standing);
                            sim.sleep(Duration::from_micros(pause));
                        }
                    };
                    inner.spawn("client", Box::new(client)).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            let (_, served) = log.lock().clone();
            served
        })
    }

    #[test]
    fn clients_that_come_back_soon_all_share_each_write() {
        let served = served(&[0, 10, 100, 400], 100);
        assert!(served.len() < 110, "{served:?}");
        assert_eq!(served.iter().sum::<usize>(), 400);
    }

    #[test]
    fn clients_that_come_back_late_are_not_waited_for() {
        let served = served(&[900, 950], 100);
        assert!(served.len() > 150, "{served:?}");
    }
}
