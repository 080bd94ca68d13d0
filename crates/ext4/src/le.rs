//! Little-endian fields of on-disk structures, by byte offset.
//!
//! Every caller hands in a slice whose length it has checked (a whole block, descriptor or inode) and a
//! constant offset inside it, so the bounds checks here never fire.

/// The 16-bit field at `at`.
pub(super) fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The 32-bit field at `at`.
pub(super) fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The 64-bit field at `at`.
pub(super) fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get32(bytes, at)) | u64::from(get32(bytes, at + 4)) << 32
}

/// Stores a 16-bit field.
pub(super) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Stores a 32-bit field.
pub(super) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Stores a 64-bit field.
pub(super) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// The low half of a 32-bit value.
pub(super) fn low16(value: u32) -> u16 {
    (value & 0xFFFF) as u16
}

/// The high half of a 32-bit value.
pub(super) fn high16(value: u32) -> u16 {
    (value >> 16) as u16
}
