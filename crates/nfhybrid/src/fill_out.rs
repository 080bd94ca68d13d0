//! Writing into space that was reserved ahead, on a disk without a block left for where a file's extents are listed.
//!
//! What is written into the middle of an extent without data makes three of it, and the file's tree may need a node for
//! that. There is none: so all of the extent becomes data, zeros where nothing was written, and the tree stays as it is. The
//! kernel's ext4 does the same (`EXT4_EXT_MAY_ZEROOUT`). So what was reserved can be written, however full the disk is.
//!
//! Not where the extent reaches past the end of the file: behind it there is no data. Such a write is refused.

use super::Shared;
use super::core::Core;
use super::frames::{Claimed, FRAME, Frame, blocks_within};
use super::partial::load_frame;
use super::write::{Grown, Made};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::Mapping;
use smallvec::SmallVec;
use std::ops::Range;

/// Extents, by blocks of the file.
pub(super) type Extents = SmallVec<[Range<u64>; 2]>;

/// What the caller is told who finds no way.
const FULL: Error = Error::NoSpace("no free blocks for where the file's extents are listed");

impl Shared {
    /// The extents without data that all lie in which frames place, in a file that will reach up to byte `file`.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if something else is placed, or an extent cannot become data as a whole.
    pub(super) fn extents_to_fill(
        &self,
        core: &mut Core,
        ino: Ino,
        grown: &Grown,
        file: u64,
    ) -> Result<Extents> {
        let per_frame = self.blocks_per_frame;
        let end_of_file = core.ext4.inode(ino)?.size.max(file).div_ceil(self.disk_block_bytes as u64);
        let mut extents = Extents::new();
        for &(index, Claimed { covers, reserved, .. }) in grown.missing.iter().chain(&grown.reaching) {
            if reserved > 0 {
                return Err(FULL);
            }
            for within in (0..per_frame).filter(|within| covers >> within & 1 == 1) {
                let block = index * per_frame + within;
                if extents.last().is_some_and(|extent| extent.contains(&block)) {
                    continue;
                }
                match core.ext4.unwritten_around(ino, block)? {
                    Some(extent) if extent.end <= end_of_file => extents.push(extent),
                    Some(_) => return Err(FULL),
                    None => {}
                }
            }
        }
        Ok(extents)
    }

    /// The frames that these extents have only a part of and that are not dirty, nor about to be ([`Grown`]): as they are, for
    /// beside the extent there may be data. They are its first and its last at most.
    pub(super) fn edges_to_fill(
        &self,
        core: &mut Core,
        ino: Ino,
        grown: &Grown,
        extents: &[Range<u64>],
    ) -> Result<Made> {
        let per_frame = self.blocks_per_frame;
        let end_of_file = core.ext4.inode(ino)?.size.div_ceil(self.disk_block_bytes as u64);
        let mut edges = Made::new();
        for block in extents.iter().flat_map(|extent| [extent.start, extent.end]) {
            let index = block / per_frame;
            let made = |index| edges.iter().any(|(edge, ..)| *edge == index);
            let grows = |index| grown.missing.iter().any(|(missing, _)| *missing == index);
            let is_dirty = core.nodes.get(ino).is_some_and(|node| node.frames().contains_key(&index));
            if block.is_multiple_of(per_frame) || is_dirty || made(index) || grows(index) {
                continue;
            }
            let mut claimed = Claimed::default();
            for within in 0..per_frame.min(end_of_file.saturating_sub(index * per_frame)) {
                if let Mapping::Data { .. } = core.ext4.map(ino, index * per_frame + within, 1)? {
                    claimed.covers |= 1 << within;
                    claimed.live += 1;
                }
            }
            edges.push((index, load_frame(self, core, ino, index)?, claimed));
        }
        Ok(edges)
    }

    /// Makes the rest of these extents dirty, with zeros. It has its blocks, and one leaf of the tree says so: it needs no credits
    /// of the journal. Nobody waits for the zeros, but a commit takes as long as they do: when there are as many as `lag` has
    /// bytes, whoever changes something waits for it.
    pub(super) fn fill_out(&self, core: &mut Core, ino: Ino, extents: &[Range<u64>]) {
        let per_frame = self.blocks_per_frame;
        let node = core.nodes.of(ino, Ino(0));
        let mut zeros = 0;
        for extent in extents {
            for index in extent.start / per_frame..extent.end.div_ceil(per_frame) {
                let covers = blocks_within(index * per_frame, per_frame, extent);
                let claimed = Claimed { covers, ..Claimed::default() };
                match node.frames().contains_key(&index) {
                    true => node.cover([(index, claimed)]),
                    false => {
                        node.add([(index, Frame::shared_zeros(&self.pool).with_blocks(claimed))]);
                        zeros += FRAME as u64;
                    }
                }
            }
        }
        core.dirty.add_zeros(zeros);
    }
}
