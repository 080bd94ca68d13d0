//! Memory in pages of one size, for what lives long and grows: what is counted is what is resident.
//!
//! The map of a large SSD and its cache live side by side for days. On the heap of the C library every chunk the cache
//! gives back leaves a hole between chunks of the map that only something of its size fills, and tables that double
//! leave holes that nothing fills: ten million files took 242 MB of a heap of 370. Here everything is a page of 4 KiB
//! or an eighth of one, so a page that one structure gives back is as good as any other for the next, and the pages in
//! use at the highest count so far are all that the kernel ever gave.
//!
//! Pages come from regions of [`REGION_BYTES`] that are mapped as a whole and touched page by page, the lowest
//! first; so what is free gathers in the last regions, which are given back to the kernel when they are empty (all but
//! one). What is taken is zeros.
//!
//! A [`Page`] is a box of a type that zeros are a value of. All pages of the process are in one pool, as boxes are in one
//! heap: a page is owned by whoever holds it, and nothing else is shared.
//!
//! Cost: taking and giving O(1) but for a search over the 512 pages of one region; a lock that is held for that.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use zerocopy::FromZeros;

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;

/// Bytes of an eighth of a page, the least that is handed out.
const CELL_BYTES: usize = PAGE_BYTES / 8;

const REGION_BYTES: usize = 2 << 20;

const REGION_PAGES: usize = REGION_BYTES / PAGE_BYTES;

/// A page of which all cells are free.
const FREE: u8 = 0xff;

/// A value in a page, or in an eighth of one if it is no larger. As a `Box`, of memory that is counted.
pub(super) struct Page<T: FromZeros>(NonNull<T>);

// SAFETY: a page is owned by its holder alone, as a box is.
unsafe impl<T: FromZeros + Send> Send for Page<T> {}
// SAFETY: a shared page gives out shared references only, as a box does.
unsafe impl<T: FromZeros + Sync> Sync for Page<T> {}

impl<T: FromZeros> Page<T> {
    /// Bytes that each takes.
    pub(super) const BYTES: usize = {
        assert!(
            size_of::<T>() <= PAGE_BYTES && align_of::<T>() <= CELL_BYTES && !std::mem::needs_drop::<T>()
        );
        if size_of::<T>() <= CELL_BYTES { CELL_BYTES } else { PAGE_BYTES }
    };

    /// A new one, all zeros.
    pub(super) fn zeroed() -> Page<T> {
        let place: NonNull<T> = POOL.lock().take(Self::BYTES == CELL_BYTES).cast();
        // SAFETY: the place has room for a T, is aligned for one (both checked in BYTES), is mapped until it is given
        // back, and nobody else's. Zeros are a value of T.
        unsafe { place.as_ptr().cast::<u8>().write_bytes(0, size_of::<T>()) };
        Page(place)
    }
}

impl<T: FromZeros> Drop for Page<T> {
    fn drop(&mut self) {
        POOL.lock().give(self.0.cast(), Self::BYTES == CELL_BYTES);
    }
}

impl<T: FromZeros> Deref for Page<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: see `zeroed`: the place holds a value of T and is this page's until it is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl<T: FromZeros> DerefMut for Page<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: see `deref`; and this page is borrowed mutably.
        unsafe { self.0.as_mut() }
    }
}

impl AsRef<[u8]> for Page<[u8; PAGE_BYTES]> {
    fn as_ref(&self) -> &[u8] {
        &self[..]
    }
}

impl<T: FromZeros> std::fmt::Debug for Page<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Page({:p})", self.0)
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

/// Memory mapped as a whole.
struct Region {
    start: NonNull<u8>,
    /// For each page, a bit for each of its cells that is free.
    free: Box<[u8; REGION_PAGES]>,
    /// Pages with a cell in use.
    used: usize,
}

// SAFETY: the pool owns the mapping; its address means the same on every thread.
unsafe impl Send for Region {}

impl Region {
    fn map() -> Region {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that is there.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), REGION_BYTES, protection, MapFlags::PRIVATE) };
        let Some(start) = mapped.ok().and_then(|start| NonNull::new(start.cast())) else {
            // As for any allocation: there is nothing to go on with.
            let layout = std::alloc::Layout::new::<[u8; REGION_BYTES]>();
            std::alloc::handle_alloc_error(layout)
        };
        Region { start, free: Box::new([FREE; REGION_PAGES]), used: 0 }
    }

    fn unmap(self) {
        // SAFETY: no page of it is in use, and nothing else knows of it.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), REGION_BYTES) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }

    fn place(&self, page: usize, cell: usize) -> NonNull<u8> {
        // SAFETY: both are numbers of this region's, so the place is inside the mapping.
        unsafe { self.start.add(page * PAGE_BYTES + cell * CELL_BYTES) }
    }
}

/// All regions of the process.
struct Pool {
    /// By number; the place of one that was given back is free for the next.
    regions: Vec<Option<Region>>,
    /// The number of the region that begins at an address.
    by_start: BTreeMap<usize, usize>,
    /// No region before this has a free page.
    open: usize,
    /// Pages of which some cells are in use, and some free: region and page.
    partial: BTreeSet<(usize, usize)>,
    /// Regions without a page in use.
    empty: usize,
}

impl Pool {
    const fn new() -> Pool {
        Pool { regions: Vec::new(), by_start: BTreeMap::new(), open: 0, partial: BTreeSet::new(), empty: 0 }
    }

    /// Takes a page, or a cell of one.
    fn take(&mut self, cell: bool) -> NonNull<u8> {
        let (number, page) = match self.partial.first().filter(|_| cell) {
            Some(found) => *found,
            None => self.free_page(),
        };
        let Some(region) = self.regions[number].as_mut() else { unreachable!("a region with a free page") };
        if region.free[page] == FREE {
            self.empty -= usize::from(region.used == 0);
            region.used += 1;
        }
        if !cell {
            region.free[page] = 0;
            return region.place(page, 0);
        }
        let index = region.free[page].trailing_zeros() as usize;
        region.free[page] &= !(1 << index);
        let full = region.free[page] == 0;
        let place = region.place(page, index);
        if full {
            self.partial.remove(&(number, page));
        } else {
            self.partial.insert((number, page));
        }
        place
    }

    /// A page that is wholly free, in the first region that has one.
    fn free_page(&mut self) -> (usize, usize) {
        while let Some(region) = self.regions.get(self.open) {
            let room = region.as_ref().filter(|region| region.used < REGION_PAGES);
            if let Some(page) = room.and_then(|region| memchr::memchr(FREE, &region.free[..])) {
                return (self.open, page);
            }
            self.open += 1;
        }
        let region = Region::map();
        let vacant = self.regions.iter().position(Option::is_none);
        let number = vacant.unwrap_or(self.regions.len());
        self.by_start.insert(region.start.addr().get(), number);
        match self.regions.get_mut(number) {
            Some(place) => *place = Some(region),
            None => self.regions.push(Some(region)),
        }
        self.empty += 1;
        self.open = number;
        (number, 0)
    }

    /// Gives back what was taken.
    fn give(&mut self, place: NonNull<u8>, cell: bool) {
        let Some((number, page, index)) = self.find(place) else { unreachable!("a page of a region") };
        let Some(region) = self.regions[number].as_mut() else { unreachable!("a region with a page in use") };
        region.free[page] = if cell { region.free[page] | 1 << index } else { FREE };
        if region.free[page] != FREE {
            self.partial.insert((number, page));
            return;
        }
        self.partial.remove(&(number, page));
        self.open = self.open.min(number);
        region.used -= 1;
        if region.used == 0 {
            self.emptied(number);
        }
    }

    /// The region, page and cell of a place.
    fn find(&self, place: NonNull<u8>) -> Option<(usize, usize, usize)> {
        let at = place.addr().get();
        let (start, number) = self.by_start.range(..=at).next_back()?;
        Some((*number, (at - start) / PAGE_BYTES, (at - start) % PAGE_BYTES / CELL_BYTES))
    }

    /// A region has no page in use any more: one such is kept.
    fn emptied(&mut self, number: usize) {
        self.empty += 1;
        if self.empty > 1
            && let Some(region) = self.regions[number].take()
        {
            self.by_start.remove(&region.start.addr().get());
            self.empty -= 1;
            region.unmap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    #[test]
    fn pages_and_cells_are_zeros_and_nobody_elses_whatever_was_given_back_before() {
        let mut random = SmallRng::seed_from_u64(7);
        let (mut pages, mut cells) =
            (Vec::<(u64, Page<[u64; 512]>)>::new(), Vec::<(u64, Page<[u64; 64]>)>::new());
        for step in 1..20_000u64 {
            match random.random_range(0..5) {
                0 => {
                    let mut page = Page::<[u64; 512]>::zeroed();
                    assert!(page.iter().all(|word| *word == 0));
                    page.fill(step);
                    pages.push((step, page));
                }
                1 | 2 => {
                    let mut cell = Page::<[u64; 64]>::zeroed();
                    assert!(cell.iter().all(|word| *word == 0));
                    cell.fill(step);
                    cells.push((step, cell));
                }
                3 if !pages.is_empty() => {
                    let (step, page) = pages.swap_remove(random.random_range(0..pages.len()));
                    assert!(page.iter().all(|word| *word == step));
                }
                _ if !cells.is_empty() => {
                    let (step, cell) = cells.swap_remove(random.random_range(0..cells.len()));
                    assert!(cell.iter().all(|word| *word == step));
                }
                _ => {}
            }
        }
        assert!(pages.iter().all(|(step, page)| page.iter().all(|word| word == step)));
        assert!(cells.iter().all(|(step, cell)| cell.iter().all(|word| word == step)));
    }

    #[test]
    fn what_is_given_back_is_taken_again_before_anything_new_and_empty_regions_go() {
        let mut pool = Pool::new();
        let whole: Vec<_> = (0..REGION_PAGES * 3).map(|_| pool.take(false)).collect();
        assert_eq!((pool.regions.len(), pool.empty), (3, 0));
        whole.iter().skip(1).step_by(2).for_each(|page| pool.give(*page, false));
        let cells: Vec<_> = (0..REGION_PAGES * 3 / 2 * 8).map(|_| pool.take(true)).collect();
        let more = pool.take(true);
        assert_eq!(
            pool.regions.len(),
            4,
            "cells filled all pages that were given back, and one more was needed"
        );
        pool.give(more, true);
        cells.iter().for_each(|cell| pool.give(*cell, true));
        whole.iter().step_by(2).for_each(|page| pool.give(*page, false));
        assert_eq!((pool.regions.iter().flatten().count(), pool.empty, pool.partial.len()), (1, 1, 0));
        pool.regions.into_iter().flatten().for_each(Region::unmap);
    }
}
