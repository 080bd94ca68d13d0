//! Partly written pages that wait for the rest, so that a page is not programmed for every few bytes.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// When a page was last used, and what is in it.
type Cached = (u64, Box<[u8]>);

#[derive(Debug, Default)]
pub(super) struct Cache {
    pages: BTreeMap<(u32, u32), Cached>,
    uses: u64,
}

impl Cache {
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    pub fn get(&self, id: u32, index: u32) -> Option<&[u8]> {
        self.pages.get(&(id, index)).map(|(_, bytes)| &bytes[..])
    }

    pub fn get_mut(&mut self, id: u32, index: u32) -> Option<&mut [u8]> {
        self.uses += 1;
        let (used, bytes) = self.pages.get_mut(&(id, index))?;
        *used = self.uses;
        Some(bytes)
    }

    pub fn put(&mut self, id: u32, index: u32, bytes: Box<[u8]>) {
        self.uses += 1;
        self.pages.insert((id, index), (self.uses, bytes));
    }

    pub fn take(&mut self, id: u32, index: u32) -> Option<Box<[u8]>> {
        self.pages.remove(&(id, index)).map(|(_, bytes)| bytes)
    }

    /// The page that was not used for longest.
    pub fn oldest(&self) -> Option<(u32, u32)> {
        self.pages.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key)
    }

    /// The indices of an object's pages from `from` on, in order.
    pub fn indices(&self, id: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        self.pages.range((id, from)..=(id, u32::MAX)).map(|((_, index), _)| *index)
    }

    /// Drops an object's pages from `from` on.
    pub fn truncate(&mut self, id: u32, from: u32) {
        let gone: Vec<u32> = self.indices(id, from).collect();
        for index in gone {
            self.pages.remove(&(id, index));
        }
    }

    /// Objects with pages here, in order.
    pub fn objects(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.pages.keys().map(|(id, _)| *id).collect();
        ids.dedup();
        ids
    }
}
