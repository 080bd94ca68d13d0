//! The contents of a file in memory: chunks of up to 1 MiB, each knowing which of its 4 KiB pages exist.
//!
//! A chunk's bytes are shared with readers: a read hands out a reference instead of a copy, and a write that
//! meets such a reference writes to a copy. The vector behind a chunk is only as long as what was written to it;
//! what follows reads as zeros. Invariants: bytes of a page that does not exist are zero; nothing lies beyond
//! the size except reserved pages, which are zero too.
//!
//! The first chunk, which is all of a small file, needs no map. A read by the kernel (at most 128 KiB when it
//! reads ahead) is one part, unless it crosses chunks or a hole.

use bimetal_vfs::Seek;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Unit of space, bytes.
pub(super) const PAGE: u64 = 4096;
const CHUNK: u64 = 1 << 20;
const WORDS: usize = (CHUNK / PAGE / 64) as usize;

static ZEROS: [u8; CHUNK as usize] = [0; CHUNK as usize];

/// A set of pages of a chunk, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pages([u64; WORDS]);

#[derive(Debug, Default)]
struct Chunk {
    bytes: Option<Arc<Vec<u8>>>,
    /// Pages that exist.
    present: Pages,
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
    first: Chunk,
    /// The chunks from number 1 on.
    rest: BTreeMap<u64, Chunk>,
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

impl Pages {
    /// The pages numbered `from` to `to`, without `to`.
    fn between(from: usize, to: usize) -> Pages {
        let below = |count: usize| if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        let word = |at: usize| {
            let base = at * 64;
            below(to.saturating_sub(base)) & !below(from.saturating_sub(base))
        };
        Pages(std::array::from_fn(word))
    }

    /// Those that `range` (offsets within a chunk) touches.
    fn touched(range: &Range<usize>) -> Pages {
        Pages::between(range.start / PAGE as usize, range.end.div_ceil(PAGE as usize))
    }

    /// Those that lie wholly inside `range`.
    fn inside(range: &Range<usize>) -> Pages {
        Pages::between(range.start.div_ceil(PAGE as usize), range.end / PAGE as usize)
    }

    fn count(self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    fn and(self, other: Pages) -> Pages {
        Pages(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    fn without(self, other: Pages) -> Pages {
        Pages(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// The first page from `from` on that is in the set, or with `present` false, is not.
    fn next(self, from: usize, present: bool) -> Option<usize> {
        (from / 64..WORDS).find_map(|at| {
            let word = if present { self.0[at] } else { !self.0[at] };
            let ahead = if at == from / 64 { word & (u64::MAX << (from % 64)) } else { word };
            (ahead != 0).then(|| at * 64 + ahead.trailing_zeros() as usize)
        })
    }
}

impl Chunk {
    /// Makes pages exist; how many did not.
    fn add(&mut self, pages: Pages) -> u64 {
        let new = pages.without(self.present).count();
        self.present = Pages(std::array::from_fn(|at| self.present.0[at] | pages.0[at]));
        new
    }

    /// Makes pages exist no longer; how many did.
    fn drop(&mut self, pages: Pages) -> u64 {
        let gone = self.present.and(pages).count();
        self.present = self.present.without(pages);
        gone
    }

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

    fn chunk(&self, number: u64) -> Option<&Chunk> {
        if number == 0 { Some(&self.first) } else { self.rest.get(&number) }
    }

    fn chunk_mut(&mut self, number: u64) -> &mut Chunk {
        if number == 0 { &mut self.first } else { self.rest.entry(number).or_default() }
    }

    /// How many pages would be added if all that `range` touches existed.
    pub fn pages_missing(&self, range: Range<u64>) -> u64 {
        let missing = |(number, part): (u64, Range<usize>)| {
            let present = self.chunk(number).map_or_else(Pages::default, |chunk| chunk.present);
            Pages::touched(&part).without(present).count()
        };
        by_chunk(range).map(missing).sum()
    }

    /// Appends the bytes of `range`, which lies below the file's size, to `parts`.
    pub fn read(&self, range: Range<u64>, parts: &mut Vec<Bytes>) {
        for (number, part) in by_chunk(range) {
            let shared = self.chunk(number).and_then(|chunk| chunk.bytes.as_ref());
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
            let chunk = self.chunk_mut(number);
            let added = chunk.add(Pages::touched(&part));
            chunk.write(part.start, now);
            self.pages += added;
            rest = later;
        }
    }

    /// Drops everything from `size` on.
    pub fn truncate(&mut self, size: u64) {
        let gone = self.rest.split_off(&size.div_ceil(CHUNK).max(1));
        self.pages -= gone.values().map(|chunk| chunk.present.count()).sum::<u64>();
        // Of the chunks that stay, only the one that `size` falls into has anything to lose.
        let (number, within) =
            if size >= CHUNK { (size / CHUNK, (size % CHUNK) as usize) } else { (0, size as usize) };
        if number == 0 || self.rest.contains_key(&number) {
            let chunk = self.chunk_mut(number);
            let gone = chunk.drop(Pages::inside(&(within..CHUNK as usize)));
            chunk.cut(within);
            self.pages -= gone;
        }
    }

    /// Makes all pages that `range` touches exist.
    pub fn reserve(&mut self, range: Range<u64>) {
        for (number, part) in by_chunk(range) {
            let added = self.chunk_mut(number).add(Pages::touched(&part));
            self.pages += added;
        }
    }

    /// Zeroes the bytes of `range`; pages wholly inside it exist no longer.
    pub fn punch(&mut self, range: Range<u64>) {
        let (first, last) = (range.start / CHUNK, range.end.div_ceil(CHUNK));
        if first >= last {
            return;
        }
        let mut gone = 0;
        let ahead = (first == 0).then_some((&0, &mut self.first));
        for (&number, chunk) in ahead.into_iter().chain(self.rest.range_mut(first..last)) {
            let base = number * CHUNK;
            let part = (range.start.max(base) - base) as usize..(range.end - base).min(CHUNK) as usize;
            chunk.clear(&part);
            gone += chunk.drop(Pages::inside(&part));
        }
        self.pages -= gone;
        let touched = self.rest.range(first..last);
        let empty = touched.filter(|(_, chunk)| chunk.present == Pages::default()).map(|(number, _)| *number);
        for number in empty.collect::<Vec<u64>>() {
            self.rest.remove(&number);
        }
        if self.first.present == Pages::default() {
            self.first = Chunk::default();
        }
    }

    /// The next byte at or after `offset`, below `size`, that lies in an existing page or in none.
    pub fn seek(&self, offset: u64, size: u64, what: Seek) -> Option<u64> {
        if offset >= size {
            return None;
        }
        match what {
            Seek::Data => self.next_page(offset).filter(|found| *found < size),
            Seek::Hole => Some(self.next_gap(offset).min(size)),
        }
    }

    fn next_page(&self, offset: u64) -> Option<u64> {
        let first = (offset < CHUNK).then_some((&0, &self.first));
        first.into_iter().chain(self.rest.range(offset / CHUNK..)).find_map(|(&number, chunk)| {
            let base = number * CHUNK;
            let from = (offset.max(base) - base) / PAGE;
            let page = chunk.present.next(from as usize, true)?;
            Some((base + page as u64 * PAGE).max(offset))
        })
    }

    fn next_gap(&self, offset: u64) -> u64 {
        let mut at = offset;
        loop {
            let base = at / CHUNK * CHUNK;
            let present = self.chunk(at / CHUNK).map_or_else(Pages::default, |chunk| chunk.present);
            if let Some(page) = present.next(((at - base) / PAGE) as usize, false) {
                return (base + page as u64 * PAGE).max(at);
            }
            at = base + CHUNK;
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
            let end = random.random_range(start..=SIZE.min(start + 700_000));
            let (from, to) = (start as usize, end as usize);
            match step % 4 {
                0 | 1 => {
                    let fresh = vec![step as u8 | 1; to - from];
                    data.write(start, &fresh);
                    model[from..to].copy_from_slice(&fresh);
                }
                2 => {
                    data.punch(start..end);
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
        let chunks = [&data.first].into_iter().chain(data.rest.values());
        assert_eq!(data.pages(), chunks.map(|chunk| chunk.present.count()).sum::<u64>());
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
        assert_eq!((data.pages(), data.rest.len()), (1, 1));
    }
}
