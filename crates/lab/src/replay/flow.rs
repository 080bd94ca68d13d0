//! How merges, copies and erases went on in a run, looked at now and then.
//!
//! The longer a run is, the farther its looks are apart: when there are [`MOST`], every other one is forgotten and half as many
//! are made from then on. So a run of any length has a hundred or two, always the same ones.

use super::driver::Observer;
use crate::stack::Model;
use bimetal_base::time::Time;
use std::cell::RefCell;

/// Looks that are kept.
const MOST: usize = 256;
/// Requests between the first looks.
const FIRST_EVERY: u64 = 16;

/// What was done until an instant of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Simulated time since the run began, ns.
    pub at_ns: u64,
    /// Log blocks that became data blocks as they were.
    pub switch_merges: u64,
    /// After the rest was copied to them.
    pub partial_merges: u64,
    /// Blocks gathered from several.
    pub full_merges: u64,
    /// Pages copied.
    pub copies: u64,
    /// Blocks erased.
    pub erases: u64,
}

impl Moment {
    /// What the model did since it was new; nothing where there is no flash.
    fn of(model: &Model, at_ns: u64) -> Option<Moment> {
        let report = model.flash()?;
        Some(Moment {
            at_ns,
            switch_merges: report.ftl.switch_merges,
            partial_merges: report.ftl.partial_merges,
            full_merges: report.ftl.full_merges,
            copies: report.nand.copies,
            erases: report.nand.erases,
        })
    }

    fn since(&self, before: &Moment) -> Moment {
        Moment {
            at_ns: self.at_ns.saturating_sub(before.at_ns),
            switch_merges: self.switch_merges - before.switch_merges,
            partial_merges: self.partial_merges - before.partial_merges,
            full_merges: self.full_merges - before.full_merges,
            copies: self.copies - before.copies,
            erases: self.erases - before.erases,
        }
    }
}

/// A run being looked at.
pub(super) struct Flow<'a> {
    model: &'a Model,
    looks: RefCell<Looks>,
}

/// What was seen of a model.
pub(super) struct Looks {
    moments: Vec<Moment>,
    every: u64,
    requests: u64,
}

impl Looks {
    /// Of a run that begins now.
    pub fn from(model: &Model, at: Time) -> Looks {
        Looks { moments: Moment::of(model, at.0).into_iter().collect(), every: FIRST_EVERY, requests: 0 }
    }

    /// A request comes.
    #[inline]
    pub fn arrived(&mut self, model: &Model, at: Time) {
        self.requests += 1;
        if self.requests.is_multiple_of(self.every) && !self.moments.is_empty() {
            self.moments.extend(Moment::of(model, at.0));
            if self.moments.len() > MOST {
                let mut number = 0;
                self.moments.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.every *= 2;
            }
        }
    }

    /// All that was seen, the end among it, since the run began.
    pub fn finish(mut self, model: &Model, at: Time) -> Vec<Moment> {
        let Some(first) = self.moments.first().copied() else { return Vec::new() };
        self.moments.extend(Moment::of(model, at.0));
        self.moments.iter().map(|moment| moment.since(&first)).collect()
    }
}

impl<'a> Flow<'a> {
    /// Of a run that begins now.
    pub fn from(model: &'a Model, at: Time) -> Flow<'a> {
        Flow { model, looks: RefCell::new(Looks::from(model, at)) }
    }

    /// All that was seen, the end among it, since the run began.
    pub fn finish(self, at: Time) -> Vec<Moment> {
        self.looks.into_inner().finish(self.model, at)
    }
}

impl Observer for Flow<'_> {
    #[inline]
    fn arrived(&self, at: Time) {
        self.looks.borrow_mut().arrived(self.model, at);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Args, replay};
    use super::*;

    fn run(requests: u32) -> super::super::RunReport {
        let line = format!(
            "gen:iometer:size=8MiB:requests={requests}:random=100 --ftl bast --device slc-2k --device-size 10MiB --precondition fill"
        );
        replay(&Args::parse(&line).unwrap()).unwrap().remove(0)
    }

    #[test]
    fn a_run_is_looked_at_often_enough_and_its_last_look_is_what_it_did() {
        for requests in [100, 2000, 20_000] {
            let run = run(requests);
            let (first, last) = (run.flow[0], *run.flow.last().unwrap());
            assert_eq!(first, Moment::default());
            let merges = run.merges.unwrap();
            let did = (merges.switch, merges.partial, merges.full, run.erases.unwrap(), run.sim_time_ns);
            let seen = (last.switch_merges, last.partial_merges, last.full_merges, last.erases, last.at_ns);
            assert_eq!(seen, did, "{requests}");
            assert!(
                run.flow.windows(2).all(|two| two[0].at_ns <= two[1].at_ns && two[0].erases <= two[1].erases)
            );
            assert!((8..=MOST + 1).contains(&run.flow.len()), "{requests}: {}", run.flow.len());
        }
        assert!(run(20_000).flow.len() > MOST / 2);
    }

    #[test]
    fn erases_of_all_blocks_are_those_of_the_run_and_before() {
        let run = run(2000);
        let all: u64 = run.erases_by_block.iter().map(|erases| u64::from(*erases)).sum();
        let before = run.flash.unwrap().preconditioning.total.work.erases;
        assert_eq!(all, before + run.erases.unwrap());
    }

    #[test]
    fn what_has_no_flash_has_no_erases() {
        let line = "gen:iometer:size=1MiB:requests=100 --device hdd-7200";
        let run = replay(&Args::parse(line).unwrap()).unwrap().remove(0);
        assert!(run.flow.is_empty() && run.erases_by_block.is_empty());
    }
}
