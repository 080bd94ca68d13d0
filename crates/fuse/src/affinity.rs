//! Keeps the threads that serve requests on the processor of the program that makes them.
//!
//! A request and its answer hand the processor over twice. On one processor that costs 2.5 µs; across two it
//! costs 8–9 µs, because the other one has to be woken. The scheduler brings the two together only when the
//! other processor is busy. So every 64th request, at most every 4 ms, a serving thread asks for a look at where
//! its client last ran (`processor`, field 39 of `/proc/PID/stat`, proc(5)) and is moved there.
//!
//! A thread of its own does the looking. Reading `/proc/PID/stat` waits while PID is in the middle of execve(2),
//! and a program in the middle of execve closes files, which may need an answer from this very mount: a serving
//! thread that looked would wait for a client that waits for it, for ever. The looking thread also shares no file
//! descriptors with the others, so that a server which is killed while it looks lets go of `/dev/fuse`.
//!
//! A thread that a serving thread starts would inherit its one processor: a file system starts its background
//! threads before it is mounted.

use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

const EVERY_REQUESTS: u64 = 64;
const EVERY_NS: u64 = 4_000_000;
/// Looks that may be waiting; more are not worth having, as the client will have moved on.
const WAITING: usize = 8;

/// What a serving thread knows of itself.
#[derive(Clone, Copy)]
struct Place {
    requests: u64,
    /// When it last asked for a look, ns since the follower's start.
    asked_ns: Option<u64>,
}

thread_local!(static PLACE: Cell<Place> = const { Cell::new(Place { requests: 0, asked_ns: None }) });

/// Where does `client` run? `server` shall run there too.
struct Look {
    server: Pid,
    client: u32,
}

/// Moves the serving threads of a mount to their clients.
#[derive(Debug)]
pub(super) struct CpuAffinity {
    /// `None`: there is nothing to choose.
    looks: Option<SyncSender<Look>>,
    start: Instant,
    moves: Arc<AtomicU64>,
}

impl CpuAffinity {
    /// For the processors this process may use; with one, or with `on` false, it does nothing.
    pub fn new(on: bool) -> io::Result<Self> {
        let allowed = sched_getaffinity(None).ok().filter(|set| on && set.count() > 1);
        let moves = Arc::new(AtomicU64::new(0));
        let looks = allowed.map(|allowed| start(allowed, moves.clone())).transpose()?;
        Ok(CpuAffinity { looks, start: Instant::now(), moves })
    }

    /// To be called by a serving thread with each request's process id (0: none).
    pub fn request_from(&self, pid: u32) {
        let Some(looks) = &self.looks else { return };
        let mut place = PLACE.get();
        place.requests += 1;
        if place.requests % EVERY_REQUESTS == 1 && pid != 0 {
            let now_ns = self.start.elapsed().as_nanos() as u64;
            if place.asked_ns.is_none_or(|asked_ns| now_ns - asked_ns >= EVERY_NS) {
                place.asked_ns = Some(now_ns);
                // Nobody looks any more, or too many wait: then the thread stays where it is.
                let _ = looks.try_send(Look { server: gettid(), client: pid });
            }
        }
        PLACE.set(place);
    }

    /// How often a thread moved.
    pub fn moves(&self) -> u64 {
        self.moves.load(Relaxed)
    }
}

/// Starts the looking thread. It ends with the follower, and nobody waits for it.
fn start(allowed: CpuSet, moves: Arc<AtomicU64>) -> io::Result<SyncSender<Look>> {
    let (sender, looks) = sync_channel(WAITING);
    let look = move || {
        if leave_descriptors().is_ok() {
            look(&looks, &allowed, &moves);
        }
    };
    thread::Builder::new().name("follow".into()).spawn(look)?;
    Ok(sender)
}

/// Gives this thread an empty table of file descriptors. Where the kernel cannot (before 5.9), it says so.
fn leave_descriptors() -> io::Result<()> {
    // SAFETY: CLOSE_RANGE_UNSHARE gives this thread a table of its own first, and this thread owns no descriptor.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn look(looks: &Receiver<Look>, allowed: &CpuSet, moves: &AtomicU64) {
    let mut places: Vec<(Pid, usize)> = Vec::new();
    for Look { server, client } in looks {
        let known = places.iter().position(|(thread, _)| *thread == server);
        let Some(processor) = processor_of(client) else { continue };
        let may = processor < CpuSet::MAX_CPU && allowed.is_set(processor);
        if !may || known.is_some_and(|at| places[at].1 == processor) {
            continue;
        }
        let mut only = CpuSet::new();
        only.set(processor);
        if sched_setaffinity(Some(server), &only).is_ok() {
            match known {
                Some(at) => places[at].1 = processor,
                None => places.push((server, processor)),
            }
            moves.fetch_add(1, Relaxed);
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
