//! `bimetal put`: files into a file system that is not mounted.

use super::progress::Progress;
use crate::front::kinds::volume::{self, Access, VolumeArgs};
use crate::front::signals::Ending;
use crate::front::tree::{self, Copied, Putter, at, split};
use crate::fs::{Caller, FileSystem, Kind, resolve_bytes};
use crate::media::guard;
use crate::units::Ino;
use crate::{Error, Result};
use clap::Args;
use rustix::fs::{FileType, Mode, OFlags};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The number of /dev/null.
const NULL_DEVICE: (u32, u32) = (1, 3);

const EXAMPLES: &str = "\
Examples:
  bimetal put --ssd ssd.img --disk disk.img ~/photos /           a whole tree, as /photos
  bimetal put --disk disk.img a.txt b.txt /docs                  into a directory
  date | bimetal put --disk disk.img - /docs/today";

/// Copy files and trees into a file system that is not mounted
///
/// Keeps modes, owners, times, hard links, extended attributes, access control lists and holes. What is there
/// already under the same name is replaced once the new one is whole, so that there has to be room for both; directories are
/// filled up.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Put {
    #[command(flatten)]
    volume: VolumeArgs,
    /// What was copied, as one JSON object
    #[arg(long)]
    json: bool,
    /// What to copy; `-` is standard input
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// Absolute path there: a directory, or with one source a new name
    #[arg(value_name = "TARGET")]
    target: OsString,
}

impl Put {
    pub fn run(&self) -> Result<ExitCode> {
        let ending = Ending::watched()?;
        let misnamed = |why| self.volume.misnamed(why);
        let prepared = volume::prepare(&self.volume, Access::Write, &[]).map_err(misnamed)?;
        self.check(&*prepared.look().map_err(misnamed)?)?;
        let (fs, _) = prepared.begin().map_err(misnamed)?;
        let mut progress = Progress::copying(&ending);
        let done = self.copy(&*fs, &ending, &mut progress);
        let shut = fs.shutdown();
        let all = progress.all_copied();
        if let (true, Ok(copied), Ok(()), Ok(())) = (self.json, &done, &shut, &all) {
            super::say(&super::as_line(&json!({ "objects": copied.objects, "bytes": copied.bytes })))?;
        }
        super::copied(&ending, [done.map(drop), shut, all])
    }

    /// What cannot be done is found out before the volume is opened for writing.
    fn check(&self, fs: &dyn FileSystem) -> Result<()> {
        super::named(&self.target)?;
        let target = self.target.display();
        if self.sources.iter().any(|source| is_stream(source)) && is_closed_stdin() {
            return Err(Error::invalid(
                "standard input is closed, or /dev/null; `: | bimetal put - …` stores an empty file",
            ));
        }
        if !self.target.as_bytes().starts_with(b"/") {
            return Err(Error::invalid(format!("{target}: is no absolute path; say /{target}")));
        }
        let below = self.below();
        let mut places = Vec::new();
        for source in &self.sources {
            if !is_stream(source) {
                let id = readable(source).map_err(|why| Error::io(source.display(), why))?;
                if below.contains(&id) {
                    return Err(at(source.display(), tree::own_part()));
                }
            }
            let (parent, name) = self.place_of(fs, source)?;
            self.check_kinds(fs, source, (parent, &name))?;
            places.push((name, source.as_os_str()));
        }
        super::distinct(places)
    }

    /// A directory takes the place of no file, and a file that of no directory.
    fn check_kinds(&self, fs: &dyn FileSystem, source: &Path, (parent, name): (Ino, &[u8])) -> Result<()> {
        let is_dir = !is_stream(source) && source.symlink_metadata().is_ok_and(|found| found.is_dir());
        let there = match fs.lookup(parent, name) {
            Ok(there) => there,
            Err(Error::NotFound) => return Ok(()),
            Err(why) => return Err(at(self.target.display(), why)),
        };
        fs.forget(there.ino, 1);
        let (place, source) = (String::from_utf8_lossy(name), source.display());
        match (is_dir, there.kind == Kind::Dir) {
            (true, false) => Err(Error::invalid(format!(
                "{place} in the volume is no directory, and {source} is one; name another target, or remove it first"
            ))),
            (false, true) => Err(Error::invalid(format!(
                "{place} in the volume is a directory, and {source} is none; name another target, or remove it first"
            ))),
            _ => Ok(()),
        }
    }

    /// The files of the host that the volume lies on, by device and inode; also those below loop devices.
    fn below(&self) -> Vec<(u64, u64)> {
        let volume = &self.volume;
        let parts = [&volume.ssd, &volume.disk, &volume.nand, &volume.nvram].into_iter().flatten();
        parts.filter_map(|path| guard::file_below(path)).collect()
    }

    /// The directory and the name that a source is copied to.
    fn place_of(&self, fs: &dyn FileSystem, source: &Path) -> Result<(Ino, Vec<u8>)> {
        let target = self.target.display();
        let into = match resolve_bytes(fs, self.target.as_bytes()) {
            Ok(attr) if attr.kind == Kind::Dir => Some(attr.ino),
            Ok(_) | Err(Error::NotFound) => None,
            Err(why) => return Err(at(target, why)),
        };
        match into {
            Some(_) if is_stream(source) => {
                Err(Error::invalid(format!("{target}: is a directory; name a file")))
            }
            Some(dir) => Ok((dir, last_name(source)?)),
            None if self.sources.len() > 1 => {
                Err(Error::invalid(format!("{target}: is no directory; several sources need one")))
            }
            None if self.target.as_bytes().ends_with(b"/") => {
                Err(Error::invalid(format!("{target}: there is no such directory")))
            }
            None => split(fs, &self.target),
        }
    }

    fn copy(&self, fs: &dyn FileSystem, ending: &Ending, progress: &mut Progress) -> Result<Copied> {
        let places = self.sources.iter().map(|source| self.place_of(fs, source));
        let places = places.collect::<Result<Vec<_>>>()?;
        // It is the only one: into a directory it has no name.
        if let ([source], [(parent, name)]) = (&self.sources[..], &places[..])
            && is_stream(source)
        {
            let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
            let caller = Caller { uid, gid, umask: 0 };
            let put = tree::put_stream(fs, &mut Input(ending), &caller, *parent, name, progress);
            let whole = |bytes| Copied { objects: 1, bytes, ..Copied::default() };
            return put.map(whole).map_err(|why| at(self.target.display(), why));
        }
        // Names of one file may be several sources.
        let mut putter = Putter::new(fs, progress);
        putter.leave_out(self.below());
        for (source, (parent, name)) in self.sources.iter().zip(places) {
            putter.put(source, parent, &name);
        }
        Ok(putter.copied())
    }
}

/// Standard input, for which nobody waits who is asked to end.
struct Input<'a>(&'a Ending);

impl Read for Input<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.wait_for(io::stdin())?;
        // What a buffer in between holds could not be waited for.
        Ok(rustix::io::read(io::stdin(), bytes)?)
    }
}

/// Whether nothing was given as standard input: what is closed when a program starts becomes /dev/null, open for both ways.
fn is_closed_stdin() -> bool {
    let Ok(found) = rustix::fs::fstat(io::stdin()) else { return true };
    let is_null = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
        && (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev)) == NULL_DEVICE;
    is_null && rustix::fs::fcntl_getfl(io::stdin()).is_ok_and(|how| how & OFlags::ACCMODE == OFlags::RDWR)
}

fn is_stream(source: &Path) -> bool {
    source.as_os_str() == "-"
}

/// Device and inode of a source; an error if it is not there, or a file or directory that may not be read.
fn readable(source: &Path) -> io::Result<(u64, u64)> {
    let found = source.symlink_metadata()?;
    match found.file_type() {
        // Nobody waits for a FIFO that takes its place now.
        kind if kind.is_file() => {
            let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(source, how, Mode::empty()).map(drop)?
        }
        kind if kind.is_dir() => std::fs::read_dir(source).map(drop)?,
        _ => {}
    }
    Ok((found.dev(), found.ino()))
}

fn last_name(source: &Path) -> Result<Vec<u8>> {
    // A link is copied as a link, under its own name, wherever it leads.
    if let Some(name) = source.file_name() {
        return Ok(name.as_bytes().to_vec());
    }
    let whole = source.canonicalize().map_err(|why| Error::io(source.display(), why))?;
    whole
        .file_name()
        .map(|name| name.as_bytes().to_vec())
        .ok_or_else(|| Error::invalid(format!("{}: has no name; name the target", source.display())))
}
