//! Object requests driven through an object store, pass after pass, for measurements.
//!
//! The objects of a trace are made first. Then its requests are run as often as asked for. What a pass made and
//! left behind stays, as the files of one day's work do, and the next pass makes new ones; when what was left
//! behind is more than the *turnover* allows, one of it, drawn at random, is removed whenever an object is made.
//! So data keeps dying that was written at many different times. An object that was there at the start
//! and is gone by the end of a pass is made again before the next. Every `commit_every` of the trace's time the store is flushed, as a
//! system writes back what nobody asked to be durable; a request to make an object durable flushes it, too.

use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::nand::{Nand, NandProfile, Payload};
use bimetal_osd_core::{Capacity, Cleaning, Content, Counts, Format, ObjectId, Options, SetTimes, Store};
use bimetal_trace::objects::{ObjectOp, ObjectRequest, ObjectTrace};
use rustc_hash::FxHashSet;
use std::time::Duration;

/// The name under which a file system keeps what it knows of an object, and how much that is.
const FS_ATTRIBUTE: (&[u8], &[u8]) = (b"fs", &[0; 24]);
/// Objects are made and filled in pieces of this size.
const PIECE_BYTES: u64 = 128 << 10;

/// A store and the objects of a trace in it.
pub struct Driver<'a> {
    /// The store.
    pub store: Store,
    trace: &'a ObjectTrace,
    ids: Vec<Option<ObjectId>>,
    commit_every: Duration,
    /// The trace's time at which the current pass began.
    base: Time,
    /// Reads go to the flash; otherwise they only set the access time.
    read_flash: bool,
    /// What earlier passes left behind, with its size, and how much of it there may be.
    left: Vec<(ObjectId, u64)>,
    left_bytes: u64,
    turnover_bytes: u64,
    random: Random,
}

/// How a [`Driver`] drives.
#[derive(Clone, Copy, Debug)]
pub struct Driving {
    /// How often what nobody asked to be durable is made durable.
    pub commit_every: Duration,
    /// Reads go to the flash; otherwise they only set the access time.
    pub read_flash: bool,
    /// How much of what earlier passes left behind stays, bytes.
    pub turnover_bytes: u64,
    /// What is removed of it is drawn from this.
    pub seed: u64,
}

impl<'a> Driver<'a> {
    /// A driver of `trace` on an empty store, its first objects made.
    ///
    /// # Errors
    /// Those of the store; [`Error::NoSpace`] if they do not fit.
    pub fn new(store: Store, trace: &'a ObjectTrace, how: &Driving) -> Result<Driver<'a>> {
        let mut driver = Driver {
            store,
            trace,
            ids: vec![None; trace.objects as usize],
            commit_every: how.commit_every,
            base: Time::ZERO,
            read_flash: how.read_flash,
            left: Vec::new(),
            left_bytes: 0,
            turnover_bytes: how.turnover_bytes,
            random: Random::new(how.seed, "turnover"),
        };
        driver.populate()?;
        Ok(driver)
    }

    /// Makes the objects of the start that are not there.
    fn populate(&mut self) -> Result<()> {
        for (object, size) in &self.trace.initial {
            if self.ids[*object as usize].is_some() {
                continue;
            }
            let id = self.create(*object)?;
            let mut offset = 0;
            while offset < *size {
                let len = (*size - offset).min(PIECE_BYTES);
                self.store.write(id, offset, Content::Count(len))?;
                offset += len;
            }
        }
        self.store.flush()
    }

    /// Leaves behind what the pass made and did not remove.
    fn leave_behind(&mut self) -> Result<()> {
        let there: FxHashSet<u32> = self.trace.initial.iter().map(|(object, _)| *object).collect();
        for (object, slot) in self.ids.iter_mut().enumerate() {
            if !there.contains(&(object as u32))
                && let Some(id) = slot.take()
            {
                let size = self.store.stat(id)?.size;
                self.left.push((id, size));
                self.left_bytes += size;
            }
        }
        Ok(())
    }

    /// Removes one of what was left behind, if there is too much of it.
    fn turn_over(&mut self) -> Result<()> {
        while self.left_bytes > self.turnover_bytes && !self.left.is_empty() {
            let drawn = self.random.below(self.left.len() as u64) as usize;
            let (id, size) = self.left.swap_remove(drawn);
            self.left_bytes -= size;
            self.store.remove(id)?;
        }
        Ok(())
    }

    fn create(&mut self, object: u32) -> Result<ObjectId> {
        let id = self.store.create(0)?;
        self.store.set_attribute(id, FS_ATTRIBUTE.0, FS_ATTRIBUTE.1)?;
        self.ids[object as usize] = Some(id);
        Ok(id)
    }

    /// Runs all requests once; what the store did for them.
    ///
    /// # Errors
    /// Those of the store.
    pub fn pass(&mut self) -> Result<Counts> {
        let before = self.store.counts();
        self.populate()?;
        let mut due = self.base + self.commit_every;
        let mut last = self.base;
        for request in &self.trace.requests {
            let at = self.base + Duration::from_nanos(request.at.0);
            while at >= due {
                self.store.arrive(due);
                self.store.flush()?;
                due += self.commit_every;
            }
            self.store.arrive(at);
            self.serve(request)?;
            last = at;
        }
        self.base = last + self.commit_every;
        self.store.arrive(self.base);
        self.leave_behind()?;
        self.turn_over()?;
        self.store.flush()?;
        Ok(self.store.counts().since(&before))
    }

    fn serve(&mut self, request: &ObjectRequest) -> Result<()> {
        let known = self.ids[request.object as usize];
        match request.ask {
            ObjectOp::Create => {
                if let Some(old) = known {
                    self.store.remove(old)?;
                }
                self.turn_over()?;
                self.create(request.object).map(drop)
            }
            ObjectOp::Remove => match self.ids[request.object as usize].take() {
                Some(id) => self.store.remove(id),
                None => Ok(()),
            },
            ObjectOp::Flush => self.store.flush(),
            other => {
                let id = match known {
                    Some(id) => id,
                    None => self.create(request.object)?,
                };
                self.change(id, other)
            }
        }
    }

    fn change(&mut self, id: ObjectId, ask: ObjectOp) -> Result<()> {
        match ask {
            ObjectOp::Read { offset, len } if self.read_flash => {
                let len = usize::try_from(len).map_err(|_| Error::TooLarge)?;
                self.store.read(id, offset, len).map(drop)
            }
            ObjectOp::Read { .. } | ObjectOp::Touch => self.store.touch(id),
            ObjectOp::Write { offset, len } => self.store.write(id, offset, Content::Count(len)),
            ObjectOp::Truncate(size) => self.store.truncate(id, size),
            ObjectOp::SetAttributes => {
                let changed = Some(self.store.done().into());
                self.store.set_times(id, &SetTimes { changed, ..SetTimes::default() })
            }
            ObjectOp::Create | ObjectOp::Remove | ObjectOp::Flush => Ok(()),
        }
    }

    /// Passes until the store has written its flash `turns` times over and then two passes in a row clean about
    /// as much as each other; how many passes that took, at most `passes`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn settle(&mut self, turns: f64, passes: u32) -> Result<u32> {
        let Capacity { flash, .. } = self.store.capacity();
        let page_bytes = u64::from(self.store.nand().geometry().page_bytes);
        let (mut written, mut last) = (0.0, 0u64);
        for pass in 1..=passes {
            let counts = self.pass()?;
            written += (counts.pages() * page_bytes) as f64;
            let steady = counts.segments_cleaned.abs_diff(last) * 20 <= last.max(20);
            if written >= turns * flash as f64 && steady {
                return Ok(pass);
            }
            last = counts.segments_cleaned;
        }
        Ok(passes)
    }
}

/// One measurement: a trace on a store of a placement, at a utilisation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The placement, with its settings.
    pub placement: String,
    /// Erase blocks of a segment.
    pub segment_blocks: u32,
    /// The most bytes that objects have at a time, as a part of the flash.
    pub utilisation: f64,
    /// Which segment is cleaned.
    pub cleaning: Cleaning,
    /// How often what nobody asked to be durable is made durable.
    pub commit_every: Duration,
}

/// What a measurement found, after a steady state was reached.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Measured {
    /// Passes until the steady state, and measured.
    pub passes: (u32, u32),
    /// Requests of a pass.
    pub requests: u64,
    /// What the store did in the measured passes.
    pub counts: Counts,
    /// Bytes of all good segments.
    pub flash_bytes: u64,
    /// Bytes of objects alive on the flash at the end.
    pub live_bytes: u64,
}

/// Measures `trace` on a NAND like `part`, of the size that the utilisation asks for.
///
/// # Errors
/// The objects do not fit at this utilisation.
pub fn measure(trace: &ObjectTrace, part: &NandProfile, setup: &Setup, seed: u64) -> Result<Measured> {
    let (most, _) = trace.shape();
    let turnover_bytes = (most as f64 * TURNOVER) as u64;
    let flash = ((most + turnover_bytes) as f64 / setup.utilisation) as u64;
    let part = part.clone().ideal().resized(flash, 64).modelled()?;
    let nand = Nand::new(part, seed, true, Payload::memory());
    let format = Format { segment_blocks: setup.segment_blocks, placement: setup.placement.clone() };
    let options = Options { cleaning: setup.cleaning, keep_bytes: false, ..Options::default() };
    let store = Store::format(nand, &format, options)?;
    let how = Driving { commit_every: setup.commit_every, read_flash: false, turnover_bytes, seed };
    let mut driver = Driver::new(store, trace, &how)?;
    let settled = driver.settle(SETTLE_TURNS, PASSES_MAX)?;
    let before = driver.store.counts();
    let mut measured = 0;
    let segments = driver.store.capacity().flash / driver.store.segment_bytes();
    // As many passes as clean a fifth of the segments, so that no single one decides.
    while measured < 2
        || driver.store.counts().since(&before).segments_cleaned < segments / 5 && measured < 40
    {
        driver.pass()?;
        measured += 1;
    }
    let Capacity { flash, live, .. } = driver.store.capacity();
    Ok(Measured {
        passes: (settled, measured),
        requests: trace.requests.len() as u64,
        counts: driver.store.counts().since(&before),
        flash_bytes: flash,
        live_bytes: live,
    })
}

/// How often the flash is written over before anything is measured, and the most passes for that.
const SETTLE_TURNS: f64 = 1.5;
const PASSES_MAX: u32 = 60;
/// How much of what passes leave behind stays, as a part of the trace's own objects.
const TURNOVER: f64 = 0.05;
