//! A file system on simulated devices that calls can be played on, and what its kind makes it from.
//!
//! What is random about a volume (its identifiers, its bad blocks) follows from the seed, and it is made at the
//! beginning of the simulation's wall clock, so that the same command makes the same bytes.

use super::report::DeviceReport;
use super::tree::Target;
use super::windows::Devices;
use crate::kinds::{KINDS, volume::PART};
use crate::replay::Moment;
use crate::replay::args::Args;
use crate::stack::{Caching, Contents, Layers, Medium, Model, Told};
use bimetal_base::random::Random;
use bimetal_base::runtime::Clock;
use bimetal_base::{Error, Result};
use bimetal_ftl as ftl;
use bimetal_media::counted::{Counted, Counts};
use bimetal_media::nand::NandProfile;
use bimetal_media::ram::Ram;
use bimetal_media::{BlockDevice, profile};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a counted request to a device without pages is counted in, bytes.
const PAGE_BYTES: u64 = 4096;
/// Bytes of a flash part, and of a FAT volume, of which nobody said the size.
pub(crate) const FLASH_BYTES: u64 = 512 << 20;
/// Blocks that every unit of a resized part keeps.
const BLOCKS_MIN: u32 = 32;

/// A file system that was made, and its devices.
pub struct Subject {
    pub(super) target: Arc<dyn Target>,
    pub(super) devices: Devices,
    /// What the block devices hold, for tests.
    #[cfg(test)]
    pub(super) images: Vec<Arc<Ram>>,
}

/// A simulated device, and what it was asked for.
pub(crate) struct Device {
    profile: String,
    ftl: Option<String>,
    counted: Arc<Counted>,
    /// The same below its page cache, where it has one.
    below: Option<Arc<Counted>>,
    told: Told,
    image: Arc<Ram>,
}

impl Subject {
    /// Makes the file system that `args` ask for.
    ///
    /// # Errors
    /// There is no such kind; its devices cannot be, or are too small.
    pub fn make(clock: &Clock, args: &Args) -> Result<Subject> {
        let kind = KINDS.find(args.fs_kind())?;
        let play =
            kind.play.ok_or_else(|| Error::invalid(format!("--fs: {} cannot be played on", kind.name)))?;
        play(clock, args)
    }

    /// It, and its devices by name.
    pub(crate) fn new(target: Arc<dyn Target>, devices: Vec<(&'static str, Device)>) -> Subject {
        Subject {
            target,
            #[cfg(test)]
            images: devices.iter().map(|(_, device)| device.image.clone()).collect(),
            devices: devices.into(),
        }
    }

    /// The same with the bytes of a flash part, which counts for itself.
    #[cfg(test)]
    pub(crate) fn with_image(mut self, image: Arc<Ram>) -> Subject {
        self.images.push(image);
        self
    }

    /// What its devices were asked for so far, and what of that came below their page caches.
    pub(super) fn counts(&self) -> Vec<(Counts, Option<Counts>)> {
        let counts =
            |device: &Device| (device.counted.counts(), device.below.as_ref().map(|below| below.counts()));
        self.devices.iter().map(|(_, device)| counts(device)).collect()
    }

    /// What they were asked for since, and what they did; `flows` is how that went on, device by device.
    pub(super) fn devices(
        &self,
        before: &[(Counts, Option<Counts>)],
        flows: Vec<Vec<Moment>>,
    ) -> BTreeMap<&'static str, DeviceReport> {
        type One<'o> = ((&'o (&'static str, Device), &'o (Counts, Option<Counts>)), Vec<Moment>);
        let report = |(((name, device), (before, below)), flow): One<'_>| {
            let report = DeviceReport {
                profile: device.profile.clone(),
                ftl: device.ftl.clone(),
                size_bytes: device.image.info().size_bytes,
                requests: device.counted.counts() - *before,
                below_cache: device.below.as_ref().zip(*below).map(|(now, before)| now.counts() - before),
                model: device.told.model.status(),
                erases_by_block: device.told.model.erases_by_block(),
                flow,
            };
            (*name, report)
        };
        self.devices.iter().zip(before).zip(flows).map(report).collect()
    }
}

impl Device {
    /// What it was asked for, and what its flash did, so far.
    pub(super) fn look(&self) -> (Counts, Option<ftl::Report>) {
        (self.counted.counts(), self.told.model.flash())
    }

    /// What it is modelled by.
    pub(super) fn model(&self) -> &Model {
        &self.told.model
    }

    /// The device, which counts.
    pub fn counted(&self) -> Arc<Counted> {
        self.counted.clone()
    }
}

/// A simulated device over memory that holds `image`, with the layers asked for.
pub(crate) fn device(
    profile: &str,
    (ftl, caching): (Option<&str>, Option<Caching>),
    image: Arc<Ram>,
    seed: u64,
) -> Result<Device> {
    let medium = Medium::framed(profile, ftl)?;
    if matches!(medium, Medium::None) {
        return Err(Error::invalid(format!(
            "{profile}: a file system needs a device that keeps what is written; choose one of 'bimetal list device'"
        )));
    }
    let mut stack = medium.build(Contents::On(image.clone()), None, PAGE_BYTES, seed)?;
    let below = caching.is_some().then(|| Arc::new(Counted::new(stack.device.clone())));
    if let Some(below) = &below {
        stack.device = below.clone();
    }
    let stack = stack.with(&Layers { cache: caching, ..Layers::default() })?;
    let counted = Arc::new(Counted::new(stack.device));
    Ok(Device { profile: profile.to_string(), ftl: medium.ftl(), counted, below, told: stack.told, image })
}

/// The page cache that the command line asks for, if it does.
pub(crate) fn caching(args: &Args) -> Result<Option<Caching>> {
    match (&args.cache[..], &args.cache_size[..]) {
        ([], _) => Ok(None),
        ([policy], [bytes]) => {
            let (policy, bytes) = (policy.clone(), *bytes);
            Ok(Some(Caching::new(&policy, bytes, PAGE_BYTES)))
        }
        _ => Err(Error::invalid("--fs: one --cache of one --cache-size, or none")),
    }
}

/// The one translation layer that the command line asks for, if it does.
pub(crate) fn ftl(args: &Args) -> Result<Option<&str>> {
    match &args.ftl[..] {
        [] => Ok(None),
        [ftl] => Ok(Some(ftl)),
        _ => Err(Error::invalid("--fs: one --ftl, or none")),
    }
}

/// Refuses what stands over a block device.
fn refuse_layers(args: &Args) -> Result<()> {
    match args.cache.is_empty() && args.ftl.is_empty() {
        true => Ok(()),
        false => Err(Error::invalid("--fs cmfs and osd drive flash themselves: no --cache, no --ftl")),
    }
}

/// A random name that follows from the seed.
pub(crate) fn identifier(random: &mut Random) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random.next().to_le_bytes());
    bytes[8..].copy_from_slice(&random.next().to_le_bytes());
    *uuid::Builder::from_random_bytes(bytes).as_uuid().as_bytes()
}

/// The part that `args` name, as large as they say.
pub(crate) fn part(args: &Args) -> Result<NandProfile> {
    refuse_layers(args)?;
    let name = args.device.as_deref().unwrap_or(PART);
    let part: NandProfile = profile::load(name)?;
    part.resized(args.device_size.unwrap_or(FLASH_BYTES), BLOCKS_MIN).modelled()
}
