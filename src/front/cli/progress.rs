//! Progress on a terminal, for what takes longer than a second.

use crate::front::signals::Ending;
use crate::front::tree::{Watch, named};
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
    incomplete: u64,
    /// Something was not copied because a signal came.
    left_out: bool,
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
        Progress { bar, _over: over, failed: 0, incomplete: 0, left_out: false, ending: None }
    }

    /// Says what is done now.
    pub fn now(&self, message: impl Into<std::borrow::Cow<'static, str>>) {
        self.bar.set_message(message);
    }

    /// Says something that stays.
    pub fn aside(&self, what: &dyn std::fmt::Display) {
        self.bar.suspend(|| super::complain(what));
    }

    fn tell(&self, path: &Path, what: &Error) {
        self.aside(&named(&path.display().to_string(), what));
    }

    /// Takes the line away.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }

    /// Takes the line away; an error if something could not be copied, or not with all that belongs to it. A signal that came when
    /// everything was copied is none.
    pub fn all_copied(&self) -> Result<()> {
        self.done();
        if self.left_out
            && let Some(signal) = self.ending.as_ref().and_then(Ending::asked)
        {
            return Err(Error::invalid(format!(
                "{signal}: not everything was copied; what was not whole is gone"
            )));
        }
        let failed = match self.failed {
            0 => None,
            1 => Some("one of the files was not copied".to_string()),
            count => Some(format!("{count} of the files were not copied")),
        };
        let incomplete = match self.incomplete {
            0 => None,
            1 => Some("one was copied without all that belongs to it".to_string()),
            count => Some(format!("{count} were copied without all that belongs to them")),
        };
        let told: Vec<String> = failed.into_iter().chain(incomplete).collect();
        if told.is_empty() { Ok(()) } else { Err(Error::Invalid(told.join(", "))) }
    }
}

impl Watch for Progress {
    fn is_over(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.asked().is_some())
    }

    fn next(&mut self, path: &Path) {
        if !self.bar.is_hidden() {
            self.bar.set_message(super::place(path));
        }
    }

    fn moved(&mut self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn failed(&mut self, path: &Path, why: &Error) {
        self.failed += 1;
        self.tell(path, why);
    }

    fn incomplete(&mut self, path: &Path, what: &Error) {
        self.incomplete += 1;
        self.tell(path, what);
    }

    fn left_out(&mut self) {
        self.left_out = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal that came when the last file was copied kept nothing from being copied.
    #[test]
    fn a_signal_counts_where_it_kept_something_from_being_copied() {
        let ending = Ending::asked_by("SIGTERM");
        let asked = || {
            let mut progress = Progress::with_style("", "");
            progress.ending = Some(ending.clone());
            progress
        };
        let code = |progress: &Progress| {
            let done = crate::front::cli::copied(&ending, [Ok(()), Ok(()), progress.all_copied()]);
            format!("{:?}", done.unwrap())
        };
        let mut progress = asked();
        assert!(progress.is_over());
        assert_eq!(code(&progress), format!("{:?}", std::process::ExitCode::SUCCESS));
        progress.left_out();
        assert_eq!(code(&progress), format!("{:?}", std::process::ExitCode::from(143)));
    }

    #[test]
    fn what_is_there_without_all_that_belongs_to_it_is_no_file_that_was_not_copied() {
        let mut progress = Progress::with_style("", "");
        let why = Error::invalid("why");
        progress.incomplete(Path::new("a"), &why);
        let said = |progress: &Progress| progress.all_copied().unwrap_err().to_string();
        assert_eq!(said(&progress), "one was copied without all that belongs to it");
        progress.failed(Path::new("b"), &why);
        progress.failed(Path::new("c"), &why);
        assert!(said(&progress).starts_with("2 of the files were not copied, one was copied"));
    }
}
