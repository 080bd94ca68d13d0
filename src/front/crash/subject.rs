//! The kinds of file system that can be cut, each by one implementation of [`Subject`].

use crate::fs::FileSystem;
use crate::fs::nfhybrid::{Durability, Lag, NfHybrid, Options};
use crate::media::BlockDevice;
use crate::media::sparse::{CHUNK, Sparse};
use crate::{Error, Result};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use tempfile::NamedTempFile;

/// The devices of a file system, in the order of its [`Subject::devices`].
pub type Devices = [Arc<dyn BlockDevice>];

/// A kind of file system with its options: how it is opened, and what it promises.
pub trait Subject: Send + Sync {
    /// What its devices are to it.
    fn devices(&self) -> &'static [&'static str];

    /// Opens it as a mount does, with all its threads.
    fn serve(&self, devices: &Devices) -> Result<Box<dyn FileSystem>>;

    /// Opens it after a cut, recovering what there is, without threads of its own, so that doing it again does
    /// the same.
    fn open(&self, devices: &Devices) -> Result<Box<dyn FileSystem>>;

    /// The device that by itself is the whole file system as of some moment.
    fn whole_alone(&self) -> Option<usize> {
        None
    }

    /// Opens that device by itself.
    fn open_alone(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn FileSystem>>;

    /// That device has, by itself, everything that an fsync made durable.
    fn syncs_alone(&self) -> bool {
        false
    }

    /// A file renamed over another is there with its contents once the name is, fsync or not.
    fn replaces_whole(&self) -> bool {
        false
    }

    /// A check of that device by somebody else's program; what it found wrong.
    fn examine(&self, _device: &dyn BlockDevice) -> Result<()> {
        Ok(())
    }
}

/// nfhybrid: its disk half is the whole file system as of the last commit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hybrid {
    /// Options of the mount.
    pub options: Options,
}

/// Place of the disk half among the devices.
pub const DISK: usize = 0;
/// Place of the SSD half among the devices.
pub const SSD: usize = 1;

/// Memory that a look at one state may keep for dirty data: little, for it is opened very often.
const LOOK_BYTES: u64 = 8 << 20;

impl Hybrid {
    fn manual(&self) -> Options {
        let lag = Lag { bytes: LOOK_BYTES, ..self.options.lag };
        Options { manual: true, lag, read_only: false, ..self.options }
    }
}

impl Subject for Hybrid {
    fn devices(&self) -> &'static [&'static str] {
        &["disk", "ssd"]
    }

    fn serve(&self, devices: &Devices) -> Result<Box<dyn FileSystem>> {
        let (disk, ssd) = (devices[DISK].clone(), devices[SSD].clone());
        Ok(Box::new(NfHybrid::open(disk, Some(ssd), self.options)?))
    }

    fn open(&self, devices: &Devices) -> Result<Box<dyn FileSystem>> {
        let (disk, ssd) = (devices[DISK].clone(), devices[SSD].clone());
        Ok(Box::new(NfHybrid::open(disk, Some(ssd), self.manual())?))
    }

    fn whole_alone(&self) -> Option<usize> {
        Some(DISK)
    }

    fn open_alone(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn FileSystem>> {
        // A cut left the SSD's log open; what only that held is not looked for.
        let options = Options { without_ssd: true, ..self.manual() };
        Ok(Box::new(NfHybrid::open(device, None, options)?))
    }

    fn syncs_alone(&self) -> bool {
        self.options.durability == Durability::Both
    }

    fn replaces_whole(&self) -> bool {
        true
    }

    fn examine(&self, device: &dyn BlockDevice) -> Result<()> {
        e2fsck(device)
    }
}

/// Replays the journal of a copy of `device`, as anyone's Linux would, and looks for anything wrong beyond it.
fn e2fsck(device: &dyn BlockDevice) -> Result<()> {
    let copy = copy_of(device).map_err(|why| Error::invalid(format!("a copy for e2fsck: {why}")))?;
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    for (argument, allowed) in [("-p", &[0, 1][..]), ("-fn", &[0])] {
        let run = Command::new("e2fsck").env("PATH", &path).arg(argument).arg(copy.path()).output();
        let run = run.map_err(|why| Error::io("e2fsck (from e2fsprogs)", why))?;
        if !run.status.code().is_some_and(|code| allowed.contains(&code)) {
            let said = String::from_utf8_lossy(&run.stdout).trim().replace('\n', "; ");
            return Err(Error::invalid(format!(
                "e2fsck {argument} ended with {:?}: {said}",
                run.status.code()
            )));
        }
    }
    Ok(())
}

/// A file that holds what `device` does, with holes for its zeros.
fn copy_of(device: &dyn BlockDevice) -> Result<NamedTempFile> {
    let file = NamedTempFile::new().map_err(|why| Error::io("a temporary file", why))?;
    let failed = |why| Error::io(file.path().display(), why);
    file.as_file().set_len(device.info().size_bytes).map_err(failed)?;
    for (number, bytes) in Sparse::copy_of(device)?.chunks() {
        file.as_file().write_all_at(bytes, number * CHUNK).map_err(failed)?;
    }
    Ok(file)
}
