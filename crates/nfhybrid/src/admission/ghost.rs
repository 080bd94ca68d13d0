//! Which frames were read within the window: a table of fingerprints, without the frames.
//!
//! A cell of 8 bytes stands for 64 KiB of one file: 32 bits of the hash of (inode, run), a bit for each of its 16
//! frames, and when it was last read, in 64ths of the window. Eight cells with one hash are a cache line; the one
//! read longest ago makes room. Older cells count for nothing.
//!
//! **Wrong answers.** Two runs with one fingerprint in one line: a frame counts as read though it was not, once in
//! 2^29 lookups of a full table. A cell pushed out early: a frame counts as not read. Both cost a copy more or less.
//!
//! **Cost.** One line of memory a lookup. The table is taken from the system as zeros, so that what was never
//! touched costs nothing.

use bimetal_base::units::Ino;

/// Frames a cell stands for.
pub const RUN: u64 = 16;
/// Cells that share a hash.
const WAYS: usize = 8;
/// Steps of the clock in a window.
const STEPS: u64 = 64;
/// Bytes of reads that one cell is there for, when the window is as large as the SSD.
const BYTES_A_CELL: u64 = 16 << 10;
/// Fewest and most cells: 8 KiB and 8 MiB.
const CELLS: (u64, u64) = (1 << 10, 1 << 20);

/// The table and its clock.
pub struct Ghost {
    cells: Vec<u64>,
    /// Bytes of reads in a step of the clock.
    step: u64,
    /// Bytes that have passed.
    passed: u64,
}

impl Ghost {
    /// A table for a window of so many bytes of reads.
    pub fn new(window: u64) -> Ghost {
        let cells = (window / BYTES_A_CELL).next_power_of_two().clamp(CELLS.0, CELLS.1);
        Ghost { cells: vec![0; cells as usize], step: (window / STEPS).max(1), passed: 0 }
    }

    /// Moves the clock on by bytes that were read.
    pub fn pass(&mut self, bytes: u64) {
        self.passed += bytes;
    }

    /// Which of a run's frames, as bits, were read within the window.
    pub fn seen(&self, ino: Ino, run: u64) -> u16 {
        let (line, tag) = self.place(ino, run);
        let found =
            self.cells[line..line + WAYS].iter().find(|cell| self.is_young(**cell) && tag_of(**cell) == tag);
        found.map_or(0, |cell| *cell as u16)
    }

    /// Notes that frames of a run were read now.
    pub fn note(&mut self, ino: Ino, run: u64, frames: u16) {
        let (line, tag) = self.place(ino, run);
        let now = self.now();
        let cells = line..line + WAYS;
        let known = cells.clone().find(|&at| self.cells[at] != 0 && tag_of(self.cells[at]) == tag);
        let at = known
            .unwrap_or_else(|| cells.max_by_key(|&at| self.age(self.cells[at])).expect("a line has cells"));
        let old = if known.is_some() && self.is_young(self.cells[at]) { self.cells[at] as u16 } else { 0 };
        self.cells[at] = u64::from(tag) << 32 | u64::from(now) << 16 | u64::from(old | frames);
    }

    /// The present, in steps; wraps.
    fn now(&self) -> u16 {
        (self.passed / self.step) as u16
    }

    /// Steps since a cell was noted; an empty one is the oldest.
    fn age(&self, cell: u64) -> u32 {
        match cell {
            0 => u32::MAX,
            cell => u32::from(self.now().wrapping_sub((cell >> 16) as u16)),
        }
    }

    fn is_young(&self, cell: u64) -> bool {
        u64::from(self.age(cell)) <= STEPS
    }

    /// The line of a run, and its fingerprint.
    fn place(&self, ino: Ino, run: u64) -> (usize, u32) {
        let hash = mix(ino.0 ^ mix(run));
        let line = (hash >> 32) as usize & (self.cells.len() / WAYS - 1);
        (line * WAYS, hash as u32)
    }
}

fn tag_of(cell: u64) -> u32 {
    (cell >> 32) as u32
}

/// The end of SplitMix64: every bit of the answer depends on every bit of the number.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_known_until_a_window_of_bytes_has_passed() {
        let mut ghost = Ghost::new(64 << 20);
        assert_eq!(ghost.seen(Ino(7), 0), 0);
        ghost.note(Ino(7), 0, 0b0110);
        ghost.pass(63 << 20);
        ghost.note(Ino(8), 0, 1);
        assert_eq!((ghost.seen(Ino(7), 0), ghost.seen(Ino(7), 1), ghost.seen(Ino(8), 0)), (0b0110, 0, 1));
        ghost.pass(3 << 20);
        assert_eq!((ghost.seen(Ino(7), 0), ghost.seen(Ino(8), 0)), (0, 1));
        // Old frames do not come back with new ones.
        ghost.note(Ino(7), 0, 0b1000);
        assert_eq!(ghost.seen(Ino(7), 0), 0b1000);
    }

    #[test]
    fn a_table_that_is_full_forgets_what_was_read_longest_ago() {
        let mut ghost = Ghost::new(16 << 20);
        for ino in 0..100_000 {
            ghost.note(Ino(ino), 3, 1);
            ghost.pass(100);
        }
        let newest = (99_900..100_000).filter(|ino| ghost.seen(Ino(*ino), 3) == 1).count();
        let oldest = (0..1000).filter(|ino| ghost.seen(Ino(*ino), 3) == 1).count();
        assert!(newest >= 95 && oldest == 0, "{newest} of the newest 100, {oldest} of the oldest 1000");
    }

    #[test]
    fn a_table_is_never_larger_than_8_mib() {
        assert_eq!(Ghost::new(0).cells.len(), 1 << 10);
        assert_eq!(Ghost::new(1 << 40).cells.len(), 1 << 20);
    }
}
