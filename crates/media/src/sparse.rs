//! An image in memory of which only what is not zero takes room. It is read and never written: the base of
//! [`Overlay`](super::overlay::Overlay)s.
//!
//! Cost: a chunk of 64 KiB for each that holds anything; a read is one copy of what it asks for.

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;

/// Bytes in a chunk.
pub const CHUNK: u64 = 64 << 10;

/// A copy of a device, without its zeros.
pub struct Sparse {
    info: DeviceInfo,
    /// By number; the last may be shorter.
    chunks: BTreeMap<u64, Bytes>,
}

impl Sparse {
    /// A copy of all of `device`.
    pub fn copy_of(device: &dyn BlockDevice) -> Result<Sparse> {
        let info = device.info().clone();
        let mut chunks = BTreeMap::new();
        for number in 0..info.size_bytes.div_ceil(CHUNK) {
            let len = CHUNK.min(info.size_bytes - number * CHUNK);
            let bytes = device.read(number * CHUNK, len as usize)?;
            if bytes.iter().any(|&byte| byte != 0) {
                chunks.insert(number, bytes);
            }
        }
        Ok(Sparse { info, chunks })
    }

    /// An image put together from its chunks, as [`chunks`](Self::chunks) gives them.
    ///
    /// Fails where one lies outside the device or has another length.
    pub fn from_chunks(info: DeviceInfo, chunks: BTreeMap<u64, Bytes>) -> Result<Sparse> {
        for (&number, bytes) in &chunks {
            let at = number.checked_mul(CHUNK).filter(|at| *at < info.size_bytes);
            if at.is_none_or(|at| bytes.len() as u64 != CHUNK.min(info.size_bytes - at)) {
                let why = format!("its length is {} bytes", bytes.len());
                return Err(Error::corrupt(format!("chunk {number} of an image"), why, &info.name));
            }
        }
        Ok(Sparse { info, chunks })
    }

    /// What is not zero, by the number of its chunk.
    pub fn chunks(&self) -> &BTreeMap<u64, Bytes> {
        &self.chunks
    }

    fn read(&self, offset: u64, len: usize) -> Bytes {
        let end = offset + len as u64;
        let (first, last) = (offset / CHUNK, (end - 1) / CHUNK);
        if first == last {
            let from = (offset % CHUNK) as usize;
            return match self.chunks.get(&first) {
                Some(chunk) => chunk.slice(from..from + len),
                None => BytesMut::zeroed(len).freeze(),
            };
        }
        let mut whole = BytesMut::zeroed(len);
        for (number, chunk) in self.chunks.range(first..=last) {
            let at = number * CHUNK;
            let (from, to) = (offset.max(at), end.min(at + chunk.len() as u64));
            let part = &chunk[(from - at) as usize..(to - at) as usize];
            whole[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
        whole.freeze()
    }

    fn serve(&self, request: &Request) -> Result<Bytes> {
        check(&self.info, request)?;
        match request {
            Request::Read { offset, len } => Ok(self.read(*offset, *len)),
            Request::Flush => Ok(Bytes::new()),
            Request::Write { .. } | Request::Discard { .. } => Err(Error::ReadOnly),
        }
    }
}

impl BlockDevice for Sparse {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(Completion { at, result: self.serve(&request) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;

    #[test]
    fn a_copy_reads_as_the_original_and_keeps_no_zeros() {
        let mut bytes = vec![0; (3 * CHUNK + 1024) as usize];
        bytes[70_000] = 7;
        *bytes.last_mut().unwrap() = 9;
        let ram = Ram::from_bytes("ram", bytes.clone());
        let sparse = Sparse::copy_of(&ram).unwrap();
        assert_eq!(sparse.chunks().keys().copied().collect::<Vec<_>>(), [1, 3]);
        let device: &dyn BlockDevice = &sparse;
        for (offset, len) in [(0, 512), (65_024, 8192), (69_632, 512), (0, bytes.len())] {
            let expected = &bytes[offset as usize..offset as usize + len];
            assert_eq!(device.read(offset, len).unwrap(), expected, "{len} bytes at {offset}");
        }
        let again = Sparse::from_chunks(ram.info().clone(), sparse.chunks().clone()).unwrap();
        assert_eq!((&again as &dyn BlockDevice).read(0, bytes.len()).unwrap(), bytes);
        assert!(matches!(device.write(0, vec![1; 512]), Err(Error::ReadOnly)));
    }

    #[test]
    fn a_chunk_outside_or_of_another_length_is_refused() {
        let info = Ram::new("ram", CHUNK + 512).info().clone();
        for (number, len) in [(0, 512), (1, CHUNK as usize), (2, 512), (u64::MAX, 512)] {
            let chunks = BTreeMap::from([(number, Bytes::from(vec![1; len]))]);
            assert!(Sparse::from_chunks(info.clone(), chunks).is_err(), "{len} bytes as number {number}");
        }
    }
}
