//! One run, and the runs of a grid.

use crate::policy::{Factory, Failure};
use crate::raised;
use crate::requests::Requests;
use crate::stack::{StackText, axes, of_one_value};
use crate::wait::wait;
use bimetal_base::Result;
use bimetal_lab::replay::{Brought, Played, grid};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// What is played instead of a stack's trace.
#[derive(FromPyObject)]
pub enum Trace {
    /// A path or a generator.
    Named(String),
    /// Requests in memory.
    Requests(Py<Requests>),
}

/// A policy written in Python, and what reports call it.
type Policy = (Py<PyAny>, String);

/// What Python brings to a run, and what its policy may have raised.
fn brought(trace: Option<Trace>, policy: Option<Policy>) -> (Brought, Failure) {
    let stop = Arc::new(AtomicBool::new(false));
    let failure = Failure::of(stop.clone());
    let trace = trace.map(|trace| match trace {
        Trace::Named(text) => Played::Named(text),
        Trace::Requests(requests) => Played::Requests(requests.get().source()),
    });
    let policy = policy.map(|(make, name)| Arc::new(Factory::new(make, name, failure.clone())) as Arc<_>);
    (Brought { trace, policy, stop }, failure)
}

/// Does `work` as a thread that Python knows all the time, so that a policy's calls need not make it known each time.
fn known<T: Send>(has_policy: bool, work: impl FnOnce() -> T + Send) -> T {
    match has_policy {
        true => Python::attach(|py| py.detach(work)),
        false => work(),
    }
}

/// Plays a stack and gives what was measured, as JSON.
#[pyfunction]
pub fn replay(
    py: Python<'_>,
    stack: &StackText,
    settings: Vec<String>,
    trace: Option<Trace>,
    policy: Option<Policy>,
) -> PyResult<String> {
    let stack = stack.text().with(&of_one_value(&settings)?).map_err(raised)?;
    let (brought, failure) = brought(trace, policy);
    let (stop, has_policy) = (brought.stop.clone(), brought.policy.is_some());
    let result = wait(py, &stop, move || known(has_policy, || grid::result_with(&stack, &brought)))?;
    match failure.taken() {
        Some(why) => Err(why),
        None => result.map(|result| result.to_string()).map_err(raised),
    }
}

/// Every combination of some settings, each a run with a row.
#[pyclass(frozen, module = "bimetal._bimetal")]
pub struct Grid {
    grid: Arc<grid::Grid>,
    stop: Arc<AtomicBool>,
    failure: Failure,
    has_policy: bool,
}

#[pymethods]
impl Grid {
    /// The grid over a stack: `KEY=VALUE,VALUE,…` each.
    #[new]
    fn new(
        py: Python<'_>,
        stack: &StackText,
        settings: Vec<String>,
        trace: Option<Trace>,
        policy: Option<Policy>,
    ) -> PyResult<Grid> {
        let (text, axes) = (stack.text().clone(), axes(&settings)?);
        let (brought, failure) = brought(trace, policy);
        let (stop, has_policy) = (brought.stop.clone(), brought.policy.is_some());
        let grid = wait(py, &stop, move || grid::Grid::new(&text, &axes, brought))?;
        Ok(Grid { grid: Arc::new(grid.map_err(raised)?), stop, failure, has_policy })
    }

    /// How many runs there are.
    fn __len__(&self) -> usize {
        self.grid.runs()
    }

    /// Makes some of the runs, at most `jobs` at a time, and gives their rows, as lines of JSON, in that order.
    fn rows(&self, py: Python<'_>, runs: Vec<usize>, jobs: usize) -> PyResult<Vec<String>> {
        let (grid, stop, has_policy) = (self.grid.clone(), self.stop.clone(), self.has_policy);
        let make = move || rows(&grid, &runs, jobs, &stop, has_policy);
        let rows = wait(py, &self.stop, make)?;
        match self.failure.taken() {
            Some(why) => Err(why),
            None => rows.map_err(raised),
        }
    }
}

/// Makes runs on as many threads as there may be jobs.
fn rows(
    grid: &grid::Grid,
    runs: &[usize],
    jobs: usize,
    stop: &AtomicBool,
    has_policy: bool,
) -> Result<Vec<String>> {
    let next = AtomicUsize::new(0);
    let made: Mutex<Vec<Option<Result<String>>>> = Mutex::new(runs.iter().map(|_| None).collect());
    let work = || {
        while let Some((at, run)) = Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, runs.get(at)?)))
        {
            if stop.load(Relaxed) {
                return;
            }
            let row = grid.row(*run);
            made.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(row);
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, runs.len().max(1)) {
            scope.spawn(|| known(has_policy, work));
        }
    });
    made.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}
