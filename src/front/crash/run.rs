//! Recording a command: both halves in memory, a FUSE mount over them, everything written down.

use super::calls::{Call, Traced};
use super::explore::{FirstBytes, start_of};
use super::snapshot::Snapshot;
use super::subject::Subject;
use crate::front::fuse::{Mount, MountOptions, Unmount, Unmounter};
use crate::front::{processes, signals};
use crate::fs::FileSystem;
use crate::media::overlay::Overlay;
use crate::media::recorded::{Log, Recorder};
use crate::media::sparse::Sparse;
use crate::media::{BlockDevice, guard};
use crate::{Error, Result};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io, thread};

/// What was done, and what came of it.
pub struct Run {
    /// The command, for people.
    pub what: String,
    /// Options of the mount.
    pub options: Vec<String>,
    /// The devices before.
    pub bases: Vec<Arc<dyn BlockDevice>>,
    /// The tree before.
    pub start: Snapshot,
    /// And the bytes of its files.
    pub first: FirstBytes,
    /// All requests to the devices.
    pub log: Log,
    /// All calls of the file system.
    pub calls: Vec<Call>,
}

/// A file system in use whose calls and requests are written down.
pub struct Recording {
    bases: Vec<Arc<dyn BlockDevice>>,
    start: Snapshot,
    first: FirstBytes,
    recorder: Arc<Recorder>,
    traced: Arc<Traced>,
}

/// A device that is as `device` is now, whatever becomes of that; in memory without its zeros.
pub fn frozen(device: &dyn BlockDevice) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(Sparse::copy_of(device)?))
}

/// The devices of a volume, recovered and closed, as copies in memory.
pub fn settled(subject: &dyn Subject, devices: &[Arc<dyn BlockDevice>]) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let overlays = super::check::own(devices);
    let fs = subject.open(&overlays)?;
    fs.shutdown()?;
    drop(fs);
    overlays.iter().map(|device| frozen(&**device)).collect()
}

/// How a volume is opened on its devices.
pub type Opener<'a> = dyn Fn(&[Arc<dyn BlockDevice>]) -> Result<Box<dyn FileSystem>> + 'a;

impl Recording {
    /// Opens the volume on `bases` (which stay as they are) with `open`, and writes down from there on.
    pub fn begin(
        subject: &dyn Subject,
        bases: Vec<Arc<dyn BlockDevice>>,
        open: &Opener,
    ) -> Result<Recording> {
        let before = subject.open(&super::check::own(&bases))?;
        let (start, first) = start_of(&*before)?;
        drop(before);
        let recorder = Recorder::new();
        let wrap = |base: &Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
            Arc::new(recorder.wrap(Arc::new(Overlay::new(base.clone()))))
        };
        let devices: Vec<_> = bases.iter().map(wrap).collect();
        let traced = Arc::new(Traced::new(open(&devices)?.into(), recorder.clone()));
        Ok(Recording { bases, start, first, recorder, traced })
    }

    /// The file system to use.
    pub fn fs(&self) -> Arc<dyn FileSystem> {
        self.traced.clone()
    }

    /// What was written down so far.
    pub fn run(self, what: &str, options: &[String]) -> Run {
        Run {
            what: what.into(),
            options: options.to_vec(),
            bases: self.bases,
            start: self.start,
            first: self.first,
            log: self.recorder.log(),
            calls: self.traced.calls(),
        }
    }
}

/// How often, and how far apart, what a command started is looked for while it ends; then it is killed.
const LOOKS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// Ends what this process started, and what that did: by `signal`, and what then still runs by SIGKILL.
fn end_all_started(signal: Signal) {
    let mut told = HashSet::new();
    for look in 0..2 * LOOKS {
        let running = processes::below();
        if running.is_empty() {
            return;
        }
        for pid in running {
            // Who ended meanwhile hears nothing.
            if look >= LOOKS {
                let _ = kill_process(pid, Signal::KILL);
            } else if told.insert(pid) {
                let _ = kill_process(pid, signal);
            }
        }
        thread::sleep(PAUSE);
    }
}

/// Runs a command with the volume mounted, its place in `$MNT`; how it ended, and everything that happened. What it says goes to
/// standard error: standard output is the report's.
pub fn record(
    subject: &dyn Subject,
    bases: Vec<Arc<dyn BlockDevice>>,
    front: &MountOptions,
    options: &[String],
    command: &[OsString],
) -> Result<(Run, ExitStatus)> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Error::invalid("crash: say which command to run, after --"));
    };
    let place = tempfile::Builder::new().prefix("bimetal-crash-").tempdir();
    let place = place.map_err(|why| Error::io("a directory to mount on", why))?;
    let mounted: Arc<Mutex<Option<Unmounter>>> = Arc::default();
    let (seen, path) = (mounted.clone(), place.path().to_path_buf());
    // What the command leaves behind stays below this process, and ends with it.
    set_child_subreaper(Some(Pid::INIT)).map_err(|why| Error::io("taking in orphans", why.into()))?;
    signals::hold()?.watch(move |signal| {
        // Held until the end: nothing is mounted or started any more, and nothing is reported.
        let mounted = seen.lock();
        end_all_started(match signal {
            "SIGINT" => Signal::INT,
            "SIGTERM" => Signal::TERM,
            _ => Signal::HUP,
        });
        // Nothing is worth keeping; what is in the way at exit is taken away whether or not this succeeds.
        if let Some(unmounter) = &*mounted {
            let _ = unmounter.unmount(Unmount::Lazily);
        }
        let _ = fs::remove_dir(&path);
        guard::give_up();
        std::process::exit(signals::exit_code(signal).into());
    })?;
    let recording = Recording::begin(subject, bases, &|devices| subject.serve(devices))?;
    let (mount, child) = {
        // A signal is heard before or after, and then of both.
        let mut mounted = mounted.lock();
        let mount = Mount::new(recording.fs(), place.path(), front)?;
        *mounted = Some(mount.unmounter());
        let said = io::stderr().as_fd().try_clone_to_owned();
        let mut command = Command::new(program);
        command.args(arguments).env("MNT", place.path());
        (mount, said.and_then(|said| signals::heed(&mut command).stdout(said).spawn()))
    };
    let ended = child.and_then(|mut child| child.wait());
    end_all_started(Signal::TERM);
    // Whoever hears a signal has this, and ends all of it.
    drop(mounted.lock());
    mount.unmount()?;
    let ended = ended.map_err(|why| Error::io(program.display(), why))?;
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok((recording.run(&words.join(" "), options), ended))
}
