//! Layers that change requests on their way, or look at them, and are like the device below in all else.

use bimetal_base::time::Time;
use bimetal_media::{BlockDevice, Completion, Request, filter::Filter};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Software between host and device: each request reaches the device that much later.
pub struct Delayed {
    inner: Arc<dyn BlockDevice>,
    takes: Duration,
}

impl Delayed {
    /// Takes `takes` for each request to `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, takes: Duration) -> Delayed {
        Delayed { inner, takes }
    }
}

impl Filter for Delayed {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion> {
        Ok((at + self.takes, request))
    }
}

/// A non-volatile write cache of a range of addresses, large enough for it: what falls wholly into the range
/// ends there, in no time, and never reaches what is below. Only over what keeps no contents.
pub struct Absorbing {
    inner: Arc<dyn BlockDevice>,
    range: Range<u64>,
    absorbed: AtomicU64,
}

impl Absorbing {
    /// Takes the bytes of `range` from `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, range: Range<u64>) -> Absorbing {
        Absorbing { inner, range, absorbed: AtomicU64::new(0) }
    }

    /// Requests that were taken.
    pub fn absorbed(&self) -> u64 {
        self.absorbed.load(Relaxed)
    }
}

impl Filter for Absorbing {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion> {
        let within = |(offset, len): (u64, u64)| {
            self.range.contains(&offset) && offset.saturating_add(len) <= self.range.end
        };
        if !request.extent().is_some_and(within) {
            return Ok((at, request));
        }
        self.absorbed.fetch_add(1, Relaxed);
        Err(Completion { at, result: Ok(request.nothing_read()) })
    }
}

/// Counts the pages that requests touch.
pub struct CountedPages {
    inner: Arc<dyn BlockDevice>,
    page_bytes: u64,
    read: AtomicU64,
    written: AtomicU64,
}

impl CountedPages {
    /// Counts pages of `page_bytes` on their way to `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, page_bytes: u64) -> CountedPages {
        CountedPages { inner, page_bytes, read: AtomicU64::new(0), written: AtomicU64::new(0) }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Pages read and pages written so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.read.load(Relaxed), self.written.load(Relaxed))
    }
}

impl Filter for CountedPages {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion> {
        let count = match request {
            Request::Read { .. } => Some(&self.read),
            Request::Write { .. } => Some(&self.written),
            _ => None,
        };
        if let Some((count, (offset, len))) = count.zip(request.extent()) {
            let pages = offset.saturating_add(len).div_ceil(self.page_bytes) - offset / self.page_bytes;
            count.fetch_add(pages, Relaxed);
        }
        Ok((at, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::{Gather, void::Void};

    #[test]
    fn what_is_wholly_in_the_range_is_absorbed() {
        let pages = Arc::new(CountedPages::new(Arc::new(Void::new("void", 1 << 20, 1)), 512));
        let absorbing = Absorbing::new(pages.clone(), 512..2048);
        for (offset, len) in [(512, 512), (0, 1024), (1536, 512), (1536, 1024), (512, 1536)] {
            let request = Request::Write { offset, data: Gather::absent(len), durable: false };
            absorbing.run(Time::ZERO, request).result.unwrap();
        }
        assert_eq!((absorbing.absorbed(), pages.counts()), (3, (0, 4)));
    }

    #[test]
    fn software_takes_its_time_before_the_device_does() {
        let delayed = Delayed::new(Arc::new(Void::new("void", 1 << 20, 1)), Duration::from_nanos(250));
        assert_eq!(delayed.run(Time(1000), Request::Flush).at, Time(1250));
    }
}
