//! bimetal: a hybrid storage stack.
//!
//! Each layer is a package of its own below `crates/`, in the order a request crosses them:
//!
//! ```text
//! bimetal   command line · served images · crash checks      src/front
//! fuse      FUSE mount
//! lab       stacks from profiles · replay · experiments      lab, trace
//! fs        nfhybrid (SSD + disk) on ext4 · cmfs (NAND + NVRAM, its core without std) · osd (objects on NAND) ·
//!           fat · memfs, all behind one trait (vfs)
//! cache     page cache policies
//! ftl       flash translation layers
//! media     block devices: real (file, device) or simulated (disk, SSD)
//! base      what every layer shares: errors, units, time, checksums, the runtime
//! ```
//!
//! A package names those below it in its `Cargo.toml`, and the compiler knows no others. Here all have their
//! places in one tree.

pub use bimetal_base::{Error, Result, checksum, error, options, random, runtime, time, units};
pub use bimetal_cache as cache;
pub use bimetal_ftl as ftl;
pub use bimetal_media as media;

pub mod front;

/// File systems, and the one trait the front ends see them by.
pub mod fs {
    pub use bimetal_cmfs as cmfs;
    pub use bimetal_ext4 as ext4;
    pub use bimetal_fat as fat;
    pub use bimetal_memfs as memfs;
    pub use bimetal_nfhybrid as nfhybrid;
    pub use bimetal_osd_core as osd;
    pub use bimetal_osdfs as osdfs;
    pub use bimetal_vfs::*;
}
