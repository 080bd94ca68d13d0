//! Camera-MS500: what a phone's camera does to its file system (Doh and others, IEICE Transactions 2010,
//! section 4.2).
//!
//! Ten transactions. Each takes 20 photos of 300 to 500 KB and deletes half of them; if there are more than 60
//! photos then, all are deleted. An index file has 96 bytes for each photo, written when it is taken and when
//! it is deleted. Everything is written synchronously in units of 512 bytes.
//!
//! The paper does not say which photos are deleted, nor whether the 60 are counted before or after deleting.
//! Here ten of the twenty new ones are drawn, and they are counted before: counted after, there would be up to
//! 80 photos, more than its 32 MiB hold for some sizes. Sizes are whole KiB. The numbers come from
//! [`Generator`], so that a seed means the same everywhere; seed 13 writes 79.5 MiB (paper: 79.67).

use super::{File, Volume, VolumeCounts};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_ftl::streams::Generator;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;

/// The seed whose sector writes are published.
pub const SEED: u64 = 13;

const TRANSACTIONS: u32 = 10;
const PHOTOS: u32 = 20;
const DELETED: usize = 10;
const PHOTOS_MAX: usize = 60;
const INDEX_BYTES: u64 = 96;

/// One thing the camera does. Photos are numbered from 1 in the order they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes a photo of so many bytes.
    Take {
        /// Its number.
        photo: u32,
        /// Its bytes.
        len: u64,
    },
    /// Deletes a photo.
    Delete {
        /// Its number.
        photo: u32,
    },
    /// Writes the index entry at this place.
    Index {
        /// The number of the entry, from 0.
        slot: u64,
    },
}

/// The camera's program: its steps in order.
pub struct Camera {
    random: Generator,
    transactions: u32,
    taken: u32,
    /// The photos there are, in the order of their index entries.
    photos: Vec<u32>,
    coming: VecDeque<Step>,
}

impl Camera {
    /// The program that follows from `seed`.
    pub fn new(seed: u64) -> Camera {
        Camera {
            random: Generator(seed),
            transactions: 0,
            taken: 0,
            photos: Vec::new(),
            coming: VecDeque::new(),
        }
    }

    fn take(&mut self) {
        let len = (300 + self.random.next() % 201) << 10;
        self.taken += 1;
        self.photos.push(self.taken);
        let slot = self.photos.len() as u64 - 1;
        self.coming.extend([Step::Take { photo: self.taken, len }, Step::Index { slot }]);
    }

    fn delete(&mut self, slot: usize) {
        let photo = self.photos.remove(slot);
        self.coming.extend([Step::Delete { photo }, Step::Index { slot: slot as u64 }]);
    }

    fn transact(&mut self) {
        (0..PHOTOS).for_each(|_| self.take());
        if self.photos.len() > PHOTOS_MAX {
            (0..self.photos.len()).rev().for_each(|slot| self.delete(slot));
            return;
        }
        let mut new: Vec<u32> = (self.taken - PHOTOS + 1..=self.taken).collect();
        for _ in 0..DELETED {
            let drawn = new.remove((self.random.next() % new.len() as u64) as usize);
            if let Some(slot) = self.photos.iter().position(|photo| *photo == drawn) {
                self.delete(slot);
            }
        }
    }
}

impl Iterator for Camera {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.coming.is_empty() && self.transactions < TRANSACTIONS {
            self.transactions += 1;
            self.transact();
        }
        self.coming.pop_front()
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Report {
    /// Photos taken.
    pub taken: u32,
    /// Photos deleted.
    pub deleted: u32,
    /// Bytes of photos and index entries.
    pub bytes: u64,
    /// Sectors written to the volume, those that a write cache took included.
    pub sectors: VolumeCounts,
    /// What it took.
    #[serde(skip)]
    pub elapsed: Duration,
}

/// Runs the camera's program on an empty volume.
///
/// Fails as the volume does; a seed whose photos do not fit with [`Error::NoSpace`](bimetal_base::Error::NoSpace).
pub fn run(volume: &Volume, seed: u64) -> Result<Report> {
    let (begin, before): (Time, VolumeCounts) = (volume.now(), volume.counts());
    let mut report = Report { taken: 0, deleted: 0, bytes: 0, sectors: before, elapsed: Duration::ZERO };
    let mut index = volume.create("INDEX.DAT")?;
    let mut piece = vec![0; 64 << 10];
    for step in Camera::new(seed) {
        match step {
            Step::Take { photo, len } => {
                write_photo(&mut volume.create(&name(photo))?, photo, len, &mut piece)?;
                (report.taken, report.bytes) = (report.taken + 1, report.bytes + len);
            }
            Step::Delete { photo } => {
                volume.remove(&name(photo))?;
                report.deleted += 1;
            }
            Step::Index { slot } => {
                index.write_at(slot * INDEX_BYTES, &[slot as u8; INDEX_BYTES as usize])?;
                report.bytes += INDEX_BYTES;
            }
        }
    }
    let after = volume.counts();
    report.sectors = VolumeCounts {
        data: after.data - before.data,
        fat: after.fat - before.fat,
        directory: after.directory - before.directory,
        reserved: after.reserved - before.reserved,
    };
    report.elapsed = volume.now().since(begin);
    Ok(report)
}

/// The name of a photo's file.
pub fn name(photo: u32) -> String {
    format!("IMG_{photo:04}.JPG")
}

/// The byte at `offset` of a photo.
pub fn byte(photo: u32, offset: u64) -> u8 {
    (u64::from(photo).wrapping_mul(131) ^ offset.wrapping_mul(7) ^ (offset >> 9)) as u8
}

fn write_photo(file: &mut File<'_>, photo: u32, len: u64, piece: &mut [u8]) -> Result<()> {
    let mut offset = 0;
    while offset < len {
        let part = (len - offset).min(piece.len() as u64) as usize;
        for (at, target) in piece[..part].iter_mut().enumerate() {
            *target = byte(photo, offset + at as u64);
        }
        file.write_at(offset, &piece[..part])?;
        offset += part as u64;
    }
    Ok(())
}
