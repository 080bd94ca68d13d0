//! The extent tree on disk: reading it into [`Extents`] and writing it back.
//!
//! Source: `Documentation/filesystems/ext4/ifork.rst` of Linux. A node is a header of 12 bytes and entries
//! of 12 bytes; the root is the 60 bytes of `i_block`, every other node a block with a checksum at its end.
//! Index entries name the first block of the file below them and the block of the child.
//!
//! Reading checks magic, depth, counts, checksums, order and range. Since extents must strictly ascend and
//! no node may be empty, a tree that points back into itself is found out; nothing can loop. A block that
//! is named twice is an error, too: what one place gives back another would still have.

use super::extents::{EXTENT_MAX, Extent, Extents, Leaf, ROOT_ENTRIES};
use super::le::{get16, get32, put16, put32};
use bimetal_base::checksum::crc32c_raw;
use bimetal_base::{Error, Result};
use bytes::Bytes;

/// What an extent tree's node begins with.
pub(super) const MAGIC: u16 = 0xF30A;
const HEADER: usize = 12;
const ENTRY: usize = 12;
const DEPTH_MAX: u16 = 5;
/// Bytes of an inode's root.
pub(super) const ROOT_BYTES: usize = 60;

/// Entries that fit in a node of `block_bytes`.
pub(super) fn node_entries(block_bytes: u32) -> u16 {
    ((block_bytes as usize - HEADER) / ENTRY) as u16
}

/// The block of the node below an index entry.
fn child_of(entry: &[u8]) -> u64 {
    u64::from(get32(entry, 4)) | u64::from(get16(entry, 8)) << 32
}

/// How to read an inode's tree.
pub(super) struct Reader<'a> {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// The inode's checksum seed, if nodes carry checksums.
    pub seed: Option<u32>,
    /// The inode, for messages.
    pub ino: u64,
    /// Fetches a node.
    pub read: &'a mut dyn FnMut(u64) -> Result<Bytes>,
    /// Is told of nodes that will be fetched.
    pub soon: &'a dyn Fn(u64),
    /// Whether a run of blocks may belong to a file.
    pub allowed: &'a dyn Fn(u64, u64) -> bool,
}

impl Reader<'_> {
    fn bad(&self, why: &str, node: u64) -> Error {
        let place = if node == 0 { String::new() } else { format!(", block {node}") };
        Error::corrupt("an extent tree", why, format!("inode {}{place}", self.ino))
    }

    /// Reads the whole tree under the root in `root` (60 bytes).
    ///
    /// # Errors
    /// [`Error::Corrupt`], and what reading a node says.
    pub fn tree(&mut self, root: &[u8]) -> Result<Extents> {
        let mut extents = Extents::new(node_entries(self.block_bytes));
        let depth = self.header(root, ROOT_ENTRIES as u16, None, 0)?;
        let mut index: Vec<Vec<u64>> = vec![Vec::new(); usize::from(depth).saturating_sub(1)];
        self.node(root, depth, 0, 0, &mut extents, &mut index)?;
        extents.index = index.concat();
        let nodes: Vec<u64> = extents.nodes().collect();
        extents
            .check_apart(&nodes)
            .map_err(|at| self.bad("two of its extents or nodes lie in one block", at))?;
        // Another driver may have filled its index nodes less than we would: ours replace them all at once.
        extents.index_changed = !extents.index.is_empty();
        Ok(extents)
    }

    /// Checks a node's header and returns its depth.
    fn header(&self, node: &[u8], room: u16, depth: Option<u16>, at: u64) -> Result<u16> {
        let (entries, max, own) = (get16(node, 2), get16(node, 4), get16(node, 6));
        if get16(node, 0) != MAGIC {
            return Err(self.bad("a node has the wrong magic", at));
        }
        if max > room || max == 0 || entries > max {
            return Err(self.bad("a node has more entries than room", at));
        }
        if own > DEPTH_MAX || depth.is_some_and(|depth| depth != own) {
            return Err(self.bad("a node has the wrong depth", at));
        }
        if entries == 0 && (own > 0 || depth.is_some()) {
            return Err(self.bad("a node is empty", at));
        }
        Ok(own)
    }

    fn node(
        &mut self,
        node: &[u8],
        depth: u16,
        at: u64,
        key: u32,
        extents: &mut Extents,
        index: &mut [Vec<u64>],
    ) -> Result<()> {
        let entries = usize::from(get16(node, 2));
        if depth == 0 {
            let leaf = self.leaf(node, entries, at, key)?;
            let ino = self.ino;
            return extents.push_checked(leaf, &|| format!("inode {ino}, block {at}"));
        }
        let children = node[HEADER..].chunks_exact(ENTRY).take(entries);
        children.clone().map(child_of).filter(|child| (self.allowed)(*child, 1)).for_each(self.soon);
        for entry in children {
            let child = child_of(entry);
            if !(self.allowed)(child, 1) {
                return Err(self.bad("a node lies outside the file area", child));
            }
            if depth > 1 {
                index[usize::from(depth) - 2].push(child);
            }
            let bytes = (self.read)(child)?;
            self.check_sum(&bytes, child)?;
            self.header(&bytes, node_entries(self.block_bytes), Some(depth - 1), child)?;
            self.node(&bytes, depth - 1, child, get32(entry, 0), extents, index)?;
        }
        Ok(())
    }

    fn check_sum(&self, node: &[u8], at: u64) -> Result<()> {
        let Some(seed) = self.seed else { return Ok(()) };
        let tail = HEADER + ENTRY * usize::from(get16(node, 4));
        let holds = tail + 4 <= node.len() && crc32c_raw(seed, &node[..tail]) == get32(node, tail);
        if holds { Ok(()) } else { Err(self.bad("a node's checksum is wrong", at)) }
    }

    fn leaf(&self, node: &[u8], entries: usize, at: u64, key: u32) -> Result<Leaf> {
        let mut leaf = Leaf { node: at, key, ..Leaf::default() };
        for entry in node[HEADER..].chunks_exact(ENTRY).take(entries) {
            let coded = u32::from(get16(entry, 4));
            let unwritten = coded > EXTENT_MAX;
            let len = if unwritten { coded - EXTENT_MAX } else { coded };
            let start = u64::from(get32(entry, 8)) | u64::from(get16(entry, 6)) << 32;
            if !(self.allowed)(start, u64::from(len)) {
                return Err(self.bad("an extent lies outside the file area", start));
            }
            leaf.extents.push(Extent::new(get32(entry, 0), start, len, unwritten));
        }
        Ok(leaf)
    }
}

fn put_header(node: &mut [u8], entries: usize, max: usize, depth: usize) {
    put16(node, 0, MAGIC);
    put16(node, 2, entries as u16);
    put16(node, 4, max as u16);
    put16(node, 6, depth as u16);
    put32(node, 8, 0);
}

fn put_extents(node: &mut [u8], extents: &[Extent]) {
    for (entry, extent) in node[HEADER..].chunks_exact_mut(ENTRY).zip(extents) {
        let coded = u32::from(extent.len) + if extent.unwritten { EXTENT_MAX } else { 0 };
        put32(entry, 0, extent.block);
        put16(entry, 4, coded as u16);
        put16(entry, 6, (extent.at >> 32) as u16);
        put32(entry, 8, extent.at as u32);
    }
}

fn put_index(node: &mut [u8], children: &[(u32, u64)]) {
    for (entry, (key, child)) in node[HEADER..].chunks_exact_mut(ENTRY).zip(children) {
        put32(entry, 0, *key);
        put32(entry, 4, *child as u32);
        put16(entry, 8, (*child >> 32) as u16);
        put16(entry, 10, 0);
    }
}

/// Writes a tree: `root` gets the 60 bytes of the inode, `put` every node block that changed.
pub(super) struct Writer<'a> {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// The inode's checksum seed, if nodes carry checksums.
    pub seed: Option<u32>,
    /// Takes a node's image.
    pub put: &'a mut dyn FnMut(u64, Vec<u8>),
}

impl Writer<'_> {
    /// Stores `extents`, whose nodes are all there, and marks it as unchanged.
    pub fn tree(&mut self, extents: &mut Extents, root: &mut [u8]) {
        root[..ROOT_BYTES].fill(0);
        if extents.is_flat() {
            let all = &extents.leaves[0].extents;
            put_header(root, all.len(), ROOT_ENTRIES, 0);
            put_extents(&mut root[..ROOT_BYTES], all);
            extents.leaves[0].changed = false;
            extents.index_changed = false;
            return;
        }
        let mut level: Vec<(u32, u64)> = Vec::with_capacity(extents.leaves.len());
        for leaf in &mut extents.leaves {
            let key = leaf.extents.first().map_or(0, |extent| extent.block);
            extents.index_changed |= key != leaf.key;
            leaf.key = key;
            level.push((key, leaf.node));
            if std::mem::take(&mut leaf.changed) {
                let mut node = self.blank(leaf.extents.len(), 0);
                put_extents(&mut node, &leaf.extents);
                self.store(leaf.node, node);
            }
        }
        let changed = std::mem::take(&mut extents.index_changed);
        let mut nodes = extents.index.iter().copied();
        let mut depth = 1;
        while level.len() > ROOT_ENTRIES {
            level = self.level(&level, depth, &mut nodes, changed);
            depth += 1;
        }
        put_header(root, level.len(), ROOT_ENTRIES, depth);
        put_index(&mut root[..ROOT_BYTES], &level);
    }

    /// Stores one level of the index and returns what the level above it lists.
    fn level(
        &mut self,
        below: &[(u32, u64)],
        depth: usize,
        nodes: &mut impl Iterator<Item = u64>,
        changed: bool,
    ) -> Vec<(u32, u64)> {
        let room = usize::from(node_entries(self.block_bytes));
        let mut above = Vec::with_capacity(below.len().div_ceil(room));
        for children in below.chunks(room) {
            let at = nodes.next().expect("an index node for every full level");
            above.push((children[0].0, at));
            if changed {
                let mut node = self.blank(children.len(), depth);
                put_index(&mut node, children);
                self.store(at, node);
            }
        }
        above
    }

    fn blank(&self, entries: usize, depth: usize) -> Vec<u8> {
        let mut node = vec![0; self.block_bytes as usize];
        put_header(&mut node, entries, usize::from(node_entries(self.block_bytes)), depth);
        node
    }

    fn store(&mut self, at: u64, mut node: Vec<u8>) {
        if let Some(seed) = self.seed {
            let tail = HEADER + ENTRY * usize::from(node_entries(self.block_bytes));
            let sum = crc32c_raw(seed, &node[..tail]);
            put32(&mut node, tail, sum);
        }
        (self.put)(at, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn write(extents: &mut Extents, disk: &mut HashMap<u64, Vec<u8>>) -> (Vec<u8>, usize) {
        let (mut root, mut count) = (vec![0; ROOT_BYTES], 0);
        let mut put = |at, node| {
            count += 1;
            disk.insert(at, node);
        };
        Writer { block_bytes: 1024, seed: Some(5), put: &mut put }.tree(extents, &mut root);
        (root, count)
    }

    fn read(root: &[u8], disk: &HashMap<u64, Vec<u8>>) -> Result<Extents> {
        let mut fetch = |at| disk.get(&at).map(|node| node.clone().into()).ok_or(Error::NotFound);
        let allowed = |at: u64, len: u64| at > 10 && at + len < 1 << 48;
        Reader {
            block_bytes: 1024,
            seed: Some(5),
            ino: 12,
            read: &mut fetch,
            soon: &|_| (),
            allowed: &allowed,
        }
        .tree(root)
    }

    fn tree(count: u32) -> Extents {
        let mut extents = Extents::new(node_entries(1024));
        for i in 0..count {
            extents.insert(Extent::new(i * 3, u64::from(i) * 5 + (1 << 33), 1 + i % 2, i % 7 == 0));
        }
        for node in 0..extents.missing_nodes() {
            extents.give_node(1000 + node as u64);
        }
        extents
    }

    #[test]
    fn trees_of_every_depth_come_back_as_they_were_written() {
        for count in [0, 1, 4, 5, 84, 85, 400, 3000, 40_000] {
            let mut extents = tree(count);
            let mut disk = HashMap::new();
            let (root, _) = write(&mut extents, &mut disk);
            let again = read(&root, &disk).unwrap();
            assert!(extents.iter().eq(again.iter()), "{count}");
            assert!(extents.nodes().eq(again.nodes()), "{count}");
        }
    }

    #[test]
    fn a_tree_that_names_a_block_twice_is_refused() {
        for (count, what) in [(4, "an extent"), (400, "an extent"), (400, "a node"), (3000, "a node")] {
            let mut extents = tree(count);
            let first = match what {
                "a node" => extents.nodes().last().unwrap(),
                _ => extents.iter().nth(1).unwrap().at,
            };
            let leaf = extents.leaves.last_mut().unwrap();
            leaf.extents.last_mut().unwrap().at = first;
            let mut disk = HashMap::new();
            let (root, _) = write(&mut extents, &mut disk);
            let error = read(&root, &disk).unwrap_err().to_string();
            assert!(error.contains("lie in one block"), "{count}, {what}: {error}");
        }
    }

    #[test]
    fn only_what_changed_is_written_again() {
        let mut extents = tree(3000);
        let mut disk = HashMap::new();
        write(&mut extents, &mut disk);
        assert_eq!(write(&mut extents, &mut disk).1, 0);
        extents.write(588, 589);
        assert_eq!(write(&mut extents, &mut disk).1, 1);
    }

    #[test]
    fn no_flipped_bit_of_a_node_goes_unseen_and_none_panics() {
        let mut extents = tree(400);
        let mut disk = HashMap::new();
        let (root, _) = write(&mut extents, &mut disk);
        for bit in (0..8 * 1024).step_by(13) {
            let mut torn = disk.clone();
            torn.get_mut(&1002).unwrap()[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&root, &torn).is_err(), "bit {bit}");
        }
        for bit in 0..8 * ROOT_BYTES {
            let mut torn = root.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&torn, &disk);
        }
    }
}
