//! The integration tests, one binary.

mod cache;
mod cli;
mod cmfs;
mod crash;
mod docs;
mod ext4;
mod ext4_dir;
mod ext4_image;
mod ext4_journal;
mod ext4_xattr;
mod fault_matrix;
mod ftl;
mod fuse;
mod layers;
mod media;
mod mounts;
mod nfhybrid;
mod nfhybrid_ace;
mod nfhybrid_crash;
mod nfhybrid_kill;
mod nfhybrid_real;
mod osd;
mod programs;
mod ssd;
mod trace;
