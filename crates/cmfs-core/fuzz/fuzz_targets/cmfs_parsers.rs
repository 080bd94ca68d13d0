//! Each parser of the format: what it is given is an error or a value.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cmfs_core::fuzz::parse(bytes));
