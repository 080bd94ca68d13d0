//! What a mount says of itself: one structure, printed as text or JSON by the front ends.
//!
//! It is put together from a snapshot, which every commit cycle and every status that gets the lock make anew.

use super::Shared;
use super::admission::Tally;
use super::core::{Core, Counters};
use crate::ssd;
use bimetal_base::time::Time;
use serde::Serialize;
use std::time::Duration;

/// Numbers of a running mount. Sizes in bytes, times in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The disk half's device.
    pub disk: String,
    /// What the disk half's device says of itself: a page cache in front of it, its hits and dirty pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_cache: Option<serde_json::Value>,
    /// The SSD half's device.
    pub ssd: Option<String>,
    /// Why there is no SSD half any more.
    pub ssd_lost: Option<String>,
    /// Why no change reaches the disk any more: it failed. Files can be read.
    pub failure: Option<String>,
    /// What was noticed while mounting.
    pub notes: Vec<String>,
    /// What the disk half alone does not have.
    pub at_risk: AtRisk,
    /// What fsync waits for by default.
    pub durability: super::Durability,
    /// The last operation, and the last one on the disk.
    pub operations: (u64, u64),
    /// The SSD half: its sections, inode table and log.
    pub ssd_half: Option<ssd::Status>,
    /// The disk's journal.
    pub journal: bimetal_ext4::journal::JournalStats,
    /// What became of what the disk was read for: copied to the SSD, or why not.
    pub promotion: Promotion,
    /// Counters since the mount.
    pub counters: Counters,
    /// fsyncs that wait for the SSD's log at this moment.
    pub waiting_for_log: usize,
    /// How old the numbers are: the file system was too busy to be asked since.
    pub seconds_old: f64,
}

/// What reads bring to the SSD.
#[derive(Clone, Debug, Serialize)]
pub struct Promotion {
    /// The policy, as the mount option names it.
    pub policy: &'static str,
    /// Bytes of the budget that are left now, if there is one.
    pub budget_left_bytes: Option<u64>,
    /// Bytes put before the policy, and what became of them.
    #[serde(flatten)]
    pub tally: Tally,
}

/// How far the disk half is behind, and how far it may be.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AtRisk {
    /// Bytes of data the disk does not have.
    pub bytes: u64,
    /// Age of the oldest operation it does not have; `None` where that is not known: recovery found it in the SSD's log, and
    /// the volume is only looked at.
    pub seconds: Option<f64>,
    /// Bound of the bytes.
    pub limit_bytes: u64,
    /// Bound of the age.
    pub limit_seconds: f64,
}

/// What the lock protects of a status, as of one moment.
#[derive(Clone)]
pub(super) struct Snapshot {
    at: Time,
    ssd_there: bool,
    ssd_lost: Option<String>,
    failure: Option<String>,
    late_notes: Vec<String>,
    at_risk_bytes: u64,
    at_risk_since: Option<Time>,
    is_recovered_in_memory: bool,
    durability: super::Durability,
    operations: (u64, u64),
    ssd_half: Option<ssd::Status>,
    promotion: Promotion,
    counters: Counters,
}

impl Core {
    /// What a status says of it, as of `at`.
    pub(super) fn snapshot(&self, at: Time) -> Snapshot {
        Snapshot {
            at,
            ssd_there: self.ssd.is_some(),
            ssd_lost: self.state.ssd_lost().map(String::from),
            failure: self.state.failure(),
            late_notes: self.aftermath.notes().to_vec(),
            at_risk_bytes: self.at_risk_bytes() + self.aftermath.bytes_copied(),
            at_risk_since: self.at_risk_since(),
            is_recovered_in_memory: self.is_recovered_in_memory(),
            durability: self.rules.default_durability(),
            operations: (self.ops.last(), self.disk_has()),
            ssd_half: self.ssd.as_ref().map(ssd::Ssd::status),
            promotion: self.promotions.status(),
            counters: self.counters,
        }
    }
}

/// How often, and how far apart, a status asks for the lock before it says what was seen last.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_micros(200);

impl Shared {
    /// What was noticed while mounting.
    pub(super) fn all_notes(&self) -> Vec<String> {
        [&self.notes[..], self.core.lock().aftermath.notes()].concat()
    }

    /// Numbers of the mount. Never waits for anyone who waits for a device: if the lock is not to be had soon, they are
    /// those of the last commit cycle or status.
    pub(super) fn status(&self) -> Status {
        let disk_cache = self.disk.status();
        for _ in 0..TRIES {
            if let Some(core) = self.core.try_lock() {
                self.note_status(&core);
                break;
            }
            self.clock.sleep_until(self.clock.now() + PAUSE);
        }
        let now = self.clock.now();
        let seen = self.seen.lock().clone();
        let since = |then: Time| now.since(then).as_secs_f64();
        Status {
            disk: self.disk.info().name.clone(),
            disk_cache,
            ssd: self.ssd_device.as_ref().filter(|_| seen.ssd_there).map(|device| device.info().name.clone()),
            ssd_lost: seen.ssd_lost,
            failure: seen.failure,
            notes: [&self.notes[..], &seen.late_notes[..]].concat(),
            at_risk: AtRisk {
                bytes: seen.at_risk_bytes,
                seconds: (!seen.is_recovered_in_memory).then(|| seen.at_risk_since.map_or(0.0, since)),
                limit_bytes: self.lag.bytes,
                limit_seconds: self.lag.time.as_secs_f64(),
            },
            durability: seen.durability,
            operations: seen.operations,
            ssd_half: seen.ssd_half,
            journal: self.journal.stats(),
            promotion: seen.promotion,
            counters: seen.counters,
            waiting_for_log: self.line.waiting(),
            seconds_old: since(seen.at),
        }
    }

    /// Remembers what a status would say now.
    pub(super) fn note_status(&self, core: &Core) {
        let snapshot = core.snapshot(self.clock.now());
        *self.seen.lock() = snapshot;
    }
}
