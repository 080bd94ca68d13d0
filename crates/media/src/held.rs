//! A device whose changes can be held up, for tests of what waits for what: while it is held, writes and flushes
//! stand still before they reach the device below, and the test knows how many do.
//!
//! A step runs in the middle of the next write instead, on the thread that writes.

use super::{BlockDevice, Completion, Request, filter::Filter};
use bimetal_base::time::Time;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

type Step = Box<dyn FnOnce() + Send>;

/// Which writes a step is for.
type Chosen = fn(u64, u64) -> bool;

#[derive(Default)]
struct State {
    held: bool,
    /// Requests that stand still now.
    standing: usize,
    /// Writes and flushes that went through.
    passed: usize,
    step: Option<(Chosen, Step)>,
}

/// A device whose changes can be held up.
pub struct Held {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    moved: Condvar,
}

impl Held {
    /// `inner`, not held.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Arc<Held> {
        Arc::new(Held { inner, state: Mutex::default(), moved: Condvar::new() })
    }

    /// From now on writes and flushes stand still.
    pub fn hold(&self) {
        self.state.lock().held = true;
    }

    /// Lets all of them go on.
    pub fn release(&self) {
        self.state.lock().held = false;
        self.moved.notify_all();
    }

    /// Waits until so many requests stand still.
    pub fn await_standing(&self, count: usize) {
        let mut state = self.state.lock();
        while state.standing < count {
            self.moved.wait(&mut state);
        }
    }

    /// Writes and flushes that went through so far.
    pub fn passed(&self) -> usize {
        self.state.lock().passed
    }

    /// Runs `step` once, before the next write whose offset and length `chosen` takes.
    pub fn before_write(&self, chosen: Chosen, step: impl FnOnce() + Send + 'static) {
        self.state.lock().step = Some((chosen, Box::new(step)));
    }

    fn stand(&self, request: &Request) {
        let len = match request {
            Request::Read { .. } => return,
            Request::Write { data, .. } => data.bytes(),
            Request::Flush | Request::Discard { .. } => 0,
        };
        let mut state = self.state.lock();
        if let (Request::Write { offset, .. }, Some((chosen, _))) = (request, &state.step)
            && chosen(*offset, len)
            && let Some((_, step)) = state.step.take()
        {
            drop(state);
            step();
            state = self.state.lock();
        }
        state.standing += 1;
        self.moved.notify_all();
        while state.held {
            self.moved.wait(&mut state);
        }
        state.standing -= 1;
        state.passed += 1;
    }
}

impl Filter for Held {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion> {
        self.stand(&request);
        Ok((at, request))
    }
}
