//! What a device or an image is to a volume, told from a few of its bytes. Nothing is written, and nobody is kept away: it may
//! be in use.

use super::{KINDS, Kind};
use bimetal_base::{Error, Result};
use bimetal_media::guard;
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

impl Part {
    /// What it is called in words.
    pub fn called(role: &str) -> &str {
        match role {
            "ssd" => "the SSD half",
            "disk" => "the disk half",
            "nand" => "the NAND",
            "nvram" => "the NVRAM",
            other => other,
        }
    }
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

/// A device or an image that a command was given, and what as.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// As in [`Part::role`].
    pub role: &'static str,
    /// Of which kinds of file system it may be that.
    pub of: &'a [&'static str],
    /// Where it is.
    pub path: &'a Path,
}

/// Why something could not be opened: where it is known to be something else than it was given as, that.
pub fn misnamed(why: Error, given: &[Given]) -> Error {
    // Any other error has another cause. That of a NAND may be of its shape.
    let is_of_halves = matches!(why, Error::Corrupt { .. });
    if !is_of_halves && !matches!(why, Error::Invalid(_)) {
        return why;
    }
    let known = given.iter().filter(|one| is_of_halves || matches!(one.role, "nand" | "nvram"));
    known.filter_map(other_than_given).next().unwrap_or(why)
}

/// That what was given is something else.
fn other_than_given(given: &Given) -> Option<Error> {
    let Given { role, of, path } = *given;
    let (name, wanted) = (path.display(), Part::called(role));
    let Some((kind, part)) = probe(path).ok()? else {
        let holds = guard::signature_at(path).ok()??;
        let is_own = holds.contains(" of bimetal") || role == "disk" && holds.starts_with("an ext");
        let text = format!(
            "{name} holds {holds}, and was given as {wanted}; name the device or image that is {wanted}"
        );
        return (!is_own).then_some(Error::Invalid(text));
    };
    if part.role == role && of.contains(&kind.name) {
        return None;
    }
    let is = Part::called(part.role);
    let remedy = match (part.role, kind.name) {
        ("ssd", _) => format!("give it as --ssd {name}, with --disk"),
        ("disk", _) => format!("give it as --disk {name}"),
        ("nand", "cmfs") => format!("give it as --nand {name}, with --nvram if it has one"),
        ("nvram", _) => format!("give it as --nvram {name}, with --nand"),
        _ => format!("give it as --nand {name}"),
    };
    let remedy = match part.role == role {
        true => format!("the verbs for {} do not go with it; bimetal mount, ls and get do", of.join(" and ")),
        false => remedy,
    };
    Some(Error::invalid(format!(
        "{name} is {is} of {}, and was given as {wanted} of {}; {remedy}",
        kind.name,
        of.join(" or ")
    )))
}
