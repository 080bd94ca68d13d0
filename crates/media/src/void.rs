//! A device that keeps nothing: for models that care about when, not what.

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check_range};
use bimetal_base::time::Time;

/// Takes all writes, reads as zeros, in no time.
pub struct Void(DeviceInfo);

impl Void {
    /// Of `size_bytes`, in blocks of `block_bytes`.
    pub fn new(name: &str, size_bytes: u64, block_bytes: u32) -> Void {
        let (name, atomic_bytes) = (name.to_string(), block_bytes);
        Void(DeviceInfo { name, size_bytes, block_bytes, atomic_bytes, rotational: false })
    }
}

impl BlockDevice for Void {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(self.run(at, request))
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        let checked = check_range(&self.0, &request);
        Completion { at, result: checked.map(|()| request.nothing_read()) }
    }

    fn keeps_contents(&self) -> bool {
        false
    }
}
