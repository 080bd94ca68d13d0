//! Telling the SSD what it need not keep: clean extents are reserved, discarded and given back, some at a time. `fstrim` tells of all;
//! with the option `discard` a task tells of what has become clean, after each commit, for half of the time at most.
//!
//! What is reserved is bound to nothing, on the media either: it could be overwritten as well ([`Ssd::allocate`]). So a power
//! cut at any moment leaves what was promised, whatever a discarded block reads as. The lock is held to reserve and
//! to release; the discard goes on without it. Extents that hold anything are left alone, and so is the disk half.
//!
//! [`Ssd::allocate`]: crate::ssd::Ssd::allocate

use super::Shared;
use super::core::Core;
use crate::ssd::Run;
use bimetal_base::{Error, Result};
use bimetal_media::{Request, takes_no_discards};
use bimetal_vfs::{Deferred, Trim};
use std::sync::Arc;
use std::time::Duration;

/// What is reserved at a time, bytes: files that come meanwhile find less room by that much.
const STEP_BYTES: u64 = 64 << 20;
/// The same where it goes by itself, and how much there is to be.
const OWN_STEP_BYTES: u64 = 8 << 20;
const OWN_LEAST_BYTES: u64 = 1 << 20;
/// So many steps in a row that fail end an `fstrim`: each may have waited for a device that answers late.
const FAILED_STEPS_MAX: u32 = 3;
/// The longest rest between two steps.
const REST_MAX: Duration = Duration::from_millis(100);
/// The longest rest after a step that failed.
const REST_MAX_FAILED: Duration = Duration::from_secs(60);

impl Shared {
    /// See [`bimetal_vfs::FileSystem::trim`]; the bytes are those of the SSD.
    pub(super) fn trim(self: &Arc<Shared>, trim: Trim) -> Result<Deferred<u64>> {
        let core = self.core.lock();
        core.writable()?;
        core.state.check_running()?;
        if core.ssd.is_none() {
            return Err(Error::unsupported(
                "discarding",
                "the volume has no SSD now, and the disk half is not discarded",
            ));
        }
        drop(core);
        let shared = self.clone();
        Ok(Deferred::Wait(Box::new(move || shared.discard_clean(trim))))
    }

    /// Discards step by step; one that fails leaves the others to be tried, and its error is the answer at the end.
    fn discard_clean(&self, trim: Trim) -> Result<u64> {
        let size = self.ssd_block_bytes as u64;
        let in_blocks = |bytes: u64| u32::try_from(bytes / size).unwrap_or(u32::MAX);
        let end = in_blocks(trim.offset.saturating_add(trim.len));
        let mut from = in_blocks(trim.offset.saturating_add(size - 1));
        let (mut bytes, mut first_error, mut failed) = (0, None, 0);
        while failed < FAILED_STEPS_MAX
            && let Some(run) = self.reserve_clean(from..end, in_blocks(STEP_BYTES))?
        {
            from = run.at.0 as u32 + run.len;
            let len = u64::from(run.len) * size;
            let discarded = match len < trim.least {
                true => Ok(0),
                false => self.discard(run.at.0 * size, len),
            };
            // Without its SSD there is nothing to give it back to.
            self.core.lock().ssd.iter_mut().for_each(|ssd| ssd.release(run));
            match discarded {
                Ok(len) => {
                    bytes += len;
                    failed = 0;
                }
                Err(error) if takes_no_discards(&error) => {
                    return Err(Error::unsupported(
                        "discarding",
                        "the device of the SSD half takes no discards",
                    ));
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                    failed += 1;
                }
            }
        }
        first_error.map_or(Ok(bytes), Err)
    }

    fn reserve_clean(&self, blocks: std::ops::Range<u32>, most: u32) -> Result<Option<Run>> {
        let mut core = self.core.lock();
        core.state.check_running()?;
        Ok(core.ssd.as_mut().and_then(|ssd| ssd.reserve_clean(blocks, most)))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<u64> {
        let Some(device) = &self.ssd_device else { return Ok(0) };
        device.run(self.clock.now(), Request::Discard { offset, len }).result.map(|_| len)
    }

    /// The task of a mount with the option `discard`. A device that knows no discards is left alone from then on; after another
    /// error, which is told once, it is asked again, later each time.
    pub(super) fn run_discards(&self) {
        let is_due = |core: &Core| {
            let much = core.ssd.as_ref().is_some_and(|ssd| ssd.untold_bytes() >= OWN_LEAST_BYTES);
            core.state.is_running() && much
        };
        let mut rested = self.clock.now();
        let mut failed = Duration::ZERO;
        loop {
            let mut core = self.core.lock();
            while !core.is_stopping() && (!is_due(&core) || self.clock.now() < rested) {
                match is_due(&core) {
                    true => self.clean_work.wait_until(&mut core, &*self.clock, rested),
                    false => self.clean_work.wait(&mut core),
                }
            }
            if core.is_stopping() {
                return;
            }
            drop(core);
            let began = self.clock.now();
            let rest = match self.discard_step() {
                Ok(true) => {
                    failed = Duration::ZERO;
                    self.clock.now().since(began).min(REST_MAX)
                }
                // What is left may not be taken now.
                Ok(false) => self.lag.time,
                Err(error) if takes_no_discards(&error) => {
                    tracing::warn!(%error, "the SSD takes no discards; it is not told any more of what is free on it");
                    return;
                }
                Err(error) => {
                    if failed.is_zero() {
                        tracing::warn!(%error, "a discard failed, which harms nothing; the SSD is told of what is free on it later");
                    }
                    failed = (failed * 2).max(self.lag.time).min(REST_MAX_FAILED);
                    failed
                }
            };
            rested = self.clock.now() + rest;
        }
    }

    /// Tells the SSD of some extents that have become clean; whether there were any.
    ///
    /// # Errors
    /// Of the device.
    pub(super) fn discard_step(&self) -> Result<bool> {
        let size = self.ssd_block_bytes as u64;
        let most = u32::try_from(OWN_STEP_BYTES / size).unwrap_or(u32::MAX);
        let run = self.core.lock().ssd.as_mut().and_then(|ssd| ssd.reserve_untold(most));
        let Some(run) = run else { return Ok(false) };
        let told = self.discard(run.at.0 * size, u64::from(run.len) * size);
        self.core.lock().ssd.iter_mut().for_each(|ssd| match &told {
            Ok(_) => ssd.release_told(run),
            Err(_) => ssd.release(run),
        });
        told.map(|_| true)
    }
}
