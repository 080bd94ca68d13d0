//! `bimetal record`: what programs ask of a mount, into a trace.

use crate::front::record::RECORD;
use crate::front::signals;
use crate::media::guard;
use crate::{Error, Result};
use clap::Args;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::Duration;

const EXAMPLES: &str = "\
Ends with the exit code of the command, if there is one.
Examples:
  bimetal record /mnt -o /tmp/make.csv -- make -C /mnt/src      while a program runs
  bimetal record /mnt -o /tmp/day.csv --for 1h                  for a while, or until Ctrl-C
  bimetal osd replay /tmp/make.csv                              what its cleaning costs";

/// Record what programs ask of a mount, as a trace of system calls
///
/// What the kernel's cache answers does not reach the mount and is not recorded. Beside the trace, NAME.csv, the
/// paths are listed in NAME.paths.csv.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Record {
    /// The directory that is mounted on
    mountpoint: PathBuf,
    /// The trace to write; its name ends in .csv
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// How long [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
    /// Until this command ends
    #[arg(last = true, conflicts_with = "time")]
    command: Vec<OsString>,
}

impl Record {
    pub fn run(&self) -> Result<ExitCode> {
        let output =
            std::path::absolute(&self.output).map_err(|why| Error::io(self.output.display(), why))?;
        check_output(&self.mountpoint, &output)?;
        let heard = match self.command.is_empty() {
            true => Some(signals::hold()?),
            false => None,
        };
        let was_there = output.symlink_metadata().is_ok();
        // Who may not write there, or would write over a volume, hears it in words; the server empties it when all is well.
        guard::log(&output)?;
        if let Err(why) = set(&self.mountpoint, output.as_os_str().as_bytes()) {
            if !was_there {
                // The refusal says more.
                let _ = std::fs::remove_file(&output);
            }
            return Err(why);
        }
        let code = match (heard, self.command.split_first()) {
            (_, Some((program, rest))) => run_command(program, rest),
            (Some(heard), None) => wait(heard, self.time).map(|()| ExitCode::SUCCESS),
            (None, None) => Ok(ExitCode::SUCCESS),
        };
        set(&self.mountpoint, b"")?;
        code
    }
}

fn run_command(program: &OsString, rest: &[OsString]) -> Result<ExitCode> {
    let status = Command::new(program).args(rest).status();
    let status = status.map_err(|why| Error::io(program.display(), why))?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Refuses an output that the server could not write, in words; it opens the file while the kernel holds the root of the mount, so
/// that the mount itself is no place for it.
fn check_output(mountpoint: &Path, output: &Path) -> Result<()> {
    let refused = |why: String| Err(Error::invalid(format!("{}: {why}", output.display())));
    if output.extension().is_none_or(|extension| extension != "csv") {
        return refused("the name of a recording ends in .csv".into());
    }
    let device = |path: &Path| path.metadata().map(|found| found.dev());
    let recorded = device(mountpoint).map_err(|why| Error::io(mountpoint.display(), why))?;
    for file in [output.to_path_buf(), output.with_extension("paths.csv")] {
        let above = file.parent().unwrap_or(Path::new("/"));
        let there =
            device(&file).or_else(|_| device(above)).map_err(|why| Error::io(above.display(), why))?;
        if there == recorded {
            return refused(format!(
                "it would be recorded itself: it lies on {}; name a place on another file system",
                mountpoint.display()
            ));
        }
    }
    Ok(())
}

fn wait(held: signals::Held, time: Option<Duration>) -> Result<()> {
    let (tell, told) = mpsc::channel();
    held.watch(move |_| {
        // Nobody listens any more once one was heard.
        let _ = tell.send(());
    })?;
    match time {
        Some(time) => drop(told.recv_timeout(time)),
        None => drop(told.recv()),
    }
    Ok(())
}

fn set(mountpoint: &Path, value: &[u8]) -> Result<()> {
    rustix::fs::setxattr(mountpoint, RECORD, value, XattrFlags::empty()).map_err(|why| match why {
        Errno::OPNOTSUPP | Errno::NODATA => {
            Error::invalid(format!("{}: no mount of bimetal", mountpoint.display()))
        }
        why => Error::io(format!("recording {}", mountpoint.display()), why.into()),
    })
}
