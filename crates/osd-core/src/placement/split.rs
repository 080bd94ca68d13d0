//! Split: data and metadata in segments of their own (the paper's section 3.2).

use super::{Placement, Scheme, What};

/// Registry line.
pub(super) const SCHEME: Scheme =
    Scheme { name: "split", about: "data apart from metadata", options: &[], make: |_| Ok(Box::new(Split)) };

struct Split;

impl Placement for Split {
    fn streams(&self) -> usize {
        2
    }

    fn place(&self, what: What) -> usize {
        match what {
            What::Data { .. } | What::Survivor => 0,
            What::Log | What::Index | What::Access => 1,
        }
    }
}
