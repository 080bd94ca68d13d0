//! Where writes go, all of them and those that a cache for metadata leaves: figure 2 of the FTL paper.

use super::super::Measured;
use crate::chart::{Axis, Body, Chart};
use bimetal_media::recorded::{Event, Recorder};
use rustc_hash::FxHashSet;

/// Bytes of a sector.
pub(super) const SECTOR_BYTES: u64 = 512;
/// The paper's partition.
const VOLUME_SECTORS: u64 = 65_536;

/// Written sectors, in order.
pub(super) struct References {
    /// All of them.
    pub all: Vec<u64>,
    /// Those that are left below the cache.
    pub left: Vec<u64>,
    /// The first sector that is data.
    pub data: u64,
}

/// The sectors that were written to a recorded device.
pub(super) fn written(recorder: &Recorder) -> Vec<u64> {
    let log = recorder.log();
    let writes = log.entries.iter().filter_map(|entry| match &entry.event {
        Event::Write { offset, data, .. } => Some(*offset..offset + data.len() as u64),
        _ => None,
    });
    writes.flat_map(|bytes| bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES)).collect()
}

impl References {
    /// The figures, of a volume called `of`.
    pub fn add(&self, measured: &mut Measured, of: &str) {
        let metadata = |sectors: &[u64]| sectors.iter().filter(|sector| **sector < self.data).count() as f64;
        let hot: FxHashSet<u64> = self.all.iter().copied().filter(|sector| *sector < self.data).collect();
        let (all, left) = (self.all.len() as f64, self.left.len() as f64);
        let of_all = 100.0 * hot.len() as f64 / VOLUME_SECTORS as f64;
        let data_bytes = (all - metadata(&self.all)) * SECTOR_BYTES as f64;
        measured.beside(format!("{of}/to metadata"), "%", 60.0, 100.0 * metadata(&self.all) / all);
        measured.beside(format!("{of}/of all sectors"), "%", 0.2, of_all);
        measured.beside(format!("{of}/fewer"), "%", 60.0, 100.0 * (1.0 - left / all));
        measured.add(format!("{of}/left a sector"), "writes", metadata(&self.left) / hot.len().max(1) as f64);
        measured.beside(format!("{of}/data written"), "MiB", 79.67, data_bytes / f64::from(1 << 20));
        measured.add(format!("{of}/writes"), "", all);
        measured.add(format!("{of}/writes with the cache"), "", left);
    }

    /// Figure 2a, all writes, and 2b, those that are left.
    pub fn charts(&self, of: &str) -> Vec<Chart> {
        let one = |(part, what, sectors): (&str, &str, &Vec<u64>)| {
            let points = sectors.iter().enumerate().map(|(number, sector)| (number as f64, *sector as f64));
            Chart {
                part: format!("{part}-{of}"),
                title: format!("003, figure 2{part}: Camera-MS500, {of}, {what}"),
                x: Axis::linear("write (number)"),
                y: Axis::linear("where to (sector)"),
                body: Body::dots(points),
            }
        };
        [("a", "all writes", &self.all), ("b", "with the cache for metadata", &self.left)].map(one).into()
    }
}
