//! What a rescue knows of an inode.

use super::super::record::When;
use bimetal_vfs::Kind;
use std::collections::BTreeMap;

/// An inode as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub kind: Option<Kind>,
    pub size: u64,
    pub perm: Option<u16>,
    pub owner: Option<(u32, u32)>,
    pub atime: Option<When>,
    pub mtime: Option<When>,
    pub target: Vec<u8>,
    pub names: Vec<(u64, Vec<u8>)>,
    /// Extended attributes that the log has.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// It has flags of `chattr`.
    pub flagged: bool,
    /// The log has its making: all of its attributes are known.
    pub made: bool,
    /// The disk never had it: what of its contents nothing is said of is zeros.
    pub born: bool,
    /// Bytes that are known, by where they begin: where they end.
    spans: BTreeMap<u64, u64>,
    /// The log says that it was removed.
    pub gone: bool,
    /// Why something of it could not be written.
    pub troubles: Vec<String>,
}

impl Node {
    /// One whose making the log has; `born` if the disk never had it.
    pub fn made(born: bool) -> Node {
        let mut node = Node { made: true, born, ..Node::default() };
        if born {
            node.cover(0, u64::MAX);
        }
        node
    }

    /// These bytes are known.
    pub fn cover(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to);
        while let Some((&start, &end)) = self.spans.range(..=to).next_back().filter(|(_, end)| **end >= from)
        {
            self.spans.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.spans.insert(from, to);
    }

    /// These bytes are not known any more.
    pub fn uncover(&mut self, from: u64, to: u64) {
        let spans = self.spans.range(..to).rev().take_while(|(_, end)| **end > from);
        for (start, end) in spans.map(|(start, end)| (*start, *end)).collect::<Vec<_>>() {
            self.spans.remove(&start);
            if start < from {
                self.spans.insert(start, from);
            }
            if end > to {
                self.spans.insert(to, end);
            }
        }
    }

    /// It ends here.
    pub fn cut(&mut self, size: u64) {
        self.spans.split_off(&size);
        if let Some((_, end)) = self.spans.range_mut(..size).next_back() {
            *end = (*end).min(size);
        }
        if self.born {
            self.cover(size, u64::MAX);
        }
    }

    /// Bytes that nothing is known of.
    pub fn missing(&self) -> u64 {
        let known = self.spans.iter().map(|(from, to)| to.min(&self.size).saturating_sub(*from));
        self.size.saturating_sub(known.sum())
    }

    /// Something of it could not be written. The first reason is kept: what follows has the same, most often.
    pub fn trouble(&mut self, why: impl ToString) {
        if self.troubles.is_empty() {
            self.troubles.push(why.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_file_is_what_was_covered_and_not_uncovered_since() {
        let mut node = Node { size: 100, ..Node::default() };
        node.cover(10, 20);
        node.cover(30, 40);
        node.cover(20, 30);
        assert_eq!((node.missing(), node.spans.len()), (70, 1));
        node.uncover(15, 35);
        assert_eq!(node.missing(), 90);
        node.uncover(0, 100);
        assert_eq!(node.missing(), 100);
        let mut node = Node { size: 100, ..Node::made(true) };
        node.uncover(50, 60);
        assert_eq!(node.missing(), 10);
        node.cut(55);
        node.size = 200;
        assert_eq!(node.missing(), 5);
    }
}
