//! A part of a device as a device of its own: a partition.

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check};
use crate::time::Time;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// A range of a device.
pub struct Part {
    info: DeviceInfo,
    inner: Arc<dyn BlockDevice>,
    offset: u64,
}

impl Part {
    /// The `range` of bytes of `inner`.
    ///
    /// Fails with [`Error::Invalid`] if that is not inside, or not in whole blocks.
    pub fn new(inner: Arc<dyn BlockDevice>, range: Range<u64>) -> Result<Part> {
        let mut info = inner.info().clone();
        let block = u64::from(info.block_bytes);
        let whole = range.start.is_multiple_of(block) && range.end.is_multiple_of(block);
        if !whole || range.is_empty() || range.end > info.size_bytes {
            return Err(Error::invalid(format!(
                "{}: bytes {} to {} are no part of its {} bytes in blocks of {block}",
                info.name, range.start, range.end, info.size_bytes
            )));
        }
        info.name = format!("{} from {}", info.name, range.start);
        info.size_bytes = range.end - range.start;
        Ok(Part { info, inner, offset: range.start })
    }

    fn moved(&self, mut request: Request) -> Request {
        match &mut request {
            Request::Read { offset, .. }
            | Request::Write { offset, .. }
            | Request::Discard { offset, .. } => {
                *offset += self.offset;
            }
            Request::Flush => {}
        }
        request
    }
}

impl BlockDevice for Part {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn place(&self, offset: u64, len: u64, handle: u8) {
        self.inner.place(self.offset + offset, len, handle);
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        match check(&self.info, &request) {
            Ok(()) => self.inner.submit(at, self.moved(request)),
            Err(error) => Ticket::Done(Completion { at, result: Err(error) }),
        }
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.inner.wait(ticket)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.inner.is_done(ticket)
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        match check(&self.info, &request) {
            Ok(()) => self.inner.run(at, self.moved(request)),
            Err(error) => Completion { at, result: Err(error) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::ram::Ram;

    #[test]
    fn a_part_reaches_its_own_bytes_and_no_others() {
        let whole: Arc<dyn BlockDevice> = Arc::new(Ram::new("ram", 8192));
        let part: &dyn BlockDevice = &Part::new(Arc::clone(&whole), 1024..3072).unwrap();
        part.write(512, vec![7; 1536]).unwrap();
        part.flush().unwrap();
        let bytes = whole.read(0, 8192).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, byte)| (*byte == 7) == (1536..3072).contains(&at)));
        part.run(Time::ZERO, Request::Discard { offset: 1024, len: 512 }).result.unwrap();
        assert_eq!(part.read(512, 1024).unwrap()[..], [vec![7; 512], vec![0; 512]].concat());
        let error = part.write(1536, vec![7; 1024]).unwrap_err().to_string();
        assert!(error.contains("ends past"), "{error}");
        for range in [0..8704, 100..1024, 1024..1024] {
            assert!(Part::new(Arc::clone(&whole), range).is_err());
        }
    }
}
