//! What a device or an image is to a volume, told from a few of its bytes. Nothing is written, and nobody is kept away: it may
//! be in use.

use super::{KINDS, Kind};
use bimetal_base::{Error, Result};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use uuid::Uuid;

/// What a device or an image is to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is called on the command line: `ssd`, `disk`, `nand`, `nvram`.
    pub role: &'static str,
    /// The volume's UUID, where it has one and that can be read.
    pub volume: Option<Uuid>,
    /// Its own.
    pub uuid: Option<Uuid>,
    /// How it was left: a word, and what that means. Not everything says it in a few bytes.
    pub state: Option<(&'static str, &'static str)>,
}

/// Tells what a device or an image is; `None`: nothing of this kind.
pub type Probe = fn(&Path) -> Result<Option<Part>>;

/// Tells of what kind of file system a device or an image is a part, and which; `None`: of none.
///
/// # Errors
/// It is neither a file nor a block device; it cannot be read.
pub fn probe(path: &Path) -> Result<Option<(&'static Kind, Part)>> {
    let found = fs::metadata(path).map_err(|why| Error::io(path.display(), why))?.file_type();
    if !found.is_file() && !found.is_block_device() {
        let what = if found.is_dir() { "a directory" } else { "neither a file nor a block device" };
        return Err(Error::invalid(format!("{} is {what}; name a device or an image", path.display())));
    }
    for kind in KINDS.into_iter() {
        let part = kind.probe.map_or(Ok(None), |probe| probe(path))?;
        if let Some(part) = part {
            return Ok(Some((kind, part)));
        }
    }
    Ok(None)
}

/// Whether there is a file. Of NAND and NVRAM no block device is made.
pub(super) fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file())
}
