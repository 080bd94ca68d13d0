//! cmfs: a log-structured file system for raw NAND, its metadata compressed in a little NVRAM.
//!
//! The NAND holds the YAFFS2 layout: every page says in its spare area which page of which object it is and
//! when its block was begun, so that the NAND alone is the whole file system (a full scan finds it). The NVRAM,
//! about a thousandth of the NAND, holds where everything is, compressed, so that a mount reads no NAND but a
//! page or two, and after a power cut only the block that was being written.
//!
//! - [`Fs`] is the file system: objects by number, no paths, no permissions, no clock (see [`Fs::set_now`]).
//! - [`Nand`] and [`Nvram`] are what it stands on; [`ram`] has both in memory, with power cuts.
//! - Chan, Yoo, Jung, Won: "Addressing Scalability and Consistency Issues in Hybrid File System for BPRAM and
//!   NAND Flash" is the paper; [`Layout::Paper`] keeps its NVRAM structures, [`Layout::Compact`] is ours.
//!
//! Invariants: a page is live when the map of an object in memory points at it; a block is erased only when
//! neither memory nor the last committed NVRAM state points into it; blocks carry rising sequence numbers, and
//! within a block pages are written in order, so that of two pages with one name the later one counts.
//!
//! `no_std` with `alloc`. Nothing panics on what a medium holds: corrupt bytes are an [`Error::Corrupt`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

mod bits;
mod blocks;
mod checkpoint;
pub mod codec;
mod dir;
pub mod ecc;
mod error;
mod fs;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
pub mod header;
mod map;
mod media;
mod nvram;
mod object;
#[cfg_attr(not(feature = "paper"), path = "no_pat.rs")]
mod pat;
pub mod ram;
pub mod record;
pub mod rot;
mod sorted;
pub mod summary;
pub mod tags;

pub use blocks::{BlockState, Wear};
pub use error::{Error, Result};
pub use fs::{
    Attr, Config, ERASED, Entry, Fs, Layout, MountKind, MountReport, Names, NewObject, Place, Problem, Seek,
    SetAttr, Stats, UpdateReport, identity_of_nand,
};
pub use media::{Geometry, Nand, NandError, NoNvram, Nvram, NvramError};
pub use nvram::{geometry_of_nvram, identity_of_nvram, nvram_is_of};
pub use object::{FIRST_ID, Kind, LOST_FOUND, MAX_ID, ROOT, Time};

/// CRC-32C, as every record and page carries it.
pub fn crc32c(data: &[u8]) -> u32 {
    // 16 KB of tables are much for a microcontroller: 1 KB is half as fast.
    #[cfg(target_os = "none")]
    type Tables = crc::Table<1>;
    #[cfg(not(target_os = "none"))]
    type Tables = crc::Table<16>;
    static CRC: crc::Crc<u32, Tables> = crc::Crc::<u32, Tables>::new(&crc::CRC_32_ISCSI);
    CRC.checksum(data)
}
