//! The marks of all extents of a section, packed, in chunks that are there only where an extent is not clean.
//!
//! An extent has two bits a part, so two, four or eight bytes hold it: two for the sixteen blocks of the default
//! (five parts). A clean extent is all zeros; a chunk of clean extents, a page's worth, is not there.
//!
//! Memory: 10 bytes for each 2048 (1024, 512) extents of the section, and a page for each of these chunks in use.

use super::pages::{PAGE_BYTES, Page};
use super::segment::{Marks, Shape};

type Chunk = Page<[u8; PAGE_BYTES]>;

/// See the file's documentation.
#[derive(Debug)]
pub(super) struct MarkTable {
    /// Bytes of one extent's marks.
    width: usize,
    chunks: Vec<Option<Chunk>>,
    /// For each chunk, its extents that are not clean.
    in_use: Vec<u16>,
    held: usize,
}

impl MarkTable {
    /// Of `extents` clean extents.
    pub(super) fn new(shape: Shape, extents: u32) -> MarkTable {
        let width = match shape.parts() {
            0..=8 => 2,
            9..=16 => 4,
            _ => 8,
        };
        let count = extents.div_ceil((PAGE_BYTES / width) as u32) as usize;
        let mut chunks = Vec::new();
        chunks.resize_with(count, || None);
        MarkTable { width, chunks, in_use: vec![0; count], held: 0 }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.chunks.len() * (size_of::<Option<Chunk>>() + 2) + self.held * Chunk::BYTES
    }

    /// Extents in a chunk.
    pub(super) fn chunk_extents(&self) -> u32 {
        (PAGE_BYTES / self.width) as u32
    }

    fn place(&self, extent: u32) -> (usize, usize) {
        let at = extent as usize * self.width;
        (at / PAGE_BYTES, at % PAGE_BYTES)
    }

    pub(super) fn get(&self, extent: u32) -> Marks {
        let (chunk, at) = self.place(extent);
        let Some(chunk) = &self.chunks[chunk] else { return Marks::default() };
        let mut bytes = [0; 8];
        bytes[..self.width].copy_from_slice(&chunk[at..at + self.width]);
        Marks(u64::from_le_bytes(bytes))
    }

    pub(super) fn set(&mut self, extent: u32, marks: Marks) {
        let before = self.get(extent);
        if before == marks {
            return;
        }
        let ((number, at), width) = (self.place(extent), self.width);
        let place = &mut self.chunks[number];
        self.held += usize::from(place.is_none());
        let chunk = place.get_or_insert_with(Chunk::zeroed);
        chunk[at..at + width].copy_from_slice(&marks.0.to_le_bytes()[..width]);
        if before.is_clean() {
            self.in_use[number] += 1;
        } else if marks.is_clean() {
            self.in_use[number] -= 1;
            if self.in_use[number] == 0 {
                self.chunks[number] = None;
                self.held -= 1;
            }
        }
    }

    /// Whether all extents of the chunk with `extent` are clean.
    pub(super) fn chunk_is_clean(&self, extent: u32) -> bool {
        self.chunks[self.place(extent).0].is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_read_back_in_every_width_and_clean_extents_cost_nothing() {
        for blocks in [16, 128, 65_536] {
            let shape = Shape::new(blocks, 16).unwrap();
            let mut table = MarkTable::new(shape, 5000);
            let (empty, all) = (table.heap_bytes(), Marks(u64::MAX >> (64 - 2 * shape.parts())));
            (2000..2100).for_each(|extent| table.set(extent, all));
            assert_eq!((table.get(2050), table.get(1999), table.get(2100)), (all, Marks(0), Marks(0)));
            assert_eq!(table.heap_bytes() - empty, 2 * PAGE_BYTES, "two chunks");
            assert!(table.chunk_is_clean(4500) && !table.chunk_is_clean(2000));
            (2000..2100).for_each(|extent| table.set(extent, Marks(0)));
            assert_eq!((table.heap_bytes(), table.chunk_is_clean(2000)), (empty, true));
        }
    }
}
