//! How far all runs together have come, on a terminal.

use bimetal_trace::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What is done sooner needs no progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// A line at the bottom of the terminal that appears after a second, and goes with this.
struct Line {
    bar: ProgressBar,
    began: Instant,
    template: &'static str,
}

impl Line {
    fn new(template: &'static str) -> Line {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Line { bar, began: Instant::now(), template }
    }

    fn draw(&self, position: u64) {
        if self.bar.is_hidden() && self.began.elapsed() > PATIENCE {
            if let Ok(style) = ProgressStyle::with_template(self.template) {
                self.bar.set_style(style);
            }
            // Draws nothing where standard error is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(position);
        self.bar.tick();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// How many of several computations are done.
pub(super) struct Steps {
    line: Line,
    done: AtomicU64,
}

impl Steps {
    /// Of so many.
    pub fn of(count: usize) -> Steps {
        let line = Line::new("{spinner} {wide_bar} {pos} of {len} points {elapsed} (about {eta} left)");
        line.bar.set_length(count as u64);
        Steps { line, done: AtomicU64::new(0) }
    }

    /// One more is done.
    pub fn one_more(&self) {
        self.done.fetch_add(1, Relaxed);
    }

    /// Shows how far it is.
    pub fn draw(&self) {
        self.line.draw(self.done.load(Relaxed));
    }
}

/// How far the traces of runs were read.
pub(super) struct Shown {
    line: Line,
    runs: Vec<Arc<Progress>>,
}

impl Shown {
    /// For as many runs.
    pub fn new(runs: usize) -> Shown {
        let line = Line::new("{spinner} {wide_bar} {bytes} of {total_bytes} {elapsed} (about {eta} left)");
        Shown { line, runs: (0..runs).map(|_| Arc::default()).collect() }
    }

    /// What one run's trace counts in.
    pub fn of(&self, run: usize) -> &Arc<Progress> {
        &self.runs[run]
    }

    /// Shows how far it is.
    pub fn draw(&self) {
        let sum = |of: fn(&Progress) -> u64| self.runs.iter().map(|run| of(run)).sum::<u64>();
        let (read, total) = (sum(Progress::read), sum(Progress::total));
        if total > 0 {
            // Runs that have not begun are as long as those that have.
            let begun = self.runs.iter().filter(|run| run.total() > 0).count() as u64;
            self.line.bar.set_length(total / begun.max(1) * self.runs.len() as u64);
        }
        self.line.draw(read);
    }

    /// Shows how far it is at every so many requests, where the thread that reads must draw too.
    pub fn draw_sometimes(&self, request: usize) {
        if request.is_multiple_of(1 << 20) {
            self.draw();
        }
    }
}
