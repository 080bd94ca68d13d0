//! Time lines: when units (dies, planes) and channels are free.
//!
//! A unit does one thing after the other, so one instant says when it is free. A channel serves many
//! units, and a transfer that must wait for its unit leaves room before it that another unit's transfer
//! can use: so a channel keeps its busy spans and gives the first gap that is long enough.

use std::collections::VecDeque;

/// Busy spans a channel remembers; the oldest are taken for past beyond that.
const SPANS_MAX: usize = 64;

/// The time lines of one NAND array. Instants are nanoseconds.
pub(super) struct Lanes {
    unit_free: Vec<u64>,
    channels: Vec<Lane>,
}

/// The time line of one bus.
#[derive(Default)]
pub struct Lane {
    /// Busy spans in order, apart from each other.
    spans: VecDeque<(u64, u64)>,
    /// Nothing begins before this.
    floor: u64,
}

impl Lanes {
    pub fn new(units: u32, channels: u32) -> Lanes {
        Lanes {
            unit_free: vec![0; units as usize],
            channels: (0..channels).map(|_| Lane::default()).collect(),
        }
    }

    /// When `unit` has done all it was asked so far.
    pub fn unit_free(&self, unit: u32) -> u64 {
        self.unit_free[unit as usize]
    }

    /// Keeps `unit` busy until `until`.
    pub fn occupy(&mut self, unit: u32, until: u64) {
        self.unit_free[unit as usize] = until;
    }

    /// Takes the channel of `unit` for `len` ns, not before `from`; when that begins.
    pub fn transfer(&mut self, unit: u32, from: u64, len: u64) -> u64 {
        let channel = unit as usize % self.channels.len();
        self.channels[channel].take(from, len)
    }

    /// Forgets everything that is busy: the power was off.
    pub fn reset(&mut self) {
        *self = Lanes::new(self.unit_free.len() as u32, self.channels.len() as u32);
    }
}

impl Lane {
    /// Takes the first gap of `len` from `from` on; where it begins.
    pub fn take(&mut self, from: u64, len: u64) -> u64 {
        let from = from.max(self.floor);
        // Nearly always after everything else.
        match self.spans.back_mut() {
            Some(last) if from > last.1 => {}
            Some(last) if from == last.1 => {
                last.1 += len;
                return from;
            }
            Some(_) => return self.take_gap(from, len),
            None => {}
        }
        self.spans.push_back((from, from + len));
        self.forget();
        from
    }

    /// The first gap from `from` on that holds `len`.
    fn take_gap(&mut self, from: u64, len: u64) -> u64 {
        let mut index = self.spans.partition_point(|span| span.1 <= from);
        let mut begin = from;
        while let Some(&(start, end)) = self.spans.get(index) {
            if begin + len <= start {
                break;
            }
            begin = begin.max(end);
            index += 1;
        }
        self.spans.insert(index, (begin, begin + len));
        self.merge(index);
        self.forget();
        begin
    }

    /// Joins the span at `index` with neighbours that it touches.
    fn merge(&mut self, index: usize) {
        for left in [index, index.wrapping_sub(1)] {
            let (Some(&a), Some(&b)) = (self.spans.get(left), self.spans.get(left.wrapping_add(1))) else {
                continue;
            };
            if a.1 == b.0 {
                self.spans[left].1 = b.1;
                self.spans.remove(left + 1);
            }
        }
    }

    fn forget(&mut self) {
        while self.spans.len() > SPANS_MAX {
            if let Some((_, end)) = self.spans.pop_front() {
                self.floor = end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_transfer_takes_the_first_gap_that_holds_it() {
        let mut channel = Lane::default();
        assert_eq!(channel.take(100, 10), 100);
        assert_eq!(channel.take(0, 50), 0);
        assert_eq!(channel.take(0, 60), 110, "only 50 are left before 100");
        assert_eq!(channel.take(0, 50), 50);
        assert_eq!(channel.spans, [(0, 170)]);
        assert_eq!(channel.take(20, 1), 170);
    }

    #[test]
    fn units_of_one_channel_share_it_and_others_do_not() {
        let mut lanes = Lanes::new(4, 2);
        assert_eq!([0, 1, 2, 3].map(|unit| lanes.transfer(unit, 5, 10)), [5, 5, 15, 15]);
        lanes.reset();
        assert_eq!(lanes.transfer(3, 0, 1), 0);
    }

    proptest! {
        #[test]
        fn transfers_never_overlap_nor_begin_early(asks in proptest::collection::vec((0u64..500, 1u64..20), 1..60)) {
            let mut channel = Lane::default();
            let mut busy = vec![false; 5000];
            for (from, len) in asks {
                let begin = channel.take(from, len);
                prop_assert!(begin >= from);
                for slot in &mut busy[begin as usize..(begin + len) as usize] {
                    prop_assert!(!*slot);
                    *slot = true;
                }
                prop_assert!(channel.spans.iter().zip(channel.spans.iter().skip(1)).all(|(a, b)| a.1 < b.0));
            }
        }
    }
}
