//! Waiting for devices without keeping others waiting.
//!
//! Several threads take requests from the kernel, and one that meets an answer which has to wait just waits
//! ([`Spare`]): handing the wait to another thread would cost 4 µs, while more threads that take requests cost
//! nothing, since the kernel wakes one for each. Only the last thread that is free to serve may not wait; its
//! waits go to threads that do nothing else ([`Workers`]).
//!
//! Work is taken in the order it came. More work than threads waits in line: each of its requests has its
//! client waiting too, so the line is never longer than the kernel lets requests be in flight.

use super::counts::Counts;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

type Work = Box<dyn FnOnce() + Send>;

/// How many of the serving threads may wait at this moment.
#[derive(Debug)]
pub(super) struct Spare(AtomicUsize);

/// One thread that waits.
pub(super) struct Waiting<'a>(&'a Spare);

impl Spare {
    /// Of so many serving threads, all but one may wait.
    pub fn of(threads: usize) -> Spare {
        Spare(AtomicUsize::new(threads.saturating_sub(1)))
    }

    /// The permission to wait until it is dropped, unless this thread is the last one free.
    pub fn take(&self) -> Option<Waiting<'_>> {
        // Made only when a permission was taken: dropping it gives one back.
        self.0.fetch_update(Relaxed, Relaxed, |free| free.checked_sub(1)).ok().map(|_| Waiting(self))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Relaxed);
    }
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Work>,
    closed: bool,
}

struct Shared {
    line: Mutex<Line>,
    arrived: Condvar,
    counts: Arc<Counts>,
}

/// The threads; dropping them finishes what is in line first.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads (at least one); their panics are counted in `counts`.
    pub fn new(count: usize, counts: Arc<Counts>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { line: Mutex::default(), arrived: Condvar::new(), counts });
        let spawn = |number| {
            let shared = shared.clone();
            thread::Builder::new().name(format!("wait-{number}")).spawn(move || serve(&shared))
        };
        let threads = (0..count.max(1)).map(spawn).collect::<Result<_, _>>()?;
        Ok(Workers { shared, threads })
    }

    /// Puts `work` in line. If it panics, that is logged and what it holds is dropped.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.line.lock().waiting.push_back(Box::new(work));
        self.shared.arrived.notify_one();
    }
}

fn serve(shared: &Shared) {
    loop {
        let mut line = shared.line.lock();
        let work = loop {
            match line.waiting.pop_front() {
                Some(work) => break work,
                None if line.closed => return,
                None => shared.arrived.wait(&mut line),
            }
        };
        drop(line);
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            shared.counts.panics.fetch_add(1, Relaxed);
            tracing::error!("a bug: an answer panicked; its request fails with an I/O error");
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.line.lock().closed = true;
        self.shared.arrived.notify_all();
        let own = thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != own) {
            // A worker catches its panics: there is nothing to hear from it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn one_serving_thread_always_stays_free() {
        let spare = Spare::of(3);
        let (first, second) = (spare.take(), spare.take());
        assert!(first.is_some() && second.is_some() && spare.take().is_none());
        drop(first);
        assert!(spare.take().is_some());
        assert!(Spare::of(1).take().is_none());
    }

    #[test]
    fn asking_in_vain_for_permission_to_wait_makes_no_permission() {
        let spare = Spare::of(1);
        assert!((0..10).all(|_| spare.take().is_none()));
        let spare = Spare::of(2);
        let first = spare.take();
        assert!(first.is_some() && (0..10).all(|_| spare.take().is_none()));
        drop(first);
        let again = spare.take();
        assert!(again.is_some() && spare.take().is_none());
    }

    #[test]
    fn all_work_is_done_before_the_threads_end_and_a_panic_stops_none() {
        let done = Arc::new(AtomicU32::new(0));
        let counts = Arc::new(Counts::new());
        let workers = Workers::new(2, counts.clone()).unwrap();
        for number in 0..100 {
            let done = done.clone();
            workers.run(move || {
                assert!(number % 10 != 0, "as intended");
                done.fetch_add(1, Relaxed);
            });
        }
        drop(workers);
        assert_eq!((done.load(Relaxed), counts.panics.load(Relaxed)), (90, 10));
    }
}
