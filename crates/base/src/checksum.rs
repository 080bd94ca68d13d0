//! CRC-32C, the one checksum of every bimetal format and of ext4's metadata.

/// CRC-32C (Castagnoli) of `data`, as RFC 3720 defines it: initial value and final XOR all ones.
pub fn crc32c(data: &[u8]) -> u32 {
    ::crc32c::crc32c(data)
}

/// The CRC register run over `data` from `seed` with neither initial nor final inversion: what the
/// Linux kernel calls `crc32c()` and what ext4 and jbd2 store.
pub fn crc32c_raw(seed: u32, data: &[u8]) -> u32 {
    !::crc32c::crc32c_append(!seed, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_raw(!0, b"123456789"), !0xE306_9283);
    }

    #[test]
    fn the_raw_form_can_be_continued() {
        let whole = crc32c_raw(7, b"hello world");
        assert_eq!(whole, crc32c_raw(crc32c_raw(7, b"hello "), b"world"));
    }
}
