//! A part of a device as a device of its own: a partition.

use super::{BlockDevice, Completion, DeviceInfo, Request, check_range, filter::Filter};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
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
}

impl Filter for Part {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn described(&self) -> &DeviceInfo {
        &self.info
    }

    fn pass(&self, at: Time, mut request: Request) -> Result<(Time, Request), Completion> {
        if let Err(error) = check_range(&self.info, &request) {
            return Err(Completion { at, result: Err(error) });
        }
        match &mut request {
            Request::Read { offset, .. }
            | Request::Write { offset, .. }
            | Request::Discard { offset, .. } => *offset += self.offset,
            Request::Flush => {}
        }
        Ok((at, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;

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
