//! Calls on every kind of file system: the same seed twice, several processes, recordings, what cannot be.

use super::tree::Target;
use super::*;
use bimetal_trace::calls::{Deed, Place};
use std::collections::BTreeSet;

fn args(line: &str) -> Args {
    Args::parse(line).unwrap_or_else(|why| panic!("{line}: {why}"))
}

/// Whether the program that makes disk halves is here; without it nfhybrid is left out, and said so.
fn kinds() -> Vec<&'static str> {
    let has_mke2fs =
        ["/usr/sbin/mke2fs", "/sbin/mke2fs"].iter().any(|path| std::path::Path::new(path).exists());
    if !has_mke2fs {
        println!("skipped: nfhybrid, for want of mke2fs");
    }
    crate::kinds::playable().map(|kind| kind.name).filter(|name| has_mke2fs || *name != "nfhybrid").collect()
}

/// Small halves of an nfhybrid.
const HALVES: &str = "--disk-size 96MiB --ssd-size 24MiB";

/// A file system of this kind on small devices.
fn on(kind: &str) -> String {
    let sizes = if kind == "nfhybrid" { HALVES } else { "--device-size 96MiB" };
    format!("--fs {kind} {sizes}")
}

/// The report as text, and what the block devices hold at the end.
fn played(line: &str) -> (String, Vec<Vec<u8>>) {
    let args = args(line);
    let workload = Workload::open(args.trace(), &ReadOptions::default(), args.processes).unwrap();
    let sim = Sim::new(args.seed);
    let clock: Clock = Arc::new(sim.clone());
    sim.run(move || {
        let subject = Subject::make(&clock, &args).unwrap();
        let images = subject.images.clone();
        let report = play_on(&clock, &args, workload, subject).unwrap();
        let bytes = images.iter().map(|image| image.image()).collect();
        (serde_json::to_string(&report).unwrap(), bytes)
    })
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_the_same_report_twice_on_every_file_system() {
    for kind in kinds() {
        let line = |seed| {
            format!(
                "gen:postmark:files=60:transactions=400:seed={seed} {} --processes 3 --seed {seed}",
                on(kind)
            )
        };
        let (first, again, other) = (played(&line(1)), played(&line(1)), played(&line(2)));
        assert!(first.0 == again.0, "{kind}:\n{}\n{}", first.0, again.0);
        assert!(first.1 == again.1, "{kind}: other bytes");
        assert_ne!(first.0, other.0, "{kind}");
        let written = |image: &Vec<u8>| image.iter().any(|byte| !matches!(byte, 0 | 0xff));
        assert!(!first.1.is_empty() && first.1.iter().all(written), "{kind}: no bytes were compared");
        assert!(first.1 != other.1, "{kind}: another seed, the same bytes");
        let report: serde_json::Value = serde_json::from_str(&first.0).unwrap();
        assert_eq!(
            (&report["failed"], report["processes"].as_u64()),
            (&0.into(), Some(3)),
            "{kind}: {report}"
        );
        assert!(report["sim_time_ns"].as_u64() > Some(1_000_000), "{kind}: {report}");
        assert_eq!(report["by_call"]["create"]["count"], report["by_call"]["unlink"]["count"], "{kind}");
    }
}

#[test]
fn every_generator_of_files_runs_on_every_file_system() {
    for kind in kinds() {
        for (recipe, calls) in [
            ("gen:iozone:size=1MiB:record=64KiB", 1 + 6 * 16 + 3 + 1),
            ("gen:fio-job:size=1MiB:requests=200:fsync=10", 1 + 1 + 1 + 220 + 1),
            ("gen:bonnie:size=512KiB:block=8KiB:seeks=40:files=30", 0),
        ] {
            let report = replay(&args(&format!("{recipe} {}", on(kind)))).unwrap();
            assert_eq!(report.failed, 0, "{kind} {recipe}: {:?}", report.first_failure);
            assert!(calls == 0 || report.calls == calls, "{kind} {recipe}: {}", report.calls);
            assert!(report.bytes_written > 0 && !report.file_system.is_null());
        }
    }
}

#[test]
fn what_a_disk_and_an_ssd_were_asked_for_is_told_with_merges_and_wear() {
    if !kinds().contains(&"nfhybrid") {
        return;
    }
    let line = "gen:fio-job:size=4MiB:requests=500:fsync=1 --fs nfhybrid --ftl fast";
    let report = replay(&args(&format!("{line} {HALVES}"))).unwrap();
    let (ssd, disk) = (&report.devices["ssd"], &report.devices["disk"]);
    // A small fsync is a durable write of the log, or a write and a flush, on the SSD alone.
    assert!(ssd.requests.durable_writes + ssd.requests.flushes >= 500, "{:?}", ssd.requests);
    assert!(disk.requests.flushes + disk.requests.durable_writes < 100, "{:?}", disk.requests);
    assert!(report.by_call["fsync"].latency_ns.p50 < 3_000_000, "{:?}", report.by_call["fsync"]);
    let flash = &ssd.model["flash"];
    for field in ["switch_merges", "partial_merges", "full_merges", "nand", "wear"] {
        assert!(!flash[field].is_null(), "{field}: {flash}");
    }
    assert!(disk.model["seeks"].as_u64() > Some(0), "{}", disk.model);
    let table = report.table();
    for part in ["fsync", "p99", "ssd (ssd-slc", "disk (hdd-7200"] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn more_clients_share_the_writes_of_the_log() {
    if !kinds().contains(&"nfhybrid") {
        return;
    }
    let seconds = |processes: u32| {
        let line = "gen:fio-job:size=256KiB:requests=200:fsync=1 --fs nfhybrid --ssd ssd-tlc";
        let report = replay(&args(&format!("{line} --processes {processes} --no-drain {HALVES}"))).unwrap();
        report.sim_time_ns as f64 / 1e9
    };
    let (one, four) = (seconds(1), seconds(4));
    assert!(four < one * 3.0, "four times the work took {four} s, once {one} s");
}

#[test]
fn a_recording_is_played_in_its_order_by_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.csv");
    let mut text = String::from("#time_s,pid,op,path_id,offset,length,result\n");
    // One process makes and moves what the other one reads and removes.
    for round in 0..40 {
        let at = f64::from(round) / 10.0;
        text += &format!("{at},7,create,1,0,0,0\n{at},7,write,1,0,9000,9000\n{at},7,rename,1,2,0,0\n");
        text += &format!("{at},9,read,2,0,9000,9000\n{at},9,unlink,2,0,0,0\n{at},7,read,3,0,500,500\n");
    }
    std::fs::write(&path, text).unwrap();
    let list =
        "#path_id,type,size_at_first_open,path\n0,d,-1,/d\n1,f,0,/d/new\n2,f,0,/d/ready\n3,f,500,/etc/x\n";
    std::fs::write(dir.path().join("t.paths.csv"), list).unwrap();
    for kind in kinds() {
        let line = format!("{} {}", path.display(), on(kind));
        let report = replay(&args(&line)).unwrap();
        assert_eq!((report.failed, report.calls), (0, 240), "{kind}: {:?}", report.first_failure);
        assert_eq!((report.bytes_written, report.bytes_read), (360_000, 380_000), "{kind}");
        let open = replay(&args(&format!("{line} --pace open --speed 2 --no-drain"))).unwrap();
        assert!(open.sim_time_ns >= 1_950_000_000, "{kind}: {}", open.sim_time_ns);
    }
}

#[test]
fn what_strace_prints_is_played() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.strace");
    let text = r#"7 1700000000.100000 openat(AT_FDCWD</w>, "a", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</w/a>
7 1700000000.200000 write(3</w/a>, ""..., 4096) = 4096
7 1700000000.300000 fsync(3</w/a>) = 0
8 1700000000.400000 rename("/w/a", "/w/b") = 0
8 1700000000.500000 openat(AT_FDCWD</w>, "b", O_RDONLY) = 4</w/b>
8 1700000000.600000 read(4</w/b>, ""..., 4096) = 4096
7 1700000000.700000 mkdirat(AT_FDCWD</w>, "sub", 0777) = 0
7 1700000000.800000 unlink("/w/b") = 0
"#;
    std::fs::write(&path, text).unwrap();
    let report = replay(&args(&format!("{} {}", path.display(), on("osd")))).unwrap();
    assert_eq!((report.failed, report.processes), (0, 2), "{:?}", report.first_failure);
    let counted: BTreeSet<_> = report.by_call.keys().copied().collect();
    assert!(
        ["create", "write", "fsync", "rename", "stat", "read", "mkdir", "unlink"]
            .iter()
            .all(|n| counted.contains(n))
    );
}

/// A recording of these calls on these paths.
fn recording(dir: &std::path::Path, paths: &[(&str, &str, u64)], calls: &str) -> String {
    let path = dir.join("t.csv");
    std::fs::write(&path, format!("#time_s,pid,op,path_id,offset,length,result\n{calls}")).unwrap();
    let list = paths.iter().zip(0..).map(|((kind, name, size), at)| format!("{at},{kind},{size},{name}\n"));
    let list = format!("#path_id,type,size_at_first_open,path\n{}", list.collect::<String>());
    std::fs::write(dir.join("t.paths.csv"), list).unwrap();
    path.display().to_string()
}

#[test]
fn what_a_file_system_cannot_have_fails_alone_and_is_told_with_its_call() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [("f", "/a:b?", 100), ("f", "/good", 100), ("f", "/file", 10), ("f", "/file/b/c", 0)];
    let calls = "0,1,read,0,0,100,100\n0,1,read,1,0,100,100\n0,1,rename,2,3,0,0\n0,1,wrte,1,0,1,1\n";
    let report = replay(&args(&format!("{} {}", recording(dir.path(), &paths, calls), on("fat")))).unwrap();
    assert_eq!((report.calls, report.failed, report.not_made), (1, 2, 2), "{:?}", report.first_failure);
    let told = report.first_failure.clone().unwrap();
    assert!(told.contains("create /a:b?: FAT has no such names"), "{told}");
    assert_eq!(report.left_out.get("wrte"), Some(&1));
    assert!(report.table().contains("not played: 1 wrte"), "{}", report.table());
    let large = recording(dir.path(), &[("f", "/large", 1 << 30)], "0,1,read,0,0,100,100\n");
    for kind in ["osd", "fat"] {
        let why = replay(&args(&format!("{large} {}", on(kind)))).unwrap_err().to_string();
        assert!(["/large", "--device-size"].iter().all(|part| why.contains(part)), "{kind}: {why}");
    }
}

#[test]
fn space_that_is_given_and_taken_is_played() {
    let dir = tempfile::tempdir().unwrap();
    let calls = "0,1,create,0,0,0,0\n0,1,fallocate,0,0,8192,0\n0,1,fallocate-keep,0,8192,8192,0\n0,1,write,0,0,8192,8192\n\
                 0,1,punch,0,0,4096,0\n0,1,zero,0,4096,4096,0\n0,1,zero-keep,0,4096,4096,0\n";
    let trace = recording(dir.path(), &[("f", "/f", 0)], calls);
    let report = replay(&args(&format!("{trace} {}", on("osd")))).unwrap();
    assert_eq!((report.failed, report.left_out.len()), (0, 0), "{:?}", report.first_failure);
    let counted: Vec<_> = report.by_call.iter().map(|(name, call)| (*name, call.latency_ns.count)).collect();
    assert_eq!(counted, [("allocate", 2), ("create", 1), ("punch", 1), ("write", 1), ("zero", 2)]);
}

#[test]
fn what_goes_below_a_page_cache_is_counted_apart() {
    let line = format!("gen:fio-job:size=4MiB:requests=500:read=0 {} --ftl page", on("fat"));
    let [cached, bare] = ["--cache lru --cache-size 1MiB", ""].map(|cache| {
        let report = replay(&args(&format!("{line} {cache}"))).unwrap();
        let device = &report.devices["device"];
        (device.requests, device.below_cache)
    });
    let below = cached.1.unwrap();
    assert!(below.write_bytes > 0 && below != cached.0, "{below:?}");
    assert!(bare.1.is_none());
}

#[test]
fn what_cannot_be_played_is_refused_with_the_reason() {
    for (line, told) in [
        ("gen:postmark --fs ext3", "nfhybrid"),
        ("gen:postmark --processes 2", "needs --fs"),
        ("gen:postmark --fs cmfs --fit wrap", "cannot be used with"),
        ("gen:postmark --fs osd --device hdd-7200", "hdd-7200"),
        ("gen:postmark --fs nfhybrid --device hdd-7200", "--ssd and --disk"),
        ("gen:postmark --fs cmfs --cache lru --cache-size 1MiB", "no --cache"),
        ("gen:postmark --fs fat --device-size 4KiB", "volume"),
        ("gen:postmark --fs fat --ftl page,fast", "one --ftl"),
        ("gen:postmark --fs fat --device none", "keeps what is written"),
        ("gen:postmark --fs fat --device-size 0", "no device of 0 bytes"),
        ("gen:postmark --fs nfhybrid --disk none", "keeps what is written"),
        ("gen:postmark --fs nfhybrid --disk-size 1MiB", "--disk-size"),
        ("gen:postmark --fs nfhybrid -o laag=1s", "nfhybrid has no mount option 'laag'; did you mean 'lag'"),
        ("/no/such --fs fat", "/no/such"),
    ] {
        let done = Args::parse(line).and_then(|args| replay(&args).map(drop));
        let why = done.err().unwrap_or_else(|| panic!("{line} was done")).to_string();
        assert!(why.contains(told), "{line}: {why}");
    }
    let full = "gen:fio-job:size=64MiB:requests=1 --fs fat --device-size 32MiB";
    let report = replay(&args(full)).unwrap();
    assert!(report.failed > 0 && report.first_failure.unwrap().contains("space"));
}

#[test]
fn a_directory_that_moves_takes_the_references_of_what_is_in_it_along() {
    let dir = tempfile::tempdir().unwrap();
    // 20 times 8 MiB, each removed, on 96 MiB.
    let (mut calls, mut paths) = (String::new(), Vec::new());
    for round in 0..20 {
        let (d, f, e, g) = (4 * round, 4 * round + 1, 4 * round + 2, 4 * round + 3);
        calls += &format!("0,1,mkdir,{d},0,0,0\n0,1,create,{f},0,0,0\n");
        for part in 0..8u32 {
            calls += &format!("0,1,write,{f},{},1048576,1048576\n", part << 20);
        }
        calls += &format!("0,1,rename,{d},{e},0,0\n0,1,unlink,{g},0,0,0\n0,1,rmdir,{e},0,0,0\n");
        paths.extend([
            ("d", format!("/d{round}"), 0),
            ("f", format!("/d{round}/f"), 0),
            ("d", format!("/e{round}"), 0),
            ("f", format!("/e{round}/f"), 0),
        ]);
    }
    let paths: Vec<(&str, &str, u64)> =
        paths.iter().map(|(kind, path, size)| (*kind, &**path, *size)).collect();
    let trace = recording(dir.path(), &paths, &calls);
    for kind in kinds() {
        let report = replay(&args(&format!("{trace} {}", on(kind)))).unwrap();
        assert_eq!((report.failed, report.calls), (0, 20 * 13), "{kind}: {:?}", report.first_failure);
    }
}

#[test]
fn what_succeeded_in_the_recording_succeeds_whatever_became_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [("f", "/t", 0), ("d", "/d", 0), ("f", "/a", 0)];
    let calls = "0,1,create,0,0,0,0\n0,1,unlink,0,0,0,0\n0,1,write,0,0,4096,4096\n0,1,read,0,0,4096,4096\n\
                 0,1,fsync,0,0,0,0\n0,1,mkdir,1,0,0,0\n0,1,stat,1,0,0,0\n0,1,open,1,0,0,0\n0,1,setattr,1,0,0,0\n\
                 0,1,create,2,0,0,0\n0,1,write,2,0,100,100\n0,1,truncate,2,0,10000,0\n0,1,read,2,9000,500,500\n";
    let trace = recording(dir.path(), &paths, calls);
    for kind in kinds() {
        let report = replay(&args(&format!("{trace} {}", on(kind)))).unwrap();
        assert_eq!((report.failed, report.calls), (0, 13), "{kind}: {:?}", report.first_failure);
        assert_eq!((report.bytes_written, report.bytes_read), (4196, 4596), "{kind}");
    }
}

#[test]
fn a_file_without_a_name_gives_its_room_back_with_its_last_call() {
    let dir = tempfile::tempdir().unwrap();
    // 20 times 8 MiB in a file without a name, on 96 MiB.
    let mut calls = String::new();
    for _ in 0..20 {
        calls += "0,1,create,0,0,0,0\n0,1,unlink,0,0,0,0\n";
        for part in 0..8u32 {
            calls += &format!("0,1,write,0,{},1048576,1048576\n", part << 20);
        }
    }
    let trace = recording(dir.path(), &[("f", "/t", 0)], &calls);
    for kind in kinds() {
        let report = replay(&args(&format!("{trace} {}", on(kind)))).unwrap();
        assert_eq!(
            (report.failed, report.bytes_written),
            (0, 160 << 20),
            "{kind}: {:?}",
            report.first_failure
        );
    }
}

#[test]
fn a_deep_tree_and_a_long_write_need_no_stack_and_no_memory_of_their_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = "/a".repeat(600);
    let trace = recording(dir.path(), &[("f", &path, 0)], "0,1,stat,0,0,0,0\n0,1,unlink,0,0,0,0\n");
    for kind in kinds() {
        let report = replay(&args(&format!("{trace} {}", on(kind)))).unwrap();
        assert_eq!((report.failed, report.calls), (0, 2), "{kind}: {:?}", report.first_failure);
    }
    let calls = "0,1,create,0,0,0,0\n0,1,write,0,0,1152921504606846976,1152921504606846976\n";
    let trace = recording(dir.path(), &[("f", "/f", 0)], calls);
    for kind in kinds() {
        let report = replay(&args(&format!("{trace} {}", on(kind)))).unwrap();
        assert_eq!((report.failed, report.calls), (1, 1), "{kind}: {:?}", report.first_failure);
    }
}

#[test]
fn thousands_of_processes_at_one_instant_are_played() {
    let dir = tempfile::tempdir().unwrap();
    let calls: String = (0..2500).map(|process| format!("0,{process},stat,0,0,0,0\n")).collect();
    let trace = recording(dir.path(), &[("f", "/f", 0)], &calls);
    for kind in kinds() {
        let report = replay(&args(&format!("{trace} {}", on(kind)))).unwrap();
        assert_eq!((report.failed, report.calls), (0, 2500), "{kind}: {:?}", report.first_failure);
    }
    let calls: String = (0..10_001).map(|process| format!("0,{process},stat,0,0,0,0\n")).collect();
    let trace = recording(dir.path(), &[("f", "/f", 0)], &calls);
    let why = replay(&args(&format!("{trace} {}", on("fat")))).unwrap_err().to_string();
    assert!(why.contains("10001 processes") && why.contains("10000"), "{why}");
}

/// A file system that is full when all is to be made durable.
struct FullAtTheEnd {
    inner: Arc<dyn Target>,
    /// How often it may be made durable: once, before the first call.
    left: parking_lot::Mutex<u32>,
}

impl Target for FullAtTheEnd {
    fn call(&self, places: &[Place], path: u32, deed: Deed, contents: &tree::Contents) -> Result<u64> {
        self.inner.call(places, path, deed, contents)
    }

    fn release(&self, path: u32) -> Result<()> {
        self.inner.release(path)
    }

    fn settle(&self) {
        self.inner.settle();
    }

    fn sync(&self) -> Result<()> {
        let left = &mut *self.left.lock();
        *left = left.checked_sub(1).ok_or(Error::NoSpace("the NAND is full"))?;
        self.inner.sync()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()?;
        Err(Error::NoSpace("the NAND is full"))
    }

    fn status(&self) -> Result<Value> {
        self.inner.status()
    }
}

#[test]
fn a_file_system_that_cannot_be_made_durable_at_the_end_has_its_report() {
    for (kind, drain) in kinds().into_iter().flat_map(|kind| [(kind, ""), (kind, " --no-drain")]) {
        let args = args(&format!("gen:postmark:files=20:transactions=50 {}{drain}", on(kind)));
        let workload = Workload::open(args.trace(), &ReadOptions::default(), 1).unwrap();
        let calls = workload.calls.len() as u64;
        let full = |clock: &Clock, args: &Args| {
            let mut subject = Subject::make(clock, args)?;
            let target = FullAtTheEnd { inner: subject.target.clone(), left: parking_lot::Mutex::new(1) };
            subject.target = Arc::new(target);
            Ok(subject)
        };
        let report = replay_on(&args, workload, full).unwrap();
        assert_eq!((report.calls, report.failed), (calls, 0), "{kind}");
        assert_eq!(report.ended.how, crate::replay::Ending::Full, "{kind}{drain}");
        assert!(report.ended.told().contains("the NAND is full"), "{:?}", report.ended);
        assert!(report.table().contains("ended full: "), "{}", report.table());
        assert!(!report.file_system.is_null(), "{kind}");
    }
}

#[test]
fn the_ssd_half_that_is_played_on_is_the_one_that_mkfs_makes() {
    if !kinds().contains(&"nfhybrid") {
        return;
    }
    let line = format!("gen:fio-job:size=1MiB:requests=50 {}", on("nfhybrid"));
    let sections = |line: &str| {
        let report = serde_json::to_value(replay(&args(line)).unwrap()).unwrap();
        let section = report["file_system"]["ssd_half"]["sections"][0].clone();
        (section["name"].as_str().unwrap().to_string(), section["extent_bytes"].as_u64().unwrap())
    };
    assert_eq!(sections(&line), ("default".into(), 16 << 10));
    assert_eq!(sections(&format!("{line} --section small=extent:64KiB")), ("small".into(), 64 << 10));
    for (line, told) in [
        (format!("gen:postmark --section a=extent:4KiB {}", on("fat")), "--section: it is of --fs nfhybrid"),
        (format!("gen:postmark --section a {}", on("nfhybrid")), "section 'a'"),
        (format!("gen:postmark -o scan {}", on("osd")), "osd has no mount option"),
        (format!("gen:postmark -o checkpoint=16 {}", on("cmfs")), "checkpoint=16"),
    ] {
        let done = Args::parse(&line).and_then(|args| replay(&args).map(drop));
        let why = done.err().unwrap_or_else(|| panic!("{line} was done")).to_string();
        assert!(why.contains(told), "{line}: {why}");
    }
    replay(&args(&format!("gen:fio-job:size=1MiB:requests=5 -o scan,checkpoint=64 {}", on("cmfs"))))
        .unwrap_err();
    replay(&args(&format!("gen:fio-job:size=1MiB:requests=5 -o scan -o checkpoint=64 {}", on("cmfs"))))
        .unwrap();
}

#[test]
fn the_report_says_what_the_file_system_stood_on() {
    let line = "gen:fio-job:size=1MiB:requests=50 --ftl fast --cache lru --cache-size 1MiB";
    let report = replay(&args(&format!("{line} {}", on("fat")))).unwrap();
    let config = &report.config;
    assert_eq!((config.cache.as_deref(), config.cache_bytes), (Some("lru"), Some(1 << 20)));
    assert_eq!(
        (config.ftl.as_deref(), report.devices["device"].ftl.as_deref()),
        (Some("fast"), Some("fast"))
    );
    let why = replay(&args(&format!("t --event Q {}", on("fat")))).unwrap_err().to_string();
    assert!(why.contains("event is of a replay of requests"), "{why}");
}

/// The windows of runs that write, on every file system: they add up to the run, which is the same with and without them.
#[test]
fn the_windows_of_a_run_of_calls_add_up_to_it_and_change_nothing() {
    for kind in kinds() {
        let line = format!("gen:postmark:files=60:transactions=400 {} --processes 3", on(kind));
        let (plain, plain_bytes) = played(&line);
        let (seen, seen_bytes) = played(&format!("{line} --every 1ms"));
        assert!(plain_bytes == seen_bytes, "{kind}: other bytes");
        let mut seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
        let windows = seen.as_object_mut().unwrap().remove("series").unwrap();
        assert_eq!(seen, serde_json::from_str::<serde_json::Value>(&plain).unwrap(), "{kind}");
        let windows = windows.as_array().unwrap();
        let sum = |pointer: &str| {
            let all = windows.iter().map(|window| window.pointer(pointer).and_then(Value::as_u64));
            all.map(|one| one.unwrap_or_else(|| panic!("{kind}: {pointer}"))).sum::<u64>()
        };
        assert!(windows.len() > 1, "{kind}: {} windows", windows.len());
        for (figure, total) in [
            ("/calls", "calls"),
            ("/failed", "failed"),
            ("/bytes_read", "bytes_read"),
            ("/bytes_written", "bytes_written"),
        ] {
            assert_eq!(Some(sum(figure)), seen[total].as_u64(), "{kind}: {figure}");
        }
        assert_eq!(sum("/latency_ns/count"), sum("/calls"), "{kind}");
        let from: Vec<u64> = windows.iter().map(|window| window["from_ns"].as_u64().unwrap()).collect();
        assert!(
            from.is_sorted_by(|a, b| a < b) && from.iter().all(|from| from % 1_000_000 == 0),
            "{kind}: {from:?}"
        );
        let devices = seen["devices"].as_object().unwrap();
        assert_eq!(devices.is_empty(), ["cmfs", "osd"].contains(&kind), "{kind}");
        for (name, device) in devices {
            for (figure, total) in device["requests"].as_object().unwrap() {
                let pointer = format!("/devices/{name}/requests/{figure}");
                assert_eq!(Some(sum(&pointer)), total.as_u64(), "{kind}: {pointer}");
            }
        }
        if kind == "fat" {
            assert!(sum("/devices/device/pages_programmed") > 0, "{windows:?}");
        }
    }
}

#[test]
fn the_windows_of_a_run_of_calls_are_written_as_rows() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.csv");
    let line = format!("gen:postmark:files=60:transactions=100 {} --every 20ms", on("fat"));
    crate::replay::run(&args(&format!("{line} --series {}", rows.display()))).unwrap();
    let text = std::fs::read_to_string(&rows).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let at = |name: &str| {
        header.iter().position(|column| *column == name).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    let sum = |name: &str| {
        lines.clone().map(|line| line.split(',').nth(at(name)).unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    assert!(
        sum("calls") > 100 && sum("device_writes") > 0 && sum("device_write_bytes") > sum("bytes_written"),
        "{text}"
    );
}
