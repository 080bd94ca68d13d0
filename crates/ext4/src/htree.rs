//! The index of a directory: a tree over the hashes of its names, of one to three levels.
//!
//! ```text
//! block 0    . · .. · hash version, levels · limit, count · block | hash, block | …        the root
//! node       unused record over it all     · limit, count · block | hash, block | …
//! leaf       records of names                                            (see `dirent`)
//! ```
//!
//! An index block has `count` entries in the order of their hashes; an entry's block holds the hashes from its
//! own up to the next entry's. The first entry has no hash of its own (limit and count lie in its place). When
//! a leaf is full, its upper half by size moves to a new block at the directory's end. Should the halves part
//! names with one hash, the new entry's hash has its lowest bit set: a search then goes on from one leaf to
//! the next as long as that bit asks for it. A full index block is split in the middle; a full root moves into
//! a node of its own, below it.
//!
//! Invariants: block 0 is the root; every other block is pointed at by exactly one entry; leaves are all at the
//! same depth; limits are what the block size allows. A tree that breaks them is an error, never a loop: a
//! search reads one block a level, a walk no more leaves than the directory has blocks.

use super::dir::{Batch, DirBlocks, DirParams, Place, Visited, corrupt, dots, pack, place, shape, with};
use super::dirent::{Checked, Record, Room, Shape, le16, le32, need, put};
use super::hash::Hasher;
use bimetal_base::{Error, Result};
use smallvec::SmallVec;

/// Where the root's own fields begin, after `.` and `..`.
const ROOT_INFO: usize = 24;
/// Where entries begin in the root and in a node.
const ROOT_ENTRIES: usize = 32;
const NODE_ENTRIES: usize = 8;
const ENTRY: usize = 8;
/// Bytes of the checksum record of an index block.
const INDEX_TAIL: usize = 8;
/// The upper bits of an entry's block number are kept for other uses.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;
/// A name finds its place after at most this many splits: one a level, a new root, the leaf, and some to spare.
const SPLITS_MAX: usize = 12;

/// The number of index levels a file system allows.
fn levels_max(params: &DirParams) -> usize {
    if params.large_dir { 3 } else { 2 }
}

/// How many entries fit an index block whose entries begin at `base`.
fn limit(block_bytes: usize, base: usize, checksums: bool) -> usize {
    (block_bytes - base - if checksums { INDEX_TAIL } else { 0 }) / ENTRY
}

/// An index block on the way to a leaf, and the entry that was taken.
#[derive(Clone, Copy, Debug)]
struct Frame {
    block: u32,
    base: usize,
    count: usize,
    taken: usize,
}

/// The way from the root to a leaf.
struct Path {
    frames: SmallVec<[Frame; 3]>,
    leaf: u32,
    /// The hash at which the next leaf begins, if there is one.
    bound: Option<u32>,
}

impl Path {
    /// Whether names with this hash go on in the next leaf.
    fn goes_on(&self, major: u32) -> bool {
        self.bound.is_some_and(|bound| bound & !1 == major)
    }

    fn last(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }
}

/// The root's own fields.
struct Root {
    hasher: Hasher,
    /// Levels of the index, the root's among them.
    levels: usize,
}

fn root<D: DirBlocks + ?Sized>(d: &mut D) -> Result<Root> {
    if d.count() < 2 {
        return Err(corrupt(d, 0, "an indexed directory has fewer than two blocks"));
    }
    let params = d.params();
    let block = d.read(0)?;
    let (version, length) = (block[ROOT_INFO + 4], block[ROOT_INFO + 5]);
    let (levels, flags) = (usize::from(block[ROOT_INFO + 6]) + 1, block[ROOT_INFO + 7]);
    let why = if le32(block, ROOT_INFO) != 0 || length != 8 {
        "the root of the index has not the shape of one"
    } else if levels > levels_max(&params) {
        "the index has more levels than the file system allows"
    } else if flags & 1 != 0 {
        "the index has unknown flags"
    } else {
        let hasher = Hasher::new(version, params.unsigned, params.hash_seed)?;
        return Ok(Root { hasher, levels });
    };
    Err(corrupt(d, 0, why))
}

/// The number of entries of an index block, after checking its head.
fn entry_count(block: &[u8], base: usize, checksums: bool) -> Checked<usize> {
    if base == NODE_ENTRIES && (le32(block, 0) != 0 || block[6] != 0) {
        return Err("an index block is not one");
    }
    let count = usize::from(le16(block, base + 2));
    if usize::from(le16(block, base)) != limit(block.len(), base, checksums) {
        return Err("an index block's limit is not what its size allows");
    }
    if count == 0 || count > limit(block.len(), base, checksums) {
        return Err("an index block's count is impossible");
    }
    Ok(count)
}

fn entry_hash(block: &[u8], base: usize, index: usize) -> u32 {
    le32(block, base + index * ENTRY)
}

/// The last entry whose hash is not above `major`; the first one has none and always fits.
fn last_not_above(block: &[u8], base: usize, count: usize, major: u32) -> usize {
    let (mut last, mut left) = (0, count);
    while left > 1 {
        let half = left / 2;
        // A choice without a jump: no processor can guess a hash.
        let above = entry_hash(block, base, last + half) > major;
        last += if above { 0 } else { half };
        left -= half;
    }
    last
}

/// The block an entry points at, if it is one of the directory's `blocks` and not the root.
fn child(block: &[u8], base: usize, index: usize, blocks: u32) -> Checked<u32> {
    let child = le32(block, base + index * ENTRY + 4) & BLOCK_MASK;
    if child == 0 || child >= blocks { Err("an index entry points outside the directory") } else { Ok(child) }
}

/// Goes down from the index block `from` that is `depth` levels below the root, choosing by hash, or always the
/// first entry if there is no hash.
fn descend<D: DirBlocks + ?Sized>(
    d: &mut D,
    path: &mut Path,
    levels: usize,
    from: u32,
    major: Option<u32>,
) -> Result<()> {
    let (checksums, blocks) = (d.params().checksums, d.count());
    let mut n = from;
    while path.frames.len() < levels {
        let base = if path.frames.is_empty() { ROOT_ENTRIES } else { NODE_ENTRIES };
        n = with(d, n, |block| {
            let count = entry_count(block, base, checksums)?;
            let taken = major.map_or(0, |major| last_not_above(block, base, count, major));
            if taken + 1 < count {
                path.bound = Some(entry_hash(block, base, taken + 1));
            }
            path.frames.push(Frame { block: n, base, count, taken });
            child(block, base, taken, blocks)
        })?;
    }
    path.leaf = n;
    Ok(())
}

/// The way to the first leaf that may hold a hash.
fn path_to<D: DirBlocks + ?Sized>(d: &mut D, levels: usize, major: u32) -> Result<Path> {
    let mut path = Path { frames: SmallVec::new(), leaf: 0, bound: None };
    descend(d, &mut path, levels, 0, Some(major))?;
    Ok(path)
}

/// Moves on to the next leaf in the order of hashes; `false` at the end.
fn advance<D: DirBlocks + ?Sized>(d: &mut D, path: &mut Path, levels: usize) -> Result<bool> {
    while path.frames.last().is_some_and(|frame| frame.taken + 1 >= frame.count) {
        path.frames.pop();
    }
    let Some(frame) = path.frames.last_mut() else {
        return Ok(false);
    };
    frame.taken += 1;
    let Frame { block: n, base, taken, .. } = *frame;
    path.bound = None;
    for frame in &path.frames {
        if frame.taken + 1 < frame.count {
            path.bound = Some(entry_hash(d.read(frame.block)?, frame.base, frame.taken + 1));
        }
    }
    let blocks = d.count();
    let next = with(d, n, |block| child(block, base, taken, blocks))?;
    descend(d, path, levels, next, None)?;
    Ok(true)
}

/// Where a name is.
pub(super) fn find<D: DirBlocks + ?Sized>(d: &mut D, name: &[u8]) -> Result<Option<Place>> {
    let root = root(d)?;
    let major = root.hasher.hash(name).major;
    let mut path = path_to(d, root.levels, major)?;
    find_from(d, &root, &mut path, major, name)
}

/// Searches the leaf at the end of the path and those that its hash goes on in.
fn find_from<D: DirBlocks + ?Sized>(
    d: &mut D,
    root: &Root,
    path: &mut Path,
    major: u32,
    name: &[u8],
) -> Result<Option<Place>> {
    let shape = shape(d);
    for _ in 0..d.count() {
        let block = path.leaf;
        if let Some(hit) = with(d, block, |bytes| shape.find(bytes, name))? {
            return Ok(Some(Place { block, hit }));
        }
        if !path.goes_on(major) || !advance(d, path, root.levels)? {
            return Ok(None);
        }
    }
    Err(corrupt(d, 0, "the index names more leaves than there are blocks"))
}

/// Gives an inode a name.
pub(super) fn insert<D: DirBlocks + ?Sized>(d: &mut D, name: &[u8], ino: u32, tag: u8) -> Result<()> {
    let shape = shape(d);
    for _ in 0..SPLITS_MAX {
        let root = root(d)?;
        let major = root.hasher.hash(name).major;
        let mut path = path_to(d, root.levels, major)?;
        if path.goes_on(major) {
            if find_from(d, &root, &mut path, major, name)?.is_some() {
                return Err(Error::Exists);
            }
            path = path_to(d, root.levels, major)?;
        }
        match with(d, path.leaf, |bytes| shape.room(bytes, name))? {
            Room::Taken => return Err(Error::Exists),
            Room::At(at) => return place(d, path.leaf, at, name, ino, tag),
            Room::Full(used) if used + need(name.len()) <= shape.end => {
                let at = pack(d, path.leaf, 0)?;
                return place(d, path.leaf, at, name, ino, tag);
            }
            Room::Full(_) => make_room(d, &root, &path)?,
        }
    }
    Err(corrupt(d, 0, "no leaf takes the name, however often they are split"))
}

/// Splits the leaf at the end of the path; or, where the index has no room for that, the index, one step.
fn make_room<D: DirBlocks + ?Sized>(d: &mut D, root: &Root, path: &Path) -> Result<()> {
    let params = d.params();
    let block_bytes = d.block_bytes();
    let full = |frame: &Frame| frame.count == limit(block_bytes, frame.base, params.checksums);
    let full_below = path.frames.iter().rev().take_while(|frame| full(frame)).count();
    match path.frames.len() - full_below {
        _ if full_below == 0 => split_leaf(d, root, path),
        0 if root.levels == levels_max(&params) => Err(Error::NoSpace("the directory's index is full")),
        0 => deepen(d, &path.frames[0], root.levels),
        first_full => split_node(d, &path.frames[first_full - 1], &path.frames[first_full]),
    }
}

/// Moves the upper half of a leaf's names to a new block.
fn split_leaf<D: DirBlocks + ?Sized>(d: &mut D, root: &Root, path: &Path) -> Result<()> {
    let shape = shape(d);
    let old = d.read(path.leaf)?.to_vec();
    let records: Result<Vec<Record>, &str> = shape.records(&old).collect();
    let mut map: Vec<(u32, Record)> = records
        .map_err(|why| corrupt(d, path.leaf, why))?
        .into_iter()
        .filter(|record| record.ino != 0)
        .map(|record| (root.hasher.hash(record.name(&old)).major, record))
        .collect();
    if map.len() < 2 {
        return Err(corrupt(d, path.leaf, "a leaf is full with fewer than two names"));
    }
    map.sort_by_key(|(hash, _)| *hash);
    let half = half(&map, shape.end);
    let upper = map[half].0;
    let bound = upper | u32::from(map[half - 1].0 == upper);
    let records: Vec<Record> = map.into_iter().map(|(_, record)| record).collect();
    let new = append(d)?;
    d.edit(new)?.copy_from_slice(&shape.packed(&old, &records[half..], 0));
    add_entry(d, path.last(), bound, new)?;
    d.edit(path.leaf)?.copy_from_slice(&shape.packed(&old, &records[..half], 0));
    Ok(())
}

/// The first of the names that move: about half of the bytes, and neither all nor none of the names.
fn half(map: &[(u32, Record)], end: usize) -> usize {
    let mut moved = 0;
    let staying = map.iter().rposition(|(_, record)| {
        let stays = moved + record.used() / 2 > end / 2;
        moved += record.used();
        stays
    });
    staying.map_or(map.len() / 2, |index| index + 1).clamp(1, map.len() - 1)
}

/// Adds an entry after the one that was taken, in an index block that has room.
fn add_entry<D: DirBlocks + ?Sized>(d: &mut D, frame: &Frame, hash: u32, child: u32) -> Result<()> {
    let block = d.edit(frame.block)?;
    let at = frame.base + (frame.taken + 1) * ENTRY;
    let end = frame.base + frame.count * ENTRY;
    block.copy_within(at..end, at + ENTRY);
    put(block, at, hash.to_le_bytes());
    put(block, at + 4, child.to_le_bytes());
    put(block, frame.base + 2, (frame.count as u16 + 1).to_le_bytes());
    Ok(())
}

/// Moves the upper half of a node's entries to a new node; `parent` has room for it.
fn split_node<D: DirBlocks + ?Sized>(d: &mut D, parent: &Frame, node: &Frame) -> Result<()> {
    let half = node.count / 2;
    let block = d.read(node.block)?;
    let hash = entry_hash(block, node.base, half);
    let moved = block[node.base + half * ENTRY..node.base + node.count * ENTRY].to_vec();
    let new = append(d)?;
    write_node(d, new, &moved)?;
    add_entry(d, parent, hash, new)?;
    put(d.edit(node.block)?, node.base + 2, (half as u16).to_le_bytes());
    Ok(())
}

/// Moves all entries of the root into a new node below it.
fn deepen<D: DirBlocks + ?Sized>(d: &mut D, root: &Frame, levels: usize) -> Result<()> {
    let moved = d.read(root.block)?[root.base..root.base + root.count * ENTRY].to_vec();
    let new = append(d)?;
    write_node(d, new, &moved)?;
    let block = d.edit(root.block)?;
    block[ROOT_INFO + 6] = levels as u8;
    put(block, root.base + 2, 1_u16.to_le_bytes());
    put(block, root.base + 4, new.to_le_bytes());
    Ok(())
}

/// Adds a block whose number an index entry can hold.
fn append<D: DirBlocks + ?Sized>(d: &mut D) -> Result<u32> {
    if d.count() > BLOCK_MASK {
        return Err(Error::NoSpace("the directory has as many blocks as its index can name"));
    }
    d.append()
}

/// Makes a block an index node with these entries.
fn write_node<D: DirBlocks + ?Sized>(d: &mut D, n: u32, entries: &[u8]) -> Result<()> {
    let (shape, checksums) = (shape(d), d.params().checksums);
    let block = d.edit(n)?;
    block.fill(0);
    shape.set_len(block, 0, shape.block_bytes);
    block[NODE_ENTRIES..NODE_ENTRIES + entries.len()].copy_from_slice(entries);
    set_head(block, NODE_ENTRIES, entries.len() / ENTRY, checksums);
    Ok(())
}

fn set_head(block: &mut [u8], base: usize, count: usize, checksums: bool) {
    put(block, base, (limit(block.len(), base, checksums) as u16).to_le_bytes());
    put(block, base + 2, (count as u16).to_le_bytes());
}

/// Makes a directory of one block an indexed one: its names move to block 1, block 0 becomes the root.
pub(super) fn convert<D: DirBlocks + ?Sized>(d: &mut D) -> Result<()> {
    let params = d.params();
    Hasher::new(params.hash_version, params.unsigned, params.hash_seed)?;
    let (own, parent) = dots(d)?;
    let shape = shape(d);
    let old = d.read(0)?.to_vec();
    let records: Result<Vec<Record>, &str> = shape.records(&old).skip(2).collect();
    let mut records = records.map_err(|why| corrupt(d, 0, why))?;
    records.retain(|record| record.ino != 0);
    let leaf = shape.packed(&old, &records, 0);
    let new = append(d)?;
    d.edit(new)?.copy_from_slice(&leaf);
    write_root(d.edit(0)?, &shape, &params, own, parent, new);
    d.set_indexed(true);
    Ok(())
}

fn write_root(block: &mut [u8], shape: &Shape, params: &DirParams, own: Record, parent: Record, leaf: u32) {
    let first = need(1);
    block.fill(0);
    shape.write(block, 0, first, b".", own.ino, own.tag);
    shape.write(block, first, shape.block_bytes - first, b"..", parent.ino, parent.tag);
    block[ROOT_INFO + 4] = params.hash_version;
    block[ROOT_INFO + 5] = 8;
    set_head(block, ROOT_ENTRIES, 1, params.checksums);
    put(block, ROOT_ENTRIES + 4, leaf.to_le_bytes());
}

/// Shows the names at or after position `from`, in the order of their hashes.
pub(super) fn visit<D: DirBlocks + ?Sized>(
    d: &mut D,
    from: u64,
    show: &mut dyn FnMut(Visited) -> bool,
) -> Result<()> {
    let root = root(d)?;
    let mut path = path_to(d, root.levels, Batch::major(from))?;
    let mut batch = Batch::default();
    for _ in 0..d.count() {
        batch.gather(d, path.leaf, &root.hasher, from)?;
        // Names with one hash over several leaves are shown together, so that their order is one.
        let goes_on = path.bound.is_some_and(|bound| bound & 1 == 1);
        if !goes_on && !batch.show(show) {
            return Ok(());
        }
        if !advance(d, &mut path, root.levels)? {
            return Ok(());
        }
    }
    Err(corrupt(d, 0, "the index names more leaves than there are blocks"))
}
