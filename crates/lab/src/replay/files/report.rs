//! What a run of calls gave, under the names that `replay --fs --json` prints.

use super::windows::CallWindow;
use crate::replay::Moment;
use crate::replay::ending::{Ended, Ending};
use crate::replay::report::Latency;
use crate::replay::rows::aligned;
use bimetal_base::units::show_size;
use bimetal_media::counted::Counts;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// What the calls took and did.
#[derive(Clone, Debug, Serialize)]
pub struct FilesReport {
    /// The kind of file system.
    pub fs: String,
    /// How it ended: whether all could be made durable at the end, and the file system be closed.
    pub ended: Ended,
    /// How many processes called.
    pub processes: u32,
    /// Calls that succeeded.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// The first of them, and why; of what could not be made before them, if there was such.
    pub first_failure: Option<String>,
    /// What the trace finds there, and could not be made.
    pub not_made: u64,
    /// What the trace has and was not played: how often, by the name of the call, or `failed`, `unfinished`, `no request`.
    pub left_out: BTreeMap<String, u64>,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// From the first call until all is done, and durable if that was asked for.
    pub sim_time_ns: u64,
    /// From call to return.
    pub latency_ns: Latency,
    /// The same by kind of call.
    pub by_call: BTreeMap<&'static str, CallReport>,
    /// What the devices were asked for and did; those of flash file systems tell it in their own counters.
    pub devices: BTreeMap<&'static str, DeviceReport>,
    /// The file system's counters, since it was made.
    pub file_system: Value,
    /// What was done in each window of `--every`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<CallWindow>,
    /// What the run was.
    pub config: Config,
}

/// Calls of a kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CallReport {
    /// Of those that succeeded.
    #[serde(flatten)]
    pub latency_ns: Latency,
    /// How many failed.
    pub failed: u64,
}

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Its profile.
    pub profile: String,
    /// Its translation layer, where it has one.
    pub ftl: Option<String>,
    /// Its size.
    pub size_bytes: u64,
    /// What it was asked for in the run; one with a page cache above that.
    pub requests: Counts,
    /// What came through its page cache, and was written back from it, where there is one.
    pub below_cache: Option<Counts>,
    /// What its model did since it was new: arm, flash, merges, copies, erases, wear.
    pub model: Value,
    /// Erases of each block since it was new, where there is flash.
    #[serde(skip)]
    pub erases_by_block: Vec<u32>,
    /// How its merges, copies and erases went on in the run, where there is flash.
    #[serde(skip)]
    pub flow: Vec<Moment>,
}

/// What a run was.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// Where the calls come from.
    pub trace: String,
    /// Mount options.
    pub options: Vec<String>,
    /// Sections of the SSD half that were asked for; `file_system` has those that it has.
    pub sections: Vec<String>,
    /// The policy of the page cache, with its options, if there is one.
    pub cache: Option<String>,
    /// Its bytes.
    pub cache_bytes: Option<u64>,
    /// The translation layer that was asked for, if it is not the profile's; `devices` has each device's.
    pub ftl: Option<String>,
    /// Closed or open.
    pub pace: &'static str,
    /// How much faster than recorded (open).
    pub speed: Option<f64>,
    /// Software's time a call, ns.
    pub overhead_ns: u64,
    /// Whether fsyncs were made.
    pub fsync: bool,
    /// Whether all was made durable at the end.
    pub synced: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// This program's version.
    pub version: &'static str,
}

/// A span in a unit that suits it.
fn span(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

impl FilesReport {
    /// For people.
    pub fn table(&self) -> String {
        let words = |words: [&str; 7]| words.map(str::to_string).to_vec();
        let mut lines = vec![words(["call", "count", "failed", "mean", "p50", "p99", "max"])];
        for (name, call) in &self.by_call {
            let latency = call.latency_ns;
            lines.push(vec![
                (*name).to_string(),
                latency.count.to_string(),
                call.failed.to_string(),
                span(latency.mean as u64),
                span(latency.p50),
                span(latency.p99),
                span(latency.max),
            ]);
        }
        let seconds = Duration::from_nanos(self.sim_time_ns).as_secs_f64();
        let mut text = format!(
            "{} calls of {} processes on {} in {seconds:.3} s of virtual time; {} written, {} read\n",
            self.calls,
            self.processes,
            self.fs,
            show_size(self.bytes_written),
            show_size(self.bytes_read)
        );
        text += &aligned(&lines);
        if let Some(why) = &self.first_failure {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{} calls failed; the first: {why}", self.failed + self.not_made);
        }
        if self.ended.how != Ending::Complete {
            let _ = writeln!(text, "ended {}: {}", self.ended.how, self.ended.told());
        }
        if !self.left_out.is_empty() {
            let of = |(name, count): (&String, &u64)| format!("{count} {name}");
            let all: Vec<String> = self.left_out.iter().map(of).collect();
            let _ = writeln!(text, "not played: {}", all.join(", "));
        }
        for (name, device) in &self.devices {
            let asked = &device.requests;
            let _ = writeln!(
                text,
                "{name} ({}, {}): {} writes of {}, {} reads of {}, {} flushes, {} durable writes; {}",
                device.profile,
                show_size(device.size_bytes),
                asked.writes,
                show_size(asked.write_bytes),
                asked.reads,
                show_size(asked.read_bytes),
                asked.flushes,
                asked.durable_writes,
                device.model
            );
            if let Some(below) = &device.below_cache {
                let _ = writeln!(
                    text,
                    "{name} below its page cache: {} writes of {}, {} reads of {}",
                    below.writes,
                    show_size(below.write_bytes),
                    below.reads,
                    show_size(below.read_bytes)
                );
            }
        }
        let _ = writeln!(text, "{}: {}", self.fs, self.file_system);
        text
    }
}
