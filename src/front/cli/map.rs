//! `bimetal map`: which section of the SSD the files of a directory go to.

use crate::error::shown;
use crate::front::fuse::SECTION;
use crate::{Error, Result};
use clap::Args;
use rustix::fs::{Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;
use serde_json::json;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal map /mnt /home            which section?
  bimetal map /mnt /home small      from now on this one
  bimetal map /mnt /backup bypass   not on the SSD
  bimetal map /mnt /home inherit    as its parent
A link that leads out of the mount, `..` out of it, and another mount below it are refused.";

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
    dir: OsString,
    /// A section, `bypass`, or `inherit`; without it the present one is shown
    section: Option<String>,
    /// The answer as one JSON object
    #[arg(long, conflicts_with = "section")]
    json: bool,
}

impl Map {
    pub fn run(&self) -> Result<ExitCode> {
        let (dir, mountpoint) = (self.dir.display(), self.mountpoint.display());
        let Some(below) = self.dir.as_bytes().strip_prefix(b"/") else {
            return Err(Error::invalid(format!(
                "'{dir}' is not seen from the root of {mountpoint}: write /{dir}"
            )));
        };
        super::status::read(&self.mountpoint)?;
        let failed = |why: Errno| match why {
            Errno::NODATA | Errno::OPNOTSUPP => {
                Error::invalid(format!("{mountpoint}{dir}: this file system has no sections"))
            }
            Errno::INVAL => Error::invalid(format!(
                "{}: there is no such section; see: bimetal status {mountpoint}",
                self.section.as_deref().unwrap_or_default(),
            )),
            Errno::XDEV => Error::invalid(format!(
                "{dir}: it leads out of what is mounted on {mountpoint}, by a link, `..` or another mount; name the directory itself"
            )),
            Errno::NOTCONN => super::status::dead_around(&self.mountpoint),
            why => Error::io(format!("{mountpoint}{dir}"), why.into()),
        };
        // What was not named is not touched: nothing leads out of the mount, and what was looked up is what is changed.
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.mountpoint, how, Mode::empty()).map_err(failed)?;
        let begin = below.iter().position(|byte| *byte != b'/').unwrap_or(below.len());
        let below = if begin == below.len() { &b"."[..] } else { &below[begin..] };
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let how = OFlags::PATH | OFlags::CLOEXEC;
        let found = rustix::fs::openat2(&root, below, how, Mode::empty(), beneath).map_err(failed)?;
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        match &self.section {
            Some(section) => {
                rustix::fs::setxattr(&path, SECTION, section.as_bytes(), XattrFlags::empty())
                    .map_err(failed)?;
            }
            None => {
                let mut value = Vec::with_capacity(64 << 10);
                rustix::fs::getxattr(&path, SECTION, rustix::buffer::spare_capacity(&mut value))
                    .map_err(failed)?;
                let section = shown(String::from_utf8_lossy(&value).trim_end().as_bytes());
                match self.json {
                    true => super::say(&super::as_line(&json!({ "section": section })))?,
                    false => super::say(&section)?,
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
