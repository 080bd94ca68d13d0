//! What reads tell of blocks: how often each was read since it was last erased, as far as this mount knows, and how many
//! bits had to be corrected. A block is *tired* when either comes near to what loses it: it is rewritten then, and is as
//! new after the erase. Cost: four bytes a block.

use super::{Config, Stats};
use crate::media::{Geometry, NandError};
use crate::sorted::Set;
use alloc::vec::Vec;

pub(super) struct Watch {
    reads: Vec<u32>,
    tired: Set<u32>,
    /// A block is tired after so many reads; 0: never.
    reads_max: u32,
    /// A block is tired when so many bits of a codeword were wrong; 0: never.
    bits_max: u32,
    corrected_bits: u64,
}

impl Watch {
    /// `correctable` is how many bits of a codeword the part corrects.
    pub fn new(geometry: &Geometry, correctable: u32, config: &Config) -> Watch {
        let is_on = config.refresh_copies > 0;
        Watch {
            reads: alloc::vec![0; geometry.blocks as usize],
            tired: Set::new(),
            reads_max: if is_on { config.refresh_reads } else { 0 },
            // Three quarters, as drivers of Linux have it.
            bits_max: if is_on { (correctable * 3).div_ceil(4) } else { 0 },
            corrected_bits: 0,
        }
    }

    /// Takes note of a read of a block, and of the bits that it says were corrected.
    pub fn read(&mut self, block: u32, read: Result<u32, NandError>) -> Result<(), NandError> {
        let Some(reads) = self.reads.get_mut(block as usize) else { return read.map(drop) };
        *reads = reads.saturating_add(1);
        let is_old = self.reads_max > 0 && *reads >= self.reads_max;
        let bits = read.unwrap_or(0);
        self.corrected_bits += u64::from(bits);
        if is_old || self.bits_max > 0 && bits >= self.bits_max {
            self.tired.add(block);
        }
        read.map(drop)
    }

    /// The block is to be rewritten for another reason.
    pub fn tire(&mut self, block: u32) {
        self.tired.add(block);
    }

    /// The block was erased: it is as new.
    pub fn erased(&mut self, block: u32) {
        if let Some(reads) = self.reads.get_mut(block as usize) {
            *reads = 0;
        }
        self.tired.remove(&block);
    }

    pub fn is_tired(&self, block: u32) -> bool {
        self.tired.contains_key(&block)
    }

    pub fn tired(&self) -> impl Iterator<Item = u32> {
        self.tired.keys().copied()
    }

    pub fn count(&self, stats: &mut Stats) {
        stats.corrected_bits = self.corrected_bits;
        stats.tired_blocks = self.tired.len() as u32;
    }
}
