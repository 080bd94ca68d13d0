//! Front ends: the FUSE mount and the command line.
pub mod export;
pub mod replay;
pub mod reproduce;
pub mod trace;
