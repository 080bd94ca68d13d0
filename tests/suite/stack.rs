//! Stack files: one text that is mounted, replayed, exported and reproduced from, and grids of runs over it.

use crate::guard::{Volume, err, out, refused};
use crate::mounts::{Mounted, bimetal, need_fuse};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A place for stack files and rows.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary directory"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str, text: &str) -> String {
        fs::write(self.at(name), text).unwrap();
        self.path(name)
    }

    fn path(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.at(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    /// The rows of a grid.
    fn rows(&self, folder: &str) -> Vec<Value> {
        let text = String::from_utf8(self.read(&format!("{folder}/rows.jsonl"))).unwrap();
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// The runs that have a row of their own by now.
    fn kept(&self, folder: &str) -> usize {
        let whole = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with(".json");
        let listed = fs::read_dir(self.at(folder).join("runs")).into_iter().flatten().flatten();
        listed.filter(|entry| whole(&entry.file_name())).count()
    }
}

fn data(name: &str) -> String {
    format!("{}/tests/data/traces/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn command(args: &[&str]) -> Command {
    let mut command = bimetal();
    for name in ["BIMETAL_SSD", "BIMETAL_DISK", "BIMETAL_NAND", "BIMETAL_NVRAM"] {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().expect("the command runs")
}

/// A line for the shell, which finds the command under test.
fn shell(line: &str) -> Command {
    let home = Path::new(bimetal().get_program()).parent().unwrap().display().to_string();
    let path = format!("{home}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("PATH", path);
    command
}

fn ok(args: &[&str]) -> String {
    let done = run(args);
    assert!(done.status.success(), "{args:?}: {}", err(&done));
    out(&done)
}

/// A cache over flash, and traces of the repository: 3 traces x 4 policies x 3 sizes.
const GRID: &str = r#"
about = "what a cache leaves for flash to do"

[trace]
file = "-"

[device]
profile = "slc-4k"
ftl = "page:clean=cost-benefit"

[run]
fit = "compact"

[cache]
policy = "lru"
size = "1MiB"
"#;

/// What is set for [`GRID`].
fn axes() -> [String; 3] {
    let traces = ["ext2-seq16.dev", "ext4-pm1k.bio", "G1.dev"].map(|name| data(&format!("{name}.csv.zst")));
    [
        format!("trace.file={}", traces.join(",")),
        "cache.policy=lru,clock,cflru:window=0.5,fab".to_string(),
        "cache.size=256KiB,1MiB,4MiB".to_string(),
    ]
}

fn grid<'a>(stack: &'a str, axes: &'a [String], folder: &'a str) -> Vec<&'a str> {
    let set = axes.iter().flat_map(|axis| ["--set", axis]);
    ["replay", "--stack", stack, "--out", folder].into_iter().chain(set).collect()
}

/// Starts a grid and kills it as soon as so many runs are kept.
fn kill_after(place: &Place, args: &[&str], folder: &str, runs: usize) {
    let mut child = command(args).stdout(Stdio::null()).spawn().expect("the command runs");
    let began = Instant::now();
    while place.kept(folder) < runs && child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(300), "{} runs", place.kept(folder));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    let ended = child.wait().unwrap();
    assert!(!ended.success(), "it was done before it could be killed");
}

#[test]
fn a_stack_file_is_mounted_replayed_exported_and_reproduced_from() {
    need_fuse!();
    let (place, volume) = (Place::new(), Volume::new());
    let text = format!(
        r#"
about = "PostMark on a hybrid"

[fs]
kind = "nfhybrid"
options = {{ lag = "1s,4MiB" }}

[ssd]
profile = "ssd-slc"
size = "32MiB"
image = {:?}

[disk]
profile = "hdd-7200"
size = "128MiB"
image = {:?}

[cache]
policy = "cflru:window=0.5"
size = "8MiB"

[trace]
generator = {{ name = "postmark", files = 50, transactions = 200 }}
"#,
        volume.at("ssd"),
        volume.at("disk")
    );
    let stack = place.text("hybrid.toml", &text);

    // Mounted: halves in real time, as the profiles say, with the cache and the options; fsync waits for the disk here.
    let mounted = Mounted::new(&["--stack", &stack, "--set", "fs.options.durability=both"]);
    fs::write(mounted.path().join("f"), "kept").unwrap();
    let began = Instant::now();
    File::open(mounted.path().join("f")).unwrap().sync_all().unwrap();
    // A disk of 7200 turns a minute has to seek and to turn, an image on this machine would not.
    assert!(began.elapsed() > Duration::from_millis(4), "{:?}", began.elapsed());
    let status = mounted.status();
    assert!(
        status.to_string().contains("\"lag\":\"1s,4") || status.to_string().contains("4194304"),
        "{status}"
    );
    assert!(mounted.unmount().status.success());
    drop(mounted);
    let plain = volume.mount(&[]);
    assert_eq!(fs::read(plain.path().join("f")).unwrap(), b"kept", "the images hold what was written");
    drop(plain);

    // Replayed, twice the same; another option is another run.
    let replayed = ok(&["replay", "--stack", &stack, "--json"]);
    assert_eq!(replayed, ok(&["replay", "--stack", &stack, "--json"]));
    let report: Value = serde_json::from_str(&replayed).unwrap();
    assert_eq!((&report["fs"], &report["failed"]), (&"nfhybrid".into(), &0.into()));
    assert_eq!(report["devices"]["ssd"]["size_bytes"], 32 << 20);
    assert_ne!(replayed, ok(&["replay", "--stack", &stack, "--json", "--set", "fs.options.durability=both"]));
    assert_ne!(replayed, ok(&["replay", "--stack", &stack, "--json", "--set", "cache.policy.window=0.1"]));

    // Exported: the disk half, as the same model, for any program.
    let served = place.at("served");
    fs::create_dir(&served).unwrap();
    let child = command(&["export", "--stack", &stack, "--half", "disk", "--file", served.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let device = lines.next().expect("where it is served");
    let mut magic = [0; 2];
    File::open(&device).unwrap().read_exact_at(&mut magic, 1024 + 56).unwrap();
    assert_eq!(u16::from_le_bytes(magic), 0xEF53, "an ext4");
    let stats = fs::read_to_string(served.join("stats")).unwrap();
    assert!(stats.contains("\"seeks\"") && stats.contains("cflru:window=0.5"), "{stats}");
    rustix::mount::unmount(&served, rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(child.wait().unwrap().success());

    // Reproduced: what the file expects.
    let expecting = |calls: u64| {
        let text = format!("{text}\n[[expect]]\nfigure = \"calls\"\nis = {calls}\nwithin = 0.01\n");
        place.text("expecting.toml", &text)
    };
    let calls = report["calls"].as_u64().unwrap();
    let found = ok(&["reproduce", "--stack", &expecting(calls), "--strict", "--json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["holds"], &found["rows"][0]["ours"]), (&true.into(), &(calls as f64).into()));
    let off = run(&["reproduce", "--stack", &expecting(calls + calls / 5), "--strict"]);
    refused(&off, &["does not hold"]);
    let wanted = format!("(wanted: the paper's {}", calls + calls / 5);
    assert!(out(&off).contains(&format!("fails: calls: {calls} {wanted}")), "{}", out(&off));
}

#[test]
fn a_grid_that_is_killed_goes_on_and_has_identical_rows() {
    let (place, axes) = (Place::new(), axes());
    let stack = place.text("grid.toml", GRID);
    let whole = place.path("whole");
    let said = ok(&[&grid(&stack, &axes, &whole)[..], &["--jobs", "1"]].concat());
    assert!(said.contains("36 rows in") && !said.contains("failed"), "{said}");
    let rows = place.rows("whole");
    assert_eq!(rows.len(), 36);
    for (number, row) in rows.iter().enumerate() {
        assert_eq!((&row["run"], &row["error"], &row["seed"]), (&number.into(), &Value::Null, &1.into()));
        assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
        assert!(row["result"]["erases"].is_u64() && row["result"]["requests"].as_u64() > Some(0), "{row}");
        assert_eq!(row["inputs"].as_object().unwrap().len(), 1, "{row}");
    }
    assert_eq!(rows[1]["config"]["cache"]["size"], 1 << 20, "the last key changes fastest");
    assert_eq!(rows[1]["set"]["cache.size"], "1MiB");

    let folder = place.path("killed");
    let args = grid(&stack, &axes, &folder);
    kill_after(&place, &args, "killed", 9);
    let kept = place.kept("killed");
    assert!((9..36).contains(&kept) && !place.at("killed/rows.jsonl").exists(), "{kept}");
    // The power went, too: one row is torn, one is empty, one was being written.
    // (What the kill itself left half written is there, too, under such a name.)
    let runs = fs::read_dir(place.at("killed/runs")).unwrap().map(|entry| entry.unwrap().path());
    let runs: Vec<PathBuf> = runs.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    let row = fs::read(&runs[0]).unwrap();
    fs::write(&runs[0], &row[..row.len() / 2]).unwrap();
    fs::write(&runs[1], "").unwrap();
    fs::write(place.at("killed/runs/.bimetal-30"), "{\"run\":30").unwrap();
    let left = ok(&[&args[..], &["--emit", "tasks"]].concat()).lines().count();
    assert_eq!(left, 36 - (kept - 2), "what is torn is to be made again");
    ok(&args);
    for file in ["rows.jsonl", "rows.parquet", "grid.json"] {
        assert!(place.read(&format!("whole/{file}")) == place.read(&format!("killed/{file}")), "{file}");
    }
    assert!(!place.at("killed/runs").exists() && place.at("killed/times.jsonl").exists());

    // Done is done; and rows that were torn later are made again, the same.
    let times = place.read("killed/times.jsonl");
    ok(&args);
    assert_eq!(times, place.read("killed/times.jsonl"), "nothing was run");
    let text = place.read("killed/rows.jsonl");
    fs::write(place.at("killed/rows.jsonl"), &text[..text.len() - 100]).unwrap();
    ok(&args);
    assert!(text == place.read("killed/rows.jsonl"));
}

#[test]
fn a_run_that_fails_is_a_row_with_its_error() {
    let place = Place::new();
    let stack = place.text("grid.toml", GRID);
    let axes = [
        format!("trace.file={},/no/such/trace", data("xfs-pm1k.dev.csv.zst")),
        "cache.size=0B,1MiB".to_string(),
        "run.chunk=64KiB,64MiB".to_string(),
    ];
    let said = ok(&grid(&stack, &axes, &place.path("out")));
    let rows = place.rows("out");
    let failed: Vec<usize> = (0..8).filter(|run| !rows[*run]["error"].is_null()).collect();
    assert!(said.contains(&format!("{} runs failed", failed.len())), "{said}");
    assert!([0, 1, 4, 5, 6, 7].iter().all(|run| failed.contains(run)), "{failed:?}");
    assert!(rows[0]["error"].as_str().unwrap().contains("room for one page"), "{}", rows[0]);
    assert!(rows[6]["error"].as_str().unwrap().contains("/no/such/trace"), "{}", rows[6]);
    assert!(rows[0]["result"].is_null() && rows[2]["result"]["requests"] == 90, "{}", rows[2]);
}

#[test]
fn a_folder_is_of_one_grid() {
    let (place, axes) = (Place::new(), axes());
    let trace = place.path("trace.csv.zst");
    fs::copy(data("xfs-pm1k.dev.csv.zst"), &trace).unwrap();
    let stack = place.text("grid.toml", GRID);
    let axes = [format!("trace.file={trace}"), axes[1].clone()];
    let folder = place.path("out");
    let args = grid(&stack, &axes, &folder);
    ok(&args);
    let before = place.read("out/rows.jsonl");
    let other = |args: &[&str], told: &[&str]| {
        refused(&run(args), told);
        assert!(before == place.read("out/rows.jsonl"));
    };
    let told = ["another grid", "name another folder"];
    let fewer = [axes[0].clone(), "cache.policy=lru,clock".to_string()];
    other(&grid(&stack, &fewer, &folder), &[&told[..], &["cflru:window=0.5"]].concat());
    let changed = place.text("changed.toml", &GRID.replace("\"1MiB\"", "\"2MiB\""));
    other(
        &grid(&changed, &axes, &folder),
        &[&told[..], &["stack.cache.size was 1048576 and is 2097152"]].concat(),
    );
    fs::copy(data("ext4-pm1k.bio.csv.zst"), &trace).unwrap();
    other(&args, &[&told[..], &["inputs", "trace.csv.zst"]].concat());
    fs::copy(data("xfs-pm1k.dev.csv.zst"), &trace).unwrap();
    ok(&args);

    let lock = File::open(place.at("out/lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    other(&args, &["another process is at work"]);
    drop(lock);

    fs::create_dir(place.at("mine")).unwrap();
    place.text("mine/thesis.tex", "x");
    refused(&run(&grid(&stack, &axes, &place.path("mine"))), &["thesis.tex", "something else"]);
    assert_eq!(fs::read_dir(place.at("mine")).unwrap().count(), 1);

    // Also what is called as a grid's own files are.
    fs::create_dir_all(place.at("own/runs")).unwrap();
    place.text("own/runs/thesis.tex", "x");
    fs::create_dir(place.at("rows")).unwrap();
    place.text("rows/rows.jsonl", "mine");
    for (folder, named) in [("own", "runs"), ("rows", "rows.jsonl")] {
        refused(&run(&grid(&stack, &axes, &place.path(folder))), &[named, "something else"]);
    }
    assert!(place.read("own/runs/thesis.tex") == b"x" && place.read("rows/rows.jsonl") == b"mine");
    fs::create_dir_all(place.at("out/runs")).unwrap();
    place.text("out/runs/thesis.tex", "x");
    fs::remove_file(place.at("out/rows.jsonl")).unwrap();
    ok(&args);
    assert!(place.read("out/runs/thesis.tex") == b"x" && !place.at("out/runs/1.json").exists());
}

#[test]
fn no_report_is_what_is_read_and_no_two_are_one_file() {
    let place = Place::new();
    fs::copy(data("xfs-pm1k.dev.csv.zst"), place.at("trace.csv.zst")).unwrap();
    fs::hard_link(place.at("trace.csv.zst"), place.at("linked.html")).unwrap();
    fs::copy(format!("{}/devices/slc-2k.toml", env!("CARGO_MANIFEST_DIR")), place.at("part.toml")).unwrap();
    let (trace, part) = (place.path("trace.csv.zst"), place.path("part.toml"));
    let same = place.path("same");
    let before = [fs::read(&trace).unwrap(), fs::read(&part).unwrap()];
    for (reports, told) in [
        (vec!["--csv", &trace], "reads"),
        (vec!["--html", &place.path("linked.html")], "reads"),
        (vec!["--parquet", &part], "reads"),
        (vec!["--csv", &same, "--html", &same], "--csv writes to it"),
    ] {
        let line =
            [&["replay", &trace, "--device", &part, "--ftl", "page", "--requests", "10"][..], &reports]
                .concat();
        refused(&run(&line), &[told, "name another file"]);
    }
    assert_eq!([fs::read(&trace).unwrap(), fs::read(&part).unwrap()], before);
    assert!(!place.at("same").exists());
}

#[test]
fn printed_tasks_make_the_rows_in_any_order() {
    let place = Place::new();
    let stack = place.text("it's a grid.toml", GRID);
    let axes = [
        format!("trace.file={}", data("xfs-pm1k.dev.csv.zst")),
        "cache.policy=\"cflru:window=0.5\",lru".to_string(),
        "seed=1,2".to_string(),
    ];
    let (whole, folder) = (place.path("whole"), place.path("tasks"));
    ok(&grid(&stack, &axes, &whole));
    let tasks = ok(&[&grid(&stack, &axes, &folder)[..], &["--emit", "tasks"]].concat());
    assert_eq!(tasks.lines().count(), 4);
    assert!(!place.at("tasks").exists(), "nothing was done");
    let start = |line: &str| shell(line).spawn().unwrap();
    let mut children: Vec<_> = tasks.lines().rev().map(start).collect();
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    for file in ["rows.jsonl", "rows.parquet"] {
        assert!(place.read(&format!("whole/{file}")) == place.read(&format!("tasks/{file}")), "{file}");
    }
}

#[test]
fn tasks_that_run_at_the_same_time_make_the_rows_of_a_grid() {
    let place = Place::new();
    let stack = place.text("grid.toml", GRID);
    let axes = [
        format!("trace.file={}", data("xfs-pm1k.dev.csv.zst")),
        "cache.policy=lru,clock,cflru,fab".to_string(),
        "cache.size=256KiB,1MiB".to_string(),
        "seed=1,2,3,4,5,6,7,8".to_string(),
    ];
    let (whole, folder) = (place.path("whole"), place.path("tasks"));
    ok(&grid(&stack, &axes, &whole));
    let emit = [&grid(&stack, &axes, &folder)[..], &["--emit", "tasks"]].concat();
    let tasks = ok(&emit);
    assert_eq!(tasks.lines().count(), 64);
    let one = ok(&[&emit[..], &["--only", "5"]].concat());
    assert_eq!(tasks.lines().nth(5), Some(one.trim_end()));
    let next = std::sync::atomic::AtomicUsize::new(0);
    let refusals = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(task) =
                    tasks.lines().nth(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let done = shell(task).output().unwrap();
                    if !done.status.success() {
                        refusals.lock().unwrap().push(err(&done));
                    }
                }
            });
        }
    });
    let refusals = refusals.into_inner().unwrap();
    assert!(refusals.is_empty(), "{} of 64: {}", refusals.len(), refusals[0]);
    for file in ["rows.jsonl", "rows.parquet"] {
        assert!(place.read(&format!("whole/{file}")) == place.read(&format!("tasks/{file}")), "{file}");
    }
    assert!(!place.at("tasks/runs").exists());
}

#[test]
fn a_task_is_one_line_that_runs_whatever_its_words_are() {
    let place = Place::new();
    place.text("-q.toml", GRID);
    let set = format!("trace.file={}", data("xfs-pm1k.dev.csv.zst"));
    let within = |args: &[&str]| command(args).current_dir(place.0.path()).output().unwrap();
    let args = ["replay", "--stack=-q.toml", "--out=-oo", "--emit", "tasks", "--set", &set];
    let tasks = within(&args);
    assert!(tasks.status.success(), "{}", err(&tasks));
    let done = shell(out(&tasks).trim_end()).current_dir(place.0.path()).output().unwrap();
    assert!(done.status.success(), "{}", err(&done));
    assert_eq!(place.rows("-oo").len(), 1);
    refused(&within(&[&args[..], &["--set", "about=two\nlines"]].concat()), &["about=two", "line end"]);
}

#[test]
fn the_seed_of_a_stack_reaches_its_generator() {
    let place = Place::new();
    let stack = place.text(
        "seeds.toml",
        "[trace]\ngenerator = \"zipf:pages=1000:requests=2000\"\n[cache]\npolicy = \"lru\"\nsize = \"256KiB\"\n",
    );
    ok(&grid(&stack, &["seed=1,2".to_string()], &place.path("out")));
    let rows = place.rows("out");
    for (seed, row) in (1..).zip(&rows) {
        let trace = row["result"]["config"]["trace"].as_str().unwrap();
        assert!(trace.ends_with(&format!(":seed={seed}")), "{trace}");
    }
    assert_ne!(rows[0]["result"]["hit_ratio"], rows[1]["result"]["hit_ratio"]);
    let own = ["trace.generator.seed=7".to_string(), "seed=1,2".to_string()];
    ok(&grid(&stack, &own, &place.path("own")));
    let rows = place.rows("own");
    assert_eq!(rows[0]["result"]["hit_ratio"], rows[1]["result"]["hit_ratio"]);
}

#[test]
fn an_export_that_is_asked_to_end_while_it_is_in_use_ends_with_its_last_user() {
    need_fuse!();
    let (place, volume) = (Place::new(), Volume::new());
    let served = place.at("served");
    fs::create_dir(&served).unwrap();
    let mut server = command(&["export", "--profile", "ssd-tlc", "--no-latency"])
        .arg(volume.at("disk"))
        .arg("--file")
        .arg(&served)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let device = File::open(lines.next().expect("where it is served")).unwrap();
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // It is out of sight as soon as the signal is heard.
    for _ in 0..500 {
        if !served.join("device").exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!served.join("device").exists(), "the signal was lost");
    let mut magic = [0; 2];
    device.read_exact_at(&mut magic, 1024 + 56).unwrap();
    assert!(server.try_wait().unwrap().is_none(), "somebody has it open");
    drop(device);
    assert!(server.wait().unwrap().success());
}

#[test]
fn file_systems_in_a_grid_have_the_same_rows_in_another_process() {
    let place = Place::new();
    let stack = place.text(
        "fs.toml",
        "[trace]\ngenerator = \"postmark:files=30:transactions=100\"\n[fs]\nkind = \"osd\"\n",
    );
    let axes = ["fs.kind=cmfs,osd,fat".to_string(), "run.processes=1,3".to_string(), "seed=1,2".to_string()];
    for folder in ["one", "two"] {
        ok(&grid(&stack, &axes, &place.path(folder)));
    }
    assert!(place.read("one/rows.jsonl") == place.read("two/rows.jsonl"));
    assert!(
        place
            .rows("one")
            .iter()
            .all(|row| row["error"].is_null() && row["result"]["calls"].as_u64() > Some(100))
    );
    let hybrid = place.text(
        "hybrid.toml",
        "[trace]\ngenerator = \"fio-job:size=1MiB:requests=100:fsync=5\"\n[fs]\nkind = \"nfhybrid\"\n[ssd]\nsize = \"24MiB\"\n\
         [disk]\nsize = \"96MiB\"\n",
    );
    let axes = ["ssd.profile=ssd-slc,ssd-tlc".to_string(), "fs.options.lag=\"100ms,1MiB\",5s".to_string()];
    for folder in ["three", "four"] {
        ok(&grid(&hybrid, &axes, &place.path(folder)));
    }
    assert!(place.read("three/rows.jsonl") == place.read("four/rows.jsonl"));
    assert!(place.rows("three").iter().all(|row| row["error"].is_null()), "{:?}", place.rows("three"));
}

/// A stack of a small nfhybrid.
const HYBRID: &str = "[trace]\ngenerator = \"fio-job:size=1MiB:requests=100:fsync=5\"\n[fs]\nkind = \"nfhybrid\"\n\
                      [ssd]\nsize = \"24MiB\"\n[disk]\nsize = \"96MiB\"\n";

#[test]
fn rows_depend_on_no_environment_and_no_memory_of_the_machine() {
    let place = Place::new();
    let stack = place.text("hybrid.toml", HYBRID);
    let other = place.text(
        "mke2fs.conf",
        "[defaults]\n base_features = sparse_super,filetype\n blocksize = 1024\n inode_size = 128\n\
         [fs_types]\n ext4 = {\n features = has_journal,extent\n }\n",
    );
    let axes = ["fs.options.lag=1s,\"1s,900GiB\"".to_string()];
    let (one, two) = (place.path("one"), place.path("two"));
    ok(&grid(&stack, &axes, &one));
    let mut elsewhere = command(&grid(&stack, &axes, &two));
    elsewhere.env("MKE2FS_CONFIG", &other).env("MKE2FS_DEVICE_SECTSIZE", "4096");
    assert!(elsewhere.output().unwrap().status.success());
    assert!(place.read("one/rows.jsonl") == place.read("two/rows.jsonl"));
    let rows = place.rows("one");
    assert!(rows.iter().all(|row| row["error"].is_null()), "{rows:?}");
    assert!(rows[0]["inputs"]["mke2fs"].as_str().is_some_and(|version| version.contains('.')), "{}", rows[0]);
}

#[test]
fn a_grid_whose_flash_or_paths_changed_is_not_taken_for_what_it_was() {
    let place = Place::new();
    let devices = format!("{}/devices", env!("CARGO_MANIFEST_DIR"));
    let [part, ssd] =
        ["slc-4k", "ssd-slc"].map(|name| fs::read_to_string(format!("{devices}/{name}.toml")).unwrap());
    let named = ssd.lines().find(|line| line.starts_with("nand")).unwrap();
    let part_at = place.text("part.toml", &part);
    let ssd_at = place.text("ssd.toml", &ssd.replace(named, &format!("nand = \"{part_at}\"")));
    let head = "#time_s,pid,op,path_id,offset,length,result\n";
    let trace = place.text("w.csv", &format!("{head}0,1,read,0,0,4096,4096\n"));
    let paths = place.text("w.paths.csv", "0,f,4096,/a\n");
    let text = format!(
        "[fs]\nkind = \"fat\"\n[device]\nprofile = \"{ssd_at}\"\nsize = \"32MiB\"\n[trace]\nfile = \"{trace}\"\n"
    );
    let (stack, out) = (place.text("s.toml", &text), place.path("out"));
    ok(&["replay", "--stack", &stack, "--out", &out]);
    fs::write(&part_at, format!("{part}\n# another one\n")).unwrap();
    refused(&run(&["replay", "--stack", &stack, "--out", &out]), &["part.toml", "another grid"]);
    fs::write(&part_at, &part).unwrap();
    ok(&["replay", "--stack", &stack, "--out", &out]);
    fs::write(&paths, "0,f,8192,/a\n").unwrap();
    refused(&run(&["replay", "--stack", &stack, "--out", &out]), &["w.paths.csv", "another grid"]);
}

#[test]
fn runs_that_cannot_be_are_rows_and_end_no_grid() {
    let place = Place::new();
    let head = "#time_s,pid,op,path_id,offset,length,result\n";
    let mut traces = Vec::new();
    for (name, calls, path) in [
        ("deep", "0,1,stat,0,0,0,0\n".to_string(), "/a".repeat(2000)),
        ("deeper", "0,1,stat,0,0,0,0\n".to_string(), "/a".repeat(200_000)),
        ("many", (0..2500).map(|process| format!("0,{process},stat,0,0,0,0\n")).collect(), "/f".to_string()),
        ("past", "0,1,read,0,18446744073709551600,50,50\n".to_string(), "/f".to_string()),
        ("long", "0,1,create,0,0,0,0\n0,1,write,0,0,68719476736,68719476736\n".to_string(), "/f".to_string()),
    ] {
        traces.push(place.text(&format!("{name}.csv"), &format!("{head}{calls}")));
        place.text(&format!("{name}.paths.csv"), &format!("0,f,0,{path}\n"));
    }
    let text =
        format!("[fs]\nkind = \"fat\"\n[device]\nsize = \"64MiB\"\n[trace]\nfile = \"{}\"\n", traces[0]);
    let (stack, axes) = (place.text("s.toml", &text), [format!("trace.file={}", traces.join(","))]);
    ok(&grid(&stack, &axes, &place.path("out")));
    let rows = place.rows("out");
    let error = |run: usize| rows[run]["error"].as_str().unwrap_or("none");
    assert_eq!((error(0), rows[0]["result"]["calls"].as_u64()), ("none", Some(1)));
    assert!(error(1).contains("200000 levels"), "{}", error(1));
    assert_eq!((error(2), rows[2]["result"]["calls"].as_u64()), ("none", Some(2500)));
    assert!(error(3).contains("2^63 - 1"), "{}", error(3));
    assert_eq!((error(4), rows[4]["result"]["failed"].as_u64()), ("none", Some(1)));
}

#[test]
fn what_is_wrong_with_a_stack_is_told_with_key_file_and_remedy() {
    let place = Place::new();
    let stack = place.text("grid.toml", GRID);
    let wrong = place.text("wrong.toml", &GRID.replace("policy =", "polcy ="));
    let out = place.path("out");
    for (args, told) in [
        (&["--stack", &wrong][..], &["wrong.toml:15", "'polcy'", "did you mean 'policy'"][..]),
        (&["--stack", "/no/such.toml"], &["/no/such.toml"]),
        (&["--stack", &stack, "--set", "cache.sise=1MiB"], &["--set cache.sise=1MiB", "did you mean 'size'"]),
        (&["--stack", &stack, "--set", "cache.size=1MiB,2MiB"], &["cache.size=1MiB,2MiB", "--out FOLDER"]),
        (
            &["--stack", &stack, "--set", "cache.size=1MiB,5", "--out", &out],
            &["cache.size=5", "a size has a unit"],
        ),
        (&["--stack", &stack, "--set", "seed=1", "--set", "seed=2", "--out", &out], &["set before"]),
        (&["--stack", &stack, "--set", "run.speed=0"], &["run.speed must be above 0"]),
        (&["--stack", &stack, "--set", "cache.page=1000B"], &["cache.page must be a power of two"]),
        (
            &["--stack", &stack, "--set", "run.absorb=0-4KiB", "--set", "nvram.takes=heat"],
            &["run.absorb and nvram.takes exclude each other"],
        ),
        (&["--stack", "/dev/zero"], &["/dev/zero", "is a device; name a file"]),
        (&["--stack", &stack, "--set", "run.queue-depth=0", "--out", &out], &["run.queue-depth", "1"]),
        (&["--stack", &stack, "--queue-depth", "4"], &["--set KEY=VALUE"]),
        (&["--stack", &stack, "--out", &out, "--only", "1"], &["from 0 on"]),
        (&["--stack", &stack, "--set", "fs.kind=cmfs"], &["fit", "without a file system"]),
        (&["--stack", &stack, "--set", "ssd.size=1MiB"], &["nfhybrid"]),
    ] {
        refused(&run(&[&["replay"], args].concat()), told);
    }
    assert!(!Path::new(&out).exists(), "nothing was begun");
    refused(&run(&["mount", "--stack", &stack, "/mnt"]), &["no [fs] table", "mount"]);
    refused(&run(&["export", "--stack", &stack, "--nbd", "/tmp/never"]), &["device.image", "bytes"]);
    refused(&run(&["reproduce", "--stack", &stack]), &["grid.toml", "[[expect]]"]);
}

/// The demand of a grid over real traces: 240 runs, killed half-way, the rest made later, and the rows the same.
#[test]
fn a_grid_of_240_runs_over_recorded_traces_survives_being_killed() {
    let Some(dir) = std::env::var_os("BIMETAL_TRACES") else {
        println!("skipped: BIMETAL_TRACES does not name the folder of recorded traces");
        return;
    };
    let block = Path::new(&dir).join("block");
    let traces = [
        "ext2-seq16.dev",
        "ext4-seq16.bio",
        "xfs-seq16.dev",
        "ext4-pm1kd.dev",
        "xfs-pm1kd.bio",
        "ext2-rnd.dev",
    ];
    let traces = traces.map(|name| block.join(format!("{name}.csv.zst")).display().to_string());
    let axes = [
        format!("trace.file={}", traces.join(",")),
        "cache.policy=lru,cflru:window=0.5,fab,cswlru,tide".to_string(),
        "cache.size=256KiB,1MiB,4MiB,16MiB".to_string(),
        "device.ftl=page,fast".to_string(),
    ];
    let place = Place::new();
    let stack = place.text("grid.toml", GRID);
    let (killed, whole) = (place.path("killed"), place.path("whole"));
    let args = grid(&stack, &axes, &killed);
    kill_after(&place, &args, "killed", 120);
    let kept = place.kept("killed");
    assert!((120..240).contains(&kept), "{kept}");
    ok(&args);
    ok(&grid(&stack, &axes, &whole));
    for file in ["rows.jsonl", "rows.parquet"] {
        assert!(place.read(&format!("whole/{file}")) == place.read(&format!("killed/{file}")), "{file}");
    }
    let rows = place.rows("whole");
    let failed = rows.iter().filter(|row| !row["error"].is_null()).count();
    println!("240 runs, killed after {kept}; {failed} failed");
    assert!(rows.len() == 240 && failed == 0, "{failed} failed");
}
