//! Bits in a row, most significant first, and the codes of numbers made of them.

use alloc::vec::Vec;

/// A row of bits being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitWriter {
    bytes: Vec<u8>,
    /// Bits of the last byte that are used; 0: it is full.
    used: u32,
}

/// A row of bits being read. Past the end everything is `None`.
#[derive(Clone, Debug)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl BitWriter {
    /// How many bits there are.
    pub fn len_bits(&self) -> usize {
        match self.used {
            0 => self.bytes.len() * 8,
            used => (self.bytes.len() - 1) * 8 + used as usize,
        }
    }

    /// The bytes, the last filled up with zeros.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// One bit.
    pub fn bit(&mut self, bit: bool) {
        if self.used == 0 {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= u8::from(bit) << (7 - self.used);
        }
        self.used = (self.used + 1) % 8;
    }

    /// The lower `count` bits of `value`, at most 64.
    pub fn bits(&mut self, value: u64, count: u32) {
        for at in (0..count).rev() {
            self.bit(value >> at & 1 == 1);
        }
    }

    /// All bits of another row.
    pub fn append(&mut self, other: &BitWriter) {
        let mut reader = BitReader::new(&other.bytes);
        for _ in 0..other.len_bits() {
            self.bit(reader.bit().unwrap_or(false));
        }
    }

    /// `value` as so many ones, then a zero.
    pub fn unary(&mut self, value: u32) {
        (0..value).for_each(|_| self.bit(true));
        self.bit(false);
    }

    /// Exponential Golomb code of order `k`: short for values below 2^k, two bits more a doubling.
    pub fn golomb(&mut self, value: u64, k: u32) {
        let shifted = (value >> k) + 1;
        let width = 63 - shifted.leading_zeros();
        self.unary(width);
        self.bits(shifted, width);
        self.bits(value, k);
    }

    /// A number that may be negative, small ones short either way.
    pub fn signed(&mut self, value: i64, k: u32) {
        self.golomb((value << 1 ^ value >> 63) as u64, k);
    }
}

impl<'a> BitReader<'a> {
    /// Reads from the first bit on.
    pub fn new(bytes: &'a [u8]) -> BitReader<'a> {
        BitReader { bytes, at: 0 }
    }

    /// One bit.
    pub fn bit(&mut self) -> Option<bool> {
        let byte = self.bytes.get(self.at / 8)?;
        let bit = byte >> (7 - self.at % 8) & 1 == 1;
        self.at += 1;
        Some(bit)
    }

    /// `count` bits, at most 64.
    pub fn bits(&mut self, count: u32) -> Option<u64> {
        (0..count).try_fold(0u64, |value, _| Some(value << 1 | u64::from(self.bit()?)))
    }

    /// What [`BitWriter::unary`] wrote, at most `limit`.
    pub fn unary(&mut self, limit: u32) -> Option<u32> {
        let mut count = 0;
        while self.bit()? {
            count += 1;
            if count > limit {
                return None;
            }
        }
        Some(count)
    }

    /// What [`BitWriter::golomb`] wrote.
    pub fn golomb(&mut self, k: u32) -> Option<u64> {
        let width = self.unary(62)?;
        let shifted = 1u64.checked_shl(width)? | self.bits(width)?;
        let low = self.bits(k)?;
        (shifted - 1).checked_mul(1 << k)?.checked_add(low)
    }

    /// What [`BitWriter::signed`] wrote.
    pub fn signed(&mut self, k: u32) -> Option<i64> {
        let value = self.golomb(k)?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_out_as_it_went_in() {
        let mut writer = BitWriter::default();
        let numbers = [0u64, 1, 2, 7, 8, 255, 256, 65_535, 1 << 31, 1 << 40];
        for k in [0, 4, 8, 12] {
            for &number in &numbers {
                writer.golomb(number, k);
                writer.signed(number as i64, k);
                writer.signed(-(number as i64), k);
            }
        }
        let bits = writer.len_bits();
        let bytes = writer.into_bytes();
        assert_eq!(bytes.len(), bits.div_ceil(8));
        let mut reader = BitReader::new(&bytes);
        for k in [0, 4, 8, 12] {
            for &number in &numbers {
                assert_eq!(reader.golomb(k), Some(number));
                assert_eq!(reader.signed(k), Some(number as i64));
                assert_eq!(reader.signed(k), Some(-(number as i64)));
            }
        }
        assert_eq!(BitReader::new(&[0xff; 20]).golomb(0), None);
        assert_eq!(BitReader::new(&[]).bit(), None);
    }

    #[test]
    fn rows_join_at_any_bit() {
        let (mut whole, mut part) = (BitWriter::default(), BitWriter::default());
        whole.bits(0b101, 3);
        part.bits(0b0_1100_1010, 9);
        whole.append(&part);
        assert_eq!(whole.len_bits(), 12);
        assert_eq!(whole.into_bytes(), [0b1010_1100, 0b1010_0000]);
    }
}
