//! Dies and channels work side by side, until the bus is full.

use crate::load::{closed, write};
use crate::{Expected, Row};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_ftl::device::FtlDevice;
use bimetal_ftl::open;
use bimetal_media::nand::{Nand, NandProfile, Payload};
use bimetal_media::{BlockDevice, profile};

const MARGIN: f64 = 0.01;

pub fn rows() -> Result<Vec<Row>> {
    let part: NandProfile = profile::load("tlc")?;
    let part = NandProfile { planes: 1, blocks: 64, ..part.ideal() };
    let bus = (part.page + part.spare) as f64 * part.bus_ns_per_byte / 1e3 + part.command_us;
    let mut rows = Vec::new();
    for channels in [1, 2, 4, 8] {
        for chips in [1, 2, 4, 8, 16, 32, 64] {
            let part = NandProfile { channels, chips, ..part.clone() };
            let dies = f64::from(chips);
            let each = (dies / (bus + part.program_us)).min(1.0 / bus);
            let expected = f64::from(channels) * each * 1e6;
            let what = format!("{channels} channels of {chips} dies");
            rows.push(Row::new(what, rate(part)?, Expected::Near(expected, MARGIN), "1/s"));
        }
    }
    Ok(rows)
}

/// Programs a second.
fn rate(part: NandProfile) -> Result<f64> {
    let page = part.page;
    let units = u64::from(part.geometry().units);
    let device = FtlDevice::new(open("page", Nand::new(part, 1, false, Payload::None), "")?);
    let depth = 4 * units as usize;
    let pages = (device.info().size_bytes / page).min(100 * units);
    let load = closed(&device, (Time::ZERO, depth), pages, |number| write(number * page, page))?;
    Ok(pages as f64 * 1e9 / load.end.0 as f64)
}
