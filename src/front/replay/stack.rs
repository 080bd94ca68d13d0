//! What a replay drives: layers that answer a request with the instant it is done.
//!
//! `replay` = trace → optional page cache → FTL on NAND, or a device. A layer hides what is below it. The
//! page cache ([`CacheLayer`](super::cached)) is one over any other; the bottom is one of [`FtlLayer`],
//! [`DeviceLayer`] and [`Counting`]. Offsets and lengths are bytes of any alignment; a layer rounds to its
//! own pages or blocks.

use super::report::Measured;
use crate::front::trace::{Flags, Op, Record};
use crate::ftl::{self, Ftl};
use crate::media::{BlockDevice, Gather, Request};
use crate::random::Random;
use crate::time::Time;
use crate::units::Lpn;
use crate::{Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// A range of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Done only when durable.
    pub durable: bool,
    /// The placement handle it is written with; 0: none.
    pub handle: u8,
}

impl Piece {
    pub fn of(record: &Record) -> Piece {
        let handle = u8::from(record.flags.has(Flags::META));
        Piece { offset: record.offset, len: record.len, durable: record.flags.has(Flags::FUA), handle }
    }

    /// The units of `unit` bytes that the range touches.
    pub fn units(&self, unit: u64) -> std::ops::Range<u64> {
        self.offset / unit..self.offset.saturating_add(self.len).div_ceil(unit)
    }

    /// The units of `unit` bytes that lie wholly within the range.
    pub fn whole_units(&self, unit: u64) -> std::ops::Range<u64> {
        let first = self.offset.div_ceil(unit);
        first..(self.offset.saturating_add(self.len) / unit).max(first)
    }
}

/// One request to a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Io {
    /// Read a range.
    Read(Piece),
    /// Write a range.
    Write(Piece),
    /// The range's contents are of no use any more.
    Discard(Piece),
    /// What was written is to be durable.
    Flush,
}

impl Io {
    /// How a record's ranges are asked for; none for what is no request for a range.
    pub fn of(record: &Record) -> Option<fn(Piece) -> Io> {
        match record.op {
            _ if record.len == 0 => None,
            Op::Read => Some(Io::Read),
            Op::Write => Some(Io::Write),
            Op::Discard => Some(Io::Discard),
            _ => None,
        }
    }

    /// Its range; a flush has none.
    pub fn piece(&self) -> Option<Piece> {
        match *self {
            Io::Read(piece) | Io::Write(piece) | Io::Discard(piece) => Some(piece),
            Io::Flush => None,
        }
    }
}

/// A layer of the replayed stack.
pub(super) trait Layer: Send {
    /// Serves a request that arrives at `at`; when it is done.
    fn serve(&mut self, at: Time, io: Io) -> Result<Time>;

    /// Ends the run: what the layer still holds goes down; when that is done.
    fn finish(&mut self, at: Time) -> Result<Time> {
        Ok(at)
    }

    /// Bytes that can be addressed; none: any.
    fn size_bytes(&self) -> Option<u64>;

    /// Bytes of a page, in which `pages_read` and `pages_written` count.
    fn page_bytes(&self) -> u64;

    /// Bytes of an erase block, if there is flash below.
    fn erase_block_bytes(&self) -> Option<u64> {
        None
    }

    /// Adds what the layer counted so far.
    fn measure(&self, into: &mut Measured);
}

/// A layer that changes requests on their way and is like the one below in all else.
pub(super) trait Filter: Send {
    /// The layer below.
    fn below(&self) -> &dyn Layer;

    /// The same, to be asked for something.
    fn below_mut(&mut self) -> &mut dyn Layer;

    /// See [`Layer::serve`].
    fn pass(&mut self, at: Time, io: Io) -> Result<Time>;

    /// Adds what it counted itself.
    fn measure_own(&self, _into: &mut Measured) {}
}

impl<T: Filter> Layer for T {
    fn serve(&mut self, at: Time, io: Io) -> Result<Time> {
        self.pass(at, io)
    }

    fn finish(&mut self, at: Time) -> Result<Time> {
        self.below_mut().finish(at)
    }

    fn size_bytes(&self) -> Option<u64> {
        self.below().size_bytes()
    }

    fn page_bytes(&self) -> u64 {
        self.below().page_bytes()
    }

    fn erase_block_bytes(&self) -> Option<u64> {
        self.below().erase_block_bytes()
    }

    fn measure(&self, into: &mut Measured) {
        self.below().measure(into);
        self.measure_own(into);
    }
}

/// Software between host and device: each request reaches the device that much later.
pub(super) struct Software {
    below: Box<dyn Layer>,
    takes: Duration,
}

impl Software {
    /// Takes `takes` for each request to `below`.
    pub fn new(below: Box<dyn Layer>, takes: Duration) -> Software {
        Software { below, takes }
    }
}

impl Filter for Software {
    fn below(&self) -> &dyn Layer {
        self.below.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Layer {
        self.below.as_mut()
    }

    fn pass(&mut self, at: Time, io: Io) -> Result<Time> {
        self.below.serve(at + self.takes, io)
    }
}

/// A non-volatile write cache of a range of addresses, large enough for it: what falls wholly into the range
/// ends there, in no time, and never reaches what is below.
pub(super) struct Absorbing {
    below: Box<dyn Layer>,
    range: std::ops::Range<u64>,
    absorbed: u64,
}

impl Absorbing {
    /// Takes the bytes of `range` from `below`.
    pub fn new(below: Box<dyn Layer>, range: std::ops::Range<u64>) -> Absorbing {
        Absorbing { below, range, absorbed: 0 }
    }
}

impl Filter for Absorbing {
    fn below(&self) -> &dyn Layer {
        self.below.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Layer {
        self.below.as_mut()
    }

    fn pass(&mut self, at: Time, io: Io) -> Result<Time> {
        let within = |piece: Piece| {
            let end = piece.offset.saturating_add(piece.len);
            self.range.contains(&piece.offset) && end <= self.range.end
        };
        if io.piece().is_some_and(within) {
            self.absorbed += 1;
            return Ok(at);
        }
        self.below.serve(at, io)
    }

    fn measure_own(&self, into: &mut Measured) {
        into.absorbed = Some(self.absorbed);
    }
}

/// A bottom that only counts, in no time.
pub(super) struct Counting {
    page_bytes: u64,
    pages_read: u64,
    pages_written: u64,
}

impl Counting {
    /// Counts pages of `page_bytes`.
    pub fn new(page_bytes: u64) -> Counting {
        Counting { page_bytes, pages_read: 0, pages_written: 0 }
    }
}

fn pages(range: std::ops::Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

impl Layer for Counting {
    fn serve(&mut self, at: Time, io: Io) -> Result<Time> {
        match io {
            Io::Read(piece) => self.pages_read += pages(piece.units(self.page_bytes)),
            Io::Write(piece) => self.pages_written += pages(piece.units(self.page_bytes)),
            Io::Discard(_) | Io::Flush => {}
        }
        Ok(at)
    }

    fn size_bytes(&self) -> Option<u64> {
        None
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn measure(&self, into: &mut Measured) {
        into.pages_read = self.pages_read;
        into.pages_written = self.pages_written;
        into.page_bytes = self.page_bytes;
    }
}

/// Any block device. One that answers in virtual time is driven with as many requests as the pace asks
/// for; a real one (pending tickets) one request at a time.
pub(super) struct DeviceLayer {
    device: Arc<dyn BlockDevice>,
    counting: Counting,
    flash: Option<Flash>,
}

/// What a device tells about the flash in it.
pub(super) struct Flash {
    /// What it did.
    pub report: Box<dyn Fn() -> ftl::Report + Send>,
    /// Bytes of an erase block.
    pub erase_block_bytes: u64,
}

/// What is written: nobody reads it.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

impl DeviceLayer {
    /// Over `device`; pages of `page_bytes` are counted.
    pub fn new(device: Arc<dyn BlockDevice>, page_bytes: u64, flash: Option<Flash>) -> DeviceLayer {
        DeviceLayer { device, counting: Counting::new(page_bytes), flash }
    }

    /// The whole blocks a range touches: first byte, bytes.
    fn blocks(&self, piece: &Piece) -> (u64, u64) {
        let block = u64::from(self.device.info().block_bytes);
        let units = piece.units(block);
        (units.start * block, pages(units) * block)
    }
}

/// `len` zeros, in pieces that share their memory.
pub(super) fn zeros(mut len: u64) -> Gather {
    let mut gather = Gather::new();
    while len > 0 {
        let part = len.min(ZEROS.len() as u64);
        gather.push(Bytes::from_static(&ZEROS[..part as usize]));
        len -= part;
    }
    gather
}

impl Layer for DeviceLayer {
    fn serve(&mut self, at: Time, io: Io) -> Result<Time> {
        let request = match io {
            Io::Read(piece) => {
                let (offset, len) = self.blocks(&piece);
                let len = usize::try_from(len).map_err(|_| Error::invalid("a read larger than memory"))?;
                Request::Read { offset, len }
            }
            Io::Write(piece) => {
                let (offset, len) = self.blocks(&piece);
                Request::Write { offset, data: zeros(len), durable: piece.durable }
            }
            Io::Discard(piece) => {
                let block = u64::from(self.device.info().block_bytes);
                let whole = piece.whole_units(block);
                if whole.is_empty() {
                    return Ok(at);
                }
                Request::Discard { offset: whole.start * block, len: pages(whole) * block }
            }
            Io::Flush => Request::Flush,
        };
        self.counting.serve(at, io)?;
        let completion = self.device.run(at, request);
        completion.result.map(|_| completion.at)
    }

    fn size_bytes(&self) -> Option<u64> {
        Some(self.device.info().size_bytes)
    }

    fn page_bytes(&self) -> u64 {
        self.counting.page_bytes
    }

    fn erase_block_bytes(&self) -> Option<u64> {
        self.flash.as_ref().map(|flash| flash.erase_block_bytes)
    }

    fn measure(&self, into: &mut Measured) {
        self.counting.measure(into);
        if let Some(flash) = &self.flash {
            into.flash = Some((flash.report)());
        }
    }
}

/// What a translation layer has behind it before the trace begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Precondition {
    /// New: erased
    #[default]
    None,
    /// Every page written once, in order
    Fill,
    /// The same, then as many pages again at random
    Random,
}

/// Writes what is to be there before the trace begins; when that is done.
///
/// # Errors
/// The device has no end, or its flash wears out before the trace begins.
pub(super) fn precondition(layer: &mut dyn Layer, kind: Precondition, seed: u64) -> Result<Time> {
    let mut at = Time::ZERO;
    if kind == Precondition::None {
        return Ok(at);
    }
    let page = layer.page_bytes();
    let Some(pages) = layer.size_bytes().map(|size| size / page) else {
        return Err(Error::invalid("--precondition needs a device with a size, not 'none'"));
    };
    let mut write = |number: u64| {
        at = layer
            .serve(at, Io::Write(Piece { offset: number * page, len: page, durable: false, handle: 0 }))?;
        Ok(())
    };
    (0..pages).try_for_each(&mut write)?;
    if kind == Precondition::Random {
        let mut random = Random::new(seed, "precondition");
        (0..pages).try_for_each(|_| write(random.below(pages)))?;
    }
    layer.serve(at, Io::Flush)
}

/// A translation layer on NAND. It keeps no contents: pages are checked by their tags in its own tests.
pub(super) struct FtlLayer {
    ftl: Box<dyn Ftl>,
    page_bytes: u64,
    partial_writes: u64,
}

impl FtlLayer {
    /// Over `ftl`.
    pub fn new(ftl: Box<dyn Ftl>) -> FtlLayer {
        let page_bytes = u64::from(ftl.nand().geometry().page_bytes);
        FtlLayer { ftl, page_bytes, partial_writes: 0 }
    }

    /// A page that is written in part is read first.
    fn write(&mut self, at: Time, piece: &Piece) -> Result<Time> {
        let whole = piece.whole_units(self.page_bytes);
        let mut done = at;
        for page in piece.units(self.page_bytes) {
            let mut from = at;
            if !whole.contains(&page) {
                self.partial_writes += 1;
                from = self.ftl.read(at, Lpn(page))?.at;
            }
            done = done.max(self.ftl.write_placed(from, Lpn(page), &[], piece.handle)?);
        }
        Ok(done)
    }

    fn read(&mut self, at: Time, piece: &Piece) -> Result<Time> {
        let mut done = at;
        for page in piece.units(self.page_bytes) {
            done = done.max(self.ftl.read(at, Lpn(page))?.at);
        }
        Ok(done)
    }

    fn discard(&mut self, at: Time, piece: &Piece) -> Result<Time> {
        let mut done = at;
        for page in piece.whole_units(self.page_bytes) {
            done = done.max(self.ftl.trim(at, Lpn(page))?);
        }
        Ok(done)
    }
}

impl Layer for FtlLayer {
    fn serve(&mut self, at: Time, io: Io) -> Result<Time> {
        match io {
            Io::Read(piece) => self.read(at, &piece),
            Io::Write(piece) => self.write(at, &piece),
            Io::Discard(piece) => self.discard(at, &piece),
            // A page is durable once it is programmed.
            Io::Flush => Ok(at),
        }
    }

    fn size_bytes(&self) -> Option<u64> {
        Some(self.ftl.logical_pages() * self.page_bytes)
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn erase_block_bytes(&self) -> Option<u64> {
        Some(u64::from(self.ftl.nand().geometry().pages_per_block) * self.page_bytes)
    }

    fn measure(&self, into: &mut Measured) {
        let report = ftl::report(&*self.ftl);
        into.page_bytes = self.page_bytes;
        into.pages_read = report.ftl.host_reads;
        into.pages_written = report.ftl.host_writes;
        into.partial_page_writes = Some(self.partial_writes);
        into.flash = Some(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_into_the_units_they_touch_and_fill() {
        let piece = |offset, len| Piece { offset, len, durable: false, handle: 0 };
        assert_eq!(piece(512, 512).units(4096), 0..1);
        assert_eq!(piece(4095, 2).units(4096), 0..2);
        assert_eq!(piece(100, 10_000).whole_units(4096), 1..2);
        assert_eq!(piece(100, 10).whole_units(4096), 1..1);
        assert_eq!(piece(0, 8192).whole_units(4096), 0..2);
    }

    #[test]
    fn what_is_wholly_in_the_range_is_absorbed() {
        let mut layer = Absorbing::new(Box::new(Counting::new(512)), 512..2048);
        let piece = |offset, len| Piece { offset, len, durable: false, handle: 0 };
        for (offset, len) in [(512, 512), (0, 1024), (1536, 512), (1536, 1024), (512, 1536)] {
            layer.serve(Time::ZERO, Io::Write(piece(offset, len))).unwrap();
        }
        let mut measured = Measured::default();
        layer.measure(&mut measured);
        assert_eq!((measured.absorbed, measured.pages_written), (Some(3), 4));
    }

    #[test]
    fn a_device_is_asked_for_whole_blocks() {
        let ram = Arc::new(crate::media::ram::Ram::new("ram", 1 << 20));
        let counted = Arc::new(crate::media::counted::Counted::new(ram));
        let mut layer = DeviceLayer::new(counted.clone(), 4096, None);
        let piece = Piece { offset: 1000, len: 100, durable: true, handle: 0 };
        layer.serve(Time::ZERO, Io::Write(piece)).unwrap();
        layer.serve(Time::ZERO, Io::Read(Piece { len: 3000, ..piece })).unwrap();
        layer.serve(Time::ZERO, Io::Discard(piece)).unwrap();
        layer.serve(Time::ZERO, Io::Flush).unwrap();
        let counts = counted.counts();
        assert_eq!((counts.write_bytes, counts.read_bytes, counts.durable_writes), (1024, 3584, 1));
        assert_eq!((counts.discards, counts.flushes), (0, 1));
        assert!(layer.serve(Time::ZERO, Io::Read(Piece { offset: 1 << 20, ..piece })).is_err());
    }
}
