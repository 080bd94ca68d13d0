//! Checksummed sectors: the unit of every table on the SSD.
//!
//! Tables are written in place. A device writes at least 512 bytes whole or not at all, so tables are made of
//! sectors of that size, each with its own checksum: after a power cut a sector is old or new, never
//! mixed, and what did not change in it is there either way. A sector is 508 bytes of payload and the
//! CRC-32C of the SSD's UUID, the sector's offset on the device, and the payload; so a sector of another
//! SSD, of an earlier format or of another place is as wrong as a damaged one.

use bimetal_base::checksum::crc32c_raw;

/// The unit of checksums, and the least a device writes atomically.
pub(super) const SECTOR_BYTES: usize = 512;

/// What a sector holds beside its checksum.
pub(super) const SECTOR_PAYLOAD: usize = SECTOR_BYTES - 4;

/// The unit in which tables are laid out, read and written.
pub(super) const TABLE_BLOCK: u64 = 4096;

/// Sectors in a table block.
pub(super) const SECTORS_PER_BLOCK: u32 = (TABLE_BLOCK as usize / SECTOR_BYTES) as u32;

/// Makes and checks the checksums of one SSD.
#[derive(Clone, Debug)]
pub(super) struct Seal {
    base: u32,
}

impl Seal {
    /// The seal of the SSD with this UUID.
    pub(super) fn new(uuid: &[u8; 16]) -> Seal {
        Seal { base: crc32c_raw(!0, uuid) }
    }

    /// The checksum of `data` at device offset `offset`.
    pub(super) fn checksum(&self, offset: u64, data: &[u8]) -> u32 {
        !crc32c_raw(crc32c_raw(self.base, &offset.to_le_bytes()), data)
    }

    /// Writes the checksum of every sector of `bytes`, which lie at device offset `offset`.
    pub(super) fn close(&self, offset: u64, bytes: &mut [u8]) {
        for (index, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            let (payload, sum) = sector.split_at_mut(SECTOR_PAYLOAD);
            let at = offset + (index * SECTOR_BYTES) as u64;
            sum.copy_from_slice(&self.checksum(at, payload).to_le_bytes());
        }
    }

    /// The payload of a sector at device offset `offset`, if its checksum is right.
    pub(super) fn open<'a>(&self, offset: u64, sector: &'a [u8]) -> Option<&'a [u8]> {
        let (payload, sum) = sector.split_at_checked(SECTOR_PAYLOAD)?;
        (sum == self.checksum(offset, payload).to_le_bytes()).then_some(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_valid_only_as_written_and_where_it_was_written() {
        let seal = Seal::new(&[1; 16]);
        let mut block = vec![0; TABLE_BLOCK as usize];
        assert!(seal.open(0, &block[..SECTOR_BYTES]).is_none(), "zeros are not a sector");
        block[700] = 9;
        seal.close(8192, &mut block);
        let second = &block[SECTOR_BYTES..2 * SECTOR_BYTES];
        assert_eq!(seal.open(8192 + 512, second).map(|payload| payload[188]), Some(9));
        assert!(seal.open(8192, second).is_none());
        assert!(Seal::new(&[2; 16]).open(8192 + 512, second).is_none());
        let mut bad = second.to_vec();
        bad[3] ^= 0x40;
        assert!(seal.open(8192 + 512, &bad).is_none());
    }
}
