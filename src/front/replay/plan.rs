//! Which runs there are, and the stack of each: every cache policy × size × translation layer asked for.

use super::args::Args;
use super::cached::CacheLayer;
use super::hints::Placing;
use super::nvram::NvramLayer;
use super::place::{Fit, Placer};
use super::progress::Shown;
use super::report::{Measured, RunConfig};
use super::stack::{Absorbing, Counting, DeviceLayer, Flash, FtlLayer, Layer, Software, precondition};
use super::void::Void;
use crate::cache;
use crate::front::trace::{Op, Source};
use crate::ftl;
use crate::ftl::ssd::{Data, Ssd, SsdProfile};
use crate::media::disk::{Disk, DiskProfile};
use crate::media::nand::{Nand, NandProfile, Payload};
use crate::media::profile::{self, Described};
use crate::time::Time;
use crate::units::show_size;
use crate::{Error, Result};
use clap::ValueEnum;
use std::sync::Arc;

/// The device that only counts.
const NONE: &str = "none";
/// The flash under a translation layer when no device was named.
const DEFAULT_FLASH: &str = "slc-4k";
/// A disk of which nobody said the size.
const DISK_BYTES: u64 = 512 << 30;
/// An SSD of which nobody said the size.
const SSD_BYTES: u64 = 8 << 30;
/// Blocks that every unit of a resized flash part keeps, so that any scheme has its spares.
const BLOCKS_MIN: u32 = 16;
/// What policies group by where there is no flash below.
const ERASE_BLOCK_BYTES: u64 = 512 << 10;
/// How often a flash device may be enlarged until the trace fits.
const ENLARGE_MAX: u32 = 16;

/// One run to be made.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    cache: Option<(String, u64)>,
    bottom: Bottom,
    device: String,
}

#[derive(Clone, Debug)]
enum Bottom {
    Counting,
    Disk { profile: Box<DiskProfile>, bytes: u64 },
    Ssd { profile: Box<SsdProfile>, bytes: u64 },
    Flash { profile: Box<NandProfile>, scheme: String, settings: String, needed: Option<u64> },
}

/// All runs that `args` ask for.
///
/// # Errors
/// Profiles, schemes or policies that do not exist or do not go together.
pub(super) fn specs(args: &Args, source: &Source) -> Result<Vec<Spec>> {
    let device = match &args.device {
        Some(name) => name.clone(),
        None if args.ftl.is_empty() => NONE.to_string(),
        None => DEFAULT_FLASH.to_string(),
    };
    let bottoms = bottoms(args, &device, source)?;
    let caches: Vec<Option<(String, u64)>> = match args.cache.is_empty() {
        true => vec![None],
        false => args
            .cache
            .iter()
            .flat_map(|policy| args.cache_size.iter().map(|size| Some((policy.clone(), *size))))
            .collect(),
    };
    let pair = |bottom: &Bottom| {
        let (bottom, device) = (bottom.clone(), device.clone());
        caches.iter().map(move |cache| Spec {
            cache: cache.clone(),
            bottom: bottom.clone(),
            device: device.clone(),
        })
    };
    Ok(bottoms.iter().flat_map(|bottom| pair(bottom).collect::<Vec<_>>()).collect())
}

fn bottoms(args: &Args, device: &str, source: &Source) -> Result<Vec<Bottom>> {
    if device == NONE {
        return match args.ftl.is_empty() {
            true => Ok(vec![Bottom::Counting]),
            false => Err(Error::invalid("--ftl needs a flash device; leave --device out for slc-4k")),
        };
    }
    match profile::kind_of(device)?.as_str() {
        DiskProfile::KIND if args.ftl.is_empty() => {
            let (profile, bytes) = (Box::new(profile::load(device)?), size(args, source, DISK_BYTES)?);
            Ok(vec![Bottom::Disk { profile, bytes }])
        }
        DiskProfile::KIND => Err(Error::invalid(format!("{device} is a disk; --ftl needs a flash device"))),
        SsdProfile::KIND => ssds(args, device, size(args, source, SSD_BYTES)?),
        _ => flash(args, device, source),
    }
}

/// The device's size: as asked for, or what the trace needs but at least `usual`.
fn size(args: &Args, source: &Source, usual: u64) -> Result<u64> {
    match args.device_size {
        Some(bytes) => Ok(bytes),
        None => Ok(needed(args, source)?.unwrap_or(0).max(usual)),
    }
}

/// An SSD with its own translation layer, or with each of those asked for.
fn ssds(args: &Args, device: &str, bytes: u64) -> Result<Vec<Bottom>> {
    let profile: SsdProfile = profile::load(device)?;
    if args.ftl.is_empty() {
        return Ok(vec![Bottom::Ssd { profile: Box::new(profile), bytes }]);
    }
    let with = |text: &String| {
        let (ftl, settings) = ftl::scheme_and_settings(text);
        Bottom::Ssd { profile: Box::new(SsdProfile { ftl, settings, ..profile.clone() }), bytes }
    };
    Ok(args.ftl.iter().map(with).collect())
}

/// Bare flash under each of the translation layers asked for.
fn flash(args: &Args, device: &str, source: &Source) -> Result<Vec<Bottom>> {
    let mut profile: NandProfile = profile::load(device)?;
    let needed = match args.device_size {
        Some(bytes) => {
            profile = profile.resized(bytes, BLOCKS_MIN);
            None
        }
        None => needed(args, source)?,
    };
    let schemes = if args.ftl.is_empty() { vec!["page".to_string()] } else { args.ftl.clone() };
    let under = |text: &String| {
        let (scheme, settings) = ftl::scheme_and_settings(text);
        Bottom::Flash { profile: Box::new(profile.clone()), scheme, settings, needed }
    };
    Ok(schemes.iter().map(under).collect())
}

/// The bytes that the trace, laid out as asked, needs; none where that cannot or need not be known.
fn needed(args: &Args, source: &Source) -> Result<Option<u64>> {
    if args.fit == Fit::Wrap || !source.is_repeatable() {
        return Ok(None);
    }
    let shown = Shown::new(1);
    let mut placer = placer(args, None);
    let mut end = 0;
    let mut count = 0u64;
    for (number, record) in source.open_watched(shown.of(0))?.enumerate() {
        shown.draw_sometimes(number);
        let record = record?;
        if args.requests.is_some_and(|limit| count >= limit) {
            break;
        }
        let ios = placer.place(&record)?;
        count += u64::from(!ios.is_empty() || record.op == Op::Flush);
        let ends = ios.iter().filter_map(|io| io.piece()).map(|piece| piece.offset.saturating_add(piece.len));
        end = ends.fold(end, u64::max);
    }
    Ok(Some(end))
}

/// The placer of a run on a device of `size_bytes`.
pub(super) fn placer(args: &Args, size_bytes: Option<u64>) -> Placer {
    Placer::new(args.fit, size_bytes, args.unit, args.chunk)
}

/// A stack ready for the trace.
pub(super) struct Built {
    pub stack: Box<dyn Layer>,
    /// When preconditioning ended.
    pub start: Time,
    /// What was counted until then.
    pub before: Measured,
}

impl Spec {
    /// Builds the stack and preconditions its device.
    ///
    /// # Errors
    /// A scheme or policy refuses its settings or the device.
    pub fn build(&self, args: &Args) -> Result<Built> {
        let mut stack = self.build_bottom(args)?;
        let start = precondition(&mut *stack, args.precondition, args.seed)?;
        let mut before = Measured::default();
        stack.measure(&mut before);
        if let Some(takes) = &args.place {
            stack = Box::new(Placing::new(stack, takes)?);
        }
        if !args.overhead.is_zero() {
            stack = Box::new(Software::new(stack, args.overhead));
        }
        if let Some(range) = &args.absorb {
            stack = Box::new(Absorbing::new(stack, range.clone()));
        }
        if let Some(takes) = &args.nvram {
            stack = Box::new(NvramLayer::new(stack, takes, args.nvram_size)?);
        }
        if let Some((policy, bytes)) = &self.cache {
            let capacity = u32::try_from(bytes / args.page)
                .map_err(|_| Error::invalid(format!("a cache of {} is too large", show_size(*bytes))))?;
            let block = stack.erase_block_bytes().unwrap_or(ERASE_BLOCK_BYTES);
            let mut config = cache::Config::new(capacity).block_pages((block / args.page).max(1) as u32);
            config.space = stack.size_bytes().map(|size| size.div_ceil(args.page));
            let cache = cache::build(policy, &config)?;
            stack = Box::new(CacheLayer::new(cache, stack, args.page, !args.no_drain));
        }
        Ok(Built { stack, start, before })
    }

    fn build_bottom(&self, args: &Args) -> Result<Box<dyn Layer>> {
        Ok(match &self.bottom {
            Bottom::Counting => Box::new(Counting::new(args.page)),
            Bottom::Disk { profile, bytes } => {
                let storage = Arc::new(Void::new(&self.device, *bytes));
                Box::new(DeviceLayer::new(Arc::new(Disk::new(profile, storage)), args.page, None))
            }
            Bottom::Ssd { profile, bytes } => {
                let nand: NandProfile = profile::load(&profile.nand)?;
                let ssd = Arc::new(Ssd::new(profile, Data::Nowhere(*bytes), args.seed)?);
                let told = Arc::clone(&ssd);
                let erase_block_bytes = u64::from(nand.pages) * nand.page;
                let flash = Flash { report: Box::new(move || told.report()), erase_block_bytes };
                Box::new(DeviceLayer::new(ssd, nand.page, Some(flash)))
            }
            Bottom::Flash { profile, scheme, settings, needed } => {
                Box::new(FtlLayer::new(open_flash(profile, scheme, settings, *needed, args.seed)?))
            }
        })
    }

    /// The stack as the command line named it: without the cache's size, and with it.
    fn names(&self) -> (String, String) {
        let bottom = match &self.bottom {
            Bottom::Flash { scheme, settings, .. } => with_options(scheme, settings),
            Bottom::Ssd { profile, .. } => with_options(&profile.ftl, &profile.settings),
            _ => self.device.clone(),
        };
        match &self.cache {
            Some((policy, bytes)) => {
                (format!("{policy} / {bottom}"), format!("{policy} {} / {bottom}", show_size(*bytes)))
            }
            None => (bottom.clone(), bottom),
        }
    }

    /// What the run is, in full.
    pub fn config(&self, args: &Args, source: &Source, stack: &dyn Layer) -> RunConfig {
        let mut measured = Measured::default();
        stack.measure(&mut measured);
        let word = |value: Option<clap::builder::PossibleValue>| {
            value.map_or(String::new(), |v| v.get_name().into())
        };
        let closed = args.pace == super::args::PaceName::Closed;
        let (series, run) = self.names();
        RunConfig {
            run,
            series,
            trace: source.name(),
            cache: measured.cache.map(|cache| cache.policy),
            cache_bytes: self.cache.as_ref().map(|(_, bytes)| *bytes),
            ftl: match &self.bottom {
                Bottom::Flash { scheme, settings, .. } => Some(with_options(scheme, settings)),
                Bottom::Ssd { profile, .. } => Some(with_options(&profile.ftl, &profile.settings)),
                _ => None,
            },
            device: self.device.clone(),
            device_bytes: stack.size_bytes(),
            pace: word(args.pace.to_possible_value()),
            queue_depth: closed.then_some(args.queue_depth),
            speed: (!closed).then_some(args.speed),
            overhead_ns: args.overhead.as_nanos() as u64,
            absorb: args.absorb.as_ref().map(|range| (range.start, range.end)),
            place: args.place.as_ref().map(|takes| takes.to_string()),
            nvram: args.nvram.as_ref().map(|takes| takes.to_string()),
            nvram_bytes: args.nvram.as_ref().map(|_| args.nvram_size),
            flush: !args.no_flush,
            fit: word(args.fit.to_possible_value()),
            precondition: word(args.precondition.to_possible_value()),
            drained: !args.no_drain,
            seed: args.seed,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// A scheme as the command line writes it.
fn with_options(scheme: &str, settings: &str) -> String {
    match settings {
        "" => scheme.to_string(),
        settings => format!("{scheme}:{}", settings.replace(',', ":")),
    }
}

/// Opens a scheme on flash at least so large that it has `needed` bytes for the host.
fn open_flash(
    profile: &NandProfile,
    scheme: &str,
    settings: &str,
    needed: Option<u64>,
    seed: u64,
) -> Result<Box<dyn ftl::Ftl>> {
    let mut profile = profile.clone();
    let mut last = None;
    for _ in 0..ENLARGE_MAX {
        profile
            .check()
            .map_err(|bad| Error::invalid(format!("{}: {} {}", profile.model, bad.field, bad.why)))?;
        let bytes = profile.geometry().bytes();
        let nand = Nand::new(profile.clone(), seed, false, Payload::None);
        let ftl = ftl::open(scheme, nand, settings)?;
        let logical = ftl.logical_pages() * profile.page;
        match needed {
            // As large as its settings let it be.
            Some(needed) if logical < needed && last == Some(logical) => break,
            Some(needed) if logical < needed => {
                last = Some(logical);
                let larger = bytes as f64 * (needed as f64 / logical.max(1) as f64) * 1.01;
                profile = profile.resized((larger as u64).max(bytes + 1), BLOCKS_MIN);
            }
            _ => return Ok(ftl),
        }
    }
    Err(Error::invalid(format!(
        "the trace does not fit on {}; say --device-size or --fit wrap",
        profile.model
    )))
}
