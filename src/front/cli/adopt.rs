//! `bimetal adopt`: an ext4 with files in it becomes a disk half, as it is.

use super::mkfs::tell;
use super::progress::Progress;
use crate::Result;
use crate::front::kinds::nfhybrid::mkfs::{self, NfhybridArgs};
use clap::Args;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example:
  umount /dev/sda1
  bimetal adopt --ssd /dev/nvme0n1p3 --disk /dev/sda1
  bimetal mount --ssd /dev/nvme0n1p3 --disk /dev/sda1 /data";

/// Put an SSD in front of an ext4 that already holds files
///
/// The disk must be an ext4 that is not mounted; a journal that was left in use is replayed. Its files stay where they are, and it stays an ext4 that any
/// Linux can mount alone.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Adopt {
    #[command(flatten)]
    args: NfhybridArgs,
    /// What was done, as one JSON object
    #[arg(long)]
    json: bool,
}

impl Adopt {
    pub fn run(&self) -> Result<ExitCode> {
        let progress = Progress::spinner("adopting the disk");
        let adopted = mkfs::adopt(&self.args);
        progress.done();
        tell(&adopted?, self.json)?;
        Ok(ExitCode::SUCCESS)
    }
}
