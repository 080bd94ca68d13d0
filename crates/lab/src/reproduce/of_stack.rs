//! An experiment that is a stack file: it is played once, and each of its expectations compared with what came of it.

use super::{Findings, Row};
use crate::replay::grid::{flatten, result};
use crate::stack::file::{Expectation, StackFile};
use bimetal_base::options::unknown;
use bimetal_base::{Error, Result};
use serde_json::{Map, Value, json};

/// Plays a stack and compares.
///
/// # Errors
/// It expects nothing, or a figure that there is not; it cannot be played.
pub(super) fn find_out(stack: &StackFile) -> Result<Findings> {
    if stack.expect.is_empty() {
        let example = "[[expect]]\nfigure = \"write_amplification\"\nis = 1.02\nwithin = 0.05";
        return Err(Error::invalid(format!("nothing is expected; write for example\n{example}")));
    }
    let figures = flatten(&result(stack)?);
    let rows = stack.expect.iter().map(|expected| compare(expected, &figures)).collect::<Result<Vec<_>>>()?;
    let off: Vec<&str> = rows
        .iter()
        .zip(&stack.expect)
        .filter(|(row, expected)| !row.is_within(expected.within))
        .map(|(row, _)| row.name.as_str())
        .collect();
    let why = match off.as_slice() {
        [] => "every figure is as near as the file says".to_string(),
        off => format!("further off than the file says: {}", off.join(", ")),
    };
    Ok(Findings { holds: off.is_empty(), rows, why, config: json!(stack) })
}

fn compare(expected: &Expectation, figures: &Map<String, Value>) -> Result<Row> {
    let numbers = figures.iter().filter(|(_, value)| value.is_number()).map(|(name, _)| name.as_str());
    let ours = figures.get(&expected.figure).and_then(Value::as_f64);
    let ours =
        ours.ok_or_else(|| unknown("expect.figure: the run has no figure", &expected.figure, numbers))?;
    Ok(Row::compared(&expected.figure, expected.unit.clone(), expected.is, ours))
}
