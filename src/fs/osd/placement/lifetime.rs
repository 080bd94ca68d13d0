//! Streams by predicted lifetime.
//!
//! Bytes that will die at about the same time share a segment, so that a segment is either still full
//! or already empty when it is cleaned. Lifetimes are counted in bytes that users write, the clock of the
//! cleaner. What is predicted, and from what:
//!
//! - log and index pages live for a checkpoint or a few, access pages until they are merged: one stream each. The
//!   journal of access times is merged early when it takes up too much of the room that objects leave, since it
//!   makes the store fuller than it is;
//! - new data by its object's own past: when bytes of it died before, the mean age at which they did, halved
//!   in weight with each new death; an object without a past by what its class (its owner's hint and the
//!   magnitude of its size) has seen, a sixteenth in weight with each death; a class without a past is
//!   long-lived;
//! - survivors of a cleaning by their age: what has lived long will live long again.
//!
//! Each prediction falls into one of three streams; of two or one where objects leave few segments' worth of room,
//! since an open segment, and one kept free for it, cost more of it than separation gains. Memory: a table of 16384 objects, each forgotten when another
//! falls on its place, and of 256 classes.

use super::{Death, ENTRIES, Placement, Scheme, What, Written, entries};

/// Registry line.
pub(super) const SCHEME: Scheme = Scheme {
    name: "lifetime",
    about: "streams by predicted lifetime, learned from how long bytes lived before",
    settings: &[ENTRIES],
    make: |settings| Ok(Box::new(Lifetime::new(entries(settings)?))),
};

/// Streams: log and index, access, then data from the shortest-lived on.
const OWN: usize = 0;
const ACCESS: usize = 1;
const DATA: usize = 2;
/// Upper bounds of the data streams' lifetimes but the last, in bytes written.
const BOUNDS: [u64; 2] = [16 << 20, 256 << 20];
/// Segments that objects must leave for each stream of data: an open one and one kept free are then a 64th of them.
const ROOM_A_STREAM: u64 = 128;
/// The part of the room that objects leave which the journal may take.
const JOURNAL_SHARE: u64 = 32;
const OBJECTS: usize = 16384;
const CLASSES: usize = 256;

/// What is known of the object that last fell on a place of the table.
#[derive(Clone, Copy, Default)]
struct Past {
    object: u64,
    /// Mean lifetime of its bytes; 0: none of them died yet.
    lifetime: u64,
    class: u8,
}

struct Lifetime {
    entries: u32,
    most_streams: usize,
    /// Streams of data that are written to now.
    data_streams: usize,
    objects: Vec<Past>,
    /// Mean lifetimes; 0: not known.
    classes: [u64; CLASSES],
}

/// How many streams of data so many segments' worth of room are enough for.
fn streams_for(segments: u64) -> usize {
    (segments / ROOM_A_STREAM).clamp(1, BOUNDS.len() as u64 + 1) as usize
}

impl Lifetime {
    fn new(entries: u32) -> Lifetime {
        Lifetime {
            entries,
            most_streams: BOUNDS.len() + 1,
            data_streams: BOUNDS.len() + 1,
            objects: vec![Past::default(); OBJECTS],
            classes: [0; CLASSES],
        }
    }

    fn slot(object: u64) -> usize {
        (object.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50) as usize % OBJECTS
    }

    /// By the owner's hint and the magnitude of the size.
    fn class(written: &Written) -> u8 {
        let magnitude = 64 - written.size.leading_zeros();
        (u32::from(written.hint) * 37 + magnitude) as u8
    }

    fn stream_of(&self, lifetime: u64) -> usize {
        let class = BOUNDS.iter().filter(|bound| lifetime > **bound).count();
        DATA + class.min(self.data_streams - 1)
    }

    /// The lifetime to expect of what is written; the object is remembered.
    fn predict(&mut self, written: &Written) -> u64 {
        let class = Self::class(written);
        let past = &mut self.objects[Self::slot(written.object)];
        if past.object != written.object {
            *past = Past { object: written.object, lifetime: 0, class };
        }
        past.class = class;
        match (past.lifetime, self.classes[usize::from(class)]) {
            (0, 0) => u64::MAX,
            (0, known) | (known, _) => known,
        }
    }
}

impl Placement for Lifetime {
    fn size(&mut self, segments: u64) {
        self.most_streams = streams_for(segments);
        self.data_streams = self.most_streams;
    }

    fn room(&mut self, segments: u64) {
        // One more only with an eighth to spare, so that they do not come and go.
        let (fewer, more) = (streams_for(segments - segments / 8), streams_for(segments));
        self.data_streams = self.data_streams.clamp(fewer, more).min(self.most_streams);
    }

    fn streams(&self) -> usize {
        DATA + self.most_streams
    }

    fn streams_now(&self) -> usize {
        DATA + self.data_streams
    }

    fn journal_share(&self) -> Option<u64> {
        Some(JOURNAL_SHARE)
    }

    fn place(&mut self, what: &What) -> usize {
        match what {
            What::Log | What::Index => OWN,
            What::Access => ACCESS,
            What::Survivor { age } => self.stream_of(*age),
            What::Data(written) => {
                let lifetime = self.predict(written);
                self.stream_of(lifetime)
            }
        }
    }

    fn journal_entries(&self) -> Option<u32> {
        Some(self.entries)
    }

    fn journals_once(&self) -> bool {
        true
    }

    fn died(&mut self, object: u64, _: u64, age: u64, _: Death) {
        let age = age.max(1);
        let past = &mut self.objects[Self::slot(object)];
        if past.object != object {
            return;
        }
        past.lifetime = if past.lifetime == 0 { age } else { past.lifetime.midpoint(age) };
        let class = &mut self.classes[usize::from(past.class)];
        *class = if *class == 0 { age } else { *class - *class / 16 + age / 16 };
    }
}
