//! Devices, volumes and files of a trace by the names that it has for them.

use super::fields::Wrong;
use rustc_hash::FxHashMap;

/// Numbers for what a column of units says: a number is itself; names get numbers in the order in which they come.
#[derive(Default)]
pub(super) struct Units {
    names: FxHashMap<Vec<u8>, u32>,
    has_numbers: bool,
}

impl Units {
    /// The unit that field `number` says.
    ///
    /// # Errors
    /// It is empty, or some units are numbers and others are not, so that two might be taken for one.
    #[inline]
    pub fn of(&mut self, number: u32, text: &[u8]) -> Result<u32, Wrong> {
        let digits = (1..10).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
        if digits && self.names.is_empty() {
            self.has_numbers = true;
            return Ok(text.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0')));
        }
        self.named(number, text)
    }

    /// The unit that `name` stands for, digits or not; only for traces whose units are all named so.
    pub fn named_of(&mut self, name: &[u8]) -> u32 {
        if let Some(unit) = self.names.get(name) {
            return *unit;
        }
        let unit = self.names.len() as u32;
        self.names.insert(name.to_vec(), unit);
        unit
    }

    fn named(&mut self, number: u32, text: &[u8]) -> Result<u32, Wrong> {
        if let Some(unit) = self.names.get(text) {
            return Ok(*unit);
        }
        let wrong = |why: &str| Wrong::new(number, "unit", format!("is '{}', {why}", text.escape_ascii()));
        if text.is_empty() {
            return Err(wrong("no device or file"));
        }
        if self.has_numbers {
            return Err(wrong("where those before are numbers below 1000000000"));
        }
        Ok(self.named_of(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_names_are_numbered_but_not_both() {
        let mut units = Units::default();
        assert_eq!(
            [&b"7"[..], b"0", b"999999999"].map(|text| units.of(1, text).unwrap()),
            [7, 0, 999_999_999]
        );
        assert!(units.of(3, b"sda").unwrap_err().to_string().contains("field 3 (unit) is 'sda'"));
        let mut units = Units::default();
        let texts: [&[u8]; 5] = [b"sda", b"18446744073709551615", b"7", b"sda", b"7"];
        assert_eq!(texts.map(|text| units.of(1, text).unwrap()), [0, 1, 2, 0, 2]);
        assert!(units.of(1, b"").is_err());
    }
}
