//! The integration tests, one binary.

mod ftl;
mod layers;
mod media;
