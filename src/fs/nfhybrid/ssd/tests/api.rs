//! The interface as its owner uses it.
