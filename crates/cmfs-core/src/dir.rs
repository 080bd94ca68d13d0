//! What is in a directory: the numbers of its entries, and once all names are loaded, where each name is.
//!
//! The table of names, if it is there, has every entry exactly once, under the key of the name it has now: an entry
//! is taken out before its name changes. Keys of 32 bits stand in the table, so that it is changed without a look at any name.

use alloc::collections::BTreeSet;
use hashbrown::HashTable;

/// The entries of a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dir {
    children: BTreeSet<u32>,
    subdirs: u32,
    names: Option<HashTable<(u32, u32)>>,
}

/// FNV-1a, folded.
pub(crate) fn key(name: &[u8]) -> u32 {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    (hash >> 32) as u32 ^ hash as u32
}

/// The table takes its bits from both ends.
fn spread(key: u32) -> u64 {
    u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Dir {
    /// Adds an entry; its name's key counts if names are loaded.
    pub fn insert(&mut self, entry: u32, key: u32, is_dir: bool) {
        if let Some(names) = &mut self.names {
            names.insert_unique(spread(key), (key, entry), |(key, _)| spread(*key));
        }
        self.children.insert(entry);
        self.subdirs += u32::from(is_dir);
    }

    pub fn remove(&mut self, entry: u32, key: u32, is_dir: bool) {
        if let Some(names) = &mut self.names
            && let Ok(found) = names.find_entry(spread(key), |(_, other)| *other == entry)
        {
            found.remove();
        }
        self.children.remove(&entry);
        self.subdirs = self.subdirs.saturating_sub(u32::from(is_dir));
    }

    /// The entry of a key whose name is the one.
    pub fn find(&self, key: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.names.as_ref()?.find(spread(key), |(other, id)| *other == key && is(*id));
        found.map(|(_, id)| *id)
    }

    pub fn has_names(&self) -> bool {
        self.names.is_some()
    }

    /// Takes the keys of all its names.
    pub fn load(&mut self, keys: impl ExactSizeIterator<Item = (u32, u32)>) {
        let mut names = HashTable::with_capacity(keys.len());
        for (key, id) in keys {
            names.insert_unique(spread(key), (key, id), |(key, _)| spread(*key));
        }
        self.names = Some(names);
    }

    /// Names are to be loaded again when they are asked for.
    pub fn forget_names(&mut self) {
        self.names = None;
    }

    pub fn contains(&self, entry: u32) -> bool {
        self.children.contains(&entry)
    }

    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// The entries from `from` on, in order.
    pub fn entries(&self, from: u32) -> impl Iterator<Item = u32> {
        self.children.range(from..).copied()
    }

    /// How many of them are directories.
    pub fn subdirs(&self) -> u32 {
        self.subdirs
    }
}
