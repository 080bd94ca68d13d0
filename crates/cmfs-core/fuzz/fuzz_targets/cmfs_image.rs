//! A small volume with pages changed behind their checksums: opened, checked, repaired and worked on.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cmfs_core::fuzz::image(bytes));
