//! What ties the two halves together, on the disk's side.
//!
//! 56 bytes at 0x3C4 in the ext4 superblock, in the last of its reserved words before its checksum. Every
//! commit writes them in the same transaction as the operations they count. Stock tools keep them as they are. The first
//! copy of the superblock has them, too, in the same transactions ([`bimetal_ext4`]'s `backup`).
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | magic `BiMt` |
//! | 4 | 2 | version, 3 |
//! | 6 | 2 | tenths of a second that the disk may have been behind the SSD's log; 0: not known |
//! | 8 | 16 | UUID of the SSD half |
//! | 24 | 8 | epoch: rises when an SSD is given up, or what it holds is dropped |
//! | 32 | 8 | number of the last operation on the disk |
//! | 40 | 1 | [`Saved`]: 0 clean, 1 log open, 2 recovering, 3 degraded |
//! | 41 | 7 | sequence number up to which the SSD's log was durable before this was written; all ones: degraded |
//! | 48 | 4 | and its incarnation; degraded: the lower half of the epoch of the SSD that was given up |
//! | 52 | 4 | CRC-32C of the bytes before |
//!
//! Numbers are little-endian. Version 2 had 32 bits of version, and the states 0 and 1 only; it is read.

use super::ssd::DiskSide;
use bimetal_base::checksum::crc32c;
use std::time::Duration;

/// Size in bytes.
pub const PAIRING_BYTES: usize = 56;
const MAGIC: [u8; 4] = *b"BiMt";
const VERSION: u16 = 3;
/// The oldest version that is read.
const VERSION_MIN: u16 = 2;
/// In place of a sequence number, of a disk without its SSD: what stands for the incarnation is the lower half of the epoch of
/// the SSD that was given up.
const NO_LOG: u64 = (1 << 56) - 1;

/// The state of a volume as the disk half has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Saved {
    /// The disk has everything.
    Clean = 0,
    /// The SSD's log may hold operations after those on the disk.
    LogOpen = 1,
    /// As `LogOpen`; some of them were brought to the disk, and the SSD was not told.
    Recovering = 2,
    /// The disk goes on without its SSD, which was given up.
    Degraded = 3,
}

impl Saved {
    fn of(byte: u8) -> Option<Saved> {
        [Saved::Clean, Saved::LogOpen, Saved::Recovering, Saved::Degraded].get(usize::from(byte)).copied()
    }
}

/// Why 56 bytes are no pairing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPairing {
    /// Nothing of ours was ever written there.
    None,
    /// It was, and is damaged.
    Damaged,
    /// It is of a version that this program does not know.
    Version(u16),
}

/// See the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// UUID of the SSD half; zeros when the disk works alone.
    pub ssd: [u8; 16],
    /// Rises when an SSD is given up, or what it holds is dropped.
    pub epoch: u64,
    /// The last operation on the disk.
    pub op: u64,
    /// The volume's state.
    pub state: Saved,
    /// How far the SSD's log was durable: incarnation and sequence number (of 56 bits).
    pub reached: (u32, u64),
    /// Tenths of a second that the disk may be behind the SSD's log; 0: not known.
    pub lag_tenths: u16,
}

impl Pairing {
    /// What opening the SSD has to know of the disk.
    pub fn disk_side(&self) -> DiskSide {
        let reached = if self.given_up().is_some() { (0, 0) } else { self.reached };
        DiskSide { reached, op: self.op }
    }

    /// Of a degraded disk: the lower half of the epoch of the SSD that it gave up, where it is known.
    pub fn given_up(&self) -> Option<u32> {
        (self.state == Saved::Degraded && self.reached.1 == NO_LOG).then_some(self.reached.0)
    }

    /// What a degraded disk says in place of how far its SSD's log was durable.
    pub fn reached_without_ssd(given_up: u32) -> (u32, u64) {
        (given_up, NO_LOG)
    }

    /// What only the SSD's log holds, in words.
    pub fn only_in_log(&self) -> String {
        match self.lag_tenths {
            0 => "what was fsynced last before the crash".into(),
            tenths => {
                let span = humantime::format_duration(Duration::from_millis(u64::from(tenths) * 100));
                format!("what was fsynced within up to {span} before the crash")
            }
        }
    }

    /// The bytes on the medium.
    pub fn encode(&self) -> [u8; PAIRING_BYTES] {
        let mut bytes = [0; PAIRING_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.lag_tenths.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.ssd);
        bytes[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.op.to_le_bytes());
        bytes[40] = self.state as u8;
        bytes[41..48].copy_from_slice(&self.reached.1.to_le_bytes()[..7]);
        bytes[48..52].copy_from_slice(&self.reached.0.to_le_bytes());
        let sum = crc32c(&bytes[..52]);
        bytes[52..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the bytes of a superblock; `None`: it has none.
    pub fn decode(bytes: Option<&[u8; PAIRING_BYTES]>) -> Result<Pairing, NoPairing> {
        let bytes = bytes.ok_or(NoPairing::None)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let short = |at: usize| u16::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if half(52) != crc32c(&bytes[..52]) || bytes[..4] != MAGIC {
            return Err(if bytes == &[0; PAIRING_BYTES] { NoPairing::None } else { NoPairing::Damaged });
        }
        let version = short(4);
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(NoPairing::Version(version));
        }
        let known = if version == VERSION_MIN { bytes[40] & 1 } else { bytes[40] };
        let state = Saved::of(known).ok_or(NoPairing::Damaged)?;
        let ssd = std::array::from_fn(|i| bytes[8 + i]);
        let reached = (half(48), word(40) >> 8);
        Ok(Pairing { ssd, epoch: word(24), op: word(32), state, reached, lag_tenths: short(6) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Pairing {
        Pairing {
            ssd: *b"0123456789abcdef",
            epoch: 3,
            op: 77,
            state: Saved::Recovering,
            reached: (9, (1 << 56) - 2),
            lag_tenths: 50,
        }
    }

    fn sealed(mut bytes: [u8; PAIRING_BYTES]) -> [u8; PAIRING_BYTES] {
        let sum = crc32c(&bytes[..52]);
        bytes[52..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_pairing_reads_back_and_any_flipped_bit_is_seen() {
        let good = sample().encode();
        assert_eq!(Pairing::decode(Some(&good)), Ok(sample()));
        assert_eq!(Pairing::decode(None), Err(NoPairing::None));
        for bit in 0..PAIRING_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Pairing::decode(Some(&bad)), Err(NoPairing::Damaged), "bit {bit}");
        }
    }

    #[test]
    fn the_version_before_is_read_and_a_later_one_is_told_by_its_number() {
        let mut old = Pairing { lag_tenths: 0, ..sample() }.encode();
        (old[4], old[40]) = (2, 1);
        let read = Pairing::decode(Some(&sealed(old))).unwrap();
        assert_eq!((read.state, read.op, read.lag_tenths), (Saved::LogOpen, 77, 0));
        let mut later = sample().encode();
        later[4] = 4;
        assert_eq!(Pairing::decode(Some(&sealed(later))), Err(NoPairing::Version(4)));
        let mut unknown = sample().encode();
        unknown[40] = 9;
        assert_eq!(Pairing::decode(Some(&sealed(unknown))), Err(NoPairing::Damaged));
    }
}
