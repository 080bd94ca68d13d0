//! What of the disk's reads is copied to the SSD: the policies, and the registry they are chosen from.
//!
//! A read that only the disk could serve is put before an [`Admission`]; what it admits goes, within a [`Budget`]
//! of bytes a day, to the commit thread, which copies it. Adding a policy is one file here and one line in
//! [`POLICIES`]: the mount option, `bimetal list` and the tests read the registry.
//!
//! **Windows are bytes of reads, not time**: a file read again after so much else was read as the SSD holds would
//! have left it meanwhile, however long that took. So a policy needs no clock, and a test counts.
//!
//! **Cost.** A read that the disk is not needed for adds two numbers. One from the disk costs one or two lookups in
//! a table for each 64 KiB; nothing is allocated.

mod budget;
mod first;
mod ghost;
mod never;
mod second;
mod sweep;
#[cfg(test)]
mod tests;

pub use budget::Budget;

use super::frames::FRAME;
use bimetal_base::options::{Entry, Registry};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use serde::Serialize;
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;

/// Directories above a file that a policy is told, the nearest first.
pub const PATH: usize = 6;

/// Frames of a file that the disk was read for.
#[derive(Clone, Debug)]
pub struct DiskRead {
    /// The file.
    pub ino: Ino,
    /// The directories above it, as far as they are known, the nearest first; 0 beyond.
    pub path: [Ino; PATH],
    /// The frames.
    pub frames: Range<u64>,
    /// Frames that the whole file has.
    pub file_frames: u64,
}

/// What became of the frames of a read.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Worth a copy.
    pub admitted: SmallVec<[Range<u64>; 4]>,
    /// Frames refused because they were read for the first time.
    pub first: u64,
    /// Frames refused as part of a stream or of a sweep over many files.
    pub swept: u64,
    /// Frames refused because the policy admits none.
    pub never: u64,
}

impl Judgement {
    /// Adds frames to what is admitted, which come after those before.
    fn admit(&mut self, frames: Range<u64>) {
        match self.admitted.last_mut() {
            Some(last) if last.end == frames.start => last.end = frames.end,
            _ => self.admitted.push(frames),
        }
    }
}

/// A policy of what is copied to the SSD when the disk had to be read.
pub trait Admission: Send {
    /// So many bytes were read without the disk: the clock of windows moves on.
    fn pass(&mut self, bytes: u64);

    /// Judges what the disk was read for. Called once a read.
    fn judge(&mut self, read: &DiskRead) -> Judgement;

    /// Whether it would admit a frame if the disk were read for it now, as it remembers an earlier read.
    fn remembers(&self, _ino: Ino, _frame: u64) -> bool {
        false
    }
}

/// Makes a policy for an SSD half that holds so many bytes.
pub type Make = fn(u64) -> Box<dyn Admission>;

/// Every policy; the first is the default.
pub const POLICIES: Registry<Entry<Make>> =
    Registry { what: "way to promote", entries: &[&second::ENTRY, &first::ENTRY, &never::ENTRY] };

/// A policy that was chosen.
#[derive(Clone, Copy)]
pub struct Promote(&'static Entry<Make>);

impl Promote {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// One for an SSD half that holds `capacity` bytes of data.
    pub fn make(self, capacity: u64) -> Box<dyn Admission> {
        (self.0.make)(capacity)
    }
}

impl Default for Promote {
    fn default() -> Promote {
        Promote(POLICIES[0])
    }
}

impl fmt::Debug for Promote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Promote({})", self.name())
    }
}

impl std::str::FromStr for Promote {
    type Err = Error;

    fn from_str(text: &str) -> Result<Promote> {
        Ok(Promote(POLICIES.look_up(&text.parse()?)?))
    }
}

/// Bytes put before the policy, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Read from the disk, of files that may have copies.
    pub offered_bytes: u64,
    /// To be copied.
    pub admitted_bytes: u64,
    /// Refused: read for the first time within the window.
    pub refused_first_bytes: u64,
    /// Refused: part of a stream or of a sweep over many files.
    pub refused_swept_bytes: u64,
    /// Refused: the policy copies nothing.
    pub refused_never_bytes: u64,
    /// Refused: the day's budget is used up.
    pub refused_budget_bytes: u64,
    /// Refused: too much waits to be copied, or the file changed meanwhile.
    pub refused_busy_bytes: u64,
}

impl Tally {
    /// Adds a judgement; what it admits is counted when it is queued.
    pub fn add(&mut self, read: &DiskRead, judgement: &Judgement) {
        let bytes = |frames: u64| frames * FRAME as u64;
        self.offered_bytes += bytes(read.frames.end - read.frames.start);
        self.refused_first_bytes += bytes(judgement.first);
        self.refused_swept_bytes += bytes(judgement.swept);
        self.refused_never_bytes += bytes(judgement.never);
    }
}
