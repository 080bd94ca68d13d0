//! Things done at an instant, in real time.
//!
//! One thread sleeps until the earliest instant of a heap and runs what is due there, so that thousands
//! of waits cost one thread. Instants are absolute: what is late does not make the next later.

use parking_lot::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// What to do when the instant has come.
type Action = Box<dyn FnOnce() + Send>;

/// Runs actions at instants, on a thread of its own. Dropping it runs what is left at once.
pub struct Timer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Earliest first; equal instants in the order they came.
    heap: BinaryHeap<Reverse<Alarm>>,
    count: u64,
    closed: bool,
}

struct Alarm {
    due: Instant,
    number: u64,
    action: Action,
}

impl Alarm {
    fn key(&self) -> (Instant, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Alarm) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Alarm) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Alarm) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Timer {
    /// Starts the thread.
    pub fn start() -> Timer {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let run = move || {
            wake_sharply();
            of_thread.run();
        };
        let thread = thread::Builder::new().name("bimetal-timer".into()).spawn(run);
        Timer { shared, thread: thread.ok() }
    }

    /// Runs `action` at `due`: now, on this thread, if that has passed.
    pub fn at(&self, due: Instant, action: impl FnOnce() + Send + 'static) {
        if due <= Instant::now() || self.thread.is_none() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            return action();
        }
        let mut queue = self.shared.queue.lock();
        queue.count += 1;
        let number = queue.count;
        queue.heap.push(Reverse(Alarm { due, number, action: Box::new(action) }));
        let is_first = queue.heap.peek().is_some_and(|Reverse(first)| first.number == number);
        drop(queue);
        if is_first {
            self.shared.changed.notify_one();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            match queue.heap.peek().map(|Reverse(first)| first.due) {
                Some(due) if queue.closed || due <= Instant::now() => {
                    if let Some(Reverse(entry)) = queue.heap.pop() {
                        drop(queue);
                        (entry.action)();
                        queue = self.queue.lock();
                    }
                }
                Some(due) => drop(self.changed.wait_until(&mut queue, due)),
                None if queue.closed => return,
                None => self.changed.wait(&mut queue),
            }
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
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
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn actions_run_in_the_order_of_their_instants() {
        let timer = Timer::start();
        let (tell, told) = mpsc::channel();
        let start = Instant::now() + Duration::from_millis(20);
        for (number, after) in [(3, 3), (1, 1), (2, 1), (0, 0)] {
            let tell = tell.clone();
            timer.at(start + Duration::from_millis(after), move || {
                tell.send((number, Instant::now())).unwrap()
            });
        }
        for expected in 0..4 {
            let (number, at) = told.recv().unwrap();
            assert_eq!(number, expected);
            assert!(at >= start, "never early");
        }
    }

    #[test]
    fn dropping_a_timer_runs_what_is_left() {
        let timer = Timer::start();
        let (tell, told) = mpsc::channel();
        timer.at(Instant::now() + Duration::from_secs(3600), move || tell.send(()).unwrap());
        drop(timer);
        told.try_recv().unwrap();
    }
}
