//! Opening from a checkpoint of YAFFS2, and leaving one.
//!
//! A checkpoint is true only as long as nothing is written: its blocks are erased before the first page is. They are
//! the first erased blocks of the part, each with the number of the next in its tags.

use super::{Fs, MountKind, Open};
use crate::blocks::BlockState;
use crate::checkpoint::{self, Contents, PAGE_HEAD, Sums};
use crate::error::{Error, Result};
use crate::media::{Nand, NandError, Nvram};
use crate::summary;
use crate::tags::{Packed, PageKind, SEQUENCE_CHECKPOINT, SpareState};
use alloc::vec::Vec;

/// Blocks to be erased that are looked at for more of a checkpoint.
const LOOK_MAX: u32 = 64;

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Takes the state from a checkpoint, if there is one that is whole. `firsts` collects what the first pages of
    /// blocks say, for the scan that follows if not.
    pub(super) fn load_checkpoint(&mut self, firsts: &mut Vec<SpareState>) -> Result<bool> {
        let mut found = None;
        while found.is_none() && (firsts.len() as u32) < self.geometry.blocks {
            let block = firsts.len() as u32;
            let first = self.read_tags(self.geometry.first_page(block))?;
            found = is_checkpoint(&first).then_some(block);
            firsts.push(first);
        }
        let Some(first) = found else { return Ok(false) };
        let (stream, blocks) = self.read_stream(first)?;
        let Some(state) = checkpoint::read(&stream, &self.geometry, self.blocks.usable) else {
            return Ok(false);
        };
        for (block, entry) in (0u32..).zip(state.blocks) {
            self.blocks.change(block, |old| *old = entry);
        }
        for (id, object) in state.objects.iter() {
            self.objects.insert(id, object.clone());
        }
        (self.sequence, self.last_block) = (state.sequence, state.last_block);
        self.open = state.open.map(|(block, next)| Open { block, next, tags: None });
        blocks.iter().for_each(|block| self.blank_block(*block));
        self.reserve_record_blocks();
        self.checkpoint = blocks;
        self.report.kind = MountKind::Checkpoint;
        Ok(true)
    }

    /// The stream that begins in a block, and the blocks it is in. It ends where pages stop fitting.
    fn read_stream(&mut self, first: u32) -> Result<(Vec<u8>, Vec<u32>)> {
        let (mut stream, mut sums, mut blocks) = (Vec::new(), Sums::default(), Vec::new());
        let (mut next, mut number) = (Some(first), 0);
        while let Some(block) = next {
            blocks.push(block);
            let mut hint = self.geometry.blocks;
            for page in 0..self.geometry.pages_per_block {
                let at = self.geometry.first_page(block) + page;
                match self.nand.read(at, &mut self.page, &mut self.spare) {
                    Ok(()) => {}
                    Err(NandError::Gone) => return Err(Error::Gone),
                    Err(_) => return Ok((stream, blocks)),
                }
                let SpareState::Tagged(tags) = self.place.read(&self.spare) else {
                    return Ok((stream, blocks));
                };
                let whole = self.place.data_is_whole(&self.page, &self.spare);
                let fits = whole && tags.kind() == PageKind::Checkpoint && tags.chunk == number + 1;
                if !fits || self.page[..PAGE_HEAD] != sums.head(number) {
                    return Ok((stream, blocks));
                }
                sums.add(&self.page[PAGE_HEAD..]);
                stream.extend_from_slice(&self.page[PAGE_HEAD..]);
                number += 1;
                hint = tags.object.saturating_sub(1);
            }
            next = self.next_of_stream(hint, &blocks)?;
        }
        Ok((stream, blocks))
    }

    fn next_of_stream(&mut self, from: u32, known: &[u32]) -> Result<Option<u32>> {
        for block in from..self.geometry.blocks {
            let first = self.read_tags(self.geometry.first_page(block))?;
            if is_checkpoint(&first) && !known.contains(&block) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Looks for a checkpoint beside NVRAM that agrees with the NAND: it is where the first idle blocks are.
    pub(super) fn find_checkpoint(&mut self) -> Result<()> {
        let mut dirty = 0;
        for block in 0..self.geometry.blocks {
            let state = self.blocks.get(block).state;
            match state {
                BlockState::Erased => {}
                // Another driver may have erased it first.
                BlockState::Erasable | BlockState::Emptied => {
                    dirty += 1;
                    if dirty > LOOK_MAX || dirty > 1 && self.checkpoint.is_empty() {
                        continue;
                    }
                }
                BlockState::Open | BlockState::Full | BlockState::Bad => continue,
            }
            let first = self.read_tags(self.geometry.first_page(block))?;
            if is_checkpoint(&first) {
                self.blank_block(block);
                self.checkpoint.push(block);
            } else if state == BlockState::Erased {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Before the NAND changes: the checkpoint goes. The NVRAM knows before that its blocks are not erased.
    pub(super) fn drop_checkpoint(&mut self) -> Result<()> {
        if self.checkpoint.is_empty() {
            return Ok(());
        }
        self.begin_session()?;
        let blocks = core::mem::take(&mut self.checkpoint);
        self.commit(false)?;
        for block in blocks {
            match self.nand.erase(block) {
                Ok(()) => {
                    self.stats.erases += 1;
                    self.blocks.change(block, |entry| {
                        let erases = entry.erases + 1;
                        *entry = crate::blocks::Block { erases, ..Default::default() };
                    });
                }
                Err(NandError::Gone) => return Err(Error::Gone),
                Err(_) => {
                    self.stats.failures += 1;
                    self.mark_bad(block)?;
                }
            }
        }
        Ok(())
    }

    /// Makes all durable and leaves a checkpoint for YAFFS2 on a machine whose pointers have `pointer_bytes` (4 or 8);
    /// whether there was room for it. The next write erases it. The NVRAM, if there is one, is as good as without.
    ///
    /// # Errors
    /// As [`update`](Fs::update)'s; [`Error::BadArgument`] for other sizes of pointers.
    pub fn checkpoint(&mut self, pointer_bytes: usize) -> Result<bool> {
        if !matches!(pointer_bytes, 4 | 8) {
            return Err(Error::BadArgument);
        }
        self.update()?;
        if !self.checkpoint.is_empty() {
            self.drop_checkpoint()?;
            self.update()?;
        }
        self.write_checkpoint(pointer_bytes)
    }

    fn write_checkpoint(&mut self, pointer_bytes: usize) -> Result<bool> {
        let mut stream = self.stream(pointer_bytes);
        let pages = stream.len().div_ceil(self.geometry.page_bytes as usize - PAGE_HEAD);
        let count = pages.div_ceil(self.geometry.pages_per_block as usize);
        // A driver looks for no more, and needs its reserve.
        let fits = count <= self.geometry.blocks as usize / 16 + 1
            && self.blocks.free() >= count + self.config.reserve_blocks as usize;
        if !fits {
            return Ok(false);
        }
        if self.blocks.erased_count() < count {
            while self.blocks.erased_count() < count {
                match self.erase_one() {
                    Ok(_) => {}
                    Err(Error::NoSpace) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            // The NVRAM looks for a checkpoint where it knows erased blocks.
            self.commit(true)?;
            stream = self.stream(pointer_bytes);
        }
        let erased = self.blocks.iter().filter(|(_, entry)| entry.state == BlockState::Erased);
        let blocks: Vec<u32> = erased.map(|(block, _)| block).take(count).collect();
        let written = match self.program_stream(&stream, &blocks) {
            // A page failed: nothing of it may be taken for a checkpoint.
            Err(Error::NoSpace) => false,
            done => done.map(|()| true)?,
        };
        blocks.iter().for_each(|block| self.blank_block(*block));
        self.checkpoint = blocks;
        if !written {
            self.drop_checkpoint()?;
            self.commit(true)?;
        }
        self.sync_nand()?;
        Ok(written)
    }

    fn stream(&self, pointer_bytes: usize) -> Vec<u8> {
        let contents = Contents {
            objects: &self.objects,
            blocks: &self.blocks,
            geometry: &self.geometry,
            open: self.open.as_ref().map(|open| (open.block, open.next)),
            sequence: self.sequence,
            summary_pages: summary::pages(&self.geometry, self.config.summaries),
        };
        checkpoint::write(&contents, pointer_bytes)
    }

    fn program_stream(&mut self, stream: &[u8], blocks: &[u32]) -> Result<()> {
        self.begin_session()?;
        let pages_per_block = self.geometry.pages_per_block as usize;
        let room = self.geometry.page_bytes as usize - PAGE_HEAD;
        let mut sums = Sums::default();
        for (number, part) in stream.chunks(room).enumerate() {
            let block = *blocks.get(number / pages_per_block).ok_or(Error::NoSpace)?;
            let mut page = sums.head(number as u32).to_vec();
            page.extend_from_slice(part);
            page.resize(self.geometry.page_bytes as usize, 0);
            sums.add(part);
            let tags = Packed {
                sequence: SEQUENCE_CHECKPOINT,
                // Where to look for the next block: behind this one, in numbers that begin at 1.
                object: block + 2,
                chunk: number as u32 + 1,
                bytes: self.geometry.page_bytes,
            };
            self.place.write(&tags, &page, &mut self.spare);
            let at = self.geometry.first_page(block) + (number % pages_per_block) as u32;
            match self.nand.program(at, &page, &self.spare) {
                Ok(()) => self.stats.programs += 1,
                Err(NandError::Gone) => return Err(Error::Gone),
                Err(_) => return Err(Error::NoSpace),
            }
        }
        Ok(())
    }

    /// The pages of the checkpoint that was found.
    #[cfg(test)]
    pub(super) fn checkpoint_pages(&mut self) -> Vec<u32> {
        let pages: Vec<u32> = (self.checkpoint.iter())
            .flat_map(|block| {
                (0..self.geometry.pages_per_block).map(|page| self.geometry.first_page(*block) + page)
            })
            .collect();
        let is_written = |page: &u32| !matches!(self.read_tags(*page), Ok(SpareState::Erased));
        pages.into_iter().filter(is_written).collect()
    }
}

fn is_checkpoint(first: &SpareState) -> bool {
    matches!(first, SpareState::Tagged(tags) if tags.kind() == PageKind::Checkpoint)
}
