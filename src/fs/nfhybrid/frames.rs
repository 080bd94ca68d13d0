//! File data in memory: frames of 4 KiB that are dirty, or frozen on their way to the media.
//!
//! A frame is mutable while it is dirty. Freezing turns it into [`Bytes`] that any number of device writes
//! share without a copy; a write to a frozen frame starts a new dirty one. The memory goes back to a pool
//! when the last user drops it, because the first touch of fresh memory costs more than the copy into it.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Size of a frame in bytes: the kernel's page.
pub const FRAME: usize = 4096;

#[repr(C, align(4096))]
struct Page([u8; FRAME]);

/// Pages kept for reuse.
pub struct Pool {
    free: Mutex<Vec<Box<Page>>>,
    keep: usize,
}

impl Pool {
    /// A pool that keeps up to `keep` idle pages and starts with `warm` of them, touched.
    pub fn new(keep: usize, warm: usize) -> Arc<Pool> {
        let free = (0..warm.min(keep)).map(|_| Box::new(Page([0; FRAME]))).collect();
        Arc::new(Pool { free: Mutex::new(free), keep })
    }

    /// A page with unspecified contents.
    fn page(self: &Arc<Pool>) -> Pooled {
        let page = self.free.lock().pop().unwrap_or_else(|| Box::new(Page([0; FRAME])));
        Pooled { page: Some(page), pool: self.clone() }
    }

    fn give(&self, page: Box<Page>) {
        let mut free = self.free.lock();
        if free.len() < self.keep {
            free.push(page);
        }
    }
}

/// A page that returns to its pool.
struct Pooled {
    page: Option<Box<Page>>,
    pool: Arc<Pool>,
}

impl Pooled {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.page.as_mut().expect("a pooled page is there until it is dropped").0
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        self.page.as_ref().map_or(&[], |page| &page.0)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(page) = self.page.take() {
            self.pool.give(page);
        }
    }
}

enum Memory {
    /// Ours alone, writable.
    Own(Pooled),
    /// Device writes may still read it; copied before the next change.
    Shared(Bytes),
}

/// One dirty frame of a file.
pub struct Frame {
    memory: Memory,
    pool: Arc<Pool>,
    /// File-system blocks promised to it since it was made dirty, not yet allocated.
    pub reserved: u32,
    /// Its blocks that hold live data and keep their place; the others get one when it is frozen.
    pub live: u32,
    /// All its blocks get new places: those it has were promised others.
    pub moves: bool,
    /// The SSD's log holds this content: nothing to do at the next fsync.
    pub logged: bool,
    /// The SSD's data section holds this content: nothing to place at the next freeze.
    pub placed: bool,
}

impl Frame {
    /// A frame of zeros.
    pub fn zeroed(pool: &Arc<Pool>) -> Frame {
        let mut frame = Frame::unset(pool);
        frame.bytes_mut().fill(0);
        frame
    }

    /// A frame whose contents the caller sets in full.
    pub fn unset(pool: &Arc<Pool>) -> Frame {
        let memory = Memory::Own(pool.page());
        Frame { memory, pool: pool.clone(), reserved: 0, live: 0, moves: false, logged: false, placed: false }
    }

    /// A frame that starts as a copy of `old`, which is [`FRAME`] bytes.
    pub fn copy_of(pool: &Arc<Pool>, old: &[u8]) -> Frame {
        let mut frame = Frame::unset(pool);
        frame.bytes_mut().copy_from_slice(old);
        frame
    }

    /// The contents.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(page) => page.as_ref(),
            Memory::Shared(bytes) => bytes,
        }
    }

    /// The contents, to change; what was said of the old contents no longer holds.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.logged = false;
        self.placed = false;
        if let Memory::Shared(bytes) = &self.memory {
            let mut page = self.pool.page();
            page.bytes_mut().copy_from_slice(bytes);
            self.memory = Memory::Own(page);
        }
        match &mut self.memory {
            Memory::Own(page) => page.bytes_mut(),
            Memory::Shared(_) => unreachable!("a shared page was just replaced by a copy"),
        }
    }

    /// The contents for a device write that may outlast the next change.
    pub fn share(&mut self) -> Bytes {
        if let Memory::Shared(bytes) = &self.memory {
            return bytes.clone();
        }
        let nothing = Memory::Shared(Bytes::new());
        let bytes = match std::mem::replace(&mut self.memory, nothing) {
            Memory::Own(page) => Bytes::from_owner(page),
            Memory::Shared(bytes) => bytes,
        };
        self.memory = Memory::Shared(bytes.clone());
        bytes
    }

    /// Ends the frame's dirty life.
    pub fn freeze(mut self) -> Frozen {
        let Frame { moves, logged, placed, .. } = self;
        Frozen { bytes: self.share(), moves, logged, placed, bound: false }
    }
}

/// A frame on its way to the media; contents fixed.
#[derive(Clone)]
pub struct Frozen {
    /// The contents.
    pub bytes: Bytes,
    /// As in [`Frame::moves`].
    pub moves: bool,
    /// As in [`Frame::logged`].
    pub logged: bool,
    /// As in [`Frame::placed`].
    pub placed: bool,
    /// The cycle it is in put it into a data section, and bound it there.
    pub bound: bool,
}

/// The dirty frames of a file, by frame number (offset / 4096).
pub type Frames = BTreeMap<u64, Frame>;

/// The runs of consecutive keys in an ascending sequence: `(first, count)`.
pub fn runs(keys: impl IntoIterator<Item = u64>) -> impl Iterator<Item = (u64, u64)> {
    let mut keys = keys.into_iter().peekable();
    std::iter::from_fn(move || {
        let first = keys.next()?;
        let mut count = 1;
        while keys.next_if_eq(&(first + count)).is_some() {
            count += 1;
        }
        Some((first, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_neighbours_and_nothing_else() {
        let found: Vec<_> = runs([1, 2, 3, 7, 9, 10]).collect();
        assert_eq!(found, [(1, 3), (7, 1), (9, 2)]);
        assert_eq!(runs([]).count(), 0);
    }

    #[test]
    fn a_frozen_frame_keeps_its_contents_and_returns_its_memory() {
        let pool = Pool::new(4, 1);
        let mut frame = Frame::zeroed(&pool);
        frame.bytes_mut()[0] = 7;
        let frozen = frame.freeze();
        let other = frozen.bytes.slice(..1);
        drop(frozen);
        assert_eq!(other[0], 7);
        assert!(pool.free.lock().is_empty());
        drop(other);
        assert_eq!(pool.free.lock().len(), 1);
    }

    #[test]
    fn changing_a_frame_forgets_that_it_was_logged_or_placed() {
        let pool = Pool::new(4, 0);
        let mut frame = Frame::zeroed(&pool);
        frame.logged = true;
        frame.placed = true;
        frame.bytes_mut()[1] = 1;
        assert!(!frame.logged && !frame.placed);
    }
}
