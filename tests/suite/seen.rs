//! What is seen of a mount while it runs: `top`, `explain` and `metrics`, as a person, a script and Prometheus use them.

use crate::guard::{err, out};
use crate::mounts::{Mounted, bimetal, need_fuse, skip};
use crate::nfhybrid::{Volume, settled, sh, unmount};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

fn run(args: &[&str]) -> Output {
    bimetal().args(args).output().expect("the command runs")
}

fn said(args: &[&str]) -> String {
    let done = run(args);
    assert!(done.status.success(), "{args:?}: {}", err(&done));
    out(&done)
}

fn json_of(args: &[&str]) -> Value {
    serde_json::from_str(&said(args)).expect("JSON")
}

/// A process that ends with the test, whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// States of a file's parts and why, and the whole.
fn explained(path: &Path) -> (BTreeSet<String>, String, Value) {
    let all = json_of(&["explain", "--json", text(path)]);
    let extents = all["extents"].as_array().expect("extents").clone();
    let word = |extent: &Value, name: &str| extent[name].as_str().expect(name).to_string();
    let states = extents.iter().map(|extent| word(extent, "state")).collect();
    let why = extents.first().map_or(String::new(), |extent| word(extent, "why"));
    (states, why, all)
}

fn are(states: &BTreeSet<String>, expected: &str) -> bool {
    states.iter().eq([expected])
}

#[test]
fn explain_says_of_files_in_known_states_where_they_are_and_why() {
    need_fuse!();
    let volume = Volume::new(64, 512, &["--section", "small=extent:16KiB", "--bypass", "/backup"]);
    // So long a lag that no commit comes in between.
    let mounted = volume.mount("lag=1h");
    let (file, bypassed) = (mounted.path().join("file"), mounted.path().join("backup/file"));
    fs::write(&file, [7; 6000]).unwrap();
    fs::write(&bypassed, [7; 6000]).unwrap();
    assert!(are(&explained(&file).0, "memory"), "{}", explained(&file).2);
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let (states, why, all) = explained(&file);
    assert!(are(&states, "log") && why.contains("the SSD's log"), "{all}");
    assert_eq!(
        (&all["section"], &all["section_rule"], &all["size_bytes"]),
        (&"small".into(), &Value::Null, &6000.into())
    );
    let words = said(&["explain", text(&file)]);
    assert!(words.contains("section     small") && words.contains("waits for the next commit"), "{words}");
    unmount(mounted);

    let mounted = volume.mount("lag=1h");
    let (file, bypassed) = (mounted.path().join("file"), mounted.path().join("backup/file"));
    let (states, _, all) = explained(&file);
    assert!(are(&states, "both"), "{all}");
    let extent = &all["extents"][0];
    // The halves have it where that says.
    for (image, at) in [(&volume.ssd, &extent["ssd"]), (&volume.disk, &extent["disk"])] {
        let at = at["at_bytes"].as_u64().expect("a place") as usize;
        assert_eq!(fs::read(image).unwrap()[at..at + 4096], [7; 4096], "{all}");
    }
    let (states, why, all) = explained(&bypassed);
    assert!(are(&states, "disk") && why.contains("bypasses the SSD"), "{all}");
    let dir = mounted.path().join("backup").canonicalize().unwrap();
    assert_eq!(all["section_rule_of"], text(&dir), "{all}");
    let words = said(&["explain", text(&bypassed)]);
    assert!(words.contains(&format!("bypass (the rule of {})", dir.display())), "{words}");
    assert!(said(&["explain", text(&dir)]).contains("directory"), "rules of a directory");
    unmount(mounted);

    let mounted = volume.mount("lag=1s,promote=first");
    let many: Vec<PathBuf> = (0..100).map(|number| mounted.path().join(format!("{number}"))).collect();
    for file in &many {
        fs::write(file, vec![7; 1 << 20]).unwrap();
    }
    let status = settled(&mounted);
    let gone = status["ssd_half"]["sections"][0]["evicted_inodes"].as_u64().unwrap();
    assert!(gone > 0, "100 MiB do not fit 64: {status}");
    let evicted = many.iter().filter(|file| explained(file).1.contains("pushed off the SSD")).count();
    assert!(evicted > 0, "{gone} were pushed out");
    unmount(mounted);
    volume.e2fsck();
}

/// A synced file of 4096 sevens behind a hole of 8192 bytes, and where it is said to be.
fn sevens_behind_a_hole(dir: &Path) -> (PathBuf, Value) {
    let path = dir.join("f");
    let file = fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 8192).unwrap();
    file.sync_all().unwrap();
    let all = json_of(&["explain", "--json", text(&path)]);
    (path, all)
}

#[test]
fn explain_says_in_which_pages_of_the_flash_a_file_of_cmfs_is() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let (nand, nvram) = (home.path().join("nand"), home.path().join("nvram"));
    let images = ["--nand", text(&nand), "--nvram", text(&nvram)];
    assert!(
        bimetal()
            .args(["mkfs", "cmfs", "--device", "slc-2k"])
            .args(images)
            .output()
            .unwrap()
            .status
            .success()
    );
    let mounted = Mounted::new(&images);
    let (path, all) = sevens_behind_a_hole(mounted.path());
    let extents = all["extents"].as_array().unwrap();
    let told: Vec<_> = extents
        .iter()
        .map(|e| (e["offset_bytes"].as_u64(), e["bytes"].as_u64(), e["state"].as_str()))
        .collect();
    assert_eq!(told, [(Some(0), Some(8192), Some("hole")), (Some(8192), Some(4096), Some("flash"))], "{all}");
    assert!(said(&["explain", text(&path)]).contains("flash: block "));
    unmount(mounted);
    // The image has it there: pages of 2 KiB with 64 B of spare area, 64 a block.
    let at = |name: &str| extents[1]["flash"][name].as_u64().unwrap() as usize;
    let image = fs::read(&nand).unwrap();
    for page in 0..2 {
        let start = (at("block") * 64 + at("page") + page) * (2048 + 64);
        assert_eq!(image[start..start + 2048], [7; 2048], "{all}");
    }
}

#[test]
fn explain_says_in_which_pages_of_the_flash_a_file_of_osd_is() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let nand = home.path().join("nand");
    let made = run(&["mkfs", "osd", "--nand", text(&nand), "--device", "slc-2k", "--size", "32MiB"]);
    assert!(made.status.success(), "{}", err(&made));
    let mounted = Mounted::new(&["--nand", text(&nand)]);
    let (path, all) = sevens_behind_a_hole(mounted.path());
    let extents = all["extents"].as_array().unwrap();
    let told: Vec<_> = extents.iter().map(|e| (e["offset_bytes"].as_u64(), e["state"].as_str())).collect();
    assert_eq!(told[..2], [(Some(0), Some("hole")), (Some(8192), Some("flash"))], "{all}");
    assert_eq!(extents.iter().map(|e| e["bytes"].as_u64().unwrap()).sum::<u64>(), 8192 + 4096, "{all}");
    assert!(said(&["explain", text(&path)]).contains("flash: block "));
    unmount(mounted);
    // The image has its first byte there: its pages lie behind a header, what it says of blocks and what it says of pages.
    let image = fs::read(&nand).unwrap();
    let number = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    let (pages, page_bytes, blocks) = (number(12), number(16), number(28) * number(32));
    let first = (4096 + 8 * blocks + 12 * blocks * pages).next_multiple_of(64 << 10);
    let at = |name: &str| extents[1]["flash"][name].as_u64().unwrap() as usize;
    let start = first + (at("block") * pages + at("page")) * page_bytes + at("byte");
    let here = (page_bytes - at("byte")).min(extents[1]["bytes"].as_u64().unwrap() as usize);
    assert_eq!(image[start..start + here], vec![7; here], "{all}");
}

#[test]
fn explain_and_top_say_of_what_is_no_mount_of_ours_what_it_is() {
    let home = tempfile::tempdir().unwrap();
    let none = home.path().join("none");
    for verb in ["explain", "top", "metrics"] {
        let nothing = run(&[verb, text(home.path())]);
        assert_eq!(nothing.status.code(), Some(1), "{verb}");
        assert!(
            err(&nothing).contains("bimetal mount --help") && err(&nothing).lines().count() == 1,
            "{}",
            err(&nothing)
        );
        let missing = run(&[verb, text(&none)]);
        assert_eq!(missing.status.code(), Some(1), "{verb}");
        assert!(err(&missing).contains("none: No such file"), "{}", err(&missing));
    }
    assert!(err(&run(&["top", "--every", "1ms", text(home.path())])).contains("at least 10ms"));
    need_fuse!();
    let memfs = Mounted::memfs("size=32MiB");
    fs::write(memfs.path().join("f"), "x").unwrap();
    let refused = run(&["explain", text(&memfs.path().join("f"))]);
    assert!(err(&refused).contains("no mounted nfhybrid, cmfs or osd"), "{}", err(&refused));
    let below = memfs.path().join("below");
    fs::create_dir(&below).unwrap();
    assert!(err(&run(&["top", text(&below)])).contains("nothing of bimetal is mounted here"));
}

#[test]
fn top_counts_what_programs_do_between_two_looks() {
    need_fuse!();
    let volume = Volume::new(32, 256, &[]);
    let mounted = volume.mount("lag=1h");
    let place = text(mounted.path());
    let mut top = bimetal();
    let top = top.args(["top", "--json", "--every", "2s", place]).stdout(Stdio::piped()).spawn().unwrap();
    let mut top = Running(top);
    let file = fs::File::create(mounted.path().join("f")).unwrap();
    // All the time until it has looked twice.
    while top.0.try_wait().unwrap().is_none() {
        (&file).write_all(&[1; 4096]).unwrap();
        file.sync_all().unwrap();
    }
    let mut sample = String::new();
    top.0.stdout.take().unwrap().read_to_string(&mut sample).unwrap();
    let sample: Value = serde_json::from_str(&sample).expect("one JSON object");
    let mount = &sample["mounts"][0];
    let number = |pointer: &str| mount.pointer(pointer).and_then(Value::as_f64).expect(pointer);
    assert!(number("/interval_seconds") >= 2.0, "{mount}");
    // Most are answered by the SSD's log; one that meets a full log is answered by a commit on the disk.
    let by_log = number("/fsyncs_per_second/ssd");
    let fsyncs = by_log + number("/fsyncs_per_second/disk");
    let wrote = number("/written_bytes_per_second");
    assert!(by_log > 0.0, "{mount}");
    // Each fsync had its 4 KiB; one of either may be at the edge.
    let seconds = number("/interval_seconds");
    assert!((wrote / 4096.0 - fsyncs).abs() * seconds <= 2.0, "{mount}");
    assert!(number("/devices/ssd/flushes_per_second") * seconds >= by_log * seconds - 2.0, "{mount}");
    assert!(number("/devices/ssd/load") > 0.0 && number("/at_risk/bytes") > 0.0, "{mount}");
    assert_eq!(mount["health"]["state"], "ok");
    drop(file);
    unmount(mounted);
}

#[test]
fn the_screens_fit_60_and_120_columns() {
    need_fuse!();
    let volume = Volume::new(32, 256, &["--section", "a-section-with-a-long-name=extent:64KiB"]);
    let mounted = volume.mount("lag=1h");
    let memfs = Mounted::memfs("size=32MiB");
    for columns in ["60", "120"] {
        let args = [
            "top",
            "--once",
            "--every",
            "10ms",
            "--columns",
            columns,
            text(mounted.path()),
            text(memfs.path()),
        ];
        let screen = said(&args);
        let width: usize = columns.parse().unwrap();
        let status = said(&["status", "--columns", columns, text(mounted.path())]);
        assert!(status.lines().all(|line| line.chars().count() <= width), "{status}");
        assert!(status.contains("files") && status.contains("misses"), "{status}");
        assert!(screen.lines().all(|line| line.chars().count() <= width), "{screen}");
        for part in [
            "nfhybrid  ok",
            "memfs  ok",
            "at risk",
            "evictions",
            "load   0.",
            "errors    none since the mount",
        ] {
            assert!(screen.contains(part), "{part} in {columns} columns of\n{screen}");
        }
    }
    unmount(mounted);
}

#[test]
fn on_a_terminal_the_screen_is_painted_over_and_goes_by_its_columns() {
    need_fuse!();
    if !Path::new("/usr/bin/script").exists() {
        return skip("no script(1)");
    }
    let mounted = Mounted::memfs("size=32MiB");
    let line = format!(
        "stty cols 60 rows 40; exec {} top --every 10ms {}",
        env!("CARGO_BIN_EXE_bimetal"),
        mounted.path().display()
    );
    let mut script = Command::new("script");
    let script = script.args(["-qfec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = Running(script.spawn().unwrap());
    let mut seen = String::new();
    let mut part = [0; 4096];
    let mut from = script.0.stdout.take().unwrap();
    // Two screens, one over the other.
    while seen.matches("Ctrl-C ends").count() < 3 {
        let count = from.read(&mut part).unwrap();
        assert!(count > 0, "it ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    let screen = seen.split("Ctrl-C ends").nth(1).unwrap();
    assert!(screen.contains("\x1b[") && screen.contains("errors    none since the mount"), "{seen:?}");
    let plain: Vec<String> = screen.lines().map(without_escapes).collect();
    assert!(plain.iter().all(|line| line.chars().count() <= 60), "{plain:?}");
}

fn without_escapes(line: &str) -> String {
    let mut text = String::new();
    let mut parts = line.split("\x1b[");
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        text.push_str(
            part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').get(1..).unwrap_or_default(),
        );
    }
    text.trim_end_matches('\r').to_string()
}

/// What a server says to a request.
fn asked(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    assert_eq!(length.parse(), Ok(body.len()), "{head}");
    (head.to_string(), body.to_string())
}

const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Metrics by name and labels, read as strictly as the format is written down (Prometheus' text exposition, 0.0.4).
fn parsed(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n') && !text.contains('\r'), "the last line ends");
    let mut found = BTreeMap::new();
    let mut families = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(help) = lines.next() {
        let (name, told) = help.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(help);
        assert!(is_name(name) && !told.is_empty() && families.insert(name.to_string()), "{help}");
        let kind =
            lines.next().and_then(|line| line.strip_prefix("# TYPE ")).and_then(|rest| rest.split_once(' '));
        let (typed, kind) = kind.expect(help);
        assert_eq!(typed, name);
        assert!(matches!(kind, "counter" | "gauge"), "{kind}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        let mut samples = 0;
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').expect(line);
            let (of, labels) = series.split_once('{').expect(line);
            assert_eq!(of, name, "a family's samples stand together");
            labels_are_right(labels.strip_suffix('}').expect(line));
            let value: f64 = value.parse().expect(line);
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(found.insert(series.to_string(), value).is_none(), "twice: {line}");
            samples += 1;
        }
        assert!(samples > 0, "{name} has no samples");
    }
    found
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `a="b",c="d"`, with backslashes before what needs them.
fn labels_are_right(labels: &str) {
    let mut rest = labels;
    let mut names = BTreeSet::new();
    loop {
        let (name, value) = rest.split_once("=\"").expect(labels);
        assert!(is_name(name) && names.insert(name.to_string()), "{labels}");
        let mut escaped = false;
        let end = value.char_indices().find(|(_, c)| {
            let ends = *c == '"' && !escaped;
            assert!(!escaped || matches!(c, '\\' | '"' | 'n'), "{labels}");
            escaped = *c == '\\' && !escaped;
            ends
        });
        let (end, _) = end.expect(labels);
        rest = &value[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return assert!(rest.is_empty(), "{labels}"),
        }
    }
}

/// The server of metrics, and the first line it said.
fn metrics(args: &[&str]) -> (Running, String) {
    let mut command = bimetal();
    let mut server = Running(command.arg("metrics").args(args).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (server, line.trim_end().to_string())
}

#[test]
fn prometheus_reads_what_a_mount_says_of_itself() {
    need_fuse!();
    let volume = Volume::new(32, 256, &[]);
    let mounted = volume.mount("lag=1h");
    let home = tempfile::tempdir().unwrap();
    let odd = home.path().join("odd \"\\ name");
    fs::create_dir(&odd).unwrap();
    assert!(run(&["mount", "-t", "memfs", text(&odd)]).status.success());
    let odd_mount = Unmount(odd.clone());
    sh("for i in 1 2 3; do dd if=/dev/zero of=$i bs=4k count=1 conv=fsync status=none; done", mounted.path());
    let (mut server, line) = metrics(&["--listen", "127.0.0.1:0", text(mounted.path()), text(&odd)]);
    let address = line.strip_prefix("metrics on http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.expect(&line).to_string();
    let scrape = || asked(TcpStream::connect(&address).unwrap(), SCRAPE);
    let (head, body) = scrape();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    let found = parsed(&body);
    let place = mounted.path().canonicalize().unwrap();
    let of = |name: &str, more: &str| {
        let series = format!("{name}{{mount=\"{}\"{more}}}", place.display());
        *found.get(&series).unwrap_or_else(|| panic!("no {series} in\n{body}"))
    };
    let status = mounted.status();
    assert_eq!(of("bimetal_fsyncs_total", ",by=\"ssd\""), 3.0);
    assert_eq!(of("bimetal_written_bytes_total", ""), 12288.0);
    assert_eq!(of("bimetal_at_risk_bytes", ""), status["at_risk"]["bytes"].as_f64().unwrap());
    assert_eq!(of("bimetal_lag_limit_seconds", ""), 3600.0);
    assert_eq!(of("bimetal_health", ",state=\"ok\""), 1.0);
    let writes = of("bimetal_device_requests_total", ",device=\"ssd\",kind=\"write\"");
    assert_eq!(writes, status["devices"]["ssd"]["requests"]["writes"].as_f64().unwrap());
    let waited = of("bimetal_device_waited_seconds_total", ",device=\"ssd\",kind=\"durable\"");
    let durable = status["devices"]["ssd"]["waits"]["durable_ns"].as_f64().unwrap() / 1e9;
    assert!((waited - durable).abs() < 1e-6 && waited > 0.0, "{waited} s, {durable} s");
    let escaped = text(&odd.canonicalize().unwrap()).replace('\\', "\\\\").replace('"', "\\\"");
    assert_eq!(found.get(&format!("bimetal_up{{mount=\"{escaped}\"}}")), Some(&1.0), "{body}");
    // Not what is asked for, in ways that must not end it.
    drop(TcpStream::connect(&address).unwrap());
    let (head, _) = asked(TcpStream::connect(&address).unwrap(), "POST /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    // A mount that is gone is said to be down.
    drop(odd_mount);
    let after = parsed(&scrape().1);
    assert_eq!(after.get(&format!("bimetal_up{{mount=\"{escaped}\"}}")), Some(&0.0));
    assert!(server.0.try_wait().unwrap().is_none(), "it goes on");
    unmount(mounted);
}

/// Unmounts on drop.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        if !bimetal().arg("umount").arg(&self.0).status().is_ok_and(|done| done.success()) {
            let _ = Command::new("umount").args(["-q", "-f", "-l"]).arg(&self.0).status();
        }
    }
}

#[test]
fn callers_that_say_little_or_nothing_hold_up_nobody_who_asks_for_metrics() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let (_server, line) = metrics(&["--listen", "127.0.0.1:0", text(mounted.path())]);
    let address =
        line.strip_prefix("metrics on http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    let _idle: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut slow = TcpStream::connect(address).unwrap();
    let began = Instant::now();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
    let (_, body) = asked(TcpStream::connect(address).unwrap(), SCRAPE);
    assert!(body.contains("bimetal_up") && began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // One byte after the other does not help: the whole request has its time.
    while slow.write_all(b"a").is_ok() {
        assert!(began.elapsed() < Duration::from_secs(30), "it is listened to for ever");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_stopped_server_is_told_to_be_down_and_the_other_mounts_as_they_are() {
    need_fuse!();
    let (stopped, other) = (Mounted::memfs("size=32MiB"), Mounted::memfs("size=32MiB"));
    let places = [text(stopped.path()), text(other.path()), text(other.path())];
    let (_server, line) = metrics(&[&["--listen", "127.0.0.1:0"], &places[..]].concat());
    let address =
        line.strip_prefix("metrics on http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    let pid = stopped.status()["front"]["pid"].to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    let ups = || {
        let (_, body) = asked(TcpStream::connect(address).unwrap(), SCRAPE);
        places[..2]
            .iter()
            .map(|place| parsed(&body)[&format!("bimetal_up{{mount=\"{place}\"}}")])
            .collect::<Vec<_>>()
    };
    assert_eq!(ups(), [1.0, 1.0]);
    signal("-STOP");
    let began = Instant::now();
    let while_stopped = [ups(), ups()];
    let took = began.elapsed();
    signal("-CONT");
    assert_eq!(while_stopped, [[0.0, 1.0], [0.0, 1.0]]);
    assert!(took < Duration::from_secs(9), "{took:?}");
    while ups() != [1.0, 1.0] {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn top_ends_with_its_reader() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let mut top = bimetal();
    let top = top.args(["top", "--every", "50ms"]).arg(mounted.path()).stdout(Stdio::piped());
    let mut top = Running(top.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(top.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let began = Instant::now();
    let ended = loop {
        match top.0.try_wait().unwrap() {
            Some(ended) => break ended,
            None => assert!(began.elapsed() < Duration::from_secs(30), "it goes on without a reader"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(ended.success(), "{ended}");
}

#[test]
fn metrics_are_told_on_a_socket_or_to_this_machine_only() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let place = text(mounted.path());
    for address in ["0.0.0.0:0", "192.0.2.1:80", "[::]:0"] {
        let refused = run(&["metrics", "--listen", address, place]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            err(&refused).contains("other machines") && err(&refused).contains("--socket"),
            "{}",
            err(&refused)
        );
    }
    let socket = mounted.scratch().join("metrics.sock");
    let (mut server, line) = metrics(&["--socket", text(&socket), place]);
    assert_eq!(line, format!("metrics on {}", socket.display()));
    let (_, body) = asked(UnixStream::connect(&socket).unwrap(), SCRAPE);
    assert!(parsed(&body).keys().any(|series| series.starts_with("bimetal_space_used_bytes")), "{body}");
    // Another one finds the place taken; the first ends when it is told to, and leaves nothing.
    let second = run(&["metrics", "--socket", text(&socket), place]);
    assert!(!second.status.success() && err(&second).contains("is there already"), "{}", err(&second));
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success() && !socket.exists());
    let once = said(&["metrics", "--once", place]);
    assert!(!parsed(&once).is_empty());
}

#[test]
fn the_board_shows_metrics_that_there_are() {
    need_fuse!();
    let volume = Volume::new(32, 256, &[]);
    let mounted = volume.mount("lag=1h");
    let home = tempfile::tempdir().unwrap();
    let (nand, nvram) = (home.path().join("nand"), home.path().join("nvram"));
    let images = ["--nand", text(&nand), "--nvram", text(&nvram)];
    assert!(bimetal().args(["mkfs", "cmfs", "--device", "slc-2k"]).args(images).status().unwrap().success());
    let flash = Mounted::new(&images);
    let told = said(&["metrics", "--once", text(mounted.path()), text(flash.path())]);
    let names: BTreeSet<&str> =
        told.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let board = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/grafana/bimetal.json");
    let board: Value = serde_json::from_slice(&fs::read(board).unwrap()).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let mut used = BTreeSet::new();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets")) {
        let expression = target["expr"].as_str().expect("an expression");
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let of_ours: Vec<&str> = words.filter(|word| word.starts_with("bimetal_")).collect();
        assert!(!of_ours.is_empty(), "{expression}");
        // Hosts may have mounts on equal paths, and each part of it shows the mounts that are chosen.
        assert!(!expression.contains("by (mount") && !expression.contains("on (mount"), "{expression}");
        assert_eq!(expression.matches("mount=~\"$mount\"").count(), of_ours.len(), "{expression}");
        for name in of_ours {
            assert!(names.contains(name), "{name} of {expression} is told by no mount: {names:?}");
            used.insert(name.to_string());
        }
    }
    for name in [
        "bimetal_at_risk_bytes",
        "bimetal_lag_seconds",
        "bimetal_section_hits_total",
        "bimetal_flash_wear_erases",
    ] {
        assert!(used.contains(name), "no panel has {name}");
    }
    unmount(mounted);
}
