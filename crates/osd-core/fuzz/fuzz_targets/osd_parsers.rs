//! Each parser of the object store's format: what it is given is an error or a value.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bimetal_osd_core::fuzz::parse(bytes));
