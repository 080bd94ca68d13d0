//! Waiting for devices without keeping others waiting.
//!
//! Several threads take requests from the kernel, and one that meets an answer which has to wait just waits
//! ([`Spare`]): handing the wait to another thread would cost 4 µs, while more threads that take requests cost
//! nothing, since the kernel wakes one for each. Only the last thread that is free to serve may not wait; its
//! waits go to threads that do nothing else ([`Workers`]): as many as there are waits, up to a bound, so that clients
//! whose fsyncs can share a write all get to wait for it. A thread without work ends after a while.
//!
//! Work is taken in the order it came. More work than threads may be waits in line: each of its requests has its
//! client waiting too, so the line is never longer than the kernel lets requests be in flight.

use super::counts::Counts;
use bimetal_base::runtime::sync::{Condvar, Mutex};
use bimetal_base::runtime::{Clock, Runs};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

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
    /// Threads there are, and those of them that have begun.
    threads: usize,
    begun: Vec<Runs>,
    /// Threads that wait for work.
    idle: usize,
    /// How many were started so far, for their names.
    started: usize,
    closed: bool,
}

struct Shared {
    line: Mutex<Line>,
    /// There is work, or there will be no more.
    arrived: Condvar,
    /// A thread ended.
    ended: Condvar,
    counts: Arc<Counts>,
    clock: Clock,
    /// How long a thread waits for work before it ends.
    patience: Duration,
}

/// The threads; dropping them finishes what is in line first.
pub(super) struct Workers {
    shared: Arc<Shared>,
    most: usize,
}

impl Workers {
    /// At most `most` threads at once (at least one), none so far. One that has nothing to do for `patience` ends. Their
    /// panics are counted in `counts`.
    pub fn new(most: usize, patience: Duration, counts: Arc<Counts>, clock: Clock) -> Self {
        let (line, arrived, ended) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Shared { line, arrived, ended, counts, clock, patience };
        Workers { shared: Arc::new(shared), most: most.max(1) }
    }

    /// Puts `work` in line. If it panics, that is logged and what it holds is dropped.
    ///
    /// Where the machine has no thread left for it, it is done at once by the caller.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        let mut line = self.shared.line.lock();
        line.waiting.push_back(Box::new(work));
        if line.idle >= line.waiting.len() || line.threads >= self.most {
            drop(line);
            self.shared.arrived.notify_one();
            return;
        }
        line.threads += 1;
        line.started += 1;
        let name = format!("wait-{}", line.started);
        drop(line);
        let shared = self.shared.clone();
        if let Err(why) = self.shared.clock.spawn(&name, Box::new(move || serve(&shared))) {
            let mut line = self.shared.line.lock();
            line.threads -= 1;
            // Others do it in time; without any, whoever asked has to.
            let work = if line.threads == 0 { line.waiting.pop_front() } else { None };
            drop(line);
            tracing::warn!(%why, "no thread to wait with");
            work.into_iter().for_each(|work| do_work(&self.shared, work));
        }
    }
}

fn serve(shared: &Shared) {
    shared.line.lock().begun.push(Runs::here());
    while let Some(work) = next(shared) {
        do_work(shared, work);
    }
    let mut line = shared.line.lock();
    line.threads -= 1;
    line.begun.retain(|one| *one != Runs::here());
    drop(line);
    shared.ended.notify_all();
}

/// The next work; nothing when there will be none, or has been none for too long.
fn next(shared: &Shared) -> Option<Work> {
    let due = shared.clock.now() + shared.patience;
    let mut line = shared.line.lock();
    loop {
        if let Some(work) = line.waiting.pop_front() {
            return Some(work);
        }
        if line.closed || shared.clock.now() >= due {
            return None;
        }
        line.idle += 1;
        shared.arrived.wait_until(&mut line, shared.clock.as_ref(), due);
        line.idle -= 1;
    }
}

fn do_work(shared: &Shared, work: Work) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        shared.counts.panics.fetch_add(1, Relaxed);
        tracing::error!("a bug: an answer panicked; its request fails with an I/O error");
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut line = self.shared.line.lock();
        line.closed = true;
        self.shared.arrived.notify_all();
        // One of the threads may be the one that drops them.
        let own = usize::from(line.begun.contains(&Runs::here()));
        while line.threads > own {
            self.shared.ended.wait(&mut line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_base::runtime::{Runtime, Sim, live};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;

    const PATIENCE: Duration = Duration::from_secs(10);

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
        let workers = Workers::new(2, PATIENCE, counts.clone(), live());
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

    #[test]
    fn as_many_wait_at_once_as_there_is_work_and_no_more_than_allowed() {
        let workers = Workers::new(16, PATIENCE, Arc::new(Counts::new()), live());
        // Each waits for all others, twice.
        let (together, done) = (Arc::new(Barrier::new(16)), Arc::new(AtomicU32::new(0)));
        for _ in 0..32 {
            let (together, done) = (together.clone(), done.clone());
            workers.run(move || {
                together.wait();
                done.fetch_add(1, Relaxed);
            });
        }
        assert!(workers.shared.line.lock().started <= 16);
        drop(workers);
        assert_eq!(done.load(Relaxed), 32);
    }

    #[test]
    fn threads_without_work_end_and_others_come_when_there_is_some() {
        let workers = Workers::new(4, Duration::from_millis(1), Arc::new(Counts::new()), live());
        let done = Arc::new(AtomicU32::new(0));
        for _ in 0..3 {
            let done = done.clone();
            workers.run(move || {
                done.fetch_add(1, Relaxed);
            });
            let mut line = workers.shared.line.lock();
            while line.threads > 0 {
                workers.shared.ended.wait(&mut line);
            }
        }
        assert_eq!(done.load(Relaxed), 3);
    }

    #[test]
    fn in_virtual_time_as_many_wait_at_once_as_allowed_and_the_others_after_them() {
        let sim = Sim::new(2);
        let inner = sim.clone();
        let (over, done) = sim.run(move || {
            let workers = Workers::new(4, PATIENCE, Arc::new(Counts::new()), Arc::new(inner.clone()));
            let done = Arc::new(AtomicU32::new(0));
            for _ in 0..12 {
                let (sim, done) = (inner.clone(), done.clone());
                workers.run(move || {
                    sim.sleep(Duration::from_secs(1));
                    done.fetch_add(1, Relaxed);
                });
            }
            drop(workers);
            (inner.now(), done.load(Relaxed))
        });
        assert_eq!((over.0, done), (3_000_000_000, 12));
    }
}
