//! Split with access times apart: a read that changes nothing but an access time appends an entry to a
//! journal in segments of its own; after so many entries they are merged into the onodes, and until then
//! whoever asks for an access time looks there first (the paper's section 3.2, "split+atime").

use super::{DataClass, ENTRIES, Placement, Scheme, entries};

/// Registry line.
pub(super) const SCHEME: Scheme = Scheme {
    name: "split-atime",
    about: "data apart from metadata, access times in a journal apart from both",
    options: &[ENTRIES],
    make: |settings| Ok(Box::new(SplitAtime { entries: entries(settings)? })),
};

struct SplitAtime {
    entries: u32,
}

impl Placement for SplitAtime {
    fn streams(&self) -> usize {
        3
    }

    fn place(&self, what: DataClass) -> usize {
        match what {
            DataClass::Data { .. } | DataClass::Survivor => 0,
            DataClass::Log | DataClass::Index => 1,
            DataClass::Access => 2,
        }
    }

    fn journal_entries(&self) -> Option<u32> {
        Some(self.entries)
    }
}
