//! The integration tests, one binary.

mod ext4;
mod layers;
