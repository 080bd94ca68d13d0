//! Carrying out a plan: the devices are read without the core's lock, and what they answer is looked at.

use super::Shared;
use super::core::Core;
use super::frames::FRAME;
use super::plan::{Plan, Source};
use super::ssd::Sums;
use bimetal_base::checksum::crc32c;
use bimetal_base::units::{DiskBlock, SsdBlock};
use bimetal_base::{Error, Result};
use bimetal_media::Request;
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

/// Which half could not be read.
pub(super) enum Trouble {
    /// The SSD, at this piece of the plan.
    Ssd(usize, Error),
    /// The disk.
    Disk(Error),
}

impl Shared {
    /// Reads all the device pieces of a plan.
    pub(super) fn fetch(&self, plan: &mut Plan) -> Result<SmallVec<[Bytes; 4]>, Trouble> {
        let mut parts = SmallVec::new();
        for (number, piece) in plan.pieces.iter_mut().enumerate() {
            parts.push(match &mut piece.source {
                Source::Memory(bytes) => bytes.clone(),
                Source::Zeros => Bytes::from(vec![0; piece.bytes]),
                Source::Ssd { at, sums } => {
                    self.read_ssd(*at, sums).map_err(|error| Trouble::Ssd(number, error))?
                }
                Source::Disk { at, blocks } => self.read_disk(*at, *blocks).map_err(Trouble::Disk)?,
            });
        }
        Ok(parts)
    }

    /// Reads SSD blocks and checks each against its checksum; checksums that are not in memory are read first.
    pub(super) fn read_ssd(&self, at: SsdBlock, sums: &mut Sums) -> Result<Bytes> {
        let device = self.ssd_device.as_ref().ok_or_else(|| Error::invalid("no SSD"))?;
        let sums = sums.read(device.as_ref()).map_err(Error::of_ssd)?;
        let block_bytes = self.ssd_block_bytes;
        let offset = at.0 * block_bytes as u64;
        let bytes = device.read(offset, sums.len() * block_bytes).map_err(Error::of_ssd)?;
        for (number, (block, &sum)) in bytes.chunks(block_bytes).zip(sums).enumerate() {
            if crc32c(block) != sum {
                let at = format!("{}, block {}", device.info().name, at.0 + number as u64);
                return Err(Error::of_ssd(Error::corrupt("cached data", "its checksum is wrong", at)));
            }
        }
        Ok(bytes)
    }

    /// Reads disk blocks, taking what the journal has and the blocks do not.
    pub(super) fn read_disk(&self, at: DiskBlock, blocks: u32) -> Result<Bytes> {
        let block_bytes = self.disk_block_bytes;
        let request = Request::Read { offset: at.0 * block_bytes as u64, len: blocks as usize * block_bytes };
        // Looked up before the read as well as after it: meanwhile a checkpoint may write an image home, behind
        // the read, and let go of it.
        let newest = |number: usize| self.journal.latest(DiskBlock(at.0 + number as u64));
        let before: SmallVec<[(usize, Bytes); 4]> =
            (0..blocks as usize).filter_map(|number| Some((number, newest(number)?))).collect();
        let bytes = self.disk.run(self.clock.now(), request).result?;
        let after = (0..blocks as usize).filter_map(|number| Some((number, newest(number)?)));
        let newer: SmallVec<[(usize, Bytes); 4]> = before.into_iter().chain(after).collect();
        if newer.is_empty() {
            return Ok(bytes);
        }
        let mut patched = BytesMut::from(&bytes[..]);
        for (number, block) in newer {
            patched[number * block_bytes..(number + 1) * block_bytes].copy_from_slice(&block);
        }
        Ok(patched.freeze())
    }

    /// An SSD copy that cannot be read: forgets it, so that another plan goes on from the disk. What is bound there by now is
    /// another copy, and stays; an fsync may have made it, and nothing else have what it holds.
    ///
    /// # Errors
    /// That of the copy, if it is the only one.
    pub(super) fn distrust(&self, core: &mut Core, plan: &Plan, piece: usize, error: Error) -> Result<()> {
        core.counters.bad_sums += 1;
        // A dying SSD has thousands of these: the first, the second, the fourth, …
        if core.counters.bad_sums.is_power_of_two() {
            let count = core.counters.bad_sums;
            tracing::warn!(ino = plan.ino.0, count, %error, "dropping an SSD copy");
        }
        let piece = &plan.pieces[piece];
        let frames = piece.index..piece.index + (piece.bytes / FRAME) as u64;
        let (op, range) = (core.ops.last(), self.ssd_range(&frames));
        let (Some(ssd), Source::Ssd { at, .. }) = (&mut core.ssd, &piece.source) else { return Ok(()) };
        let is_the_only_one = ssd.unbind_bad_copies(op, plan.ino, range, *at);
        if is_the_only_one { Err(error) } else { Ok(()) }
    }
}
