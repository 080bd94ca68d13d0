//! `bimetal rescue`: files off an SSD half whose disk half is lost.

use super::progress::Progress;
use crate::front::kinds::probe::{Given, misnamed};
use crate::front::signals::{self, Ending};
use crate::fs::nfhybrid::rescue::{Rescued, rescue};
use crate::units::show_size;
use crate::{Error, Result};
use clap::Args;
use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal rescue --ssd /dev/nvme0n1p3 /mnt/usb/rescued
  less /mnt/usb/rescued/RESCUE.txt                      which files have holes, and what could not be written
Ends with 0 when everything that the SSD holds could be read and written, with 1 when some of it could not.";

/// Get files off an SSD half alone
///
/// The SSD is only read. It has what was fsynced after the disk half's last commit, and copies of what was used much;
/// files are named as far as its log has their names, else by their inode numbers, in `by-inode`. Where a file of
/// the volume is called `by-inode` or `RESCUE.txt`, the directory or the list is `by-inode-2` or `RESCUE-2.txt`, and that is said. Permissions,
/// times, `user.` attributes and access control lists come over as far as the SSD has them, owners if root does it; what is not known
/// is closed to others. What cannot be written is counted and listed, and the rest goes on. Where both halves are
/// there, mount them or use `bimetal get` instead.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Rescue {
    /// SSD half: a device or an image file
    #[arg(long, value_name = "DEVICE", env = "BIMETAL_SSD")]
    ssd: PathBuf,
    /// As one JSON object
    #[arg(long)]
    json: bool,
    /// A new or empty directory
    #[arg(value_name = "DEST")]
    target: PathBuf,
}

impl Rescue {
    pub fn run(&self) -> Result<ExitCode> {
        let ending = Ending::watched()?;
        let progress = Progress::spinner("rescuing");
        let is_begun = Cell::new(false);
        let told = |what| {
            if !is_begun.replace(true) {
                ending.begin();
            }
            progress.now(what);
        };
        let rescued = rescue(&self.ssd, &self.target, &told, &|| ending.asked().is_some());
        progress.done();
        let given = Given { role: "ssd", of: &["nfhybrid"], path: &self.ssd };
        let rescued = rescued.map_err(|why| misnamed(why, &[given]))?;
        let told = self.tell(&rescued);
        if let Some(signal) = ending.asked().filter(|_| rescued.ended) {
            super::complain(&Error::invalid(format!(
                "{signal} ended it before its end; {} says so",
                self.target.join(&rescued.list).display()
            )));
            return Ok(ExitCode::from(signals::exit_code(signal)));
        }
        told?;
        let is_all = rescued.bad_bytes == 0 && !rescued.damaged && rescued.failed == 0;
        Ok(if is_all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn tell(&self, rescued: &Rescued) -> Result<()> {
        if self.json {
            super::say(&super::as_text(rescued))?;
        } else {
            for note in &rescued.notes {
                super::say(&format!("Of the SSD half: {note}."))?;
            }
            super::say(&format!(
                "{} whole files, {} with holes (see {}), {} directories and links; {} of contents. {} files have no name and are in {}.",
                rescued.whole,
                rescued.partial,
                rescued.list,
                rescued.others,
                show_size(rescued.bytes),
                rescued.nameless,
                rescued.by_inode
            ))?;
            if rescued.failed > 0 {
                super::say(&format!(
                    "{} of all these could not be written, or not as they were (see {}).",
                    rescued.failed, rescued.list
                ))?;
            }
            if rescued.damaged {
                super::say(
                    "Files may be missing, or have older contents: what of it is damaged told of them.",
                )?;
            }
            if rescued.bad_bytes > 0 {
                super::say(&format!(
                    "{} on the SSD could not be read or had wrong checksums and are left out.",
                    show_size(rescued.bad_bytes)
                ))?;
            }
        }
        Ok(())
    }
}
