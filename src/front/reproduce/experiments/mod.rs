//! The experiments: one file and one line each.

mod csw;
mod ftl_fig2;
mod ftl_table1;
mod inventory;
mod osd;
mod p2p;

use super::Experiment;

/// All experiments, in the order in which `all` does them.
pub const EXPERIMENTS: &[&Experiment] = &[
    &ftl_table1::EXPERIMENT,
    &ftl_fig2::EXPERIMENT,
    &csw::MIXED,
    &csw::SEQUENTIAL,
    &csw::RANDOM,
    &csw::P2P,
    &osd::READS,
    &osd::WRITES,
    &inventory::EXPERIMENT,
    &p2p::EXPERIMENT,
];
