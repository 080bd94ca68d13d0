//! The blocks of one unit: which are free, and which are open.

use crate::free::{Free, Levelling};

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Erased.
    Free,
    /// Being written.
    Open,
    /// Written.
    Closed,
    /// Not used any more.
    Bad,
}

/// Placement handles beside the one that is none.
const HANDLES_MAX: usize = 7;

/// Free and open blocks of one unit.
pub(super) struct Unit {
    /// The host's open block and its next page.
    pub host: Option<(u32, u32)>,
    /// The open block for copies and its next page.
    pub copies: Option<(u32, u32)>,
    /// The open block for own pages of a layer on top, and its next page.
    pub own: Option<(u32, u32)>,
    /// The host's open blocks by placement handle, from 1 on.
    pub placed: [Option<(u32, u32)>; HANDLES_MAX],
    /// Its erased blocks.
    pub free: Free,
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
            own: None,
            placed: [None; HANDLES_MAX],
            free,
            erases: 0,
            most: 0,
            ahead: 0,
            turns: 0,
        }
    }

    /// A block of it was erased for the `erases`-th time.
    pub fn erased(&mut self, block: u32, erases: u32) {
        self.free.give_late(block, erases);
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
        [self.host, self.copies, self.own]
            .iter()
            .chain(&self.placed)
            .flatten()
            .any(|(open, _)| *open == block)
    }

    /// What is open, or may be.
    pub fn slots_mut(&mut self) -> impl Iterator<Item = &mut Option<(u32, u32)>> {
        [&mut self.host, &mut self.copies, &mut self.own].into_iter().chain(&mut self.placed)
    }

    /// Closes `block` if it is open.
    pub fn forget(&mut self, block: u32) {
        for slot in self.slots_mut() {
            if slot.is_some_and(|(open, _)| open == block) {
                *slot = None;
            }
        }
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
