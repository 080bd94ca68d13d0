//! Combined: one log for everything (the paper's section 3.2, "a typical log-structured policy").

use super::{DataClass, Placement, Scheme};

/// Registry line.
pub(super) const SCHEME: Scheme = Scheme {
    name: "combined",
    about: "data and metadata one after the other in one log",
    options: &[],
    make: |_| Ok(Box::new(Combined)),
};

struct Combined;

impl Placement for Combined {
    fn streams(&self) -> usize {
        1
    }

    fn place(&self, _: DataClass) -> usize {
        0
    }
}
