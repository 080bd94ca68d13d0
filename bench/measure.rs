//! What one measurement is: the wall time of some operations, and where it went.
//!
//! Wall time is what the client waited. CPU time is the client's and the server's own, without the kernel's threads
//! (jbd2, loop, write-back), which flatters the kernel's file systems. Requests, writes, flushes and waits are what
//! was counted until the last operation returned; what is written behind comes after.

use crate::meter::{Meters, Usage};
use crate::targets::Target;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::time::Instant;

/// One measurement, an operation.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What the client waited, µs.
    pub wall_us: f64,
    /// What the client computed, µs.
    pub client_us: f64,
    /// What the server computed, µs.
    pub server_us: f64,
    /// Requests through FUSE.
    pub requests: f64,
    /// What the SSD was asked for.
    pub ssd: Option<Share>,
    /// What the disk was asked for.
    pub disk: Option<Share>,
}

/// What a device was asked for, an operation.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Reads.
    pub reads: f64,
    /// Writes.
    pub writes: f64,
    /// KiB written.
    pub written_kib: f64,
    /// Flushes; a durable write counts as one.
    pub flushes: f64,
    /// Waits of all threads, those in the background too, µs.
    pub wait_us: f64,
}

impl Share {
    fn of(usage: Usage, operations: f64) -> Share {
        Share {
            reads: usage.reads as f64 / operations,
            writes: usage.writes as f64 / operations,
            written_kib: usage.written_bytes as f64 / 1024.0 / operations,
            flushes: usage.flushes as f64 / operations,
            wait_us: usage.wait_ns as f64 / 1000.0 / operations,
        }
    }
}

/// All samples, by work and target.
#[derive(Debug, Default)]
pub struct Samples {
    /// Work in the order it was first measured.
    pub works: Vec<&'static str>,
    /// Targets in the order they are shown.
    pub targets: Vec<String>,
    all: BTreeMap<(&'static str, String), Vec<Sample>>,
}

impl Samples {
    /// None yet, of these targets.
    pub fn of_targets(targets: &[Target]) -> Samples {
        Samples { targets: targets.iter().map(|target| target.name.clone()).collect(), ..Samples::default() }
    }

    /// Notes one sample.
    pub fn add(&mut self, work: &'static str, target: &str, sample: Sample) {
        if !self.works.contains(&work) {
            self.works.push(work);
        }
        self.all.entry((work, target.into())).or_default().push(sample);
    }

    /// The samples of one cell.
    pub fn of(&self, work: &'static str, target: &str) -> &[Sample] {
        self.all.get(&(work, target.to_string())).map_or(&[], Vec::as_slice)
    }
}

/// A measurement under way.
pub struct Stopwatch<'a> {
    target: &'a Target,
    before: Meters,
    client_ns: u64,
    wall: Instant,
}

impl Stopwatch<'_> {
    /// Starts one.
    pub fn start(target: &Target) -> Stopwatch<'_> {
        let before = target.meters();
        Stopwatch { target, before, client_ns: client_ns(), wall: Instant::now() }
    }

    /// Ends it, after `operations`.
    pub fn stop(self, operations: u64) -> Sample {
        let wall_ns = self.wall.elapsed().as_nanos() as f64;
        let client_ns = client_ns() - self.client_ns;
        let spent = self.target.meters() - self.before;
        let operations = operations.max(1) as f64;
        let each = |ns: f64| ns / 1000.0 / operations;
        Sample {
            wall_us: each(wall_ns),
            client_us: each(client_ns as f64),
            server_us: each(spent.server_ns as f64),
            requests: spent.requests as f64 / operations,
            ssd: spent.ssd.map(|usage| Share::of(usage, operations)),
            disk: spent.disk.map(|usage| Share::of(usage, operations)),
        }
    }
}

/// CPU time of this process and its ended children.
fn client_ns() -> u64 {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    own.tv_sec as u64 * 1_000_000_000 + own.tv_nsec as u64 + children_ns()
}

fn children_ns() -> u64 {
    // SAFETY: `usage` is plain data that the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}
