//! Making and adopting a volume: a disk half and the SSD half that belongs to it.

use super::ssd::{self, Ssd};
use super::tie::{Saved, Tie};
use super::{FileSystem, NfHybrid};
use crate::fs::ext4::{Ext4, Identity, OpenOptions};
use crate::fs::{Caller, Kind, NewNode};
use crate::media::BlockDevice;
use crate::media::file::{FileDevice, Options};
use crate::media::guard::{self, Role, Target};
use crate::runtime;
use crate::time::Time;
use crate::units::{Ino, show_size};
use crate::{Error, Result};
use std::path::Path;
use std::process::Command;
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
        let mut open = || {
            let claim = claims.next().ok_or(Error::BadArgument)?;
            FileDevice::over(claim, &Options { writable: true, ..Options::default() }).map(Arc::new)
        };
        Ok(Halves { ssd: open()?, disk: open()? })
    }
}

/// Makes an ext4 on the disk, the SSD half beside it, and the mapped directories.
pub fn make(plan: &Plan) -> Result<()> {
    check_rules(plan)?;
    let Halves { disk, ssd } = Halves::claim(plan, Role::Overwritten)?;
    check_config(&*ssd, &plan.config)?;
    lend(&disk, run_mke2fs)?;
    join(plan, disk, ssd)
}

/// Joins a new SSD half to an ext4 that already holds files; nothing on the disk moves.
pub fn adopt(plan: &Plan) -> Result<()> {
    check_rules(plan)?;
    let Halves { disk, ssd } = Halves::claim(plan, Role::Changed)?;
    check_config(&*ssd, &plan.config)?;
    let now = runtime::Live::wall_clock();
    let ext4 = Ext4::open(disk.clone(), OpenOptions { read_only: true, now, ..OpenOptions::default() })?;
    if let Ok(tie) = Tie::decode(ext4.tie().as_ref())
        && matches!(tie.state, Saved::LogOpen | Saved::Recovering)
        && !plan.force
    {
        return Err(Error::invalid(format!(
            "{} was mounted with an SSD ({}) that may hold its last operations; mount it with that SSD once, or use --force",
            plan.disk.display(),
            uuid::Uuid::from_bytes(tie.ssd),
        )));
    }
    drop(ext4);
    join(plan, disk, ssd)
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
        let dir = make_path(&fs, &rule.dir)?;
        fs.map(dir, &rule.section)?;
    }
    fs.shutdown()
}

/// Has another program work on a device that is claimed.
pub(super) fn lend<T>(device: &FileDevice, work: impl FnOnce(&Path, &str) -> Result<T>) -> Result<T> {
    let name = &device.info().name;
    match device.claim() {
        Some(claim) => claim.lend(|path| work(path, name)),
        None => work(Path::new(name), name),
    }
}

/// Ties a clean ext4 and a new SSD half together. Until the disk knows the SSD, a mount takes it as stale.
pub fn join_devices(
    disk: Arc<dyn BlockDevice>,
    ssd_device: Arc<dyn BlockDevice>,
    config: &ssd::Config,
) -> Result<()> {
    let opening =
        OpenOptions { read_only: false, now: runtime::Live::wall_clock(), ..OpenOptions::default() };
    let mut ext4 = Ext4::open(disk, opening)?;
    let old = Tie::decode(ext4.tie().as_ref()).ok();
    let epoch = old.map_or(1, |tie| tie.epoch + 1);
    let op = old.map_or(0, |tie| tie.op);
    let uuid = Ssd::format(ssd_device.as_ref(), config, &tie_to(ext4.identity(), epoch))?;
    let tie = Tie { ssd: uuid, epoch, op, state: Saved::Clean, reached: (0, 0), lag_tenths: 0 };
    let frozen = ext4.freeze(runtime::Live::wall_clock(), Some(&tie.encode()))?;
    ext4.journal().commit(Time::ZERO, frozen.transaction)?;
    ext4.committed(frozen.tid);
    ext4.close(runtime::Live::wall_clock())?;
    let mut ssd = Ssd::open(ssd_device.as_ref(), ssd::DiskSide::default())?.ssd;
    for (offset, bytes) in ssd.mark_clean(tie_to(ext4.identity(), epoch)) {
        ssd_device.write(offset, bytes)?;
        ssd_device.flush()?;
    }
    Ok(())
}

/// How full an SSD's log is, in words.
pub(super) fn log_use(ssd: &Ssd) -> String {
    format!("{} of {} of its log in use", show_size(ssd.used()), show_size(ssd.capacity()))
}

/// What the SSD should see when it next meets the disk.
pub(super) fn tie_to(disk: Identity, epoch: u64) -> ssd::Tie {
    ssd::Tie {
        disk_uuid: disk.uuid,
        epoch,
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
            return Err(Error::invalid(format!("'{path}': '{name}' is not a directory")));
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

fn run_mke2fs(disk: &Path, name: &str) -> Result<()> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new("mke2fs")
        .env("PATH", path)
        .args(["-q", "-t", "ext4", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1"])
        .arg(disk)
        .output()
        .map_err(|error| {
            Error::io("mke2fs (from e2fsprogs) makes the disk half and could not be run", error)
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).replace(&*disk.to_string_lossy(), name);
    Err(Error::invalid(format!("mke2fs {name}: {}", said.trim())))
}
