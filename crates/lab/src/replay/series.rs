//! `--every SPAN`: what a run did, window by window of virtual time.
//!
//! A request counts in the window in which it is done. What the flash did counts in the window of the last request that came
//! before it: a model is looked at when the first request of a later window comes. Windows in which nothing was done are left
//! out, so that a series is no longer than the trace.
//!
//! Invariant: what is done before an arrival has ended when that is told, so that the windows before it are whole.
//! Cost: O(log open windows) a request, and a look at the layers for each window.

use super::driver::{Observer, Served};
use super::report::{Latency, Measured, RunReport, Spread};
use super::rows::{self, Cell, drop_silent_columns, latencies, show_ns};
use crate::stack::Stack;
use bimetal_base::time::Time;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_ftl as ftl;
use bimetal_trace::Op;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// More windows than that are taken for a mistake.
const WINDOWS_MAX: usize = 1_000_000;
/// Windows at most that are not whole yet; each has a histogram of up to 200 KiB.
const OPEN_MAX: usize = 1024;

/// What was done in a span of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Window {
    /// When it begins, from the beginning of the run, ns.
    pub from_ns: u64,
    /// Requests of the trace that were done in it.
    pub requests: u64,
    /// Of them, reads.
    pub reads: u64,
    /// Of them, writes.
    pub writes: u64,
    /// Bytes that the reads were of.
    pub bytes_read: u64,
    /// Bytes that the writes were of.
    pub bytes_written: u64,
    /// From arrival to completion.
    pub latency_ns: Latency,
    /// Pages that flash programmed, copies included; none where there is no flash.
    pub pages_programmed: Option<u64>,
    /// Of them, pages copied.
    pub pages_copied: Option<u64>,
    /// Erases.
    pub erases: Option<u64>,
    /// Bytes programmed for a byte that reached the flash device in the window; none where none did.
    pub write_amplification: Option<f64>,
}

/// The columns of a window of a run, in order.
fn row(run: &RunReport, window: &Window) -> Vec<(&'static str, Cell)> {
    let count = |count| Cell::Count(Some(count));
    let mut cells = vec![
        ("run", Cell::Text(Some(run.config.run.clone()))),
        ("from_ns", count(window.from_ns)),
        ("requests", count(window.requests)),
        ("reads", count(window.reads)),
        ("writes", count(window.writes)),
        ("bytes_read", count(window.bytes_read)),
        ("bytes_written", count(window.bytes_written)),
    ];
    cells.extend(latencies(&window.latency_ns));
    cells.extend([
        ("pages_programmed", Cell::Count(window.pages_programmed)),
        ("pages_copied", Cell::Count(window.pages_copied)),
        ("erases", Cell::Count(window.erases)),
        ("write_amplification", Cell::Number(window.write_amplification)),
    ]);
    cells
}

/// Writes the windows of all runs: Parquet if the name ends so, else CSV.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, runs: &[RunReport]) -> Result<()> {
    let rows = runs.iter().flat_map(|run| run.series.iter().map(move |window| row(run, window)));
    rows::write(path, &rows.collect::<Vec<_>>())
}

/// The windows of a run as a table for people.
pub(super) fn table(run: &RunReport) -> Vec<Vec<String>> {
    let dash = || "-".to_string();
    let optional = |count: Option<u64>| count.map_or_else(dash, |count| count.to_string());
    let header = ["from", "requests", "read", "written", "programmed", "WA", "erases", "p50", "p99", "max"];
    let line = |window: &Window| {
        let latency = &window.latency_ns;
        vec![
            show_ns(window.from_ns),
            window.requests.to_string(),
            show_size(window.bytes_read),
            show_size(window.bytes_written),
            optional(window.pages_programmed),
            window.write_amplification.map_or_else(dash, |wa| format!("{wa:.3}")),
            optional(window.erases),
            show_ns(latency.p50),
            show_ns(latency.p99),
            show_ns(latency.max),
        ]
    };
    let lines = run.series.iter().map(line);
    drop_silent_columns([header.map(str::to_string).to_vec()].into_iter().chain(lines).collect())
}

/// A window that is not whole yet.
#[derive(Default)]
struct Open {
    counts: Window,
    latency: Spread,
}

/// A run being looked at.
pub(super) struct Series<'a> {
    stack: &'a Stack,
    start: Time,
    /// Nanoseconds of a window.
    every: u64,
    seen: RefCell<Seen>,
}

#[derive(Default)]
struct Seen {
    /// By number.
    open: BTreeMap<u64, Open>,
    whole: Vec<Window>,
    /// In which the last request came.
    at: u64,
    /// What the flash had done when its window began.
    flash: Option<ftl::Report>,
    /// There are more windows than can be kept.
    overflowed: bool,
}

impl<'a> Series<'a> {
    /// Of a run that begins now, `before` which so much was counted.
    pub fn new(every: Duration, stack: &'a Stack, start: Time, before: &Measured) -> Series<'a> {
        let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
        Series { stack, start, every, seen: RefCell::new(Seen { flash: before.flash, ..Seen::default() }) }
    }

    fn number(&self, at: Time) -> u64 {
        at.0.saturating_sub(self.start.0) / self.every
    }

    /// All that was seen.
    ///
    /// # Errors
    /// There are more windows than can be kept.
    pub fn finish(self) -> Result<Vec<Window>> {
        let mut seen = self.seen.into_inner();
        seen.look(self.stack);
        seen.close(u64::MAX, self.every);
        match seen.overflowed {
            true => Err(Error::invalid(format!(
                "--every: more than {WINDOWS_MAX} windows, or {OPEN_MAX} at once that requests under way end in; choose a longer span"
            ))),
            false => Ok(seen.whole),
        }
    }
}

impl Observer for Series<'_> {
    fn arrived(&self, at: Time) {
        let number = self.number(at);
        let mut seen = self.seen.borrow_mut();
        if number > seen.at {
            seen.look(self.stack);
            seen.close(number, self.every);
            seen.at = number;
        }
    }

    fn served(&self, served: &Served) {
        let number = self.number(served.done);
        let mut seen = self.seen.borrow_mut();
        if let Some(open) = seen.open(number) {
            let counts = &mut open.counts;
            counts.requests += 1;
            match served.op {
                Op::Read => {
                    (counts.reads, counts.bytes_read) = (counts.reads + 1, counts.bytes_read + served.len)
                }
                Op::Write => {
                    (counts.writes, counts.bytes_written) =
                        (counts.writes + 1, counts.bytes_written + served.len);
                }
                _ => {}
            }
            open.latency.record(served.done.0.saturating_sub(served.arrived.0));
        }
    }
}

impl Seen {
    /// The window of that number, if it can be kept.
    fn open(&mut self, number: u64) -> Option<&mut Open> {
        let is_there = self.open.contains_key(&number);
        if !is_there && (self.open.len() >= OPEN_MAX || self.whole.len() + self.open.len() >= WINDOWS_MAX) {
            self.overflowed = true;
            return None;
        }
        Some(self.open.entry(number).or_default())
    }

    /// What the flash did until now belongs to the window in which the last request came.
    fn look(&mut self, stack: &Stack) {
        let Some((before, now)) = self.flash.zip(stack.told.model.flash()) else { return };
        let (nand, work) = (now.nand.since(&before.nand), now.work.since(&before.work).total());
        let written = now.host_bytes.since(&before.host_bytes).written;
        self.flash = Some(now);
        let number = self.at;
        if let Some(Open { counts, .. }) = self.open(number) {
            counts.pages_programmed = Some(work.programs);
            counts.pages_copied = Some(work.copies);
            counts.erases = Some(nand.erases);
            counts.write_amplification = ftl::amplification(work.programs * now.page_bytes, written);
        }
    }

    /// The windows before `number` are whole.
    fn close(&mut self, number: u64, every: u64) {
        let still = self.open.split_off(&number);
        for (number, open) in std::mem::replace(&mut self.open, still) {
            let latency_ns = open.latency.figures();
            let counts = open.counts;
            if counts.requests > 0
                || counts.pages_programmed.is_some_and(|n| n > 0)
                || counts.erases.is_some_and(|n| n > 0)
            {
                self.whole.push(Window { from_ns: number.saturating_mul(every), latency_ns, ..counts });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Args, RunReport, replay};

    /// Also of an SSD whose memory survives power loss, and of which no flush asks anything.
    #[test]
    fn what_preconditioning_wrote_is_not_the_runs() {
        for kind in ["fill", "random"] {
            for device in ["ssd-slc --device-size 24MiB", "ssd-tlc --device-size 256MiB"] {
                let what = format!("{device}, {kind}");
                let read = "gen:zipf:pages=1000:requests=1:read=100";
                let run = made(&format!("{read} --device {device} --precondition {kind}"));
                assert_eq!((run.pages_programmed, run.pages_copied), (Some(0), Some(0)), "{what}");
                let flash = serde_json::to_value(run.flash.unwrap()).unwrap();
                assert_eq!(flash["done"]["host"]["programs"], 0, "{what}");
                assert!(flash["preconditioning"]["host"]["programs"].as_u64() > Some(0), "{what}: {flash}");
            }
        }
    }

    const RUN: &str = "gen:iometer:size=8MiB:requests=3000:random=100:read=30";

    fn made(line: &str) -> RunReport {
        replay(&Args::parse(line).unwrap()).unwrap().remove(0)
    }

    #[test]
    fn the_windows_of_a_run_add_up_to_it_and_are_those_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.csv");
        for device in [
            "--ftl bast --device slc-2k --device-size 10MiB --precondition fill",
            "--device ssd-slc --queue-depth 8",
            "--device hdd-7200 --pace open",
            "--device ssd-tlc --pace open --speed 10",
            "--cache lru --cache-size 1MiB --device hdd-7200 --queue-depth 4",
        ] {
            let run = made(&format!("{RUN} {device} --every 10ms --request-log {}", log.display()));
            let series = &run.series;
            let sum = |of: fn(&super::Window) -> u64| series.iter().map(of).sum::<u64>();
            assert_eq!(
                (sum(|w| w.requests), sum(|w| w.bytes_read)),
                (run.requests, run.bytes_read),
                "{device}"
            );
            assert_eq!(sum(|w| w.bytes_written), run.bytes_written, "{device}");
            let flash =
                |of: fn(&super::Window) -> Option<u64>| series.iter().filter_map(of).reduce(|a, b| a + b);
            // What the end writes back is the run's, and no request's.
            if run.cache.is_none() {
                assert_eq!(flash(|w| w.pages_programmed), run.pages_programmed, "{device}");
                assert_eq!((flash(|w| w.pages_copied), flash(|w| w.erases)), (run.pages_copied, run.erases));
            }
            assert!(series.windows(2).all(|two| two[0].from_ns < two[1].from_ns), "{device}");
            assert!(
                series.iter().all(|window| window.from_ns % 10_000_000 == 0) && series.len() > 1,
                "{device}"
            );
            assert_eq!(series.iter().map(|window| window.latency_ns.max).max(), Some(run.latency_ns.max));

            let text = std::fs::read_to_string(&log).unwrap();
            let number = |cell: &str| cell.parse::<u64>().unwrap();
            let mut counted = std::collections::BTreeMap::<u64, (u64, u64)>::new();
            for line in text.lines().skip(1) {
                let cells: Vec<&str> = line.split(',').collect();
                let (arrived, latency) = (number(cells[4]), number(cells[5]));
                let window = counted.entry((arrived + latency) / 10_000_000 * 10_000_000).or_default();
                *window = (window.0 + 1, window.1.max(latency));
            }
            let seen = series.iter().filter(|window| window.requests > 0);
            let seen: Vec<_> = seen.map(|w| (w.from_ns, (w.requests, w.latency_ns.max))).collect();
            assert_eq!(counted.into_iter().collect::<Vec<_>>(), seen, "{device}");
        }
    }

    #[test]
    fn a_run_that_is_looked_at_is_the_same_run() {
        let line = format!("{RUN} --ftl page --device slc-4k --device-size 10MiB --precondition fill");
        let (plain, seen) = (made(&line), made(&format!("{line} --every 1ms")));
        assert!(plain.series.is_empty() && !seen.series.is_empty());
        let without = RunReport { series: Vec::new(), ..seen };
        assert_eq!(serde_json::to_string(&without).unwrap(), serde_json::to_string(&plain).unwrap());
    }

    #[test]
    fn what_makes_no_series_is_refused() {
        let told = |rest: &str| {
            let args = Args::parse(&format!("gen:iometer:size=1MiB:requests=5000 {rest}"));
            args.and_then(|args| replay(&args)).unwrap_err().to_string()
        };
        assert!(told("--series x.csv").contains("--every"));
        assert!(told("--device hdd-7200 --every 0s").contains("at least 1ns"));
        assert!(told("--ftl page --every 1s --timing off").contains("nothing takes time"));
        assert!(told("--ftl page,bast --request-log x.csv").contains("of one run, and these are 2"));
        assert!(told("--csv x.csv --every 1s --series x.csv").contains("--csv writes to it, too"));
        assert!(told("--device hdd-7200 --request-log none/x.csv").contains("none/x.csv"));
    }

    #[test]
    fn more_windows_at_once_than_can_be_kept_are_told() {
        let mut seen = super::Seen::default();
        assert!((0..super::OPEN_MAX as u64).all(|number| seen.open(number).is_some()) && !seen.overflowed);
        assert!(seen.open(1).is_some() && seen.open(super::OPEN_MAX as u64).is_none() && seen.overflowed);
    }
}
