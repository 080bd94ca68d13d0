//! The object store's own speed and memory: requests a second of a replay, memory for a million objects, and how the
//! cost of an operation grows with the number of objects and with the size of the flash.
//!
//! `make bench`, or `cargo bench --bench osd [-- OBJECTS]`: the most objects that are made, 10,000,000 unless said. All
//! times are CPU time of this thread. Nothing keeps bytes, so that only the store's own work is measured.

use bimetal::front::objects::{Driver, Driving};
use bimetal::front::trace::objects::Made;
use bimetal::fs::osd::{Content, Format, ObjectId, Options, Store};
use bimetal::media::nand::{Nand, NandProfile, Payload};
use bimetal::media::profile;
use bimetal::random::Random;
use rustix::time::{ClockId, clock_gettime};
use std::process::ExitCode;
use std::time::Duration;

/// Operations that are timed at each size.
const OPERATIONS: u32 = 20_000;
const OBJECT_BYTES: u64 = 4096;
/// Memory for the index's nodes, so that it does not grow with the objects.
const CACHE_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let most = std::env::args().skip(1).find_map(|most| most.parse().ok()).unwrap_or(10_000_000);
    match run(most) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("osd: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(most: u64) -> bimetal::Result<()> {
    replay()?;
    println!(
        "{:<22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "objects of 4 KiB", "create", "read", "write", "attribute", "open", "memory"
    );
    println!("{:<22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}", "", "µs", "µs", "µs", "µs", "ms", "MiB (index)");
    let mut objects = 10_000;
    while objects <= most {
        // As full at every size: two thirds.
        grow(&format!("{objects}"), objects, objects * (OBJECT_BYTES + 200) * 3 / 2)?;
        objects *= 10;
    }
    println!("The same 100,000 objects on flash of:");
    for gib in [1, 4, 16, 64] {
        grow(&format!("{gib} GiB"), 100_000.min(most), gib << 30)?;
    }
    Ok(())
}

/// Requests a second, cleaning included.
fn replay() -> bimetal::Result<()> {
    for read in [0.95, 0.5, 0.1] {
        let made = Made { read, ..Made::default() };
        let trace = made.trace();
        let (most, _) = trace.shape();
        for placement in ["combined", "split", "split-atime", "lifetime"] {
            let store = store(most * 5 / 4, placement)?;
            let how = Driving {
                commit_every: Duration::from_secs(5),
                read_flash: false,
                turnover_bytes: 0,
                seed: 1,
            };
            let mut driver = Driver::new(store, &trace, &how)?;
            driver.pass()?;
            let begin = cpu_seconds();
            driver.pass()?;
            let rate = trace.requests.len() as f64 / (cpu_seconds() - begin);
            println!("replay, {:.0} % reads, {placement:<12} {rate:>10.0} requests/s", read * 100.0);
        }
    }
    Ok(())
}

fn store(bytes: u64, placement: &str) -> bimetal::Result<Store> {
    let part = profile::load::<NandProfile>("slc-4k")?.ideal().resized(bytes.max(64 << 20), 64);
    let nand = Nand::new(part, 1, true, Payload::memory());
    let format = Format { segment_blocks: 1, placement: placement.into() };
    Store::format(nand, &format, options())
}

fn options() -> Options {
    Options { keep_bytes: false, cache_bytes: CACHE_BYTES, ..Options::default() }
}

/// One line: what operations cost on a store of so many objects, in microseconds, and what it needs.
fn grow(name: &str, objects: u64, flash: u64) -> bimetal::Result<()> {
    let mut store = store(flash, "lifetime")?;
    let before = resident_kib();
    let begin = cpu_seconds();
    for _ in 0..objects {
        let id = store.create(0)?;
        store.write(id, 0, Content::Count(OBJECT_BYTES))?;
    }
    store.flush()?;
    let create = (cpu_seconds() - begin) * 1e6 / objects as f64;
    let mut random = Random::new(1, "objects");
    let mut each =
        |work: &mut dyn FnMut(&mut Store, ObjectId) -> bimetal::Result<()>| -> bimetal::Result<f64> {
            let begin = cpu_seconds();
            for _ in 0..OPERATIONS {
                work(&mut store, ObjectId(1 + random.below(objects)))?;
            }
            store.flush()?;
            Ok((cpu_seconds() - begin) * 1e6 / f64::from(OPERATIONS))
        };
    let read = each(&mut |store, id| store.read(id, 0, OBJECT_BYTES as usize).map(drop))?;
    let write = each(&mut |store, id| store.write(id, 0, Content::Count(OBJECT_BYTES)))?;
    let attribute = each(&mut |store, id| store.set_attribute(id, b"user.a", b"value"))?;
    let (index, resident) = (store.memory_bytes(), resident_kib().saturating_sub(before));
    let mut nand = store.into_nand();
    nand.power_on();
    let begin = cpu_seconds();
    let reopened = Store::open(nand, options())?;
    let open = (cpu_seconds() - begin) * 1e3;
    assert_eq!(reopened.capacity().objects, objects, "after a power cut all objects are there");
    println!(
        "{name:<22} {create:>9.2} {read:>9.2} {write:>9.2} {attribute:>9.2} {open:>9.1} {:>6.1} ({:.1})",
        resident as f64 / 1024.0,
        index as f64 / f64::from(1 << 20),
    );
    Ok(())
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
    resident.and_then(|kib| kib.trim().parse().ok()).unwrap_or(0)
}

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
