//! What of an inode is on the SSD, for inodes that are not said by their slot alone.
//!
//! Nodes are numbered and lie in blocks of [`BLOCK_NODES`], so that nothing moves when there are more of them. A
//! number that was given back is the next to be given out; when none is in use, all blocks go.

use super::pieces::Pieces;

/// Nodes in a block.
const BLOCK_NODES: usize = 63;

/// Bytes of a node in memory.
pub(super) const NODE_HEAP: usize = size_of::<Option<Node>>();

/// One inode that is not said by its slot alone.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) ino: u64,
    pub(super) pieces: Pieces,
    /// The slot with the duplicated inode.
    pub(super) head: u32,
    /// A slot of it that had room when last looked at.
    pub(super) room: u32,
}

/// See the file's documentation.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    #[expect(clippy::vec_box, reason = "a vector that grows moves pointers, not blocks")]
    blocks: Vec<Box<[Option<Node>; BLOCK_NODES]>>,
    free: Vec<u32>,
    /// Numbers given out so far.
    count: u32,
}

impl Nodes {
    /// Bytes on the heap, but for pieces.
    pub(super) fn heap_bytes(&self) -> usize {
        self.blocks.len() * BLOCK_NODES * NODE_HEAP + self.blocks.capacity() * 8 + self.free.capacity() * 4
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count as usize - self.free.len()
    }

    pub(super) fn get(&self, number: u32) -> Option<&Node> {
        let number = number as usize;
        self.blocks.get(number / BLOCK_NODES)?[number % BLOCK_NODES].as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Node> {
        let number = number as usize;
        self.blocks.get_mut(number / BLOCK_NODES)?[number % BLOCK_NODES].as_mut()
    }

    /// All, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.blocks.iter().flat_map(|block| block.iter()).flatten()
    }

    /// Adds one; its number.
    pub(super) fn add(&mut self, node: Node) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        let at = number as usize;
        if at / BLOCK_NODES == self.blocks.len() {
            self.blocks.push(Box::new([const { None }; BLOCK_NODES]));
        }
        self.blocks[at / BLOCK_NODES][at % BLOCK_NODES] = Some(node);
        number
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, number: u32) {
        let at = number as usize;
        self.blocks[at / BLOCK_NODES][at % BLOCK_NODES] = None;
        self.free.push(number);
        if self.len() == 0 {
            *self = Nodes::default();
        }
    }
}
