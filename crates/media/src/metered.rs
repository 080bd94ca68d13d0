//! What a real device was asked for, and how long its users waited for it.
//!
//! [`Counted`] counts; here wall time is added, which only a device outside the program has. A wait is measured
//! where it happens: around [`BlockDevice::run`] by kind of request, around [`BlockDevice::wait`] for what was
//! queued. Waits of several threads add up. Cost: two readings of the clock a request.

use super::counted::{Counted, Counts};
use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, takes_no_discards};
use bimetal_base::time::Time;
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Failures that follow one another sooner are logged once.
const BURST: Duration = Duration::from_secs(10);

/// Requests and waits since a device was wrapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Meter {
    /// What was asked of the device.
    pub requests: Counts,
    /// How long its users waited.
    pub waits: Waits,
    /// Requests that failed.
    pub errors: Errors,
    /// Discards that failed, which is no harm; not those of a device that knows none.
    pub failed_discards: u64,
}

/// Requests that a device failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// Reads.
    pub reads: u64,
    /// Writes, durable or not.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Of any kind, that had been queued.
    pub queued: u64,
}

impl Errors {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.queued
    }
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

/// The devices a file system lies on, by what each is to it (`ssd`, `disk`).
pub type Devices = Vec<(&'static str, Arc<Metered>)>;

/// A device whose requests are counted and whose waits are timed.
pub struct Metered {
    counted: Counted,
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    durable_ns: AtomicU64,
    queued_ns: AtomicU64,
    failed_discards: AtomicU64,
    failures: Mutex<Failures>,
}

/// Failed requests, and when the log last heard of one.
#[derive(Default)]
struct Failures {
    errors: Errors,
    /// When one was logged, and how many were not since.
    logged: Option<(Instant, u64)>,
    last: Option<String>,
}

/// Which count a failed request belongs to.
type Count = fn(&mut Errors) -> &mut u64;

/// None of a discard's, which is advice.
fn count_of(request: &Request) -> Option<Count> {
    Some(match request {
        Request::Read { .. } => |errors| &mut errors.reads,
        Request::Write { .. } => |errors| &mut errors.writes,
        Request::Flush => |errors| &mut errors.flushes,
        Request::Discard { .. } => return None,
    })
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
            failed_discards: zero(),
            failures: Mutex::default(),
        }
    }

    /// What the device said when a request last failed.
    pub fn last_error(&self) -> Option<String> {
        self.failures.lock().last.clone()
    }

    /// Counts a request that failed, and logs it unless that was done a moment ago.
    fn note(&self, count: Count, completion: Completion) -> Completion {
        let Err(error) = &completion.result else { return completion };
        let failures = &mut *self.failures.lock();
        *count(&mut failures.errors) += 1;
        failures.last = Some(error.to_string());
        match &mut failures.logged {
            Some((when, silent)) if when.elapsed() < BURST => *silent += 1,
            logged => {
                let (_, silent) = logged.replace((Instant::now(), 0)).unwrap_or((Instant::now(), 0));
                let device = &self.info().name;
                tracing::error!(%error, silent, all = failures.errors.total(), "{device} failed a request");
            }
        }
        completion
    }

    /// What was metered so far.
    pub fn meter(&self) -> Meter {
        let waits = Waits {
            read_ns: self.read_ns.load(Relaxed),
            write_ns: self.write_ns.load(Relaxed),
            durable_ns: self.durable_ns.load(Relaxed),
            queued_ns: self.queued_ns.load(Relaxed),
        };
        Meter {
            requests: self.counted.counts(),
            waits,
            errors: self.failures.lock().errors,
            failed_discards: self.failed_discards.load(Relaxed),
        }
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

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.counted)
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        self.counted.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        let completion = timed(&self.queued_ns, || self.counted.wait(ticket));
        self.note(|errors| &mut errors.queued, completion)
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        let count = count_of(&request);
        let completion = timed(self.waits_of(&request), || self.counted.run(at, request));
        match count {
            Some(count) => self.note(count, completion),
            // Who asked for it tells of it.
            None => {
                if completion.result.as_ref().is_err_and(|error| !takes_no_discards(error)) {
                    self.failed_discards.fetch_add(1, Relaxed);
                }
                completion
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulty::{Effect, Faulty, Kind, When};
    use crate::ram::Ram;

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
        let Meter { requests, waits, errors, .. } = metered.meter();
        assert_eq!(errors.total(), 0);
        assert!(waits.durable_ns > 0 && waits.read_ns > 0 && waits.queued_ns > 0);
        assert_eq!((requests.writes, requests.flushes, requests.reads), (1, 2, 1));
    }

    #[test]
    fn what_fails_is_counted_by_its_kind_and_told() {
        let metered = Metered::new(Arc::new(Ram::new("ram", 1 << 20)));
        let device: &dyn BlockDevice = &metered;
        for _ in 0..3 {
            device.read(1 << 20, 512).unwrap_err();
        }
        device.write(1 << 20, vec![0; 512]).unwrap_err();
        let errors = metered.meter().errors;
        assert_eq!((errors.reads, errors.writes, errors.flushes, errors.total()), (3, 1, 0, 4));
        assert!(metered.last_error().unwrap().contains("ram"));
    }

    #[test]
    fn a_discard_that_fails_is_no_failed_write_and_one_of_a_device_that_knows_none_did_not_fail() {
        let faulty = Arc::new(Faulty::new(Arc::new(Ram::new("ram", 1 << 20))));
        faulty.plan(Kind::Discard, When::Nth(1), Effect::Error(libc::EIO));
        faulty.plan(Kind::Discard, When::Nth(2), Effect::Error(libc::EOPNOTSUPP));
        let metered = Metered::new(faulty);
        let discard = || metered.run(Time::ZERO, Request::Discard { offset: 0, len: 4096 }).result;
        assert!(!takes_no_discards(&discard().unwrap_err()));
        assert!(takes_no_discards(&discard().unwrap_err()));
        discard().unwrap();
        let meter = metered.meter();
        assert_eq!((meter.errors, meter.failed_discards), (Errors::default(), 1));
        assert_eq!(metered.last_error(), None);
    }
}
