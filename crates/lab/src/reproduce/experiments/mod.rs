//! The experiments: one file and one line each.

mod cmfs;
mod csw;
mod fdp;
mod ftl_fig2;
mod ftl_stack;
mod ftl_table1;
mod inventory;
mod kernel_fs;
mod nfh;
mod osd;
mod osd_block;
mod p2p;
mod references;
mod tide;

use super::Experiment;
use bimetal_base::options::Registry;
pub use ftl_stack::Preset as CameraPreset;

/// All experiments, in the order in which `all` does them.
pub const EXPERIMENTS: Registry<Experiment> = Registry {
    what: "experiment",
    entries: &[
        &nfh::FIG7,
        &nfh::FIG8,
        &nfh::FIG10,
        &nfh::FIG11,
        &nfh::FIG12,
        &nfh::FIG13,
        &nfh::FIG14,
        &nfh::FIG15,
        &nfh::FIG16,
        &nfh::FIG17,
        &nfh::FIG18,
        &nfh::FIG19,
        &nfh::FIG20,
        &nfh::ALIGN,
        &ftl_table1::EXPERIMENT,
        &ftl_fig2::EXPERIMENT,
        &ftl_stack::TABLE,
        &ftl_stack::FIGURE,
        &cmfs::MOUNT,
        &cmfs::FIG9,
        &cmfs::FIG10,
        &cmfs::FIG11,
        &cmfs::FIG12,
        &cmfs::FIG13,
        &cmfs::FIG14,
        &cmfs::FIG15,
        &cmfs::FIG16,
        &cmfs::RATIO,
        &cmfs::TABLE2,
        &csw::MIXED,
        &csw::SEQUENTIAL,
        &csw::RANDOM,
        &csw::P2P,
        &osd::READS,
        &osd::WRITES,
        &osd_block::EXPERIMENT,
        &fdp::EXPERIMENT,
        &tide::EXPERIMENT,
        &inventory::EXPERIMENT,
        &kernel_fs::EXPERIMENT,
        &p2p::EXPERIMENT,
    ],
};

/// Those that are done on real mounts with `--live`.
pub const LIVE: Registry<Experiment> = Registry {
    what: "experiment on real mounts (--live)",
    entries: &[
        &nfh::live::FIG7,
        &nfh::live::FIG8,
        &nfh::live::FIG9,
        &nfh::live::FIG10,
        &nfh::live::FIG11,
        &nfh::live::FIG12,
        &nfh::live::FIG13,
        &nfh::live::FIG14,
        &nfh::live::FIG15,
        &nfh::live::FIG16,
        &nfh::live::FIG17,
        &nfh::live::FIG18,
        &nfh::live::FIG19,
        &nfh::live::FIG20,
    ],
};
