//! Copies what is read a second time within a window, and no sweeps.
//!
//! 1. A frame that was read within the window ([`Ghost`]) is admitted; one that was not is noted.
//! 2. What a sweep reads ([`Sweeps`]) is neither noted nor admitted, and does not move the window on: a backup does
//!    not make the SSD forget what it was about to learn.
//!
//! The window is as many bytes of reads as the SSD holds: what comes back later would have been pushed out by then.
//! A row is a sweep when it is longer than half of that.
//!
//! So a cold tree that is read once costs the SSD nothing, and a set that fits is there after its second reading.

use super::ghost::{Ghost, RUN};
use super::sweep::Sweeps;
use super::{Admission, DiskRead, Judgement, Make};
use crate::frames::FRAME;
use bimetal_base::options::Entry;
use bimetal_base::units::Ino;

pub const ENTRY: Entry<Make> = Entry {
    name: "second",
    about: "what is read twice while as much is read as the SSD holds; no streams, no backups",
    options: &[],
    make: |capacity| Box::new(Second::new(capacity)),
};

struct Second {
    ghost: Ghost,
    sweeps: Sweeps,
}

impl Second {
    fn new(capacity: u64) -> Second {
        let limit = capacity / FRAME as u64 / 2;
        Second { ghost: Ghost::new(capacity), sweeps: Sweeps::new(limit) }
    }
}

impl Admission for Second {
    fn pass(&mut self, bytes: u64) {
        self.ghost.pass(bytes);
    }

    fn judge(&mut self, read: &DiskRead) -> Judgement {
        let (start, end) = (read.frames.start, read.frames.end);
        let again = self.ghost.seen(read.ino, start / RUN) & 1 << (start % RUN) != 0;
        let mut judgement = Judgement::default();
        if self.sweeps.follow(read, again) {
            judgement.swept = end - start;
            return judgement;
        }
        self.ghost.pass((end - start) * FRAME as u64);
        for run in start / RUN..end.div_ceil(RUN) {
            let first = start.max(run * RUN);
            let frames = bits(first % RUN, end.min((run + 1) * RUN) - first);
            let seen = self.ghost.seen(read.ino, run) & frames;
            self.ghost.note(read.ino, run, frames);
            judgement.first += u64::from((frames & !seen).count_ones());
            (0..RUN).filter(|bit| seen & 1 << bit != 0).for_each(|bit| {
                judgement.admit(run * RUN + bit..run * RUN + bit + 1);
            });
        }
        judgement
    }

    fn remembers(&self, ino: Ino, frame: u64) -> bool {
        self.ghost.seen(ino, frame / RUN) & 1 << (frame % RUN) != 0
    }
}

/// `count` bits from bit `first` on.
fn bits(first: u64, count: u64) -> u16 {
    (((1_u32 << count) - 1) << first) as u16
}
