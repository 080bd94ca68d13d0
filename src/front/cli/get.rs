//! `bimetal get`: files out of a file system that is not mounted.

use super::cat::cat;
use super::progress::Progress;
use crate::front::kinds::volume::{self, Access, VolumeArgs};
use crate::front::signals::Ending;
use crate::front::tree::{Copied, Getter, at};
use crate::fs::{Attr, FileSystem, Kind, resolve_bytes};
use crate::{Error, Result};
use clap::Args;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal get --ssd ssd.img --disk disk.img /photos .            a whole tree, as ./photos
  bimetal get --disk disk.img /docs/a.txt /tmp/copy.txt
  bimetal get --disk disk.img /docs/a.txt -                      to standard output, as cat does";

/// Copy files and trees out of a file system that is not mounted
///
/// Keeps modes, times, hard links, extended attributes, access control lists and holes, and owners when root does it;
/// set-ID bits go with their owner. A directory that is there already is filled up and keeps its own. A signal that ends it leaves nothing that is not whole.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Get {
    #[command(flatten)]
    volume: VolumeArgs,
    /// What was copied, as one JSON object
    #[arg(long)]
    json: bool,
    /// Absolute paths there
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// A directory here, or with one source a new name, or `-`, standard output. A file that is there is replaced once the
    /// new one is whole, unless it holds a file system or is in use; devices and links are refused
    #[arg(value_name = "TARGET")]
    target: PathBuf,
}

impl Get {
    pub fn run(&self) -> Result<ExitCode> {
        self.sources.iter().try_for_each(|source| super::named(source))?;
        if self.target.as_os_str() == "-" && self.json {
            return Err(Error::invalid(
                "--json and the contents would both go to standard output; name a file",
            ));
        }
        if self.target.as_os_str() == "-" {
            return cat(&self.volume, &self.sources);
        }
        let into = self.target.is_dir();
        if !into && self.sources.len() > 1 {
            let target = self.target.display();
            return Err(Error::invalid(format!("{target}: is no directory; several sources need one")));
        }
        if into {
            let names = self
                .sources
                .iter()
                .map(|source| Ok((name_in(source)?.as_bytes().to_vec(), source.as_os_str())));
            super::distinct(names.collect::<Result<Vec<_>>>()?)?;
        }
        let ending = Ending::watched()?;
        let fs = volume::open(&self.volume, Access::Read, &[])?;
        let mut progress = Progress::copying(&ending);
        let done = self.copy(&*fs, into, &mut progress);
        let shut = fs.shutdown();
        let all = progress.all_copied();
        if let (true, Ok(copied), Ok(()), Ok(())) = (self.json, &done, &shut, &all) {
            super::say(&super::as_line(&json!({ "objects": copied.objects, "bytes": copied.bytes })))?;
        }
        super::copied(&ending, [done.map(drop), shut, all])
    }

    fn copy(&self, fs: &dyn FileSystem, into: bool, progress: &mut Progress) -> Result<Copied> {
        // What cannot be done is found out before anything is copied.
        let found = self.sources.iter().map(|source| self.found(fs, source, into));
        let found = found.collect::<Result<Vec<_>>>()?;
        let mut getter = Getter::new(fs, progress);
        found.iter().for_each(|(attr, target)| getter.get(attr, target));
        Ok(getter.copied())
    }

    /// What a source is, and where it goes.
    fn found(&self, fs: &dyn FileSystem, source: &OsStr, into: bool) -> Result<(Attr, PathBuf)> {
        let attr = resolve_bytes(fs, source.as_bytes()).map_err(|why| at(source.display(), why))?;
        if into {
            return Ok((attr, self.target.join(name_in(source)?)));
        }
        let target = self.target.display();
        if attr.kind != Kind::Dir && self.target.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Error::invalid(format!("{target}: there is no such directory")));
        }
        let above = self.target.parent().filter(|above| !above.as_os_str().is_empty());
        if let Some(above) = above
            && let Err(why) = above.metadata()
        {
            return Err(Error::io(above.display(), why));
        }
        Ok((attr, self.target.clone()))
    }
}

/// The name that a source gets in a directory; none for the root, which fills the directory itself.
fn name_in(source: &OsStr) -> Result<&OsStr> {
    let mut names = source.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    match names.next_back() {
        // It would lead out of the target.
        Some(b"..") => Err(Error::invalid(format!(
            "{}: has no name at its end; name the directory that is meant, or a target that is not there yet",
            source.display()
        ))),
        name => Ok(OsStr::from_bytes(name.unwrap_or_default())),
    }
}
