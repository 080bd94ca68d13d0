//! The integration tests, one binary.

mod layers;
mod ssd;
