//! Progress on a terminal, for what takes longer than a second.

use crate::front::signals::Ending;
use crate::front::tree::Watch;
use crate::{Error, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// What is done sooner needs no progress.
const PATIENCE: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(100);

/// A line at the bottom of the terminal that appears after a second and goes at the end.
pub(super) struct Progress {
    bar: ProgressBar,
    /// Dropped when it is over.
    _over: Option<Sender<()>>,
    failed: u64,
    ending: Option<Ending>,
}

impl Progress {
    /// Turns until it is over.
    pub fn spinner(message: &'static str) -> Self {
        Self::with_style("{spinner} {msg} {elapsed}", message)
    }

    /// Counts bytes, until it is asked to end.
    pub fn copying(ending: &Ending) -> Self {
        let progress = Self::with_style("{spinner} {bytes} {bytes_per_sec} {elapsed} {wide_msg}", "");
        ending.begin();
        Progress { ending: Some(ending.clone()), ..progress }
    }

    /// Counts up to a known number of `what`.
    pub fn counting(what: &'static str) -> Self {
        Self::with_style("{wide_bar} {pos} of {len} {msg} {elapsed}", what)
    }

    /// So many of so many.
    pub fn at(&self, done: u64, of: u64) {
        self.bar.set_length(of);
        self.bar.set_position(done);
    }

    fn with_style(template: &str, message: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_message(message);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let over = std::io::stderr().is_terminal().then(|| {
            let (over, is_over) = channel::<()>();
            let shown = bar.clone();
            thread::spawn(move || {
                if is_over.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    shown.set_draw_target(ProgressDrawTarget::stderr());
                    shown.enable_steady_tick(REDRAW);
                }
            });
            over
        });
        Progress { bar, _over: over, failed: 0, ending: None }
    }

    /// Says what is done now.
    pub fn now(&self, message: impl Into<std::borrow::Cow<'static, str>>) {
        self.bar.set_message(message);
    }

    /// Takes the line away.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }

    /// Takes the line away; an error if something could not be copied.
    pub fn all_copied(&self) -> Result<()> {
        self.done();
        if let Some(signal) = self.ending.as_ref().and_then(Ending::asked) {
            return Err(Error::invalid(format!(
                "{signal}: not everything was copied; what was not whole is gone"
            )));
        }
        match self.failed {
            0 => Ok(()),
            1 => Err(Error::invalid("one of the files was not copied")),
            count => Err(Error::invalid(format!("{count} of the files were not copied"))),
        }
    }
}

impl Watch for Progress {
    fn is_over(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.asked().is_some())
    }

    fn next(&mut self, path: &Path) {
        if !self.bar.is_hidden() {
            self.bar.set_message(path.display().to_string());
        }
    }

    fn moved(&mut self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn failed(&mut self, path: &Path, why: &Error) {
        self.failed += 1;
        self.bar.suspend(|| super::complain(&format!("{}: {why}", path.display())));
    }
}
