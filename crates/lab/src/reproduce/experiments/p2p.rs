//! The peer-to-peer generator beside the recorded download that it imitates: the workload of figure 13 of
//! the CSWLRU paper, a download of 739 MB.

use super::super::{Experiment, ExperimentContext, Measured};
use bimetal_base::Result;
use bimetal_trace::{Op, ReadOptions, Record, Source};
use rustc_hash::FxHashSet;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "trace-p2p",
    about: "how scattered a peer-to-peer download writes: recorded and generated",
    seconds: 0.1,
    measure,
};

const RECORDED: &str = "p2p/G4.file.csv.zst";
const PIECE_BYTES: u64 = 512 << 10;
const WINDOW: usize = 100;
const MIB: f64 = (1 << 20) as f64;
/// The paper's file.
const FILE_MB: f64 = 739.0;

/// How a download writes.
struct Shape {
    written_mib: f64,
    writes: f64,
    apart_percent: f64,
    pieces_a_window: f64,
}

fn shape(source: &Source) -> Result<Shape> {
    let mut writes: Vec<Record> = Vec::new();
    for record in source.open()? {
        let record = record?;
        if record.op == Op::Write {
            writes.push(record);
        }
    }
    let apart = writes.windows(2).filter(|pair| pair[1].offset != pair[0].end()).count();
    let distinct =
        |window: &[Record]| window.iter().map(|w| w.offset / PIECE_BYTES).collect::<FxHashSet<_>>().len();
    let windows = writes.chunks_exact(WINDOW);
    let count = windows.len().max(1) as f64;
    Ok(Shape {
        written_mib: writes.iter().map(|write| write.len).sum::<u64>() as f64 / MIB,
        writes: writes.len() as f64,
        apart_percent: 100.0 * apart as f64 / writes.len().max(1) as f64,
        pieces_a_window: windows.map(distinct).sum::<usize>() as f64 / count,
    })
}

fn measure(setting: &ExperimentContext) -> Result<Measured> {
    measure_recipe(setting, "gen:p2p")
}

fn measure_recipe(setting: &ExperimentContext, recipe: &str) -> Result<Measured> {
    let source = Source::parse(&setting.seeded(recipe), ReadOptions::default())?;
    let config = serde_json::json!({ "recorded": RECORDED, "generated": source.name() });
    let mut measured = Measured::with(config);
    for (of, shape) in [("recorded", shape(&setting.trace(RECORDED)?)?), ("generated", shape(&source)?)] {
        measured.beside(format!("{of}/written"), "MiB", FILE_MB, shape.written_mib);
        measured.add(format!("{of}/writes"), "", shape.writes);
        measured.add(format!("{of}/not sequential"), "%", shape.apart_percent);
        measured.add(format!("{of}/pieces"), "", shape.pieces_a_window);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::super::super::judge::{Verdict, judge};
    use super::super::super::{Found, claims::CLAIMS};
    use super::*;

    #[test]
    fn a_swarm_that_was_not_fitted_is_no_such_download_and_the_fitted_one_is() {
        let claim = CLAIMS.find("trace-p2p").unwrap();
        let verdict = |recipe: &str, seed| {
            let measured = measure_recipe(&ExperimentContext::of_seed(seed), recipe).unwrap();
            judge(claim, &Found { seeds: vec![(seed, measured)] }).unwrap().verdict
        };
        assert_eq!(verdict("gen:p2p", 6), Verdict::HoldsFitted);
        for other in ["gen:p2p:peers=8", "gen:p2p:burst=9", "gen:p2p:size=268435456"] {
            assert_eq!(verdict(other, 6), Verdict::Fails, "{other}");
        }
    }
}
