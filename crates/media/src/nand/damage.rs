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
}
