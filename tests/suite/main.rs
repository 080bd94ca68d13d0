//! The integration tests, one binary.

mod cli;
mod fuse;
mod layers;
mod mounts;
mod programs;
