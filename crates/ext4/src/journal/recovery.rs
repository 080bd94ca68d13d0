//! Replaying a log: what a crash left of it, and what of that goes home.
//!
//! 1. *Scan* from the oldest live transaction: blocks with the expected number, up to the first that has another
//!    number, another shape, or no magic. Only what a commit block closes counts.
//! 2. *Verify* the images of the transactions found. Without a lying disk nothing can be wrong, because commit
//!    blocks are written after a flush. What is wrong after the last whole transaction belongs to an
//!    interrupted commit, or to an older use of the log, and ends it there; what is wrong before one is
//!    corruption, and nothing is replayed, unless it is an image that a newer one or a revoke makes needless.
//! 3. *Revoke*: an image goes home only if no revoke of its block is as new or newer.
//! 4. *Replay*: of each block the newest image, in the order of their homes.
//!
//! The result on the disk is that of jbd2's three passes; each home block is written once. Cost: two sequential
//! reads of the live log, one if it is under [`CACHE_BYTES`]; 24 bytes of memory an image.

use super::format::{Format, LogBlock, Sums, Superblock, Tag, crc32_high_first, not_before};
use super::write::write_blocks;
use bimetal_base::time::Time;
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// Bytes read from the log at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes of the log kept in memory between the passes.
const CACHE_BYTES: usize = 64 << 20;
/// The first record of a fast commit.
const FAST_COMMIT_HEAD: u16 = 9;

/// What a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Transactions found whole.
    pub transactions: u32,
    /// Blocks written home.
    pub blocks: u64,
    /// Images that a later revoke kept from going home.
    pub revoked: u64,
}

/// What the log is left with.
pub(super) struct Replayed {
    pub recovery: Recovery,
    /// The number of the first transaction that was not there.
    pub end: u32,
    /// When the last one that was there was committed, in seconds since the epoch.
    pub committed: u64,
    /// When the last block was home.
    pub done: Time,
}

/// A transaction that has a commit block.
struct Found {
    tid: u32,
    images: Vec<(Tag, u32)>,
    revokes: Vec<u64>,
    committed: u64,
    /// What is wrong with its own blocks, and where.
    damage: Option<(&'static str, u32)>,
    /// Log blocks of images that are not what their tags say.
    bad_images: Vec<u32>,
}

impl Found {
    fn new(tid: u32) -> Found {
        let (images, revokes, bad_images) = (Vec::new(), Vec::new(), Vec::new());
        Found { tid, images, revokes, committed: 0, damage: None, bad_images }
    }

    fn is_whole(&self) -> bool {
        self.damage.is_none() && self.bad_images.is_empty()
    }

    fn blame(&mut self, why: &'static str, block: u32) {
        self.damage.get_or_insert((why, block));
    }
}

/// The transactions that count, and the images of them that would go home.
struct Live<'d> {
    log: LogReader<'d>,
    found: Vec<Found>,
    homes: Homes,
    revoked: u64,
    end: u32,
}

fn live<'d>(disk: &'d dyn BlockDevice, superblock: &Superblock, blocks: &'d [DiskBlock]) -> Result<Live<'d>> {
    let format = superblock.format();
    let mut log = LogReader::new(disk, blocks, format.block_bytes, (superblock.first(), superblock.end()));
    let mut found = scan(&mut log, &format, superblock)?;
    verify(&mut log, &format, &mut found)?;
    let whole = whole_part(&found)?;
    let end = found.get(whole).map_or_else(|| end_of(&found, superblock), |damaged| damaged.tid);
    refuse_foreign(&mut log, superblock, whole, end)?;
    found.truncate(whole);
    let (homes, revoked) = newest(&found, &format, disk)?;
    Ok(Live { log, found, homes, revoked, end })
}

/// Replays the log that `superblock` describes; flushing and marking it empty are left to the caller.
pub(super) fn replay(
    disk: &dyn BlockDevice,
    at: Time,
    superblock: &Superblock,
    blocks: &[DiskBlock],
    expected: Option<u32>,
) -> Result<Replayed> {
    let format = superblock.format();
    let Live { mut log, found, homes, revoked, end } = live(disk, superblock, blocks)?;
    if let Some(before) = expected.filter(|before| *before != end) {
        let why = format!(
            "it ends before transaction {end}, and a moment ago before {before}: the disk does not read the same twice"
        );
        return Err(Error::corrupt("the journal", why, &disk.info().name));
    }
    let recovery = Recovery { transactions: found.len() as u32, blocks: homes.len() as u64, revoked };
    let images = homes.into_iter().map(|(home, Home { tid, tag, place })| {
        let image = log.read(place)?;
        if matches!(format.sums, Sums::V2 | Sums::V3) && !format.image_is_right(tid, &tag, &image) {
            let why = "an image that was right a moment ago is not: the disk does not read the same twice";
            return Err(Error::corrupt("the journal", why, log.place(place)));
        }
        Ok((DiskBlock(home), if tag.escaped { Format::unescape(&image) } else { image }))
    });
    let done = write_all(disk, at, format.block_bytes, images)?;
    Ok(Replayed { recovery, end, committed: found.last().map_or(0, |last| last.committed), done })
}

/// What a replay would write to the block `home` (`None`: nothing), and the transaction it ends before. Only reads.
pub(super) fn image_of(
    disk: &dyn BlockDevice,
    superblock: &Superblock,
    blocks: &[DiskBlock],
    home: DiskBlock,
) -> Result<(Option<Bytes>, u32)> {
    let Live { mut log, homes, end, .. } = live(disk, superblock, blocks)?;
    let Ok(at) = homes.binary_search_by_key(&home.0, |(home, _)| *home) else { return Ok((None, end)) };
    let Home { tag, place, .. } = homes[at].1;
    let image = log.read(place)?;
    Ok((Some(if tag.escaped { Format::unescape(&image) } else { image }), end))
}

fn end_of(found: &[Found], superblock: &Superblock) -> u32 {
    found.last().map_or(superblock.sequence(), |last| last.tid.wrapping_add(1))
}

/// Finds the transactions that have a commit block.
fn scan(log: &mut LogReader, format: &Format, superblock: &Superblock) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut current = Found::new(superblock.sequence());
    let mut at = superblock.start();
    let mut v1_sum = !0;
    let mut walked = 0;
    loop {
        let block = log.read(at)?;
        let Some((kind, tid)) = format.header(&block) else { break };
        if tid != current.tid {
            break;
        }
        if !format.sum_is_right(kind, &block) {
            current.blame("the checksum of one of its own blocks does not match", at);
        }
        let (place, images) = (at, current.images.len());
        at = log.after(at);
        match kind {
            LogBlock::Descriptor => {
                v1_sum = step_over_images(log, format, &block, &mut at, &mut current, v1_sum)?;
                walked += (current.images.len() - images) as u64;
            }
            LogBlock::Revoke => match format.revoked(&block) {
                Ok(homes) => current.revokes.extend(homes),
                Err(why) => current.blame(why, place),
            },
            LogBlock::Commit => {
                current.committed = format.commit_seconds(&block);
                if format.sums == Sums::V1 && !format.commit_v1_is_right(&block, v1_sum) {
                    current.blame("its checksum does not match", place);
                }
                v1_sum = !0;
                let next = Found::new(tid.wrapping_add(1));
                found.push(std::mem::replace(&mut current, next));
            }
        }
        walked += 1;
        if walked > log.len() {
            return Err(Error::corrupt("the journal", "its transactions run in a circle", log.place(place)));
        }
    }
    Ok(found)
}

/// Takes in a descriptor and steps over the images that follow it; sums them up if the log is v1's.
fn step_over_images(
    log: &mut LogReader,
    format: &Format,
    descriptor: &[u8],
    at: &mut u32,
    current: &mut Found,
    mut v1_sum: u32,
) -> Result<u32> {
    if format.sums == Sums::V1 {
        v1_sum = crc32_high_first(v1_sum, descriptor);
    }
    for tag in format.tags(descriptor) {
        if format.sums == Sums::V1 {
            v1_sum = crc32_high_first(v1_sum, &log.read(*at)?);
        }
        current.images.push((tag, *at));
        *at = log.after(*at);
    }
    Ok(v1_sum)
}

/// Compares every image with its tag.
fn verify(log: &mut LogReader, format: &Format, found: &mut [Found]) -> Result<()> {
    if !matches!(format.sums, Sums::V2 | Sums::V3) {
        return Ok(());
    }
    for transaction in found.iter_mut().filter(|one| one.damage.is_none()) {
        for (tag, place) in &transaction.images {
            if !format.image_is_right(transaction.tid, tag, &log.read(*place)?) {
                transaction.bad_images.push(*place);
            }
        }
    }
    Ok(())
}

fn damaged(tid: u32, why: &str, place: u32) -> Error {
    Error::corrupt(
        format_args!("the journal's transaction {tid}"),
        format_args!("{why}, and later ones are whole; run e2fsck"),
        format_args!("journal block {place}"),
    )
}

/// How many transactions count: all up to the last whole one, of none of which the own blocks may be damaged.
fn whole_part(found: &[Found]) -> Result<usize> {
    let whole = found.iter().rposition(Found::is_whole).map_or(0, |last| last + 1);
    match found[..whole].iter().find_map(|one| one.damage.map(|damage| (one.tid, damage))) {
        None => Ok(whole),
        Some((tid, (why, place))) => Err(damaged(tid, why, place)),
    }
}

/// Refuses a log with something to replay that is not ours: fast commits, or commits ahead of their blocks.
fn refuse_foreign(log: &mut LogReader, superblock: &Superblock, whole: usize, end: u32) -> Result<()> {
    let remedy = "mount the disk once with the kernel, or run e2fsck";
    if superblock.async_commit() && whole > 0 {
        return Err(Error::unsupported("replaying a journal with async_commit", remedy));
    }
    let Some(first) = superblock.fast_first() else { return Ok(()) };
    let block = log.read(first)?;
    let tag = u16::from_le_bytes([block[0], block[1]]);
    let tid = u32::from_le_bytes([block[8], block[9], block[10], block[11]]);
    if tag == FAST_COMMIT_HEAD && tid == end {
        return Err(Error::unsupported("replaying fast commits", remedy));
    }
    Ok(())
}

type Homes = Vec<(u64, Home)>;

/// An image that goes home.
#[derive(Clone, Copy)]
struct Home {
    tid: u32,
    tag: Tag,
    /// Its log block.
    place: u32,
}

/// The newest image of every block that no revoke holds back, in the order of their homes; and how many images
/// were held back.
fn newest(found: &[Found], format: &Format, disk: &dyn BlockDevice) -> Result<(Homes, u64)> {
    let mut revokes: FxHashMap<u64, u32> = FxHashMap::default();
    for transaction in found {
        revokes.extend(transaction.revokes.iter().map(|home| (*home, transaction.tid)));
    }
    let blocks_on_disk = disk.info().size_bytes / format.block_bytes as u64;
    let mut revoked = 0;
    let mut newest = FxHashMap::default();
    for transaction in found {
        for (tag, place) in &transaction.images {
            if revokes.get(&tag.home).is_some_and(|by| not_before(*by, transaction.tid)) {
                revoked += 1;
                continue;
            }
            if tag.home >= blocks_on_disk {
                return Err(Error::corrupt(
                    format_args!("the journal's transaction {}", transaction.tid),
                    format_args!("it has an image of block {}, past the end of the disk", tag.home),
                    format_args!("journal block {place}"),
                ));
            }
            newest.insert(tag.home, Home { tid: transaction.tid, tag: *tag, place: *place });
        }
    }
    let mut homes: Homes = newest.into_iter().collect();
    homes.sort_unstable_by_key(|(home, _)| *home);
    let bad_images: FxHashSet<u32> = found.iter().flat_map(|one| one.bad_images.iter().copied()).collect();
    if let Some((_, home)) = homes.iter().find(|(_, home)| bad_images.contains(&home.place)) {
        return Err(damaged(home.tid, "the checksum of an image does not match", home.place));
    }
    Ok((homes, revoked))
}

/// Writes images home, some megabytes at a time.
fn write_all(
    disk: &dyn BlockDevice,
    at: Time,
    block_bytes: usize,
    images: impl Iterator<Item = Result<(DiskBlock, Bytes)>>,
) -> Result<Time> {
    let batch_max = CACHE_BYTES / block_bytes;
    let (mut done, mut batch) = (at, Vec::new());
    for image in images {
        batch.push(image?);
        if batch.len() == batch_max {
            done = write_blocks(disk, done, block_bytes, batch.drain(..))?;
        }
    }
    write_blocks(disk, done, block_bytes, batch)
}

/// Reads log blocks, a chunk at a time, and keeps the last chunks.
pub(super) struct LogReader<'d> {
    disk: &'d dyn BlockDevice,
    blocks: &'d [DiskBlock],
    block_bytes: usize,
    range: (u32, u32),
    chunks: FxHashMap<usize, Vec<Bytes>>,
    order: VecDeque<usize>,
}

impl<'d> LogReader<'d> {
    fn new(
        disk: &'d dyn BlockDevice,
        blocks: &'d [DiskBlock],
        block_bytes: usize,
        range: (u32, u32),
    ) -> Self {
        LogReader { disk, blocks, block_bytes, range, chunks: FxHashMap::default(), order: VecDeque::new() }
    }

    /// Blocks of the log.
    fn len(&self) -> u64 {
        u64::from(self.range.1 - self.range.0)
    }

    /// The log block after this one; the log is a ring.
    fn after(&self, at: u32) -> u32 {
        if at + 1 >= self.range.1 { self.range.0 } else { at + 1 }
    }

    fn place(&self, at: u32) -> String {
        format!("journal block {at}")
    }

    fn read(&mut self, at: u32) -> Result<Bytes> {
        let per_chunk = CHUNK_BYTES / self.block_bytes;
        let (chunk, index) = (at as usize / per_chunk, at as usize % per_chunk);
        if !self.chunks.contains_key(&chunk) {
            if self.order.len() >= CACHE_BYTES / CHUNK_BYTES {
                self.order.pop_front().map(|old| self.chunks.remove(&old));
            }
            let read = self.read_chunk(chunk * per_chunk, per_chunk)?;
            self.chunks.insert(chunk, read);
            self.order.push_back(chunk);
        }
        let missing = || Error::corrupt("the journal", "a block past its end is needed", self.place(at));
        self.chunks.get(&chunk).and_then(|blocks| blocks.get(index)).cloned().ok_or_else(missing)
    }

    fn read_chunk(&self, first: usize, count: usize) -> Result<Vec<Bytes>> {
        let end = (first + count).min(self.blocks.len());
        let mut out = Vec::with_capacity(count);
        for run in self.blocks[first.min(end)..end].chunk_by(|a, b| a.0 + 1 == b.0) {
            let bytes = self.disk.read(run[0].0 * self.block_bytes as u64, run.len() * self.block_bytes)?;
            out.extend((0..run.len()).map(|n| bytes.slice(n * self.block_bytes..(n + 1) * self.block_bytes)));
        }
        Ok(out)
    }
}
