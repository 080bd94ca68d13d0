//! bimetal: a hybrid storage stack.
//!
//! The folders are the stack, in the order a request crosses them:
//!
//! ```text
//! front   FUSE mount · command line · export
//! fs      nfhybrid (SSD + disk) on ext4 · cmfs (NAND + NVRAM, its core a crate without std) · osd (objects on NAND) · memfs
//! cache   page cache policies
//! ftl     flash translation layers
//! media   block devices: real (file, device) or simulated (disk, SSD)
//! ```
//!
//! A layer uses only the layers below it; `tests/suite/layers.rs` fails on an upward import. What every
//! layer shares (errors, units, time, checksums) stands beside the folders.

pub mod checksum;
pub mod error;
pub mod random;
pub mod runtime;
pub mod time;
pub mod units;

pub mod cache;
pub mod front;
pub mod fs;
pub mod ftl;
pub mod media;

pub use error::{Error, Result};
