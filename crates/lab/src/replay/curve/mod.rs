//! `bimetal curve`: the misses of page cache policies over the size of the cache, from one reading of a trace.
//!
//! The trace is decoded once into page accesses in memory, 8 bytes each; every policy at every size then runs over them on
//! all cores, without a device and without time. LRU takes one pass for all sizes, and `belady` is the least that any
//! policy could have ([`bimetal_cache::offline`]).
//!
//! With a sample of the pages, chosen by a hash of their numbers, each cache is made smaller by the same factor (Waldspurger,
//! Park, Garthwaite, Ahmad, FAST'15: SHARDS with a fixed rate; Waldspurger, Saemundsson, Ahmad, Park, ATC'17: scaled-down
//! simulations of any policy). Misses are divided by the accesses that such a sample has on average, not by those that it
//! has, which takes away most of the error that a few pages used very often bring (SHARDS-adj).

mod accesses;

use super::args::check_once;
use super::parallel;
use super::plot::can_be_drawn;
use super::progress::Steps;
use super::{Fit, aligned, json, say};
use crate::chart::{Axis, Body, Chart, Curve, Scale, save};
use crate::names;
use crate::stack::ERASE_BLOCK_BYTES;
use accesses::Accesses;
use bimetal_base::time::Time;
use bimetal_base::units::{parse_size, show_size};
use bimetal_base::{Error, Result};
use bimetal_cache::offline::{Distances, Numbered};
use bimetal_cache::{Config, Nothing, build};
use bimetal_trace::{Columns, Event, ReadOptions, Source};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

const EXAMPLES: &str = "\
Examples:
  bimetal curve hm_0.csv.gz
  bimetal curve trace.csv.zst --cache lru,s3fifo,cswlru,belady --plot curve.svg
  bimetal curve gen:zipf:pages=100000:requests=1000000 --cache 2q,tinylfu,lecar --cache-size 1MiB,16MiB,64MiB
  bimetal curve financial.spc --fit compact --sample 0.01 --points 32 --json

belady is no policy of a mount or a replay: it knows the future, and is the least misses that any policy could have
which takes in what it misses (bplru and wow do not take in what is read).
Discards and flushes of the trace are passed over. Policies that look at erase blocks see holes in a sample.";

/// The least that any policy could have which takes in what it misses.
const BELADY: &str = "belady";
/// What takes one pass for all sizes.
const LRU: &str = "lru";

/// Show the misses of page cache policies over the size of the cache
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace file (zstd, gzip, bzip2 and Parquet are seen through), '-' for standard input, or a generator
    /// gen:NAME[:option=value:...]
    trace: String,
    /// The trace's format [told from its contents]
    #[arg(long, value_name = "NAME", value_parser = names::FORMAT, hide_possible_values = true)]
    format: Option<String>,
    /// Of a CSV: what its columns are, as time=1:us,op=2,offset=3:512,length=4:512 [told from its header]
    #[arg(long)]
    columns: Option<Columns>,
    /// Of blktrace and blkparse: which event is the request
    #[arg(long, value_enum, default_value_t, ignore_case = true)]
    event: Event,
    /// Only requests to this device or file of the trace
    #[arg(long, value_name = "N")]
    unit: Option<u32>,
    /// Only the first N requests
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// What becomes of traces of several devices or files
    #[arg(long, value_enum, default_value_t)]
    fit: Fit,
    /// With --fit compact: what stays together
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64KiB")]
    chunk: u64,
    /// Page cache policies to compare, as lru,cflru:window=0.5; belady is the least that there can be
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = names::CURVE, hide_possible_values = true,
          default_value = "lru,s3fifo,belady")]
    cache: Vec<String>,
    /// Sizes of the page cache [--points of them, up to all pages of the trace]
    #[arg(long, value_name = "X,Y", value_delimiter = ',', value_parser = parse_size, conflicts_with = "points")]
    cache_size: Vec<u64>,
    /// How many sizes, each the same factor above the one before, from a thousandth of the pages of the trace
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    points: u32,
    /// Bytes of a page
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4KiB")]
    page: u64,
    /// Bytes of an erase block, for policies that look at them [512 KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    erase_block: Option<u64>,
    /// The share of all pages that is looked at, above 0
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    sample: f64,
    /// Number that everything random follows from: which pages a sample has, and a generator whose text has no seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Runs at the same time [as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the curves to a .svg or .png file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The curves of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Curves {
    /// The trace.
    pub trace: String,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Requests of the trace.
    pub requests: u64,
    /// Accesses to pages that they make.
    pub accesses: u64,
    /// The share of the pages that was looked at.
    pub sample: f64,
    /// Different pages of the sample.
    pub pages_sampled: u64,
    /// Accesses to them.
    pub accesses_sampled: u64,
    /// One for each policy.
    pub curves: Vec<PolicyCurve>,
}

/// The misses of one policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyCurve {
    /// The policy as it was asked for.
    pub policy: String,
    /// In the order of the sizes.
    pub points: Vec<Point>,
}

/// The misses of a policy at one size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Misses; of a sample, those of all pages that they stand for.
    pub misses: u64,
    /// The part of all accesses that missed, 0 to 1.
    pub miss_ratio: f64,
}

/// Does what the command line asks for.
///
/// # Errors
/// Senseless options, a malformed trace, a policy that there is not, a file that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let curves = curves(args)?;
    if let Some(path) = &args.plot {
        save(path, &chart(&curves))?;
    }
    say(if args.json { json(&curves)? } else { table(&curves) }.trim_end())
}

/// Reads the trace and makes the curves.
///
/// # Errors
/// As [`run`].
pub fn curves(args: &Args) -> Result<Curves> {
    args.check()?;
    let options =
        ReadOptions { format: args.format.clone(), columns: args.columns.clone(), event: args.event };
    let source = Source::parse(&bimetal_trace::seeded(&args.trace, args.seed)?, options)?;
    let accesses = Accesses::read(args, &source)?;
    if accesses.sampled.is_empty() {
        return Err(Error::invalid(format!(
            "{}: no page of it is read or written ({} requests, {} accesses, sample {})",
            source.name(),
            accesses.requests,
            accesses.all,
            args.sample
        )));
    }
    let numbered = Numbered::new(&accesses.sampled);
    let sizes = args.sizes(numbered.pages());
    let exact = args.cache.iter().any(|policy| policy == LRU).then(|| numbered.lru());
    let lab = Laboratory { args, accesses: &accesses, numbered: &numbered, lru: exact.as_ref() };
    let runs: Vec<(&str, u64)> =
        args.cache.iter().flat_map(|policy| sizes.iter().map(move |size| (policy.as_str(), *size))).collect();
    let jobs = args.jobs.map_or_else(processors, |jobs| jobs as usize);
    let steps = Steps::of(runs.len());
    let point = |at: usize, _: &AtomicBool| lab.point(runs[at].0, runs[at].1).inspect(|_| steps.one_more());
    let points = parallel::run_all(runs.len(), jobs, point, || steps.draw())?;
    let curves = args.cache.iter().zip(points.chunks(sizes.len()));
    Ok(Curves {
        trace: source.name(),
        page_bytes: args.page,
        requests: accesses.requests,
        accesses: accesses.all,
        sample: args.sample,
        pages_sampled: numbered.pages().into(),
        accesses_sampled: accesses.sampled.len() as u64,
        curves: curves
            .map(|(policy, points)| PolicyCurve { policy: policy.clone(), points: points.to_vec() })
            .collect(),
    })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Args {
    fn check(&self) -> Result<()> {
        let sense = |holds: bool, why: &str| if holds { Ok(()) } else { Err(Error::invalid(why)) };
        let page = self.page;
        sense(
            page.is_power_of_two() && (512..=1 << 20).contains(&page),
            "--page must be a power of two from 512 bytes to 1 MiB",
        )?;
        sense(self.sample > 0.0 && self.sample <= 1.0, "--sample must be above 0 and at most 1")?;
        sense(
            self.chunk.is_power_of_two() && (512..=1 << 30).contains(&self.chunk),
            "--chunk must be a power of two from 512 bytes to 1 GiB",
        )?;
        sense(
            self.erase_block.is_none_or(|block| block >= page && block.is_multiple_of(page)),
            "--erase-block must be whole pages",
        )?;
        sense(self.cache_size.iter().all(|size| *size >= page), "--cache-size must be a page or more")?;
        sense(
            self.plot.as_deref().is_none_or(can_be_drawn),
            "--plot goes to a .svg or .png file, as --plot curve.svg",
        )?;
        check_once("--cache", &self.cache, String::clone)?;
        // A policy that there is not is told before the trace is read.
        let mut policies = self.cache.iter().filter(|policy| *policy != BELADY);
        policies.try_for_each(|policy| build(policy, &Config::new(64)).map(drop))
    }

    /// Sizes in bytes, rising.
    fn sizes(&self, pages_sampled: u32) -> Vec<u64> {
        let mut sizes = self.cache_size.clone();
        if sizes.is_empty() {
            let pages = f64::from(pages_sampled) / self.sample;
            let step = 1000f64.powf(-1.0 / f64::from(self.points - 1));
            let at = |point: u32| (pages * step.powf(f64::from(self.points - 1 - point))).round().max(1.0);
            sizes = (0..self.points).map(|point| at(point) as u64 * self.page).collect();
        }
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// What every point of a curve is made from.
struct Laboratory<'a> {
    args: &'a Args,
    accesses: &'a Accesses,
    numbered: &'a Numbered,
    lru: Option<&'a Distances>,
}

impl Laboratory<'_> {
    fn point(&self, policy: &str, cache_bytes: u64) -> Result<Point> {
        let (page, sample) = (self.args.page, self.args.sample);
        let pages = ((cache_bytes / page) as f64 * sample).round().max(1.0);
        // With room for all pages nothing is evicted, however much more room there is.
        let capacity = pages.min(f64::from(self.numbered.pages())) as u32;
        let misses = match (policy, self.lru) {
            (LRU, Some(distances)) => distances.misses(capacity),
            (BELADY, _) => self.numbered.fewest_misses(capacity),
            _ => self.misses(policy, capacity)?,
        };
        let expected = self.accesses.all as f64 * sample;
        let miss_ratio = (misses as f64 / expected).min(1.0);
        Ok(Point { cache_bytes, misses: (miss_ratio * self.accesses.all as f64).round() as u64, miss_ratio })
    }

    fn misses(&self, policy: &str, capacity: u32) -> Result<u64> {
        let block = (self.args.erase_block.unwrap_or(ERASE_BLOCK_BYTES) / self.args.page).max(1);
        let block = u32::try_from(block).map_err(|_| Error::invalid("--erase-block has too many pages"))?;
        let mut cache = build(policy, &Config::new(capacity).block_pages(block))?;
        cache.run(Time::ZERO, &self.accesses.sampled, &mut Nothing)?;
        Ok(cache.view().stats.misses())
    }
}

/// The ratios, a line for each size.
fn table(curves: &Curves) -> String {
    let sample = match curves.sample < 1.0 {
        true => format!(", {} of {} looked at", curves.accesses_sampled, curves.accesses),
        false => String::new(),
    };
    let head = format!(
        "{}: {} requests, {} accesses to pages of {}{sample}\npart of them that misses, by the size of the cache\n",
        curves.trace,
        curves.requests,
        curves.accesses,
        show_size(curves.page_bytes)
    );
    let names = curves.curves.iter().map(|curve| curve.policy.clone());
    let mut lines = vec![["size".to_string()].into_iter().chain(names).collect::<Vec<_>>()];
    let rows = curves.curves.first().map_or(0, |curve| curve.points.len());
    for row in 0..rows {
        let ratios = curves.curves.iter().map(|curve| format!("{:.4}", curve.points[row].miss_ratio));
        let size = show_size(curves.curves[0].points[row].cache_bytes);
        lines.push([size].into_iter().chain(ratios).collect());
    }
    head + &aligned(&lines)
}

fn chart(curves: &Curves) -> Chart {
    let of = |curve: &PolicyCurve| Curve {
        name: curve.policy.clone(),
        points: curve
            .points
            .iter()
            .map(|point| (point.cache_bytes as f64, point.miss_ratio.into()))
            .collect(),
    };
    Chart {
        part: String::new(),
        title: "Misses of the page cache".into(),
        x: Axis::scaled("size of the cache", Scale::Bytes),
        y: Axis::linear("part of the page accesses that missed"),
        body: Body::Curves { curves: curves.curves.iter().map(of).collect(), paper: Vec::new() },
    }
}

#[cfg(test)]
mod tests;
