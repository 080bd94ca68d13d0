//! For tests: a model that is done with nothing until a number of requests are under way, and then with the last of them
//! first. Who waits for one before the next is handed in waits for ever.

use super::void::Void;
use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bimetal_base::time::Time;
use bytes::Bytes;
use parking_lot::Mutex;

/// The model.
pub struct Gate {
    info: Void,
    opens_at: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    submitted: u64,
    /// Requests that were named as done.
    named: u64,
}

impl Gate {
    /// One that opens when so many requests are under way.
    pub fn new(opens_at: u64) -> Gate {
        Gate { info: Void::new("gate", 1 << 20, 512), opens_at, state: Mutex::default() }
    }
}

impl BlockDevice for Gate {
    fn info(&self) -> &DeviceInfo {
        self.info.info()
    }

    fn submit(&self, _at: Time, _request: Request) -> Ticket {
        let mut state = self.state.lock();
        state.submitted += 1;
        assert!(state.submitted <= self.opens_at, "it opens once");
        Ticket::Pending(state.submitted)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        let Ticket::Pending(number) = ticket else { return ticket.done() };
        assert!(
            self.opens_at - number < self.state.lock().named,
            "request {number} is waited for once it is done"
        );
        Completion { at: Time(1 + self.opens_at - number), result: Ok(Bytes::new()) }
    }

    fn next_done(&self, until: Time) -> Option<u64> {
        let mut state = self.state.lock();
        let is_open = state.submitted == self.opens_at && state.named < self.opens_at;
        (is_open && Time(1 + state.named) <= until).then(|| {
            state.named += 1;
            1 + self.opens_at - state.named
        })
    }

    fn next_event(&self) -> Option<Time> {
        let state = self.state.lock();
        match state.submitted == self.opens_at {
            true => (state.named < self.opens_at).then_some(Time(1 + state.named)),
            // Whoever sleeps until then is to be woken.
            false => Some(Time(u64::MAX / 4)),
        }
    }
}
