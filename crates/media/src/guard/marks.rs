//! Marks of others that a half of ours can carry beside its own superblocks: structures in places that our formats leave alone, or
//! that another half than the one with our superblock lies in. Whoever wrote one owns what is behind it.
//!
//! A mark may as well be the contents of a file, so each is looked at as a whole: its checksum, that it says where it lies, what it
//! says of the device. A mark of a boot loader without a table is none.
//!
//! Sources: UEFI 2.10, 5.2.1 (MBR); `linux/raid/md_p.h` (versions 0.90 and 1); `bcache_superblock` of Linux.

use super::signature::{Looked, read};
use bimetal_base::Result;

/// What was found, and the byte where its magic number lies, which `wipefs --offset` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What it makes of the device.
    pub what: &'static str,
    /// Bytes from the beginning.
    pub at: u64,
}

const SECTOR: u64 = 512;
const RAID: &str = "a member of a Linux RAID";
const RAID_MAGIC: u32 = 0xa92b_4efc;
/// Bytes of a superblock of RAID, and the most devices that one of version 1 has room for.
const RAID_BYTES: u64 = 4096;
const RAID_DEVICES_MAX: u32 = 1920;
const BCACHE_MAGIC: &[u8; 16] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHE_AT: u64 = 4096;
const BCACHE_VERSION_MAX: u64 = 6;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at + 4)) << 32 | u64::from(word(bytes, at))
}

/// The first mark of another on a device of `size` bytes.
///
/// # Errors
/// It cannot be read.
pub(super) fn mark(looked: Looked, size: u64) -> Result<Option<Mark>> {
    if is_partitioned(&read(looked, 0, SECTOR)?, size) {
        return Ok(Some(Mark { what: "an MBR partition table", at: 510 }));
    }
    let last = (size / SECTOR).saturating_sub(16) / 8 * 8 * SECTOR;
    for at in [0, 4096, last] {
        if is_raid(&read(looked, at, RAID_BYTES)?, at) {
            return Ok(Some(Mark { what: RAID, at }));
        }
    }
    if let Some(at) = (size / 65_536 * 65_536).checked_sub(65_536)
        && is_old_raid(&read(looked, at, RAID_BYTES)?)
    {
        return Ok(Some(Mark { what: RAID, at }));
    }
    let bcache = read(looked, BCACHE_AT, 64)?;
    let is_bcache = bcache.get(24..40) == Some(&BCACHE_MAGIC[..])
        && long(&bcache, 8) * SECTOR == BCACHE_AT
        && long(&bcache, 16) <= BCACHE_VERSION_MAX;
    Ok(is_bcache.then_some(Mark { what: "a bcache device", at: BCACHE_AT + 24 }))
}

/// Whether the first sector has a table of partitions, at least one of them, all of which could be on the device.
fn is_partitioned(sector: &[u8], size: u64) -> bool {
    if sector.get(510..) != Some(&[0x55, 0xaa]) {
        return false;
    }
    let mut count = 0;
    for entry in sector[446..510].chunks_exact(16) {
        let (first, sectors) = (u64::from(word(entry, 8)), u64::from(word(entry, 12)));
        match entry[4] {
            0 if entry.iter().all(|byte| *byte == 0) => {}
            0 => return false,
            // A table that stands for a GPT may say more sectors than there are.
            0xee if first == 1 => count += 1,
            _ if matches!(entry[0], 0 | 0x80)
                && first > 0
                && sectors > 0
                && (first + sectors) * SECTOR <= size =>
            {
                count += 1;
            }
            _ => return false,
        }
    }
    count > 0
}

/// Whether a superblock of version 1 lies here, and says so.
fn is_raid(block: &[u8], at: u64) -> bool {
    let devices = word(block, 220);
    if word(block, 0) != RAID_MAGIC
        || word(block, 4) != 1
        || long(block, 144) * SECTOR != at
        || devices > RAID_DEVICES_MAX
    {
        return false;
    }
    let Some(bytes) = block.get(..256 + devices as usize * 2) else { return false };
    let mut sum: u64 = bytes.chunks_exact(4).map(|chunk| u64::from(word(chunk, 0))).sum();
    if let [low, high] = bytes.chunks_exact(4).remainder() {
        sum += u64::from(u16::from_le_bytes([*low, *high]));
    }
    is_sum(sum, word(block, 216))
}

/// Whether a superblock of version 0.90 lies here.
fn is_old_raid(block: &[u8]) -> bool {
    if block.len() as u64 != RAID_BYTES || word(block, 0) != RAID_MAGIC || word(block, 4) != 0 {
        return false;
    }
    is_sum(block.chunks_exact(4).map(|chunk| u64::from(word(chunk, 0))).sum(), word(block, 152))
}

/// Whether the sum of all words, `said` among them, folded to 32 bits, is what is said.
fn is_sum(all: u64, said: u32) -> bool {
    let sum = all - u64::from(said);
    (sum as u32).wrapping_add((sum >> 32) as u32) == said
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    const SIZE: u64 = 16 << 20;

    fn found(file: &File) -> Option<Mark> {
        mark(Looked { file, name: Path::new("half") }, SIZE).unwrap()
    }

    fn table(first: u32, sectors: u32) -> [u8; 512] {
        let mut sector = [0; 512];
        sector[446 + 4] = 0x83;
        sector[446 + 8..446 + 12].copy_from_slice(&first.to_le_bytes());
        sector[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    }

    /// A superblock of RAID, version 1, as it lies at a byte.
    fn raid(at: u64, devices: u32) -> Vec<u8> {
        let mut block = vec![0; 4096];
        block[..4].copy_from_slice(&RAID_MAGIC.to_le_bytes());
        block[4] = 1;
        block[16..32].fill(0xab);
        block[144..152].copy_from_slice(&(at / 512).to_le_bytes());
        block[220..224].copy_from_slice(&devices.to_le_bytes());
        block[256..258 + devices as usize * 2 - 2].fill(0xff);
        let len = 256 + devices as usize * 2;
        let mut sum: u64 = block[..len].chunks_exact(4).map(|chunk| u64::from(word(chunk, 0))).sum();
        if len % 4 == 2 {
            sum += u64::from(u16::from_le_bytes([block[len - 2], block[len - 1]]));
        }
        let sum = (sum as u32).wrapping_add((sum >> 32) as u32);
        block[216..220].copy_from_slice(&sum.to_le_bytes());
        block
    }

    #[test]
    fn a_table_of_partitions_is_one_if_its_partitions_can_be() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        assert_eq!(found(&file), None);
        let put = |sector: &[u8]| file.write_all_at(sector, 0).unwrap();
        put(&table(2048, 8192));
        assert_eq!(found(&file), Some(Mark { what: "an MBR partition table", at: 510 }));
        // A boot loader's mark without a table, one whose code lies where a table would, a partition past the end.
        let mut loader = [0; 512];
        loader[510..].copy_from_slice(&[0x55, 0xaa]);
        let mut code = loader;
        code[400..500].fill(0x90);
        for sector in [loader, code, table(2048, 1 << 20), table(0, 100)] {
            put(&sector);
            assert_eq!(found(&file), None);
        }
    }

    #[test]
    fn a_superblock_of_raid_is_one_if_its_place_and_sum_are_right() {
        let last = (SIZE / 512 - 16) / 8 * 8 * 512;
        for (at, devices) in [(0, 2), (4096, 1), (4096, 384), (last, 3)] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(SIZE).unwrap();
            let block = raid(at, devices);
            file.write_all_at(&block, at).unwrap();
            assert_eq!(found(&file), Some(Mark { what: RAID, at }), "{at}");
            for wrong in [0, 4, 16, 144, 220, 256] {
                let mut block = block.clone();
                block[wrong] ^= 4;
                file.write_all_at(&block, at).unwrap();
                assert_eq!(found(&file), None, "byte {wrong} of the one at {at}");
            }
            // That of another place, as the contents of a file would be.
            file.write_all_at(&raid(at + 8192, devices), at).unwrap();
            assert_eq!(found(&file), None, "{at}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        let mut old = vec![0; 4096];
        old[..4].copy_from_slice(&RAID_MAGIC.to_le_bytes());
        old[8] = 90;
        let sum = RAID_MAGIC + 90;
        old[152..156].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&old, SIZE - 65_536).unwrap();
        assert_eq!(found(&file), Some(Mark { what: RAID, at: SIZE - 65_536 }));
    }

    #[test]
    fn a_bcache_device_says_where_its_superblock_lies() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        let mut block = [0; 64];
        block[8] = 8;
        block[24..40].copy_from_slice(BCACHE_MAGIC);
        file.write_all_at(&block, 4096).unwrap();
        assert_eq!(found(&file), Some(Mark { what: "a bcache device", at: 4120 }));
        file.write_all_at(&[9], 4096 + 8).unwrap();
        assert_eq!(found(&file), None);
    }
}
