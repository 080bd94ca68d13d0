//! The kinds of file system: what each is, and which mount options it takes.

pub mod options;

use bimetal_base::Result;
use bimetal_base::options::{OptionSpec, unknown};
use options::{CMFS_OPTIONS, MEMFS_OPTIONS, NFHYBRID_OPTIONS};

/// A kind of file system.
pub struct Kind {
    /// What `-t` calls it.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Its mount options.
    pub options: &'static [OptionSpec],
}

/// All kinds that can be mounted.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "nfhybrid",
        about: "a small SSD over a large disk; the disk half is a standard ext4",
        options: NFHYBRID_OPTIONS,
    },
    Kind {
        name: "cmfs",
        about: "files on raw NAND, their metadata in a thousandth of NVRAM",
        options: CMFS_OPTIONS,
    },
    Kind {
        name: "osd",
        about: "an object store on raw NAND, one translation layer, with names above it",
        options: &[],
    },
    Kind {
        name: "memfs",
        about: "an empty file system in memory, gone with the mount",
        options: MEMFS_OPTIONS,
    },
];

/// What a file system is played on only: it cannot be mounted.
const PLAYED_ONLY: &str = "fat";

/// Refuses a kind that there is not, or options that it does not have.
///
/// # Errors
/// [`Error::Invalid`](bimetal_base::Error::Invalid) with the nearest name that there is.
pub fn check<'a>(kind: &str, options: impl Iterator<Item = &'a str>) -> Result<()> {
    let known = || KINDS.iter().map(|kind| kind.name).chain([PLAYED_ONLY]);
    if !known().any(|name| name == kind) {
        return Err(unknown("there is no kind of file system", kind, known()));
    }
    let specs = KINDS.iter().find(|there| there.name == kind).map_or(&[][..], |kind| kind.options);
    let names = || specs.iter().map(|spec| spec.name);
    let strange = options.into_iter().find(|option| !names().any(|name| name == *option));
    strange.map_or(Ok(()), |option| Err(unknown(&format!("{kind} has no mount option"), option, names())))
}
