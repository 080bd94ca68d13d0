//! Layers that change requests on their way down, look at them, or end some, and are like the device below in all else.

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bimetal_base::time::Time;

/// Such a layer; it is a [`BlockDevice`] by that.
pub trait Filter: Send + Sync {
    /// The device below.
    fn inner(&self) -> &dyn BlockDevice;

    /// What the device below is asked for instead, and when; or how the request ended here.
    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion>;

    /// See [`BlockDevice::info`]. Provided: that of the device below.
    fn described(&self) -> &DeviceInfo {
        self.inner().info()
    }
}

impl<T: Filter> BlockDevice for T {
    fn info(&self) -> &DeviceInfo {
        self.described()
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(self.inner())
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        match self.pass(at, request) {
            Ok((at, request)) => self.inner().submit(at, request),
            Err(ended) => Ticket::Done(ended),
        }
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        match self.pass(at, request) {
            Ok((at, request)) => self.inner().run(at, request),
            Err(ended) => ended,
        }
    }
}
