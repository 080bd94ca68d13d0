//! A checkpoint of YAFFS2 in the NAND: finding one, and writing one.
//!
//! A checkpoint is true only as long as nothing is written: its blocks are erased before the first page is. They are
//! the first erased blocks of the part, each with the number of the next in its tags.

use super::flash::Flash;
use crate::blocks::{BlockState, Blocks};
use crate::checkpoint::{self, PAGE_HEAD, Sums};
use crate::error::{Error, Result};
use crate::media::{Geometry, Nand};
use crate::nvram::State;
use crate::tags::{Packed, PageKind, SEQUENCE_CHECKPOINT, SpareState};
use alloc::vec::Vec;

/// Blocks to be erased that are looked at for more of a checkpoint.
const LOOK_MAX: u32 = 64;

/// The blocks that a checkpoint is in; to the log they are to be erased.
#[derive(Clone, Debug, Default)]
pub(super) struct Checkpoint {
    blocks: Vec<u32>,
}

impl Checkpoint {
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    pub fn add(&mut self, blocks: &mut Blocks, block: u32) {
        blocks.blank(block);
        self.blocks.push(block);
    }

    /// The state that a checkpoint says, if there is one that is whole. `firsts` collects what the first pages of
    /// blocks say.
    pub fn load<N: Nand>(
        flash: &mut Flash<N>,
        usable: u32,
        firsts: &mut Vec<SpareState>,
    ) -> Result<Option<(State, Checkpoint)>> {
        let geometry = flash.geometry();
        let mut found = None;
        while found.is_none() && (firsts.len() as u32) < geometry.blocks {
            let block = firsts.len() as u32;
            let first = flash.first_tags(block)?;
            // One that could not be erased when it ended is in a bad block.
            found = (is_checkpoint(&first) && !flash.is_bad(block)?).then_some(block);
            firsts.push(first);
        }
        let Some(first) = found else { return Ok(None) };
        let (stream, blocks) = read_stream(flash, first)?;
        let state = checkpoint::read(&stream, &geometry, usable);
        Ok(state.map(|state| (state, Checkpoint { blocks })))
    }

    /// Looks for a checkpoint beside NVRAM that agrees with the NAND: it is where the first idle blocks are.
    pub fn find<N: Nand>(&mut self, flash: &mut Flash<N>, blocks: &mut Blocks) -> Result<()> {
        let mut dirty = 0;
        for block in 0..flash.geometry().blocks {
            let (state, sequence) = (blocks.get(block).state, blocks.get(block).sequence);
            match state {
                BlockState::Erased => {}
                // One that was found before, and not erased yet, is in the NVRAM like those that look erased.
                BlockState::Erasable if sequence == 0 => {}
                // Another driver may have erased it first.
                BlockState::Erasable | BlockState::Emptied => {
                    dirty += 1;
                    if dirty > LOOK_MAX || dirty > 1 && self.blocks.is_empty() {
                        continue;
                    }
                }
                BlockState::Open | BlockState::Full | BlockState::Bad => continue,
            }
            if is_checkpoint(&flash.first_tags(block)?) {
                self.add(blocks, block);
            } else if state == BlockState::Erased {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Its pages.
    #[cfg(test)]
    pub fn pages<N: Nand>(&self, flash: &mut Flash<N>) -> Vec<u32> {
        let geometry = flash.geometry();
        let of_block = |block: &u32| geometry.first_page(*block)..geometry.first_page(*block + 1);
        let is_written = |page: &u32| !matches!(flash.read_tags(*page), Ok(SpareState::Erased));
        self.blocks.iter().flat_map(of_block).filter(is_written).collect()
    }
}

/// The stream that begins in a block, and the blocks it is in. It ends where pages stop fitting.
fn read_stream<N: Nand>(flash: &mut Flash<N>, first: u32) -> Result<(Vec<u8>, Vec<u32>)> {
    let geometry = flash.geometry();
    let (mut stream, mut sums, mut blocks) = (Vec::new(), Sums::default(), Vec::new());
    let (mut next, mut number) = (Some(first), 0);
    while let Some(block) = next {
        blocks.push(block);
        let mut hint = geometry.blocks;
        for page in 0..geometry.pages_per_block {
            let Some(SpareState::Tagged(tags)) = flash.read(geometry.first_page(block) + page)? else {
                return Ok((stream, blocks));
            };
            let fits = flash.is_whole() && tags.kind() == PageKind::Checkpoint && tags.chunk == number + 1;
            let (head, part) = flash.page().split_at(PAGE_HEAD);
            if !fits || *head != sums.head(number) {
                return Ok((stream, blocks));
            }
            sums.add(part);
            stream.extend_from_slice(part);
            number += 1;
            hint = tags.object.saturating_sub(1);
        }
        next = next_of_stream(flash, hint, &blocks)?;
    }
    Ok((stream, blocks))
}

fn next_of_stream<N: Nand>(flash: &mut Flash<N>, from: u32, known: &[u32]) -> Result<Option<u32>> {
    for block in from..flash.geometry().blocks {
        if is_checkpoint(&flash.first_tags(block)?) && !known.contains(&block) {
            return Ok(Some(block));
        }
    }
    Ok(None)
}

/// How many blocks a stream takes.
pub(super) fn blocks_of(stream: &[u8], geometry: &Geometry) -> usize {
    let pages = stream.len().div_ceil(geometry.page_bytes as usize - PAGE_HEAD);
    pages.div_ceil(geometry.pages_per_block as usize)
}

/// Writes a stream to blocks that are erased; false where a page failed.
pub(super) fn program<N: Nand>(flash: &mut Flash<N>, stream: &[u8], blocks: &[u32]) -> Result<bool> {
    let geometry = flash.geometry();
    let pages_per_block = geometry.pages_per_block as usize;
    let room = geometry.page_bytes as usize - PAGE_HEAD;
    let mut sums = Sums::default();
    for (number, part) in stream.chunks(room).enumerate() {
        let block = *blocks.get(number / pages_per_block).ok_or(Error::NoSpace)?;
        let mut page = sums.head(number as u32).to_vec();
        page.extend_from_slice(part);
        page.resize(geometry.page_bytes as usize, 0);
        sums.add(part);
        let tags = Packed {
            sequence: SEQUENCE_CHECKPOINT,
            // Where to look for the next block: behind this one, in numbers that begin at 1.
            object: block + 2,
            chunk: number as u32 + 1,
            bytes: geometry.page_bytes,
        };
        let at = geometry.first_page(block) + (number % pages_per_block) as u32;
        if !flash.program(at, &tags, &page)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_checkpoint(first: &SpareState) -> bool {
    matches!(first, SpareState::Tagged(tags) if tags.kind() == PageKind::Checkpoint)
}
