//! `bimetal replay --stack FILE --set KEY=A,B --out FOLDER`: every combination of values, one row each.
//!
//! ```text
//! stack file × settings → runs, each with its own configuration → rows of a folder
//! ```
//!
//! A row depends on the configuration, the seed, the version and the files that are read, on nothing else: not on the
//! machine, the time, the number of threads, or whether the grid was killed and went on. How long runs took, and where,
//! is in a file beside them. A run that fails, or panics, is a row with its error; one that the device ended is a row with
//! what it had reached. [`store`] says how rows are kept.

mod row;
mod store;

use super::args::Args;
use super::decoded::Decoded;
use super::{Brought, files, from_stack, one, say};
use crate::chart::Chart;
use crate::stack::file::{Setting, StackFile, StackText};
use bimetal_base::{Error, Result};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::{Given, Inputs, Store};

pub use row::{cells, flatten};

/// More runs than that are taken for a mistake.
const RUNS_MAX: usize = 1_000_000;
/// What is done sooner needs no progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a grid is told beside its stack.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct GridArgs {
    /// With --stack: make every combination of the values set, and keep one row a run here: rows.jsonl, rows.parquet. The
    /// same command goes on with a grid that was interrupted
    #[arg(long, value_name = "FOLDER", requires = "stack")]
    pub out: Option<PathBuf>,
    /// Do nothing but print the commands that do it: 'tasks', one a run that is not done, for job arrays and the like
    #[arg(long, value_name = "WHAT", requires = "out")]
    pub emit: Option<Emit>,
    /// Make this run only; the last one to be made puts the rows together
    #[arg(long, value_name = "N", requires = "out")]
    pub only: Option<usize>,
}

/// What is printed instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Emit {
    /// One command a run
    Tasks,
}

/// A run of a grid.
pub(super) struct Run {
    /// What is set.
    settings: Vec<Setting>,
    /// All it is.
    stack: StackFile,
}

impl Run {
    /// What is set, and its effective configuration.
    fn config(&self) -> (Value, Value) {
        let set = self.settings.iter().map(|setting| (setting.key.clone(), json!(setting.text))).collect();
        (Value::Object(set), json!(self.stack))
    }
}

/// Does what `args` ask for with their stack file: one run as any replay, or a grid.
pub(super) fn run(args: &Args) -> Result<()> {
    only_the_stack(args)?;
    let Some(out) = &args.grid.out else {
        let Some(stack) = args.stack.one()? else {
            return Err(Error::BadArgument);
        };
        let args = Args { json: args.json, jobs: args.jobs, ..Args::of_stack(&stack)? };
        return super::run(&args).map_err(from_stack::in_keys);
    };
    let Some((text, axes)) = args.stack.read()? else { return Err(Error::BadArgument) };
    let runs = combinations(&text, &axes, &Brought::default())?;
    if let Some(only) = args.grid.only.filter(|only| *only >= runs.len()) {
        return Err(Error::invalid(format!("--only {only}: the grid has {} runs, from 0 on", runs.len())));
    }
    let base = json!(from_stack::effective(&text.with(&[])?)?);
    let store = Store::new(out, &runs, &base, &axes)?;
    let asked = args.grid.only.map_or(0..runs.len(), |only| only..only + 1);
    if args.grid.emit.is_some() {
        let tasks: Result<Vec<_>> = store.todo(asked).into_iter().map(|run| task(args, run)).collect();
        return tasks?.iter().try_for_each(|task| say(task));
    }
    let claim = store.claim(args.grid.only.is_some())?;
    let todo = store.todo(asked);
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    make(&store, &runs, &todo, jobs)?;
    match claim.finish()? {
        Some(failed) => say(&format!(
            "{} rows in {1}/{2} and {1}/{3}{4}",
            runs.len(),
            out.display(),
            store::JSON,
            store::PARQUET,
            match failed {
                0 => String::new(),
                failed => format!("; {failed} runs failed, and their rows say why"),
            }
        )),
        None => Ok(()),
    }
}

/// Refuses options that say in another way what the stack file says.
fn only_the_stack(args: &Args) -> Result<()> {
    let (usual, jobs, json) = (Args::usual()?, args.jobs, args.json);
    let (stack, grid) = (args.stack.clone(), args.grid.clone());
    let said = format!("{args:?}");
    let usual = Args { trace: None, jobs, json, stack, grid, ..usual };
    match said == format!("{usual:?}") {
        true => Ok(()),
        false => Err(Error::invalid(
            "--stack: what is played, on what and how is said by the file and --set KEY=VALUE; beside them there are --out, \
             --emit, --only, --jobs and --json",
        )),
    }
}

/// The runs of a grid whose rows the caller keeps: the same rows as those of a folder.
pub struct Grid {
    runs: Vec<Run>,
    inputs: Inputs,
    brought: Brought,
}

impl Grid {
    /// Every combination of the values, one list a key, the last key's changing fastest.
    ///
    /// # Errors
    /// One of them cannot be, or a file that a run reads cannot be read; nothing was run then.
    pub fn new(text: &StackText, axes: &[Vec<Setting>], brought: Brought) -> Result<Grid> {
        let runs = combinations(text, axes, &brought)?;
        Ok(Grid { inputs: Inputs::of(&runs)?, runs, brought })
    }

    /// How many runs there are.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Makes a run, from 0 on, and gives its row, as a line of `rows.jsonl` has it. A run that fails is a row with its
    /// error; so is one that was told to end.
    ///
    /// # Errors
    /// There is no such run.
    pub fn row(&self, run: usize) -> Result<String> {
        let Some(of) = self.runs.get(run) else {
            return Err(Error::invalid(format!("the grid has {} runs, from 0 on", self.runs.len())));
        };
        let row = self.inputs.row((run, of), made(&of.stack, &self.brought, &Arc::default()));
        serde_json::to_string(&row).map_err(Error::invalid)
    }
}

/// Every combination of the values, the last key's changing fastest.
///
/// # Errors
/// One of them cannot be; nothing was run then.
fn combinations(text: &StackText, axes: &[Vec<Setting>], brought: &Brought) -> Result<Vec<Run>> {
    let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.len()));
    let Some(count) = count.filter(|count| *count <= RUNS_MAX) else {
        return Err(Error::invalid(format!("the grid has more than {RUNS_MAX} runs; set fewer values")));
    };
    let of = |mut number: usize| {
        let mut settings: Vec<Setting> = Vec::new();
        for axis in axes.iter().rev() {
            settings.push(axis[number % axis.len()].clone());
            number /= axis.len();
        }
        settings.reverse();
        let stack = from_stack::effective(&brought.over(&text.with(&settings)?)?)?;
        // What makes no sense at all is told before anything is done.
        Args::of_stack(&stack)?;
        Ok(Run { settings, stack })
    };
    (0..count).map(of).collect()
}

/// Makes the runs that are left, on as many threads.
fn make(store: &Store, runs: &[Run], todo: &[usize], jobs: usize) -> Result<()> {
    let bar = ProgressBar::with_draw_target(Some(runs.len() as u64), ProgressDrawTarget::hidden());
    if let Ok(style) =
        ProgressStyle::with_template("{wide_bar} {pos} of {len} runs {elapsed} (about {eta} left)")
    {
        bar.set_style(style);
    }
    bar.set_position((runs.len() - todo.len()) as u64);
    let (next, began, failure) = (AtomicUsize::new(0), Instant::now(), Mutex::new(None));
    let decoded = Decoded::for_runs(todo.len());
    let work = || {
        while let Some(run) = todo.get(next.fetch_add(1, Relaxed)) {
            let started = Instant::now();
            let row = made(&runs[*run].stack, &Brought::default(), &decoded);
            if let Err(why) = store.keep(*run, row, started.elapsed()) {
                failure.lock().get_or_insert(why);
                next.store(todo.len(), Relaxed);
            }
            if bar.is_hidden() && began.elapsed() > PATIENCE {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            bar.inc(1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(todo.len()) {
            scope.spawn(work);
        }
    });
    bar.finish_and_clear();
    failure.into_inner().map_or(Ok(()), Err)
}

/// What one run gave, and why it failed, if it did.
fn made(stack: &StackFile, brought: &Brought, decoded: &Arc<Decoded>) -> Given {
    let given = || match given_drawn(stack, brought, decoded) {
        Ok((given, _)) => given,
        Err(why) => (Some(why.to_string()), Value::Null),
    };
    let in_keys = |text: String| from_stack::in_keys(Error::invalid(text)).to_string();
    let given = || {
        let (why, row) = given();
        (why.map(in_keys), row)
    };
    catch_unwind(AssertUnwindSafe(given)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        (Some(format!("the program panicked: {text}; please report it")), Value::Null)
    })
}

/// What one run gave, and what is drawn of its flash.
fn given_drawn(stack: &StackFile, brought: &Brought, decoded: &Arc<Decoded>) -> Result<(Given, Vec<Chart>)> {
    let (brought, decoded) = (brought.clone(), Arc::clone(decoded));
    let args = Args { brought, decoded, ..Args::of_stack(stack)? };
    if args.fs.is_some() {
        let report = files::replay(&args)?;
        let why = (!report.ended.how.is_result()).then(|| report.ended.told());
        return Ok(((why, json!(report)), Vec::new()));
    }
    let report = one(&args, &args.brought.stop)?;
    let charts = report.charts();
    let given = match report.ended.how.is_result() {
        true => (None, json!(report)),
        // What did not begin has nothing to show.
        false if report.requests == 0 => (Some(report.ended.told()), Value::Null),
        false => (Some(report.ended.told()), json!(report)),
    };
    Ok((given, charts))
}

/// Plays a stack once and gives what was measured, as `replay --json` prints it.
///
/// # Errors
/// As those of a replay.
pub fn result(stack: &StackFile) -> Result<Value> {
    result_drawn(stack).map(|(result, _)| result)
}

/// The same with what a program brings along, which goes before what the stack says.
///
/// # Errors
/// As [`result`]; the run was told to end.
pub fn result_with(stack: &StackFile, brought: &Brought) -> Result<Value> {
    drawn_with(&brought.over(stack)?, brought).map(|(result, _)| result)
}

/// The same, and what is drawn of its flash.
pub(crate) fn result_drawn(stack: &StackFile) -> Result<(Value, Vec<Chart>)> {
    drawn_with(stack, &Brought::default())
}

fn drawn_with(stack: &StackFile, brought: &Brought) -> Result<(Value, Vec<Chart>)> {
    match given_drawn(stack, brought, &Arc::default()).map_err(from_stack::in_keys)? {
        ((None, result), charts) => Ok((result, charts)),
        ((Some(why), _), _) => Err(from_stack::in_keys(Error::invalid(why))),
    }
}

/// The command of one run, a line. Values are joined to their options, so that they may begin with a dash.
///
/// # Errors
/// A path is no text, or a value has a line end.
fn task(args: &Args, run: usize) -> Result<String> {
    let said = |option: &str, path: &Option<PathBuf>| {
        let path = path.as_deref().unwrap_or(Path::new(""));
        let text = path.to_str().ok_or_else(|| no_task(&path.display().to_string(), "is no UTF-8"))?;
        Ok(format!("{option}={text}"))
    };
    let mut words = vec!["bimetal".into(), "replay".into(), said("--stack", &args.stack.stack)?];
    words.extend(args.stack.set.iter().map(|axis| format!("--set={axis}")));
    words.extend([said("--out", &args.grid.out)?, format!("--only={run}")]);
    match words.iter().find(|word| word.contains(['\n', '\r'])) {
        Some(word) => Err(no_task(word, "has a line end, and a task is one line")),
        None => Ok(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")),
    }
}

fn no_task(word: &str, why: &str) -> Error {
    Error::invalid(format!(
        "--emit tasks: {word:?} {why}; make the grid without --emit, or name it otherwise"
    ))
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests;
