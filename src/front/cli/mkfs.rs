//! `bimetal mkfs`: a new file system on devices or images.

use super::progress::Progress;
use super::volumes;
use crate::front::names;
use crate::units::parse_size;
use crate::{Error, Result};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  Two image files, all defaults:
    truncate -s 256M ssd.img; truncate -s 4G disk.img
    bimetal mkfs nfhybrid --ssd ssd.img --disk disk.img
  A section for small files and one for media, two directories mapped, one kept off the SSD:
    bimetal mkfs nfhybrid --ssd /dev/nvme0n1p3 --disk /dev/sda1 \\
      --section small=extent:16KiB,size:8GiB --section media=extent:1MiB \\
      --map /home=small --map /srv/media=media --bypass /backup";

const CMFS_EXAMPLES: &str = "\
Example:
  A part of 128 MiB and the NVRAM beside it, mounted and unmounted:
    bimetal mkfs cmfs --device slc-2k --nand nand.img --nvram nvram.img
    bimetal mount --nand nand.img --nvram nvram.img /mnt
    bimetal umount /mnt";

const OSD_EXAMPLES: &str = "\
Example:
  An object store of 256 MiB with a file system on it, mounted and unmounted:
    bimetal mkfs osd --nand nand.img --size 256MiB
    bimetal mount -t osd --nand nand.img /mnt
    bimetal umount /mnt";

/// Make a file system
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Mkfs {
    /// Make a hybrid of a small SSD and a large disk
    ///
    /// The disk half becomes a standard ext4 (made by mke2fs), which any Linux can mount alone.
    #[command(after_help = EXAMPLES)]
    Nfhybrid(NfhybridArgs),
    /// Make a file system on an image of a NAND part, its metadata in an image of NVRAM
    #[command(after_help = CMFS_EXAMPLES)]
    Cmfs(CmfsArgs),
    /// Make an object store on an image of a NAND part, with a file system on it
    #[command(after_help = OSD_EXAMPLES)]
    Osd(OsdArgs),
}

/// What `mkfs osd` is told.
#[derive(Args, Clone, Debug)]
pub struct OsdArgs {
    /// Profile of the part: a built-in name or a file
    #[arg(long, value_name = "PROFILE", default_value = crate::fs::osdfs::volume::DEVICE, value_parser = names::DEVICE, hide_possible_values = true)]
    pub device: String,
    /// Image of the NAND, made or overwritten
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NAND")]
    pub nand: PathBuf,
    /// Size of the image's pages [default: the profile's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Where bytes go: combined, split, split-atime or lifetime, with settings as split-atime:entries=4096
    #[arg(long, value_name = "NAME", default_value = "lifetime", value_parser = names::PLACEMENT, hide_possible_values = true)]
    pub placement: String,
    /// Erase blocks of a segment
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub segment: u32,
    /// Without a file system: objects by their numbers only
    #[arg(long)]
    pub bare: bool,
    /// Go ahead although the image holds something
    #[arg(long)]
    pub force: bool,
}

/// What `mkfs cmfs` is told.
#[derive(Args, Clone, Debug)]
pub struct CmfsArgs {
    /// Profile of the part: a built-in name or a file
    #[arg(long, value_name = "PROFILE", default_value = crate::fs::cmfs::volume::DEVICE, value_parser = names::DEVICE, hide_possible_values = true)]
    pub device: String,
    /// Image of the NAND, spare areas included, made if it is not there; or an MTD device
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NAND")]
    pub nand: PathBuf,
    /// NVRAM: a file, made of its size, or a device to map; without, every mount scans the NAND
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NVRAM")]
    pub nvram: Option<PathBuf>,
    /// Size of a NAND image to be made, spare areas not counted [default: the profile's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Size of the NVRAM [default: a thousandth of the NAND]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub nvram_size: Option<u64>,
    /// How metadata lies in NVRAM: compact or paper
    #[arg(long, value_name = "LAYOUT", default_value = "compact", value_parser = volumes::parse_layout)]
    pub layout: cmfs_core::Layout,
    /// Go ahead although the image holds something
    #[arg(long)]
    pub force: bool,
}

/// What `mkfs nfhybrid` and `adopt` are told.
#[derive(Args, Clone, Debug)]
pub struct NfhybridArgs {
    /// SSD half: a device or an image file
    #[arg(long, value_name = "DEVICE", env = "BIMETAL_SSD")]
    pub ssd: PathBuf,
    /// Disk half: a device or an image file
    #[arg(long, value_name = "DEVICE", env = "BIMETAL_DISK")]
    pub disk: PathBuf,
    /// A section of the SSD: its name, the size of its extents, and its own size
    ///
    /// Sections without a size share what is left. Without any, there is one, `default`.
    #[arg(long = "section", value_name = "NAME=extent:SIZE[,size:SIZE]")]
    pub sections: Vec<SectionSpec>,
    /// Directories whose files go to a section, with all below them
    #[arg(long = "map", value_name = "/DIR=SECTION", value_delimiter = ',')]
    pub maps: Vec<MapSpec>,
    /// Directories whose files stay off the SSD
    #[arg(long = "bypass", value_name = "/DIR", value_delimiter = ',')]
    pub bypasses: Vec<String>,
    /// Erase block of the SSD's flash: extents are laid along it
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub flash_block: Option<u64>,
    /// Size of the SSD's circular log [default: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub log: Option<u64>,
    /// Go ahead although the SSD half, or for mkfs the disk half, holds something
    #[arg(long)]
    pub force: bool,
}

/// A section as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionSpec {
    /// Its name.
    pub name: String,
    /// Size of its extents, bytes.
    pub extent_bytes: u64,
    /// Its size, bytes; `None`: a share of what is left.
    pub size_bytes: Option<u64>,
}

impl FromStr for SectionSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "section '{text}': {why}; write for example small=extent:64KiB,size:16GiB"
            ))
        };
        let (name, rest) = text.split_once('=').ok_or_else(|| wrong("it has no name"))?;
        if name.is_empty() || matches!(name, "bypass" | "inherit") {
            return Err(wrong("it cannot have this name"));
        }
        let (mut extent, mut size) = (None, None);
        for field in rest.split(',') {
            let slot = match field.split_once(':') {
                Some(("extent", value)) => (&mut extent, value),
                Some(("size", value)) => (&mut size, value),
                _ => return Err(wrong(&format!("'{field}' is neither extent:SIZE nor size:SIZE"))),
            };
            if slot.0.replace(parse_size(slot.1)?).is_some() {
                return Err(wrong(&format!("'{field}' says something twice")));
            }
        }
        let extent_bytes = extent.ok_or_else(|| wrong("it has no extent size"))?;
        Ok(SectionSpec { name: name.into(), extent_bytes, size_bytes: size })
    }
}

/// A directory and the section its files go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Absolute path in the file system.
    pub dir: String,
    /// Name of the section.
    pub section: String,
}

impl FromStr for MapSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('=') {
            Some((dir, section)) if dir.starts_with('/') && !section.is_empty() => {
                Ok(MapSpec { dir: dir.into(), section: section.into() })
            }
            _ => Err(Error::invalid(format!("'{text}' is no mapping; write for example /home=small"))),
        }
    }
}

impl Mkfs {
    pub fn run(&self) -> Result<ExitCode> {
        let progress = Progress::spinner("making the file system");
        let made = match self {
            Mkfs::Nfhybrid(args) => volumes::mkfs_nfhybrid(args),
            Mkfs::Cmfs(args) => volumes::mkfs_cmfs(args),
            Mkfs::Osd(args) => volumes::mkfs_osd(args),
        };
        progress.done();
        super::say(&made?)?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_a_name_an_extent_size_and_perhaps_a_size() {
        let spec: SectionSpec = "small=extent:64KiB,size:16GiB".parse().unwrap();
        assert_eq!(
            spec,
            SectionSpec { name: "small".into(), extent_bytes: 65536, size_bytes: Some(16 << 30) }
        );
        assert_eq!("m=extent:1M".parse::<SectionSpec>().unwrap().size_bytes, None);
        for text in
            ["small", "=extent:4k", "s=size:1G", "s=extent:x", "s=extent:4k,extent:8k", "bypass=extent:4k"]
        {
            assert!(text.parse::<SectionSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_mapping_is_an_absolute_directory_and_a_section() {
        assert_eq!("/a/b=s".parse::<MapSpec>().unwrap(), MapSpec { dir: "/a/b".into(), section: "s".into() });
        for text in ["a=s", "/a", "/a="] {
            assert!(text.parse::<MapSpec>().is_err(), "{text}");
        }
    }
}
