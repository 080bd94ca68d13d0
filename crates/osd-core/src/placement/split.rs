//! Split: data and metadata in segments of their own (the paper's section 3.2).

use super::{DataClass, Placement, Scheme};

/// Registry line.
pub(super) const SCHEME: Scheme =
    Scheme { name: "split", about: "data apart from metadata", options: &[], make: |_| Ok(Box::new(Split)) };

struct Split;

impl Placement for Split {
    fn streams(&self) -> usize {
        2
    }

    fn place(&self, what: DataClass) -> usize {
        match what {
            DataClass::Data { .. } | DataClass::Survivor => 0,
            DataClass::Log | DataClass::Index | DataClass::Access => 1,
        }
    }
}
