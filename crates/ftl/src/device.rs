//! A translation layer as a block device, without electronics around it: what a page costs is what the flash takes.
//!
//! Requests may begin and end at any byte. A page that is written in part is read first. It keeps no contents: pages
//! are checked by their tags in the layers' own tests. For a bus, a write cache and contents see [`Ssd`](super::ssd).
//! Cost: one lock a request, one dynamic call a page.

use super::{Ftl, HostBytes, Report, report};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_media::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check_range};
use parking_lot::Mutex;
use std::ops::Range;

/// A translation layer addressed in bytes.
pub struct FtlDevice {
    info: DeviceInfo,
    page_bytes: u64,
    handles: u8,
    state: Mutex<State>,
}

struct State {
    ftl: Box<dyn Ftl>,
    partial_writes: u64,
    bytes: HostBytes,
}

impl FtlDevice {
    /// Over `ftl`.
    pub fn new(ftl: Box<dyn Ftl>) -> FtlDevice {
        let part = ftl.nand().profile();
        let info = DeviceInfo {
            name: part.model.clone(),
            size_bytes: ftl.logical_pages() * part.page,
            block_bytes: 1,
            atomic_bytes: part.page as u32,
            rotational: false,
        };
        let (page_bytes, handles) = (part.page, ftl.handles());
        let state = State { ftl, partial_writes: 0, bytes: HostBytes::default() };
        FtlDevice { info, page_bytes, handles, state: Mutex::new(state) }
    }

    /// What the translation layer and its flash did so far.
    pub fn report(&self) -> Report {
        let state = self.state.lock();
        report(&*state.ftl, state.bytes)
    }

    /// Pages written in part only.
    pub fn partial_writes(&self) -> u64 {
        self.state.lock().partial_writes
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The block of flash in which a page lies, if it was written.
    pub fn block_of(&self, page: Lpn) -> Option<u32> {
        self.state.lock().ftl.find(page).map(|(block, _)| block)
    }

    /// Bytes of an erase block.
    pub fn erase_block_bytes(&self) -> u64 {
        u64::from(self.state.lock().ftl.nand().geometry().pages_per_block) * self.page_bytes
    }

    fn serve(&self, at: Time, request: &Request) -> Result<Time> {
        check_range(&self.info, request)?;
        let Some((offset, len)) = request.extent() else { return Ok(at) };
        let (touched, whole) = pages(offset, len, self.page_bytes);
        let state = &mut *self.state.lock();
        match request {
            Request::Read { .. } => {
                state.bytes.read += len;
                state.read(at, touched)
            }
            Request::Write { data, .. } => {
                state.bytes.written += len;
                state.bytes.padding += (touched.end - touched.start) * self.page_bytes - len;
                state.write(at, touched, &whole, data.handle())
            }
            // A page is durable once it is programmed.
            _ => {
                state.bytes.discarded += len;
                state.trim(at, whole)
            }
        }
    }
}

/// The pages that a range touches, and those it covers.
fn pages(offset: u64, len: u64, page_bytes: u64) -> (Range<u64>, Range<u64>) {
    let end = offset + len;
    let first = offset.div_ceil(page_bytes);
    (offset / page_bytes..end.div_ceil(page_bytes), first..(end / page_bytes).max(first))
}

impl State {
    fn read(&mut self, at: Time, touched: Range<u64>) -> Result<Time> {
        let mut done = at;
        for page in touched {
            done = done.max(self.ftl.read(at, Lpn(page))?.at);
        }
        Ok(done)
    }

    fn write(&mut self, at: Time, touched: Range<u64>, whole: &Range<u64>, handle: u8) -> Result<Time> {
        let mut done = at;
        for page in touched {
            let mut from = at;
            if !whole.contains(&page) {
                self.partial_writes += 1;
                from = self.ftl.read(at, Lpn(page))?.at;
            }
            done = done.max(self.ftl.write_placed(from, Lpn(page), &[], handle)?);
        }
        Ok(done)
    }

    fn trim(&mut self, at: Time, whole: Range<u64>) -> Result<Time> {
        let mut done = at;
        for page in whole {
            done = done.max(self.ftl.trim(at, Lpn(page))?);
        }
        Ok(done)
    }
}

impl BlockDevice for FtlDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(self.run(at, request))
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        match self.serve(at, &request) {
            Ok(at) => Completion { at, result: Ok(request.nothing_read()) },
            Err(error) => Completion { at, result: Err(error) },
        }
    }

    fn handles(&self) -> u8 {
        self.handles
    }

    fn keeps_contents(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_into_the_pages_they_touch_and_cover() {
        assert_eq!(pages(512, 512, 4096), (0..1, 1..1));
        assert_eq!(pages(4095, 2, 4096), (0..2, 1..1));
        assert_eq!(pages(100, 10_000, 4096), (0..3, 1..2));
        assert_eq!(pages(100, 10, 4096), (0..1, 1..1));
        assert_eq!(pages(0, 8192, 4096), (0..2, 0..2));
    }
}
