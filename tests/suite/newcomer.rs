//! What CONTRIBUTING promises whoever comes next: something new of every sort that is chosen by name is one file, and a line
//! in one other file (with its `mod`, where there is one). Each is done in a copy of this source; the files that differ then
//! are counted (in memory, in `make test`); the copy is built, and everything new is used under its name (`make test-long`).

use crate::mounts::{no_fuse, skip};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Something new, made from something that is there.
struct Addition<'a> {
    /// What it is, for messages.
    what: &'a str,
    /// The file it is made from, and what is called otherwise in it.
    from: (&'a str, &'a [(&'a str, &'a str)]),
    /// The new file.
    to: &'a str,
    /// The registry's file, and what stands before each line that is put there, and the line.
    registry: (&'a str, &'a [(&'a str, &'a str)]),
}

/// An experiment from nothing.
const EXPERIMENT: &str = "//! Mine.
use super::super::{Experiment, Measured};

/// Registry line.
pub(super) const EXPERIMENT: Experiment =
    Experiment { id: \"mine\", about: \"it is mine\", seconds: 1.0, measure: |_| Ok(Measured::default()) };
";

const ADDITIONS: &[Addition] = &[
    Addition {
        what: "a cache policy",
        from: ("crates/cache/src/policies/clock.rs", &[("\"clock\"", "\"mine\"")]),
        to: "crates/cache/src/policies/mine.rs",
        registry: (
            "crates/cache/src/policies/mod.rs",
            &[("pub mod lru_wsr;\n", "pub mod mine;\n"), ("&tide::ENTRY,\n", "&mine::ENTRY,\n")],
        ),
    },
    Addition {
        what: "a translation layer",
        from: ("crates/ftl/src/nftl.rs", &[("\"nftl\"", "\"mine\"")]),
        to: "crates/ftl/src/mine.rs",
        registry: (
            "crates/ftl/src/lib.rs",
            &[("pub mod nftl;\n", "pub mod mine;\n"), ("&dftl::SCHEME", ", &mine::SCHEME")],
        ),
    },
    Addition {
        what: "a device",
        from: ("devices/hdd-7200.toml", &[]),
        to: "devices/mine.toml",
        registry: (
            "crates/media/src/profile.rs",
            &[("built_in!(\"hdd-7200\"),\n", "built_in!(\"mine\"),\n")],
        ),
    },
    Addition {
        what: "a trace format",
        from: ("crates/trace/src/formats/spc.rs", &[("\"spc\"", "\"mine\"")]),
        to: "crates/trace/src/formats/mine.rs",
        registry: (
            "crates/trace/src/formats/mod.rs",
            &[("pub mod fio;\n", "pub mod mine;\n"), ("&oracle::FORMAT,\n", "&mine::FORMAT,\n")],
        ),
    },
    Addition {
        what: "a generator",
        from: ("crates/trace/src/generators/zipf.rs", &[("\"zipf\"", "\"mine\"")]),
        to: "crates/trace/src/generators/mine.rs",
        registry: (
            "crates/trace/src/generators/mod.rs",
            &[("mod iozone;\n", "mod mine;\n"), ("&reference::GENERATOR,\n", "&mine::GENERATOR,\n")],
        ),
    },
    Addition {
        what: "a placement",
        from: ("crates/osd-core/src/placement/combined.rs", &[("\"combined\"", "\"mine\"")]),
        to: "crates/osd-core/src/placement/mine.rs",
        registry: (
            "crates/osd-core/src/placement/mod.rs",
            &[("mod lifetime;\n", "mod mine;\n"), ("&lifetime::SCHEME", ", &mine::SCHEME")],
        ),
    },
    Addition {
        what: "an experiment",
        from: ("", &[]),
        to: "crates/lab/src/reproduce/experiments/mine.rs",
        registry: (
            "crates/lab/src/reproduce/experiments/mod.rs",
            &[("mod inventory;\n", "mod mine;\n"), ("&p2p::EXPERIMENT,\n", "&mine::EXPERIMENT,\n")],
        ),
    },
    Addition {
        what: "a file system",
        from: ("crates/lab/src/kinds/memfs.rs", &[("\"memfs\"", "\"mine\"")]),
        to: "crates/lab/src/kinds/mine.rs",
        registry: (
            "crates/lab/src/kinds/mod.rs",
            &[("pub mod memfs;\n", "pub mod mine;\n"), ("&fat::KIND", ", &mine::KIND")],
        ),
    },
];

/// What files hold, by their paths.
type Tree = BTreeMap<PathBuf, Vec<u8>>;

/// The source as it is here: what git knows, and what it is not told to pass over.
fn source() -> Option<Tree> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut git = Command::new("git");
    git.current_dir(home).args(["ls-files", "-co", "--exclude-standard"]);
    let listed = git.output().ok().filter(|listed| listed.status.success())?;
    let listed = String::from_utf8(listed.stdout).ok()?;
    Some(listed.lines().filter_map(|name| Some((name.into(), fs::read(home.join(name)).ok()?))).collect())
}

fn edited(text: &str, edits: &[(&str, &str)], what: &str, edit: impl Fn(&str, &str) -> String) -> String {
    edits.iter().fold(text.to_string(), |text, (from, to)| {
        assert!(text.contains(from), "{what}: there is no {from:?} any more; this test is to follow it");
        text.replacen(from, &edit(from, to), 1)
    })
}

fn text_at<'t>(tree: &'t Tree, name: &str) -> &'t str {
    let bytes = tree.get(Path::new(name)).unwrap_or_else(|| panic!("there is no {name} any more"));
    std::str::from_utf8(bytes).expect("text")
}

/// Puts it into the source.
fn add(tree: &mut Tree, addition: &Addition) {
    let Addition { what, from: (from, names), to, registry: (registry, lines) } = addition;
    let new = match *from {
        "" => EXPERIMENT.to_string(),
        from => edited(text_at(tree, from), names, what, |_, to| to.into()),
    };
    let list = edited(text_at(tree, registry), lines, what, |from, line| format!("{from}{line}"));
    tree.insert(to.into(), new.into());
    tree.insert(registry.into(), list.into());
}

#[test]
fn something_new_of_each_sort_is_one_file_and_one_place_in_another() {
    let Some(source) = source() else { return skip("this source is in no git repository") };
    for addition in ADDITIONS {
        let mut after = source.clone();
        add(&mut after, addition);
        let touched = after.iter().filter(|(path, bytes)| source.get(*path) != Some(bytes));
        let touched: Vec<_> = touched.map(|(path, _)| path).collect();
        assert_eq!((touched.len(), after.len()), (2, source.len() + 1), "{}: {touched:?}", addition.what);
    }
}

fn text_of(done: &Output) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
}

#[test]
#[ignore = "builds the command once more"]
fn what_is_new_is_used_under_its_name_everywhere() {
    let Some(mut source) = source() else { return skip("this source is in no git repository") };
    ADDITIONS.iter().for_each(|addition| add(&mut source, addition));
    let program = built(source);
    let home = tempfile::tempdir().unwrap();
    let run = |line: &str| {
        let mut command = Command::new(&program);
        let done = command.current_dir(home.path()).args(line.split_whitespace()).output().unwrap();
        assert!(done.status.success(), "{line}: {}", text_of(&done));
        text_of(&done)
    };
    for registry in ["type", "device", "ftl", "cache", "placement", "trace-format", "generator", "experiment"]
    {
        assert!(run(&format!("list {registry}")).contains("  mine "), "{registry}");
    }
    let counts = |line: &str| {
        let report: serde_json::Value = serde_json::from_str(&run(line)).unwrap();
        ["requests", "hit_ratio", "pages_programmed", "erases", "merges"].map(|name| report[name].clone())
    };
    let cached = |policy: &str, generator: &str| {
        counts(&format!("replay gen:{generator}:requests=3000 --cache {policy} --cache-size 1MiB --json"))
    };
    assert_eq!(cached("mine", "mine"), cached("clock", "zipf"), "what is like another counts like it");
    assert_ne!(cached("mine", "mine"), cached("lru", "zipf"));
    let translated =
        |ftl: &str| counts(&format!("replay gen:fio-job:requests=30000 --ftl {ftl} --device slc-2k --json"));
    assert_eq!(translated("mine"), translated("nftl"), "what is like another counts like it");
    assert_ne!(translated("mine"), translated("page"));
    fs::write(home.path().join("trace"), "0,8,512,w,0.5\n0,16,512,r,0.7\n").unwrap();
    run("replay trace --format mine --device mine --json");
    run("mkfs osd --nand nand --size 16MiB --placement mine");
    run("fsck --nand nand");
    assert!(run("reproduce mine").contains("it is mine"));
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    fs::create_dir(home.path().join("mnt")).unwrap();
    run("mount -t mine -o size=16MiB mnt");
    let written = fs::write(home.path().join("mnt/file"), b"mine");
    run("umount mnt");
    written.unwrap();
}

/// Builds this source beside what is built already, under another name.
fn built(mut source: Tree) -> PathBuf {
    let edits = [("[package]\n", "autobins = false\n"), ("\n[lints]", "")];
    let manifest = edited(text_at(&source, "Cargo.toml"), &edits, "the manifest", |from, line| match line {
        "" => format!("\n[[bin]]\nname = \"newcomer\"\npath = \"src/main.rs\"\n{from}"),
        line => format!("{from}{line}"),
    });
    source.insert("Cargo.toml".into(), manifest.into());
    let target = Path::new(env!("CARGO_BIN_EXE_bimetal")).ancestors().nth(2).unwrap();
    // Always the same place, and only what differs is written, so that it is built once.
    let copy = target.join("newcomer");
    for (name, bytes) in &source {
        let file = copy.join(name);
        if fs::read(&file).ok().as_ref() != Some(bytes) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        }
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&copy).args(["build", "--offline", "--quiet", "--bin", "newcomer"]);
    let done = cargo.env("CARGO_TARGET_DIR", target).output().unwrap();
    assert!(done.status.success(), "{}", text_of(&done));
    target.join("debug/newcomer")
}
