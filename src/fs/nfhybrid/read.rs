//! Reading: from memory, else from the SSD if it has a finished copy, else from the disk and up to the SSD.
//!
//! A plan is made under the lock, the devices are read without it, and the answer is taken only if nothing
//! that was planned from can have been reused meanwhile; else it is planned again.

use super::Shared;
use super::admission::{DiskRead, PATH};
use super::core::Core;
use super::frames::{FRAME, Frame};
use super::ssd::{Ssd, Sums};
use super::write::frame_of;
use crate::checksum::crc32c;
use crate::fs::ext4::Mapping;
use crate::fs::{Kind, Later, Seek};
use crate::media::{BlockDevice, Request};
use crate::units::{DiskBlock, Ino, SsdBlock};
use crate::{Error, Result};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use std::sync::Arc;

/// Attempts without the lock before a read is done under it.
const ATTEMPTS: u32 = 3;

/// Where a stretch of whole frames comes from.
#[derive(Debug)]
enum Source {
    Memory(Bytes),
    Zeros,
    Ssd { at: SsdBlock, sums: Sums },
    Disk { at: DiskBlock, blocks: u32 },
}

/// One stretch: `frames` frames from frame `index` on (the disk's may end inside the last).
#[derive(Debug)]
struct Piece {
    index: u64,
    bytes: usize,
    source: Source,
}

struct Plan {
    ino: Ino,
    pieces: SmallVec<[Piece; 4]>,
    version: u64,
    reuse: u64,
    size: u64,
    /// Where on the SSD the file belongs, if a device is needed.
    section: Option<usize>,
}

impl Plan {
    fn needs(&self, wanted: impl Fn(&Source) -> bool) -> bool {
        self.pieces.iter().any(|piece| wanted(&piece.source))
    }

    fn is_from_disk(&self) -> bool {
        self.needs(|source| matches!(source, Source::Disk { .. }))
    }

    /// Leaves checksums that had to be read to the next reader.
    fn learn(&self, ssd: &mut Ssd) {
        for piece in &self.pieces {
            if let Source::Ssd { sums, .. } = &piece.source
                && sums.were_read()
            {
                ssd.learn(sums);
            }
        }
    }

    /// Counts it once it was carried out: the bytes read from memory, SSD and disk, and whether the disk was needed.
    fn count(&self, core: &mut Core) {
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
    /// See [`crate::fs::FileSystem::read`].
    pub(super) fn read(self: &Arc<Shared>, ino: Ino, offset: u64, len: usize) -> Result<Later<Vec<Bytes>>> {
        let Some((mut core, begun)) = self.glance(|core| self.begin_read(core, ino, offset, len))? else {
            let shared = self.clone();
            return Ok(Later::Wait(Box::new(move || {
                let (mut core, begun) = shared.look(|core| shared.begin_read(core, ino, offset, len))?;
                shared.wake_if_due(&mut core);
                drop(core);
                begun.map_or(Ok(Vec::new()), |(plan, end)| shared.read_planned(plan, offset, end))
            })));
        };
        self.wake_if_due(&mut core);
        drop(core);
        let Some((plan, end)) = begun else { return Ok(Later::Now(Vec::new())) };
        if plan.is_from_disk() {
            let shared = self.clone();
            return Ok(Later::Wait(Box::new(move || shared.read_planned(plan, offset, end))));
        }
        self.read_planned(plan, offset, end).map(Later::Now)
    }

    /// Plans a read and notes the access, in this order: what is missing shows before anything changes. Nothing past
    /// the end of the file; else the plan, and where the read ends.
    fn begin_read(&self, core: &mut Core, ino: Ino, offset: u64, len: usize) -> Result<Option<(Plan, u64)>> {
        core.state.check_readable()?;
        let size = core.inode_of_file(ino)?.size;
        let end = size.min(offset.saturating_add(len as u64));
        let plan = if offset < end { Some((self.plan(core, ino, offset, end)?, end)) } else { None };
        self.note_access(core, ino)?;
        Ok(plan)
    }

    fn read_planned(&self, mut plan: Plan, offset: u64, mut end: u64) -> Result<Vec<Bytes>> {
        for _ in 0..ATTEMPTS {
            let fetched = self.fetch(&mut plan);
            let mut core = self.core.lock();
            match fetched {
                Ok(parts) if plan.reuse == core.reuse => {
                    plan.count(&mut core);
                    core.ssd.iter_mut().for_each(|ssd| plan.learn(ssd));
                    if plan.section.is_some() && plan.is_from_disk() {
                        self.offer(&mut core, &plan, &parts);
                    }
                    return Ok(cut(&plan, parts, offset, end));
                }
                Ok(_) => {}
                Err(Trouble::Ssd(piece, error)) if plan.reuse == core.reuse => {
                    self.distrust(&mut core, &plan, piece, &error);
                }
                Err(Trouble::Disk(error)) if plan.reuse == core.reuse => return Err(error),
                // Another file may have the blocks by now.
                Err(Trouble::Ssd(..) | Trouble::Disk(_)) => {}
            }
            end = end.min(core.inode_of_file(plan.ino)?.size);
            if offset >= end {
                return Ok(Vec::new());
            }
            plan = self.plan(&mut core, plan.ino, offset, end)?;
        }
        let mut core = self.core.lock();
        end = end.min(core.inode_of_file(plan.ino)?.size);
        if offset >= end {
            return Ok(Vec::new());
        }
        loop {
            let mut plan = self.plan(&mut core, plan.ino, offset, end)?;
            match self.fetch(&mut plan) {
                Ok(parts) => {
                    plan.count(&mut core);
                    return Ok(cut(&plan, parts, offset, end));
                }
                // Each time less of the file is on the SSD.
                Err(Trouble::Ssd(piece, error)) => self.distrust(&mut core, &plan, piece, &error),
                Err(Trouble::Disk(error)) => return Err(error),
            }
        }
    }

    /// Says where each frame of a byte range comes from.
    fn plan(&self, core: &mut Core, ino: Ino, offset: u64, end: u64) -> Result<Plan> {
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
        let plan = Plan { ino, pieces, version: node.version, reuse: 0, size, section };
        if let Some(ssd) = &mut core.ssd {
            ssd.touch(ino);
        }
        Ok(Plan { reuse: core.reuse, ..plan })
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

    fn until_memory(&self, core: &Core, ino: Ino, index: u64, max: u64) -> u64 {
        let dirty = core.nodes.get(&ino).and_then(|node| node.frames.range(index..).next());
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

    fn until_ssd(&self, core: &Core, ino: Ino, index: u64, max: u64) -> u64 {
        let unit = self.ssd_blocks_per_frame;
        let next =
            core.ssd.as_ref().and_then(|ssd| ssd.next_resident(ino, u32::try_from(index * unit).ok()?));
        next.map_or(max, |block| max.min((u64::from(block) / unit).saturating_sub(index).max(1)))
    }

    /// Reads all the device pieces of a plan.
    fn fetch(&self, plan: &mut Plan) -> Result<SmallVec<[Bytes; 4]>, Trouble> {
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
        read_checked(device.as_ref(), self.ssd_block_bytes, at, sums)
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

    /// An SSD copy that cannot be read: forget it and go on from the disk.
    fn distrust(&self, core: &mut Core, plan: &Plan, piece: usize, error: &Error) {
        core.counters.bad_sums += 1;
        // A dying SSD has thousands of these: the first, the second, the fourth, …
        if core.counters.bad_sums.is_power_of_two() {
            let count = core.counters.bad_sums;
            tracing::warn!(ino = plan.ino.0, count, %error, "dropping an SSD copy");
        }
        let piece = &plan.pieces[piece];
        let op = core.op;
        if let Some(ssd) = &mut core.ssd {
            self.unbind(ssd, op, plan.ino, piece.index..piece.index + (piece.bytes / FRAME) as u64);
        }
    }

    /// Hands what came from the disk to the committer, to be copied to the SSD if it is worth it.
    fn offer(&self, core: &mut Core, plan: &Plan, parts: &[Bytes]) {
        let from_disk = |piece: &Piece| matches!(piece.source, Source::Disk { .. });
        let unchanged = core.nodes.get(&plan.ino).map(|node| node.version) == Some(plan.version);
        let path = core.path_above(plan.ino);
        let file_frames = plan.size.div_ceil(FRAME as u64);
        for (piece, bytes) in plan.pieces.iter().zip(parts).filter(|(piece, _)| from_disk(piece)) {
            if !unchanged {
                core.promotions.too_late(bytes.len() as u64);
                continue;
            }
            let frames = piece.index..piece.index + (bytes.len() / FRAME) as u64;
            let read = DiskRead { ino: plan.ino, path, frames, file_frames };
            core.promotions.offer(&read, bytes, plan.version, self.clock.now());
        }
        if core.promotions.is_due() {
            self.work.notify_one();
        }
    }

    /// See [`crate::fs::FileSystem::seek`].
    pub(super) fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let (mut core, size) = self.look(|core| {
            core.look_at_data(ino)?;
            Ok(core.inode_of_file(ino)?.size)
        })?;
        if offset >= size {
            return Err(Error::NoOffset);
        }
        let mut index = frame_of(offset);
        while index * (FRAME as u64) < size {
            let (data, frames) = self.stretch(&mut core, ino, index, size)?;
            if data == (what == Seek::Data) {
                return Ok(offset.max(index * FRAME as u64));
            }
            index += frames;
        }
        if what == Seek::Hole { Ok(size) } else { Err(Error::NoOffset) }
    }

    /// Whether a frame holds data, and how many frames after it are known to be alike.
    fn stretch(&self, core: &mut Core, ino: Ino, index: u64, size: u64) -> Result<(bool, u64)> {
        if in_memory(core, ino, index).is_some() {
            return Ok((true, 1));
        }
        let max = self.until_memory(core, ino, index, size.div_ceil(FRAME as u64) - index);
        let per_frame = self.blocks_per_frame;
        let mapping = core.ext4.map(ino, index * per_frame, u32::MAX)?;
        let frames = (mapping.blocks() / per_frame).clamp(1, max);
        let whole = mapping.blocks() >= per_frame;
        let data = matches!(mapping, Mapping::Data { .. }) || (!whole && has_data(self, core, ino, index)?);
        Ok((data, frames))
    }
}

/// Reads blocks of an SSD and checks each against its checksum; what fails is an error of the SSD.
pub(super) fn read_checked(
    device: &dyn BlockDevice,
    block_bytes: usize,
    at: SsdBlock,
    sums: &mut Sums,
) -> Result<Bytes> {
    let sums = sums.read(device).map_err(Error::of_ssd)?;
    let bytes = device.read(at.0 * block_bytes as u64, sums.len() * block_bytes).map_err(Error::of_ssd)?;
    for (number, (block, &sum)) in bytes.chunks(block_bytes).zip(sums).enumerate() {
        if crc32c(block) != sum {
            let at = format!("{}, block {}", device.info().name, at.0 + number as u64);
            return Err(Error::of_ssd(Error::corrupt("cached data", "its checksum is wrong", at)));
        }
    }
    Ok(bytes)
}

enum Trouble {
    Ssd(usize, Error),
    Disk(Error),
}

/// The contents of a frame that is dirty or frozen.
fn in_memory(core: &Core, ino: Ino, index: u64) -> Option<Bytes> {
    if let Some(frame) = core.nodes.get(&ino).and_then(|node| node.frames.get(&index)) {
        return Some(Bytes::copy_from_slice(frame.bytes()));
    }
    core.cycle.as_ref()?.frame(ino, index)
}

/// Cuts whole frames down to the bytes asked for.
fn cut(plan: &Plan, parts: SmallVec<[Bytes; 4]>, offset: u64, end: u64) -> Vec<Bytes> {
    let mut answer = Vec::with_capacity(parts.len());
    for (piece, bytes) in plan.pieces.iter().zip(parts) {
        let start = piece.index * FRAME as u64;
        let from = offset.saturating_sub(start).min(bytes.len() as u64) as usize;
        let to = (end - start).min(bytes.len() as u64) as usize;
        answer.push(bytes.slice(from..to));
    }
    debug_assert!(end <= plan.size);
    answer
}

/// A frame's present contents as a dirty frame: from memory, SSD or disk; zeros past the end of the file.
pub(super) fn load_frame(shared: &Shared, core: &mut Core, ino: Ino, index: u64) -> Result<Frame> {
    let start = index * FRAME as u64;
    let size = core.ext4.inode(ino)?.size;
    if start >= size {
        return Ok(Frame::zeroed(&shared.pool));
    }
    let mut plan = shared.plan(core, ino, start, start + 1)?;
    let fetched = match shared.fetch(&mut plan) {
        Err(Trouble::Ssd(piece, error)) => {
            shared.distrust(core, &plan, piece, &error);
            plan = shared.plan(core, ino, start, start + 1)?;
            shared.fetch(&mut plan)
        }
        other => other,
    };
    let parts = fetched.map_err(|trouble| match trouble {
        Trouble::Ssd(_, error) | Trouble::Disk(error) => error,
    })?;
    let mut frame = Frame::copy_of(&shared.pool, &parts[0][..FRAME]);
    if size - start < FRAME as u64 {
        frame.bytes_mut()[(size - start) as usize..].fill(0);
    }
    Ok(frame)
}

/// Whether any block of a frame holds data, in memory or on the disk.
pub(super) fn has_data(shared: &Shared, core: &mut Core, ino: Ino, index: u64) -> Result<bool> {
    if in_memory(core, ino, index).is_some() {
        return Ok(true);
    }
    for block in index * shared.blocks_per_frame..(index + 1) * shared.blocks_per_frame {
        if matches!(core.ext4.map(ino, block, 1)?, Mapping::Data { .. }) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Core {
    /// The directories above a file, as far as they were walked through.
    fn path_above(&self, ino: Ino) -> [Ino; PATH] {
        let mut path = [Ino(0); PATH];
        let mut at = ino;
        for slot in &mut path {
            match self.nodes.get(&at).map(|node| node.parent) {
                Some(parent) if parent != at => (*slot, at) = (parent, parent),
                _ => break,
            }
        }
        path
    }

    /// An inode that holds contents; an error for directories and the rest.
    pub(super) fn inode_of_file(&mut self, ino: Ino) -> Result<&crate::fs::ext4::Inode> {
        let inode = self.ext4.inode(ino)?;
        if inode.kind() == Kind::Dir {
            return Err(Error::IsDir);
        }
        Ok(inode)
    }
}
