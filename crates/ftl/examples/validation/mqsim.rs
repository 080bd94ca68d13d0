//! The same part and the same streams as MQSim was given, beside what it made of them (`mqsim/mqsim.tsv`, which
//! `mqsim/run.py` makes).

use crate::load::{Load, closed, quantile, write};
use crate::{Expected, Row};
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_ftl::ssd::{Data, Ssd, SsdProfile};
use bimetal_media::nand::{NandProfile, Ordering};
use bimetal_media::{BlockDevice, Request, profile};
use std::cmp::Reverse;

/// How far a figure may be from MQSim's.
const MARGIN: f64 = 0.1;
/// What MQSim was given: 32 chips, of which the host does not see so much.
const OVER_PROVISION_PERCENT: f64 = 12.7;
const CHIPS: u64 = 32;
const BLOCKS: u32 = 128;
const PAGES: u32 = 256;
const PAGE: u64 = 8 << 10;

const MEASURED: &str = include_str!("mqsim/mqsim.tsv");

/// Why writes at random are faster here.
const BY_ADDRESS: &str = "a chip by the page's number there, a free one here";

/// A stream of requests of a page, as `run.py` has it by the same name.
struct Stream {
    reads_percent: u32,
    random: bool,
    depth: usize,
    requests: u64,
    /// Percent of the pages that are written before.
    filled: u64,
}

fn stream(name: &str) -> Option<Stream> {
    let (kind, depth) = name.split_once('-')?;
    let depth = depth.parse().ok()?;
    let (reads_percent, random, requests, filled) = match kind {
        "read" => (100, true, 1_000_000, 100),
        "write" => (0, false, 100_000, 0),
        "random" => (0, true, 200_000, 50),
        "mixed" => (70, true, 200_000, 50),
        _ => return None,
    };
    Some(Stream { reads_percent, random, depth, requests, filled })
}

/// What MQSim's figure is to this one's: near, or beside it for a reason that is known.
fn expected(name: &str, of_reads: bool, figure: &str, theirs: f64) -> Expected {
    match (name, figure) {
        ("mixed-16", "requests") => Expected::Beside(theirs, BY_ADDRESS),
        ("mixed-16", "mean" | "p99" | "p99.9") if !of_reads => Expected::Beside(theirs, BY_ADDRESS),
        ("random-64", "requests" | "mean" | "p99" | "p99.9") => Expected::Beside(theirs, BY_ADDRESS),
        _ => Expected::Near(theirs, MARGIN),
    }
}

/// Pages a second of so many requests that are always under way, each at one of `chips` chosen at random, which takes
/// `takes` seconds for it.
fn by_address(chips: usize, depth: usize, takes: f64) -> f64 {
    let mut random = Random::new(1, "by address");
    let mut free = vec![0.0_f64; chips];
    let mut ends = std::collections::BinaryHeap::new();
    let (count, mut now) = (200_000, 0.0);
    for number in 0..count {
        if number >= depth {
            let Reverse(end) = ends.pop().expect("so many are under way");
            now = f64::from_bits(end);
        }
        let chip = random.below(chips as u64) as usize;
        free[chip] = now.max(free[chip]) + takes;
        ends.push(Reverse(free[chip].to_bits()));
    }
    (count - depth) as f64 / now
}

/// The part of MQSim's own configuration (`ssdconfig.xml`): MLC, 8 channels of 4 chips at 333 MT/s.
fn part() -> Result<NandProfile> {
    let tlc: NandProfile = profile::load("tlc")?;
    Ok(NandProfile {
        channels: 8,
        chips: CHIPS as u32 / 8,
        dies: 1,
        planes: 1,
        blocks: BLOCKS,
        pages: PAGES,
        page: PAGE,
        // MQSim transfers no spare areas; less a part cannot have here.
        spare: 8,
        read_us: 75.0,
        program_us: 750.0,
        erase_us: 3800.0,
        bus_ns_per_byte: 3.0,
        // Its cycles of a read's command: t_CS + 6 t_WC + t_WB + t_RR.
        command_us: 0.29,
        program_suspend_us: None,
        erase_suspend_us: None,
        ordering: Ordering::Background,
        cell_bits: 2,
        ..tlc.ideal()
    })
}

/// What a stream came to.
struct Found {
    load: Load,
    per_second: f64,
    amplification: f64,
}

fn run(stream: &Stream) -> Result<Found> {
    let profile = SsdProfile {
        over_provision_percent: OVER_PROVISION_PERCENT,
        settings: String::new(),
        // Four lanes of 1 GB/s; that its queues take a microsecond is assumed.
        bus_mb_per_s: 4000.0,
        command_us: 1.0,
        write_cache: 0,
        ..profile::load("ssd-tlc")?
    };
    let flash = CHIPS * u64::from(BLOCKS * PAGES) * PAGE;
    let size = (flash as f64 * (1.0 - OVER_PROVISION_PERCENT / 100.0)) as u64 / PAGE * PAGE;
    let ssd = Ssd::of_part(&profile, part()?, Data::Nowhere(size), 1)?;
    let device: &dyn BlockDevice = &ssd;
    let pages = device.info().size_bytes / PAGE;
    let mut random = Random::new(1, "mqsim");
    let filled = pages * stream.filled / 100;
    let start = closed(device, (Time::ZERO, 256), filled, |page| write(page * PAGE, PAGE))?.end;
    let before = ssd.report();
    let load = closed(device, (start, stream.depth), stream.requests, |number| {
        let page = if stream.random { random.below(filled.max(1)) } else { number % pages };
        match random.below(100) < u64::from(stream.reads_percent) {
            true => Request::Read { offset: page * PAGE, len: PAGE as usize },
            false => write(page * PAGE, PAGE),
        }
    })?;
    let after = ssd.report();
    let written = after.host_bytes.written - before.host_bytes.written;
    Ok(Found {
        per_second: stream.requests as f64 / load.end.since(start).as_secs_f64(),
        amplification: ((after.nand.programs - before.nand.programs) * PAGE) as f64 / written.max(1) as f64,
        load,
    })
}

pub fn rows() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut found: Option<(&str, Found)> = None;
    for line in MEASURED.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let bad = || Error::invalid(format!("mqsim.tsv: '{line}' is no row of it"));
        let [name, kind, numbers @ ..] = &fields[..] else { return Err(bad()) };
        let numbers: Vec<f64> = numbers.iter().filter_map(|text| text.parse().ok()).collect();
        let [rate, mean, p50, p99, p999, amplification] = numbers[..] else { return Err(bad()) };
        if found.as_ref().is_none_or(|(of, _)| of != name) {
            found = Some((name, run(&stream(name).ok_or_else(bad)?)?));
        }
        let Some((_, ours)) = &mut found else { unreachable!("it was just made") };
        let (what, latencies) = match *kind {
            "R" => ("reads", &mut ours.load.reads),
            _ => ("writes", &mut ours.load.writes),
        };
        let ms = |ns: f64| ns / 1e6;
        let average = latencies.iter().sum::<u64>() as f64 / latencies.len().max(1) as f64;
        let of_reads = *kind == "R";
        let mut row = |told: &str, figure, measured, theirs, unit| {
            rows.push(Row::new(
                format!("{name}: {told}"),
                measured,
                expected(name, of_reads, figure, theirs),
                unit,
            ));
        };
        if of_reads || !name.starts_with("mixed") {
            row("requests", "requests", ours.per_second, rate, "1/s");
        }
        row(&format!("{what}, mean"), "mean", ms(average), mean, "ms");
        for (figure, part, theirs) in [("p50", 0.5, p50), ("p99", 0.99, p99), ("p99.9", 0.999, p999)] {
            row(&format!("{what}, {figure}"), figure, ms(quantile(latencies, part) as f64), theirs, "ms");
        }
        if !of_reads {
            row("programs a write", "programs", ours.amplification, amplification, "");
        }
        if *name == "random-64" {
            // The reason, in figures: what chips chosen at random would do, against what they did there.
            let chosen = by_address(32, 64, 777.5e-6);
            rows.push(Row::new(
                "random-64: chips chosen at random",
                chosen,
                Expected::Near(rate, 0.02),
                "1/s",
            ));
        }
    }
    Ok(rows)
}
