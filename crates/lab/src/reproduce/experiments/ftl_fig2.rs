//! Doh and others (IEICE 2010), figure 2: where a synchronous VFAT writes under Camera-MS500, and what
//! remains when a non-volatile cache takes the FATs and the root directory.
//!
//! Twice: from the trace of a real kernel's VFAT (Linux 6.1, 32 MiB volume, FATs from sector 4, data from
//! 164) and from our model of the paper's own volume (see the generator `camera-vfat`).

use super::super::{Experiment, ExperimentContext, Findings, Row};
use crate::replay::picture::{Dots, save};
use bimetal_base::{Error, Result};
use bimetal_trace::{Op, ReadOptions, Source};
use rustc_hash::FxHashSet;
use std::path::Path;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "ftl-fig2",
    figure: "003, figure 2",
    about: "hot metadata under Camera-MS500, and the writes left without it",
    seed: 13,
    run,
};

const SECTOR_BYTES: u64 = 512;
/// The paper's partition.
const VOLUME_SECTORS: u64 = 65_536;
const RECORDED: &str = "block/vfat-camera500.dev.csv.zst";
/// Of the recorded volume: boot and reserved sectors, FATs and root directory end here.
const RECORDED_DATA: u64 = 164;
/// The same of the modelled volume.
const MODELLED_DATA: u64 = 161;

/// What the paper says.
const SHARE_PERCENT: f64 = 60.0;
const LBN_PERCENT: f64 = 0.2;
const WRITTEN_MB: f64 = 79.67;

/// Writes by where they go.
struct References {
    metadata: u64,
    data: u64,
    hot_sectors: u64,
    points: Vec<(f64, f64)>,
}

fn count(source: &Source, data_from: u64) -> Result<References> {
    let mut hot = FxHashSet::default();
    let mut found = References { metadata: 0, data: 0, hot_sectors: 0, points: Vec::new() };
    for record in source.open()? {
        let record = record?;
        if record.op != Op::Write {
            continue;
        }
        for sector in record.offset / SECTOR_BYTES..record.end().div_ceil(SECTOR_BYTES) {
            let number = (found.metadata + found.data) as f64;
            found.points.push((number, sector as f64));
            if sector < data_from {
                found.metadata += 1;
                hot.insert(sector);
            } else {
                found.data += 1;
            }
        }
    }
    if found.metadata + found.data == 0 {
        return Err(Error::invalid(format!("{}: no writes", source.name())));
    }
    found.hot_sectors = hot.len() as u64;
    Ok(found)
}

impl References {
    fn share_percent(&self) -> f64 {
        100.0 * self.metadata as f64 / (self.metadata + self.data) as f64
    }

    fn rows(&self, of: &str, area_sectors: u64) -> Vec<Row> {
        let written = (self.data * SECTOR_BYTES) as f64 / f64::from(1 << 20);
        let area = 100.0 * area_sectors as f64 / VOLUME_SECTORS as f64;
        let written_to = 100.0 * self.hot_sectors as f64 / VOLUME_SECTORS as f64;
        vec![
            Row::compared(
                format!("{of}: writes that go to FATs and root directory"),
                "%",
                SHARE_PERCENT,
                self.share_percent(),
            ),
            Row::compared(format!("{of}: these sectors, of all"), "%", LBN_PERCENT, area),
            Row::ours(format!("{of}: of them written at all"), "%", written_to),
            Row::compared(
                format!("{of}: writes fewer without them"),
                "%",
                SHARE_PERCENT,
                self.share_percent(),
            ),
            Row::compared(format!("{of}: data written, in whole sectors"), "MiB", WRITTEN_MB, written),
            Row::ours(format!("{of}: writes"), "", (self.metadata + self.data) as f64),
        ]
    }

    /// Figure 2a, all writes, and 2b, those that are left.
    fn plot(&self, dir: &Path, of: &str, data_from: u64) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(|why| Error::io(dir.display(), why))?;
        let left: Vec<_> =
            self.points.iter().copied().filter(|(_, sector)| *sector >= data_from as f64).collect();
        for (part, what, points) in [("a", "all writes", &self.points), ("b", "without hot metadata", &left)]
        {
            let title = format!("Camera-MS500, {of}: {what}");
            let dots = Dots { title: &title, abscissa: "write", ordinate: "sector", points };
            save(&dir.join(format!("ftl-fig2{part}-{of}.png")), &dots)?;
        }
        Ok(())
    }

    fn holds(&self, area_sectors: u64) -> bool {
        let area = 100.0 * area_sectors as f64 / VOLUME_SECTORS as f64;
        (59.5..60.5).contains(&self.share_percent()) && area < 0.255
    }
}

fn run(setting: &ExperimentContext) -> Result<Findings> {
    let recorded = count(&setting.trace(RECORDED)?, RECORDED_DATA)?;
    let recipe = setting.seeded("gen:camera-vfat");
    let modelled_source = Source::parse(&recipe, ReadOptions::default())?;
    let modelled = count(&modelled_source, MODELLED_DATA)?;
    // Of the modelled volume only the sectors in use count, as in the paper's plot.
    let mut rows = recorded.rows("kernel", RECORDED_DATA);
    rows.extend(modelled.rows("model", modelled.hot_sectors));
    if let Some(dir) = &setting.plots {
        recorded.plot(dir, "kernel", RECORDED_DATA)?;
        modelled.plot(dir, "model", MODELLED_DATA)?;
    }
    let holds = recorded.holds(RECORDED_DATA) && modelled.holds(modelled.hot_sectors);
    let why = "six writes in ten go to the FATs and the root directory, a five-hundredth of the volume, and are \
               gone when these are cached; the kernel's volume has 164 such sectors where the paper's must have \
               had about 131";
    let config = serde_json::json!({
        "recorded": RECORDED, "recorded_data_from_sector": RECORDED_DATA,
        "modelled": modelled_source.name(), "modelled_data_from_sector": MODELLED_DATA,
        "volume_sectors": VOLUME_SECTORS,
    });
    Ok(Findings { rows, holds, why: why.to_string(), config })
}
