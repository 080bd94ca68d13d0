//! What was written to a file that stands for a medium, and how much of it the host keeps over a power cut of its own.
//!
//! Whoever must know that something is kept takes a mark of what was written so far ([`Unsynced`]) and waits for it, with
//! the medium in others' hands meanwhile. Of those who wait together one asks the host for all.

use super::guard::{Claim, Role};
use bimetal_base::{Error, Result};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The writes of a file.
#[derive(Debug)]
pub struct Writes {
    claim: Arc<Claim>,
    /// Writes that ended.
    written: AtomicU64,
    /// Of these, those that the host keeps.
    kept: AtomicU64,
    /// The error with which the host said that it cannot keep something: it says so once, and nobody knows what it was. Held
    /// while the host is asked.
    failed: Mutex<Option<i32>>,
    #[cfg(any(test, feature = "testing"))]
    stall: Mutex<Option<Stall>>,
    #[cfg(any(test, feature = "testing"))]
    record: Mutex<Option<Record>>,
}

/// Keeps the next question to the host from being answered: it says that it was asked, and waits for a word.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug)]
pub struct Stall {
    /// Told that the host is asked.
    pub asked: std::sync::mpsc::Sender<()>,
    /// The host answers when this says so, with the error given, or when nobody is there any more.
    pub answer: std::sync::mpsc::Receiver<Option<i32>>,
}

/// What was done to the file, in order.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Debug)]
pub enum HostWrite {
    /// Bytes were written from a byte on.
    Bytes(u64, Box<[u8]>),
    /// So many bytes from a byte on became a hole.
    Hole(u64, u64),
    /// The host keeps so many of these.
    Kept(usize),
}

#[cfg(any(test, feature = "testing"))]
#[derive(Debug, Default)]
struct Record {
    writes: Vec<HostWrite>,
    /// Writes that ended before the record began.
    before: u64,
}

impl Writes {
    /// Of a file that was claimed; none so far.
    pub fn new(claim: Arc<Claim>) -> Arc<Writes> {
        // Whoever had the file before may have ended with writes that the host does not keep yet.
        let before = u64::from(claim.role() != Role::Read);
        Arc::new(Writes {
            claim,
            written: AtomicU64::new(before),
            kept: AtomicU64::new(0),
            failed: Mutex::new(None),
            #[cfg(any(test, feature = "testing"))]
            stall: Mutex::new(None),
            #[cfg(any(test, feature = "testing"))]
            record: Mutex::new(None),
        })
    }

    /// Writes bytes from a byte on.
    ///
    /// # Errors
    /// The host's.
    pub fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        let written = self.claim.file().write_all_at(bytes, at);
        #[cfg(any(test, feature = "testing"))]
        self.note(|| HostWrite::Bytes(at, bytes.into()));
        self.count();
        written.map_err(|why| Error::io(self.claim.name(), why))
    }

    /// Makes a hole; whether the host can.
    pub fn punch(&self, at: u64, len: u64) -> bool {
        let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(self.claim.file(), holes, at, len);
        #[cfg(any(test, feature = "testing"))]
        self.note(|| HostWrite::Hole(at, len));
        self.count();
        punched.is_ok()
    }

    /// Counted when they ended: who asks the host in between is not told that it keeps what it did not have yet.
    fn count(&self) {
        self.written.fetch_add(1, Ordering::Release);
    }

    /// All of them so far.
    pub fn so_far(self: &Arc<Writes>) -> Unsynced {
        Unsynced(Some((self.clone(), self.written.load(Ordering::Acquire))))
    }

    fn is_kept(&self, up_to: u64) -> bool {
        self.kept.load(Ordering::Acquire) >= up_to
    }

    fn keep(&self, up_to: u64) -> Result<()> {
        if self.is_kept(up_to) {
            return Ok(());
        }
        let failed = |errno| Error::io(self.claim.name(), io::Error::from_raw_os_error(errno));
        let mut before = self.failed.lock();
        if let Some(errno) = *before {
            return Err(failed(errno));
        }
        // Whoever was before has asked for this, too.
        if self.is_kept(up_to) {
            return Ok(());
        }
        let written = self.written.load(Ordering::Acquire);
        if let Err(errno) = self.ask() {
            *before = Some(errno);
            return Err(failed(errno));
        }
        self.kept.store(written, Ordering::Release);
        #[cfg(any(test, feature = "testing"))]
        if let Some(record) = &mut *self.record.lock() {
            record.writes.push(HostWrite::Kept(written.saturating_sub(record.before) as usize));
        }
        Ok(())
    }

    fn ask(&self) -> std::result::Result<(), i32> {
        #[cfg(any(test, feature = "testing"))]
        let stall = self.stall.lock().take();
        #[cfg(any(test, feature = "testing"))]
        if let Some(stall) = stall {
            let _ = stall.asked.send(());
            if let Ok(Some(errno)) = stall.answer.recv() {
                return Err(errno);
            }
        }
        rustix::fs::fdatasync(self.claim.file()).map_err(|why| why.raw_os_error())
    }

    #[cfg(any(test, feature = "testing"))]
    fn note(&self, write: impl FnOnce() -> HostWrite) {
        if let Some(record) = &mut *self.record.lock() {
            record.writes.push(write());
        }
    }

    /// Begins a record of what is done to the file; what was recorded so far.
    #[cfg(any(test, feature = "testing"))]
    pub fn record(&self) -> Vec<HostWrite> {
        let mut record = self.record.lock();
        let begun = record.get_or_insert_with(|| Record {
            before: self.written.load(Ordering::Acquire),
            ..Record::default()
        });
        begun.writes.clone()
    }

    /// Keeps the host from answering when it is asked next.
    #[cfg(any(test, feature = "testing"))]
    pub fn stall(&self, stall: Stall) {
        *self.stall.lock() = Some(stall);
    }
}

/// What was written to a medium up to a moment, where that is a file: the host may not keep it yet.
#[derive(Clone, Debug, Default)]
pub struct Unsynced(Option<(Arc<Writes>, u64)>);

impl Unsynced {
    /// Whether the host keeps it, or there is no host to ask.
    pub fn is_kept(&self) -> bool {
        self.0.as_ref().is_none_or(|(writes, up_to)| writes.is_kept(*up_to))
    }

    /// Has the host keep it over a power cut of its own.
    ///
    /// # Errors
    /// The host cannot, or could not keep something before: nobody knows what is lost then, so it stays so.
    pub fn keep(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |(writes, up_to)| writes.keep(*up_to))
    }
}
