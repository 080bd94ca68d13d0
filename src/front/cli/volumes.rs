//! Where the command line meets the file systems: which there are, and how each is made, opened and checked.
//!
//! Verbs know nothing below this file; a new kind of file system is a line in [`KINDS`] and an arm in each
//! function here.

use super::mkfs::{CmfsArgs, NfhybridArgs, OsdArgs};
use super::stack::{Model, Models};
use crate::cache;
use crate::cache::device::{CachedDevice, PAGE_BYTES};
use crate::front::fuse::{Devices, OptionSpec};
use crate::front::kinds::options::{CMFS_OPTIONS, MEMFS_OPTIONS, NFHYBRID_OPTIONS, nfhybrid_options};
use crate::front::kinds::options::{half_of_memory, in_memory, prealloc, value_of};
use crate::front::names;
use crate::fs::cmfs::volume as cmfs;
use crate::fs::memfs::MemFs;
use crate::fs::nfhybrid::{self, NfHybrid, Recover, check, ssd, volume};
use crate::fs::osd::Format;
use crate::fs::osdfs::volume as osd;
use crate::fs::{Caller, FileSystem};
use crate::media::file::{self, FileDevice};
use crate::media::guard::{self, Claim, Role, Target};
use crate::media::nand::Nand;
use crate::media::{BlockDevice, metered::Metered, overlay::Overlay};
use crate::units::{parse_size, show_size};
use crate::{Error, Result};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Default of `cache-size`, bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// How far the page cache of a mount reads ahead of a sequential reader.
const CACHE_READ_AHEAD_PAGES: u32 = 32;

/// For how long the page cache of a mount may hold a change before it writes it, if nobody flushes.
const CACHE_DIRTY_AGE: Duration = Duration::from_secs(30);

/// Which file system, by its devices or images.
#[derive(Args, Clone, Debug)]
pub struct VolumeArgs {
    /// Kind of file system
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "nfhybrid",
          value_parser = ["nfhybrid", "cmfs", "osd", "memfs"])]
    pub kind: String,
    /// Image of a NAND part, spare areas included, or an MTD device (/dev/mtdN); makes the type osd or cmfs, as it holds
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NAND")]
    pub nand: Option<PathBuf>,
    /// NVRAM beside it: a file or a device to map
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NVRAM", requires = "nand")]
    pub nvram: Option<PathBuf>,
    /// Profile of the NAND part: a built-in name or a file
    #[arg(long, value_name = "PROFILE", default_value = cmfs::DEVICE, value_parser = names::DEVICE, hide_possible_values = true)]
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
    /// How many things this tells of.
    pub count: u64,
    /// It is right now.
    pub repaired: bool,
}

/// What a check found in all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FsckReport {
    /// Everything that was wrong.
    pub problems: Vec<Problem>,
    /// What else there is to say, in sentences.
    pub notes: Vec<String>,
    /// The file system was written to.
    pub changed: bool,
    /// What a checker that was called said, line by line.
    pub said: Vec<String>,
    /// Counts of what was looked at, for people: `inodes`, `blocks`, …
    pub checked: serde_json::Map<String, serde_json::Value>,
}

impl FsckReport {
    /// Whether nothing is wrong any more.
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    /// How many things are wrong: all that were, and those still.
    pub fn counts(&self) -> (u64, u64) {
        let count =
            |all: bool| self.problems.iter().filter(|one| all || !one.repaired).map(|one| one.count).sum();
        (count(true), count(false))
    }
}

impl VolumeArgs {
    /// What `mount` and `df` shall show as the source.
    pub fn source(&self) -> String {
        let halves = [&self.ssd, &self.disk, &self.nand, &self.nvram]
            .into_iter()
            .flatten()
            .map(|path| path.display().to_string());
        let halves: Vec<_> = halves.collect();
        if halves.is_empty() { self.kind().to_string() } else { halves.join("+") }
    }

    /// The kind of file system: as given, or as follows from the images.
    fn kind(&self) -> &str {
        match &self.nand {
            Some(nand) if Nand::is_image(nand) => "osd",
            Some(_) => "cmfs",
            None => &self.kind,
        }
    }

    fn disk(&self) -> Result<&Path> {
        let disk = self.disk.as_deref();
        disk.ok_or_else(|| Error::invalid("nfhybrid: say where the disk half is: --disk DEVICE"))
    }

    fn nand(&self) -> Result<&Path> {
        let nand = self.nand.as_deref();
        nand.ok_or_else(|| Error::invalid(format!("{}: say where the NAND is: --nand IMAGE", self.kind())))
    }

    /// An error if what the command line has to name of this kind of file system is missing.
    pub fn check_named(&self) -> Result<()> {
        match self.kind() {
            "cmfs" | "osd" => self.nand().map(drop),
            "memfs" => Ok(()),
            _ => self.disk().map(drop),
        }
    }

    /// Whether this kind of file system takes the mount options about access times.
    pub fn keeps_access_times(&self) -> bool {
        self.kind() == "nfhybrid"
    }

    /// The mount options of this kind of file system.
    pub fn options(&self) -> &'static [OptionSpec] {
        match self.kind() {
            "cmfs" => CMFS_OPTIONS,
            "osd" => &[],
            "memfs" => MEMFS_OPTIONS,
            _ => NFHYBRID_OPTIONS,
        }
    }
}

/// Opens a file system with options of its own (those of [`VolumeArgs::options`], as `name` or `name=value`).
pub fn open_volume(args: &VolumeArgs, access: Access, options: &[String]) -> Result<Box<dyn FileSystem>> {
    prepare(args, access, options)?.begin().map(|(fs, _)| fs)
}

/// A volume that is about to be opened, and the devices it lies on. Nothing was written so far.
pub struct Prepared<'a> {
    volume: Volume<'a>,
    writable: bool,
    devices: Devices,
}

enum Volume<'a> {
    Cmfs(cmfs::Volume<'a>),
    Osd(&'a Path, &'a str),
    Memfs(MemFs),
    NfHybrid(Box<nfhybrid::Prepared>, String),
}

impl Prepared<'_> {
    /// The volume as it would be, to see whether what is wanted of it can be done; nothing of it changes.
    pub fn look(&self) -> Result<Box<dyn FileSystem>> {
        Ok(match &self.volume {
            Volume::Cmfs(volume) => Box::new(volume.mount(false)?),
            Volume::Osd(image, device) => Box::new(osd::mount(image, device, false)?),
            Volume::Memfs(_) => Box::new(MemFs::new(half_of_memory(), &me())),
            Volume::NfHybrid(prepared, _) => Box::new(prepared.look()?),
        })
    }

    /// Opens it.
    pub fn begin(self) -> Result<(Box<dyn FileSystem>, Devices)> {
        let fs: Box<dyn FileSystem> = match self.volume {
            Volume::Cmfs(volume) => Box::new(volume.mount(self.writable)?),
            Volume::Osd(image, device) => Box::new(osd::mount(image, device, self.writable)?),
            Volume::Memfs(fs) => Box::new(fs),
            Volume::NfHybrid(prepared, source) => {
                let only = if self.writable { "" } else { "; this only reads: neither half is changed" };
                let told = prepared.notes();
                told.iter().for_each(|note| tracing::warn!("{source}: {note}{only}"));
                let fs = prepared.begin()?;
                let later = fs.notes().into_iter().filter(|note| !told.contains(note));
                later.for_each(|note| tracing::warn!("{source}: {note}{only}"));
                Box::new(fs)
            }
        };
        Ok((fs, self.devices))
    }
}

/// All of [`open_volume`] that can be done without writing; what refuses it shows here, as far as that is possible.
pub fn prepare<'a>(args: &'a VolumeArgs, access: Access, options: &[String]) -> Result<Prepared<'a>> {
    let mut devices = Devices::new();
    let volume = match args.kind() {
        "cmfs" => Volume::Cmfs(cmfs_volume(args, options)?),
        "osd" => Volume::Osd(osd_image(args)?, &args.device),
        "memfs" => Volume::Memfs(open_memfs(options)?),
        _ => {
            let prepared = prepare_nfhybrid(args, access, options, &mut devices)?;
            Volume::NfHybrid(Box::new(prepared), args.source())
        }
    };
    Ok(Prepared { volume, writable: access == Access::Write, devices })
}

/// The image of an object store that the command line names.
fn osd_image(args: &VolumeArgs) -> Result<&Path> {
    args.nand()
}

/// The cmfs that the command line names.
fn cmfs_volume<'a>(args: &'a VolumeArgs, options: &[String]) -> Result<cmfs::Volume<'a>> {
    let nand = args.nand()?;
    let mut volume = cmfs::Volume {
        nand,
        nvram: args.nvram.as_deref(),
        device: &args.device,
        scan: false,
        checkpoint: None,
        plain: args.yaffs2,
    };
    for option in options {
        match option.as_str() {
            "scan" => volume.scan = true,
            "checkpoint=32" => volume.checkpoint = Some(4),
            "checkpoint=64" => volume.checkpoint = Some(8),
            _ => {
                let see = format!("mount option {option}: see `bimetal list mount-option`");
                return Err(Error::invalid(see));
            }
        }
    }
    Ok(volume)
}

/// `compact` or `paper`.
pub fn parse_layout(text: &str) -> Result<cmfs_core::Layout> {
    match text {
        "compact" => Ok(cmfs_core::Layout::Compact),
        "paper" => Ok(cmfs_core::Layout::Paper),
        _ => Err(Error::invalid(format!("layout '{text}': there are compact and paper"))),
    }
}

fn prepare_nfhybrid(
    args: &VolumeArgs,
    access: Access,
    options: &[String],
    devices: &mut Devices,
) -> Result<nfhybrid::Prepared> {
    let path = args.disk()?;
    let direct = options.iter().any(|option| option == "direct");
    let manual = access == Access::Read;
    let own = nfhybrid::Options { manual, ..nfhybrid_options(options)? };
    // Whoever says what is to become of its log does not need it written.
    let only_read = own.recover != Recover::Log || own.without_ssd || args.without_ssd;
    let (disk, ssd) = claim_halves(path, args.ssd.as_deref(), access, only_read)?;
    let mut half = |role, claim, model: &Option<Model>| {
        open_half(role, (claim, model.as_ref()), access, direct, devices)
    };
    let disk = behind_cache(half("disk", disk, &args.models.disk)?, options)?;
    let ssd = ssd.map(|claim| half("ssd", claim, &args.models.ssd)).transpose()?;
    let ahead = prealloc(options)?;
    let mut options = own;
    options.without_ssd |= args.without_ssd;
    if access == Access::Write {
        crate::front::memory::preallocate(usize::try_from(ahead).unwrap_or(usize::MAX));
    }
    NfHybrid::prepare(disk, ssd, options)
}

/// Claims the halves that are named, both before either is touched. With `only_read`, an SSD half that takes no writes is read.
fn claim_halves(
    disk: &Path,
    ssd: Option<&Path>,
    access: Access,
    only_read: bool,
) -> Result<(Arc<Claim>, Option<Arc<Claim>>)> {
    let writable = access == Access::Write;
    let disk = Target::new("--disk", disk, Role::changed_if(writable));
    let of_ssd =
        |path| nfhybrid::role_of_ssd(path, writable, only_read).map(|role| Target::new("--ssd", path, role));
    let ssd = ssd.map(of_ssd).transpose()?;
    let targets: Vec<Target> = [disk].into_iter().chain(ssd).collect();
    let mut claims = guard::claim(&targets, false)?.into_iter();
    Ok((claims.next().ok_or(Error::BadArgument)?, claims.next()))
}

/// Both halves of a volume that is not mounted, to be read: disk, SSD.
pub fn halves_to_read(disk: &Path, ssd: &Path) -> Result<[Arc<dyn BlockDevice>; 2]> {
    let (disk, ssd) = claim_halves(disk, Some(ssd), Access::Read, false)?;
    let open = |claim| -> Result<Arc<dyn BlockDevice>> {
        Ok(Arc::new(FileDevice::over(claim, &file::Options::default())?))
    };
    Ok([open(disk)?, open(ssd.ok_or(Error::BadArgument)?)?])
}

/// A half's device. One that is only looked at is read through a layer that keeps changes in memory, so that
/// recovery can be gone through without a trace. One that takes no writes refuses them, as a failing SSD does.
fn open_half(
    role: &'static str,
    (claim, model): (Arc<Claim>, Option<&Model>),
    access: Access,
    direct: bool,
    devices: &mut Devices,
) -> Result<Arc<dyn BlockDevice>> {
    let writable = claim.role() != Role::Read;
    let options = file::Options { writable, direct, ..Default::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::over(claim, &options)?);
    let device = model.map_or(Ok(device.clone()), |model| model.over(device))?;
    let device = Arc::new(Metered::new(device));
    devices.push((role, device.clone()));
    Ok(if access == Access::Write { device } else { Arc::new(Overlay::new(device)) })
}

/// A half behind the page cache that the options ask for, if they do.
fn behind_cache(device: Arc<dyn BlockDevice>, options: &[String]) -> Result<Arc<dyn BlockDevice>> {
    let (policy, size) = (value_of(options, "cache"), value_of(options, "cache-size"));
    let Some(policy) = policy.filter(|policy| *policy != "none") else {
        return match size {
            Some(_) => Err(Error::invalid("mount option cache-size: which policy? say cache=POLICY, too")),
            None => Ok(device),
        };
    };
    let bytes = size.map_or(Ok(CACHE_BYTES), |text| in_memory("cache-size", text, 0, "64MiB"))?;
    let pages = bytes / PAGE_BYTES;
    let pages = u32::try_from(pages).map_err(|_| {
        Error::invalid(format!("mount option cache-size: more than {}", show_size(PAGE_BYTES << 30)))
    })?;
    let config = cache::Config {
        read_ahead: CACHE_READ_AHEAD_PAGES,
        dirty_age: Some(CACHE_DIRTY_AGE),
        ..cache::Config::new(pages)
    };
    Ok(Arc::new(CachedDevice::new(device, policy, &config)?))
}

fn open_memfs(options: &[String]) -> Result<MemFs> {
    let mut size = half_of_memory();
    let ahead = prealloc(options)?;
    for option in options {
        if let Some(("size", value)) = option.split_once('=') {
            size = parse_size(value)?;
            if size > 2 * half_of_memory() {
                return Err(Error::invalid(format!(
                    "mount option size: {value} is more than this machine's memory, {}",
                    show_size(2 * half_of_memory())
                )));
            }
        }
    }
    crate::front::memory::preallocate(usize::try_from(ahead.min(size)).unwrap_or(usize::MAX));
    Ok(MemFs::new(size, &me()))
}

/// Whoever runs this.
fn me() -> Caller {
    Caller { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw(), umask: 0 }
}

/// Makes an nfhybrid; the text tells what was made.
pub fn mkfs_nfhybrid(args: &NfhybridArgs) -> Result<String> {
    volume::make(&plan_of(args))?;
    Ok(format!(
        "made an nfhybrid of {} and {}; mount it with:\n  bimetal mount --ssd {0} --disk {1} MOUNTPOINT",
        args.ssd.display(),
        args.disk.display()
    ))
}

fn plan_of(args: &NfhybridArgs) -> volume::Plan<'_> {
    let sections = args.sections.iter().map(|spec| ssd::SectionConfig {
        name: spec.name.clone(),
        extent_bytes: spec.extent_bytes,
        size_bytes: spec.size_bytes,
    });
    let sections: Vec<_> = sections.collect();
    let mut config = ssd::Config { flash_block_bytes: args.flash_block, ..ssd::Config::default() };
    if sections.is_empty() {
        // Small files pack best into small extents.
        config.sections[0].extent_bytes = 16 << 10;
    } else {
        config.sections = sections;
    }
    if let Some(bytes) = args.log {
        config.log_bytes = bytes;
    }
    let mapped = args.maps.iter().map(|map| (map.dir.clone(), map.section.clone()));
    let bypassed = args.bypasses.iter().map(|dir| (dir.clone(), "bypass".to_string()));
    let rules = mapped.chain(bypassed).map(|(dir, section)| volume::Rule { dir, section }).collect();
    volume::Plan { disk: &args.disk, ssd: &args.ssd, config, rules, force: args.force }
}

/// Makes a cmfs; the text tells what was made.
pub fn mkfs_cmfs(args: &CmfsArgs) -> Result<String> {
    let (nand, nvram) = cmfs::make(&cmfs::Plan {
        nand: args.nand.clone(),
        nvram: args.nvram.clone(),
        device: args.device.clone(),
        size_bytes: args.size,
        nvram_bytes: args.nvram_size,
        layout: args.layout,
        force: args.force,
    })?;
    let beside = args.nvram.as_deref().map(|path| format!(" --nvram {}", path.display())).unwrap_or_default();
    let named =
        if args.device == cmfs::DEVICE { String::new() } else { format!(" --device {}", args.device) };
    Ok(format!(
        "made a cmfs on {} of NAND with {} of NVRAM; mount it with:\n  bimetal mount --nand {}{beside}{named} MOUNTPOINT",
        show_size(nand),
        show_size(nvram),
        args.nand.display()
    ))
}

/// Makes an object store; the text tells what was made.
pub fn mkfs_osd(args: &OsdArgs) -> Result<String> {
    let plan = osd::Plan {
        nand: args.nand.clone(),
        device: args.device.clone(),
        size_bytes: args.size,
        format: Format { segment_blocks: args.segment, placement: args.placement.clone() },
        bare: args.bare,
        force: args.force,
    };
    let total = show_size(osd::make(&plan, &me())?);
    let named = if args.device == osd::DEVICE { String::new() } else { format!(" --device {}", args.device) };
    let nand = args.nand.display();
    Ok(match args.bare {
        true => format!(
            "made an object store of {total}; put objects into it with:\n  bimetal osd put --nand {nand}{named} FILE"
        ),
        false => format!(
            "made an object store of {total} with a file system; mount it with:\n  bimetal mount -t osd --nand {nand}{named} MOUNTPOINT"
        ),
    })
}

fn fsck_osd(args: &VolumeArgs) -> Result<FsckReport> {
    let mut store = osd::open(osd_image(args)?, &args.device, false)?;
    let checked = store.check(true)?;
    let problem = |why: String| Problem { what: args.source(), why, count: 1, repaired: false };
    let mut report =
        FsckReport { problems: checked.problems.into_iter().map(problem).collect(), ..FsckReport::default() };
    for problem in crate::fs::osdfs::check(&mut store)? {
        report.problems.push(Problem { what: args.source(), why: problem, count: 1, repaired: false });
    }
    let mut count = |name: &str, value: u64| report.checked.insert(name.into(), value.into());
    count("objects", checked.objects);
    count("extents", checked.extents);
    count("bytes", checked.bytes);
    Ok(report)
}

/// Makes an ext4 with files in it the disk half of an nfhybrid; the text tells what was made.
pub fn adopt(args: &NfhybridArgs) -> Result<String> {
    volume::adopt(&plan_of(args))?;
    Ok(format!(
        "{} is the disk half of {} now, its files as they were; mount it with:\n  bimetal mount --ssd {1} --disk {0} MOUNTPOINT",
        args.disk.display(),
        args.ssd.display()
    ))
}

/// How far a check goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct FsckOptions {
    /// Repair what can be repaired without losing anything.
    pub repair: bool,
    /// Repair also what costs something.
    pub lossy: bool,
    /// Compare the halves.
    pub deep: bool,
}

/// Checks a file system that is not mounted, and repairs it if asked to; `progress` hears what is done now.
pub fn fsck(args: &VolumeArgs, options: FsckOptions, progress: &dyn Fn(&'static str)) -> Result<FsckReport> {
    match args.kind() {
        "cmfs" => fsck_cmfs(args, options.repair),
        "osd" => fsck_osd(args),
        "memfs" => Err(Error::invalid("memfs: there is nothing to check; it is gone with its mount")),
        _ => fsck_nfhybrid(args, options, progress),
    }
}

fn fsck_nfhybrid(
    args: &VolumeArgs,
    options: FsckOptions,
    progress: &dyn Fn(&'static str),
) -> Result<FsckReport> {
    let disk = args.disk()?;
    let FsckOptions { repair, lossy, deep } = options;
    let findings = check::check(
        &check::Plan { disk, ssd: args.ssd.as_deref(), without_ssd: args.without_ssd, repair, lossy, deep },
        progress,
    )?;
    let problem = |found: check::Problem| {
        let check::Problem { what, why, count, repaired, .. } = found;
        Problem { what, why, count, repaired }
    };
    let mut report = FsckReport {
        problems: findings.problems.into_iter().map(problem).collect(),
        notes: findings.notes,
        changed: findings.changed,
        said: findings.e2fsck,
        ..FsckReport::default()
    };
    let mut count = |name: &str, value: u64| report.checked.insert(name.into(), value.into());
    count("inodes", findings.inodes);
    count("operations_only_on_ssd", findings.operations_recovered);
    if deep {
        count("compared_bytes", findings.compared_bytes);
    }
    Ok(report)
}

fn fsck_cmfs(args: &VolumeArgs, repair: bool) -> Result<FsckReport> {
    let checked = cmfs_volume(args, &[])?.check(repair)?;
    let problem = |problem: &cmfs_core::Problem| Problem {
        what: match problem.object {
            0 => format!("block {}", problem.at),
            object => format!("object {object}, page {}", problem.at),
        },
        why: problem.why.to_string(),
        count: 1,
        repaired: checked.repaired,
    };
    let mut report =
        FsckReport { problems: checked.problems.iter().map(problem).collect(), ..FsckReport::default() };
    let opened = format!("{:?}", checked.report.kind).to_lowercase();
    let mut count = |name: &str, value: serde_json::Value| report.checked.insert(name.into(), value);
    count("objects", checked.objects.into());
    count("mount", opened.into());
    count("pages_replayed", checked.report.replayed_pages.into());
    count("pages_unreadable", checked.report.unreadable_pages.into());
    if !checked.report.why.is_empty() {
        count("scanned_because", checked.report.why.into());
    }
    Ok(report)
}
