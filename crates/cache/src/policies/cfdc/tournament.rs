//! The lowest of many priorities that change with time: a kinetic tournament.
//!
//! The contestants are the leaves of a binary tree; each inner node holds the winner of its two sides and until when no
//! match below it can end otherwise. When a contestant changes, its matches up to the top are played again; when time
//! passes, only those whose time has come.
//!
//! Source: Basch, Guibas, Hershberger, "Data structures for mobile data", SODA'97.
//! Cost: O(log n) a change; O(log n) for each match that comes due.

use crate::index::NIL;

/// Who wins, now.
pub trait Contest {
    /// Whether `a` wins against `b`.
    fn beats(&self, a: u32, b: u32) -> bool;

    /// A time after now up to which `loser` certainly does not win against `winner`.
    fn holds_until(&self, winner: u32, loser: u32) -> u64;

    /// The time.
    fn now(&self) -> u64;
}

#[derive(Clone, Copy)]
struct Match {
    winner: u32,
    until: u64,
}

const OPEN: Match = Match { winner: NIL, until: u64::MAX };

/// The tree: node 1 is the top, the sides of node i are 2i and 2i + 1, the leaves are the second half.
pub struct Tournament {
    matches: Vec<Match>,
}

impl Tournament {
    /// Nobody takes part.
    pub fn new() -> Tournament {
        Tournament { matches: vec![OPEN; 2] }
    }

    fn leaves(&self) -> usize {
        self.matches.len() / 2
    }

    /// `who` enters, changes or (`takes_part` false) leaves.
    pub fn set(&mut self, who: u32, takes_part: bool, contest: &impl Contest) {
        while who as usize >= self.leaves() {
            self.grow(contest);
        }
        let mut at = self.leaves() + who as usize;
        self.matches[at] = Match { winner: if takes_part { who } else { NIL }, until: u64::MAX };
        while at > 1 {
            at /= 2;
            self.play(at, contest);
        }
    }

    /// Doubles the leaves.
    fn grow(&mut self, contest: &impl Contest) {
        let leaves = self.leaves();
        let mut matches = vec![OPEN; leaves * 4];
        matches[leaves * 2..leaves * 3].copy_from_slice(&self.matches[leaves..]);
        self.matches = matches;
        for at in (1..leaves * 2).rev() {
            self.play(at, contest);
        }
    }

    fn play(&mut self, at: usize, contest: &impl Contest) {
        let (left, right) = (self.matches[2 * at], self.matches[2 * at + 1]);
        let until = left.until.min(right.until);
        self.matches[at] = match (left.winner, right.winner) {
            (NIL, winner) | (winner, NIL) => Match { winner, until },
            (a, b) => {
                let (winner, loser) = if contest.beats(a, b) { (a, b) } else { (b, a) };
                Match { winner, until: until.min(contest.holds_until(winner, loser)) }
            }
        };
    }

    /// Plays what is due at and below `at`.
    fn settle(&mut self, at: usize, contest: &impl Contest) {
        if self.matches[at].until <= contest.now() {
            self.settle(2 * at, contest);
            self.settle(2 * at + 1, contest);
            self.play(at, contest);
        }
    }

    /// The winner now, or [`NIL`] if nobody takes part.
    pub fn winner(&mut self, contest: &impl Contest) -> u32 {
        self.settle(1, contest);
        self.matches[1].winner
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.matches.len() * size_of::<Match>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that rise with time: start and slope.
    struct Lines {
        lines: Vec<(u64, u64)>,
        now: u64,
    }

    impl Lines {
        fn height(&self, who: u32) -> u64 {
            let (start, slope) = self.lines[who as usize];
            start + slope * self.now
        }
    }

    impl Contest for Lines {
        fn beats(&self, a: u32, b: u32) -> bool {
            (self.height(a), b) > (self.height(b), a)
        }

        fn holds_until(&self, winner: u32, loser: u32) -> u64 {
            let (slope, other) = (self.lines[winner as usize].1, self.lines[loser as usize].1);
            if other <= slope {
                return u64::MAX;
            }
            let gap = self.height(winner) - self.height(loser);
            self.now + (gap / (other - slope)).max(1)
        }

        fn now(&self) -> u64 {
            self.now
        }
    }

    #[test]
    fn the_winner_is_the_highest_line_at_any_time() {
        let mut tournament = Tournament::new();
        let mut lines = Lines { lines: vec![(0, 0)], now: 0 };
        let mut takes_part = vec![false];
        let mut x = 3u64;
        for step in 0..5000u64 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let who = 1 + (x >> 33) as usize % (1 + step as usize / 20);
            if who >= takes_part.len() {
                takes_part.resize(who + 1, false);
                lines.lines.resize(who + 1, (0, 0));
            }
            lines.lines[who] = (x >> 40 & 0xffff, x >> 20 & 0xff);
            takes_part[who] = x >> 10 & 3 != 0;
            tournament.set(who as u32, takes_part[who], &lines);
            lines.now += x >> 50 & 7;
            let all = (1..takes_part.len() as u32).filter(|&who| takes_part[who as usize]);
            let best = all.reduce(|a, b| if lines.beats(a, b) { a } else { b }).unwrap_or(NIL);
            assert_eq!(tournament.winner(&lines), best, "step {step}");
        }
    }
}
