//! The paper's layout: validity marker, one device record under LZO, one object record each under hybrid coding.
//!
//! Its figure 3, and behind the marker 32 bytes that pair the NVRAM with the part, which the paper leaves open: a marker of two words (whether the memory is whole, whether it agrees with the NAND); the
//! device, 40 bytes and 8 a block; an object, 24 bytes and 36 for each leaf of 16 pages (position and 16 numbers
//! of 16 bits). On parts of more than 65 535 pages numbers have 32 bits. An update that is cut off leaves the marker
//! invalid, and the next mount scans. What the records do not say (a file's size, what a link stands for) is read
//! from headers when it is needed.
//!
//! The records have no checksums. What is damaged is found by the space manager's heads, which have; by the page
//! behind the last one written, which must be erased where the marker says that NVRAM and NAND agree; and by the
//! tags of every page that is read, which must be those of the page asked for.

use super::heap::Key;
use super::{Pairing, Refusal, Snapshot, State, Store};
use crate::blocks::{Block, BlockState};
use crate::codec::{hybrid, lzo};
use crate::error::Result;
use crate::fs::UpdateReport;
use crate::media::Nvram;
use crate::object::{Kind, NONE, Object, Objects};
use crate::pat::LEAF;
use alloc::vec::Vec;

/// The last session and the page of its record: behind the marker.
pub(super) const SESSION_AT: usize = 8;
/// The number by which the NVRAM is known (4 bytes), the CRC-32C of that and the name (4), the part's name (16).
const PAIRING_AT: usize = 16;
/// Where the name is.
pub(super) const NAME_AT: usize = PAIRING_AT + 8;
/// Where the space manager's room begins.
pub(super) const HEAP_AT: usize = PAIRING_AT + 24;
/// Bytes of a device record besides its blocks.
const DEVICE_BYTES: usize = 40;
const BLOCK_BYTES: usize = 8;
const OBJECT_BYTES: usize = 24;
/// Struct types, as YAFFS numbers them in checkpoints.
const DEVICE_TYPE: u32 = 1;
const OBJECT_TYPE: u32 = 2;
/// No page.
const NARROW_NONE: u32 = 0xffff;

fn put(to: &mut Vec<u8>, value: u32) {
    to.extend_from_slice(&value.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

fn pairing_sum(memory: u32, identity: &[u8; 16]) -> u32 {
    let mut bytes = memory.to_le_bytes().to_vec();
    bytes.extend_from_slice(identity);
    crate::crc32c(&bytes)
}

/// The name in an NVRAM that begins with these bytes.
pub(super) fn identity(front: &[u8]) -> Option<[u8; 16]> {
    let identity = *front.get(PAIRING_AT + 8..HEAP_AT)?.first_chunk()?;
    let sum = pairing_sum(word(front, PAIRING_AT)?, &identity);
    (word(front, PAIRING_AT + 4)? == sum).then_some(identity)
}

fn state_code(state: BlockState) -> u32 {
    match state {
        BlockState::Erased => 3,
        BlockState::Open => 4,
        BlockState::Full => 5,
        BlockState::Emptied | BlockState::Erasable => 6,
        BlockState::Bad => 9,
    }
}

fn state_of(code: u32) -> Option<BlockState> {
    Some(match code {
        3 => BlockState::Erased,
        4 => BlockState::Open,
        5 => BlockState::Full,
        6 => BlockState::Erasable,
        9 => BlockState::Bad,
        _ => return None,
    })
}

/// The device record, before compression.
fn device_record(snapshot: &Snapshot) -> Vec<u8> {
    let (open, next) = snapshot.open.unwrap_or((NONE, 0));
    let free = snapshot.blocks.capacity(0).saturating_sub(snapshot.blocks.live());
    let mut to = Vec::new();
    let erased = snapshot.blocks.erased_count() as u32;
    [DEVICE_TYPE, erased, open, next, free as u32].iter().for_each(|value| put(&mut to, *value));
    // Deleted, unlinked and background deletions: there are none, what is deleted is gone.
    [0, snapshot.last_block, 0, snapshot.sequence, snapshot.session]
        .iter()
        .for_each(|value| put(&mut to, *value));
    for (_, block) in snapshot.blocks.iter() {
        let pages = block.live.min(0x3ff) << 10 | block.written.min(0x3ff);
        put(
            &mut to,
            pages
                | state_code(block.state) << 20
                | u32::from(block.retire) << 24
                | u32::from(block.guards) << 30,
        );
        put(&mut to, block.sequence);
    }
    to
}

fn read_device(bytes: &[u8], blocks: u32) -> Option<State> {
    if word(bytes, 0)? != DEVICE_TYPE {
        return None;
    }
    let (open, next) = (word(bytes, 8)?, word(bytes, 12)?);
    let mut state = State {
        open: (open != NONE).then_some((open, next)),
        last_block: word(bytes, 24)?,
        sequence: word(bytes, 32)?,
        pairing: Pairing { updated: word(bytes, 36)?, ..Pairing::default() },
        ..State::default()
    };
    if state.last_block >= blocks || state.open.is_some_and(|(open, _)| open >= blocks) {
        return None;
    }
    for block in 0..blocks as usize {
        let (bits, sequence) = (
            word(bytes, DEVICE_BYTES + block * BLOCK_BYTES)?,
            word(bytes, DEVICE_BYTES + block * BLOCK_BYTES + 4)?,
        );
        state.blocks.push(Block {
            state: state_of(bits >> 20 & 0xf)?,
            sequence,
            written: bits & 0x3ff,
            retire: bits >> 24 & 1 == 1,
            guards: bits >> 30 & 1 == 1,
            ..Block::default()
        });
    }
    Some(state)
}

/// Leaves of the page table that hold a page: position and pages, as many as are needed.
fn leaves(object: &Object, none: u32) -> Vec<(u32, Vec<u32>)> {
    let mut leaves: Vec<(u32, Vec<u32>)> = Vec::new();
    for (index, page) in object.map.iter() {
        let position = index / LEAF;
        if leaves.last().is_none_or(|(last, _)| *last != position) {
            leaves.push((position, Vec::new()));
        }
        if let Some((_, pages)) = leaves.last_mut() {
            pages.resize((index % LEAF) as usize, none);
            pages.push(page);
        }
    }
    leaves
}

/// An object record: the fixed part as it is, positions as they are, page numbers under hybrid coding.
fn object_record(id: u32, object: &Object, narrow: bool) -> Vec<u8> {
    let none = if narrow { NARROW_NONE } else { NONE };
    let mut to = Vec::new();
    [OBJECT_TYPE, id, object.parent, object.header].iter().for_each(|value| put(&mut to, *value));
    let leaves = leaves(object, none);
    let pages: Vec<u32> = leaves.iter().flat_map(|(_, pages)| pages.iter().copied()).collect();
    // Type in the lower bits of the first half; the serial number's byte says how full the last leaf is.
    let last = leaves.last().map_or(0, |(_, pages)| pages.len() as u32);
    put(&mut to, object.kind.code() | last << 24);
    put(&mut to, object.map.count());
    put(&mut to, leaves.len() as u32);
    for (position, pages) in &leaves {
        put(&mut to, position << 4 | (pages.len() as u32 - 1));
    }
    to.extend(hybrid::encode(&pages, narrow));
    to
}

fn read_object(bytes: &[u8], narrow: bool, pages_max: u64) -> Option<(u32, Object)> {
    let none = if narrow { NARROW_NONE } else { NONE };
    if word(bytes, 0)? != OBJECT_TYPE {
        return None;
    }
    let (id, parent, header) = (word(bytes, 4)?, word(bytes, 8)?, word(bytes, 12)?);
    let mut object = Object::new(Kind::from_code(word(bytes, 16)? & 7)?, parent);
    object.header = header;
    object.size_unknown = true;
    if object.kind == Kind::File {
        object.map.become_tree();
    }
    let (count, leaf_count) = (word(bytes, 20)?, word(bytes, 24)? as usize);
    let positions_at = OBJECT_BYTES + 4;
    let positions: Vec<u32> = bytes
        .get(positions_at..)?
        .chunks_exact(4)
        .take(leaf_count)
        .map(|p| u32::from_le_bytes([p[0], p[1], p[2], p[3]]))
        .collect();
    if positions.len() != leaf_count
        || id > crate::object::MAX_ID
        || u64::from(header) >= pages_max && header != NONE
    {
        return None;
    }
    let total: usize = positions.iter().map(|position| (position & 15) as usize + 1).sum();
    let pages = hybrid::decode(bytes.get(positions_at + 4 * leaf_count..)?, total, narrow)?;
    let mut rest = pages.into_iter();
    for position in positions {
        for at in 0..=position & 15 {
            let page = rest.next()?;
            let index = (position >> 4).checked_mul(LEAF)?.checked_add(at)?;
            if page != none && u64::from(page) < pages_max {
                object.map.set(index, page);
            }
        }
    }
    (object.map.count() == count).then_some((id, object))
}

impl<V: Nvram> Store<V> {
    /// Whether page numbers fit 16 bits, one of them meaning no page.
    fn narrow(&self) -> bool {
        self.geometry.pages() <= u64::from(NARROW_NONE) + 1
    }

    fn set_marker(&mut self, whole: bool, agrees: bool) -> Result<()> {
        let mut marker = Vec::new();
        put(&mut marker, u32::from(whole));
        put(&mut marker, u32::from(agrees));
        self.heap.write(0, &marker)?;
        Ok(self.heap.persist()?)
    }

    pub(super) fn clear_paper(&mut self) -> Result<()> {
        self.set_marker(false, false)?;
        let mut pairing = self.pairing.memory.to_le_bytes().to_vec();
        put(&mut pairing, pairing_sum(self.pairing.memory, &self.pairing.identity));
        pairing.extend_from_slice(&self.pairing.identity);
        self.heap.write(PAIRING_AT, &pairing)?;
        Ok(self.heap.clear()?)
    }

    pub(super) fn announce_paper(&mut self) -> Result<()> {
        self.set_marker(true, false)
    }

    pub(super) fn commit_paper(&mut self, snapshot: &Snapshot) -> Result<UpdateReport> {
        let before = self.heap.written_bytes;
        self.set_marker(false, false)?;
        if self.all {
            self.heap.clear()?;
            self.objects.extend(snapshot.objects.iter().map(|(id, _)| id));
        }
        let mut report = UpdateReport { records: self.objects.len() as u32, ..UpdateReport::default() };
        report.overflow = !self.put_paper(snapshot)?;
        if !report.overflow {
            // The marker speaks for records that are there.
            self.heap.persist()?;
            self.set_marker(true, true)?;
        }
        report.bytes = self.heap.written_bytes - before;
        Ok(report)
    }

    fn put_paper(&mut self, snapshot: &Snapshot) -> Result<bool> {
        for (id, ()) in core::mem::take(&mut self.objects) {
            let key = Key::new(Key::OBJECT, id);
            self.heap.remove(key);
            self.heap.release()?;
            let object =
                snapshot.objects.get(id).filter(|object| object.header != NONE || object.map.count() > 0);
            if let Some(object) = object
                && !self.heap.put(key, 0, &object_record(id, object, self.narrow()))?
            {
                return Ok(false);
            }
        }
        let device = Key::new(Key::DEVICE, 0);
        self.heap.remove(device);
        self.heap.release()?;
        let coded = lzo::encode(&device_record(snapshot));
        Ok(self.heap.put(device, 0, &coded)?)
    }

    fn load_pairing(&mut self) -> core::result::Result<Pairing, Refusal> {
        let bytes = self.heap.read(SESSION_AT, HEAP_AT - SESSION_AT)?;
        let number = |at: usize| word(&bytes, at).ok_or(Refusal::Damaged);
        let mut identity = [0; 16];
        identity.copy_from_slice(bytes.get(PAIRING_AT + 8 - SESSION_AT..).ok_or(Refusal::Damaged)?);
        let memory = number(PAIRING_AT - SESSION_AT)?;
        if number(PAIRING_AT + 4 - SESSION_AT)? != pairing_sum(memory, &identity) {
            return Err(Refusal::Damaged);
        }
        Ok(Pairing { identity, memory, session: number(4)?, page: number(0)?, updated: 0 })
    }

    pub(super) fn load_paper(&mut self) -> core::result::Result<State, Refusal> {
        if self.heap.size_bytes() < HEAP_AT + 64 {
            return Err(Refusal::Foreign);
        }
        let marker = self.heap.read(0, 8)?;
        let agrees = match (word(&marker, 0), word(&marker, 4)) {
            (Some(1), Some(agrees @ 0..=1)) => agrees == 1,
            (Some(0), Some(0)) => return Err(Refusal::Incomplete),
            _ => return Err(Refusal::Foreign),
        };
        for chunk in self.heap.walk()?.ok_or(Refusal::Damaged)? {
            let known =
                |key: Key| matches!(key.kind, Key::DEVICE | Key::OBJECT) && self.heap.place(key).is_none();
            if !chunk.key.is_none_or(known) {
                return Err(Refusal::Damaged);
            }
            self.heap.adopt(chunk);
        }
        let device = self.heap.get(Key::new(Key::DEVICE, 0))?.ok_or(Refusal::Damaged)?;
        let len = DEVICE_BYTES + BLOCK_BYTES * self.geometry.blocks as usize;
        let raw = lzo::decode_padded(&device, len).ok_or(Refusal::Damaged)?;
        let mut state = read_device(&raw, self.geometry.blocks).ok_or(Refusal::Damaged)?;
        state.pairing = Pairing { updated: state.pairing.updated, ..self.load_pairing()? };
        // Between two blocks there is no page by which a marker could be seen to be wrong.
        state.modified = !agrees || state.open.is_none();
        // A mount makes the trees of their leaves.
        state.objects = Objects::default().with_trees(true);
        let (narrow, pages) = (self.narrow(), self.geometry.pages());
        for key in self.heap.keys(Key::OBJECT) {
            let bytes = self.heap.get(key)?.ok_or(Refusal::Damaged)?;
            let (id, object) = read_object(&bytes, narrow, pages).ok_or(Refusal::Damaged)?;
            state.objects.insert(id, object);
        }
        Ok(state)
    }
}
