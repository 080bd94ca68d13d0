//! What ties the two halves together, on the disk's side.
//!
//! 56 bytes at 0x3C4 in the ext4 superblock, in the last of its reserved words before its checksum. Every
//! commit writes them in the same transaction as the operations they count. Stock tools keep them as they are.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | magic `BiMt` |
//! | 4 | 4 | version, 2 |
//! | 8 | 16 | UUID of the SSD half |
//! | 24 | 8 | epoch: rises when an SSD is given up |
//! | 32 | 8 | number of the last operation on the disk |
//! | 40 | 1 | flags: bit 0, the SSD's log may hold operations after that one |
//! | 41 | 7 | sequence number up to which the SSD's log was durable before this was written |
//! | 48 | 4 | and its incarnation |
//! | 52 | 4 | CRC-32C of the bytes before |
//!
//! Numbers are little-endian.

use super::ssd::DiskSide;
use crate::checksum::crc32c;

/// Size in bytes.
pub const TIE_BYTES: usize = 56;
const MAGIC: [u8; 4] = *b"BiMt";
const VERSION: u32 = 2;

/// See the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tie {
    /// UUID of the SSD half; zeros when the disk works alone.
    pub ssd: [u8; 16],
    /// Rises when an SSD is given up.
    pub epoch: u64,
    /// The last operation on the disk.
    pub op: u64,
    /// The SSD's log may hold operations after it.
    pub log_open: bool,
    /// How far the SSD's log was durable: incarnation and sequence number (of 56 bits).
    pub reached: (u32, u64),
}

impl Tie {
    /// What opening the SSD has to know of the disk.
    pub fn disk_side(&self) -> DiskSide {
        DiskSide { reached: self.reached, op: self.op }
    }

    /// The bytes on the medium.
    pub fn encode(&self) -> [u8; TIE_BYTES] {
        let mut bytes = [0; TIE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.ssd);
        bytes[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.op.to_le_bytes());
        bytes[40] = u8::from(self.log_open);
        bytes[41..48].copy_from_slice(&self.reached.1.to_le_bytes()[..7]);
        bytes[48..52].copy_from_slice(&self.reached.0.to_le_bytes());
        let sum = crc32c(&bytes[..52]);
        bytes[52..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the bytes of a superblock; `None` if a bimetal never wrote them, or they are damaged.
    pub fn decode(bytes: &[u8; TIE_BYTES]) -> Option<Tie> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let ours = bytes[..4] == MAGIC && half(4) == VERSION && half(52) == crc32c(&bytes[..52]);
        let ssd = std::array::from_fn(|i| bytes[8 + i]);
        let reached = (half(48), word(40) >> 8);
        ours.then(|| Tie { ssd, epoch: word(24), op: word(32), log_open: bytes[40] & 1 != 0, reached })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_reads_back_and_any_flipped_bit_is_seen() {
        let tie =
            Tie { ssd: *b"0123456789abcdef", epoch: 3, op: 77, log_open: true, reached: (9, (1 << 56) - 2) };
        let good = tie.encode();
        assert_eq!(Tie::decode(&good), Some(tie));
        for bit in 0..TIE_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Tie::decode(&bad), None, "bit {bit}");
        }
    }
}
