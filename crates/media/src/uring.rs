//! Many requests of one file under way at once, on an io_uring.
//!
//! One ring a device and no thread of its own: whoever waits reaps. Slots hold what the kernel still
//! works on (buffers and part lists), so nothing it may touch moves or dies before its completion.
//!
//! Waiting. Of the threads that wait, one is the reaper: it sleeps in the kernel without the lock, then
//! takes every completion there is, marks the slots under the lock and wakes the others. Only the reaper
//! takes completions while there is one, so none can be taken from under it while it sleeps for exactly
//! that one; and `reaping` changes under the lock, so a waiter either sees its slot done, or becomes the
//! reaper, or sleeps on the condition before the reaper's wake-up.

use super::Request;
use super::buffer::Buffer;
use bytes::Bytes;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;
use std::io;
use std::os::fd::RawFd;

/// A request with the memory it works on.
pub(super) struct Job {
    pub request: Request,
    /// Where a read goes.
    pub buffer: Option<Buffer>,
}

/// One request under way.
struct Slot {
    /// Tells two uses of one slot apart in a ticket's number.
    generation: u32,
    job: Option<Job>,
    /// The parts of a write, as the kernel reads them.
    parts: SmallVec<[libc::iovec; 4]>,
    /// Bytes done or a negated error number.
    result: Option<i32>,
}

// SAFETY: the raw pointers in `parts` are only handed to the kernel; what they point to is owned by
// `job` in the same slot and may be used from any thread.
unsafe impl Send for Slot {}

struct State {
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// A thread sleeps in the kernel for the next completion.
    reaping: bool,
}

/// The ring of one device.
pub(super) struct Ring {
    ring: IoUring,
    state: Mutex<State>,
    changed: Condvar,
}

impl Ring {
    /// A ring for `entries` requests at once, or none if the kernel gives none.
    pub fn new(entries: u32) -> Option<Ring> {
        let ring = IoUring::builder().setup_clamp().build(entries).ok()?;
        let supported = ring.params().is_feature_nodrop() && ring.params().is_feature_submit_stable();
        if !supported {
            return None;
        }
        let count = ring.params().sq_entries();
        let slot = |_| Slot { generation: 0, job: None, parts: SmallVec::new(), result: None };
        let state =
            State { slots: (0..count).map(slot).collect(), free: (0..count).rev().collect(), reaping: false };
        Some(Ring { ring, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Starts `job` on `file` and returns its number; gives it back when every slot is taken or the
    /// kernel takes no more now.
    pub fn submit(&self, file: RawFd, job: Job) -> Result<u64, Box<Job>> {
        let mut state = self.state.lock();
        let Some(index) = state.free.pop() else { return Err(Box::new(job)) };
        let slot = &mut state.slots[index as usize];
        let number = (u64::from(slot.generation) << 32) | u64::from(index);
        slot.result = None;
        let job = slot.job.insert(job);
        let entry = entry(file, job, &mut slot.parts).user_data(number);
        // SAFETY: the lock makes this the only user of the submission queue.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: everything the entry points to stays in the slot until its completion is taken.
        let pushed = unsafe { queue.push(&entry) };
        drop(queue);
        if pushed.is_err() {
            let job = slot.job.take();
            state.free.push(index);
            return Err(Box::new(job.expect("inserted above")));
        }
        drop(state);
        // An entry that could not be handed over now (out of memory, full completion queue) stays in
        // the queue; whoever waits next hands it over.
        let _ = self.ring.submit();
        Ok(number)
    }

    /// Waits until job `number` is done and takes it out, with the bytes done.
    pub fn wait(&self, number: u64) -> (Job, io::Result<usize>) {
        let index = (number & u64::from(u32::MAX)) as usize;
        let mut state = self.state.lock();
        loop {
            if state.slots[index].result.is_some() {
                return take(&mut state, index, number);
            }
            if state.reaping {
                self.changed.wait(&mut state);
            } else {
                self.reap(&mut state);
            }
        }
    }

    /// Whether `wait` would return at once.
    pub fn is_done(&self, number: u64) -> bool {
        let index = (number & u64::from(u32::MAX)) as usize;
        let mut state = self.state.lock();
        if state.slots[index].result.is_none() && !state.reaping {
            self.collect(&mut state);
        }
        state.slots[index].result.is_some()
    }

    /// Sleeps in the kernel, without the lock, until there is a completion, and takes all there are.
    fn reap(&self, state: &mut MutexGuard<'_, State>) {
        state.reaping = true;
        MutexGuard::unlocked(state, || match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            // The completion queue is full (taken below), or a signal came, or memory is short: again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => {}
            Err(_) => std::thread::yield_now(),
        });
        state.reaping = false;
        self.collect(state);
        self.changed.notify_all();
    }

    /// Marks the slots of all completions there are. The caller has the lock and nobody reaps.
    fn collect(&self, state: &mut MutexGuard<'_, State>) {
        // SAFETY: the lock and `reaping` make this the only user of the completion queue.
        let mut queue = unsafe { self.ring.completion_shared() };
        queue.sync();
        for done in &mut queue {
            mark(state, &done);
        }
    }
}

impl Drop for Ring {
    /// The kernel may still write into our buffers: wait for what is under way.
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let unfinished = |state: &State| state.slots.iter().any(|s| s.job.is_some() && s.result.is_none());
        while unfinished(&state) {
            self.reap(&mut state);
        }
    }
}

fn mark(state: &mut State, done: &cqueue::Entry) {
    let index = (done.user_data() & u64::from(u32::MAX)) as usize;
    state.slots[index].result = Some(done.result());
}

fn take(state: &mut State, index: usize, number: u64) -> (Job, io::Result<usize>) {
    let slot = &mut state.slots[index];
    assert_eq!(u64::from(slot.generation), number >> 32, "a ticket is waited for once");
    let (Some(job), Some(result)) = (slot.job.take(), slot.result.take()) else {
        unreachable!("a slot with a result has its job");
    };
    slot.generation = slot.generation.wrapping_add(1);
    slot.parts.clear();
    state.free.push(index as u32);
    let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
    (job, result)
}

/// The queue entry of `job`; `parts` stays where it is until the completion.
fn entry(file: RawFd, job: &mut Job, parts: &mut SmallVec<[libc::iovec; 4]>) -> squeue::Entry {
    let file = types::Fd(file);
    match (&job.request, &mut job.buffer) {
        (Request::Read { offset, len }, Some(buffer)) => {
            let start = buffer.as_mut().as_mut_ptr();
            opcode::Read::new(file, start, *len as u32).offset(*offset).build()
        }
        (Request::Write { offset, data, durable }, _) => {
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            let part = |bytes: &Bytes| libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            };
            parts.extend(data.iter().map(part));
            let count = parts.len() as u32;
            opcode::Writev::new(file, parts.as_ptr(), count).offset(*offset).rw_flags(flags).build()
        }
        _ => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pool;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    fn numbered_file(blocks: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        for block in 0..blocks {
            file.write_all_at(&[block as u8; 512], block * 512).unwrap();
        }
        file
    }

    fn read_job(pool: &Arc<Pool>, block: u64) -> Job {
        let request = Request::Read { offset: block * 512, len: 512 };
        Job { request, buffer: Some(pool.take(512)) }
    }

    #[test]
    fn many_threads_wait_for_each_others_requests() {
        let Some(ring) = Ring::new(16) else { return println!("skipped: the kernel gives no io_uring") };
        let (file, pool) = (numbered_file(64), Pool::new());
        let served = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (ring, file, pool, served) = (&ring, &file, &pool, &served);
                scope.spawn(move || {
                    for round in 0..500u64 {
                        let block = (thread * 17 + round) % 64;
                        let Ok(number) = ring.submit(file.as_raw_fd(), read_job(pool, block)) else {
                            continue;
                        };
                        if round % 3 == 0 {
                            ring.is_done(number);
                        }
                        let (job, result) = ring.wait(number);
                        assert_eq!(result.unwrap(), 512);
                        assert_eq!(job.buffer.unwrap().as_ref(), &[block as u8; 512]);
                        served.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(served.into_inner(), 2000, "16 slots are enough for 4 threads");
    }

    #[test]
    fn a_full_ring_gives_the_job_back() {
        let Some(ring) = Ring::new(2) else { return println!("skipped: the kernel gives no io_uring") };
        let (file, pool) = (numbered_file(8), Pool::new());
        let submit = |block| ring.submit(file.as_raw_fd(), read_job(&pool, block));
        let numbers: Vec<u64> = (0..2).map(|block| submit(block).ok().unwrap()).collect();
        assert!(submit(2).is_err());
        for number in numbers {
            ring.wait(number).1.unwrap();
        }
        assert!(submit(3).is_ok(), "and dropping the ring waits for this one");
    }
}
