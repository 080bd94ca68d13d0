//! Scrubbing: every copy on the SSD compared with its checksum, and with the disk's block if asked to.
//!
//! A scrub goes by inode number, a step of some bytes at a time; whoever orders it decides how fast. The devices are
//! read without the lock, and from their media, not from the host's memory; what is found wrong is looked at again under
//! it, for it may have been replaced meanwhile. A bad copy that the disk has, too, is dropped: the next read brings it anew. The only copy of something is never
//! dropped. Cost: the numbers of 65 536 inodes in memory, found again by a pass over all when they are used up.

use super::Shared;
use super::core::Core;
use super::ssd::{CopyState, Resident, Sums};
use bimetal_base::checksum::crc32c;
use bimetal_base::time::Time;
use bimetal_base::units::{Ino, SsdBlock};
use bimetal_base::{Error, Result};
use bimetal_ext4::Mapping;
use bytes::Bytes;
use serde::Serialize;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// Numbers of inodes kept at a time.
const INODES: usize = 1 << 16;
/// Blocks read at once.
const BLOCKS: u32 = 256;
/// The most one order may ask for, bytes: the thread that serves it is busy until it is done.
const STEP_BYTES_MAX: u64 = 16 << 20;

/// What a step of a scrub does.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Verify about so many bytes.
    pub bytes: u64,
    /// Compare with the disk's blocks, too. Only right where nothing else goes on.
    pub compare: bool,
    /// Drop what is wrong and the disk has.
    pub heal: bool,
}

/// What a step found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scrubbed {
    /// Bytes verified.
    pub bytes: u64,
    /// What is wrong.
    pub bad: Vec<BadCopy>,
    /// It was the last step.
    pub done: bool,
}

/// A block on the SSD that is not what it should be.
#[derive(Clone, Debug, Serialize)]
pub struct BadCopy {
    /// The file.
    pub ino: u64,
    /// The block in the file, in blocks of the SSD half.
    pub file_block: u32,
    /// Where on the SSD it is.
    pub ssd_block: u64,
    /// What is wrong with it.
    pub why: String,
    /// The disk has it, too: nothing is lost.
    pub on_disk: bool,
    /// It was dropped.
    pub dropped: bool,
}

/// How far a scrub has come.
#[derive(Default)]
pub struct Scrub {
    /// The inodes to come, by number.
    inodes: VecDeque<Ino>,
    /// All inodes below this were taken.
    next: u64,
    /// The next block of the first of `inodes`.
    block: u32,
    /// There are no more inodes.
    ended: bool,
    /// What the last step that was ordered found, as much of it as one answer holds.
    pub last: Scrubbed,
    /// The rest of it, which the next orders tell before they go on.
    untold: VecDeque<BadCopy>,
    /// All was looked at.
    looked_at_all: bool,
    /// Who ordered it, by a name that it gave itself, and when it last said something.
    by: Option<(String, Time)>,
}

/// An answer tells of so many bad copies, whose reasons are cut to so many characters: an attribute has 64 KiB.
const TOLD_MAX: usize = 32;
const WHY_MAX: usize = 256;
/// Who has been silent for so long scrubs no more.
const SILENCE: Duration = Duration::from_secs(10);
/// The orders that start a scrub, by which who waits for its next step keeps it, and that end it.
const START: &str = "start";
const WAIT: &str = "wait";
const END: &str = "end";

/// What is wrong with a block.
struct Wrong {
    why: String,
    /// What the disk has in its place can be read.
    on_disk: bool,
}

/// Copies that lie one behind the other.
struct Stretch {
    ino: Ino,
    file_block: u32,
    found: Resident,
    sums: Sums,
}

impl Shared {
    /// An order through the mount: `start`, `wait`, `end` or a number of bytes, and behind a blank who orders it. How far a scrub has come is
    /// known here alone, so that there is one at a time.
    ///
    /// Fails with [`Error::InUse`] where another one is at it, or has begun since.
    pub(super) fn order_scrub(&self, order: &str) -> Result<()> {
        let (what, who) = order.split_once(' ').unwrap_or((order, ""));
        let now = self.clock.now();
        {
            let scrub = &mut self.core.lock().scrub;
            let is_other = |by: &(String, Time)| by.0 != who;
            let busy = || Err(Error::InUse("another one scrubs this mount".into()));
            match what {
                START if scrub.by.as_ref().is_some_and(|by| is_other(by) && now.since(by.1) < SILENCE) => {
                    return busy();
                }
                START => *scrub = Scrub::default(),
                _ if scrub.by.as_ref().is_none_or(is_other) => return busy(),
                _ => {}
            }
            scrub.by = (what != END).then(|| (who.into(), now));
        }
        if [START, WAIT, END].contains(&what) {
            return Ok(());
        }
        let bytes: u64 = what.parse().map_err(|_| Error::BadArgument)?;
        let (heal, has_more) = {
            let core = &mut *self.core.lock();
            core.scrub.last = Scrubbed::default();
            (!core.is_read_only(), core.scrub.untold.is_empty() && !core.scrub.looked_at_all)
        };
        let step = Step { bytes: bytes.min(STEP_BYTES_MAX), compare: false, heal };
        let mut found = Scrubbed::default();
        let done = if has_more { self.scrub_into(&step, Some(who), &mut found) } else { Ok(()) };
        // What was found is told, whatever ended the step, and if another one has begun since, to that.
        let scrub = &mut self.core.lock().scrub;
        if scrub.by.as_ref().is_some_and(|by| by.0 == who) {
            scrub.tell(found, done.is_ok());
        } else {
            scrub.untold.extend(found.bad);
        }
        done
    }

    /// Runs a step.
    pub(super) fn scrub(&self, step: &Step) -> Result<Scrubbed> {
        let mut scrubbed = Scrubbed::default();
        self.scrub_into(step, None, &mut scrubbed)?;
        Ok(scrubbed)
    }

    /// Runs a step, ordered by `who` if it was ordered. What was found before an error is there, too.
    fn scrub_into(&self, step: &Step, who: Option<&str>, scrubbed: &mut Scrubbed) -> Result<()> {
        while scrubbed.bytes < step.bytes.max(1) {
            let Some(mut stretch) = self.next_stretch(who)? else {
                scrubbed.done = true;
                break;
            };
            let bytes = stretch.sums.len() as u64 * self.ssd_block_bytes as u64;
            scrubbed.bytes += bytes;
            self.core.lock().counters.scrubbed_bytes += bytes;
            if step.compare && !self.core.lock().has_inode(stretch.ino)? {
                if step.heal {
                    self.drop_leftover(&stretch);
                }
                continue;
            }
            let sums = self.read_sums(&mut stretch)?;
            for (index, wrong) in self.verify(&stretch, &sums, step.compare)? {
                let sum = sums[index as usize];
                scrubbed.bad.extend(self.condemn(&stretch, (index, sum), wrong, step.heal)?);
            }
        }
        Ok(())
    }

    /// What is to be looked at next; of an ordered scrub only if it is still `who` that scrubs, who is heard of with that.
    ///
    /// # Errors
    /// Of an ordered one: [`Error::InUse`], and [`Error::Gone`] where there is no SSD, or none any more.
    fn next_stretch(&self, who: Option<&str>) -> Result<Option<Stretch>> {
        let core = &mut *self.core.lock();
        if let Some(who) = who {
            let by = core.scrub.by.as_mut().filter(|by| by.0 == who);
            by.ok_or_else(|| Error::InUse("another one scrubs this mount".into()))?.1 = self.clock.now();
        }
        loop {
            let Some(ssd) = &core.ssd else {
                let why = core.state.ssd_lost().unwrap_or("this mount has none");
                return match who {
                    None => Ok(None),
                    Some(_) => Err(Error::Gone { device: format!("the SSD half ({why})") }),
                };
            };
            let Some(&ino) = core.scrub.inodes.front() else {
                core.scrub.refill(ssd.inodes());
                if core.scrub.inodes.is_empty() {
                    return Ok(None);
                }
                continue;
            };
            let from = core.scrub.block;
            let Some(file_block) = ssd.next_resident(ino, from) else {
                core.scrub.inodes.pop_front();
                core.scrub.block = 0;
                continue;
            };
            let Some(found) = ssd.resident(ino, file_block) else { return Ok(None) };
            let len = found.len.min(BLOCKS);
            core.scrub.block = file_block.saturating_add(len);
            let sums = ssd.sums(found.at, len);
            return Ok(Some(Stretch { ino, file_block, found, sums }));
        }
    }

    /// The checksums of a stretch; those that are not in memory are read without the lock, and kept if there is room.
    fn read_sums(&self, stretch: &mut Stretch) -> Result<Vec<Option<u32>>> {
        let Some(device) = &self.ssd_device else { return Ok(vec![None; stretch.sums.len()]) };
        let sums = stretch.sums.read_each(device.as_ref())?;
        if stretch.sums.were_read()
            && let Some(ssd) = &mut self.core.lock().ssd
        {
            ssd.learn(&stretch.sums);
        }
        Ok(sums)
    }

    /// Which blocks of a stretch are wrong, and how. Where one is, the disk is read, too: what is dropped takes the rest of its
    /// frame along.
    fn verify(&self, stretch: &Stretch, sums: &[Option<u32>], compare: bool) -> Result<Vec<(u32, Wrong)>> {
        let Some(device) = &self.ssd_device else { return Ok(Vec::new()) };
        let size = self.ssd_block_bytes;
        let at = stretch.found.at.0 * size as u64;
        device.forget_cached(at, (stretch.sums.len() * size) as u64);
        let blocks: Vec<Result<Bytes>> = match device.read(at, stretch.sums.len() * size) {
            Ok(bytes) => (0..stretch.sums.len()).map(|i| Ok(bytes.slice(i * size..(i + 1) * size))).collect(),
            Err(gone) if is_gone(&gone) => return Err(gone),
            Err(_) => (0..stretch.sums.len()).map(|i| device.read(at + (i * size) as u64, size)).collect(),
        };
        let fault = |(index, block): (usize, &Result<Bytes>)| match block {
            Err(error) => Some(format!("it cannot be read: {error}")),
            Ok(_) if sums[index].is_none() => Some("its checksum cannot be read".into()),
            Ok(bytes) if sums[index] != Some(crc32c(bytes)) => Some("its checksum is wrong".into()),
            Ok(_) => None,
        };
        let mut faults: Vec<Option<String>> = blocks.iter().enumerate().map(fault).collect();
        if !(compare || faults.iter().any(Option::is_some)) || stretch.found.state != CopyState::Both {
            return Ok(wrong(faults, false));
        }
        let disk = match self.disk_contents(stretch) {
            Err(gone @ Error::Gone { .. }) => return Err(gone),
            disk => disk,
        };
        for (index, (fault, block)) in faults.iter_mut().zip(&blocks).enumerate() {
            let (None, Ok(bytes), true) = (&fault, block, compare) else { continue };
            *fault = match &disk {
                // An error of that file's, and of no other; the copy is right, and all there is.
                Err(error) => Some(format!("it is right, and what the disk has cannot be read: {error}")),
                Ok(disk) => {
                    let disk = &disk[(index * size).min(disk.len())..];
                    let part = &disk[..disk.len().min(size)];
                    (bytes[..part.len()] != *part).then(|| "it is not what the disk has".into())
                }
            };
        }
        Ok(wrong(faults, disk.is_ok()))
    }

    /// What the disk has where a stretch is, as far as the file goes.
    fn disk_contents(&self, stretch: &Stretch) -> Result<Vec<u8>> {
        let core = &mut *self.core.lock();
        let start = u64::from(stretch.file_block) * self.ssd_block_bytes as u64;
        let wanted = start + (stretch.sums.len() * self.ssd_block_bytes) as u64;
        let end = core.ext4.inode(stretch.ino)?.size.min(wanted);
        let mut contents = self.disk_bytes(core, stretch.ino, start, end)?;
        contents.truncate(end.saturating_sub(start) as usize);
        Ok(contents)
    }

    fn disk_bytes(&self, core: &mut Core, ino: Ino, start: u64, end: u64) -> Result<Vec<u8>> {
        let size = self.disk_block_bytes as u64;
        let mut contents = Vec::new();
        let first = start / size * size;
        let mut at = first;
        while at < end {
            let left = u32::try_from((end - at).div_ceil(size)).unwrap_or(u32::MAX);
            match core.ext4.map(ino, at / size, left)? {
                Mapping::Data { at: block, len } => {
                    let len = len.min(left);
                    self.disk.forget_cached(block.0 * size, u64::from(len) * size);
                    contents.extend_from_slice(&self.read_disk(block, len)?);
                    at += u64::from(len) * size;
                }
                hole => {
                    let len = hole.blocks().clamp(1, u64::from(left));
                    contents.resize(contents.len() + (len * size) as usize, 0);
                    at += len * size;
                }
            }
        }
        contents.drain(..((start - first) as usize).min(contents.len()));
        Ok(contents)
    }

    /// Copies of a file that is gone are no damage, only room that is not used.
    fn drop_leftover(&self, stretch: &Stretch) {
        let core = &mut *self.core.lock();
        let (first, unit) = (u64::from(stretch.file_block), self.ssd_blocks_per_frame);
        let frames = first / unit..(first + stretch.sums.len() as u64).div_ceil(unit);
        let op = core.ops.last();
        if let Some(ssd) = &mut core.ssd {
            self.unbind(ssd, op, stretch.ino, frames);
        }
    }

    /// Looks at a bad block again, counts it, and drops it if that is asked for and the disk has it. `None` if it is
    /// another block by now.
    fn condemn(
        &self,
        stretch: &Stretch,
        (index, sum): (u32, Option<u32>),
        Wrong { why, on_disk }: Wrong,
        heal: bool,
    ) -> Result<Option<BadCopy>> {
        let core = &mut *self.core.lock();
        let op = core.ops.last();
        let file_block = stretch.file_block + index;
        let ssd_block = stretch.found.at.0 + u64::from(index);
        let (Some(ssd), Some(device)) = (core.ssd.as_mut(), &self.ssd_device) else { return Ok(None) };
        let Some(now) = ssd.resident(stretch.ino, file_block) else { return Ok(None) };
        // Few are bad, so their checksums may be read under the lock.
        let same =
            now.at.0 == ssd_block && ssd.sums(SsdBlock(ssd_block), 1).read_each(device.as_ref())? == [sum];
        if !same {
            return Ok(None);
        }
        let on_disk = on_disk && now.state == CopyState::Both;
        let dropped = heal && on_disk;
        if dropped {
            // The rest of its frame goes along.
            let frame = u64::from(file_block) / self.ssd_blocks_per_frame;
            let range = self.ssd_range(&(frame..frame + 1));
            if let Some(at) = ssd_block.checked_sub(u64::from(file_block) - range.0) {
                ssd.unbind_bad_copies(op, stretch.ino, range, SsdBlock(at));
            }
        }
        core.counters.scrub_bad += 1;
        Ok(Some(BadCopy { ino: stretch.ino.0, file_block, ssd_block, why, on_disk, dropped }))
    }
}

/// Whether a device answers nothing any more, be it the SSD's.
fn is_gone(error: &Error) -> bool {
    match error {
        Error::Ssd(within) => is_gone(within),
        other => matches!(other, Error::Gone { .. }),
    }
}

/// The blocks that have a fault.
fn wrong(faults: Vec<Option<String>>, on_disk: bool) -> Vec<(u32, Wrong)> {
    let all = faults.into_iter().zip(0..);
    all.filter_map(|(why, index)| Some((index, Wrong { why: why?, on_disk }))).collect()
}

impl Core {
    /// Whether the disk has an inode; one that is damaged is there.
    fn has_inode(&mut self, ino: Ino) -> Result<bool> {
        match self.ext4.inode(ino) {
            Err(Error::Stale | Error::NotFound) => Ok(false),
            Err(gone @ Error::Gone { .. }) => Err(gone),
            _ => Ok(true),
        }
    }
}

impl Scrub {
    /// Notes what a step found, to be told. One that failed is not the last.
    fn tell(&mut self, found: Scrubbed, is_well: bool) {
        self.looked_at_all |= found.done && is_well;
        self.untold.extend(found.bad);
        let told = self.untold.len().min(TOLD_MAX);
        let cut = |bad: BadCopy| BadCopy { why: bad.why.chars().take(WHY_MAX).collect(), ..bad };
        let bad = self.untold.drain(..told).map(cut).collect();
        self.last = Scrubbed { bytes: found.bytes, bad, done: self.looked_at_all && self.untold.is_empty() };
    }

    /// Takes the next inodes by number, out of all.
    fn refill(&mut self, all: impl Iterator<Item = Ino>) {
        if self.ended {
            return;
        }
        let mut lowest = BinaryHeap::new();
        self.ended = true;
        for ino in all.filter(|ino| ino.0 >= self.next) {
            lowest.push(ino);
            if lowest.len() > INODES {
                lowest.pop();
                self.ended = false;
            }
        }
        let next = lowest.into_sorted_vec();
        self.next = next.last().map_or(u64::MAX, |last| last.0 + 1);
        self.inodes = next.into();
        self.block = 0;
    }
}
