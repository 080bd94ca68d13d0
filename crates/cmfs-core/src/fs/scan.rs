//! The full scan: the whole state from the NAND alone.
//!
//! Blocks are replayed in the order of their sequence numbers (ties by place, as image makers leave them). Of a
//! block with a summary that is whole two spare areas and one page are read, of others all spare areas.

use super::{Fs, MountKind};
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};
use crate::object::{LOST_FOUND, ROOT};
use crate::tags::{SEQUENCE_CHECKPOINT, SEQUENCE_FORMAT, SpareState, TagPlace};
use alloc::vec::Vec;

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Fills the state from the NAND: from a checkpoint of YAFFS2 unless `all` is to be scanned, else from all blocks.
    pub(super) fn scan(&mut self, why: &'static str, all: bool) -> Result<()> {
        self.report.kind = MountKind::Scanned;
        self.report.why = why;
        if self.session.is_none() {
            self.find_tags()?;
        }
        self.make_root();
        let mut firsts = Vec::new();
        if all || !self.load_checkpoint(&mut firsts)? {
            let order = self.order_of_blocks(&firsts)?;
            for (sequence, block) in order {
                self.scan_block(sequence, block)?;
            }
        }
        self.drop_headless();
        self.finish_mount();
        self.finish_moves()
    }

    /// The root and `lost+found` are there without a header, too.
    fn drop_headless(&mut self) {
        let kept: Vec<_> =
            [ROOT, LOST_FOUND].into_iter().filter_map(|id| Some((id, self.objects.remove(id)?))).collect();
        self.drop_unborn();
        for (id, object) in kept {
            self.objects.insert(id, object);
        }
    }

    /// Where the tags are, which each driver decides by itself: the first place that makes sense of a page. False
    /// where everything is erased.
    pub(super) fn find_tags(&mut self) -> Result<bool> {
        let usual = TagPlace::for_spare(self.geometry.spare_bytes);
        let places = [
            usual,
            TagPlace::IMAGE,
            TagPlace::MTD,
            TagPlace { ecc: false, ..usual },
            TagPlace { offset: 0, ecc: false },
        ];
        let mut looked = 0;
        for block in 0..self.geometry.blocks {
            let page = self.geometry.first_page(block);
            match self.nand.read_spare(page, &mut self.spare) {
                Ok(()) => {}
                Err(crate::NandError::Gone) => return Err(Error::Gone),
                Err(_) => continue,
            }
            if self.spare.iter().all(|byte| *byte == 0xff) {
                continue;
            }
            let fits = |place: &&TagPlace| matches!(place.read(&self.spare), SpareState::Tagged(_));
            if let Some(place) = places.iter().find(fits) {
                self.place = *place;
                return Ok(true);
            }
            looked += 1;
            // Blocks that were cut off in an erase look like anything.
            if looked > 64 {
                return Err(Error::Corrupt {
                    what: "NAND",
                    why: "no page has tags of YAFFS2",
                    at: u64::from(page),
                });
            }
        }
        Ok(false)
    }

    /// The blocks that hold something, oldest first. What looks erased is erased again before it is used. `firsts` is
    /// what is known of first pages already.
    fn order_of_blocks(&mut self, firsts: &[SpareState]) -> Result<Vec<(u32, u32)>> {
        let mut order = Vec::new();
        for block in 0..self.geometry.blocks {
            if self.holds_records(block) || self.is_marked_bad(block)? {
                self.blocks.change(block, |entry| entry.state = BlockState::Bad);
                continue;
            }
            match self.first_sequence(block, firsts.get(block as usize).copied())? {
                Some(SEQUENCE_CHECKPOINT) => {
                    self.blank_block(block);
                    self.checkpoint.push(block);
                }
                Some(sequence) if sequence != SEQUENCE_FORMAT => order.push((sequence, block)),
                // Erased; or what was a block of records once.
                _ => self.blank_block(block),
            }
        }
        order.sort_unstable();
        Ok(order)
    }

    /// The sequence number of a block: of its first page, or where that cannot be read of the next.
    fn first_sequence(&mut self, block: u32, mut known: Option<SpareState>) -> Result<Option<u32>> {
        let first = self.geometry.first_page(block);
        for page in first..first + self.geometry.pages_per_block {
            let tags = match known.take() {
                Some(tags) => tags,
                None => self.read_tags(page)?,
            };
            match tags {
                SpareState::Erased => return Ok(None),
                SpareState::Tagged(tags) => return Ok(Some(tags.sequence)),
                SpareState::Unreadable => {}
            }
        }
        Ok(None)
    }

    fn scan_block(&mut self, sequence: u32, block: u32) -> Result<()> {
        self.report.blocks_read += 1;
        let first = self.geometry.first_page(block);
        let (pages, end) = match self.read_summary(block)? {
            Some(tags) => {
                let count = tags.len() as u32;
                ((first..).zip(tags).collect(), count)
            }
            None => self.read_tail(block, 0)?,
        };
        let guards = self.apply_all(&pages)?;
        let usable = self.blocks.usable;
        self.blocks.change(block, |entry| {
            entry.state = BlockState::Full;
            entry.sequence = sequence;
            entry.written = end.min(usable);
            entry.guards = guards;
        });
        if sequence >= self.sequence {
            (self.sequence, self.last_block) = (sequence, block);
        }
        Ok(())
    }
}
