//! Which runs there are, and the stack of each: every cache policy × size × translation layer asked for.

use super::address::{AddressMapper, Fit};
use super::args::Args;
use super::driver::LOOK_EVERY;
use super::precondition::{Precondition, precondition};
use super::progress::Shown;
use super::report::{Measured, RunConfig};
use crate::stack::{Caching, Contents, Layers, Medium, NONE, Stack};
use bimetal_base::time::Time;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_trace::Source;
use clap::ValueEnum;

/// The flash under a translation layer when no device was named.
pub(super) const DEFAULT_FLASH: &str = "slc-4k";
/// A disk of which nobody said the size.
const DISK_BYTES: u64 = 512 << 30;
/// An SSD of which nobody said the size.
const SSD_BYTES: u64 = 8 << 30;
/// One run to be made.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    cache: Option<(String, u64)>,
    medium: Medium,
    /// Its size, as asked for or as it has to be; none: that of its profile.
    bytes: Option<u64>,
    /// What the trace needs of flash that nobody gave a size.
    needed: Option<u64>,
    /// How far the trace reaches, where the size follows from that.
    reach: Option<Reach>,
    device: String,
}

/// How far a trace reaches.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// The byte after the last one that is asked for.
    end: u64,
    /// The request that asks for it, from 1 on.
    request: u64,
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
    let schemes: Vec<Option<&str>> = match args.ftl.is_empty() {
        true => vec![None],
        false => args.ftl.iter().map(|ftl| Some(ftl.as_str())).collect(),
    };
    let medium = |ftl| {
        let medium = Medium::named(&device, ftl)?;
        args.timing.ordering().map_or(Ok(medium.clone()), |ordering| medium.ordered(ordering))
    };
    let media = schemes.into_iter().map(medium).collect::<Result<Vec<_>>>()?;
    check_precondition(args, &device, &media)?;
    let (bytes, reach) = sizes(args, source, &media[0])?;
    let needed = reach.filter(|_| bytes.is_none()).map(|reach| reach.end);
    let caches: Vec<Option<(String, u64)>> = match args.cache.is_empty() {
        true => vec![None],
        false => args
            .cache
            .iter()
            .flat_map(|policy| args.cache_size.iter().map(|size| Some((policy.clone(), *size))))
            .collect(),
    };
    let spec = |medium: &Medium, cache: &Option<(String, u64)>| {
        let (cache, medium, device) = (cache.clone(), medium.clone(), device.clone());
        Spec { cache, medium, bytes, needed, reach, device }
    };
    Ok(media.iter().flat_map(|medium| caches.iter().map(move |cache| spec(medium, cache))).collect())
}

/// Refuses a past for what is no flash.
fn check_precondition(args: &Args, device: &str, media: &[Medium]) -> Result<()> {
    let what = match media.iter().find(|medium| matches!(medium, Medium::None | Medium::Disk(_))) {
        Some(Medium::None) => "no device that keeps anything",
        Some(_) => "a disk",
        None => return Ok(()),
    };
    match args.precondition {
        Precondition::None => Ok(()),
        _ => Err(Error::invalid(format!("--precondition needs flash; {device} is {what}"))),
    }
}

/// The medium's bytes (as asked for, or what the trace needs but at least what is usual; none of flash of which nobody
/// said the size), and how far the trace reaches where that decides.
fn sizes(args: &Args, source: &Source, medium: &Medium) -> Result<(Option<u64>, Option<Reach>)> {
    let usual = match medium {
        Medium::None => return Ok((None, None)),
        _ if args.device_size.is_some() => return Ok((args.device_size, None)),
        Medium::Flash(..) => return Ok((None, reach(args, source)?)),
        Medium::Disk(profile) => profile.platter.unwrap_or(DISK_BYTES),
        Medium::Ssd(_) => SSD_BYTES,
    };
    let reach = reach(args, source)?.filter(|reach| reach.end > usual);
    Ok((Some(reach.map_or(usual, |reach| reach.end)), reach))
}

/// How far the trace, laid out as asked, reaches; none where that cannot or need not be known.
fn reach(args: &Args, source: &Source) -> Result<Option<Reach>> {
    if args.fit == Fit::Wrap || !source.is_repeatable() {
        return Ok(None);
    }
    let shown = Shown::new(1);
    let mut placer = placer(args, None);
    let mut reach = Reach { end: 0, request: 0 };
    let mut count = 0u64;
    for (number, record) in source.open_watched(shown.of(0))?.enumerate() {
        shown.draw_sometimes(number);
        let record = record?;
        if args.requests.is_some_and(|limit| count >= limit) {
            break;
        }
        if number.is_multiple_of(LOOK_EVERY) {
            args.brought.go_on()?;
        }
        let asked = placer.place(&record)?;
        count += u64::from(!asked.is_nothing());
        let end = asked.spans.iter().map(|(offset, len)| offset.saturating_add(*len)).max().unwrap_or(0);
        if end > reach.end {
            reach = Reach { end, request: number as u64 + 1 };
        }
    }
    Ok(Some(reach))
}

/// The placer of a run on a device of `size_bytes`.
pub(super) fn placer(args: &Args, size_bytes: Option<u64>) -> AddressMapper {
    AddressMapper::new(args.fit, size_bytes, args.unit, args.chunk)
}

/// A stack ready for the trace.
pub(super) struct Built {
    pub stack: Stack,
    /// When preconditioning ended.
    pub start: Time,
    /// What was counted until then.
    pub before: Measured,
    /// What ended it before its end.
    pub stopped: Option<Error>,
}

impl Spec {
    /// Builds the stack and preconditions its device.
    ///
    /// # Errors
    /// A scheme or policy refuses its settings or the device.
    pub fn build(&self, args: &Args) -> Result<Built> {
        let bottom = self.medium.build(Contents::Nowhere(self.bytes), self.needed, args.page, args.seed);
        let bottom = bottom.map_err(|why| self.of_trace(why))?;
        let (start, stopped) = match precondition(&bottom, args) {
            Ok(start) => (start, None),
            Err(why @ Error::Invalid(_)) => return Err(why),
            Err(why) => (Time::ZERO, Some(why)),
        };
        let before = Measured::of(&bottom);
        let layers = Layers {
            place: args.place.clone(),
            overhead: args.overhead,
            absorb: args.absorb.clone(),
            nvram: args.nvram.clone().map(|takes| (takes, args.nvram_size)),
            cache: self.cache.as_ref().map(|(policy, bytes)| Caching {
                durable_syncs: true,
                outside: args.brought.policy.clone(),
                ..Caching::new(policy, *bytes, args.page)
            }),
        };
        Ok(Built { stack: bottom.with(&layers)?, start, before, stopped })
    }

    /// An error of a device made as large as the trace asks for, with the request that asks for it.
    fn of_trace(&self, why: Error) -> Error {
        match (why, self.reach) {
            (Error::Invalid(why), Some(Reach { end, request })) => Error::Invalid(format!(
                "request {request} of the trace ends at {} ({end}): {why}, or --fit compact, --fit wrap or \
                 --device-size",
                show_size(end)
            )),
            (why, _) => why,
        }
    }

    /// The stack as the command line named it: without the cache's size, and with it.
    fn names(&self) -> (String, String) {
        let bottom = self.medium.ftl().unwrap_or_else(|| self.device.clone());
        match &self.cache {
            Some((policy, bytes)) => {
                (format!("{policy} / {bottom}"), format!("{policy} {} / {bottom}", show_size(*bytes)))
            }
            None => (bottom.clone(), bottom),
        }
    }

    /// What the run is, in full; of one without a stack as it was asked for.
    pub fn config(&self, args: &Args, source: &Source, stack: Option<&Stack>) -> RunConfig {
        let cache = stack.and_then(|stack| stack.told.cache.as_ref()).map(|cache| cache.status().policy);
        let word = |value: Option<clap::builder::PossibleValue>| {
            value.map_or(String::new(), |v| v.get_name().into())
        };
        let closed = args.pace == super::args::PaceName::Closed;
        let (series, run) = self.names();
        RunConfig {
            run,
            series,
            trace: source.name(),
            cache: cache.or_else(|| self.cache.as_ref().map(|(policy, _)| policy.clone())),
            cache_bytes: self.cache.as_ref().map(|(_, bytes)| *bytes),
            ftl: self.medium.ftl(),
            device: self.device.clone(),
            device_lacks: stack.and_then(|stack| stack.told.lacks.clone()),
            device_bytes: stack.map_or(self.bytes, Stack::size_bytes),
            pace: word(args.pace.to_possible_value()),
            queue_depth: closed.then_some(args.queue_depth),
            speed: (!closed).then_some(args.speed),
            timing: word(args.timing.to_possible_value()),
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
