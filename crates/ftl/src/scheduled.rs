//! A translation layer whose decisions take effect at once, and whose operations take their time in a scheduler.
//!
//! A call to the layer is answered with places in the list of operations that the call put down, not with instants: the
//! place of one is what another begins after. [`Scheduled::issue`] hands the list over, and gives a token for the
//! operation that somebody waits for. So the layer's counts are the same however, and whether, its operations are timed.

use super::Ftl;
use bimetal_base::time::Time;
use bimetal_media::nand::{Nand, Op, Ordering, Schedule, ScheduleStats};

/// A layer and the schedule of its array; none: its operations are counted and take no time.
pub(super) struct Scheduled {
    ftl: Box<dyn Ftl>,
    schedule: Option<Schedule>,
    ops: Vec<Op>,
    /// When something was last asked for, or done.
    last: Time,
    /// The layer has nothing to do by itself until it is asked for something.
    is_settled: bool,
    /// It has waited long enough, and works by itself until it is asked.
    is_idle: bool,
}

impl Scheduled {
    /// `ftl`, with what its part says of the order of operations.
    pub fn new(mut ftl: Box<dyn Ftl>) -> Scheduled {
        let nand = ftl.nand_mut();
        let timed = nand.profile().ordering != Ordering::Off;
        let mut schedule = timed.then(|| Schedule::new(nand.profile(), *nand.geometry()));
        let in_stripes = ftl.stripe_pages() > ftl.page_units();
        match timed {
            true => ftl.nand_mut().record(!in_stripes),
            false => ftl.nand_mut().stop_clock(),
        }
        if in_stripes {
            schedule = schedule.map(Schedule::in_stripes);
        }
        Scheduled { ftl, schedule, ops: Vec::new(), last: Time::ZERO, is_settled: false, is_idle: false }
    }

    /// The layer.
    pub fn ftl(&self) -> &dyn Ftl {
        &*self.ftl
    }

    /// The layer, to be asked for something.
    pub fn ftl_mut(&mut self) -> &mut dyn Ftl {
        &mut *self.ftl
    }

    /// What the layer is asked for from now on is asked at `at`.
    pub fn see(&mut self, at: Time) {
        self.ftl.nand_mut().see(at);
    }

    /// Has what the layer decided on since be done from `at` on. A token for the operation at the place `watched`, which
    /// is what a call answered; none if that is no operation, or none takes time.
    pub fn issue(&mut self, at: Time, watched: Time) -> Option<u64> {
        self.asked(at);
        let schedule = self.schedule.as_mut()?;
        self.ftl.nand_mut().take_ops(&mut self.ops);
        schedule.push(at, &mut self.ops, watched.0)
    }

    /// The same, for operations at several places: a token for each.
    pub fn issue_all(&mut self, at: Time, watched: impl Iterator<Item = Time>) -> Vec<u64> {
        self.asked(at);
        let Some(schedule) = self.schedule.as_mut() else { return Vec::new() };
        self.ftl.nand_mut().take_ops(&mut self.ops);
        let tokens = watched.map(|place| schedule.watch(place.0)).collect();
        schedule.push(at, &mut self.ops, 0);
        tokens
    }

    /// When something happens next in the array.
    pub fn next_event(&mut self) -> Option<Time> {
        self.schedule.as_mut()?.next_event().or_else(|| self.idle_from())
    }

    /// Has it happen; whether there was something.
    pub fn step(&mut self) -> bool {
        let Some(schedule) = self.schedule.as_mut() else { return false };
        if let Some(at) = schedule.next_event() {
            self.last = self.last.max(at);
            return schedule.step();
        }
        let Some(at) = self.idle_from() else { return false };
        let Some(schedule) = self.schedule.as_mut() else { return false };
        // An error is met again by whoever asks for something next.
        let worked = self.ftl.work_when_idle(Time::ZERO).unwrap_or(false);
        self.ftl.nand_mut().take_ops(&mut self.ops);
        schedule.push(at, &mut self.ops, 0);
        (self.last, self.is_settled, self.is_idle) = (at, !worked, true);
        worked
    }

    /// When the layer works by itself, if it has something to do and the array has not.
    fn idle_from(&self) -> Option<Time> {
        let after = self.ftl.idle_after().filter(|_| !self.is_settled)?;
        Some(if self.is_idle { self.last } else { self.last + after })
    }

    fn asked(&mut self, at: Time) {
        self.see(at);
        (self.last, self.is_settled, self.is_idle) = (self.last.max(at), false, false);
    }

    /// The token of an operation that is done, and when it was.
    pub fn finished(&mut self) -> Option<(u64, Time)> {
        self.schedule.as_mut()?.finished()
    }

    /// What the scheduler did so far.
    pub fn stats(&self) -> ScheduleStats {
        self.schedule.as_ref().map(Schedule::stats).unwrap_or_default()
    }

    /// The array alone; what was under way is not.
    pub fn into_nand(self) -> Nand {
        self.ftl.into_nand()
    }
}
