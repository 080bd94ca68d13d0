//! `bimetal fsck` of osd and cmfs: every structure that docs/damage.md lists is damaged in an image, one case each; then it is
//! mounted, looked at, checked, repaired and worked on by the commands alone.

use crate::fsck::{ended, kill, write_synced};
use crate::guard::{err, out, refused, run};
use crate::mounts::{Mounted, bimetal, need_fuse};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// Contents that are found again in an image, several pages long.
fn marked(name: &str) -> Vec<u8> {
    let mut bytes = vec![name.len() as u8; 9000];
    let mark = format!("the contents of {name}, ");
    bytes[..mark.len()].copy_from_slice(mark.as_bytes());
    bytes
}

type Files = BTreeMap<String, Vec<u8>>;

fn files(names: impl Iterator<Item = String>) -> Files {
    names.map(|name| (name.clone(), marked(&name))).collect()
}

/// Compares a mount with what should be there, but for some files.
fn compare(at: &Path, files: &Files, but: &[&str], case: &str) {
    for (name, bytes) in files.iter().filter(|(name, _)| !but.contains(&name.as_str())) {
        let found = fs::read(at.join(name)).unwrap_or_else(|why| panic!("{case}: {name}: {why}"));
        assert!(&found == bytes, "{case}: {name} differs");
    }
}

/// The parts of a volume, in a directory of their own.
struct Parts {
    home: TempDir,
    names: &'static [(&'static str, &'static str)],
}

impl Parts {
    fn new(names: &'static [(&'static str, &'static str)]) -> Parts {
        Parts { home: tempfile::tempdir().unwrap(), names }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn copy(&self) -> Parts {
        let copy = Parts::new(self.names);
        for (_, name) in self.names {
            fs::copy(self.at(name), copy.at(name)).unwrap();
        }
        copy
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.names.iter().map(|(_, name)| fs::read(self.at(name)).unwrap()).collect()
    }

    fn run(&self, verb: &[&str], rest: &[&str]) -> Output {
        let places: Vec<(&str, PathBuf)> =
            self.names.iter().map(|(option, name)| (*option, self.at(name))).collect();
        let places: Vec<(&str, &Path)> =
            places.iter().map(|(option, path)| (*option, path.as_path())).collect();
        run(verb, &places, rest)
    }

    fn ok(&self, verb: &[&str], rest: &[&str]) -> String {
        let done = self.run(verb, rest);
        assert!(done.status.success(), "{verb:?}: {}", err(&done));
        out(&done)
    }

    fn mount(&self) -> Mounted {
        let mut arguments = Vec::new();
        for (option, name) in self.names {
            arguments.extend([option.to_string(), self.at(name).to_str().unwrap().to_string()]);
        }
        Mounted::new(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A check that only looks says `parts`, ends with `code`, and leaves every byte as it was.
    fn looked_at(&self, code: i32, parts: &[&str], case: &str) {
        println!("{case}");
        let before = self.bytes();
        ended(&self.run(&["fsck", "-n"], &[]), code, parts);
        assert!(self.bytes() == before, "{case}: fsck -n wrote to it");
    }

    /// Mounted again and again it works on.
    fn works_on(&self, files: &mut Files, but: &[&str], case: &str) {
        for round in 0..2 {
            let mounted = self.mount();
            compare(mounted.path(), files, but, case);
            for number in 0..5 {
                let name = format!("later{round}{number}");
                write_synced(&mounted.path().join(&name), &marked(&name));
                files.insert(name.clone(), marked(&name));
            }
            let gone = format!("later{round}0");
            fs::remove_file(mounted.path().join(&gone)).unwrap();
            files.remove(&gone);
            let ended = mounted.unmount();
            assert!(ended.status.success(), "{case}: {}", err(&ended));
        }
        compare(self.mount().path(), files, but, case);
    }
}

/// What reading a damaged page gives: EUCLEAN.
const UNCLEAN: i32 = 117;

const OSD: &[(&str, &str)] = &[("--nand", "nand")];
/// Files that were there when it was closed, and those that came before the power went.
const OLD: usize = 30;
const LATE: usize = 12;

/// An image of an object store, taken apart.
struct Flash {
    bytes: Vec<u8>,
    page_bytes: usize,
    pages_per_block: usize,
    units: usize,
    blocks_per_unit: usize,
}

const DATA: u8 = 1;
const LOG: u8 = 2;
const NODE: u8 = 3;
const TABLE: u8 = 4;
const CHECKPOINT: u8 = 5;
const SUMMARY: u8 = 7;
const ANCHOR: u8 = 8;
const FORMAT: u8 = 10;

impl Flash {
    fn of(parts: &Parts) -> Flash {
        let bytes = fs::read(parts.at("nand")).unwrap();
        assert!(bytes.starts_with(b"bimetalN"));
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (pages_per_block, page_bytes, units, blocks_per_unit) = (word(12), word(16), word(28), word(32));
        Flash { bytes, page_bytes, pages_per_block, units, blocks_per_unit }
    }

    fn save(&self, parts: &Parts) {
        fs::write(parts.at("nand"), &self.bytes).unwrap();
    }

    fn pages(&self) -> usize {
        self.units * self.blocks_per_unit * self.pages_per_block
    }

    fn tags(&self) -> usize {
        4096 + 8 * self.units * self.blocks_per_unit
    }

    fn start(&self, page: usize) -> usize {
        (self.tags() + 12 * self.pages()).next_multiple_of(65536) + page * self.page_bytes
    }

    fn page(&self, page: usize) -> &[u8] {
        &self.bytes[self.start(page)..][..self.page_bytes]
    }

    /// The programmed pages of a kind, with the serial that each has.
    fn of_kind(&self, kind: u8) -> Vec<(usize, u64)> {
        let pages = (0..self.pages()).filter_map(|page| {
            let at = self.tags() + 12 * page;
            let owner = u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap());
            let sequence = u64::from_le_bytes(self.bytes[at + 4..at + 12].try_into().unwrap());
            (owner > 1 && sequence as u8 == kind).then_some((page, sequence >> 8))
        });
        pages.collect()
    }

    fn word(&self, page: usize, at: usize) -> u32 {
        u32::from_le_bytes(self.page(page)[at..at + 4].try_into().unwrap())
    }

    fn long(&self, page: usize, at: usize) -> u64 {
        u64::from_le_bytes(self.page(page)[at..at + 8].try_into().unwrap())
    }

    /// The page at an address of the store, whose segments are one block.
    fn at(&self, address: u32) -> usize {
        let (number, page) =
            (address as usize / self.pages_per_block, address as usize % self.pages_per_block);
        let block = number % self.units * self.blocks_per_unit + number / self.units;
        block * self.pages_per_block + page
    }

    /// Anchors, the newest first.
    fn anchors(&self) -> Vec<usize> {
        let mut anchors = self.of_kind(ANCHOR);
        anchors.sort_by_key(|(_, serial)| std::cmp::Reverse(*serial));
        anchors.into_iter().map(|(page, _)| page).collect()
    }

    /// The pages of the checkpoint that an anchor names.
    fn checkpoint(&self, anchor: usize) -> Vec<usize> {
        let (chains, pages) = (self.word(anchor, 52) as usize, self.word(anchor, 60) as usize);
        (0..pages).map(|page| self.at(self.word(anchor, 64 + 20 * chains + 4 * page))).collect()
    }

    /// Log pages, as they were written.
    fn log(&self) -> Vec<usize> {
        let mut log: Vec<usize> = self.of_kind(LOG).into_iter().map(|(page, _)| page).collect();
        log.sort_by_key(|page| self.long(*page, 0));
        log
    }

    /// The newest page of the leaf with the first files, which is the one with the root directory's onode.
    fn first_leaf(&self) -> usize {
        let leaves =
            self.of_kind(NODE).into_iter().map(|(page, _)| page).filter(|page| self.word(*page, 8) == 0);
        // Its first item is that of object 1, place 0.
        let leaves = leaves.filter(|page| self.page(*page)[44..46] == [1, 0]);
        leaves.max_by_key(|page| self.long(*page, 20)).expect("a leaf")
    }

    /// The newest page of a leaf that is not the first.
    fn later_leaf(&self) -> usize {
        let first = self.word(self.first_leaf(), 0);
        let leaves = self.of_kind(NODE).into_iter().map(|(page, _)| page);
        let leaves =
            leaves.filter(|page| self.word(*page, 8) == 0 && ![0, first].contains(&self.word(*page, 0)));
        leaves.max_by_key(|page| self.long(*page, 20)).expect("a leaf")
    }

    fn spoil(&mut self, pages: &[usize]) {
        assert!(!pages.is_empty());
        for page in pages {
            let at = self.start(*page) + 17;
            self.bytes[at] ^= 4;
        }
    }
}

/// A store with old files, closed, and late ones that are in the log alone: its server was killed.
fn cut_off() -> (Parts, Files) {
    let parts = Parts::new(OSD);
    parts.ok(&["mkfs", "osd"], &["--size", "16MiB"]);
    let all = files((0..OLD).map(|number| format!("old{number}")));
    let mounted = parts.mount();
    for (name, bytes) in &all {
        write_synced(&mounted.path().join(name), bytes);
    }
    assert!(mounted.unmount().status.success());
    let late = files((0..LATE).map(|number| format!("late{number}")));
    let mounted = parts.mount();
    for (name, bytes) in &late {
        write_synced(&mounted.path().join(name), bytes);
    }
    kill(mounted);
    (parts, all.into_iter().chain(late).collect())
}

/// A structure of an object store that is damaged, and what comes of it.
struct Case {
    name: &'static str,
    spoil: fn(&mut Flash),
    /// What the mount says, if it refuses.
    refused: Option<&'static str>,
    /// What `fsck -n`, `fsck` and `fsck --yes` end with, each on what the one before left, and what the first of them says.
    codes: [i32; 3],
    says: &'static str,
}

const CASES: [Case; 10] = [
    Case {
        name: "the newest anchor",
        spoil: |flash| flash.spoil(&[flash.anchors()[0]]),
        refused: None,
        codes: [0, 0, 0],
        says: "clean",
    },
    Case {
        name: "format records",
        spoil: |flash| {
            let all: Vec<usize> = flash.of_kind(FORMAT).into_iter().map(|(page, _)| page).collect();
            flash.spoil(&all);
        },
        refused: None,
        codes: [0, 0, 0],
        says: "clean",
    },
    Case {
        name: "the newest checkpoint",
        spoil: |flash| flash.spoil(&flash.checkpoint(flash.anchors()[0])),
        refused: None,
        codes: [4, 1, 0],
        says: "cannot be read, the one before counts",
    },
    Case {
        name: "both checkpoints",
        spoil: |flash| {
            let all: Vec<usize> = flash.of_kind(CHECKPOINT).into_iter().map(|(page, _)| page).collect();
            flash.spoil(&all);
        },
        refused: Some("fsck --yes"),
        codes: [8, 8, 1],
        says: "fsck --yes",
    },
    Case {
        name: "a copy of each page of the node table",
        spoil: |flash| {
            let mut seen = Vec::new();
            for (page, _) in flash.of_kind(TABLE) {
                if !seen.iter().any(|other| flash.page(*other) == flash.page(page)) {
                    seen.push(page);
                }
            }
            flash.spoil(&seen);
        },
        refused: None,
        codes: [0, 0, 0],
        says: "clean",
    },
    Case {
        name: "a page of the log",
        spoil: |flash| flash.spoil(&[flash.log()[flash.log().len() - 4]]),
        refused: None,
        codes: [0, 0, 0],
        says: "clean",
    },
    Case {
        name: "two pages of the log in a row",
        spoil: |flash| {
            let log = flash.log();
            flash.spoil(&log[log.len() - 5..log.len() - 3]);
        },
        refused: Some("fsck --yes"),
        codes: [8, 8, 4],
        says: "fsck --yes",
    },
    Case {
        name: "summaries",
        spoil: |flash| {
            let all: Vec<usize> = flash.of_kind(SUMMARY).into_iter().map(|(page, _)| page).collect();
            flash.spoil(&all);
        },
        refused: None,
        codes: [0, 0, 0],
        says: "clean",
    },
    Case {
        name: "the last page of the log",
        spoil: |flash| flash.spoil(&[flash.log()[flash.log().len() - 1]]),
        refused: None,
        codes: [4, 4, 4],
        says: "the last commit may be lost",
    },
    Case {
        name: "a leaf of the index",
        spoil: |flash| flash.spoil(&[flash.first_leaf()]),
        refused: None,
        codes: [4, 4, 4],
        says: "a leaf of the index",
    },
];

/// Files whose names or contents a case may cost, by what its repair says of objects.
fn named(said: &str, objects: &BTreeMap<String, u64>) -> Vec<String> {
    let hit = |number: u64| {
        said.lines().any(|line| {
            let Some((_, after)) = line.split_once("object ") else { return false };
            after.split(|c: char| !c.is_ascii_digit()).next() == Some(number.to_string().as_str())
        })
    };
    objects.iter().filter(|(_, number)| hit(**number)).map(|(name, _)| name.clone()).collect()
}

#[test]
fn an_object_store_that_is_damaged_anywhere_is_checked_repaired_and_goes_on() {
    need_fuse!();
    let (whole, all) = cut_off();
    let objects: BTreeMap<String, u64> = {
        let copy = whole.copy();
        let mounted = copy.mount();
        all.keys()
            .map(|name| (name.clone(), fs::metadata(mounted.path().join(name)).unwrap().ino()))
            .collect()
    };
    for Case { name: case, spoil, refused: why, codes, says } in CASES {
        let parts = whole.copy();
        let mut flash = Flash::of(&parts);
        spoil(&mut flash);
        flash.save(&parts);
        parts.looked_at(codes[0], &[says], case);
        if let Some(why) = why {
            let place = parts.home.path().join("mnt");
            fs::create_dir(&place).unwrap();
            let before = parts.bytes();
            refused(&parts.run(&["mount"], &[place.to_str().unwrap()]), &[why]);
            assert!(parts.bytes() == before, "{case}: a mount that was refused wrote to it");
        } else if !["a leaf of the index", "the last page of the log"].contains(&case) {
            let copy = parts.copy();
            copy.works_on(&mut all.clone(), &[], case);
            copy.looked_at(0, &["clean"], case);
        }
        let before = parts.bytes();
        let checked = parts.run(&["fsck"], &[]);
        ended(&checked, codes[1], &[]);
        if codes[1] >= 4 {
            assert!(parts.bytes() == before, "{case}: fsck without --yes wrote to it");
            assert!((out(&checked) + &err(&checked)).contains("fsck --yes"), "{case}: {}", out(&checked));
        }
        let repaired = parts.run(&["fsck", "--yes"], &[]);
        ended(&repaired, codes[2], &[]);
        let said = out(&repaired);
        println!("{said}");
        // A last commit that is gone is that of one file.
        let mut lost = named(&said, &objects);
        if case == "the last page of the log" {
            // Written in the order of their names.
            lost.extend(all.keys().rfind(|name| name.starts_with("late")).cloned());
        }
        // What may be told of is what came after the closing, or what lay in the leaf.
        let few = if case == "a leaf of the index" { all.len() } else { LATE };
        assert!(lost.len() <= few, "{case}: {lost:?}");
        if case == "a leaf of the index" {
            // Owners and times are lost, and contents come back.
            assert_eq!(lost.len(), all.len() - LATE, "{lost:?}");
            lost.clear();
        }
        let but: Vec<&str> = lost.iter().map(String::as_str).collect();
        parts.looked_at(0, &["clean"], case);
        ended(&parts.run(&["fsck", "--yes"], &[]), 0, &["clean"]);
        parts.works_on(&mut all.clone(), &but, case);
        parts.looked_at(0, &["clean"], case);
    }
}

#[test]
fn a_damaged_page_of_a_file_in_an_object_store_is_named_and_is_that_files_alone() {
    need_fuse!();
    let (parts, mut all) = cut_off();
    let mut flash = Flash::of(&parts);
    let data = flash.of_kind(DATA).into_iter().map(|(page, _)| page);
    let hit: Vec<usize> =
        data.filter(|page| flash.page(*page).starts_with(b"the contents of old7, ")).collect();
    flash.spoil(&hit);
    flash.save(&parts);
    let number = {
        let copy = parts.copy();
        let mounted = copy.mount();
        fs::metadata(mounted.path().join("old7")).unwrap().ino()
    };
    let object = format!("object {number}");
    let case = "a page of data";
    parts.looked_at(4, &[&object, "not clean"], case);
    ended(&parts.run(&["fsck"], &[]), 4, &[&object, "not clean"]);
    ended(&parts.run(&["fsck", "--yes"], &[]), 4, &[&object, "not clean"]);
    parts.works_on(&mut all, &["old7"], case);
    // Nothing is made of what cannot be read as a whole.
    let [one, tree] = ["one", "tree"].map(|name| parts.at(name));
    for (source, target) in [("/old7", &one), ("/", &tree)] {
        let got = parts.run(&["get"], &[source, target.to_str().unwrap()]);
        assert_eq!(got.status.code(), Some(1), "{}", err(&got));
        assert!(err(&got).contains(&object), "{}", err(&got));
    }
    assert!(!one.exists());
    all.keys().for_each(|name| assert_eq!(tree.join(name).exists(), name != "old7", "{name}"));
    let mounted = parts.mount();
    assert_eq!(fs::read(mounted.path().join("old7")).unwrap_err().raw_os_error(), Some(UNCLEAN));
    fs::remove_file(mounted.path().join("old7")).unwrap();
    assert!(mounted.unmount().status.success());
    all.remove("old7");
    ended(&parts.run(&["fsck"], &[]), 0, &["clean"]);
    parts.works_on(&mut all, &[], case);
}

#[test]
fn a_small_object_store_whose_only_leaf_is_damaged_keeps_its_names_and_contents() {
    need_fuse!();
    let parts = Parts::new(OSD);
    parts.ok(&["mkfs", "osd"], &["--size", "16MiB"]);
    let mut all = files((0..5).map(|number| format!("file{number}")));
    let mounted = parts.mount();
    for (name, bytes) in &all {
        write_synced(&mounted.path().join(name), bytes);
    }
    assert!(mounted.unmount().status.success());
    let mut flash = Flash::of(&parts);
    flash.spoil(&[flash.first_leaf()]);
    flash.save(&parts);
    let case = "the only leaf of a closed store";
    parts.looked_at(4, &["objects 0 to 7", "fsck --yes"], case);
    let (place, before) = (parts.home.path().join("mnt"), parts.bytes());
    fs::create_dir(&place).unwrap();
    refused(&parts.run(&["mount"], &[place.to_str().unwrap()]), &["the root directory", "bimetal fsck"]);
    ended(&parts.run(&["fsck"], &[]), 4, &["objects 0 to 7", "fsck --yes"]);
    assert!(parts.bytes() == before, "{case}: fsck without --yes wrote to it");
    ended(&parts.run(&["fsck", "--yes"], &[]), 4, &["directory 1: it is made anew", "as 'file4'"]);
    parts.looked_at(0, &["clean"], case);
    parts.works_on(&mut all, &[], case);
    parts.looked_at(0, &["clean"], case);
}

#[test]
fn a_listing_goes_on_past_what_cannot_be_read_and_says_so() {
    need_fuse!();
    let (parts, all) = cut_off();
    assert!(parts.mount().unmount().status.success());
    let mut flash = Flash::of(&parts);
    flash.spoil(&[flash.later_leaf()]);
    flash.save(&parts);
    let listed = parts.run(&["ls", "-R"], &["/"]);
    let (names, lost) = (out(&listed), err(&listed));
    assert_eq!(listed.status.code(), Some(1), "{lost}");
    let count = |text: &str| all.keys().filter(|name| text.lines().any(|line| line == **name)).count();
    assert!((1..all.len()).contains(&count(&names)), "{names}");
    for name in all.keys() {
        let is_told = lost.lines().any(|line| line.contains(&format!("/{name}: ")));
        assert!(is_told != names.lines().any(|line| line == name), "{name}: {names}{lost}");
    }
    parts.looked_at(4, &["objects ", "fsck --yes"], "a leaf of a closed store");
    // A mount says so of each, before it was listed and after, and each can be removed by its name.
    let damaged: Vec<&String> = all.keys().filter(|name| lost.contains(&format!("/{name}: "))).collect();
    for lists in [false, true] {
        let mounted = parts.mount();
        if lists {
            let listed = fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().file_name());
            assert_eq!(listed.count(), all.len());
        }
        for name in &damaged {
            let read = fs::read(mounted.path().join(name));
            assert_eq!(read.err().and_then(|why| why.raw_os_error()), Some(UNCLEAN), "{name}, {lists}");
        }
        assert!(mounted.unmount().status.success());
    }
    let mounted = parts.mount();
    damaged.iter().for_each(|name| fs::remove_file(mounted.path().join(name)).unwrap());
    assert!(mounted.unmount().status.success());
    assert!(err(&parts.run(&["ls", "-R"], &["/"])).is_empty());
}

#[test]
fn a_damaged_page_of_a_directory_in_an_object_store_costs_no_file() {
    need_fuse!();
    let parts = Parts::new(OSD);
    parts.ok(&["mkfs", "osd"], &["--size", "16MiB"]);
    // Names enough for some pages, and files that share no page with them.
    let names = (0..200).map(|number| format!("{}{number}-", "n".repeat(number % 90)));
    let all: Files = names.map(|name| (name.clone(), name.into_bytes().repeat(40))).collect();
    let mounted = parts.mount();
    for (name, bytes) in &all {
        write_synced(&mounted.path().join(name), bytes);
    }
    fs::create_dir(mounted.path().join("dir")).unwrap();
    for name in all.keys() {
        fs::rename(mounted.path().join(name), mounted.path().join("dir").join(name)).unwrap();
    }
    assert!(mounted.unmount().status.success());
    let mut flash = Flash::of(&parts);
    // An entry: the kind of a file, the length of its name, the name.
    let names = all.keys().take(6).map(|name| [&[4, name.len() as u8], name.as_bytes()].concat());
    let entries: Vec<Vec<u8>> = names.collect();
    let has = |page: &[u8], entry: &[u8]| page.windows(entry.len()).any(|window| window == entry);
    let data = flash.of_kind(DATA).into_iter().map(|(page, _)| page);
    let hit: Vec<usize> =
        data.filter(|page| entries.iter().any(|entry| has(flash.page(*page), entry))).collect();
    flash.spoil(&hit);
    flash.save(&parts);
    let case = "a page of a directory";
    parts.looked_at(4, &["directory", "cannot be read", "not clean"], case);
    let mounted = parts.mount();
    let closed = fs::read_dir(mounted.path().join("dir"))
        .and_then(|mut dir| dir.next().unwrap_or(Err(std::io::Error::other("empty"))));
    assert_eq!(closed.err().and_then(|why| why.raw_os_error()), Some(UNCLEAN));
    assert!(mounted.unmount().status.success());
    let before = parts.bytes();
    ended(&parts.run(&["fsck"], &[]), 4, &["directory", "fsck --yes"]);
    assert!(parts.bytes() == before, "fsck without --yes wrote to it");
    ended(
        &parts.run(&["fsck", "--yes"], &[]),
        4,
        &["entries of it could be read", "it had no name, and is 'lost-"],
    );
    parts.looked_at(0, &["clean"], case);
    let mounted = parts.mount();
    let files = |dir: PathBuf| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let (kept, lost): (Vec<PathBuf>, Vec<PathBuf>) = files(mounted.path().join("dir"))
        .chain(files(mounted.path().into()))
        .filter(|path| path.is_file())
        .partition(|path| all.contains_key(path.file_name().unwrap().to_str().unwrap()));
    println!("{} names kept, {} files without", kept.len(), lost.len());
    assert!(!lost.is_empty() && kept.len() + lost.len() == all.len(), "{} and {}", kept.len(), lost.len());
    for path in &kept {
        assert_eq!(fs::read(path).unwrap(), all[path.file_name().unwrap().to_str().unwrap()]);
    }
    // Each file's contents are its name.
    for path in &lost {
        let bytes = fs::read(path).unwrap();
        assert!(all.values().any(|other| *other == bytes), "{}", path.display());
    }
    assert!(mounted.unmount().status.success());
}

const CMFS: &[(&str, &str)] = &[("--nand", "nand"), ("--nvram", "nvram")];
const PAGE: usize = 2048 + 64;

fn filled_cmfs() -> (Parts, Files) {
    let parts = Parts::new(CMFS);
    parts.ok(&["mkfs", "cmfs"], &["--size", "16MiB", "--nvram-size", "64KiB"]);
    let all = files((0..OLD).map(|number| format!("old{number}-")));
    let mounted = parts.mount();
    for (name, bytes) in &all {
        write_synced(&mounted.path().join(name), bytes);
    }
    assert!(mounted.unmount().status.success());
    (parts, all)
}

/// Spoils the pages of the NAND that are meant, beyond what the codes of pages and tags correct; how many.
fn spoil(parts: &Parts, meant: impl Fn(&[u8]) -> bool) -> usize {
    let mut bytes = fs::read(parts.at("nand")).unwrap();
    let mut count = 0;
    for page in bytes.chunks_mut(PAGE).filter(|page| meant(page)) {
        page[600..606].iter_mut().for_each(|byte| *byte ^= 0x5a);
        count += 1;
    }
    fs::write(parts.at("nand"), bytes).unwrap();
    count
}

#[test]
fn a_cmfs_whose_header_cannot_be_read_keeps_the_rest_and_yes_gives_it_a_new_one() {
    need_fuse!();
    let (parts, mut all) = filled_cmfs();
    let case = "a header";
    let is_header = |page: &[u8]| page[..64].windows(6).any(|window| window == b"old7-\0");
    assert!(spoil(&parts, is_header) > 0);
    let says = "its header cannot be read";
    parts.looked_at(4, &["object", says, "fsck --yes", "not clean"], case);
    parts.copy().works_on(&mut all.clone(), &[], case);
    ended(&parts.run(&["fsck"], &[]), 4, &[says, "fsck --yes"]);
    parts.looked_at(4, &[says], case);
    ended(&parts.run(&["fsck", "--yes"], &[]), 4, &[says, "Lost."]);
    ended(&parts.run(&["fsck"], &[]), 0, &["clean"]);
    parts.works_on(&mut all, &[], case);
}

#[test]
fn a_damaged_page_of_a_file_in_a_cmfs_is_named_and_is_that_files_alone() {
    need_fuse!();
    let (parts, mut all) = filled_cmfs();
    let case = "a page of data";
    assert!(spoil(&parts, |page| page.starts_with(b"the contents of old7-, ")) > 0);
    let says = "a page cannot be read";
    parts.looked_at(4, &["object", says], case);
    ended(&parts.run(&["fsck"], &[]), 4, &[says, "not clean"]);
    ended(&parts.run(&["fsck", "--yes"], &[]), 4, &[says, "not clean"]);
    parts.works_on(&mut all, &["old7-"], case);
    let mounted = parts.mount();
    assert_eq!(fs::read(mounted.path().join("old7-")).unwrap_err().raw_os_error(), Some(UNCLEAN));
    fs::remove_file(mounted.path().join("old7-")).unwrap();
    assert!(mounted.unmount().status.success());
    all.remove("old7-");
    ended(&parts.run(&["fsck"], &[]), 0, &["clean"]);
    parts.works_on(&mut all, &[], case);
}

#[test]
fn a_cmfs_whose_nvram_or_format_records_are_gone_is_scanned_or_refused_by_name() {
    need_fuse!();
    let (whole, all) = filled_cmfs();
    // What the NVRAM says is spoilt, or it is another one's.
    for (case, spoil, with) in [("spoilt", 64usize, 0x11), ("erased", 64 << 10, 0xff)] {
        let parts = whole.copy();
        let mut bytes = fs::read(parts.at("nvram")).unwrap();
        bytes.iter_mut().take(spoil).for_each(|byte| *byte = with);
        fs::write(parts.at("nvram"), bytes).unwrap();
        parts.looked_at(0, &["clean", "scanned"], case);
        ended(&parts.run(&["fsck"], &[]), 0, &["clean", "scanned"]);
        parts.works_on(&mut all.clone(), &[], case);
        parts.looked_at(0, &["clean"], case);
    }
    let parts = whole.copy();
    fs::write(parts.at("nvram"), vec![0x11; 64 << 10]).unwrap();
    let before = parts.bytes();
    for verb in [&["fsck"][..], &["fsck", "--yes"], &["fsck", "-n"]] {
        ended(&parts.run(verb, &[]), 8, &["holds data", "not the NVRAM of this NAND"]);
    }
    assert!(parts.bytes() == before, "it was written to");
    let parts = whole.copy();
    let is_record = |page: &[u8]| page.windows(8).any(|window| window == cmfs_magic());
    assert!(spoil_whole(&parts, is_record) > 0);
    parts.looked_at(8, &["the NAND holds no cmfs"], "format records");
    for verb in [&["fsck"][..], &["fsck", "--yes"]] {
        let before = parts.bytes();
        ended(&parts.run(verb, &[]), 8, &["the NAND holds no cmfs"]);
        assert!(parts.bytes() == before, "{verb:?} wrote to it");
    }
    let place = parts.home.path().join("mnt");
    fs::create_dir(&place).unwrap();
    refused(&parts.run(&["mount"], &[place.to_str().unwrap()]), &["the NAND holds no cmfs", "--yaffs2"]);
    let parts = whole.copy();
    ended(&parts.run(&["fsck"], &["--device", "slc-4k"]), 8, &["--device"]);
    ended(&bimetal().args(["fsck", "-t", "osd"]).output().unwrap(), 16, &["--nand"]);
}

fn cmfs_magic() -> [u8; 8] {
    *b"CMFSNAND"
}

/// Makes the pages that are meant noise.
fn spoil_whole(parts: &Parts, meant: impl Fn(&[u8]) -> bool) -> usize {
    let mut bytes = fs::read(parts.at("nand")).unwrap();
    let mut count = 0;
    for page in bytes.chunks_mut(PAGE).filter(|page| meant(page)) {
        page[..2048].iter_mut().enumerate().for_each(|(at, byte)| *byte ^= (at * 7 + 1) as u8);
        count += 1;
    }
    fs::write(parts.at("nand"), bytes).unwrap();
    count
}
