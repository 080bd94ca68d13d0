//! What a mount says of itself: one structure, printed as text or JSON by the front ends.

use super::Shared;
use super::core::Counters;
use crate::fs::nfhybrid::ssd;
use serde::Serialize;

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
    /// Why the file system has stopped.
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
    pub journal: crate::fs::ext4::journal::JournalStats,
    /// Counters since the mount.
    pub counters: Counters,
}

/// How far the disk half is behind, and how far it may be.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AtRisk {
    /// Bytes of data the disk does not have.
    pub bytes: u64,
    /// Age of the oldest operation it does not have.
    pub seconds: f64,
    /// Bound of the bytes.
    pub limit_bytes: u64,
    /// Bound of the age.
    pub limit_seconds: f64,
}

impl Shared {
    pub(super) fn status(&self) -> Status {
        // Before the lock: the device may be busy.
        let disk_cache = self.disk.status();
        let core = self.core.lock();
        let now = self.clock.now();
        let ssd = core.ssd.as_ref();
        Status {
            disk: self.disk.info().name.clone(),
            disk_cache,
            ssd: ssd.and(self.ssd_device.as_ref()).map(|device| device.info().name.clone()),
            ssd_lost: core.ssd_lost.clone(),
            failure: core.failure.clone(),
            notes: self.notes.clone(),
            at_risk: AtRisk {
                bytes: core.at_risk_bytes(),
                seconds: core.at_risk_since().map_or(0.0, |since| now.since(since).as_secs_f64()),
                limit_bytes: self.lag.bytes,
                limit_seconds: self.lag.time.as_secs_f64(),
            },
            durability: core.default_durability,
            operations: (core.op, core.committed),
            ssd_half: ssd.map(ssd::Ssd::status),
            journal: self.journal.stats(),
            counters: core.counters,
        }
    }
}
