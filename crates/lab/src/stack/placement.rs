//! Placement handles: which writes are told apart.
//!
//! The trace's own mark of metadata is handle 1, unless `--place` says otherwise: a range of bytes, a FAT volume's
//! metadata, or pages that are written again and again.

use super::admission_rule::{AdmissionRule, metadata_of};
use bimetal_base::time::Time;
use bimetal_media::{BlockDevice, Completion, Request, filter::Filter};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;

/// What heat is counted in, bytes.
const PAGE_BYTES: u64 = 4096;

enum Rule {
    Ranges(Vec<Range<u64>>),
    /// Pages written so often within so many page writes: when each was last written, and how often in a row.
    Heat {
        writes: u32,
        within: u64,
        clock: u64,
        pages: FxHashMap<u64, (u64, u32)>,
    },
}

/// Gives writes their handle on the way to the device below.
pub struct PlacementDevice {
    inner: Arc<dyn BlockDevice>,
    rule: Mutex<Rule>,
}

impl PlacementDevice {
    /// Handle 1 for what `takes` says.
    ///
    /// # Errors
    /// There is no FAT volume where one was named.
    pub fn new(inner: Arc<dyn BlockDevice>, takes: &AdmissionRule) -> bimetal_base::Result<PlacementDevice> {
        let rule = match takes {
            AdmissionRule::Range(range) => Rule::Ranges(std::iter::once(range.clone()).collect()),
            AdmissionRule::Fat(image) => Rule::Ranges(metadata_of(image)?),
            AdmissionRule::Heat(writes, within) => {
                Rule::Heat { writes: *writes, within: *within, clock: 0, pages: FxHashMap::default() }
            }
        };
        Ok(PlacementDevice { inner, rule: Mutex::new(rule) })
    }
}

impl Rule {
    fn handle(&mut self, offset: u64, len: u64) -> u8 {
        let end = offset.saturating_add(len);
        match self {
            Rule::Ranges(ranges) => {
                u8::from(ranges.iter().any(|range| range.contains(&offset) && end <= range.end))
            }
            Rule::Heat { writes, within, clock, pages } => {
                let mut hot = false;
                for page in offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
                    *clock += 1;
                    let (last, count) = pages.entry(page).or_default();
                    *count = if *clock - *last <= *within { count.saturating_add(1) } else { 1 };
                    *last = *clock;
                    hot = *count >= *writes;
                }
                u8::from(hot)
            }
        }
    }
}

impl Filter for PlacementDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion> {
        let Request::Write { offset, data, durable } = request else { return Ok((at, request)) };
        let handle = self.rule.lock().handle(offset, data.bytes());
        Ok((at, Request::Write { offset, data: data.placed(handle), durable }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_range_or_hot_gets_the_handle() {
        let mut ranges = Rule::Ranges(vec![4096..8192, 8192..12288]);
        assert_eq!([0, 4096, 8192, 12288].map(|offset| ranges.handle(offset, 4096)), [0, 1, 1, 0]);
        let mut heat = Rule::Heat { writes: 3, within: 2, clock: 0, pages: FxHashMap::default() };
        let handles = [0, 4096, 0, 4096, 0, 4096, 8192, 8192, 0].map(|offset| heat.handle(offset, 4096));
        assert_eq!(handles, [0, 0, 0, 0, 1, 1, 0, 0, 0]);
    }
}
