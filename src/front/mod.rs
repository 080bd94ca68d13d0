//! Front ends: the FUSE mount, the command line, served images, traces and experiments.

pub mod cli;
pub mod crash;
pub mod export;
pub mod fuse;
pub mod health;
pub mod memory;
pub mod nbd;
pub mod objects;
pub mod record;
pub mod replay;
pub mod reproduce;
pub mod trace;
pub mod tree;

mod daemon;
mod live;
mod signals;
