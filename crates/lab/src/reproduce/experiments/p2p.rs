//! The peer-to-peer generator beside the recorded download that it imitates: the workload of figure 13 of
//! the CSWLRU paper, a download of 739 MB.

use super::super::{Experiment, ExperimentContext, Findings, Row};
use bimetal_base::Result;
use bimetal_trace::{Op, ReadOptions, Record, Source};
use rustc_hash::FxHashSet;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "trace-p2p",
    figure: "004, figure 13 (workload)",
    about: "how scattered a peer-to-peer download writes: recorded and generated",
    seed: 1,
    run,
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

fn run(setting: &ExperimentContext) -> Result<Findings> {
    let recorded = shape(&setting.trace(RECORDED)?)?;
    let source = Source::parse(&setting.seeded("gen:p2p"), ReadOptions::default())?;
    let generated = shape(&source)?;
    let mut rows = Vec::new();
    for (of, shape) in [("recorded", &recorded), ("generated", &generated)] {
        rows.push(Row::compared(format!("{of}: written"), "MiB", FILE_MB, shape.written_mib));
        rows.push(Row::ours(format!("{of}: writes"), "", shape.writes));
        rows.push(Row::ours(format!("{of}: writes not sequential"), "%", shape.apart_percent));
        rows.push(Row::ours(format!("{of}: distinct pieces in 100 writes"), "", shape.pieces_a_window));
    }
    let near = |ours: f64, theirs: f64| (ours / theirs - 1.0).abs() < 0.05;
    let holds = near(generated.apart_percent, recorded.apart_percent)
        && near(generated.pieces_a_window, recorded.pieces_a_window)
        && rows.iter().all(|row| row.is_within(0.001));
    let why =
        "the generated download writes as much, in as many pieces at once and as far from sequential as the \
               recorded one, within 5 %"
            .to_string();
    let why = if holds { why } else { format!("not so: {why}") };
    let config = serde_json::json!({ "recorded": RECORDED, "generated": source.name() });
    Ok(Findings { rows, holds, why, config })
}
