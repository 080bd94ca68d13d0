//! The feature bits of an ext4 superblock: which of them we drive, and the names of those we refuse.
//!
//! Source: `Documentation/filesystems/ext4/super.rst` of Linux, and the names `tune2fs -O` takes.

use bimetal_base::{Error, Result};

/// Compatible features (a driver that does not know one may still write).
pub(super) mod compat {
    /// There is a journal inode.
    pub const HAS_JOURNAL: u32 = 0x4;
    /// Inodes may have extended attributes.
    pub const EXT_ATTR: u32 = 0x8;
    /// Blocks are reserved for the growth of the descriptor table.
    pub const RESIZE_INODE: u32 = 0x10;
    /// Directories may have a hash index.
    pub const DIR_INDEX: u32 = 0x20;
    /// At most two backups of the superblock, in the groups the superblock names.
    pub const SPARSE_SUPER2: u32 = 0x200;
    /// There is a file of orphaned inodes beside the list.
    pub const ORPHAN_FILE: u32 = 0x1000;
}

/// Incompatible features (a driver that does not know one must not touch the file system).
pub(super) mod incompat {
    /// Directory entries carry the file type.
    pub const FILETYPE: u32 = 0x2;
    /// The journal has to be replayed.
    pub const RECOVER: u32 = 0x4;
    /// Descriptor blocks are spread over meta groups.
    pub const META_BG: u32 = 0x10;
    /// Inodes may map their blocks by extents.
    pub const EXTENTS: u32 = 0x40;
    /// Block numbers have more than 32 bits, descriptors 64 bytes.
    pub const BITS64: u32 = 0x80;
    /// Bitmaps and inode tables of several groups lie together.
    pub const FLEX_BG: u32 = 0x200;
    /// The checksum seed is stored, not derived from the UUID.
    pub const CSUM_SEED: u32 = 0x2000;
    /// Hash indexes may have three levels and directories pass 2 GiB.
    pub const LARGEDIR: u32 = 0x4000;
}

/// Features without which a driver may only read.
pub(super) mod ro_compat {
    /// Backups of the superblock only in some groups.
    pub const SPARSE_SUPER: u32 = 0x1;
    /// There is, or was, a file of 2 GiB or more.
    pub const LARGE_FILE: u32 = 0x2;
    /// Block counts of inodes have 48 bits.
    pub const HUGE_FILE: u32 = 0x8;
    /// Group descriptors carry a CRC-16 and may be uninitialised.
    pub const GDT_CSUM: u32 = 0x10;
    /// A directory with too many subdirectories counts one link.
    pub const DIR_NLINK: u32 = 0x20;
    /// Inodes have reserved room for extra fields.
    pub const EXTRA_ISIZE: u32 = 0x40;
    /// All metadata carries CRC-32C.
    pub const METADATA_CSUM: u32 = 0x400;
    /// The image is never to be written.
    pub const READONLY: u32 = 0x1000;
    /// The orphan file is not empty.
    pub const ORPHAN_PRESENT: u32 = 0x10000;
}

/// One feature: its bit, its name, and (if we refuse it) why.
type Feature = (u32, &'static str, Option<&'static str>);

/// Why what no driver has is refused: a flipped bit with that of checksums, which would have told.
const NOBODYS: &str = "no driver has it; if the superblock is damaged, e2fsck -f -b 32768 (8193 where blocks have 1 KiB) goes by a \
                       copy of it";

/// What helps where nobody meant the feature, which no tool takes away.
const MENDED: &str = "; if the bit is there by mistake, e2fsck -f takes the disk in order, or, where it leaves the bit, \
                      debugfs -w -R 'feature -NAME' DISK and e2fsck -f";

const UNKNOWN: &str = "they are not known; a newer program made it, or the superblock is damaged: e2fsck -f -b 32768 (8193 where \
                       blocks have 1 KiB) goes by a copy of it";

const COMPAT: [Feature; 13] = [
    (0x1, "dir_prealloc", None),
    (0x2, "imagic_inodes", None),
    (compat::HAS_JOURNAL, "has_journal", None),
    (compat::EXT_ATTR, "ext_attr", None),
    (compat::RESIZE_INODE, "resize_inode", None),
    (compat::DIR_INDEX, "dir_index", None),
    (0x40, "lazy_bg", Some("it marks groups as full that are not")),
    (0x80, "exclude_inode", Some("snapshots inside ext4 are not driven")),
    (0x100, "exclude_bitmap", Some("snapshots inside ext4 are not driven")),
    (compat::SPARSE_SUPER2, "sparse_super2", None),
    (0x400, "fast_commit", Some("its log is not replayed here; run `tune2fs -O ^fast_commit`")),
    (0x800, "stable_inodes", None),
    (compat::ORPHAN_FILE, "orphan_file", None),
];

const INCOMPAT: [Feature; 18] = [
    (0x1, "compression", Some(NOBODYS)),
    (incompat::FILETYPE, "filetype", None),
    (incompat::RECOVER, "needs_recovery", None),
    (0x8, "journal_dev", Some("this is an external journal, not a file system")),
    (incompat::META_BG, "meta_bg", None),
    (incompat::EXTENTS, "extent", None),
    (incompat::BITS64, "64bit", None),
    (0x100, "mmp", Some("the multiple mount protection block is not kept; run `tune2fs -O ^mmp`")),
    (incompat::FLEX_BG, "flex_bg", None),
    (0x400, "ea_inode", Some("attribute values in inodes of their own are not driven")),
    (0x1000, "dirdata", Some("data in directory entries is not driven")),
    (incompat::CSUM_SEED, "metadata_csum_seed", None),
    (incompat::LARGEDIR, "large_dir", None),
    (0x8000, "inline_data", Some("file contents in inodes are not driven")),
    (0x1_0000, "encrypt", Some("encrypted directories are not driven")),
    (0x2_0000, "casefold", Some("names without case are not driven; run `tune2fs -O ^casefold` if unused")),
    (0x20, "an unnamed feature (bit 5)", Some(NOBODYS)),
    (0x800, "an unnamed feature (bit 11)", Some(NOBODYS)),
];

const RO_COMPAT: [Feature; 17] = [
    (ro_compat::SPARSE_SUPER, "sparse_super", None),
    (ro_compat::LARGE_FILE, "large_file", None),
    (0x4, "btree_dir", Some(NOBODYS)),
    (ro_compat::HUGE_FILE, "huge_file", None),
    (ro_compat::GDT_CSUM, "uninit_bg", None),
    (ro_compat::DIR_NLINK, "dir_nlink", None),
    (ro_compat::EXTRA_ISIZE, "extra_isize", None),
    (0x80, "snapshot", Some("snapshots inside ext4 are not driven")),
    (0x100, "quota", Some("quota files are not kept; run `tune2fs -O ^quota`")),
    (0x200, "bigalloc", Some("clusters of several blocks are not driven")),
    (ro_compat::METADATA_CSUM, "metadata_csum", None),
    (0x800, "replica", Some(NOBODYS)),
    (ro_compat::READONLY, "read-only", None),
    (0x2000, "project", Some("project quotas are not kept; run `tune2fs -O ^project`")),
    (0x4000, "shared_blocks", Some("blocks shared between files are not driven")),
    (0x8000, "verity", Some("files sealed by Merkle trees are not driven")),
    (ro_compat::ORPHAN_PRESENT, "orphan_present", None),
];

fn check_word(kind: &str, word: u32, known: &[Feature]) -> Result<()> {
    for (bit, name, refused) in known {
        if let (true, Some(why)) = (word & bit != 0, refused) {
            let mended = if why.contains("tune2fs") || why.contains("e2fsck") { "" } else { MENDED };
            return Err(Error::unsupported(format!("ext4 feature {name}"), format!("{why}{mended}")));
        }
    }
    let unknown = known.iter().fold(word, |rest, (bit, ..)| rest & !bit);
    match unknown {
        0 => Ok(()),
        bits => Err(Error::unsupported(format!("ext4 {kind} feature bits {bits:#x}"), UNKNOWN)),
    }
}

/// Refuses, by name, every feature that is not driven.
///
/// # Errors
/// [`Error::Unsupported`] names the first such feature.
pub(super) fn check(compat: u32, incompat: u32, ro_compat: u32) -> Result<()> {
    check_word("incompatible", incompat, &INCOMPAT)?;
    check_word("read-only compatible", ro_compat, &RO_COMPAT)?;
    check_word("compatible", compat, &COMPAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_driven_is_refused_by_name() {
        for (compat, incompat, ro, name) in [
            (0x400, 0, 0, "fast_commit"),
            (0, 0x8000, 0, "inline_data"),
            (0, 0x100, 0, "mmp"),
            (0, 0x400, 0, "ea_inode"),
            (0, 0, 0x200, "bigalloc"),
            (0, 0, 0x100, "quota"),
            (0, 0x4000_0000, 0, "incompatible feature bits 0x40000000"),
        ] {
            let text = check(compat, incompat, ro).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
        assert!(check(0x3C, 0x2C2 | 0x4, 0x46B).is_ok());
    }
}
