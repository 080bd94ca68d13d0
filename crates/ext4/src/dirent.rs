//! One directory block: the records of names in it, and its checksum.
//!
//! A block is a chain of records that covers it without gaps:
//!
//! ```text
//! inode u32 · length u16 · name length u8 · type u8 · name …      (padded to 4 bytes)
//! ```
//!
//! Inode 0 means "no name here". A removed name leaves its space to the record before it, so room for a new
//! name is either an unused record or the slack behind a used one. With `metadata_csum` the last 12 bytes of a
//! block look like an unused record and hold the checksum. Blocks of the index hide behind one unused record
//! that covers them whole (see [`super::htree`]), so a reader who knows nothing of the index passes over them.
//!
//! Every length is checked before it is used; what is wrong comes back as a short text, to which the caller
//! adds the place. Cost: walking takes 2–3 ns a record, each waiting for the one before. So a search first looks
//! for one word of the name anywhere in the block (20 ns a KiB), and free space is kept in front, where a
//! search for room meets it first.

use bimetal_base::checksum::crc32c_raw;
use bimetal_base::{Error, Result};
use bimetal_vfs::{Kind, NAME_MAX};
use std::fmt::Display;

/// Bytes of a record before its name.
const HEADER: usize = 8;
/// The shortest record.
const SHORTEST: usize = 12;
/// The record that holds a leaf's checksum: its length and the type that tells it from a plain unused one.
const TAIL: usize = 12;
const TAIL_TYPE: u8 = 0xDE;
/// Checksum record of an index block.
const INDEX_TAIL: usize = 8;

/// What is wrong with a block, in words.
pub(super) type Checked<T> = Result<T, &'static str>;

/// Reads a little-endian `u16`; `at` is inside the block by the caller's checks.
pub(super) fn le16(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Reads a little-endian `u32`; `at` is inside the block by the caller's checks.
pub(super) fn le32(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Writes bytes at `at`.
pub(super) fn put<const N: usize>(block: &mut [u8], at: usize, bytes: [u8; N]) {
    block[at..at + N].copy_from_slice(&bytes);
}

/// The type byte that stands for a kind in directories (with the `filetype` feature).
pub(super) fn tag_of(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Dir => 2,
        Kind::CharDevice => 3,
        Kind::BlockDevice => 4,
        Kind::Fifo => 5,
        Kind::Socket => 6,
        Kind::Symlink => 7,
    }
}

/// The kind a type byte stands for; `None` if it says nothing.
pub(super) fn kind_of(tag: u8) -> Option<Kind> {
    Some(match tag {
        1 => Kind::File,
        2 => Kind::Dir,
        3 => Kind::CharDevice,
        4 => Kind::BlockDevice,
        5 => Kind::Fifo,
        6 => Kind::Socket,
        7 => Kind::Symlink,
        _ => return None,
    })
}

/// Bytes that a record with a name of `name_len` bytes needs.
pub(super) fn need(name_len: usize) -> usize {
    (HEADER + name_len + 3) & !3
}

/// One record, checked to lie inside its block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Where it begins in the block.
    pub at: usize,
    /// Up to the next record.
    pub len: usize,
    /// The inode; 0 for none.
    pub ino: u32,
    /// Length of the name.
    pub name_len: usize,
    /// The type byte.
    pub tag: u8,
}

impl Record {
    /// The name, in the block the record was read from.
    pub fn name<'b>(&self, block: &'b [u8]) -> &'b [u8] {
        &block[self.at + HEADER..self.at + HEADER + self.name_len]
    }

    /// Bytes it needs of those it has.
    pub fn used(&self) -> usize {
        if self.ino == 0 { 0 } else { need(self.name_len) }
    }

    fn next(&self) -> usize {
        self.at + self.len
    }
}

/// A name that was found: its record and the one before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    /// The record.
    pub record: Record,
    /// Where the record before it begins, if there is one.
    pub before: Option<usize>,
}

/// A name to look for. Names of one directory tend to have one length and one beginning, so the word at their
/// end is compared first.
struct Needle<'n> {
    name: &'n [u8],
    end: u64,
    /// Bits before a name shorter than a word.
    shift: u32,
}

impl<'n> Needle<'n> {
    fn new(name: &'n [u8]) -> Needle<'n> {
        let mut word = [0; 8];
        let kept = name.len().min(8);
        word[8 - kept..].copy_from_slice(&name[name.len() - kept..]);
        let shift = 64 - 8 * kept as u32;
        Needle { name, end: u64::from_le_bytes(word) >> (shift & 63), shift: shift & 63 }
    }

    /// Whether a record, which has been checked, has this name.
    #[inline(always)]
    fn is(&self, block: &[u8], record: &Record) -> bool {
        if record.name_len != self.name.len() || record.ino == 0 {
            return false;
        }
        // The word ends with the name; before a short one lies the record's header.
        let word = block.get(record.at + record.name_len..).and_then(<[u8]>::first_chunk);
        let same_end = word.is_some_and(|word| u64::from_le_bytes(*word) >> self.shift == self.end);
        same_end && record.name(block) == self.name
    }
}

/// Whether a name can be in a block: whether the end of what stands before its extension occurs there, the last whole
/// word of it and the bytes behind that.
///
/// Names begin at multiples of 4. To look for words everywhere takes a fifth of the time of a walk from record
/// to record, in which each load waits for the one before.
fn may_have(block: &[u8], name: &[u8]) -> bool {
    let stem = name.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot >= 4).unwrap_or(name.len());
    let (whole, rest) = name[..stem].as_chunks();
    let Some(wanted) = whole.last().map(|word| u32::from_le_bytes(*word)) else {
        return true;
    };
    let mut end = [0; 4];
    end[..rest.len()].copy_from_slice(rest);
    let (end, mask) = (u32::from_le_bytes(end), (1 << (8 * rest.len())) - 1);
    let (words, _): (&[[u8; 4]], _) = block.as_chunks();
    let Some((last, before)) = words.split_last() else { return false };
    // No branch within a stretch, so that several words are compared at once.
    let occurs = |(words, next): (&[[u8; 4]], &[[u8; 4]])| {
        words.iter().zip(next).fold(0, |hit, (word, next)| {
            let is_end = u32::from_le_bytes(*next) & mask == end;
            hit | (u32::from(u32::from_le_bytes(*word) == wanted) & u32::from(is_end))
        }) != 0
    };
    // What is behind the last word is none of the block's.
    (rest.is_empty() && u32::from_le_bytes(*last) == wanted)
        || before.chunks(128).zip(words[1..].chunks(128)).any(occurs)
}

/// Whether a block can take a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// The name is there already.
    Taken,
    /// In (or behind) the record at this offset.
    At(usize),
    /// Nowhere; the number of bytes its records need, if they were packed.
    Full(usize),
}

/// How records lie in the blocks of one file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Where the records of a leaf end: at the checksum record or at the block's end.
    pub end: usize,
    /// Records have a type byte.
    pub filetype: bool,
}

impl Shape {
    pub fn new(block_bytes: usize, checksums: bool, filetype: bool) -> Shape {
        Shape { block_bytes, end: block_bytes - if checksums { TAIL } else { 0 }, filetype }
    }

    /// The record at `at`, which is a multiple of 4 below the end of the records.
    #[inline(always)]
    pub fn record(&self, block: &[u8], at: usize) -> Checked<Record> {
        let Some(header) = block.get(at..).and_then(<[u8]>::first_chunk) else {
            return Err("a record begins past the end of the block");
        };
        let header: &[u8; HEADER] = header;
        let (ino, name_len, tag) = (le32(header, 0), usize::from(header[6]), header[7]);
        let mut len = usize::from(le16(header, 4));
        // The next record waits for this length: the common case must be quick.
        if at + len + SHORTEST > self.end || len < SHORTEST || len & 3 != 0 {
            len = self.last_len(at, len)?;
        }
        if need(name_len) > len {
            return Err("a name is longer than its record");
        }
        if ino != 0 && name_len == 0 {
            return Err("a record has an inode and no name");
        }
        Ok(Record { at, len, ino, name_len, tag })
    }

    /// The length of a record that may be the last, or an index block's cover, or wrong.
    fn last_len(&self, at: usize, field: usize) -> Checked<usize> {
        let len = self.decode_len(field as u16);
        let ends = at + len == self.end || at + len == self.block_bytes;
        if ends && len >= SHORTEST && len & 3 == 0 { Ok(len) } else { Err("a record's length is impossible") }
    }

    /// All records in order; ends after the first error.
    pub fn records<'b>(&self, block: &'b [u8]) -> impl Iterator<Item = Checked<Record>> + 'b {
        let shape = *self;
        let mut at = 0;
        std::iter::from_fn(move || {
            if at >= shape.end {
                return None;
            }
            let record = shape.record(block, at);
            at = record.as_ref().map_or(shape.end, Record::next);
            Some(record)
        })
    }

    /// The record of a name.
    pub fn find(&self, block: &[u8], name: &[u8]) -> Checked<Option<Hit>> {
        if !may_have(block, name) {
            return Ok(None);
        }
        let needle = Needle::new(name);
        let (mut at, mut before) = (0, None);
        while at < self.end {
            let record = self.record(block, at)?;
            if needle.is(block, &record) {
                return Ok(Some(Hit { record, before }));
            }
            before = Some(at);
            at = record.next();
        }
        Ok(None)
    }

    /// Looks for a name and for room for it. The first room is taken, and [`Self::place`] leaves the rest of it
    /// where it is, so that the next search ends early too.
    pub fn room(&self, block: &[u8], name: &[u8]) -> Checked<Room> {
        if self.find(block, name)?.is_some() {
            return Ok(Room::Taken);
        }
        let wanted = need(name.len());
        let (mut at, mut packed) = (0, 0);
        while at < self.end {
            let record = self.record(block, at)?;
            let used = record.used();
            if record.len - used >= wanted && record.next() <= self.end {
                return Ok(Room::At(at));
            }
            packed += used;
            at = record.next();
        }
        // A former index block in a file system with checksums has no checksum record, and no room for one.
        Ok(Room::Full(if at > self.end { self.end } else { packed }))
    }

    /// Writes a name at the end of the room found at `at`.
    pub fn place(&self, block: &mut [u8], at: usize, name: &[u8], ino: u32, tag: u8) -> Checked<()> {
        let old = self.record(block, at)?;
        let (used, wanted) = (old.used(), need(name.len()));
        if old.len < used + wanted {
            return Err("the room for a name has gone");
        }
        // What stays must be a record: at least the shortest, if it holds no name.
        if old.len - wanted < used.max(SHORTEST) {
            self.write(block, at, old.len, name, ino, tag);
        } else {
            self.set_len(block, at, old.len - wanted);
            self.write(block, at + old.len - wanted, wanted, name, ino, tag);
        }
        Ok(())
    }

    /// Removes a name; its space goes to the record before it.
    pub fn remove(&self, block: &mut [u8], hit: &Hit) -> Checked<()> {
        let gone = hit.record;
        block[gone.at..gone.at + need(gone.name_len)].fill(0);
        match hit.before {
            Some(at) => {
                let before = self.record(block, at)?;
                self.set_len(block, at, before.len + gone.len);
            }
            None => self.set_len(block, gone.at, gone.len),
        }
        Ok(())
    }

    /// Writes a whole record.
    pub fn write(&self, block: &mut [u8], at: usize, len: usize, name: &[u8], ino: u32, tag: u8) {
        debug_assert!(name.len() <= NAME_MAX && need(name.len()) <= len);
        put(block, at, ino.to_le_bytes());
        self.set_len(block, at, len);
        block[at + 6] = name.len() as u8;
        block[at + 7] = if self.filetype { tag } else { 0 };
        block[at + HEADER..at + HEADER + name.len()].copy_from_slice(name);
        block[at + HEADER + name.len()..at + need(name.len())].fill(0);
    }

    /// A leaf with these records of `from`, packed. The free space comes after the first `front` of them; before
    /// all others it is an unused record.
    pub fn packed(&self, from: &[u8], records: &[Record], front: usize) -> Vec<u8> {
        let mut leaf = vec![0; self.block_bytes];
        let free = self.end - records.iter().map(Record::used).sum::<usize>();
        let front = front.min(records.len());
        let (mut at, mut keeper) = (0, front.saturating_sub(1));
        if front == 0 && free >= SHORTEST {
            self.set_len(&mut leaf, 0, free);
            (at, keeper) = (free, records.len());
        }
        for (index, record) in records.iter().enumerate() {
            let len = record.used() + if index == keeper { free } else { 0 };
            self.write(&mut leaf, at, len, record.name(from), record.ino, record.tag);
            at += len;
        }
        self.set_tail(&mut leaf);
        leaf
    }

    /// Writes the checksum record of a leaf, without its checksum.
    pub fn set_tail(&self, block: &mut [u8]) {
        if self.end < self.block_bytes {
            block[self.end..].fill(0);
            put(block, self.end + 4, (TAIL as u16).to_le_bytes());
            block[self.end + 7] = TAIL_TYPE;
        }
    }

    /// The length that a field means. Blocks of 64 KiB do not fit 16 bits: 0 and 65535 stand for the whole.
    fn decode_len(&self, field: u16) -> usize {
        match (self.block_bytes < 1 << 16, field) {
            (false, 0 | u16::MAX) => self.block_bytes,
            (_, field) => usize::from(field),
        }
    }

    /// Sets the length of the record at `at`.
    pub fn set_len(&self, block: &mut [u8], at: usize, len: usize) {
        put(block, at + 4, u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
    }
}

/// What a block of a directory holds, as far as its checksum goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Names.
    Leaf,
    /// A part of the index.
    Index,
}

/// Tells an index block from a leaf by its shape; right for every block of a file system with `metadata_csum`.
pub fn block_kind(block: &[u8]) -> BlockKind {
    match index_entries(block) {
        Some(_) => BlockKind::Index,
        None => BlockKind::Leaf,
    }
}

/// Where the entries of an index block begin, if it has the shape of one.
fn index_entries(block: &[u8]) -> Option<usize> {
    if block.len() < 64 {
        return None;
    }
    let shape = Shape::new(block.len(), false, true);
    let first = shape.decode_len(le16(block, 4));
    if le32(block, 0) == 0 && first == block.len() {
        return Some(8);
    }
    let root = first == 12
        && shape.decode_len(le16(block, 16)) == block.len() - 12
        && le32(block, 24) == 0
        && block[29] == 8;
    root.then_some(32)
}

/// Computes a block's checksum and writes it where it belongs.
///
/// `seed` is the inode's: CRC-32C of the file system's seed, the inode number and its generation. For file
/// systems with `metadata_csum`; the others have no place for it.
///
/// # Errors
/// [`Error::Corrupt`] if the block has no place for a checksum.
pub fn seal(block: &mut [u8], kind: BlockKind, seed: u32) -> Result<()> {
    let (at, sum) =
        checksum(block, kind, seed).map_err(|why| Error::corrupt("directory block", why, "sealing"))?;
    put(block, at, sum.to_le_bytes());
    Ok(())
}

/// Checks a block's checksum; `place` says where it lies, for the message.
///
/// # Errors
/// [`Error::Corrupt`] if it is wrong or missing.
pub fn verify(block: &[u8], seed: u32, place: impl Display) -> Result<()> {
    match checksum(block, block_kind(block), seed) {
        Ok((at, sum)) if le32(block, at) == sum => Ok(()),
        Ok(_) => Err(Error::corrupt("directory block", "its checksum does not match", place)),
        Err(why) => Err(Error::corrupt("directory block", why, place)),
    }
}

/// Where the checksum lies and what it should be.
fn checksum(block: &[u8], kind: BlockKind, seed: u32) -> Checked<(usize, u32)> {
    match kind {
        BlockKind::Leaf => {
            let end = block.len().checked_sub(TAIL).ok_or("the block is too short")?;
            let tail = &block[end..];
            if le32(tail, 0) != 0 || le16(tail, 4) != TAIL as u16 || tail[6] != 0 || tail[7] != TAIL_TYPE {
                return Err("it has no checksum record");
            }
            Ok((end + 8, crc32c_raw(seed, &block[..end])))
        }
        BlockKind::Index => {
            let base = index_entries(block).ok_or("it has not the shape of an index block")?;
            let (limit, count) = (usize::from(le16(block, base)), usize::from(le16(block, base + 2)));
            let tail = base + limit * 8;
            if count > limit || tail + INDEX_TAIL > block.len() {
                return Err("the index leaves no space for its checksum");
            }
            let sum = crc32c_raw(seed, &block[..base + count * 8]);
            let sum = crc32c_raw(sum, &block[tail..tail + 4]);
            Ok((tail + 4, crc32c_raw(sum, &[0; 4])))
        }
    }
}
