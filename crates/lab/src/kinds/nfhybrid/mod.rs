//! nfhybrid: a small SSD over a large disk.

pub mod mkfs;
pub mod options;

pub(crate) mod play;

use super::options::{in_memory, prealloc, value_of};
use super::probe::Part;
use super::volume::{Access, CheckOptions, CheckReport, Problem, VolumeArgs};
use super::{Kind, LiesOn, Mkfs, volume};
use crate::stack::model::Model;
use crate::stack::{Caching, ERASE_BLOCK_BYTES};
use bimetal_base::{Error, Result};
use bimetal_cache::device::PAGE_BYTES;
use bimetal_media::file::{self, Cached, FileDevice};
use bimetal_media::guard::{self, Claim, Target};
use bimetal_media::metered::{Devices, Metered};
use bimetal_media::{BlockDevice, overlay::Overlay};
use bimetal_nfhybrid::probe::{Half, Role, State};
use bimetal_nfhybrid::{self as nfhybrid, NfHybrid, Recover, check};
use bimetal_vfs::FileSystem;
use clap::{Args, FromArgMatches};
use mkfs::NfhybridArgs;
use options::{NFHYBRID_OPTIONS, nfhybrid_options};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// See [`super`].
pub const KIND: Kind = Kind {
    name: "nfhybrid",
    about: "a small SSD over a large disk; the disk half is a standard ext4",
    options: NFHYBRID_OPTIONS,
    access_times: true,
    lies_on: LiesOn::Halves,
    mkfs: Some(Mkfs {
        command: |command| {
            NfhybridArgs::augment_args(command)
                .about("Make a hybrid of a small SSD and a large disk")
                .long_about(
                    "Make a hybrid of a small SSD and a large disk\n\n\
                     The disk half becomes a standard ext4 (made by mke2fs), which any Linux can mount alone.",
                )
                .after_help(mkfs::EXAMPLES)
        },
        parse: |matches| Ok(Box::new(NfhybridArgs::from_arg_matches(matches)?)),
    }),
    open: Some(open),
    check: Some(check_volume),
    probe: Some(probe),
    play: Some(play::play),
};

fn probe(path: &Path) -> Result<Option<Part>> {
    // Shared, and without a queue: it is one of many that udev has looked at.
    let options = file::Options { queued: false, ..Default::default() };
    let device = FileDevice::open_with(path, &options)?;
    let half = nfhybrid::probe::probe(&device);
    let is_reused = |half: &Half| half.role == Role::Ssd && nfhybrid::reused_for(&device, path).is_some();
    // What carries another's mark, too, is assembled by nobody before somebody has looked at it.
    let is_marked = || guard::mark_at(path).is_ok_and(|mark| mark.is_some());
    Ok(half.filter(|half| !is_reused(half) && !is_marked()).map(|half| {
        let state = match half.state {
            State::Clean => ("clean", "left in order"),
            State::Open => {
                ("open", "in use, or it was when the power failed: the next mount of both halves recovers")
            }
            State::Degraded => ("degraded", "the disk half went on without its SSD"),
            State::Damaged => ("damaged", "what it says of itself is damaged; see: bimetal fsck"),
            State::Unknown => ("unknown", "it is of a version that this program does not know"),
        };
        let role = match half.role {
            Role::Ssd => "ssd",
            Role::Disk => "disk",
        };
        let text = |uuid: Option<[u8; 16]>| uuid.map(Uuid::from_bytes);
        Part { role, volume: text(half.volume()), uuid: text(half.uuid), state: Some(state) }
    }))
}

/// Default of `cache-size`, bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// How far the page cache of a mount reads ahead of a sequential reader.
const CACHE_READ_AHEAD_PAGES: u32 = 32;

/// For how long the page cache of a mount may hold a change before it writes it, if nobody flushes.
const CACHE_DIRTY_AGE: Duration = Duration::from_secs(30);

struct Prepared {
    volume: nfhybrid::Prepared,
    source: String,
    writable: bool,
    devices: Devices,
    ahead: u64,
}

fn open<'a>(
    args: &'a VolumeArgs,
    access: Access,
    options: &[String],
) -> Result<Box<dyn volume::Prepared + 'a>> {
    let path = args.disk()?;
    let direct = options.iter().any(|option| option == "direct");
    let only_looks = access == Access::Read;
    let own = nfhybrid::Options { manual: only_looks, over_copies: only_looks, ..nfhybrid_options(options)? };
    // Whoever says what is to become of its log does not need it written.
    let only_read = own.recover != Recover::Log || own.without_ssd || args.without_ssd;
    let (disk, ssd) = claim_halves(path, args.ssd.as_deref(), access, only_read)?;
    let mut devices = Devices::new();
    let mut half = |role, claim, model: &Option<Model>| {
        open_half(role, (claim, model.as_ref()), access, direct, &mut devices)
    };
    let disk = behind_cache(half("disk", disk, &args.models.disk)?, options)?;
    let ssd = ssd.map(|claim| half("ssd", claim, &args.models.ssd)).transpose()?;
    let ahead = prealloc(options)?;
    let mut options = own;
    options.without_ssd |= args.without_ssd;
    let volume = NfHybrid::prepare(disk, ssd, options)?;
    let writable = access == Access::Write;
    Ok(Box::new(Prepared { volume, source: args.source(), writable, devices, ahead }))
}

impl volume::Prepared for Prepared {
    fn look(&self) -> Result<Box<dyn FileSystem>> {
        Ok(Box::new(self.volume.look()?))
    }

    fn begin(self: Box<Self>) -> Result<(Box<dyn FileSystem>, Devices)> {
        let Prepared { volume, source, writable, devices, .. } = *self;
        let only = if writable { "" } else { "; this only reads: neither half is changed" };
        let told = volume.notes();
        told.iter().for_each(|note| tracing::warn!("{source}: {note}{only}"));
        let fs = volume.begin()?;
        let later = fs.notes().into_iter().filter(|note| !told.contains(note));
        later.for_each(|note| tracing::warn!("{source}: {note}{only}"));
        Ok((Box::new(fs), devices))
    }

    fn memory_ahead(&self) -> u64 {
        self.ahead
    }
}

/// Claims the halves that are named, both before either is touched. With `only_read`, an SSD half that takes no writes is read.
fn claim_halves(
    disk: &Path,
    ssd: Option<&Path>,
    access: Access,
    only_read: bool,
) -> Result<(Arc<Claim>, Option<Arc<Claim>>)> {
    let writable = access == Access::Write;
    let disk = Target::new("--disk", disk, guard::Role::changed_if(writable));
    let of_ssd =
        |path| nfhybrid::role_of_ssd(path, writable, only_read).map(|role| Target::new("--ssd", path, role));
    let ssd = ssd.map(of_ssd).transpose()?;
    let targets: Vec<Target> = [disk].into_iter().chain(ssd).collect();
    let mut claims = guard::claim(&targets, false)?.into_iter();
    Ok((claims.next().ok_or(Error::BadArgument)?, claims.next()))
}

/// Both halves of a volume that is not mounted, to be read: disk, SSD.
///
/// # Errors
/// One is in use or cannot be read.
pub fn halves_to_read(disk: &Path, ssd: &Path) -> Result<[Arc<dyn BlockDevice>; 2]> {
    let (disk, ssd) = claim_halves(disk, Some(ssd), Access::Read, false)?;
    let ssd = FileDevice::over(ssd.ok_or(Error::BadArgument)?, &file::Options::of_ssd(false))?;
    Ok([Arc::new(FileDevice::over(disk, &file::Options::default())?), Arc::new(ssd)])
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
    let writable = claim.role() != guard::Role::Read;
    let options = match direct {
        true => file::Options { writable, cached: Cached::Nothing, ..Default::default() },
        false if role == "ssd" => file::Options::of_ssd(writable),
        false => file::Options { writable, ..Default::default() },
    };
    let device = FileDevice::over(claim, &options)?;
    match role {
        "disk" => nfhybrid::refuse_reused_disk(&device)?,
        // To be read, the second superblock does.
        _ if options.writable => nfhybrid::refuse_reused_ssd(&device)?,
        _ => {}
    }
    if options.writable && access == Access::Write {
        nfhybrid::refuse_marked(&device)?;
    }
    let device: Arc<dyn BlockDevice> = Arc::new(device);
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
    let caching = Caching {
        read_ahead: CACHE_READ_AHEAD_PAGES,
        dirty_age: Some(CACHE_DIRTY_AGE),
        ..Caching::new(policy, bytes, PAGE_BYTES)
    };
    Ok(caching.over(device, ERASE_BLOCK_BYTES)?)
}

fn check_volume(
    args: &VolumeArgs,
    options: CheckOptions,
    progress: &dyn Fn(&'static str),
) -> Result<CheckReport> {
    let disk = args.disk()?;
    let CheckOptions { repair, lossy, deep } = options;
    let findings = check::check(
        &check::Plan { disk, ssd: args.ssd.as_deref(), without_ssd: args.without_ssd, repair, lossy, deep },
        progress,
    )?;
    let problem = |found: check::Problem| {
        let check::Problem { what, why, count, repaired, lost, .. } = found;
        Problem { what, why, count, repaired, lost }
    };
    let mut report = CheckReport {
        problems: findings.problems.into_iter().map(problem).collect(),
        notes: findings.notes,
        changed: findings.changed,
        said: findings.e2fsck,
        partial: findings.partial,
        ..CheckReport::default()
    };
    report.count("inodes", findings.inodes);
    report.count("operations_only_on_ssd", findings.operations_recovered);
    if deep {
        report.count("compared_bytes", findings.compared_bytes);
    }
    Ok(report)
}
