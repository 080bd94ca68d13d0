//! What a run is measured by, under the names that `replay --json` prints.

use super::driver::Outcome;
use super::ending::Ended;
use crate::stack::{Model, Stack};
use bimetal_base::Error;
use bimetal_base::time::Time;
use bimetal_cache as cache;
use bimetal_cache::device::CacheStatus;
use bimetal_cache::nvram::AbsorbCounts;
use bimetal_ftl as ftl;
use bimetal_media::nand::Wear;
use bimetal_trace::{Op, Tally};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// What the layers counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub page_bytes: u64,
    pub pages_read: u64,
    pub pages_written: u64,
    pub partial_page_writes: Option<u64>,
    /// Requests that a write cache took, where there is one.
    pub absorbed: Option<u64>,
    /// What a non-volatile write cache did, where there is one.
    pub nvram: Option<AbsorbCounts>,
    /// What the flash did, where there is some.
    pub flash: Option<ftl::Report>,
    /// What the cache did, where there is one.
    pub cache: Option<CacheReport>,
}

impl Measured {
    /// What was counted so far.
    pub fn of(stack: &Stack) -> Measured {
        let told = &stack.told;
        let (pages_read, pages_written) = told.pages.counts();
        let counted =
            Measured { page_bytes: told.page_bytes(), pages_read, pages_written, ..Measured::default() };
        let counted = match &told.model {
            Model::Flash(flash) => {
                let host = flash.report().ftl;
                let partial_page_writes = Some(flash.partial_writes());
                let (pages_read, pages_written) = (host.host_reads, host.host_writes);
                Measured { pages_read, pages_written, partial_page_writes, ..counted }
            }
            _ => counted,
        };
        Measured {
            absorbed: told.absorbed.as_ref().map(|absorbing| absorbing.absorbed()),
            nvram: told.nvram.as_ref().map(|nvram| nvram.counts()),
            flash: told.model.flash(),
            cache: told.cache.as_ref().map(|cache| CacheReport::of(&cache.status())),
            ..counted
        }
    }
}

/// What a page cache was and did.
#[derive(Clone, Debug, Serialize)]
pub struct CacheReport {
    /// The policy with all its options.
    pub policy: String,
    /// Pages it holds at most.
    pub capacity_pages: u32,
    /// Bytes of a page of it.
    pub page_bytes: u64,
    /// Pages dirty at the end of the run.
    pub dirty_pages_left: u32,
    /// Bytes of memory beside the contents of the pages.
    pub overhead_bytes: u64,
    /// What it counted, pages.
    pub counts: cache::Stats,
}

impl CacheReport {
    fn of(status: &CacheStatus) -> CacheReport {
        let pages = |bytes: u64| (bytes / status.page_bytes) as u32;
        CacheReport {
            policy: status.policy.clone(),
            capacity_pages: pages(status.capacity_bytes),
            page_bytes: status.page_bytes,
            dirty_pages_left: pages(status.dirty_bytes),
            overhead_bytes: status.overhead_bytes,
            counts: status.counts,
        }
    }
}

/// Merges by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Merges {
    /// A log block became the data block as it was.
    pub switch: u64,
    /// After the rest was copied to it.
    pub partial: u64,
    /// Gathered from several blocks.
    pub full: u64,
}

/// Latencies in figures, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many requests.
    pub count: u64,
    /// Least.
    pub min: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// 99.99th percentile.
    pub p99_99: u64,
    /// Most.
    pub max: u64,
}

/// What one run gave. Figures a stack cannot have (merges without an FTL, hits without a cache) are null.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunReport {
    /// How it ended. What follows is what was reached until then.
    pub ended: Ended,
    /// Requests of the trace that were served.
    pub requests: u64,
    /// Pages read from the device, below the cache; of [`page_bytes`](Self::page_bytes) each.
    pub pages_read: u64,
    /// Pages written to it.
    pub pages_written: u64,
    /// Pages that flash programmed, copies included.
    pub pages_programmed: Option<u64>,
    /// Of them, pages copied.
    pub pages_copied: Option<u64>,
    /// Erases.
    pub erases: Option<u64>,
    /// Merges by kind.
    pub merges: Option<Merges>,
    /// Pages programmed for a page written; none before the first.
    pub write_amplification: Option<f64>,
    /// Part of the page accesses that the cache answered.
    pub hit_ratio: Option<f64>,
    /// From the first arrival to the last completion.
    pub sim_time_ns: u64,
    /// From arrival to completion.
    pub latency_ns: Latency,
    /// The same by operation.
    pub latency_by_operation_ns: BTreeMap<&'static str, Latency>,
    /// Erases a block.
    pub wear: Option<Wear>,
    /// Bytes of a page above.
    pub page_bytes: u64,
    /// Pages of flash written in part only, so that they were read first.
    pub partial_page_writes: Option<u64>,
    /// Requests that `--absorb` took.
    pub absorbed: Option<u64>,
    /// What the non-volatile write cache of `--nvram` did, blocks of 512 bytes.
    pub nvram: Option<AbsorbCounts>,
    /// Bytes the trace read.
    pub bytes_read: u64,
    /// Bytes it wrote.
    pub bytes_written: u64,
    /// Requests of the trace by operation.
    pub operations: BTreeMap<&'static str, u64>,
    /// Requests that ask nothing of the stack: of another unit, of no bytes, on whole files.
    pub passed_over: u64,
    /// Requests that the trace has out of order of time; they arrive with the one before.
    pub out_of_order: u64,
    /// What was read of the trace.
    pub trace_lines: Tally,
    /// What the cache counted.
    pub cache: Option<CacheReport>,
    /// What the run was.
    pub config: RunConfig,
}

/// What a run was, with every default filled in.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunConfig {
    /// The stack in a few words, as tables and legends name it.
    pub run: String,
    /// The stack without the cache's size: what one curve over sizes is of.
    #[serde(skip)]
    pub series: String,
    /// The trace: a path, or the generator with all its parameters.
    pub trace: String,
    /// The policy with all its options.
    pub cache: Option<String>,
    /// Its size.
    pub cache_bytes: Option<u64>,
    /// The scheme with its settings.
    pub ftl: Option<String>,
    /// The device profile.
    pub device: String,
    /// What can be addressed of it.
    pub device_bytes: Option<u64>,
    /// Closed or open.
    pub pace: String,
    /// Requests under way at most (closed).
    pub queue_depth: Option<u32>,
    /// How much faster than recorded (open).
    pub speed: Option<f64>,
    /// What software takes for each request that reaches the device, ns.
    pub overhead_ns: u64,
    /// Bytes of the address range that a non-volatile write cache takes: first and end.
    pub absorb: Option<(u64, u64)>,
    /// Which writes carried placement handle 1, if not those that the trace marks.
    pub place: Option<String>,
    /// What a non-volatile write cache takes.
    pub nvram: Option<String>,
    /// Bytes of its memory.
    pub nvram_bytes: Option<u64>,
    /// Whether flushes were passed on.
    pub flush: bool,
    /// What becomes of offsets.
    pub fit: String,
    /// What came before.
    pub precondition: String,
    /// What the cache held at the end was written.
    pub drained: bool,
    /// Seed of everything random in the stack.
    pub seed: u64,
    /// This program's version.
    pub version: &'static str,
}

impl RunReport {
    /// What a run gave: its latencies, what its layers counted `before` it and `after`, and what it was.
    pub(super) fn new(
        outcome: &Outcome,
        before: &Measured,
        after: Measured,
        config: RunConfig,
        lines: Tally,
    ) -> RunReport {
        let meter = &outcome.meter;
        let pages_written = after.pages_written - before.pages_written;
        let flash = FlashWork::between(before, &after, pages_written);
        RunReport {
            ended: Ended::of(outcome.stopped.as_ref()),
            requests: meter.requests(),
            pages_read: after.pages_read - before.pages_read,
            pages_written,
            pages_programmed: flash.as_ref().map(|flash| flash.programmed),
            pages_copied: flash.as_ref().map(|flash| flash.copied),
            erases: flash.as_ref().map(|flash| flash.erases),
            merges: flash.as_ref().map(|flash| flash.merges),
            write_amplification: flash.as_ref().and_then(|flash| flash.amplification),
            hit_ratio: after.cache.as_ref().map(|cache| cache.counts.hit_ratio()),
            sim_time_ns: outcome.ended.since(outcome.started).as_nanos() as u64,
            latency_ns: meter.latency(),
            latency_by_operation_ns: meter.latency_by_operation(),
            wear: after.flash.map(|flash| flash.wear),
            page_bytes: after.page_bytes,
            partial_page_writes: after.partial_page_writes,
            absorbed: after.absorbed,
            nvram: after.nvram,
            bytes_read: meter.bytes_read,
            bytes_written: meter.bytes_written,
            operations: meter.operations(),
            passed_over: meter.passed_over,
            out_of_order: meter.out_of_order,
            trace_lines: lines,
            cache: after.cache,
            config,
        }
    }

    /// Of a run that could not begin.
    pub(super) fn refused(why: &Error, config: RunConfig) -> RunReport {
        RunReport { ended: Ended::before(why), config, ..RunReport::default() }
    }
}

/// What the flash did in a run.
struct FlashWork {
    programmed: u64,
    copied: u64,
    erases: u64,
    merges: Merges,
    amplification: Option<f64>,
}

impl FlashWork {
    fn between(before: &Measured, after: &Measured, pages_written: u64) -> Option<FlashWork> {
        let (before, after) = (before.flash.as_ref()?, after.flash.as_ref()?);
        let programmed = after.nand.programs - before.nand.programs;
        Some(FlashWork {
            programmed,
            copied: after.nand.copies - before.nand.copies,
            erases: after.nand.erases - before.nand.erases,
            merges: Merges {
                switch: after.ftl.switch_merges - before.ftl.switch_merges,
                partial: after.ftl.partial_merges - before.ftl.partial_merges,
                full: after.ftl.full_merges - before.ftl.full_merges,
            },
            amplification: (pages_written > 0).then(|| programmed as f64 / pages_written as f64),
        })
    }
}

/// Latencies and counts while a run goes on.
pub(super) struct Meter {
    by_op: [Option<Histogram<u64>>; Op::ALL.len()],
    counts: [u64; Op::ALL.len()],
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub passed_over: u64,
    pub out_of_order: u64,
}

/// Three significant figures, any range.
pub(super) fn histogram() -> Histogram<u64> {
    // Three is a number of figures that the type has.
    Histogram::new(3).unwrap_or_else(|_| unreachable!("3 figures"))
}

impl Meter {
    pub fn new() -> Meter {
        Meter {
            by_op: Default::default(),
            counts: Default::default(),
            bytes_read: 0,
            bytes_written: 0,
            passed_over: 0,
            out_of_order: 0,
        }
    }

    /// A request of the trace that was served.
    pub fn served(&mut self, op: Op, len: u64, arrived: Time, done: Time) {
        let latency = done.0.saturating_sub(arrived.0);
        self.counts[op as usize] += 1;
        match op {
            Op::Read => self.bytes_read += len,
            Op::Write => self.bytes_written += len,
            _ => {}
        }
        record(self.by_op[op as usize].get_or_insert_with(histogram), latency);
    }

    /// How many were served.
    pub fn requests(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Requests by operation, those that occurred.
    pub fn operations(&self) -> BTreeMap<&'static str, u64> {
        let counted = Op::ALL.into_iter().filter(|op| self.counts[*op as usize] > 0);
        counted.map(|op| (op.name(), self.counts[op as usize])).collect()
    }

    /// Latencies of all operations together.
    pub fn latency(&self) -> Latency {
        let mut all = histogram();
        for one in self.by_op.iter().flatten() {
            // It grows with what is added.
            let _ = all.add(one);
        }
        figures(&all)
    }

    pub fn latency_by_operation(&self) -> BTreeMap<&'static str, Latency> {
        let of = |op: Op| self.by_op[op as usize].as_ref().map(|histogram| (op.name(), figures(histogram)));
        Op::ALL.into_iter().filter_map(of).collect()
    }
}

#[inline]
pub(super) fn record(histogram: &mut Histogram<u64>, latency: u64) {
    // It grows with what it is given; what no memory can hold counts as the most it has.
    if histogram.record(latency).is_err() {
        histogram.saturating_record(latency);
    }
}

pub(super) fn figures(histogram: &Histogram<u64>) -> Latency {
    if histogram.is_empty() {
        return Latency::default();
    }
    let at = |quantile| histogram.value_at_quantile(quantile).min(histogram.max());
    Latency {
        count: histogram.len(),
        min: histogram.min(),
        mean: histogram.mean(),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p99_9: at(0.999),
        p99_99: at(0.9999),
        max: histogram.max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_latencies() {
        let mut meter = Meter::new();
        for latency in 1..=1000 {
            meter.served(Op::Write, 512, Time(5), Time(5 + latency * 1000));
        }
        meter.served(Op::Flush, 0, Time(9), Time(9));
        let latency = meter.latency();
        assert_eq!((latency.count, latency.min), (1001, 0));
        let near = |value: u64, expected: f64| (value as f64 / expected - 1.0).abs() < 0.002;
        assert!(
            near(latency.p50, 500e3) && near(latency.p99, 990e3) && near(latency.max, 1e6),
            "{latency:?}"
        );
        assert_eq!(meter.operations(), BTreeMap::from([("flush", 1), ("write", 1000)]));
        assert_eq!(meter.latency_by_operation().len(), 2);
        assert_eq!(meter.bytes_written, 512_000);
    }
}
