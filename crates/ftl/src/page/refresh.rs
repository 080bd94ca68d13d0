//! Refresh of a page map: what reads and time have brought into danger is written anew.
//!
//! The array tells which block that is ([`take_due`](bimetal_media::nand::Nand::take_due)). What is valid in it is copied as
//! cleaning does it, and it is erased, before the next request of the host. One that is still being written waits until a
//! read finds it again when it is closed; what an SLC cache holds is folded before long.

use super::{PageMap, State};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_media::nand::Cause;

impl PageMap {
    /// Empties all blocks that are due.
    #[inline]
    pub(crate) fn refresh(&mut self, at: Time) -> Result<()> {
        match self.array.nand().has_due() {
            true => self.refresh_due(at),
            false => Ok(()),
        }
    }

    #[cold]
    fn refresh_due(&mut self, at: Time) -> Result<()> {
        while let Some(member) = self.array.nand_mut().take_due() {
            let block = self.array.superblock_of(member);
            let unit = self.array.geometry().unit_of(block) as usize;
            // A copy needs what cleaning keeps; cleaning may have been of this very block.
            let has_room = !self.read_only && (!self.lacks_room(unit) || self.make_room(at, unit)?);
            if self.states[block as usize] != State::Closed {
                self.array.nand_mut().leave_due(member);
            } else if !has_room {
                self.array.nand_mut().leave_due(member);
                return Ok(());
            } else {
                self.counts.refreshed_blocks += 1;
                self.done_for(Cause::Refresh, |map| {
                    map.move_pages(at, unit, block, None)?;
                    map.erase(at, unit, block)
                })?;
            }
        }
        Ok(())
    }
}
