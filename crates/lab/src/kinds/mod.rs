//! The kinds of file system: each is a file or a folder here with one [`Kind`], and a line in [`KINDS`].
//!
//! A kind says how a volume of it is made, opened and checked, and how calls are played on it over simulated devices. The
//! verbs of the command line, a stack file and a replay know nothing else of it.

pub mod cmfs;
pub mod fat;
pub mod memfs;
pub mod nfhybrid;
pub mod options;
pub mod osd;
pub mod probe;
pub mod volume;

use crate::replay::Args as ReplayArgs;
use crate::replay::files::Subject;
use bimetal_base::Result;
use bimetal_base::options::{OptionSpec, Registered, Registry, unknown};
use bimetal_base::runtime::Clock;
use clap::builder::{PossibleValue, PossibleValuesParser};
use probe::Probe;
use std::borrow::Cow;
use std::fmt::Debug;
use volume::{Access, CheckOptions, CheckReport, Prepared, VolumeArgs};

/// A kind of file system.
pub struct Kind {
    /// What `-t` calls it.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Its mount options.
    pub options: &'static [OptionSpec],
    /// Whether it has the mount options about access times, too.
    pub access_times: bool,
    /// What a volume lies on.
    pub lies_on: LiesOn,
    /// How a new volume is made.
    pub mkfs: Option<Mkfs>,
    /// Opens a volume, as far as that can be done without writing.
    pub open: Option<Open>,
    /// Checks a volume that is not mounted.
    pub check: Option<Check>,
    /// Tells what a device or an image is to a volume.
    pub probe: Option<Probe>,
    /// Makes one on simulated devices, for a replay.
    pub play: Option<Play>,
}

/// What a volume lies on: which arguments name it, and which tables of a stack file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiesOn {
    /// `--ssd` and `--disk`; `[ssd]` and `[disk]`. A page cache may be over the disk.
    Halves,
    /// `--nand`, and `--nvram` if it has some; `[device]` and `[nvram]`.
    Nand {
        /// Whether it has memory beside the flash.
        nvram: bool,
    },
    /// A block device; `[device]`, whose profile is this where none is said.
    Block(&'static str),
    /// Memory.
    Nothing,
}

/// How a new volume is made: a subcommand of `bimetal mkfs`.
pub struct Mkfs {
    /// Its arguments and help.
    pub command: fn(clap::Command) -> clap::Command,
    /// What these arguments say.
    pub parse: fn(&clap::ArgMatches) -> Result<Box<dyn Make>, clap::Error>,
}

/// A new volume, as asked for.
pub trait Make: Debug {
    /// Makes it.
    ///
    /// # Errors
    /// It cannot be made there; without `--force`, something is there.
    fn make(&self) -> Result<Made>;
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// For people, with the command that comes next.
    pub text: String,
    /// For programs, beside what they said themselves.
    pub told: serde_json::Value,
}

/// Opens a volume with mount options (of [`Kind::options`], as `name` or `name=value`).
pub type Open = for<'a> fn(&'a VolumeArgs, Access, &[String]) -> Result<Box<dyn Prepared + 'a>>;

/// Checks a volume; the last argument hears what is done now.
pub type Check = fn(&VolumeArgs, CheckOptions, &dyn Fn(&'static str)) -> Result<CheckReport>;

/// Makes a file system on the simulated devices that a replay asks for.
pub type Play = fn(&Clock, &ReplayArgs) -> Result<Subject>;

/// All kinds.
pub const KINDS: Registry<Kind> = Registry {
    what: "kind of file system",
    entries: &[&nfhybrid::KIND, &cmfs::KIND, &osd::KIND, &memfs::KIND, &fat::KIND],
};

/// Those that can be mounted.
pub fn mountable() -> impl Iterator<Item = &'static Kind> + Clone {
    KINDS.into_iter().filter(|kind| kind.open.is_some())
}

/// Those that calls can be played on.
pub fn playable() -> impl Iterator<Item = &'static Kind> + Clone {
    KINDS.into_iter().filter(|kind| kind.play.is_some())
}

/// Takes the name of one of these kinds on a command line.
pub fn names(kinds: impl Iterator<Item = &'static Kind>) -> PossibleValuesParser {
    kinds.map(|kind| PossibleValue::new(kind.name)).collect::<Vec<_>>().into()
}

impl Registered for Kind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> Cow<'static, str> {
        self.about.into()
    }

    fn options(&self) -> &'static [OptionSpec] {
        self.options
    }
}

impl Kind {
    /// Refuses mount options that it does not have.
    ///
    /// # Errors
    /// [`Error::Invalid`](bimetal_base::Error::Invalid) with the nearest one that there is.
    pub fn check_options<'a>(&self, mut options: impl Iterator<Item = &'a str>) -> Result<()> {
        let names = || self.options.iter().map(|spec| spec.name);
        let strange = options.find(|option| !names().any(|name| name == *option));
        let none = format!("{} has no mount option", self.name);
        strange.map_or(Ok(()), |option| Err(unknown(&none, option, names())))
    }
}
