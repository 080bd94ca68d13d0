//! `bimetal map`: which section of the SSD the files of a directory go to.

use crate::front::fuse::SECTION;
use crate::{Error, Result};
use clap::Args;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal map /mnt /home            which section?
  bimetal map /mnt /home small      from now on this one
  bimetal map /mnt /backup bypass   not on the SSD
  bimetal map /mnt /home inherit    as its parent";

/// Show or change the section a directory is mapped to
///
/// Takes effect at once and moves no data: what is on the SSD stays until its turn to leave comes.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Map {
    /// The directory that is mounted on
    mountpoint: PathBuf,
    /// A directory in the mounted file system, as seen from its root
    #[arg(value_name = "/DIR")]
    dir: String,
    /// A section, `bypass`, or `inherit`; without it the present one is shown
    section: Option<String>,
}

impl Map {
    pub fn run(&self) -> Result<ExitCode> {
        if !self.dir.starts_with('/') {
            return Err(Error::invalid(format!(
                "'{0}' is not seen from the root of {1}: write /{0}",
                self.dir,
                self.mountpoint.display()
            )));
        }
        let path = self.mountpoint.join(self.dir.trim_start_matches('/'));
        let failed = |why: Errno| match why {
            Errno::NODATA | Errno::OPNOTSUPP => {
                Error::invalid(format!("{}: this file system has no sections", path.display()))
            }
            Errno::INVAL => Error::invalid(format!(
                "{}: there is no such section; see: bimetal status {}",
                self.section.as_deref().unwrap_or_default(),
                self.mountpoint.display()
            )),
            Errno::NOTCONN => super::status::dead(&self.mountpoint),
            why => Error::io(path.display(), why.into()),
        };
        match &self.section {
            Some(section) => {
                rustix::fs::setxattr(&path, SECTION, section.as_bytes(), XattrFlags::empty())
                    .map_err(failed)?;
            }
            None => {
                let mut value = Vec::with_capacity(64 << 10);
                rustix::fs::getxattr(&path, SECTION, rustix::buffer::spare_capacity(&mut value))
                    .map_err(failed)?;
                super::say(String::from_utf8_lossy(&value).trim_end())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
