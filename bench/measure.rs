//! What one measurement is: wall and CPU time of some operations, of client and server together.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// Time of one measurement, µs an operation.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What the client waited.
    pub wall_us: f64,
    /// What client and server computed.
    pub cpu_us: f64,
}

/// All samples, by work and target.
#[derive(Debug, Default)]
pub struct Samples {
    /// Work in the order it was first measured.
    pub works: Vec<&'static str>,
    /// Targets in the order they were first measured.
    pub targets: Vec<String>,
    all: BTreeMap<(&'static str, String), Vec<Sample>>,
}

impl Samples {
    /// Notes one sample.
    pub fn add(&mut self, work: &'static str, target: &str, sample: Sample) {
        if !self.works.contains(&work) {
            self.works.push(work);
        }
        if !self.targets.iter().any(|known| known == target) {
            self.targets.push(target.into());
        }
        self.all.entry((work, target.into())).or_default().push(sample);
    }

    /// The samples of one cell.
    pub fn of(&self, work: &'static str, target: &str) -> &[Sample] {
        self.all.get(&(work, target.to_string())).map_or(&[], Vec::as_slice)
    }
}

/// A measurement under way.
pub struct Stopwatch {
    server: Option<u32>,
    wall: Instant,
    cpu_ns: u64,
}

impl Stopwatch {
    /// Starts one; `server` is the process whose CPU time counts too.
    pub fn start(server: Option<u32>) -> Stopwatch {
        Stopwatch { server, cpu_ns: cpu_ns(server), wall: Instant::now() }
    }

    /// Ends it, after `operations`.
    pub fn stop(self, operations: u64) -> Sample {
        let wall_ns = self.wall.elapsed().as_nanos() as f64;
        let cpu_ns = (cpu_ns(self.server) - self.cpu_ns) as f64;
        let each = |ns: f64| ns / 1000.0 / operations.max(1) as f64;
        Sample { wall_us: each(wall_ns), cpu_us: each(cpu_ns) }
    }
}

/// CPU time of this process, its ended children, and all threads of `server`.
fn cpu_ns(server: Option<u32>) -> u64 {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own_ns = own.tv_sec as u64 * 1_000_000_000 + own.tv_nsec as u64;
    own_ns + children_ns() + server.map_or(0, threads_ns)
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

/// The first field of `schedstat` is the time on a processor, ns.
fn threads_ns(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let of_thread = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(of_thread).sum()
}
