//! `bimetal reproduce`: what the papers claim, measured again and judged.
//!
//! ```text
//! claims (data) ─┐
//!                ├→ one judge → verdict, and why in figures → tables, JSON, docs/claims.md, one page
//! experiments ───┘   figures by name, one set a seed
//! ```
//!
//! An experiment is one file in `experiments` and one line of [`EXPERIMENTS`]: it gets an [`ExperimentContext`] and gives
//! [`Measured`], and judges nothing. A claim is one row in [`claims`]. What an experiment measures depends on the seed, the
//! configuration and the recorded traces alone.

mod claim_table;
pub mod claims;
mod context;
mod experiments;
mod figures;
pub mod judge;
mod live;
mod long;
pub mod measured;
mod of_stack;
mod packed;
mod readme;
mod report;
mod runner;
mod show;
mod temporary;

pub use context::{ExperimentContext, TRACES_VARIABLE};
pub use experiments::{CameraPreset, EXPERIMENTS, LIVE};
pub use measured::{Found, Measured, Row};
pub use temporary::give_up;

use super::replay::say;
use super::stack::args::StackArgs;
use crate::chart::{self, Chart};
use crate::names;
use bimetal_base::options::{Registered, Registry};
use bimetal_base::{Error, Result};
use claims::{CLAIMS, Claim};
use judge::{Judgement, Verdict};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  bimetal reproduce claims                           all claims with their last verdicts
  bimetal reproduce claims --plots docs/figures      the figures of README.md, of what was recorded last
  bimetal reproduce ftl-fig2 --traces ../traces --plots figures
  bimetal reproduce all --out results                interrupted, it goes on where it was
  bimetal reproduce all --out results --html report.html
  bimetal reproduce all --full --out results --json > findings.jsonl
  bimetal reproduce nfh-fig7 --live                  on real mounts, over devices served in real time
  bimetal reproduce --stack camera.toml --strict     what a stack file expects, under [[expect]]";

/// Repeat experiments of the papers and judge what they claim
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Experiments by id, 'all', or 'claims' for the table of all claims
    #[arg(required_unless_present_any = ["list", "stack"], value_name = "ID", value_parser = names::EXPERIMENT, hide_possible_values = true)]
    pub ids: Vec<String>,
    /// Or what a stack file expects.
    #[command(flatten)]
    pub stack: StackArgs,
    /// Show which experiments there are
    #[arg(long, conflicts_with = "ids")]
    pub list: bool,
    /// Print JSON, one object an experiment and line
    #[arg(long)]
    pub json: bool,
    /// The folder of recorded traces [those that lie in the program]
    #[arg(long, value_name = "DIR", env = TRACES_VARIABLE)]
    pub traces: Option<PathBuf>,
    /// Draw the figures into this folder, each as SVG and as PNG
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Judge by this seed alone
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Judge by so many seeds [as many as the claim says]
    #[arg(long, value_name = "N", conflicts_with = "seed", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub seeds: Option<u32>,
    /// The long form: all layers, sizes, policies and settings, the paper's full sizes
    #[arg(long)]
    pub full: bool,
    /// On real mounts: nfhybrid through FUSE, and the kernel's file systems, over devices that are served in real time
    #[arg(long, conflicts_with_all = ["stack", "record"])]
    pub live: bool,
    /// Keep what is measured in this folder, and measure nothing twice
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write one page with everything: claims to sort and filter, figures drawn, configurations
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the verdicts to this file, for docs/claims.md
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Fail when a claim does not hold
    #[arg(long)]
    pub strict: bool,
}

/// One experiment.
pub struct Experiment {
    /// What `reproduce` calls it, and the id of its claim.
    pub id: &'static str,
    /// What is measured.
    pub about: &'static str,
    /// What a seed takes on a processor in the short form, about, in seconds: for the estimate.
    pub seconds: f64,
    /// Measures with one seed.
    pub(crate) measure: fn(&ExperimentContext) -> Result<Measured>,
}

impl Experiment {
    /// What it is judged by.
    pub fn claim(&self) -> Option<&'static Claim> {
        CLAIMS.iter().find(|claim| claim.id == self.id).copied()
    }

    /// Measures with one seed, and notes what the runs were; nothing, and why, if a trace is not here.
    pub(crate) fn measured(&self, context: &ExperimentContext) -> Result<Measured> {
        let measured = (self.measure)(context);
        if let Some(why) = context.lacking.lock().take() {
            return Ok(Measured { lacking: Some(why), ..Measured::default() });
        }
        Ok(Measured { runs: std::mem::take(&mut *context.runs.lock()), ..measured? })
    }
}

impl Registered for Experiment {
    fn name(&self) -> &'static str {
        self.id
    }

    fn about(&self) -> Cow<'static, str> {
        match self.claim() {
            Some(claim) => format!("{}, {}: {}", claim.paper.name(), claim.figure, self.about).into(),
            None => self.about.into(),
        }
    }
}

/// An experiment, done and judged.
pub struct Done {
    /// Its id, or the stack file's name.
    pub id: String,
    /// What it is about.
    pub about: String,
    /// What was measured.
    pub found: Found,
    /// What follows; nothing where nothing is claimed.
    pub judgement: Option<Judgement>,
    /// It was measured in the long form.
    pub full: bool,
    /// It was measured on real mounts.
    pub live: bool,
}

impl Done {
    /// What is drawn of it: the paper's figure again, and what figures do not tell.
    fn charts(&self) -> Vec<Chart> {
        let own = self.found.seeds.iter().flat_map(|(_, measured)| measured.charts.iter().cloned());
        let mut rows = self.found.rows();
        if self.live {
            // The same plots, of what is live.
            rows.retain(|row| row.name.starts_with(live::PREFIX));
            rows.iter_mut().for_each(|row| drop(row.name.drain(..live::PREFIX.len())));
        }
        let mut charts = figures::charts(&self.id, &rows);
        if self.live {
            charts.iter_mut().for_each(|chart| chart.title += ", live");
        }
        charts.into_iter().chain(own).collect()
    }

    /// Draws all of it into a folder.
    fn draw(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(|why| Error::io(dir.display(), why))?;
        // A stack file's name is a path.
        let name = Path::new(&self.id).file_stem().unwrap_or_default().to_string_lossy();
        self.charts().iter().try_for_each(|chart| chart::save_both(dir, &name, chart))
    }

    /// Whether nothing speaks against the claim.
    pub fn holds(&self) -> bool {
        self.judgement.as_ref().is_none_or(|judged| judged.verdict != Verdict::Fails)
    }
}

/// Does what the command line asks for. Each experiment is printed as soon as it is done.
///
/// # Errors
/// An id that there is not; an experiment that could not be done (the others are); with `--strict`, a
/// claim that does not hold.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        return show::list(args.json);
    }
    if args.ids.iter().any(|id| id == "claims") {
        return match &args.ids[..] {
            [_] => {
                args.plots.as_deref().map_or(Ok(()), |dir| readme::draw(dir, &claim_table::last()?))?;
                say(claim_table::document()?.trim_end())
            }
            _ => Err(Error::invalid("'claims' is the table of all claims, and stands alone")),
        };
    }
    let chosen = choose(&args.ids, if args.live { &LIVE } else { &EXPERIMENTS })?;
    if args.live {
        match live::place()? {
            live::Place::Here => {}
            live::Place::Elsewhere(code) => std::process::exit(code),
            live::Place::Nowhere(why) => {
                return chosen.iter().try_for_each(|one| show::print(&undone(one, &why, args), args.json));
            }
        }
    }
    // A file that cannot take the verdicts is told of before they are measured.
    args.record.as_deref().map_or(Ok(()), |path| claim_table::recorded_in(path).map(drop))?;
    let (mut undone, mut failed, mut all) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(stack) = args.stack.one()? {
        let id = args.stack.stack.as_deref().unwrap_or(Path::new("")).display().to_string();
        let done = of_stack::find_out(&stack, &id).map_err(|why| why.explained(&id))?;
        show::print(&done, args.json)?;
        failed.extend((!done.holds()).then_some(id));
        all.push(done);
    }
    runner::run_each(args, &chosen, |experiment, found| {
        let done = found.and_then(|found| judged(experiment, found, args));
        match done {
            Ok(done) => {
                show::print(&done, args.json)?;
                failed.extend((!done.holds()).then(|| done.id.clone()));
                all.push(done);
            }
            Err(why) => undone.push(format!("{}: {why}", experiment.id)),
        }
        Ok(())
    })?;
    if let Some(path) = &args.record {
        claim_table::record(path, all.iter().filter_map(claim_table::recorded).collect())?;
    }
    if let Some(dir) = &args.plots {
        all.iter().try_for_each(|done| done.draw(dir))?;
    }
    args.html.as_deref().map_or(Ok(()), |path| report::write(path, &all))?;
    if !undone.is_empty() {
        return Err(Error::invalid(format!("not done: {}", undone.join("; "))));
    }
    if args.strict && !failed.is_empty() {
        return Err(Error::invalid(format!("does not hold: {}", failed.join(", "))));
    }
    Ok(())
}

/// What follows from what an experiment found.
fn judged(experiment: &Experiment, found: Found, args: &Args) -> Result<Done> {
    if let Some(why) = found.seeds.iter().find_map(|(_, measured)| measured.lacking.as_ref()) {
        return Ok(undone(experiment, why, args));
    }
    let claim = if args.live { claims::live::LIVE.find(experiment.id).ok() } else { experiment.claim() };
    let judgement = claim.map(|claim| judge::judge(claim, &found)).transpose()?;
    Ok(Done { judgement, found, ..undone(experiment, "", args) })
}

/// An experiment that was not done, and why.
fn undone(experiment: &Experiment, why: &str, args: &Args) -> Done {
    let about = if args.live { live::about(experiment) } else { experiment.about().into_owned() };
    let judgement = Judgement { verdict: Verdict::NotDone, why: why.into(), checks: Vec::new() };
    Done {
        id: experiment.id.into(),
        about,
        found: Found::default(),
        judgement: Some(judgement),
        full: args.full,
        live: args.live,
    }
}

/// The experiments of these ids, in the order asked for; `all` are all, each once.
fn choose(ids: &[String], among: &'static Registry<Experiment>) -> Result<Vec<&'static Experiment>> {
    let mut chosen: Vec<&'static Experiment> = Vec::new();
    for id in ids {
        let found = if id == "all" { among.to_vec() } else { vec![among.find(id)?] };
        let new = found.into_iter().filter(|e| !chosen.iter().any(|there| there.id == e.id));
        chosen.extend(new.collect::<Vec<_>>());
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests;
