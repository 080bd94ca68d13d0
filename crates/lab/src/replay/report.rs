//! What a run is measured by, under the names that `replay --json` prints.

use super::driver::Outcome;
use super::ending::Ended;
use super::flash::FlashReport;
use super::flow::Moment;
use super::series::Window;
use crate::stack::{Model, Stack};
use bimetal_base::Error;
use bimetal_base::time::Time;
use bimetal_cache as cache;
use bimetal_cache::device::CacheStatus;
use bimetal_cache::nvram::AbsorbCounts;
use bimetal_ftl::{self as ftl, ssd::SsdStats};
use bimetal_media::disk::DiskStats;
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
    /// What an SSD did beside its flash, where there is one.
    pub ssd: Option<SsdStats>,
    /// What a disk did, where there is one.
    pub disk: Option<DiskStats>,
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
            ssd: told.model.ssd(),
            disk: told.model.disk(),
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

impl Merges {
    fn of(counts: &ftl::FtlCounts) -> Merges {
        let ftl::FtlCounts { switch_merges: switch, partial_merges: partial, full_merges: full, .. } =
            *counts;
        Merges { switch, partial, full }
    }
}

/// Latencies in figures, ns: count, least, mean and most are exact, the others have three significant figures.
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
    /// Bytes programmed for a byte that reached the flash device; none before the first.
    pub write_amplification: Option<f64>,
    /// What the flash did, in operations and bytes, by what it was done for.
    pub flash: Option<FlashReport>,
    /// What an SSD did beside its flash.
    pub ssd: Option<SsdStats>,
    /// What a disk's arm and memory did.
    pub disk: Option<DiskStats>,
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
    /// What was done in each window of `--every`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Window>,
    /// Merges, copies and erases as the run went on: a page draws them.
    #[serde(skip)]
    pub flow: Vec<Moment>,
    /// Erases of each block at the end, those before the run among them: a page draws them.
    #[serde(skip)]
    pub erases_by_block: Vec<u32>,
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
    /// What its flash, made for a size, has less of than the profile says, in words.
    pub device_lacks: Option<String>,
    /// Closed or open.
    pub pace: String,
    /// Requests under way at most (closed).
    pub queue_depth: Option<u32>,
    /// How much faster than recorded (open).
    pub speed: Option<f64>,
    /// In which order bare flash did what its translation layer decided on.
    pub timing: String,
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
        let flash =
            before.flash.zip(after.flash).map(|(before, after)| FlashReport::between(&before, &after));
        let total = flash.map(|flash| flash.done.total.work);
        RunReport {
            ended: Ended::of(outcome.stopped.as_ref()),
            requests: meter.requests(),
            pages_read: after.pages_read - before.pages_read,
            pages_written,
            pages_programmed: total.map(|total| total.programs),
            pages_copied: total.map(|total| total.copies),
            erases: total.map(|total| total.erases),
            merges: flash.map(|flash| Merges::of(&flash.ftl)),
            write_amplification: flash.and_then(|flash| flash.write_amplification()),
            flash,
            ssd: before.ssd.zip(after.ssd).map(|(before, after)| after.since(&before)),
            disk: before.disk.zip(after.disk).map(|(before, after)| after.since(&before)),
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
            series: Vec::new(),
            flow: Vec::new(),
            erases_by_block: Vec::new(),
            config,
        }
    }

    /// Of a run that could not begin.
    pub(super) fn refused(why: &Error, config: RunConfig) -> RunReport {
        RunReport { ended: Ended::before(why), config, ..RunReport::default() }
    }
}

/// Latencies and counts while a run goes on.
pub(super) struct Meter {
    by_op: [Option<Spread>; Op::ALL.len()],
    counts: [u64; Op::ALL.len()],
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub passed_over: u64,
    pub out_of_order: u64,
}

/// Three significant figures, any range.
fn histogram() -> Histogram<u64> {
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
        self.by_op[op as usize].get_or_insert_default().record(latency);
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
        let mut all = Spread::default();
        self.by_op.iter().flatten().for_each(|one| all.add(one));
        all.figures()
    }

    pub fn latency_by_operation(&self) -> BTreeMap<&'static str, Latency> {
        let of = |op: Op| self.by_op[op as usize].as_ref().map(|spread| (op.name(), spread.figures()));
        Op::ALL.into_iter().filter_map(of).collect()
    }
}

/// Latencies of one kind: how they are spread, and their extremes and sum exactly.
#[derive(Clone)]
pub(super) struct Spread {
    histogram: Histogram<u64>,
    min: u64,
    max: u64,
    sum: u128,
}

impl Default for Spread {
    fn default() -> Spread {
        Spread { histogram: histogram(), min: u64::MAX, max: 0, sum: 0 }
    }
}

impl Spread {
    /// Adds a latency, ns.
    #[inline]
    pub fn record(&mut self, latency: u64) {
        self.min = self.min.min(latency);
        self.max = self.max.max(latency);
        self.sum += u128::from(latency);
        // It grows with what it is given; what no memory can hold counts as the most it has.
        if self.histogram.record(latency).is_err() {
            self.histogram.saturating_record(latency);
        }
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Spread) {
        // It grows with what is added.
        let _ = self.histogram.add(&other.histogram);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// In figures.
    pub fn figures(&self) -> Latency {
        let count = self.histogram.len();
        if count == 0 {
            return Latency::default();
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile).clamp(self.min, self.max);
        Latency {
            count,
            min: self.min,
            mean: self.sum as f64 / count as f64,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: self.max,
        }
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
        assert_eq!((latency.count, latency.min, latency.max), (1001, 0, 1_000_000));
        assert_eq!(latency.mean, (1..=1000).map(|n| n * 1000).sum::<u64>() as f64 / 1001.0);
        let writes = meter.latency_by_operation()["write"];
        assert_eq!((writes.min, writes.mean, writes.max), (1000, 500_500.0, 1_000_000));
        let near = |value: u64, expected: f64| (value as f64 / expected - 1.0).abs() < 0.002;
        assert!(near(latency.p50, 500e3) && near(latency.p99, 990e3), "{latency:?}");
        assert_eq!(meter.operations(), BTreeMap::from([("flush", 1), ("write", 1000)]));
        assert_eq!(meter.latency_by_operation().len(), 2);
        assert_eq!(meter.bytes_written, 512_000);
    }
}
