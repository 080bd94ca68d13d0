//! One run as one row: of JSON lines, and of Parquet.

use crate::replay::rows::Cell;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A row. Everything in it follows from the configuration, the seed, the version and the files that were read.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Row {
    /// Its place in the grid, from 0 on.
    pub run: usize,
    /// What was set.
    pub set: Value,
    /// The effective configuration; sizes in bytes.
    pub config: Value,
    /// The files that were read, and the CRC-32C of each; the version of mke2fs, where that made a disk half.
    pub inputs: BTreeMap<String, String>,
    /// What everything random followed from.
    pub seed: u64,
    /// The program's version.
    pub version: String,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// What was measured, as `replay --json` prints it.
    pub result: Value,
}

/// The leaves of a value by their paths, `a.b.c`; a list is a leaf, as JSON.
pub fn flatten(value: &Value) -> Map<String, Value> {
    let mut leaves = Map::new();
    descend("", value, &mut leaves);
    leaves
}

fn descend(path: &str, value: &Value, leaves: &mut Map<String, Value>) {
    match value {
        Value::Object(inner) => {
            let within = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            inner.iter().for_each(|(key, value)| descend(&within(key), value, leaves));
        }
        Value::Array(_) => drop(leaves.insert(path.to_string(), Value::String(value.to_string()))),
        _ => drop(leaves.insert(path.to_string(), value.clone())),
    }
}

/// Rows as [`cells`].
pub(super) fn cells_of(rows: &[Row]) -> serde_json::Result<Vec<Vec<(String, Cell)>>> {
    rows.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>().map(|rows| cells(&rows))
}

/// Rows, or results, as columns of Parquet or Arrow: every leaf that any row has, in the order of their names; a column is of whole
/// numbers, else of numbers, or of yes and no, if all of its values are, else of text. What a row does not have is null.
pub fn cells(rows: &[Value]) -> Vec<Vec<(String, Cell)>> {
    let flat: Vec<Map<String, Value>> = rows.iter().map(flatten).collect();
    let mut columns: BTreeMap<&str, Option<Cell>> = BTreeMap::new();
    for (name, value) in flat.iter().flatten() {
        let kind = match value {
            Value::Number(number) if number.is_u64() => Cell::Count(None),
            Value::Number(_) => Cell::Number(None),
            Value::Null => {
                // Says nothing about the others; a column without values is of text.
                columns.entry(name).or_insert(None);
                continue;
            }
            Value::Bool(_) => Cell::Yes(None),
            _ => Cell::Text(None),
        };
        let column = columns.entry(name).or_insert(None);
        *column = Some(match (&column, kind) {
            (None, kind) => kind,
            (Some(Cell::Count(_)), Cell::Count(_)) => Cell::Count(None),
            (Some(Cell::Yes(_)), Cell::Yes(_)) => Cell::Yes(None),
            (Some(Cell::Count(_) | Cell::Number(_)), Cell::Count(_) | Cell::Number(_)) => Cell::Number(None),
            _ => Cell::Text(None),
        });
    }
    let cell = |column: &Option<Cell>, value: Option<&Value>| match column {
        Some(Cell::Count(_)) => Cell::Count(value.and_then(Value::as_u64)),
        Some(Cell::Number(_)) => Cell::Number(value.and_then(Value::as_f64)),
        Some(Cell::Yes(_)) => Cell::Yes(value.and_then(Value::as_bool)),
        Some(Cell::Text(_)) | None => Cell::Text(value.filter(|value| !value.is_null()).map(text)),
    };
    let row = |flat: &Map<String, Value>| {
        columns.iter().map(|(name, column)| ((*name).to_string(), cell(column, flat.get(*name)))).collect()
    };
    flat.iter().map(row).collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_have_the_narrowest_type_that_holds_all_of_their_values() {
        let row = |run, result| Row {
            run,
            set: json!({}),
            config: json!({"a": {"b": run}}),
            inputs: BTreeMap::new(),
            seed: 1,
            version: "v".into(),
            error: None,
            result,
        };
        let rows = [
            row(0, json!({"n": 1, "x": 1, "t": "a", "l": [1, 2], "never": null, "y": true, "z": true})),
            row(1, json!({"n": 2, "x": 1.5, "t": 7, "y": false, "z": 1})),
            row(2, Value::Null),
        ];
        let cells = cells_of(&rows).unwrap();
        let column = |name: &str| -> Vec<Cell> {
            let at = cells[0].iter().position(|(there, _)| there == name).expect(name);
            cells.iter().map(|row| row[at].1.clone()).collect()
        };
        assert_eq!(column("result.n"), [Some(1), Some(2), None].map(Cell::Count));
        assert_eq!(column("result.x"), [Some(1.0), Some(1.5), None].map(Cell::Number));
        assert_eq!(column("result.t"), [Some("a"), Some("7"), None].map(|t| Cell::Text(t.map(String::from))));
        assert_eq!(column("result.y"), [Some(true), Some(false), None].map(Cell::Yes));
        assert_eq!(column("result.z")[1], Cell::Text(Some("1".into())));
        assert_eq!(column("result.l")[0], Cell::Text(Some("[1,2]".into())));
        assert_eq!(column("result.never"), [None, None, None].map(Cell::Text));
        assert_eq!(column("config.a.b")[2], Cell::Count(Some(2)));
    }

    #[test]
    fn a_number_that_is_read_back_is_the_one_that_was_written() {
        // Both were off by a digit or two when they were read.
        for text in ["9.160868690931027", "0.6430000000000001", "1.0000000000000002"] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!((value.as_f64(), value.to_string()), (text.parse().ok(), text.to_string()));
        }
    }
}
