//! A device that keeps nothing: for models that care about when, not what.

use crate::media::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check};
use crate::time::Time;
use bytes::Bytes;

/// Takes all writes, reads as nothing, in no time.
pub(super) struct Void(DeviceInfo);

impl Void {
    /// Of `size_bytes`.
    pub fn new(name: &str, size_bytes: u64) -> Void {
        let name = name.to_string();
        Void(DeviceInfo { name, size_bytes, block_bytes: 512, atomic_bytes: 512, rotational: false })
    }
}

impl BlockDevice for Void {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(Completion { at, result: check(&self.0, &request).map(|()| Bytes::new()) })
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        ticket.done()
    }

    fn is_done(&self, _: &Ticket) -> bool {
        true
    }
}
