//! How many requests a second each translation layer serves: 200,000 uniform random page writes over 25,600
//! pages on one die of 512 blocks of 64 pages, with all counts; and what checking every page costs.
//!
//! `cargo run --release --example ftl_speed [rounds]`. Prints the best round, in CPU time of this thread.

use bimetal::ftl::{self, streams::Stream, write_of};
use bimetal::media::nand::{Nand, NandProfile, Page, Payload};
use bimetal::media::profile;
use bimetal::time::Time;
use bimetal::units::Lpn;
use rustix::time::{ClockId, clock_gettime};

const WRITES: usize = 200_000;

fn main() -> bimetal::Result<()> {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    let mut pages = Stream::Uniform.pages(400, 64);
    let drawn = pages.split_off(25_600);
    pages.extend(drawn.iter().cycle().take(WRITES));
    println!("{:<28} {:>14} {:>14} {:>10}", "scheme", "requests/s", "checked", "amplified");
    for (scheme, settings) in [
        ("page", ""),
        ("bast", "logs=8"),
        ("bast", "logs=64"),
        ("fast", "logs=8"),
        ("fast", "logs=64"),
        ("nftl", "logs=64"),
        ("dftl", ""),
    ] {
        let mut best = [f64::MAX; 2];
        let mut amplification = 0.0;
        for _ in 0..rounds {
            for (checked, best) in best.iter_mut().enumerate() {
                let (seconds, amplified) = run(scheme, settings, &pages, checked == 1)?;
                *best = best.min(seconds);
                amplification = amplified;
            }
        }
        let [plain, checked] = best.map(|seconds| WRITES as f64 / seconds);
        println!(
            "{:<28} {plain:>14.0} {checked:>14.0} {amplification:>10.2}",
            format!("{scheme} {settings}")
        );
    }
    Ok(())
}

/// Seconds of CPU for the writes after the first 25,600, and their write amplification.
fn run(scheme: &str, settings: &str, pages: &[u64], checked: bool) -> bimetal::Result<(f64, f64)> {
    let part = profile::load::<NandProfile>("slc-2k")?.ideal();
    let nand = Nand::new(NandProfile { blocks: 512, pages: 64, ..part }, 1, checked, Payload::None);
    let mut ftl = ftl::open(scheme, nand, &format!("logical=50MiB,{settings}"))?;
    let (fill, writes) = pages.split_at(25_600);
    for page in fill {
        ftl.write(Time::ZERO, Lpn(*page), &[])?;
    }
    let mut last = vec![0; if checked { 25_600 } else { 0 }];
    let before = ftl.nand().counts().programs;
    let begin = cpu_seconds();
    for (number, page) in writes.iter().enumerate() {
        ftl.write(Time::ZERO, Lpn(*page), &[])?;
        if checked {
            last[*page as usize] = number as u64 + 25_601;
            check(&*ftl, *page, number as u64 + 25_601);
        }
    }
    for (page, write) in last.iter().enumerate().filter(|(_, write)| **write > 0) {
        check(&*ftl, page as u64, *write);
    }
    let programs = ftl.nand().counts().programs - before;
    Ok((cpu_seconds() - begin, programs as f64 / writes.len() as f64))
}

/// Checks that a page's newest version is that of write `number`.
fn check(ftl: &dyn ftl::Ftl, page: u64, number: u64) {
    let place = ftl.find(Lpn(page)).expect("written");
    match ftl.nand().page(place.0, place.1) {
        Page::Programmed(tag) => assert_eq!((u64::from(tag.owner), write_of(tag.sequence)), (page, number)),
        other => panic!("page {page} lies on an {other:?} page"),
    }
}

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
