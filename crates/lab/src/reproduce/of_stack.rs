//! An experiment that is a stack file: it is played once, and each of its expectations is a check of a claim.

use super::claims::{Check, Claim, Paper, Relation, Seeds, Tolerance, Way, Width, given};
use super::measured::{Found, Measured};
use super::{Done, judge};
use crate::replay::grid::{flatten, result_drawn};
use crate::stack::file::{Expectation, StackFile};
use crate::stack::layers::Layers;
use bimetal_base::options::unknown;
use bimetal_base::{Error, Result};
use serde_json::{Map, Value, json};

/// The parameters are in the file.
const WAYS: &[Way] = &[given("the stack file's")];

/// Plays a stack and judges what it expects.
///
/// # Errors
/// It expects nothing, or a figure that there is not; it cannot be played.
pub(super) fn find_out(stack: &StackFile, id: &str) -> Result<Done> {
    if stack.expect.is_empty() {
        let example = "[[expect]]\nfigure = \"write_amplification\"\nis = 1.02\nwithin = 0.05";
        return Err(Error::invalid(format!("nothing is expected; write for example\n{example}")));
    }
    let (result, charts) = result_drawn(stack)?;
    let figures = flatten(&result);
    let mut measured = Measured::with(json!(stack)).on(Layers::of_file(stack));
    measured.charts = charts;
    for expected in &stack.expect {
        let ours = figure(expected, &figures)?;
        measured.beside(expected.figure.clone(), expected.unit.clone(), expected.is, ours);
    }
    let found = Found { seeds: vec![(stack.seed, measured)] };
    let checks: Vec<Check<'_>> = stack.expect.iter().map(check).collect();
    let claim = Claim {
        id: "stack",
        paper: Paper::Own,
        figure: "its [[expect]]",
        says: "what the stack file expects",
        seeds: Seeds::Fixed("the stack file has its seed"),
        ways: WAYS,
        checks: &[],
    };
    let judgement = judge::judge_by(&claim, &checks, &found)?;
    let about = stack.about.clone().unwrap_or_else(|| "a stack file".into());
    Ok(Done { id: id.into(), about, found, judgement: Some(judgement), full: false, live: false })
}

fn check(expected: &Expectation) -> Check<'_> {
    let within = Tolerance { width: Width::Part(expected.within), reason: "the stack file says so" };
    let figure = expected.figure.as_str();
    Check { what: figure, relation: Relation::Is { figure, paper: expected.is, within } }
}

fn figure(expected: &Expectation, figures: &Map<String, Value>) -> Result<f64> {
    let numbers = figures.iter().filter(|(_, value)| value.is_number()).map(|(name, _)| name.as_str());
    let ours = figures.get(&expected.figure).and_then(Value::as_f64);
    ours.ok_or_else(|| unknown("expect.figure: the run has no figure", &expected.figure, numbers))
}
