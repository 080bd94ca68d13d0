//! A volume on real devices or images: which it is, and what a kind of file system does with it.

use super::probe::{self, Given};
use super::{KINDS, Kind, LiesOn, mountable, names};
use crate::names::DEVICE;
use crate::stack::model::Models;
use bimetal_base::{Error, Result};
use bimetal_media::metered::Devices;
use bimetal_media::nand::Nand;
use bimetal_vfs::{Caller, FileSystem};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The part under cmfs and osd where none is named.
pub const PART: &str = bimetal_cmfs::volume::DEVICE;

/// Which file system, by its devices or images.
#[derive(Args, Clone, Debug)]
pub struct VolumeArgs {
    /// Kind of file system
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "nfhybrid", value_parser = names(mountable()))]
    pub kind: String,
    /// Image of a NAND part, spare areas included, or an MTD device (/dev/mtdN); makes the type osd or cmfs, as it holds
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NAND")]
    pub nand: Option<PathBuf>,
    /// NVRAM beside it: a file or a device to map
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NVRAM", requires = "nand")]
    pub nvram: Option<PathBuf>,
    /// Profile of the NAND part: a built-in name or a file
    #[arg(long, value_name = "PROFILE", default_value = PART, value_parser = DEVICE, hide_possible_values = true)]
    pub device: String,
    /// The NAND is a plain image of YAFFS2, without the format record of cmfs: opened from the NAND alone
    #[arg(long, requires = "nand")]
    pub yaffs2: bool,
    /// SSD half: a device or an image file
    #[arg(long, value_name = "DEVICE", env = "BIMETAL_SSD")]
    pub ssd: Option<PathBuf>,
    /// Disk half: a device or an image file
    #[arg(long, value_name = "DEVICE", env = "BIMETAL_DISK")]
    pub disk: Option<PathBuf>,
    /// Go by the disk half alone although its SSD's log is open; what only that log holds (what was fsynced last, `lag` at
    /// most) is dropped for ever
    #[arg(long, conflicts_with = "ssd")]
    pub without_ssd: bool,
    /// What the halves are like, where they are to be models of other devices.
    #[arg(skip)]
    pub models: Models,
}

impl VolumeArgs {
    /// What `mount` and `df` shall show as the source.
    pub fn source(&self) -> String {
        let parts = [&self.ssd, &self.disk, &self.nand, &self.nvram].into_iter().flatten();
        let parts: Vec<_> = parts.map(|path| path.display().to_string()).collect();
        if parts.is_empty() { self.kind_name().to_string() } else { parts.join("+") }
    }

    fn kind_name(&self) -> &str {
        match &self.nand {
            Some(nand) if Nand::is_image(nand) => "osd",
            Some(_) => "cmfs",
            None => &self.kind,
        }
    }

    /// Why it could not be opened, see [`probe::misnamed`]. The paths are asked for: nothing of it may be mounted.
    pub fn misnamed(&self, why: Error) -> Error {
        let halves = [given("disk", &["nfhybrid"], &self.disk), given("ssd", &["nfhybrid"], &self.ssd)];
        let flash = [given("nand", &["cmfs", "osd"], &self.nand), given("nvram", &["cmfs"], &self.nvram)];
        let all = if self.nand.is_some() { flash } else { halves };
        probe::misnamed(why, &all.into_iter().flatten().collect::<Vec<_>>())
    }

    /// The kind of file system: as given, or as follows from the images.
    ///
    /// # Errors
    /// There is no such kind.
    pub fn kind(&self) -> Result<&'static Kind> {
        KINDS.find(self.kind_name())
    }

    /// Where the disk half is.
    ///
    /// # Errors
    /// Nobody said it.
    pub fn disk(&self) -> Result<&Path> {
        let disk = self.disk.as_deref();
        disk.ok_or_else(|| {
            Error::invalid(format!("{}: say where the disk half is: --disk DEVICE", self.kind_name()))
        })
    }

    /// Where the NAND is.
    ///
    /// # Errors
    /// Nobody said it.
    pub fn nand(&self) -> Result<&Path> {
        let nand = self.nand.as_deref();
        nand.ok_or_else(|| {
            Error::invalid(format!("{}: say where the NAND is: --nand IMAGE", self.kind_name()))
        })
    }

    /// An error if what the command line has to name of this kind of file system is missing, or it names what there is not.
    ///
    /// # Errors
    /// It is.
    pub fn check_named(&self) -> Result<()> {
        match self.kind()?.lies_on {
            LiesOn::Nand { nvram: false } if self.nvram.is_some() => Err(Error::invalid(format!(
                "{}: it has no NVRAM; leave out --nvram (or BIMETAL_NVRAM)",
                self.kind_name()
            ))),
            LiesOn::Halves => self.disk().map(drop),
            LiesOn::Nand { .. } => self.nand().map(drop),
            LiesOn::Block(_) | LiesOn::Nothing => Ok(()),
        }
    }
}

fn given<'a>(role: &'static str, of: &'a [&'static str], path: &'a Option<PathBuf>) -> Option<Given<'a>> {
    path.as_deref().map(|path| Given { role, of, path })
}

/// What the opener means to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Look only; nothing on a medium changes, not even by recovery.
    Read,
    /// Change things.
    Write,
}

/// A volume that is about to be opened, and the devices it lies on, which are open and claimed: no path is asked for any more, as
/// one may lie below the mount point. Nothing was written so far.
pub trait Prepared {
    /// The volume as it would be, to see whether what is wanted of it can be done; nothing of it changes.
    ///
    /// # Errors
    /// It cannot be opened.
    fn look(&self) -> Result<Box<dyn FileSystem>>;

    /// Opens it.
    ///
    /// # Errors
    /// It cannot be opened.
    fn begin(self: Box<Self>) -> Result<(Box<dyn FileSystem>, Devices)>;

    /// Bytes of memory that whoever serves it should touch in advance.
    fn memory_ahead(&self) -> u64 {
        0
    }
}

/// Prepares to open a volume; what refuses it shows here, as far as that is possible without writing.
///
/// # Errors
/// It cannot be opened.
pub fn prepare<'a>(
    args: &'a VolumeArgs,
    access: Access,
    options: &[String],
) -> Result<Box<dyn Prepared + 'a>> {
    args.check_named()?;
    let kind = args.kind()?;
    let open = kind.open.ok_or_else(|| Error::invalid(format!("{} cannot be mounted", kind.name)))?;
    open(args, access, options)
}

/// Opens a volume with mount options (of [`Kind::options`], as `name` or `name=value`).
///
/// # Errors
/// It cannot be opened.
pub fn open(args: &VolumeArgs, access: Access, options: &[String]) -> Result<Box<dyn FileSystem>> {
    let opened = prepare(args, access, options).and_then(Prepared::begin);
    opened.map(|(fs, _)| fs).map_err(|why| args.misnamed(why))
}

/// How far a check goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Repair what can be repaired without losing anything.
    pub repair: bool,
    /// Repair also what costs something.
    pub lossy: bool,
    /// Compare the halves.
    pub deep: bool,
}

/// One thing a check found.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// The structure and where it lies.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
    /// How many things this tells of.
    pub count: u64,
    /// It is right now.
    pub repaired: bool,
    /// It is over, and what it says is lost.
    pub lost: bool,
}

/// What a check found in all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Everything that was wrong.
    pub problems: Vec<Problem>,
    /// What else there is to say, in sentences.
    pub notes: Vec<String>,
    /// The file system was written to.
    pub changed: bool,
    /// Something was not looked at, as a note says.
    pub partial: bool,
    /// What a checker that was called said, line by line.
    pub said: Vec<String>,
    /// Counts of what was looked at, for people: `inodes`, `blocks`, …
    pub checked: serde_json::Map<String, serde_json::Value>,
}

impl CheckReport {
    /// Whether nothing is wrong any more, and nothing was lost.
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    /// How many things are wrong: all that were, those still, and those that cost what is lost.
    pub fn counts(&self) -> (u64, u64, u64) {
        let count =
            |of: fn(&&Problem) -> bool| self.problems.iter().filter(of).map(|problem| problem.count).sum();
        (count(|_| true), count(|one| !one.repaired && !one.lost), count(|one| one.lost))
    }

    /// Notes how many of something were looked at.
    pub fn count(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.checked.insert(name.into(), value.into());
    }
}

/// Checks a volume that is not mounted, and repairs it if asked to; `progress` hears what is done now.
///
/// # Errors
/// It could not be checked.
pub fn check(
    args: &VolumeArgs,
    options: CheckOptions,
    progress: &dyn Fn(&'static str),
) -> Result<CheckReport> {
    let kind = args.kind()?;
    let Some(check) = kind.check else {
        return Err(Error::invalid(format!(
            "{}: there is nothing to check; it is gone with its mount",
            kind.name
        )));
    };
    check(args, options, progress).map_err(|why| args.misnamed(why))
}

/// Whoever runs this.
pub fn me() -> Caller {
    Caller { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw(), umask: 0 }
}
