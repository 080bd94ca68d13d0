//! A device whose user knows which of its parts are overwritten at the same pace: writes carry the placement handle of
//! the part they begin in, unless they came with one.
//!
//! Over a device that keeps no handles apart it does nothing.

use super::{BlockDevice, Completion, Request, filter::Filter};
use bimetal_base::time::Time;
use std::ops::Range;
use std::sync::Arc;

/// Parts of a device, and their handles.
pub type Lifetimes = Vec<(Range<u64>, u8)>;

/// A device whose writes carry the handle of the part they go to.
pub struct Placed {
    inner: Arc<dyn BlockDevice>,
    lifetimes: Lifetimes,
}

impl Placed {
    /// Writes to `inner` carry the handles of `lifetimes`.
    pub fn new(inner: Arc<dyn BlockDevice>, lifetimes: Lifetimes) -> Placed {
        let lifetimes = if inner.handles() > 1 { lifetimes } else { Lifetimes::new() };
        Placed { inner, lifetimes }
    }
}

impl Filter for Placed {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion> {
        match request {
            Request::Write { offset, data, durable } if data.handle() == 0 => {
                let part = self.lifetimes.iter().find(|(range, _)| range.contains(&offset));
                let handle = part.map_or(0, |(_, handle)| *handle);
                Ok((at, Request::Write { offset, data: data.placed(handle), durable }))
            }
            request => Ok((at, request)),
        }
    }
}
