//! The experiments: one file and one line each.

mod ftl_fig2;
mod inventory;
mod p2p;

use super::Experiment;

/// All experiments, in the order in which `all` does them.
pub const EXPERIMENTS: &[&Experiment] = &[&ftl_fig2::EXPERIMENT, &inventory::EXPERIMENT, &p2p::EXPERIMENT];
