//! Keeps the threads that serve requests on the processor of the program that makes them.
//!
//! A request and its answer hand the processor over twice. On one processor that costs 2.5 µs; across two it
//! costs 8–9 µs, because the other one has to be woken. The scheduler brings the two together only when the
//! other processor is busy. So every 64th request, at most every 4 ms, a thread looks where its client last
//! ran (`processor`, field 39 of `/proc/PID/stat`, proc(5)) and moves there.
//!
//! A thread that a serving thread starts would inherit its one processor: a file system starts its background
//! threads before it is mounted.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const EVERY_REQUESTS: u64 = 64;
const EVERY_NS: u64 = 4_000_000;

/// What a serving thread knows of its clients.
#[derive(Clone, Copy)]
struct Place {
    requests: u64,
    /// When it last looked, ns since the follower's start.
    looked_ns: Option<u64>,
    processor: Option<usize>,
}

thread_local!(static PLACE: Cell<Place> = const {
    Cell::new(Place { requests: 0, looked_ns: None, processor: None })
});

/// Moves the serving threads of a mount to their clients.
#[derive(Debug)]
pub(super) struct Follower {
    /// `None`: there is nothing to choose.
    allowed: Option<CpuSet>,
    start: Instant,
    moves: AtomicU64,
}

impl Follower {
    /// For the processors this process may use; with one, or with `on` false, it does nothing.
    pub fn new(on: bool) -> Self {
        let allowed = sched_getaffinity(None).ok().filter(|set| on && set.count() > 1);
        Follower { allowed, start: Instant::now(), moves: AtomicU64::new(0) }
    }

    /// To be called by a serving thread with each request's process id (0: none).
    pub fn request_from(&self, pid: u32) {
        let Some(allowed) = &self.allowed else { return };
        let mut place = PLACE.get();
        place.requests += 1;
        if place.requests % EVERY_REQUESTS == 1 && pid != 0 {
            self.look(pid, allowed, &mut place);
        }
        PLACE.set(place);
    }

    /// How often a thread moved.
    pub fn moves(&self) -> u64 {
        self.moves.load(Relaxed)
    }

    fn look(&self, pid: u32, allowed: &CpuSet, place: &mut Place) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        if place.looked_ns.is_some_and(|looked_ns| now_ns - looked_ns < EVERY_NS) {
            return;
        }
        place.looked_ns = Some(now_ns);
        let Some(processor) = processor_of(pid) else { return };
        let may = processor < CpuSet::MAX_CPU && allowed.is_set(processor);
        if may && place.processor != Some(processor) {
            let mut only = CpuSet::new();
            only.set(processor);
            if sched_setaffinity(None, &only).is_ok() {
                place.processor = Some(processor);
                self.moves.fetch_add(1, Relaxed);
            }
        }
    }
}

fn processor_of(pid: u32) -> Option<usize> {
    let mut text = [0; 1024];
    let len = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut text).ok()?;
    processor_field(&text[..len])
}

/// Field 39, counted after the program's name, which may itself hold blanks and brackets.
fn processor_field(stat: &[u8]) -> Option<usize> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let field = stat.get(after_name..)?.split(|byte| *byte == b' ').nth(39 - 3)?;
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_found_behind_any_program_name() {
        let mut line = b"12 (a) b (c)) S".to_vec();
        for field in 4..=52 {
            line.extend(format!(" {}", field * 10).into_bytes());
        }
        assert_eq!(processor_field(&line), Some(390));
        assert_eq!(processor_field(b"12 (x) S 1"), None);
        assert!(processor_of(std::process::id()).is_some());
    }
}
