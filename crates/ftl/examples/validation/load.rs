//! A host that keeps so many requests under way.

use bimetal_base::Result;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_media::{BlockDevice, Gather, Request, Ticket};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// How requests went.
#[derive(Default)]
pub struct Load {
    /// Latencies of reads and of writes, ns.
    pub reads: Vec<u64>,
    pub writes: Vec<u64>,
    /// When the last was done.
    pub end: Time,
}

/// Asks `device` for `count` requests, `depth` of them under way, from `start` on.
pub fn closed(
    device: &dyn BlockDevice,
    (start, depth): (Time, usize),
    count: u64,
    mut next: impl FnMut(u64) -> Request,
) -> Result<Load> {
    let mut load = Load::default();
    let mut known = BinaryHeap::new();
    let mut pending = HashMap::new();
    let mut now = start;
    let note = |load: &mut Load, is_read, arrived: Time, at: Time| {
        let latencies = if is_read { &mut load.reads } else { &mut load.writes };
        latencies.push(at.0 - arrived.0);
        load.end = load.end.max(at);
    };
    for number in 0..count {
        while known.len() + pending.len() >= depth {
            let first = known.peek().map_or(Time(u64::MAX), |Reverse(at)| *at);
            match device.next_done(first) {
                Some(ticket) => {
                    let done = device.wait(Ticket::Pending(ticket));
                    done.result?;
                    if let Some((is_read, arrived)) = pending.remove(&ticket) {
                        note(&mut load, is_read, arrived, done.at);
                        now = now.max(done.at);
                    }
                }
                None => now = now.max(known.pop().map_or(now, |Reverse(at)| at)),
            }
        }
        let request = next(number);
        let is_read = matches!(request, Request::Read { .. });
        match device.submit(now, request) {
            Ticket::Done(done) => {
                done.result?;
                note(&mut load, is_read, now, done.at);
                known.push(Reverse(done.at));
            }
            Ticket::Pending(ticket) => drop(pending.insert(ticket, (is_read, now))),
        }
    }
    for (ticket, (is_read, arrived)) in pending {
        let done = device.wait(Ticket::Pending(ticket));
        done.result?;
        note(&mut load, is_read, arrived, done.at);
    }
    Ok(load)
}

/// A write of `len` bytes that nobody will read.
pub fn write(offset: u64, len: u64) -> Request {
    Request::Write { offset, data: Gather::absent(len), durable: false }
}

/// Every page of `len` bytes written in order, then as many at random; when that is done.
pub fn fill(device: &dyn BlockDevice, len: u64, times: u64) -> Result<Time> {
    let pages = device.info().size_bytes / len;
    let mut random = Random::new(1, "fill");
    let filled = closed(device, (Time::ZERO, 64), pages, |page| write(page * len, len))?;
    Ok(closed(device, (filled.end, 64), times * pages, |_| write(random.below(pages) * len, len))?.end)
}

/// The latency that a part of them is below, ns; they get sorted.
pub fn quantile(latencies: &mut [u64], part: f64) -> u64 {
    latencies.sort_unstable();
    let index = (latencies.len() as f64 * part) as usize;
    latencies.get(index.min(latencies.len().saturating_sub(1))).copied().unwrap_or(0)
}
