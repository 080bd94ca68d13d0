//! File systems that are full to the last page, in several shapes: whatever filled them, every removal and truncation works,
//! the room comes back, and work goes on.

use super::*;

/// Fills a file system with files of `bytes` until it says that it is full; how many.
fn filled(fs: &OsdFs, bytes: usize) -> u32 {
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    for number in 0.. {
        let name = format!("f{number:06}");
        let made = fs.create(&ROOT_USER, fs.root(), name.as_bytes(), &node).and_then(|attr| {
            let written = fs.write(attr.ino, 0, &vec![7; bytes], false);
            fs.forget(attr.ino, 1);
            written.map(drop)
        });
        match made {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => {
                // Its name may have found room.
                let gone = fs.unlink(fs.root(), name.as_bytes());
                assert!(matches!(gone, Ok(()) | Err(Error::NotFound)), "file {number}: {gone:?}");
                return number;
            }
            Err(why) => panic!("file {number}: {why}"),
        }
    }
    unreachable!("it is full some time")
}

#[test]
fn a_full_file_system_takes_every_removal_and_truncation() {
    for bytes in [700, 20_000, 300_000] {
        for flushes in [false, true] {
            let fs = OsdFs::new(store(96), true).unwrap();
            let count = filled(&fs, bytes);
            // The last bytes, too.
            let last = fs.lookup(fs.root(), b"f000000").unwrap().ino;
            while fs.write(last, fs.getattr(last).unwrap().size, &[1; 100], false).is_ok() {}
            if flushes {
                fs.sync().unwrap();
            }
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            for number in (0..count).rev().step_by(2) {
                let name = format!("f{number:06}");
                let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino;
                fs.setattr(ino, &cut).unwrap_or_else(|why| panic!("{name} of {bytes} bytes: {why}"));
                fs.forget(ino, 1);
            }
            for number in 0..count {
                let name = format!("f{number:06}");
                let gone = fs.unlink(fs.root(), name.as_bytes());
                gone.unwrap_or_else(|why| panic!("{name} of {count} of {bytes} bytes: {why}"));
                if flushes && number % 8 == 0 {
                    fs.sync().unwrap();
                }
            }
            fs.forget(last, 9);
            let again = filled(&fs, bytes);
            assert!(again >= count * 9 / 10, "{again} of {count} of {bytes} bytes");
            let mut store = fs.into_store();
            store.sync().unwrap();
            let mut store = reopened(store);
            assert!(store.check(true).unwrap().problems.is_empty());
            assert_eq!(check(&mut store).unwrap(), [""; 0]);
        }
    }
}

const FILE: NewNode = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };

fn file(fs: &OsdFs, dir: Ino, name: &str) -> Result<Ino> {
    let made = fs.create(&ROOT_USER, dir, name.as_bytes(), &FILE)?;
    fs.forget(made.ino, 1);
    Ok(made.ino)
}

/// What one more of a shape does; an error of no space ends it.
type Fill = fn(&OsdFs, u32) -> Result<()>;

const SHAPES: [(&str, Fill); 7] = [
    ("files of one byte", |fs, n| fs.write(file(fs, fs.root(), &format!("f{n}"))?, 0, b"a", false).map(drop)),
    ("files of one byte, each synced", |fs, n| {
        fs.write(file(fs, fs.root(), &format!("f{n}"))?, 0, b"a", false)?;
        fs.fsync(fs.root(), false).map(drop)
    }),
    ("long names", |fs, n| file(fs, fs.root(), &format!("{n:0>250}")).map(drop)),
    ("names of one file", |fs, n| {
        let name = |n: u32| format!("{n:0>60}").into_bytes();
        // As many as one may have, and then another.
        if n % 60_000 == 0 {
            return file(fs, fs.root(), &format!("{n:0>60}")).map(drop);
        }
        let one = fs.lookup(fs.root(), &name(n / 60_000 * 60_000))?.ino;
        let linked = fs.link(one, fs.root(), &name(n));
        fs.forget(one, 1 + u64::from(linked.is_ok()));
        linked.map(drop)
    }),
    ("directories", |fs, n| {
        let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: &[] };
        let made = fs.create(&ROOT_USER, fs.root(), format!("d{n}").as_bytes(), &node)?.ino;
        let inside = file(fs, made, "inside").map(drop);
        fs.forget(made, 1);
        inside
    }),
    ("attributes", |fs, n| {
        let made = file(fs, fs.root(), &format!("f{n}"))?;
        let bytes = [40, 400, 4000][n as usize % 3];
        fs.setxattr(made, b"user.a", &vec![1; bytes], SetXattr::Either, false)
    }),
    ("one file", |fs, n| {
        let made = match fs.lookup(fs.root(), b"f") {
            Ok(found) => {
                fs.forget(found.ino, 1);
                found.ino
            }
            Err(_) => file(fs, fs.root(), "f")?,
        };
        fs.write(made, u64::from(n) * 3000, &[1; 3000], false).map(drop)
    }),
];

fn fill(fs: &OsdFs, shape: Fill, at: &str) -> u32 {
    for n in 0.. {
        match shape(fs, n) {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => return n,
            Err(why) => panic!("{at}, {n}: {why}"),
        }
    }
    unreachable!("it is full some time")
}

/// Removes everything below a directory, each removal at once.
fn empty(fs: &OsdFs, dir: Ino, how: u64, at: &str) {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    })
    .unwrap();
    match how % 3 {
        0 => {}
        1 => names.reverse(),
        _ => names.sort_by_key(|(_, ino, _)| ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    }
    let count = names.len();
    for (n, (name, ino, kind)) in names.into_iter().enumerate() {
        let at = format!("{at}, {how}, {n} of {count}");
        if kind == Kind::Dir {
            empty(fs, ino, how, &at);
            fs.rmdir(dir, &name).unwrap_or_else(|why| panic!("{at}: rmdir: {why}"));
            continue;
        }
        if n % 5 == 0 && fs.lookup(dir, &name).is_ok() {
            let size = fs.getattr(ino).unwrap().size;
            let cut = SetAttr { size: Some(size / 2), ..SetAttr::default() };
            fs.setattr(ino, &cut).unwrap_or_else(|why| panic!("{at}: truncate: {why}"));
            fs.forget(ino, 1);
        }
        fs.unlink(dir, &name).unwrap_or_else(|why| panic!("{at}: unlink: {why}"));
        if how >= 3 && n % 50 == 0 {
            fs.sync().unwrap_or_else(|why| panic!("{at}: sync: {why}"));
        }
    }
}

#[test]
fn a_file_system_that_is_full_in_any_way_takes_every_removal_and_gives_the_room_back() {
    let every = std::env::var("CUTS").is_ok();
    for (number, (shape, one_more)) in (0..).zip(SHAPES) {
        for how in (0..6).filter(|how| every || how % 3 == number % 3) {
            let fs = OsdFs::new(store(64), true).unwrap();
            let count = fill(&fs, one_more, shape);
            let free = fs.statfs().unwrap().free;
            if how % 2 == 0 {
                fs.sync().unwrap_or_else(|why| panic!("{shape}: {why}"));
            }
            empty(&fs, fs.root(), how, shape);
            fs.sync().unwrap();
            assert!(fs.statfs().unwrap().free > free, "{shape}");
            let again = fill(&fs, one_more, shape);
            assert!(again >= count / 10 * 9, "{shape}: {again} of {count}");
            let mut store = fs.into_store();
            store.close().unwrap_or_else(|why| panic!("{shape}: {why}"));
            let mut store = reopened(store);
            assert_eq!(store.check(true).unwrap().problems, [""; 0], "{shape}");
            assert_eq!(check(&mut store).unwrap(), [""; 0], "{shape}");
            let fs = OsdFs::new(store, true).unwrap();
            empty(&fs, fs.root(), how, shape);
            fs.shutdown().unwrap();
            eprintln!("{shape}, {how}: {count}, then {again}");
        }
    }
}

#[test]
fn a_full_file_system_is_repaired_wherever_its_index_is_damaged() {
    for bytes in [20_000, 300_000] {
        let full = || {
            let fs = OsdFs::new(store(48), true).unwrap();
            let count = filled(&fs, bytes);
            let last = fs.lookup(fs.root(), b"f000000").unwrap().ino;
            let mut more = 65536;
            while more > 0 {
                let size = fs.getattr(last).unwrap().size;
                let written = fs.write(last, size, &vec![1; more], false).and_then(|_| fs.sync());
                more = if written.is_ok() { more } else { more / 4 };
            }
            fs.sync().unwrap();
            fs.shutdown().unwrap();
            let mut store = fs.into_store();
            store.close().unwrap();
            (store, count)
        };
        for number in 0..6 {
            let (mut store, count) = full();
            if !store.spoil_index(number) {
                assert!(number > 0);
                break;
            }
            let mut store = reopened(store);
            let at = format!("{count} files of {bytes} bytes, node {number}");
            let reports = repair(&mut store, true).unwrap_or_else(|why| panic!("{at}: {why}"));
            assert!(!reports.is_empty(), "{at}");
            let mut store = reopened(store);
            assert_eq!(repair(&mut store, true).unwrap(), [], "{at}");
            assert_eq!(check(&mut store).unwrap(), [""; 0], "{at}");
            let fs = OsdFs::new(store, true).unwrap_or_else(|why| panic!("{at}: {why}"));
            let found = all(&fs);
            assert!(found.len() as u32 * 2 > count, "{at}: {}", found.len());
            for path in found.keys() {
                fs.unlink(fs.root(), &path.as_bytes()[1..])
                    .unwrap_or_else(|why| panic!("{at}: {path}: {why}"));
            }
            fs.sync().unwrap();
        }
    }
}
