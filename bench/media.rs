//! What the targets lie on: images, and images behind a simulated disk that answers in real time.

use clap::ValueEnum;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The command under test.
pub const BIMETAL: &str = env!("CARGO_BIN_EXE_bimetal");

const SSD_BYTES: u64 = 1 << 30;
const DISK_BYTES: u64 = 2 << 30;

/// What the disk of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiskKind {
    /// An image like the SSD's: as fast as the host
    Image,
    /// A disk of 7200 rpm with a write cache that honours flushes
    Hdd,
    /// The same, flushes ignored
    HddNoflush,
}

impl DiskKind {
    /// The profile of `bimetal export`, if it is not just an image.
    fn profile(self) -> Option<&'static str> {
        match self {
            DiskKind::Image => None,
            DiskKind::Hdd => Some("hdd-7200"),
            DiskKind::HddNoflush => Some("hdd-7200-lying"),
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DiskKind::Image => "image",
            DiskKind::Hdd => "hdd",
            DiskKind::HddNoflush => "hdd-noflush",
        }
    }
}

/// Runs a program; its standard output, or what it complained about.
pub fn command(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|why| format!("{program}: {why}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

/// An SSD: an image whose every block was written once, so that no run pays the host for a first write.
pub fn ssd_image(path: &Path) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("{}: {why}", path.display());
    let mut file = File::create(path).map_err(failed)?;
    let piece = vec![0; 1 << 20];
    (0..SSD_BYTES >> 20).try_for_each(|_| file.write_all(&piece)).map_err(failed)?;
    file.sync_all().map_err(failed)
}

/// A disk's image: with its space reserved, or for a simulated disk, whose image is in memory, as long as its data.
fn disk_image(kind: DiskKind, path: &Path) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("{}: {why}", path.display());
    let file = File::create(path).map_err(failed)?;
    match kind {
        DiskKind::Image => rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, DISK_BYTES)
            .map_err(|why| failed(why.into())),
        _ => file.set_len(DISK_BYTES).map_err(failed),
    }
}

/// A disk; dropping it ends its server.
#[derive(Debug)]
pub struct Disk {
    /// The file to use it by.
    pub path: PathBuf,
    served: Option<(Child, PathBuf)>,
}

impl Disk {
    /// A plain one with the new image of such a disk.
    pub fn image(kind: DiskKind, image: &Path) -> Result<Disk, String> {
        disk_image(kind, image)?;
        Self::over(DiskKind::Image, image)
    }

    /// One over an image that is there.
    pub fn over(kind: DiskKind, image: &Path) -> Result<Disk, String> {
        let Some(profile) = kind.profile() else {
            return Ok(Disk { path: image.into(), served: None });
        };
        let place = image.with_extension("served");
        fs::create_dir(&place).map_err(|why| format!("{}: {why}", place.display()))?;
        let mut child = Command::new(BIMETAL)
            .args(["export", "--device", profile, text(image)?, "--file", text(&place)?])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|why| format!("bimetal export: {why}"))?;
        // It says where the device is once it is there.
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(|why| format!("bimetal export: {why}"))?;
        }
        let disk = Disk { path: place.join("device"), served: Some((child, place)) };
        if line.is_empty() { Err("bimetal export ended at once".into()) } else { Ok(disk) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let Some((child, place)) = &mut self.served else { return };
        if let Err(why) = command("umount", &[&place.to_string_lossy()]) {
            eprintln!("{}: {why}", place.display());
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}

/// A loop device; dropping it gives it back.
#[derive(Debug)]
pub struct Loop {
    /// Its path, `/dev/loopN`.
    pub path: String,
}

impl Loop {
    /// Over a file; `direct` goes round the page cache of what the file is on.
    pub fn new(file: &Path, direct: bool) -> Result<Loop, String> {
        let mode = if direct { "--direct-io=on" } else { "--direct-io=off" };
        let path = command("losetup", &["-f", "--show", mode, text(file)?])?;
        Ok(Loop { path: path.trim().into() })
    }

    /// The file with its counters.
    pub fn stat(&self) -> PathBuf {
        Path::new("/sys/block").join(self.path.trim_start_matches("/dev/")).join("stat")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(why) = command("losetup", &["-d", &self.path]) {
            eprintln!("{why}");
        }
    }
}
