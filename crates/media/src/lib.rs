//! Media: what the rest of the stack stands on.
//!
//! A [`BlockDevice`] is a file, a raw device or a model of one. The promises every implementation keeps
//! and every layer above relies on:
//!
//! - **Atomicity.** A write of one aligned block of [`DeviceInfo::atomic_bytes`] is seen whole or not at
//!   all after a power cut. A longer write may be torn at any such boundary, in any order.
//! - **Order.** None between requests under way together. A request submitted after another's completion
//!   was waited for sees its effect.
//! - **Durability.** A completed write survives a power cut only after a later [`Request::Flush`]
//!   completed, or if it was itself submitted `durable`.
//! - **Errors.** A failed write leaves its range with old, new or mixed contents. A failed flush means
//!   that anything written since the last good one may be lost.
//!
//! Time goes with the request: `submit(at, …)` says when it arrives, [`Completion::at`] when it is done. A model whose
//! requests can overtake each other only knows the latter once time has gone on: it leaves a ticket pending, and goes on
//! as far as is waited for ([`BlockDevice::wait`]) or asked about ([`BlockDevice::next_done`]).

pub mod answers;
pub mod buffer;
pub mod counted;
pub mod crash;
pub mod disk;
pub mod faulty;
pub mod file;
pub mod filter;
#[cfg(test)]
mod gate;
mod gather;
pub mod guard;
pub mod held;
pub mod kept;
pub mod metered;
pub mod nand;
pub mod nvram;
pub mod overlay;
pub mod part;
pub mod placed;
mod probe;
pub mod profile;
pub mod ram;
pub mod recorded;
pub mod sparse;
pub mod states;
pub mod timed;
pub mod under_way;
mod uring;
pub mod void;

pub use gather::{Gather, zeros};

use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bytes::Bytes;

/// What a device is, fixed while it is open.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// How to name it in messages: a path or a model.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Smallest unit of a request: offsets and lengths are multiples of it.
    pub block_bytes: u32,
    /// The largest aligned write that is never torn by a power cut.
    pub atomic_bytes: u32,
    /// It has a head that must move.
    pub rotational: bool,
}

/// One request. Offsets and lengths are bytes and multiples of [`DeviceInfo::block_bytes`].
#[derive(Clone, Debug)]
pub enum Request {
    /// Read `len` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: usize,
    },
    /// Write the parts of `data` one after the other from `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// What to write.
        data: Gather,
        /// Complete only when it would survive a power cut (force unit access).
        durable: bool,
    },
    /// Make every write completed before this one durable.
    Flush,
    /// The contents of the range are of no use any more; reads return anything until rewritten. It is advice: nothing
    /// is lost where it fails, and a device that knows none says so ([`takes_no_discards`]).
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

impl Request {
    /// What a device that keeps nothing gives for it: zeros for a read.
    pub fn nothing_read(&self) -> Bytes {
        match self {
            Request::Read { len, .. } => zeros(*len),
            _ => Bytes::new(),
        }
    }

    /// The first byte and the number of bytes of its range; a flush has none.
    pub fn extent(&self) -> Option<(u64, u64)> {
        match self {
            Request::Read { offset, len } => Some((*offset, *len as u64)),
            Request::Write { offset, data, .. } => Some((*offset, data.bytes())),
            Request::Discard { offset, len } => Some((*offset, *len)),
            Request::Flush => None,
        }
    }
}

/// Whether an error says that a device knows no discards, none at all.
pub fn takes_no_discards(error: &Error) -> bool {
    match error {
        Error::Ssd(of_half) => takes_no_discards(of_half),
        Error::Io { source, .. } => source.raw_os_error() == Some(libc::EOPNOTSUPP),
        _ => false,
    }
}

/// The result of a discard for who need not know whether the device did anything: one that knows none keeps its bytes.
///
/// # Errors
/// Any other error of the discard.
pub fn as_advice(result: Result<Bytes>) -> Result<Bytes> {
    result.or_else(|error| if takes_no_discards(&error) { Ok(Bytes::new()) } else { Err(error) })
}

/// How a request ended.
#[derive(Debug)]
pub struct Completion {
    /// When it was done.
    pub at: Time,
    /// The bytes of a read (empty for other requests), or what went wrong.
    pub result: Result<Bytes>,
}

/// A request that was submitted: already known (simulated media), or pending (real ones).
#[derive(Debug)]
pub enum Ticket {
    /// Done at submission.
    Done(Completion),
    /// Under way; the number is the device's own.
    Pending(u64),
}

impl Ticket {
    /// The completion of a ticket that is done; for devices that never leave one pending.
    ///
    /// # Panics
    /// If it is pending: then it is another device's.
    pub fn done(self) -> Completion {
        match self {
            Ticket::Done(completion) => completion,
            Ticket::Pending(number) => unreachable!("ticket {number} is not of this device"),
        }
    }
}

/// A device addressed in blocks. Shared between threads; every method may be called from any of them.
pub trait BlockDevice: Send + Sync {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Hands in a request that arrives at `at`. Never blocks longer than it takes to queue.
    fn submit(&self, at: Time, request: Request) -> Ticket;

    /// The device that a layer hands its requests down to, where its tickets are that device's own.
    fn below(&self) -> Option<&dyn BlockDevice> {
        None
    }

    /// Waits for a request. Each ticket is waited for exactly once.
    ///
    /// Provided: the device below does; where there is none, the request was done at submission.
    fn wait(&self, ticket: Ticket) -> Completion {
        match self.below() {
            Some(below) => below.wait(ticket),
            None => ticket.done(),
        }
    }

    /// Whether waiting for `ticket` would return at once.
    fn is_done(&self, ticket: &Ticket) -> bool {
        self.below().is_none_or(|below| below.is_done(ticket))
    }

    /// Lets a model go on in its time until a request that was submitted is done, no further than `until`: the number of
    /// its ticket, which is then waited for without waiting. None if none is done by then, or if it is no model whose
    /// time could be let go on. Requests done are named in the order in which they are, each once.
    fn next_done(&self, until: Time) -> Option<u64> {
        self.below().and_then(|below| below.next_done(until))
    }

    /// When something happens next in a model whose time can be let go on so ([`BlockDevice::next_done`]): at the
    /// earliest then another request is done.
    fn next_event(&self) -> Option<Time> {
        self.below().and_then(|below| below.next_event())
    }

    /// How many placement handles ([`Gather::placed`]) it keeps apart, 0 among them; 1: they are of no interest.
    fn handles(&self) -> u8 {
        self.below().map_or(1, |below| below.handles())
    }

    /// Whether a read gives what was written; models of a device's time alone give zeros.
    fn keeps_contents(&self) -> bool {
        self.below().is_none_or(|below| below.keeps_contents())
    }

    /// Has the next read of a range come from the medium: what the host keeps of it in memory and has written out is dropped.
    /// What verifies a medium says so before it reads; else it verifies the host's memory. What waits there to be written
    /// stays. Only advice: a host may keep it all the same.
    fn forget_cached(&self, offset: u64, len: u64) {
        if let Some(below) = self.below() {
            below.forget_cached(offset, len);
        }
    }

    /// Numbers of its own for a status, as one JSON object, if it keeps any.
    fn status(&self) -> Option<serde_json::Value> {
        self.below().and_then(|below| below.status())
    }

    /// Submits and waits. A real device does it on the calling thread, without a queue.
    fn run(&self, at: Time, request: Request) -> Completion {
        let ticket = self.submit(at, request);
        self.wait(ticket)
    }
}

/// The plain calls, each one request submitted and waited for. They arrive as soon as the device can take them: in a
/// model without a clock of its own, behind what came before.
impl dyn BlockDevice + '_ {
    /// Reads `len` bytes at `offset`.
    pub fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        self.run(Time::ZERO, Request::Read { offset, len }).result
    }

    /// Writes `data` at `offset`; not durable before the next flush.
    pub fn write(&self, offset: u64, data: impl Into<Bytes>) -> Result<()> {
        let data = Gather::from_iter([data.into()]);
        self.run(Time::ZERO, Request::Write { offset, data, durable: false }).result.map(drop)
    }

    /// Makes everything written so far durable.
    pub fn flush(&self) -> Result<()> {
        self.run(Time::ZERO, Request::Flush).result.map(drop)
    }
}

/// Waits for all of `tickets`; the instant is that of the last, the error that of the first that failed.
pub fn wait_all(device: &dyn BlockDevice, tickets: impl IntoIterator<Item = Ticket>) -> Completion {
    let mut all = Completion { at: Time::ZERO, result: Ok(Bytes::new()) };
    for ticket in tickets {
        let one = device.wait(ticket);
        all.at = all.at.max(one.at);
        if all.result.is_ok() && one.result.is_err() {
            all.result = one.result;
        }
    }
    all
}

/// Checks a request against a device that keeps contents: aligned, inside, not empty, its bytes here.
pub fn check(info: &DeviceInfo, request: &Request) -> Result<()> {
    match request {
        Request::Write { data, .. } if data.is_absent() => {
            Err(Error::invalid(format!("{}: a write without its bytes", info.name)))
        }
        request => check_range(info, request),
    }
}

/// Checks a request against a device: aligned, inside, not empty.
#[inline]
pub fn check_range(info: &DeviceInfo, request: &Request) -> Result<()> {
    let Some((offset, len)) = request.extent() else { return Ok(()) };
    let block = u64::from(info.block_bytes);
    let whole = match block.is_power_of_two() {
        // Without a division: every layer comes by here with every request.
        true => (offset | len) & (block - 1) == 0,
        false => offset.is_multiple_of(block) && len.is_multiple_of(block),
    };
    if !whole || len == 0 {
        return Err(Error::invalid(format!(
            "{}: a request of {len} bytes at {offset} is not in whole blocks of {block} bytes",
            info.name
        )));
    }
    match offset.checked_add(len) {
        Some(end) if end <= info.size_bytes => Ok(()),
        _ => Err(Error::invalid(format!(
            "{}: a request of {len} bytes at {offset} ends past the device's {} bytes",
            info.name, info.size_bytes
        ))),
    }
}

/// A completion of what came out at `at`, or of an error met when the request arrived there.
pub fn completed(arrived: Time, served: Result<(Time, Bytes)>) -> Completion {
    match served {
        Ok((at, bytes)) => Completion { at, result: Ok(bytes) },
        Err(error) => Completion { at: arrived, result: Err(error) },
    }
}
