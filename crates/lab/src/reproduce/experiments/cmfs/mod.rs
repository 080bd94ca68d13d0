//! The CMFS paper: mounting, recovering, updating and coding, on the simulated NAND and FRAM that YAFFS2 and
//! littlefs were measured with (read 15 µs, program 200 µs, erase 2 ms, 25 ns a byte; FRAM 70 ns a byte).
//!
//! Times are those of the media; what a processor takes to code and decode is not in them.

mod bed;
mod coding;
mod costs;
mod mounting;

pub(super) use coding::{FIG9, FIG11, RATIO};
pub(super) use costs::{FIG14, FIG15, FIG16};
pub(super) use mounting::{FIG10, FIG12, FIG13, MOUNT};
