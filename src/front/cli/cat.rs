//! `bimetal cat`: contents of files in a file system that is not mounted.

use crate::front::kinds::volume::{self, Access, VolumeArgs};
use crate::front::tree::at;
use crate::fs::{FileSystem, Kind, resolve_bytes};
use crate::units::Ino;
use crate::{Error, Result};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example:
  bimetal cat --ssd ssd.img --disk disk.img /etc/fstab";

const PIECE: usize = 1 << 20;

/// Write files of a file system that is not mounted to standard output
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Cat {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Absolute paths
    #[arg(required = true)]
    paths: Vec<OsString>,
}

impl Cat {
    pub fn run(&self) -> Result<ExitCode> {
        cat(&self.volume, &self.paths)
    }
}

/// Writes files to standard output, one after the other.
pub(super) fn cat(volume: &VolumeArgs, paths: &[OsString]) -> Result<ExitCode> {
    let fs = volume::open(volume, Access::Read, &[])?;
    let mut out = io::stdout().lock();
    let shown =
        paths.iter().try_for_each(|path| show(&*fs, path, &mut out).map_err(|why| at(path.display(), why)));
    super::all([shown, fs.shutdown()])?;
    Ok(ExitCode::SUCCESS)
}

fn show(fs: &dyn FileSystem, path: &OsStr, out: &mut dyn Write) -> Result<()> {
    let attr = resolve_bytes(fs, path.as_bytes())?;
    match attr.kind {
        Kind::File => {}
        Kind::Dir => return Err(Error::IsDir),
        Kind::Symlink => {
            let to = fs.readlink(attr.ino)?;
            let to = String::from_utf8_lossy(&to);
            return Err(Error::invalid(format!("is a link to {to}; name what it leads to")));
        }
        kind => {
            let what = match kind {
                Kind::Fifo => "a FIFO",
                Kind::Socket => "a socket",
                _ => "a device",
            };
            return Err(Error::invalid(format!("is {what}, which has no contents; bimetal get copies it")));
        }
    }
    // What is held back is written before it is said that all was.
    match copy(fs, attr.ino, out).and_then(|()| out.flush().map_err(|why| Error::io("standard output", why)))
    {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

fn copy(fs: &dyn FileSystem, ino: Ino, out: &mut dyn Write) -> Result<()> {
    let mut offset = 0;
    loop {
        let parts = fs.read(ino, offset, PIECE)?.get()?;
        if parts.iter().all(|part| part.is_empty()) {
            return Ok(());
        }
        for part in parts {
            offset += part.len() as u64;
            out.write_all(&part).map_err(|why| Error::io("standard output", why))?;
        }
    }
}
