use super::*;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const ROOT_USER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

fn fs() -> MemFs {
    MemFs::new(64 << 20, &Caller::default())
}

fn node(kind: Kind, perm: u16) -> NewNode<'static> {
    NewNode { kind, perm, rdev: 0, target: b"target" }
}

fn make(fs: &MemFs, parent: Ino, name: &str, kind: Kind) -> Attr {
    fs.create(&ROOT_USER, parent, name.as_bytes(), &node(kind, 0o777)).unwrap()
}

macro_rules! fails {
    ($call:expr, $error:pat) => {
        assert!(matches!($call, Err($error)), "{:?}", $call.err())
    };
}

#[test]
fn it_follows_the_rules() {
    bimetal_vfs::rules::check(|| Box::new(fs()));
}

#[test]
fn a_place_is_used_again_under_a_new_generation() {
    let fs = fs();
    let file = make(&fs, fs.root(), "f", Kind::File);
    fs.write(file.ino, 0, &[1; 10_000], false).unwrap();
    fs.unlink(fs.root(), b"f").unwrap();
    fs.forget(file.ino, 1);
    assert_eq!(fs.statfs().unwrap().free, fs.statfs().unwrap().blocks);
    let next = make(&fs, fs.root(), "g", Kind::File);
    assert!(next.ino == file.ino && next.generation != file.generation);
}

#[test]
fn space_runs_out_and_comes_back() {
    let fs = MemFs::new(10 * PAGE, &Caller::default());
    let file = make(&fs, fs.root(), "f", Kind::File).ino;
    fs.write(file, 0, &[1; 10 * PAGE as usize], false).unwrap();
    fails!(fs.write(file, 10 * PAGE, b"x", false), Error::NoSpace(_));
    fs.write(file, 0, b"over what is there", false).unwrap();
    fails!(fs.fallocate(file, 0, 11 * PAGE, Fallocate::Reserve { keep_size: true }), Error::NoSpace(_));
    fs.fallocate(file, PAGE, PAGE, Fallocate::Punch).unwrap();
    assert_eq!((fs.statfs().unwrap().free, fs.getattr(file).unwrap().blocks), (1, 9 * 8));
    fs.setattr(file, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.statfs().unwrap().free, 10);
    fails!(fs.fallocate(file, 0, 1 << 43, Fallocate::Reserve { keep_size: true }), Error::NoSpace(_));
    fails!(fs.write(file, 1 << 44, b"x", false), Error::TooLarge);
    fails!(fs.write(file, u64::MAX, b"x", false), Error::TooLarge);
    fs.check_invariants();
}

#[test]
fn random_operations_keep_the_invariants() {
    let fs = fs();
    let mut random = StdRng::seed_from_u64(23);
    let mut dirs = vec![fs.root()];
    let kinds = [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo];
    let hows = [Rename::Replace, Rename::NoReplace, Rename::Exchange, Rename::Whiteout];
    for step in 0..6000 {
        let (dir, other) = (*dirs.choose(&mut random).unwrap(), *dirs.choose(&mut random).unwrap());
        let (name, new_name) = (random.random_range(b'a'..b'k'), random.random_range(b'a'..b'k'));
        let (name, new_name) = (&[name][..], &[new_name][..]);
        // Whether an operation is possible is not the question here; what it leaves behind is.
        match random.random_range(0..7) {
            0 | 1 => {
                let made =
                    fs.create(&ROOT_USER, dir, name, &node(*kinds.choose(&mut random).unwrap(), 0o755));
                if let Ok(attr) = made {
                    fs.forget(attr.ino, 1);
                    if attr.kind == Kind::Dir {
                        dirs.push(attr.ino);
                    }
                }
            }
            2 => drop(fs.unlink(dir, name)),
            3 => drop(fs.rmdir(dir, name)),
            4 => drop(fs.rename(dir, name, other, new_name, *hows.choose(&mut random).unwrap())),
            5 => {
                if let Ok(attr) = fs.lookup(dir, name) {
                    if let Ok(linked) = fs.link(attr.ino, other, new_name) {
                        fs.forget(linked.ino, 1);
                    }
                    let _ = fs.write(attr.ino, random.random_range(0..100_000), &[1; 3000], true);
                    fs.forget(attr.ino, 1);
                }
            }
            _ => dirs.retain(|dir| fs.getattr(*dir).is_ok_and(|attr| attr.kind == Kind::Dir)),
        }
        if step % 200 == 0 {
            fs.check_invariants();
        }
    }
    fs.check_invariants();
}
