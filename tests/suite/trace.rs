//! Traces, replays and experiments: recorded files, the real blkparse, whole runs.
//!
//! Long traces are read from the folder that `BIMETAL_TRACES` names; without it those tests say so.

use bimetal::front::replay::{self, RunReport};
use bimetal::front::reproduce;
use bimetal::front::trace::{Event, Flags, Op, ReadOptions, Record, Source, summarise};
use bimetal::fs::fat::layout::Width;
use bimetal::fs::fat::{Format, Volume};
use bimetal::time::Time;
use bimetal::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces").join(name)
}

/// A trace of the folder of recorded ones; none, and a message, without it.
fn recorded(name: &str) -> Option<PathBuf> {
    let Some(dir) = std::env::var_os(reproduce::TRACES_VARIABLE) else {
        println!("skipped: {} does not name the folder of recorded traces", reproduce::TRACES_VARIABLE);
        return None;
    };
    let path = Path::new(&dir).join(name);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path)
}

fn read(path: &Path, options: ReadOptions) -> Result<Vec<Record>> {
    Source::parse(path.to_str().expect("a path in UTF-8"), options)?.open()?.collect()
}

fn replay_args(line: &str) -> replay::Args {
    replay::Args::parse(line).unwrap_or_else(|why| panic!("{line}: {why}"))
}

fn runs(line: &str) -> Result<Vec<RunReport>> {
    replay::replay(&replay_args(line))
}

#[test]
fn recorded_traces_of_the_repository_have_what_their_readme_says() {
    for (name, requests) in [
        ("ext4-pm1k.bio.csv.zst", 417),
        ("xfs-pm1k.dev.csv.zst", 90),
        ("ext2-seq16.dev.csv.zst", 16_387),
        ("G1.dev.csv.zst", 2_407),
    ] {
        let mut trace = Source::file(data(name)).open().unwrap();
        let summary = summarise(&mut trace).unwrap();
        assert_eq!(summary.requests, requests, "{name}");
        assert_eq!(summary.tally.skipped, 1, "{name}: the header");
    }
}

#[test]
fn published_traces_have_as_many_requests_as_their_collectors_say() {
    for (name, format, requests, read_percent) in [
        ("cloudPhysicsIO.csv.zst", "cloudphysics", 113_872, 41),
        ("ssdsim-financial1-10k.ascii", "mqsim", 10_000, 41),
        ("mqsim-tpcc-small.trace.zst", "mqsim", 6_999, 63),
        ("disksim-ascii.trace.zst", "disksim", 100_000, 80),
        ("msr-hm_0-sample.csv", "msr", 1_000, 51),
        ("tencent-cbs-sample.csv.bz2", "tencent", 50_000, 49),
    ] {
        let Some(path) = recorded(&format!("public/{name}")) else { return };
        let found = read(&path, ReadOptions::default()).unwrap_or_else(|why| panic!("{name}: {why}"));
        let named = ReadOptions { format: Some(format.to_string()), ..ReadOptions::default() };
        assert_eq!(found, read(&path, named).unwrap(), "{name} is told to be {format}");
        let reads = found.iter().filter(|record| record.op == Op::Read).count();
        assert_eq!(found.len(), requests, "{name}");
        assert_eq!((reads as f64 * 100.0 / found.len() as f64).round(), f64::from(read_percent), "{name}");
    }
}

#[test]
fn system_calls_are_read_as_requests_for_the_contents_of_files() {
    let Some(path) = recorded("syscall/writeheavy.csv.zst") else { return };
    let mut trace = Source::file(path).open().unwrap();
    let summary = summarise(&mut trace).unwrap();
    assert_eq!(summary.tally.lines, 1_427_912);
    let mib = |bytes: u64| (bytes as f64 / f64::from(1 << 20)).round();
    assert_eq!((mib(summary.written_bytes), mib(summary.read_bytes)), (1331.0, 1029.0));
    assert!(summary.flushes > 20_000 && summary.units > 30_000, "{summary:?}");
}

/// One `struct blk_io_trace`, as the kernel writes it on this kind of machine.
fn kernel_event(record: &Record, sequence: u32) -> Vec<u8> {
    let has = |flag| record.flags.has(flag);
    let kind = match record.op {
        Op::Read => 1,
        Op::Write => 2,
        _ => 2 | 4,
    };
    let bits = [(Flags::SYNC, 8), (Flags::AHEAD, 1 << 11), (Flags::META, 1 << 12), (Flags::FUA, 1 << 15)];
    let kind = bits.into_iter().filter(|(flag, _)| has(*flag)).fold(kind, |kind, (_, bit)| kind | bit);
    let kind: u32 = if has(Flags::PREFLUSH) { kind | 4 } else { kind };
    let mut event = Vec::new();
    event.extend(0x6561_7407u32.to_le_bytes());
    event.extend(sequence.to_le_bytes());
    event.extend((record.at.0 + 1_000_000_000).to_le_bytes());
    event.extend((record.offset / 512).to_le_bytes());
    event.extend((record.len as u32).to_le_bytes());
    event.extend((kind << 16 | 1).to_le_bytes());
    for number in [77, 254 << 20, sequence % 2] {
        event.extend(u32::to_le_bytes(number));
    }
    event.extend([0; 4]);
    event
}

/// The same records, shifted so that the first is at zero.
fn from_zero(mut records: Vec<Record>) -> Vec<Record> {
    let zero = records[0].at;
    records.iter_mut().for_each(|record| record.at.0 -= zero.0);
    records
}

#[test]
fn binary_traces_and_blkparses_own_text_of_them_are_the_same_requests() {
    let expected = from_zero(read(&data("ext4-pm1k.bio.csv.zst"), ReadOptions::default()).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let files = [dir.path().join("vda.blktrace.0"), dir.path().join("vda.blktrace.1")];
    for (cpu, file) in files.iter().enumerate() {
        let own = expected.iter().zip(1..).filter(|(_, number)| *number % 2 == cpu as u32);
        let bytes: Vec<u8> = own.flat_map(|(record, number)| kernel_event(record, number)).collect();
        std::fs::write(file, bytes).unwrap();
    }
    let submitted = || ReadOptions { event: Event::Queue, ..ReadOptions::default() };
    assert_eq!(read(&files[1], submitted()).unwrap(), expected, "binary, both files by the name of one");
    let parsed = Command::new("blkparse").args(["-q", "-i"]).arg(dir.path().join("vda")).output();
    let Ok(parsed) = parsed else {
        println!("skipped: blkparse is not installed");
        return;
    };
    let text = dir.path().join("vda.txt");
    std::fs::write(&text, &parsed.stdout).unwrap();
    assert_eq!(from_zero(read(&text, submitted()).unwrap()), expected, "text");
    let why = read(&text, ReadOptions::default()).unwrap_err().to_string();
    assert!(why.contains("no D events") && why.contains("417 of Q"), "{why}");
}

#[test]
fn a_log_that_fio_writes_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let fio = Command::new("fio")
        .args(["--name=j", "--filename=f", "--size=64k", "--bs=4k", "--rw=write", "--fsync=4"])
        .args(["--ioengine=psync", "--write_iolog=log"])
        .current_dir(dir.path())
        .output();
    if !fio.is_ok_and(|output| output.status.success()) {
        println!("skipped: fio is not installed");
        return;
    }
    let records = read(&dir.path().join("log"), ReadOptions::default()).unwrap();
    let writes: Vec<_> =
        records.iter().filter(|record| record.op == Op::Write).map(|w| w.offset / 4096).collect();
    assert_eq!(writes, (0..16).collect::<Vec<_>>());
    assert!(records.iter().filter(|record| record.op == Op::Flush).count() >= 3);
}

#[test]
fn a_run_is_the_same_whenever_and_beside_whatever_it_is_made() {
    let trace = data("ext2-seq16.dev.csv.zst");
    let line = format!(
        "{} --ftl page,page:clean=cost-benefit --cache lru,cflru --cache-size 64KiB,1MiB",
        trace.display()
    );
    let texts = |jobs: u32| -> Vec<String> {
        let runs = runs(&format!("{line} --jobs {jobs}")).unwrap();
        runs.iter().map(|run| serde_json::to_string(run).unwrap()).collect()
    };
    let alone = texts(1);
    assert_eq!(alone.len(), 8);
    assert_eq!(alone, texts(8));
}

#[test]
fn a_report_has_every_field_under_its_documented_name() {
    let run =
        &runs("gen:iometer:size=8MiB:requests=4000 --ftl page --device slc-2k --cache lru --cache-size 1MiB")
            .unwrap()[0];
    let value = serde_json::to_value(run).unwrap();
    for field in [
        "requests",
        "pages_read",
        "pages_written",
        "pages_programmed",
        "erases",
        "write_amplification",
        "hit_ratio",
        "sim_time_ns",
    ] {
        assert!(value[field].is_number(), "{field}: {}", value[field]);
    }
    for (object, fields) in [
        ("merges", &["switch", "partial", "full"][..]),
        ("wear", &["min", "mean", "max", "sd"]),
        ("latency_ns", &["p50", "p90", "p99", "p99_9", "max", "mean"]),
        ("config", &["trace", "cache", "ftl", "device", "seed", "pace", "queue_depth"]),
    ] {
        for field in fields {
            assert!(!value[object][field].is_null(), "{object}.{field}");
        }
    }
}

#[test]
fn counts_without_a_device_are_the_traces_own() {
    let run = &runs(&format!("{} --device none", data("ext2-seq16.dev.csv.zst").display())).unwrap()[0];
    assert_eq!((run.requests, run.operations["write"], run.operations["flush"]), (16_387, 12_284, 4_096));
    assert_eq!((run.pages_written, run.sim_time_ns), (12_288, 0));
    assert!(run.erases.is_none() && run.merges.is_none() && run.hit_ratio.is_none());
}

#[test]
fn a_flush_on_a_disk_takes_the_time_of_its_writes() {
    let trace = data("ext2-seq16.dev.csv.zst");
    let with = &runs(&format!("{} --device hdd-7200", trace.display())).unwrap()[0];
    let without = &runs(&format!("{} --device hdd-7200 --no-flush", trace.display())).unwrap()[0];
    assert!(with.latency_by_operation_ns["flush"].p50 > 5_000_000, "{:?}", with.latency_by_operation_ns);
    assert!(with.sim_time_ns > 10 * without.sim_time_ns, "{} {}", with.sim_time_ns, without.sim_time_ns);
    assert_eq!(without.passed_over, 4096);
}

#[test]
fn the_page_map_loses_nothing_between_what_is_written_and_what_is_programmed() {
    let line = "gen:iometer:size=64MiB:requests=40000 --ftl page --device slc-4k --device-size 72MiB --precondition fill";
    let run = &runs(line).unwrap()[0];
    assert_eq!(run.pages_written, 40_000);
    assert_eq!(run.pages_programmed.unwrap(), 40_000 + run.pages_copied.unwrap());
    let amplification = run.write_amplification.unwrap();
    assert!(amplification > 1.5 && run.erases.unwrap() > 500, "{amplification} {:?}", run.erases);
}

#[test]
fn write_amplification_is_bytes_of_flash_over_bytes_of_the_host() {
    let of = |line: &str| runs(line).unwrap().remove(0);
    let ssd = "--device ssd-tlc --device-size 1GiB";
    let sequential = of(&format!("gen:iometer:size=256MiB:requests=65536:random=0:read=0 {ssd}"));
    assert_eq!(sequential.write_amplification, Some(1.0), "four writes of 4 KiB are one page");
    assert_eq!(sequential.flash.unwrap().host_bytes.written, 256 << 20);
    let parts = of("gen:iometer:size=4MiB:block=512:requests=1000:read=0 --ftl page");
    assert_eq!(parts.write_amplification, Some(8.0), "each write of 512 bytes is a page of 4 KiB");
    let flash = parts.flash.unwrap();
    assert_eq!((flash.host_bytes.written, flash.host_bytes.padding), (512_000, 3_584_000));
    let line = "gen:iometer:size=64MiB:requests=40000:read=20 --device slc-4k --device-size 80MiB --precondition random --ftl";
    for (scheme, maps) in [
        ("page:level=static:spread=1", false),
        ("dftl:cached=64", true),
        ("bast", false),
        ("fast", false),
        ("nftl", false),
    ] {
        let run = of(&format!("{line} {scheme}"));
        let flash = run.flash.unwrap();
        let (done, past) = (flash.done, flash.preconditioning);
        let parts = [done.host, done.cleaning, done.map, done.wear_levelling];
        let sum = |of: fn(&replay::Moved) -> u64| parts.iter().map(of).sum::<u64>();
        assert_eq!(sum(|part| part.work.programs), done.total.work.programs, "{scheme}");
        assert_eq!(sum(|part| part.read_bytes), done.total.read_bytes, "{scheme}");
        assert_eq!(done.total.work.programs * 4096, done.total.programmed_bytes);
        assert_eq!(
            (done.host.work.programs, flash.host_bytes.written),
            (run.pages_written, run.bytes_written)
        );
        assert_eq!((done.host.work.reads, flash.host_bytes.read), (run.pages_read, run.bytes_read));
        let amplification = done.total.programmed_bytes as f64 / run.bytes_written as f64;
        assert_eq!(
            (run.write_amplification, run.pages_programmed),
            (Some(amplification), Some(done.total.work.programs))
        );
        assert!(done.cleaning.work.erases > 0 && (done.map.work.programs > 0) == maps, "{scheme} {done:?}");
        let pages = run.config.device_bytes.unwrap() / 4096;
        assert_eq!(past.host.work.programs, 2 * pages, "{scheme}: filled, and as much again");
    }
    let levelled = of(&format!("{line} page:level=static:spread=1")).flash.unwrap();
    assert!(levelled.ftl.wear_moves > 0 && levelled.done.wear_levelling.work.programs > 0);
}

#[test]
fn an_ssd_made_smaller_keeps_its_planes_and_says_what_it_lost() {
    let of = |line: &str| {
        runs(&format!("gen:iometer:block=1MiB:size=1GiB:requests=1000:read=0:random=0 {line}"))
            .unwrap()
            .remove(0)
    };
    let (small, large) =
        (of("--device ssd-tlc --device-size 8GiB"), of("--device ssd-tlc --device-size 64GiB"));
    for run in [&small, &large] {
        let lacks = run.config.device_lacks.as_deref().unwrap();
        assert!(lacks.ends_with(" of 256 pages of a block") && !lacks.contains(','), "{lacks}");
    }
    assert_eq!(small.sim_time_ns, large.sim_time_ns, "as fast");
    let bare = of("--device tlc --device-size 4GiB");
    assert_eq!(bare.config.device_lacks.as_deref(), Some("16 of 128 units that work by themselves"));
}

#[test]
fn volumes_are_told_apart_and_instants_count_from_the_first_request() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace_of(
        dir.path(),
        "volumes.csv",
        "device_id,timestamp,op,offset,length\nvol-a,1700000000,W,0,4096\nvol-b,1700000002,W,0,4096\n\
         vol-a,1700000001,R,0,4096\n",
    );
    let why = runs(&trace).unwrap_err().to_string();
    assert!(why.contains("units 0 and 1"), "{why}");
    let one = &runs(&format!("{trace} --unit 0 --ftl page --pace open")).unwrap()[0];
    assert_eq!((one.requests, one.passed_over, one.out_of_order), (2, 1, 1));
    assert!((2_000_000_000..2_001_000_000).contains(&one.sim_time_ns), "{}", one.sim_time_ns);
    let both = &runs(&format!("{trace} --fit compact --ftl page")).unwrap()[0];
    assert_eq!((both.requests, both.pages_written), (3, 2));
}

#[test]
fn a_larger_cache_of_stack_policy_never_misses_more() {
    let runs =
        runs("gen:zipf:pages=20000:requests=60000 --cache lru --cache-size 1MiB,4MiB,16MiB,64MiB").unwrap();
    let ratios: Vec<f64> = runs.iter().map(|run| run.hit_ratio.unwrap()).collect();
    assert!(ratios.is_sorted() && ratios[3] > ratios[0] + 0.2, "{ratios:?}");
}

#[test]
fn results_go_to_files_of_every_kind_and_an_error_leaves_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let outputs = format!(
        "--csv {} --parquet {} --html {} --plot erases={} --plot latency={}",
        file("runs.csv"),
        file("runs.parquet"),
        file("runs.html"),
        file("erases.svg"),
        file("latency.png")
    );
    let wrong = dir.path().join("wrong.csv");
    std::fs::write(&wrong, "0,W,0,4096,-\n0.1,W,4096,many,-\n").unwrap();
    let args = replay_args(&format!("{} --format csv --ftl page {outputs}", wrong.display()));
    let why = replay::run(&args).unwrap_err().to_string();
    for part in ["wrong.csv", "line 2", "field 4 (length)", "many"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the trace");
    let args =
        replay_args(&format!("gen:iometer:size=4MiB:requests=2000 --ftl page --device slc-2k {outputs}"));
    replay::run(&args).unwrap();
    let csv = std::fs::read_to_string(file("runs.csv")).unwrap();
    assert_eq!(csv.lines().count(), 2);
    assert!(csv.lines().next().unwrap().contains("write_amplification"));
    assert!(std::fs::read(file("runs.parquet")).unwrap().starts_with(b"PAR1"));
    assert!(std::fs::read(file("latency.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(std::fs::read_to_string(file("erases.svg")).unwrap().contains("<svg"));
    let html = std::fs::read_to_string(file("runs.html")).unwrap();
    assert!(html.contains("<table") && html.contains("<svg") && html.contains("gen:iometer"));
}

#[test]
fn what_cannot_be_replayed_is_refused_with_the_remedy() {
    let ours = data("ext2-seq16.dev.csv.zst").display().to_string();
    for (line, told) in [
        (format!("{ours} --ftl no-such"), "no FTL 'no-such'"),
        (format!("{ours} --device hdd-7200 --ftl page"), "is a disk"),
        (format!("{ours} --device none --ftl page"), "flash device"),
        (format!("{ours} --device no-such"), "no-such"),
        (format!("{ours} --cache no-such --cache-size 1MiB"), "no-such"),
        (format!("{ours} --ftl page --device slc-2k --device-size 4MiB"), "--fit"),
        ("gen:iometer:size=64MiB --ftl page:logical=32MiB".to_string(), "does not fit"),
        (format!("{ours} --unit 7"), "no request was served"),
        (format!("{ours} --format msr"), "line 1"),
        ("/no/such/trace".to_string(), "/no/such/trace"),
        ("gen:postmark".to_string(), "--fit compact"),
        ("- --cache lru --cache-size 1MiB,2MiB".to_string(), "read only once"),
    ] {
        let why = runs(&line).err().unwrap_or_else(|| panic!("{line} was done")).to_string();
        assert!(why.contains(told), "{line}: {why}");
    }
}

#[test]
fn names_and_options_that_there_are_not_are_told_before_the_trace_is_read() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than the part, and out of the reach of --fit.
    let trace = trace_of(dir.path(), "long.csv", "0,W,988438528,4096,-\n");
    for (line, told) in [
        ("--ftl page:cleen=greedy --device slc-2k", "FTL page has no option 'cleen'; did you mean 'clean'"),
        ("--ftl page:", "a colon has no option after it"),
        ("--ftl page,page", "page is there twice"),
        ("--device hdd-7200 --precondition fill", "--precondition needs flash; hdd-7200 is a disk"),
        ("--precondition fill", "--precondition needs flash; none is no device that keeps anything"),
    ] {
        let why =
            runs(&format!("{trace} {line}")).err().unwrap_or_else(|| panic!("{line} was done")).to_string();
        assert!(why.contains(told) && !why.contains("request 1 of the trace"), "{line}: {why}");
    }
    for line in ["gen:iometer:", "gen:iometer::size=1MiB"] {
        let why = runs(line).err().unwrap_or_else(|| panic!("{line} was done")).to_string();
        assert!(why.contains("a colon has no option after it"), "{line}: {why}");
    }
}

#[test]
fn what_a_protected_ssd_has_in_memory_is_written_at_the_end_or_counted() {
    let line = "gen:iometer:random=60:size=64MiB:requests=8000:read=0 --device ssd-slc";
    let balance = |run: &RunReport| {
        let flash = run.flash.as_ref().unwrap();
        let host = flash.host_bytes;
        assert_eq!(
            host.written + host.padding,
            flash.done.host.programmed_bytes + host.coalesced + host.waiting,
            "{host:?}"
        );
        host.waiting
    };
    let (drained, left) = (&runs(line).unwrap()[0], &runs(&format!("{line} --no-drain")).unwrap()[0]);
    assert!(balance(drained) == 0 && balance(left) > 0);
    let command = 10_000;
    assert_eq!(drained.sim_time_ns, left.sim_time_ns + command, "nobody waits for what survives power loss");
    assert_eq!(
        (drained.pages_programmed, drained.write_amplification.unwrap() < 1.0),
        (Some(8000 - drained.flash.as_ref().unwrap().host_bytes.coalesced / 4096), true)
    );
}

#[test]
fn instants_that_virtual_time_cannot_say_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace_of(dir.path(), "t.csv", "0,W,0,4096,-\n1,W,4096,4096,-\n2,R,0,4096,-\n");
    let told = "292 years";
    for line in
        ["--pace open --speed 1e-300", "--pace open --speed 1e-10", "--overhead 290y", "--overhead 1000y"]
    {
        let why = runs(&format!("{trace} --device hdd-7200 {line}"));
        let why = why.err().unwrap_or_else(|| panic!("{line} was done")).to_string();
        assert!(why.contains(told), "{line}: {why}");
    }
    for line in ["--overhead 1000y", "--overhead 100y", "--pace open --speed 1e-300"] {
        let args = replay_args(&format!("gen:postmark:files=5:transactions=5 --fs cmfs {line}"));
        let why = replay::run(&args).unwrap_err().to_string();
        assert!(why.contains(told), "{line}: {why}");
    }
    assert!(runs(&format!("{trace} --device hdd-7200 --pace open --speed 1e-8")).is_ok());
}

#[test]
fn a_request_longer_than_the_device_is_wrapped_to_its_last_byte() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace_of(dir.path(), "w.csv", "0,W,0,268435456,-\n1,R,0,268435456,-\n");
    let run = &runs(&format!("{trace} --device slc-2k --device-size 64MiB --fit wrap")).unwrap()[0];
    let host = run.flash.as_ref().unwrap().host_bytes;
    assert_eq!((host.written, host.read), (run.bytes_written, run.bytes_read));
    assert_eq!((host.written, host.read), (268_435_456, 268_435_456));
}

/// A trace of these lines.
fn trace_of(dir: &Path, name: &str, lines: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, lines).unwrap();
    path.display().to_string()
}

#[test]
fn sizes_that_no_memory_holds_are_refused_before_anything_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let trace = |name: &str, lines: &str| trace_of(dir.path(), name, lines);
    let far = trace("far.csv", "0,W,0,4096,-\n0,W,72057594037927936,4096,-\n");
    let discard = trace("discard.csv", "0,W,0,4096,-\n0,D,0,18446744073709551615,-\n");
    let past = trace("past.csv", "0,W,0,4096,-\n0,W,18446744073709551000,4096,-\n");
    let told = "request 2 of the trace ends at";
    for (line, told) in [
        (format!("{far} --ftl page"), told),
        (format!("{far} --device ssd-tlc"), told),
        (format!("{discard} --device tlc"), told),
        (format!("{discard} --device ssd-slc"), told),
        (format!("{discard} --device hdd-7200"), told),
        (past.to_string(), "line 2"),
        (format!("{past} --fit compact"), "ends past the last address"),
        ("gen:zipf --device ssd-tlc --device-size 100TB".into(), "choose a smaller size"),
        ("gen:zipf --device ssd-tlc --device-size 16000PB".into(), "choose a smaller size"),
        ("gen:zipf --device tlc --device-size 16000PB".into(), "choose a smaller size"),
        ("gen:zipf --device hdd-7200 --device-size 16000PB".into(), "choose a smaller size"),
        ("gen:zipf --cache lru --cache-size 4096GiB".into(), "choose a smaller size"),
        ("gen:zipf --cache lru --cache-size 100TiB".into(), "too large"),
        ("gen:zipf --ftl page --nvram heat --nvram-size 100TB".into(), "choose a smaller size"),
    ] {
        let why = runs(&line).err().unwrap_or_else(|| panic!("{line} was done")).to_string();
        assert!(why.contains(told), "{line}: {why}");
    }
    for kind in ["nfhybrid --ssd-size", "nfhybrid --disk-size", "cmfs --device-size", "fat --device-size"] {
        let args = replay_args(&format!("gen:fio-job --fs {kind} 100TB"));
        let why = replay::run(&args).unwrap_err().to_string();
        assert!(why.contains("choose a smaller size"), "{kind}: {why}");
    }
}

/// A part like slc-2k, with `from` in its profile replaced.
fn part_with(dir: &Path, changes: &[(&str, &str)]) -> String {
    let mut text = include_str!("../../devices/slc-2k.toml").to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let path = dir.join(format!("part{}.toml", std::fs::read_dir(dir).unwrap().count()));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_run_that_the_device_ends_is_a_row_with_what_it_reached_and_ends_no_other() {
    use replay::Ending;
    let dir = tempfile::tempdir().unwrap();
    let worn =
        part_with(dir.path(), &[("endurance = 100000", "endurance = 5"), ("blocks = 1024", "blocks = 64")]);
    let line = format!("gen:iometer:size=4MiB:requests=100000:read=0 --device {worn} --ftl");
    let ended = runs(&format!("{line} page,page:logical=1MiB,fast")).unwrap();
    let how: Vec<_> = ended.iter().map(|run| run.ended.how).collect();
    assert_eq!(how, [Ending::WornOut, Ending::Refused, Ending::WornOut], "{:?}", ended[1].ended);
    for run in [&ended[0], &ended[2]] {
        assert!(run.requests > 1000 && run.ended.request == Some(run.requests + 1), "{:?}", run.ended);
        assert!(run.erases.unwrap() > 200 && run.latency_ns.count == run.requests);
        assert!(run.ended.why.as_ref().unwrap().contains("worn out"), "{:?}", run.ended);
    }
    let line = line.replace("requests=100000", "requests=1000");
    let before =
        &runs(&format!("{line} page --precondition random --device-size 6MiB --fit wrap")).unwrap()[0];
    assert_eq!((before.ended.how, before.requests, before.ended.request), (Ending::WornOut, 0, None));
    let noisy = part_with(
        dir.path(),
        &[
            ("bit_errors_new = 1e-11", "bit_errors_new = 1e-4"),
            ("bit_errors_worn = 1e-9", "bit_errors_worn = 1e-4"),
        ],
    );
    let line = format!(
        "gen:iometer:size=4MiB:requests=5000:read=50 --device {noisy} --precondition fill --csv {}",
        dir.path().join("rows.csv").display()
    );
    replay::run(&replay_args(&line)).unwrap();
    let csv = std::fs::read_to_string(dir.path().join("rows.csv")).unwrap();
    assert!(csv.lines().next().unwrap().contains(",ended,ended_request,ended_why,"), "{csv}");
    assert!(csv.lines().nth(1).unwrap().contains(",uncorrectable,"), "{csv}");
}

#[test]
fn many_small_files_are_laid_side_by_side_and_their_space_comes_back() {
    let run = &runs(
        "gen:postmark:files=200:transactions=2000 --fit compact --chunk 16KiB --ftl page --device slc-2k",
    )
    .unwrap()[0];
    assert!(run.operations["delete"] >= 200 && run.bytes_written > 1 << 20);
    // Never more than a few hundred files of 10 KiB at most are there at once.
    assert!(run.config.device_bytes.unwrap() <= 256 << 20, "{:?}", run.config.device_bytes);
}

#[test]
fn the_cameras_operation_counts_are_those_of_other_programs() {
    let line = "--device slc-512 --ftl log:victim=lru:merge=lazy:logical=32MiB,nftl:logical=32MiB,\
                nftl:victim=lru:logical=32MiB,fast:logical=32MiB,fast:merge=stale:logical=32MiB,fast:close=any:logical=32MiB";
    for (metadata, counts) in [
        (
            "yes",
            [
                (250_388, 18_539, (2870, 29, 7820)),
                (6_577_877, 308_691, (924, 212_284, 0)),
                (570_216, 248_310, (1088, 20_297, 0)),
                (80_082, 13_190, (2852, 2300, 343)),
                (815_796, 36_263, (2852, 2220, 23_416)),
                (237_126, 18_098, (0, 4103, 3440)),
            ],
        ),
        (
            "no",
            [
                (4_246, 3_150, (2865, 29, 128)),
                (8_927, 3_338, (2813, 442, 0)),
                (945, 3_145, (2881, 144, 0)),
                (1_515, 3_043, (2924, 108, 0)),
                (2_443, 3_072, (2924, 108, 29)),
                (2_584, 3_076, (2864, 169, 0)),
            ],
        ),
    ] {
        let runs = runs(&format!("gen:camera-vfat:format=yes:metadata={metadata} {line}")).unwrap();
        for (run, (copies, erases, merges)) in runs.iter().zip(counts) {
            let found = run.merges.map(|merges| (merges.switch, merges.partial, merges.full));
            assert_eq!((run.pages_copied, run.erases), (Some(copies), Some(erases)), "{}", run.config.run);
            assert_eq!(found, Some(merges), "{}", run.config.run);
        }
    }
}

#[test]
fn a_cache_of_the_hot_range_leaves_the_same_work_as_no_hot_range() {
    let line = "--device slc-512 --ftl fast:logical=32MiB --overhead 250us";
    let absorbed = &runs(&format!("gen:camera-vfat:format=yes {line} --absorb 0-82432")).unwrap()[0];
    let without = &runs(&format!("gen:camera-vfat:metadata=no {line}")).unwrap()[0];
    assert_eq!(absorbed.absorbed, Some(161 + 246_021));
    assert_eq!(absorbed.pages_written, without.pages_written);
    assert_eq!((absorbed.erases, absorbed.pages_copied), (without.erases, without.pages_copied));
    assert_eq!(absorbed.sim_time_ns, without.sim_time_ns);
}

#[test]
fn a_write_cache_takes_a_range_or_the_metadata_of_a_volume_or_what_is_hot() {
    let line = "--device slc-512 --ftl fast:logical=32MiB --nvram-size 256KiB";
    let of =
        |trace: &str, rest: &str| runs(&format!("gen:camera-vfat:{trace} {line} {rest}")).unwrap().remove(0);
    let without = of("metadata=no", "");
    let range = of("format=yes", "--nvram 512-82432");
    let counts = range.nvram.unwrap();
    assert_eq!((counts.absorbed + counts.passed, counts.written_back), (409_409, 0));
    // The boot sector alone goes by.
    assert_eq!(range.pages_written, without.pages_written + 1);

    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let options = bimetal::media::file::Options { writable: true, ..Default::default() };
    let device = bimetal::media::file::FileDevice::open_with(&image, &options).unwrap();
    let format = Format { width: Width::Fat16, cluster_bytes: 2048, root_entries: 512 };
    Volume::format(&device, Time::ZERO, &format).unwrap();
    let fat = of("format=yes", &format!("--nvram fat:{}", image.display()));
    assert_eq!((fat.nvram, fat.erases, fat.sim_time_ns), (range.nvram, range.erases, range.sim_time_ns));

    let heat = of("format=yes", "--nvram heat");
    let took = heat.nvram.unwrap();
    assert!(took.absorbed > counts.absorbed * 9 / 10, "{took:?}");
    assert!(heat.erases < without.erases.map(|erases| erases * 6 / 5), "{:?}", heat.erases);
}

#[test]
fn experiments_hold_on_the_recorded_traces() {
    let Some(readme) = recorded("README.md") else { return };
    let args = reproduce::Args {
        ids: ["ftl-fig2", "trace-inventory", "trace-p2p"].map(str::to_string).to_vec(),
        json: true,
        traces: readme.parent().map(Path::to_path_buf),
        strict: true,
        ..Default::default()
    };
    reproduce::run(&args).unwrap();
}

#[test]
fn an_experiment_that_cannot_be_done_is_an_error() {
    let args = reproduce::Args {
        ids: vec!["trace-inventory".to_string()],
        traces: Some("/no/such".into()),
        ..Default::default()
    };
    let why = reproduce::run(&args).unwrap_err();
    assert!(matches!(&why, Error::Invalid(text) if text.contains("not done: trace-inventory")), "{why}");
}

/// Prints how fast each text format is parsed on one core. The goal is 300 MB a second in a release build.
#[test]
#[ignore = "a measurement: cargo test --release --test suite parsing_speed -- --ignored --nocapture"]
fn parsing_speed_of_text_formats() {
    let dir = tempfile::tempdir().unwrap();
    let line = |format: &str, n: u64| {
        let (offset, op) = (n.wrapping_mul(2_654_435_761) % (1 << 27) * 512, n.is_multiple_of(3));
        match format {
            "csv" => {
                format!("{}.{:06},{},{offset},4096,S\n", n / 1000, n % 1_000_000, if op { 'R' } else { 'W' })
            }
            "msr" => format!(
                "{},hm,0,{},{offset},4096,2833\n",
                128166385295514663 + n * 1000,
                if op { "Read" } else { "Write" }
            ),
            "spc" => format!(
                "0,{},4096,{},{}.{:06}\n",
                offset / 512,
                if op { 'r' } else { 'w' },
                n / 1000,
                n % 1_000_000
            ),
            "mqsim" => format!("{} 0 {} 8 {}\n", n * 1000, offset / 512, u8::from(op)),
            "disksim" => format!("{}.{:06}\t0\t{}\t8\t{}\n", n, n % 1_000_000, offset / 512, u8::from(op)),
            "tencent" => format!("{},{},8,{},1058\n", 1538323200 + n / 1000, offset / 512, u8::from(op)),
            "alibaba" => {
                format!("419,{},{offset},4096,{}\n", if op { 'R' } else { 'W' }, 1577808000000047 + n)
            }
            "fio" if n == 0 => "fio version 3 iolog\n".to_string(),
            "fio" => format!("{n} /dev/sdb {} {offset} 4096\n", if op { "read" } else { "write" }),
            _ => format!(
                "  8,0    1 {n:8} {:5}.{:09}   697  D   W {} + 8 [kworker/1:2]\n",
                n / 1000,
                n,
                offset / 512
            ),
        }
    };
    for format in ["csv", "msr", "spc", "mqsim", "disksim", "tencent", "alibaba", "fio", "blkparse"] {
        let text: String = (0..2_000_000).map(|n| line(format, n)).collect();
        let path = dir.path().join(format);
        std::fs::write(&path, &text).unwrap();
        let options = ReadOptions { format: Some(format.to_string()), ..ReadOptions::default() };
        let source = Source::parse(path.to_str().unwrap(), options).unwrap();
        let speed = || {
            let start = cpu_seconds();
            let count = source.open().unwrap().filter(|record| record.is_ok()).count();
            assert!(count >= 1_999_999);
            text.len() as f64 / 1e6 / (cpu_seconds() - start)
        };
        let best = (0..3).map(|_| speed()).fold(0.0, f64::max);
        println!(
            "{format:9} {best:6.0} MB/s of processor time, {:5.1} bytes a line",
            text.len() as f64 / 2e6
        );
    }
}

/// What this thread has used of a processor.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
