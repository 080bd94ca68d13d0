//! What was read from the disk, was admitted and waits to be copied to the SSD.
//!
//! What the disk had to be read for is put before the mount's [`Admission`], then before its [`Budget`]. Bounded: past
//! [`LIMIT`] bytes new offers are dropped, they are only copies. Offers gather until there is enough for one large
//! write or a commit cycle comes by.

use super::Shared;
use super::admission::{Admission, Budget, DiskRead, Promote, Tally};
use super::bind::DeferredBinding;
use super::core::Core;
use super::frames::FRAME;
use super::place::Placement;
use bimetal_base::time::Time;
use bimetal_base::units::{Ino, SsdBlock};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Most bytes kept waiting.
const LIMIT: usize = 32 << 20;
/// Offers wait at most this long for company.
pub(super) const PROMOTE_WAIT: Duration = Duration::from_millis(500);
/// Bytes at which copying starts.
const BATCH: usize = 1 << 20;

/// Copies that are remembered to be explained.
const REMEMBERED: usize = 1000;

/// Frames as the disk has them.
pub struct Promotion {
    /// The file.
    pub ino: Ino,
    /// First frame.
    pub index: u64,
    /// Whole frames.
    pub bytes: Bytes,
}

impl Promotion {
    /// Number of frames.
    pub fn frames(&self) -> u64 {
        (self.bytes.len() / FRAME) as u64
    }
}

/// The waiting promotions, each with the version of the file it was read at, and what decides about new ones.
pub struct Promotions {
    policy: Promote,
    admission: Box<dyn Admission>,
    budget: Budget,
    tally: Tally,
    waiting: Vec<(Promotion, u64)>,
    bytes: usize,
    /// When what waits goes without more company.
    at: Time,
    brought: VecDeque<Brought>,
}

/// A copy that was made for a read: frames of a file, and the SSD block of the first.
struct Brought {
    ino: Ino,
    frames: Range<u64>,
    at: SsdBlock,
    /// SSD blocks in a frame.
    unit: u64,
}

impl Promotions {
    /// Nothing waits yet; the SSD half holds `capacity` bytes of data.
    pub fn new(policy: Promote, budget: Option<Budget>, capacity: u64) -> Promotions {
        let admission = policy.make(capacity);
        let budget = budget.unwrap_or_else(|| Budget::of(capacity));
        let (tally, waiting) = (Tally::default(), Vec::new());
        Promotions {
            policy,
            admission,
            budget,
            tally,
            waiting,
            bytes: 0,
            at: Time::ZERO,
            brought: VecDeque::new(),
        }
    }

    /// Notes bytes that were read without the disk.
    pub fn pass(&mut self, bytes: u64) {
        self.admission.pass(bytes);
    }

    /// Judges what the disk was read for, whose contents `bytes` are, and queues what is admitted.
    pub fn offer(&mut self, read: &DiskRead, bytes: &Bytes, version: u64, now: Time) {
        let judgement = self.admission.judge(read);
        self.tally.add(read, &judgement);
        for frames in &judgement.admitted {
            let slice = |at: u64| (at - read.frames.start) as usize * FRAME;
            let bytes = bytes.slice(slice(frames.start)..slice(frames.end));
            self.queue(read.ino, frames, bytes, version, now);
        }
    }

    fn queue(&mut self, ino: Ino, frames: &Range<u64>, bytes: Bytes, version: u64, now: Time) {
        let len = bytes.len() as u64;
        if self.bytes + bytes.len() > LIMIT {
            self.tally.refused_busy_bytes += len;
        } else if !self.budget.take(len, now) {
            self.tally.refused_budget_bytes += len;
        } else {
            self.tally.admitted_bytes += len;
            self.bytes += bytes.len();
            self.waiting.push((Promotion { ino, index: frames.start, bytes }, version));
        }
    }

    /// Remembers a copy that was made.
    fn remember(&mut self, ino: Ino, frames: Range<u64>, at: SsdBlock, unit: u64) {
        if self.brought.len() == REMEMBERED {
            self.brought.pop_front();
        }
        self.brought.push_back(Brought { ino, frames, at, unit });
    }

    /// Whether the copy of a frame at `at` is known to have been made for a read; of the last ones only.
    pub fn has_brought(&self, ino: Ino, index: u64, at: SsdBlock) -> bool {
        self.brought.iter().any(|brought| {
            brought.ino == ino
                && brought.frames.contains(&index)
                && brought.at.0 + (index - brought.frames.start) * brought.unit == at.0
        })
    }

    /// Whether the policy knows that a frame was read from the disk of late.
    pub fn remembers(&self, ino: Ino, index: u64) -> bool {
        self.admission.remembers(ino, index)
    }

    /// Notes bytes of a file that changed while they were read.
    pub fn too_late(&mut self, bytes: u64) {
        self.tally.offered_bytes += bytes;
        self.tally.refused_busy_bytes += bytes;
    }

    /// What became of all that the disk was read for.
    pub fn status(&self) -> super::status::Promotion {
        super::status::Promotion {
            policy: self.policy.name(),
            budget_left_bytes: self.budget.left(),
            tally: self.tally,
        }
    }

    /// Whether enough waits to be worth a write.
    pub fn is_due(&self) -> bool {
        self.bytes >= BATCH
    }

    /// Whether what waits is to be copied at `now`.
    pub fn is_time(&self, now: Time) -> bool {
        self.is_due() || (!self.is_empty() && self.at <= now)
    }

    /// What comes from now on may wait for company until `at`.
    pub fn wait_until(&mut self, at: Time) {
        self.at = at;
    }

    /// Whether anything waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Files and numbers of frames.
    pub fn waiting(&self) -> impl Iterator<Item = (Ino, u64)> + '_ {
        self.waiting.iter().map(|(promotion, _)| (promotion.ino, promotion.frames()))
    }

    /// Takes all.
    pub fn take(&mut self) -> Vec<(Promotion, u64)> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}

impl Shared {
    /// Copies to the SSD what reads brought from the disk.
    pub(super) fn promote(&self) {
        let demand = self.core.lock().demand_of_promotions();
        self.use_ssd(|| self.make_room_on_ssd(&demand));
        let mut core = self.core.lock();
        let mut placements = Vec::new();
        for (promotion, version) in core.promotions.take() {
            let room = self.room_for_promotion(&mut core, &promotion, version);
            placements.extend(room.map(|placement| DeferredBinding { placement, version }));
        }
        core.promotions.wait_until(self.clock.now() + PROMOTE_WAIT);
        drop(core);
        if placements.is_empty() {
            return;
        }
        if let Err(error) = self.write_placements(placements.iter().map(|settled| &settled.placement)) {
            self.ssd_failed(&error);
            return;
        }
        let mut core = self.core.lock();
        for settled in placements {
            let Placement { ino, index, run, ref frames, .. } = settled.placement;
            let frames = index..index + frames.len() as u64;
            let bytes = self.bind_settled(&mut core, settled);
            core.counters.promoted_bytes += bytes;
            if bytes > 0 {
                core.promotions.remember(ino, frames, run.at, self.ssd_blocks_per_frame);
            }
        }
    }

    fn room_for_promotion(
        &self,
        core: &mut Core,
        promotion: &Promotion,
        version: u64,
    ) -> impl Iterator<Item = Placement> + use<> {
        let wanted = core.is_unchanged(promotion.ino, version);
        let section = if wanted { core.policy(promotion.ino).section } else { None };
        let frames = (0..promotion.frames()).map(|number| {
            let start = number as usize * FRAME;
            (promotion.index + number, promotion.bytes.slice(start..start + FRAME))
        });
        let placements = match section {
            Some(section) => self.room_for(core, section, promotion.ino, frames.collect()),
            None => Vec::new(),
        };
        placements.into_iter()
    }
}
