//! Marks of others that a half of ours can carry beside its own superblocks: structures in places that our formats leave alone, or
//! that another half than the one with our superblock lies in. Whoever wrote one owns what is behind it.
//!
//! Before the superblock of an ext4 nothing is ours, and what is there but a boot loader is another's. Further on a mark may as well be
//! the contents of a file, so each is looked at as a whole: its checksum, that it says where it lies, what else it takes. A
//! mark of a boot loader without a table is none.
//!
//! Sources: UEFI 2.10, 5.2.1 (MBR); `linux/raid/md_p.h` (versions 0.90 and 1); the superblocks of bcache, bcachefs, btrfs, JFS and
//! ReiserFS in Linux; the vdev labels of OpenZFS (`vdev_impl.h`); ECMA-167, 2/9 and 3/10.2 (UDF).

use super::signature::{LVM, Looked, known_within, read};
use bimetal_base::Result;
use bimetal_base::checksum::crc32c;

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
/// Where the superblock of an ext4 begins.
const FRONT_BYTES: u64 = 1024;
const LVM_TYPE: &[u8] = b"LVM2 001";
const BCACHEFS_MAGIC: &[u8; 16] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const ZFS: &str = "a member of a ZFS pool";
/// The first two of four labels, where the configuration begins in one, and its ring of uberblocks.
const ZFS_LABELS: [u64; 2] = [0, 256 << 10];
const ZFS_CONFIGURATION: u64 = 16 << 10;
const ZFS_RING: u64 = 128 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;
const BTRFS_AT: u64 = 64 << 10;
const UDF_AT: u64 = 32 << 10;
const UDF_ANCHOR: u64 = 256;
const UDF_SECTOR: u64 = 2048;
const BCACHE_MAGIC: &[u8; 16] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHE_AT: u64 = 4096;
const BCACHE_VERSION_MAX: u64 = 6;

impl Mark {
    /// What takes it away, and nothing else, from the device of this name.
    pub fn taken_away_by(&self, name: &str) -> String {
        match self.what {
            ZFS => format!("zpool labelclear -f {name}"),
            _ => format!("wipefs --offset {} {name}", self.at),
        }
    }
}

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
    if let Some(mark) = in_front(looked)? {
        return Ok(Some(mark));
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
    if is_bcache {
        return Ok(Some(Mark { what: "a bcache device", at: BCACHE_AT + 24 }));
    }
    further_on(looked)
}

/// What lies before the superblock of an ext4, where only boot loaders belong. An SSD half of ours has its superblock there.
fn in_front(looked: Looked) -> Result<Option<Mark>> {
    let front = read(looked, 0, FRONT_BYTES)?;
    for (number, sector) in (0..).zip(front.chunks_exact(SECTOR as usize)) {
        if sector.starts_with(b"LABELONE") && long(sector, 8) == number && sector[24..32] == *LVM_TYPE {
            return Ok(Some(Mark { what: LVM, at: number * SECTOR + 24 }));
        }
    }
    Ok(known_within(&front).map(|(what, at)| Mark { what, at }))
}

/// Superblocks among what a half of ours may hold itself.
fn further_on(looked: Looked) -> Result<Option<Mark>> {
    let found = |is: bool, what, at| is.then_some(Mark { what, at });
    let bcachefs = read(looked, BCACHE_AT, 112)?;
    let is_bcachefs =
        bcachefs.get(24..40) == Some(&BCACHEFS_MAGIC[..]) && long(&bcachefs, 104) * SECTOR == BCACHE_AT;
    let jfs = read(looked, 32 << 10, 32)?;
    let is_jfs = jfs.starts_with(b"JFS1") && (1..=2).contains(&word(&jfs, 4)) && word(&jfs, 16) == 4096;
    let reiser = read(looked, 64 << 10, 64)?;
    let reiser_block = word(&reiser, 44) & 0xffff;
    let is_reiser = reiser.get(52..58) == Some(b"ReIsEr")
        && reiser_block.is_power_of_two()
        && (512..=8192).contains(&reiser_block);
    let marks = [
        found(is_bcachefs, "a bcachefs file system", BCACHE_AT + 24),
        found(is_btrfs(&read(looked, BTRFS_AT, 4096)?), "a btrfs file system", BTRFS_AT + 64),
        found(is_jfs, "a JFS file system", 32 << 10),
        found(is_reiser, "a ReiserFS file system", (64 << 10) + 52),
        found(is_udf(looked)?, "a UDF file system", UDF_AT + 1),
        found(is_zfs(looked)?, ZFS, ZFS_CONFIGURATION),
    ];
    Ok(marks.into_iter().flatten().next())
}

/// Whether a superblock of btrfs says that it lies here, and is whole.
fn is_btrfs(block: &[u8]) -> bool {
    block.len() == 4096
        && block[64..72] == *b"_BHRfS_M"
        && long(block, 48) == BTRFS_AT
        && word(block, 0) == crc32c(&block[32..])
}

/// Whether the sequence of descriptors and the first anchor of a UDF are there.
fn is_udf(looked: Looked) -> Result<bool> {
    let sequence = read(looked, UDF_AT, 8 * UDF_SECTOR)?;
    let names =
        |name: &[u8]| sequence.chunks_exact(UDF_SECTOR as usize).any(|sector| sector[1..].starts_with(name));
    if !sequence.get(1..).is_some_and(|front| front.starts_with(b"BEA01"))
        || !(names(b"NSR02") || names(b"NSR03"))
    {
        return Ok(false);
    }
    let tag = read(looked, UDF_ANCHOR * UDF_SECTOR, 16)?;
    let sum =
        tag.iter().enumerate().filter(|(at, _)| *at != 4).fold(0u8, |sum, (_, byte)| sum.wrapping_add(*byte));
    Ok(tag.len() == 16 && tag[..2] == [2, 0] && tag[4] == sum && u64::from(word(&tag, 12)) == UDF_ANCHOR)
}

/// Whether both first labels of a pool have a configuration and an uberblock. A file's image of a pool cannot have its first label
/// there: a half of ours begins with its superblock.
fn is_zfs(looked: Looked) -> Result<bool> {
    for label in ZFS_LABELS {
        let list = read(looked, label + ZFS_CONFIGURATION, 12)?;
        // Coded as XDR, by a machine of either order of bytes; version 0, unique names.
        if !matches!(list[..], [1, 0 | 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]) {
            return Ok(false);
        }
        let ring = read(looked, label + ZFS_RING, ZFS_RING)?;
        let is_one = |block: &[u8]| long(block, 0) == ZFS_MAGIC || long(block, 0).swap_bytes() == ZFS_MAGIC;
        if !ring.chunks(1024).any(is_one) {
            return Ok(false);
        }
    }
    Ok(true)
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

    /// Pieces of a device, each with the byte where it begins.
    type Pieces = Vec<(u64, Vec<u8>)>;

    fn with(pieces: &[(u64, Vec<u8>)]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        pieces.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        file
    }

    /// Each is found, and is not where any byte that makes it one is another, or where it lies elsewhere.
    #[test]
    fn superblocks_of_others_are_found_as_a_whole_and_in_their_places() {
        let mut label = vec![0; 64];
        label[..8].copy_from_slice(b"LABELONE");
        label[8] = 1;
        label[24..32].copy_from_slice(LVM_TYPE);
        let mut btrfs = vec![0; 4096];
        btrfs[48..56].copy_from_slice(&BTRFS_AT.to_le_bytes());
        btrfs[64..72].copy_from_slice(b"_BHRfS_M");
        let sum = crc32c(&btrfs[32..]);
        btrfs[..4].copy_from_slice(&sum.to_le_bytes());
        let mut bcachefs = vec![0; 112];
        bcachefs[24..40].copy_from_slice(BCACHEFS_MAGIC);
        bcachefs[104] = 8;
        let mut jfs = vec![0; 32];
        jfs[..4].copy_from_slice(b"JFS1");
        jfs[4] = 1;
        jfs[17] = 16;
        let mut reiser = vec![0; 64];
        reiser[45] = 16;
        reiser[52..61].copy_from_slice(b"ReIsEr2Fs");
        let udf = |name: &[u8]| [&[0][..], name, &[1]].concat();
        let mut anchor = vec![0; 16];
        anchor[0] = 2;
        anchor[13] = 1;
        anchor[4] = 3;
        let ring = ZFS_MAGIC.to_le_bytes().to_vec();
        let list = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let all: [(&str, u64, Pieces); 8] = [
            (LVM, 536, vec![(512, label)]),
            ("LUKS encryption", 0, vec![(0, b"LUKS\xba\xbe".to_vec())]),
            ("a btrfs file system", BTRFS_AT + 64, vec![(BTRFS_AT, btrfs)]),
            ("a bcachefs file system", 4120, vec![(4096, bcachefs)]),
            ("a JFS file system", 32 << 10, vec![(32 << 10, jfs)]),
            ("a ReiserFS file system", (64 << 10) + 52, vec![(64 << 10, reiser)]),
            (
                "a UDF file system",
                32_769,
                vec![(UDF_AT, udf(b"BEA01")), (UDF_AT + 2048, udf(b"NSR03")), (512 << 10, anchor)],
            ),
            (
                ZFS,
                16 << 10,
                ZFS_LABELS
                    .iter()
                    .flat_map(|at| [(at + (16 << 10), list.clone()), (at + (129 << 10), ring.clone())])
                    .collect(),
            ),
        ];
        for (what, at, pieces) in all {
            assert_eq!(found(&with(&pieces)), Some(Mark { what, at }));
            for (index, (_, piece)) in pieces.iter().enumerate() {
                for byte in (0..piece.len()).filter(|byte| piece[*byte] != 0) {
                    // Which ReiserFS it is, and how a descriptor goes on, tells nothing.
                    if what == "a ReiserFS file system" && byte >= 58
                        || what == "a UDF file system" && byte == 6
                    {
                        continue;
                    }
                    let mut wrong = pieces.clone();
                    wrong[index].1[byte] ^= 0x80;
                    assert_eq!(found(&with(&wrong)), None, "{what}, byte {byte} of piece {index}");
                }
                let mut elsewhere = pieces.clone();
                elsewhere[index].0 += 200 << 10;
                assert_eq!(found(&with(&elsewhere)), None, "{what}, piece {index}");
            }
        }
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
            // Before the superblock of an ext4 the magic number alone tells.
            for wrong in if at == 0 { vec![0] } else { vec![0, 4, 16, 144, 220, 256] } {
                let mut block = block.clone();
                block[wrong] ^= 4;
                file.write_all_at(&block, at).unwrap();
                assert_eq!(found(&file), None, "byte {wrong} of the one at {at}");
            }
            if at == 0 {
                continue;
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
