//! Several clients on an nfhybrid in virtual time, with eviction, faults and power cuts, recovery cut again.
//!
//! A seed is a whole story: the halves' geometry, how long each request takes, what the clients do and how they
//! interleave, what fails, when the power goes and what survives of what was not durable. After each cut the volume is
//! mounted again (cut or failed there, too, and then again), everything promised is looked for, and the clients go
//! on. `SEEDS=from..to` says which; one is re-run by `SEEDS=n..n+1`.

mod client;
mod oracle;
mod tale;
mod volume;

use tale::{Outcome, Verdict, tell};
use volume::bases;

/// Tells the stories of these seeds on all processors; the outcomes, by seed.
fn tell_all(seeds: std::ops::Range<u64>) -> Option<Vec<Outcome>> {
    bases().as_ref()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let parts: Vec<Vec<(u64, Verdict)>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                let seeds = seeds.clone();
                scope.spawn(move || {
                    let own = seeds.filter(|seed| seed % threads == first);
                    own.filter_map(|seed| match std::panic::catch_unwind(|| tell(seed)) {
                        Ok(verdict) => Some((seed, verdict?)),
                        Err(_) => Some((seed, Err(format!("seed {seed}: a panic")))),
                    })
                    .collect()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let mut all: Vec<_> = parts.into_iter().flatten().collect();
    all.sort_by_key(|(seed, _)| *seed);
    let (good, bad): (Vec<Verdict>, Vec<Verdict>) =
        all.into_iter().map(|(_, verdict)| verdict).partition(Result::is_ok);
    let bad: Vec<String> = bad.into_iter().filter_map(Result::err).collect();
    assert!(bad.is_empty(), "{} of {} seeds failed:\n{}", bad.len(), bad.len() + good.len(), bad.join("\n"));
    Some(good.into_iter().filter_map(Result::ok).collect())
}

/// `SEEDS=from..to`, or `default`.
fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SEEDS") else { return default };
    let (from, to) = text.split_once("..").expect("SEEDS=from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn no_seed_loses_what_was_promised() {
    let seeds = seeds(0..400);
    let start = std::time::Instant::now();
    let Some(outcomes) = tell_all(seeds.clone()) else { return println!("skipped: no mke2fs") };
    let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
    println!(
        "{} seeds in {:?}: {} cuts, {} in recovery, {} operations recovered, {} with eviction, {} faults, {} s of virtual time, {} switches",
        outcomes.len(),
        start.elapsed(),
        sum(|o| o.cuts.into()),
        sum(|o| o.recoveries_cut.into()),
        sum(|o| o.recovered),
        sum(|o| o.evicted.into()),
        sum(|o| o.faults),
        sum(|o| o.virtual_ms) / 1000,
        sum(|o| o.switches),
    );
    if outcomes.len() >= 100 {
        assert!(
            sum(|o| o.cuts.into()) > 0 && sum(|o| o.recoveries_cut.into()) > 0 && sum(|o| o.recovered) > 0
        );
        assert!(sum(|o| o.evicted.into()) > 0 && sum(|o| o.faults) > 0);
    }
}

#[test]
fn the_same_seed_twice_gives_the_same_bytes_and_another_others() {
    let Some(first) = tell_all(1_000..1_010) else { return println!("skipped: no mke2fs") };
    assert_eq!(Some(&first), tell_all(1_000..1_010).as_ref());
    assert!(first.windows(2).all(|pair| pair[0].bytes != pair[1].bytes));
}
