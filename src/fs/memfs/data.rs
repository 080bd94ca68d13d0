//! The contents of a file in memory: chunks of up to 128 KiB, each knowing which of its 4 KiB pages exist.
//!
//! A chunk's bytes are shared with readers: a read hands out a reference instead of a copy, and a write that
//! meets such a reference writes to a copy. The vector behind a chunk is only as long as what was written to it;
//! what follows reads as zeros. Invariants: bytes of a page that does not exist are zero; nothing lies beyond
//! the size except reserved pages, which are zero too.
//!
//! A whole chunk is what the kernel asks for at once when it reads ahead, so such a read is one part.

use crate::fs::Seek;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Unit of space, bytes.
pub(super) const PAGE: u64 = 4096;
const CHUNK: u64 = 128 << 10;

static ZEROS: [u8; CHUNK as usize] = [0; CHUNK as usize];

#[derive(Debug, Default)]
struct Chunk {
    bytes: Option<Arc<Vec<u8>>>,
    /// One bit a page that exists.
    present: u32,
}

/// Lets [`Bytes`] hold on to a chunk.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The contents of one file.
#[derive(Debug, Default)]
pub(super) struct Data {
    chunks: BTreeMap<u64, Chunk>,
    pages: u64,
}

/// The part of `range` in each chunk it touches: the chunk's number and offsets within it.
fn by_chunk(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let numbers = if range.is_empty() { 0..0 } else { range.start / CHUNK..(range.end - 1) / CHUNK + 1 };
    numbers.map(move |number| {
        let base = number * CHUNK;
        let start = range.start.max(base) - base;
        let end = (range.end - base).min(CHUNK);
        (number, start as usize..end as usize)
    })
}

/// Bits of the pages that `range` (offsets within a chunk) touches.
fn pages_touched(range: &Range<usize>) -> u32 {
    bits(range.start / PAGE as usize, range.end.div_ceil(PAGE as usize))
}

/// Bits of the pages that lie wholly inside `range`.
fn pages_inside(range: &Range<usize>) -> u32 {
    bits(range.start.div_ceil(PAGE as usize), range.end / PAGE as usize)
}

fn bits(from: usize, to: usize) -> u32 {
    let below = |count: usize| (1u64 << count) - 1;
    if from >= to { 0 } else { (below(to) & !below(from)) as u32 }
}

impl Chunk {
    fn own(&mut self) -> &mut Vec<u8> {
        Arc::make_mut(self.bytes.get_or_insert_default())
    }

    fn write(&mut self, start: usize, data: &[u8]) {
        let bytes = self.own();
        if bytes.len() < start {
            bytes.resize(start, 0);
        }
        let over = data.len().min(bytes.len() - start);
        bytes[start..start + over].copy_from_slice(&data[..over]);
        bytes.extend_from_slice(&data[over..]);
    }

    fn clear(&mut self, range: &Range<usize>) {
        let len = self.bytes.as_ref().map_or(0, |bytes| bytes.len());
        let (start, end) = (range.start.min(len), range.end.min(len));
        if start < end {
            self.own()[start..end].fill(0);
        }
    }

    /// Forgets the bytes from `end` on, so that they read as zeros.
    fn cut(&mut self, end: usize) {
        if self.bytes.as_ref().is_some_and(|bytes| bytes.len() > end) {
            self.own().truncate(end);
        }
    }
}

impl Data {
    /// How many pages exist.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// How many pages would be added if all that `range` touches existed.
    pub fn pages_missing(&self, range: Range<u64>) -> u64 {
        by_chunk(range)
            .map(|(number, part)| {
                let present = self.chunks.get(&number).map_or(0, |chunk| chunk.present);
                u64::from((pages_touched(&part) & !present).count_ones())
            })
            .sum()
    }

    /// Appends the bytes of `range`, which lies below the file's size, to `parts`.
    pub fn read(&self, range: Range<u64>, parts: &mut Vec<Bytes>) {
        for (number, part) in by_chunk(range) {
            let shared = self.chunks.get(&number).and_then(|chunk| chunk.bytes.as_ref());
            let there = shared.map_or(0, |bytes| bytes.len()).clamp(part.start, part.end);
            if let Some(bytes) = shared
                && there > part.start
            {
                parts.push(Bytes::from_owner(Shared(bytes.clone())).slice(part.start..there));
            }
            if there < part.end {
                parts.push(Bytes::from_static(&ZEROS[..part.end - there]));
            }
        }
    }

    /// Writes `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        for (number, part) in by_chunk(offset..offset + data.len() as u64) {
            let (now, later) = rest.split_at(part.len());
            let chunk = self.chunks.entry(number).or_default();
            let touched = pages_touched(&part);
            self.pages += u64::from((touched & !chunk.present).count_ones());
            chunk.present |= touched;
            chunk.write(part.start, now);
            rest = later;
        }
    }

    /// Drops everything from `size` on.
    pub fn truncate(&mut self, size: u64) {
        let gone = self.chunks.split_off(&size.div_ceil(CHUNK));
        self.pages -= gone.values().map(|chunk| u64::from(chunk.present.count_ones())).sum::<u64>();
        let within = (size % CHUNK) as usize;
        if let Some(chunk) = self.chunks.get_mut(&(size / CHUNK)) {
            let gone = chunk.present & pages_inside(&(within..CHUNK as usize));
            self.pages -= u64::from(gone.count_ones());
            chunk.present &= !gone;
            chunk.cut(within);
        }
    }

    /// Makes all pages that `range` touches exist.
    pub fn reserve(&mut self, range: Range<u64>) {
        for (number, part) in by_chunk(range) {
            let chunk = self.chunks.entry(number).or_default();
            let touched = pages_touched(&part);
            self.pages += u64::from((touched & !chunk.present).count_ones());
            chunk.present |= touched;
        }
    }

    /// Zeroes the bytes of `range`; with `free`, pages wholly inside it exist no longer.
    pub fn zero(&mut self, range: Range<u64>, free: bool) {
        let (first, last) = (range.start / CHUNK, range.end.div_ceil(CHUNK));
        let mut emptied = Vec::new();
        for (&number, chunk) in self.chunks.range_mut(first..last) {
            let base = number * CHUNK;
            let part = (range.start.max(base) - base) as usize..(range.end - base).min(CHUNK) as usize;
            chunk.clear(&part);
            if free {
                let gone = chunk.present & pages_inside(&part);
                self.pages -= u64::from(gone.count_ones());
                chunk.present &= !gone;
                if chunk.present == 0 {
                    emptied.push(number);
                }
            }
        }
        for number in emptied {
            self.chunks.remove(&number);
        }
    }

    /// The next byte at or after `offset`, below `size`, that lies in an existing page or in none.
    pub fn seek(&self, offset: u64, size: u64, what: Seek) -> Option<u64> {
        if offset >= size {
            return None;
        }
        let found = match what {
            Seek::Data => self.next_page(offset)?,
            Seek::Hole => self.next_gap(offset).min(size),
        };
        (found < size || what == Seek::Hole).then_some(found)
    }

    fn next_page(&self, offset: u64) -> Option<u64> {
        let page_of = |at: u64| (at % CHUNK / PAGE) as u32;
        self.chunks.range(offset / CHUNK..).find_map(|(&number, chunk)| {
            let from = if number == offset / CHUNK { page_of(offset) } else { 0 };
            let ahead = chunk.present & (u32::MAX << from);
            let start = number * CHUNK + u64::from(ahead.trailing_zeros()) * PAGE;
            (ahead != 0).then_some(start.max(offset))
        })
    }

    fn next_gap(&self, offset: u64) -> u64 {
        let mut at = offset;
        loop {
            let present = self.chunks.get(&(at / CHUNK)).map_or(0, |chunk| chunk.present);
            let from = (at % CHUNK / PAGE) as u32;
            let gaps = !present & (u32::MAX << from);
            if gaps != 0 {
                let start = at / CHUNK * CHUNK + u64::from(gaps.trailing_zeros()) * PAGE;
                return start.max(at);
            }
            at = (at / CHUNK + 1) * CHUNK;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn all(data: &Data, size: u64) -> Vec<u8> {
        let mut parts = Vec::new();
        data.read(0..size, &mut parts);
        parts.concat()
    }

    #[test]
    fn it_agrees_with_a_plain_vector_under_random_changes() {
        const SIZE: u64 = 3 * CHUNK + 5000;
        let mut random = StdRng::seed_from_u64(11);
        let (mut data, mut model) = (Data::default(), vec![0u8; SIZE as usize]);
        let mut held = Vec::new();
        for step in 0..3000u32 {
            let start = random.random_range(0..SIZE);
            let end = random.random_range(start..=SIZE.min(start + 70_000));
            let (from, to) = (start as usize, end as usize);
            match step % 4 {
                0 | 1 => {
                    let fresh = vec![step as u8 | 1; to - from];
                    data.write(start, &fresh);
                    model[from..to].copy_from_slice(&fresh);
                }
                2 => {
                    data.zero(start..end, step % 8 == 2);
                    model[from..to].fill(0);
                }
                _ => {
                    held.clear();
                    data.read(start..end, &mut held);
                    assert_eq!(held.concat(), &model[from..to]);
                }
            }
            if step % 500 == 499 {
                data.truncate(start);
                model[from..].fill(0);
            }
        }
        assert_eq!(all(&data, SIZE), model);
        let counted = data.chunks.values().map(|chunk| u64::from(chunk.present.count_ones())).sum::<u64>();
        assert_eq!(data.pages(), counted);
    }

    #[test]
    fn a_reader_keeps_what_it_was_given() {
        let mut data = Data::default();
        data.write(0, &[1; 10]);
        let mut parts = Vec::new();
        data.read(0..10, &mut parts);
        data.write(0, &[2; 10]);
        assert_eq!(parts.concat(), [1; 10]);
        assert_eq!(all(&data, 10), [2; 10]);
    }

    #[test]
    fn data_and_holes_are_found_by_page() {
        let mut data = Data::default();
        data.write(PAGE * 3 + 5, &[1]);
        data.write(CHUNK * 5, &[1]);
        let size = CHUNK * 6;
        for (offset, what, found) in [
            (0, Seek::Data, Some(PAGE * 3)),
            (PAGE * 3 + 7, Seek::Data, Some(PAGE * 3 + 7)),
            (PAGE * 4, Seek::Data, Some(CHUNK * 5)),
            (CHUNK * 5 + PAGE, Seek::Data, None),
            (0, Seek::Hole, Some(0)),
            (PAGE * 3, Seek::Hole, Some(PAGE * 4)),
            (CHUNK * 5, Seek::Hole, Some(CHUNK * 5 + PAGE)),
            (size, Seek::Hole, None),
        ] {
            assert_eq!(data.seek(offset, size, what), found, "{what:?} from {offset}");
        }
        data.reserve(0..size);
        assert_eq!(data.seek(0, size, Seek::Hole), Some(size));
    }

    #[test]
    fn a_far_byte_costs_one_chunk() {
        let mut data = Data::default();
        data.write(1 << 43, &[1]);
        assert_eq!((data.pages(), data.chunks.len()), (1, 1));
    }
}
