//! The integration tests, one binary.

mod layers;
mod mounts;
mod programs;
