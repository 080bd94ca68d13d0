//! The pace of a run: when each request of the trace arrives at the stack.
//!
//! *Closed*: a request arrives as soon as fewer than `queue_depth` are under way. Barriers are kept: a
//! flush waits for all before it and holds all after it; PREFLUSH is a flush before the request, FUA makes
//! the write durable and holds what comes after until it is. *Open*: a request arrives when the trace says,
//! divided by the speed, whatever is under way; its latency then includes the wait for the device.
//!
//! Invariants: arrivals never go back in time; a flush is done no earlier than everything before it.
//! Cost: O(log queue depth) a request.

use super::place::Placer;
use super::report::Meter;
use super::stack::{Io, Layer};
use crate::front::trace::{Flags, Op, Record, Trace};
use crate::time::Time;
use crate::{Error, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// When requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// As soon as fewer than this are under way.
    Closed { queue_depth: u32 },
    /// At their recorded instants, this many times faster.
    Open { speed: f64 },
}

/// Drives a stack with a trace.
pub(super) struct Driver<'a> {
    pub stack: &'a mut dyn Layer,
    pub placer: Placer,
    pub pace: Pace,
    /// Flushes and the flags that mean one are passed on.
    pub flush: bool,
    /// Serve no more than this many requests.
    pub limit: Option<u64>,
    /// The first request arrives no earlier.
    pub start: Time,
    /// Give up: another run failed.
    pub stop: &'a AtomicBool,
}

/// How a run went.
pub(super) struct Outcome {
    pub meter: Meter,
    pub started: Time,
    pub ended: Time,
}

/// The instants a run keeps.
struct Clock {
    start: Time,
    /// No request arrives earlier.
    now: Time,
    /// When everything so far is done.
    all_done: Time,
    /// When each request under way is done (closed).
    under_way: BinaryHeap<Reverse<Time>>,
}

/// How often to look whether to give up.
const LOOK_EVERY: u64 = 4096;

impl Driver<'_> {
    /// Runs the trace to its end (or the limit).
    ///
    /// # Errors
    /// Of the trace, of placing a request, or of the stack, with the number of the request.
    pub fn run(mut self, trace: &mut Trace) -> Result<Outcome> {
        let start = self.start;
        let mut clock = Clock { start, now: start, all_done: start, under_way: BinaryHeap::new() };
        let mut meter = Meter::new();
        let mut last = Time::ZERO;
        for (number, record) in trace.enumerate() {
            let record = record?;
            if self.limit.is_some_and(|limit| meter.requests() >= limit) {
                break;
            }
            if (number as u64).is_multiple_of(LOOK_EVERY) && self.stop.load(Relaxed) {
                return Err(Error::invalid("another run failed"));
            }
            meter.out_of_order += u64::from(record.at < last);
            last = last.max(record.at);
            let flags = if self.flush { record.flags } else { Flags::NONE };
            let record = Record { at: last, flags, ..record };
            let served = self.serve(&record, &mut clock, &mut meter);
            served.map_err(|why| placed(why, number))?;
        }
        let ended = self.stack.finish(clock.all_done)?.max(clock.all_done);
        Ok(Outcome { meter, started: clock.start, ended })
    }

    fn serve(&mut self, record: &Record, clock: &mut Clock, meter: &mut Meter) -> Result<()> {
        let ios = self.placer.place(record)?;
        if ios.is_empty() || (record.op == Op::Flush && !self.flush) {
            meter.passed_over += 1;
            return Ok(());
        }
        let before = record.flags.has(Flags::PREFLUSH) && record.op != Op::Flush;
        let arrived = self.arrival(record, before || record.op == Op::Flush, clock);
        let mut from = arrived;
        if before {
            from = self.stack.serve(from, Io::Flush)?;
        }
        let mut done = from;
        for io in ios {
            done = done.max(self.stack.serve(from, io)?);
        }
        if record.op == Op::Flush {
            done = done.max(clock.all_done);
        }
        clock.all_done = clock.all_done.max(done);
        if matches!(self.pace, Pace::Closed { .. }) {
            clock.under_way.push(Reverse(done));
            if record.op == Op::Flush || record.flags.has(Flags::FUA) {
                clock.now = clock.now.max(done);
            }
        }
        meter.served(record.op, record.len, arrived, done);
        Ok(())
    }

    /// When a request arrives; one that is a barrier after all others.
    fn arrival(&self, record: &Record, barrier: bool, clock: &mut Clock) -> Time {
        match self.pace {
            Pace::Open { speed } => {
                let since = (record.at.0 as f64 / speed) as u64;
                clock.now = clock.now.max(Time(clock.start.0.saturating_add(since)));
            }
            Pace::Closed { queue_depth } => {
                if barrier {
                    clock.now = clock.now.max(clock.all_done);
                    clock.under_way.clear();
                }
                while clock.under_way.len() >= queue_depth as usize {
                    let Some(Reverse(free)) = clock.under_way.pop() else { break };
                    clock.now = clock.now.max(free);
                }
            }
        }
        clock.now
    }
}

/// An error with the request it came of.
fn placed(why: Error, number: usize) -> Error {
    match why {
        Error::Invalid(text) => Error::Invalid(format!("request {}: {text}", number + 1)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::Fit;
    use super::super::report::Measured;
    use super::*;
    use crate::front::trace::{ReadOptions, Source};

    /// Every request takes 100 ns, as many at once as come; a flush 1000.
    #[derive(Default)]
    struct Fixed {
        seen: Vec<(u64, Io)>,
    }

    impl Layer for Fixed {
        fn serve(&mut self, at: Time, io: Io) -> Result<Time> {
            self.seen.push((at.0, io));
            Ok(Time(at.0 + if io == Io::Flush { 1000 } else { 100 }))
        }
        fn size_bytes(&self) -> Option<u64> {
            None
        }
        fn page_bytes(&self) -> u64 {
            4096
        }
        fn measure(&self, _: &mut Measured) {}
    }

    fn closed(queue_depth: u32) -> Pace {
        Pace::Closed { queue_depth }
    }

    fn run(text: &str, pace: Pace) -> (Vec<u64>, Outcome) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let source = Source::parse(file.path().to_str().unwrap(), ReadOptions::default()).unwrap();
        let mut stack = Fixed::default();
        let driver = Driver {
            stack: &mut stack,
            placer: Placer::new(Fit::Refuse, None, None, 4096),
            pace,
            flush: true,
            limit: None,
            start: Time::ZERO,
            stop: &AtomicBool::new(false),
        };
        let outcome = driver.run(&mut source.open().unwrap()).unwrap();
        (stack.seen.iter().map(|(at, _)| *at).collect(), outcome)
    }

    const FOUR: &str = "0,W,0,512,-\n0,W,512,512,-\n0,R,0,512,-\n0,R,0,512,-\n";

    #[test]
    fn a_closed_loop_keeps_so_many_under_way() {
        let (arrivals, outcome) = run(FOUR, closed(1));
        assert_eq!(arrivals, [0, 100, 200, 300]);
        assert_eq!(outcome.ended, Time(400));
        assert_eq!(run(FOUR, closed(2)).0, [0, 0, 100, 100]);
        assert_eq!(run(FOUR, closed(64)).0, [0, 0, 0, 0]);
    }

    #[test]
    fn a_flush_is_a_barrier_to_both_sides() {
        let text = "0,W,0,512,-\n0,W,512,512,-\n0,F,0,0,-\n0,R,0,512,-\n";
        let (arrivals, outcome) = run(text, closed(64));
        assert_eq!(arrivals, [0, 0, 100, 1100]);
        assert_eq!(outcome.meter.requests(), 4);
    }

    #[test]
    fn preflush_goes_before_and_fua_holds_what_comes_after() {
        let text = "0,W,0,512,-\n0,W,512,512,PU\n0,R,0,512,-\n";
        // The flush at 100, its write at 1100; the read waits for that to be durable.
        assert_eq!(run(text, closed(64)).0, [0, 100, 1100, 1200]);
    }

    #[test]
    fn an_open_loop_keeps_the_recorded_instants() {
        let text = "0,W,0,512,-\n0.000001,W,512,512,-\n0.0000005,R,0,512,-\n0.000002,R,0,512,-\n";
        let (arrivals, outcome) = run(text, Pace::Open { speed: 1.0 });
        assert_eq!(arrivals, [0, 1000, 1000, 2000]);
        assert_eq!(outcome.meter.out_of_order, 1);
        assert_eq!(outcome.meter.latency().max, 100);
        assert_eq!(run(text, Pace::Open { speed: 10.0 }).0, [0, 100, 100, 200]);
    }
}
