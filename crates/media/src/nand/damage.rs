//! Damage by hand, for tests of what lies above: what wear, disturbance and bad controllers do to a page.

use super::{Failure, Nand};

impl Nand {
    /// Turns a bit of a programmed page, which stays so until its block is erased. Nothing is counted, and the
    /// array's own code does not notice it.
    ///
    /// # Errors
    /// The page was never programmed, or its bytes cannot be reached.
    #[doc(hidden)]
    pub fn turn_bit(&mut self, block: u32, page: u32, bit: u32) -> Result<(), Failure> {
        let mut bytes = self.bytes(block, page)?.to_vec();
        bytes[bit as usize / 8] ^= 1 << (bit % 8);
        let put = self.payload.put(self.place(block, page), &bytes);
        put.map_err(|error| Failure::Storage(Box::new(error)))
    }

    /// Says of a block that it is bad, or that it is good, as a wrong bit of what is kept of it does. Its pages are as they were.
    #[doc(hidden)]
    pub fn set_bad(&mut self, block: u32, bad: bool) {
        self.blocks[block as usize].bad = bad;
    }
}
