//! The paper's: whatever the disk was read for is copied at once (No & Kim 2012, section 3.4).
//!
//! One pass over a tree writes all of it to the SSD, and pushes out what was there.

use super::{Admission, DiskRead, Judgement, Make};
use bimetal_base::options::Entry;

pub const ENTRY: Entry<Make> = Entry {
    name: "first",
    about: "whatever the disk was read for, at once, as the paper has it",
    options: &[],
    make: |_| Box::new(First),
};

struct First;

impl Admission for First {
    fn pass(&mut self, _bytes: u64) {}

    fn judge(&mut self, read: &DiskRead) -> Judgement {
        let mut judgement = Judgement::default();
        judgement.admit(read.frames.clone());
        judgement
    }
}
