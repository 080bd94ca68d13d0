//! Where each frame of a byte range comes from: memory, SSD, disk, or nowhere. A plan is made under the lock, with no
//! device read but for frames of several kinds of blocks smaller than 4 KiB.
//!
//! A plan is carried out without the lock, and what came of it counts as long as it *holds* ([`Plan::holds`]): space that
//! is freed meanwhile is of concern only to who read it.

use super::Shared;
use super::core::Core;
use super::frames::FRAME;
use super::ssd::{Ssd, Sums};
use super::write::frame_of;
use bimetal_base::Result;
use bimetal_base::units::{DiskBlock, Ino, SsdBlock};
use bimetal_ext4::Mapping;
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

/// Where a stretch of whole frames comes from.
#[derive(Debug)]
pub(super) enum Source {
    Memory(Bytes),
    Zeros,
    Ssd { at: SsdBlock, sums: Sums },
    Disk { at: DiskBlock, blocks: u32 },
}

/// One stretch: `frames` frames from frame `index` on (the disk's may end inside the last).
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) index: u64,
    pub(super) bytes: usize,
    pub(super) source: Source,
}

pub(super) struct Plan {
    pub(super) ino: Ino,
    pub(super) pieces: SmallVec<[Piece; 4]>,
    pub(super) version: u64,
    /// See [`super::node::Node::moved`].
    pub(super) moved: u64,
    pub(super) reuse: u64,
    pub(super) size: u64,
    /// Where on the SSD the file belongs, if a device is needed.
    pub(super) section: Option<usize>,
}

impl Plan {
    fn needs(&self, wanted: impl Fn(&Source) -> bool) -> bool {
        self.pieces.iter().any(|piece| wanted(&piece.source))
    }

    pub(super) fn is_from_device(&self) -> bool {
        self.needs(|source| matches!(source, Source::Disk { .. } | Source::Ssd { .. }))
    }

    pub(super) fn is_from_disk(&self) -> bool {
        self.needs(|source| matches!(source, Source::Disk { .. }))
    }

    /// Whether what was read is what was planned: no space was reused since, or none of the file's. Blocks of the disk are
    /// taken from a file by a freeze, a truncation or its end, which the node counts. A copy on the SSD that is where it
    /// was may have been gone in between; then its checksum tells.
    pub(super) fn holds(&self, core: &Core, ssd_blocks_per_frame: u64) -> bool {
        if self.reuse == core.reuse() {
            return true;
        }
        let stays = core.nodes.get(self.ino).is_some_and(|node| node.moved() == self.moved);
        let is_there = |piece: &Piece| match piece.source {
            Source::Ssd { at, .. } => core.ssd.as_ref().is_some_and(|ssd| {
                let block = u32::try_from(piece.index * ssd_blocks_per_frame).ok();
                let frames = (piece.bytes / FRAME) as u64;
                block.and_then(|block| ssd.resident(self.ino, block)).is_some_and(|found| {
                    found.at == at && u64::from(found.len) >= frames * ssd_blocks_per_frame
                })
            }),
            _ => true,
        };
        stays && self.pieces.iter().all(is_there)
    }

    /// Leaves checksums that had to be read to the next reader.
    pub(super) fn learn(&self, ssd: &mut Ssd) {
        for piece in &self.pieces {
            if let Source::Ssd { sums, .. } = &piece.source
                && sums.were_read()
            {
                ssd.learn(sums);
            }
        }
    }

    /// Counts it once it was carried out: the bytes read from memory, SSD and disk, and whether the disk was needed.
    pub(super) fn count(&self, core: &mut Core) {
        if let (Some(section), Some(ssd)) = (self.section, &mut core.ssd) {
            ssd.note_read(section, !self.is_from_disk());
        }
        let read_bytes = &mut core.counters.read_bytes;
        for piece in &self.pieces {
            let from = match piece.source {
                Source::Memory(_) => 0,
                Source::Zeros => continue,
                Source::Ssd { .. } => 1,
                Source::Disk { .. } => 2,
            };
            read_bytes[from] += piece.bytes as u64;
            if from < 2 {
                core.promotions.pass(piece.bytes as u64);
            }
        }
    }
}

impl Shared {
    /// Says where each frame of a byte range comes from.
    pub(super) fn plan(&self, core: &mut Core, ino: Ino, offset: u64, end: u64) -> Result<Plan> {
        let mut pieces = SmallVec::<[Piece; 4]>::new();
        let last = end.div_ceil(FRAME as u64);
        let mut index = frame_of(offset);
        while index < last {
            let piece = self.piece(core, ino, index, last - index)?;
            index += (piece.bytes / FRAME) as u64;
            pieces.push(piece);
        }
        let from_device = |piece: &Piece| matches!(piece.source, Source::Disk { .. } | Source::Ssd { .. });
        let wants_ssd = core.ssd.is_some() && pieces.iter().any(from_device);
        let section = if wants_ssd { core.policy(ino).section } else { None };
        let size = core.ext4.inode(ino)?.size;
        let node = core.node_of(ino);
        let (version, moved) = (node.version(), node.moved());
        let plan = Plan { ino, pieces, version, moved, reuse: 0, size, section };
        if let Some(ssd) = &mut core.ssd {
            ssd.touch(ino);
        }
        Ok(Plan { reuse: core.reuse(), ..plan })
    }

    /// The longest stretch from `index` on, at most `max` frames, that has one source.
    fn piece(&self, core: &mut Core, ino: Ino, index: u64, max: u64) -> Result<Piece> {
        if let Some(bytes) = in_memory(core, ino, index) {
            return Ok(Piece { index, bytes: FRAME, source: Source::Memory(bytes) });
        }
        let max = self.until_memory(core, ino, index, max);
        if let Some(piece) = self.piece_on_ssd(core, ino, index, max) {
            return Ok(piece);
        }
        let max = self.until_ssd(core, ino, index, max);
        let per_frame = self.blocks_per_frame;
        let limit = u32::try_from(max * per_frame).unwrap_or(u32::MAX);
        match core.ext4.map(ino, index * per_frame, limit)? {
            Mapping::Data { at, len } if len >= per_frame as u32 || per_frame == 1 => {
                let blocks = len.min(limit) / per_frame as u32 * per_frame as u32;
                let bytes = (u64::from(blocks) / per_frame) as usize * FRAME;
                Ok(Piece { index, bytes, source: Source::Disk { at, blocks } })
            }
            Mapping::Hole { len } | Mapping::Unwritten { len, .. } if u64::from(len) >= per_frame => {
                let frames = (u64::from(len) / per_frame).min(max);
                Ok(Piece { index, bytes: frames as usize * FRAME, source: Source::Zeros })
            }
            _ => self.mixed_frame(core, ino, index),
        }
    }

    /// A frame whose file-system blocks are of several kinds: read here and now (blocks under 4 KiB only).
    fn mixed_frame(&self, core: &mut Core, ino: Ino, index: u64) -> Result<Piece> {
        let mut bytes = BytesMut::zeroed(FRAME);
        let block_bytes = FRAME / self.blocks_per_frame as usize;
        for (slot, part) in bytes.chunks_mut(block_bytes).enumerate() {
            let block = index * self.blocks_per_frame + slot as u64;
            if let Mapping::Data { at, .. } = core.ext4.map(ino, block, 1)? {
                part.copy_from_slice(&self.read_disk(at, 1)?);
            }
        }
        Ok(Piece { index, bytes: FRAME, source: Source::Memory(bytes.freeze()) })
    }

    pub(super) fn until_memory(&self, core: &Core, ino: Ino, index: u64, max: u64) -> u64 {
        let dirty = core.nodes.get(ino).and_then(|node| node.frames().range(index..).next());
        let dirty = dirty.map_or(u64::MAX, |(&found, _)| found);
        let frozen = core.cycle.as_ref().and_then(|cycle| cycle.next_frame(ino, index)).unwrap_or(u64::MAX);
        max.min(dirty.min(frozen) - index)
    }

    fn piece_on_ssd(&self, core: &Core, ino: Ino, index: u64, max: u64) -> Option<Piece> {
        // What the SSD holds is of the log's end, and the log is still being replayed.
        let ssd = core.ssd.as_ref().filter(|_| !core.state.ssd_is_fixed())?;
        let unit = self.ssd_blocks_per_frame;
        let found = ssd.resident(ino, u32::try_from(index * unit).ok()?)?;
        let frames = (u64::from(found.len) / unit).min(max);
        if frames == 0 {
            return None;
        }
        let sums = ssd.sums(found.at, (frames * unit) as u32);
        let source = Source::Ssd { at: found.at, sums };
        Some(Piece { index, bytes: frames as usize * FRAME, source })
    }

    pub(super) fn until_ssd(&self, core: &Core, ino: Ino, index: u64, max: u64) -> u64 {
        let unit = self.ssd_blocks_per_frame;
        let next =
            core.ssd.as_ref().and_then(|ssd| ssd.next_resident(ino, u32::try_from(index * unit).ok()?));
        next.map_or(max, |block| max.min((u64::from(block) / unit).saturating_sub(index).max(1)))
    }
}

/// The contents of a frame that is dirty or frozen: shared, not copied; a write that comes before the reader is done makes
/// a page of its own.
pub(super) fn in_memory(core: &mut Core, ino: Ino, index: u64) -> Option<Bytes> {
    if let Some(bytes) = core.nodes.get_mut(ino).and_then(|node| node.share(index)) {
        return Some(bytes);
    }
    core.cycle.as_ref()?.frame(ino, index)
}

/// Whether a frame is dirty or frozen.
pub(super) fn is_in_memory(core: &Core, ino: Ino, index: u64) -> bool {
    core.nodes.get(ino).is_some_and(|node| node.frames().contains_key(&index))
        || core.cycle.as_ref().is_some_and(|cycle| cycle.holds(ino, index))
}
