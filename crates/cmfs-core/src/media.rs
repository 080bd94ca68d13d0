//! What the file system stands on: a NAND part and a non-volatile memory.

use crate::Error;

/// The numbers that NAND addresses are made of. Page `p` of block `b` is page `b × pages_per_block + p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page, a power of two.
    pub page_bytes: u32,
    /// Bytes of a page's spare area.
    pub spare_bytes: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Blocks.
    pub blocks: u32,
}

impl Geometry {
    /// Pages in all.
    pub fn pages(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.pages_per_block)
    }

    /// The first page of a block.
    pub fn first_page(&self, block: u32) -> u32 {
        block * self.pages_per_block
    }

    /// The block of a page.
    pub fn block_of(&self, page: u32) -> u32 {
        page / self.pages_per_block
    }

    /// How many pages `size` bytes of a file take; no file has more than tags have bits for.
    pub(crate) fn pages_of(&self, size: u64) -> u32 {
        size.div_ceil(u64::from(self.page_bytes)).min(crate::object::PAGES_MAX) as u32
    }

    /// Whether the file system can be on such a part.
    pub fn check(&self) -> Result<(), Error> {
        if !self.page_bytes.is_power_of_two() || !(512..=65536).contains(&self.page_bytes) {
            return Err(Error::Unsupported("pages must be of 512 to 65536 bytes, a power of two"));
        }
        if self.spare_bytes < 32 {
            return Err(Error::Unsupported(
                "its pages have fewer than 32 spare bytes (small-page parts, 512 + 16): no room for the tags of YAFFS2, their \
                 correction and a checksum",
            ));
        }
        if self.spare_bytes > self.page_bytes {
            return Err(Error::Unsupported("pages must be larger than their spare areas"));
        }
        if !(8..=1024).contains(&self.pages_per_block) || self.blocks < 8 {
            return Err(Error::Unsupported("a part must have 8 or more blocks of 8 to 1024 pages"));
        }
        if self.pages() >= u64::from(u32::MAX) - 2 || self.blocks >= 1 << 24 {
            return Err(Error::Unsupported("a part must have fewer than 2^32 pages and 2^24 blocks"));
        }
        Ok(())
    }
}

/// Why a NAND operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NandError {
    /// More bits are wrong than can be corrected.
    Unreadable,
    /// A program or an erase failed: the block is not to be used any more.
    Failed,
    /// No power, or no device.
    Gone,
}

/// A NAND part. What each implementation promises:
///
/// - A page is programmed once between two erases of its block, in ascending order (the file system keeps to
///   that); an erased page reads as all ones, data and spare area.
/// - An operation that returned is on the medium; of a part in a file, when [`sync`](Nand::sync) returned. Of one that was cut off by a power loss, nothing is promised:
///   the page or block may read as before, as erased, as anything, or not at all.
/// - Wrong bits are corrected below here, or the read fails. A read says how many they were, so that a block can be
///   rewritten while it can still be read.
pub trait Nand {
    /// The numbers that addresses are made of.
    fn geometry(&self) -> Geometry;

    /// Whether a block is marked bad.
    fn is_bad(&mut self, block: u32) -> Result<bool, NandError>;

    /// Marks a block bad.
    fn mark_bad(&mut self, block: u32) -> Result<(), NandError>;

    /// Returns how many wrong bits of a codeword can be corrected; 0 where that is not known, as by default.
    fn correctable(&self) -> u32 {
        0
    }

    /// Returns how many bits a cell holds, 1 by default. Programming a page of a part with more may destroy another one
    /// when the power goes.
    fn cell_bits(&self) -> u32 {
        1
    }

    /// Returns whether every page before one that is whole is whole, too, whenever the power went, as by default: a part programs
    /// page after page. Of a part in a file the host may have kept what was written later alone.
    fn is_in_order(&self) -> bool {
        true
    }

    /// Reads a page and its spare area. Returns how many bits were corrected: of the codeword that had the most, or of
    /// all where only that is known; 0 where nothing is.
    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError>;

    /// Reads a page's spare area alone. Returns what [`read`](Nand::read) does.
    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError>;

    /// Programs an erased page.
    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError>;

    /// Erases a block.
    fn erase(&mut self, block: u32) -> Result<(), NandError>;

    /// Returns when what was programmed and erased stays, where that is not so at once: a part in a file.
    fn sync(&mut self) -> Result<(), NandError> {
        Ok(())
    }
}

/// The non-volatile memory is gone, or an access goes past its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvramError;

/// A byte-addressable memory that keeps its contents without power. A write of an aligned word of eight bytes is
/// never torn; before [`persist`](Nvram::persist) returned, words may be there or not in any order.
pub trait Nvram {
    /// Its size in bytes.
    fn size_bytes(&self) -> usize;

    /// Fills `bytes` from `offset` on.
    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), NvramError>;

    /// Writes `bytes` at `offset`.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), NvramError>;

    /// Returns when all that was written stays.
    fn persist(&mut self) -> Result<(), NvramError>;
}

/// The NVRAM of a file system that has none.
#[derive(Clone, Copy, Debug)]
pub enum NoNvram {}

impl Nvram for NoNvram {
    fn size_bytes(&self) -> usize {
        match *self {}
    }

    fn read(&mut self, _: usize, _: &mut [u8]) -> Result<(), NvramError> {
        match *self {}
    }

    fn write(&mut self, _: usize, _: &[u8]) -> Result<(), NvramError> {
        match *self {}
    }

    fn persist(&mut self) -> Result<(), NvramError> {
        match *self {}
    }
}

/// Whoever has a pointer to a medium has the medium.
macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<T: Nand + ?Sized> Nand for $pointer {
            fn geometry(&self) -> Geometry {
                (**self).geometry()
            }

            fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
                (**self).is_bad(block)
            }

            fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
                (**self).mark_bad(block)
            }

            fn correctable(&self) -> u32 {
                (**self).correctable()
            }

            fn cell_bits(&self) -> u32 {
                (**self).cell_bits()
            }

            fn is_in_order(&self) -> bool {
                (**self).is_in_order()
            }

            fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
                (**self).read(page, data, spare)
            }

            fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
                (**self).read_spare(page, spare)
            }

            fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
                (**self).program(page, data, spare)
            }

            fn erase(&mut self, block: u32) -> Result<(), NandError> {
                (**self).erase(block)
            }

            fn sync(&mut self) -> Result<(), NandError> {
                (**self).sync()
            }
        }

        impl<T: Nvram + ?Sized> Nvram for $pointer {
            fn size_bytes(&self) -> usize {
                (**self).size_bytes()
            }

            fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), NvramError> {
                (**self).read(offset, bytes)
            }

            fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), NvramError> {
                (**self).write(offset, bytes)
            }

            fn persist(&mut self) -> Result<(), NvramError> {
                (**self).persist()
            }
        }
    )*};
}

forward!(alloc::boxed::Box<T>, &mut T);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_cannot_be_driven_are_refused_with_the_reason() {
        let part = Geometry { page_bytes: 512, spare_bytes: 16, pages_per_block: 32, blocks: 2048 };
        let why = |part: Geometry| match part.check() {
            Err(Error::Unsupported(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(why(part).contains("small-page parts"));
        assert!(why(Geometry { page_bytes: 2000, spare_bytes: 64, ..part }).contains("power of two"));
        assert!(why(Geometry { spare_bytes: 64, blocks: 4, ..part }).contains("8 or more blocks"));
        assert_eq!(Geometry { spare_bytes: 32, ..part }.check(), Ok(()));
    }
}
