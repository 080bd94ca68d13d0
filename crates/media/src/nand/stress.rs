//! What wears on a block beside erases: reads since its last one, and time since it was programmed.
//!
//! Each read of a page disturbs the cells of its whole block a little, and what is programmed leaks away. Both add to the
//! probability that a bit reads wrong, in proportion: Cai and others (Read Disturb Errors in MLC NAND Flash Memory, DSN
//! 2015) measured a raw bit error rate that grows linearly with the reads, and Cai and others (Data Retention in MLC NAND Flash
//! Memory, HPCA 2015) one that grows with the days. A profile states both ([`NandProfile::read_disturb_errors`],
//! [`NandProfile::retention_errors_per_day`]); of a part that states neither nothing is kept here and nothing costs anything.
//! Left out: that worn blocks are disturbed and leak faster.
//!
//! A block whose bits are in danger by that is *due* ([`Nand::take_due`]): the layer above moves what is in it. Memory: 16
//! bytes a block.

use super::{Nand, NandProfile};
use bimetal_base::time::Time;

const DAY_NS: f64 = 86_400e9;

/// What happened to a block since it was erased.
#[derive(Clone, Copy, Default)]
struct Stressed {
    /// Pages of it read.
    reads: u32,
    /// It was noted as due.
    is_due: bool,
    /// When it was first programmed.
    since: Time,
}

/// What happened to all blocks; of a part that is not disturbed by reads and leaks nothing, none.
pub(super) struct Stress {
    blocks: Vec<Stressed>,
    /// No operation was asked for later than this.
    now: Time,
    due: Vec<u32>,
    per_read: f64,
    per_ns: f64,
    /// Blocks are due at so much more than their erases account for.
    due_at: f64,
}

impl Stress {
    /// Of a part with so many blocks.
    pub fn of(profile: &NandProfile, blocks: u32) -> Stress {
        let (per_read, per_day) = (profile.read_disturb_errors, profile.retention_errors_per_day);
        let strength = f64::from(profile.ecc_bits) / (profile.ecc_bytes as f64 * 8.0);
        let count = if per_read > 0.0 || per_day > 0.0 { blocks } else { 0 };
        Stress {
            blocks: vec![Stressed::default(); count as usize],
            now: Time::ZERO,
            due: Vec::new(),
            per_read,
            per_ns: per_day / DAY_NS,
            due_at: profile.refresh_percent.map_or(f64::INFINITY, |percent| strength * percent / 100.0),
        }
    }

    /// Whether anything is kept.
    pub fn is_kept(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// It is this late by now.
    pub fn see(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// A block was erased.
    pub fn erased(&mut self, block: u32) {
        if let Some(stressed) = self.blocks.get_mut(block as usize) {
            *stressed = Stressed::default();
        }
    }

    /// A page of a block was programmed, the first of it or another one.
    pub fn programmed(&mut self, block: u32, is_first: bool) {
        if let Some(stressed) = self.blocks.get_mut(block as usize).filter(|_| is_first) {
            stressed.since = self.now;
        }
    }

    /// A page of a block is read: what is added to the probability that one of its bits is wrong.
    pub fn read(&mut self, block: u32) -> f64 {
        let now = self.now;
        let Some(stressed) = self.blocks.get_mut(block as usize) else { return 0.0 };
        let age = now.0.saturating_sub(stressed.since.0);
        let added = f64::from(stressed.reads) * self.per_read + age as f64 * self.per_ns;
        stressed.reads = stressed.reads.saturating_add(1);
        if added >= self.due_at && !stressed.is_due {
            stressed.is_due = true;
            self.due.push(block);
        }
        added
    }
}

impl Nand {
    /// Says what instant it is, for how long ago things were programmed. Where operations take their time here, those say it.
    pub fn see(&mut self, now: Time) {
        self.stress.see(now);
    }

    /// Whether a block may be [due](Self::take_due).
    #[inline]
    pub fn has_due(&self) -> bool {
        !self.stress.due.is_empty()
    }

    /// A block whose bits reads and time have brought into danger, if one was found by a read: what is in it is to be moved. It
    /// is not told again before the block is erased or [left](Self::leave_due).
    pub fn take_due(&mut self) -> Option<u32> {
        while let Some(block) = self.stress.due.pop() {
            if self.stress.blocks[block as usize].is_due {
                return Some(block);
            }
        }
        None
    }

    /// A block that is due cannot be emptied now: the next read of it tells it again.
    pub fn leave_due(&mut self, block: u32) {
        if let Some(stressed) = self.stress.blocks.get_mut(block as usize) {
            stressed.is_due = false;
        }
    }

    /// How often a page with too many wrong bits is read before it is given up: once, and once for each step of read retry;
    /// of a part that states none, three times.
    pub fn attempts(&self) -> u32 {
        match self.profile.read_retry.len() {
            0 => 3,
            steps => 1 + steps as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Failure, Payload, Tag};
    use super::*;
    use crate::profile;

    const DAY: u64 = DAY_NS as u64;

    fn nand_of(change: impl FnOnce(&mut NandProfile)) -> Nand {
        let mut part = profile::load::<NandProfile>("slc-2k").unwrap().ideal();
        part.blocks = 8;
        change(&mut part);
        Nand::new(part, 1, true, Payload::None)
    }

    fn program(nand: &mut Nand, at: Time, page: u32) {
        nand.program(at, 0, page, Tag { owner: page, sequence: 0 }, &[]).unwrap();
    }

    // As in `tests.rs`: 3.28 wrong bits in four words, of which each may have one, are too many with 0.587.
    const UNREADABLE: std::ops::Range<usize> = 1100..1250;

    #[test]
    fn reads_of_a_block_add_wrong_bits_until_it_is_erased() {
        let mut nand = nand_of(|part| part.read_disturb_errors = 1e-6);
        let (mut new, mut disturbed) = (0, 0);
        for _ in 0..2000 {
            nand.erase(Time::ZERO, 0).unwrap();
            (0..2).for_each(|page| program(&mut nand, Time::ZERO, page));
            new += usize::from(nand.read(Time::ZERO, 0, 0).is_err());
            (0..199).for_each(|_| drop(nand.read(Time::ZERO, 0, 1)));
            disturbed += usize::from(nand.read(Time::ZERO, 0, 0).is_err());
        }
        assert_eq!(new, 0);
        assert!(UNREADABLE.contains(&disturbed), "{disturbed}");
        nand.program(Time::ZERO, 1, 0, Tag { owner: 1, sequence: 0 }, &[]).unwrap();
        assert!(nand.read(Time::ZERO, 1, 0).is_ok(), "other blocks are not disturbed");
    }

    #[test]
    fn days_since_it_was_programmed_add_wrong_bits() {
        let mut nand = nand_of(|part| part.retention_errors_per_day = 1e-4);
        let (mut now, mut new, mut old) = (0, 0, 0);
        for _ in 0..2000 {
            nand.erase(Time(now), 0).unwrap();
            program(&mut nand, Time(now + DAY), 0);
            new += usize::from(nand.read(Time(now + DAY), 0, 0).is_err());
            old += usize::from(nand.read(Time(now + 3 * DAY), 0, 0).is_err());
            now += 3 * DAY;
        }
        assert_eq!(new, 0);
        assert!(UNREADABLE.contains(&old), "{old}");
    }

    #[test]
    fn each_step_of_read_retry_is_a_read_with_so_many_wrong_bits_left() {
        let part = |steps: &[f64]| {
            let mut nand = nand_of(|part| {
                (part.read_disturb_errors, part.read_retry) = (1e-3, steps.to_vec());
            });
            (0..2).for_each(|page| program(&mut nand, Time::ZERO, page));
            (0..100).for_each(|_| drop(nand.read(Time::ZERO, 0, 1)));
            nand
        };
        let (mut none_left, mut all_left) = (part(&[0.9, 0.0]), part(&[1.0]));
        assert_eq!([none_left.attempts(), all_left.attempts(), part(&[]).attempts()], [3, 2, 3]);
        let before = (none_left.counts().reads, none_left.counts().retries);
        let reads = [0; 3].map(|_| none_left.read(Time::ZERO, 0, 0).is_ok());
        assert_eq!(reads, [false, false, true], "a tenth of all bits is wrong, then none");
        let counts = none_left.counts();
        assert_eq!((counts.reads - before.0, counts.retries - before.1), (3, 2));
        assert!(none_left.read(Time::ZERO, 0, 0).is_err(), "the next one is the first of others");
        assert!((0..5).all(|_| all_left.read(Time::ZERO, 0, 0).is_err()));
    }

    #[test]
    fn a_block_is_due_when_so_much_was_added_of_what_can_be_corrected() {
        // One bit in 512 bytes, 2.44e-4: half of that after 123 reads, which the next finds.
        let mut nand = nand_of(|part| (part.read_disturb_errors, part.refresh_percent) = (1e-6, Some(50.0)));
        program(&mut nand, Time::ZERO, 0);
        let read = |nand: &mut Nand, times: u32| (0..times).for_each(|_| drop(nand.read(Time::ZERO, 0, 0)));
        read(&mut nand, 123);
        assert_eq!((nand.has_due(), nand.take_due()), (false, None));
        read(&mut nand, 5);
        assert_eq!((nand.has_due(), nand.take_due(), nand.take_due()), (true, Some(0), None));
        read(&mut nand, 5);
        assert_eq!(nand.take_due(), None, "it was told");
        nand.leave_due(0);
        read(&mut nand, 1);
        assert_eq!(nand.take_due(), Some(0));
        nand.leave_due(0);
        read(&mut nand, 1);
        nand.erase(Time::ZERO, 0).unwrap();
        assert_eq!(nand.take_due(), None, "what is erased is safe");
        program(&mut nand, Time::ZERO, 0);
        read(&mut nand, 100);
        assert_eq!(nand.take_due(), None);
    }

    #[test]
    fn a_part_that_states_nothing_keeps_nothing() {
        let mut nand = nand_of(|_| ());
        program(&mut nand, Time::ZERO, 0);
        assert!((0..10_000).all(|_| nand.read(Time(1 << 60), 0, 0).is_ok()));
        assert!(!nand.stress.is_kept() && !nand.has_due());
        let torn = nand.read(Time::ZERO, 0, 1);
        assert!(matches!(torn, Err(Failure::Unreadable)));
        assert_eq!(nand.counts().retries, 0);
    }
}
