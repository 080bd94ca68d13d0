//! The format record: what makes a part ours.
//!
//! One page says which format this is, of what shape the part was when it was made, its random name, which of its
//! blocks hold such records, and the number of the session: each mount that writes begins a new one, alone or with
//! a certain NVRAM, and writes a record of it. So whoever has an NVRAM can tell whether the part was written
//! without it. 64 bytes with their own CRC-32C; tags with the sequence number of YAFFS2's bad blocks, which its
//! driver leaves alone.
//!
//! Behind it is a list of pages that are [passed over](PassedOver), if there are any, with a CRC-32C of its own.

use crate::crc32c;
use crate::media::Geometry;
use crate::sorted::Set;
use crate::tags::{FORMAT_OBJECT, Packed, SEQUENCE_FORMAT};
use alloc::vec::Vec;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// What every record begins with.
pub const MAGIC: [u8; 8] = *b"CMFSNAND";
/// The version of what the part holds.
pub const VERSION: u32 = 2;
const CRC_AT: usize = RECORD_BYTES - 4;
/// Bytes of the list of pages that are passed over, beside its entries: how many there are, and its checksum.
const LIST_BYTES: usize = 8;

/// What a format record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The shape of the part.
    pub geometry: Geometry,
    /// Its random name, which its NVRAM has, too.
    pub identity: [u8; 16],
    /// How often it was mounted and written to.
    pub session: u32,
    /// The NVRAM it was written with: the session in which that was formatted; 0 for none.
    pub memory: u32,
    /// The two blocks that hold records, in turn.
    pub blocks: [u32; 2],
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRecord {
    /// They do not begin like one, or are spoilt.
    Other,
    /// They are one of a version that is not known here.
    Version,
}

impl Record {
    /// The bytes of the record.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[28..44].copy_from_slice(&self.identity);
        let shape = &self.geometry;
        let front = [VERSION, shape.page_bytes, shape.spare_bytes, shape.pages_per_block, shape.blocks];
        let back = [self.session, self.memory, self.blocks[0], self.blocks[1]];
        let places = (8..28).step_by(4).chain((44..CRC_AT).step_by(4));
        for (at, value) in places.zip(front.into_iter().chain(back)) {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Why the bytes are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Record, NoRecord> {
        let bytes = bytes.get(..RECORD_BYTES).ok_or(NoRecord::Other)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..8] != MAGIC || word(CRC_AT) != crc32c(&bytes[..CRC_AT]) {
            return Err(NoRecord::Other);
        }
        if word(8) != VERSION {
            return Err(NoRecord::Version);
        }
        let mut identity = [0; 16];
        identity.copy_from_slice(&bytes[28..44]);
        let geometry = Geometry {
            page_bytes: word(12),
            spare_bytes: word(16),
            pages_per_block: word(20),
            blocks: word(24),
        };
        let blocks = [word(52), word(56)];
        if blocks[0] == blocks[1] || blocks.iter().any(|block| *block >= geometry.blocks) {
            return Err(NoRecord::Other);
        }
        Ok(Record { geometry, identity, session: word(44), memory: word(48), blocks })
    }

    /// The tags of its page.
    pub fn tags(&self) -> Packed {
        Packed {
            sequence: SEQUENCE_FORMAT,
            object: FORMAT_OBJECT,
            chunk: self.session,
            bytes: RECORD_BYTES as u32,
        }
    }
}

/// Pages that are as if they had never been written, each with the sequence number of its block, which is another one
/// once the block is erased: their data did not get to the medium, and an older state counts for good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassedOver(Set<(u32, u32)>);

impl PassedOver {
    /// Adds a page of a block with this sequence number.
    pub fn add(&mut self, page: u32, sequence: u32) {
        self.0.add((page, sequence));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a page is one of them.
    pub fn contains(&self, page: u32, sequence: u32) -> bool {
        self.0.contains_key(&(page, sequence))
    }

    /// Keeps those that `is_there` says are on the part still, by block and sequence number.
    pub fn retain(&mut self, geometry: &Geometry, is_there: impl Fn(u32, u32) -> bool) {
        let all = core::mem::take(&mut self.0);
        for ((page, sequence), ()) in all {
            if is_there(geometry.block_of(page), sequence) {
                self.add(page, sequence);
            }
        }
    }

    /// The blocks they are in, each once.
    pub fn blocks(&self, geometry: &Geometry) -> Vec<u32> {
        let mut blocks: Vec<u32> = self.0.keys().map(|(page, _)| geometry.block_of(*page)).collect();
        blocks.dedup();
        blocks
    }

    fn entry_bytes(geometry: &Geometry) -> usize {
        8 + geometry.pages_per_block.div_ceil(8) as usize
    }

    /// Of how many blocks there is room behind a record.
    pub fn blocks_max(geometry: &Geometry) -> usize {
        (geometry.page_bytes as usize - RECORD_BYTES - LIST_BYTES) / PassedOver::entry_bytes(geometry)
    }

    /// The list as it goes behind a record: nothing if there is none; `None` if there is no room for it.
    pub fn to_bytes(&self, geometry: &Geometry) -> Option<Vec<u8>> {
        let count = self.blocks(geometry).len();
        if self.0.is_empty() || count > PassedOver::blocks_max(geometry) {
            return self.0.is_empty().then(Vec::new);
        }
        let entry_bytes = PassedOver::entry_bytes(geometry);
        let mut bytes = alloc::vec![0; LIST_BYTES + count * entry_bytes];
        bytes[..4].copy_from_slice(&(count as u32).to_le_bytes());
        let (mut at, mut last) = (LIST_BYTES, None);
        for (page, sequence) in self.0.keys() {
            let block = geometry.block_of(*page);
            if last != Some(block) {
                at = if last.is_some() { at + entry_bytes } else { LIST_BYTES };
                last = Some(block);
                bytes[at..at + 4].copy_from_slice(&block.to_le_bytes());
                bytes[at + 4..at + 8].copy_from_slice(&sequence.to_le_bytes());
            }
            let bit = (page - geometry.first_page(block)) as usize;
            bytes[at + 8 + bit / 8] |= 1 << (bit % 8);
        }
        let crc = crc32c(&bytes[LIST_BYTES..]) ^ count as u32;
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        Some(bytes)
    }

    /// Reads the list of a page that holds a record; `None` if it is spoilt.
    pub fn from_page(page: &[u8], geometry: &Geometry) -> Option<PassedOver> {
        let bytes = page.get(RECORD_BYTES..)?;
        let word = |at: usize| {
            bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        };
        let (mut found, count, crc) = (PassedOver::default(), word(0)?, word(4)?);
        if (count, crc) == (u32::MAX, u32::MAX) {
            return Some(found);
        }
        let entry_bytes = PassedOver::entry_bytes(geometry);
        let entries = bytes.get(LIST_BYTES..)?.get(..entry_bytes.checked_mul(count as usize)?)?;
        if crc != crc32c(entries) ^ count {
            return None;
        }
        for (entry, number) in entries.chunks_exact(entry_bytes).zip(0..) {
            let at = LIST_BYTES + number * entry_bytes;
            let (block, sequence) = (word(at)?, word(at + 4)?);
            if block >= geometry.blocks {
                return None;
            }
            let is_set = |page: &u32| entry[8 + (*page / 8) as usize] & 1 << (page % 8) != 0;
            for page in (0..geometry.pages_per_block).filter(is_set) {
                found.add(geometry.first_page(block) + page, sequence);
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_any_wrong_bit_is_found() {
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 32 };
        let record = Record { geometry, identity: [9; 16], session: 7, memory: 3, blocks: [31, 30] };
        let bytes = record.to_bytes();
        assert_eq!(Record::from_bytes(&bytes), Ok(record));
        for blocks in [[31, 31], [31, 32], [u32::MAX, 30]] {
            let crafted = Record { blocks, ..record }.to_bytes();
            assert_eq!(Record::from_bytes(&crafted), Err(NoRecord::Other), "its blocks cannot be {blocks:?}");
        }
        for bit in 0..RECORD_BYTES * 8 {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::from_bytes(&wrong), Err(NoRecord::Other), "bit {bit}");
        }
        let mut later = bytes;
        later[8] = 9;
        let crc = crc32c(&later[..CRC_AT]);
        later[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Record::from_bytes(&later), Err(NoRecord::Version));
        assert_eq!(Record::from_bytes(&[]), Err(NoRecord::Other));
    }

    #[test]
    fn a_list_of_pages_reads_back_up_to_the_last_block_that_fits_and_any_wrong_bit_is_found() {
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 1024 };
        let mut list = PassedOver::default();
        let page_of = |bytes: &[u8]| {
            let mut page = std::vec![0xff; 2048];
            page[RECORD_BYTES..RECORD_BYTES + bytes.len()].copy_from_slice(bytes);
            page
        };
        assert_eq!(list.to_bytes(&geometry), Some(Vec::new()));
        assert_eq!(PassedOver::from_page(&page_of(&[]), &geometry), Some(PassedOver::default()));
        for block in 0..PassedOver::blocks_max(&geometry) as u32 {
            for page in [0, 7, 8, 63] {
                list.add(block * 3 * 64 + page, 0x1001 + block);
            }
            let bytes = list.to_bytes(&geometry).expect("room");
            assert_eq!(PassedOver::from_page(&page_of(&bytes), &geometry).as_ref(), Some(&list));
        }
        let bytes = list.to_bytes(&geometry).expect("room");
        for bit in 0..bytes.len() * 8 {
            let mut page = page_of(&bytes);
            page[RECORD_BYTES + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PassedOver::from_page(&page, &geometry), None, "bit {bit}");
        }
        list.add(1023 * 64, 5);
        assert_eq!(list.to_bytes(&geometry), None);
        list.retain(&geometry, |block, sequence| block == 3 && sequence == 0x1002);
        assert_eq!(list.blocks(&geometry), [3]);
        assert!(list.contains(3 * 64 + 8, 0x1002) && !list.contains(3 * 64 + 8, 0x1003));
    }
}
