//! Making and adopting a volume: a disk half and the SSD half that belongs to it.

use super::ssd::{self, Ssd};
use super::tie::Tie;
use super::{FileSystem, NfHybrid, Options};
use crate::fs::ext4::{Ext4, Identity, OpenOptions};
use crate::fs::{Caller, Kind, NewNode};
use crate::media::BlockDevice;
use crate::media::file::FileDevice;
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
    /// Overwrite what is there.
    pub force: bool,
}

/// Makes an ext4 on the disk, the SSD half beside it, and the mapped directories.
pub fn make(plan: &Plan) -> Result<()> {
    check_rules(plan)?;
    let ssd_device = open(plan.ssd, true)?;
    Ssd::check_config(ssd_device.as_ref(), &plan.config)?;
    if !plan.force {
        refuse_contents(open(plan.disk, false)?.as_ref())?;
        refuse_contents(ssd_device.as_ref())?;
    }
    drop(ssd_device);
    run_mke2fs(plan.disk)?;
    join(plan)
}

/// Joins a new SSD half to an ext4 that already holds files; nothing on the disk moves.
pub fn adopt(plan: &Plan) -> Result<()> {
    check_rules(plan)?;
    let ssd_device = open(plan.ssd, true)?;
    Ssd::check_config(ssd_device.as_ref(), &plan.config)?;
    let disk = open(plan.disk, true)?;
    let ext4 = Ext4::open(
        disk,
        OpenOptions { read_only: true, now: runtime::Live::wall_clock(), ..OpenOptions::default() },
    )?;
    if let Some(tie) = ext4.tie().as_ref().and_then(Tie::decode)
        && tie.log_open
        && !plan.force
    {
        return Err(Error::invalid(format!(
            "{} was mounted with an SSD ({}) that may hold its last operations; mount it with that SSD once, or use --force",
            plan.disk.display(),
            uuid::Uuid::from_bytes(tie.ssd),
        )));
    }
    if !plan.force {
        refuse_contents(ssd_device.as_ref())?;
    }
    drop((ext4, ssd_device));
    join(plan)
}

fn join(plan: &Plan) -> Result<()> {
    let disk = open(plan.disk, true)?;
    let ssd_device = open(plan.ssd, true)?;
    join_devices(disk.clone(), ssd_device.clone(), &plan.config)?;
    if plan.rules.is_empty() {
        return Ok(());
    }
    let fs = NfHybrid::open(disk, Some(ssd_device), Options::default())?;
    for rule in &plan.rules {
        let dir = make_path(&fs, &rule.dir)?;
        fs.map(dir, &rule.section)?;
    }
    fs.shutdown()
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
    let old = ext4.tie().as_ref().and_then(Tie::decode);
    let epoch = old.map_or(1, |tie| tie.epoch + 1);
    let op = old.map_or(0, |tie| tie.op);
    let uuid = Ssd::format(ssd_device.as_ref(), config, &tie_to(ext4.identity(), epoch))?;
    let tie = Tie { ssd: uuid, epoch, op, log_open: false, reached: (0, 0) };
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

fn open(path: &Path, writable: bool) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(FileDevice::open(path, writable)?))
}

/// Bytes at the start of a device that are looked at for contents.
const LOOK_BYTES: usize = 64 << 10;

/// An error if the start of a device is not all zeros.
fn refuse_contents(device: &dyn BlockDevice) -> Result<()> {
    let info = device.info();
    let start = device.read(0, LOOK_BYTES.min(info.size_bytes as usize) / 512 * 512)?;
    if start.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let what = match start.get(0x438..0x43A) {
        Some([0x53, 0xEF]) => "an ext2/3/4 file system (keep its files with `bimetal adopt`)",
        _ if Ssd::is_here(&start) => "an SSD half of bimetal",
        _ => "data",
    };
    Err(Error::invalid(format!(
        "{} ({}) already holds {what}; use --force to overwrite it",
        info.name,
        show_size(info.size_bytes)
    )))
}

fn run_mke2fs(disk: &Path) -> Result<()> {
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
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::invalid(format!("mke2fs {}: {}", disk.display(), said.trim())))
}
