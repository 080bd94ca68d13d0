//! Front ends: the FUSE mount and the command line.

pub mod cli;
pub mod export;
pub mod fuse;
pub mod memory;
pub mod tree;

mod daemon;
mod signals;
