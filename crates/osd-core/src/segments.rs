//! The segments: what each is used for, how much in it is alive, which to write next and which to clean.
//!
//! A segment is free, open (a stream appends to it), closed, or bad. A closed segment is cleaned when it has the
//! least alive (*greedy*) or the most `(1 − u) × age ÷ 2u` (*cost-benefit*: Kawaguchi, Nishioka and Motoda, A
//! Flash-Memory Based File System, 1995), `u` its part alive and age the bytes written to the store since the
//! segment's youngest. Rosenblum and Ousterhout's `(1 − u) × age ÷ (1 + u)` is for a cleaner that reads the segment as a
//! whole; ours reads and writes what is alive only, and with theirs old segments that are nearly full
//! would go before young ones that are nearly empty. Two kinds of life are counted: bytes of
//! extents, which die with the change that drops them, and whole pages of the store's own.
//!
//! A segment that was emptied is free once nothing durable points into it any more: after the next commit
//! if it held only data, after the next checkpoint otherwise.
//!
//! Wear: the least worn free segment is opened next. Where one lags behind the most worn by more than `spread`
//! erases and is closed, its contents move so that it is used again.
//!
//! Memory: 40 bytes a segment. Cost: O(log n) to take or give one, O(n) to choose a victim.

use super::flash::{Addr, Flash};
use std::collections::BTreeSet;

/// Which segment is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleaning {
    /// The one with the least alive.
    Greedy,
    /// The one with the most space × age for what moving the rest costs.
    CostBenefit,
}

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Open,
    Closed,
    /// Emptied; free after the next commit or checkpoint.
    Emptied,
    Bad,
}

/// Whether a segment is read again after a power cut: it is not to be cleaned as long as that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    No,
    /// When the newest checkpoint turns out to be damaged: it holds what came between the one before and that one.
    Older,
    /// It holds what came after the newest checkpoint.
    Newest,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub state: State,
    /// Bytes of extents, and of what is said of them on the flash.
    pub live_bytes: u32,
    /// Pages of the store's own that are alive.
    pub live_pages: u32,
    /// What a roll-back reads again from it.
    pub pinned: Pin,
    /// What is alive in it cannot be read, or what of the index names it cannot: it is cleaned when all of that is dead.
    pub rotten: bool,
    /// Bytes written to the store when it was opened.
    pub born: u64,
    /// Bytes written to the store when it was last written to.
    pub written: u64,
}

/// All segments.
pub(super) struct Segments {
    all: Vec<Segment>,
    /// By wear, then number.
    free: BTreeSet<(u32, u32)>,
    emptied_for_commit: Vec<u32>,
    emptied_for_checkpoint: Vec<u32>,
    /// Bytes of extents alive in all.
    live_bytes: u64,
    live_pages: u64,
    pinned: usize,
    rotten: usize,
    bad: usize,
    page_bytes: u32,
    pages: u32,
}

impl Segments {
    /// All of them free but the first `kept`, which are not the store's to write.
    pub fn new(flash: &Flash, kept: u32) -> Segments {
        let segment = Segment {
            state: State::Free,
            live_bytes: 0,
            live_pages: 0,
            pinned: Pin::No,
            rotten: false,
            born: 0,
            written: 0,
        };
        let mut segments = Segments {
            all: vec![segment; flash.segments() as usize],
            free: BTreeSet::new(),
            emptied_for_commit: Vec::new(),
            emptied_for_checkpoint: Vec::new(),
            live_bytes: 0,
            live_pages: 0,
            pinned: 0,
            rotten: 0,
            bad: 0,
            page_bytes: flash.page_bytes() as u32,
            pages: flash.pages_per_segment(),
        };
        for number in 0..flash.segments() {
            if number < kept || flash.good_pages(number) == 0 {
                segments.set_bad(number);
            } else {
                segments.free.insert((flash.wear(number), number));
            }
        }
        segments
    }

    pub fn get(&self, number: u32) -> &Segment {
        &self.all[number as usize]
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Segments that hold what came after the newest checkpoint.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Segments that hold what came after the newest checkpoint: the next one lists them.
    pub fn pinned_for_newest(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.all).filter(|(_, segment)| segment.pinned == Pin::Newest).map(|(number, _)| number)
    }

    /// Segments that a commit makes free, and those that a checkpoint does.
    pub fn emptied(&self) -> (usize, usize) {
        (self.emptied_for_commit.len(), self.emptied_for_checkpoint.len())
    }

    /// Bytes alive: those of extents, and those of the store's own pages.
    pub fn live(&self) -> (u64, u64) {
        (self.live_bytes, self.live_pages * u64::from(self.page_bytes))
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        u64::from(self.pages) * u64::from(self.page_bytes)
    }

    pub fn add_bytes(&mut self, number: u32, bytes: u32) {
        self.all[number as usize].live_bytes += bytes;
        self.live_bytes += u64::from(bytes);
    }

    pub fn drop_bytes(&mut self, number: u32, bytes: u32) {
        let segment = &mut self.all[number as usize];
        debug_assert!(segment.live_bytes >= bytes, "segment {number} has less alive than is dropped");
        segment.live_bytes = segment.live_bytes.saturating_sub(bytes);
        self.live_bytes = self.live_bytes.saturating_sub(u64::from(bytes));
    }

    /// Sets the bytes of extents alive in a segment.
    pub fn set_bytes(&mut self, number: u32, bytes: u32) {
        let segment = &mut self.all[number as usize];
        self.live_bytes = self.live_bytes - u64::from(segment.live_bytes) + u64::from(bytes);
        segment.live_bytes = bytes;
    }

    pub fn add_page(&mut self, number: u32) {
        self.all[number as usize].live_pages += 1;
        self.live_pages += 1;
    }

    pub fn drop_page(&mut self, number: u32) {
        let segment = &mut self.all[number as usize];
        debug_assert!(segment.live_pages > 0, "segment {number} has no page alive");
        segment.live_pages = segment.live_pages.saturating_sub(1);
        self.live_pages = self.live_pages.saturating_sub(1);
    }

    /// Takes the least worn free segment, or the most worn; it is open now.
    pub fn take(&mut self, most_worn: bool, clock: u64) -> Option<u32> {
        let (_, number) = if most_worn { self.free.pop_last() } else { self.free.pop_first() }?;
        let segment = &mut self.all[number as usize];
        *segment = Segment { state: State::Open, pinned: Pin::No, born: clock, written: clock, ..*segment };
        Some(number)
    }

    /// A free segment turned out to have no good block left.
    pub fn set_bad(&mut self, number: u32) {
        self.all[number as usize].state = State::Bad;
        self.bad += 1;
    }

    /// Segments that can be used.
    pub fn good(&self) -> usize {
        self.all.len() - self.bad
    }

    /// Segments that hold what cannot be read.
    pub fn rotten(&self) -> usize {
        self.rotten
    }

    /// Not all that is alive in a segment could be moved elsewhere.
    pub fn set_rotten(&mut self, number: u32) {
        let segment = &mut self.all[number as usize];
        self.rotten += usize::from(!segment.rotten);
        segment.rotten = true;
    }

    pub fn close(&mut self, number: u32) {
        self.all[number as usize].state = State::Closed;
    }

    pub fn pin(&mut self, number: u32) {
        let segment = &mut self.all[number as usize];
        self.pinned += usize::from(segment.pinned != Pin::Newest);
        segment.pinned = Pin::Newest;
    }

    /// As [`pin`](Segments::pin), for the checkpoint before the newest: on opening the store.
    pub fn pin_for_older(&mut self, number: u32) {
        let segment = &mut self.all[number as usize];
        if segment.pinned == Pin::No {
            segment.pinned = Pin::Older;
        }
    }

    pub fn touch(&mut self, number: u32, clock: u64) {
        self.all[number as usize].written = clock;
    }

    /// After a checkpoint nothing is read again but what it says and what leads to it from the one before.
    pub fn unpin_all_but(&mut self, open: &[u32]) {
        for (number, segment) in self.all.iter_mut().enumerate() {
            segment.pinned = match segment.pinned {
                _ if open.contains(&(number as u32)) => Pin::Newest,
                Pin::Newest => Pin::Older,
                Pin::Older | Pin::No => Pin::No,
            };
        }
        self.pinned = open.len();
    }

    /// A segment that holds nothing alive any more, or nothing that the next checkpoint does not write anew.
    pub fn set_emptied(&mut self, number: u32, by_checkpoint: bool) {
        let segment = &mut self.all[number as usize];
        segment.state = State::Emptied;
        self.rotten -= usize::from(std::mem::take(&mut segment.rotten));
        if by_checkpoint { &mut self.emptied_for_checkpoint } else { &mut self.emptied_for_commit }
            .push(number);
    }

    /// After a commit (and a checkpoint): what was emptied is free.
    pub fn settle(&mut self, flash: &Flash, checkpoint: bool) {
        let mut freed = std::mem::take(&mut self.emptied_for_commit);
        if checkpoint {
            let emptied = std::mem::take(&mut self.emptied_for_checkpoint);
            // What of the store's own is left there is what the checkpoint before this one names.
            let (named, free): (Vec<u32>, Vec<u32>) = emptied.into_iter().partition(|number| {
                let segment = self.get(*number);
                segment.live_bytes == 0 && segment.live_pages > 0
            });
            self.emptied_for_checkpoint = named;
            freed.extend(free);
        }
        for number in freed {
            let segment = &mut self.all[number as usize];
            if segment.live_bytes > 0 || segment.live_pages > 0 {
                // Something was read again into it: it is cleaned another time.
                segment.state = State::Closed;
            } else {
                segment.state = State::Free;
                self.free.insert((flash.wear(number), number));
            }
        }
    }

    /// Takes a segment found in use out of the free ones (on opening the store).
    pub fn set_used(&mut self, flash: &Flash, number: u32, state: State) {
        self.free.remove(&(flash.wear(number), number));
        if self.all[number as usize].state != State::Bad {
            self.all[number as usize].state = state;
        }
    }

    /// Sets when a segment was written, as a checkpoint remembers it.
    pub fn set_age(&mut self, number: u32, born: u64, written: u64) {
        let segment = &mut self.all[number as usize];
        (segment.born, segment.written) = (born, written);
    }

    fn alive(&self, segment: &Segment) -> u64 {
        u64::from(segment.live_bytes) + u64::from(segment.live_pages) * u64::from(self.page_bytes)
    }

    /// Bytes alive in a segment.
    pub fn alive_in(&self, number: u32) -> u64 {
        self.alive(self.get(number))
    }

    /// The closed segment to clean next; none if none would gain a page.
    pub fn victim(&self, cleaning: Cleaning, clock: u64) -> Option<u32> {
        let worth = self.segment_bytes() - u64::from(self.page_bytes);
        let closed = self.all.iter().enumerate().filter(|(_, segment)| {
            let gains = !segment.rotten && self.alive(segment) <= worth || self.alive(segment) == 0;
            segment.state == State::Closed && segment.pinned == Pin::No && gains
        });
        let number = match cleaning {
            Cleaning::Greedy => closed.min_by_key(|(_, segment)| self.alive(segment)),
            Cleaning::CostBenefit => {
                let benefit = |segment: &Segment| {
                    let used = self.alive(segment) as f64 / self.segment_bytes() as f64;
                    let age = clock.saturating_sub(segment.written) as f64 + 1.0;
                    if segment.live_bytes == 0 && segment.live_pages == 0 {
                        f64::INFINITY
                    } else {
                        age * (1.0 - used) / (2.0 * used)
                    }
                };
                closed
                    .map(|one| (benefit(one.1), one))
                    .reduce(|a, b| if b.0 > a.0 { b } else { a })
                    .map(|(_, one)| one)
            }
        };
        number.map(|(number, _)| number as u32)
    }

    /// The closed segment that lags more than `spread` erases behind the most worn free one, if any: the one
    /// unchanged for the longest.
    pub fn lagging(&self, flash: &Flash, spread: u32) -> Option<u32> {
        let most = self.free.last()?.0.checked_sub(spread)?;
        let lags = |number: &u32| flash.wear(*number) < most;
        let closed = (0..self.all.len() as u32).filter(|number| {
            let segment = self.get(*number);
            segment.state == State::Closed && segment.pinned == Pin::No && !segment.rotten
        });
        closed.filter(lags).min_by_key(|number| self.get(*number).written)
    }

    /// The segment of a page.
    pub fn of(&self, addr: Addr) -> u32 {
        addr.0 / self.pages
    }

    /// The segment of a byte.
    pub fn of_byte(&self, at: u64) -> u32 {
        (at / self.segment_bytes()) as u32
    }
}
