//! The command line of `bimetal replay`.

use super::address::Fit;
use super::brought::Brought;
use super::decoded::Decoded;
use super::driver::TIME_MAX;
use super::grid::GridArgs;
use super::plot::Wanted;
use super::precondition::Precondition;
use crate::kinds::nfhybrid::mkfs::SectionSpec;
use crate::kinds::{self, LiesOn};
use crate::names;
use crate::stack::admission_rule::{AdmissionRule, parse_range};
use crate::stack::args::StackArgs;
use bimetal_base::units::{parse_size, show_size};
use bimetal_base::{Error, Result};
use bimetal_media::nand::Ordering;
use bimetal_trace::{Columns, Event, ReadOptions, Source};
use clap::{Parser, ValueEnum};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  bimetal replay hm_0.csv.gz --info
  bimetal replay sda.blktrace.0 --device hdd-7200 --queue-depth 32
  bimetal replay trace.csv.zst --cache lru,cflru --cache-size 16MiB,64MiB --ftl page --plot miss-ratio=mrc.svg
  bimetal replay gen:iometer:random=60:size=256MiB --ftl page --device slc-4k --precondition fill --json
  bimetal replay gen:camera-vfat --device slc-512 --ftl log,fast,replacement --nvram heat
  bimetal replay gen:postmark:transactions=100000 --fs nfhybrid --ssd ssd-slc --disk hdd-7200 --processes 4
  bimetal replay hm_0.csv.gz --ftl page --every 1s --series seconds.csv --request-log requests.csv
  bimetal replay --stack camera.toml --set cache.size=16MiB,64MiB --set seed=1,2,3 --out results
  bimetal replay financial.spc --unit 0 --fit compact --ftl page --html report.html

Generators (gen:NAME:option=value:...) and trace formats are shown by 'bimetal list'.";

/// When requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PaceName {
    /// As soon as fewer than --queue-depth are under way; flushes and FUA are barriers
    #[default]
    Closed,
    /// At the recorded instants, --speed times faster
    Open,
}

/// In which order bare flash does what its translation layer decides on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// As the part's profile says
    #[default]
    Part,
    /// In the order of the decisions: cleaning in the foreground, as in the papers
    InOrder,
    /// Reads first, cleaning in the background
    Background,
    /// Nothing takes time: operations are only counted, which is the fastest
    Off,
}

impl Timing {
    /// What is asked for instead of what the part says.
    pub(super) fn ordering(self) -> Option<Ordering> {
        match self {
            Timing::Part => None,
            Timing::InOrder => Some(Ordering::InOrder),
            Timing::Background => Some(Ordering::Background),
            Timing::Off => Some(Ordering::Off),
        }
    }
}

/// Replay a trace through a page cache, a flash translation layer or a device, and measure
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace file (zstd, gzip, bzip2 and Parquet are seen through), '-' for standard input, or a generator
    /// gen:NAME[:option=value:...]
    #[arg(required_unless_present = "stack")]
    pub trace: Option<String>,
    #[command(flatten)]
    pub(super) stack: StackArgs,
    #[command(flatten)]
    pub(super) grid: GridArgs,
    #[arg(skip)]
    pub(super) brought: Brought,
    #[arg(skip)]
    pub(super) decoded: Arc<Decoded>,

    /// The trace's format [told from its contents]
    #[arg(long, value_name = "NAME", value_parser = names::FORMAT, hide_possible_values = true)]
    pub format: Option<String>,
    /// Of a CSV: what its columns are, as time=1:us,op=2,offset=3:512,length=4:512 [told from its header]
    #[arg(long)]
    pub columns: Option<Columns>,
    /// Of blktrace and blkparse: which event is the request
    #[arg(long, value_enum, default_value_t, ignore_case = true)]
    pub event: Event,
    /// Only requests to this device or file of the trace
    #[arg(long, value_name = "N")]
    pub unit: Option<u32>,
    /// Only the first N requests
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,

    /// The device: a profile by name or path, or 'none', which only counts [slc-4k with --ftl, else none]
    #[arg(long, value_name = "PROFILE", value_parser = names::DEVICE, hide_possible_values = true)]
    pub device: Option<String>,
    /// Its size [the profile's, or as much as the trace needs]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub device_size: Option<u64>,
    /// Flash translation layers to compare, as page,page:clean=cost-benefit
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = names::FTL, hide_possible_values = true)]
    pub ftl: Vec<String>,
    /// Play the system calls of the trace on a file system over simulated devices, in virtual time: nfhybrid (on --ssd and
    /// --disk), cmfs or osd (on the flash part --device) or fat (on --device). The trace is a recording of 'bimetal
    /// record', the output of 'strace -f -y -ttt -s 0', another trace of files, or a generator
    #[arg(long, value_name = "KIND", value_parser = kinds::names(kinds::playable()),
          conflicts_with_all = ["columns", "unit", "queue_depth", "absorb", "nvram", "place", "fit", "chunk", "page",
                                "precondition", "info", "csv", "parquet", "plot", "html"])]
    pub fs: Option<String>,
    /// With --fs nfhybrid: mount options of the file system, as lag=1s
    #[arg(short = 'o', long = "options", value_name = "OPTION[=VALUE]", requires = "fs")]
    pub options: Vec<String>,
    /// With --fs nfhybrid: a section of the SSD half, as of `mkfs nfhybrid`; without any it has one
    #[arg(long = "section", value_name = "NAME=extent:SIZE[,size:SIZE]", requires = "fs")]
    pub sections: Vec<SectionSpec>,
    /// With --fs nfhybrid: the profile of the SSD half [ssd-slc]
    #[arg(long, value_name = "PROFILE", value_parser = names::DEVICE, hide_possible_values = true)]
    pub ssd: Option<String>,
    /// Its size [256MiB, if nothing is said]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub ssd_size: Option<u64>,
    /// With --fs nfhybrid: the profile of the disk half [hdd-7200]
    #[arg(long, value_name = "PROFILE", value_parser = names::DEVICE, hide_possible_values = true)]
    pub disk: Option<String>,
    /// Its size [4GiB, if nothing is said]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub disk_size: Option<u64>,
    /// With --fs and a generator or a trace of files: so many processes, each in a directory of its own; those of a
    /// generator have other seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub processes: u32,
    /// Page cache policies to compare, as lru,cflru:window=0.5
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = names::CACHE, hide_possible_values = true)]
    pub cache: Vec<String>,
    /// Sizes of the page cache to compare
    #[arg(long, value_name = "X,Y", value_delimiter = ',', value_parser = parse_size)]
    pub cache_size: Vec<u64>,
    /// Bytes of a page of the cache, and of a page counted on a device without pages
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4KiB")]
    pub page: u64,

    /// When requests arrive
    #[arg(long, value_enum, default_value_t)]
    pub pace: PaceName,
    /// Closed: requests under way at most
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub queue_depth: u32,
    /// Open: how much faster than recorded
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub speed: f64,
    /// In which order bare flash does what its translation layer decides on, and whether that takes time
    #[arg(long, value_enum, default_value_t)]
    pub timing: Timing,
    /// What software takes for each request that reaches the device, as 250us; with --fs for each call, at least 1us
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration, default_value = "0s")]
    pub overhead: Duration,
    /// All requests to this range of bytes, as 0-82KiB, end above the device, in no time
    #[arg(long, value_name = "FROM-END", value_parser = parse_range)]
    pub absorb: Option<Range<u64>>,
    /// A non-volatile write cache of --nvram-size takes the writes to a range of bytes, to hot blocks, or to the FATs
    /// and the directories of the FAT volume in an image: FROM-END, heat, heat:WRITES/WITHIN or fat:IMAGE
    #[arg(long, value_name = "WHAT", conflicts_with = "absorb")]
    pub nvram: Option<AdmissionRule>,
    /// Bytes of its memory, FeRAM [128KiB, the paper's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "128KiB")]
    pub nvram_size: u64,
    /// Which writes carry placement handle 1 to the device (--ftl page:handles=2 keeps them apart): those to a range
    /// of bytes, to hot pages, or to the FATs and the root directory of the FAT volume in an image: FROM-END, heat,
    /// heat:WRITES/WITHIN or fat:IMAGE [what the trace marks as metadata]
    #[arg(long, value_name = "WHAT")]
    pub place: Option<AdmissionRule>,
    /// Leave out flushes, and the flags that mean one
    #[arg(long)]
    pub no_flush: bool,
    /// What becomes of offsets past the device's end, and of traces of several devices or files
    #[arg(long, value_enum, default_value_t)]
    pub fit: Fit,
    /// With --fit compact: what stays together
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64KiB")]
    pub chunk: u64,
    /// What flash holds before the trace begins; not counted
    #[arg(long, value_enum, default_value_t)]
    pub precondition: Precondition,
    /// Leave what the page cache, or an SSD's memory, holds at the end unwritten
    #[arg(long)]
    pub no_drain: bool,
    /// Number that everything random follows from: in the stack, and in a generator whose text has no seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Runs at the same time [as many as there are processors]
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,

    /// Tell what is in the trace instead of replaying it
    #[arg(long)]
    pub info: bool,
    /// Print JSON, one object a run and line
    #[arg(long)]
    pub json: bool,
    /// Write one row a run to a CSV file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write one row a run to a Parquet file
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    /// Tell what was done in each span of this length of virtual time, as 1s: with --json in 'series', and in --series
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration, conflicts_with = "info")]
    pub every: Option<Duration>,
    /// Write one row a run and span to a file: Parquet if its name ends in .parquet, else CSV
    #[arg(long, value_name = "FILE", requires = "every")]
    pub series: Option<PathBuf>,
    /// Write one line a request, as it is done, to a CSV file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fs", "info"])]
    pub request_log: Option<PathBuf>,
    /// Draw a plot (miss-ratio, latency, erases, writes, amplification or time) to a .svg or .png file; may
    /// be repeated
    #[arg(long, value_name = "KIND=FILE")]
    pub plot: Vec<Wanted>,
    /// Write one page with everything: tables, plots, configuration
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// For [`Args::parse`].
#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

impl Args {
    /// The arguments that `line` says, as one would type them after `bimetal replay`: words between blanks.
    ///
    /// # Errors
    /// The line makes no sense; the text is clap's.
    pub fn parse(line: &str) -> Result<Args> {
        let words = ["replay"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(Error::invalid)
    }

    /// What holds where nothing is said.
    pub(super) fn usual() -> Result<Args> {
        static USUAL: OnceLock<Args> = OnceLock::new();
        match USUAL.get() {
            Some(usual) => Ok(usual.clone()),
            None => Args::parse("-").map(|usual| USUAL.get_or_init(|| usual).clone()),
        }
    }

    /// The trace.
    ///
    /// # Errors
    /// A generator or parameter that there is not.
    pub(super) fn source(&self) -> Result<Source> {
        if let Some(source) = self.brought.requests() {
            return Ok(source.clone());
        }
        let options =
            ReadOptions { format: self.format.clone(), columns: self.columns.clone(), event: self.event };
        let source = Source::parse(&self.seeded_trace()?, options)?;
        // What is not played to its end is not decoded to its end.
        Ok(if self.requests.is_none() && self.fs.is_none() { self.decoded.share(source) } else { source })
    }

    /// The trace; a generator that has no seed of its own draws as [`seed`](Self::seed) says.
    ///
    /// # Errors
    /// As [`source`](Self::source).
    pub(super) fn seeded_trace(&self) -> Result<String> {
        bimetal_trace::seeded(self.trace(), self.seed)
    }

    /// The trace, as it was said.
    pub(super) fn trace(&self) -> &str {
        self.trace.as_deref().unwrap_or_default()
    }

    /// The kind of file system that calls are played on.
    pub(super) fn fs_kind(&self) -> &str {
        self.fs.as_deref().unwrap_or_default()
    }

    /// Refuses what makes no sense together.
    pub(super) fn check(&self) -> Result<()> {
        let sense = |holds: bool, why: &str| if holds { Ok(()) } else { Err(Error::invalid(why)) };
        sense(self.speed.is_finite() && self.speed > 0.0, "--speed must be above 0")?;
        sense(self.speed == 1.0 || self.pace == PaceName::Open, "--speed needs --pace open")?;
        sense(self.queue_depth == 1 || self.pace == PaceName::Closed, "--queue-depth needs --pace closed")?;
        sense(
            self.page.is_power_of_two() && (512..=1 << 20).contains(&self.page),
            "--page must be a power of two from 512 bytes to 1 MiB",
        )?;
        sense(
            self.chunk.is_power_of_two() && (512..=1 << 30).contains(&self.chunk),
            "--chunk must be a power of two from 512 bytes to 1 GiB",
        )?;
        let of_requests = [
            ("columns", self.columns.is_some()),
            ("event", self.event != Event::default()),
            ("unit", self.unit.is_some()),
            ("queue-depth", self.queue_depth != 1),
            ("timing", self.timing != Timing::Part),
            ("absorb", self.absorb.is_some()),
            ("nvram", self.nvram.is_some()),
            ("place", self.place.is_some()),
            ("fit", self.fit != Fit::default()),
            ("page", self.page != 4096),
            ("precondition", self.precondition != Precondition::default()),
        ];
        if let Some((name, _)) = of_requests.iter().find(|(_, said)| *said && self.fs.is_some()) {
            return Err(Error::invalid(format!("{name} is of a replay of requests, without a file system")));
        }
        sense(self.processes == 1 || self.fs.is_some(), "--processes needs --fs")?;
        sense(self.cache.is_empty() == self.cache_size.is_empty(), "--cache and --cache-size go together")?;
        sense(
            self.overhead.as_nanos() <= u128::from(TIME_MAX.0),
            "--overhead is more than virtual time can say, 292 years; choose a smaller one",
        )?;
        sense(self.absorb.is_none() || self.nvram.is_none(), "--absorb and --nvram exclude each other")?;
        self.check_devices()?;
        check_once("--ftl", &self.ftl, String::clone)?;
        check_once("--cache", &self.cache, String::clone)?;
        check_once("--cache-size", &self.cache_size, |bytes| show_size(*bytes))?;
        sense(self.jobs != Some(0), "--jobs must be at least 1")?;
        sense(self.every != Some(Duration::ZERO), "--every must be at least 1ns")?;
        sense(
            self.every.is_none_or(|_| self.timing != Timing::Off),
            "--every: with --timing off nothing takes time",
        )?;
        super::outputs::check(self)
    }

    /// Refuses devices that what is played does not have, and those of nothing.
    fn check_devices(&self) -> Result<()> {
        let sizes = [
            ("--device-size", self.device_size),
            ("--ssd-size", self.ssd_size),
            ("--disk-size", self.disk_size),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == Some(0)) {
            return Err(Error::invalid(format!(
                "{name} 0: there is no device of 0 bytes; leave it out for the usual size"
            )));
        }
        let kind = self.fs.as_ref().map(|fs| kinds::KINDS.find(fs)).transpose()?;
        let has_halves = kind.is_some_and(|kind| kind.lies_on == LiesOn::Halves);
        if let Some(kind) = kind {
            let name = |option: &String| option.split_once('=').map_or(option.len(), |(name, _)| name.len());
            kind.check_options(self.options.iter().map(|option| &option[..name(option)]))?;
        }
        let of_halves = [
            ("--ssd", self.ssd.is_some()),
            ("--ssd-size", self.ssd_size.is_some()),
            ("--disk", self.disk.is_some()),
            ("--disk-size", self.disk_size.is_some()),
            ("--section", !self.sections.is_empty()),
        ];
        let of_one = [("--device", self.device.is_some()), ("--device-size", self.device_size.is_some())];
        let (strange, why) = match has_halves {
            true => (&of_one[..], "nfhybrid has two devices, --ssd and --disk"),
            false => (&of_halves[..], "it is of --fs nfhybrid; all else lies on --device"),
        };
        match strange.iter().find(|(_, said)| *said) {
            Some((name, _)) => Err(Error::invalid(format!("{name}: {why}"))),
            None => Ok(()),
        }
    }
}

/// Refuses what would be run twice.
pub(super) fn check_once<T: PartialEq>(
    option: &str,
    values: &[T],
    show: impl Fn(&T) -> String,
) -> Result<()> {
    let twice = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value));
    twice
        .map_or(Ok(()), |(_, value)| Err(Error::invalid(format!("{option}: {} is there twice", show(value)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Result<(), String> {
        let args = Args::parse(line).map_err(|why| why.to_string())?;
        args.check().map_err(|why| why.to_string())
    }

    #[test]
    fn senseless_combinations_are_refused() {
        check("t --cache lru,cflru:window=0.5 --cache-size 16MiB,1GiB --ftl page --event c").unwrap();
        for (line, told) in [
            ("", "<TRACE>"),
            ("t --speed 2", "needs --pace open"),
            ("t --pace open --queue-depth 4", "needs --pace closed"),
            ("t --queue-depth 0", "0 is not in"),
            ("t --page 1000", "power of two"),
            ("t --cache lru", "go together"),
            ("t --cache-size 1x", "is not a size"),
            ("t --columns op=1", "no column is the offset"),
            ("t --plot pie=x.svg", "miss-ratio"),
            ("t --jobs 0", "at least 1"),
            ("t --overhead soon", "invalid value"),
            ("t --absorb 4KiB", "a range of bytes"),
            ("t --absorb 4KiB-4KiB", "a range of bytes"),
            ("t --nvram cold", "heat:WRITES/WITHIN"),
            ("t --nvram heat --absorb 0-4KiB", "cannot be used with"),
            ("t --overhead 1000y", "--overhead is more than virtual time can say, 292 years"),
            ("t --device slc-4k --device-size 0", "--device-size 0: there is no device of 0 bytes"),
            ("t --fs nfhybrid --ssd-size 0B", "--ssd-size 0"),
            ("t --fs fat --ssd ssd-slc", "--ssd: it is of --fs nfhybrid"),
            ("t --disk-size 1GiB", "--disk-size: it is of --fs nfhybrid"),
            ("t --fs nfhybrid --device hdd-7200", "--device: nfhybrid has two devices"),
            ("t --fs nfhybrid --device-size 1GiB", "--device-size: nfhybrid has two devices"),
            ("t --ftl page,fast,page", "--ftl: page is there twice"),
            ("t --cache lru,lru --cache-size 1MiB", "--cache: lru is there twice"),
            ("t --cache lru --cache-size 1MiB,1024KiB", "--cache-size: 1.0 MiB is there twice"),
        ] {
            let why = check(line).unwrap_err();
            assert!(why.contains(told), "{line}: {why}");
        }
    }
}
