//! The committer: the task that runs commit cycles and copies to the SSD what reads brought, when there is reason to.
//!
//! Reasons for a cycle: half of the lag is over, or a quarter of its bytes are dirty; half of a transaction is full; many
//! records; somebody waits for the disk, or for credits that only a commit gives.

use super::Shared;
use super::core::Core;
use super::promote::PROMOTE_WAIT;
use bimetal_base::time::Time;
use std::sync::Arc;

impl Shared {
    /// The background thread: until told to stop, waits for a reason and runs a cycle.
    pub(super) fn run_cycles(self: &Arc<Shared>) {
        loop {
            let mut core = self.core.lock();
            while !core.is_stopping() && !self.cycle_due(&core) && !self.promotion_due(&core) {
                match self.next_deadline(&core) {
                    Some(wait) => {
                        self.work.wait_until(&mut core, &*self.clock, wait);
                    }
                    None => self.work.wait(&mut core),
                }
            }
            if core.is_stopping() {
                return;
            }
            let due = self.cycle_due(&core);
            drop(core);
            if due {
                self.cycle_or_stop();
            }
            self.promote();
        }
    }

    fn cycle_due(&self, core: &Core) -> bool {
        self.cycle_wanted(core)
            || core.state.is_running()
                && core.dirty.since().is_some_and(|since| self.clock.now().since(since) >= self.lag.time / 2)
    }

    /// Reasons for a cycle other than time.
    pub(super) fn cycle_wanted(&self, core: &Core) -> bool {
        core.state.is_running()
            && (core.ops.is_wanted()
                || core.dirty.bytes() >= self.lag.bytes / 4
                || core.journal_need() >= self.transaction_limit() / 2
                || core.queue.wants_commit()
                || core.ops.records().len_bytes() >= self.ops_limit)
    }

    fn promotion_due(&self, core: &Core) -> bool {
        core.promotions.is_time(self.clock.now())
    }

    fn next_deadline(&self, core: &Core) -> Option<Time> {
        // A file system that has stopped has no cycle to wait for.
        let dirty =
            core.dirty.since().filter(|_| core.state.is_running()).map(|since| since + self.lag.time / 2);
        let promote = (!core.promotions.is_empty()).then(|| self.clock.now() + PROMOTE_WAIT);
        match (dirty, promote) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Wakes the committer if there is reason to run a cycle.
    pub(super) fn wake_if_due(&self, core: &mut Core) {
        if core.cycle.is_none() && self.cycle_wanted(core) {
            self.work.notify_one();
        }
    }
}
