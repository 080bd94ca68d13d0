//! A group of the log: its header as it lies on the medium (docs/format-ssd.md), what is known of one, and the write that
//! brings it there.

use bimetal_base::checksum::crc32c;
use bytes::{Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a group: "BMLG".
pub(super) const GROUP_MAGIC: u32 = u32::from_le_bytes(*b"BMLG");

/// The version of the log's format: since 3 what is unbound on the disk may lie under what later operations bound.
pub(super) const LOG_VERSION: u16 = 3;

/// The oldest version that is read.
pub(super) const LOG_VERSION_READ: u16 = 2;

/// The header of a group.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawGroup {
    pub(super) magic: U32,
    pub(super) version: U16,
    pub(super) packing: U16,
    pub(super) log_id: U64,
    pub(super) sequence: U64,
    pub(super) tail_sequence: U64,
    pub(super) tail_block: U32,
    pub(super) block: U32,
    pub(super) bytes: U32,
    pub(super) records: U32,
    pub(super) trimmed: U64,
    pub(super) last_op: U64,
    pub(super) durable: U64,
    pub(super) slots_high: U32,
    pub(super) incarnation: U32,
    pub(super) checksum: U32,
    pub(super) slots_written: U32,
}

/// Bytes of a group's header.
pub(super) const GROUP_HEADER: usize = size_of::<RawGroup>();

/// Where the checksum lies in the header.
pub(super) const CHECKSUM_AT: usize = GROUP_HEADER - 8;

/// The checksum of a whole group, whose own field counts as zero.
pub(super) fn group_checksum(group: &[u8]) -> u32 {
    let (before, after) = (&group[..CHECKSUM_AT], &group[CHECKSUM_AT + 4..]);
    let sum = ::crc32c::crc32c_append(crc32c(before), &[0; 4]);
    ::crc32c::crc32c_append(sum, after)
}

/// Names a sealed group, to say later that it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub(super) u64);

/// A write of the log, to be submitted durably (`Request::Write { durable: true, .. }`).
#[derive(Clone, Debug)]
pub struct LogWrite {
    /// Device offset, bytes.
    pub offset: u64,
    /// Whole blocks of the log, but for the checksum.
    pub(super) open: BytesMut,
    /// To be handed to `sealed` when the write and those of all groups sealed before are durable.
    pub upto: Token,
    /// It binds data blocks that may still be in the device's cache: what makes it durable is to be a flush of
    /// the whole device. It may reach the medium before them; a mount compares what such a group binds with
    /// its checksums.
    pub binds: bool,
}

impl LogWrite {
    /// Where it ends on the device, bytes.
    pub fn end(&self) -> u64 {
        self.offset + self.open.len() as u64
    }

    /// What to write: whole blocks of the log. The checksum is worked out here, so that whoever seals under a lock need
    /// not hold it for that.
    pub fn close(mut self) -> Bytes {
        let sum = group_checksum(&self.open);
        self.open[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        self.open.freeze()
    }
}

/// A group on the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) sequence: u64,
    pub(super) block: u32,
    pub(super) blocks: u32,
    /// The last batch in it or before it.
    pub(super) batch: u64,
    /// The highest operation number among the caller's records in it; zero without any.
    pub(super) op_max: u64,
    /// It has other records than the caller's.
    pub(super) residency: bool,
    /// The tail its header names.
    pub(super) tail: (u64, u32),
}
