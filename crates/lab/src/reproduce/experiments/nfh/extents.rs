//! Figures 13 to 18: extents of 16 to 512 KiB under IOzone and the random template, on a disk that ignores flushes.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{FLUSHES, Hybrid, SSD, stack};
use super::programs::{Pass, RECORD, one_file, template};
use bimetal_base::Result;

const fn one(
    id: &'static str,
    about: &'static str,
    measure: fn(&ExperimentContext) -> Result<Measured>,
) -> Experiment {
    Experiment { id, about, seconds: 0.6, measure }
}

/// Registry lines.
pub(in super::super) const FIG13: Experiment =
    one("nfh-fig13", "appends with an fsync each by size of the extents", |setting| {
        sized(setting, Pass::Write, "write")
    });
pub(in super::super) const FIG14: Experiment =
    one("nfh-fig14", "records written again with an fsync each by size of the extents", |setting| {
        sized(setting, Pass::Rewrite, "rewrite")
    });
pub(in super::super) const FIG15: Experiment =
    one("nfh-fig15", "records read by size of the extents", |setting| sized(setting, Pass::Read, "read"));
pub(in super::super) const FIG16: Experiment =
    one("nfh-fig16", "the random template written by size of the extents", |setting| {
        drawn(setting, Pass::Write, "write")
    });
pub(in super::super) const FIG17: Experiment =
    one("nfh-fig17", "the random template written again by size of the extents", |setting| {
        drawn(setting, Pass::Rewrite, "rewrite")
    });
pub(in super::super) const FIG18: Experiment =
    one("nfh-fig18", "the random template read by size of the extents", |setting| {
        drawn(setting, Pass::Read, "read")
    });

const EXTENTS_KIB: [u64; 4] = [16, 64, 256, 512];

fn hybrid(kib: u64) -> Hybrid {
    Hybrid { extent_bytes: kib << 10, ..Hybrid::new(FLUSHES[0].1) }
}

fn sized(setting: &ExperimentContext, pass: Pass, name: &str) -> Result<Measured> {
    let large: u64 = if setting.full { 256 << 20 } else { 64 << 20 };
    let mut measured = Measured::with(
        serde_json::json!({ "ssd": SSD, "disk": FLUSHES[0].1, "large_bytes": large, "small_bytes": 65536 }),
    )
    .on(stack(&FLUSHES[..1]));
    for kib in EXTENTS_KIB {
        for (size, bytes) in [("large", large), ("small", 64 << 10)] {
            let ours = hybrid(kib).mb_per_s(setting, one_file(pass, bytes, RECORD))?;
            measured.add(format!("{kib} KiB/{name}, {size}"), "MB/s", ours);
        }
    }
    Ok(measured)
}

fn drawn(setting: &ExperimentContext, pass: Pass, name: &str) -> Result<Measured> {
    let mut measured =
        Measured::with(serde_json::json!({ "ssd": SSD, "disk": FLUSHES[0].1 })).on(stack(&FLUSHES[..1]));
    for kib in EXTENTS_KIB {
        let ours = hybrid(kib).mb_per_s(setting, template(pass, setting.seed))?;
        measured.add(format!("{kib} KiB/{name}"), "MB/s", ours);
    }
    Ok(measured)
}
