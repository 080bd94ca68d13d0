//! A device that fails as told: errors on chosen requests or ranges, flipped bits, gone and back.
//!
//! Faults are planned ahead or changed while the device is in use. Without any, a request costs one
//! atomic load more.

use super::{BlockDevice, Completion, Gather, Request, filter::Filter};
use bimetal_base::Error;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes, durable or not.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
    /// Every request.
    Any,
}

/// When a fault strikes.
#[derive(Clone, Debug)]
pub enum When {
    /// On the n-th request of its kind from now on (1: the next), once.
    Nth(u64),
    /// On the n-th request of its kind from now on, and on every later one.
    FromNth(u64),
    /// On every request of its kind that touches a byte of the range. A flush touches none.
    Touching(Range<u64>),
    /// From an instant on.
    From(Time),
    /// Always.
    Always,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is done and the request fails with this `errno`.
    Error(i32),
    /// The first half of a write's atomic units is written, then it fails with this `errno`.
    TornError(i32),
    /// A read gives its bytes with one bit changed, drawn from the seed.
    FlipBit(u64),
    /// A read gives zeros.
    Zeros,
    /// A write is acknowledged and not done.
    Lose,
    /// The device vanishes with this request: it and all later ones fail with [`Error::Gone`].
    Vanish,
    /// As `Vanish`, for so many requests of any kind; then it is back with what it held.
    Blink(u64),
}

/// One planned fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which requests it strikes.
    pub kind: Kind,
    /// When.
    pub when: When,
    /// What it does.
    pub effect: Effect,
}

/// A device with planned faults.
pub struct Faulty {
    inner: Arc<dyn BlockDevice>,
    /// There are faults, or it is gone: look under the lock.
    armed: AtomicBool,
    gone: AtomicBool,
    faults: Mutex<Vec<Fault>>,
    /// Requests for which it is still away.
    away: AtomicU64,
    struck: AtomicU64,
}

impl Faulty {
    /// `inner`, without faults so far.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Faulty {
        Faulty {
            inner,
            armed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            faults: Mutex::default(),
            away: AtomicU64::new(0),
            struck: AtomicU64::new(0),
        }
    }

    /// Plans a fault. Of several that fit a request the one planned first strikes.
    pub fn plan(&self, kind: Kind, when: When, effect: Effect) {
        self.faults.lock().push(Fault { kind, when, effect });
        self.armed.store(true, Relaxed);
    }

    /// Forgets all planned faults; a device that is gone stays so.
    pub fn forget(&self) {
        self.faults.lock().clear();
        self.armed.store(self.gone.load(Relaxed), Relaxed);
    }

    /// Takes the device away now.
    pub fn vanish(&self) {
        self.gone.store(true, Relaxed);
        self.armed.store(true, Relaxed);
    }

    /// Brings it back with what it held.
    pub fn come_back(&self) {
        self.gone.store(false, Relaxed);
        self.away.store(0, Relaxed);
    }

    /// How many requests a fault has struck, those of a device that is gone not counted.
    pub fn struck(&self) -> u64 {
        self.struck.load(Relaxed)
    }

    /// The effect on this request, if any; counts down those that wait for a number.
    fn effect(&self, at: Time, request: &Request) -> Option<Effect> {
        if self.gone.load(Relaxed) {
            return Some(Effect::Vanish);
        }
        let mut faults = self.faults.lock();
        let away = self.away.load(Relaxed);
        if away > 0 {
            self.away.store(away - 1, Relaxed);
            return Some(Effect::Vanish);
        }
        let mut found = None;
        faults.retain_mut(|fault| {
            let strikes = fits(fault.kind, request) && strikes(&mut fault.when, at, request);
            if strikes && found.is_none() {
                found = Some(fault.effect);
            }
            !(strikes && matches!(fault.when, When::Nth(_)))
        });
        if found.is_some() {
            self.struck.fetch_add(1, Relaxed);
        }
        match found {
            Some(Effect::Vanish) => self.gone.store(true, Relaxed),
            Some(Effect::Blink(requests)) => self.away.store(requests.saturating_sub(1), Relaxed),
            _ => {}
        }
        found
    }

    fn fail(&self, at: Time, request: Request, effect: Effect) -> Completion {
        let name = &self.inner.info().name;
        let failed = |number| Err(Error::io(name, io::Error::from_raw_os_error(number)));
        let result = match effect {
            Effect::Vanish | Effect::Blink(_) => Err(Error::Gone { device: name.clone() }),
            Effect::Lose if matches!(request, Request::Write { .. }) => Ok(Bytes::new()),
            Effect::Lose => return self.inner.run(at, request),
            Effect::Zeros => {
                let completion = self.inner.run(at, request);
                let zeros = |bytes: Bytes| BytesMut::zeroed(bytes.len()).freeze();
                return Completion { result: completion.result.map(zeros), ..completion };
            }
            Effect::Error(number) => failed(number),
            Effect::TornError(number) => {
                if let Some(half) = self.first_half(request) {
                    self.inner.run(at, half);
                }
                failed(number)
            }
            Effect::FlipBit(seed) => {
                let completion = self.inner.run(at, request);
                return Completion { result: completion.result.map(|bytes| flip(bytes, seed)), ..completion };
            }
        };
        Completion { at, result }
    }

    fn first_half(&self, request: Request) -> Option<Request> {
        let Request::Write { offset, data, durable } = request else { return None };
        let whole = data.joined();
        let unit = self.inner.info().atomic_bytes as usize;
        let half = whole.len() / unit / 2 * unit;
        (half > 0).then(|| Request::Write { offset, data: Gather::from_iter([whole.slice(..half)]), durable })
    }
}

fn flip(bytes: Bytes, seed: u64) -> Bytes {
    if bytes.is_empty() {
        return bytes;
    }
    let mut bytes = BytesMut::from(bytes);
    let bit = Random::new(seed, "flip").below(bytes.len() as u64 * 8);
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    bytes.freeze()
}

fn fits(kind: Kind, request: &Request) -> bool {
    match kind {
        Kind::Any => true,
        Kind::Read => matches!(request, Request::Read { .. }),
        Kind::Write => matches!(request, Request::Write { .. }),
        Kind::Flush => matches!(request, Request::Flush),
        Kind::Discard => matches!(request, Request::Discard { .. }),
    }
}

fn strikes(when: &mut When, at: Time, request: &Request) -> bool {
    match when {
        When::Nth(left) => {
            *left = left.saturating_sub(1);
            *left == 0
        }
        When::FromNth(left) => {
            *left = left.saturating_sub(1);
            *left == 0
        }
        When::Touching(range) => {
            let touches =
                |(from, len): (u64, u64)| from < range.end && range.start < from.saturating_add(len);
            request.extent().is_some_and(touches)
        }
        When::From(instant) => at >= *instant,
        When::Always => true,
    }
}

impl Filter for Faulty {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion> {
        let armed = self.armed.load(Relaxed);
        match armed.then(|| self.effect(at, &request)).flatten() {
            Some(effect) => Err(self.fail(at, request, effect)),
            None => Ok((at, request)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;

    fn faulty() -> (Arc<Ram>, Faulty) {
        let ram = Arc::new(Ram::from_bytes("ram", vec![1; 8192]));
        (ram.clone(), Faulty::new(ram))
    }

    #[test]
    fn the_nth_request_of_a_kind_fails_once() {
        let (_, faulty) = faulty();
        faulty.plan(Kind::Write, When::Nth(2), Effect::Error(libc::EIO));
        let device: &dyn BlockDevice = &faulty;
        device.write(0, vec![2; 512]).unwrap();
        device.read(0, 512).unwrap();
        let error = device.write(0, vec![3; 512]).unwrap_err().to_string();
        assert!(error.starts_with("ram: Input/output error"), "{error}");
        device.write(0, vec![4; 512]).unwrap();
        assert_eq!((device.read(0, 512).unwrap()[0], faulty.struck()), (4, 1));
    }

    #[test]
    fn a_bad_range_fails_until_it_is_forgotten() {
        let (_, faulty) = faulty();
        faulty.plan(Kind::Any, When::Touching(1024..1536), Effect::Error(libc::EIO));
        let device: &dyn BlockDevice = &faulty;
        device.read(512, 512).unwrap();
        device.read(0, 2048).unwrap_err();
        device.write(1024, vec![0; 512]).unwrap_err();
        device.read(1536, 512).unwrap();
        device.flush().unwrap();
        faulty.forget();
        device.read(0, 2048).unwrap();
    }

    #[test]
    fn a_torn_write_leaves_half_of_itself() {
        let (ram, faulty) = faulty();
        faulty.plan(Kind::Write, When::Always, Effect::TornError(libc::EIO));
        let device: &dyn BlockDevice = &faulty;
        device.write(0, vec![2; 1536]).unwrap_err();
        assert_eq!((ram.image()[511], ram.image()[512]), (2, 1));
    }

    #[test]
    fn a_flipped_bit_is_one_bit_and_always_the_same() {
        let (ram, faulty) = faulty();
        faulty.plan(Kind::Read, When::Always, Effect::FlipBit(3));
        let device: &dyn BlockDevice = &faulty;
        let read = device.read(0, 4096).unwrap();
        let bits: u32 = read.iter().map(|byte| (byte ^ 1).count_ones()).sum();
        assert_eq!(bits, 1);
        assert_eq!(device.read(0, 4096).unwrap(), read);
        assert_eq!(ram.image(), vec![1; 8192]);
    }

    #[test]
    fn from_the_nth_request_of_its_kind_on_every_one_fails() {
        let (_, faulty) = faulty();
        faulty.plan(Kind::Write, When::FromNth(2), Effect::Error(libc::EIO));
        let device: &dyn BlockDevice = &faulty;
        device.write(0, vec![2; 512]).unwrap();
        device.write(0, vec![3; 512]).unwrap_err();
        device.write(0, vec![4; 512]).unwrap_err();
        assert_eq!((device.read(0, 512).unwrap()[0], faulty.struck()), (2, 2));
    }

    #[test]
    fn a_device_is_away_for_some_requests_and_lies_about_a_write_and_a_read() {
        let (ram, faulty) = faulty();
        faulty.plan(Kind::Any, When::Nth(2), Effect::Blink(2));
        faulty.plan(Kind::Write, When::Nth(2), Effect::Lose);
        let device: &dyn BlockDevice = &faulty;
        device.write(0, vec![2; 512]).unwrap();
        assert!(matches!(device.read(0, 512), Err(Error::Gone { .. })));
        assert!(matches!(device.flush(), Err(Error::Gone { .. })));
        device.write(0, vec![3; 512]).unwrap();
        assert_eq!((ram.image()[0], faulty.struck()), (2, 2), "the second write was lost");
        faulty.plan(Kind::Read, When::Nth(1), Effect::Zeros);
        assert_eq!(device.read(0, 512).unwrap(), vec![0; 512]);
        assert_eq!(device.read(0, 512).unwrap(), vec![2; 512]);
    }

    #[test]
    fn a_device_vanishes_from_an_instant_on_and_comes_back() {
        let (_, faulty) = faulty();
        faulty.plan(Kind::Any, When::From(Time(100)), Effect::Vanish);
        let read = |at| faulty.run(Time(at), Request::Read { offset: 0, len: 512 }).result;
        read(99).unwrap();
        assert!(matches!(read(100), Err(Error::Gone { .. })));
        assert!(matches!(read(50), Err(Error::Gone { .. })), "gone is gone, also for a late request");
        faulty.forget();
        faulty.come_back();
        read(200).unwrap();
    }
}
