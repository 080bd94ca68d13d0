//! How far all runs together have come, on a terminal.

use bimetal_trace::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is done sooner needs no progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// A line at the bottom of the terminal that appears after a second.
pub(super) struct Shown {
    bar: ProgressBar,
    began: Instant,
    runs: Vec<Arc<Progress>>,
}

impl Shown {
    /// For as many runs.
    pub fn new(runs: usize) -> Shown {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Shown { bar, began: Instant::now(), runs: (0..runs).map(|_| Arc::default()).collect() }
    }

    /// What one run's trace counts in.
    pub fn of(&self, run: usize) -> &Arc<Progress> {
        &self.runs[run]
    }

    /// Shows how far it is.
    pub fn draw(&self) {
        if self.bar.is_hidden() && self.began.elapsed() > PATIENCE {
            self.appear();
        }
        let sum = |of: fn(&Progress) -> u64| self.runs.iter().map(|run| of(run)).sum::<u64>();
        let (read, total) = (sum(Progress::read), sum(Progress::total));
        if total > 0 {
            // Runs that have not begun are as long as those that have.
            let begun = self.runs.iter().filter(|run| run.total() > 0).count() as u64;
            self.bar.set_length(total / begun.max(1) * self.runs.len() as u64);
        }
        self.bar.set_position(read);
        self.bar.tick();
    }

    /// Shows how far it is at every so many requests, where the thread that reads must draw too.
    pub fn draw_sometimes(&self, request: usize) {
        if request.is_multiple_of(1 << 20) {
            self.draw();
        }
    }

    fn appear(&self) {
        let template = "{spinner} {wide_bar} {bytes} of {total_bytes} {elapsed} (about {eta} left)";
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        // Draws nothing where standard error is no terminal.
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
