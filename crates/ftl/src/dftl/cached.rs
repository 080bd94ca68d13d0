//! Map entries in memory, the one used least recently first to go.
//!
//! A list through an array, a hash table into it, and of each translation page the changed entries. Cost:
//! O(1) an operation.

use rustc_hash::FxHashMap;

/// No slot.
const END: u32 = u32::MAX;

struct Slot {
    page: u32,
    entry: u32,
    changed: bool,
    older: u32,
    younger: u32,
}

/// Cached entries.
pub(super) struct Cached {
    slots: Vec<Slot>,
    unused: Vec<u32>,
    index: FxHashMap<u32, u32>,
    /// The pages with changed entries of each translation page.
    changed: FxHashMap<u32, Vec<u32>>,
    /// Entries in a translation page.
    entries: u32,
    oldest: u32,
    youngest: u32,
}

impl Cached {
    /// None yet, of translation pages of so many entries.
    pub fn new(entries: u32) -> Cached {
        Cached {
            slots: Vec::new(),
            unused: Vec::new(),
            index: FxHashMap::default(),
            changed: FxHashMap::default(),
            entries,
            oldest: END,
            youngest: END,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// The entry of a page, if it is here; that is no use of it.
    pub fn peek(&self, page: u32) -> Option<u32> {
        self.index.get(&page).map(|slot| self.slots[*slot as usize].entry)
    }

    /// Uses the entry of a page; whether it is here.
    pub fn touch(&mut self, page: u32) -> bool {
        let Some(&slot) = self.index.get(&page) else { return false };
        if slot != self.youngest {
            self.unlink(slot);
            self.link(slot);
        }
        true
    }

    /// Adds the entry of a page that is not here, as used now.
    pub fn put(&mut self, page: u32, entry: u32) {
        let filled = Slot { page, entry, changed: false, older: END, younger: END };
        let slot = match self.unused.pop() {
            Some(slot) => {
                self.slots[slot as usize] = filled;
                slot
            }
            None => {
                self.slots.push(filled);
                self.slots.len() as u32 - 1
            }
        };
        self.index.insert(page, slot);
        self.link(slot);
    }

    /// Changes the entry of a page, if it is here; whether it is.
    pub fn change(&mut self, page: u32, entry: u32) -> bool {
        let Some(&slot) = self.index.get(&page) else { return false };
        let slot = &mut self.slots[slot as usize];
        let changes = std::mem::replace(&mut slot.entry, entry) != entry;
        if changes && !std::mem::replace(&mut slot.changed, true) {
            self.changed.entry(page / self.entries).or_default().push(page);
        }
        true
    }

    /// Drops the entry used least recently, if it was not changed; else its page.
    pub fn drop_oldest(&mut self) -> Result<(), u32> {
        let slot = self.oldest;
        let Some(&Slot { page, changed, .. }) = self.slots.get(slot as usize) else { return Ok(()) };
        if changed {
            return Err(page);
        }
        self.unlink(slot);
        self.index.remove(&page);
        self.unused.push(slot);
        Ok(())
    }

    /// The changed entries of a translation page, which now count as unchanged.
    pub fn clean(&mut self, translation: u32) -> Vec<(u32, u32)> {
        let changed = self.changed.remove(&translation).unwrap_or_default();
        let mut clean = |page: u32| {
            let slot = &mut self.slots[self.index[&page] as usize];
            slot.changed = false;
            (page, slot.entry)
        };
        changed.into_iter().map(&mut clean).collect()
    }

    fn link(&mut self, slot: u32) {
        let older = std::mem::replace(&mut self.youngest, slot);
        self.slots[slot as usize].older = older;
        self.slots[slot as usize].younger = END;
        match self.slots.get_mut(older as usize) {
            Some(older) => older.younger = slot,
            None => self.oldest = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, younger, .. } = self.slots[slot as usize];
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.younger = younger,
            None => self.oldest = younger,
        }
        match self.slots.get_mut(younger as usize) {
            Some(slot) => slot.older = older,
            None => self.youngest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_used_least_recently_goes_first_once_it_is_stored() {
        let mut cached = Cached::new(4);
        (0..4).for_each(|page| cached.put(page, 100 + page));
        assert!(cached.touch(0) && !cached.touch(9));
        assert!(cached.change(1, 7) && !cached.change(9, 7));
        assert_eq!(cached.drop_oldest(), Err(1), "changed");
        assert_eq!(cached.clean(0), [(1, 7)]);
        assert_eq!(cached.clean(0), []);
        for left in [[None, Some(102)], [None, None]] {
            cached.drop_oldest().unwrap();
            assert_eq!([cached.peek(1), cached.peek(2)], left);
        }
        assert_eq!(cached.len(), 2);
        cached.put(5, 105);
        assert!(
            [3, 0, 5].into_iter().all(|page| cached.drop_oldest().is_ok() && cached.peek(page).is_none())
        );
        assert_eq!((cached.drop_oldest(), cached.len()), (Ok(()), 0));
    }
}
