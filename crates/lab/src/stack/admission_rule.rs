//! Which writes: a range of addresses; blocks written again and again; or the FATs and the directories of a FAT
//! volume, found by walking the tree in an image of it. A non-volatile write cache takes them, or a placement handle
//! tells them from the rest.

use bimetal_base::units::parse_size;
use bimetal_base::{Error, Result};
use bimetal_cache::nvram::Admission;
use bimetal_fat::metadata::Metadata;
use bimetal_media::file::{FileDevice, Options};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Heat unless said otherwise: three writes within as many as the paper's metadata takes to come round.
const HEAT: (u32, u64) = (3, 1000);

/// Which writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionRule {
    /// Those to these bytes.
    Range(Range<u64>),
    /// Those to blocks written so often within so many block writes.
    Heat(u32, u64),
    /// Those to the FATs and the directories of the volume in this image, which begins where the device does.
    Fat(PathBuf),
}

/// `FROM-END`, sizes.
pub fn parse_range(text: &str) -> Result<Range<u64>> {
    let wrong = || Error::invalid(format!("'{text}' is not a range of bytes such as 0-82KiB"));
    let (from, end) = text.split_once('-').ok_or_else(wrong)?;
    let range = parse_size(from)?..parse_size(end)?;
    if range.is_empty() { Err(wrong()) } else { Ok(range) }
}

impl FromStr for AdmissionRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<AdmissionRule> {
        let wrong = || {
            let why = "is none of FROM-END as 0-82KiB, heat, heat:WRITES/WITHIN, fat:IMAGE";
            Error::invalid(format!("'{text}' {why}"))
        };
        if let Some(image) = text.strip_prefix("fat:").filter(|image| !image.is_empty()) {
            return Ok(AdmissionRule::Fat(image.into()));
        }
        let Some(heat) = text.strip_prefix("heat") else {
            return parse_range(text).map(AdmissionRule::Range).map_err(|_| wrong());
        };
        if heat.is_empty() {
            return Ok(AdmissionRule::Heat(HEAT.0, HEAT.1));
        }
        let (writes, within) =
            heat.strip_prefix(':').and_then(|heat| heat.split_once('/')).ok_or_else(wrong)?;
        let (writes, within) = (writes.parse().ok(), parse_size(within).ok());
        let heat =
            writes.zip(within).filter(|(writes, within)| *writes > 0 && *within > 0).ok_or_else(wrong)?;
        Ok(AdmissionRule::Heat(heat.0, heat.1))
    }
}

impl std::fmt::Display for AdmissionRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AdmissionRule::Range(range) => write!(f, "{}-{}", range.start, range.end),
            AdmissionRule::Heat(writes, within) => write!(f, "heat:{writes}/{within}"),
            AdmissionRule::Fat(image) => write!(f, "fat:{}", image.display()),
        }
    }
}

impl AdmissionRule {
    /// The same for a write cache.
    ///
    /// # Errors
    /// There is no FAT volume where one was named.
    pub fn choice(&self) -> Result<Admission> {
        Ok(match self {
            AdmissionRule::Range(range) => Admission::Ranges(std::iter::once(range.clone()).collect()),
            AdmissionRule::Heat(writes, within) => Admission::Heat { writes: *writes, within: *within },
            AdmissionRule::Fat(image) => Admission::Ranges(metadata_of(image)?),
        })
    }
}

/// The bytes of the FATs and all directories of the volume in `image`.
pub(super) fn metadata_of(image: &Path) -> Result<Vec<Range<u64>>> {
    let device = FileDevice::open_with(image, &Options::default())?;
    Ok(Metadata::read(Arc::new(device))?.ranges())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_nonsense_is_refused_with_a_right_one() {
        for (text, takes) in [
            ("0-82KiB", AdmissionRule::Range(0..83_968)),
            ("heat", AdmissionRule::Heat(3, 1000)),
            ("heat:2/50", AdmissionRule::Heat(2, 50)),
            ("fat:a.img", AdmissionRule::Fat("a.img".into())),
        ] {
            assert_eq!(text.parse::<AdmissionRule>().unwrap(), takes);
        }
        for text in ["", "4KiB", "heat:", "heat:0/5", "heat:1", "fat:", "cold"] {
            let error = text.parse::<AdmissionRule>().unwrap_err().to_string();
            assert!(error.contains("heat:WRITES/WITHIN"), "{error}");
        }
        let error = AdmissionRule::Fat("/no/such".into()).choice().err().unwrap().to_string();
        assert!(error.contains("/no/such"), "{error}");
    }
}
