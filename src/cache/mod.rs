//! The page cache between a file system (or a trace) and the device below: one policy a file.

pub mod nvram;
