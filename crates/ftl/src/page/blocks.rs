//! The blocks of one unit: which are free, and which are open.

use super::Stream;
use crate::free::{Free, Levelling};
use bimetal_media::nand::Cause;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Erased.
    Free,
    /// Being written.
    Open,
    /// Written.
    Closed,
    /// Nothing in it is valid, and it is erased once the pages that guard it are programmed.
    Emptied,
    /// Written with one bit a cell: it is emptied by folding, not by cleaning.
    Cached,
    /// Not used any more.
    Bad,
}

/// Placement handles beside the one that is none.
pub(super) const HANDLES_MAX: usize = 7;

/// Free and open blocks of one unit.
pub(super) struct Unit {
    /// The host's open block and its next page.
    pub host: Option<(u32, u32)>,
    /// The open block for copies and its next page.
    pub copies: Option<(u32, u32)>,
    /// The host's open block of the SLC cache, and its next page.
    pub slc: Option<(u32, u32)>,
    /// The open block for own pages of a layer on top, and its next page.
    pub own: Option<(u32, u32)>,
    /// The host's open blocks by placement handle, from 1 on.
    pub placed: [Option<(u32, u32)>; HANDLES_MAX],
    /// Its erased blocks.
    pub free: Free,
    /// Blocks that are erased once they are no longer guarded, and what for.
    pub emptied: Vec<(u32, Cause)>,
    /// Members that its erased superblocks lack, and those that are to be erased.
    pub lacking: u32,
    /// Erases so far.
    pub erases: u64,
    /// The most erases of one of its blocks.
    pub most: u32,
    /// How far it is ahead of other units in wear: quarters of its turns that it misses.
    pub ahead: u32,
    /// Turns it had while it was.
    turns: u32,
}

impl Unit {
    pub fn new(levelling: Levelling) -> Unit {
        let free = Free::new(levelling);
        Unit {
            host: None,
            copies: None,
            slc: None,
            own: None,
            placed: [None; HANDLES_MAX],
            free,
            emptied: Vec::new(),
            lacking: 0,
            erases: 0,
            most: 0,
            ahead: 0,
            turns: 0,
        }
    }

    /// A block of it, which lacks so many members, was erased for the `erases`-th time.
    pub fn erased(&mut self, block: u32, erases: u32, lacks: u32) {
        self.free.give_late(block, erases);
        self.lacking += lacks;
        self.erases += 1;
        self.most = self.most.max(erases);
    }

    /// Whether its turn to be written to is to be left out.
    pub fn misses_its_turn(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(u32::from(self.ahead > 0));
        self.turns % 4 < self.ahead
    }

    /// Whether `block` is open.
    pub fn is_open(&self, block: u32) -> bool {
        [self.host, self.copies, self.own, self.slc]
            .iter()
            .chain(&self.placed)
            .flatten()
            .any(|(open, _)| *open == block)
    }

    /// What is open for a stream.
    pub fn slot_mut(&mut self, stream: Stream, one_stream: bool) -> &mut Option<(u32, u32)> {
        match stream {
            Stream::Copies if !one_stream => &mut self.copies,
            Stream::Own => &mut self.own,
            Stream::Slc => &mut self.slc,
            Stream::Placed(handle) => &mut self.placed[usize::from(handle) - 1],
            _ => &mut self.host,
        }
    }

    /// What is open, or may be.
    pub fn slots_mut(&mut self) -> impl Iterator<Item = &mut Option<(u32, u32)>> {
        [&mut self.host, &mut self.copies, &mut self.own, &mut self.slc].into_iter().chain(&mut self.placed)
    }

    /// If `block` is open, goes on in it where it can still be used from the next page on, or else closes it; whether it
    /// closed it.
    pub fn leave_out(&mut self, block: u32, usable_from: impl Fn(u32) -> Option<u32>) -> bool {
        let mut closed = false;
        for slot in self.slots_mut() {
            if let Some((_, next)) = slot.filter(|(open, _)| *open == block) {
                *slot = usable_from(next).map(|next| (block, next));
                closed |= slot.is_none();
            }
        }
        closed
    }

    /// After power loss: goes on with a partly written block where there is more room in it than in what
    /// is open so far (for copies first). Returns a block that is closed instead.
    pub fn reopen(&mut self, block: u32, next_page: u32, one_stream: bool) -> Option<u32> {
        let more_room = |slot: &Option<(u32, u32)>| slot.is_none_or(|(_, next)| next_page < next);
        let mut given = Some((block, next_page));
        if !one_stream && more_room(&self.copies) {
            std::mem::swap(&mut given, &mut self.copies);
        }
        if let Some((_, next)) = given
            && self.host.is_none_or(|(_, host_next)| next < host_next)
        {
            std::mem::swap(&mut given, &mut self.host);
        }
        given.map(|(left, _)| left).filter(|left| *left != block)
    }
}
