//! Front ends: the FUSE mount and the command line.

pub mod cli;
pub mod fuse;

mod daemon;
pub mod memory;
mod signals;
pub mod tree;
