//! Error correction of pages by software, for parts whose controller has none: one wrong bit of every 256 bytes is
//! corrected, two are found.
//!
//! The Hamming code of SmartMedia cards: three bytes for 256, the parity of every half, quarter, … of the bytes
//! (16 bits) and of the bits in them (6 bits), inverted, so that erased bytes have the code of erased bytes. They lie
//! at the end of the spare area in the order of Linux' software code, upper line parities first, so that its driver
//! and [`Corrected`] read each other's pages. Cost: one pass over the page.
//!
//! Stronger codes (BCH, Reed-Solomon over long words) are what controllers and on-die circuits do, each in its own
//! layout; of what a page's checksum still finds wrong behind any of them a read fails.

use crate::media::{Geometry, Nand, NandError};
use crate::tags::TagPlace;
use alloc::vec::Vec;

/// Bytes that one code is of.
pub const STEP_BYTES: usize = 256;
/// Bytes of a code.
pub const CODE_BYTES: usize = 3;
/// Spare bytes before the codes: the bad-block mark, the tags with their own correction, the page's checksum.
const TAKEN_BYTES: usize = 34;

/// What correcting came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was wrong.
    Whole,
    /// One bit was, of the bytes or of the code.
    Fixed,
    /// More is wrong than can be corrected.
    Lost,
}

/// The code of up to 256 bytes (those that are not there count as zeros).
pub fn code(bytes: &[u8]) -> [u8; CODE_BYTES] {
    let (mut all, mut odd, mut even) = (0u8, 0u8, 0u8);
    for (index, byte) in (0u8..=u8::MAX).zip(bytes) {
        all ^= byte;
        if byte.count_ones() % 2 == 1 {
            odd ^= index;
            even ^= !index;
        }
    }
    // Bit 2k of the lines: the parity of bytes whose index has bit k clear; bit 2k + 1: set.
    let lines = (0..8).fold(0u16, |lines, k| {
        lines | u16::from(even >> k & 1) << (2 * k) | u16::from(odd >> k & 1) << (2 * k + 1)
    });
    let columns = [0xf0u8, 0x0f, 0xcc, 0x33, 0xaa, 0x55];
    let column =
        columns.iter().fold(0u8, |code, mask| code << 1 | ((all & mask).count_ones() % 2) as u8) << 2;
    [!((lines >> 8) as u8), !(lines as u8), !column]
}

/// Corrects bytes by the code that was stored with them.
pub fn correct(bytes: &mut [u8], stored: [u8; CODE_BYTES]) -> Outcome {
    let now = code(bytes);
    let [upper, lower, column] = [0, 1, 2].map(|at| stored[at] ^ now[at]);
    let lines = u16::from(upper) << 8 | u16::from(lower);
    let wrong = lines.count_ones() + (column & 0xfc).count_ones();
    if wrong == 0 {
        return Outcome::Whole;
    }
    // One wrong bit is in one half of each pair.
    if (lines ^ lines >> 1) & 0x5555 == 0x5555 && (column ^ column >> 1) & 0x54 == 0x54 {
        let index = (0..8).fold(0usize, |index, k| index | usize::from(lines >> (2 * k + 1) & 1) << k);
        let bit = (column >> 7 & 1) << 2 | (column >> 5 & 1) << 1 | column >> 3 & 1;
        return match bytes.get_mut(index) {
            Some(byte) => {
                *byte ^= 1 << bit;
                Outcome::Fixed
            }
            None => Outcome::Lost,
        };
    }
    if wrong == 1 { Outcome::Fixed } else { Outcome::Lost }
}

/// Corrects a page whose codes are all ones: one without codes, or of zeros, say, whose codes are just that. Its
/// checksum tells which, and what is right. Whether it was corrected.
fn correct_uncoded(data: &mut [u8], spare: &[u8]) -> bool {
    if TagPlace::MTD.data_is_whole(data, spare) {
        return false;
    }
    let mut right = data.to_vec();
    for step in right.chunks_mut(STEP_BYTES) {
        correct(step, [0xff; CODE_BYTES]);
    }
    let whole = TagPlace::MTD.data_is_whole(&right, spare);
    if whole {
        data.copy_from_slice(&right);
    }
    whole
}

/// A part whose pages are corrected by software. Where the spare area has no room for the codes, or a page was
/// written without (all ones), pages are passed on as they are.
#[derive(Clone, Debug)]
pub struct Corrected<N> {
    nand: N,
    /// Where the codes begin in the spare area; `None`: there is no room.
    place: Option<usize>,
    spare: Vec<u8>,
    fixed: u64,
}

impl<N: Nand> Corrected<N> {
    /// Corrects what is read from `nand`.
    pub fn new(nand: N) -> Corrected<N> {
        let geometry = nand.geometry();
        let codes = geometry.page_bytes as usize / STEP_BYTES * CODE_BYTES;
        let place = (geometry.spare_bytes as usize).checked_sub(codes).filter(|place| *place >= TAKEN_BYTES);
        Corrected { nand, place, spare: Vec::new(), fixed: 0 }
    }

    /// Whether the spare area has room for the codes.
    pub fn is_on(&self) -> bool {
        self.place.is_some()
    }

    /// How many bits were corrected.
    pub fn fixed(&self) -> u64 {
        self.fixed
    }

    /// The part itself.
    pub fn inner_mut(&mut self) -> &mut N {
        &mut self.nand
    }
}

impl<N: Nand> Nand for Corrected<N> {
    fn geometry(&self) -> Geometry {
        self.nand.geometry()
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        self.nand.is_bad(block)
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        self.nand.mark_bad(block)
    }

    fn correctable(&self) -> u32 {
        if self.is_on() { self.nand.correctable().max(1) } else { self.nand.correctable() }
    }

    fn cell_bits(&self) -> u32 {
        self.nand.cell_bits()
    }

    fn is_in_order(&self) -> bool {
        self.nand.is_in_order()
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        let below = self.nand.read(page, data, spare)?;
        let before = self.fixed;
        let codes = self.place.and_then(|place| spare.get(place..)).unwrap_or_default();
        if codes.iter().all(|byte| *byte == 0xff) {
            self.fixed += u64::from(correct_uncoded(data, spare));
            return Ok(below.max(u32::from(self.fixed > before)));
        }
        for (step, stored) in data.chunks_mut(STEP_BYTES).zip(codes.chunks_exact(CODE_BYTES)) {
            match correct(step, [stored[0], stored[1], stored[2]]) {
                Outcome::Whole => {}
                Outcome::Fixed => self.fixed += 1,
                Outcome::Lost => return Err(NandError::Unreadable),
            }
        }
        Ok(below.max(u32::from(self.fixed > before)))
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        self.nand.read_spare(page, spare)
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        self.spare.clear();
        self.spare.extend_from_slice(spare);
        if let Some(codes) = self.place.and_then(|place| self.spare.get_mut(place..)) {
            for (step, place) in data.chunks(STEP_BYTES).zip(codes.chunks_exact_mut(CODE_BYTES)) {
                place.copy_from_slice(&code(step));
            }
        }
        self.nand.program(page, data, &self.spare)
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        self.nand.erase(block)
    }

    fn sync(&mut self) -> Result<(), NandError> {
        self.nand.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamNand;
    use crate::{Config, Error, Fs, Kind, NewObject, NoNvram, ROOT};

    fn bytes() -> Vec<u8> {
        (0..STEP_BYTES as u32).map(|at| (at * 31 + at / 7) as u8).collect()
    }

    #[test]
    fn erased_bytes_have_an_erased_code_and_the_parities_lie_where_linux_has_them() {
        assert_eq!(code(&[0xff; STEP_BYTES]), [0xff; 3]);
        let mut one = [0; STEP_BYTES];
        // Bit 3 of byte 0x81: lines 1, 15 (set) and the even ones of the clear bits; columns f0 clear, 0f, cc, …
        one[0x81] = 1 << 3;
        assert_eq!(code(&one).map(|byte| !byte), [0b1001_0101, 0b0101_0110, 0b0110_1000]);
    }

    #[test]
    fn every_single_wrong_bit_is_corrected_and_every_two_are_found() {
        let stored = code(&bytes());
        let bits = STEP_BYTES * 8;
        for bit in 0..bits {
            let mut wrong = bytes();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!((correct(&mut wrong, stored), &wrong), (Outcome::Fixed, &bytes()), "bit {bit}");
            for other in [(bit + 1) % bits, (bit + 8) % bits, (bit * 7 + 13) % bits] {
                let mut wrong = bytes();
                wrong[bit / 8] ^= 1 << (bit % 8);
                wrong[other / 8] ^= 1 << (other % 8);
                if other != bit {
                    assert_eq!(correct(&mut wrong, stored), Outcome::Lost, "bits {bit} and {other}");
                }
            }
        }
        for bit in 0..22 {
            let mut code = stored;
            code[bit / 8] ^= 0x80 >> (bit % 8);
            let mut same = bytes();
            assert_eq!(
                (correct(&mut same, code), &same),
                (Outcome::Fixed, &bytes()),
                "bit {bit} of the code"
            );
        }
    }

    #[test]
    fn a_file_survives_a_wrong_bit_in_every_page_and_never_reads_wrong() {
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 16, blocks: 16 };
        let nand = Corrected::new(RamNand::new(geometry));
        assert!(nand.is_on());
        let mut fs = Fs::<_, NoNvram>::format(nand, None, Config::default(), [1; 16], true).unwrap();
        let new = NewObject { kind: Kind::File, mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: &[] };
        let file = fs.create(ROOT, b"file", &new).unwrap();
        let contents: Vec<u8> = (0..40_000u32).map(|at| (at / 3) as u8).collect();
        fs.write(file, 0, &contents).unwrap();
        let (mut nand, _) = fs.close().unwrap();
        for page in 0..16 * 16 {
            nand.inner_mut().flip(page, page as usize * 61 % (2048 * 8));
        }
        let mut read = alloc::vec![0; contents.len()];
        let mut fs = Fs::<_, NoNvram>::open(nand, None, Config::default()).unwrap();
        fs.read(file, 0, &mut read).unwrap();
        assert!(read == contents && fs.nand().fixed() >= 20, "{} bits corrected", fs.nand().fixed());
        // A second wrong bit in the same step: an error, not wrong data.
        let page = fs.pages(file)[3];
        fs.nand_mut().inner_mut().flip(page, (page as usize * 61 + 5) % (2048 * 8) / 2048 * 2048 + 77);
        fs.nand_mut().inner_mut().flip(page, page as usize * 61 % (2048 * 8) / 2048 * 2048 + 99);
        assert!(matches!(fs.read(file, 0, &mut read), Err(Error::Corrupt { what: "page", .. })));
    }
}
