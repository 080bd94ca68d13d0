//! The page cache: published examples, exact vectors, independent models, properties.

mod traces;
mod vectors;
