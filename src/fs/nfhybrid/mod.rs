//! nfhybrid: one file system over a small SSD and a large disk (`docs/DESIGN.md`).

pub mod ssd;
