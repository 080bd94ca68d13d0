//! Reading tables at a mount, in large pieces, past what cannot be read.

use super::bits::Bits;
use super::layout::Layout;
use super::sector::{SECTOR_BYTES, SECTORS_PER_BLOCK, Seal, TABLE_BLOCK};
use super::slot::{self, Slot};
use crate::media::BlockDevice;
use crate::{Error, Result};
use bytes::Bytes;

/// Tables are read in pieces of so many bytes.
const CHUNK: u64 = 1 << 20;

/// Reads tables; what the device cannot read counts as damaged.
pub(super) struct Reader<'a> {
    device: &'a dyn BlockDevice,
    seal: Seal,
    /// What was damaged, in words.
    pub(super) notes: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice, seal: Seal, notes: Vec<String>) -> Reader<'a> {
        Reader { device, seal, notes }
    }

    /// Reads a region, in whole table blocks. Blocks that cannot be read are zeros, and noted.
    pub(super) fn table(&mut self, start: u64, bytes: u64) -> Result<Bytes> {
        let mut whole = Vec::with_capacity(bytes as usize);
        for at in (start..start + bytes).step_by(CHUNK as usize) {
            let len = CHUNK.min(start + bytes - at);
            match self.device.read(at, len as usize) {
                Ok(chunk) => whole.extend_from_slice(&chunk),
                Err(gone @ Error::Gone { .. }) => return Err(gone),
                Err(_) => self.blocks(at, len, &mut whole)?,
            }
        }
        Ok(whole.into())
    }

    /// Reads the log. What cannot be read could hold what nothing else has: it never passes for empty. A piece that
    /// fails is tried again, a block at a time.
    pub(super) fn log(&mut self, start: u64, bytes: u64) -> Result<Bytes> {
        let before = self.notes.len();
        let whole = self.table(start, bytes)?;
        match self.notes.drain(before..).next() {
            None => Ok(whole),
            Some(why) => {
                let why = std::io::Error::other(format!("a part of its log cannot be read ({why})"));
                Err(Error::io(&self.device.info().name, why))
            }
        }
    }

    /// Reads a region a block at a time.
    fn blocks(&mut self, start: u64, bytes: u64, whole: &mut Vec<u8>) -> Result<()> {
        for at in (start..start + bytes).step_by(TABLE_BLOCK as usize) {
            match self.device.read(at, TABLE_BLOCK as usize) {
                Ok(block) => whole.extend_from_slice(&block),
                Err(gone @ Error::Gone { .. }) => return Err(gone),
                Err(error) => {
                    self.notes.push(format!("the block at {at} cannot be read: {error}"));
                    whole.resize(whole.len() + TABLE_BLOCK as usize, 0);
                }
            }
        }
        Ok(())
    }

    /// Reads the sectors in `wanted` of a table and hands over each payload, or `None` if it is damaged.
    pub(super) fn sectors(
        &mut self,
        start: u64,
        wanted: &Bits,
        mut each: impl FnMut(u32, Option<&[u8]>),
    ) -> Result<()> {
        let per_chunk = (CHUNK as usize / SECTOR_BYTES) as u32;
        let mut wanted = wanted.iter().peekable();
        while let Some(&first) = wanted.peek() {
            // From the block of the first wanted sector to that of the last one within a chunk's reach.
            let from = first / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK;
            let here: Vec<u32> =
                std::iter::from_fn(|| wanted.next_if(|sector| *sector < from + per_chunk)).collect();
            let Some(last) = here.last() else { break };
            let blocks = u64::from(last / SECTORS_PER_BLOCK + 1 - from / SECTORS_PER_BLOCK);
            let offset = start + u64::from(from) * SECTOR_BYTES as u64;
            let bytes = self.table(offset, blocks * TABLE_BLOCK)?;
            for sector in here {
                let at = (sector - from) as usize * SECTOR_BYTES;
                let payload = self.seal.open(offset + at as u64, &bytes[at..at + SECTOR_BYTES]);
                each(sector, payload);
            }
        }
        Ok(())
    }

    /// Reads the slots below `high`.
    pub(super) fn slots(
        &mut self,
        layout: &Layout,
        high: u32,
        mut each: impl FnMut(u32, Result<Option<Slot>, &'static str>),
    ) -> Result<()> {
        let (size, per_block) = (layout.slot_bytes as usize, layout.slots_per_block());
        let end = layout.slots + u64::from(high.div_ceil(per_block)) * TABLE_BLOCK;
        let mut number = 0;
        for at in (layout.slots..end).step_by(CHUNK as usize) {
            let bytes = self.table(at, CHUNK.min(end - at))?;
            for (index, slot) in bytes.chunks_exact(size).enumerate() {
                if number < high {
                    each(number, slot::read(slot, at + (index * size) as u64, &self.seal));
                }
                number += 1;
            }
        }
        Ok(())
    }

    /// Reads the slots in `wanted`, ascending, a table block at a time.
    pub(super) fn slots_in(
        &mut self,
        layout: &Layout,
        wanted: impl Iterator<Item = u32>,
        mut each: impl FnMut(u32, Result<Option<Slot>, &'static str>),
    ) -> Result<()> {
        let (size, per_block) = (layout.slot_bytes as usize, layout.slots_per_block());
        let mut read: Option<(u32, Bytes)> = None;
        for number in wanted {
            let (block, index) = (number / per_block, (number % per_block) as usize * size);
            let offset = layout.slots + u64::from(block) * TABLE_BLOCK;
            let bytes = match read.take() {
                Some((held, bytes)) if held == block => bytes,
                _ => self.table(offset, TABLE_BLOCK)?,
            };
            each(number, slot::read(&bytes[index..index + size], offset + index as u64, &self.seal));
            read = Some((block, bytes));
        }
        Ok(())
    }
}
