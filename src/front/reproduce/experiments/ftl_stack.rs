//! Doh and others (IEICE 2010), Table 1 and figure 2, on the whole stack: Camera-MS500 writes files on our VFAT,
//! that sectors to a translation layer on NAND, its metadata to the FTL or to a non-volatile cache; all in
//! simulated time. Beside [`ftl_table1`](super::ftl_table1), which counts the operations of a stream of sectors,
//! this has no model of the file system and no sum of costs: only profiles of the parts.

use super::super::{Experiment, Findings, Row, Setting};
use crate::Result;
use crate::fs::fat::study::{self, Preset};
use crate::media::profile;

/// Registry lines.
pub(super) const TABLE: Experiment = Experiment {
    id: "ftl-table1-stack",
    figure: "003, table 1",
    about: "the same on the whole stack: VFAT, non-volatile cache, FTL and NAND in simulated time",
    seed: crate::fs::fat::camera::SEED,
    run: table,
};
pub(super) const FIGURE: Experiment = Experiment {
    id: "ftl-fig2-stack",
    figure: "003, figure 2",
    about: "the same of our own VFAT",
    seed: crate::fs::fat::camera::SEED,
    run: figure,
};

/// The presets; the first is the one the claim is judged by.
const PRESETS: [&str; 2] = ["camera-paper", "camera-data-sheet"];

fn table(setting: &Setting) -> Result<Findings> {
    let (mut rows, mut why, mut holds) = (Vec::new(), Vec::new(), Vec::new());
    for preset in PRESETS {
        let found = study::table1(&profile::load::<Preset>(preset)?, setting.seed)?;
        rows.extend(found.rows.into_iter().map(|row| named(&format!("{preset}: "), row)));
        why.push(format!("{preset}: {}", found.why));
        holds.push(found.holds);
    }
    let config = serde_json::json!({ "presets": PRESETS, "judged_by": PRESETS[0] });
    Ok(Findings { rows, holds: holds[0], why: why.join(". "), config })
}

fn figure(setting: &Setting) -> Result<Findings> {
    let found = study::fig2(setting.seed)?;
    let rows = found.rows.into_iter().map(|row| named("", row)).collect();
    let config = serde_json::json!({ "volume": "FAT16, 32 MiB, 2 KiB clusters" });
    Ok(Findings { rows, holds: found.holds, why: found.why, config })
}

fn named(of: &str, row: study::Row) -> Row {
    let name = format!("{of}{}", row.name);
    match row.paper {
        Some(paper) => Row::compared(name, row.unit, paper, row.ours),
        None => Row::ours(name, row.unit, row.ours),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claims_hold_as_far_as_they_are_said_to() {
        let setting = Setting { seed: TABLE.seed, traces: None, plots: None };
        let findings = table(&setting).unwrap();
        assert!(findings.holds, "{}", findings.why);
        assert_eq!(findings.rows.len(), 2 * 21);
        assert!(findings.why.contains("camera-data-sheet: with hot metadata FAST < Log < Repl"));
        // Every one of the paper's six times, within 6 %.
        let times = findings.rows[..21].iter().filter(|row| row.unit == "s");
        assert!(times.clone().count() == 6 && times.into_iter().all(|row| row.is_within(0.06)));
        assert!(figure(&setting).unwrap().holds);
    }
}
