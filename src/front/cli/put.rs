//! `bimetal put`: files into a file system that is not mounted.

use super::progress::Progress;
use super::volumes::{self, Access, VolumeArgs};
use crate::front::tree::{self, at, split};
use crate::fs::{Caller, FileSystem, Kind, resolve};
use crate::{Error, Result};
use clap::Args;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal put --ssd ssd.img --disk disk.img ~/photos /           a whole tree, as /photos
  bimetal put --disk disk.img a.txt b.txt /docs                  into a directory
  date | bimetal put --disk disk.img - /docs/today";

/// Copy files and trees into a file system that is not mounted
///
/// Keeps modes, owners, times, hard links, extended attributes, access control lists and holes. What is there
/// already under the same name is replaced; directories are filled up.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Put {
    #[command(flatten)]
    volume: VolumeArgs,
    /// What to copy; `-` is standard input
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// Absolute path there: a directory, or with one source a new name
    #[arg(value_name = "TARGET")]
    target: String,
}

impl Put {
    pub fn run(&self) -> Result<ExitCode> {
        let fs = volumes::open_volume(&self.volume, Access::Write, &[])?;
        let mut progress = Progress::copying();
        let done = self.sources.iter().try_for_each(|source| self.one(&*fs, source, &mut progress));
        let shut = fs.shutdown();
        let copied = progress.all_copied();
        done?;
        shut?;
        copied?;
        Ok(ExitCode::SUCCESS)
    }

    fn one(&self, fs: &dyn FileSystem, source: &Path, progress: &mut Progress) -> Result<()> {
        let stream = source.as_os_str() == "-";
        let into = match resolve(fs, &self.target) {
            Ok(attr) if attr.kind == Kind::Dir => Some(attr.ino),
            Ok(_) | Err(Error::NotFound) => None,
            Err(why) => return Err(at(&self.target, why)),
        };
        let (parent, name) = match into {
            Some(_) if stream => {
                return Err(Error::invalid(format!("{}: is a directory; name a file", self.target)));
            }
            Some(dir) => (dir, last_name(source)?),
            None if self.sources.len() > 1 => {
                return Err(Error::invalid(format!(
                    "{}: is no directory; several sources need one",
                    self.target
                )));
            }
            None => split(fs, &self.target)?,
        };
        if stream {
            let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
            let caller = Caller { uid, gid, umask: 0 };
            let put = tree::put_stream(fs, &mut io::stdin().lock(), &caller, parent, &name, progress);
            return put.map(drop).map_err(|why| at(&self.target, why));
        }
        tree::put(fs, source, parent, &name, progress);
        Ok(())
    }
}

fn last_name(source: &Path) -> Result<Vec<u8>> {
    let whole = source.canonicalize().map_err(|why| Error::io(source.display(), why))?;
    // A link is copied as a link, under its own name.
    let name = source.file_name().or(whole.file_name());
    name.map(|name| name.as_bytes().to_vec())
        .ok_or_else(|| Error::invalid(format!("{}: has no name; name the target", source.display())))
}
