//! The command line: exit codes, messages, listings.

use crate::mounts::{Mounted, bimetal, no_fuse, skip};
use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};

fn run(args: &[&str]) -> Output {
    bimetal()
        .args(args)
        .env_remove("BIMETAL_SSD")
        .env_remove("BIMETAL_DISK")
        .output()
        .expect("the command runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_senseless_command_line_ends_with_2_and_a_failure_with_1() {
    for args in [&["fly"][..], &[], &["mount"], &["mkfs", "nfhybrid"], &["ls", "--colour"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
    for args in [&["status", "/"][..], &["umount", "/no/such/place"], &["cat", "-t", "memfs", "/x"]] {
        let failed = run(args);
        assert_eq!(failed.status.code(), Some(1), "{args:?}");
        assert!(
            err(&failed).starts_with("bimetal: ") && out(&failed).is_empty(),
            "{args:?}: {}",
            err(&failed)
        );
    }
}

#[test]
fn a_wrong_value_is_answered_with_a_right_one() {
    let sections = ["mkfs", "nfhybrid", "--ssd", "s", "--disk", "d", "--section", "small=size:3"];
    assert!(err(&run(&sections)).contains("small=extent:64KiB,size:16GiB"));
    let wrong = run(&["mount", "-t", "memfs", "-o", "speed=9", "/tmp"]);
    assert!(err(&wrong).contains("speed") && err(&wrong).contains("root_only"), "{}", err(&wrong));
    assert!(err(&run(&["mount", "-t", "memfs", "-o", "size=big", "/tmp"])).contains("64KiB"));
}

#[test]
fn a_mount_that_fails_in_the_background_is_reported_to_the_shell() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let missing = run(&["mount", "-t", "memfs", "/no/such/place"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(err(&missing).contains("/no/such/place: No such file"), "{}", err(&missing));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    assert!(err(&run(&["mount", "-t", "memfs", path])).contains("not a directory"));
}

#[test]
fn everything_there_is_can_be_listed() {
    let all = out(&run(&["list"]));
    for part in [
        "nfhybrid",
        "memfs",
        "root_only",
        "threads=N",
        "writeback",
        "bimetal.status",
        "bimetal.durability",
        "extent:SIZE",
    ] {
        assert!(all.contains(part), "{part} in\n{all}");
    }
    let options = out(&run(&["list", "mount-option"]));
    assert!(options.contains("root_only") && !options.contains("bimetal.status"));
}

#[test]
fn every_name_is_listed_for_programs_completed_by_shells_and_near_misses_are_told() {
    let mut names = Vec::new();
    for line in out(&run(&["list", "--json"])).lines() {
        let registry: serde_json::Value = serde_json::from_str(line).expect(line);
        let entries = registry["entries"].as_array().expect(line);
        assert!(!entries.is_empty(), "{line}");
        names.extend(
            entries.iter().map(|entry| (registry["registry"].as_str().unwrap().to_string(), entry.clone())),
        );
    }
    let of = |registry: &str, name: &str| {
        let found = names.iter().find(|(of, entry)| of == registry && entry["name"] == name);
        found.unwrap_or_else(|| panic!("{registry} {name}")).1["options"].clone()
    };
    assert_eq!(of("cache", "cflru")[0]["name"], "window");
    assert_eq!(of("ftl", "page")[0]["default"], "greedy");
    assert_eq!(
        of("generator", "zipf").as_array().unwrap().iter().filter(|one| one["name"] == "pages").count(),
        1
    );
    assert_eq!(of("placement", "split-atime")[0]["value"], "64..4194304");
    assert_eq!(of("type", "nfhybrid")[0]["name"], "lag");
    for (other, name) in bimetal::ftl::ALIASES {
        let about = names
            .iter()
            .find(|(of, entry)| of == "ftl" && entry["name"] == name)
            .map(|(_, entry)| &entry["about"]);
        assert!(about.and_then(|about| about.as_str()).is_some_and(|about| about.contains(other)), "{other}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = out(&run(&["completions", shell]));
        for (registry, entry) in &names {
            let name = entry["name"].as_str().unwrap();
            let known = ["cache", "ftl", "device", "placement", "trace-format", "experiment", "type"]
                .contains(&registry.as_str());
            // fish is told nothing about what is not an option.
            let known = known && (registry != "experiment" || shell != "fish");
            assert!(!known || script.contains(name), "{shell} does not know {registry} {name}");
        }
    }
    for (args, near) in [
        (&["replay", "gen:ziff"][..], "'zipf'"),
        (&["replay", "gen:zipf:pagse=5"], "'pages'"),
        (&["replay", "gen:zipf", "--cache", "cfrlu", "--cache-size", "1MiB"], "'cflru'"),
        (&["replay", "gen:zipf", "--ftl", "pgae"], "'page'"),
        (&["replay", "gen:zipf", "--device", "hdd-720"], "'hdd-7200'"),
        (&["replay", "/dev/null", "--format", "blktrac"], "'blktrace'"),
        (&["reproduce", "ftl-fig3"], "'ftl-fig2'"),
    ] {
        let failed = run(args);
        assert!(!failed.status.success() && err(&failed).contains(near), "{args:?}: {}", err(&failed));
    }
}

#[test]
fn what_is_not_there_or_too_much_is_refused_with_what_helps_and_nothing_is_made() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    let (image, nand, nvram, place) = (at("image"), at("nand"), at("nvram"), at("no such place"));
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let export = ["export", "--device", "hdd-7200", &image, "--file", &place];
    let mkfs = ["mkfs", "cmfs", "--nand", &nand, "--nvram", &nvram, "--nvram-size", "100TiB"];
    let much = "half of this machine's memory";
    let mount = ["mount", "-t", "memfs", "-o", "prealloc=100TiB", home.path().to_str().unwrap()];
    for (args, part) in [(&export[..], "make it: mkdir"), (&mkfs[..], much), (&mount[..], much)] {
        let failed = run(args);
        assert_eq!(failed.status.code(), Some(1), "{args:?}");
        assert!(err(&failed).contains(part), "{args:?}: {}", err(&failed));
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

#[test]
fn every_verb_has_a_man_page_and_shells_can_complete_them() {
    let home = tempfile::tempdir().unwrap();
    assert!(run(&["man", home.path().to_str().unwrap()]).status.success());
    for verb in ["mount", "umount", "status", "fsck", "put", "mkfs-nfhybrid"] {
        let page = fs::read_to_string(home.path().join(format!("bimetal-{verb}.1"))).unwrap();
        assert!(page.contains("SYNOPSIS") && page.contains(".SH EXAMPLES\n"), "{verb}");
        assert!(!page.contains("EXTRA"), "{verb}");
    }
    let page = fs::read_to_string(home.path().join("bimetal-fsck.1")).unwrap();
    assert!(page.contains(".SH EXIT STATUS\n"), "{page}");
    let page = fs::read_to_string(home.path().join("bimetal.1")).unwrap();
    assert!(
        page.contains(".SH ENVIRONMENT\n") && page.contains("BIMETAL_LOG") && page.contains("bimetal\\-man"),
        "{page}"
    );
    for shell in ["bash", "zsh", "fish"] {
        assert!(out(&run(&["completions", shell])).contains("bimetal"), "{shell}");
    }
}

#[test]
fn every_verb_shows_an_example() {
    let help = out(&run(&["--help"]));
    let verbs =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What is indented further goes on with the line before.
    let verbs = verbs.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let verbs: Vec<&str> = verbs.filter(|verb| !verb.is_empty()).collect();
    assert!(verbs.len() > 12, "{verbs:?}");
    for verb in verbs.into_iter().filter(|verb| *verb != "help") {
        let help = out(&run(&[verb, "--help"]));
        assert!(help.contains("Example") && help.contains("  bimetal "), "{verb}:\n{help}");
    }
}

#[test]
fn files_go_in_by_pipe_and_a_closed_pipe_is_no_error() {
    let mut put = bimetal().args(["put", "-t", "memfs", "-", "/x"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"contents").unwrap();
    assert!(put.wait().unwrap().success());
    let listed = run(&["ls", "-t", "memfs", "--json", "/"]);
    assert!(listed.status.success() && out(&listed).is_empty(), "each open of memfs is a new one");
    let mut list = bimetal().arg("list").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(list.stdout.take());
    assert!(list.wait().unwrap().success());
}

#[test]
fn status_is_json_for_programs_and_words_for_people() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let mounted = Mounted::memfs("size=32MiB");
    fs::write(mounted.path().join("f"), [0; 5000]).unwrap();
    let status = mounted.status();
    assert_eq!(status["used_bytes"], 8192);
    assert_eq!(status["front"]["options"]["default_permissions"], true);
    let screen = out(&run(&["status", mounted.path().to_str().unwrap()]));
    assert!(screen.starts_with("memfs on /") && screen.contains("32.0 MiB  [#..."), "{screen}");
    let words = out(&run(&["status", "--all", mounted.path().to_str().unwrap()]));
    assert!(words.contains("32.0 MiB") && words.contains("type            memfs"), "{words}");
    let map = run(&["map", mounted.path().to_str().unwrap(), "/", "small"]);
    assert!(err(&map).contains("no sections"), "{}", err(&map));
}

#[test]
fn bash_completes_a_name_with_blanks_as_one_word() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("a b"), "").unwrap();
    let script = r#"source <("$0" completions bash)
COMP_WORDS=(bimetal mount --ssd a); COMP_CWORD=3; _bimetal bimetal a --ssd; printf '<%s>' "${COMPREPLY[@]}""#;
    let mut bash = std::process::Command::new("bash");
    let bash = bash.args(["-c", script, env!("CARGO_BIN_EXE_bimetal")]).current_dir(home.path()).output();
    let Ok(done) = bash else { return skip("no bash(1)") };
    assert_eq!(out(&done), "<a b>", "{}", err(&done));
}

#[test]
fn what_takes_longer_than_a_second_shows_that_it_goes_on() {
    if !std::path::Path::new("/usr/bin/script").exists() {
        return skip("no script(1)");
    }
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("nand");
    let made = run(&["mkfs", "osd", "--bare", "--nand", image.to_str().unwrap(), "--size", "32MiB"]);
    assert!(made.status.success(), "{}", err(&made));
    let line =
        format!("(sleep 2; echo x) | {} osd put --nand {} -", env!("CARGO_BIN_EXE_bimetal"), image.display());
    let mut script = std::process::Command::new("script");
    let done = script.args(["-qfec", &line, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    assert!(out(&done).contains("writing the object"), "{}", out(&done));
}

#[test]
fn a_command_line_without_sense_is_told_in_json_too_where_that_was_asked_for() {
    for (args, code) in [
        (&["fsck", "--json"][..], 16),
        (&["fsck", "--json", "--nonsense"], 16),
        (&["status", "--json", "--nonsense", "/"], 2),
        (&["top", "--json"], 2),
    ] {
        let done =
            bimetal().args(args).env_remove("BIMETAL_DISK").env_remove("BIMETAL_SSD").output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{args:?}");
        let said: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        let why = said["error"].as_str().unwrap_or_else(|| panic!("{args:?}: {said}"));
        assert!(!why.is_empty() && !why.contains('\n'), "{args:?}: {why}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let done = bimetal().args(["probe", "--json"]).arg(file.path()).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        (&said["type"], &said["device"]),
        (&serde_json::Value::Null, &file.path().to_str().unwrap().into())
    );
    assert_eq!(done.status.code(), Some(1));
}

#[test]
fn a_mount_that_is_refused_leaves_no_log_and_none_through_a_link() {
    let home = tempfile::tempdir().unwrap();
    let (log, link, old) = (home.path().join("log"), home.path().join("link"), home.path().join("old"));
    std::os::unix::fs::symlink(&log, &link).unwrap();
    fs::write(&old, "").unwrap();
    for path in [&log, &link, &old] {
        let done = run(&[
            "mount",
            "-t",
            "memfs",
            "-o",
            "size=99TiB",
            "--log",
            path.to_str().unwrap(),
            "/nonexistent",
        ]);
        assert_eq!(done.status.code(), Some(1), "{}", err(&done));
        assert!(!log.exists(), "{}", path.display());
    }
    assert!(old.exists());
    let done = run(&["mount", "-t", "memfs", "-o", "sync", "/nonexistent"]);
    assert!(err(&done).contains("fsync or O_SYNC"), "{}", err(&done));
}

#[test]
fn every_way_to_ask_for_help_ends_well_and_says_where_it_could_not_be_told() {
    for words in [
        &["help", "--help"][..],
        &["help", "-h"],
        &["help", "help"],
        &["help", "mount"],
        &["--help"],
        &["--version"],
    ] {
        let done = run(words);
        assert!(done.status.success() && !out(&done).is_empty(), "{words:?}: {}", err(&done));
    }
    for words in [&["--help"][..], &["--version"], &["mount", "--help"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let done = bimetal().args(words).stdout(full).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{words:?}");
        assert!(err(&done).contains("standard output"), "{words:?}: {}", err(&done));
    }
}

#[test]
fn a_value_below_zero_or_a_time_without_sense_is_refused_as_a_value() {
    for words in [
        &["export", "--size", "-1", "i", "--file", "d"][..],
        &["mkfs", "osd", "--segment", "-1", "--nand", "n"],
        &["top", "--every", "5", "/mnt"],
        &["top", "--every", "1ns", "/mnt"],
        &["top", "--every", "0s", "/mnt"],
    ] {
        let done = run(words);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {}", err(&done));
        assert!(
            err(&done).contains("invalid value") && !err(&done).contains("-- -1"),
            "{words:?}: {}",
            err(&done)
        );
    }
}

#[test]
fn no_hidden_flag_is_completed() {
    let script = out(&run(&["completions", "bash"]));
    assert!(script.contains("--foreground") && !script.contains("--sloppy"));
}

#[test]
fn a_list_is_folded_to_the_columns_that_there_are() {
    let folded = out(&run(&["list", "--columns", "60"]));
    let long: Vec<&str> = folded.lines().filter(|line| line.chars().count() > 60).collect();
    assert!(long.is_empty(), "{long:#?}");
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(words(&folded), words(&out(&run(&["list"]))), "nothing is left out");
}

#[test]
fn record_and_map_say_that_nothing_is_mounted_where_they_are_sent() {
    let home = tempfile::tempdir().unwrap();
    let [dir, trace] = [home.path().join("priv"), home.path().join("priv/t.csv")];
    fs::create_dir(&dir).unwrap();
    let [place, trace] = [dir.to_str().unwrap(), trace.to_str().unwrap()];
    for words in [
        &["record", place, "-o", trace][..],
        &["record", place, "--stop"],
        &["map", place, "/x"],
        &["map", "/", "/x"],
    ] {
        let done = run(words);
        assert_eq!(done.status.code(), Some(1), "{words:?}");
        assert!(err(&done).contains("nothing of bimetal is mounted here"), "{words:?}: {}", err(&done));
    }
}

#[test]
fn ls_shows_a_directory_itself_and_get_and_osd_put_tell_what_they_did_in_json() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_string();
    let [nand, bare, file, copy] = ["nand", "bare", "f", "copy"].map(at);
    fs::write(&file, "six by").unwrap();
    let ok = |words: &[&str]| {
        let done = run(words);
        assert!(done.status.success(), "{words:?}: {}", err(&done));
        out(&done)
    };
    let json = |words: &[&str]| serde_json::from_str::<serde_json::Value>(&ok(words)).unwrap();
    ok(&["mkfs", "osd", "--size", "16MiB", "--nand", &nand]);
    ok(&["put", "--nand", &nand, &file, "/f"]);
    assert_eq!(ok(&["ls", "-d", "--nand", &nand, "/"]), "/\n");
    assert_eq!(ok(&["ls", "--nand", &nand, "/"]), "f\n");
    assert!(ok(&["ls", "-dl", "--nand", &nand, "/"]).starts_with('d'));
    assert_eq!(
        json(&["get", "--json", "--nand", &nand, "/f", &copy]),
        serde_json::json!({ "objects": 1, "bytes": 6 })
    );
    assert_eq!(run(&["get", "--json", "--nand", &nand, "/f", "-"]).status.code(), Some(1));
    // Of a file, the inode is an attribute that is no text.
    let files = ok(&["osd", "ls", "--nand", &nand]);
    let stat = json(&["osd", "stat", "--json", "--nand", &nand, files.lines().last().unwrap()]);
    let attributes = stat["attributes"].as_object().unwrap();
    let text = |name: &String| !attributes[name].as_str().unwrap().contains('\u{fffd}');
    let whole = |name: &String| text(name) || attributes.contains_key(&format!("{name}_hex"));
    assert!(!attributes.is_empty() && attributes.keys().all(whole), "{stat}");
    ok(&["mkfs", "osd", "--bare", "--size", "16MiB", "--nand", &bare]);
    let put = json(&["osd", "put", "--json", "--nand", &bare, &file]);
    assert_eq!(ok(&["osd", "get", "--nand", &bare, &put["id"].to_string()]), "six by");
    let removed = json(&["osd", "rm", "--json", "--nand", &bare, &put["id"].to_string()]);
    assert_eq!(removed, serde_json::json!({ "removed": [put["id"]] }));
}

#[test]
fn what_makes_a_volume_and_ends_a_mount_tells_it_in_json() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_string();
    let [ssd, disk, other, nand, nvram, osd] = ["ssd", "disk", "other", "nand", "nvram", "osd"].map(at);
    for (path, mib) in [(&ssd, 32), (&disk, 128), (&other, 32)] {
        fs::File::create(path).unwrap().set_len(mib << 20).unwrap();
    }
    let json = |words: &[&str]| {
        let done = run(words);
        assert!(done.status.success(), "{words:?}: {}", err(&done));
        serde_json::from_str::<serde_json::Value>(&out(&done)).unwrap()
    };
    let made = json(&["mkfs", "nfhybrid", "--json", "--ssd", &ssd, "--disk", &disk]);
    assert_eq!(made, serde_json::json!({ "type": "nfhybrid", "dropped": null }));
    let made = json(&["mkfs", "cmfs", "--json", "--size", "16MiB", "--nand", &nand, "--nvram", &nvram]);
    assert_eq!(made["nand_bytes"], 16 << 20);
    assert_eq!(made["nvram_bytes"].as_u64(), Some(fs::metadata(&nvram).unwrap().len()));
    let made = json(&["mkfs", "osd", "--json", "--bare", "--size", "16MiB", "--nand", &osd]);
    assert!(made["bytes"].as_u64() > Some(1 << 20) && made["has_files"] == false, "{made}");
    let adopted = json(&["adopt", "--json", "--force", "--ssd", &other, "--disk", &disk]);
    assert_eq!(adopted["type"], "nfhybrid");
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let mounted = Mounted::new(&["--ssd", &other, "--disk", &disk]);
    let ended = crate::mounts::once_free(bimetal().args(["umount", "--json"]).arg(mounted.path()));
    let said: serde_json::Value = serde_json::from_str(&out(&ended)).unwrap();
    assert_eq!(said, serde_json::json!({ "unmounted": true, "written": true }));
}
