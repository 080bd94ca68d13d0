//! The instants of a trace that writes them since some epoch: they count from its first request.

use super::Flags;
use bimetal_base::time::Time;

/// The instant of a trace's first request.
#[derive(Default)]
pub(super) struct Zero(Option<u64>);

impl Zero {
    /// When a request of `ticks` since the epoch arrives, a tick being `tick_ns`; with [`Flags::EARLY`] if it is dated
    /// before the first.
    pub fn since(&mut self, ticks: u64, tick_ns: u64) -> (Time, Flags) {
        let zero = *self.0.get_or_insert(ticks);
        let since = ticks.saturating_sub(zero).saturating_mul(tick_ns);
        (Time(since), Flags::NONE.with(Flags::EARLY, ticks < zero))
    }
}
