//! Checking a volume: recovery (tried in memory, or really done), a walk over the whole tree, and the disk
//! half's own checker.

use super::{NfHybrid, Options};
use crate::fs::{FileSystem, Kind};
use crate::media::file::FileDevice;
use crate::media::{BlockDevice, overlay::Overlay};
use crate::units::Ino;
use crate::{Error, Result};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// What a check found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    /// What recovery and the SSD half's own checks noticed; nothing of it loses data.
    pub notes: Vec<String>,
    /// Operations that only the SSD's log held.
    pub operations_recovered: u64,
    /// Inodes looked at.
    pub inodes: u64,
    /// What is wrong, each with its place.
    pub errors: Vec<String>,
    /// What e2fsck said of the disk half; empty if it was not run (the journal must be replayed first, and
    /// nothing may be changed).
    pub e2fsck: Vec<String>,
}

/// Checks a volume. With `repair`, recovery is done on the media and e2fsck may repair; else nothing changes.
/// `without_ssd`: see [`Options::without_ssd`].
pub fn check(disk: &Path, ssd: Option<&Path>, without_ssd: bool, repair: bool) -> Result<Findings> {
    let mut findings = Findings::default();
    let open = |path: &Path| -> Result<Arc<dyn BlockDevice>> {
        let device = Arc::new(FileDevice::open(path, repair)?);
        Ok(if repair { device } else { Arc::new(Overlay::new(device)) })
    };
    let ssd_device = ssd.map(open).transpose()?;
    let fs = NfHybrid::open(open(disk)?, ssd_device, Options { without_ssd, ..Options::default() })?;
    findings.notes = fs.notes().to_vec();
    findings.operations_recovered = fs.recovered();
    walk(&fs, &mut findings);
    let was_clean = fs.was_clean();
    fs.shutdown()?;
    drop(fs);
    if repair || was_clean {
        let sound = run_e2fsck(disk, repair, &mut findings)?;
        if let (true, true, Some(ssd)) = (repair, sound, ssd) {
            super::volume::note_check(&open(disk)?, open(ssd)?.as_ref())?;
        }
    }
    Ok(findings)
}

/// Looks at every inode that has a name.
fn walk(fs: &NfHybrid, findings: &mut Findings) {
    let mut seen = rustc_hash::FxHashSet::default();
    let mut todo: Vec<(Ino, String)> = vec![(fs.root(), String::new())];
    seen.insert(fs.root());
    while let Some((dir, path)) = todo.pop() {
        let mut entries = Vec::new();
        let listed = fs.readdir(dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push((entry.ino, String::from_utf8_lossy(entry.name).into_owned()));
            }
            true
        });
        if let Err(error) = listed {
            findings.errors.push(format!("{path}/: {error}"));
        }
        for (ino, name) in entries {
            let path = format!("{path}/{name}");
            if !seen.insert(ino) {
                continue;
            }
            findings.inodes += 1;
            match fs.getattr(ino).and_then(|attr| fs.check_mapping(ino).map(|()| attr)) {
                Ok(attr) if attr.kind == Kind::Dir => todo.push((ino, path)),
                Ok(_) => {}
                Err(error) => findings.errors.push(format!("{path} (inode {ino}): {error}")),
            }
        }
    }
}

/// Whether it found nothing wrong.
fn run_e2fsck(disk: &Path, repair: bool, findings: &mut Findings) -> Result<bool> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new("e2fsck")
        .env("PATH", path)
        .args(["-f", if repair { "-p" } else { "-n" }])
        .arg(disk)
        .output()
        .map_err(|error| {
            Error::io("e2fsck (from e2fsprogs) checks the disk half and could not be run", error)
        })?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    findings.e2fsck = text.lines().map(str::to_string).collect();
    match output.status.code() {
        Some(0) => {}
        Some(1) if repair => findings.notes.push("e2fsck repaired the disk half".into()),
        code => findings.errors.push(format!("e2fsck ended with {code:?}; see what it said")),
    }
    Ok(output.status.success())
}
