//! The figures as a table and as JSON.

use crate::Options;
use crate::measure::{Sample, Samples, Share};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// What nfhybrid has to reach: at most so many times the time of the limit, or of ext4 on the SSD or the disk.
const GOALS: &[(&str, &str, f64)] = &[
    ("create+close", "limit", 1.25),
    ("stat", "limit", 1.05),
    ("open+close", "limit", 1.05),
    ("rename", "limit", 1.25),
    ("unlink", "limit", 1.25),
    ("postmark 20000", "limit", 1.25),
    ("append 4k+fsync", "ext4", 1.0 / 1.5),
    ("append 4k+fsync", "ext4-disk", 1.0 / 4.0),
    ("overwrite 4k+fsync", "ext4", 1.0 / 1.5),
    ("overwrite 4k+fsync", "ext4-disk", 1.0 / 4.0),
    ("append 16k+fsync", "ext4", 1.0 / 1.5),
    ("append 16k+fsync", "ext4-disk", 1.0 / 4.0),
    ("1M write+fsync", "ext4", 1.0),
    ("1M read cold", "ext4", 1.0 / 0.8),
];

fn sorted(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = samples.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: &[f64]) -> f64 {
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The round with the shortest wall time: the one that others disturbed least.
fn best(samples: &[Sample]) -> Option<&Sample> {
    samples.iter().min_by(|a, b| a.wall_us.total_cmp(&b.wall_us))
}

fn best_wall(samples: &Samples, work: &'static str, target: &str) -> Option<f64> {
    best(samples.of(work, target)).map(|sample| sample.wall_us)
}

/// The limit a target can be held against: in memory, with the same permission checks; for the kernel's own, without.
fn limit(samples: &Samples, target: &str) -> Option<&'static str> {
    let checks = target == "memfs" || target == "nfhybrid";
    let like = if checks { ["memfs", "memfs-root"] } else { ["memfs-root", "memfs"] };
    like.into_iter().find(|name| samples.targets.iter().any(|known| known == name))
}

/// How many times as fast as another target.
fn ratio(samples: &Samples, work: &'static str, target: &str, other: &str) -> Option<f64> {
    let other = if other == "limit" { limit(samples, target)? } else { other };
    Some(best_wall(samples, work, other)? / best_wall(samples, work, target)?)
}

fn shown(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.2}"),
    }
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_ascii_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

const HEADINGS: &str = concat!(
    "                     wall              times as fast as     CPU               FUSE   ",
    "SSD: writes, flushes,     disk: the same\n",
    "                     best    median   ext4 ext4-disk limit  client server      req.   ",
    "KiB written, µs waited",
);

/// Every figure; counts and CPU times are those of the best round.
pub fn table(options: &Options, took: Duration, samples: &Samples) -> String {
    let mut out = format!(
        "disk: {}; work on processor {}; {} rounds in {} s; load average at the end {}; µs and counts an operation (postmark: a run)\n",
        options.disk.name(),
        options.processor,
        options.rounds,
        took.as_secs(),
        load()
    );
    for work in &samples.works {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "\n{work}\n{HEADINGS}");
        for target in &samples.targets {
            if let Some(row) = row(samples, work, target) {
                let _ = writeln!(out, "  {target:14}{row}{}", verdicts(samples, work, target));
            }
        }
    }
    out
}

fn row(samples: &Samples, work: &'static str, target: &str) -> Option<String> {
    let cell = samples.of(work, target);
    let sample = best(cell)?;
    let ratio = |other| shown(ratio(samples, work, target, other));
    Some(format!(
        "{:>9} {:>9} {:>6} {:>8} {:>6}  {:>6} {:>6}  {:>8}   {:<24}  {:<24}",
        shown(Some(sample.wall_us)),
        shown(Some(median(&sorted(cell, |sample| sample.wall_us)))),
        ratio("ext4"),
        ratio("ext4-disk"),
        ratio("limit"),
        shown(Some(sample.client_us)),
        shown(Some(sample.server_us).filter(|us| *us > 0.0)),
        shown(Some(sample.requests).filter(|count| *count > 0.0)),
        share(sample.ssd.as_ref()),
        share(sample.disk.as_ref()),
    ))
}

fn share(share: Option<&Share>) -> String {
    let Some(share) = share else { return "-".into() };
    let values = [share.writes, share.flushes, share.written_kib, share.wait_us];
    values.map(|value| shown(Some(value))).join(" ")
}

fn verdicts(samples: &Samples, work: &'static str, target: &str) -> String {
    let goals = GOALS.iter().filter(|(name, _, _)| *name == work && target.starts_with("nfhybrid"));
    let verdict = |(_, against, factor): &(&str, &str, f64)| {
        let holds = 1.0 / ratio(samples, work, target, against)? <= *factor;
        let aim = match *factor < 1.0 {
            true => format!("{:.1} times as fast as {against}", 1.0 / factor),
            false => format!("{factor:.2} times the time of {against}"),
        };
        Some(format!("{} {aim}", if holds { "reaches" } else { "MISSES" }))
    };
    let verdicts: Vec<String> = goals.filter_map(verdict).collect();
    if verdicts.is_empty() { String::new() } else { format!("  {}", verdicts.join(", ")) }
}

/// Every sample, with what was run.
pub fn json(options: &Options, samples: &Samples) -> String {
    let mut rows = Vec::new();
    for work in &samples.works {
        for target in &samples.targets {
            let cell = samples.of(work, target);
            let Some(best) = best(cell) else { continue };
            let wall = sorted(cell, |sample| sample.wall_us);
            let cpu = sorted(cell, |sample| sample.client_us + sample.server_us);
            let ratio = |other| ratio(samples, work, target, other);
            rows.push(json!({
                "work": work, "target": target, "rounds": cell.len(),
                "wall_us": {"best": best.wall_us, "median": median(&wall), "all": wall},
                "cpu_us": {"client": best.client_us, "server": best.server_us, "all": cpu},
                "times_as_fast_as": {"ext4": ratio("ext4"), "ext4-disk": ratio("ext4-disk"), "limit": ratio("limit")},
                "fuse_requests": best.requests,
                "ssd": best.ssd.as_ref().map(share_json), "disk": best.disk.as_ref().map(share_json),
            }));
        }
    }
    let all =
        json!({"disk": options.disk.name(), "rounds": options.rounds, "load_average": load(), "cells": rows});
    serde_json::to_string_pretty(&all).unwrap_or_default()
}

fn share_json(share: &Share) -> Value {
    json!({
        "reads": share.reads, "writes": share.writes, "flushes": share.flushes,
        "written_kib": share.written_kib, "wait_us": share.wait_us,
    })
}
