//! Front ends: the FUSE mount and the command line.
pub mod export;
pub mod nbd;
pub mod replay;
pub mod reproduce;
pub mod trace;
