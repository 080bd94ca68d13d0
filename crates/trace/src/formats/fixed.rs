//! Binary traces whose records are of one length, behind a header or none.

use super::super::input::Input;
use super::super::window::Window;
use super::super::{BATCH, Record, Records, Tally};
use bimetal_base::{Error, Result};

/// How a format reads a record.
pub(super) trait FixedFormat: Send {
    /// Its name in the registry.
    const NAME: &'static str;

    /// Bytes of a record.
    fn bytes(&self) -> usize;

    /// Decodes a record, of so many bytes. `None`: one that carries no request.
    ///
    /// # Errors
    /// What it cannot be, in words.
    fn record(&mut self, bytes: &[u8]) -> Result<Option<Record>, String>;
}

/// A binary trace.
pub(super) struct FixedTrace<F> {
    name: String,
    window: Window,
    format: F,
    tally: Tally,
}

impl<F: FixedFormat + 'static> FixedTrace<F> {
    /// Reads `input`; `begin` makes the format from its first `header` bytes, which are no record.
    ///
    /// # Errors
    /// The file cannot be read, is shorter than its header, or `begin` refuses that.
    pub fn open(
        input: Input,
        header: usize,
        begin: impl FnOnce(&[u8]) -> Result<F, String>,
    ) -> Result<Box<dyn Records>> {
        let (name, mut window) = (input.name, Window::new(input.bytes));
        let refused = |why: String| Error::corrupt(format!("{} trace {name}", F::NAME), why, "its header");
        if !window.has(header).map_err(|why| Error::io(&name, why))? {
            return Err(refused(format!("the file is shorter than {header} bytes")));
        }
        let format = begin(&window.bytes()[..header]).map_err(refused)?;
        window.use_up(header);
        Ok(Box::new(FixedTrace { name, window, format, tally: Tally::default() }))
    }

    fn corrupt(&self, why: impl std::fmt::Display) -> Error {
        let record = format!("record {}", self.tally.lines);
        Error::corrupt(format!("{} trace {}", F::NAME, self.name), why, record)
    }
}

impl<F: FixedFormat + 'static> Records for FixedTrace<F> {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        let (full, bytes) = (batch.len() + BATCH, self.format.bytes());
        while batch.len() < full {
            let there = self.window.has(bytes).map_err(|why| Error::io(&self.name, why))?;
            self.tally.lines += u64::from(!self.window.bytes().is_empty());
            if !there {
                return match self.window.bytes() {
                    [] => Ok(()),
                    _ => Err(self.corrupt("the file ends within a record")),
                };
            }
            let record = self.format.record(&self.window.bytes()[..bytes]);
            match record.map_err(|why| self.corrupt(why))? {
                Some(record) => match record.flaw() {
                    None => batch.push(record),
                    Some(why) => return Err(self.corrupt(why)),
                },
                None => self.tally.skipped += 1,
            }
            self.window.use_up(bytes);
        }
        Ok(())
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}

/// The `N` bytes from `at` on; they are there.
pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

/// Little-endian numbers at a place of a record.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(part(bytes, at))
}

/// As [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(part(bytes, at))
}

/// As [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(part(bytes, at))
}
