//! The checksums of bound blocks that are in memory, by block of a section's checksum table.
//!
//! A checksum that was bound since the last completed checkpoint is here. Of the others, which the table on the SSD
//! has, as many as memory has room for: they are read when a mount has room for them or a reader wants them
//! ([`Sums`]), and go when room is short, those first that no reader wanted since the last time it was.
//!
//! A reader asks under its owner's lock, reads the table without it, and hands over what it read
//! ([`super::Ssd::learn`]). In between the same places may have been bound anew, written and let go of; so what was
//! read is taken only if nothing was let go of since ([`SumStore::round`]), and never in place of what is here.

use super::bits::Bits;
use super::layout::{SUMS_PER_BLOCK, SUMS_PER_SECTOR};
use super::pages::Page;
use super::sector::{SECTOR_BYTES, Seal, TABLE_BLOCK};
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::ops::Range;

const SUMS: usize = SUMS_PER_BLOCK as usize;

const KNOWN_WORDS: usize = SUMS.div_ceil(64);

/// Bytes of the checksums of a table block, of which all are known.
const CHUNK_HEAP: usize = Page::<[u32; SUMS]>::BYTES + size_of::<(u32, Chunk)>() * 3 / 2;

/// Bytes more of one of which some are not.
const KNOWN_HEAP: usize = size_of::<Known>() + 16;

/// Which checksums of a table block are meant: a bit each.
pub(super) type Known = [u64; KNOWN_WORDS];

/// The checksums in memory of one block of the table.
#[derive(Debug)]
pub(super) struct Chunk {
    sums: Page<[u32; SUMS]>,
    /// `None`: all are.
    known: Option<Box<Known>>,
    wanted: bool,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk { sums: Page::zeroed(), known: Some(Box::new([0; KNOWN_WORDS])), wanted: true }
    }

    /// A checksum, if it is known.
    pub(super) fn get(&self, index: usize) -> Option<u32> {
        let known = self.known.as_ref().is_none_or(|known| is_known(known, index));
        known.then(|| self.sums[index])
    }

    /// Which are known.
    pub(super) fn known(&self) -> Known {
        let all = || std::array::from_fn(|word| u64::MAX >> (word * 64 + 64).saturating_sub(SUMS));
        self.known.as_ref().map_or_else(all, |known| **known)
    }

    fn set(&mut self, index: usize, sum: u32) {
        if let Some(known) = &mut self.known {
            known[index / 64] |= 1 << (index % 64);
        }
        self.sums[index] = sum;
    }

    /// Whether some are not known, after another look.
    fn is_partial(&mut self) -> bool {
        let whole =
            |known: &Known| known.iter().map(|word| word.count_ones() as usize).sum::<usize>() == SUMS;
        self.known.take_if(|known| whole(known));
        self.known.is_some()
    }
}

pub(super) fn is_known(known: &Known, index: usize) -> bool {
    known[index / 64] >> (index % 64) & 1 == 1
}

/// See the file's documentation.
#[derive(Debug, Default)]
pub(super) struct SumStore {
    chunks: FxHashMap<u32, Chunk>,
    /// Chunks of which some checksums are not known.
    partial: usize,
    round: u64,
}

/// The parts of a range of a section's blocks in each block of its checksum table: table block, range in it.
fn by_block(range: Range<u32>) -> impl Iterator<Item = (u32, Range<usize>)> {
    let blocks = range.start / SUMS_PER_BLOCK..range.end.div_ceil(SUMS_PER_BLOCK);
    blocks.map(move |block| {
        let first = block * SUMS_PER_BLOCK;
        let end = (range.end - first).min(SUMS_PER_BLOCK);
        (block, range.start.saturating_sub(first) as usize..end as usize)
    })
}

impl SumStore {
    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_HEAP + self.partial * KNOWN_HEAP
    }

    fn chunk(&mut self, block: u32) -> &mut Chunk {
        self.chunks.entry(block).or_insert_with(|| {
            self.partial += 1;
            Chunk::new()
        })
    }

    /// The checksums in memory of a table block.
    pub(super) fn get(&self, block: u32) -> Option<&Chunk> {
        self.chunks.get(&block)
    }

    /// Takes the checksums of blocks from `start` of the section on.
    pub(super) fn set(&mut self, start: u32, sums: impl ExactSizeIterator<Item = u32>) {
        let mut sums = sums;
        for (block, range) in by_block(start..start + sums.len() as u32) {
            let chunk = self.chunk(block);
            range.zip(&mut sums).for_each(|(index, sum)| chunk.set(index, sum));
        }
    }

    /// Takes the checksums of a sector of the table where none is here.
    pub(super) fn fill(&mut self, sector: u32, payload: &[u8]) {
        let per_block = SUMS_PER_BLOCK / SUMS_PER_SECTOR;
        let first = (sector % per_block * SUMS_PER_SECTOR) as usize;
        let chunk = self.chunk(sector / per_block);
        if chunk.known.is_none() {
            return;
        }
        for (index, sum) in (first..).zip(payload.chunks_exact(4)) {
            if chunk.get(index).is_none() {
                chunk.set(index, u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]));
            }
        }
        self.partial -= usize::from(!chunk.is_partial());
    }

    /// The checksums of the section's blocks `range`: those that are here, and what to read for the others.
    fn find(&self, range: Range<u32>, sums: &mut Sums, table: u64) {
        for (block, range) in by_block(range) {
            let (chunk, first) = (self.chunks.get(&block), sums.values.len());
            let known = |index: usize| chunk.and_then(|chunk| chunk.get(index));
            let whole = range.clone().all(|index| known(index).is_some());
            sums.values.extend(range.clone().map(|index| known(index).unwrap_or(0)));
            if !whole {
                let here = range.clone().map(|index| known(index).is_some()).collect();
                let offset = table + u64::from(block) * TABLE_BLOCK;
                sums.missing.push(Missing { block, offset, index: range.start, first, here, bytes: None });
            }
        }
    }

    /// Somebody wants these checksums: they stay when room is short.
    fn want(&mut self, range: Range<u32>) {
        for (block, _) in by_block(range) {
            if let Some(chunk) = self.chunks.get_mut(&block) {
                chunk.wanted = true;
            }
        }
    }

    /// Lets go of table blocks until at most `bytes` are held, but for those that `keep` names.
    pub(super) fn shrink_to(&mut self, bytes: usize, keep: impl Fn(u32) -> bool) {
        for _ in 0..2 {
            let mut held = self.heap_bytes();
            if held <= bytes {
                return;
            }
            self.round += 1;
            let partial = &mut self.partial;
            self.chunks.retain(|block, chunk| {
                if held <= bytes || keep(*block) || std::mem::take(&mut chunk.wanted) {
                    return true;
                }
                let more = usize::from(chunk.known.is_some());
                *partial -= more;
                held -= CHUNK_HEAP + more * KNOWN_HEAP;
                false
            });
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }
}

/// Leaves of a set of sectors of the table as many, from the first on, as `bytes` of memory hold.
pub(super) fn keep_first(sectors: &mut Bits, bytes: usize) {
    let per_block = SUMS_PER_BLOCK / SUMS_PER_SECTOR;
    let (mut blocks, mut last) = (0, None);
    let mut within = |sector: &u32| {
        blocks += usize::from(last.replace(sector / per_block) != Some(sector / per_block));
        blocks * CHUNK_HEAP > bytes
    };
    let rest: Option<u32> = sectors.iter().find(|sector| within(sector));
    if let Some(rest) = rest {
        let beyond = sectors.iter().last().map_or(rest, |last| last + 1);
        sectors.clear_range(rest..beyond);
    }
}

/// Part of a block of a checksum table that has to be read.
#[derive(Clone, Debug)]
struct Missing {
    block: u32,
    /// Where the table block lies.
    offset: u64,
    /// The first checksum's number in it.
    index: usize,
    /// Its place among the values.
    first: usize,
    /// Which of them need not be read.
    here: SmallVec<[bool; 32]>,
    bytes: Option<Bytes>,
}

/// The checksums of adjacent blocks. Some may have to be read from the SSD first.
#[derive(Clone, Debug)]
pub struct Sums {
    values: SmallVec<[u32; 4]>,
    missing: SmallVec<[Missing; 1]>,
    section: usize,
    round: u64,
    seal: Seal,
}

impl Sums {
    /// Of how many blocks.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The CRC-32C of each block; `None` if some have to be [read](Sums::read) first.
    pub fn values(&self) -> Option<&[u32]> {
        self.missing.iter().all(|missing| missing.bytes.is_some()).then_some(&self.values[..])
    }

    /// Whether some were read, so that [`super::Ssd::learn`] has something to keep.
    pub fn were_read(&self) -> bool {
        self.missing.iter().any(|missing| missing.bytes.is_some())
    }

    /// Reads what is not in memory from `device`, without any lock. [`super::Ssd::learn`] takes it then.
    ///
    /// # Errors
    /// Those of the device; [`Error::Corrupt`] when the table is damaged: the blocks cannot be checked, so they must
    /// not be used.
    pub fn read(&mut self, device: &dyn BlockDevice) -> Result<&[u32]> {
        for missing in self.missing.iter_mut().filter(|missing| missing.bytes.is_none()) {
            let bytes = device.read(missing.offset, TABLE_BLOCK as usize)?;
            for (step, _) in missing.here.iter().enumerate().filter(|(_, here)| !**here) {
                let sum = sum_in(&self.seal, missing.offset, &bytes, missing.index + step);
                self.values[missing.first + step] = sum.ok_or_else(|| {
                    let at = format!("{}, byte {}", device.info().name, missing.offset);
                    Error::corrupt("checksum table of the SSD", "its own checksum is wrong", at)
                })?;
            }
            missing.bytes = Some(bytes);
        }
        Ok(&self.values)
    }
}

impl Sums {
    /// As [`Sums::read`], for tools that go on past damage: `None` for a block whose checksum is damaged or cannot be
    /// read.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn read_each(&mut self, device: &dyn BlockDevice) -> Result<Vec<Option<u32>>> {
        let mut each: Vec<Option<u32>> = self.values.iter().copied().map(Some).collect();
        for missing in self.missing.iter_mut().filter(|missing| missing.bytes.is_none()) {
            device.forget_cached(missing.offset, TABLE_BLOCK);
            let bytes = match device.read(missing.offset, TABLE_BLOCK as usize) {
                Err(gone @ Error::Gone { .. }) => return Err(gone),
                read => read.ok(),
            };
            let mut whole = bytes.is_some();
            for (step, _) in missing.here.iter().enumerate().filter(|(_, here)| !**here) {
                let sum = bytes
                    .as_ref()
                    .and_then(|bytes| sum_in(&self.seal, missing.offset, bytes, missing.index + step));
                each[missing.first + step] = sum;
                self.values[missing.first + step] = sum.unwrap_or(0);
                whole &= sum.is_some();
            }
            missing.bytes = bytes.filter(|_| whole);
        }
        Ok(each)
    }
}

/// A checksum in a block of the table that lies at `offset`; `None` if its sector is damaged.
fn sum_in(seal: &Seal, offset: u64, block: &[u8], index: usize) -> Option<u32> {
    let (sector, item) = (index / SUMS_PER_SECTOR as usize, index % SUMS_PER_SECTOR as usize);
    let at = sector * SECTOR_BYTES;
    let payload = seal.open(offset + at as u64, block.get(at..at + SECTOR_BYTES)?)?;
    payload.get(item * 4..item * 4 + 4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]))
}

impl super::Ssd {
    /// The CRC-32C of each of `len` bound blocks from `at`, which lie in one section.
    pub fn sums(&self, at: bimetal_base::units::SsdBlock, len: u32) -> Sums {
        let at = at.0 as u32;
        let section = self.section_of_own(at);
        let (data, layout) = (&self.data[section], &self.superblock.layout.sections[section]);
        let start = at - data.section.range().start;
        let round = data.sums.round;
        let (values, missing, seal) = (SmallVec::new(), SmallVec::new(), self.seal.clone());
        let mut sums = Sums { values, missing, section, round, seal };
        data.sums.find(start..start + len, &mut sums, layout.sums);
        sums
    }

    /// Keeps the checksums that `sums` had to [read](Sums::read), as far as memory has room, for the next reader.
    pub fn learn(&mut self, sums: &Sums) {
        let store = &mut self.data[sums.section].sums;
        let per_block = SUMS_PER_BLOCK / SUMS_PER_SECTOR;
        for missing in &sums.missing {
            let (Some(bytes), true) = (&missing.bytes, store.round == sums.round) else { continue };
            for (index, sector) in (0u32..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
                let at = missing.offset + u64::from(index) * SECTOR_BYTES as u64;
                if let Some(payload) = sums.seal.open(at, sector) {
                    store.fill(missing.block * per_block + index, payload);
                }
            }
            let first = missing.block * SUMS_PER_BLOCK;
            store.want(first..first + 1);
        }
        self.keep_to_memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_reader_wanted_goes_first_and_what_is_kept_stays() {
        let mut store = SumStore::default();
        let blocks = 20;
        for block in 0..blocks {
            store.set(block * SUMS_PER_BLOCK + 5, [block, 7].into_iter());
        }
        store.shrink_to(19 * (CHUNK_HEAP + KNOWN_HEAP), |_| false);
        assert_eq!(store.chunks.len(), 19, "all were new, and then none was");
        store.chunks.values_mut().for_each(|chunk| chunk.wanted = false);
        let wanted: Vec<u32> = store.chunks.keys().copied().take(5).collect();
        wanted.iter().for_each(|block| store.want(block * SUMS_PER_BLOCK..block * SUMS_PER_BLOCK + 1));
        let kept = *store.chunks.keys().find(|block| !wanted.contains(block)).unwrap();
        store.shrink_to(6 * (CHUNK_HEAP + KNOWN_HEAP), |block| block == kept);
        assert!(wanted.iter().all(|block| store.get(*block).is_some()) && store.get(kept).is_some());
        assert_eq!(store.heap_bytes(), 6 * (CHUNK_HEAP + KNOWN_HEAP));
    }

    #[test]
    fn a_block_of_which_all_is_known_needs_no_marks_and_says_so() {
        let mut store = SumStore::default();
        store.set(3, [9].into_iter());
        let payload: Vec<u8> = (0..SUMS_PER_SECTOR).flat_map(|index| (index + 100).to_le_bytes()).collect();
        let sectors = SUMS_PER_BLOCK / SUMS_PER_SECTOR;
        (0..sectors - 1).for_each(|sector| store.fill(sector, &payload));
        assert_eq!(
            (store.heap_bytes(), store.get(0).unwrap().get(SUMS - 1)),
            (CHUNK_HEAP + KNOWN_HEAP, None)
        );
        store.fill(sectors - 1, &payload);
        let chunk = store.get(0).unwrap();
        assert_eq!((chunk.get(3), chunk.get(4), chunk.get(SUMS - 1)), (Some(9), Some(104), Some(226)));
        assert!((0..SUMS).all(|index| is_known(&chunk.known(), index)));
        assert_eq!(chunk.known().iter().map(|word| word.count_ones()).sum::<u32>(), SUMS as u32);
        assert_eq!(store.heap_bytes(), CHUNK_HEAP);
    }

    #[test]
    fn a_run_over_two_table_blocks_says_which_to_read() {
        let mut store = SumStore::default();
        store.set(SUMS_PER_BLOCK - 2, [11, 12, 13].into_iter());
        let (values, missing, seal) = (SmallVec::new(), SmallVec::new(), Seal::new(&[1; 16]));
        let mut sums = Sums { values, missing, section: 0, round: 0, seal };
        store.find(SUMS_PER_BLOCK - 2..SUMS_PER_BLOCK + 3, &mut sums, 1 << 20);
        assert_eq!((&sums.values[..], sums.missing.len(), sums.values()), (&[11, 12, 13, 0, 0][..], 1, None));
        let missing = &sums.missing[0];
        assert_eq!((missing.offset, missing.index, missing.first), ((1 << 20) + TABLE_BLOCK, 0, 2));
        assert_eq!(missing.here[..], [true, false, false]);
    }
}
