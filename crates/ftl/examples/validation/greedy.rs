//! Greedy cleaning under uniform random writes.
//!
//! Blocks that are rewritten at random lose valid pages at a rate proportional to what they have left, so that in the
//! steady state there are `c ÷ k` blocks with `k` valid pages, from the `x` at which a block is cleaned when it loses one
//! more, up to all `n`. Counting blocks and pages gives `α = n ÷ (n − x + 1) · Σ 1/k` of `α` physical pages a logical one,
//! and with the sum as a logarithm Desnoyers' closed form (Analytic Modeling of SSD Write Performance, SYSTOR 2012):
//! `x = ½ − (n ÷ α) W(−α (1 + 1/2n) e^{−α (1 + 1/2n)})`, `A = n ÷ (n − x + 1)`.

use crate::{Expected, Row};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_ftl::open;
use bimetal_ftl::streams::Generator;
use bimetal_media::nand::{Nand, NandProfile, Payload};
use bimetal_media::profile;

/// How far the counts may be from the formula.
const MARGIN: f64 = 0.03;
const PAGES: u64 = 1 << 20;

pub fn rows() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for percent in [7.0, 12.5, 28.0, 50.0] {
        for block_pages in [32, 64, 128, 256, 512, 1024] {
            let measured = amplification(percent, block_pages)?;
            let expected = formula(1.0 / (1.0 - percent / 100.0), f64::from(block_pages));
            let what = format!("{percent} % over-provision, {block_pages} pages a block");
            rows.push(Row::new(what, measured, Expected::Near(expected, MARGIN), ""));
        }
    }
    Ok(rows)
}

/// Pages programmed for each page written, after three times as many writes as there are pages.
fn amplification(percent: f64, block_pages: u32) -> Result<f64> {
    let part: NandProfile = profile::load("slc-2k")?;
    let blocks = (PAGES / u64::from(block_pages)) as u32;
    let mut nand =
        Nand::new(NandProfile { blocks, pages: block_pages, ..part.ideal() }, 1, false, Payload::None);
    nand.stop_clock();
    let mut ftl = open("page", nand, &format!("over-provision={percent}:level=none"))?;
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

fn formula(alpha: f64, pages: f64) -> f64 {
    let scaled = alpha * (1.0 + 0.5 / pages);
    let cleaned_at = 0.5 - pages / alpha * lambert(-scaled * (-scaled).exp());
    pages / (pages - cleaned_at + 1.0)
}

/// The branch of Lambert's W through 0: `w` of `w e^w = value`, for values above −1/e, by Newton's steps.
fn lambert(value: f64) -> f64 {
    let mut w = 0.0f64.min(value);
    for _ in 0..200 {
        let exp = w.exp();
        let step = (w * exp - value) / (exp * (w + 1.0)).max(1e-12);
        w -= step;
        if step.abs() < 1e-14 {
            break;
        }
    }
    w
}
