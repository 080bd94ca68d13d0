//! `bimetal replay`: a trace through an optional page cache and a flash translation layer or device, and
//! what that cost.
//!
//! ```text
//! trace (file or generator) → placing → pace → [cache] → FTL on NAND | device | counting
//! ```
//!
//! Every combination of cache policy, cache size and translation layer is a run; runs go on at the same
//! time, each with its own pass over the trace ([decoded once](decoded)) and its own stack, in virtual time. So a run's figures do
//! not depend on the machine or on other runs. Nothing is written or printed before all runs are done.

mod address;
mod args;
mod brought;
pub mod curve;
mod decoded;
mod driver;
mod ending;
pub mod files;
mod flash;
mod flow;
mod from_stack;
pub mod grid;
mod html;
pub(crate) mod outputs;
pub(crate) mod parallel;
mod parquet;
mod plan;
pub(crate) mod plot;
mod precondition;
mod progress;
mod report;
mod request_log;
mod rows;
mod series;

pub use super::stack::admission_rule::AdmissionRule;
pub use address::Fit;
pub use args::{Args, PaceName, Timing};
pub use brought::{Brought, Played};
pub use ending::{Ended, Ending};
pub use flash::{ByCause, FlashReport, Moved};
pub use flow::Moment;
pub use plot::{Kind as Plot, Wanted as WantedPlot};
pub use precondition::Precondition;
pub use report::{CacheReport, Latency, Merges, RunConfig, RunReport};
pub use rows::Cell;
pub use series::Window;

use bimetal_base::{Error, Result};
use bimetal_trace::{Progress, Source, Summary, Tally, summarise};
pub(super) use rows::aligned;

use bimetal_base::time::Time;
use decoded::Decoded;
use driver::{Driver, Observer, Pace, Served, Stopped};
use flow::Flow;
use plan::{Built, Spec};
use report::Measured;
use request_log::RequestLog;
use series::Series;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Does what the command line asks for: prints and writes the results.
///
/// # Errors
/// Senseless options, a malformed trace, a stack that cannot be built or fails, a file that cannot be
/// written. Then nothing was printed or written.
pub fn run(args: &Args) -> Result<()> {
    if args.stack.stack.is_some() {
        return grid::run(args);
    }
    args.check()?;
    if args.fs.is_some() {
        let report = files::replay(args)?;
        args.series.as_deref().map(|path| files::write_windows(path, &report.series)).transpose()?;
        say(if args.json { json(&report)? } else { report.table() }.trim_end())?;
        if !(args.json || report.series.is_empty() || args.series.is_some()) {
            say(&format!("\neach {}", humantime::format_duration(args.every.unwrap_or_default())))?;
            say(rows::aligned(&files::window_table(&report.series)).trim_end())?;
        }
        return match report.ended.how.is_result() {
            true => Ok(()),
            false => Err(Error::invalid(report.ended.told())),
        };
    }
    let source = args.source()?;
    if args.info {
        return info(args, &source);
    }
    let runs = replay(args)?;
    let summary = match args.html.is_some() && source.is_repeatable() {
        true => Some(summarise(&mut source.open()?)?),
        false => None,
    };
    for plot in &args.plot {
        plot.draw(&runs)?;
    }
    let all: Vec<_> = runs.iter().map(rows::row).collect();
    args.csv.as_deref().map(|path| rows::write_csv(path, &all)).transpose()?;
    args.parquet.as_deref().map(|path| parquet::write_rows(path, &all)).transpose()?;
    args.series.as_deref().map(|path| series::write(path, &runs)).transpose()?;
    args.html
        .as_deref()
        .map(|path| html::write(path, &source.name(), summary.as_ref(), &runs))
        .transpose()?;
    match args.json {
        true => runs.iter().try_for_each(|run| say(&json(run)?)),
        false => {
            say((rows::aligned(&rows::table(&runs)) + &rows::notes(&runs)).trim_end())?;
            let to_tell = runs.iter().filter(|run| !run.series.is_empty() && args.series.is_none());
            to_tell.into_iter().try_for_each(|run| {
                say(&format!(
                    "\n{}, each {}",
                    run.config.run,
                    humantime::format_duration(args.every.unwrap_or_default())
                ))?;
                say(rows::aligned(&series::table(run)).trim_end())
            })
        }
    }
}

/// Makes the runs and gives their reports, in the order translation layers × policies × sizes. A run that the device
/// ended is a report; so is one that was refused, if another one was not.
///
/// # Errors
/// As [`run`].
pub fn replay(args: &Args) -> Result<Vec<RunReport>> {
    args.check()?;
    let source = args.source()?;
    let specs = plan::specs(args, &source)?;
    let source = if args.requests.is_none() { Decoded::for_runs(specs.len()).share(source) } else { source };
    if specs.len() > 1 && args.request_log.is_some() {
        return Err(Error::invalid(format!(
            "--request-log is of one run, and these are {}; ask for one",
            specs.len()
        )));
    }
    if specs.len() > 1 && !source.is_repeatable() {
        return Err(Error::invalid("standard input can be read only once; ask for one run or name a file"));
    }
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let shown = progress::Shown::new(specs.len());
    let one = |index: usize, stop: &AtomicBool| one_run(args, &source, &specs[index], shown.of(index), stop);
    let runs = parallel::run_all(specs.len(), jobs, one, || shown.draw())?;
    match runs.first().filter(|_| !runs.iter().any(|run| run.ended.how.is_result())) {
        Some(first) => Err(Error::invalid(first.ended.told())),
        None => Ok(runs),
    }
}

/// Makes the one run that `args` ask for.
fn one(args: &Args, stop: &AtomicBool) -> Result<RunReport> {
    args.check()?;
    let source = args.source()?;
    let specs = plan::specs(args, &source)?;
    let [spec] = &specs[..] else {
        return Err(Error::invalid("one policy, one size, one translation layer"));
    };
    one_run(args, &source, spec, &Arc::default(), stop)
}

fn one_run(
    args: &Args,
    source: &Source,
    spec: &Spec,
    progress: &Arc<Progress>,
    stop: &AtomicBool,
) -> Result<RunReport> {
    let Built { stack, start, before, stopped } = match spec.build(args) {
        Ok(built) => built,
        Err(why) => return Ok(RunReport::refused(&why, spec.config(args, source, None))),
    };
    let pace = match args.pace {
        PaceName::Closed => Pace::Closed { queue_depth: args.queue_depth },
        PaceName::Open => Pace::Open { speed: args.speed },
    };
    let observers = Observers {
        flow: Flow::from(&stack.told.model, start),
        series: args.every.map(|every| Series::new(every, &stack, start, &before)),
        log: args.request_log.as_deref().map(|path| RequestLog::new(path, start.0)).transpose()?,
    };
    let drain = stack.told.holds_writes() && !args.no_drain;
    let driver = Driver {
        placer: plan::placer(args, stack.size_bytes()),
        device: &*stack.device,
        block: u64::from(stack.device.info().block_bytes),
        drain,
        pace,
        flush: !args.no_flush,
        limit: args.requests,
        start,
        observer: &observers,
        stop,
    };
    let mut trace = source.open_watched(progress)?;
    let mut outcome = match stopped {
        None => driver.run(&mut trace)?,
        Some(why) => driver.not_begun(why),
    };
    if drain && outcome.stopped.is_none() {
        // Nobody waits for it, so that it takes none of the run's time.
        let written = stack.told.model.write_back(outcome.ended);
        outcome.stopped = written.err().map(|why| Stopped { why, request: None });
    }
    if outcome.meter.requests() == 0 && outcome.stopped.is_none() {
        let tally = trace.tally();
        if outcome.meter.passed_over == 0 {
            return Err(empty(source, tally));
        }
        return Err(Error::invalid(format!(
            "{}: no request was served: {} lines read, {} of them without a request, {} requests passed over \
             (another unit, no bytes, whole files)",
            source.name(),
            tally.lines,
            tally.skipped,
            outcome.meter.passed_over
        )));
    }
    let config = spec.config(args, source, Some(&stack));
    let report = RunReport::new(&outcome, &before, Measured::of(&stack), config, trace.tally());
    let Observers { flow, series, log } = observers;
    let (flow, series) = (flow.finish(outcome.ended), series.map_or(Ok(Vec::new()), Series::finish)?);
    log.map_or(Ok(()), RequestLog::finish)?;
    Ok(RunReport { flow, series, erases_by_block: stack.told.model.erases_by_block(), ..report })
}

/// Who hears how a run goes on.
struct Observers<'a> {
    flow: Flow<'a>,
    series: Option<Series<'a>>,
    log: Option<RequestLog>,
}

impl Observer for Observers<'_> {
    #[inline]
    fn arrived(&self, at: Time) {
        self.flow.arrived(at);
        if let Some(series) = &self.series {
            series.arrived(at);
        }
    }

    #[inline]
    fn served(&self, served: &Served) {
        if let Some(series) = &self.series {
            series.served(served);
        }
        if let Some(log) = &self.log {
            log.served(served);
        }
    }
}

fn info(args: &Args, source: &Source) -> Result<()> {
    let summary = summarise(&mut source.open()?)?;
    if summary.requests == 0 {
        return Err(empty(source, summary.tally));
    }
    match args.json {
        true => say(&json(&summary)?),
        false => say(rows::show_summary(&source.name(), &summary).trim_end()),
    }
}

/// A trace without a request.
fn empty(source: &Source, tally: Tally) -> Error {
    Error::invalid(format!(
        "{}: there is no request in it: {} lines read, {} of them without a request",
        source.name(),
        tally.lines,
        tally.skipped
    ))
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|why| Error::invalid(why.to_string()))
}

/// Prints a line of a report. A reader that has heard enough ends the report, not the program.
pub(super) fn say(text: &str) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => Err(Error::io("standard output", why)),
        _ => Ok(()),
    }
}
