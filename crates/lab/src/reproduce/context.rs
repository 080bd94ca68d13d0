//! What an experiment is done with.

use crate::replay::{self, Ending, RunReport};
use bimetal_base::{Error, Result};
use bimetal_trace::Source;
use std::path::{Path, PathBuf};

/// Where recorded traces are, unless the command line says.
pub const TRACES_VARIABLE: &str = "BIMETAL_TRACES";

/// What an experiment is done with.
#[derive(Clone, Debug)]
pub struct ExperimentContext {
    /// Everything random follows from it.
    pub seed: u64,
    /// It is the first seed: what depends on no seed is measured with it alone.
    pub first: bool,
    /// The long form.
    pub full: bool,
    /// The folder of recorded traces, if there is one.
    pub traces: Option<PathBuf>,
}

impl ExperimentContext {
    /// The first and only seed, the short form, no traces.
    pub fn of_seed(seed: u64) -> ExperimentContext {
        ExperimentContext { seed, first: true, full: false, traces: None }
    }

    /// A recorded trace, by its name below the folder of traces.
    ///
    /// # Errors
    /// The folder was not named, or the trace is not in it.
    pub fn trace(&self, name: &str) -> Result<Source> {
        Ok(Source::file(self.trace_path(name)?))
    }

    /// Where a recorded trace is.
    ///
    /// # Errors
    /// As [`trace`](Self::trace)'s.
    pub fn trace_path(&self, name: &str) -> Result<PathBuf> {
        let path = self.traces_dir()?.join(name);
        match path.exists() {
            true => Ok(path),
            false => Err(Error::invalid(format!("{}: no such trace", path.display()))),
        }
    }

    /// A generator, as `gen:NAME:option=value`, that draws with this seed.
    pub fn seeded(&self, recipe: &str) -> String {
        format!("{recipe}:seed={}", self.seed)
    }

    /// Replays what `line` says, as one would type it after `bimetal replay`, with this seed.
    ///
    /// # Errors
    /// As the replay's.
    pub fn replay(&self, line: &str) -> Result<Vec<RunReport>> {
        let runs = replay::replay(&replay::Args::parse(&format!("{line} --seed {}", self.seed))?)?;
        match runs.iter().find(|run| run.ended.how != Ending::Complete) {
            Some(run) => {
                let why = run.ended.why.as_deref().unwrap_or_default();
                Err(Error::invalid(format!("{}: {}: {why}", run.config.run, run.ended.how)))
            }
            None => Ok(runs),
        }
    }

    /// The folder of recorded traces.
    ///
    /// # Errors
    /// It was not named.
    pub fn traces_dir(&self) -> Result<&Path> {
        self.traces.as_deref().ok_or_else(|| {
            Error::invalid(format!(
                "needs recorded traces: name their folder with --traces or {TRACES_VARIABLE}"
            ))
        })
    }
}
