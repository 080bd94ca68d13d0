//! The ext4 driver against e2fsprogs, the Linux kernel and a model in memory.
//!
//! Every image is made by `mke2fs`, changed through [`bimetal::fs::ext4::Ext4`], and judged three ways: it
//! must read back as the model says, `e2fsck -fn` must find nothing, and a read-only mount by the kernel
//! must show the same tree.

mod crash;
mod damage;
mod limits;
mod misses;
mod model;
mod random;
mod rig;
mod speed;
mod states;
