//! The CMFS paper: mounting, recovering, updating and coding, on the simulated NAND and FRAM that YAFFS2 and
//! littlefs were measured with (read 15 µs, program 200 µs, erase 2 ms, 25 ns a byte; FRAM 70 ns a byte).
//!
//! Times are those of the media; where a figure of the paper has its processor's part in it, a modelled one's is added, and
//! told apart.

mod bed;
mod coding;
mod costs;
mod features;
mod mounting;
mod peers;
mod processor;

pub(super) use coding::{FIG9, FIG11, RATIO};
pub(super) use costs::{FIG14, FIG15, FIG16};
pub(super) use features::TABLE2;
pub(super) use mounting::{FIG10, FIG12, FIG13, MOUNT};
