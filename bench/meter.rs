//! Counters outside the program: of a mount of bimetal, by its status; of a loop device, by the kernel.

use bimetal::front::fuse::STATUS;
use serde_json::Value;
use std::fs;
use std::ops::Sub;
use std::path::{Path, PathBuf};

/// What a device was asked for so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes and durable writes.
    pub flushes: u64,
    /// Time that requests were waited for, ns.
    pub wait_ns: u64,
}

impl Sub for Usage {
    type Output = Usage;
    fn sub(self, earlier: Usage) -> Usage {
        Usage {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
        }
    }
}

/// All counters of a target at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meters {
    /// CPU time of the server, ns.
    pub server_ns: u64,
    /// Requests through FUSE.
    pub requests: u64,
    /// The SSD, if the target has one.
    pub ssd: Option<Usage>,
    /// The disk, if the target has one.
    pub disk: Option<Usage>,
}

impl Sub for Meters {
    type Output = Meters;
    fn sub(self, earlier: Meters) -> Meters {
        let less = |now: Option<Usage>, then: Option<Usage>| now.zip(then).map(|(now, then)| now - then);
        Meters {
            server_ns: self.server_ns.saturating_sub(earlier.server_ns),
            requests: self.requests.saturating_sub(earlier.requests),
            ssd: less(self.ssd, earlier.ssd),
            disk: less(self.disk, earlier.disk),
        }
    }
}

/// What a mount of bimetal says of itself; `None` where something else is mounted.
pub fn status(place: &Path) -> Option<Value> {
    let mut text = Vec::with_capacity(64 << 10);
    rustix::fs::getxattr(place, STATUS, rustix::buffer::spare_capacity(&mut text)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The counters in a status.
pub fn of_status(status: &Value, server: u32) -> Meters {
    let requests = status["front"]["requests"].as_object();
    Meters {
        server_ns: threads_ns(server),
        // Asking for the status itself is one, and no work.
        requests: requests.map_or(0, |kinds| {
            kinds.iter().filter(|(kind, _)| *kind != "getxattr").filter_map(|(_, count)| count.as_u64()).sum()
        }),
        ssd: device(&status["devices"]["ssd"]),
        disk: device(&status["devices"]["disk"]),
    }
}

fn device(shown: &Value) -> Option<Usage> {
    let count = |name: &str| shown["requests"][name].as_u64();
    let waits = shown["waits"].as_object()?;
    Some(Usage {
        reads: count("reads")?,
        writes: count("writes")?,
        written_bytes: count("write_bytes")?,
        flushes: count("flushes")? + count("durable_writes")?,
        wait_ns: waits.values().filter_map(Value::as_u64).sum(),
    })
}

/// The counters of a block device, from its `stat` (Documentation/block/stat.rst: reads, merged, sectors, ms;
/// the same of writes; in flight, busy ms, weighted ms; the same four of discards; flushes, ms).
pub fn of_block_device(stat: &PathBuf) -> Option<Usage> {
    let text = fs::read_to_string(stat).ok()?;
    let fields: Vec<u64> = text.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or(0);
    Some(Usage {
        reads: field(0),
        writes: field(4),
        written_bytes: field(6) * 512,
        flushes: field(15),
        wait_ns: (field(3) + field(7) + field(16)) * 1_000_000,
    })
}

/// CPU time of all threads of a process; the first field of `schedstat` is the time on a processor, ns.
fn threads_ns(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let of_thread = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(of_thread).sum()
}
