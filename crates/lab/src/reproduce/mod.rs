//! `bimetal reproduce`: the experiments of the papers, each with the figure it stands for, the paper's
//! numbers beside ours, and whether the claim holds.
//!
//! An experiment is one file in `experiments` and one line of [`EXPERIMENTS`]. It gets a [`ExperimentContext`] and
//! gives [`Findings`]; the frame times nothing and draws nothing of its own, so that a finding depends on
//! the seed, the configuration and the recorded traces alone.

mod experiments;
mod of_stack;

pub use experiments::{CameraPreset, EXPERIMENTS};

use super::replay::{self, Ending, RunReport, say};
use super::stack::args::StackArgs;
use crate::names;
use bimetal_base::options::Registered;
use bimetal_base::{Error, Result};
use bimetal_trace::Source;
use serde::Serialize;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  bimetal reproduce --list
  bimetal reproduce ftl-fig2 --traces ../traces --plots figures
  bimetal reproduce --stack camera.toml --strict     what a stack file expects, under [[expect]]
  bimetal reproduce all --json > findings.jsonl";

/// Where recorded traces are, unless the command line says.
pub const TRACES_VARIABLE: &str = "BIMETAL_TRACES";

/// Repeat experiments of the papers and compare the figures
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Experiments by id, or 'all'
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
    /// The folder of recorded traces
    #[arg(long, value_name = "DIR", env = TRACES_VARIABLE)]
    pub traces: Option<PathBuf>,
    /// Draw the figures into this folder
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Number that everything random follows from [each experiment's own]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Fail when a claim does not hold
    #[arg(long)]
    pub strict: bool,
}

/// One experiment.
pub struct Experiment {
    /// What `reproduce` calls it.
    pub id: &'static str,
    /// The paper and the figure or table.
    pub figure: &'static str,
    /// What is shown.
    pub about: &'static str,
    /// The seed where none is chosen.
    pub seed: u64,
    /// Does it.
    pub(crate) run: fn(&ExperimentContext) -> Result<Findings>,
}

impl Registered for Experiment {
    fn name(&self) -> &'static str {
        self.id
    }

    fn about(&self) -> Cow<'static, str> {
        format!("{}: {}", self.figure, self.about).into()
    }
}

/// What an experiment is done with.
#[derive(Clone, Debug)]
pub struct ExperimentContext {
    /// Everything random follows from it.
    pub seed: u64,
    /// The folder of recorded traces, if there is one.
    pub traces: Option<PathBuf>,
    /// The folder for figures, if they are wanted.
    pub plots: Option<PathBuf>,
}

impl ExperimentContext {
    /// A recorded trace, by its name below the folder of traces.
    ///
    /// # Errors
    /// The folder was not named, or the trace is not in it.
    pub fn trace(&self, name: &str) -> Result<Source> {
        let path = self.traces_dir()?.join(name);
        if !path.exists() {
            return Err(Error::invalid(format!("{}: no such trace", path.display())));
        }
        Ok(Source::file(path))
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
    pub fn traces_dir(&self) -> Result<&PathBuf> {
        self.traces.as_ref().ok_or_else(|| {
            Error::invalid(format!(
                "needs recorded traces: name their folder with --traces or {TRACES_VARIABLE}"
            ))
        })
    }
}

/// One figure: the paper's and ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What is measured.
    pub name: String,
    /// In what.
    pub unit: Cow<'static, str>,
    /// The paper's figure, where it gives one (of the inventory: the recorded one).
    pub paper: Option<f64>,
    /// Ours.
    pub ours: f64,
}

impl Row {
    /// A figure that the paper gives.
    pub fn compared(
        name: impl Into<String>,
        unit: impl Into<Cow<'static, str>>,
        paper: f64,
        ours: f64,
    ) -> Row {
        Row { name: name.into(), unit: unit.into(), paper: Some(paper), ours }
    }

    /// A figure of ours alone.
    pub fn ours(name: impl Into<String>, unit: impl Into<Cow<'static, str>>, ours: f64) -> Row {
        Row { name: name.into(), unit: unit.into(), paper: None, ours }
    }

    /// Whether ours is within `part` of the paper's (0.01: one percent), where there is one.
    pub fn is_within(&self, part: f64) -> bool {
        self.paper.is_none_or(|paper| (self.ours - paper).abs() <= part * paper.abs())
    }
}

/// What an experiment found.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The figures.
    pub rows: Vec<Row>,
    /// Whether the claim holds.
    pub holds: bool,
    /// What was claimed and why it does or does not hold, in a sentence or two.
    pub why: String,
    /// With what it was found: presets, sizes, sources.
    pub config: serde_json::Value,
}

/// As `--json` prints it.
#[derive(Serialize)]
struct Printed<'a> {
    id: &'a str,
    figure: &'a str,
    rows: &'a [Row],
    holds: bool,
    why: &'a str,
    seed: u64,
    config: &'a serde_json::Value,
    version: &'static str,
}

/// Does what the command line asks for.
///
/// # Errors
/// An id that there is not; an experiment that could not be done (the others are); with `--strict`, a
/// claim that does not hold.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        return list(args.json);
    }
    let chosen = choose(&args.ids)?;
    let (mut undone, mut failed) = (Vec::new(), Vec::new());
    if let Some(stack) = args.stack.one()? {
        let id = args.stack.stack.as_deref().unwrap_or(Path::new("")).display().to_string();
        let findings = of_stack::find_out(&stack).map_err(|why| why.explained(&id))?;
        let about = stack.about.as_deref().unwrap_or("a stack file");
        if !print(Title { id: &id, figure: "its [[expect]]", about }, stack.seed, &findings, args)? {
            failed.push(id);
        }
    }
    for experiment in chosen {
        match find_out(experiment, args) {
            Ok(true) => {}
            Ok(false) => failed.push(experiment.id.to_string()),
            Err(why) => undone.push(format!("{}: {why}", experiment.id)),
        }
    }
    if !undone.is_empty() {
        return Err(Error::invalid(format!("not done: {}", undone.join("; "))));
    }
    if args.strict && !failed.is_empty() {
        return Err(Error::invalid(format!("does not hold: {}", failed.join(", "))));
    }
    Ok(())
}

/// The experiments of these ids, in the order asked for; `all` are all, each once.
fn choose(ids: &[String]) -> Result<Vec<&'static Experiment>> {
    let mut chosen: Vec<&'static Experiment> = Vec::new();
    for id in ids {
        let found = if id == "all" { EXPERIMENTS.to_vec() } else { vec![EXPERIMENTS.find(id)?] };
        let new = found.into_iter().filter(|e| !chosen.iter().any(|there| there.id == e.id));
        chosen.extend(new.collect::<Vec<_>>());
    }
    Ok(chosen)
}

/// Does one experiment and prints it; whether its claim holds.
fn find_out(experiment: &Experiment, args: &Args) -> Result<bool> {
    let seed = args.seed.unwrap_or(experiment.seed);
    let setting = ExperimentContext { seed, traces: args.traces.clone(), plots: args.plots.clone() };
    let findings = (experiment.run)(&setting)?;
    print(Title::of(experiment), seed, &findings, args)
}

/// What findings are headed with.
#[derive(Clone, Copy)]
struct Title<'a> {
    id: &'a str,
    figure: &'a str,
    about: &'a str,
}

impl Title<'_> {
    fn of(experiment: &Experiment) -> Title<'_> {
        Title { id: experiment.id, figure: experiment.figure, about: experiment.about }
    }
}

/// Prints findings; whether the claim holds.
fn print(title: Title, seed: u64, findings: &Findings, args: &Args) -> Result<bool> {
    say(&match args.json {
        true => json(title, seed, findings)?,
        false => table(title, findings),
    })?;
    Ok(findings.holds)
}

fn json(title: Title, seed: u64, findings: &Findings) -> Result<String> {
    let printed = Printed {
        id: title.id,
        figure: title.figure,
        rows: &findings.rows,
        holds: findings.holds,
        why: &findings.why,
        seed,
        config: &findings.config,
        version: env!("CARGO_PKG_VERSION"),
    };
    serde_json::to_string(&printed).map_err(|why| Error::invalid(why.to_string()))
}

/// For people.
fn table(title: Title, findings: &Findings) -> String {
    let mut lines = vec![["", "unit", "paper", "ours"].map(str::to_string).to_vec()];
    for row in &findings.rows {
        let paper = row.paper.map_or("-".to_string(), number);
        lines.push(vec![row.name.clone(), row.unit.to_string(), paper, number(row.ours)]);
    }
    let verdict = if findings.holds { "holds" } else { "does not hold" };
    format!(
        "{}: {} ({})\n{}{verdict}: {}\n",
        title.id,
        title.about,
        title.figure,
        replay::aligned(&lines),
        findings.why
    )
}

/// Up to four figures after the point, no zeros at the end.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

fn list(as_json: bool) -> Result<()> {
    if as_json {
        let entry = |e: &&Experiment| serde_json::json!({"id": e.id, "figure": e.figure, "about": e.about});
        return say(&serde_json::Value::from_iter(EXPERIMENTS.iter().map(entry)).to_string());
    }
    let line = |e: &&Experiment| vec![e.id.to_string(), format!("{} ({})", e.about, e.figure)];
    let lines: Vec<Vec<String>> = EXPERIMENTS.iter().map(line).collect();
    let width = lines.iter().map(|line| line[0].len()).max().unwrap_or(0);
    lines.iter().try_for_each(|line| say(&format!("{:width$}  {}", line[0], line[1])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_unknown_ones_are_refused_with_the_list() {
        let mut ids: Vec<_> = EXPERIMENTS.iter().map(|experiment| experiment.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), EXPERIMENTS.len());
        let chosen = choose(&["ftl-fig2".into(), "all".into()]).unwrap();
        assert_eq!((chosen.len(), chosen[0].id), (EXPERIMENTS.len(), "ftl-fig2"));
        let error = choose(&["fig99".into()]).err().unwrap().to_string();
        assert!(error.contains("fig99") && error.contains("ftl-fig2"), "{error}");
    }

    #[test]
    fn numbers_are_short_and_rows_compare() {
        assert_eq!([60.1, 0.25, 397500.0].map(number), ["60.1", "0.25", "397500"]);
        assert!(Row::compared("x", "%", 60.0, 60.5).is_within(0.01));
        assert!(!Row::compared("x", "%", 60.0, 61.0).is_within(0.01));
        assert!(Row::ours("x", "%", 1.0).is_within(0.0));
    }

    #[test]
    fn an_experiment_without_its_traces_says_what_it_needs() {
        let setting = ExperimentContext { seed: 1, traces: None, plots: None };
        let error = setting.trace("block/x").err().unwrap().to_string();
        assert!(error.contains("--traces") && error.contains(TRACES_VARIABLE), "{error}");
        let setting = ExperimentContext { traces: Some("/no/such".into()), ..setting };
        assert!(setting.trace("x").err().unwrap().to_string().contains("/no/such/x"));
    }

    #[test]
    fn findings_are_printed_with_the_stated_fields() {
        let findings = Findings {
            rows: vec![Row::compared("share", "%", 60.0, 60.1)],
            holds: true,
            why: "so".into(),
            config: serde_json::json!({"a": 1}),
        };
        let text = json(Title::of(EXPERIMENTS[0]), 13, &findings).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for field in ["id", "rows", "holds", "why", "seed", "config"] {
            assert!(value.get(field).is_some(), "{field}");
        }
        assert_eq!(value["rows"][0]["paper"], 60.0);
        assert!(table(Title::of(EXPERIMENTS[0]), &findings).contains("60.1"));
    }
}
