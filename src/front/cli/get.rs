//! `bimetal get`: files out of a file system that is not mounted.

use super::cat::cat;
use super::progress::Progress;
use crate::front::kinds::volume::{self, Access, VolumeArgs};
use crate::front::tree::{self, at};
use crate::fs::{FileSystem, resolve};
use crate::{Error, Result};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal get --ssd ssd.img --disk disk.img /photos .            a whole tree, as ./photos
  bimetal get --disk disk.img /docs/a.txt /tmp/copy.txt
  bimetal get --disk disk.img /docs/a.txt -                      to standard output, as cat does";

/// Copy files and trees out of a file system that is not mounted
///
/// Keeps modes, times, hard links, extended attributes, access control lists and holes, and owners when root does it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Get {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Absolute paths there
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<String>,
    /// A directory here, or with one source a new name, or `-`, standard output. A file that is there is replaced once the
    /// new one is whole, unless it holds a file system or is in use; devices and links are refused
    #[arg(value_name = "TARGET")]
    target: PathBuf,
}

impl Get {
    pub fn run(&self) -> Result<ExitCode> {
        if self.target.as_os_str() == "-" {
            return cat(&self.volume, &self.sources);
        }
        let into = self.target.is_dir();
        if !into && self.sources.len() > 1 {
            let target = self.target.display();
            return Err(Error::invalid(format!("{target}: is no directory; several sources need one")));
        }
        let fs = volume::open(&self.volume, Access::Read, &[])?;
        let mut progress = Progress::copying();
        let done = self.sources.iter().try_for_each(|source| self.one(&*fs, source, into, &mut progress));
        let shut = fs.shutdown();
        let copied = progress.all_copied();
        done?;
        shut?;
        copied?;
        Ok(ExitCode::SUCCESS)
    }

    fn one(&self, fs: &dyn FileSystem, source: &str, into: bool, progress: &mut Progress) -> Result<()> {
        let attr = resolve(fs, source).map_err(|why| at(source, why))?;
        let name = source.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let target = if into { self.target.join(name) } else { self.target.clone() };
        tree::get(fs, &attr, &target, progress);
        Ok(())
    }
}
