//! Block summaries: the last pages of a full block repeat the tags of all pages before them.
//!
//! A head of four words (version, block, sequence number, byte sum of the entries), then three words a page:
//! object, chunk, bytes, as in the tags. A scan reads these instead of every spare area of the block.

use crate::media::Geometry;
use crate::tags::Packed;
use alloc::vec::Vec;

const VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 12;

/// How many pages of a block the summary takes; 0 if summaries are off.
pub fn pages(geometry: &Geometry, on: bool) -> u32 {
    let bytes = geometry.pages_per_block as usize * ENTRY_BYTES + HEAD_BYTES;
    if on { bytes.div_ceil(geometry.page_bytes as usize) as u32 } else { 0 }
}

/// The summary of a block whose pages have these tags.
pub fn encode(block: u32, sequence: u32, tags: &[Packed]) -> Vec<u8> {
    let mut entries = Vec::with_capacity(tags.len() * ENTRY_BYTES);
    for tag in tags {
        for word in [tag.object, tag.chunk, tag.bytes] {
            entries.extend_from_slice(&word.to_le_bytes());
        }
    }
    let mut bytes = Vec::with_capacity(HEAD_BYTES + entries.len());
    for word in [VERSION, block, sequence, sum(&entries)] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&entries);
    bytes
}

/// The tags that a summary of `count` pages repeats; `None` if it is none or spoilt.
pub fn decode(bytes: &[u8], sequence: u32, count: u32) -> Option<Vec<Packed>> {
    let word = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let entries = bytes.get(HEAD_BYTES..HEAD_BYTES + count as usize * ENTRY_BYTES)?;
    if word(0)? != VERSION || word(8)? != sequence || word(12)? != sum(entries) {
        return None;
    }
    let part = |entry: &[u8], at: usize| {
        u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
    };
    let tag = |entry: &[u8]| Packed {
        sequence,
        object: part(entry, 0),
        chunk: part(entry, 4),
        bytes: part(entry, 8),
    };
    Some(entries.chunks_exact(ENTRY_BYTES).map(tag).collect())
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_takes_the_room_that_yaffs2_gives_it_and_reads_back() {
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 8 };
        assert_eq!((pages(&geometry, true), pages(&geometry, false)), (1, 0));
        let tags: Vec<Packed> = (0..63).map(|index| Packed::data(0x1005, 0x101, index, 2048)).collect();
        let mut bytes = encode(3, 0x1005, &tags);
        assert_eq!(bytes.len(), 772);
        assert_eq!(decode(&bytes, 0x1005, 63), Some(tags));
        assert_eq!(decode(&bytes, 0x1006, 63), None);
        bytes[100] ^= 1;
        assert_eq!(decode(&bytes, 0x1005, 63), None);
        assert_eq!(decode(&bytes[..700], 0x1005, 63), None);
    }
}
