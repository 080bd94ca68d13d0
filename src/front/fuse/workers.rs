//! A few threads for answers that have to wait for a device, so that the serving thread never does.
//!
//! Work is taken in the order it came. More work than threads waits in line: each of its requests has its
//! client waiting too, so the line is never longer than the kernel lets requests be in flight.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Line {
    waiting: VecDeque<Work>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    line: Mutex<Line>,
    arrived: Condvar,
}

/// The threads; dropping them finishes what is in line first.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads (at least one).
    pub fn new(count: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
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
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn all_work_is_done_before_the_threads_end_and_a_panic_stops_none() {
        let done = Arc::new(AtomicU32::new(0));
        let workers = Workers::new(2).unwrap();
        for number in 0..100 {
            let done = done.clone();
            workers.run(move || {
                assert!(number % 10 != 0, "as intended");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(workers);
        assert_eq!(done.load(Ordering::Relaxed), 90);
    }
}
