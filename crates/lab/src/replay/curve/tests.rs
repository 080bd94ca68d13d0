use super::super::{Args as ReplayArgs, replay};
use super::*;
use bimetal_cache::registry::POLICIES;
use clap::Parser;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn parse(line: &str) -> Args {
    let words = ["curve"].into_iter().chain(line.split_whitespace());
    Line::try_parse_from(words).map(|line| line.args).expect("arguments")
}

/// Requests that begin and end within pages, so that the order within a request counts.
const TRACE: &str = "gen:iometer:size=8MiB:requests=4000:read=40:random=70:block=10KiB";

#[test]
fn a_curve_has_the_misses_of_replays() {
    let all = POLICIES.names().collect::<Vec<_>>().join(",");
    for page in ["512", "4KiB", "16KiB"] {
        let line = format!("{TRACE} --cache {all} --cache-size 64KiB,1MiB,4MiB,64MiB --page {page}");
        let curves = curves(&parse(&line)).unwrap();
        let runs = replay(&ReplayArgs::parse(&line).unwrap()).unwrap();
        let points: Vec<_> = curves.curves.iter().flat_map(|curve| &curve.points).collect();
        assert_eq!(runs.len(), points.len());
        for (run, point) in runs.iter().zip(points) {
            assert_eq!(
                run.cache.as_ref().unwrap().counts.misses(),
                point.misses,
                "{} {page}",
                run.config.run
            );
            assert_eq!(run.config.cache_bytes, Some(point.cache_bytes));
        }
    }
}

#[test]
fn sizes_go_up_to_all_pages_where_only_first_uses_miss() {
    let curves =
        curves(&parse("gen:zipf:pages=3000:requests=20000 --cache lru,arc,belady --points 9")).unwrap();
    let [lru, arc, belady] = &curves.curves[..] else { panic!("three curves") };
    assert_eq!(lru.points.len(), 9);
    for curve in [lru, arc, belady] {
        let last = curve.points.last().unwrap();
        assert_eq!((last.cache_bytes, last.misses), (curves.pages_sampled * 4096, curves.pages_sampled));
        assert!(curve.points.windows(2).all(|two| two[0].cache_bytes < two[1].cache_bytes));
    }
    let least =
        |curve: &PolicyCurve| curve.points.iter().zip(&belady.points).all(|(p, b)| p.misses >= b.misses);
    assert!(least(lru) && least(arc));
    assert!(lru.points.windows(2).all(|two| two[0].misses >= two[1].misses));
}

#[test]
fn samples_of_the_pages_stand_for_all() {
    const SAMPLES: u64 = 12;
    let line = "gen:zipf:pages=200000:requests=400000:alpha=0.8:seed=1 --cache lru,s3fifo,belady \
        --cache-size 8MiB,16MiB,32MiB,64MiB,128MiB,256MiB";
    let whole = curves(&parse(line)).unwrap();
    let sampled: Vec<Curves> = (1..=SAMPLES)
        .map(|seed| curves(&parse(&format!("{line} --sample 0.1 --seed {seed}"))).unwrap())
        .collect();
    for sample in &sampled {
        let share = sample.pages_sampled as f64 / whole.pages_sampled as f64;
        assert!((0.095..0.105).contains(&share), "{share}");
    }
    // A sample has too many or too few of the pages used most; on average it has neither.
    for (at, whole) in whole.curves.iter().enumerate() {
        for (place, exact) in whole.points.iter().enumerate() {
            let ratios = || sampled.iter().map(|sample| sample.curves[at].points[place].miss_ratio);
            let mean = ratios().sum::<f64>() / SAMPLES as f64;
            let spread = ratios().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (SAMPLES - 1) as f64;
            let error = (spread / SAMPLES as f64).sqrt();
            assert!((mean - exact.miss_ratio).abs() < 3.0 * error, "{}: {mean} {error}", whole.policy);
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_the_trace_is_read() {
    for (line, told) in [
        ("nowhere.csv --cache nonsense", "there is no cache policy"),
        ("nowhere.csv --sample 0", "--sample must be above 0"),
        ("nowhere.csv --page 5000", "--page must be a power of two"),
        ("nowhere.csv --cache-size 1KiB", "--cache-size must be a page or more"),
        ("nowhere.csv --plot curve.pdf", ".svg or .png"),
        ("nowhere.csv --erase-block 6KiB", "whole pages"),
        ("nowhere.csv --cache lru,arc,lru", "--cache: lru is there twice"),
    ] {
        let why = curves(&parse(line)).unwrap_err().to_string();
        assert!(why.contains(told), "{line}: {why}");
    }
}

#[test]
fn a_cache_far_larger_than_the_trace_takes_no_more_memory_than_the_trace_needs() {
    let all = POLICIES.names().collect::<Vec<_>>().join(",");
    let line = format!("{TRACE} --cache {all},belady --cache-size 9MiB,1TiB,1EiB");
    for curve in curves(&parse(&line)).unwrap().curves {
        let [just, more, most] = &curve.points[..] else { panic!("three points") };
        assert_eq!((just.misses, just.misses), (more.misses, most.misses), "{}", curve.policy);
    }
}

#[test]
fn requests_that_neither_read_nor_write_take_no_place() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.csv");
    let write = |lines: &str| {
        std::fs::write(&trace, format!("time_s,op,offset_bytes,length_bytes\n{lines}")).unwrap()
    };
    write("0,D,0,2199023255552\n1,R,0,4096\n");
    let line = trace.display().to_string();
    assert_eq!(curves(&parse(&line)).unwrap().accesses, 1);
}
