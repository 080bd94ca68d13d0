//! Greedy cleaning under uniform random writes, against theory ([`bimetal_ftl::theory`]).

use crate::{Expected, Row};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_ftl::streams::Generator;
use bimetal_ftl::{open, theory};
use bimetal_media::nand::{Nand, NandProfile, Payload};
use bimetal_media::profile;

/// How far the counts may be from the formula.
const MARGIN: f64 = 0.03;
const PAGES: u64 = 1 << 20;
/// Planes of a die with superblocks.
const PLANES: u32 = 8;

pub fn rows() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for percent in [7.0, 12.5, 28.0, 50.0] {
        for block_pages in [32, 64, 128, 256, 512, 1024] {
            let measured = amplification(percent, block_pages, 1)?;
            let expected = theory::amplification(percent, f64::from(block_pages));
            let what = format!("{percent} % over-provision, {block_pages} pages a block");
            rows.push(Row::new(what, measured, Expected::Near(expected, MARGIN), ""));
        }
    }
    Ok(rows)
}

/// The same of superblocks, which are blocks of more pages.
pub fn superblocks() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for percent in [7.0, 28.0] {
        for block_pages in [8, 32, 128] {
            let measured = amplification(percent, block_pages, PLANES)?;
            let expected = theory::amplification(percent, f64::from(PLANES * block_pages));
            let what = format!("{percent} %, superblocks of {PLANES} blocks of {block_pages} pages");
            rows.push(Row::new(what, measured, Expected::Near(expected, MARGIN), ""));
        }
    }
    Ok(rows)
}

/// Pages programmed for each page written, after three times as many writes as there are pages, on a die of so many planes
/// whose blocks are cleaned as one.
fn amplification(percent: f64, block_pages: u32, planes: u32) -> Result<f64> {
    let part: NandProfile = profile::load("slc-2k")?;
    let blocks = (PAGES / u64::from(block_pages * planes)) as u32;
    let part = NandProfile { planes, blocks, pages: block_pages, ..part.ideal() };
    let mut nand = Nand::new(part, 1, false, Payload::None);
    nand.stop_clock();
    let superblock = if planes > 1 { "die" } else { "none" };
    let settings = format!("over-provision={percent}:level=none:superblock={superblock}");
    let mut ftl = open("page", nand, &settings)?;
    let pages = ftl.logical_pages();
    let mut write = |page| ftl.write(Time::ZERO, Lpn(page), &[]).map(drop);
    let mut random = Generator(1);
    (0..pages).try_for_each(&mut write)?;
    (0..3 * pages).try_for_each(|_| write(random.next() % pages))?;
    let before = ftl.nand().counts().programs;
    for _ in 0..2 * pages {
        ftl.write(Time::ZERO, Lpn(random.next() % pages), &[])?;
    }
    Ok((ftl.nand().counts().programs - before) as f64 / (2 * pages) as f64)
}
