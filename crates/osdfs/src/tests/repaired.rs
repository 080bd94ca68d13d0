//! Directories that cannot be read, or that disagree, put right by a repair.

use super::*;
use crate::inode::kind_of;
use bimetal_vfs::adapter::Mode;
use std::collections::BTreeSet;

pub(super) const FILE: NewNode = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
pub(super) const DIR: NewNode = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: &[] };

pub(super) fn make(fs: &OsdFs, dir: Ino, name: &str, node: &NewNode) -> Ino {
    let ino = fs.create(&ROOT_USER, dir, name.as_bytes(), node).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

/// What a file holds is its number, over and over.
pub(super) fn fill(fs: &OsdFs, dir: Ino, name: &str) {
    let ino = make(fs, dir, name, &FILE);
    let bytes = ino.0.to_le_bytes().repeat(1 + ino.0 as usize % 200);
    fs.write(ino, 0, &bytes, false).unwrap();
}

/// Checks that all is right after a repair, that nothing is left to repair, that each file that is there holds what was
/// written to it, and that work goes on.
pub(super) fn is_right(store: Store, at: &str) -> BTreeMap<String, Vec<u8>> {
    let mut store = reopened(store);
    assert_eq!(check(&mut store).unwrap(), [""; 0], "{at}");
    let problems = store.check(true).unwrap().problems;
    assert!(problems.is_empty(), "{at}: {problems:?}");
    assert_eq!(repair(&mut store, true).unwrap(), [], "{at}");
    let fs = OsdFs::new(store, true).unwrap();
    let found = all(&fs);
    for (path, bytes) in found.iter().filter(|(path, _)| !path.ends_with('/')) {
        assert!(bytes.chunks_exact(8).all(|eight| eight == &bytes[..8]), "{at}: {path}");
    }
    for number in 0..30 {
        fill(&fs, fs.root(), &format!("after{number}"));
    }
    for path in found.keys().filter(|path| path.rfind('/') == Some(0)) {
        fs.unlink(fs.root(), &path.as_bytes()[1..]).unwrap();
    }
    fs.sync().unwrap();
    let mut store = reopened(fs.into_store());
    assert_eq!(check(&mut store).unwrap(), [""; 0], "{at}, afterwards");
    found
}

/// Directories that shrink and grow in every commit, and names that move between them.
fn churned(seed: u64) -> (Store, BTreeSet<String>) {
    let fs = OsdFs::new(store(128), true).unwrap();
    let mut random = Random::new(seed, "names");
    let dirs: Vec<Ino> = (0..3).map(|number| make(&fs, fs.root(), &format!("dir{number}"), &DIR)).collect();
    let dirs: Vec<Ino> = dirs.into_iter().chain([fs.root()]).collect();
    let mut names: Vec<(Ino, String)> = Vec::new();
    for number in 0..60 {
        // A commit of several pages, as a burst of names between two syncs is.
        for _ in 0..40 {
            let dir = dirs[random.below(4) as usize];
            match random.below(5) {
                0 | 1 => {
                    let name =
                        format!("n{}", "x".repeat(random.below(40) as usize) + &random.next().to_string());
                    fill(&fs, dir, &name);
                    names.push((dir, name));
                }
                2 | 3 if !names.is_empty() => {
                    let (dir, name) = names.pop().unwrap();
                    fs.unlink(dir, name.as_bytes()).unwrap();
                }
                _ if !names.is_empty() => {
                    let at = random.below(names.len() as u64) as usize;
                    let (from, name) = names[at].clone();
                    fs.rename(from, name.as_bytes(), dir, name.as_bytes(), Rename::Replace).unwrap();
                    names[at].0 = dir;
                }
                _ => {}
            }
        }
        if number % 7 == 3 {
            let (from, to) = (dirs[random.below(2) as usize], dirs[2]);
            let name = format!("sub{number}");
            make(&fs, from, &name, &DIR);
            fs.sync().unwrap();
            fs.rename(from, name.as_bytes(), to, name.as_bytes(), Rename::Replace).unwrap();
        }
        fs.sync().unwrap();
    }
    let kept = all(&fs).into_keys().collect();
    (fs.into_store(), kept)
}

#[test]
fn where_commits_are_lost_the_names_that_come_back_are_those_of_one_tree() {
    let seeds = std::env::var("CUTS").map_or(4, |cuts| cuts.parse().unwrap());
    let (mut refused, mut repaired, mut kept, mut all) = (0, 0, 0, 0);
    for (seed, later) in (0..seeds).flat_map(|seed| (0..40).map(move |later| (seed, later))) {
        let at = format!("seed {seed}, all but the last {later} pages of the log");
        let damaged = || {
            let (mut store, names) = churned(seed);
            let is_there = store.spoil_log(later);
            let mut nand = store.into_nand();
            nand.power_on();
            is_there.then_some((nand, names))
        };
        let Some((nand, names)) = damaged() else { break };
        let options = || Options { buffer_bytes: 64 << 10, ..Options::default() };
        let mut store = match Store::open(nand, options()) {
            Ok(store) => store,
            Err(_) => {
                refused += 1;
                Store::rebuild(damaged().unwrap().0, options(), Live::wall_clock().into()).unwrap().0
            }
        };
        repaired += usize::from(!repair(&mut store, true).unwrap().is_empty());
        let found = is_right(store, &at);
        kept += names.iter().filter(|name| found.contains_key(*name)).count();
        all += names.len();
    }
    eprintln!("{refused} put together again, {repaired} with something to repair; {kept} of {all} names");
    assert!(refused > 10 && repaired > 5 && kept * 10 > all * 9, "{refused}, {repaired}, {kept} of {all}");
}

#[test]
fn a_directory_with_a_page_that_cannot_be_read_keeps_the_rest_of_its_names() {
    for seed in 0..12 {
        let fs = OsdFs::new(store(128), true).unwrap();
        let mut random = Random::new(seed, "page");
        let dir = if seed % 2 == 0 { fs.root() } else { make(&fs, fs.root(), "dir", &DIR) };
        for number in 0..300 {
            fill(&fs, dir, &format!("{}{number}", "y".repeat(random.below(60) as usize)));
            if number % 40 == 39 {
                make(&fs, dir, &format!("sub{number}"), &DIR);
                fs.sync().unwrap();
            }
        }
        fs.sync().unwrap();
        let before = all(&fs);
        let mut store = fs.into_store();
        let size = store.stat(ObjectId(dir.0)).unwrap().size;
        store.spoil(ObjectId(dir.0), random.below(size));
        let mut store = reopened(store);
        assert!(!check(&mut store).unwrap().is_empty());
        assert_eq!(repair(&mut store, false).unwrap(), [], "what costs something is not done unasked");
        let reports = repair(&mut store, true).unwrap();
        assert!(
            reports.iter().any(|report| report.lost && report.what.contains(&format!("directory {dir}:"))),
            "{reports:?}"
        );
        let found = is_right(store, &format!("seed {seed}"));
        let kept = before.keys().filter(|path| found.get(*path) == before.get(*path)).count();
        assert!(kept * 2 > before.len(), "seed {seed}: {kept} of {}", before.len());
        // What lost its name has another.
        let files = |paths: &BTreeMap<String, Vec<u8>>| {
            paths
                .iter()
                .filter(|(path, _)| !path.ends_with('/'))
                .map(|(_, bytes)| bytes.clone())
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(files(&found), files(&before), "seed {seed}");
    }
}

#[test]
fn a_directory_of_noise_keeps_what_is_still_an_entry() {
    for seed in 0..60 {
        let fs = OsdFs::new(store(64), true).unwrap();
        let mut random = Random::new(seed, "noise");
        let top = make(&fs, fs.root(), "top", &DIR);
        for number in 0..40 {
            let name = format!("{}{number}", "z".repeat(random.below(30) as usize));
            match number % 4 {
                0 => _ = make(&fs, top, &name, &DIR),
                _ => fill(&fs, top, &name),
            }
        }
        fs.sync().unwrap();
        let before = all(&fs);
        {
            let store = &mut fs.shared.state.lock().store;
            let size = store.stat(ObjectId(top.0)).unwrap().size;
            for _ in 0..1 + random.below(4) {
                let noise: Vec<u8> = (0..1 + random.below(50)).map(|_| (random.next() % 3) as u8).collect();
                store.write(ObjectId(top.0), random.below(size), Content::Bytes(&noise)).unwrap();
            }
            if random.chance(0.3) {
                store.truncate(ObjectId(top.0), size - random.below(size / 2)).unwrap();
            }
        }
        let mut store = fs.into_store();
        store.flush().unwrap();
        let mut store = reopened(store);
        repair(&mut store, true).unwrap();
        let found = is_right(store, &format!("seed {seed}"));
        // Each of them is there, under its name or another.
        assert_eq!(found.len(), before.len(), "seed {seed}");
    }
}

#[test]
fn a_directory_is_in_one_place_and_knows_it() {
    let fs = OsdFs::new(store(64), true).unwrap();
    let (one, two) = (make(&fs, fs.root(), "one", &DIR), make(&fs, fs.root(), "two", &DIR));
    let (inner, other) = (make(&fs, two, "inner", &DIR), make(&fs, one, "other", &DIR));
    fill(&fs, inner, "file");
    {
        let store = &mut fs.shared.state.lock().store;
        // A second name of what is in `two`, which comes first; a parent that is not so; one that is in itself.
        let mut dir = Dir::read(store, one.0).unwrap();
        dir.set(store, one.0, b"again", Target { object: inner.0, kind: Kind::Dir }).unwrap();
        let mut dir = Dir::read(store, inner.0).unwrap();
        dir.set(store, inner.0, b"itself", Target { object: inner.0, kind: Kind::Dir }).unwrap();
        dir.set(store, inner.0, b"up", Target { object: ROOT, kind: Kind::Dir }).unwrap();
        let mut inode = Inode::read(store, other.0).unwrap();
        inode.parent = two.0;
        inode.write(store, other.0).unwrap();
        // Two that are in each other, and nowhere else.
        let (left, right) = (store.create(DIRECTORY_HINT).unwrap(), store.create(DIRECTORY_HINT).unwrap());
        for (one, another) in [(left, right), (right, left)] {
            let inode = Inode { parent: another.0, ..Inode::read(store, two.0).unwrap() };
            inode.write(store, one.0).unwrap();
            Dir::default()
                .set(store, one.0, b"below", Target { object: another.0, kind: Kind::Dir })
                .unwrap();
        }
    }
    let mut store = fs.into_store();
    store.flush().unwrap();
    let mut store = reopened(store);
    assert!(!check(&mut store).unwrap().is_empty());
    let reports = repair(&mut store, true).unwrap();
    let found = is_right(store, "names of directories");
    let paths: Vec<&str> = found.keys().map(String::as_str).filter(|path| !path.contains("lost-")).collect();
    assert_eq!(paths, ["/one/", "/one/other/", "/two/", "/two/inner/", "/two/inner/file"], "{reports:?}");
    assert_eq!(found.keys().filter(|path| path.contains("lost-")).count(), 2, "{found:?}");
}

#[test]
fn a_repair_of_a_directory_may_be_cut_off_anywhere() {
    let damaged = || {
        let fs = OsdFs::new(store(64), true).unwrap();
        for number in 0..200 {
            fill(&fs, fs.root(), &format!("{}{number}", "y".repeat(number % 60)));
        }
        fs.sync().unwrap();
        let mut store = fs.into_store();
        let size = store.stat(ObjectId(ROOT)).unwrap().size;
        store.write(ObjectId(ROOT), 77, Content::Bytes(&[1; 5])).unwrap();
        store.write(ObjectId(ROOT), size / 3, Content::Bytes(&[7; 500])).unwrap();
        store.flush().unwrap();
        store.close().unwrap();
        reopened(store)
    };
    let mut cut = 1;
    loop {
        let mut store = damaged();
        store.nand_mut().cut_power_in(cut);
        let done = repair(&mut store, true).and_then(|_| store.close());
        let mut store = reopened(store);
        repair(&mut store, true).unwrap();
        let found = is_right(store, &format!("cut {cut}"));
        assert_eq!(found.len(), 200, "cut {cut}");
        if done.is_ok() {
            break;
        }
        cut += 1;
    }
    assert!(cut > 3, "{cut}");
}

#[test]
fn whatever_names_and_inodes_say_a_repair_leaves_one_tree() {
    let seeds = std::env::var("CUTS").map_or(150, |cuts| cuts.parse::<u64>().unwrap() * 50);
    for seed in 0..seeds {
        let fs = OsdFs::new(store(64), true).unwrap();
        let mut random = Random::new(seed, "forged");
        let mut dirs = vec![fs.root()];
        for number in 0..50 {
            let dir = dirs[random.below(dirs.len() as u64) as usize];
            let name = format!("{}{number}", "z".repeat(random.below(30) as usize));
            match number % 3 {
                0 => dirs.push(make(&fs, dir, &name, &DIR)),
                _ => fill(&fs, dir, &name),
            }
        }
        {
            let store = &mut fs.shared.state.lock().store;
            for _ in 0..1 + random.below(12) {
                let object = 1 + random.below(53);
                let id = ObjectId(object);
                let Ok(size) = store.stat(id).map(|stat| stat.size) else { continue };
                let noise: Vec<u8> = (0..1 + random.below(40)).map(|_| (random.next() % 6) as u8).collect();
                let inode = Inode::read(store, object);
                let mode =
                    Mode { kind: kind_of(random.below(7) as u8).unwrap(), perm: 0o644, uid: 1, gid: 1 };
                let target = Target { object: random.below(60), kind: mode.kind };
                match (random.below(9), inode) {
                    (0, _) => store.write(id, random.below(size + 1), Content::Bytes(&noise)).unwrap(),
                    (1, _) => store.truncate(id, random.below(2 * size + 1)).unwrap(),
                    (2, _) => store.remove(id).unwrap(),
                    (3, Ok(inode)) => {
                        Inode { nlink: random.next() as u32, ..inode }.write(store, object).unwrap();
                    }
                    (4, Ok(inode)) => {
                        Inode { parent: random.below(60), ..inode }.write(store, object).unwrap();
                    }
                    (5, Ok(inode)) => Inode { mode, ..inode }.write(store, object).unwrap(),
                    (6, _) => store.set_attribute(id, b"fs", &noise).unwrap(),
                    (7, _) => store.remove_attribute(id, b"fs").unwrap_or_default(),
                    _ => {
                        if let Ok(mut dir) = Dir::read(store, object) {
                            let name = format!("again{}", random.below(9));
                            dir.set(store, object, name.as_bytes(), target).unwrap();
                        }
                    }
                }
            }
        }
        let mut store = fs.into_store();
        store.flush().unwrap();
        let mut store = reopened(store);
        let is_clean = check(&mut store).unwrap().is_empty();
        if !is_clean && random.chance(0.5) {
            store.nand_mut().cut_power_in(1 + random.below(12));
            if repair(&mut store, true).is_err() {
                store = reopened(store);
            }
            store.nand_mut().power_on();
        }
        let is_clean = check(&mut store).unwrap().is_empty();
        let reports = repair(&mut store, true).unwrap();
        assert_eq!(reports.is_empty(), is_clean, "seed {seed}: {reports:?}");
        let at = format!("seed {seed}: {reports:?}");
        let mut store = reopened(store);
        assert_eq!(check(&mut store).unwrap(), [""; 0], "{at}");
        assert_eq!(repair(&mut store, true).unwrap(), [], "{at}");
        let fs = OsdFs::new(store, true).unwrap();
        all(&fs);
        fill(&fs, fs.root(), "after");
        fs.sync().unwrap();
        assert_eq!(check(&mut reopened(fs.into_store())).unwrap(), [""; 0], "{at}");
    }
}

#[test]
fn a_directory_can_be_read_and_mended_however_little_is_left_of_the_part() {
    for spoilt in [false, true] {
        let fs = OsdFs::new(store(64), true).unwrap();
        let dir = make(&fs, fs.root(), "dir", &DIR);
        for number in 0..120 {
            fill(&fs, fs.root(), &format!("root{number}"));
            fill(&fs, dir, &format!("dir{number}"));
        }
        fs.sync().unwrap();
        fs.shutdown().unwrap();
        let names = all(&fs);
        let mut store = fs.into_store();
        store.close().unwrap();
        if spoilt {
            store.spoil(ObjectId(dir.0), 0);
        }
        let unused: Vec<u32> = (0..64).filter(|block| store.nand().next_page(*block) == 0).collect();
        for block in unused.into_iter().skip(12) {
            store.nand_mut().set_bad(block, true);
        }
        let mut store = reopened(store);
        assert_eq!(store.capacity().total, 0);
        let mended = repair(&mut store, true).unwrap();
        assert_eq!(mended.is_empty(), !spoilt, "{mended:?}");
        let mut store = reopened(store);
        assert_eq!(check(&mut store).unwrap(), [""; 0]);
        let found = all(&OsdFs::new(store, true).unwrap());
        let kept = names.keys().filter(|name| found.contains_key(*name)).count();
        assert!(kept == names.len() || spoilt && kept > names.len() / 2, "{kept} of {}", names.len());
    }
}

#[test]
fn what_was_held_without_a_name_stays_where_there_is_no_room_to_remove_it() {
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let mut left_behind = 0;
    for left in 0..16 {
        let fs = OsdFs::new(store(64), true).unwrap();
        fill(&fs, fs.root(), "kept");
        let held = fs.create(&ROOT_USER, fs.root(), b"held", &node).unwrap().ino;
        fs.write(held, 0, &[1; 5000], false).unwrap();
        fs.unlink(fs.root(), b"held").unwrap();
        fs.fsync(held, false).unwrap();
        let mut store = fs.into_store();
        let unused: Vec<u32> = (0..64).filter(|block| store.nand().next_page(*block) == 0).collect();
        for block in unused.into_iter().skip(left) {
            store.nand_mut().set_bad(block, true);
        }
        let fs = OsdFs::new(reopened(store), false).unwrap_or_else(|why| panic!("{left} left: {why}"));
        assert_eq!(all(&fs).len(), 1, "{left} left");
        left_behind += usize::from(fs.into_store().capacity().objects > 3);
    }
    assert!((1..16).contains(&left_behind), "{left_behind}");
}

#[test]
fn a_directory_that_says_it_is_longer_than_what_was_written_keeps_its_names() {
    for size in [5000, 1 << 20, 1 << 40, 1 << 62] {
        let fs = OsdFs::new(store(64), true).unwrap();
        let dir = make(&fs, fs.root(), "dir", &DIR);
        (0..50).for_each(|number| fill(&fs, dir, &format!("name{number}")));
        fs.sync().unwrap();
        let names = all(&fs);
        let mut store = fs.into_store();
        store.truncate(ObjectId(dir.0), size).unwrap();
        store.flush().unwrap();
        assert_eq!(check(&mut store).unwrap().len(), 1);
        repair(&mut store, true).unwrap();
        let found = is_right(store, &format!("{size} bytes"));
        assert!(names.keys().all(|name| found.contains_key(name)), "{size}");
    }
}

/// Writes an entry behind the last one of a directory, right or not.
fn forge(store: &mut Store, dir: u64, object: u64, kind: Kind, name: &[u8]) {
    let mut bytes = object.to_le_bytes().to_vec();
    bytes.extend([crate::inode::number_of(kind), name.len() as u8]);
    bytes.extend(name);
    store.append_to(ObjectId(dir), Content::Bytes(&bytes)).unwrap();
}

#[test]
fn nothing_that_has_a_name_is_removed_whatever_is_said_to_have_none() {
    for case in 0..7 {
        let fs = OsdFs::new(store(64), true).unwrap();
        let dir = make(&fs, fs.root(), "dir", &DIR);
        fill(&fs, dir, "inside");
        fill(&fs, fs.root(), "file");
        let file = fs.lookup(fs.root(), b"file").unwrap().ino.0;
        fs.sync().unwrap();
        let before = all(&fs);
        let mut store = fs.into_store();
        let (object, kind, name) = match case {
            0 => (1, Kind::Dir, "1".to_string()),
            1 => (1, Kind::Dir, "77".to_string()),
            2 => (2, Kind::Dir, "2".to_string()),
            3 => (dir.0, Kind::Dir, dir.0.to_string()),
            4 => (file, Kind::File, file.to_string()),
            5 => (file, Kind::File, "12".to_string()),
            _ => (dir.0, Kind::File, dir.0.to_string()),
        };
        forge(&mut store, NAMELESS, object, kind, name.as_bytes());
        store.flush().unwrap();
        assert_eq!(check(&mut store).unwrap().len(), 1, "case {case}");
        // A mount takes nothing away.
        let fs = OsdFs::new(reopened(store), false).unwrap();
        assert_eq!(all(&fs), before, "case {case}");
        fs.shutdown().unwrap();
        let mut store = reopened(fs.into_store());
        assert_eq!(check(&mut store).unwrap().len(), 1, "case {case}");
        let mended = repair(&mut store, true).unwrap();
        assert!(mended.len() == 1 && !mended[0].lost, "case {case}: {mended:?}");
        assert_eq!(is_right(store, &format!("case {case}")), before);
    }
}

#[test]
fn names_that_can_be_none_are_damage_and_cost_no_other_name() {
    for name in [&b"a/b"[..], b"/", b"..", b".", b"nul\0", b""] {
        let fs = OsdFs::new(store(64), true).unwrap();
        let dir = make(&fs, fs.root(), "dir", &DIR);
        (0..9).for_each(|number| fill(&fs, dir, &format!("name{number}")));
        assert!(matches!(fs.create(&ROOT_USER, dir, name, &FILE), Err(Error::BadArgument)));
        fill(&fs, dir, "other");
        let other = fs.lookup(dir, b"other").unwrap().ino;
        fs.sync().unwrap();
        let before = all(&fs);
        let mut store = fs.into_store();
        forge(&mut store, dir.0, other.0, Kind::File, name);
        store.flush().unwrap();
        let problems = check(&mut store).unwrap();
        assert!(problems.len() == 1 && problems[0].contains("can be none"), "{problems:?}");
        repair(&mut store, true).unwrap();
        assert_eq!(is_right(store, &format!("{name:?}")), before);
    }
}
