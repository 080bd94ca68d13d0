//! YAFFS2's checkpoint: what its driver knows, written to erased blocks when it ends, so that the next mount need not
//! scan. Little endian; version 8, which drivers since 2022 write.
//!
//! A stream of bytes: a mark (validity 1), the device, 8 bytes a block, a bit a page, the objects with the leaves of
//! their page tables, a mark (validity 0), and a checksum. It is cut into pages that begin with their number and the
//! sums so far. Leaves are as large in the stream as in the driver's memory, where they share room with eight
//! pointers: streams of machines with pointers of 4 and of 8 bytes differ, and a driver takes only its own.
//!
//! Blocks and pages are numbered with one block more before them, since page 0 means none.

use crate::blocks::{Block, BlockState, Blocks};
use crate::media::Geometry;
use crate::nvram::State;
use crate::object::{DELETED, FIRST_ID, Kind, LOST_FOUND, MAX_ID, NONE, Object, Objects, ROOT, UNLINKED};
use alloc::vec::Vec;

/// Bytes of the head of a page.
pub(crate) const PAGE_HEAD: usize = 16;
const VERSION: u32 = 8;
const MAGIC: u32 = 0x5941_ff53;
const MARK_BYTES: u32 = 16;
const DEVICE_BYTES: u32 = 36;
const OBJECT_BYTES: u32 = 32;
/// Pages of a leaf.
const LEAF: u32 = 16;
/// Pointers of an inner node, which a leaf is at least as large as.
const POINTERS: usize = 8;
const END: u32 = u32::MAX;

const STATE_EMPTY: u32 = 3;
const STATE_ALLOCATING: u32 = 4;
const STATE_FULL: u32 = 5;
const STATE_DIRTY: u32 = 6;
const STATE_CHECKPOINT: u32 = 7;
const STATE_COLLECTING: u32 = 8;
const STATE_DEAD: u32 = 9;
const RETIRE_BIT: u32 = 1 << 24;
const SUMMARY_BIT: u32 = 1 << 30;
const SHRINK_BIT: u32 = 1 << 31;

const OBJECT_UNLINKED: u32 = 1 << 5;
const OBJECT_FAKE: u32 = 1 << 6;
const OBJECT_FREE: u32 = 1 << 7 | 1 << 8;

/// The sums over a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    sum: u32,
    xor: u32,
}

impl Sums {
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.sum = self.sum.wrapping_add(u32::from(*byte));
            self.xor ^= u32::from(*byte);
        }
    }

    fn together(self) -> u32 {
        self.sum << 8 | self.xor & 0xff
    }

    /// The head of page `number`, from 0, when the stream up to it has these sums.
    pub fn head(self, number: u32) -> [u8; PAGE_HEAD] {
        let mut head = [0; PAGE_HEAD];
        for (place, word) in head.chunks_exact_mut(4).zip([VERSION, number, self.sum, self.xor]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        head
    }
}

/// How numbers of pages are written.
#[derive(Clone, Copy, Debug)]
struct Form {
    geometry: Geometry,
    /// Bits of a number in a leaf.
    width: u32,
    leaf_bytes: usize,
}

impl Form {
    fn new(geometry: &Geometry, pointer_bytes: usize) -> Form {
        let pages = u64::from(geometry.pages_per_block) * (u64::from(geometry.blocks) + 1);
        let bits = u64::BITS - (pages - 1).leading_zeros();
        let width = bits.next_multiple_of(2).clamp(16, 32);
        Form {
            geometry: *geometry,
            width,
            leaf_bytes: (width as usize * LEAF as usize / 8).max(POINTERS * pointer_bytes),
        }
    }

    fn to_wire(self, page: u32) -> u32 {
        if page == NONE { 0 } else { page + self.geometry.pages_per_block }
    }

    /// The page a number stands for, [`NONE`] for 0; `None` if there is no such page.
    fn page_of(self, number: u32) -> Option<u32> {
        match number {
            0 => Some(NONE),
            number => {
                let page = number.checked_sub(self.geometry.pages_per_block)?;
                (u64::from(page) < self.geometry.pages()).then_some(page)
            }
        }
    }

    fn put_leaf(self, to: &mut Writer, pages: &[u32; LEAF as usize]) {
        let mut bytes = alloc::vec![0u8; self.leaf_bytes];
        for (at, page) in pages.iter().enumerate() {
            let number = u64::from(self.to_wire(*page));
            let bit = at * self.width as usize;
            for (offset, part) in (number << (bit % 8)).to_le_bytes().into_iter().enumerate() {
                if let Some(byte) = bytes.get_mut(bit / 8 + offset) {
                    *byte |= part;
                }
            }
        }
        to.0.extend_from_slice(&bytes);
    }

    fn leaf(self, bytes: &[u8]) -> Option<[u32; LEAF as usize]> {
        let mut pages = [NONE; LEAF as usize];
        for (at, page) in pages.iter_mut().enumerate() {
            let bit = at * self.width as usize;
            let mut window = [0; 8];
            for (offset, byte) in window.iter_mut().enumerate() {
                *byte = bytes.get(bit / 8 + offset).copied().unwrap_or(0);
            }
            let number = u64::from_le_bytes(window) >> (bit % 8) & ((1 << self.width) - 1);
            *page = self.page_of(number as u32)?;
        }
        Some(pages)
    }
}

#[derive(Debug, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.0.extend_from_slice(&word.to_le_bytes()));
    }
}

/// What a checkpoint is to say.
pub(crate) struct Contents<'a> {
    pub objects: &'a Objects,
    pub blocks: &'a Blocks,
    pub geometry: &'a Geometry,
    pub open: Option<(u32, u32)>,
    pub sequence: u32,
    /// Pages of a full block's summary.
    pub summary_pages: u32,
}

/// The stream, for a driver on a machine with pointers of so many bytes.
pub(crate) fn write(contents: &Contents, pointer_bytes: usize) -> Vec<u8> {
    let form = Form::new(contents.geometry, pointer_bytes);
    let mut to = Writer::default();
    to.words(&[MARK_BYTES, MAGIC, VERSION, 1]);
    write_device(contents, &mut to);
    for (id, object) in contents.objects.iter() {
        let there = object.header != NONE || id <= LOST_FOUND;
        if there {
            write_object(form, id, object, &mut to);
        }
    }
    to.words(&[OBJECT_BYTES]);
    to.words(&[END; OBJECT_BYTES as usize / 4 - 1]);
    to.words(&[MARK_BYTES, MAGIC, VERSION, 0]);
    let mut sums = Sums::default();
    sums.add(&to.0);
    to.words(&[sums.together()]);
    to.0
}

fn write_device(contents: &Contents, to: &mut Writer) {
    let pages_per_block = contents.geometry.pages_per_block;
    let mut bits =
        alloc::vec![0u8; contents.geometry.pages().div_ceil(8) as usize + pages_per_block as usize];
    let stride = pages_per_block.div_ceil(8) as usize;
    let mut set = |page: u32| {
        let (block, within) = (page / pages_per_block, page % pages_per_block);
        let at = block as usize * stride + within as usize / 8;
        if bits.len() <= at {
            bits.resize(at + 1, 0);
        }
        bits[at] |= 1 << (within % 8);
    };
    for (_, object) in contents.objects.iter() {
        let header = (object.header != NONE).then_some(object.header);
        header.into_iter().chain(object.map.iter().map(|(_, page)| page)).for_each(&mut set);
    }
    let (mut infos, mut free, mut erased) = (Writer::default(), 0, 0);
    for (block, entry) in contents.blocks.iter() {
        let (state, used, flags) = block_word(contents, entry);
        if flags & SUMMARY_BIT != 0 {
            let first = block * pages_per_block;
            (contents.blocks.usable()..pages_per_block).for_each(|page| set(first + page));
        }
        infos.words(&[used << 10 | state << 20 | flags, entry.sequence]);
        erased += u32::from(state == STATE_EMPTY);
        free += if state == STATE_DEAD { 0 } else { pages_per_block - used.min(pages_per_block) };
    }
    let (block, next) = contents.open.map_or((u32::MAX, 0), |(block, next)| (block + 1, next));
    to.words(&[DEVICE_BYTES, erased, block, next, free, 0, 0, 0, contents.sequence]);
    to.0.extend_from_slice(&infos.0);
    bits.resize(stride * contents.geometry.blocks as usize, 0);
    to.0.extend_from_slice(&bits);
}

/// State, pages in use, and flags of a block. What is emptied is full with nothing in use, to be collected.
fn block_word(contents: &Contents, entry: &Block) -> (u32, u32, u32) {
    let state = match entry.state {
        BlockState::Erased => STATE_EMPTY,
        BlockState::Open => STATE_ALLOCATING,
        BlockState::Full | BlockState::Emptied | BlockState::Erasable => STATE_FULL,
        BlockState::Bad => STATE_DEAD,
    };
    let is_summed = entry.state == BlockState::Full
        && entry.written == contents.blocks.usable()
        && contents.summary_pages > 0;
    let summary = if is_summed { SUMMARY_BIT } else { 0 };
    let guards = if entry.guards { SHRINK_BIT } else { 0 };
    let retire = if entry.retire { RETIRE_BIT } else { 0 };
    let used = entry.live + if is_summed { contents.summary_pages } else { 0 };
    (state, used & 0x3ff, summary | guards | retire)
}

fn write_object(form: Form, id: u32, object: &Object, to: &mut Writer) {
    let flags = match id {
        ROOT | LOST_FOUND => OBJECT_FAKE,
        _ if object.parent == UNLINKED => OBJECT_FREE | OBJECT_UNLINKED,
        _ => OBJECT_FREE,
    };
    let parent = if id == ROOT { 0 } else { object.parent };
    let more = match object.kind {
        Kind::File => object.flash_size,
        Kind::HardLink => u64::from(object.target),
        _ => 0,
    };
    to.words(&[OBJECT_BYTES, id, parent, form.to_wire(object.header), object.kind.code() | flags]);
    to.words(&[object.map.count(), more as u32, (more >> 32) as u32]);
    if object.kind != Kind::File {
        return;
    }
    let mut leaf: Option<(u32, [u32; LEAF as usize])> = None;
    for (index, page) in object.map.iter() {
        // Pages of a file are numbered from 1.
        let (base, at) = ((index + 1) / LEAF * LEAF, (index + 1) % LEAF);
        if let Some((old, pages)) = leaf.take_if(|(old, _)| *old != base) {
            to.words(&[old]);
            form.put_leaf(to, &pages);
        }
        let (_, pages) = leaf.get_or_insert((base, [NONE; LEAF as usize]));
        pages[at as usize] = page;
    }
    if let Some((base, pages)) = leaf {
        to.words(&[base]);
        form.put_leaf(to, &pages);
    }
    to.words(&[END]);
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(bytes)
    }

    fn word(&mut self) -> Option<u32> {
        let bytes = self.take(4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn words<const COUNT: usize>(&mut self) -> Option<[u32; COUNT]> {
        let mut words = [0; COUNT];
        for word in &mut words {
            *word = self.word()?;
        }
        Some(words)
    }
}

/// What a stream says, whatever the machine that wrote it; `None` if it is none, spoilt, or contradicts itself.
pub(crate) fn read(stream: &[u8], geometry: &Geometry, usable: u32) -> Option<State> {
    [4, 8].into_iter().find_map(|pointer| read_form(stream, Form::new(geometry, pointer), usable))
}

fn read_form(stream: &[u8], form: Form, usable: u32) -> Option<State> {
    let mut from = Reader { bytes: stream, at: 0 };
    if from.words()? != [MARK_BYTES, MAGIC, VERSION, 1] {
        return None;
    }
    let mut state = read_device(&mut from, form, usable)?;
    let mut owned = alloc::vec![false; form.geometry.pages() as usize];
    while let Some((id, object)) = read_object(&mut from, form)? {
        let pages = object.map.iter().map(|(_, page)| page);
        let header = (object.header != NONE).then_some(object.header);
        for page in header.into_iter().chain(pages) {
            let holds = holds(&state, form, page);
            if !holds || core::mem::replace(&mut owned[page as usize], true) {
                return None;
            }
        }
        if object.header != NONE && id != UNLINKED && id != DELETED {
            state.objects.insert(id, object);
        }
    }
    if from.words()? != [MARK_BYTES, MAGIC, VERSION, 0] {
        return None;
    }
    let mut sums = Sums::default();
    sums.add(&stream[..from.at]);
    (from.word()? == sums.together()).then_some(state)
}

/// Whether a page can be in use: its block was written up to it.
fn holds(state: &State, form: Form, page: u32) -> bool {
    let (block, within) = (form.geometry.block_of(page), page % form.geometry.pages_per_block);
    let entry = state.blocks.get(block as usize);
    entry.is_some_and(|entry| match entry.state {
        BlockState::Full => true,
        BlockState::Open => within < entry.written,
        _ => false,
    })
}

fn read_device(from: &mut Reader, form: Form, usable: u32) -> Option<State> {
    let [size, _, open, next, _, _, _, _, sequence] = from.words()?;
    let blocks = form.geometry.blocks;
    let open = if open == u32::MAX { None } else { Some((open.checked_sub(1)?, next)) };
    if size != DEVICE_BYTES || open.is_some_and(|(block, next)| block >= blocks || next > usable) {
        return None;
    }
    let mut state = State { sequence, ..State::default() };
    for block in 0..blocks {
        let [word, own] = from.words()?;
        let is_open = open.is_some_and(|(open, _)| open == block);
        let entry = match word >> 20 & 0xf {
            STATE_EMPTY => Block::default(),
            STATE_ALLOCATING if is_open => Block {
                state: BlockState::Open,
                written: open.map_or(0, |(_, next)| next),
                ..Block::default()
            },
            STATE_ALLOCATING | STATE_FULL | STATE_COLLECTING => {
                Block { state: BlockState::Full, written: usable, ..Block::default() }
            }
            STATE_DIRTY | STATE_CHECKPOINT => Block { state: BlockState::Erasable, ..Block::default() },
            STATE_DEAD => Block { state: BlockState::Bad, ..Block::default() },
            _ => return None,
        };
        let known = matches!(entry.state, BlockState::Full | BlockState::Open);
        state.blocks.push(Block {
            sequence: if known { own } else { 0 },
            guards: known && word & SHRINK_BIT != 0,
            retire: known && word & RETIRE_BIT != 0,
            ..entry
        });
    }
    from.take(form.geometry.pages_per_block.div_ceil(8) as usize * blocks as usize)?;
    let newest = (0..blocks).max_by_key(|block| state.blocks[*block as usize].sequence)?;
    state.last_block = open.map_or(newest, |(block, _)| block);
    state.open = open
        .filter(|(block, next)| *next < usable && state.blocks[*block as usize].state == BlockState::Open);
    if let (Some((block, _)), None) = (open, state.open)
        && state.blocks[block as usize].state == BlockState::Open
    {
        state.blocks[block as usize].state = BlockState::Full;
    }
    Some(state)
}

/// The next object; `None` within `Some` behind the last.
fn read_object(from: &mut Reader, form: Form) -> Option<Option<(u32, Object)>> {
    let [size, id, parent, header, bits, _, low, high] = from.words()?;
    if size != OBJECT_BYTES {
        return None;
    }
    if id == END {
        return Some(None);
    }
    let usual = (FIRST_ID..=MAX_ID).contains(&id);
    if !usual && !(ROOT..=DELETED).contains(&id) {
        return None;
    }
    let mut object = Object::new(Kind::from_code(bits & 7)?, if id == ROOT { ROOT } else { parent });
    object.header = form.page_of(header)?;
    let more = u64::from(low) | u64::from(high) << 32;
    match object.kind {
        Kind::File => {
            (object.size, object.flash_size) = (more, more);
            read_leaves(from, form, &mut object)?;
        }
        Kind::HardLink => object.target = low,
        _ => {}
    }
    Some(Some((id, object)))
}

fn read_leaves(from: &mut Reader, form: Form, object: &mut Object) -> Option<()> {
    let end = object.size.div_ceil(u64::from(form.geometry.page_bytes));
    loop {
        let base = from.word()?;
        if base == END {
            return Some(());
        }
        let pages = form.leaf(from.take(form.leaf_bytes)?)?;
        for (at, page) in (0u32..).zip(pages) {
            if page == NONE {
                continue;
            }
            let index = base.checked_add(at)?.checked_sub(1)?;
            if u64::from(index) >= end {
                return None;
            }
            object.map.set(index, page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(blocks: u32) -> Geometry {
        Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks }
    }

    #[test]
    fn numbers_are_as_wide_as_yaffs2_makes_them() {
        let width = |blocks| Form::new(&geometry(blocks), 4).width;
        assert_eq!([8, 512, 1023, 1024, 8192].map(width), [16, 16, 16, 18, 20]);
        let bytes = |blocks, pointer| Form::new(&geometry(blocks), pointer).leaf_bytes;
        assert_eq!([bytes(1024, 4), bytes(1024, 8), bytes(8192, 4)], [36, 64, 40]);
    }

    #[test]
    fn leaves_read_back_whatever_their_width() {
        for blocks in [8, 1024, 8192, 100_000] {
            let form = Form::new(&geometry(blocks), 4);
            let mut pages = [NONE; LEAF as usize];
            (0..15u32).for_each(|at| pages[at as usize] = at * 7919 % (blocks * 64));
            pages[15] = blocks * 64 - 1;
            let mut to = Writer::default();
            form.put_leaf(&mut to, &pages);
            assert_eq!((to.0.len(), form.leaf(&to.0)), (form.leaf_bytes, Some(pages)), "{blocks} blocks");
        }
    }
}
