//! A block device in memory: no time passes, nothing is lost. For tests and as the bottom of wrappers.

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check};
use bimetal_base::time::Time;
use bytes::Bytes;
use parking_lot::RwLock;

/// Bytes in memory behind the device trait.
pub struct Ram {
    info: DeviceInfo,
    bytes: RwLock<Vec<u8>>,
}

impl Ram {
    /// A device of `size_bytes` zeros with blocks of 512 bytes.
    pub fn new(name: &str, size_bytes: u64) -> Ram {
        Ram::from_bytes(name, vec![0; size_bytes as usize])
    }

    /// A device that holds `bytes`.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Ram {
        let info = DeviceInfo {
            name: name.to_string(),
            size_bytes: bytes.len() as u64,
            block_bytes: 512,
            atomic_bytes: 512,
            rotational: false,
        };
        Ram { info, bytes: RwLock::new(bytes) }
    }

    /// A copy of the whole contents.
    pub fn image(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    fn serve(&self, request: Request) -> Bytes {
        match request {
            Request::Read { offset, len } => {
                Bytes::copy_from_slice(&self.bytes.read()[offset as usize..offset as usize + len])
            }
            Request::Write { offset, data, .. } => {
                let mut bytes = self.bytes.write();
                let mut at = offset as usize;
                for part in &data {
                    bytes[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                Bytes::new()
            }
            Request::Flush => Bytes::new(),
            Request::Discard { offset, len } => {
                self.bytes.write()[offset as usize..(offset + len) as usize].fill(0);
                Bytes::new()
            }
        }
    }
}

impl BlockDevice for Ram {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let result = check(&self.info, &request).map(|()| self.serve(request));
        Ticket::Done(Completion { at, result })
    }
}
