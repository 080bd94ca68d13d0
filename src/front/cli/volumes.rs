//! Where the command line meets the file systems: which there are, and how each is made, opened and checked.
//!
//! Verbs know nothing below this file; a new kind of file system is a line in [`KINDS`] and an arm in each
//! function here.

use super::mkfs::{CmfsArgs, NfhybridArgs, OsdArgs};
use crate::cache;
use crate::cache::device::{CachedDevice, PAGE_BYTES};
use crate::front::fuse::{Devices, OptionSpec};
use crate::fs::cmfs::volume as cmfs;
use crate::fs::memfs::MemFs;
use crate::fs::nfhybrid::admission::Budget;
use crate::fs::nfhybrid::{self, Lag, NfHybrid, Recover, Renew, check, ssd, volume};
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

/// The kinds of file system, and what each is.
pub const KINDS: &[(&str, &str)] = &[
    ("nfhybrid", "a small SSD over a large disk; the disk half is a standard ext4"),
    ("cmfs", "files on raw NAND, their metadata in a thousandth of NVRAM"),
    ("osd", "an object store on raw NAND, one translation layer, with names above it"),
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
    PREALLOC,
];

const PREALLOC: OptionSpec = OptionSpec {
    name: "prealloc",
    value: Some("SIZE"),
    default: "64MiB",
    help: "memory touched in advance, so that no request has to wait for it",
};

/// Default of `prealloc`, bytes.
const PREALLOC_BYTES: u64 = 64 << 20;

/// Default of `cache-size`, bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// How far the page cache of a mount reads ahead of a sequential reader.
const CACHE_READ_AHEAD_PAGES: u32 = 32;

/// For how long the page cache of a mount may hold a change before it writes it, if nobody flushes.
const CACHE_DIRTY_AGE: Duration = Duration::from_secs(30);

/// Options of nfhybrid.
pub const NFHYBRID_OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "lag",
        value: Some("TIME[,SIZE]"),
        default: "5s,64MiB",
        help: "how far the disk half may be behind, in time and in bytes",
    },
    OptionSpec {
        name: "durability",
        value: Some("either|both"),
        default: "either",
        help: "what fsync waits for where no directory says otherwise: one half, or both",
    },
    PREALLOC,
    OptionSpec {
        name: "memory",
        value: Some("SIZE"),
        default: "256MiB",
        help: "memory for what is cached on the SSD, at 22 bytes a file of one piece; beyond it files are evicted",
    },
    OptionSpec {
        name: "direct",
        value: None,
        default: "off",
        help: "go round the kernel's page cache on both halves: less memory and a fifth more for long writes, slower for cold reads",
    },
    OptionSpec {
        name: "recover",
        value: Some("log|whole|disk"),
        default: "log",
        help: "apply what only the SSD's log holds; apply what is whole of a damaged one; or drop it and go by the disk alone",
    },
    OptionSpec {
        name: "without-ssd",
        value: None,
        default: "off",
        help: "mount the disk half alone although its SSD's log is open, which drops for ever what only that holds",
    },
    OptionSpec {
        name: "promote",
        value: Some("second|first|never"),
        default: "second",
        help: "what reads bring to the SSD: what is read twice while as much is read as the SSD holds, no streams, no backups; whatever the disk was read for, at once, as the paper has it; nothing",
    },
    OptionSpec {
        name: "promote-budget",
        value: Some("SIZE|none"),
        default: "what the SSD holds, 1GiB at least",
        help: "how many bytes a day reads may bring to the SSD",
    },
    OptionSpec {
        name: "cache",
        value: Some("POLICY[:OPTION=VALUE...]"),
        default: "none",
        help: "a page cache under the disk half, as cache=cflru:window=0.5; `bimetal list cache` shows the policies",
    },
    OptionSpec {
        name: "cache-size",
        value: Some("SIZE"),
        default: "64MiB",
        help: "how much that page cache holds",
    },
];

/// Options of cmfs.
pub const CMFS_OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "scan",
        value: None,
        default: "off",
        help: "believe the NAND alone, and write the NVRAM anew",
    },
    OptionSpec {
        name: "checkpoint",
        value: Some("32|64"),
        default: "none",
        help: "leave a checkpoint for YAFFS2 when it is unmounted, as machines with pointers of so many bits read it",
    },
];

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
    #[arg(long, value_name = "PROFILE", default_value = cmfs::DEVICE)]
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
    /// What else there is to say, in sentences.
    pub notes: Vec<String>,
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
    open_metered(args, access, options).map(|(fs, _)| fs)
}

/// [`open_volume`], and the devices it lies on.
pub fn open_metered(
    args: &VolumeArgs,
    access: Access,
    options: &[String],
) -> Result<(Box<dyn FileSystem>, Devices)> {
    match args.kind() {
        "cmfs" => {
            let fs = cmfs_volume(args, options)?.mount(access == Access::Write)?;
            Ok((Box::new(fs), Devices::new()))
        }
        "osd" => {
            let fs = osd::mount(osd_image(args)?, &args.device, access == Access::Write)?;
            Ok((Box::new(fs), Devices::new()))
        }
        "memfs" => open_memfs(options).map(|fs| (fs, Devices::new())),
        _ => open_nfhybrid(args, access, options),
    }
}

/// The image of an object store that the command line names.
fn osd_image(args: &VolumeArgs) -> Result<&Path> {
    args.nand.as_deref().ok_or_else(|| Error::invalid("osd: say where the NAND is: --nand IMAGE"))
}

/// The cmfs that the command line names.
fn cmfs_volume<'a>(args: &'a VolumeArgs, options: &[String]) -> Result<cmfs::Volume<'a>> {
    let nand = args.nand.as_deref();
    let nand = nand.ok_or_else(|| Error::invalid("cmfs: say where the NAND is: --nand IMAGE"))?;
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

fn open_nfhybrid(
    args: &VolumeArgs,
    access: Access,
    options: &[String],
) -> Result<(Box<dyn FileSystem>, Devices)> {
    let path = args
        .disk
        .as_deref()
        .ok_or_else(|| Error::invalid("nfhybrid: say where the disk half is: --disk DEVICE"))?;
    let mut devices = Devices::new();
    let direct = options.iter().any(|option| option == "direct");
    let (disk, ssd) = claim_halves(path, args.ssd.as_deref(), access)?;
    let mut half = |role, claim| open_half(role, claim, direct, &mut devices);
    let disk = behind_cache(half("disk", disk)?, options)?;
    let ssd = ssd.map(|claim| half("ssd", claim)).transpose()?;
    let manual = access == Access::Read;
    let ahead = prealloc(options)?;
    let mut options = nfhybrid::Options { manual, ..nfhybrid_options(options)? };
    options.without_ssd |= args.without_ssd;
    if access == Access::Write {
        crate::front::memory::keep(usize::try_from(ahead).unwrap_or(usize::MAX));
    }
    let fs = NfHybrid::open(disk, ssd, options)?;
    fs.notes().iter().for_each(|note| tracing::warn!("{}: {note}", args.source()));
    Ok((Box::new(fs), devices))
}

/// Claims the halves that are named, both before either is touched.
fn claim_halves(disk: &Path, ssd: Option<&Path>, access: Access) -> Result<(Arc<Claim>, Option<Arc<Claim>>)> {
    let role = Role::changed_if(access == Access::Write);
    let disk = Target::new("--disk", disk, role);
    let ssd = ssd.map(|path| Target::new("--ssd", path, role));
    let targets: Vec<Target> = [disk].into_iter().chain(ssd).collect();
    let mut claims = guard::claim(&targets, false)?.into_iter();
    Ok((claims.next().ok_or(Error::BadArgument)?, claims.next()))
}

/// A half's device. One that is only looked at is read through a layer that keeps changes in memory, so that
/// recovery can be gone through without a trace.
fn open_half(
    role: &'static str,
    claim: Arc<Claim>,
    direct: bool,
    devices: &mut Devices,
) -> Result<Arc<dyn BlockDevice>> {
    let writable = claim.role() != Role::Read;
    let options = file::Options { writable, direct, ..Default::default() };
    let device = Arc::new(Metered::new(Arc::new(FileDevice::over(claim, &options)?)));
    devices.push((role, device.clone()));
    Ok(if writable { device } else { Arc::new(Overlay::new(device)) })
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
    let pages = size.map_or(Ok(CACHE_BYTES), parse_size)? / PAGE_BYTES;
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

/// The value of the last `name=value` among the options.
fn value_of<'a>(options: &'a [String], name: &str) -> Option<&'a str> {
    options.iter().rev().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
}

/// The options of a mount of nfhybrid; those that are not the file system's own are passed over.
pub fn nfhybrid_options(options: &[String]) -> Result<nfhybrid::Options> {
    let mut parsed = nfhybrid::Options::default();
    for option in options {
        match option.split_once('=') {
            Some(("lag", value)) => parsed.lag = parse_lag(value)?,
            Some(("durability", value)) => parsed.durability = value.parse()?,
            Some(("promote", value)) => parsed.promote = value.parse()?,
            Some(("promote-budget", value)) => parsed.promote_budget = Some(parse_budget(value)?),
            Some(("prealloc" | "cache" | "cache-size", _)) => {}
            Some(("memory", value)) => parsed.memory = Some(parse_memory(value)?),
            None if option == "direct" => {}
            None if option == "noatime" => parsed.access_times.renew = Renew::Never,
            None if option == "relatime" => parsed.access_times.renew = Renew::Relative,
            None if option == "strictatime" => parsed.access_times.renew = Renew::Always,
            None if option == "nodiratime" => parsed.access_times.dirs = false,
            Some(("recover", "log")) => parsed.recover = Recover::Log,
            Some(("recover", "whole")) => parsed.recover = Recover::Whole,
            Some(("recover", "disk")) => parsed.recover = Recover::Disk,
            None if option == "without-ssd" => parsed.without_ssd = true,
            _ => {
                return Err(Error::invalid(format!(
                    "mount option {option}: see `bimetal list mount-option`"
                )));
            }
        }
    }
    Ok(parsed)
}

fn prealloc(options: &[String]) -> Result<u64> {
    value_of(options, "prealloc").map_or(Ok(PREALLOC_BYTES), parse_size)
}

fn parse_memory(text: &str) -> Result<u64> {
    let least = nfhybrid::ssd::MEMORY_MIN;
    let bytes = parse_size(text).map_err(|error| {
        Error::invalid(format!("mount option memory: {error}; write for example memory=256MiB"))
    })?;
    if bytes < least {
        return Err(Error::invalid(format!(
            "mount option memory: {text} is too little; it takes {} or more",
            show_size(least)
        )));
    }
    Ok(bytes)
}

/// `5s`, `64MiB`, or both with a comma between.
fn parse_lag(text: &str) -> Result<Lag> {
    let mut lag = Lag::default();
    for part in text.split(',') {
        match (humantime::parse_duration(part), parse_size(part)) {
            (Ok(time), _) if time.as_millis() >= 100 => lag.time = time,
            (_, Ok(bytes)) if bytes >= 1 << 20 => lag.bytes = bytes,
            _ => {
                return Err(Error::invalid(format!(
                    "lag '{text}': '{part}' is neither a time of 100ms or more nor a size of 1MiB or more; write for example lag=5s,64MiB"
                )));
            }
        }
    }
    Ok(lag)
}

/// Bytes a day, or `none` for no limit.
fn parse_budget(text: &str) -> Result<Budget> {
    match (text, parse_size(text)) {
        ("none", _) => Ok(Budget::new(None)),
        (_, Ok(bytes)) => Ok(Budget::new(Some(bytes))),
        (_, Err(_)) => Err(Error::invalid(format!(
            "promote-budget '{text}' is neither a size nor none; write for example promote-budget=20GiB"
        ))),
    }
}

fn open_memfs(options: &[String]) -> Result<Box<dyn FileSystem>> {
    let mut size = half_of_memory();
    let ahead = prealloc(options)?;
    for option in options {
        if let Some(("size", value)) = option.split_once('=') {
            size = parse_size(value)?;
        }
    }
    crate::front::memory::keep(usize::try_from(ahead.min(size)).unwrap_or(usize::MAX));
    Ok(Box::new(MemFs::new(size, &me())))
}

/// Whoever runs this.
fn me() -> Caller {
    Caller { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw(), umask: 0 }
}

fn half_of_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit) / 2
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
    let problem = |why: String| Problem { what: args.source(), why, repaired: false };
    let mut report =
        FsckReport { problems: checked.problems.into_iter().map(problem).collect(), ..FsckReport::default() };
    for problem in crate::fs::osdfs::check(&mut store)? {
        report.problems.push(Problem { what: args.source(), why: problem, repaired: false });
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
    let disk = args
        .disk
        .as_deref()
        .ok_or_else(|| Error::invalid("nfhybrid: say where the disk half is: --disk DEVICE"))?;
    let FsckOptions { repair, lossy, deep } = options;
    let findings = check::check(
        &check::Plan { disk, ssd: args.ssd.as_deref(), without_ssd: args.without_ssd, repair, lossy, deep },
        progress,
    )?;
    let problem =
        |found: check::Problem| Problem { what: found.what, why: found.why, repaired: found.repaired };
    let mut report = FsckReport {
        problems: findings.problems.into_iter().map(problem).collect(),
        notes: findings.notes,
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
