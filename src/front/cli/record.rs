//! `bimetal record`: what programs ask of a mount, into a trace.

use crate::front::record::RECORD;
use crate::front::signals;
use crate::media::guard;
use crate::{Error, Result};
use clap::Args;
use rustix::fs::{Access, XattrFlags, access};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Ends with the exit code of the command, if there is one.
Examples:
  bimetal record /mnt -o /tmp/make.csv -- make -C /mnt/src      while a program runs
  bimetal record /mnt -o /tmp/day.csv --for 1h                  for a while, or until Ctrl-C
  bimetal record /mnt --stop                                    one whose command was killed
  bimetal osd replay /tmp/make.csv                              what its cleaning costs";

/// How often it is looked whether the mount is there.
const LOOK: Duration = Duration::from_secs(1);

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
    #[arg(short, long, value_name = "FILE", required_unless_present = "stop")]
    output: Option<PathBuf>,
    /// End a recording whose command was killed
    #[arg(long, conflicts_with_all = ["output", "time", "command"])]
    stop: bool,
    /// How long [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
    /// Until this command ends
    #[arg(last = true, conflicts_with = "time")]
    command: Vec<OsString>,
}

impl Record {
    pub fn run(&self) -> Result<ExitCode> {
        super::status::read(&self.mountpoint)?;
        if self.stop {
            set(&self.mountpoint, b"")?;
            return Ok(ExitCode::SUCCESS);
        }
        let output = self.output.as_deref().ok_or(Error::BadArgument)?;
        let output = std::path::absolute(output).map_err(|why| Error::io(output.display(), why))?;
        check_output(&self.mountpoint, &output)?;
        self.command.first().map_or(Ok(()), |program| check_program(program))?;
        refuse_second(&self.mountpoint)?;
        let heard = signals::hold()?;
        // The list of paths, which nobody named, takes the place of a file at most.
        drop(guard::replaced(&output.with_extension("paths.csv"))?);
        let was_there = output.symlink_metadata().is_ok();
        // Who may not write there, or would write over a volume, hears it in words; the server empties it when all is well.
        guard::log(&output)?;
        let begun = set(&self.mountpoint, output.as_os_str().as_bytes());
        if let Err(why) = begun {
            // Not that of a recording which began in the same moment.
            let is_busy =
                matches!(&why, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy);
            if !was_there && !is_busy {
                // The refusal says more.
                let _ = std::fs::remove_file(&output);
            }
            return Err(why);
        }
        let code = match self.command.split_first() {
            Some((program, rest)) => run_command(program, rest, heard),
            None => wait(&self.mountpoint, heard, self.time).map(|()| ExitCode::SUCCESS),
        };
        let ended = set(&self.mountpoint, b"");
        code.and_then(|code| ended.map(|()| code))
    }
}

/// An error if the mount is being recorded.
fn refuse_second(mountpoint: &Path) -> Result<()> {
    let mut name = Vec::with_capacity(libc::PATH_MAX as usize);
    match rustix::fs::getxattr(mountpoint, RECORD, rustix::buffer::spare_capacity(&mut name)) {
        Ok(_) => Err(Error::InUse(format!(
            "{}: it is being recorded into {} already; wait for that one's end, or, if its command was killed, end it with \
             bimetal record {0} --stop",
            mountpoint.display(),
            Path::new(OsStr::from_bytes(&name)).display()
        ))),
        Err(rustix::io::Errno::NOTCONN) => Err(super::status::dead(mountpoint)),
        Err(_) => Ok(()),
    }
}

/// A program that is not there is found out before the file of an earlier recording is emptied.
fn check_program(program: &OsStr) -> Result<()> {
    let can_run = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let is_there = if program.as_bytes().contains(&b'/') {
        can_run(Path::new(program))
    } else {
        std::env::var_os("PATH")
            .is_none_or(|path| std::env::split_paths(&path).any(|dir| can_run(&dir.join(program))))
    };
    match is_there {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{}: there is no such program; nothing was recorded",
            program.display()
        ))),
    }
}

/// Runs the command until it ends. It gets the signals that come, and the recording ends with it.
fn run_command(program: &OsString, rest: &[OsString], heard: signals::Held) -> Result<ExitCode> {
    let failed = |why| Error::io(program.display(), why);
    let mut child = signals::heed(Command::new(program).args(rest)).spawn().map_err(failed)?;
    let pid = Pid::from_child(&child);
    // A terminal's SIGINT the command has, too; whoever ends this process alone means both.
    heard.watch(move |signal| {
        let passed = match signal {
            "SIGTERM" => Signal::TERM,
            "SIGHUP" => Signal::HUP,
            _ => return,
        };
        // What has ended needs no signal any more.
        let _ = kill_process(pid, passed);
    })?;
    let status = child.wait().map_err(failed)?;
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

/// Waits for a signal, or that the time is over.
///
/// # Errors
/// The mount has gone meanwhile, and its recording with it.
fn wait(mountpoint: &Path, held: signals::Held, time: Option<Duration>) -> Result<()> {
    let (tell, told) = mpsc::channel();
    held.watch(move |_| {
        // Nobody listens any more once one was heard.
        let _ = tell.send(());
    })?;
    let device = || mountpoint.metadata().ok().map(|found| found.dev());
    let (begun, recorded) = (Instant::now(), device());
    loop {
        let left = time.map_or(LOOK, |time| time.saturating_sub(begun.elapsed()).min(LOOK));
        if told.recv_timeout(left).is_ok() || time.is_some_and(|time| begun.elapsed() >= time) {
            return Ok(());
        }
        if device() != recorded {
            return Err(Error::invalid(format!(
                "{}: it is mounted no more; what was recorded until then is in the file",
                mountpoint.display()
            )));
        }
    }
}

fn set(mountpoint: &Path, value: &[u8]) -> Result<()> {
    rustix::fs::setxattr(mountpoint, RECORD, value, XattrFlags::empty()).map_err(|why| match why {
        Errno::OPNOTSUPP | Errno::NODATA => {
            Error::invalid(format!("{}: no mount of bimetal", mountpoint.display()))
        }
        why => Error::io(format!("recording {}", mountpoint.display()), why.into()),
    })
}
