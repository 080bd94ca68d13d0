//! Recognises streams and sweeps: a long file read from its start to its end, and many files read whole, one after
//! another, in one part of the tree: backups, `diff -r`, `grep -r`, `cp -r`.
//!
//! A *row* is files read whole, each after the one before and near it (a directory above both that is not the
//! root, or the same directory). It becomes a *sweep* once it is longer than the limit: an SSD cannot hold what is
//! read round and round in a longer row, and what is read once needs no copy. A row that comes back to its first
//! file has begun anew: a small set read again and again never is a sweep. The first files of the last sweeps are
//! remembered, so that tonight's backup is known from its first file.
//!
//! Frames read for the first time and those read before form rows of their own, so that somebody who goes on
//! reading his files beside a backup is not taken for a part of it. Only a sweep that was known from its first file
//! takes both: of what it reads, the window remembers some and not the rest.
//!
//! Read-ahead comes out of order, from several threads: a file goes on within 1 MiB around where it was.

use super::{DiskRead, PATH};
use bimetal_base::units::Ino;
use bimetal_ext4::ROOT_INO;

/// Rows followed at a time.
const ROWS: usize = 8;
/// Sweeps remembered by their first file.
const KNOWN: usize = 16;
/// Frames by which reads of a file may be out of order.
const LOOSE: u64 = 256;

#[derive(Clone)]
struct Row {
    /// Its first file.
    first: Ino,
    /// The file it is at, where its next frame should be, and how many there are.
    ino: Ino,
    next: u64,
    file_frames: u64,
    path: [Ino; PATH],
    /// Frames so far.
    frames: u64,
    /// Its frames were read before.
    again: bool,
    is_sweep: bool,
    /// It was one before: known by its first file.
    is_known: bool,
    /// When it last went on.
    used: u64,
}

/// The rows under way.
pub struct Sweeps {
    rows: Vec<Row>,
    known: [Ino; KNOWN],
    known_next: usize,
    /// Frames a row may have.
    limit: u64,
    turn: u64,
}

impl Sweeps {
    /// Rows longer than `limit` frames are sweeps.
    pub fn new(limit: u64) -> Sweeps {
        let rows = Vec::with_capacity(ROWS);
        Sweeps { rows, known: [Ino(0); KNOWN], known_next: 0, limit, turn: 0 }
    }

    /// Notes a read; whether it is part of a sweep. `again` says that its first frame was read before.
    pub fn follow(&mut self, read: &DiskRead, again: bool) -> bool {
        self.turn += 1;
        if let Some(at) = self.rows.iter().position(|row| row.ino == read.ino) {
            if self.rows[at].goes_on(read) {
                return self.extend(at, read);
            }
            // A jump, or the same file once more: the row is over.
            self.rows.swap_remove(at);
        }
        if read.frames.start != 0 {
            return false;
        }
        self.rows.retain(|row| row.first != read.ino);
        let before = self.rows.iter().position(|row| row.takes(again) && row.is_before(read));
        let at = before.unwrap_or_else(|| self.begin(read, again));
        let row = &mut self.rows[at];
        (row.ino, row.next, row.file_frames, row.path) = (read.ino, 0, read.file_frames, read.path);
        self.extend(at, read)
    }

    /// A new row, in the place of the one that stood still longest if there are too many.
    fn begin(&mut self, read: &DiskRead, again: bool) -> usize {
        if self.rows.len() == ROWS {
            let oldest = (0..ROWS).min_by_key(|&at| self.rows[at].used).expect("there are rows");
            self.rows.swap_remove(oldest);
        }
        let is_known = self.known.contains(&read.ino);
        self.rows.push(Row {
            first: read.ino,
            ino: read.ino,
            next: 0,
            file_frames: read.file_frames,
            path: read.path,
            frames: 0,
            again,
            is_sweep: is_known,
            is_known,
            used: self.turn,
        });
        self.rows.len() - 1
    }

    fn extend(&mut self, at: usize, read: &DiskRead) -> bool {
        let row = &mut self.rows[at];
        row.next = row.next.max(read.frames.end);
        row.frames += read.frames.end - read.frames.start;
        row.used = self.turn;
        if row.frames > self.limit && !row.is_sweep {
            row.is_sweep = true;
            self.known[self.known_next] = row.first;
            self.known_next = (self.known_next + 1) % KNOWN;
        }
        row.is_sweep
    }
}

impl Row {
    /// A read that goes on in the row's file.
    fn goes_on(&self, read: &DiskRead) -> bool {
        read.frames.start + LOOSE >= self.next
            && read.frames.start <= self.next + LOOSE
            && !self.is_round(read)
    }

    /// Whether frames that were read before (`again`) or not may belong to it.
    fn takes(&self, again: bool) -> bool {
        self.again == again || self.is_known
    }

    /// A short file is read again from its start after its end.
    fn is_round(&self, read: &DiskRead) -> bool {
        read.frames.start == 0 && self.next >= self.file_frames
    }

    /// The row's file is done, and the file of `read` lies near it.
    fn is_before(&self, read: &DiskRead) -> bool {
        let done = self.next + LOOSE.min(self.file_frames / 2) >= self.file_frames;
        let shared = |dir: &Ino| dir.0 != 0 && *dir != ROOT_INO && read.path.contains(dir);
        done && (self.path[0] == read.path[0] || self.path.iter().any(shared))
    }
}
