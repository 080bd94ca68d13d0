//! The integration tests, one binary.

mod cache;
mod ftl;
mod layers;
mod media;
mod trace;
