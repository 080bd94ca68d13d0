//! `mkfs nfhybrid` and `adopt`: what they are told, and what they do.

use crate::kinds::{Made, Make};
use bimetal_base::error::shown;
use bimetal_base::units::parse_size;
use bimetal_base::{Error, Result};
use bimetal_nfhybrid::{ssd, volume};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(super) const EXAMPLES: &str = "\
Examples:
  Two image files, all defaults:
    truncate -s 256M ssd.img; truncate -s 4G disk.img
    bimetal mkfs nfhybrid --ssd ssd.img --disk disk.img
  A section for small files and one for media, two directories mapped, one kept off the SSD:
    bimetal mkfs nfhybrid --ssd /dev/nvme0n1p3 --disk /dev/sda1 \\
      --section small=extent:16KiB,size:8GiB --section media=extent:1MiB \\
      --map /home=small --map /srv/media=media --bypass /backup";

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
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            return Err(wrong("a name has letters, digits, - _ and ."));
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

impl fmt::Display for SectionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=extent:{}", self.name, self.extent_bytes)?;
        self.size_bytes.map_or(Ok(()), |bytes| write!(f, ",size:{bytes}"))
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

impl Make for NfhybridArgs {
    fn make(&self) -> Result<Made> {
        check_rules(self)?;
        let dropped = volume::make(&plan_of(self))?;
        let told = json!({ "type": "nfhybrid", "dropped": dropped });
        let text = format!(
            "{}made an nfhybrid of {} and {}; mount it with:\n  bimetal mount --ssd {1} --disk {2} MOUNTPOINT",
            said_of(dropped),
            name(&self.ssd),
            name(&self.disk)
        );
        Ok(Made { text, told })
    }
}

/// Makes an ext4 with files in it the disk half of an nfhybrid.
///
/// # Errors
/// It is none, or is in use; something is on the SSD half, or it is too small.
pub fn adopt(args: &NfhybridArgs) -> Result<Made> {
    check_rules(args)?;
    let dropped = volume::adopt(&plan_of(args))?;
    let told = json!({ "type": "nfhybrid", "dropped": dropped });
    let text = format!(
        "{}{} is the disk half of {} now, its files as they were; mount it with:\n  bimetal mount --ssd {2} --disk {1} MOUNTPOINT",
        said_of(dropped),
        name(&args.disk),
        name(&args.ssd)
    );
    Ok(Made { text, told })
}

/// A path for what is said.
fn name(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}

/// An error if a directory is no plain path from the root, or has two rules.
fn check_rules(args: &NfhybridArgs) -> Result<()> {
    let mapped = args.maps.iter().map(|map| (&map.dir, map.section.as_str()));
    let bypassed = args.bypasses.iter().map(|dir| (dir, "bypass"));
    let mut before: BTreeMap<Vec<&str>, &str> = BTreeMap::new();
    for (dir, section) in mapped.chain(bypassed) {
        let wrong = |why: String| Error::invalid(format!("'{dir}' cannot be mapped to '{section}': {why}"));
        let parts: Vec<&str> = dir.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.contains(&"..") {
            return Err(wrong("it has `..` in it; name the directory as it is seen from the root".into()));
        }
        if let Some(other) = before.insert(parts, section).filter(|other| *other != section) {
            return Err(wrong(format!("it is mapped to '{other}' already; give it one rule")));
        }
    }
    Ok(())
}

fn said_of(dropped: Option<String>) -> String {
    dropped.map_or_else(String::new, |what| format!("dropped for ever, as asked: {what}\n"))
}

/// The SSD half that is made, and played on, with these sections; without any it has one.
pub(super) fn with_sections(sections: &[SectionSpec]) -> ssd::Config {
    let mut config = ssd::Config::default();
    if sections.is_empty() {
        // Small files pack best into small extents.
        config.sections[0].extent_bytes = 16 << 10;
        return config;
    }
    let section = |spec: &SectionSpec| ssd::SectionConfig {
        name: spec.name.clone(),
        extent_bytes: spec.extent_bytes,
        size_bytes: spec.size_bytes,
    };
    config.sections = sections.iter().map(section).collect();
    config
}

fn plan_of(args: &NfhybridArgs) -> volume::Plan<'_> {
    let mut config = ssd::Config { flash_block_bytes: args.flash_block, ..with_sections(&args.sections) };
    if let Some(bytes) = args.log {
        config.log_bytes = bytes;
    }
    let mapped = args.maps.iter().map(|map| (map.dir.clone(), map.section.clone()));
    let bypassed = args.bypasses.iter().map(|dir| (dir.clone(), "bypass".to_string()));
    let rules = mapped.chain(bypassed).map(|(dir, section)| volume::Rule { dir, section }).collect();
    volume::Plan { disk: &args.disk, ssd: &args.ssd, config, rules, force: args.force }
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
        for text in [
            "small",
            "=extent:4k",
            "s=size:1G",
            "s=extent:x",
            "s=extent:4k,extent:8k",
            "bypass=extent:4k",
            "a\u{1b}b=extent:4k",
            "a\nb=extent:4k",
            "a b=extent:4k",
        ] {
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
