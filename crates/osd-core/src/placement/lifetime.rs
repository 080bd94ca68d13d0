//! Streams by predicted lifetime.
//!
//! Bytes that will die at about the same time share a segment, so that a segment is either still full
//! or already empty when it is cleaned. What is predicted, and from what:
//!
//! - log and index pages live for a checkpoint or a few, access pages until they are merged: one stream each. The
//!   journal of access times is merged early when it takes up too much of the room that objects leave, since it
//!   makes the store fuller than it is;
//! - bytes that a cleaning found alive have outlived what was written with them, and will live long: they have a
//!   stream of their own. Among new bytes they would have to be copied again as soon as those are dead;
//! - new data goes to one stream, but for what its owner says will live long (a hint of 128 and more), which goes to
//!   where survivors are. Predicting the lifetime of the rest from its object's past makes more copies: each further
//!   stream has an open segment, and keeps one free, of the room that objects leave.
//!
//! For the same reason survivors go among new data where objects leave few segments' worth of room.

use super::{DataClass, ENTRIES, Placement, Scheme, entries};

/// Registry line.
pub(super) const SCHEME: Scheme = Scheme {
    name: "lifetime",
    about: "streams by predicted lifetime: what outlived a cleaning will live long",
    options: &[ENTRIES],
    make: |settings| Ok(Box::new(Lifetime { entries: entries(settings)?, may_part: true, apart: true })),
};

/// Streams.
const OWN: usize = 0;
const ACCESS: usize = 1;
const YOUNG: usize = 2;
const OLD: usize = 3;
/// The least hint of what goes to the old at once.
const LONG_LIVED: u8 = 128;
/// Segments that objects must leave for survivors to be apart: the open one and the one kept free are then a 64th of
/// them.
const ROOM_APART: u64 = 128;
/// The part of the room that objects leave which the journal may take.
const JOURNAL_SHARE: u64 = 32;

struct Lifetime {
    entries: u32,
    /// The flash is large enough for survivors to be apart.
    may_part: bool,
    /// They are now.
    apart: bool,
}

impl Placement for Lifetime {
    fn size(&mut self, segments: u64) {
        self.may_part = segments >= ROOM_APART;
        self.apart = self.may_part;
    }

    fn room(&mut self, segments: u64) {
        // An eighth less to end it, so that it does not come and go.
        let least = if self.apart { ROOM_APART - ROOM_APART / 8 } else { ROOM_APART };
        self.apart = self.may_part && segments >= least;
    }

    fn streams(&self) -> usize {
        if self.may_part { OLD + 1 } else { OLD }
    }

    fn streams_now(&self) -> usize {
        if self.apart { OLD + 1 } else { OLD }
    }

    fn place(&self, what: DataClass) -> usize {
        match what {
            DataClass::Log | DataClass::Index => OWN,
            DataClass::Access => ACCESS,
            DataClass::Data { hint } if hint < LONG_LIVED => YOUNG,
            DataClass::Data { .. } | DataClass::Survivor if self.apart => OLD,
            DataClass::Data { .. } | DataClass::Survivor => YOUNG,
        }
    }

    fn journal_entries(&self) -> Option<u32> {
        Some(self.entries)
    }

    fn journal_share(&self) -> Option<u64> {
        Some(JOURNAL_SHARE)
    }

    fn journals_once(&self) -> bool {
        true
    }
}
