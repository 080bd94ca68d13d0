//! An SSD of any size has the write amplification of the whole.

use crate::load::{closed, fill, write};
use crate::{Expected, Row};
use bimetal_base::Result;
use bimetal_base::random::Random;
use bimetal_ftl::ssd::{Data, Ssd, SsdProfile};
use bimetal_media::{BlockDevice, profile};

/// How far sizes may be apart.
const MARGIN: f64 = 0.03;
const PAGE: u64 = 16 << 10;
const GIB: u64 = 1 << 30;

pub fn rows() -> Result<Vec<Row>> {
    compare(&[4, 8, 16, 32])
}

/// The same with the whole: 256 GiB of flash less 7 %.
pub fn whole() -> Result<Vec<Row>> {
    compare(&[4, 64, 236])
}

fn compare(sizes: &[u64]) -> Result<Vec<Row>> {
    let found = sizes.iter().map(|size| amplification(size * GIB)).collect::<Result<Vec<_>>>()?;
    let row = |(size, amplified): (&u64, &f64)| {
        let expected = if *size == sizes[0] { Expected::Any } else { Expected::Near(found[0], MARGIN) };
        Row::new(format!("{size} GiB"), *amplified, expected, "")
    };
    Ok(sizes.iter().zip(&found).map(row).collect())
}

fn amplification(size: u64) -> Result<f64> {
    let ssd = Ssd::new(&profile::load::<SsdProfile>("ssd-tlc")?, Data::Nowhere(size), 1)?;
    let device: &dyn BlockDevice = &ssd;
    let start = fill(device, PAGE, 2)?;
    let (before, pages) = (ssd.report(), size / PAGE);
    let mut random = Random::new(2, "writes");
    closed(device, (start, 64), pages, |_| write(random.below(pages) * PAGE, PAGE))?;
    let after = ssd.report();
    let written = after.host_bytes.written - before.host_bytes.written;
    let programs = after.nand.programs - before.nand.programs;
    Ok((programs * PAGE) as f64 / written as f64)
}
