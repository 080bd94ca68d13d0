//! The pace of a run: when each request of the trace arrives at the stack.
//!
//! *Closed*: a request arrives as soon as fewer than `queue_depth` are under way. Barriers are kept: a
//! flush waits for all before it and holds all after it; PREFLUSH is a flush before the request, FUA makes
//! the write durable and holds what comes after until it is. *Open*: a request arrives when the trace says,
//! divided by the speed, whatever is under way; its latency then includes the wait for the device.
//!
//! A model whose requests overtake each other is let go on until one is done, and no further than the next arrival; a
//! request of the trace is measured when its last request to the device is done.
//!
//! Invariants: arrivals never go back in time; a flush is done no earlier than everything before it.
//! Cost: O(log queue depth) a request.

use super::address::AddressMapper;
use super::report::Meter;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::{BlockDevice, Gather, Request, Ticket};
use bimetal_trace::{Flags, Op, Record, Trace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// When requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// As soon as fewer than this are under way.
    Closed { queue_depth: u32 },
    /// At their recorded instants, this many times faster.
    Open { speed: f64 },
}

/// A request of the trace that was served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Its place in the trace, from 0 on.
    pub number: u64,
    pub op: Op,
    /// As the trace says it, bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    pub arrived: Time,
    pub done: Time,
}

/// Hears how a run goes on.
pub(super) trait Observer {
    /// A request arrived, and was asked for; none arrives earlier from here on, and what is done by then has been told.
    fn arrived(&self, _at: Time) {}

    /// A request is done.
    fn served(&self, _served: &Served) {}
}

/// Hears nothing.
#[cfg(test)]
impl Observer for () {}

/// Drives a device with a trace.
pub(super) struct Driver<'a> {
    pub device: &'a dyn BlockDevice,
    /// Bytes of its blocks.
    pub block: u64,
    /// The end of the run flushes the device: what a cache still holds goes down.
    pub drain: bool,
    pub placer: AddressMapper,
    pub pace: Pace,
    /// Flushes and the flags that mean one are passed on.
    pub flush: bool,
    /// Serve no more than this many requests.
    pub limit: Option<u64>,
    /// The first request arrives no earlier.
    pub start: Time,
    pub observer: &'a dyn Observer,
    /// Give up: another run failed.
    pub stop: &'a AtomicBool,
}

/// How a run went.
pub(super) struct Outcome {
    pub meter: Meter,
    pub started: Time,
    pub ended: Time,
    /// What ended it, if not the trace's end.
    pub stopped: Option<Stopped>,
}

/// What ended a run before the trace did.
#[derive(Debug)]
pub(super) struct Stopped {
    /// What the device, or the laying out of the trace, said.
    pub why: Error,
    /// The trace's request that met it, from 1 on; none if it came before or after them.
    pub request: Option<u64>,
}

impl Stopped {
    /// What a request of the trace met, counted from 0.
    fn at(number: u64, why: Error) -> Stopped {
        Stopped { why, request: Some(number + 1) }
    }
}

/// The instants a run keeps, and what is under way.
struct Clock {
    start: Time,
    /// No request arrives earlier.
    now: Time,
    /// When everything so far that is known to be done is done.
    all_done: Time,
    /// When each request of the trace under way is done, of those of which it is known (closed).
    under_way: BinaryHeap<Reverse<Time>>,
    /// The others, by the order in which they came.
    open: BTreeMap<u64, Open>,
    /// The one of them before whose end nothing arrives, if there is one (closed).
    holding: Option<u64>,
    /// To which of them a ticket belongs.
    tickets: BTreeMap<u64, u64>,
}

/// A request of the trace under way.
struct Open {
    op: Op,
    offset: u64,
    len: u64,
    arrived: Time,
    /// Requests to the device under way.
    parts: usize,
    /// When those before are done.
    done: Time,
    /// What is asked then.
    then: Vec<Request>,
    /// Nothing arrives before it is done (closed).
    holds: bool,
}

impl Clock {
    fn new(start: Time) -> Clock {
        Clock {
            start,
            now: start,
            all_done: start,
            under_way: BinaryHeap::new(),
            open: BTreeMap::new(),
            holding: None,
            tickets: BTreeMap::new(),
        }
    }

    /// A flush that has waited for all before it, if that is what comes first of what is under way.
    fn take_flush(&mut self) -> Option<(u64, Open)> {
        let first = self.open.first_entry()?;
        let open = first.get();
        let waited = open.op == Op::Flush && open.parts == 0 && open.then.is_empty();
        waited.then(|| first.remove_entry())
    }
}

/// No request is done later, 292 years after the beginning, so that no sum of instants overflows.
pub(super) const TIME_MAX: Time = Time(u64::MAX / 2);

/// The refusal of an instant after [`TIME_MAX`].
pub(super) fn too_late() -> Error {
    Error::invalid(
        "it would be done later than virtual time can say, 292 years; choose a higher --speed or a smaller --overhead",
    )
}

/// Later than anything.
const FOREVER: Time = Time(u64::MAX);
/// How often to look whether to give up.
pub(super) const LOOK_EVERY: usize = 4096;

impl Driver<'_> {
    /// Runs the trace to its end (or the limit), or until the device serves no more of it.
    ///
    /// # Errors
    /// Of the trace.
    pub fn run(mut self, trace: &mut Trace) -> Result<Outcome> {
        let start = self.start;
        let mut clock = Clock::new(start);
        let mut meter = Meter::new();
        let mut asked = 0;
        let mut stopped = None;
        let (mut first, mut last) = (None, Time::ZERO);
        for (number, record) in trace.enumerate() {
            let record = record?;
            if self.limit.is_some_and(|limit| asked >= limit) {
                break;
            }
            if number.is_multiple_of(LOOK_EVERY) && self.stop.load(Relaxed) {
                return Err(Error::invalid("another run failed"));
            }
            meter.out_of_order += u64::from(record.at < last || record.flags.has(Flags::EARLY));
            last = last.max(record.at);
            let flags = if self.flush { record.flags } else { Flags::NONE };
            // Instants count from the first request, whatever the trace counts from.
            let first = *first.get_or_insert(last);
            let record = Record { at: Time(last.0 - first.0), flags, ..record };
            match self.serve(number as u64, &record, &mut clock, &mut meter) {
                Ok(served) => {
                    asked += u64::from(served);
                    self.observer.arrived(clock.now);
                }
                Err(why) => {
                    stopped = Some(why);
                    break;
                }
            }
        }
        if stopped.is_none() {
            stopped = self.wait_all(&mut clock, &mut meter).err();
        }
        let mut ended = clock.all_done;
        if self.drain && stopped.is_none() {
            let drained = self.device.run(ended, Request::Flush);
            match drained.result {
                Ok(_) => ended = drained.at.max(ended),
                Err(why) => stopped = Some(Stopped { why, request: None }),
            }
        }
        Ok(Outcome { meter, started: clock.start, ended, stopped })
    }

    /// A run whose device served nothing, because of `why`.
    pub fn not_begun(&self, why: Error) -> Outcome {
        let (started, ended) = (self.start, self.start);
        Outcome { meter: Meter::new(), started, ended, stopped: Some(Stopped { why, request: None }) }
    }

    /// Has a request of the trace arrive; whether there is one.
    fn serve(
        &mut self,
        number: u64,
        record: &Record,
        clock: &mut Clock,
        meter: &mut Meter,
    ) -> Result<bool, Stopped> {
        let asked = self.placer.place(record).map_err(|why| Stopped::at(number, why))?;
        if asked.is_nothing() || (record.op == Op::Flush && !self.flush) {
            meter.passed_over += 1;
            return Ok(false);
        }
        let before = record.flags.has(Flags::PREFLUSH) && record.op != Op::Flush;
        if !self.arrival(record, before || record.op == Op::Flush, clock, meter)? {
            return Err(Stopped::at(number, too_late()));
        }
        let spans = asked.spans.into_iter();
        let block = self.block;
        let mut requests =
            spans.filter_map(|span| request(asked.op, record.flags, in_blocks(asked.op, span, block)));
        let flush = (before || asked.op == Op::Flush).then_some(Request::Flush);
        let mut open = Open {
            op: record.op,
            offset: record.offset,
            len: record.len,
            arrived: clock.now,
            parts: 0,
            done: clock.now,
            then: Vec::new(),
            holds: record.op == Op::Flush || record.flags.has(Flags::FUA),
        };
        let failed = |why| Stopped::at(number, why);
        match flush {
            Some(flush) => {
                open.then = requests.collect();
                self.ask(&mut open, (number, clock.now), flush, clock).map_err(failed)?;
            }
            None => {
                let from = (number, clock.now);
                requests.try_for_each(|request| self.ask(&mut open, from, request, clock)).map_err(failed)?;
            }
        }
        self.settle(number, open, clock, meter)?;
        Ok(true)
    }

    /// Asks the device for a part of `open`, which has that number, at an instant.
    fn ask(
        &self,
        open: &mut Open,
        (number, at): (u64, Time),
        request: Request,
        clock: &mut Clock,
    ) -> Result<()> {
        match self.device.submit(at, request) {
            Ticket::Done(completion) => {
                completion.result?;
                open.done = open.done.max(completion.at);
            }
            Ticket::Pending(ticket) => {
                clock.tickets.insert(ticket, number);
                open.parts += 1;
            }
        }
        Ok(())
    }

    /// Goes on with a request of the trace that a part of was done: what it asks next, or its end.
    fn settle(
        &self,
        number: u64,
        mut open: Open,
        clock: &mut Clock,
        meter: &mut Meter,
    ) -> Result<(), Stopped> {
        if open.parts == 0 && !open.then.is_empty() {
            let from = (number, open.done);
            for request in std::mem::take(&mut open.then) {
                self.ask(&mut open, from, request, clock).map_err(|why| Stopped::at(number, why))?;
            }
        }
        if open.parts > 0 {
            if open.holds {
                clock.holding = Some(number);
            }
            clock.open.insert(number, open);
            return Ok(());
        }
        // It waits for all before it.
        if open.op == Op::Flush && clock.open.range(..number).next().is_some() {
            clock.open.insert(number, open);
            return Ok(());
        }
        self.end(number, open, clock, meter)?;
        while let Some((number, flush)) = clock.take_flush() {
            self.end(number, flush, clock, meter)?;
        }
        Ok(())
    }

    /// The end of a request of the trace all of which is done.
    fn end(&self, number: u64, mut open: Open, clock: &mut Clock, meter: &mut Meter) -> Result<(), Stopped> {
        if open.op == Op::Flush {
            open.done = open.done.max(clock.all_done);
        }
        if open.done > TIME_MAX {
            return Err(Stopped::at(number, too_late()));
        }
        clock.holding.take_if(|holding| *holding == number);
        clock.all_done = clock.all_done.max(open.done);
        if matches!(self.pace, Pace::Closed { .. }) {
            clock.under_way.push(Reverse(open.done));
            if open.holds {
                clock.now = clock.now.max(open.done);
            }
        }
        let Open { op, offset, len, arrived, done, .. } = open;
        meter.served(op, len, arrived, done);
        self.observer.served(&Served { number, op, offset, len, arrived, done });
        Ok(())
    }

    /// Lets the device go on until one of its requests is done, no further than `until`; whether one was.
    fn go_on(&self, until: Time, clock: &mut Clock, meter: &mut Meter) -> Result<bool, Stopped> {
        let ticket = match self.device.next_done(until) {
            Some(ticket) => ticket,
            // A device that is no model: somebody has to wait.
            None if until == FOREVER => match clock.tickets.first_key_value() {
                Some((ticket, _)) => *ticket,
                None => return Ok(false),
            },
            None => return Ok(false),
        };
        let completion = self.device.wait(Ticket::Pending(ticket));
        let number = clock.tickets.remove(&ticket);
        let found = number.and_then(|number| Some((number, clock.open.remove(&number)?)));
        let Some((number, mut open)) = found else { return Ok(true) };
        completion.result.map_err(|why| Stopped::at(number, why))?;
        open.parts -= 1;
        open.done = open.done.max(completion.at);
        self.settle(number, open, clock, meter)?;
        Ok(true)
    }

    /// Waits until all is done.
    fn wait_all(&self, clock: &mut Clock, meter: &mut Meter) -> Result<(), Stopped> {
        while !clock.open.is_empty() && self.go_on(FOREVER, clock, meter)? {}
        Ok(())
    }

    /// Lets time go on until the next request may arrive: one that is a barrier after all others. Whether there is such an
    /// instant.
    fn arrival(
        &mut self,
        record: &Record,
        barrier: bool,
        clock: &mut Clock,
        meter: &mut Meter,
    ) -> Result<bool, Stopped> {
        match self.pace {
            Pace::Open { speed } => {
                let since = (record.at.0 as f64 / speed) as u64;
                let arrives = clock.now.max(Time(clock.start.0.saturating_add(since)));
                if arrives > TIME_MAX {
                    return Ok(false);
                }
                while !clock.open.is_empty() && self.go_on(arrives, clock, meter)? {}
                clock.now = arrives;
            }
            Pace::Closed { queue_depth } => {
                if barrier {
                    self.wait_all(clock, meter)?;
                    clock.now = clock.now.max(clock.all_done);
                    clock.under_way.clear();
                }
                while clock.holding.is_some() && self.go_on(FOREVER, clock, meter)? {}
                while clock.under_way.len() + clock.open.len() >= queue_depth as usize {
                    let first = clock.under_way.peek().map(|Reverse(free)| *free);
                    if !clock.open.is_empty() && self.go_on(first.unwrap_or(FOREVER), clock, meter)? {
                        continue;
                    }
                    let Some(Reverse(free)) = clock.under_way.pop() else { break };
                    clock.now = clock.now.max(free);
                }
            }
        }
        Ok(true)
    }
}

/// The blocks that a range touches; of a discard, those that lie wholly in it.
fn in_blocks(op: Op, (offset, len): (u64, u64), block: u64) -> (u64, u64) {
    if block == 1 {
        return (offset, len);
    }
    let end = offset.saturating_add(len);
    let (first, last) = match op {
        Op::Discard => (offset.div_ceil(block), end / block),
        _ => (offset / block, end.div_ceil(block)),
    };
    (first * block, last.saturating_sub(first) * block)
}

/// What is asked of a range, if there is one. What is metadata carries placement handle 1.
fn request(op: Op, flags: Flags, (offset, len): (u64, u64)) -> Option<Request> {
    match op {
        _ if len == 0 => None,
        // A range longer than memory is no range of a device.
        Op::Read => Some(Request::Read { offset, len: usize::try_from(len).unwrap_or(usize::MAX) }),
        Op::Write => {
            let data = Gather::absent(len).placed(u8::from(flags.has(Flags::META)));
            Some(Request::Write { offset, data, durable: flags.has(Flags::FUA) })
        }
        _ => Some(Request::Discard { offset, len }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::Fit;
    use super::*;
    use bimetal_media::counted::Counted;
    use bimetal_media::void::Void;
    use bimetal_media::{Completion, DeviceInfo, Ticket};
    use bimetal_trace::{ReadOptions, Source};
    use bytes::Bytes;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Every request takes 100 ns, as many at once as come; a flush 1000.
    struct Fixed {
        void: Void,
        seen: Mutex<Vec<u64>>,
    }

    impl BlockDevice for Fixed {
        fn info(&self) -> &DeviceInfo {
            self.void.info()
        }
        fn submit(&self, at: Time, request: Request) -> Ticket {
            self.seen.lock().push(at.0);
            let takes = if matches!(request, Request::Flush) { 1000 } else { 100 };
            Ticket::Done(Completion { at: Time(at.0 + takes), result: Ok(Bytes::new()) })
        }
    }

    fn closed(queue_depth: u32) -> Pace {
        Pace::Closed { queue_depth }
    }

    fn run(text: &str, pace: Pace) -> (Vec<u64>, Outcome) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let source = Source::parse(file.path().to_str().unwrap(), ReadOptions::default()).unwrap();
        let device = Fixed { void: Void::new("void", 1 << 30, 512), seen: Mutex::default() };
        let outcome = drive(&device, &source, pace);
        (device.seen.into_inner(), outcome)
    }

    /// Drives `device` with a trace to its end.
    fn drive(device: &dyn BlockDevice, source: &Source, pace: Pace) -> Outcome {
        let driver = Driver {
            device,
            block: 512,
            drain: false,
            placer: AddressMapper::new(Fit::Refuse, None, None, 4096),
            pace,
            flush: true,
            limit: None,
            start: Time::ZERO,
            observer: &(),
            stop: &AtomicBool::new(false),
        };
        driver.run(&mut source.open().unwrap()).unwrap()
    }

    /// A disk that keeps nothing, and a trace of this text.
    fn disk_and(text: &str) -> (bimetal_media::disk::Disk, Source, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let source = Source::parse(file.path().to_str().unwrap(), ReadOptions::default()).unwrap();
        let storage = Arc::new(Void::new("void", 64 << 20, 512));
        let profile = bimetal_media::profile::load("hdd-7200").unwrap();
        (bimetal_media::disk::Disk::new(&profile, storage), source, file)
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
        let epoch = "1700000000,W,0,512,-\n1700000000.000001,W,0,512,-\n";
        assert_eq!(run(epoch, Pace::Open { speed: 1.0 }).0, [0, 1000], "from the first request on");
        let text = "0,W,0,512,-\n0.000001,W,512,512,-\n0.0000005,R,0,512,-\n0.000002,R,0,512,-\n";
        let (arrivals, outcome) = run(text, Pace::Open { speed: 1.0 });
        assert_eq!(arrivals, [0, 1000, 1000, 2000]);
        assert_eq!(outcome.meter.out_of_order, 1);
        assert_eq!(outcome.meter.latency().max, 100);
        assert_eq!(run(text, Pace::Open { speed: 10.0 }).0, [0, 100, 100, 200]);
    }

    #[test]
    fn a_disk_orders_what_is_under_way_and_each_request_is_measured_when_it_is_done() {
        let line = |number: u64| format!("0,R,{},4096,{}\n", number * 7_919 % 16_384 * 4096, "-");
        let text = (0..200).map(line).collect::<String>() + "0,F,0,0,-\n0,W,0,512,PU\n";
        let run = |queue_depth| {
            let (disk, source, _file) = disk_and(&text);
            let outcome = drive(&disk, &source, closed(queue_depth));
            assert!(outcome.stopped.is_none());
            assert_eq!(outcome.meter.requests(), 202);
            (outcome.ended.0, outcome.meter.latency())
        };
        let ((alone, one), (queued, many)) = (run(1), run(16));
        assert!(queued * 3 < alone * 2, "{queued} with 16 under way, {alone} with one");
        // Little's law: what is under way is the mean latency times the rate.
        assert!((one.mean * 202.0 / alone as f64 - 1.0).abs() < 0.01, "{one:?}");
        assert!((many.mean * 202.0 / queued as f64 / 16.0 - 1.0).abs() < 0.15, "{many:?}");
    }

    #[test]
    fn a_flush_ends_with_what_was_under_way_when_it_came() {
        let text = "0,R,0,4096,-\n0,R,40000000,4096,-\n0.000001,F,0,0,-\n0.000002,F,0,0,-\n0.5,R,0,4096,-\n";
        let (disk, source, _file) = disk_and(text);
        let outcome = drive(&disk, &source, Pace::Open { speed: 1.0 });
        assert!(outcome.stopped.is_none());
        let latency = outcome.meter.latency_by_operation();
        let (reads, flushes) = (&latency["read"], &latency["flush"]);
        assert_eq!((outcome.meter.requests(), flushes.min), (5, reads.max - 2000), "{latency:?}");
        assert_eq!(flushes.max, reads.max - 1000, "the first arrived sooner");
    }

    #[test]
    fn a_device_is_asked_for_whole_blocks() {
        let counted = Counted::new(Arc::new(Void::new("void", 1 << 20, 512)));
        for (op, span) in [(Op::Write, (1000, 100)), (Op::Read, (1000, 3000)), (Op::Discard, (1000, 100))] {
            if let Some(request) = request(op, Flags::FUA | Flags::META, in_blocks(op, span, 512)) {
                assert!(!matches!(&request, Request::Write { data, .. } if data.handle() != 1));
                counted.run(Time::ZERO, request).result.unwrap();
            }
        }
        let counts = counted.counts();
        assert_eq!((counts.write_bytes, counts.read_bytes, counts.durable_writes), (1024, 3584, 1));
        assert_eq!(counts.discards, 0);
    }
}
