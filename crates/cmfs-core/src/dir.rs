//! What is in a directory: the numbers of its entries, and once all names are loaded, where each name is.
//!
//! Where memory is bounded its contents may be left out: then it knows nothing of its entries, and is loaded again from
//! what all objects say they are in.
//!
//! The table of names, if it is there, has every entry exactly once, under the key of the name it has now: an entry
//! is taken out before its name changes. Keys of 32 bits stand in the table, so that it is changed without a look at any name.

use crate::sorted::Set;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// The entries of a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dir {
    /// Its entries are not known.
    unloaded: bool,
    children: Set<u32>,
    subdirs: u32,
    names: Option<HashTable<(u32, u32)>>,
}

/// Bytes of an entry without its name: a number in a vector that is being made larger.
const CHILD_BYTES: usize = 12;
/// Bytes of an entry with its name's key, in a table that was just made larger.
pub(crate) const ENTRY_BYTES: usize = CHILD_BYTES + 20;

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
    /// Whether its entries are known.
    pub fn is_loaded(&self) -> bool {
        !self.unloaded
    }

    /// Its entries are to be loaded again when they are asked for.
    pub fn unload(&mut self) {
        *self = Dir { unloaded: true, ..Dir::default() };
    }

    /// Takes its entries, and which of them are directories.
    pub fn load_entries(&mut self, entries: impl Iterator<Item = (u32, bool)>) {
        *self = Dir::default();
        entries.for_each(|(entry, is_dir)| self.insert(entry, 0, is_dir));
    }

    /// Bytes beside those of the directory itself.
    pub fn heap_bytes(&self) -> usize {
        self.children.heap_bytes() + self.names.as_ref().map_or(0, HashTable::allocation_size)
    }

    /// Adds an entry; its name's key counts if names are loaded.
    pub fn insert(&mut self, entry: u32, key: u32, is_dir: bool) {
        if self.unloaded {
            return;
        }
        if let Some(names) = &mut self.names {
            names.insert_unique(spread(key), (key, entry), |(key, _)| spread(*key));
        }
        self.children.add(entry);
        self.subdirs += u32::from(is_dir);
    }

    pub fn remove(&mut self, entry: u32, key: u32, is_dir: bool) {
        if let Some(names) = &mut self.names
            && let Ok(found) = names.find_entry(spread(key), |(_, other)| *other == entry)
        {
            found.remove();
        }
        if self.children.remove(&entry).is_some() {
            self.subdirs = self.subdirs.saturating_sub(u32::from(is_dir));
        }
    }

    /// The entries of a key: one, but for chance.
    pub fn find(&self, key: u32) -> Vec<u32> {
        let found = self.names.iter().flat_map(|names| names.iter_hash(spread(key)));
        found.filter(|(other, _)| *other == key).map(|(_, id)| *id).collect()
    }

    /// The keys of all names, and whose they are, if names are loaded.
    pub fn keys(&self) -> Vec<(u32, u32)> {
        self.names.iter().flatten().copied().collect()
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
        self.children.contains_key(&entry)
    }

    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// The entries from `from` on, in order.
    pub fn entries(&self, from: u32) -> impl Iterator<Item = u32> {
        self.children.range(from..).map(|(child, ())| *child)
    }

    /// How many of them are directories.
    pub fn subdirs(&self) -> u32 {
        self.subdirs
    }
}
