//! Reading tables at a mount, in large pieces, one ahead of the one that is looked at, past what cannot be read.

use super::bits::Bits;
use super::layout::Layout;
use super::sector::{SECTOR_BYTES, SECTORS_PER_BLOCK, Seal, TABLE_BLOCK};
use super::slot::{self, Slot};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::{BlockDevice, Request};
use bytes::Bytes;
use std::collections::VecDeque;

/// Tables are read in pieces of so many bytes.
const CHUNK: u64 = 1 << 20;

/// So many pieces are under way at once.
const UNDER_WAY: usize = 2;

/// Reads tables; what the device cannot read counts as damaged.
pub(super) struct Reader<'a> {
    device: &'a dyn BlockDevice,
    seal: Seal,
    /// Slots below this were written, the free ones with a mark.
    marked: u32,
    /// What was damaged, in words.
    pub(super) notes: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice, seal: Seal, notes: Vec<String>) -> Reader<'a> {
        Reader { device, seal, marked: 0, notes }
    }

    /// Slots below `high` were written, the free ones with a mark: none of them reads as zeros.
    pub(super) fn expect_marks(&mut self, high: u32) {
        self.marked = high;
    }

    fn slot(&self, number: u32, bytes: &[u8], offset: u64) -> Result<Option<Slot>, &'static str> {
        if number < self.marked && slot::is_blank(bytes) {
            return Err("it was written, and reads as zeros");
        }
        slot::read(bytes, offset, &self.seal)
    }

    /// Reads a region, in whole table blocks. Blocks that cannot be read are zeros, and noted.
    pub(super) fn table(&mut self, start: u64, bytes: u64) -> Result<Bytes> {
        if bytes <= CHUNK {
            let read = self.device.read(start, bytes as usize);
            return self.readable(start, bytes, read);
        }
        let mut whole = Vec::with_capacity(bytes as usize);
        self.pieces(start, start + bytes, |_, piece| whole.extend_from_slice(piece))?;
        Ok(whole.into())
    }

    /// Reads a region in pieces and hands over each with its place.
    fn pieces(&mut self, start: u64, end: u64, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
        let mut starts = (start..end).step_by(CHUNK as usize);
        let (mut under_way, mut result) = (VecDeque::new(), Ok(()));
        loop {
            while result.is_ok()
                && under_way.len() < UNDER_WAY
                && let Some(at) = starts.next()
            {
                let len = CHUNK.min(end - at);
                let request = Request::Read { offset: at, len: len as usize };
                under_way.push_back((at, len, self.device.submit(Time::ZERO, request)));
            }
            let Some((at, len, ticket)) = under_way.pop_front() else { return result };
            let read = self.device.wait(ticket).result;
            if result.is_ok() {
                result = self.readable(at, len, read).map(|piece| each(at, &piece));
            }
        }
    }

    /// What was read of a region, or if that failed, what a block at a time can be.
    fn readable(&mut self, start: u64, bytes: u64, read: Result<Bytes>) -> Result<Bytes> {
        match read {
            Err(Error::Gone { .. }) | Ok(_) => read,
            Err(_) => {
                let mut whole = Vec::with_capacity(bytes as usize);
                self.blocks(start, bytes, &mut whole)?;
                Ok(whole.into())
            }
        }
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

    /// The log, if what lies from `end` on, where the groups that count end, reads otherwise now: a bit that flipped on the
    /// way makes the last fsync look as if the power had failed while it was written.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub(super) fn log_again(&self, log: &Bytes, start: u64, end: u64) -> Result<Option<Bytes>> {
        let (len, end) = (log.len() as u64, end % log.len() as u64);
        let after = end..len.min(end + CHUNK);
        let wrapped = 0..(end + CHUNK).saturating_sub(len).min(end);
        let mut changed: Option<Vec<u8>> = None;
        for part in [after, wrapped].into_iter().filter(|part| !part.is_empty()) {
            let bytes = match self.device.read(start + part.start, (part.end - part.start) as usize) {
                Ok(bytes) => bytes,
                Err(gone @ Error::Gone { .. }) => return Err(gone),
                Err(_) => continue,
            };
            let place = part.start as usize..part.end as usize;
            if bytes[..] != log[place.clone()] {
                changed.get_or_insert_with(|| log.to_vec())[place].copy_from_slice(&bytes);
            }
        }
        Ok(changed.map(Bytes::from))
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
        let as_is = Reader { seal: self.seal.clone(), notes: Vec::new(), ..*self };
        self.pieces(layout.slots, end, |at, bytes| {
            for (index, slot) in bytes.chunks_exact(size).enumerate() {
                if number < high {
                    each(number, as_is.slot(number, slot, at + (index * size) as u64));
                }
                number += 1;
            }
        })
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
            each(number, self.slot(number, &bytes[index..index + size], offset + index as u64));
            read = Some((block, bytes));
        }
        Ok(())
    }
}
