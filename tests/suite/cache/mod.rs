//! The page cache: published examples, exact vectors, independent models, properties.

mod agree;
mod block_models;
mod counting_models;
mod figures;
mod ftl;
mod goldens;
mod models;
mod mounts;
mod peer;
mod rules;
mod safety;
mod traces;
mod vectors;
