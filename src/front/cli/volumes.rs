//! Where the command line meets the file systems: which there are, and how each is made, opened and checked.
//!
//! Verbs know nothing below this file; a new kind of file system is a line in [`KINDS`] and an arm in each
//! function here.

use super::mkfs::NfhybridArgs;
use crate::front::fuse::OptionSpec;
use crate::fs::memfs::MemFs;
use crate::fs::{Caller, FileSystem};
use crate::units::parse_size;
use crate::{Error, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// The kinds of file system, and what each is.
pub const KINDS: &[(&str, &str)] = &[
    ("nfhybrid", "a small SSD over a large disk; the disk half is a standard ext4"),
    ("memfs", "an empty file system in memory, gone with the mount"),
];

/// Options of memfs.
pub const MEMFS_OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "size",
        value: Some("SIZE"),
        default: "half of the memory",
        help: "how much it may hold",
    },
    OptionSpec {
        name: "prealloc",
        value: Some("SIZE"),
        default: "64MiB",
        help: "memory touched in advance, so that no request has to wait for it",
    },
];

/// Options of nfhybrid.
pub const NFHYBRID_OPTIONS: &[OptionSpec] = &[];

/// Which file system, by its devices or images.
#[derive(Args, Clone, Debug)]
pub struct VolumeArgs {
    /// Kind of file system
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "nfhybrid",
          value_parser = ["nfhybrid", "memfs"])]
    pub kind: String,
    /// SSD half: a device or an image file
    #[arg(long, value_name = "DEVICE", env = "BIMETAL_SSD")]
    pub ssd: Option<PathBuf>,
    /// Disk half: a device or an image file
    #[arg(long, value_name = "DEVICE", env = "BIMETAL_DISK")]
    pub disk: Option<PathBuf>,
}

/// What the opener means to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Look only; nothing on a medium changes, not even by recovery.
    Read,
    /// Change things.
    Write,
}

/// One thing a check found.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// The structure and where it lies.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
    /// It is right now.
    pub repaired: bool,
}

/// What a check found in all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FsckReport {
    /// Everything that was wrong.
    pub problems: Vec<Problem>,
    /// Counts of what was looked at, for people: `inodes`, `blocks`, …
    pub checked: serde_json::Map<String, serde_json::Value>,
}

impl FsckReport {
    /// Whether nothing is wrong any more.
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }
}

impl VolumeArgs {
    /// What `mount` and `df` shall show as the source.
    pub fn source(&self) -> String {
        let halves = [&self.ssd, &self.disk].into_iter().flatten().map(|path| path.display().to_string());
        let halves: Vec<_> = halves.collect();
        if halves.is_empty() { self.kind.clone() } else { halves.join("+") }
    }

    /// The mount options of this kind of file system.
    pub fn options(&self) -> &'static [OptionSpec] {
        match self.kind.as_str() {
            "memfs" => MEMFS_OPTIONS,
            _ => NFHYBRID_OPTIONS,
        }
    }
}

fn not_built(what: &str) -> Error {
    Error::unsupported(what, "this build has no nfhybrid; memfs (-t memfs) works")
}

/// Opens a file system with options of its own (those of [`VolumeArgs::options`], as `name` or `name=value`).
pub fn open_volume(args: &VolumeArgs, access: Access, options: &[String]) -> Result<Box<dyn FileSystem>> {
    match args.kind.as_str() {
        "memfs" => open_memfs(options),
        _ => {
            let _ = access;
            Err(not_built("opening nfhybrid"))
        }
    }
}

fn open_memfs(options: &[String]) -> Result<Box<dyn FileSystem>> {
    let mut size = half_of_memory();
    let mut ahead = 64 << 20;
    for option in options {
        match option.split_once('=') {
            Some(("size", value)) => size = parse_size(value)?,
            Some(("prealloc", value)) => ahead = parse_size(value)?,
            _ => {}
        }
    }
    crate::front::memory::keep(usize::try_from(ahead.min(size)).unwrap_or(usize::MAX));
    let owner =
        Caller { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw(), umask: 0 };
    Ok(Box::new(MemFs::new(size, &owner)))
}

fn half_of_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit) / 2
}

/// Makes an nfhybrid; the text tells what was made.
pub fn mkfs_nfhybrid(args: &NfhybridArgs) -> Result<String> {
    let _ = args;
    Err(not_built("making nfhybrid"))
}

/// Makes an ext4 with files in it the disk half of an nfhybrid; the text tells what was made.
pub fn adopt(args: &NfhybridArgs) -> Result<String> {
    let _ = args;
    Err(not_built("adopting a disk"))
}

/// Checks a file system that is not mounted, and repairs it if asked to.
pub fn fsck(args: &VolumeArgs, repair: bool) -> Result<FsckReport> {
    let _ = repair;
    match args.kind.as_str() {
        "memfs" => Err(Error::invalid("memfs: there is nothing to check; it is gone with its mount")),
        _ => Err(not_built("checking nfhybrid")),
    }
}
