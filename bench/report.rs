//! The figures as a table and as JSON.

use crate::measure::{Sample, Samples};
use serde_json::json;
use std::fmt::Write;

/// What nfhybrid has to reach: so many times the time of the limit, or of ext4.
const TARGETS: &[(&str, &str, f64)] = &[
    ("create+close", "limit", 1.25),
    ("stat", "limit", 1.05),
    ("open+close", "limit", 1.05),
    ("rename", "limit", 1.25),
    ("unlink", "limit", 1.25),
    ("postmark 20000", "limit", 1.25),
    ("append 4k+fsync", "ext4", 1.0 / 1.5),
    ("1M write+fsync", "ext4", 1.0),
    ("1M read cold", "ext4", 1.0 / 0.8),
];

fn sorted(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = samples.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn best(values: &[f64]) -> f64 {
    values.first().copied().unwrap_or(f64::NAN)
}

fn median(values: &[f64]) -> f64 {
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn best_wall(samples: &Samples, work: &'static str, target: &str) -> f64 {
    best(&sorted(samples.of(work, target), |sample| sample.wall_us))
}

/// The limit a target can be held against: in memory, with the same permission checks; for the kernel's own, without.
fn limit(samples: &Samples, target: &str) -> Option<&'static str> {
    let checks = target == "memfs" || target == "nfhybrid";
    let like = if checks { ["memfs", "memfs-root"] } else { ["memfs-root", "memfs"] };
    like.into_iter().find(|name| samples.targets.iter().any(|known| known == name))
}

/// Every figure: best and median wall time, best and median CPU time, ratios of the best wall times.
pub fn table(samples: &Samples) -> String {
    let mut out =
        String::from("µs an operation (postmark: a run); ratios of best wall times, above 1 is faster\n");
    for work in &samples.works {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "\n{work}\n  {:14} {:>11} {:>11} {:>10} {:>10}  {:>8} {:>8}",
            "", "wall best", "median", "CPU best", "median", "/ext4", "/limit"
        );
        for target in &samples.targets {
            let cell = samples.of(work, target);
            if cell.is_empty() {
                continue;
            }
            let (wall, cpu) = (sorted(cell, |sample| sample.wall_us), sorted(cell, |sample| sample.cpu_us));
            let ratio = |other: Option<&str>| match other
                .map(|other| best_wall(samples, work, other) / best(&wall))
            {
                Some(ratio) if ratio.is_finite() => format!("{ratio:.2}"),
                _ => "-".into(),
            };
            let _ = writeln!(
                out,
                "  {target:14} {:11.2} {:11.2} {:10.2} {:10.2}  {:>8} {:>8}{}",
                best(&wall),
                median(&wall),
                best(&cpu),
                median(&cpu),
                ratio(Some("ext4")),
                ratio(limit(samples, target)),
                verdict(samples, work, target)
            );
        }
    }
    out
}

fn verdict(samples: &Samples, work: &'static str, target: &str) -> String {
    let goal = TARGETS.iter().find(|(name, _, _)| *name == work).filter(|_| target.starts_with("nfhybrid"));
    let Some((_, against, factor)) = goal else { return String::new() };
    let other = if *against == "limit" { limit(samples, target) } else { Some("ext4") };
    let Some(other) = other.map(|other| best_wall(samples, work, other)).filter(|other| other.is_finite())
    else {
        return String::new();
    };
    let holds = best_wall(samples, work, target) <= factor * other;
    format!("  {} {:.2} x {against}", if holds { "within" } else { "MISSES" }, factor)
}

/// Every sample.
pub fn json(samples: &Samples) -> String {
    let mut rows = Vec::new();
    for work in &samples.works {
        for target in &samples.targets {
            let cell = samples.of(work, target);
            let (wall, cpu) = (sorted(cell, |sample| sample.wall_us), sorted(cell, |sample| sample.cpu_us));
            if !cell.is_empty() {
                rows.push(json!({
                    "work": work, "target": target, "rounds": cell.len(),
                    "wall_us": {"best": best(&wall), "median": median(&wall), "all": wall},
                    "cpu_us": {"best": best(&cpu), "median": median(&cpu), "all": cpu},
                }));
            }
        }
    }
    serde_json::to_string_pretty(&rows).unwrap_or_default()
}
