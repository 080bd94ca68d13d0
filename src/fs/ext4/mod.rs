//! ext4: the file system of the disk half.
//!
//! The modules follow the format's own parts and know nothing of one another's callers: names and their hashes,
//! directory blocks and their index, the journal, extended attributes and access lists.

pub mod acl;
pub mod dir;
mod dirent;
pub mod hash;
mod htree;
pub mod journal;
pub mod xattr;
