//! The inode cache: inodes in memory, found by number.
//!
//! An inode that was changed, whose last image is not on the disk yet, or that is an orphan stays; others
//! make room by second chance, as in the buffer cache.

use super::inode::Inode;
use bimetal_base::units::Ino;
use rustc_hash::FxHashMap;

/// Slots one call of [`Inodes::shrink`] looks at, at most: many may be in use, and it is called often.
const STEPS_MAX: usize = 64;

/// A cached inode.
pub(super) struct CachedInode {
    pub inode: Inode,
    pub dirty: bool,
    /// On the orphan list.
    pub orphan: bool,
    /// It was cut, and not all past its end is free yet.
    pub being_cut: bool,
    used: bool,
    /// The transaction its last image went into.
    frozen: u64,
}

/// Cached inodes.
pub(super) struct Inodes {
    index: FxHashMap<Ino, u32>,
    slots: Vec<Option<CachedInode>>,
    free: Vec<u32>,
    dirty: Vec<u32>,
    capacity: usize,
    hand: usize,
}

impl Inodes {
    /// An empty cache of at most `capacity` idle inodes.
    pub fn new(capacity: usize) -> Inodes {
        Inodes {
            index: FxHashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            capacity,
            hand: 0,
        }
    }

    /// Where an inode is cached.
    pub fn find(&self, ino: Ino) -> Option<u32> {
        self.index.get(&ino).copied()
    }

    /// The entry in a slot that [`Inodes::find`] or [`Inodes::insert`] gave.
    pub fn entry(&mut self, slot: u32) -> &mut CachedInode {
        let entry = self.slots[slot as usize].as_mut().expect("a slot in use");
        entry.used = true;
        entry
    }

    /// Adds an inode that is not cached, or replaces it.
    pub fn insert(&mut self, inode: Inode) -> u32 {
        self.remove(inode.ino);
        let ino = inode.ino;
        let (dirty, orphan, being_cut) = (false, false, false);
        let entry = Some(CachedInode { inode, dirty, orphan, being_cut, used: true, frozen: 0 });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = entry;
                slot
            }
            None => {
                self.slots.push(entry);
                self.slots.len() as u32 - 1
            }
        };
        self.index.insert(ino, slot);
        slot
    }

    /// Marks an inode as changed; `true` if it was not before.
    pub fn mark(&mut self, slot: u32) -> bool {
        let fresh = !std::mem::replace(&mut self.entry(slot).dirty, true);
        if fresh {
            self.dirty.push(slot);
        }
        fresh
    }

    /// Drops an inode, changed or not.
    pub fn remove(&mut self, ino: Ino) {
        if let Some(slot) = self.index.remove(&ino) {
            self.slots[slot as usize] = None;
            self.free.push(slot);
        }
    }

    /// Ends the set of changed inodes and hands out their slots.
    pub fn freeze(&mut self, tid: u64) -> Vec<u32> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|slot| match &mut self.slots[*slot as usize] {
            Some(entry) if entry.dirty => {
                entry.dirty = false;
                entry.frozen = tid;
                true
            }
            _ => false,
        });
        dirty
    }

    /// Makes room: idle inodes go, those not used for longest first.
    pub fn shrink(&mut self, committed: u64) {
        let mut steps = STEPS_MAX.min(2 * self.slots.len());
        while self.index.len() > self.capacity && steps > 0 {
            steps -= 1;
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(entry) = &mut self.slots[self.hand] else { continue };
            if entry.dirty || entry.orphan || entry.frozen > committed {
                continue;
            }
            if std::mem::take(&mut entry.used) {
                continue;
            }
            let ino = entry.inode.ino;
            self.remove(ino);
        }
    }
}
