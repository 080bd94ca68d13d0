//! How much flash an SSD of a size has: so much that the host's share, its over-provision and all that the translation
//! layer keeps to itself fit, and no more.
//!
//! The translation layer itself is asked, on arrays of more and more blocks: what it keeps (a reserve, open blocks, logs,
//! its map), and which blocks are bad, no formula here has to know. So an SSD has its over-provision at every size.
//!
//! What a write costs an SSD made smaller is what it costs the whole one, as far as four things go that its size changes:
//!
//! - *Smaller blocks* are emptier when they are cleaned. Under a page map they get so much less over-provision that uniform
//!   writes cost the same by theory ([`crate::theory`]).
//! - *Whole blocks* of each unit are more than was asked for: of 37 blocks a unit one is 3 % of the flash, nearly half of
//!   an over-provision of 7 %. Of some more numbers of blocks, each with as many pages as it needs, that one is
//!   taken which comes closest.
//! - *More erases* are made of smaller blocks: each takes so much less time.
//! - *Few blocks* in a unit are all kept for cleaning, however small the over-provision. Where this would decide, there
//!   are fewer units instead.

use super::SsdProfile;
use crate::page::{Superblock, units_of_settings};
use crate::{open, page_bytes, theory};
use bimetal_base::Result;
use bimetal_media::nand::{Nand, NandProfile, Payload};

/// How often blocks are added until the host's share fits.
const GROWN_MAX: u32 = 64;
/// How many numbers of blocks beyond the first that fits are looked at.
const MORE_BLOCKS: u32 = 32;
/// Fewest blocks of a unit, if there are others to spread over: as long as the over-provision is what decides, and else.
const UNIT_BLOCKS: [u32; 2] = [32, 64];
/// The part of a size that a part may have beyond it and is close.
const CLOSE: f64 = 5e-4;
/// The setting that says the over-provision; what a user sets goes before the profile's.
const OVER_PROVISION: &str = "over-provision";
/// The layers that clean as theory has it.
const PAGE_MAPS: [&str; 2] = ["page", "dftl"];

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
    let fit = Fit { profile, whole: &whole, size_bytes, seed };
    let mut part = fit.of_blocks(&whole, UNIT_BLOCKS[0])?;
    if !fit.over_provision_decides(&part) {
        part = fit.of_blocks(&whole, UNIT_BLOCKS[1])?;
    }
    part.erase_us *= f64::from(part.pages) / f64::from(whole.pages);
    // What does not fit by now is refused, with the reason, when the layer is opened.
    Ok(part)
}

/// What a part is to fit.
struct Fit<'a> {
    profile: &'a SsdProfile,
    whole: &'a NandProfile,
    size_bytes: u64,
    seed: u64,
}

impl Fit<'_> {
    /// The part whose units have so many blocks, if there are others to spread over.
    fn of_blocks(&self, whole: &NandProfile, unit_blocks: u32) -> Result<NandProfile> {
        let part = self.grown(whole.clone().resized_wide(self.size_bytes, unit_blocks))?;
        Ok(if self.is_page_map() { self.trimmed(part) } else { part })
    }

    fn is_page_map(&self) -> bool {
        PAGE_MAPS.contains(&self.profile.ftl.as_str())
    }

    /// With as many blocks as the host's share needs.
    fn grown(&self, mut part: NandProfile) -> Result<NandProfile> {
        for _ in 0..GROWN_MAX {
            part = part.modelled()?;
            let has = self.host_bytes(&part);
            if has.as_ref().is_ok_and(|has| *has >= self.size_bytes) {
                break;
            }
            let lacks = self.size_bytes - has.unwrap_or(0).min(self.size_bytes);
            // A part that is too small for the layer at all gets one block more.
            let each = u64::from(part.pages) * part.page * u64::from(part.geometry().units);
            let more = if lacks == self.size_bytes { 1 } else { lacks.div_ceil(each) };
            part.blocks = part.blocks.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        }
        Ok(part)
    }

    /// With another number of blocks, and of pages in each, that comes closer to what the host's share needs: the first
    /// that is close, else the closest.
    fn trimmed(&self, part: NandProfile) -> NandProfile {
        let more = NandProfile { blocks: part.blocks.saturating_add(MORE_BLOCKS), ..part.clone() };
        // Where memory or numbers end there is nothing to choose.
        let Ok(more) = more.modelled() else { return part };
        let (Ok(has), Ok(has_more)) = (self.host_bytes(&part), self.host_bytes(&more)) else { return part };
        let each = has_more.saturating_sub(has) as f64 / f64::from(MORE_BLOCKS);
        let size = self.size_bytes as f64;
        let of_blocks = |blocks: u32| {
            let has = has as f64 + each * f64::from(blocks - part.blocks);
            // The host's share of it changes with the pages of a block.
            let of_pages = |pages: u32| {
                let of_all = f64::from(pages) / f64::from(part.pages);
                has * of_all * self.host_share(&part, pages) / self.host_share(&part, part.pages)
            };
            let enough = (1..=part.pages).rev().take_while(|pages| of_pages(*pages) >= size).last();
            let pages = enough.unwrap_or(part.pages).next_multiple_of(part.word_line_pages());
            let excess = (of_pages(pages) / size - 1.0).max(CLOSE);
            (excess, NandProfile { blocks, pages, ..part.clone() })
        };
        let mut others: Vec<_> = (part.blocks..=more.blocks).map(of_blocks).collect();
        others.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        // Bad blocks are not the same in each of them, so that one may just not fit.
        let fits = |part: &NandProfile| self.host_bytes(part).is_ok_and(|has| has >= self.size_bytes);
        others.into_iter().map(|(_, other)| other).find(fits).unwrap_or(part)
    }

    /// Whether the layer, which is a page map, would give the host more with less over-provision.
    fn over_provision_decides(&self, part: &NandProfile) -> bool {
        if !self.is_page_map() {
            return false;
        }
        let settings = format!("{OVER_PROVISION}=0:{}", self.other_settings());
        let most = self.asked(part, &settings);
        self.host_bytes(part).is_ok_and(|has| most.is_ok_and(|most| most > has))
    }

    /// What the layer leaves to the host of a part.
    fn host_bytes(&self, part: &NandProfile) -> Result<u64> {
        let Some(percent) = self.over_provision(part, part.pages) else {
            return self.asked(part, &self.profile.settings);
        };
        self.asked(part, &format!("{OVER_PROVISION}={percent}:{}", self.other_settings()))
    }

    /// The part of the flash, but for what the layer keeps, that the host sees where blocks have so many pages.
    fn host_share(&self, part: &NandProfile, pages: u32) -> f64 {
        1.0 - self.over_provision(part, pages).unwrap_or(0.0) / 100.0
    }

    /// The same with these settings.
    fn asked(&self, part: &NandProfile, settings: &str) -> Result<u64> {
        let nand = Nand::new(part.clone(), self.seed, false, Payload::None);
        open(&self.profile.ftl, nand, settings).map(|ftl| ftl.logical_pages() * page_bytes(&*ftl))
    }

    /// Percent of a part like this one with blocks of so many pages; none if what is set is no number: the layer refuses it.
    fn over_provision(&self, part: &NandProfile, pages: u32) -> Option<f64> {
        let set = self.profile.settings.split(':').find(|setting| is_over_provision(setting));
        let percent = match set {
            None => self.profile.over_provision_percent,
            Some(set) => set.split_once('=')?.1.trim().parse().ok()?,
        };
        match self.is_page_map() && (0.0..=90.0).contains(&percent) {
            true => {
                // What is cleaned as one.
                let superblock = Superblock::of_settings(&self.profile.settings);
                let units = units_of_settings(&self.profile.settings, part.page);
                let whole_pages = self.whole.pages * superblock.width(self.whole) * units;
                let pages = pages * superblock.width(part) * units;
                Some(theory::same_amplification(percent, whole_pages, pages))
            }
            false => Some(percent),
        }
    }

    fn other_settings(&self) -> String {
        let all = self.profile.settings.split(':');
        all.filter(|setting| !is_over_provision(setting)).collect::<Vec<_>>().join(":")
    }
}

fn is_over_provision(setting: &str) -> bool {
    setting.trim_start().starts_with(OVER_PROVISION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::profile;

    const GIB: u64 = 1 << 30;

    fn profile_of(settings: &str) -> SsdProfile {
        SsdProfile { settings: settings.into(), ..profile::load("ssd-tlc").unwrap() }
    }

    #[test]
    fn a_part_has_hardly_more_than_it_needs_and_keeps_its_units() {
        let whole: NandProfile = profile::load("tlc").unwrap();
        for (size, units) in [(GIB / 2, 16), (GIB, 32), (4 * GIB, 128), (8 * GIB, 128)] {
            let profile = profile_of("level=static");
            let part = fitted(whole.clone(), &profile, size, 1).unwrap();
            let fit = Fit { profile: &profile, whole: &whole, size_bytes: size, seed: 1 };
            let has = fit.host_bytes(&part).unwrap();
            assert!(has >= size && has as f64 <= size as f64 * 1.002, "{size}: {has}");
            assert_eq!((part.channels, part.geometry().units), (8, units), "{size}");
            let share = f64::from(part.pages) / f64::from(whole.pages);
            assert!((part.erase_us / whole.erase_us - share).abs() < 1e-9, "{size}: {}", part.erase_us);
        }
    }

    #[test]
    fn units_are_fewer_where_their_reserve_would_be_the_over_provision() {
        let whole: NandProfile = profile::load("tlc").unwrap();
        for (percent, units) in [(3, 64), (7, 128), (28, 128)] {
            let profile = profile_of(&format!("level=static:over-provision={percent}"));
            let part = fitted(whole.clone(), &profile, 4 * GIB, 1).unwrap();
            assert_eq!(part.geometry().units, units, "{percent} %: {part:?}");
        }
    }
}
