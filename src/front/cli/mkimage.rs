//! `bimetal mkimage`: images of a NAND part and its NVRAM made of a directory, for boards to be flashed with.

use super::progress::Progress;
use crate::Result;
use crate::front::kinds::cmfs::CmfsArgs;
use crate::front::signals;
use crate::fs::cmfs::mkimage::{self, Contents};
use crate::units::show_size;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  Images of a root file system for a part of 128 MiB, the same bytes whenever they are made:
    SOURCE_DATE_EPOCH=1700000000 bimetal mkimage rootfs --owner 0:0 --nand nand.img --nvram nvram.img
  What is in them:
    bimetal ls --nand nand.img --nvram nvram.img /
The NAND's image has each page followed by its spare area, as `nandwrite --oob` takes it; holes are erased pages. Without
its NVRAM a board scans the NAND once.";

/// Make images of a NAND part and its NVRAM that hold a directory, for boards to be flashed with
///
/// Contents, modes, owners, times, hard and symbolic links, special files and user attributes go along. One directory gives
/// one image, byte for byte, where --seed or SOURCE_DATE_EPOCH say what would be random: no time in the image is later than
/// SOURCE_DATE_EPOCH.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Mkimage {
    /// The directory that becomes the root
    #[arg(value_name = "DIRECTORY")]
    dir: PathBuf,
    #[command(flatten)]
    to: CmfsArgs,
    /// What the volume's identity follows from [default: SOURCE_DATE_EPOCH; random without]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Owner and group of everything, as 0:0 [default: as they are]
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
}

fn parse_owner(text: &str) -> std::result::Result<(u32, u32), String> {
    let numbers = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    numbers.ok_or_else(|| "two numbers with a colon between them are needed, as 0:0".into())
}

impl Mkimage {
    pub fn run(&self) -> Result<ExitCode> {
        let epoch = mkimage::source_date_epoch()?;
        let seed = self.seed.or(epoch.map(|epoch| epoch as u64));
        let contents = Contents { dir: self.dir.clone(), seed, epoch, owner: self.owner };
        let plan = self.to.plan()?;
        let places = [Some(&plan.nand), plan.nvram.as_ref()].into_iter().flatten();
        let new: Vec<PathBuf> = places.filter(|path| !path.exists()).cloned().collect();
        // What was claimed for an image is empty until that is whole.
        signals::end_whole(move || {
            for path in new.iter().filter(|path| path.metadata().is_ok_and(|found| found.len() == 0)) {
                let _ = std::fs::remove_file(path);
            }
        })?;
        let progress = Progress::spinner("making the image");
        let made = mkimage::make(&plan, &contents);
        progress.done();
        let made = made?;
        let (used, all) = made.pages;
        super::say(&format!(
            "{} names and {} of files in {used} of {all} pages, {} of {} of NVRAM; mount it with:\n  {}",
            made.names,
            show_size(made.bytes),
            show_size(made.nvram.0 as u64),
            show_size(made.nvram.1 as u64),
            self.to.mount_command()
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
