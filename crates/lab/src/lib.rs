//! The laboratory: stacks built from their profiles, traces replayed on them, and published experiments again.

pub mod kinds;
pub mod names;
pub mod objects;
pub mod replay;
pub mod reproduce;
pub mod stack;
