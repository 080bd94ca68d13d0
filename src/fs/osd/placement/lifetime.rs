//! Streams by predicted lifetime.
//!
//! Bytes that will die at about the same time share a segment, so that a segment is either still full
//! or already empty when it is cleaned. Lifetimes are counted in bytes that users write, the clock of the
//! cleaner. What is predicted, and from what:
//!
//! - log pages die at the next checkpoint: a stream of their own;
//! - index pages live for a checkpoint or several, and access pages for a merge: one stream each;
//! - new data by its object's own past: when bytes of it died before, the mean age at which they did, halved
//!   in weight with each new death; an object without a past by what its class (its owner's hint and the
//!   magnitude of its size) has seen; a class without a past is long-lived;
//! - survivors of a cleaning by their age: what has lived long will live long again.
//!
//! Each prediction falls into one of the classes whose bounds are four-fold apart, around the size of the
//! store. Memory: a table of 4096 entries for objects, shared by those that fall on the same place, and 256
//! for classes.

use super::{Death, ENTRIES, Placement, Scheme, What, Written, entries};

/// Registry line.
pub(super) const SCHEME: Scheme = Scheme {
    name: "lifetime",
    about: "streams by predicted lifetime, learned from how long bytes lived before",
    settings: &[ENTRIES],
    make: |settings| Ok(Box::new(Lifetime::new(entries(settings)?))),
};

/// Streams: log, index, access, then data from the shortest-lived on.
const LOG: usize = 0;
const INDEX: usize = 1;
const ACCESS: usize = 2;
const DATA: usize = 3;
/// Upper bounds of the data streams' lifetimes but the last, in bytes written.
const BOUNDS: [u64; 3] = [4 << 20, 32 << 20, 256 << 20];
const OBJECTS: usize = 4096;

struct Lifetime {
    entries: u32,
    /// Mean lifetimes, 0: not known.
    objects: Vec<(u64, u64)>,
    classes: [u64; 256],
}

impl Lifetime {
    fn new(entries: u32) -> Lifetime {
        Lifetime { entries, objects: vec![(0, 0); OBJECTS], classes: [0; 256] }
    }

    fn slot(object: u64) -> usize {
        (object.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize % OBJECTS
    }

    fn class(written: &Written) -> usize {
        let magnitude = 64 - written.size.leading_zeros() as usize;
        (usize::from(written.hint) * 67 + magnitude / 2) % 256
    }

    fn predict(&self, written: &Written) -> u64 {
        let (object, known) = self.objects[Self::slot(written.object)];
        if object == written.object && known > 0 {
            return known;
        }
        match self.classes[Self::class(written)] {
            0 => u64::MAX,
            known => known,
        }
    }
}

fn stream_of(lifetime: u64) -> usize {
    DATA + BOUNDS.iter().filter(|bound| lifetime > **bound).count()
}

impl Placement for Lifetime {
    fn streams(&self) -> usize {
        DATA + BOUNDS.len() + 1
    }

    fn place(&mut self, what: &What) -> usize {
        match what {
            What::Log => LOG,
            What::Index => INDEX,
            What::Access => ACCESS,
            What::Survivor { age } => stream_of(*age),
            What::Data(written) => stream_of(self.predict(written)),
        }
    }

    fn journal_entries(&self) -> Option<u32> {
        Some(self.entries)
    }

    fn journals_once(&self) -> bool {
        true
    }

    fn died(&mut self, object: u64, _: u64, age: u64, _: Death) {
        let slot = &mut self.objects[Self::slot(object)];
        *slot = if slot.0 == object && slot.1 > 0 {
            (object, slot.1.midpoint(age.max(1)))
        } else {
            (object, age.max(1))
        };
    }
}
