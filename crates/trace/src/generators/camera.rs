//! Camera-MS500 (Doh and others, IEICE 2010, section 4): a camera's photos and their index, at file level.
//!
//! Ten transactions: each takes 20 photos of 300 to 500 KiB, then deletes ten of the 20, or all there are
//! if there are more than 60. An index has 96 bytes a photo; the entry is written when the photo was taken
//! and again when it is deleted, when the entries after it have moved up. Everything is written in calls
//! of 512 bytes, each waited for.
//!
//! Unit 0 is the index, unit n the n-th photo. What the paper leaves open (which ten, where entries stand)
//! is as in the sequence whose check values are published for seed 13 (see [`camera_vfat`](super)): ten by
//! drawing without replacement, entries without gaps, numbers from the congruential generator there. Seed
//! 13 writes 79.5 MiB, 79.70 in whole sectors; the paper says 79.67 MB in all.

use super::{Generator, OptionSpec, RATE, Values, steps};
use crate::{Flags, Op, Record, Records};
use bimetal_base::Result;
use std::collections::VecDeque;

const TRANSACTIONS: u32 = 10;
const PHOTOS: u32 = 20;
const DELETED: usize = 10;
const PHOTOS_MAX: usize = 60;
const ENTRY_BYTES: u64 = 96;
/// What one write call carries at most.
pub(super) const WRITE_BYTES: u64 = 512;
/// The unit of the index.
pub(super) const INDEX: u32 = 0;

/// The seed with published check values.
pub(super) const CAMERA_SEED: OptionSpec =
    OptionSpec::new("seed", "13", "number that sizes and deletions follow from");

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "camera",
    about: "Camera-MS500: photos and their index, files written in 512-byte calls",
    options: &[RATE, CAMERA_SEED],
    make: begin,
};

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let mut camera = Camera::new(values.count("seed")?);
    let mut pace = values.pace()?;
    let mut calls = VecDeque::new();
    Ok(steps(move || {
        while calls.is_empty() {
            let step = camera.next()?;
            calls.extend(calls_of(step));
        }
        let (op, unit, offset, len) = calls.pop_front()?;
        let flags = Flags::NONE.with(Flags::SYNC, op == Op::Write);
        Some(Record { unit, flags, ..Record::new(pace.next(), op, offset, len) })
    }))
}

/// The calls of one step: operation, unit, offset, length.
fn calls_of(step: Step) -> Vec<(Op, u32, u64, u64)> {
    match step {
        Step::Create { file } => vec![(Op::Create, file, 0, 0)],
        Step::Delete { file } => vec![(Op::Delete, file, 0, 0)],
        Step::Write { file, offset, len } => {
            let pieces = (0..len).step_by(WRITE_BYTES as usize);
            pieces.map(|at| (Op::Write, file, offset + at, WRITE_BYTES.min(len - at))).collect()
        }
    }
}

/// x ← 6364136223846793005·x + 1442695040888963407 modulo 2⁶⁴; a number is x's high 31 bits.
struct Congruential(u64);

impl Congruential {
    /// The next number modulo `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// One thing the program does; a write may be several calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A file comes to be.
    Create { file: u32 },
    /// It is written.
    Write { file: u32, offset: u64, len: u64 },
    /// It is deleted.
    Delete { file: u32 },
}

/// The program.
pub(super) struct Camera {
    random: Congruential,
    transaction: u32,
    taken: u32,
    /// The photos there are, in the order of their index entries.
    photos: Vec<u32>,
    coming: VecDeque<Step>,
}

impl Camera {
    pub fn new(seed: u64) -> Camera {
        let coming = VecDeque::from([Step::Create { file: INDEX }]);
        Camera { random: Congruential(seed), transaction: 0, taken: 0, photos: Vec::new(), coming }
    }

    fn entry(slot: usize) -> Step {
        Step::Write { file: INDEX, offset: slot as u64 * ENTRY_BYTES, len: ENTRY_BYTES }
    }

    fn take_photo(&mut self) {
        let len = (300 + self.random.below(201)) << 10;
        self.taken += 1;
        let file = self.taken;
        self.photos.push(file);
        let entry = Camera::entry(self.photos.len() - 1);
        self.coming.extend([Step::Create { file }, Step::Write { file, offset: 0, len }, entry]);
    }

    fn delete(&mut self, slot: usize) {
        let file = self.photos.remove(slot);
        self.coming.extend([Step::Delete { file }, Camera::entry(slot)]);
    }

    fn transact(&mut self) {
        (0..PHOTOS).for_each(|_| self.take_photo());
        if self.photos.len() > PHOTOS_MAX {
            (0..self.photos.len()).rev().for_each(|slot| self.delete(slot));
            return;
        }
        let mut new: Vec<u32> = (self.taken - PHOTOS + 1..=self.taken).collect();
        for _ in 0..DELETED {
            let file = new.remove(self.random.below(new.len() as u64) as usize);
            if let Some(slot) = self.photos.iter().position(|&photo| photo == file) {
                self.delete(slot);
            }
        }
    }
}

impl Iterator for Camera {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        while self.coming.is_empty() && self.transaction < TRANSACTIONS {
            self.transaction += 1;
            self.transact();
        }
        self.coming.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;

    #[test]
    fn the_program_is_the_papers() {
        let steps: Vec<_> = Camera::new(13).collect();
        let created = steps.iter().filter(|step| matches!(step, Step::Create { .. })).count();
        let deleted = steps.iter().filter(|step| matches!(step, Step::Delete { .. })).count();
        assert_eq!((created, deleted), (201, 160));
        let photo = |step: &Step| match *step {
            Step::Write { file, len, .. } if file != INDEX => Some(len),
            _ => None,
        };
        let bytes: Vec<_> = steps.iter().filter_map(photo).collect();
        assert!(bytes.len() == 200 && bytes.iter().all(|len| (300 << 10..=500 << 10).contains(len)));
    }

    #[test]
    fn all_is_written_in_small_calls_that_are_waited_for() {
        let records = generate("camera");
        let writes: Vec<_> = records.iter().filter(|record| record.op == Op::Write).collect();
        assert!(writes.iter().all(|w| w.len <= 512 && w.flags == Flags::SYNC));
        let bytes: u64 = writes.iter().map(|write| write.len).sum();
        assert!((79.4..79.6).contains(&(bytes as f64 / f64::from(1 << 20))), "{bytes}");
    }
}
