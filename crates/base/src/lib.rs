//! What every layer of bimetal shares: errors, units, time, checksums, options, random numbers, and the runtime that
//! tasks, locks and clocks come from.

pub mod checksum;
pub mod error;
pub mod memory;
pub mod options;
pub mod random;
pub mod runtime;
pub mod time;
pub mod units;

pub use error::{Error, Result};
