//! A page cache over any other layer.
//!
//! A write that covers a part of a page is a change of it, which reads the page first if it is not there.
//! A flush, and a write that must be durable, write out everything dirty, as an fsync of everything would;
//! `--no-flush` leaves them out. At the end of the run what is dirty is written, unless that is not wanted.

use super::report::Measured;
use super::stack::{Io, Layer, Piece};
use crate::cache::{Below, PageCache};
use crate::time::Time;
use crate::units::Lpn;
use crate::{Error, Result};

/// The layer below, as the cache sees it.
struct Lower {
    layer: Box<dyn Layer>,
    page_bytes: u64,
}

impl Lower {
    fn piece(&self, first: Lpn, count: u32) -> Piece {
        let len = u64::from(count) * self.page_bytes;
        Piece { offset: first.0 * self.page_bytes, len, durable: false, handle: 0 }
    }
}

impl Below for Lower {
    fn read(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let piece = self.piece(first, count);
        self.layer.serve(at, Io::Read(piece))
    }

    fn write(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let piece = self.piece(first, count);
        self.layer.serve(at, Io::Write(piece))
    }

    fn flush(&mut self, at: Time) -> Result<Time> {
        self.layer.serve(at, Io::Flush)
    }

    fn discard(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let piece = self.piece(first, count);
        self.layer.serve(at, Io::Discard(piece))
    }
}

/// A page cache over a layer.
pub(super) struct CacheLayer {
    cache: Box<dyn PageCache>,
    lower: Lower,
    drain: bool,
}

impl CacheLayer {
    /// `cache`, of pages of `page_bytes`, over `layer`; with `drain`, the end of the run writes what is dirty.
    pub fn new(cache: Box<dyn PageCache>, layer: Box<dyn Layer>, page_bytes: u64, drain: bool) -> CacheLayer {
        CacheLayer { cache, lower: Lower { layer, page_bytes }, drain }
    }

    fn write(&mut self, at: Time, piece: &Piece) -> Result<Time> {
        let page = self.lower.page_bytes;
        let (touched, whole) = (piece.units(page), piece.whole_units(page));
        let mut done = at;
        let parts = match whole.is_empty() {
            true => touched.collect::<Vec<_>>(),
            false => (touched.start..whole.start).chain(whole.end..touched.end).collect(),
        };
        for part in parts {
            done = done.max(self.cache.modify(at, Lpn(part), &mut self.lower)?);
        }
        if !whole.is_empty() {
            let count = count(whole.end - whole.start)?;
            done = done.max(self.cache.write(at, Lpn(whole.start), count, &mut self.lower)?);
        }
        if piece.durable { self.cache.flush(done, &mut self.lower) } else { Ok(done) }
    }
}

fn count(pages: u64) -> Result<u32> {
    u32::try_from(pages)
        .map_err(|_| Error::invalid(format!("a request of {pages} pages is too large for a cache")))
}

impl Layer for CacheLayer {
    fn serve(&mut self, at: Time, io: Io) -> Result<Time> {
        let page = self.lower.page_bytes;
        match io {
            Io::Read(piece) => {
                let range = piece.units(page);
                let count = count(range.end - range.start)?;
                self.cache.read(at, Lpn(range.start), count, &mut self.lower)
            }
            Io::Write(piece) => self.write(at, &piece),
            Io::Discard(piece) => {
                let range = piece.whole_units(page);
                if range.is_empty() {
                    return Ok(at);
                }
                let count = count(range.end - range.start)?;
                self.cache.discard(at, Lpn(range.start), count, &mut self.lower)
            }
            Io::Flush => self.cache.flush(at, &mut self.lower),
        }
    }

    fn finish(&mut self, at: Time) -> Result<Time> {
        let at = if self.drain { self.cache.flush(at, &mut self.lower)? } else { at };
        self.lower.layer.finish(at)
    }

    fn size_bytes(&self) -> Option<u64> {
        self.lower.layer.size_bytes()
    }

    fn page_bytes(&self) -> u64 {
        self.lower.layer.page_bytes()
    }

    fn erase_block_bytes(&self) -> Option<u64> {
        self.lower.layer.erase_block_bytes()
    }

    fn measure(&self, into: &mut Measured) {
        self.lower.layer.measure(into);
        into.cache = Some(super::report::CacheReport {
            policy: self.cache.name().to_string(),
            capacity_pages: self.cache.capacity(),
            page_bytes: self.lower.page_bytes,
            dirty_pages_left: self.cache.dirty(),
            overhead_bytes: self.cache.overhead_bytes() as u64,
            counts: *self.cache.stats(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::stack::Counting;
    use super::*;
    use crate::cache::{Config, build};

    fn layer(drain: bool) -> CacheLayer {
        let cache = build("lru", &Config::new(4)).unwrap();
        CacheLayer::new(cache, Box::new(Counting::new(4096)), 4096, drain)
    }

    fn piece(offset: u64, len: u64) -> Piece {
        Piece { offset, len, durable: false, handle: 0 }
    }

    fn measured(layer: &CacheLayer) -> Measured {
        let mut measured = Measured::default();
        layer.measure(&mut measured);
        measured
    }

    #[test]
    fn parts_of_pages_are_read_first_and_whole_ones_are_not() {
        let mut cached = layer(true);
        cached.serve(Time::ZERO, Io::Write(piece(4096, 8192))).unwrap();
        assert_eq!(measured(&cached).pages_read, 0);
        cached.serve(Time::ZERO, Io::Write(piece(100, 8000))).unwrap();
        assert_eq!(measured(&cached).pages_read, 1, "page 0; page 1 was there");
        cached.serve(Time::ZERO, Io::Write(piece(10_000, 10))).unwrap();
        assert_eq!(measured(&cached).pages_read, 1, "page 2 was there");
        assert_eq!(measured(&cached).pages_written, 0);
        cached.finish(Time::ZERO).unwrap();
        assert_eq!(measured(&cached).pages_written, 3);
    }

    #[test]
    fn what_must_be_durable_is_written_at_once() {
        let mut cached = layer(false);
        cached.serve(Time::ZERO, Io::Write(piece(0, 4096))).unwrap();
        cached.serve(Time::ZERO, Io::Write(Piece { durable: true, ..piece(4096, 4096) })).unwrap();
        assert_eq!(measured(&cached).pages_written, 2);
        cached.serve(Time::ZERO, Io::Write(piece(8192, 4096))).unwrap();
        cached.finish(Time::ZERO).unwrap();
        let counts = measured(&cached).cache.unwrap();
        assert_eq!((counts.counts.pages_written, counts.dirty_pages_left), (2, 1));
    }

    #[test]
    fn hits_are_answered_and_discards_forget() {
        let mut cached = layer(true);
        for _ in 0..3 {
            cached.serve(Time::ZERO, Io::Read(piece(0, 4096))).unwrap();
        }
        let counts = measured(&cached).cache.unwrap().counts;
        assert_eq!((counts.read_hits, counts.read_misses), (2, 1));
        cached.serve(Time::ZERO, Io::Write(piece(0, 4096))).unwrap();
        cached.serve(Time::ZERO, Io::Discard(piece(0, 4096))).unwrap();
        cached.finish(Time::ZERO).unwrap();
        assert_eq!(measured(&cached).pages_written, 0);
    }
}
