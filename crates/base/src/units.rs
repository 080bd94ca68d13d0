//! Sizes in bytes as people write them, and block numbers that cannot be mixed up.

use crate::{Error, Result};
use std::fmt;

/// Reads a size such as `64MiB`, `4k`, `1.5GiB` or `512` (bytes).
///
/// Binary units take an `i` (`KiB`); a lone letter (`64M`) is binary too, as in most storage tools.
/// Decimal units need the `B` (`64MB` = 64 000 000).
pub fn parse_size(text: &str) -> Result<u64> {
    let lone_letter = text.len() > 1
        && text.ends_with(|c: char| "kmgtpKMGTP".contains(c))
        && text[..text.len() - 1].ends_with(|c: char| c.is_ascii_digit() || c == '.');
    let full = if lone_letter { format!("{text}iB") } else { text.to_string() };
    full.parse::<bytesize::ByteSize>()
        .map(|size| size.as_u64())
        .map_err(|_| Error::invalid(format!("'{text}' is not a size; write 512, 64KiB, 1.5GiB or 100MB")))
}

/// A size as people read it: `64.0 MiB`.
pub fn show_size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

/// Defines a number type of its own for each kind of block address.
macro_rules! address {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

address! {
    /// An inode number of any file system here; ext4's own numbers on the disk half.
    Ino;
    /// A block of the disk half (an ext4 block number).
    DiskBlock;
    /// A block of the SSD half's data area, counted from the start of the device.
    SsdBlock;
    /// A logical page number: what a host addresses on a flash device.
    Lpn;
    /// A physical page number: where a flash device keeps it.
    Ppn;
    /// An erase block of a flash device.
    EraseBlock;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("512", 512),
            ("4k", 4096),
            ("64KiB", 65536),
            ("64M", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2MB", 2_000_000),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "x", "-1", "12QiB", "MiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
