//! What a recovery leaves to be said: to the SSD, which copies became old; to the user, what was brought back and what is
//! lost.
//!
//! Invariant: the SSD is not written while its log is replayed, so what is to be told stays here until the disk has
//! everything, and is told once.

use bimetal_base::units::Ino;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// Frames of a file whose copies on the SSD are old: all that operations before this one bound.
pub(super) struct Touched {
    pub ino: Ino,
    pub frames: Range<u64>,
    pub before: u64,
}

/// How a note begins that says what of a file could not be brought to the disk.
pub(super) const WHAT_IS_LOST: &str = "what was fsynced of";

/// Something that could not be brought to the disk.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Lost {
    /// The file; or the directory it was in.
    pub ino: Ino,
    /// Where below that directory.
    pub path: Option<String>,
    pub why: String,
}

/// What recovery did.
#[derive(Default)]
pub(super) struct Aftermath {
    touched: Vec<Touched>,
    lost: Vec<Lost>,
    notes: Vec<String>,
    applied: u64,
    copied: Copied,
}

/// What recovery brought to a copy of the disk half, of which nothing is kept.
#[derive(Default)]
struct Copied {
    /// Bytes of contents.
    bytes: u64,
    /// Stretches of files, as first frame and count.
    frames: FxHashMap<Ino, Vec<(u64, u64)>>,
}

impl Aftermath {
    /// Copies became old.
    pub fn touch(&mut self, touched: Touched) {
        self.touched.push(touched);
    }

    /// Takes what is to be told to the SSD.
    pub fn take_touched(&mut self) -> Vec<Touched> {
        std::mem::take(&mut self.touched)
    }

    /// Contents of a file could not be brought to the disk.
    pub fn lose(&mut self, ino: Ino, why: String) {
        self.lost.push(Lost { ino, path: None, why });
    }

    /// The same of a file below a directory that does not have it.
    pub fn lose_name(&mut self, dir: Ino, path: String, why: String) {
        self.lost.push(Lost { ino: dir, path: Some(path), why });
    }

    /// Takes what was lost, each once.
    pub fn take_lost(&mut self) -> Vec<Lost> {
        let mut taken = FxHashSet::default();
        let lost = std::mem::take(&mut self.lost);
        lost.into_iter().filter(|one| taken.insert(one.clone())).collect()
    }

    /// Something for the user to read.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// What was noticed since both halves were looked at.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// So many operations came from the SSD's log alone.
    pub fn applied(&mut self, operations: u64) {
        self.applied = operations;
    }

    /// Operations that only the SSD's log held at the mount.
    pub fn recovered(&self) -> u64 {
        self.applied
    }

    /// So many bytes, and these stretches of files, went to a copy of the disk half.
    pub fn copied(&mut self, bytes: u64, frames: impl Iterator<Item = (Ino, (u64, u64))>) {
        self.copied.bytes += bytes;
        frames.for_each(|(ino, stretch)| self.copied.frames.entry(ino).or_default().push(stretch));
    }

    /// Bytes that only a copy of the disk half has.
    pub fn bytes_copied(&self) -> u64 {
        self.copied.bytes
    }

    /// Whether only a copy of the disk half has a frame, and for how many frames from there on it is so or not.
    pub fn is_copied(&self, ino: Ino, index: u64) -> (bool, u64) {
        let stretches = self.copied.frames.get(&ino).map_or(&[][..], Vec::as_slice);
        let is_in = stretches.iter().any(|&(first, count)| (first..first + count).contains(&index));
        let borders = stretches.iter().flat_map(|&(first, count)| [first, first + count]);
        let next = borders.filter(|border| *border > index).min();
        (is_in, next.map_or(u64::MAX, |next| next - index))
    }
}
