//! Putting frames into a data section of the SSD, and gathering scattered writes into large ones.

use super::Shared;
use super::core::Core;
use super::frames::FRAME;
use crate::ssd::{Run, Ssd};
use bimetal_base::time::Time;
use bimetal_base::units::{Ino, SsdBlock};
use bimetal_base::{Result, checksum};
use bimetal_media::{BlockDevice, Gather, Request, Ticket, wait_all};
use bytes::Bytes;
use std::cell::OnceCell;
use std::ops::Range;

/// Longest gathered write, bytes.
const WRITE_MAX: usize = 1 << 20;

/// Consecutive frames of a file and the SSD blocks they go to.
pub struct Placement {
    /// The file.
    pub ino: Ino,
    /// First frame.
    pub index: u64,
    /// Where: as many blocks as the frames take.
    pub run: Run,
    /// The contents, one part a frame.
    pub frames: Vec<Bytes>,
    /// Checksums of the blocks, once worked out.
    sums: OnceCell<Vec<u32>>,
}

impl Placement {
    /// Those of its frames, of `unit` SSD blocks each.
    pub fn part(&self, frames: Range<usize>, unit: u32) -> Placement {
        let at = SsdBlock(self.run.at.0 + frames.start as u64 * u64::from(unit));
        let run = Run { at, len: frames.len() as u32 * unit };
        let index = self.index + frames.start as u64;
        let sums = OnceCell::new();
        if let Some(all) = self.sums.get() {
            let blocks = frames.start * unit as usize..frames.end * unit as usize;
            // A new cell takes what it is given.
            let _ = sums.set(all[blocks].to_vec());
        }
        Placement { ino: self.ino, index, run, frames: self.frames[frames].to_vec(), sums }
    }

    /// Checksums of the blocks, in order; worked out while the blocks are written, with no lock held.
    pub fn sums(&self, block_bytes: usize) -> &[u32] {
        self.sums.get_or_init(|| {
            self.frames.iter().flat_map(|frame| frame.chunks(block_bytes)).map(checksum::crc32c).collect()
        })
    }
}

impl Shared {
    /// Finds room in a section for consecutive frames; what finds none stays out of the answer.
    pub(super) fn find_room(
        &self,
        ssd: &mut Ssd,
        section: usize,
        ino: Ino,
        first: u64,
        frames: Vec<Bytes>,
        now: Time,
    ) -> Vec<Placement> {
        let unit = self.ssd_blocks_per_frame;
        let Ok(blocks) = u32::try_from(frames.len() as u64 * unit) else { return Vec::new() };
        let Some(runs) = ssd.allocate(section, blocks, now) else { return Vec::new() };
        let mut rest = frames.into_iter();
        let mut index = first;
        let mut placements = Vec::with_capacity(runs.len());
        for run in runs {
            let count = u64::from(run.len) / unit;
            let frames = rest.by_ref().take(count as usize).collect();
            placements.push(Placement { ino, index, run, frames, sums: OnceCell::new() });
            index += count;
        }
        placements
    }

    /// Writes placements to the SSD, and works out their checksums meanwhile.
    ///
    /// # Errors
    /// Those of the SSD's device.
    pub(super) fn write_placements<'a, I>(&self, placements: I) -> Result<()>
    where
        I: IntoIterator<Item = &'a Placement, IntoIter: Clone>,
    {
        let Some(device) = &self.ssd_device else { return Ok(()) };
        let placements = placements.into_iter();
        let writes = placements.clone().flat_map(|placement| {
            let start = placement.run.at.0 * self.ssd_block_bytes as u64;
            let frames = placement.frames.iter().enumerate();
            frames.map(move |(number, frame)| (start + (number * FRAME) as u64, frame.clone()))
        });
        let tickets = submit_gathered(device.as_ref(), self.clock.now(), writes.collect());
        placements.for_each(|placement| {
            placement.sums(self.ssd_block_bytes);
        });
        wait_all(device.as_ref(), tickets).result.map(drop)
    }
}

/// Submits writes sorted by offset, neighbours joined up to 1 MiB.
pub fn submit_gathered(device: &dyn BlockDevice, at: Time, mut writes: Vec<(u64, Bytes)>) -> Vec<Ticket> {
    writes.sort_by_key(|&(offset, _)| offset);
    let mut tickets = Vec::new();
    let mut writes = writes.into_iter().peekable();
    while let Some((offset, first)) = writes.next() {
        let mut end = offset + first.len() as u64;
        let mut data = Gather::from_iter([first]);
        while let Some((_, next)) = writes.next_if(|(next_offset, next)| {
            *next_offset == end && (end - offset) as usize + next.len() <= WRITE_MAX
        }) {
            end += next.len() as u64;
            data.push(next);
        }
        tickets.push(device.submit(at, Request::Write { offset, data, durable: false }));
    }
    tickets
}

impl Core {
    /// Whether `bytes` are still what a frame of the file holds, dirty or frozen (compared by identity).
    pub(super) fn still_holds(&self, ino: Ino, index: u64, bytes: &Bytes) -> bool {
        let dirty = self.nodes.get(ino).and_then(|node| node.frames().get(&index));
        if let Some(frame) = dirty {
            return frame.bytes().as_ptr() == bytes.as_ptr();
        }
        let frozen = self.cycle.as_ref().and_then(|cycle| cycle.frame(ino, index));
        frozen.is_some_and(|frame| frame.as_ptr() == bytes.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::ram::Ram;

    #[test]
    fn neighbouring_writes_become_one_and_land_where_they_should() {
        let ram = Ram::new("ram", 1 << 16);
        let device: &dyn BlockDevice = &ram;
        let part = |fill: u8| Bytes::from(vec![fill; 4096]);
        let tickets = submit_gathered(
            device,
            Time::ZERO,
            vec![(8192, part(3)), (0, part(1)), (4096, part(2)), (20480, part(4))],
        );
        assert_eq!(tickets.len(), 2);
        wait_all(device, tickets).result.unwrap();
        let image = ram.image();
        let fills: Vec<u8> = image.chunks(4096).map(|chunk| chunk[17]).collect();
        assert_eq!(fills[..6], [1, 2, 3, 0, 0, 4]);
    }
}
