//! What is in a trace: counts, bytes, footprint and how sequential it is.

use super::{Op, Tally, Trace};
use bimetal_base::Result;
use bimetal_base::time::Time;
use rustc_hash::FxHashSet;
use serde::Serialize;

/// The grain of the footprint.
const PAGE_BYTES: u64 = 4096;

/// A trace in figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// All requests, of whatever kind.
    pub requests: u64,
    /// Of them, reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes that are requests of their own (a flag of a write is not).
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Operations on whole files: creations, deletions, truncations, allocations.
    pub file_ops: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes of the distinct 4 KiB pages that reads and writes touch.
    pub footprint_bytes: u64,
    /// Of the reads and writes after the first, the part that does not begin where the last one ended.
    pub non_sequential: f64,
    /// From the first to the last request, ns.
    pub duration_ns: u64,
    /// The byte after the last one touched, of any unit.
    pub end_bytes: u64,
    /// Distinct devices or files.
    pub units: u64,
    /// What was read to find them.
    pub tally: Tally,
}

/// Reads a trace to its end. Memory grows with the footprint: about 20 bytes a distinct page.
///
/// # Errors
/// As reading the trace.
pub fn summarise(trace: &mut Trace) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut pages = FxHashSet::default();
    let mut units = FxHashSet::default();
    let (mut first, mut last) = (None, Time::ZERO);
    let mut previous_end = None;
    let mut apart = 0u64;
    for record in trace.by_ref() {
        let record = record?;
        first.get_or_insert(record.at);
        last = last.max(record.at);
        units.insert(record.unit);
        summary.count(record.op, record.len);
        if record.op.is_data() {
            let place = (record.unit, record.offset);
            apart += u64::from(previous_end.is_some_and(|end| end != place));
            previous_end = Some((record.unit, record.end()));
            summary.end_bytes = summary.end_bytes.max(record.end());
            let touched = record.offset / PAGE_BYTES..record.end().div_ceil(PAGE_BYTES);
            pages.extend(touched.map(|page| (record.unit, page)));
        }
    }
    let data = summary.reads + summary.writes;
    summary.footprint_bytes = pages.len() as u64 * PAGE_BYTES;
    summary.non_sequential = if data > 1 { apart as f64 / (data - 1) as f64 } else { 0.0 };
    summary.duration_ns = last.since(first.unwrap_or_default()).as_nanos() as u64;
    summary.units = units.len() as u64;
    summary.tally = trace.tally();
    Ok(summary)
}

impl Summary {
    fn count(&mut self, op: Op, len: u64) {
        self.requests += 1;
        match op {
            Op::Read => {
                self.reads += 1;
                self.read_bytes += len;
            }
            Op::Write => {
                self.writes += 1;
                self.written_bytes += len;
            }
            Op::Flush => self.flushes += 1,
            Op::Discard => self.discards += 1,
            Op::Allocate | Op::Truncate | Op::Create | Op::Delete => self.file_ops += 1,
        }
    }
}
