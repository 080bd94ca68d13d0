//! Every example that `--help` shows, run as it stands there, but for where things are.
//!
//! The examples are taken from the man pages, whose lines are not wrapped. Those below one heading are one script, all others
//! a script each. Each verb has a scene: what its examples find, and what is taken away afterwards. What does not end by
//! itself, or takes hours, is ended after some seconds; it must not have failed by then.

use crate::guard::{err, out};
use crate::mounts::{bimetal, need_fuse};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

/// What a verb's examples find (shell), and before and after each of them.
struct Scene {
    verb: &'static str,
    set: &'static str,
    before: &'static str,
    after: &'static str,
}

const HYBRID: &str = "truncate -s 64M ssd.img; truncate -s 256M disk.img
    bimetal mkfs nfhybrid --ssd ssd.img --disk disk.img --section small=extent:16KiB --bypass /backup --map /home=small
    for dir in docs photos etc; do mkdir $dir; date > $dir/a.txt; done; cp /etc/hostname etc/fstab; date > a.txt; date > b.txt
    bimetal put --ssd ssd.img --disk disk.img docs photos etc /";
const TRACES: &str = "echo '0,8,512,w,0.5' > financial.spc; echo '0,16,512,r,0.7' >> financial.spc
    printf '128166372003061629,hm,0,Write,383496192,32768,413\\n128166372016382155,hm,0,Read,383496192,32768,113\\n' | gzip > hm_0.csv.gz
    printf '[trace]\\ngenerator = { name = \"iometer\", size = \"4MiB\", requests = 200 }\\n[device]\\nprofile = \"slc-4k\"\\nftl = \"page\"\\n[cache]\\npolicy = \"lru\"\\nsize = \"1MiB\"\\n[[expect]]\\nfigure = \"requests\"\\nis = 200\\nwithin = 0\\n' > camera.toml";

/// An object store whose first object of a user is 3.
const STORE: &str = "bimetal mkfs osd --bare --nand nand.img --size 32MiB; date > a.txt
    bimetal osd put --nand nand.img --id 3 a.txt";

/// A scene whose examples are on a mount or on images.
const fn scene(verb: &'static str, set: &'static str) -> Scene {
    Scene { verb, set, before: "", after: "" }
}

fn scenes() -> Vec<Scene> {
    vec![
        scene("mkfs", ""),
        scene("mkfs-nfhybrid", "truncate -s 16G nvme.img; truncate -s 8G sda.img"),
        scene("mkfs-cmfs", ""),
        scene("mkfs-osd", ""),
        scene("mkimage", "mkdir rootfs; date > rootfs/x"),
        Scene {
            after: "case \"$EXAMPLE\" in *'bimetal mount'*) bimetal umount data;; esac",
            ..scene(
                "adopt",
                "truncate -s 64M nvme.img; truncate -s 256M sda.img; mke2fs -q -t ext4 sda.img; mkdir k; mount -o loop sda.img k",
            )
        },
        Scene {
            set: HYBRID,
            before: "printf '[fs]\\nkind = \"nfhybrid\"\\n[ssd]\\nimage = \"ssd.img\"\\n[disk]\\nimage = \"disk.img\"\\n' > hybrid.toml",
            after: "bimetal umount mnt",
            ..scene("mount", "")
        },
        Scene { before: "bimetal mount -t memfs mnt", ..scene("umount", "") },
        Scene {
            set: HYBRID,
            before: MOUNTED_AND_SERVED,
            after: "bimetal umount mnt; kill $(cat pid); while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done",
            ..scene("status", "")
        },
        Scene {
            set: HYBRID,
            before: MOUNTED_TWICE,
            after: "bimetal umount mnt; bimetal umount data",
            ..scene("top", "")
        },
        Scene { set: HYBRID, before: MOUNTED_ANEW, after: "bimetal umount mnt", ..scene("explain", "") },
        Scene {
            set: HYBRID,
            before: MOUNTED_TWICE,
            after: "bimetal umount mnt; bimetal umount data",
            ..scene("metrics", "")
        },
        Scene { set: HYBRID, before: MOUNTED_ANEW, after: "bimetal umount mnt", ..scene("map", "") },
        scene("probe", HYBRID),
        scene("fsck", HYBRID),
        Scene {
            set: HYBRID,
            before: "case \"$EXAMPLE\" in *mnt*) bimetal mount --ssd ssd.img --disk disk.img mnt;; esac",
            after: "case \"$EXAMPLE\" in *mnt*) bimetal umount mnt;; esac",
            ..scene("scrub", "")
        },
        scene("rescue", RESCUED),
        scene("ls", HYBRID),
        scene("cat", HYBRID),
        scene("put", HYBRID),
        Scene { set: HYBRID, before: "rm -rf photos", ..scene("get", "") },
        scene("osd", "mkdir photos; date > photos/1; printf 'all:\\n\\tdate > made\\n' > Makefile"),
        scene("osd-put", STORE),
        scene("osd-get", STORE),
        scene("osd-ls", STORE),
        scene("osd-stat", STORE),
        scene("osd-rm", STORE),
        scene(
            "osd-replay",
            "printf 'all:\\n\\tdate > made\\n' > Makefile; strace -f -y -ttt -s 0 -o make.strace make >/dev/null",
        ),
        Scene { set: HYBRID, before: MOUNTED_ANEW, after: "bimetal umount mnt", ..scene("record", "") },
        scene("crash", CRASHED),
        scene("replay", TRACES),
        Scene {
            before: "seq 1 3000 | awk '{ print \"0,\" $1 * 8 \",4096,r,\" $1 }' > financial.spc",
            ..scene("curve", TRACES)
        },
        scene("reproduce", TRACES),
        Scene { after: "umount served 2>/dev/null || true", ..scene("export", EXPORTED) },
        scene("list", ""),
        scene("man", ""),
        scene("completions", ""),
    ]
}

const MOUNTED_ANEW: &str = "bimetal mount --ssd ssd.img --disk disk.img mnt; date > mnt/log; mkdir -p mnt/src; printf 'all:\\n' > mnt/src/Makefile";
const MOUNTED_TWICE: &str = "bimetal mount --ssd ssd.img --disk disk.img mnt; bimetal mount -t memfs data";
const MOUNTED_AND_SERVED: &str = "bimetal mount --ssd ssd.img --disk disk.img mnt; rm -f nand.img nvram.img
    bimetal mkfs cmfs --device slc-2k --nand nand.img --nvram nvram.img
    bimetal export --ftl fast --profile slc-2k --size 64MiB flash.img --nbd tmp/nbd --no-latency > tmp/log 2>&1 & echo $! > pid; await tmp/nbd.status";
const RESCUED: &str =
    "truncate -s 64M nvme.img; truncate -s 256M sda.img; bimetal mkfs nfhybrid --ssd nvme.img --disk sda.img
    date > x; bimetal put --ssd nvme.img --disk sda.img x /; mkdir usb";
const CRASHED: &str =
    "truncate -s 64M ssd.img; truncate -s 256M disk.img; bimetal mkfs nfhybrid --ssd ssd.img --disk disk.img
    mkdir src; printf 'install:\\n\\tdate > $(MNT)/x\\n' > src/Makefile
    git config --global user.name me; git config --global user.email me@example.org";
const EXPORTED: &str = "mkdir f; date > f/x; bimetal mkimage f --nand nand.img --nvram nvram.img --device slc-2k; truncate -s 64M ssd.img
    truncate -s 256M half.img; truncate -s 1M some.img
    printf '[disk]\\nprofile = \"hdd-7200\"\\nsize = \"256MiB\"\\nimage = \"half.img\"\\n' > hybrid.toml";

/// Where things are in a scene.
const PLACES: [(&str, &str); 13] = [
    ("/mnt/usb", "usb"),
    ("/mnt", "mnt"),
    ("/data", "data"),
    ("/dev/nvme0n1p3", "nvme.img"),
    ("/dev/sda1", "sda.img"),
    ("/tmp/", "tmp/"),
    ("socket=/tmp", "socket=tmp"),
    ("/usr/local/share/", "share/"),
    ("/etc/bash_completion.d/", "share/"),
    ("~/.config/fish/completions/", "share/"),
    ("/var/lib/prometheus/node-exporter/", "share/"),
    ("-C /src", "-C src"),
    ("../traces", "traces"),
];

/// What stands for something else, and what it is here.
const MEANT: [(&str, &str); 8] = [
    ("412-torn-7", "12-torn-7"),
    ("man bimetal-mount", "test -s share/man/man1/bimetal-mount.1"),
    ("sqlite3 ...", "sh -c 'mkdir -p $MNT/db && sqlite3 $MNT/db/x \"create table t(a)\"'"),
    ("0 3 * * 0  bimetal", "bimetal"),
    ("watch bimetal", "bimetal"),
    ("sda.blktrace.0", "financial.spc"),
    ("trace.csv.zst", "hm_0.csv.gz"),
    ("--states 5000", "--states 40"),
];

/// What does not end by itself, or takes too long for a test.
const ENDLESS: [&str; 13] = [
    "cp -r /etc",
    "--half disk --file served",
    "bimetal top mnt",
    "bimetal top --every",
    "bimetal metrics mnt",
    "bimetal metrics --listen",
    "bimetal metrics --socket",
    "--for 1h",
    "reproduce all",
    "reproduce ftl-fig2",
    "reproduce nfh-fig7 --live",
    "gen:postmark",
    "size=256MiB --ftl page",
];

/// The examples of each verb, as scripts.
fn examples(pages: &Path) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(pages).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let verb = name.strip_prefix("bimetal-").and_then(|rest| rest.strip_suffix(".1"));
        let text = fs::read_to_string(entry.path()).unwrap();
        let lines = text.lines().skip_while(|line| *line != ".SH EXAMPLES").skip(2);
        let lines = lines.take_while(|line| *line != ".fi").map(as_typed);
        let scripts = scripts(lines);
        if let (Some(verb), false) = (verb, scripts.is_empty()) {
            all.insert(verb.to_string(), scripts);
        }
    }
    all
}

/// A line of a man page as a terminal shows it.
fn as_typed(line: &str) -> String {
    let line = line.replace("\\&", "").replace("\\-", "-").replace("\\(aq", "'").replace("\\(ti", "~");
    line.replace("\\e", "\\").replace("\\(rs", "\\").replace("\\*(Aq", "'")
}

/// What is below one heading is one script; without a heading, each line.
fn scripts(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut scripts: Vec<String> = Vec::new();
    let mut below_heading = false;
    let mut goes_on = false;
    for line in lines {
        let typed = line.trim();
        if goes_on {
            scripts.last_mut().unwrap().push_str(typed.trim_end_matches('\\'));
        } else if typed.ends_with(':') {
            below_heading = true;
            scripts.push(String::new());
        } else if line.starts_with("  ") {
            // What follows more than two blanks is a remark.
            let command =
                typed.split("   ").next().unwrap_or_default().split("  (").next().unwrap_or_default();
            if !below_heading
                || !line.starts_with("    ") && scripts.last().is_none_or(|last| !last.is_empty())
            {
                below_heading = false;
                scripts.push(String::new());
            }
            let last = scripts.last_mut().unwrap();
            last.push_str(command.trim_end_matches('\\'));
            if !typed.ends_with('\\') {
                last.push('\n');
            }
        }
        goes_on = typed.ends_with('\\');
    }
    scripts.retain(|script| !script.trim().is_empty());
    scripts
}

fn shell(home: &Path, script: &str, example: &str) -> Output {
    let program = bimetal().get_program().to_owned();
    let program = Path::new(&program).parent().unwrap().display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let waits = "await() { n=0; until test -e \"$1\"; do n=$((n+1)); test $n -lt 600; sleep 0.1; done; }\n";
    let mut sh = Command::new("bash");
    sh.args(["-euc", &format!("{waits}{script}")])
        .current_dir(home)
        .env("HOME", home)
        .env("EXAMPLE", example);
    sh.env("PATH", format!("{program}:{path}:/usr/sbin:/sbin")).output().expect("bash(1)")
}

/// An example as it is run in a scene.
fn placed(example: &str) -> String {
    let meant = MEANT.iter().fold(example.to_string(), |text, (from, to)| text.replace(from, to));
    let mut placed = PLACES.iter().fold(meant, |text, (from, to)| text.replace(from, to));
    if ENDLESS.iter().any(|part| placed.contains(part)) {
        placed = format!(
            "code=0; timeout -s INT -k 20 2 {} || code=$?; case $code in 0|124|130) ;; *) exit $code;; esac\n",
            placed.trim_end()
        );
    }
    // What is started beside is there before the next line.
    placed
        .replace(
            "--file served &",
            "--file served & PID=$!; trap 'umount -q -l served || true; kill $PID || true; wait' EXIT; await served/device",
        )
        .replace("--no-latency &", "--no-latency & PID=$!; trap 'kill $PID; wait' EXIT; await tmp/nbd.status")
}

/// Runs the examples of a verb in its scene: what failed, in words.
fn run(scene: &Scene, scripts: &[String]) -> Vec<String> {
    let (verb, mut failed) = (scene.verb, Vec::new());
    let home = tempfile::tempdir().unwrap();
    for dir in ["mnt", "data", "tmp", "share/man/man1", "share/zsh/site-functions", "traces"] {
        fs::create_dir_all(home.path().join(dir)).unwrap();
    }
    let set = shell(home.path(), scene.set, "");
    if !set.status.success() {
        return vec![format!("scene of {verb}: {}{}", out(&set), err(&set))];
    }
    for example in scripts {
        let script = placed(example);
        let before = shell(home.path(), scene.before, &script);
        if !before.status.success() {
            failed.push(format!("before {example}of {verb}: {}", err(&before)));
        }
        let done = shell(home.path(), &script, &script);
        let after = shell(home.path(), scene.after, &script);
        if !done.status.success() {
            failed.push(format!("{verb}: {example}as {script}{}\n{}", out(&done), err(&done)));
        } else if !after.status.success() {
            failed.push(format!("after {verb}: {example}{}", err(&after)));
        }
    }
    // Whatever a failed one left mounted.
    for place in ["mnt", "data", "served", "k"] {
        let _ = Command::new("umount").args(["-q", "-l"]).arg(home.path().join(place)).output();
    }
    failed
}

#[test]
fn every_example_that_help_shows_runs() {
    need_fuse!();
    let pages = tempfile::tempdir().unwrap();
    assert!(bimetal().arg("man").arg(pages.path()).status().unwrap().success());
    let examples = examples(pages.path());
    let scenes = scenes();
    // Most of the time they wait, each for its own mounts.
    let (next, told) = (Mutex::new(examples.iter()), Mutex::new((0, Vec::new())));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some((verb, scripts)) = next.lock().unwrap().next() else { break };
                    let failed = match scenes.iter().find(|scene| scene.verb == verb) {
                        Some(scene) => run(scene, scripts),
                        None => vec![format!("the examples of {verb} need a scene: {scripts:?}")],
                    };
                    let mut told = told.lock().unwrap();
                    told.0 += scripts.len();
                    told.1.extend(failed);
                }
            });
        }
    });
    let (ran, failed) = told.into_inner().unwrap();
    println!("{ran} examples of {} verbs", examples.len());
    assert!(failed.is_empty(), "{} of {ran} failed:\n{}", failed.len(), failed.join("\n---\n"));
    assert!(ran > 50, "{ran}");
    for scene in &scenes {
        assert!(examples.contains_key(scene.verb), "{} has no examples any more", scene.verb);
    }
}
