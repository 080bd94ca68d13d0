//! The format record: what makes a part ours.
//!
//! One page says which format this is, of what shape the part was when it was made, its random name, which of its
//! blocks hold such records, and the number of the session: each mount that writes begins a new one, alone or with
//! a certain NVRAM, and writes a record of it. So whoever has an NVRAM can tell whether the part was written
//! without it. 64 bytes with their own CRC-32C; tags with the sequence number of YAFFS2's bad blocks, which its
//! driver leaves alone.

use crate::crc32c;
use crate::media::Geometry;
use crate::tags::{FORMAT_OBJECT, Packed, SEQUENCE_FORMAT};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// What every record begins with.
pub const MAGIC: [u8; 8] = *b"CMFSNAND";
/// The version of what the part holds.
pub const VERSION: u32 = 2;
const CRC_AT: usize = RECORD_BYTES - 4;

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
}
