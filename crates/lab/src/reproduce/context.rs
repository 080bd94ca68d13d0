//! What an experiment is done with.

use super::packed::Packed;
use crate::replay::files::{self, DeviceReport, FilesReport};
use crate::replay::{self, Ending, RunReport};
use bimetal_base::{Error, Result};
use bimetal_trace::Source;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// Those that lie in the program, where there is no folder.
    pub(super) packed: Arc<Packed>,
    /// A trace that was asked for and is nowhere, and what would help.
    pub(super) lacking: Arc<Mutex<Option<String>>>,
    /// What the runs of this measurement were, with all that they had by default.
    pub(super) runs: Arc<Mutex<Vec<Value>>>,
}

impl ExperimentContext {
    /// The first and only seed, the short form, no traces.
    pub fn of_seed(seed: u64) -> ExperimentContext {
        ExperimentContext {
            seed,
            first: true,
            full: false,
            traces: None,
            packed: Arc::default(),
            lacking: Arc::default(),
            runs: Arc::default(),
        }
    }

    /// A recorded trace, by its name below the folder of traces.
    ///
    /// # Errors
    /// The trace is not in the folder; of no folder, the program does not have it.
    pub fn trace(&self, name: &str) -> Result<Source> {
        Ok(Source::file(self.trace_path(name)?))
    }

    /// Where a recorded trace is: in the folder of all, or, where none was named, unpacked from the program.
    ///
    /// # Errors
    /// As [`trace`](Self::trace)'s.
    pub fn trace_path(&self, name: &str) -> Result<PathBuf> {
        let Some(folder) = &self.traces else {
            return self.packed.path(name)?.ok_or_else(|| self.lacks(name));
        };
        let path = folder.join(name);
        match path.exists() {
            true => Ok(path),
            false => Err(Error::invalid(format!("{}: no such trace", path.display()))),
        }
    }

    /// Notes that there is no folder of traces, and that the program has not what is needed of it.
    fn lacks(&self, what: &str) -> Error {
        let why = format!(
            "needs recorded traces that do not lie in the program ({what}): name their folder with --traces or {TRACES_VARIABLE}"
        );
        *self.lacking.lock() = Some(why.clone());
        Error::invalid(why)
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
        let mut runs = replay::replay(&replay::Args::parse(&format!("{line} --seed {}", self.seed))?)?;
        // Where a trace was unpacked says nothing.
        for run in &mut runs {
            if let Some(name) = self.packed.name(&run.config.trace) {
                run.config.trace = name.to_string();
            }
        }
        match runs.iter().find(|run| run.ended.how != Ending::Complete) {
            Some(run) => {
                let why = run.ended.why.as_deref().unwrap_or_default();
                Err(Error::invalid(format!("{}: {}: {why}", run.config.run, run.ended.how)))
            }
            None => {
                runs.iter().for_each(|run| self.note(&run.config));
                Ok(runs)
            }
        }
    }

    /// Plays calls as `line` says, as one would type it after `bimetal replay`, with this seed.
    ///
    /// # Errors
    /// As the replay's.
    pub fn replay_calls(&self, line: &str) -> Result<FilesReport> {
        let report = files::replay(&replay::Args::parse(&format!("{line} --seed {}", self.seed))?)?;
        self.note_calls(&report, &Value::Null);
        Ok(report)
    }

    /// Notes what a run of calls was, and how its devices were laid out.
    pub(super) fn note_calls(&self, report: &FilesReport, layout: &Value) {
        let device = |device: &DeviceReport| json!({ "profile": device.profile, "ftl": device.ftl, "size_bytes": device.size_bytes });
        let devices: Value =
            report.devices.iter().map(|(name, one)| ((*name).to_string(), device(one))).collect();
        self.note(&json!({ "fs": report.fs, "config": report.config, "devices": devices, "layout": layout }));
    }

    /// Notes what a run was, of the first seed alone: the others differ in it.
    pub(super) fn note(&self, config: &impl Serialize) {
        if let Some(config) = serde_json::to_value(config).ok().filter(|_| self.first) {
            self.runs.lock().push(config);
        }
    }

    /// The folder of recorded traces.
    ///
    /// # Errors
    /// It was not named.
    pub fn traces_dir(&self) -> Result<&Path> {
        self.traces.as_deref().ok_or_else(|| self.lacks("the folder of all"))
    }
}
