//! Byte-addressable memory that keeps its contents without power (FeRAM, MRAM, battery-backed RAM).
//!
//! It is addressed directly, so an access takes the caller's time and nothing waits. A power cut stops a write
//! between two words of [`WORD_BYTES`] bytes: the words before are written, the rest is not.

use super::profile::{Described, InvalidField};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a power cut never tears, bytes.
pub const WORD_BYTES: usize = 8;

/// The figures of a non-volatile memory. Every field must be given in a profile file; units end the names.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct NvramProfile {
    /// Always `nvram`.
    pub kind: String,
    /// The part in words.
    pub model: String,
    /// Reading.
    pub read_ns_per_byte: f64,
    /// Writing.
    pub write_ns_per_byte: f64,
    /// What each access takes besides.
    pub access_ns: f64,
}

impl Described for NvramProfile {
    const KIND: &'static str = "nvram";

    fn check(&self) -> Result<(), InvalidField> {
        for (value, field) in [
            (self.read_ns_per_byte, "read_ns_per_byte"),
            (self.write_ns_per_byte, "write_ns_per_byte"),
            (self.access_ns, "access_ns"),
        ] {
            InvalidField::unless((0.0..=1e6).contains(&value), field, "must be from 0 to 1000000")?;
        }
        Ok(())
    }
}

/// What was done, since the memory was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NvramCounts {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// A non-volatile memory.
#[derive(Clone, Debug)]
pub struct Nvram {
    profile: NvramProfile,
    bytes: Vec<u8>,
    counts: NvramCounts,
    /// Words until the power goes; 0: it is off.
    until_cut: u64,
}

impl Nvram {
    /// A memory of `size_bytes` zeros.
    pub fn new(profile: NvramProfile, size_bytes: usize) -> Nvram {
        Nvram { profile, bytes: vec![0; size_bytes], counts: NvramCounts::default(), until_cut: u64::MAX }
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// What was done so far.
    pub fn counts(&self) -> NvramCounts {
        self.counts
    }

    /// Reads `len` bytes; they, and when they are there.
    ///
    /// Fails with [`Error::Gone`] without power, with [`Error::Invalid`] past the end.
    pub fn read(&mut self, at: Time, offset: usize, len: usize) -> Result<(&[u8], Time)> {
        if self.until_cut == 0 {
            return Err(self.gone());
        }
        self.counts.read_bytes += len as u64;
        let done = at + self.takes(len, self.profile.read_ns_per_byte);
        let end = offset.saturating_add(len);
        match self.bytes.get(offset..end) {
            Some(bytes) => Ok((bytes, done)),
            None => Err(past_end(&self.profile.model, self.bytes.len(), offset, len)),
        }
    }

    /// Writes `data`, word after word; when it is there and stays.
    ///
    /// Fails as [`read`](Nvram::read) does; a power cut leaves the first words written.
    pub fn write(&mut self, at: Time, offset: usize, data: &[u8]) -> Result<Time> {
        let (size, end) = (self.bytes.len(), offset.saturating_add(data.len()));
        let done = at + self.takes(data.len(), self.profile.write_ns_per_byte);
        let Some(target) = self.bytes.get_mut(offset..end) else {
            return Err(past_end(&self.profile.model, size, offset, data.len()));
        };
        let words = data.len().div_ceil(WORD_BYTES) as u64;
        if self.until_cut <= words {
            let kept = (self.until_cut.saturating_sub(1) as usize * WORD_BYTES).min(data.len());
            target[..kept].copy_from_slice(&data[..kept]);
            self.until_cut = 0;
            return Err(self.gone());
        }
        if self.until_cut != u64::MAX {
            self.until_cut -= words;
        }
        target.copy_from_slice(data);
        self.counts.written_bytes += data.len() as u64;
        Ok(done)
    }

    /// Cuts the power in the write of the `count`-th word from now (1: the next), which is not written.
    pub fn cut_power_in(&mut self, count: u64) {
        self.until_cut = count.max(1);
    }

    /// Turns the power on again; no cut is planned any more.
    pub fn power_on(&mut self) {
        self.until_cut = u64::MAX;
    }

    fn takes(&self, len: usize, ns_per_byte: f64) -> Duration {
        Duration::from_nanos((self.profile.access_ns + len as f64 * ns_per_byte) as u64)
    }

    fn gone(&self) -> Error {
        Error::Gone { device: self.profile.model.clone() }
    }
}

fn past_end(model: &str, size: usize, offset: usize, len: usize) -> Error {
    Error::invalid(format!("{model}: {len} bytes at {offset} end past its {size} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    fn feram(size: usize) -> Nvram {
        Nvram::new(profile::load("feram").unwrap(), size)
    }

    #[test]
    fn bytes_stay_and_take_their_time() {
        let mut nvram = feram(64);
        assert_eq!(nvram.write(Time(100), 8, &[7; 16]).unwrap(), Time(100 + 16 * 55));
        let (bytes, done) = nvram.read(Time(0), 4, 8).unwrap();
        assert_eq!((bytes, done), (&[0, 0, 0, 0, 7, 7, 7, 7][..], Time(8 * 55)));
        assert_eq!(nvram.counts(), NvramCounts { read_bytes: 8, written_bytes: 16 });
        let error = nvram.write(Time(0), 60, &[0; 8]).unwrap_err().to_string();
        assert!(error.contains("end past its 64 bytes"), "{error}");
        assert!(nvram.read(Time(0), usize::MAX, 8).is_err());
    }

    #[test]
    fn a_power_cut_leaves_the_words_before_it() {
        let mut nvram = feram(64);
        nvram.cut_power_in(3);
        nvram.write(Time(0), 0, &[1; 8]).unwrap();
        assert!(matches!(nvram.write(Time(0), 8, &[2; 24]), Err(Error::Gone { .. })));
        assert!(matches!(nvram.read(Time(0), 0, 1), Err(Error::Gone { .. })));
        nvram.power_on();
        let (bytes, _) = nvram.read(Time(0), 0, 32).unwrap();
        assert_eq!(bytes.chunks(8).map(|word| word[0]).collect::<Vec<_>>(), [1, 2, 0, 0]);
    }
}
