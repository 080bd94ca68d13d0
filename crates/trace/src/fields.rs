//! The fields of a line: numbers and words between separators, checked, without copies.

use std::fmt;

/// Which field of a line is wrong, and why.
#[derive(Debug)]
pub(super) struct Wrong(Box<(u32, &'static str, String)>);

impl Wrong {
    /// Field `number` (from 1), called `name`, is wrong because of `why`.
    #[cold]
    pub fn new(number: u32, name: &'static str, why: impl fmt::Display) -> Wrong {
        Wrong(Box::new((number, name, why.to_string())))
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, name, why) = &*self.0;
        write!(f, "field {number} ({name}) {why}")
    }
}

/// What separates the fields, as a const parameter of [`Fields`]: this value stands for any run of blanks.
pub(super) const BLANKS: u8 = b' ';

/// The fields of a line from left to right. `SEPARATOR` is one byte, or [`BLANKS`].
pub(super) struct Fields<'a, const SEPARATOR: u8> {
    rest: &'a [u8],
    /// The field that comes next, from 1.
    number: u32,
    /// The line ended with the last field.
    over: bool,
}

impl<'a, const SEPARATOR: u8> Fields<'a, SEPARATOR> {
    /// Those of `line`.
    pub fn of(line: &'a [u8]) -> Self {
        let mut fields = Fields { rest: line, number: 1, over: false };
        fields.pass_blanks();
        fields
    }

    /// The field that comes next is number `number` of its line.
    pub fn from(self, number: u32) -> Self {
        Fields { number, ..self }
    }

    /// Whether there is no further field.
    pub fn is_over(&self) -> bool {
        self.over
    }

    fn pass_blanks(&mut self) {
        if SEPARATOR == BLANKS {
            let blanks = self.rest.iter().take_while(|&&byte| is_separator::<SEPARATOR>(byte)).count();
            self.rest = &self.rest[blanks..];
            self.over = self.rest.is_empty();
        }
    }

    /// Moves past the first `len` bytes, which are the field, and the separator after them.
    #[inline]
    fn pass(&mut self, len: usize) {
        self.number += 1;
        match self.rest.get(len + 1..) {
            Some(rest) => self.rest = rest,
            None => {
                self.over = self.rest.len() == len;
                self.rest = &[];
            }
        }
        self.pass_blanks();
    }

    /// The next field as it stands.
    ///
    /// # Errors
    /// The line has ended.
    #[inline]
    pub fn text(&mut self, name: &'static str) -> Result<&'a [u8], Wrong> {
        if self.over {
            return Err(Wrong::new(self.number, name, "is missing"));
        }
        let len = self.rest.iter().position(|&byte| is_separator::<SEPARATOR>(byte));
        let field = &self.rest[..len.unwrap_or(self.rest.len())];
        self.pass(field.len());
        Ok(field)
    }

    /// What the next field begins with.
    pub fn next_byte(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Passes over `count` fields; those that are not there are no error.
    pub fn skip(&mut self, count: u32) {
        for _ in 0..count {
            if self.text("").is_err() {
                return;
            }
        }
    }

    /// The next field as a whole number.
    #[inline]
    pub fn u64(&mut self, name: &'static str) -> Result<u64, Wrong> {
        let (value, digits) = digits(self.rest);
        if digits > 0 && digits < 20 && self.ends_at(digits) {
            self.pass(digits);
            return Ok(value);
        }
        self.u64_slowly(name)
    }

    /// Twenty digits, or no number at all.
    #[cold]
    fn u64_slowly(&mut self, name: &'static str) -> Result<u64, Wrong> {
        let number = self.number;
        let text = self.text(name)?;
        std::str::from_utf8(text)
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                Wrong::new(number, name, format!("is '{}', not a whole number", text.escape_ascii()))
            })
    }

    /// The next field as a whole number below 2³².
    #[inline]
    pub fn u32(&mut self, name: &'static str) -> Result<u32, Wrong> {
        let number = self.number;
        let value = self.u64(name)?;
        u32::try_from(value).map_err(|_| Wrong::new(number, name, format!("is {value}, above 4294967295")))
    }

    /// The next field as a whole number times `factor`.
    #[inline]
    pub fn scaled(&mut self, name: &'static str, factor: u64) -> Result<u64, Wrong> {
        let number = self.number;
        let value = self.u64(name)?;
        value.checked_mul(factor).ok_or_else(|| Wrong::new(number, name, format!("is {value}: too large")))
    }

    /// The next field as a decimal number times 10^`scale` (at most 9), cut to a whole number: `1.5` with
    /// scale 9 is 1 500 000 000.
    #[inline]
    pub fn decimal(&mut self, name: &'static str, scale: u32) -> Result<u64, Wrong> {
        let (whole, len) = digits(self.rest);
        let (mut part, mut part_len) = (0, 0);
        let mut used = len;
        if self.rest.get(len) == Some(&b'.') {
            (part, part_len) = digits(&self.rest[len + 1..]);
            used += 1 + part_len;
        }
        let scale = scale.min(9);
        let number = self.number;
        let value = match (len, part_len) {
            (1..20, 0..20) if self.ends_at(used) => whole.checked_mul(POWERS[scale as usize]),
            _ => {
                let text = self.text(name)?;
                let why = format!("is '{}', not a number such as 1.5", text.escape_ascii());
                return Err(Wrong::new(number, name, why));
            }
        };
        let part = if part_len as u32 <= scale {
            part * POWERS[scale as usize - part_len]
        } else {
            part / 10u64.pow(part_len as u32 - scale)
        };
        self.pass(used);
        value
            .and_then(|value| value.checked_add(part))
            .ok_or_else(|| Wrong::new(number, name, "is too large"))
    }

    #[inline]
    fn ends_at(&self, len: usize) -> bool {
        self.rest.get(len).is_none_or(|&byte| is_separator::<SEPARATOR>(byte))
    }

    /// The number of the field that comes next, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }
}

const POWERS: [u64; 10] =
    [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

#[inline]
fn is_separator<const SEPARATOR: u8>(byte: u8) -> bool {
    byte == SEPARATOR || (SEPARATOR == BLANKS && byte == b'\t')
}

/// The number at the start of `text` and its digits, of which no more than 20 are looked at; right up to 19.
#[inline]
fn digits(text: &[u8]) -> (u64, usize) {
    let mut value = 0u64;
    let mut len = 0;
    for &byte in text.iter().take(20) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        len += 1;
    }
    (value, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commas(line: &str) -> Fields<'_, b','> {
        Fields::of(line.as_bytes())
    }

    #[test]
    fn fields_are_cut_at_the_separator() {
        let mut fields = commas("a,,12,last");
        assert_eq!(fields.text("x").unwrap(), b"a");
        assert_eq!(fields.text("x").unwrap(), b"");
        assert_eq!(fields.u64("x").unwrap(), 12);
        assert!(!fields.is_over());
        assert_eq!(fields.text("x").unwrap(), b"last");
        assert!(fields.is_over());
        assert!(fields.text("tail").unwrap_err().to_string().contains("field 5 (tail) is missing"));
        let mut fields = Fields::<BLANKS>::of(b"  1 \t 2  ");
        assert_eq!((fields.u64("x").unwrap(), fields.u64("x").unwrap()), (1, 2));
        assert!(fields.is_over());
    }

    #[test]
    fn an_empty_field_at_the_end_is_still_a_field() {
        let mut fields = commas("a,");
        fields.skip(1);
        assert!(!fields.is_over());
        assert_eq!(fields.text("x").unwrap(), b"");
        assert!(fields.is_over());
    }

    #[test]
    fn whole_numbers_are_exact_up_to_the_last() {
        assert_eq!(commas("18446744073709551615,1").u64("n").unwrap(), u64::MAX);
        for text in ["18446744073709551616", "-1", "+1", "1x", "", "0x10", "1 "] {
            assert!(commas(text).u64("n").is_err(), "{text}");
        }
        assert!(commas("4294967296").u32("n").is_err());
        assert!(commas("18446744073709551615").scaled("n", 512).is_err());
    }

    #[test]
    fn decimals_are_cut_to_the_scale() {
        for (text, scale, value) in [
            ("1.5", 9, 1_500_000_000),
            ("0.000001", 9, 1_000),
            ("13.191135", 6, 13_191_135),
            ("7", 9, 7_000_000_000),
            ("0.1234567891", 9, 123_456_789),
            ("2.", 3, 2_000),
        ] {
            assert_eq!(commas(text).decimal("t", scale).unwrap(), value, "{text}");
        }
        for text in ["", ".", ".5", "1.5.5", "1e3", "-1.0", "99999999999999999999", "18446744073709551.0"] {
            assert!(commas(text).decimal("t", 9).is_err(), "{text}");
        }
    }
}
