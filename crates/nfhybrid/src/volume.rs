//! Making and adopting a volume: a disk half and the SSD half that belongs to it.

use super::NfHybrid;
use super::half::{refuse_marked, unmark};
use super::mount::{copy_has_pairing, is_no_ext4};
use super::pairing::{NoPairing, PAIRING_BYTES, Pairing, Saved};
use super::ssd::{self, Ssd};
use super::state::raised;
use bimetal_base::runtime;
use bimetal_base::time::{Stamp, Time};
use bimetal_base::units::{Ino, show_size};
use bimetal_base::{Error, Result};
use bimetal_ext4::{Ext4, Identity, Look, OpenOptions};
use bimetal_media::file::{FileDevice, Options};
use bimetal_media::guard::{self, LENT, Role, Target};
use bimetal_media::overlay::Overlay;
use bimetal_media::{BlockDevice, DeviceInfo};
use bimetal_vfs::{Caller, FileSystem, Kind, NewNode};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

/// A directory and the section (or `bypass`) it is mapped to.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Absolute path inside the volume.
    pub dir: String,
    /// Name of a section, or `bypass`.
    pub section: String,
}

/// What a new volume should be.
pub struct Plan<'a> {
    /// File or device of the disk half.
    pub disk: &'a Path,
    /// File or device of the SSD half.
    pub ssd: &'a Path,
    /// Layout of the SSD half.
    pub config: ssd::Config,
    /// Directories to make and map.
    pub rules: Vec<Rule>,
    /// Overwrite what is there, unless it is in use.
    pub force: bool,
}

/// Both halves, claimed and open.
struct Halves {
    disk: Arc<FileDevice>,
    ssd: Arc<FileDevice>,
}

impl Halves {
    /// Claims both before either is touched.
    fn claim(plan: &Plan, disk: Role) -> Result<Halves> {
        let targets =
            [Target::new("--ssd", plan.ssd, Role::Overwritten), Target::new("--disk", plan.disk, disk)];
        let mut claims = guard::claim(&targets, plan.force)?.into_iter();
        let mut open = |options| {
            let claim = claims.next().ok_or(Error::BadArgument)?;
            FileDevice::over(claim, &options).map(Arc::new)
        };
        let ssd = open(Options::of_ssd(true))?;
        let disk = open(Options { writable: true, ..Options::default() })?;
        Ok(Halves { ssd, disk })
    }
}

/// Makes an ext4 on the disk, the SSD half beside it, and the mapped directories.
///
/// What is lost with the SSD half that was there, in words, where `force` lets that go.
pub fn make(plan: &Plan) -> Result<Option<String>> {
    check_rules(plan)?;
    let dropped = dropped_with(plan, None)?;
    let Halves { disk, ssd } = Halves::claim(plan, Role::Overwritten)?;
    check_config(&*ssd, &plan.config)?;
    check_disk(&*disk)?;
    if !plan.rules.is_empty() {
        try_rules(plan, &*disk, ssd.clone())?;
    }
    unmark(&disk)?;
    unmark(&ssd)?;
    run_mke2fs(&disk)?;
    join(plan, disk, ssd)?;
    Ok(dropped)
}

/// What a trial's disk has at most, bytes: from 512 MiB on mke2fs makes it as it makes larger ones.
const TRIAL_BYTES: u64 = 1 << 30;

/// Makes the volume in memory, so that a rule that cannot be shows while both halves are what they were.
fn try_rules(plan: &Plan, disk: &dyn BlockDevice, ssd: Arc<dyn BlockDevice>) -> Result<()> {
    let failed = |why| Error::io("a trial of the rules in memory", why);
    let memory = rustix::fs::memfd_create("trial", rustix::fs::MemfdFlags::CLOEXEC);
    let memory = File::from(memory.map_err(|why| failed(why.into()))?);
    memory.set_len(disk.info().size_bytes.min(TRIAL_BYTES)).map_err(failed)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    let own = Options { writable: true, exclusive: true, ..Options::default() };
    let made = Arc::new(FileDevice::open_with(&path, &own)?);
    run_mke2fs(&made)?;
    join(plan, Arc::new(Overlay::new(made)), Arc::new(Overlay::new(ssd)))
}

/// Joins a new SSD half to an ext4 that already holds files; nothing on the disk moves. What is lost with the SSD half that
/// it had, in words, where `force` lets that go.
pub fn adopt(plan: &Plan) -> Result<Option<String>> {
    check_rules(plan)?;
    // Before the guard says that what is in the SSD's place holds something, which --force would overwrite.
    if is_ssd_half(plan.disk) && !is_same(plan.ssd, plan.disk) {
        let [ssd, disk] = [plan.ssd, plan.disk].map(Path::display);
        return Err(Error::invalid(format!(
            "{disk} is an SSD half, and was given as the disk half; exchange them: --ssd {disk} --disk {ssd}"
        )));
    }
    let claim = guard::claim_path(plan.disk, Role::Read);
    let mut own = None;
    if let Ok(device) = claim.and_then(|claim| FileDevice::over(claim, &Options::default())) {
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        if let Ok(look) = Ext4::look(&device) {
            own = Pairing::decode(look.pairing.as_ref()).ok().map(|pairing| pairing.ssd);
            if !plan.force {
                check_nothing_is_dropped(&device, &look)?;
            }
        }
    }
    let foreign = dropped_with(plan, own)?;
    let Halves { disk, ssd } = Halves::claim(plan, Role::Changed)?;
    check_config(&*ssd, &plan.config)?;
    refuse_marked(&disk)?;
    let shared: Arc<dyn BlockDevice> = disk.clone();
    // As it will be once its journal is replayed.
    let look = Ext4::look(&shared).map_err(|why| no_ext4(&disk, why))?;
    let dropped = held(&look).filter(|_| plan.force);
    let dropped = dropped.into_iter().chain(foreign).reduce(|own, foreign| format!("{own}; {foreign}"));
    if !plan.force {
        check_nothing_is_dropped(&shared, &look)?;
    }
    if !plan.rules.is_empty() {
        // A rule that cannot be shows in memory, while both halves are what they were.
        join(plan, Arc::new(Overlay::new(shared)), Arc::new(Overlay::new(ssd.clone())))?;
    }
    unmark(&ssd)?;
    join(plan, disk, ssd)?;
    Ok(dropped)
}

/// What only the log of an SSD half in the place of the new one holds, in words, where `force` lets that go; else the
/// refusal. Of the SSD `own` the disk says it better.
fn dropped_with(plan: &Plan, own: Option<[u8; 16]>) -> Result<Option<String>> {
    let claim = guard::claim_path(plan.ssd, Role::Read);
    let Ok(device) = claim.and_then(|claim| FileDevice::over(claim, &Options::of_ssd(false))) else {
        // The guard says why.
        return Ok(None);
    };
    let Ok(opened) = Ssd::open_everything(&device) else { return Ok(None) };
    if opened.ssd.is_clean() || own == Some(opened.ssd.uuid()) {
        return Ok(None);
    }
    let name = &device.info().name;
    let disk = uuid::Uuid::from_bytes(opened.ssd.pairing().disk_uuid);
    let held = format!("what was fsynced last to the disk {disk}, which only the log of {name} may hold");
    if plan.force {
        return Ok(Some(held));
    }
    Err(Error::invalid(format!(
        "{name} is an SSD half that was not left in order: {held}, would be lost; mount it with that disk once, get its \
         files off with `bimetal rescue --ssd {name} DIR`, or use --force to drop it for ever"
    )))
}

/// The refusal of what is no ext4, by what it is; of a damaged one, with what is wrong with it.
fn no_ext4(disk: &FileDevice, why: Error) -> Error {
    let other = disk.claim().and_then(|claim| guard::signature_of(claim).ok().flatten());
    let name = &disk.info().name;
    match other {
        Some(other) if is_no_ext4(&why) => Error::invalid(format!(
            "{name} holds {other}; what is adopted is an ext4 (mkfs nfhybrid makes a volume anew)"
        )),
        _ => why,
    }
}

fn is_same(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    of(a).is_some_and(|a| Some(a) == of(b))
}

/// What only the log of this disk's SSD holds, in words.
fn held(look: &Look) -> Option<String> {
    match Pairing::decode(look.pairing.as_ref()) {
        Ok(pairing) if matches!(pairing.state, Saved::LogOpen | Saved::Recovering) => Some(format!(
            "{}, which only the log of its SSD ({}) holds",
            pairing.only_in_log(),
            uuid::Uuid::from_bytes(pairing.ssd)
        )),
        _ => None,
    }
}

/// An error if an SSD half that this disk has, or may have, holds what would be lost with it.
fn check_nothing_is_dropped(disk: &Arc<dyn BlockDevice>, look: &Look) -> Result<()> {
    let name = &disk.info().name;
    if let Some(held) = held(look) {
        return Err(Error::invalid(format!(
            "{name} was not unmounted: {held}, would be lost; mount it with that SSD once, or use --force to drop it for ever"
        )));
    }
    let force = "or use --force to drop for ever what its SSD's log may hold";
    match Pairing::decode(look.pairing.as_ref()) {
        Ok(_) => Ok(()),
        Err(NoPairing::None) if !copy_has_pairing(disk.as_ref(), Some(look.identity.uuid)) => Ok(()),
        Err(NoPairing::None | NoPairing::Damaged) => Err(Error::corrupt(
            "the pairing to the SSD",
            format!(
                "it is damaged, so nobody knows what its SSD alone has; mount it with that SSD once, {force}"
            ),
            name,
        )),
        Err(NoPairing::Version(version)) => {
            let why =
                format!("it has version {version}; use the program that wrote it, or a newer one, {force}");
            Err(Error::unsupported(format!("the pairing of {name}"), why))
        }
    }
}

fn is_ssd_half(path: &Path) -> bool {
    let device = guard::claim_path(path, Role::Read)
        .and_then(|claim| FileDevice::over(claim, &Options::of_ssd(false)));
    device.is_ok_and(|device| Ssd::is_one(&device))
}

/// The smallest disk half: mke2fs makes no journal on less.
const DISK_BYTES_MIN: u64 = 2 << 20;

/// An error if a disk is too small for a disk half.
fn check_disk(disk: &dyn BlockDevice) -> Result<()> {
    let DeviceInfo { name, size_bytes, .. } = disk.info();
    if *size_bytes < DISK_BYTES_MIN {
        return Err(Error::invalid(format!(
            "{name} has {}; a disk half takes at least {}, so that an ext4 with a journal fits",
            show_size(*size_bytes),
            show_size(DISK_BYTES_MIN)
        )));
    }
    Ok(())
}

/// The largest log: a mount reads all of it into memory.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// An error if a layout makes no sense on a device.
fn check_config(ssd: &dyn BlockDevice, config: &ssd::Config) -> Result<()> {
    let most = LOG_BYTES_MAX.min(ssd.info().size_bytes / 2);
    if config.log_bytes > most && config.log_bytes > ssd::Config::default().log_bytes {
        return Err(Error::invalid(format!(
            "a log (--log) of {}: on {} it takes at most {}, half of the SSD and no more than {}",
            show_size(config.log_bytes),
            ssd.info().name,
            show_size(most),
            show_size(LOG_BYTES_MAX)
        )));
    }
    Ssd::check_config(ssd, config)
}

fn join(plan: &Plan, disk: Arc<dyn BlockDevice>, ssd: Arc<dyn BlockDevice>) -> Result<()> {
    join_devices(disk.clone(), ssd.clone(), &plan.config)?;
    if plan.rules.is_empty() {
        return Ok(());
    }
    let fs = NfHybrid::open(disk, Some(ssd), super::Options::default())?;
    for rule in &plan.rules {
        let refused = |why: Error| {
            Error::invalid(format!(
                "'{}' cannot be mapped to '{}': {why}; name another directory with --map or --bypass",
                rule.dir, rule.section
            ))
        };
        let dir = make_path(&fs, &rule.dir).map_err(refused)?;
        fs.map(dir, &rule.section).map_err(refused)?;
    }
    fs.shutdown()
}

/// What another program did to a device.
pub(super) struct Ran {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed; the device has its own name there.
    pub text: String,
}

/// Has a program of e2fsprogs work on a device that is claimed; its path is the last argument. `what` it does.
pub(super) fn lend(device: &FileDevice, program: &str, arguments: &[&str], what: &str) -> Result<Ran> {
    let name = &device.info().name;
    let place = if device.claim().is_some() { LENT } else { name };
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new(program);
    command.env("PATH", path).env("LC_ALL", "C").args(arguments).arg(place);
    let about = format!("{program} (from e2fsprogs) {what} the disk half and could not be run");
    let output = match device.claim() {
        Some(claim) => claim.lend(&mut command, &about)?,
        None => command.output().map_err(|error| Error::io(about, error))?,
    };
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    Ok(Ran { status: output.status, text: String::from_utf8_lossy(&text).replace(place, name) })
}

/// When a volume is made, and what identifies its SSD half: where it matters that the same bytes come out.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// The present.
    pub now: Stamp,
    /// A UUID.
    pub identity: [u8; 16],
}

/// Ties a clean ext4 and a new SSD half together. Until the disk knows the SSD, a mount takes it as stale.
pub fn join_devices(
    disk: Arc<dyn BlockDevice>,
    ssd_device: Arc<dyn BlockDevice>,
    config: &ssd::Config,
) -> Result<()> {
    let identity = *uuid::Uuid::new_v4().as_bytes();
    join_devices_as(disk, ssd_device, config, &Birth { now: runtime::Live::wall_clock(), identity })
}

/// [`join_devices`], made then and as said.
pub fn join_devices_as(
    disk: Arc<dyn BlockDevice>,
    ssd_device: Arc<dyn BlockDevice>,
    config: &ssd::Config,
    born: &Birth,
) -> Result<()> {
    let opening = OpenOptions { read_only: false, now: born.now, ..OpenOptions::default() };
    let mut ext4 = Ext4::open(disk, opening)?;
    let old = Pairing::decode(ext4.pairing().as_ref()).ok();
    let [a, b, c, d, ..] = born.identity;
    let epoch = raised(old.map_or(0, |pairing| pairing.epoch), u32::from_le_bytes([a, b, c, d]));
    let op = old.map_or(0, |pairing| pairing.op);
    let uuid = Ssd::format_named(
        ssd_device.as_ref(),
        config,
        &pairing_to(ext4.identity(), epoch, (epoch as u32, op)),
        born.identity,
    )?;
    let pairing = Pairing { ssd: uuid, epoch, op, state: Saved::Clean, reached: (0, 0), lag_tenths: 0 };
    let frozen = ext4.freeze(born.now, Some(&pairing.encode()))?;
    ext4.journal().commit(Time::ZERO, frozen.transaction)?;
    ext4.committed(frozen.tid);
    // What another copy of the superblock would bring back is older than any log: neither half may go by it alone.
    ext4.mark_copies(&mark_of(&pairing))?;
    ext4.close(born.now)?;
    let mut ssd = Ssd::open(ssd_device.as_ref(), ssd::DiskSide::default())?.ssd;
    for (offset, bytes) in ssd.mark_clean(pairing_to(ext4.identity(), epoch, (epoch as u32, op))) {
        ssd_device.write(offset, bytes)?;
        ssd_device.flush()?;
    }
    Ok(())
}

/// What the copies of the superblock say that transactions do not carry: go by me for nothing.
fn mark_of(pairing: &Pairing) -> [u8; PAIRING_BYTES] {
    Pairing { op: 0, state: Saved::LogOpen, reached: (0, 0), lag_tenths: 0, ..*pairing }.encode()
}

/// Marks the copies again where a tool (tune2fs, resize2fs) has put the primary over them: it may have said `clean`.
pub(super) fn mark_again(ext4: &Ext4, pairing: &Pairing) -> Result<()> {
    if pairing.ssd == [0; 16] {
        return Ok(());
    }
    let is_mark = |found: Pairing| found.ssd == pairing.ssd && found.op == 0 && found.state == Saved::LogOpen;
    match ext4.marked() {
        Some(area) if !Pairing::decode(Some(&area)).is_ok_and(is_mark) => ext4.mark_copies(&mark_of(pairing)),
        _ => Ok(()),
    }
}

/// How full an SSD's log is, in words.
pub(super) fn log_use(ssd: &Ssd) -> String {
    format!("{} of {} of its log in use", show_size(ssd.used()), show_size(ssd.capacity()))
}

/// What the SSD should see when it next meets the disk; `before` and `disk_op`: see [`ssd::Pairing`].
pub(super) fn pairing_to(disk: Identity, epoch: u64, (before, disk_op): (u32, u64)) -> ssd::Pairing {
    ssd::Pairing {
        disk_uuid: disk.uuid,
        epoch,
        before,
        disk_op,
        mount_count: disk.mount_count,
        mount_time: disk.mount_time,
        last_check: disk.check_time,
        write_time: disk.write_time,
    }
}

/// The directory at `path`, made with its parents where it is missing.
fn make_path(fs: &NfHybrid, path: &str) -> Result<Ino> {
    let mut at = fs.root();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
        let attr = match fs.lookup(at, name.as_bytes()) {
            Err(Error::NotFound) => fs.create(&Caller::default(), at, name.as_bytes(), &node)?,
            found => found?,
        };
        if attr.kind != Kind::Dir {
            return Err(Error::invalid(format!("'{name}' is not a directory")));
        }
        at = attr.ino;
    }
    Ok(at)
}

fn check_rules(plan: &Plan) -> Result<()> {
    for rule in &plan.rules {
        if !rule.dir.starts_with('/') {
            return Err(Error::invalid(format!("'{}' is not an absolute path inside the volume", rule.dir)));
        }
        let known = plan.config.sections.iter().any(|section| section.name == rule.section);
        if !known && rule.section != super::policy::BYPASS {
            return Err(Error::invalid(format!(
                "{}: no --section is called '{}'; name one of them, or bypass",
                rule.dir, rule.section
            )));
        }
    }
    Ok(())
}

fn run_mke2fs(disk: &FileDevice) -> Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // Whoever makes a volume may write to it.
    let extended = format!("lazy_itable_init=1,lazy_journal_init=1,root_owner={uid}:{gid}");
    let ran = lend(disk, "mke2fs", &["-q", "-t", "ext4", "-F", "-m", "0", "-E", &extended], "makes")?;
    // A signal, as SIGXFSZ where `ulimit -f` is too little, leaves no word.
    let said = match (ran.status.success(), ran.text.trim()) {
        (true, _) => return Ok(()),
        (false, "") => ran.status.to_string(),
        (false, text) => text.to_string(),
    };
    Err(Error::invalid(format!("mke2fs {}: {said}", disk.info().name)))
}
