//! Front ends: the FUSE mount, the command line, served images, traces and experiments.

pub mod cli;
pub mod crash;
pub mod export;
pub mod memory;
pub mod nbd;
pub mod tree;

mod daemon;
mod farewell;
mod limits;
mod live;
mod messages;
mod mounts;
mod processes;
mod signals;

pub use bimetal_fuse as fuse;
pub use bimetal_fuse::{health, record};
pub use bimetal_lab::{kinds, names, objects, replay, reproduce, stack};
pub use bimetal_trace as trace;
