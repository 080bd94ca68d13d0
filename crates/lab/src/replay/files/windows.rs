//! `--every SPAN` of a run of calls: what was done, window by window of virtual time.
//!
//! A call counts in the window in which it returns. What the devices did counts in the window of the last call that began or returned
//! before they are looked at, and they are looked at when a call of a later window begins or returns, so that a run that is looked at is the
//! same run. What is made durable at the end is of the last window. Windows in which nothing was done are left out.
//!
//! Cost: a comparison a call, and a look at the devices for each window.

use super::subject::Device;
use crate::replay::report::{Latency, Spread};
use crate::replay::rows::{self, Cell, latencies, show_ns};
use bimetal_base::time::Time;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_ftl as ftl;
use bimetal_media::counted::Counts;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// More windows than that are taken for a mistake.
const WINDOWS_MAX: usize = 1_000_000;

/// What calls did in a span of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CallWindow {
    /// When it begins, from the beginning of the run, ns.
    pub from_ns: u64,
    /// Calls that succeeded in it.
    pub calls: u64,
    /// Calls that failed in it.
    pub failed: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// From call to return, of those that succeeded.
    pub latency_ns: Latency,
    /// What the block devices were asked for and did.
    pub devices: BTreeMap<&'static str, DeviceWindow>,
}

/// What a device did in a span of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceWindow {
    /// What it was asked for; one with a page cache above that.
    pub requests: Counts,
    /// Pages that flash programmed, copies included; none where there is no flash.
    pub pages_programmed: Option<u64>,
    /// Of them, pages copied.
    pub pages_copied: Option<u64>,
    /// Erases.
    pub erases: Option<u64>,
}

/// The devices of a run, and what each is called.
pub(super) type Devices = Arc<[(&'static str, Device)]>;

/// What a device was asked for and did so far.
type Look = (Counts, Option<ftl::Report>);

/// A run being looked at.
pub(super) struct Windows {
    devices: Devices,
    began: Time,
    /// Nanoseconds of a window.
    every: u64,
    /// The window of the last call that began or returned.
    at: u64,
    open: CallWindow,
    latency: Spread,
    /// What the devices had done when it began.
    before: Vec<Look>,
    whole: Vec<CallWindow>,
    overflowed: bool,
}

fn look(devices: &Devices) -> Vec<Look> {
    devices.iter().map(|(_, device)| device.look()).collect()
}

fn difference((counts, flash): &Look, (before, flash_before): &Look) -> DeviceWindow {
    let done = flash.zip(*flash_before).map(|(now, before)| {
        let work = now.work.since(&before.work).total();
        (work.programs, work.copies, now.nand.since(&before.nand).erases)
    });
    DeviceWindow {
        requests: *counts - *before,
        pages_programmed: done.map(|(programs, _, _)| programs),
        pages_copied: done.map(|(_, copies, _)| copies),
        erases: done.map(|(_, _, erases)| erases),
    }
}

impl DeviceWindow {
    fn did_something(&self) -> bool {
        let flash = [self.pages_programmed, self.erases].into_iter().flatten();
        self.requests != Counts::default() || flash.sum::<u64>() > 0
    }
}

impl Windows {
    /// Of a run that begins now.
    pub fn new(every: Duration, devices: Devices, began: Time) -> Windows {
        Windows {
            before: look(&devices),
            devices,
            began,
            every: u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1),
            at: 0,
            open: CallWindow::default(),
            latency: Spread::default(),
            whole: Vec::new(),
            overflowed: false,
        }
    }

    /// A call begins or returns.
    pub fn see(&mut self, now: Time) {
        let number = now.0.saturating_sub(self.began.0) / self.every;
        if number > self.at {
            self.close();
            self.at = number;
        }
    }

    /// A call returns after so long: the bytes that it read, and wrote, or none if it failed.
    pub fn returned(&mut self, now: Time, took_ns: u64, done: Option<(u64, u64)>) {
        self.see(now);
        match done {
            Some((read, written)) => {
                self.open.calls += 1;
                self.open.bytes_read += read;
                self.open.bytes_written += written;
                self.latency.record(took_ns);
            }
            None => self.open.failed += 1,
        }
    }

    /// The window is whole.
    fn close(&mut self) {
        let now = look(&self.devices);
        let did = now.iter().zip(&self.before).map(|(now, before)| difference(now, before));
        let devices: BTreeMap<_, _> = self.devices.iter().map(|(name, _)| *name).zip(did).collect();
        self.before = now;
        let latency_ns = std::mem::take(&mut self.latency).figures();
        let from_ns = self.at.saturating_mul(self.every);
        let window = CallWindow { from_ns, latency_ns, devices, ..std::mem::take(&mut self.open) };
        let is_something = window.calls + window.failed > 0;
        if is_something || window.devices.values().any(DeviceWindow::did_something) {
            self.overflowed |= self.whole.len() == WINDOWS_MAX;
            if !self.overflowed {
                self.whole.push(window);
            }
        }
    }

    /// All that was seen.
    ///
    /// # Errors
    /// There are more windows than can be kept.
    pub fn finish(mut self) -> Result<Vec<CallWindow>> {
        self.close();
        match self.overflowed {
            true => Err(Error::invalid(format!(
                "--every: there are more than {WINDOWS_MAX} windows; choose a longer span"
            ))),
            false => Ok(self.whole),
        }
    }
}

/// The columns of a device: requests, and what its flash did.
fn columns(device: &str) -> [&'static str; 8] {
    match device {
        "ssd" => [
            "ssd_reads",
            "ssd_read_bytes",
            "ssd_writes",
            "ssd_write_bytes",
            "ssd_flushes",
            "ssd_pages_programmed",
            "ssd_pages_copied",
            "ssd_erases",
        ],
        "disk" => [
            "disk_reads",
            "disk_read_bytes",
            "disk_writes",
            "disk_write_bytes",
            "disk_flushes",
            "disk_pages_programmed",
            "disk_pages_copied",
            "disk_erases",
        ],
        _ => [
            "device_reads",
            "device_read_bytes",
            "device_writes",
            "device_write_bytes",
            "device_flushes",
            "device_pages_programmed",
            "device_pages_copied",
            "device_erases",
        ],
    }
}

fn row(window: &CallWindow) -> Vec<(&'static str, Cell)> {
    let count = |count| Cell::Count(Some(count));
    let mut cells = vec![
        ("from_ns", count(window.from_ns)),
        ("calls", count(window.calls)),
        ("failed", count(window.failed)),
        ("bytes_read", count(window.bytes_read)),
        ("bytes_written", count(window.bytes_written)),
    ];
    cells.extend(latencies(&window.latency_ns));
    for (name, device) in &window.devices {
        let asked = &device.requests;
        let requests =
            [asked.reads, asked.read_bytes, asked.writes, asked.write_bytes, asked.flushes].map(Some);
        let flash = [device.pages_programmed, device.pages_copied, device.erases];
        let counts = requests.into_iter().chain(flash).map(Cell::Count);
        cells.extend(columns(name).into_iter().zip(counts));
    }
    cells
}

/// Writes the windows: Parquet if the name ends so, else CSV.
///
/// # Errors
/// The file cannot be written.
pub(in crate::replay) fn write(path: &Path, windows: &[CallWindow]) -> Result<()> {
    rows::write(path, &windows.iter().map(row).collect::<Vec<_>>())
}

/// The windows as a table for people.
pub(in crate::replay) fn table(windows: &[CallWindow]) -> Vec<Vec<String>> {
    let names = windows.first().map(|window| window.devices.keys().copied().collect::<Vec<_>>());
    let mut header: Vec<String> =
        ["from", "calls", "read", "written", "p50", "p99", "max"].map(str::to_string).into();
    for name in names.unwrap_or_default() {
        header.extend([format!("{name} read"), format!("{name} written")]);
    }
    let line = |window: &CallWindow| {
        let latency = &window.latency_ns;
        let mut line = vec![
            show_ns(window.from_ns),
            window.calls.to_string(),
            show_size(window.bytes_read),
            show_size(window.bytes_written),
            show_ns(latency.p50),
            show_ns(latency.p99),
            show_ns(latency.max),
        ];
        for device in window.devices.values() {
            line.extend([show_size(device.requests.read_bytes), show_size(device.requests.write_bytes)]);
        }
        line
    };
    [header].into_iter().chain(windows.iter().map(line)).collect()
}
