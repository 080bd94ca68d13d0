//! The integration tests, one binary.

mod cache;
mod layers;
mod media;
mod trace;
