//! Questions and orders put through the mount itself, as virtual extended attributes.
//!
//! | attribute | on | reads as | set to |
//! |---|---|---|---|
//! | `bimetal.status` | the root | the status, JSON | |
//! | `bimetal.section` | a directory or file | its section, or `bypass` | a section, `bypass` or `inherit` |
//! | `bimetal.durability` | a directory or file | `either` or `both` | the same, or `inherit` |
//! | `bimetal.residency` | a file | what of it is on the SSD, JSON | |
//! | `bimetal.explain`, `bimetal.explain.BYTES` | anything | where its contents (from a byte on) are, and why, JSON | |
//! | `bimetal.scrub` | the root | what the last step of a scrub found, JSON | `start`, or a number of bytes to verify next |

use super::Shared;
use super::policy::{BYPASS, Durability};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::ROOT_INO;
use bimetal_vfs::explained_from;
use serde::Serialize;

/// What of an inode is on the SSD: the paper's `SSD_active`, `SSD_wr_done` and `SSD_extent[]`.
#[derive(Debug, Serialize)]
struct Residency {
    ssd_active: bool,
    /// Two digits: the SSD has it, the disk has it.
    ssd_wr_done: &'static str,
    section: Option<String>,
    bytes: u64,
    /// First file block, first SSD block, number of blocks, in blocks of the SSD half.
    extents: Vec<(u32, u64, u32)>,
}

impl Shared {
    pub(super) fn control_get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        match name {
            "bimetal.status" => json(&self.status()),
            "bimetal.section" => Ok(self.section_name(ino).unwrap_or_else(|| BYPASS.into()).into_bytes()),
            "bimetal.durability" => {
                let durability = self.core.lock().policy(ino).durability;
                Ok(if durability == Durability::Both { b"both".into() } else { b"either".into() })
            }
            "bimetal.residency" => json(&self.residency(ino)),
            "bimetal.scrub" if ino == ROOT_INO => json(&self.core.lock().scrub.last),
            _ => json(&self.explain(ino, explained_from(name).ok_or(Error::NoAttribute)?)?),
        }
    }

    pub(super) fn control_set(&self, ino: Ino, name: &str, value: &[u8]) -> Result<()> {
        let rule = std::str::from_utf8(value).map_err(|_| Error::BadArgument)?;
        match name {
            "bimetal.section" => self.with_room(|| self.map_directory(ino, rule)),
            "bimetal.durability" => self.with_room(|| self.set_durability(ino, rule)),
            "bimetal.scrub" if ino == ROOT_INO => self.order_scrub(rule),
            _ => Err(Error::NotSupported),
        }
    }

    fn section_name(&self, ino: Ino) -> Option<String> {
        let mut core = self.core.lock();
        let section = core.policy(ino).section?;
        let config = core.ssd.as_ref()?.config();
        config.sections.into_iter().nth(section).map(|section| section.name)
    }

    fn residency(&self, ino: Ino) -> Residency {
        let section = self.section_name(ino);
        let core = self.core.lock();
        let Some(ssd) = &core.ssd else {
            return Residency {
                ssd_active: false,
                ssd_wr_done: "01",
                section,
                bytes: 0,
                extents: Vec::new(),
            };
        };
        let summary = ssd.summary(ino);
        Residency {
            ssd_active: summary.active,
            ssd_wr_done: match (summary.wr_done.on_ssd(), summary.wr_done.on_disk()) {
                (false, false) => "00",
                (false, true) => "01",
                (true, false) => "10",
                (true, true) => "11",
            },
            section,
            bytes: summary.blocks * u64::from(ssd.block_bytes()),
            extents: ssd.residents(ino).map(|(block, found)| (block, found.at.0, found.len)).collect(),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::invalid(format!("status: {error}")))
}
