//! What was found and what follows, for people and as JSON.

use super::judge::{Judgement, Verdict};
use super::long::long;
use super::measured::{Row, number};
use super::{Done, EXPERIMENTS, LIVE};
use crate::replay::{aligned, say};
use bimetal_base::options::Registered;
use bimetal_base::{Error, Result};
use serde::Serialize;

/// More figures than this are told by their number.
const ROWS_MAX: usize = 48;

/// As `--json` prints it.
#[derive(Serialize)]
struct Printed<'a> {
    id: &'a str,
    about: &'a str,
    rows: &'a [Row],
    verdict: Option<Verdict>,
    holds: bool,
    why: &'a str,
    checks: &'a [super::judge::Checked],
    seeds: Vec<u64>,
    full: bool,
    live: bool,
    config: &'a serde_json::Value,
    version: &'static str,
}

/// Prints one experiment.
pub(super) fn print(done: &Done, as_json: bool) -> Result<()> {
    say(&match as_json {
        true => json(done)?,
        false => table(done),
    })
}

pub(super) fn json(done: &Done) -> Result<String> {
    let nothing = serde_json::Value::Null;
    let judged = done.judgement.as_ref();
    let printed = Printed {
        id: &done.id,
        about: &done.about,
        rows: &done.found.rows(),
        verdict: judged.map(|judged| judged.verdict),
        holds: done.holds(),
        why: judged.map_or("", |judged| &judged.why),
        checks: judged.map_or(&[], |judged| &judged.checks),
        seeds: done.found.seeds.iter().map(|(seed, _)| *seed).collect(),
        full: done.full,
        live: done.live,
        config: done.found.seeds.first().map_or(&nothing, |(_, measured)| &measured.config),
        version: env!("CARGO_PKG_VERSION"),
    };
    serde_json::to_string(&printed).map_err(|why| Error::invalid(why.to_string()))
}

/// For people.
pub(super) fn table(done: &Done) -> String {
    let rows = done.found.rows();
    let seeds = done.found.seeds.len();
    let mut text = format!("{}: {}\n", done.id, done.about);
    if rows.len() <= ROWS_MAX {
        text += &figures(&rows, seeds);
    } else {
        text += &format!("{} figures: --json has them\n", rows.len());
    }
    text + &done.judgement.as_ref().map_or_else(String::new, verdict)
}

fn figures(rows: &[Row], seeds: usize) -> String {
    let mut head = vec!["", "unit", "paper", if seeds > 1 { "mean" } else { "ours" }];
    head.extend((seeds > 1).then_some(["least", "most"]).into_iter().flatten());
    let mut lines = vec![head.into_iter().map(str::to_string).collect::<Vec<_>>()];
    for row in rows {
        let paper = row.paper.map_or("-".to_string(), number);
        let mut line = vec![row.name.clone(), row.unit.to_string(), paper, number(row.ours)];
        if seeds > 1 {
            line.extend([number(row.least), number(row.most)]);
        }
        lines.push(line);
    }
    aligned(&lines)
}

fn verdict(judged: &Judgement) -> String {
    let mut text = format!("{}: {}\n", judged.verdict.name(), judged.why);
    let of_way =
        |way: &str| if way.is_empty() { String::new() } else { format!(" [{}]", way.trim_end_matches('/')) };
    if judged.checks.len() > 1 {
        for check in &judged.checks {
            let mark = match (check.testable, check.holds()) {
                (false, _) => "?",
                (_, true) => "yes",
                (_, false) => "NO",
            };
            text += &format!("  {mark:>3}  {}{}: {}\n", check.what, of_way(&check.way), check.got);
        }
    }
    text
}

/// All experiments, with what `--full` has beside the short form, and which can be done on real mounts.
pub(super) fn list(as_json: bool) -> Result<()> {
    if as_json {
        let entry = |e: &&super::Experiment| {
            let figure = e.claim().map_or("", |claim| claim.figure);
            serde_json::json!({
                "id": e.id, "figure": figure, "about": e.about, "seconds": e.seconds, "full": long(e.id),
                "live": LIVE.find(e.id).is_ok(),
            })
        };
        return say(&serde_json::Value::from_iter(EXPERIMENTS.iter().map(entry)).to_string());
    }
    let line = |one: &&super::Experiment| {
        let full = long(one.id).map_or_else(String::new, |what| format!("; --full: {what}"));
        let live = if LIVE.find(one.id).is_ok() { "; --live, too" } else { "" };
        (one.id, format!("{}{full}{live}", one.about()))
    };
    let alone = LIVE.iter().filter(|one| EXPERIMENTS.find(one.id).is_err());
    let alone = alone.map(|one| (one.id, format!("{}; --live alone", one.about())));
    let lines: Vec<(&str, String)> = EXPERIMENTS.iter().map(line).chain(alone).collect();
    let width = lines.iter().map(|line| line.0.len()).max().unwrap_or(0);
    lines.iter().try_for_each(|line| say(&format!("{:width$}  {}", line.0, line.1)))
}
