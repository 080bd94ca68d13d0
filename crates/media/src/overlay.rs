//! Changes kept in memory over a device that stays as it is.
//!
//! A crash state, an experiment, a dry run: the base is shared and only read, writes live in a map of
//! blocks. Cost: one map entry a changed block; a read that meets no change is one read of the base.

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check};
use bimetal_base::time::Time;
use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Changed blocks, by block number.
pub(super) type Blocks = FxHashMap<u64, Bytes>;

/// A device whose writes stay in memory.
pub struct Overlay {
    base: Arc<dyn BlockDevice>,
    changed: RwLock<Blocks>,
}

impl Overlay {
    /// A device that looks like `base` and leaves it untouched.
    pub fn new(base: Arc<dyn BlockDevice>) -> Overlay {
        Overlay::with_changes(base, Blocks::default())
    }

    pub(super) fn with_changes(base: Arc<dyn BlockDevice>, changed: Blocks) -> Overlay {
        Overlay { base, changed: RwLock::new(changed) }
    }

    /// The number of blocks that differ (or were written with what they held).
    pub fn changed_blocks(&self) -> usize {
        self.changed.read().len()
    }

    fn read(&self, at: Time, offset: u64, len: usize) -> Completion {
        let Completion { at, result } = self.base.run(at, Request::Read { offset, len });
        Completion { at, result: result.map(|base| self.cover(offset, len, base)) }
    }

    /// What was read of the base, with what changed since over it.
    fn cover(&self, offset: u64, len: usize, base: Bytes) -> Bytes {
        let block_bytes = self.info().block_bytes as usize;
        let first = offset / block_bytes as u64;
        let changed = self.changed.read();
        let mut found = (0..len / block_bytes)
            .filter_map(|index| Some((index, changed.get(&(first + index as u64))?)))
            .peekable();
        if found.peek().is_none() {
            return base;
        }
        let mut whole = BytesMut::from(base);
        for (index, block) in found {
            whole[index * block_bytes..(index + 1) * block_bytes].copy_from_slice(block);
        }
        whole.freeze()
    }

    fn serve(&self, at: Time, request: Request) -> Completion {
        if let Err(why) = check(self.info(), &request) {
            return Completion { at, result: Err(why) };
        }
        match request {
            Request::Read { offset, len } => return self.read(at, offset, len),
            Request::Write { offset, data, .. } => {
                let mut changed = self.changed.write();
                each_block(offset, data, self.info().block_bytes, |block, bytes| {
                    changed.insert(block, bytes);
                });
            }
            Request::Discard { offset, len } => {
                // One that kept them would hide that they are needed.
                let size = u64::from(self.info().block_bytes);
                let zeros = Bytes::from(vec![0; size as usize]);
                let blocks = offset / size..(offset + len) / size;
                self.changed.write().extend(blocks.map(|block| (block, zeros.clone())));
            }
            Request::Flush => {}
        }
        Completion { at, result: Ok(Bytes::new()) }
    }
}

/// Calls `visit` with each block number and contents of a write.
pub(super) fn each_block(
    offset: u64,
    data: super::Gather,
    block_bytes: u32,
    mut visit: impl FnMut(u64, Bytes),
) {
    let whole = data.joined();
    let size = block_bytes as usize;
    for index in 0..whole.len() / size {
        visit(offset / size as u64 + index as u64, whole.slice(index * size..(index + 1) * size));
    }
}

impl BlockDevice for Overlay {
    fn info(&self) -> &DeviceInfo {
        self.base.info()
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        self.base.forget_cached(offset, len);
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(self.serve(at, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;

    #[test]
    fn writes_are_read_back_and_leave_the_base_alone() {
        let base = Arc::new(Ram::from_bytes("base", vec![1; 8192]));
        let overlay = Overlay::new(base.clone());
        let device: &dyn BlockDevice = &overlay;
        assert_eq!(device.read(0, 8192).unwrap(), vec![1; 8192]);
        device.write(1024, vec![2; 1024]).unwrap();
        let read = device.read(512, 2048).unwrap();
        assert_eq!((read[511], read[512], read[1535], read[1536]), (1, 2, 2, 1));
        assert_eq!(overlay.changed_blocks(), 2);
        assert_eq!(base.image(), vec![1; 8192]);
        device.read(8192, 512).unwrap_err();
        device.run(Time::ZERO, Request::Discard { offset: 512, len: 1024 }).result.unwrap();
        let read = device.read(0, 2048).unwrap();
        assert_eq!((read[511], read[512], read[1535], read[1536]), (1, 0, 0, 2));
        assert_eq!(base.image(), vec![1; 8192]);
    }
}
