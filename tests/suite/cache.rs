//! The page cache: published examples, exact vectors, independent models, properties.

mod agree;
mod figures;
mod models;
mod safety;
mod traces;
mod vectors;
