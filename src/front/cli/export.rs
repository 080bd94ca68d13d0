//! `bimetal export`: a simulated device as a file that the kernel and other programs can use.

use crate::Result;
use crate::front::export::{Export, serve, simulated};
use crate::front::signals;
use crate::fs::cmfs::volume::Volume;
use crate::media::file::{FileDevice, Options};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  A disk that seeks and turns in real time, for the kernel's ext4:
    truncate -s 4G disk.img; mkdir served
    bimetal export --device hdd-7200 disk.img --file served &
    losetup -f --show --direct-io=on served/device
    umount served
  As fast as it goes, only counted:
    bimetal export --device ssd-tlc --no-latency ssd.img --file served
  A cmfs for unyaffs:
    bimetal export --device slc-2k nand.img --nvram nvram.img --yaffs2-image files.yaffs2
`bimetal list device` shows the profiles; served/stats what was asked of the device, JSON.";

/// Serve a simulated disk or SSD, its data in an image, as the file `device` in a directory
///
/// Stays in the foreground until the directory is unmounted or a signal asks it to end.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportVerb {
    /// Profile of the device: a built-in name or a file
    #[arg(long, value_name = "PROFILE")]
    device: String,
    /// Where its data is; of a cmfs, the image of its NAND
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// An empty directory to serve it in
    #[arg(long, value_name = "DIRECTORY", required_unless_present = "yaffs2_image")]
    file: Option<PathBuf>,
    /// Instead, write what is in a cmfs as an image that tools for YAFFS2 unpack
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    yaffs2_image: Option<PathBuf>,
    /// The image of the cmfs' NVRAM
    #[arg(long, value_name = "IMAGE", requires = "yaffs2_image")]
    nvram: Option<PathBuf>,
    /// Answer at once instead of when the model says
    #[arg(long)]
    no_latency: bool,
    /// What the model's chances are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl ExportVerb {
    pub fn run(&self) -> Result<ExitCode> {
        let Some(place) = self.file.clone() else { return self.write_yaffs2() };
        let signals = signals::hold()?;
        let options = Options { writable: true, exclusive: true, ..Options::default() };
        let storage = Arc::new(FileDevice::open_with(&self.image, &options)?);
        let (device, model) = simulated(&self.device, storage, self.seed)?;
        let served = serve(Export { device, real_time: !self.no_latency, model: Some(model) }, &place)?;
        super::say(&served.device().display().to_string())?;
        signals.watch(move |signal| {
            tracing::info!("{signal}: unmounting {}", place.display());
            if let Err(why) = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()) {
                tracing::warn!("{}: {why}", place.display());
            }
        })?;
        served.wait()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ExportVerb {
    fn write_yaffs2(&self) -> Result<ExitCode> {
        let Some(to) = &self.yaffs2_image else { return Ok(ExitCode::FAILURE) };
        let volume =
            Volume { nand: &self.image, nvram: self.nvram.as_deref(), device: &self.device, scan: false };
        let count = volume.export(to)?;
        super::say(&format!("{count} objects in {}", to.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
