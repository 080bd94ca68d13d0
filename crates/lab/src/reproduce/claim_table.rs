//! The table of all claims: `bimetal reproduce claims` and docs/claims.md.
//!
//! What a claim says, by what it is judged and how far it may be off is in the program; the verdicts are those that
//! `bimetal reproduce all --record` wrote last, and the program they were measured with is told.

use super::claims::{CLAIMS, Check, Claim, Paper, Parameters, Relation, Seeds, Width};
use super::judge::{Checked, Judgement, Verdict};
use super::measured::{is_of, number};
use super::{Done, EXPERIMENTS};
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{self, Read};
use std::path::Path;

/// The verdicts of the last run.
const RECORDED: &str = include_str!("verdicts.json");

/// A verdict as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Recorded {
    id: String,
    /// With how many seeds.
    seeds: usize,
    /// In the long form.
    full: bool,
    version: String,
    verdict: Verdict,
    why: String,
    checks: Vec<Checked>,
    /// What the checks are about, of the first seed.
    figures: Vec<(String, f64)>,
}

/// What is kept of an experiment, if something is claimed.
pub(super) fn recorded(done: &Done) -> Option<Recorded> {
    let Judgement { verdict, why, checks } = done.judgement.clone()?;
    let claim = CLAIMS.find(&done.id).ok()?;
    let (_, first) = done.found.seeds.first()?;
    let asked = |name: &str| {
        let of_check = |way: &str, check: &Check<'_>| {
            check.relation.names().any(|pattern| is_of(&format!("{way}{pattern}"), name))
        };
        claim.ways.iter().any(|way| claim.checks.iter().any(|check| of_check(way.prefix, check)))
    };
    let figures = first.figures.iter().filter(|figure| asked(&figure.name));
    Some(Recorded {
        id: done.id.clone(),
        seeds: done.found.seeds.len(),
        full: done.full,
        version: env!("CARGO_PKG_VERSION").into(),
        verdict,
        why,
        checks,
        figures: figures.map(|figure| (figure.name.clone(), figure.value)).collect(),
    })
}

impl Recorded {
    /// What was measured with the first seed, as far as checks ask for it.
    pub fn measured(&self) -> super::Measured {
        let mut measured = super::Measured::default();
        self.figures.iter().for_each(|(name, value)| measured.add(name.clone(), "", *value));
        measured
    }
}

/// What was measured with the first seed, as far as checks ask for it.
#[cfg(test)]
pub(super) fn recorded_figures() -> Result<BTreeMap<String, super::Measured>> {
    Ok(lying()?.iter().map(|(id, one)| (id.clone(), one.measured())).collect())
}

/// Writes verdicts to a file, beside those of other claims that are there.
///
/// # Errors
/// The file is none of verdicts, or cannot be written.
pub(super) fn record(path: &Path, new: Vec<Recorded>) -> Result<()> {
    let mut all = recorded_in(path)?;
    all.extend(new.into_iter().map(|verdict| (verdict.id.clone(), verdict)));
    // A claim a line, so that what changed can be seen.
    let line = |one: Recorded| serde_json::to_string(&one).map_err(|why| Error::invalid(why.to_string()));
    let lines = all.into_values().map(line).collect::<Result<Vec<String>>>()?;
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    guard::whole(path, |file| {
        io::Write::write_all(file, text.as_bytes()).map_err(|why| Error::io(path.display(), why))
    })
}

/// The verdicts of a file; none where there is no file.
///
/// # Errors
/// It is none of verdicts.
pub(super) fn recorded_in(path: &Path) -> Result<BTreeMap<String, Recorded>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let mut text = String::new();
    let read = guard::input(path)?.read_to_string(&mut text);
    read.map_err(|why| Error::io(path.display(), why))?;
    parse(&text).map_err(|why| Error::invalid(format!("{}: {why}", path.display())))
}

fn parse(text: &str) -> Result<BTreeMap<String, Recorded>> {
    let all: Vec<Recorded> = serde_json::from_str(text).map_err(|why| Error::invalid(why.to_string()))?;
    Ok(all.into_iter().map(|verdict| (verdict.id.clone(), verdict)).collect())
}

/// What is to be said of a claim without measuring anything: what was recorded, or that nothing was.
fn verdict<'r>(claim: &Claim, recorded: &'r BTreeMap<String, Recorded>) -> (Verdict, Option<&'r Recorded>) {
    let there = EXPERIMENTS.find(claim.id).is_ok();
    let testable = claim.checks.iter().any(|check| !matches!(check.relation, Relation::Untestable(_)));
    match (recorded.get(claim.id), there) {
        (Some(recorded), true) => (recorded.verdict, Some(recorded)),
        _ if !testable => (Verdict::NotTestable, None),
        (_, true) => (Verdict::NotDone, None),
        (_, false) => (Verdict::Missing, None),
    }
}

/// The verdicts that were recorded last.
///
/// # Errors
/// They are none.
pub(super) fn last() -> Result<BTreeMap<String, Recorded>> {
    parse(RECORDED)
}

/// The same as they lie in the source, without building the program anew.
#[cfg(test)]
pub(super) fn lying() -> Result<BTreeMap<String, Recorded>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/reproduce/verdicts.json");
    parse(&std::fs::read_to_string(path).map_err(|why| Error::io(path, why))?)
}

/// docs/claims.md with the verdicts that lie in the source.
#[cfg(test)]
pub(super) fn document_of_source() -> Result<String> {
    document_of(&lying()?)
}

/// A claim's recorded verdict, with how many seeds, and why.
pub(super) fn cells(claim: &Claim, recorded: &BTreeMap<String, Recorded>) -> (Verdict, String, String) {
    let (verdict, found) = verdict(claim, recorded);
    let seeds = found.map_or_else(String::new, |found| {
        format!("{}{}", found.seeds, if found.full { ", long form" } else { "" })
    });
    (verdict, seeds, found.map_or_else(|| reason(claim), |found| found.why.clone()))
}

/// docs/claims.md.
///
/// # Errors
/// The recorded verdicts are none.
pub(super) fn document() -> Result<String> {
    document_of(&last()?)
}

fn document_of(recorded: &BTreeMap<String, Recorded>) -> Result<String> {
    let mut text = String::from(
        "# What the papers claim, and what came of it\n\n\
         Made by `bimetal reproduce claims`. Claims, checks and tolerances are those of the program\n\
         (`crates/lab/src/reproduce/claims`); verdicts are the last that `bimetal reproduce all --record` wrote. A claim holds if\n\
         every check does for every seed in every setting. The reason is made of the figures that decided.\n\n",
    );
    text += &summary(recorded);
    text += "\n| id | paper | claim | verdict | seeds | why |\n|---|---|---|---|--:|---|\n";
    for claim in CLAIMS {
        let (verdict, seeds, why) = cells(claim, recorded);
        let cells = [
            claim.id.to_string(),
            format!("{}, {}", claim.paper.name(), claim.figure),
            claim.says.to_string(),
            format!("**{}**", verdict.name()),
            seeds,
            why,
        ];
        text += &line(&cells);
    }
    text += "\n## How each is judged\n\n| id | check | wanted | because | seeds | parameters |\n|---|---|---|---|---|---|\n";
    for claim in CLAIMS {
        static_lines(claim).iter().for_each(|cells| text += &line(cells));
    }
    Ok(text)
}

/// Why nothing was recorded.
fn reason(claim: &Claim) -> String {
    let why = claim.checks.iter().filter_map(|check| match check.relation {
        Relation::Untestable(why) => Some(why),
        _ => None,
    });
    why.collect::<Vec<_>>().join("; ")
}

/// How many claims have which verdict.
pub(super) fn summary(recorded: &BTreeMap<String, Recorded>) -> String {
    let mut counts: Vec<(Verdict, [usize; 2])> = Vec::new();
    for claim in CLAIMS {
        let (verdict, _) = verdict(claim, recorded);
        let own = usize::from(claim.paper == Paper::Own);
        match counts.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, count)) => count[own] += 1,
            None => counts.push((verdict, if own == 1 { [0, 1] } else { [1, 0] })),
        }
    }
    counts.sort_by_key(|(verdict, _)| *verdict as usize);
    let mut text = String::from("| verdict | of the papers | our own |\n|---|--:|--:|\n");
    for (verdict, [papers, own]) in counts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {papers} | {own} |", verdict.name());
    }
    text
}

/// What does not depend on a measurement: a line a check.
pub(super) fn static_lines(claim: &Claim) -> Vec<Vec<String>> {
    let seeds = match claim.seeds {
        Seeds::Drawn(count) => count.to_string(),
        Seeds::Fixed(why) => format!("1: {why}"),
    };
    let ways = claim.ways.iter().map(|way| match way.parameters {
        Parameters::Given(what) => format!("given: {what}"),
        Parameters::Searched(what) => format!("searched: {what}"),
    });
    let ways: Vec<String> = ways.collect();
    let one = |(number, check): (usize, &Check<'_>)| {
        let first = |text: &str| if number == 0 { text.to_string() } else { String::new() };
        vec![
            claim.id.to_string(),
            check.what.to_string(),
            check.relation.wanted(""),
            because(&check.relation),
            first(&seeds),
            first(&ways.join("; ")),
        ]
    };
    claim.checks.iter().enumerate().map(one).collect()
}

/// The reason of a tolerance.
fn because(relation: &Relation<'_>) -> String {
    let part = |width: Width| match width {
        Width::Absolute(_) => String::new(),
        Width::Part(part) => format!("{} %: ", number(part * 100.0)),
    };
    match relation {
        Relation::Is { within, .. } | Relation::Alike { within, .. } | Relation::Straight { within, .. } => {
            format!("{}{}", part(within.width), within.reason)
        }
        Relation::Draw { sigma, reason, .. } => format!("standard deviation {}: {reason}", number(*sigma)),
        Relation::Within { limits, .. } | Relation::Ratio { limits, .. } => limits.reason.to_string(),
        Relation::Ascending(_) => "an order has no tolerance".to_string(),
        Relation::Least { .. } => "the least has no tolerance".to_string(),
        Relation::Untestable(why) => (*why).to_string(),
    }
}

/// A line of a table; what would end a cell is escaped.
fn line<S: AsRef<str>>(cells: &[S]) -> String {
    let cells = cells.iter().map(|cell| cell.as_ref().replace('|', "\\|").replace('\n', " "));
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}
