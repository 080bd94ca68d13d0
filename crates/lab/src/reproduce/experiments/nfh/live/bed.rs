//! A file system that is mounted over devices which `bimetal export` serves in real time.
//!
//! Every file system has devices of its own, new and empty. Ending it looks at every step; what is dropped on the way is taken away as
//! far as it goes, and the rest goes with the namespace ([`live`](super::super::super::super::live)).

use super::super::super::super::live::command;
use super::super::bed::SSD;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Sizes of the devices.
pub(super) const SSD_BYTES: u64 = 512 << 20;
pub(super) const DISK_BYTES: u64 = 1 << 30;

/// How long to wait for a device that is still in use, and how often.
const BUSY: Duration = Duration::from_millis(100);
const BUSY_MOST: u32 = 50;

/// Which file system, on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    /// nfhybrid over both, with extents of so many bytes.
    Nfhybrid { extent_bytes: u64 },
    /// One of the kernel's.
    Kernel { kind: &'static str, on_ssd: bool },
}

/// A file system, mounted.
pub(super) struct Mounted {
    system: System,
    /// Where it is mounted.
    point: PathBuf,
    is_mounted: bool,
    ssd: Option<Served>,
    disk: Option<Served>,
    /// Everything that is here lies in it; it goes last.
    folder: TempDir,
}

/// A device that is being served.
struct Served {
    server: Child,
    /// What it says; without somebody to read it, it could not.
    _said: BufReader<ChildStdout>,
    place: PathBuf,
    is_served: bool,
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let told = command.stdin(Stdio::null()).output().map_err(|why| Error::io(&name, why))?;
    match told.status.success() {
        true => Ok(()),
        false => Err(Error::invalid(format!("{name}: {}", String::from_utf8_lossy(&told.stderr).trim()))),
    }
}

/// This program.
fn bimetal() -> Result<Command> {
    let program = std::env::current_exe().map_err(|why| Error::io("this program", why))?;
    Ok(command(&program.to_string_lossy()))
}

fn made(folder: &Path) -> Result<PathBuf> {
    fs::create_dir(folder).map_err(|why| Error::io(folder.display(), why))?;
    Ok(folder.to_path_buf())
}

impl Served {
    fn new(folder: &Path, name: &str, profile: &str, bytes: u64, seed: u64) -> Result<Served> {
        let place = made(&folder.join(name))?;
        let mut export = bimetal()?;
        export.args([
            "export",
            "--profile",
            profile,
            "--size",
            &bytes.to_string(),
            "--seed",
            &seed.to_string(),
        ]);
        export.arg("--file").arg(&place).arg(folder.join(format!("{name}.img")));
        export.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = export.spawn().map_err(|why| Error::io("bimetal export", why))?;
        let Some(said) = server.stdout.take() else { return Err(Error::BadArgument) };
        let mut said = BufReader::new(said);
        // It says where once it can be used.
        let mut line = String::new();
        let heard = said.read_line(&mut line).map_err(|why| Error::io("bimetal export", why))?;
        if heard == 0 {
            let mut why = String::new();
            let _ = server.stderr.take().map(|mut errors| errors.read_to_string(&mut why));
            let _ = server.wait();
            return Err(Error::invalid(format!("bimetal export: {}", why.trim())));
        }
        Ok(Served { server, _said: said, place, is_served: true })
    }

    fn device(&self) -> PathBuf {
        self.place.join("device")
    }

    fn end(mut self) -> Result<()> {
        // The kernel lets go of a loop device a little after what was on it is unmounted.
        let mut unmounted = run(command("umount").arg(&self.place));
        for _ in 0..BUSY_MOST {
            if unmounted.is_ok() {
                break;
            }
            thread::sleep(BUSY);
            unmounted = run(command("umount").arg(&self.place));
        }
        unmounted?;
        self.is_served = false;
        let ended = self.server.wait().map_err(|why| Error::io("bimetal export", why))?;
        match ended.success() {
            true => Ok(()),
            false => Err(Error::invalid(format!("bimetal export ended with {ended}"))),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.is_served {
            let _ = run(command("umount").arg("--lazy").arg(&self.place));
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}

impl System {
    /// As figures name it.
    pub fn name(self) -> String {
        match self {
            System::Nfhybrid { .. } => "nfhybrid".into(),
            System::Kernel { kind, on_ssd: true } => format!("{kind} on the SSD"),
            System::Kernel { kind, on_ssd: false } => format!("{kind} on the disk"),
        }
    }
}

impl Mounted {
    /// Makes it, on devices of its own, and mounts it.
    pub fn new(system: System, disk_profile: &str, seed: u64) -> Result<Mounted> {
        let folder = tempfile::Builder::new().prefix("bimetal-live-").tempdir();
        let folder = folder.map_err(|why| Error::io("a folder for devices", why))?;
        let point = made(&folder.path().join("mounted"))?;
        let (needs_ssd, needs_disk) = match system {
            System::Nfhybrid { .. } => (true, true),
            System::Kernel { on_ssd, .. } => (on_ssd, !on_ssd),
        };
        let serve =
            |name: &str, profile: &str, bytes: u64| Served::new(folder.path(), name, profile, bytes, seed);
        let ssd = needs_ssd.then(|| serve("ssd", SSD, SSD_BYTES)).transpose()?;
        let disk = needs_disk.then(|| serve("disk", disk_profile, DISK_BYTES)).transpose()?;
        let mut mounted = Mounted { system, point, is_mounted: false, ssd, disk, folder };
        mounted.make()?;
        mounted.mount()?;
        Ok(mounted)
    }

    /// The root of its tree.
    pub fn root(&self) -> &Path {
        &self.point
    }

    /// Where it lies.
    fn lies_on(&self) -> PathBuf {
        self.ssd.as_ref().or(self.disk.as_ref()).map(Served::device).unwrap_or_default()
    }

    /// Both halves, as options of `bimetal`.
    fn halves<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for (option, half) in [("--ssd", &self.ssd), ("--disk", &self.disk)] {
            if let Some(half) = half {
                command.arg(option).arg(half.device());
            }
        }
        command
    }

    fn make(&self) -> Result<()> {
        match self.system {
            System::Nfhybrid { extent_bytes } => {
                let mut made = bimetal()?;
                let section = format!("default=extent:{}KiB", extent_bytes >> 10);
                run(self.halves(made.args(["mkfs", "nfhybrid", "--section", &section])))
            }
            System::Kernel { kind: "xfs", .. } => {
                run(command("mkfs.xfs").args(["-q", "-f", "-K"]).arg(self.lies_on()))
            }
            System::Kernel { kind, .. } => {
                run(command("mke2fs").args(["-q", "-F", "-t", kind, "-E", "nodiscard"]).arg(self.lies_on()))
            }
        }
    }

    fn mount(&mut self) -> Result<()> {
        match self.system {
            System::Nfhybrid { .. } => {
                let mut mount = bimetal()?;
                run(self.halves(mount.arg("mount")).arg(&self.point))?;
            }
            System::Kernel { kind, .. } => {
                run(command("mount").args(["-t", kind, "-o", "loop"]).arg(self.lies_on()).arg(&self.point))?;
            }
        }
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        match self.system {
            System::Nfhybrid { .. } => run(bimetal()?.arg("umount").arg(&self.point))?,
            System::Kernel { .. } => run(command("umount").arg(&self.point))?,
        }
        self.is_mounted = false;
        Ok(())
    }

    /// Mounts it anew, so that no memory holds what is in it.
    pub fn cold(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// Takes it away, and its devices.
    pub fn end(mut self) -> Result<()> {
        self.unmount()?;
        let devices = [self.ssd.take(), self.disk.take()];
        devices.into_iter().flatten().try_for_each(Served::end)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = run(command("umount").arg("--lazy").arg(&self.point));
        }
        // Servers end before their folder goes.
        drop((self.ssd.take(), self.disk.take()));
        tracing::trace!("{}: done with", self.folder.path().display());
    }
}

/// The devices in words.
pub(super) fn devices(disk: &str) -> serde_json::Value {
    serde_json::json!({
        "ssd": SSD, "ssd_size": show_size(SSD_BYTES), "disk": disk, "disk_size": show_size(DISK_BYTES),
        "served by": "bimetal export --file, in real time", "kernel": kernel(),
    })
}

/// The release of the kernel.
fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string()
}
