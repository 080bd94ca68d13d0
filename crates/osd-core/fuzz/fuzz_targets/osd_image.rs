//! A small store with pages changed behind their checksums: opened, checked, repaired and worked on.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bimetal_osd_core::fuzz::image(bytes));
