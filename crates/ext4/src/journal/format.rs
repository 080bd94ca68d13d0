//! The journal's blocks, bit by bit (jbd2; all numbers are big-endian).
//!
//! ```text
//! block 0      superblock: size, first log block, features, where the oldest live transaction begins
//! descriptor   header · tag, [uuid], tag, …      then one log block per tag, the image of the block it names
//! revoke       header · bytes used · block numbers that older images must not overwrite
//! commit       header · time                     the transaction counts
//! ```
//!
//! Every header is magic, type and transaction number. An image whose first word happens to be the magic is
//! written with zero there and its tag says so. Checksums come in three generations: v1 sums a transaction's
//! descriptors and images into its commit block (CRC-32, bit-reversed); v2 and v3 give every block its own
//! CRC-32C, seeded with the journal's UUID, an image's in its tag (16 bits in v2, 32 in v3).

use bimetal_base::checksum::crc32c_raw;
use bimetal_base::time::Stamp;
use bimetal_base::{Error, Result};
use bytes::Bytes;

const MAGIC: u32 = 0xC03B_3998;
const SUPER_V1: u32 = 3;
const SUPER_V2: u32 = 4;
/// Bytes of the superblock proper.
const SUPER_BYTES: usize = 1024;
const SUPER_SUM: usize = 0xFC;
/// The fewest blocks that jbd2 takes for a log.
const LOG_BLOCKS_MIN: u32 = 1024;
/// The fewest of them that the ring may have, so that a quarter of it is a transaction.
const RING_BLOCKS_MIN: u32 = 64;
const FAST_BLOCKS_DEFAULT: u32 = 256;
const CRC32C: u8 = 4;

const HEADER: usize = 12;
const UUID: usize = 16;
const SUM_TAIL: usize = 4;

const COMPAT_CHECKSUM: u32 = 1;
const INCOMPAT_REVOKE: u32 = 1;
const INCOMPAT_64BIT: u32 = 2;
const INCOMPAT_ASYNC: u32 = 4;
const INCOMPAT_SUM_V2: u32 = 8;
const INCOMPAT_SUM_V3: u32 = 16;
const INCOMPAT_FAST: u32 = 32;
const INCOMPAT_KNOWN: u32 = 63;

const TAG_ESCAPED: u32 = 1;
const TAG_SAME_UUID: u32 = 2;
const TAG_LAST: u32 = 8;

pub(super) fn be32(block: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn be16(block: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([block[at], block[at + 1]])
}

fn be64(block: &[u8], at: usize) -> u64 {
    u64::from(be32(block, at)) << 32 | u64::from(be32(block, at + 4))
}

fn put<const N: usize>(block: &mut [u8], at: usize, bytes: [u8; N]) {
    block[at..at + N].copy_from_slice(&bytes);
}

/// Whether transaction `a` is `b` or came after it; numbers wrap around.
pub(super) fn not_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) < 1 << 31
}

fn corrupt(why: &str) -> Error {
    Error::corrupt("the journal's superblock", why, "journal block 0")
}

/// The superblock, checked. Fields that are of no use here keep what they hold.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    block: Vec<u8>,
}

impl Superblock {
    /// Checks the first block of a journal that has `blocks` blocks of this size.
    pub fn parse(block: &[u8], blocks: u32) -> Result<Superblock> {
        if be32(block, 0) != MAGIC {
            return Err(corrupt("it has no magic number"));
        }
        if !matches!(be32(block, 4), SUPER_V1 | SUPER_V2) {
            return Err(corrupt("its type is neither version 1 nor version 2"));
        }
        let superblock = Superblock { block: block.to_vec() };
        superblock.check_features()?;
        superblock.check_sum()?;
        superblock.check_log(blocks)?;
        Ok(superblock)
    }

    fn check_features(&self) -> Result<()> {
        let unknown = |set: &str, bits: u32| {
            Error::unsupported(format_args!("journal feature {set} {bits:#x}"), "it is unknown; run e2fsck")
        };
        let (compat, incompat, ro_compat) = (self.compat(), self.incompat(), self.field(0x2C));
        if incompat & !INCOMPAT_KNOWN != 0 {
            return Err(unknown("incompat", incompat & !INCOMPAT_KNOWN));
        }
        if ro_compat != 0 {
            return Err(unknown("ro_compat", ro_compat));
        }
        let sums = [compat & COMPAT_CHECKSUM, incompat & INCOMPAT_SUM_V2, incompat & INCOMPAT_SUM_V3];
        if sums.iter().filter(|bit| **bit != 0).count() > 1 {
            return Err(corrupt("it has more than one kind of checksum"));
        }
        if self.field(0x40) > 1 {
            return Err(Error::unsupported(
                "a journal of several file systems",
                "only a journal of one's own",
            ));
        }
        Ok(())
    }

    fn check_sum(&self) -> Result<()> {
        if !self.has_sums() {
            return Ok(());
        }
        if self.block[0x50] != CRC32C {
            return Err(corrupt("its checksums are not CRC-32C"));
        }
        if be32(&self.block, SUPER_SUM) != self.sum() {
            return Err(corrupt("its checksum does not match"));
        }
        Ok(())
    }

    fn check_log(&self, blocks: u32) -> Result<()> {
        let (total, first, start) = (be32(&self.block, 16), self.first(), self.start());
        if be32(&self.block, 12) as usize != self.block.len() {
            return Err(corrupt("its block size is not the file system's"));
        }
        if total > blocks {
            return Err(corrupt("it claims more blocks than the journal has"));
        }
        let log = total.checked_sub(self.fast_blocks());
        if first == 0 || log.is_none_or(|log| log < LOG_BLOCKS_MIN || first > log - RING_BLOCKS_MIN) {
            return Err(corrupt("its log is too short"));
        }
        if start != 0 && !(first..self.end()).contains(&start) {
            return Err(corrupt("it says that the log begins outside the log"));
        }
        Ok(())
    }

    fn is_v2(&self) -> bool {
        be32(&self.block, 4) == SUPER_V2
    }

    /// A field that version 1 does not have.
    fn field(&self, at: usize) -> u32 {
        if self.is_v2() { be32(&self.block, at) } else { 0 }
    }

    fn compat(&self) -> u32 {
        self.field(0x24)
    }

    fn incompat(&self) -> u32 {
        self.field(0x28)
    }

    fn has_sums(&self) -> bool {
        self.incompat() & (INCOMPAT_SUM_V2 | INCOMPAT_SUM_V3) != 0
    }

    fn sum(&self) -> u32 {
        let sum = crc32c_raw(!0, &self.block[..SUPER_SUM]);
        let sum = crc32c_raw(sum, &[0; 4]);
        crc32c_raw(sum, &self.block[SUPER_SUM + 4..SUPER_BYTES])
    }

    /// Blocks at the end that are kept for fast commits.
    fn fast_blocks(&self) -> u32 {
        match (self.incompat() & INCOMPAT_FAST, self.field(0x54)) {
            (0, _) => 0,
            (_, 0) => FAST_BLOCKS_DEFAULT,
            (_, blocks) => blocks,
        }
    }

    /// The first block of the log.
    pub fn first(&self) -> u32 {
        be32(&self.block, 20)
    }

    /// One past the last block of the log.
    pub fn end(&self) -> u32 {
        be32(&self.block, 16) - self.fast_blocks()
    }

    /// Where jbd2 puts the first fast commit, if the journal has room for them.
    pub fn fast_first(&self) -> Option<u32> {
        (self.fast_blocks() > 1).then(|| self.end() + 1)
    }

    /// The number of the oldest live transaction, or of the next one if there is none.
    pub fn sequence(&self) -> u32 {
        be32(&self.block, 24)
    }

    /// Where the oldest live transaction begins; 0 for an empty log.
    pub fn start(&self) -> u32 {
        be32(&self.block, 28)
    }

    /// The error with which an earlier user aborted the journal; 0 for none.
    pub fn error(&self) -> u32 {
        be32(&self.block, 32)
    }

    /// Commit blocks may have been written before what they commit.
    pub fn async_commit(&self) -> bool {
        self.incompat() & INCOMPAT_ASYNC != 0
    }

    /// Revoke blocks may be written.
    pub fn can_revoke(&self) -> bool {
        self.is_v2()
    }

    /// Notes where the log begins and with which transaction.
    pub fn set_log(&mut self, start: u32, sequence: u32) {
        put(&mut self.block, 24, sequence.to_be_bytes());
        put(&mut self.block, 28, start.to_be_bytes());
    }

    /// Notes that there may be revoke blocks.
    pub fn note_revokes(&mut self) {
        if self.is_v2() {
            let incompat = self.incompat() | INCOMPAT_REVOKE;
            put(&mut self.block, 0x28, incompat.to_be_bytes());
        }
    }

    /// Chooses what new transactions look like: with v3 checksums or none, with 64-bit block numbers or
    /// 32-bit ones. The log must be empty. Version 1 becomes version 2.
    pub fn choose(&mut self, checksums: bool, bits64: bool) {
        if !self.is_v2() {
            self.block[0x24..SUPER_BYTES].fill(0);
            put(&mut self.block, 4, SUPER_V2.to_be_bytes());
            put(&mut self.block, 0x40, 1_u32.to_be_bytes());
        }
        let mut incompat = self.incompat() & INCOMPAT_FAST | INCOMPAT_REVOKE;
        incompat |= if checksums { INCOMPAT_SUM_V3 } else { 0 };
        incompat |= if bits64 { INCOMPAT_64BIT } else { 0 };
        let compat = self.compat() & !COMPAT_CHECKSUM;
        put(&mut self.block, 0x24, compat.to_be_bytes());
        put(&mut self.block, 0x28, incompat.to_be_bytes());
        self.block[0x50] = if checksums { CRC32C } else { 0 };
    }

    /// The block as it goes to the disk.
    pub fn sealed(&mut self) -> Bytes {
        let sum = if self.has_sums() { self.sum() } else { 0 };
        if self.is_v2() {
            put(&mut self.block, SUPER_SUM, sum.to_be_bytes());
        }
        Bytes::copy_from_slice(&self.block)
    }

    /// How the blocks of the log look.
    pub fn format(&self) -> Format {
        let mut uuid = [0; UUID];
        if self.is_v2() {
            uuid.copy_from_slice(&self.block[0x30..0x40]);
        }
        let sums = match (self.compat() & COMPAT_CHECKSUM, self.incompat()) {
            (_, incompat) if incompat & INCOMPAT_SUM_V3 != 0 => Sums::V3,
            (_, incompat) if incompat & INCOMPAT_SUM_V2 != 0 => Sums::V2,
            (0, _) => Sums::None,
            _ => Sums::V1,
        };
        Format {
            block_bytes: self.block.len(),
            bits64: self.incompat() & INCOMPAT_64BIT != 0,
            sums,
            seed: crc32c_raw(!0, &uuid),
            uuid,
        }
    }
}

/// The generation of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    None,
    V1,
    V2,
    V3,
}

/// What a block of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogBlock {
    Descriptor,
    Commit,
    Revoke,
}

impl LogBlock {
    fn number(self) -> u32 {
        match self {
            LogBlock::Descriptor => 1,
            LogBlock::Commit => 2,
            LogBlock::Revoke => 5,
        }
    }
}

/// What a descriptor says of one image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    /// The block it is the image of.
    pub home: u64,
    /// Its first word is the magic number, and zero in the log.
    pub escaped: bool,
    /// The checksum of the image as it lies in the log, as wide as the tag has it.
    pub sum: u32,
}

/// How the blocks of a log look.
#[derive(Clone, Debug)]
pub(super) struct Format {
    pub block_bytes: usize,
    pub bits64: bool,
    pub sums: Sums,
    seed: u32,
    uuid: [u8; UUID],
}

impl Format {
    fn own_sums(&self) -> bool {
        matches!(self.sums, Sums::V2 | Sums::V3)
    }

    fn sum_bytes(&self) -> usize {
        if self.own_sums() { SUM_TAIL } else { 0 }
    }

    fn tag_bytes(&self) -> usize {
        match (self.sums, self.bits64) {
            (Sums::V3, _) => 16,
            (Sums::V2, true) => 14,
            (Sums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Type and transaction of a block, if it is one of ours.
    pub fn header(&self, block: &[u8]) -> Option<(LogBlock, u32)> {
        let kind = match (be32(block, 0), be32(block, 4)) {
            (MAGIC, 1) => LogBlock::Descriptor,
            (MAGIC, 2) => LogBlock::Commit,
            (MAGIC, 5) => LogBlock::Revoke,
            _ => return None,
        };
        Some((kind, be32(block, 8)))
    }

    /// Whether a descriptor's, revoke block's or commit block's own checksum is right, if it has one.
    pub fn sum_is_right(&self, kind: LogBlock, block: &[u8]) -> bool {
        let at = self.sum_place(kind);
        !self.own_sums() || be32(block, at) == self.block_sum(block, at)
    }

    fn sum_place(&self, kind: LogBlock) -> usize {
        if kind == LogBlock::Commit { 16 } else { self.block_bytes - SUM_TAIL }
    }

    fn block_sum(&self, block: &[u8], at: usize) -> u32 {
        let sum = crc32c_raw(self.seed, &block[..at]);
        crc32c_raw(crc32c_raw(sum, &[0; 4]), &block[at + 4..])
    }

    /// The checksum of an image, as wide as a tag has it.
    fn image_sum(&self, tid: u32, image: &[u8]) -> u32 {
        let sum = || crc32c_raw(crc32c_raw(self.seed, &tid.to_be_bytes()), image);
        match self.sums {
            Sums::None | Sums::V1 => 0,
            Sums::V2 => sum() & 0xFFFF,
            Sums::V3 => sum(),
        }
    }

    /// Whether an image is what its tag says, as far as it says.
    pub fn image_is_right(&self, tid: u32, tag: &Tag, image: &[u8]) -> bool {
        !self.own_sums() || tag.sum == self.image_sum(tid, image)
    }

    /// The tags of a descriptor.
    pub fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let (mut at, end) = (HEADER, self.block_bytes - self.sum_bytes());
        let mut tags = Vec::new();
        while at + self.tag_bytes() <= end {
            let (tag, flags) = self.tag(block, at);
            tags.push(tag);
            at += self.tag_bytes() + if flags & TAG_SAME_UUID == 0 { UUID } else { 0 };
            if flags & TAG_LAST != 0 {
                break;
            }
        }
        tags
    }

    fn tag(&self, block: &[u8], at: usize) -> (Tag, u32) {
        let low = u64::from(be32(block, at));
        let high = if self.bits64 { u64::from(be32(block, at + 8)) } else { 0 };
        let (flags, sum) = match self.sums {
            Sums::V3 => (be32(block, at + 4), be32(block, at + 12)),
            _ => (u32::from(be16(block, at + 6)), u32::from(be16(block, at + 4))),
        };
        (Tag { home: high << 32 | low, escaped: flags & TAG_ESCAPED != 0, sum }, flags)
    }

    /// The block numbers in a revoke block.
    pub fn revoked(&self, block: &[u8]) -> Result<Vec<u64>, &'static str> {
        let used = be32(block, HEADER) as usize;
        if used > self.block_bytes - self.sum_bytes() {
            return Err("a revoke block is longer than a block");
        }
        let records = block.get(HEADER + 4..used).unwrap_or_default();
        Ok(match self.bits64 {
            true => records.chunks_exact(8).map(|record| be64(record, 0)).collect(),
            false => records.chunks_exact(4).map(|record| u64::from(be32(record, 0))).collect(),
        })
    }

    /// Seconds since the epoch in a commit block.
    pub fn commit_seconds(&self, block: &[u8]) -> u64 {
        be64(block, 48)
    }

    /// Whether a commit block's v1 checksum is `sum`; one that was left out counts as right.
    pub fn commit_v1_is_right(&self, block: &[u8], sum: u32) -> bool {
        match (block[12], block[13], be32(block, 16)) {
            (0, 0, 0) => true,
            (1, 4, stored) => stored == sum,
            _ => false,
        }
    }

    fn start(&self, kind: LogBlock, tid: u32) -> Vec<u8> {
        let mut block = vec![0; self.block_bytes];
        put(&mut block, 0, MAGIC.to_be_bytes());
        put(&mut block, 4, kind.number().to_be_bytes());
        put(&mut block, 8, tid.to_be_bytes());
        block
    }

    fn finish(&self, kind: LogBlock, mut block: Vec<u8>) -> Bytes {
        if self.own_sums() {
            let at = self.sum_place(kind);
            let sum = self.block_sum(&block, at);
            put(&mut block, at, sum.to_be_bytes());
        }
        block.into()
    }

    /// How many tags jbd2 puts into one descriptor.
    pub fn tags_max(&self) -> usize {
        let first = HEADER + self.tag_bytes() + UUID;
        1 + (self.block_bytes - first - UUID - self.sum_bytes()) / self.tag_bytes()
    }

    /// An image as it lies in the log, and the tag that says so.
    pub fn image(&self, tid: u32, home: u64, image: Bytes) -> (Tag, Bytes) {
        let escaped = be32(&image, 0) == MAGIC;
        let image = if escaped { [&[0; 4], &image[4..]].concat().into() } else { image };
        (Tag { home, escaped, sum: self.image_sum(tid, &image) }, image)
    }

    /// The image that an escaped log block stands for.
    pub fn unescape(image: &[u8]) -> Bytes {
        [&MAGIC.to_be_bytes(), &image[4..]].concat().into()
    }

    /// A descriptor of at most [`Self::tags_max`] tags.
    pub fn descriptor(&self, tid: u32, tags: &[Tag]) -> Bytes {
        let mut block = self.start(LogBlock::Descriptor, tid);
        let mut at = HEADER;
        for (index, tag) in tags.iter().enumerate() {
            let mut flags = if tag.escaped { TAG_ESCAPED } else { 0 };
            flags |= if index > 0 { TAG_SAME_UUID } else { 0 };
            flags |= if index + 1 == tags.len() { TAG_LAST } else { 0 };
            self.put_tag(&mut block, at, tag, flags);
            at += self.tag_bytes();
            if index == 0 {
                put(&mut block, at, self.uuid);
                at += UUID;
            }
        }
        self.finish(LogBlock::Descriptor, block)
    }

    fn put_tag(&self, block: &mut [u8], at: usize, tag: &Tag, flags: u32) {
        put(block, at, (tag.home as u32).to_be_bytes());
        if self.sums == Sums::V3 {
            put(block, at + 4, flags.to_be_bytes());
            put(block, at + 12, tag.sum.to_be_bytes());
        } else {
            put(block, at + 4, (tag.sum as u16).to_be_bytes());
            put(block, at + 6, (flags as u16).to_be_bytes());
        }
        if self.bits64 {
            put(block, at + 8, ((tag.home >> 32) as u32).to_be_bytes());
        }
    }

    /// How many block numbers fit a revoke block.
    pub fn revokes_max(&self) -> usize {
        (self.block_bytes - HEADER - 4 - self.sum_bytes()) / if self.bits64 { 8 } else { 4 }
    }

    /// A revoke block of at most [`Self::revokes_max`] block numbers.
    pub fn revoke(&self, tid: u32, homes: &[u64]) -> Bytes {
        let mut block = self.start(LogBlock::Revoke, tid);
        let mut at = HEADER + 4;
        for home in homes {
            if self.bits64 {
                put(&mut block, at, home.to_be_bytes());
                at += 8;
            } else {
                put(&mut block, at, (*home as u32).to_be_bytes());
                at += 4;
            }
        }
        put(&mut block, HEADER, (at as u32).to_be_bytes());
        self.finish(LogBlock::Revoke, block)
    }

    /// A commit block.
    pub fn commit(&self, tid: u32, stamp: Stamp) -> Bytes {
        let mut block = self.start(LogBlock::Commit, tid);
        put(&mut block, 48, (stamp.sec.max(0) as u64).to_be_bytes());
        put(&mut block, 56, stamp.nsec.to_be_bytes());
        self.finish(LogBlock::Commit, block)
    }
}

/// CRC-32 with the highest bit first and neither initial nor final inversion: the sum of v1.
pub(super) fn crc32_high_first(seed: u32, data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0_u32; 256];
        let mut index = 0;
        while index < 256 {
            let mut bits = 0;
            let mut sum = (index as u32) << 24;
            while bits < 8 {
                sum = (sum << 1) ^ if sum & 1 << 31 != 0 { 0x04C1_1DB7 } else { 0 };
                bits += 1;
            }
            table[index] = sum;
            index += 1;
        }
        table
    };
    data.iter().fold(seed, |sum, byte| sum << 8 ^ TABLE[((sum >> 24) as u8 ^ byte) as usize])
}
