//! Camera-MS500 as the sectors that a synchronous VFAT writes (Doh and others, IEICE 2010).
//!
//! The volume is the one the paper's own figures point to: 65 536 sectors, FAT16 with 2 KiB clusters, two
//! FATs of 64 sectors from sector 1, a root directory of 32 sectors at 129, data from 161. Clusters are
//! handed out by next fit, as Linux 2.6.21 does: the search never goes back after a deletion.
//!
//! A write call writes its data sectors; where it took a new cluster, the sectors of both FATs that the
//! cluster and its predecessor stand in; then the file's directory sector. Creating a file writes its
//! directory sector; deleting it that sector and the FAT sectors of its clusters. With `metadata=no` only
//! the data sectors remain: what is left when a cache absorbs the rest.
//!
//! Seed 13 gives 163 227 data writes and 246 021 others, equal number for number to the published stream
//! on which Table 1 of the paper was analysed.

use super::camera::{CAMERA_SEED, Camera, Step, WRITE_BYTES};
use super::{Generator, OptionSpec, RATE, Values, steps};
use crate::{Flags, Op, Record, Records};
use bimetal_base::{Error, Result};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

const SECTOR_BYTES: u64 = WRITE_BYTES;
const FAT_SECTORS: u64 = 64;
const FATS: [u64; 2] = [1, 1 + FAT_SECTORS];
const ROOT: u64 = 129;
const ROOT_ENTRIES: usize = 512;
/// What a start and a name may be at most.
const START_MAX: u64 = 1 << 21;
const SLOTS_MAX: u64 = 4;
const ENTRIES_A_SECTOR: u64 = 16;
const DATA: u64 = 161;
const SECTORS_A_CLUSTER: u64 = 4;
const FAT_ENTRIES_A_SECTOR: u64 = 256;
/// The first and the last of the clusters.
const CLUSTERS: std::ops::RangeInclusive<u64> = 2..=16_344;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "camera-vfat",
    about: "Camera-MS500 as the sectors a synchronous VFAT writes",
    options: &[
        OptionSpec::new("metadata", "yes", "yes: all writes; no: data sectors only"),
        OptionSpec::new("format", "no", "yes: first, FATs and root directory are written once"),
        OptionSpec::new("start", "0", "sector of the device at which the volume begins"),
        OptionSpec::new("slots", "1", "directory entries a file takes; 2 with a long name"),
        RATE,
        CAMERA_SEED,
    ],
    make: begin,
};

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let (metadata, format) = (values.yes("metadata")?, values.yes("format")?);
    let mut camera = Camera::new(values.count("seed")?);
    let (start, slots) = (values.count("start")?, values.count("slots")?);
    if start > START_MAX {
        return Err(values.wrong("start", "a sector within the first GiB"));
    }
    if !(1..=SLOTS_MAX).contains(&slots) {
        return Err(values.wrong("slots", "from 1 to 4"));
    }
    let mut volume = Volume::new(slots as usize);
    let mut pace = values.pace()?;
    if let Some(why) = Volume::new(slots as usize).overflows(Camera::new(values.count("seed")?)) {
        return Err(why);
    }
    let mut formatted = 0..if format { DATA } else { 0 };
    Ok(steps(move || {
        if let Some(sector) = formatted.next() {
            return Some(Record::new(pace.next(), Op::Write, (start + sector) * SECTOR_BYTES, SECTOR_BYTES));
        }
        loop {
            while let Some(sector) = volume.written.pop_front() {
                let is_metadata = sector < DATA;
                if !is_metadata || metadata {
                    let flags = Flags::SYNC.with(Flags::META, is_metadata);
                    let write =
                        Record::new(pace.next(), Op::Write, (start + sector) * SECTOR_BYTES, SECTOR_BYTES);
                    return Some(Record { flags, ..write });
                }
            }
            volume.apply(camera.next()?)?;
        }
    }))
}

/// A file on the volume.
struct File {
    slot: usize,
    clusters: Vec<u64>,
}

/// The volume's allocation, and the sectors written by the last step.
struct Volume {
    used: Vec<bool>,
    last: u64,
    /// Directory entries a file takes.
    slots_a_file: usize,
    slots: [bool; ROOT_ENTRIES],
    files: FxHashMap<u32, File>,
    written: VecDeque<u64>,
}

impl Volume {
    fn new(slots_a_file: usize) -> Volume {
        Volume {
            used: vec![false; *CLUSTERS.end() as usize + 1],
            last: CLUSTERS.start() - 1,
            slots_a_file,
            slots: [false; ROOT_ENTRIES],
            files: FxHashMap::default(),
            written: VecDeque::new(),
        }
    }

    /// The error of a seed whose photos do not fit.
    fn overflows(mut self, camera: Camera) -> Option<Error> {
        for step in camera {
            self.written.clear();
            if self.apply(step).is_none() {
                return Some(Error::NoSpace("on the camera's 32 MiB volume; choose another seed"));
            }
        }
        None
    }

    /// Does one step. `None`: the volume is full.
    fn apply(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Create { file } => {
                let free = |run: &[bool]| run.iter().all(|taken| !taken);
                let slot = self.slots.windows(self.slots_a_file).position(free)?;
                self.slots[slot..slot + self.slots_a_file].fill(true);
                self.files.insert(file, File { slot, clusters: Vec::new() });
                self.write_entry(slot);
            }
            Step::Delete { file } => {
                let file = self.files.remove(&file)?;
                self.slots[file.slot..file.slot + self.slots_a_file].fill(false);
                self.write_entry(file.slot);
                self.write_fats(&file.clusters);
                file.clusters.iter().for_each(|&cluster| self.used[cluster as usize] = false);
            }
            Step::Write { file, offset, len } => self.write(file, offset, len)?,
        }
        Some(())
    }

    /// The index's entries are one call even where they cross a sector; photos are one call a sector.
    fn write(&mut self, file: u32, offset: u64, len: u64) -> Option<()> {
        let mut call = offset;
        while call < offset + len {
            let end = (offset + len).min(call + WRITE_BYTES);
            for sector in call / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES {
                self.write_sector(file, sector)?;
            }
            self.write_entry(self.files.get(&file)?.slot);
            call = end;
        }
        Some(())
    }

    fn write_sector(&mut self, name: u32, sector: u64) -> Option<()> {
        let which = (sector / SECTORS_A_CLUSTER) as usize;
        let mut changed = Vec::new();
        if which >= self.files.get(&name)?.clusters.len() {
            let new = self.allocate()?;
            let clusters = &mut self.files.get_mut(&name)?.clusters;
            changed.extend(clusters.last().copied());
            changed.push(new);
            clusters.push(new);
        }
        let cluster = *self.files.get(&name)?.clusters.get(which)?;
        let first = DATA + (cluster - CLUSTERS.start()) * SECTORS_A_CLUSTER;
        self.written.push_back(first + sector % SECTORS_A_CLUSTER);
        self.write_fats(&changed);
        Some(())
    }

    fn allocate(&mut self) -> Option<u64> {
        let from_last = (self.last + 1..=*CLUSTERS.end()).chain(*CLUSTERS.start()..=self.last);
        let found = from_last.into_iter().find(|&cluster| !self.used[cluster as usize])?;
        self.used[found as usize] = true;
        self.last = found;
        Some(found)
    }

    /// Writes the entry proper, the last of a file's.
    fn write_entry(&mut self, slot: usize) {
        self.written.push_back(ROOT + (slot + self.slots_a_file - 1) as u64 / ENTRIES_A_SECTOR);
    }

    /// Writes the sectors in which `clusters` stand, in ascending order, in both FATs.
    fn write_fats(&mut self, clusters: &[u64]) {
        let mut sectors: Vec<u64> = clusters.iter().map(|cluster| cluster / FAT_ENTRIES_A_SECTOR).collect();
        sectors.sort_unstable();
        sectors.dedup();
        for fat in FATS {
            self.written.extend(sectors.iter().map(|sector| fat + sector));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fnv, generate};
    use super::*;

    #[test]
    fn the_sectors_are_the_published_ones() {
        let all = generate("camera-vfat");
        assert_eq!(all.len(), 409_248);
        assert_eq!(fnv(all.iter().map(|record| record.offset / 512)), 0x187119606c113b1f);
        let data = generate("camera-vfat:metadata=no");
        assert_eq!(data.len(), 163_227);
        assert_eq!(fnv(data.iter().map(|record| record.offset / 512)), 0xd83460a5c25a019e);
    }

    #[test]
    fn six_writes_in_ten_go_to_one_sector_in_five_hundred() {
        let all = generate("camera-vfat");
        let mut hot: Vec<_> = all.iter().filter(|r| r.flags.has(Flags::META)).map(|r| r.offset).collect();
        let share = hot.len() as f64 / all.len() as f64;
        hot.sort_unstable();
        hot.dedup();
        assert!((0.600..0.602).contains(&share), "{share}");
        assert_eq!(hot.len(), 133);
    }
}
