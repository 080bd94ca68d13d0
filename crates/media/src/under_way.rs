//! Requests of a model that are under way: what they wait for, how they end, and who is done next.
//!
//! A request has parts (the pages of a read, the programs that a flush waits for). When the last is done the model says
//! when the request is ([`UnderWay::end`]); what it is answered with may be known before. Requests that are done are
//! named in the order of time. Cost: O(log requests).

use crate::Completion;
use bimetal_base::Result;
use bimetal_base::time::Time;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Requests under way, by the numbers of their tickets.
#[derive(Default)]
pub struct UnderWay {
    count: u64,
    requests: FxHashMap<u64, Waiting>,
    /// Those that are done and nobody was told of.
    ends: BinaryHeap<Reverse<(Time, u64)>>,
}

struct Waiting {
    parts: u64,
    /// The end of its last part so far.
    at: Time,
    is_done: bool,
    result: Result<Bytes>,
}

impl UnderWay {
    /// A request that waits for so many parts, and until `at` in any case; its number.
    pub fn begin(&mut self, at: Time, parts: u64) -> u64 {
        self.count += 1;
        let waiting = Waiting { parts, at, is_done: false, result: Ok(Bytes::new()) };
        self.requests.insert(self.count, waiting);
        self.count
    }

    /// Says how a request will have ended.
    pub fn answer(&mut self, number: u64, result: Result<Bytes>) {
        if let Some(waiting) = self.requests.get_mut(&number) {
            waiting.result = result;
        }
    }

    /// A part of a request was done at `at`: the end of the last, if it was that.
    pub fn part(&mut self, number: u64, at: Time) -> Option<Time> {
        let waiting = self.requests.get_mut(&number)?;
        waiting.at = waiting.at.max(at);
        waiting.parts = waiting.parts.saturating_sub(1);
        (waiting.parts == 0).then_some(waiting.at)
    }

    /// A request is done at `at`.
    pub fn end(&mut self, number: u64, at: Time) {
        if let Some(waiting) = self.requests.get_mut(&number) {
            (waiting.at, waiting.is_done) = (at, true);
            self.ends.push(Reverse((at, number)));
        }
    }

    /// When the next of those is done that nobody was told of or has waited for.
    pub fn next_end(&mut self) -> Option<Time> {
        while let Some(Reverse((at, number))) = self.ends.peek() {
            if self.requests.contains_key(number) {
                return Some(*at);
            }
            self.ends.pop();
        }
        None
    }

    /// Names that one.
    pub fn name(&mut self) -> Option<u64> {
        self.next_end()?;
        self.ends.pop().map(|Reverse((_, number))| number)
    }

    /// Whether it is known when a request is done.
    pub fn is_done(&self, number: u64) -> bool {
        self.requests.get(&number).is_none_or(|waiting| waiting.is_done)
    }

    /// Takes out a request that is done.
    pub fn take(&mut self, number: u64) -> Option<Completion> {
        if !self.requests.get(&number)?.is_done {
            return None;
        }
        let Waiting { at, result, .. } = self.requests.remove(&number)?;
        Some(Completion { at, result })
    }
}

/// A model that lets events happen one after the other: what follows from that for those who wait.
pub trait Simulated {
    /// Its requests.
    fn under_way(&mut self) -> &mut UnderWay;

    /// When something happens next in it.
    fn next_event(&mut self) -> Option<Time>;

    /// Has what happens next happen; whether there was something.
    fn step(&mut self) -> bool;

    /// Has all happen that does until `until`.
    fn go_on(&mut self, until: Time) {
        while self.next_event().is_some_and(|at| at <= until) {
            self.step();
        }
    }

    /// See [`BlockDevice::next_done`](crate::BlockDevice::next_done).
    fn next_done(&mut self, until: Time) -> Option<u64> {
        loop {
            let (end, event) = (self.under_way().next_end(), self.next_event());
            match (end, event) {
                (Some(end), _) if end <= until && event.is_none_or(|event| end <= event) => {
                    return self.under_way().name();
                }
                (_, Some(event)) if event <= until => drop(self.step()),
                _ => return None,
            }
        }
    }

    /// See [`BlockDevice::next_event`](crate::BlockDevice::next_event).
    fn next_time(&mut self) -> Option<Time> {
        let (end, event) = (self.under_way().next_end(), self.next_event());
        end.into_iter().chain(event).min()
    }

    /// Goes on until it is known when a request is done.
    ///
    /// # Panics
    /// If the number is not that of a request under way, each of which is waited for once.
    fn wait(&mut self, number: u64) -> Completion {
        loop {
            if let Some(done) = self.under_way().take(number) {
                return done;
            }
            assert!(self.step(), "request {number} is under way in this model and waited for once");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_done_with_its_last_part_and_named_once_in_the_order_of_time() {
        let mut under_way = UnderWay::default();
        let [a, b] = [under_way.begin(Time(5), 2), under_way.begin(Time(5), 1)];
        assert_eq!(under_way.part(a, Time(20)), None);
        assert_eq!(under_way.part(b, Time(3)), Some(Time(5)), "not before it arrived");
        under_way.end(b, Time(30));
        assert_eq!(under_way.part(a, Time(10)), Some(Time(20)));
        under_way.end(a, Time(20));
        assert_eq!((under_way.next_end(), under_way.name()), (Some(Time(20)), Some(a)));
        assert_eq!(under_way.take(b).map(|done| done.at), Some(Time(30)));
        assert_eq!(under_way.name(), None, "waited for");
        assert!(under_way.take(b).is_none() && under_way.is_done(a));
    }
}
