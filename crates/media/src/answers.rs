//! A device whose requests are answered by calling back: at once, or in real time when the model of a device says so.
//!
//! A model's time begins with this and follows the machine's monotonic clock. It goes on no further, since what arrives
//! next may overtake what is under way: one thread sleeps until something happens in the model next, has that happen, and
//! answers what is done by it, so that thousands of requests under way cost one thread. Instants are absolute: what is
//! late does not make the next later.

use super::{BlockDevice, Completion, Request, Ticket};
use bimetal_base::Result;
use bimetal_base::runtime::Live;
use bimetal_base::time::Time;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// What to do when a request has ended.
type Action = Box<dyn FnOnce(Result<Bytes>) + Send>;

/// A device that calls back. Dropping it answers what is left at once.
pub struct Answers {
    asker: Asker,
    thread: Option<JoinHandle<()>>,
}

/// What requests are handed to; it may outlive the [`Answers`] it is of, and answers at once then.
#[derive(Clone)]
pub struct Asker(Arc<Shared>);

struct Shared {
    device: Arc<dyn BlockDevice>,
    /// The instant of the machine's clock that is the model's zero.
    origin: Time,
    in_real_time: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests that the model has under way.
    waiting: FxHashMap<u64, Action>,
    /// Those that were done before it was noted what to do then.
    early: FxHashMap<u64, Completion>,
    /// Those whose end was known when they were submitted; the earliest first, equal instants in the order they came.
    known: BinaryHeap<Reverse<Known>>,
    count: u64,
    /// Until when the thread sleeps; none: until it is woken.
    sleeps_until: Option<Time>,
    closed: bool,
}

struct Known {
    due: Time,
    number: u64,
    action: Action,
    result: Result<Bytes>,
}

impl Known {
    fn key(&self) -> (Time, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Known {
    fn eq(&self, other: &Known) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Known {}

impl PartialOrd for Known {
    fn partial_cmp(&self, other: &Known) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Known {
    fn cmp(&self, other: &Known) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Answers {
    /// Requests are answered when the device has served them, on the thread that asks.
    pub fn at_once(device: Arc<dyn BlockDevice>) -> Answers {
        Answers { asker: Asker::new(device, false), thread: None }
    }

    /// Requests are answered when the model says.
    ///
    /// # Errors
    /// [`Error::Io`](bimetal_base::Error::Io) where the machine has no thread left.
    pub fn in_real_time(device: Arc<dyn BlockDevice>) -> Result<Answers> {
        let asker = Asker::new(device, true);
        let shared = Arc::clone(&asker.0);
        let run = move || {
            wake_sharply();
            shared.run();
        };
        let thread = thread::Builder::new().name("bimetal-answers".into()).spawn(run);
        let thread = thread.map_err(|error| bimetal_base::Error::io("a thread", error))?;
        Ok(Answers { asker, thread: Some(thread) })
    }

    /// What requests are handed to.
    pub fn asker(&self) -> &Asker {
        &self.asker
    }
}

impl Asker {
    fn new(device: Arc<dyn BlockDevice>, in_real_time: bool) -> Asker {
        let state = Mutex::default();
        Asker(Arc::new(Shared {
            device,
            origin: Live::monotonic(),
            in_real_time,
            state,
            changed: Condvar::new(),
        }))
    }

    /// The present, in the device's time.
    pub fn now(&self) -> Time {
        self.0.now()
    }

    /// Hands in a request that arrives now; `then` is called with how it ended, on this thread or another.
    pub fn ask(&self, request: Request, then: impl FnOnce(Result<Bytes>) + Send + 'static) {
        let shared = &self.0;
        if !shared.in_real_time {
            return then(shared.device.run(shared.now(), request).result);
        }
        // Without the lock: a device with contents reads and writes them here.
        let ticket = shared.device.submit(shared.now(), request);
        let mut state = shared.state.lock();
        match ticket {
            // Nobody else waits any more. The thread may have met its end before, while it answered what was left.
            ticket if state.closed => {
                let early = match ticket {
                    Ticket::Pending(number) => state.early.remove(&number),
                    Ticket::Done(_) => None,
                };
                let done = early.unwrap_or_else(|| shared.device.wait(ticket));
                drop(state);
                return then(done.result);
            }
            Ticket::Done(done) => {
                state.count += 1;
                let (number, action) = (state.count, Box::new(then));
                state.known.push(Reverse(Known { due: done.at, number, action, result: done.result }));
            }
            Ticket::Pending(number) => match state.early.remove(&number) {
                Some(done) => {
                    drop(state);
                    return then(done.result);
                }
                None => drop(state.waiting.insert(number, Box::new(then))),
            },
        }
        let next = shared.next(&state);
        if state.sleeps_until.is_none_or(|due| next.is_some_and(|next| next < due)) {
            shared.changed.notify_one();
        }
    }
}

impl Shared {
    fn now(&self) -> Time {
        Time(Live::monotonic().since(self.origin).as_nanos() as u64)
    }

    /// When there is something to do next.
    fn next(&self, state: &State) -> Option<Time> {
        let known = state.known.peek().map(|Reverse(known)| known.due);
        known.into_iter().chain(self.device.next_event()).min()
    }

    /// What is done by now, and what is to be done then.
    fn ended(&self, state: &mut State) -> Vec<(Action, Result<Bytes>)> {
        let (now, mut ended) = (self.now(), Vec::new());
        while let Some(number) = self.device.next_done(now) {
            let done = self.device.wait(Ticket::Pending(number));
            match state.waiting.remove(&number) {
                Some(action) => ended.push((action, done.result)),
                None => drop(state.early.insert(number, done)),
            }
        }
        while state.known.peek().is_some_and(|Reverse(known)| state.closed || known.due <= now) {
            let known = state.known.pop().map(|Reverse(known)| (known.action, known.result));
            ended.extend(known);
        }
        if state.closed {
            let left = std::mem::take(&mut state.waiting).into_iter();
            ended.extend(
                left.map(|(number, action)| (action, self.device.wait(Ticket::Pending(number)).result)),
            );
        }
        ended
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            let ended = self.ended(&mut state);
            if !ended.is_empty() {
                drop(state);
                ended.into_iter().for_each(|(action, result)| action(result));
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                state.sleeps_until = self.next(&state);
                match state.sleeps_until {
                    Some(due) => {
                        let left = due.since(self.now());
                        self.changed.wait_for(&mut state, left);
                    }
                    None => self.changed.wait(&mut state),
                }
            }
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.asker.0.state.lock().closed = true;
        self.asker.0.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks the kernel to wake this thread when it is due, not up to 50 µs later.
pub(super) fn wake_sharply() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, DiskProfile};
    use crate::gate::Gate;
    use crate::profile;
    use crate::ram::Ram;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    /// A disk of 64 MiB in memory, at some of its speed.
    fn disk() -> Arc<dyn BlockDevice> {
        let profile: DiskProfile = profile::load("hdd-7200").unwrap();
        Arc::new(Disk::new(&profile, Arc::new(Ram::new("ram", 64 << 20))))
    }

    #[test]
    fn answers_come_in_the_order_in_which_the_model_is_done() {
        let answers = Answers::in_real_time(Arc::new(Gate::new(5))).unwrap();
        let (tell, told) = mpsc::channel();
        for number in 0..5 {
            let tell = tell.clone();
            let read = Request::Read { offset: 0, len: 512 };
            answers.asker().ask(read, move |result| tell.send((number, result.is_ok())).unwrap());
        }
        let order: Vec<(i32, bool)> = (0..5).map(|_| told.recv().unwrap()).collect();
        assert_eq!(order, [4, 3, 2, 1, 0].map(|number| (number, true)));
    }

    #[test]
    fn nothing_is_answered_before_its_time() {
        let answers = Answers::in_real_time(disk()).unwrap();
        let (tell, told) = mpsc::channel();
        let begin = Instant::now();
        for _ in 0..3 {
            let tell = tell.clone();
            let write = Request::Write {
                offset: 0,
                data: crate::Gather::from_iter([vec![7; 4096].into()]),
                durable: true,
            };
            answers.asker().ask(write, move |result| tell.send(result.is_ok()).unwrap());
            assert!(told.recv().unwrap());
        }
        // The first may find its place at once, the others have to wait for it to come round.
        assert!(begin.elapsed() >= Duration::from_micros(2 * 8333));
    }

    #[test]
    fn dropping_it_answers_what_is_left_and_what_that_asks() {
        let answers = Answers::in_real_time(disk()).unwrap();
        let (tell, told) = mpsc::channel();
        let asker = answers.asker().clone();
        answers.asker().ask(Request::Read { offset: 32 << 20, len: 4096 }, move |_| {
            asker.ask(Request::Flush, move |result| tell.send(result.is_ok()).unwrap());
        });
        drop(answers);
        assert!(told.try_recv().unwrap());
    }

    #[test]
    fn many_threads_that_ask_each_get_their_answer() {
        let answers = Answers::in_real_time(disk()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let asker = answers.asker().clone();
                scope.spawn(move || {
                    for step in 0..5u8 {
                        let (tell, told) = mpsc::channel();
                        let offset = thread << 20 | u64::from(step) << 12;
                        let bytes = vec![thread as u8 ^ step << 4; 4096];
                        let data = crate::Gather::from_iter([bytes.clone().into()]);
                        let then = tell.clone();
                        let write = Request::Write { offset, data, durable: false };
                        asker.ask(write, move |result| then.send(result).unwrap());
                        told.recv().unwrap().unwrap();
                        asker.ask(Request::Read { offset, len: 4096 }, move |result| {
                            tell.send(result).unwrap()
                        });
                        assert_eq!(told.recv().unwrap().unwrap(), bytes);
                    }
                });
            }
        });
    }
}
