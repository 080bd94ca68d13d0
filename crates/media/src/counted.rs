//! Counts what passes through to a device: requests, bytes and flushes by kind.
//!
//! A count is one relaxed atomic addition at submission (errors: at completion).

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bimetal_base::time::Time;
use serde::Serialize;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares the counters once: as the snapshot people read and as the atomics that count.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How much went to a device since it was wrapped.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn snapshot(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl Sub for Counts {
            type Output = Counts;
            /// What was added since `earlier`.
            fn sub(self, earlier: Counts) -> Counts {
                Counts { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counters! {
    /// Read requests.
    reads,
    /// Bytes read.
    read_bytes,
    /// Write requests, durable ones included.
    writes,
    /// Bytes written.
    write_bytes,
    /// Writes that asked to be durable by themselves.
    durable_writes,
    /// Flushes.
    flushes,
    /// Discards.
    discards,
    /// Bytes discarded.
    discard_bytes,
    /// Requests that failed.
    errors,
}

/// A device whose requests are counted.
pub struct Counted {
    inner: Arc<dyn BlockDevice>,
    counters: Counters,
}

impl Counted {
    /// Counts what goes to `inner` from now on.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Counted {
        Counted { inner, counters: Counters::default() }
    }

    /// What was counted so far. Counters that change meanwhile may be off against each other.
    pub fn counts(&self) -> Counts {
        self.counters.snapshot()
    }

    fn count(&self, request: &Request) {
        let c = &self.counters;
        match request {
            Request::Read { len, .. } => {
                c.reads.fetch_add(1, Relaxed);
                c.read_bytes.fetch_add(*len as u64, Relaxed);
            }
            Request::Write { data, durable, .. } => {
                c.writes.fetch_add(1, Relaxed);
                c.write_bytes.fetch_add(data.bytes(), Relaxed);
                c.durable_writes.fetch_add(u64::from(*durable), Relaxed);
            }
            Request::Flush => {
                c.flushes.fetch_add(1, Relaxed);
            }
            Request::Discard { len, .. } => {
                c.discards.fetch_add(1, Relaxed);
                c.discard_bytes.fetch_add(*len, Relaxed);
            }
        }
    }

    fn count_error(&self, completion: Completion) -> Completion {
        if completion.result.is_err() {
            self.counters.errors.fetch_add(1, Relaxed);
        }
        completion
    }
}

impl BlockDevice for Counted {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.inner)
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        self.count(&request);
        self.inner.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.count_error(self.inner.wait(ticket))
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        self.count(&request);
        self.count_error(self.inner.run(at, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;

    #[test]
    fn every_kind_of_request_is_counted_once() {
        let counted = Counted::new(Arc::new(Ram::new("ram", 1 << 20)));
        let device: &dyn BlockDevice = &counted;
        device.write(0, vec![1; 4096]).unwrap();
        let before = counted.counts();
        device.read(0, 512).unwrap();
        device.flush().unwrap();
        let data = [vec![2; 512].into(), vec![3; 1024].into()].into_iter().collect();
        device
            .wait(device.submit(Time::ZERO, Request::Write { offset: 0, data, durable: true }))
            .result
            .unwrap();
        device.run(Time::ZERO, Request::Discard { offset: 0, len: 8192 }).result.unwrap();
        device.read(1 << 20, 512).unwrap_err();
        let expected = Counts {
            reads: 2,
            read_bytes: 1024,
            writes: 1,
            write_bytes: 1536,
            durable_writes: 1,
            flushes: 1,
            discards: 1,
            discard_bytes: 8192,
            errors: 1,
        };
        assert_eq!(counted.counts() - before, expected);
    }
}
