//! What a read waits for on an SSD that is written to: with suspending, without, and with everything in order.

use crate::load::{Load, closed, fill, quantile, write};
use crate::{Expected, Row};
use bimetal_base::Result;
use bimetal_base::random::Random;
use bimetal_ftl::ssd::{Data, Ssd, SsdProfile};
use bimetal_media::nand::{NandProfile, Ordering};
use bimetal_media::{BlockDevice, Request, profile};

const SIZE: u64 = 8 << 30;
const REQUESTS: u64 = 400_000;

pub fn rows() -> Result<Vec<Row>> {
    let suspends: NandProfile = profile::load("tlc")?;
    let cannot = NandProfile { program_suspend_us: None, erase_suspend_us: None, ..suspends.clone() };
    let in_order = NandProfile { ordering: Ordering::InOrder, ..cannot.clone() };
    let mut rows = Vec::new();
    for (name, part, most) in [
        ("reads first, suspending", suspends, Expected::Below(5.0)),
        ("reads first, without suspending", cannot, Expected::Any),
        ("everything in order, cleaning in the foreground", in_order, Expected::Any),
    ] {
        let (mut load, seconds) = mixed(part)?;
        let ms = |latencies: &mut [u64], part| quantile(latencies, part) as f64 / 1e6;
        rows.push(Row::new(format!("{name}: reads p50"), ms(&mut load.reads, 0.5), Expected::Any, "ms"));
        rows.push(Row::new(format!("{name}: reads p99.9"), ms(&mut load.reads, 0.999), most, "ms"));
        rows.push(Row::new(
            format!("{name}: writes p99.9"),
            ms(&mut load.writes, 0.999),
            Expected::Any,
            "ms",
        ));
        rows.push(Row::new(format!("{name}: requests"), REQUESTS as f64 / seconds, Expected::Any, "1/s"));
    }
    Ok(rows)
}

/// The latencies of a mix, and how many seconds it took.
fn mixed(part: NandProfile) -> Result<(Load, f64)> {
    let ssd = Ssd::of_part(&profile::load::<SsdProfile>("ssd-tlc")?, part, Data::Nowhere(SIZE), 1)?;
    let device: &dyn BlockDevice = &ssd;
    let start = fill(device, 16 << 10, 2)?;
    let mut random = Random::new(3, "mixed");
    let load = closed(device, (start, 16), REQUESTS, |_| {
        let offset = random.below(SIZE / 4096) * 4096;
        match random.chance(0.7) {
            true => Request::Read { offset, len: 4096 },
            false => write(offset, 4096),
        }
    })?;
    let seconds = load.end.since(start).as_secs_f64();
    Ok((load, seconds))
}
