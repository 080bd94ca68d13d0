//! A power cut while a program runs.
//!
//! Devices on one [`Power`] supply lose it together, at the n-th write counted over all of them (or when
//! told to). From then on every request fails with [`Error::Gone`], and what is below holds what
//! survived: all that was durable, and of the rest what the [`Survival`] rule and the seed leave, torn at
//! [`DeviceInfo::atomic_bytes`]. Mount the inner devices again to see it.
//!
//! Until the cut the inner device holds everything; for each unit written and not yet flushed the
//! supply remembers the durable contents, so the cut only has to put some of them back. Requests are
//! served one after the other under the supply's lock, which makes every run of one thread repeatable.

use super::overlay::{Blocks, each_block};
use super::states::Survival;
use super::{BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket, check};
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// A power supply that fails.
pub struct Power {
    state: Mutex<State>,
    survival: Survival,
    seed: u64,
}

struct State {
    /// Writes seen so far, over all devices.
    writes: u64,
    cut_after: Option<u64>,
    off: bool,
    caches: Vec<Cache>,
}

/// What a device has not made durable.
struct Cache {
    inner: Arc<dyn BlockDevice>,
    /// Writes since the last flush, in order.
    writes: Vec<(u64, Gather)>,
    /// What is durable in the units they touched.
    durable: Blocks,
}

impl Power {
    /// A supply that fails during the `cut_after`-th write (1: the first), or only when cut by hand.
    pub fn new(cut_after: Option<u64>, survival: Survival, seed: u64) -> Arc<Power> {
        let state = State { writes: 0, cut_after, off: false, caches: Vec::new() };
        Arc::new(Power { state: Mutex::new(state), survival, seed })
    }

    /// A device on this supply, over `inner`.
    pub fn wrap(self: &Arc<Power>, inner: Arc<dyn BlockDevice>) -> Crash {
        let mut state = self.state.lock();
        state.caches.push(Cache {
            inner: Arc::clone(&inner),
            writes: Vec::new(),
            durable: Blocks::default(),
        });
        Crash { inner, power: Arc::clone(self), number: state.caches.len() - 1 }
    }

    /// Cuts the power now. Fails only if an inner device does.
    pub fn cut(&self) -> Result<()> {
        self.cut_locked(&mut self.state.lock())
    }

    /// Whether the power is gone.
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }

    /// Writes seen so far.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    fn cut_locked(&self, state: &mut State) -> Result<()> {
        if state.off {
            return Ok(());
        }
        state.off = true;
        for (number, cache) in state.caches.iter_mut().enumerate() {
            let mut random = Random::new(self.seed, &format!("power cut {number}"));
            cache.settle(self.survival, &mut random)?;
        }
        Ok(())
    }

    fn serve(&self, number: usize, at: Time, request: Request) -> Result<Completion> {
        let mut state = self.state.lock();
        let info = state.caches[number].inner.info().clone();
        check(&info, &request)?;
        if state.off {
            return Err(Error::Gone { device: info.name });
        }
        state.caches[number].note(at, &request)?;
        if matches!(request, Request::Write { .. }) {
            state.writes += 1;
            if state.cut_after == Some(state.writes) {
                self.cut_locked(&mut state)?;
                return Err(Error::Gone { device: info.name });
            }
        }
        let cache = &mut state.caches[number];
        let completion = cache.inner.run(at, request.clone());
        if completion.result.is_ok() {
            cache.acknowledge(&request);
        }
        Ok(completion)
    }
}

impl Cache {
    fn unit(&self) -> u32 {
        self.inner.info().atomic_bytes
    }

    /// Before a write: remembers it and what is durable below it.
    fn note(&mut self, at: Time, request: &Request) -> Result<()> {
        let Request::Write { offset, data, .. } = request else { return Ok(()) };
        let unit = u64::from(self.unit());
        let len: u64 = data.bytes();
        for number in offset / unit..(offset + len).div_ceil(unit) {
            if let std::collections::hash_map::Entry::Vacant(entry) = self.durable.entry(number) {
                let request = Request::Read { offset: number * unit, len: unit as usize };
                entry.insert(self.inner.run(at, request).result?);
            }
        }
        self.writes.push((*offset, data.clone()));
        Ok(())
    }

    /// After a request succeeded: what it made durable.
    fn acknowledge(&mut self, request: &Request) {
        match request {
            Request::Flush => {
                self.writes.clear();
                self.durable.clear();
            }
            Request::Write { offset, data, durable: true } => {
                self.writes.pop();
                let durable = &mut self.durable;
                each_block(*offset, data.clone(), self.inner.info().atomic_bytes, |unit, bytes| {
                    durable.insert(unit, bytes);
                });
                // Earlier writes below it can no longer be seen.
                let first = *offset;
                let last = first + data.bytes();
                self.writes = std::mem::take(&mut self.writes)
                    .into_iter()
                    .flat_map(|(at, data)| outside(at, data, first, last))
                    .collect();
            }
            _ => {}
        }
    }

    /// Leaves on the inner device what survives.
    fn settle(&mut self, survival: Survival, random: &mut Random) -> Result<()> {
        let unit_bytes = self.unit();
        let mut final_units = std::mem::take(&mut self.durable);
        let writes = std::mem::take(&mut self.writes);
        let fates = survival.draw(writes.len(), random);
        for ((offset, data), mut fate) in writes.into_iter().zip(fates) {
            each_block(offset, data, unit_bytes, |unit, bytes| {
                if fate.next_unit() {
                    final_units.insert(unit, bytes);
                }
            });
        }
        for (unit, bytes) in final_units {
            let offset = unit * u64::from(unit_bytes);
            let data = Gather::from_iter([bytes]);
            self.inner.run(Time::ZERO, Request::Write { offset, data, durable: false }).result?;
        }
        self.inner.run(Time::ZERO, Request::Flush).result.map(drop)
    }
}

/// What is left of a write outside `first..last`.
fn outside(at: u64, data: Gather, first: u64, last: u64) -> impl Iterator<Item = (u64, Gather)> {
    let whole = data.joined();
    let end = at + whole.len() as u64;
    let before = (at < first).then(|| (at, whole.slice(..(end.min(first) - at) as usize)));
    let after = (end > last).then(|| (at.max(last), whole.slice((at.max(last) - at) as usize..)));
    before.into_iter().chain(after).map(|(at, part)| (at, Gather::from_iter([part])))
}

/// A device that loses its power with others.
pub struct Crash {
    inner: Arc<dyn BlockDevice>,
    power: Arc<Power>,
    number: usize,
}

impl Crash {
    /// What is below: after the cut, what survived.
    pub fn survivor(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.inner)
    }
}

impl BlockDevice for Crash {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let served = self.power.serve(self.number, at, request);
        Ticket::Done(served.unwrap_or_else(|error| Completion { at, result: Err(error) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn ram() -> Arc<Ram> {
        Arc::new(Ram::new("ram", 8 * 512))
    }

    fn firsts(ram: &Ram) -> Vec<u8> {
        ram.image().chunks(512).map(|sector| sector[0]).collect()
    }

    #[test]
    fn the_nth_write_of_either_device_takes_both_down() {
        let power = Power::new(Some(3), Survival::Durable, 1);
        let [ssd, disk] = [ram(), ram()];
        let [a, b] = [&ssd, &disk].map(|ram| power.wrap(ram.clone()));
        let (a, b): (&dyn BlockDevice, &dyn BlockDevice) = (&a, &b);
        a.write(0, vec![1; 512]).unwrap();
        a.flush().unwrap();
        b.write(0, vec![2; 512]).unwrap();
        assert!(matches!(a.write(512, vec![3; 512]), Err(Error::Gone { .. })));
        assert!(matches!(b.read(0, 512), Err(Error::Gone { .. })));
        assert!(matches!(b.flush(), Err(Error::Gone { .. })));
        assert!(power.is_off());
        assert_eq!((firsts(&ssd)[..2].to_vec(), firsts(&disk)[0]), (vec![1, 0], 0));
    }

    #[test]
    fn with_everything_surviving_the_last_write_is_there_too() {
        let power = Power::new(Some(2), Survival::All, 1);
        let inner = ram();
        let device = power.wrap(inner.clone());
        let device: &dyn BlockDevice = &device;
        device.write(0, vec![1; 512]).unwrap();
        device.write(512, vec![2; 1024]).unwrap_err();
        assert_eq!(firsts(&inner)[..4], [1, 2, 2, 0]);
    }

    #[test]
    fn a_durable_write_survives_an_earlier_one_that_did_not() {
        let power = Power::new(None, Survival::Durable, 1);
        let inner = ram();
        let crash = power.wrap(inner.clone());
        let device: &dyn BlockDevice = &crash;
        device.write(0, vec![1; 2048]).unwrap();
        let data = Gather::from_iter([Bytes::from(vec![2; 512])]);
        device.run(Time::ZERO, Request::Write { offset: 512, data, durable: true }).result.unwrap();
        power.cut().unwrap();
        assert_eq!(firsts(&inner)[..4], [0, 2, 0, 0]);
        assert_eq!(crash.survivor().info().name, "ram");
    }

    #[derive(Clone, Debug)]
    enum Op {
        Write(u64, u64, bool),
        Flush,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let write = (0u64..8, 1u64..4, any::<bool>())
            .prop_map(|(at, len, durable)| Op::Write(at, len.min(8 - at), durable && at % 3 == 0));
        proptest::collection::vec(prop_oneof![4 => write, 1 => Just(Op::Flush)], 1..20)
    }

    proptest! {
        /// After a cut each sector holds its durable contents or one of the writes since, and by the rules
        /// `All` and `Durable` exactly the last or exactly the first of these.
        #[test]
        fn every_sector_holds_a_version_it_may_hold(ops in ops(), seed in 0u64..1000) {
            for survival in Survival::EVERY {
                let power = Power::new(None, survival, seed);
                let inner = ram();
                let device = power.wrap(inner.clone());
                let device: &dyn BlockDevice = &device;
                let mut versions = vec![vec![0u8]; 8];
                for (number, op) in ops.iter().enumerate() {
                    let value = number as u8 + 1;
                    match *op {
                        Op::Flush => {
                            device.flush().unwrap();
                            versions.iter_mut().for_each(|list| drop(list.drain(..list.len() - 1)));
                        }
                        Op::Write(at, len, durable) => {
                            let data = Gather::from_iter([Bytes::from(vec![value; len as usize * 512])]);
                            let request = Request::Write { offset: at * 512, data, durable };
                            device.run(Time::ZERO, request).result.unwrap();
                            for list in &mut versions[at as usize..(at + len) as usize] {
                                if durable { list.clear() }
                                list.push(value);
                            }
                        }
                    }
                }
                power.cut().unwrap();
                for (sector, (found, may)) in firsts(&inner).into_iter().zip(&versions).enumerate() {
                    match survival {
                        Survival::All => prop_assert_eq!(found, *may.last().unwrap()),
                        Survival::Durable => prop_assert_eq!(found, may[0]),
                        _ => prop_assert!(may.contains(&found), "sector {}: {} of {:?}", sector, found, may),
                    }
                }
            }
        }
    }
}
