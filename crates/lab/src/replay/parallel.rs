//! Several runs at once, each with its own stack and its own pass over the trace.

use bimetal_base::Result;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Makes `count` runs, at most `jobs` at a time; the results are in the order of the runs. While they go
/// on, `watch` is called on this thread about ten times a second. After the first error the others stop.
///
/// # Errors
/// That of the first run, in their order, that failed of itself.
pub(crate) fn run_all<T: Send>(
    count: usize,
    jobs: usize,
    run: impl Fn(usize, &AtomicBool) -> Result<T> + Sync,
    mut watch: impl FnMut(),
) -> Result<Vec<T>> {
    let (next, finished, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<Option<Result<T>>>> = Mutex::new((0..count).map(|_| None).collect());
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= count || stop.load(Relaxed) {
                return;
            }
            let result = run(index, &stop);
            let told_to = stop.load(Relaxed);
            stop.fetch_or(result.is_err(), Relaxed);
            if result.is_ok() || !told_to {
                results.lock()[index] = Some(result);
            }
            finished.fetch_add(1, Relaxed);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.min(count)).map(|_| scope.spawn(work)).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            watch();
            thread::park_timeout(std::time::Duration::from_millis(if finished.load(Relaxed) == 0 {
                20
            } else {
                100
            }));
        }
    });
    results.into_inner().into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_base::Error;

    #[test]
    fn results_are_in_order_whoever_finishes_first() {
        let square = |index: usize, _: &AtomicBool| Ok(index * index);
        assert_eq!(run_all(20, 3, square, || ()).unwrap(), (0..20).map(|n| n * n).collect::<Vec<_>>());
    }

    #[test]
    fn one_error_ends_all() {
        let made = AtomicUsize::new(0);
        let fail = |index: usize, _: &AtomicBool| {
            made.fetch_add(1, Relaxed);
            if index == 2 { Err(Error::invalid("two")) } else { Ok(index) }
        };
        assert_eq!(run_all(1000, 1, fail, || ()).unwrap_err().to_string(), "two");
        assert_eq!(made.load(Relaxed), 3);
    }
}
