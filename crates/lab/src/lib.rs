//! The laboratory: stacks built from their profiles, traces replayed on them, and published experiments again.

mod chart;
pub mod kinds;
pub mod names;
pub mod objects;
mod page;
pub mod replay;
pub mod reproduce;
pub mod stack;
