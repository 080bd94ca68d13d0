//! File data in memory: frames of 4 KiB that are dirty, or frozen on their way to the media.
//!
//! A frame is mutable while it is dirty. Freezing turns it into [`Bytes`] that any number of device writes
//! share without a copy; a write to a frozen frame starts a new dirty one. The memory goes back to a pool
//! when the last user drops it, because the first touch of fresh memory costs more than the copy into it.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
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

/// Bytes from which on a write is copied into pages before the lock is taken.
const COPY_AHEAD: usize = 64 << 10;

/// What is to be written to whole frames, copied while nobody waits for it.
pub struct Pages {
    first: u64,
    pages: Vec<Option<Pooled>>,
}

impl Pages {
    /// Nothing is copied ahead.
    pub fn none() -> Pages {
        Pages { first: 0, pages: Vec::new() }
    }

    /// Copies what of `data`, at byte `offset` of a file, fills whole frames; nothing of a short write.
    pub fn copied(pool: &Arc<Pool>, offset: u64, data: &[u8]) -> Pages {
        if data.len() < COPY_AHEAD {
            return Pages::none();
        }
        let head = offset.next_multiple_of(FRAME as u64) - offset;
        let copy = |bytes: &[u8]| {
            let mut page = pool.page();
            page.bytes_mut().copy_from_slice(bytes);
            Some(page)
        };
        let pages = data[head as usize..].chunks_exact(FRAME).map(copy).collect();
        Pages { first: (offset + head) / FRAME as u64, pages }
    }

    /// What was copied for a frame.
    fn take(&mut self, index: u64) -> Option<Pooled> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.pages.get_mut(at)?.take()
    }

    /// Sets a frame to what was copied for it; whether anything was.
    pub fn set(&mut self, index: u64, frame: &mut Frame) -> bool {
        let page = self.take(index);
        let there = page.is_some();
        if let Some(page) = page {
            frame.memory = Memory::Own(page);
            frame.known = Known::default();
        }
        there
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
    reserved: u32,
    /// Its blocks that hold live data and keep their place.
    live: u32,
    /// Its blocks that get places, as the nodes of the file's tree were promised for; those in an extent without data that
    /// becomes data as a whole need none.
    placing: u32,
    /// Its first blocks, which get a place when it is frozen. Those behind them hold no data, on the disk either, and get none.
    covers: Blocks,
    /// All its blocks get new places: those it has were promised others.
    moves: bool,
    known: Known,
}

/// Blocks of the disk half in a frame, a bit each, the first the lowest: four of 1 KiB at most.
pub type Blocks = u8;

/// The blocks of a frame that begins with block `first` of a file which lie in a range of the file's blocks.
pub fn blocks_within(first: u64, per_frame: u64, range: &Range<u64>) -> Blocks {
    let bit = |block: u64| block.clamp(first, first + per_frame) - first;
    let below = |bits: u64| ((1_u16 << bits) - 1) as Blocks;
    below(bit(range.end)) & !below(bit(range.start))
}

/// What the blocks of a frame are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    /// Those that get a place when it is frozen.
    pub covers: Blocks,
    /// Promised to it, as there is a hole.
    pub reserved: u32,
    /// Of live data, overwritten where they are.
    pub live: u32,
    /// Those that get places, as far as nodes were promised for them.
    pub placing: u32,
}

/// Where else a frame's contents are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The SSD's log holds them: nothing to do at the next fsync.
    pub logged: bool,
    /// The SSD's data section holds them: nothing to place at the next freeze.
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
        Frame::of(Memory::Own(pool.page()), pool)
    }

    fn of(memory: Memory, pool: &Arc<Pool>) -> Frame {
        Frame {
            memory,
            pool: pool.clone(),
            reserved: 0,
            live: 0,
            placing: 0,
            covers: 0,
            moves: false,
            known: Known::default(),
        }
    }

    /// A frame of zeros that shares its memory with all others, until it changes.
    pub fn shared_zeros(pool: &Arc<Pool>) -> Frame {
        static ZEROS: Page = Page([0; FRAME]);
        Frame::of(Memory::Shared(Bytes::from_static(&ZEROS.0)), pool)
    }

    /// A frame that starts as a copy of `old`, which is [`FRAME`] bytes.
    pub fn copy_of(pool: &Arc<Pool>, old: &[u8]) -> Frame {
        let mut frame = Frame::unset(pool);
        frame.bytes_mut().copy_from_slice(old);
        frame
    }

    /// The same with what its blocks are.
    pub fn with_blocks(mut self, Claimed { covers, reserved, live, placing }: Claimed) -> Frame {
        (self.covers, self.reserved, self.live, self.placing) = (covers, reserved, live, placing);
        self
    }

    /// What its blocks are.
    pub fn claimed(&self) -> Claimed {
        let Frame { covers, reserved, live, placing, .. } = *self;
        Claimed { covers, reserved, live, placing }
    }

    /// Which of its blocks get a place when it is frozen; those that do not hold no data, on the disk either.
    pub fn covers(&self) -> Blocks {
        self.covers
    }

    /// More of its blocks get a place, and what else of them is more than it was.
    pub fn cover(&mut self, Claimed { covers, reserved, live, placing }: Claimed) {
        self.covers |= covers;
        self.reserved += reserved;
        self.live += live;
        self.placing += placing;
    }

    /// Its file ends in it: of its blocks only `kept` are left, of which `holes` that get a place have none yet and `data` hold live
    /// data. What is not needed any more.
    pub fn end_at(&mut self, kept: Blocks, holes: u32, data: u32) -> Claimed {
        let old = self.claimed();
        self.covers = old.covers & kept;
        self.live = old.live.min(data);
        self.reserved = old.reserved.min(if self.moves { holes + data } else { holes });
        self.placing = old.placing.min(self.covers.count_ones() - self.live);
        Claimed {
            covers: old.covers & !kept,
            reserved: old.reserved - self.reserved,
            live: old.live - self.live,
            placing: old.placing - self.placing,
        }
    }

    /// Blocks promised to it.
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Whether places for blocks `first`, its own first one, to `end` are all it needs.
    pub fn is_placed_by(&self, first: u64, end: u64) -> bool {
        !self.moves && first + u64::from(Blocks::BITS - self.covers.leading_zeros()) <= end
    }

    /// Its blocks have their places; how many were promised to it, and are no more.
    pub fn forgo(&mut self) -> u32 {
        std::mem::take(&mut self.reserved)
    }

    /// Its blocks that hold live data and keep their place.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Its live data gets new places, which were promised.
    pub fn promise_to_move(&mut self) {
        let live = std::mem::take(&mut self.live);
        self.reserved += live;
        self.placing += live;
        self.moves = true;
    }

    /// Where else its contents are.
    pub fn known(&self) -> Known {
        self.known
    }

    /// Notes where else its contents are.
    pub fn note(&mut self, set: impl Fn(&mut Known)) {
        set(&mut self.known);
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
        self.known = Known::default();
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
        let Frame { covers, moves, known, .. } = self;
        Frozen { bytes: self.share(), covers, moves, known, bound: false }
    }
}

/// A frame on its way to the media; contents fixed.
#[derive(Clone)]
pub struct Frozen {
    bytes: Bytes,
    covers: Blocks,
    moves: bool,
    known: Known,
    bound: bool,
}

impl Frozen {
    /// The contents.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Which of its blocks get a place on the disk.
    pub fn covers(&self) -> Blocks {
        self.covers
    }

    /// All its blocks get new places, which were promised.
    pub fn moves(&self) -> bool {
        self.moves
    }

    /// Where else its contents are.
    pub fn known(&self) -> Known {
        self.known
    }

    /// Notes where else its contents are.
    pub fn note(&mut self, set: impl Fn(&mut Known)) {
        set(&mut self.known);
    }

    /// The cycle it is in put it into a data section and bound it there.
    pub fn bind(&mut self) {
        (self.known.placed, self.bound) = (true, true);
    }

    /// Whether the cycle it is in bound it.
    pub fn is_bound(&self) -> bool {
        self.bound
    }
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
    fn what_is_copied_ahead_is_what_fills_whole_frames_of_a_long_write() {
        let pool = Pool::new(4, 0);
        assert!(Pages::copied(&pool, 0, &[1; FRAME]).take(0).is_none());
        let data: Vec<u8> = (0..40 * FRAME).map(|at| (at / 100) as u8).collect();
        let mut pages = Pages::copied(&pool, 2 * FRAME as u64 + 96, &data);
        let mut frame = Frame::zeroed(&pool);
        assert!(!pages.set(2, &mut frame) && !pages.set(42, &mut frame));
        assert!(pages.set(3, &mut frame));
        assert_eq!(frame.bytes(), &data[FRAME - 96..2 * FRAME - 96]);
        assert!(!pages.set(3, &mut frame), "each is taken once");
    }

    #[test]
    fn changing_a_frame_forgets_that_it_was_logged_or_placed() {
        let pool = Pool::new(4, 0);
        let mut frame = Frame::zeroed(&pool);
        frame.note(|known| *known = Known { logged: true, placed: true });
        frame.bytes_mut()[1] = 1;
        assert_eq!(frame.known(), Known::default());
    }
}
