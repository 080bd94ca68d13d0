//! How much flash an SSD of a size has: so much that the host's share, its over-provision and all that the translation
//! layer keeps to itself fit, and no more.
//!
//! The translation layer itself is asked, on arrays of more and more blocks: what it keeps (a reserve, open blocks, logs,
//! its map), and which blocks are bad, no formula here has to know. So an SSD has its over-provision at every size.

use super::SsdProfile;
use crate::open;
use bimetal_base::Result;
use bimetal_media::nand::{Nand, NandProfile, Payload};

/// How often blocks are added until the host's share fits.
const GROWN_MAX: u32 = 64;
/// The setting that says the over-provision; what a user sets goes before the profile's.
const OVER_PROVISION: &str = "over-provision";

/// The part like `whole` for an SSD of `size_bytes`.
///
/// # Errors
/// Settings that the translation layer refuses, or a size that no such part can have.
pub(super) fn fitted(
    whole: NandProfile,
    profile: &SsdProfile,
    size_bytes: u64,
    seed: u64,
) -> Result<NandProfile> {
    let said = profile.settings.split(':').any(|setting| setting.trim_start().starts_with(OVER_PROVISION));
    let settings = match said {
        true => profile.settings.clone(),
        false => format!("{OVER_PROVISION}={}:{}", profile.over_provision_percent, profile.settings),
    };
    let mut part = whole.resized_wide(size_bytes, 1);
    for _ in 0..GROWN_MAX {
        part = part.modelled()?;
        let block_bytes = u64::from(part.pages) * part.page;
        let has = host_bytes(&part, &profile.ftl, &settings, seed);
        if has.as_ref().is_ok_and(|has| *has >= size_bytes) {
            break;
        }
        let lacks = size_bytes - has.unwrap_or(0).min(size_bytes);
        // A part that is too small for the layer at all gets one block more.
        let each = block_bytes * u64::from(part.geometry().units);
        let more = if lacks == size_bytes { 1 } else { lacks.div_ceil(each) };
        part.blocks = part.blocks.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
    }
    // What does not fit by now is refused, with the reason, when the layer is opened.
    Ok(part)
}

/// What a translation layer leaves to the host of a part.
fn host_bytes(part: &NandProfile, scheme: &str, settings: &str, seed: u64) -> Result<u64> {
    let nand = Nand::new(part.clone(), seed, false, Payload::None);
    open(scheme, nand, settings).map(|ftl| ftl.logical_pages() * part.page)
}
