//! cmfs: files on raw NAND, their metadata in a thousandth of NVRAM.
//!
//! The file system itself is the crate `cmfs-core`, which needs no standard library. Here it meets the rest of the
//! stack: [`CmfsFs`] is a [`FileSystem`](bimetal_vfs::FileSystem) that front ends can mount, [`image`] keeps a part in a
//! file, [`mtd`] drives one through Linux, [`nvram`] maps a memory, [`model`] puts both on the simulated media,
//! [`volume`] makes and opens volumes by their paths.

mod attributes;
pub mod export;
mod host;
pub mod image;
pub mod mkimage;
pub mod model;
mod mounted;
pub mod mtd;
pub mod nvram;
#[cfg(test)]
mod tests;
pub mod volume;

pub use mounted::{CmfsFs, Options};

use bimetal_base::Error;

/// A failure of the core as the rest of the stack says it.
fn error(error: cmfs_core::Error) -> Error {
    use cmfs_core::Error as Core;
    match error {
        Core::Gone => host::take().unwrap_or(Error::Gone { device: "NAND or NVRAM".into() }),
        Core::Corrupt { what, why, at } => Error::corrupt(what, why, at),
        Core::Unsupported(why) => Error::unsupported("this NAND", why),
        // What is there would be lost with another one.
        Core::Foreign(why) => Error::invalid(format!(
            "the NAND holds no cmfs: {why}. {}--yaffs2 opens an image of YAFFS2; another part than slc-2k is named with --device",
            match why {
                cmfs_core::ERASED => "`bimetal mkfs cmfs` makes one there; ",
                _ => "An image that was cut off, or added to, needs its length again; ",
            }
        )),
        Core::Mismatch(why) => Error::Mismatch(format!("NAND and NVRAM do not belong together: {why}")),
        Core::NoSpace => Error::NoSpace("the NAND is full"),
        Core::NoMemory => Error::NoSpace("the memory that cmfs may take is used up"),
        Core::NotFound => Error::NotFound,
        Core::Exists => Error::Exists,
        Core::NotDir => Error::NotDir,
        Core::IsDir => Error::IsDir,
        Core::NotEmpty => Error::NotEmpty,
        Core::NameTooLong => Error::NameTooLong,
        Core::TooLarge => Error::TooLarge,
        Core::BadArgument => Error::BadArgument,
        Core::NoAttribute => Error::NoAttribute,
        Core::AttributesFull => Error::NoSpace("the attributes of a file must fit one page of NAND"),
        Core::NoOffset => Error::NoOffset,
        Core::Stale => Error::Stale,
    }
}
