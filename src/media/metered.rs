//! What a real device was asked for, and how long its users waited for it.
//!
//! [`Counted`] counts; here wall time is added, which only a device outside the program has. A wait is measured
//! where it happens: around [`BlockDevice::run`] by kind of request, around [`BlockDevice::wait`] for what was
//! queued. Waits of several threads add up. Cost: two readings of the clock a request.

use super::counted::{Counted, Counts};
use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use crate::time::Time;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Requests and waits since a device was wrapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Meter {
    /// What was asked of the device.
    pub requests: Counts,
    /// How long its users waited.
    pub waits: Waits,
}

/// Wall time that threads spent waiting for a device, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// For reads.
    pub read_ns: u64,
    /// For writes that need not be durable.
    pub write_ns: u64,
    /// For flushes and durable writes.
    pub durable_ns: u64,
    /// For requests of any kind that had been queued.
    pub queued_ns: u64,
}

/// A device whose requests are counted and whose waits are timed.
pub struct Metered {
    counted: Counted,
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    durable_ns: AtomicU64,
    queued_ns: AtomicU64,
}

impl Metered {
    /// Meters what goes to `inner` from now on.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Metered {
        let zero = || AtomicU64::new(0);
        Metered {
            counted: Counted::new(inner),
            read_ns: zero(),
            write_ns: zero(),
            durable_ns: zero(),
            queued_ns: zero(),
        }
    }

    /// What was metered so far.
    pub fn meter(&self) -> Meter {
        let waits = Waits {
            read_ns: self.read_ns.load(Relaxed),
            write_ns: self.write_ns.load(Relaxed),
            durable_ns: self.durable_ns.load(Relaxed),
            queued_ns: self.queued_ns.load(Relaxed),
        };
        Meter { requests: self.counted.counts(), waits }
    }

    fn waits_of(&self, request: &Request) -> &AtomicU64 {
        match request {
            Request::Read { .. } => &self.read_ns,
            Request::Flush | Request::Write { durable: true, .. } => &self.durable_ns,
            Request::Write { .. } | Request::Discard { .. } => &self.write_ns,
        }
    }
}

/// Adds the time `work` takes to `sum`.
fn timed<T>(sum: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    sum.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
    done
}

impl BlockDevice for Metered {
    fn info(&self) -> &DeviceInfo {
        self.counted.info()
    }

    fn place(&self, offset: u64, len: u64, handle: u8) {
        self.counted.place(offset, len, handle);
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        self.counted.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        timed(&self.queued_ns, || self.counted.wait(ticket))
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.counted.is_done(ticket)
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        timed(self.waits_of(&request), || self.counted.run(at, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::ram::Ram;

    #[test]
    fn each_kind_of_wait_goes_to_its_own_sum() {
        let metered = Metered::new(Arc::new(Ram::new("ram", 1 << 20)));
        let device: &dyn BlockDevice = &metered;
        device.write(0, vec![1; 4096]).unwrap();
        let waits = metered.meter().waits;
        assert!(waits.write_ns > 0 && waits.durable_ns == 0 && waits.read_ns == 0);
        device.flush().unwrap();
        device.read(0, 512).unwrap();
        device.wait(device.submit(Time::ZERO, Request::Flush)).result.unwrap();
        let Meter { requests, waits } = metered.meter();
        assert!(waits.durable_ns > 0 && waits.read_ns > 0 && waits.queued_ns > 0);
        assert_eq!((requests.writes, requests.flushes, requests.reads), (1, 2, 1));
    }
}
