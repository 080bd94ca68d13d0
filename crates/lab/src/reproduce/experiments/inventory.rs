//! The recorded traces: what each holds, beside the figures that were written down when they were recorded.
//!
//! The written figures are the table "Counts" of the folder's `README.md`. A trace that agrees in all of
//! them is one row, its number of requests; a figure that does not is a row more.

use super::super::{Experiment, ExperimentContext, Measured};
use bimetal_base::{Error, Result};
use bimetal_trace::{Summary, summarise};
use std::path::Path;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "trace-inventory",
    about: "requests, bytes, footprint and sequentiality of every recorded block and file trace",
    seconds: 0.4,
    measure,
};

const MIB: f64 = (1 << 20) as f64;

/// One line of the table.
struct Written {
    trace: String,
    /// Requests, reads, writes, flushes; MiB read, written, touched; percent not sequential.
    figures: [f64; 8],
}

/// The figures' names, units, and how far rounding lets them be off.
const FIGURES: [(&str, &str, f64); 8] = [
    ("requests", "", 0.0),
    ("reads", "", 0.0),
    ("writes", "", 0.0),
    ("flushes", "", 0.0),
    ("read", "MiB", 0.0501),
    ("written", "MiB", 0.0501),
    ("footprint", "MiB", 0.0501),
    // Written down in whole percent, by a count that differs at the edges.
    ("not sequential", "%", 0.6),
];

fn measure(setting: &ExperimentContext) -> Result<Measured> {
    let table = written(&setting.traces_dir()?.join("README.md"))?;
    let config = serde_json::json!({ "traces": table.len(), "figures": FIGURES.map(|(name, _, _)| name) });
    let (mut measured, mut wrong) = (Measured::with(config), 0);
    for line in &table {
        let source = setting.trace(&format!("{}.csv.zst", line.trace))?;
        let found = figures(&summarise(&mut source.open()?)?);
        for ((figure, ours), paper) in FIGURES.iter().zip(found).zip(line.figures) {
            let (name, unit, tolerance) = *figure;
            let agrees = (ours - paper).abs() <= tolerance;
            wrong += usize::from(!agrees);
            if name == "requests" || !agrees {
                measured.beside(format!("{} {name}", line.trace), unit, paper, ours);
            }
        }
    }
    measured.add("figures that differ", "", wrong as f64);
    Ok(measured)
}

fn figures(summary: &Summary) -> [f64; 8] {
    let s = summary;
    [
        s.requests as f64,
        s.reads as f64,
        s.writes as f64,
        s.flushes as f64,
        s.read_bytes as f64 / MIB,
        s.written_bytes as f64 / MIB,
        s.footprint_bytes as f64 / MIB,
        s.non_sequential * 100.0,
    ]
}

/// The table's lines.
fn written(readme: &Path) -> Result<Vec<Written>> {
    let text = std::fs::read_to_string(readme).map_err(|why| Error::io(readme.display(), why))?;
    let counts = text.split("\n## Counts").nth(1).unwrap_or_default();
    let lines: Vec<_> = counts.lines().filter_map(line).collect();
    match lines.is_empty() {
        true => Err(Error::corrupt(readme.display(), "there is no table of counts", "section Counts")),
        false => Ok(lines),
    }
}

/// `| trace | records | R | W | F | R MiB | W MiB | fp MiB | ns% | … |`
fn line(text: &str) -> Option<Written> {
    let cells: Vec<&str> = text.strip_prefix('|')?.split('|').map(str::trim).collect();
    let mut figures = [0.0; 8];
    for (at, figure) in figures.iter_mut().enumerate() {
        *figure = cells.get(at + 1)?.parse().ok()?;
    }
    Some(Written { trace: (*cells.first()?).to_string(), figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table_are_read_and_others_are_not() {
        let found =
            line("| p2p/G1.file | 101847 | 54540 | 47296 | 11 | 262.7 | 739.0 | 739.0 | 7 | 612 |  |")
                .unwrap();
        assert_eq!(found.trace, "p2p/G1.file");
        assert_eq!(found.figures, [101847.0, 54540.0, 47296.0, 11.0, 262.7, 739.0, 739.0, 7.0]);
        assert!(
            line("| trace | records | R | W | F | R MiB | W MiB | fp MiB | ns% | dur | W flags |").is_none()
        );
        assert!(line("|---|---|---|").is_none() && line("text").is_none());
    }
}
