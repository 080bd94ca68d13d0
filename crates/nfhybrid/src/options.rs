//! How a volume is mounted.

use super::admission::{Budget, Promote};
use super::atime::AccessTimes;
use super::policy::Durability;
use std::time::Duration;

/// How far the disk half may be behind.
#[derive(Clone, Copy, Debug)]
pub struct Lag {
    /// In time, from the first operation it lacks.
    pub time: Duration,
    /// In bytes of data it lacks.
    pub bytes: u64,
}

impl Default for Lag {
    fn default() -> Lag {
        Lag { time: Duration::from_secs(5), bytes: 64 << 20 }
    }
}

/// What to do with an SSD log whose operations the disk lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recover {
    /// Apply it; an error if a part of it is damaged.
    #[default]
    Log,
    /// Apply what is whole of it.
    Whole,
    /// Drop it: the disk alone counts.
    Disk,
}

/// Options of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How far the disk half may be behind.
    pub lag: Lag,
    /// What an fsync waits for where no directory says otherwise.
    pub durability: Durability,
    /// What to do with the SSD's log.
    pub recover: Recover,
    /// Go on without the SSD, and drop for ever what only its log holds. Without this word a disk half whose SSD's log is
    /// open is not mounted alone.
    pub without_ssd: bool,
    /// Change nothing on either half (a log with operations the disk lacks is refused).
    pub read_only: bool,
    /// Which access times are kept.
    pub access_times: AccessTimes,
    /// What reads bring to the SSD.
    pub promote: Promote,
    /// How much of that in a day; `None`: as much as the SSD half holds, see [`Budget::of`].
    pub promote_budget: Option<Budget>,
    /// The halves are copies, of which nothing is kept: what recovery brings to the disk is not there afterwards.
    pub over_copies: bool,
    /// Tell the SSD by and by of what it need not keep any more.
    pub discard: bool,
    /// No thread of its own: [`super::NfHybrid::commit`] runs each commit cycle, so that a run can be repeated.
    pub manual: bool,
    /// Bytes of memory that what is cached on the SSD may take, at least [`super::ssd::MEMORY_MIN`]; [`super::ssd::MEMORY_DEFAULT`]
    /// where none is said.
    pub memory: Option<u64>,
}
