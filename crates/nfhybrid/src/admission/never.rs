//! Reads bring nothing to the SSD: it holds what was written, and wears no faster than that.

use super::{Admission, DiskRead, Judgement, Make};
use bimetal_base::options::Entry;

pub const ENTRY: Entry<Make> = Entry {
    name: "never",
    about: "nothing: the SSD holds only what was written",
    options: &[],
    make: |_| Box::new(Never),
};

struct Never;

impl Admission for Never {
    fn pass(&mut self, _bytes: u64) {}

    fn judge(&mut self, read: &DiskRead) -> Judgement {
        Judgement { never: read.frames.end - read.frames.start, ..Judgement::default() }
    }
}
