//! A small volume with a changed NVRAM: opened, checked and worked on.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cmfs_core::fuzz::nvram(bytes));
