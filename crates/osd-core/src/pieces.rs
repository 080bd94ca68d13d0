//! Pages of pieces: bytes of several objects, one behind the other, and at the page's end a *directory* that says whose
//! they are, in their order.
//!
//! A page with nothing but one object's bytes needs none: whose it is goes into its checksum.

use super::layout::{Input, Key, Output, varint_len};
use bimetal_base::Result;

/// Bytes at a page's end that say when it was written, and how long its directory is.
const TAIL_BYTES: usize = 12;

/// What a page is filled with, as far as it is.
#[derive(Default)]
pub(super) struct Pieces {
    /// Bytes of pieces.
    used: usize,
    directory: Output,
}

impl Pieces {
    /// Bytes of pieces so far.
    pub fn used(&self) -> usize {
        self.used
    }

    /// How many bytes of a piece of `len` bytes from `key` on a page of `page_bytes` has room for.
    pub fn room(&self, page_bytes: usize, key: Key, len: u64) -> u64 {
        let taken = self.used + self.directory.0.len() + entry_bytes(key, len) + TAIL_BYTES;
        page_bytes.saturating_sub(taken) as u64
    }

    /// Notes a piece.
    pub fn add(&mut self, key: Key, len: u64) {
        key.write(&mut self.directory);
        self.directory.varint(len);
        self.used += len as usize;
    }

    /// The page, with the bytes of the pieces at its beginning; `when` as summaries have it.
    pub fn page(&self, bytes: &[u8], page_bytes: usize, when: u64) -> Vec<u8> {
        let mut page = bytes.to_vec();
        page.resize(page_bytes - TAIL_BYTES - self.directory.0.len(), 0);
        page.extend_from_slice(&self.directory.0);
        page.extend_from_slice(&when.to_le_bytes());
        page.extend_from_slice(&(self.directory.0.len() as u32).to_le_bytes());
        page
    }
}

/// Bytes of a piece in the directory.
fn entry_bytes(key: Key, len: u64) -> usize {
    key.encoded_len() + varint_len(len)
}

/// Where a piece begins in its page, whose it is, how long.
type Place = (u64, Key, u64);

/// The pieces of a page.
pub(super) fn read(page: &[u8]) -> Result<Vec<Place>> {
    read_all(page).map(|(_, pieces)| pieces)
}

/// As [`read`], with when the page was written.
pub(super) fn read_all(page: &[u8]) -> Result<(u64, Vec<Place>)> {
    const NAME: &str = "the directory of a page of pieces";
    let mut tail = Input::new(NAME, page);
    tail.take(page.len().saturating_sub(TAIL_BYTES))?;
    let (when, len) = (tail.u64()?, tail.u32()? as usize);
    let mut input = Input::new(NAME, page);
    let before = page.len().checked_sub(TAIL_BYTES + len).ok_or_else(|| input.wrong("it is too long"))?;
    input.take(before)?;
    let mut input = Input::new(NAME, input.take(len)?);
    let (mut pieces, mut at) = (Vec::new(), 0);
    while !input.is_empty() {
        let (key, len) = (Key::read(&mut input)?, input.below(before as u64 - at + 1, "a length")?);
        pieces.push((at, key, len));
        at += len;
    }
    Ok((when, pieces))
}

/// Whether `len` bytes of a page from `at` on are those of an object of which byte 0 of the page would be `first`.
pub(super) fn holds(page: &[u8], first: Key, at: u64, len: u64) -> Result<bool> {
    let (mut reached, end) = (at, at + len);
    for (from, key, len) in read(page)? {
        let begins = Key { object: key.object, place: key.place.wrapping_sub(from) };
        if begins == first && from <= reached {
            reached = reached.max(from + len);
        }
    }
    Ok(reached >= end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Fork;
    use proptest::prelude::*;

    #[test]
    fn a_page_says_whose_its_pieces_are() {
        let (one, two) = (Key::extent(7, Fork::Data, 4000), Key::extent(9, Fork::Attributes, 0));
        let mut pieces = Pieces::default();
        pieces.add(one, 5);
        pieces.add(two, 300);
        let page = pieces.page(&[1; 305], 2048, 77);
        assert_eq!((page.len(), pieces.used()), (2048, 305));
        assert_eq!(read_all(&page).unwrap(), (77, vec![(0, one, 5), (5, two, 300)]));
        let first = Key { object: 9, place: two.place.wrapping_sub(5) };
        assert!(holds(&page, one, 0, 5).unwrap() && holds(&page, first, 100, 205).unwrap());
        let mut parts = Pieces::default();
        parts.add(one, 5);
        parts.add(Key::extent(7, Fork::Data, 4005), 5);
        assert!(holds(&parts.page(&[1; 10], 2048, 0), one, 3, 7).unwrap());
        for (first, at, len) in [(one, 0, 6), (two, 5, 1), (first, 4, 2), (first, 305, 1)] {
            assert!(!holds(&page, first, at, len).unwrap(), "{first:?}, {at}, {len}");
        }
    }

    #[test]
    fn what_there_is_room_for_fits() {
        for len in [1, 100, 2030, 2048, 9000] {
            let key = Key::extent(u64::MAX, Fork::Attributes, 1 << 40);
            let mut pieces = Pieces::default();
            loop {
                let room = pieces.room(2048, key, len).min(len);
                if room == 0 {
                    break;
                }
                pieces.add(key, room);
            }
            let page = pieces.page(&vec![1; pieces.used()], 2048, u64::MAX);
            assert_eq!(page.len(), 2048);
            assert_eq!(read(&page).unwrap().iter().map(|piece| piece.2).sum::<u64>(), pieces.used() as u64);
        }
    }

    proptest! {
        #[test]
        fn noise_is_an_error_or_pieces_and_never_a_panic(mut page in prop::collection::vec(any::<u8>(), 0..200), len in 0u32..210) {
            let at = page.len().saturating_sub(4);
            page.truncate(at);
            page.extend(len.to_le_bytes());
            let _ = holds(&page, Key::onode(3), 5, 9);
        }
    }
}
