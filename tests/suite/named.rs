//! What a command line names: one volume, of one kind, of files and devices that answer; what it cannot have is refused before
//! anything is touched.

use crate::guard::{Volume, err, out, refused, run};
use crate::mounts::{bimetal, need_fuse, once_free};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A hybrid with a file `/hybrid`, and flash with a file `/flash`.
struct Both {
    volume: Volume,
    nand: PathBuf,
    nvram: PathBuf,
}

impl Both {
    fn new() -> Both {
        let volume = Volume::new();
        let (nand, nvram, file) = (volume.at("nand"), volume.at("nvram"), volume.at("file"));
        fs::write(&file, "a file").unwrap();
        let file = file.to_str().unwrap();
        let parts: &[(&str, &Path)] = &[("--nand", &nand), ("--nvram", &nvram)];
        for (verb, rest) in [(&["mkfs", "cmfs"][..], &["--size", "32MiB"][..]), (&["put"], &[file, "/flash"])]
        {
            let done = run(verb, parts, rest);
            assert!(done.status.success(), "{}", err(&done));
        }
        let both = Both { nand, nvram, volume };
        let done = both.said(&["put", "SSD", "DISK", file, "/hybrid"], &[]);
        assert!(done.status.success(), "{}", err(&done));
        both
    }

    /// A command with variables of the environment; `SSD`, `DISK`, `NAND` and `NVRAM` stand for options, or values.
    fn said(&self, words: &[&str], variables: &[&str]) -> Output {
        let at = |name: &str| match name {
            "SSD" => self.volume.at("ssd"),
            "DISK" => self.volume.at("disk"),
            "NAND" => self.nand.clone(),
            _ => self.nvram.clone(),
        };
        let mut command = bimetal();
        for name in ["SSD", "DISK", "NAND", "NVRAM"] {
            match variables.contains(&name) {
                true => command.env(format!("BIMETAL_{name}"), at(name)),
                false => command.env_remove(format!("BIMETAL_{name}")),
            };
        }
        for word in words {
            match *word {
                "SSD" | "DISK" | "NAND" | "NVRAM" => {
                    command.arg(format!("--{}", word.to_lowercase())).arg(at(word))
                }
                word => command.arg(word),
            };
        }
        command.stdin(Stdio::null()).output().unwrap()
    }
}

const ALL: [&str; 4] = ["SSD", "DISK", "NAND", "NVRAM"];

#[test]
fn what_the_command_line_names_wins_over_the_environment_as_a_whole() {
    need_fuse!();
    let both = Both::new();
    let shows = |words: &[&str], variables: &[&str], name: &str| {
        let listed = both.said(words, variables);
        assert!(listed.status.success(), "{words:?}: {}", err(&listed));
        assert!(out(&listed).contains(name), "{words:?} {variables:?}: {}", out(&listed));
    };
    for variables in [&["NAND", "NVRAM"][..], &ALL] {
        shows(&["ls", "SSD", "DISK", "/"], variables, "hybrid");
        let checked = both.said(&["fsck", "-n", "SSD", "DISK"], variables);
        assert!(out(&checked).contains("inodes"), "{}", out(&checked));
        let put = both.said(&["put", "SSD", "DISK", "/etc/hostname", "/put"], variables);
        assert!(put.status.success(), "{}", err(&put));
        shows(&["ls", "SSD", "DISK", "/"], &[], "put");
        assert!(!out(&both.said(&["ls", "NAND", "NVRAM", "/"], &[])).contains("put"));
        let place = both.volume.at("place");
        fs::create_dir_all(&place).unwrap();
        let mounted = both.said(&["mount", "SSD", "DISK", place.to_str().unwrap()], variables);
        assert!(mounted.status.success(), "{}", err(&mounted));
        let there = place.join("hybrid").exists();
        assert!(once_free(bimetal().arg("umount").arg(&place)).status.success());
        assert!(there, "something else was mounted");
    }
    shows(&["ls", "NAND", "NVRAM", "/"], &ALL, "flash");
    shows(&["ls", "-t", "nfhybrid", "/"], &ALL, "hybrid");
    shows(&["ls", "-t", "cmfs", "/"], &ALL, "flash");
    shows(&["ls", "/"], &["NAND", "NVRAM"], "flash");
    shows(&["ls", "/"], &["SSD", "DISK"], "hybrid");
    // No volume is put together of parts of two.
    refused(&both.said(&["ls", "SSD", "/"], &["DISK"]), &["--disk"]);
}

#[test]
fn volumes_of_two_kinds_at_once_are_refused_by_name() {
    need_fuse!();
    let both = Both::new();
    let before = both.volume.bytes();
    let cases: [(&[&str], &[&str], [&str; 2]); 5] = [
        (&["ls", "SSD", "DISK", "NAND", "/"], &[], ["--ssd", "--nand"]),
        (&["fsck", "DISK", "NAND", "NVRAM"], &[], ["--disk", "--nand"]),
        (&["ls", "-t", "nfhybrid", "NAND", "/"], &[], ["-t nfhybrid", "--nand"]),
        (&["fsck", "-t", "cmfs", "SSD", "DISK"], &[], ["-t cmfs", "--ssd"]),
        (&["ls", "/"], &ALL, ["BIMETAL_SSD", "BIMETAL_NAND"]),
    ];
    for (words, variables, names) in cases {
        let done = both.said(words, variables);
        refused(&done, &[names[0], names[1], "two kinds"]);
        assert!(matches!(done.status.code(), Some(2 | 16)), "{words:?}: {}", done.status);
    }
    assert!(both.volume.bytes() == before);
}

#[test]
fn mkfs_refuses_a_rule_that_cannot_be_before_it_writes() {
    need_fuse!();
    let volume = Volume::new();
    let done = volume.run(&["put", "/etc/hostname", "/f"]);
    assert!(done.status.success(), "{}", err(&done));
    let before = volume.bytes();
    let long = "x".repeat(300);
    let (bypass, map) = (format!("/{long}"), format!("/a/{long}=default"));
    let section = ["--section", "default=extent:64KiB"];
    for (rule, more) in
        [(["--bypass", &bypass], &[][..]), (["--map", &map], &section), (["--map", "/a=none"], &[])]
    {
        let words = [&["mkfs", "nfhybrid", "--force"], &rule[..], more].concat();
        let named = rule[1].split('=').next().unwrap();
        refused(&volume.run(&words), &[named, "name "]);
        assert!(volume.bytes() == before, "{rule:?}: something was written");
    }
    assert!(out(&volume.run(&["ls", "/"])).contains('f'));
    volume.done(&["mkfs", "nfhybrid", "--force", "--bypass", "/a/b", "--bypass", "/c"]);
    assert!(out(&volume.run(&["ls", "/a"])).contains('b'));
}

#[test]
fn an_image_of_too_much_is_not_made_and_replaces_none() {
    let volume = Volume::images();
    let [dir, nand, nvram] = ["dir", "nand", "nvram"].map(|name| volume.at(name));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("small"), "small").unwrap();
    let parts: &[(&str, &Path)] = &[("--nand", &nand), ("--nvram", &nvram)];
    let make = |more: &[&str]| {
        run(&["mkimage", dir.to_str().unwrap()], parts, &[&["--size", "16MiB"], more].concat())
    };
    let large: Vec<u8> = (0..20 << 20).map(|at: u32| (at / 7) as u8).collect();
    fs::write(dir.join("large"), &large).unwrap();
    refused(&make(&[]), &["large", "does not fit"]);
    assert!(!nand.exists() && !nvram.exists(), "something was left");
    fs::remove_file(dir.join("large")).unwrap();
    let made = make(&[]);
    assert!(made.status.success(), "{}", err(&made));
    let before = [&nand, &nvram].map(|path| fs::read(path).unwrap());
    fs::write(dir.join("large"), &large).unwrap();
    refused(&make(&["--force"]), &["large", "does not fit"]);
    assert!([&nand, &nvram].map(|path| fs::read(path).unwrap()) == before, "what was there is gone");
    fs::write(dir.join("large"), "no more").unwrap();
    let made = make(&["--force"]);
    assert!(made.status.success(), "{}", err(&made));
    assert!(out(&run(&["ls"], parts, &["/"])).contains("large"));
}

#[test]
fn a_name_that_a_terminal_would_act_on_is_told_as_text() {
    let done = run(&["ls", "--disk", "no\x1b[31msuch"], &[], &["/"]);
    refused(&done, &["no\\u{1b}[31msuch"]);
}

#[test]
fn no_name_gets_to_a_terminal_raw_in_a_report_or_looks_like_another_message() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_string();
    let odd = "\x1b[31m\n\u{202e}x";
    let (ssd, disk, nand) = (at(&format!("s{odd}")), at(&format!("d{odd}")), at(&format!("n{odd}")));
    for (image, bytes) in [(&ssd, 64 << 20), (&disk, 256 << 20)] {
        fs::File::create(image).unwrap().set_len(bytes).unwrap();
    }
    let halves = ["--ssd", &ssd, "--disk", &disk];
    let calm = |what: &str, done: &Output| {
        let text = out(done) + &err(done);
        assert!(!text.contains('\x1b') && !text.contains('\u{202e}'), "{what}: {text:?}");
        assert!(
            !text.lines().any(|line| line.starts_with('x') || line.starts_with("\\u{202e}")),
            "{what}: {text:?}"
        );
    };
    for (what, args) in [
        ("mkfs", [&["mkfs", "nfhybrid"][..], &halves].concat()),
        ("adopt", [&["adopt", "--force"][..], &halves].concat()),
        ("osd", vec!["mkfs", "osd", "--size", "32MiB", "--nand", &nand]),
    ] {
        let made = run(&args, &[], &[]);
        assert!(made.status.success(), "{what}: {}", err(&made));
        calm(what, &made);
    }
    let place = at("mnt");
    fs::create_dir(&place).unwrap();
    let mounted = run(&[&["mount"][..], &halves, &[&place]].concat(), &[], &[]);
    assert!(mounted.status.success(), "{}", err(&mounted));
    let shown =
        [&["status"][..], &["status", "--all"], &["status", "--json"]].map(|verb| run(verb, &[], &[&place]));
    assert!(once_free(bimetal().arg("umount").arg(&place)).status.success());
    shown.iter().for_each(|shown| calm("status", shown));
    let forged = run(&["ls", "--disk", "a\nbimetal: everything is fine"], &[], &["/"]);
    refused(&forged, &["everything is fine"]);
    assert!(!err(&forged).lines().any(|line| line.starts_with("bimetal: everything")), "{}", err(&forged));
    let section =
        [&["mkfs", "nfhybrid", "--force"][..], &halves, &["--section", "a\x1b=extent:64KiB"]].concat();
    assert_eq!(run(&section, &[], &[]).status.code(), Some(2), "clap refuses it");
}

#[test]
fn a_name_that_is_no_text_can_be_put_listed_and_mapped() {
    need_fuse!();
    use std::os::unix::ffi::OsStrExt;
    let volume = Volume::new();
    let odd = OsStr::from_bytes(b"/n\xff");
    let halves = [volume.at("ssd"), volume.at("disk")];
    let on_images = |verb: &str, args: &[&OsStr]| {
        let mut command = bimetal();
        command.arg(verb).arg("--ssd").arg(&halves[0]).arg("--disk").arg(&halves[1]).args(args);
        command.output().unwrap()
    };
    let put = on_images("put", &[OsStr::new("--json"), OsStr::new("/etc/hostname"), odd]);
    assert!(put.status.success(), "{}", err(&put));
    let told: serde_json::Value = serde_json::from_str(&out(&put)).unwrap();
    let bytes = fs::metadata("/etc/hostname").unwrap().len();
    assert_eq!(told, serde_json::json!({ "objects": 1, "bytes": bytes }));
    let listed = on_images("ls", &[odd]);
    assert!(listed.stdout == b"/n\xff\n", "{}{}", out(&listed), err(&listed));
    let mounted = volume.mount(&[]);
    fs::create_dir(mounted.path().join(OsStr::from_bytes(b"d\xff"))).unwrap();
    let dir = OsStr::from_bytes(b"/d\xff");
    let mapped = bimetal().arg("map").arg(mounted.path()).arg(dir).arg("bypass").output().unwrap();
    assert!(mapped.status.success(), "{}", err(&mapped));
    assert!(mounted.unmount().status.success());
}

#[test]
fn a_directory_gets_one_rule_and_no_other_name_by_mkfs() {
    let volume = Volume::images();
    let before = volume.bytes();
    let two = volume.run(&["mkfs", "nfhybrid", "--map", "/a=default", "--bypass", "/a/"]);
    refused(&two, &["/a", "'bypass'", "already"]);
    refused(&volume.run(&["mkfs", "nfhybrid", "--map", "/../x=default"]), &["/../x", "`..`"]);
    assert!(volume.bytes() == before);
}

/// Runs a command for at most ten seconds.
fn at_once(words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    for name in ALL {
        command.env_remove(format!("BIMETAL_{name}"));
    }
    let program = bimetal().get_program().to_owned();
    let done = command.arg("10").arg(program).args(words).stdin(Stdio::null()).output().unwrap();
    assert_ne!(done.status.code(), Some(124), "{words:?} waits");
    done
}

#[test]
fn nothing_waits_for_a_fifo_that_stands_for_a_file() {
    let volume = Volume::images();
    let (fifo, store, place) = (volume.at("fifo"), volume.at("store"), volume.at("place"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::create_dir(&place).unwrap();
    let made = run(&["mkfs", "osd", "--bare", "--size", "32MiB"], &[("--nand", &store)], &[]);
    assert!(made.status.success(), "{}", err(&made));
    let [fifo, store, place] = [&fifo, &store, &place].map(|path| path.to_str().unwrap());
    let target = volume.at("got");
    let target = target.to_str().unwrap();
    let cases: [&[&str]; 11] = [
        &["ls", "--nand", fifo, "/"],
        &["fsck", "--nand", fifo],
        &["fsck", "-n", "--nand", fifo],
        &["get", "--nand", fifo, "/f", target],
        &["put", "--nand", fifo, "/etc/hostname", "/f"],
        &["replay", "--stack", fifo],
        &["mount", "--stack", fifo, place],
        &["export", "--stack", fifo, "--file", place],
        &["reproduce", "--stack", fifo],
        &["osd", "put", "--nand", store, fifo],
        &["crash", "--replay", fifo],
    ];
    for words in cases {
        refused(&at_once(words), &[fifo]);
    }
    let objects = out(&run(&["osd", "ls"], &[("--nand", Path::new(store))], &[]));
    assert!(at_once(&["osd", "put", "--nand", store, "/dev/zero"]).status.code() == Some(1));
    assert_eq!(out(&run(&["osd", "ls"], &[("--nand", Path::new(store))], &[])), objects);
    refused(&at_once(&["crash", "--replay", "/dev/full"]), &["/dev/full is a device"]);
    // A pipe that was handed over has its writer.
    let mut command = bimetal();
    command.args(["osd", "put", "--nand", store, "/dev/fd/0"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"by a pipe").unwrap();
    let put = child.wait_with_output().unwrap();
    assert!(put.status.success());
    let got = run(&["osd", "get"], &[("--nand", Path::new(store))], &[out(&put).trim()]);
    assert_eq!(out(&got), "by a pipe");
}

/// An experiment, which is not to be begun.
const EXPERIMENT: &str = "nfh-fig7";

#[test]
fn reproduce_refuses_what_is_no_file_of_verdicts_or_results_before_it_measures() {
    let volume = Volume::images();
    let (fifo, folder, id) = (volume.at("fifo"), volume.at("out"), EXPERIMENT);
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for place in [fifo.to_str().unwrap(), "/dev/full"] {
        refused(&at_once(&["reproduce", id, "--seeds", "1", "--record", place]), &[place, "name a file"]);
    }
    fs::create_dir(&folder).unwrap();
    let place = folder.join(format!("{id}-1-short.json"));
    assert!(Command::new("mkfifo").arg(&place).status().unwrap().success());
    let words = ["reproduce", id, "--seeds", "1", "--out", folder.to_str().unwrap()];
    refused(&at_once(&words), &[place.to_str().unwrap(), "FIFO"]);
}

#[test]
fn a_grid_waits_for_nothing_that_is_no_file_and_locks_nothing_behind_a_link() {
    let volume = Volume::images();
    let (stack, rows) = (volume.at("stack.toml"), volume.at("rows"));
    fs::write(&stack, "[trace]\nfile = 'gen:zipf:requests=10'\n[cache]\npolicy = 'lru'\nsize = '1MiB'\n")
        .unwrap();
    let (stack, folder) = (stack.to_str().unwrap(), rows.to_str().unwrap());
    let words = ["replay", "--stack", stack, "--set", "seed=1,2", "--out", folder];
    fs::create_dir(&rows).unwrap();
    let manifest = rows.join("grid.json");
    assert!(Command::new("mkfifo").arg(&manifest).status().unwrap().success());
    refused(&at_once(&words), &["grid.json is a FIFO"]);
    fs::remove_file(&manifest).unwrap();
    let _ = fs::remove_file(rows.join("lock"));
    std::os::unix::fs::symlink(volume.at("elsewhere"), rows.join("lock")).unwrap();
    refused(&at_once(&words), &["lock"]);
    assert!(!volume.at("elsewhere").exists());
}

#[test]
fn the_limit_of_a_files_length_is_an_error_that_is_told() {
    let volume = Volume::new();
    let [nand, nvram, store, large] = ["nand", "nvram", "store", "large"].map(|name| volume.at(name));
    let flash: &[(&str, &Path)] = &[("--nand", &nand), ("--nvram", &nvram)];
    fs::write(&large, vec![7; 4 << 20]).unwrap();
    let file = large.to_str().unwrap();
    for done in [
        run(&["mkfs", "cmfs", "--size", "32MiB"], flash, &[]),
        run(&["put"], flash, &[file, "/large"]),
        run(&["mkfs", "osd", "--bare", "--size", "32MiB"], &[("--nand", &store)], &[]),
        volume.run(&["put", file, "/large"]),
    ] {
        assert!(done.status.success(), "{}", err(&done));
    }
    let limited = |words: &str, blocks: u32| {
        let program = bimetal().get_program().to_str().unwrap().to_string();
        let line = format!("ulimit -f {blocks}; exec {program} {words}");
        Command::new("sh")
            .args(["-c", &line])
            .current_dir(volume.at(""))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let cases = [
        "export nand --nvram nvram --yaffs2-image files.yaffs2",
        "replay gen:zipf:requests=100 --device none --html report.html",
        "osd put --nand store large",
        "mkfs nfhybrid --force --ssd ssd --disk disk",
    ];
    for words in cases {
        let done = limited(words, if words.starts_with("replay") { 2 } else { 64 });
        assert!(done.status.code().is_some_and(|code| code == 1), "{words}: {}", done.status);
        assert!(err(&done).starts_with("bimetal: "), "{words}: {}", err(&done));
    }
    let left = fs::read_dir(volume.at("")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with(".bimetal")).collect();
    assert!(left.is_empty(), "{left:?}");
}
