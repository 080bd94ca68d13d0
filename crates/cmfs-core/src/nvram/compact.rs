//! The compact layout: two superblocks in turn, one word that says whether the NAND was written since, and the
//! heap of records, each with the number of the update that wrote it and a checksum.
//!
//! An update writes new records into free room, then the superblock that is not the current one; only then are
//! the old records given back. So at every instant the superblock with the higher number, and of each record the
//! version with the highest number not above it, are the state as of one update, torn words or not. A record that
//! goes away is replaced by an empty one, which is given back one update later, so that no older version of it
//! comes back.

use super::group::{self, Context};
use super::heap::{Chunk, Key};
use super::pages::Scale;
use super::{Pairing, Refusal, Scan, Snapshot, State, Store, entries_of};
use crate::bits::{BitReader, BitWriter};
use crate::blocks::{Block, BlockState};
use crate::error::Error;
use crate::error::Result;
use crate::fs::{Names, UpdateReport};
use crate::map::SEGMENT;
use crate::media::{Geometry, Nvram};
use crate::object::{GROUP, LOST_FOUND, NONE, Object, Objects};
use crate::sorted::{self, Map};
use crate::{crc32c, nvram::pages};
use alloc::vec::Vec;
use core::cmp::Reverse;

const MAGIC: u32 = u32::from_le_bytes(*b"CMFS");
/// In place of the magic while all is written anew.
const INCOMPLETE: u32 = u32::from_le_bytes(*b"CMF-");
const VERSION: u32 = 2;
const SLOT_BYTES: usize = 96;
const CRC_AT: usize = SLOT_BYTES - 4;
/// Where the number of the last update stands if the NAND was written since.
const WRITTEN_AT: usize = 2 * SLOT_BYTES;
/// The NAND was written to since the update whose number is beside it.
const WRITTEN: u64 = 1 << 63;
/// The last session and the page of its record.
pub(super) const SESSION_AT: usize = WRITTEN_AT + 8;
/// Where the heap begins.
pub(super) const HEAP_AT: usize = SESSION_AT + 8;
/// Number of the update and checksum, before the contents of a record.
pub(super) const CONTENTS_AT: usize = 8;
/// Blocks of a block record.
const BLOCKS: u32 = 128;

fn record_crc(key: Key, update: u32, contents: &[u8]) -> u32 {
    let mut bytes = Vec::with_capacity(16 + contents.len());
    bytes.extend_from_slice(&(u64::from(key.kind) << 40 | key.of).to_le_bytes());
    bytes.extend_from_slice(&update.to_le_bytes());
    bytes.extend_from_slice(contents);
    crc32c(&bytes)
}

/// A record ready to be put.
fn pack(key: Key, update: u32, contents: &[u8]) -> Vec<u8> {
    let mut padded = contents.to_vec();
    padded.resize(contents.len().next_multiple_of(8), 0);
    let mut bytes = update.to_le_bytes().to_vec();
    bytes.extend_from_slice(&record_crc(key, update, &padded).to_le_bytes());
    bytes.extend_from_slice(&padded);
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The update that wrote a record, if the record is whole.
pub(super) fn unpack(key: Key, bytes: &[u8]) -> Option<u32> {
    let update = word(bytes, 0);
    let contents = bytes.get(CONTENTS_AT..)?;
    (word(bytes, 4) == record_crc(key, update, contents)).then_some(update)
}

/// What a superblock says.
#[derive(Clone, Copy, Debug, Default)]
struct Super {
    update: u32,
    /// The session that wrote it.
    session: u32,
    identity: [u8; 16],
    memory: u32,
    /// Page bytes, spare bytes, pages a block, blocks, pages a block that hold data.
    shape: [u32; 5],
    sequence: u32,
    last_block: u32,
    open_block: u32,
    open_next: u32,
    /// Records, and the sum of their checksums.
    digest: [u32; 2],
}

impl Super {
    fn to_bytes(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(0, MAGIC);
        put(4, VERSION);
        put(8, self.update);
        put(12, self.session);
        (32..).step_by(4).zip(self.shape).for_each(|(at, value)| put(at, value));
        let [records, sum] = self.digest;
        let rest =
            [self.sequence, self.last_block, self.open_block, self.open_next, records, sum, self.memory];
        (52..).step_by(4).zip(rest).for_each(|(at, value)| put(at, value));
        bytes[16..32].copy_from_slice(&self.identity);
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Super> {
        let whole = word(bytes, 0) == MAGIC && word(bytes, 4) == VERSION;
        if !whole || word(bytes, CRC_AT) != crc32c(bytes.get(..CRC_AT)?) {
            return None;
        }
        let mut identity = [0; 16];
        identity.copy_from_slice(bytes.get(16..32)?);
        Some(Super {
            update: word(bytes, 8),
            session: word(bytes, 12),
            identity,
            shape: [32, 36, 40, 44, 48].map(|at| word(bytes, at)),
            sequence: word(bytes, 52),
            last_block: word(bytes, 56),
            open_block: word(bytes, 60),
            open_next: word(bytes, 64),
            digest: [68, 72].map(|at| word(bytes, at)),
            memory: word(bytes, 76),
        })
    }
}

/// Where a name is in each superblock.
pub(super) const NAMES_AT: [usize; 2] = [16, SLOT_BYTES + 16];

/// Whether nothing but the beginning of being written anew is in what has never been an NVRAM before.
pub(super) fn is_begun(front: &[u8]) -> bool {
    let is_begun = |slot: &[u8]| word(slot, 0) == INCOMPLETE && slot[4..].iter().all(|byte| *byte == 0);
    let is_blank = |slot: &[u8]| slot.iter().all(|byte| *byte == 0);
    let mut slots = front.chunks_exact(SLOT_BYTES).take(2);
    slots.clone().any(is_begun) && slots.all(|slot| is_begun(slot) || is_blank(slot))
}

/// Making records stopped: there is no room.
struct Full;

/// The newer of the superblocks that an NVRAM begins with.
fn newest(front: &[u8]) -> Option<Super> {
    let slots = front.chunks_exact(SLOT_BYTES).take(2).filter_map(Super::from_bytes);
    slots.max_by_key(|says| says.update)
}

/// The name in it.
pub(super) fn identity(front: &[u8]) -> Option<[u8; 16]> {
    newest(front).map(|says| says.identity)
}

/// The shape of the part in it.
pub(super) fn shape(front: &[u8]) -> Option<Geometry> {
    let [page_bytes, spare_bytes, pages_per_block, blocks, _] = newest(front)?.shape;
    Some(Geometry { page_bytes, spare_bytes, pages_per_block, blocks })
}

/// What an update writes, and how much of it.
type Put<T> = Result<core::result::Result<T, Full>>;

impl<V: Nvram> Store<V> {
    fn context(&self, usable: u32) -> Context {
        Context { scale: Scale::new(&self.geometry, usable), page_bytes: self.geometry.page_bytes }
    }

    fn shape(&self, usable: u32) -> [u32; 5] {
        let shape = &self.geometry;
        [shape.page_bytes, shape.spare_bytes, shape.pages_per_block, shape.blocks, usable]
    }

    /// Nothing is valid until the next update is done. The older superblock goes before the current one, since its
    /// records are given back; what says that the NAND was written stands until neither is there.
    pub(super) fn clear_compact(&mut self) -> Result<()> {
        let current = self.update as usize % 2;
        for slot in [1 - current, current] {
            self.heap.write(slot * SLOT_BYTES, &u64::from(INCOMPLETE).to_le_bytes())?;
            self.heap.persist()?;
        }
        self.heap.write(WRITTEN_AT, &[0; 8])?;
        self.heap.persist()?;
        self.heap.clear()?;
        self.tombstones.clear();
        self.named.clear();
        Ok(())
    }

    pub(super) fn announce_compact(&mut self) -> Result<()> {
        self.heap.write(WRITTEN_AT, &(self.update | WRITTEN).to_le_bytes())?;
        Ok(self.heap.persist()?)
    }

    pub(super) fn commit_compact(&mut self, snapshot: &Snapshot) -> Result<UpdateReport> {
        if !self.all
            && let Ok(report) = self.commit_changes(snapshot)?
        {
            return Ok(report);
        }
        // What is in the NVRAM alone must not be cleared.
        if snapshot.objects.has_stored() {
            return Err(Error::NoSpace);
        }
        // From scratch: all of the room is in one piece then.
        self.clear_compact()?;
        self.note_all(snapshot);
        match self.commit_changes(snapshot)? {
            Ok(report) => Ok(report),
            Err(Full) => {
                self.clear_compact()?;
                Ok(UpdateReport { overflow: true, ..UpdateReport::default() })
            }
        }
    }

    /// Writes down objects that a scan found; see [`Store::begin_scan`].
    pub(super) fn write_scan(&mut self, snapshot: &Snapshot) -> Result<UpdateReport> {
        match self.commit_changes(snapshot)? {
            Ok(report) => Ok(report),
            Err(Full) => Ok(UpdateReport { overflow: true, ..UpdateReport::default() }),
        }
    }

    /// All records are due. Names are not written with them: where room was short, it is better left.
    fn note_all(&mut self, snapshot: &Snapshot) {
        self.all = true;
        for (id, object) in snapshot.objects.iter() {
            self.objects.add(id);
            self.segments.extend(object.map.segments().map(|segment| (id, segment)));
        }
    }

    fn commit_changes(&mut self, snapshot: &Snapshot) -> Put<UpdateReport> {
        let before = self.heap.written_bytes;
        let update = (self.update as u32).wrapping_add(1);
        self.usable = snapshot.blocks.usable();
        self.heap.begin();
        let tombstones = self.tombstones.clone();
        for key in core::mem::take(&mut self.tombstones) {
            self.heap.remove(key);
        }
        let mut report = UpdateReport { records: self.objects.len() as u32, ..UpdateReport::default() };
        let mut named = Vec::new();
        if snapshot.clean && self.names == Names::Auto {
            self.put_names(snapshot, update, &mut named)?;
        }
        let done = self.put_records(snapshot, update)?;
        if done.is_err() {
            // The records are as the superblock says, again.
            self.heap.roll_back()?;
            self.tombstones = tombstones;
            named.into_iter().for_each(|id| self.named.remove(id));
            return Ok(Err(Full));
        }
        self.heap.persist()?;
        if self.scan != Scan::Running {
            self.put_super(snapshot, update)?;
        }
        self.heap.release()?;
        self.heap.persist()?;
        self.update = u64::from(update);
        report.bytes = self.heap.written_bytes - before;
        Ok(Ok(report))
    }

    fn put_super(&mut self, snapshot: &Snapshot, update: u32) -> Result<()> {
        let (open_block, open_next) = snapshot.open.unwrap_or((NONE, 0));
        let says = Super {
            update,
            identity: self.pairing.identity,
            memory: self.pairing.memory,
            shape: self.shape(snapshot.blocks.usable()),
            session: snapshot.session,
            sequence: snapshot.sequence,
            last_block: snapshot.last_block,
            open_block,
            open_next,
            digest: self.heap.digest(),
        };
        self.heap.write(update as usize % 2 * SLOT_BYTES, &says.to_bytes())?;
        Ok(self.heap.persist()?)
    }

    fn put_records(&mut self, snapshot: &Snapshot, update: u32) -> Put<()> {
        let context = self.context(snapshot.blocks.usable());
        let mut groups: Vec<u32> = self.objects.keys().map(|id| id / GROUP).collect();
        groups.dedup();
        for group in groups {
            let stored = self.stored_of(snapshot.objects, group, context)?;
            let named = |id: u32| self.named.contains(id);
            let (bytes, external) = group::write(snapshot.objects, &stored, group, context, &named);
            if !self.put(Key::new(Key::GROUP, group), update, &bytes)? {
                return Ok(Err(Full));
            }
            if self.put_first_segments(snapshot, group, &external, context, update)?.is_err() {
                return Ok(Err(Full));
            }
            self.release_early()?;
        }
        let segments: Vec<(u32, u32)> =
            self.segments.keys().copied().filter(|(_, segment)| *segment > 0).collect();
        for (id, segment) in segments {
            let object = snapshot.objects.get(id);
            if self.put_segment(id, segment, object, context, update)?.is_err() {
                return Ok(Err(Full));
            }
            self.release_early()?;
        }
        match self.scan {
            Scan::Running => Ok(Ok(())),
            Scan::None | Scan::Over => self.put_blocks(snapshot, update),
        }
    }

    /// While no superblock speaks of them, records that were replaced are of no use to anybody.
    fn release_early(&mut self) -> Result<()> {
        match self.scan {
            Scan::Running => Ok(self.heap.release()?),
            Scan::None | Scan::Over => Ok(()),
        }
    }

    /// Objects of a group that are in the NVRAM alone, as its record has them.
    fn stored_of(&mut self, objects: &Objects, group: u32, context: Context) -> Result<Vec<group::Read>> {
        if !objects.has_stored_of(group) {
            return Ok(Vec::new());
        }
        let spoilt = Error::Corrupt { what: "NVRAM record", why: "it is spoilt", at: u64::from(group) };
        let bytes = self.contents(Key::new(Key::GROUP, group)).map_err(|_| spoilt)?;
        let mut stored = Vec::new();
        let mut keep = |read: group::Read| {
            if objects.is_stored(read.id) {
                stored.push(read);
            }
            Some(())
        };
        group::read(&bytes, group, context, &mut keep).ok_or(spoilt)?;
        Ok(stored)
    }

    /// First segments that are too long for the group's record, and those that are no more.
    fn put_first_segments(
        &mut self,
        snapshot: &Snapshot,
        group: u32,
        external: &[u32],
        context: Context,
        update: u32,
    ) -> Put<()> {
        for id in group * GROUP..(group + 1) * GROUP {
            let is_external = external.contains(&id);
            let there = self.heap.place(Key::segment(id, 0)).is_some();
            let stale = !there || self.segments.contains_key(&(id, 0));
            let object = snapshot.objects.get(id).filter(|_| is_external);
            let outdated = if is_external { stale } else { there };
            if outdated && self.put_segment(id, 0, object, context, update)?.is_err() {
                return Ok(Err(Full));
            }
        }
        Ok(Ok(()))
    }

    /// The record of a segment, or where there is none any more, the end of it.
    fn put_segment(
        &mut self,
        id: u32,
        segment: u32,
        object: Option<&Object>,
        context: Context,
        update: u32,
    ) -> Put<()> {
        let key = Key::segment(id, segment);
        let entries = object.map(|object| context.entries(object, segment)).unwrap_or_default();
        if entries.is_empty() {
            if self.heap.place(key).is_none() {
                return Ok(Ok(()));
            }
            if !self.tombstones.contains(&key) {
                self.tombstones.push(key);
            }
            let fits = self.put(key, update, &[])?;
            return Ok(if fits { Ok(()) } else { Err(Full) });
        }
        let mut to = BitWriter::default();
        // The file may grow without this record being written again.
        to.bits(entries.len() as u64, 10);
        pages::write(&entries, 0, context.scale, &mut to);
        self.tombstones.retain(|other| *other != key);
        let fits = self.put(key, update, &to.into_bytes())?;
        Ok(if fits { Ok(()) } else { Err(Full) })
    }

    fn put_blocks(&mut self, snapshot: &Snapshot, update: u32) -> Put<()> {
        let mut records: Vec<u32> = snapshot.changed_blocks.keys().map(|block| block / BLOCKS).collect();
        if self.all || self.scan == Scan::Over {
            records = (0..snapshot.geometry.blocks.div_ceil(BLOCKS)).collect();
        }
        records.dedup();
        for record in records {
            let range = record * BLOCKS..((record + 1) * BLOCKS).min(snapshot.geometry.blocks);
            let blocks: Vec<Block> = range.map(|block| snapshot.blocks.get(block)).collect();
            let bytes = write_blocks(&blocks, snapshot.blocks.usable());
            if !self.put(Key::new(Key::BLOCKS, record), update, &bytes)? {
                return Ok(Err(Full));
            }
        }
        Ok(Ok(()))
    }

    /// Names of groups with an object whose names record is not true any more, as far as a quarter of the memory
    /// stays free. What is said now and was not before is added to `named`.
    fn put_names(&mut self, snapshot: &Snapshot, update: u32, named: &mut Vec<u32>) -> Result<()> {
        for (group, ()) in core::mem::take(&mut self.unnamed) {
            let Some(bytes) = self.names_of(snapshot, group)? else { continue };
            let spare = self.heap.size_bytes() / 8 / 4;
            let fits = self.heap.free_words() > spare + bytes.len() / 8 + 3;
            let key = Key::new(Key::NAMES, group);
            if !fits || !self.put(key, update, &bytes)? {
                return Ok(());
            }
            // The group's record says which names are true.
            self.objects.add(group * GROUP);
            for id in group * GROUP..(group + 1) * GROUP {
                let loaded = snapshot.objects.get(id).is_some_and(|object| object.details.is_some());
                if loaded && !snapshot.objects.is_dirty(id) && !self.named.contains(id) {
                    self.named.insert(id);
                    named.push(id);
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, key: Key, update: u32, contents: &[u8]) -> Result<bool> {
        let bytes = pack(key, update, contents);
        Ok(self.heap.put(key, word(&bytes, 4), &bytes)?)
    }

    /// Reads everything but names; with a bound of memory, objects are looked at and left where they are.
    pub(super) fn load_compact(&mut self, memory_bytes: usize) -> core::result::Result<State, Refusal> {
        if self.heap.size_bytes() < HEAP_AT {
            return Err(Refusal::Foreign);
        }
        let slots = self.heap.read(0, 2 * SLOT_BYTES)?;
        let read = slots.chunks(SLOT_BYTES).filter_map(Super::from_bytes);
        let Some(says) = read.max_by_key(|says| says.update) else {
            let incomplete = slots.chunks(SLOT_BYTES).any(|slot| word(slot, 0) == INCOMPLETE);
            return Err(if incomplete { Refusal::Incomplete } else { Refusal::Foreign });
        };
        let usable = says.shape[4];
        if says.shape != self.shape(usable) || usable == 0 || usable > self.geometry.pages_per_block {
            return Err(Refusal::Foreign);
        }
        let written = self.heap.read(WRITTEN_AT, 8)?;
        let told = u64::from(word(&written, 4)) << 32 | u64::from(word(&written, 0));
        if told & !WRITTEN > u64::from(says.update) {
            // What it went on from is the slot that cannot be read, and the older one is of a NAND that is no more.
            return Err(Refusal::Damaged);
        }
        let modified = told == u64::from(says.update) | WRITTEN;
        self.update = u64::from(says.update);
        self.choose_records(says.update)?;
        if self.heap.digest() != says.digest {
            return Err(Refusal::Damaged);
        }
        let session = self.heap.read(SESSION_AT, 8)?;
        let pairing = Pairing {
            identity: says.identity,
            memory: says.memory,
            session: word(&session, 4),
            page: word(&session, 0),
            updated: says.session,
        };
        let mut state = State {
            pairing,
            sequence: says.sequence,
            last_block: says.last_block,
            open: (says.open_block != NONE).then_some((says.open_block, says.open_next)),
            modified,
            objects: Objects::bounded(memory_bytes),
            usable,
            ..State::default()
        };
        self.usable = usable;
        if says.last_block >= self.geometry.blocks
            || state.open.is_some_and(|(block, _)| block >= self.geometry.blocks)
        {
            return Err(Refusal::Damaged);
        }
        state.blocks = self.load_blocks(usable)?;
        self.load_groups(&mut state, usable)?;
        Ok(state)
    }

    /// Makes the checksums of all records, and of the newer superblock, right.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn reseal(&mut self) -> core::result::Result<(), Refusal> {
        for chunk in self.heap.walk()?.ok_or(Refusal::Damaged)? {
            if let Some(key) = chunk.key.filter(|_| chunk.words >= 2) {
                let bytes = self.heap.read(chunk.at + 8, (chunk.words - 1) * 8)?;
                let crc = record_crc(key, word(&bytes, 0), &bytes[CONTENTS_AT..]);
                self.heap.write(chunk.at + 12, &crc.to_le_bytes())?;
            }
        }
        let slots = self.heap.read(0, 2 * SLOT_BYTES)?;
        let read = slots.chunks(SLOT_BYTES).filter_map(Super::from_bytes);
        let says = read.max_by_key(|says| says.update).ok_or(Refusal::Foreign)?;
        self.choose_records(says.update)?;
        let says = Super { digest: self.heap.digest(), ..says };
        self.heap.write(says.update as usize % 2 * SLOT_BYTES, &says.to_bytes())?;
        Ok(())
    }

    /// Of each record the newest version that the superblock knows of; the others are given back.
    fn choose_records(&mut self, update: u32) -> core::result::Result<(), Refusal> {
        let chunks = self.heap.walk()?.ok_or(Refusal::Damaged)?;
        let mut newest: Vec<(Key, u32, Reverse<usize>, Chunk)> = Vec::new();
        let mut stale = Vec::new();
        for chunk in chunks {
            let Some(key) = chunk.key else {
                self.heap.adopt(chunk);
                continue;
            };
            let front = self.heap.read(chunk.at + 8, 8)?;
            let (own, chunk) = (word(&front, 0), Chunk { crc: word(&front, 4), ..chunk });
            if chunk.words < 2 || own > update {
                stale.push(chunk);
                continue;
            }
            newest.push((key, own, Reverse(chunk.at), chunk));
        }
        sorted::sort(&mut newest);
        // Of one key the last is the newest.
        let mut kept = Vec::with_capacity(newest.len());
        for (at, (key, .., chunk)) in newest.iter().enumerate() {
            let is_last = newest.get(at + 1).is_none_or(|(other, ..)| other != key);
            if is_last { kept.push((*key, *chunk)) } else { stale.push(*chunk) }
        }
        drop(newest);
        for chunk in stale {
            self.heap.discard(chunk)?;
        }
        for (key, chunk) in kept {
            self.heap.adopt(chunk);
            // Empty: the end of a record.
            if chunk.words == 2 {
                self.tombstones.push(key);
            }
        }
        Ok(())
    }

    /// The contents of a record.
    fn contents(&mut self, key: Key) -> core::result::Result<Vec<u8>, Refusal> {
        let mut bytes = self.heap.get(key)?.ok_or(Refusal::Damaged)?;
        unpack(key, &bytes).ok_or(Refusal::Damaged)?;
        Ok(bytes.split_off(CONTENTS_AT))
    }

    fn load_blocks(&mut self, usable: u32) -> core::result::Result<Vec<Block>, Refusal> {
        let mut all = Vec::with_capacity(self.geometry.blocks as usize);
        for record in 0..self.geometry.blocks.div_ceil(BLOCKS) {
            let bytes = self.contents(Key::new(Key::BLOCKS, record))?;
            let count = (self.geometry.blocks - record * BLOCKS).min(BLOCKS);
            all.extend(read_blocks(&bytes, count, usable).ok_or(Refusal::Damaged)?);
        }
        Ok(all)
    }

    fn load_groups(&mut self, state: &mut State, usable: u32) -> core::result::Result<(), Refusal> {
        let context = self.context(usable);
        let limit = crate::object::MAX_ID / GROUP;
        let mut loaded = Map::new();
        for key in self.heap.keys(Key::GROUP) {
            let group = u32::try_from(key.of).ok().filter(|group| *group <= limit).ok_or(Refusal::Damaged)?;
            let bytes = self.contents(key)?;
            let mut external = Vec::new();
            let mut keep = |read: group::Read| {
                if read.named {
                    self.named.insert(read.id);
                }
                if !state.objects.is_bounded() || read.id <= LOST_FOUND {
                    state.objects.insert(read.id, read.object);
                } else {
                    if read.object.header == NONE {
                        state.headerless.push(read.id);
                    }
                    state.objects.store(read.id);
                }
                if read.external {
                    external.push(read.id);
                }
                Some(())
            };
            group::read(&bytes, group, context, &mut keep).ok_or(Refusal::Damaged)?;
            for id in external {
                if let Some(object) = state.objects.get_mut(id) {
                    self.load_segment(object, id, 0, context)?;
                    loaded.add(Key::segment(id, 0).packed());
                }
            }
        }
        for key in self.heap.keys(Key::SEGMENT) {
            let (id, segment) = key.id_and_segment();
            if segment > 0
                && !self.tombstones.contains(&key)
                && let Some(object) = state.objects.get_mut(id)
            {
                self.load_segment(object, id, segment, context)?;
                loaded.add(key.packed());
            }
        }
        self.check_rest(&loaded)
    }

    /// See [`Store::fetch`].
    pub(super) fn fetch_compact(
        &mut self,
        group: u32,
        pages: bool,
        wanted: &dyn Fn(u32) -> bool,
        visit: &mut dyn FnMut(u32, Object),
    ) -> core::result::Result<(), Refusal> {
        let context = self.context(self.usable);
        let bytes = self.contents(Key::new(Key::GROUP, group))?;
        let mut found = Vec::new();
        let mut keep = |read: group::Read| {
            if wanted(read.id) {
                found.push(read);
            }
            Some(())
        };
        group::read(&bytes, group, context, &mut keep).ok_or(Refusal::Damaged)?;
        for group::Read { id, mut object, external, .. } in found {
            if external && pages {
                self.load_segment(&mut object, id, 0, context)?;
            }
            if pages && context.pages_of(object.size) > SEGMENT {
                for segment in self.heap.segments_of(id, 1).collect::<Vec<u32>>() {
                    if !self.tombstones.contains(&Key::segment(id, segment)) {
                        self.load_segment(&mut object, id, segment, context)?;
                    }
                }
            }
            visit(id, object);
        }
        Ok(())
    }

    /// A head with a wrong bit makes another record of one, which is missed then though it counts in the digest: so all
    /// that was not read must be what its head says. Names are checked when they are read.
    fn check_rest(&mut self, loaded: &Map<u64, ()>) -> core::result::Result<(), Refusal> {
        let blocks = u64::from(self.geometry.blocks.div_ceil(BLOCKS));
        for key in self.heap.all_keys() {
            let was_read = match key.kind {
                Key::GROUP | Key::NAMES => true,
                Key::BLOCKS => key.of < blocks,
                _ => loaded.contains_key(&key.packed()) || self.tombstones.contains(&key),
            };
            if !was_read {
                self.contents(key)?;
            }
        }
        Ok(())
    }

    fn load_segment(
        &mut self,
        object: &mut Object,
        id: u32,
        segment: u32,
        context: Context,
    ) -> core::result::Result<(), Refusal> {
        let limit = entries_of(context.pages_of(object.flash_size), segment) as usize;
        let bytes = self.contents(Key::segment(id, segment))?;
        let mut from = BitReader::new(&bytes);
        let count = from.bits(10).filter(|count| *count <= u64::from(SEGMENT)).ok_or(Refusal::Damaged)?;
        let entries = pages::read(&mut from, count as usize, 0, context.scale);
        let mut pages = entries.and_then(|entries| context.pages(&entries)).ok_or(Refusal::Damaged)?;
        pages.truncate(limit);
        object.map.put_segment(segment, &pages);
        Ok(())
    }
}

const STATES: [BlockState; 6] = [
    BlockState::Erased,
    BlockState::Open,
    BlockState::Full,
    BlockState::Emptied,
    BlockState::Erasable,
    BlockState::Bad,
];

/// A block record: each block as it differs from the one before.
fn write_blocks(blocks: &[Block], usable: u32) -> Vec<u8> {
    let mut to = BitWriter::default();
    let mut before = Block::default();
    for block in blocks {
        // What is emptied when this is valid may be erased.
        let state = if block.state == BlockState::Emptied { BlockState::Erasable } else { block.state };
        to.bit(state == before.state);
        if state != before.state {
            to.bits(STATES.iter().position(|other| *other == state).unwrap_or(0) as u64, 3);
        }
        to.bit(block.erases == before.erases);
        if block.erases != before.erases {
            to.signed(i64::from(block.erases) - i64::from(before.erases), 2);
        }
        if state != BlockState::Erased {
            let next = before.sequence.wrapping_add(1);
            to.bit(block.sequence == next);
            if block.sequence != next {
                to.signed(i64::from(block.sequence) - i64::from(before.sequence), 8);
            }
            to.bit(block.guards);
            to.bit(block.retire);
            to.bit(block.written == usable);
            if block.written != usable {
                to.golomb(u64::from(block.written), 5);
            }
            before.sequence = block.sequence;
        }
        before = Block { state, erases: block.erases, ..before };
    }
    to.into_bytes()
}

pub(super) fn read_blocks(bytes: &[u8], count: u32, usable: u32) -> Option<Vec<Block>> {
    let mut from = BitReader::new(bytes);
    let mut before = Block::default();
    let mut all = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let state = if from.bit()? { before.state } else { *STATES.get(from.bits(3)? as usize)? };
        let erases = match from.bit()? {
            true => before.erases,
            false => u32::try_from(i64::from(before.erases).checked_add(from.signed(2)?)?).ok()?,
        };
        let mut block = Block { state, erases, ..Block::default() };
        if state != BlockState::Erased {
            block.sequence = match from.bit()? {
                true => before.sequence.wrapping_add(1),
                false => u32::try_from(i64::from(before.sequence).checked_add(from.signed(8)?)?).ok()?,
            };
            block.guards = from.bit()?;
            block.retire = from.bit()?;
            block.written = if from.bit()? { usable } else { u32::try_from(from.golomb(5)?).ok()? };
            before.sequence = block.sequence;
        }
        before = Block { state, erases, ..before };
        all.push(block);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_read_back_in_less_than_a_byte_each_when_written_in_order() {
        let full = |at: u32| Block {
            state: BlockState::Full,
            sequence: 0x1001 + at,
            written: 63,
            ..Block::default()
        };
        let mut blocks: Vec<Block> = (0..120).map(full).collect();
        assert!(write_blocks(&blocks, 63).len() < 100);
        blocks.push(Block { state: BlockState::Bad, erases: 7, ..Block::default() });
        blocks.push(Block { state: BlockState::Erased, erases: 3, ..Block::default() });
        blocks.push(Block { guards: true, retire: true, written: 5, erases: 900, ..full(7000) });
        let read = read_blocks(&write_blocks(&blocks, 63), blocks.len() as u32, 63).unwrap();
        for (written, read) in blocks.iter().zip(&read) {
            assert_eq!(
                (written.state, written.erases, written.sequence),
                (read.state, read.erases, read.sequence)
            );
            assert_eq!(
                (written.guards, written.retire, written.written),
                (read.guards, read.retire, read.written)
            );
        }
        assert!(read_blocks(&[], 3, 63).is_none());
    }

    #[test]
    fn a_superblock_that_is_not_whole_is_not_one() {
        let says =
            Super { update: 5, session: 6, identity: [3; 16], shape: [1, 2, 3, 4, 5], ..Super::default() };
        let bytes = says.to_bytes();
        assert_eq!(Super::from_bytes(&bytes).unwrap().to_bytes(), bytes);
        for at in 0..SLOT_BYTES {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert!(Super::from_bytes(&wrong).is_none(), "byte {at}");
        }
    }
}
