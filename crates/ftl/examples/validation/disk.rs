//! The disk: a random read is command, seek, half a turn and transfer; a queue lets it choose the nearest.

use crate::load::closed;
use crate::{Expected, Row};
use bimetal_base::Result;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_media::disk::{Disk, DiskProfile};
use bimetal_media::void::Void;
use bimetal_media::{Request, profile};
use std::sync::Arc;

const MARGIN: f64 = 0.02;
const SIZE: u64 = 1_000_000_000_000;
const BLOCK: u64 = 4096;
const READS: u64 = 40_000;

pub fn rows() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let profile: DiskProfile = profile::load("hdd-7200")?;
    let rate = profile.zones[0].mb_per_s * 1e6;
    let half_turn = 30.0 / f64::from(profile.rpm);
    let each = profile.command_us / 1e6 + profile.seek_average_ms / 1e3 + half_turn + BLOCK as f64 / rate;
    let alone = reads(&profile, SIZE, 1)?;
    rows.push(Row::new(
        "random 4 KiB reads, one at a time",
        alone,
        Expected::Near(1.0 / each, MARGIN),
        "1/s",
    ));
    for depth in [2, 4, 8, 16, 32, 64] {
        let found = reads(&profile, SIZE, depth)?;
        let what = format!("random 4 KiB reads, {depth} under way, a queue of {}", profile.queue);
        let least = if depth == 32 { Expected::Above(2.0 * alone) } else { Expected::Above(alone) };
        rows.push(Row::new(what, found, least, "1/s"));
    }
    let unqueued = DiskProfile { queue: 1, ..profile.clone() };
    let found = reads(&unqueued, SIZE, 32)?;
    rows.push(Row::new("the same, 32 under way, no queue", found, Expected::Near(1.0 / each, MARGIN), "1/s"));
    // On platters of a terabyte the arm hardly moves over what a small image takes of them.
    let small = reads(&DiskProfile { platter: Some(SIZE), ..profile.clone() }, SIZE / 1000, 1)?;
    let stroke = (profile.seek_average_ms - profile.settle_ms) * 15.0 / 8.0;
    // The mean of the root of the distance between two places of a thousandth of the stroke.
    let seek = profile.settle_ms + stroke * 8.0 / 15.0 * (1e-3f64).sqrt();
    let each = profile.command_us / 1e6 + seek / 1e3 + half_turn + BLOCK as f64 / rate;
    let what = "random 4 KiB reads of 1 GB of 1 TB, one at a time";
    rows.push(Row::new(what, small, Expected::Near(1.0 / each, MARGIN), "1/s"));
    Ok(rows)
}

/// Random reads a second, so many under way.
fn reads(profile: &DiskProfile, size: u64, depth: usize) -> Result<f64> {
    let disk = Disk::new(profile, Arc::new(Void::new("void", size, 512)));
    let mut random = Random::new(1, "reads");
    let load = closed(&disk, (Time::ZERO, depth), READS, |_| Request::Read {
        offset: random.below(size / BLOCK) * BLOCK,
        len: BLOCK as usize,
    })?;
    Ok(READS as f64 * 1e9 / load.end.0 as f64)
}
