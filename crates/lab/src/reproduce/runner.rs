//! Experiments with all their seeds, as many measurements at a time as there are processors.
//!
//! What one seed of one experiment measured can be kept in a folder, in a file whose name and contents say of what: the
//! experiment, the seed, the form, the traces' folder, and the sum of the program that measured. So an interrupted run
//! goes on where it was, and nothing that another program measured is taken for this one's.

use super::claims::Seeds;
use super::packed::Packed;
use super::{Args, Experiment, ExperimentContext, Found, Measured};
use crate::replay::parallel::run_all;
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One seed of one experiment.
struct Job {
    experiment: &'static Experiment,
    /// Its place among those asked for.
    number: usize,
    context: ExperimentContext,
    /// On real mounts.
    live: bool,
}

/// What is kept of a job.
#[derive(Serialize, Deserialize)]
struct Kept {
    of: KeptOf,
    measured: Measured,
}

/// What a measurement is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptOf {
    experiment: String,
    seed: u64,
    full: bool,
    /// On real mounts.
    live: bool,
    traces: Option<PathBuf>,
    /// CRC-32C of the program.
    program: u32,
}

/// Measures every experiment with its seeds; `done` is told of each as soon as its last seed is measured, on this thread.
///
/// # Errors
/// As `done`'s; the folder to keep results in cannot be made. What an experiment ended with is told to `done`.
pub(super) fn run_each(
    args: &Args,
    chosen: &[&'static Experiment],
    mut done: impl FnMut(&'static Experiment, Result<Found>) -> Result<()>,
) -> Result<()> {
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).map_err(|why| Error::io(folder.display(), why))?;
    }
    let program = args.out.is_some().then(program_sum).transpose()?.unwrap_or_default();
    let packed = Arc::default();
    let jobs: Vec<Job> = chosen
        .iter()
        .enumerate()
        .flat_map(|(number, experiment)| jobs(args, experiment, number, &packed))
        .collect();
    let finished: Mutex<Vec<(usize, Result<Measured>)>> = Mutex::default();
    let stop = AtomicBool::new(false);
    let one = |index: usize, _: &AtomicBool| {
        if stop.load(Relaxed) {
            return Ok(());
        }
        let measured = measure(args.out.as_deref(), program, &jobs[index]);
        finished.lock().push((index, measured));
        Ok(())
    };
    let mut results: Vec<Vec<(u64, Result<Measured>)>> = chosen.iter().map(|_| Vec::new()).collect();
    let mut failed = Ok(());
    let shown = Shown::new(&jobs);
    // What takes real time is measured alone.
    let processors = if args.live { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let mut take = |last: bool| {
        for (index, measured) in std::mem::take(&mut *finished.lock()) {
            let job = &jobs[index];
            shown.finished(job);
            let of = &mut results[job.number];
            of.push((job.context.seed, measured));
            if of.len() == jobs.iter().filter(|other| other.number == job.number).count() && failed.is_ok() {
                let found = gathered(std::mem::take(of));
                shown.hidden(|| failed = done(job.experiment, found));
                stop.store(failed.is_err(), Relaxed);
            }
        }
        shown.draw(last);
    };
    run_all(jobs.len(), processors, one, || take(false))?;
    take(true);
    failed
}

/// An experiment's jobs.
fn jobs(args: &Args, experiment: &'static Experiment, number: usize, packed: &Arc<Packed>) -> Vec<Job> {
    let count = match (experiment.claim().map(|claim| claim.seeds), args.seeds) {
        (_, None) if args.live => 1,
        (_, Some(asked)) if args.live => u64::from(asked),
        (Some(Seeds::Fixed(_)) | None, _) => 1,
        (_, Some(asked)) => u64::from(asked),
        (Some(Seeds::Drawn(usual)), None) => u64::from(usual),
    };
    let seeds = match args.seed {
        Some(seed) => seed..=seed,
        None => 1..=count,
    };
    let first = *seeds.start();
    let context = |seed| ExperimentContext {
        first: seed == first,
        full: args.full,
        traces: args.traces.clone(),
        packed: packed.clone(),
        ..ExperimentContext::of_seed(seed)
    };
    seeds.map(|seed| Job { experiment, number, context: context(seed), live: args.live }).collect()
}

/// All seeds' figures in the order of the seeds, or what the first of them ended with.
fn gathered(mut results: Vec<(u64, Result<Measured>)>) -> Result<Found> {
    results.sort_by_key(|(seed, _)| *seed);
    let seeds = results.into_iter().map(|(seed, measured)| Ok((seed, measured?))).collect::<Result<_>>()?;
    Ok(Found { seeds })
}

/// Measures, or takes what was kept.
fn measure(folder: Option<&Path>, program: u32, job: &Job) -> Result<Measured> {
    let Job { experiment, context, .. } = job;
    let Some(folder) = folder else { return experiment.measured(context) };
    let form = if context.full { "full" } else { "short" };
    let live = if job.live { "-live" } else { "" };
    let path = folder.join(format!("{}-{}-{form}{live}.json", experiment.id, context.seed));
    let of = KeptOf {
        experiment: experiment.id.into(),
        seed: context.seed,
        full: context.full,
        live: job.live,
        traces: context.traces.clone(),
        program,
    };
    // What was cut off, or is of another run, is measured again.
    check_file(&path)?;
    let kept = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
    if let Some(kept) = kept.filter(|kept| kept.of == of) {
        return Ok(kept.measured);
    }
    let measured = experiment.measured(context)?;
    let kept = Kept { of, measured };
    let bytes = serde_json::to_vec(&kept).map_err(|why| Error::invalid(why.to_string()))?;
    guard::whole(&path, |file| file.write_all(&bytes).map_err(|why| Error::io(path.display(), why)))?;
    Ok(kept.measured)
}

/// An error if something that is no file is in the place of a result: it would be waited for, or written to.
fn check_file(place: &Path) -> Result<()> {
    match guard::input(place) {
        Err(Error::Invalid(why)) => Err(Error::invalid(format!("--out: {why}, or take it away"))),
        // What is not there is made, and what cannot be read is measured again.
        _ => Ok(()),
    }
}

/// CRC-32C of this program.
fn program_sum() -> Result<u32> {
    let path = std::env::current_exe().map_err(|why| Error::io("this program", why))?;
    let bytes = std::fs::read(&path).map_err(|why| Error::io(path.display(), why))?;
    Ok(crc32c::crc32c(&bytes))
}

/// How far it is, on a terminal.
struct Shown {
    bar: ProgressBar,
    began: Instant,
    drawn: std::cell::Cell<Instant>,
}

/// Thousandths of a second of work that the bar counts in.
const UNIT: f64 = 1e3;

impl Shown {
    fn new(jobs: &[Job]) -> Shown {
        let work: f64 = jobs.iter().map(|job| job.experiment.seconds).sum();
        let bar = ProgressBar::new((work * UNIT) as u64);
        let template = "{wide_bar} {percent} % {elapsed} (about {eta} left) {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let now = Instant::now();
        Shown { bar, began: now, drawn: std::cell::Cell::new(now) }
    }

    fn finished(&self, job: &Job) {
        self.bar.inc((job.experiment.seconds * UNIT) as u64);
        self.bar.set_message(format!("{}, seed {}", job.experiment.id, job.context.seed));
    }

    /// Prints something else, the bar out of its way.
    fn hidden(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    fn draw(&self, last: bool) {
        if last {
            return self.bar.finish_and_clear();
        }
        if self.began.elapsed() > Duration::from_secs(1)
            && self.drawn.get().elapsed() > Duration::from_millis(500)
        {
            self.drawn.set(Instant::now());
            self.bar.tick();
        }
    }
}
