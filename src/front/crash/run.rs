//! Recording a command: both halves in memory, a FUSE mount over them, everything written down.

use super::calls::{Call, Traced};
use super::explore::{FirstBytes, start_of};
use super::snapshot::Snapshot;
use super::subject::Subject;
use crate::front::fuse::{Mount, MountOptions, Unmount, Unmounter};
use crate::front::signals;
use crate::fs::FileSystem;
use crate::media::BlockDevice;
use crate::media::overlay::Overlay;
use crate::media::recorded::{Log, Recorder};
use crate::media::sparse::Sparse;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

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
    signals::hold()?.watch(move |_| {
        // Nothing is worth keeping; what is in the way at exit is taken away whether or not this succeeds.
        if let Some(unmounter) = &*seen.lock() {
            let _ = unmounter.unmount(Unmount::Lazily);
        }
        let _ = std::fs::remove_dir(&path);
        std::process::exit(130);
    })?;
    let recording = Recording::begin(subject, bases, &|devices| subject.serve(devices))?;
    let mount = Mount::new(recording.fs(), place.path(), front)?;
    *mounted.lock() = Some(mount.unmounter());
    let ended = match io::stderr().as_fd().try_clone_to_owned() {
        Ok(said) => Command::new(program).args(arguments).env("MNT", place.path()).stdout(said).status(),
        Err(why) => Err(why),
    };
    mount.unmount()?;
    let ended = ended.map_err(|why| Error::io(program.display(), why))?;
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok((recording.run(&words.join(" "), options), ended))
}
