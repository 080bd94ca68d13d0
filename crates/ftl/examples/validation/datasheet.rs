//! The figures that a data sheet gives of one SSD (`devices/ssd-p3700.toml`, which names the sources of its parameters).
//!
//! The product specification 330566-010US gives, for the series' largest (2 TB): 128 KiB in order 2,800 and 2,000 MB/s, 4 KiB
//! at random 460,000 reads and 175,000 writes a second, 265,000 of 70 % reads. Two of these the profile is given: how many dies
//! there are was chosen by the writes in order, and how many commands a second are begun is the reads at random; they show
//! nothing. One read at a time: 77.9 µs on average, measured on the one of 800 GB
//! (anandtech.com, Intel Optane SSD DC P4800X review, page 4).

use crate::load::{Load, closed, write};
use crate::{Expected, Row};
use bimetal_base::Result;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_ftl::ssd::{Data, Ssd, SsdProfile};
use bimetal_media::{BlockDevice, Request, profile};

/// How far a figure may be from the sheet's.
const MARGIN: f64 = 0.2;
/// A part of the whole: it has the same dies and costs the same.
const SIZE: u64 = 16 << 30;
const PAGE: u64 = 4 << 10;
const CHUNK: u64 = 128 << 10;
/// Requests under way: four workers of 32.
const DEPTH: usize = 128;
const REQUESTS: u64 = 1_000_000;

pub fn rows() -> Result<Vec<Row>> {
    let ssd = Ssd::new(&profile::load::<SsdProfile>("ssd-p3700")?, Data::Nowhere(SIZE), 1)?;
    let device: &dyn BlockDevice = &ssd;
    let chunks = SIZE / CHUNK;
    let near = |value| Expected::Near(value, MARGIN);
    let chunk = |number: u64| number % chunks * CHUNK;
    // Memory fills up in the first pass.
    let start = closed(device, (Time::ZERO, DEPTH), chunks, |number| write(chunk(number), CHUNK))?.end;
    let written = closed(device, (start, DEPTH), chunks, |number| write(chunk(number), CHUNK))?;
    let read = closed(device, (written.end, DEPTH), chunks, |number| Request::Read {
        offset: chunk(number),
        len: CHUNK as usize,
    })?;
    let megabytes = |begin: Time, load: &Load| SIZE as f64 / 1e6 / load.end.since(begin).as_secs_f64();
    let mut rows = vec![
        Row::new("in order, 128 KiB: reads", megabytes(written.end, &read), near(2800.0), "MB/s"),
        Row::new("in order, 128 KiB: writes (given)", megabytes(start, &written), near(2000.0), "MB/s"),
    ];
    let mut random = Random::new(1, "data sheet");
    let mut now = read.end;
    // Until writes cost what they go on to cost.
    now =
        closed(device, (now, DEPTH), 2 * SIZE / PAGE, |_| write(random.below(SIZE / PAGE) * PAGE, PAGE))?.end;
    for (what, reads, depth, expected, unit) in [
        ("at random, 4 KiB: writes", 0.0, DEPTH, near(175_000.0), "1/s"),
        ("at random, 4 KiB: 70 % reads", 0.7, DEPTH, near(265_000.0), "1/s"),
        ("at random, 4 KiB: reads (given)", 1.0, DEPTH, near(460_000.0), "1/s"),
        ("at random, 4 KiB: one read at a time, mean", 1.0, 1, near(77.9), "us"),
    ] {
        let count = if depth == 1 { REQUESTS / 10 } else { REQUESTS };
        let load = closed(device, (now, depth), count, |_| {
            let offset = random.below(SIZE / PAGE) * PAGE;
            match random.chance(reads) {
                true => Request::Read { offset, len: PAGE as usize },
                false => write(offset, PAGE),
            }
        })?;
        let seconds = load.end.since(now).as_secs_f64();
        let measured = if depth == 1 { seconds * 1e6 / count as f64 } else { count as f64 / seconds };
        rows.push(Row::new(what, measured, expected, unit));
        now = load.end;
    }
    Ok(rows)
}
