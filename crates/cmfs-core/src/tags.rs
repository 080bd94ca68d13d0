//! What a page's spare area says: YAFFS2's packed tags, their error correction, and a checksum of our own.
//!
//! Four little-endian words (sequence number, object, chunk, bytes), then twelve bytes of error correction over
//! these sixteen: one wrong bit is corrected. A page of a file has chunk 1, 2, …; a header page has chunk 0, or
//! (the live form) bit 31 with the parent, type and size packed in, so that a scan needs no page read. Where
//! there is room, a CRC-32C of the page's data follows, which other drivers leave alone; all ones means none.

use crate::crc32c;
use crate::object::Kind;

/// Tags alone, bytes.
pub const TAG_BYTES: usize = 16;
/// Tags with their error correction.
pub const PROTECTED_BYTES: usize = 28;
/// Smallest sequence number of a block.
pub const SEQUENCE_FIRST: u32 = 0x1001;
/// What image makers number every block.
pub const SEQUENCE_LOWEST: u32 = 0x1000;
/// No block has a larger one.
pub const SEQUENCE_LAST: u32 = 0xefff_ff00;
/// The sequence number of checkpoint blocks.
pub const SEQUENCE_CHECKPOINT: u32 = 0x21;
/// The sequence number of blocks of format records: what YAFFS2 gives to blocks that could not be marked bad.
pub const SEQUENCE_FORMAT: u32 = 0xffff_0000;
/// The object that format records belong to.
pub const FORMAT_OBJECT: u32 = 0x11;
/// The object that block summaries belong to.
pub const SUMMARY_OBJECT: u32 = 0x10;

const HEADER_FLAG: u32 = 0x8000_0000;
const SHRINK_FLAG: u32 = 0x4000_0000;
const SHADOWS_FLAG: u32 = 0x2000_0000;
const PARENT_MASK: u32 = 0x0fff_ffff;
const TYPE_SHIFT: u32 = 28;
const ID_MASK: u32 = 0x0fff_ffff;
/// Sizes from here on do not fit the packed form.
const SIZE_LIMIT: u64 = 1 << 31;
/// What the byte count of a plain header is.
const PLAIN_BYTES: u32 = 0xffff;

/// The four words as they are on flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Sequence number of the block.
    pub sequence: u32,
    /// Object, with the type in the upper bits of a live header.
    pub object: u32,
    /// Chunk, or what a live header packs there.
    pub chunk: u32,
    /// Valid bytes of a data page, or what a live header packs there.
    pub bytes: u32,
}

/// What a live header's tags say about the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// The directory it is in.
    pub parent: u32,
    /// What it is.
    pub kind: Kind,
    /// Size of a file, or the object that a hard link stands for.
    pub size_or_target: u32,
    /// What lies behind the size in older pages is dead.
    pub shrink: bool,
    /// The header names another object that it replaces.
    pub shadows: bool,
}

/// What a page is, by its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// A header; `extra` is `None` in the plain form, where the page has to be read.
    Header {
        /// Whose.
        object: u32,
        /// What the tags say.
        extra: Option<Extra>,
    },
    /// Page `index` (from 0) of a file, with `bytes` of it valid.
    Data {
        /// Whose.
        object: u32,
        /// Which.
        index: u32,
        /// How much of it.
        bytes: u32,
    },
    /// Part of a block summary.
    Summary,
    /// Part of a checkpoint.
    Checkpoint,
    /// A format record.
    Format,
    /// Nothing that we know.
    Unknown,
}

impl Packed {
    /// What a page of a block is to be taken for that is as if it had never been written: nothing that is known.
    pub fn unknown(sequence: u32) -> Packed {
        Packed { sequence, object: 0, chunk: HEADER_FLAG, bytes: 0 }
    }

    /// The tags of a data page.
    pub fn data(sequence: u32, object: u32, index: u32, bytes: u32) -> Packed {
        Packed { sequence, object, chunk: index.wrapping_add(1), bytes }
    }

    /// The tags of a header: packed, or plain where the size does not fit.
    pub fn header(sequence: u32, object: u32, extra: &Extra, size: u64) -> Packed {
        if size >= SIZE_LIMIT {
            return Packed { sequence, object, chunk: 0, bytes: PLAIN_BYTES };
        }
        let flags = if extra.shrink { SHRINK_FLAG } else { 0 } | if extra.shadows { SHADOWS_FLAG } else { 0 };
        Packed {
            sequence,
            object: object | extra.kind.code() << TYPE_SHIFT,
            chunk: HEADER_FLAG | flags | extra.parent & PARENT_MASK,
            bytes: extra.size_or_target,
        }
    }

    /// What the page is.
    pub fn kind(&self) -> PageKind {
        if self.sequence == SEQUENCE_CHECKPOINT {
            return PageKind::Checkpoint;
        }
        if self.sequence == SEQUENCE_FORMAT {
            return PageKind::Format;
        }
        if self.chunk & HEADER_FLAG != 0 {
            // What is of no kind, as a page that is passed over, is nobody's header.
            let kind = Kind::from_code(self.object >> TYPE_SHIFT).filter(|kind| *kind != Kind::Unknown);
            let Some(kind) = kind else { return PageKind::Unknown };
            let extra = Extra {
                parent: self.chunk & PARENT_MASK,
                kind,
                size_or_target: self.bytes,
                shrink: self.chunk & SHRINK_FLAG != 0,
                shadows: self.chunk & SHADOWS_FLAG != 0,
            };
            return PageKind::Header { object: self.object & ID_MASK, extra: Some(extra) };
        }
        match (self.object, self.chunk) {
            (SUMMARY_OBJECT, _) => PageKind::Summary,
            (0, _) => PageKind::Unknown,
            (object, 0) => PageKind::Header { object, extra: None },
            (object, chunk) => PageKind::Data { object, index: chunk - 1, bytes: self.bytes },
        }
    }

    /// The sixteen bytes.
    pub fn to_bytes(self) -> [u8; TAG_BYTES] {
        let mut bytes = [0; TAG_BYTES];
        let words = [self.sequence, self.object, self.chunk, self.bytes];
        for (part, word) in bytes.chunks_exact_mut(4).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads sixteen bytes.
    pub fn from_bytes(bytes: &[u8; TAG_BYTES]) -> Packed {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Packed { sequence: word(0), object: word(4), chunk: word(8), bytes: word(12) }
    }

    /// Whether the block they are in is part of the log.
    pub fn in_log(&self) -> bool {
        (SEQUENCE_LOWEST..=SEQUENCE_LAST).contains(&self.sequence)
    }
}

/// Error correction over the tags: which bit columns and which byte indices are odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parity {
    column: u8,
    line: u32,
    line_prime: u32,
}

impl Parity {
    fn of(bytes: &[u8; TAG_BYTES]) -> Parity {
        let mut parity = Parity { column: 0, line: 0, line_prime: 0 };
        let mut all = 0u8;
        for (index, byte) in bytes.iter().enumerate() {
            all ^= byte;
            if byte.count_ones() % 2 == 1 {
                parity.line ^= index as u32;
                parity.line_prime ^= !(index as u32);
            }
        }
        for mask in [0xf0u8, 0x0f, 0xcc, 0x33, 0xaa, 0x55] {
            parity.column = parity.column << 1 | ((all & mask).count_ones() % 2) as u8;
        }
        parity
    }

    fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[0] = self.column;
        bytes[4..8].copy_from_slice(&self.line.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.line_prime.to_le_bytes());
        bytes
    }

    /// Three bytes between are padding that some drivers leave as they were.
    fn from_bytes(bytes: &[u8]) -> Parity {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Parity { column: bytes[0] & 0x3f, line: word(4), line_prime: word(8) }
    }
}

/// Corrects one wrong bit of `bytes`; false if there is more wrong.
fn correct(bytes: &mut [u8; TAG_BYTES], stored: Parity) -> bool {
    let now = Parity::of(bytes);
    let column = stored.column ^ now.column;
    let (line, prime) = (stored.line ^ now.line, stored.line_prime ^ now.line_prime);
    if column == 0 && line == 0 && prime == 0 {
        return true;
    }
    if line ^ prime == u32::MAX && (column ^ column >> 1) & 0x15 == 0x15 {
        let bit = (column >> 5 & 1) << 2 | (column >> 3 & 1) << 1 | column >> 1 & 1;
        return match bytes.get_mut(line as usize) {
            Some(byte) => {
                *byte ^= 1 << bit;
                true
            }
            None => false,
        };
    }
    // One bit of the error correction itself.
    column.count_ones() + line.count_ones() + prime.count_ones() == 1
}

/// Where the tags are in the spare area, which the driver below decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagPlace {
    /// Their first byte.
    pub offset: usize,
    /// Whether error correction follows.
    pub ecc: bool,
}

impl TagPlace {
    /// As Linux' MTD places them beside the bad-block marker.
    pub const MTD: TagPlace = TagPlace { offset: 2, ecc: true };
    /// As image makers place them.
    pub const IMAGE: TagPlace = TagPlace { offset: 0, ecc: true };

    /// The place that leaves room for the checksum. In areas of less than 34 bytes it is the first byte, and the
    /// driver below has to keep the bad-block marker elsewhere.
    pub fn for_spare(spare_bytes: u32) -> TagPlace {
        if spare_bytes as usize >= 2 + PROTECTED_BYTES + 4 { TagPlace::MTD } else { TagPlace::IMAGE }
    }

    fn crc_place(&self) -> core::ops::Range<usize> {
        let from = self.offset + PROTECTED_BYTES;
        from..from + 4
    }

    /// Fills a spare area: tags, their error correction, and the checksum of `data`.
    pub fn write(&self, tags: &Packed, data: &[u8], spare: &mut [u8]) {
        spare.fill(0xff);
        let bytes = tags.to_bytes();
        put(spare, self.offset, &bytes);
        if self.ecc {
            put(spare, self.offset + TAG_BYTES, &Parity::of(&bytes).to_bytes());
            put(spare, self.crc_place().start, &checksum(data).to_le_bytes());
        }
    }

    /// As [`write`](TagPlace::write), of a page that is lost: its checksum is one that `data` has not. False where tags have none.
    pub fn write_lost(&self, tags: &Packed, data: &[u8], spare: &mut [u8]) -> bool {
        self.write(tags, data, spare);
        if self.ecc {
            let inverted = !checksum(data);
            // All ones, or one bit less, would be none.
            let wrong = if inverted.count_zeros() > 1 { inverted } else { inverted ^ 0xffff };
            put(spare, self.crc_place().start, &wrong.to_le_bytes());
        }
        self.ecc
    }

    /// Reads a spare area.
    pub fn read(&self, spare: &[u8]) -> SpareState {
        let Some(raw) = spare.get(self.offset..self.offset + TAG_BYTES) else {
            return SpareState::Unreadable;
        };
        if spare.iter().all(|byte| *byte == 0xff) {
            return SpareState::Erased;
        }
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(raw);
        if self.ecc {
            let at = self.offset + TAG_BYTES;
            let Some(stored) = spare.get(at..at + 12) else { return SpareState::Unreadable };
            if !correct(&mut bytes, Parity::from_bytes(stored)) {
                return SpareState::Unreadable;
            }
        }
        let tags = Packed::from_bytes(&bytes);
        if tags.in_log() || matches!(tags.sequence, SEQUENCE_CHECKPOINT | SEQUENCE_FORMAT) {
            SpareState::Tagged(tags)
        } else {
            SpareState::Unreadable
        }
    }

    /// Whether `data` is what the spare area's checksum was made of; true where there is none. One bit of the checksum
    /// itself may be wrong: nothing else corrects it. Up to two wrong bits of data are found for certain all the same.
    pub fn data_is_whole(&self, data: &[u8], spare: &[u8]) -> bool {
        let stored = self.ecc.then(|| spare.get(self.crc_place())).flatten();
        match stored {
            Some(&[a, b, c, d]) => {
                let stored = u32::from_le_bytes([a, b, c, d]);
                stored.count_zeros() <= 1 || (stored ^ checksum(data)).count_ones() <= 1
            }
            _ => true,
        }
    }
}

/// All ones means that there is no checksum, so that value is not used.
fn checksum(data: &[u8]) -> u32 {
    match crc32c(data) {
        u32::MAX => 0,
        value => value,
    }
}

fn put(spare: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = spare.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// What a spare area says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpareState {
    /// Nothing was programmed.
    Erased,
    /// Tags.
    Tagged(Packed),
    /// Neither.
    Unreadable,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector() -> Packed {
        Packed { sequence: 0x1000, object: 0x101, chunk: 0, bytes: 0xffff }
    }

    #[test]
    fn the_error_correction_is_that_of_yaffs2() {
        let parity = Parity::of(&vector().to_bytes());
        assert_eq!(parity, Parity { column: 0x25, line: 0, line_prime: u32::MAX });
    }

    #[test]
    fn any_one_wrong_bit_of_tags_or_correction_is_corrected_and_two_are_not_taken_for_data() {
        let mut spare = [0; 64];
        let place = TagPlace::MTD;
        place.write(&vector(), &[7; 2048], &mut spare);
        assert!(place.data_is_whole(&[7; 2048], &spare) && !place.data_is_whole(&[8; 2048], &spare));
        let padding = [2 + 17, 2 + 18, 2 + 19];
        for bit in 2 * 8..(2 + PROTECTED_BYTES) * 8 {
            let mut wrong = spare;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(place.read(&wrong), SpareState::Tagged(vector()), "bit {bit}");
            let other = bit + 9;
            let unprotected = |bit: usize| padding.contains(&(bit / 8)) || bit / 8 >= 30;
            if bit / 8 < 18 && !unprotected(other) && other / 8 < 18 {
                wrong[other / 8] ^= 1 << (other % 8);
                assert_ne!(place.read(&wrong), SpareState::Tagged(vector()), "bits {bit} and {other}");
            }
        }
    }

    #[test]
    fn what_a_header_packs_into_its_tags_comes_out_again() {
        let extra =
            Extra { parent: 0x103, kind: Kind::File, size_or_target: 5000, shrink: true, shadows: false };
        let tags = Packed::header(0x1001, 0x2abcd, &extra, 5000);
        assert_eq!(tags.kind(), PageKind::Header { object: 0x2abcd, extra: Some(extra) });
        let large = Packed::header(0x1001, 0x2abcd, &extra, 1 << 31);
        assert_eq!(large.kind(), PageKind::Header { object: 0x2abcd, extra: None });
        let data = Packed::data(0x1001, 0x101, 4, 2048);
        assert_eq!((data.chunk, data.kind()), (5, PageKind::Data { object: 0x101, index: 4, bytes: 2048 }));
    }

    #[test]
    fn an_erased_area_is_told_from_a_spoilt_one() {
        assert_eq!(TagPlace::MTD.read(&[0xff; 64]), SpareState::Erased);
        assert_eq!(TagPlace::MTD.read(&[0; 64]), SpareState::Unreadable);
        assert_eq!(TagPlace::MTD.read(&[0xff; 10]), SpareState::Unreadable);
    }
}
