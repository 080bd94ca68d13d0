use super::*;
use crate::time::Stamp;
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

fn names(fs: &MemFs, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    names
}

fn contents(fs: &MemFs, ino: Ino) -> Vec<u8> {
    fs.read(ino, 0, 1 << 20).unwrap().get().unwrap().concat()
}

macro_rules! fails {
    ($call:expr, $error:pat) => {
        assert!(matches!($call, Err($error)), "{:?}", $call.err())
    };
}

#[test]
fn a_file_without_names_lives_until_its_last_reference_is_gone() {
    let fs = fs();
    let file = make(&fs, fs.root(), "f", Kind::File);
    fs.write(file.ino, 0, b"still here", false).unwrap();
    fs.lookup(fs.root(), b"f").unwrap();
    fs.unlink(fs.root(), b"f").unwrap();
    assert_eq!(fs.getattr(file.ino).unwrap().nlink, 0);
    assert_eq!(contents(&fs, file.ino), b"still here");
    fails!(fs.link(file.ino, fs.root(), b"again"), Error::NotFound);
    fs.forget(file.ino, 1);
    assert_eq!(contents(&fs, file.ino), b"still here");
    fs.forget(file.ino, 1);
    fails!(fs.getattr(file.ino), Error::Stale);
    assert_eq!(fs.statfs().unwrap().free, fs.statfs().unwrap().blocks);
    let next = make(&fs, fs.root(), "g", Kind::File);
    assert!(
        next.ino == file.ino && next.generation != file.generation,
        "a place is used again under a new generation"
    );
}

#[test]
fn names_of_all_kinds_count_their_links() {
    let fs = fs();
    let dir = make(&fs, fs.root(), "d", Kind::Dir);
    let file = make(&fs, dir.ino, "f", Kind::File);
    assert_eq!((dir.nlink, file.nlink), (2, 1));
    assert_eq!(fs.link(file.ino, fs.root(), b"g").unwrap().nlink, 2);
    assert_eq!(fs.getattr(fs.root()).unwrap().nlink, 3);
    fails!(fs.link(dir.ino, fs.root(), b"e"), Error::NotPermitted);
    fails!(fs.rmdir(fs.root(), b"d"), Error::NotEmpty);
    fails!(fs.rmdir(fs.root(), b"g"), Error::NotDir);
    fails!(fs.unlink(fs.root(), b"d"), Error::IsDir);
    fs.unlink(dir.ino, b"f").unwrap();
    fs.rmdir(fs.root(), b"d").unwrap();
    fails!(fs.create(&ROOT_USER, dir.ino, b"late", &node(Kind::File, 0)), Error::NotFound);
    assert_eq!(names(&fs, fs.root()), [".", "..", "g"]);
    check_invariants(&fs);
}

#[test]
fn rename_follows_its_flags_and_keeps_directories_a_tree() {
    let fs = fs();
    let root = fs.root();
    let (a, b) = (make(&fs, root, "a", Kind::Dir), make(&fs, root, "b", Kind::Dir));
    let inner = make(&fs, a.ino, "inner", Kind::Dir);
    let file = make(&fs, root, "f", Kind::File);
    fails!(fs.rename(root, b"a", inner.ino, b"x", Rename::Replace), Error::BadArgument);
    fails!(fs.rename(a.ino, b"inner", root, b"a", Rename::Exchange), Error::BadArgument);
    fails!(fs.rename(root, b"f", root, b"a", Rename::Replace), Error::IsDir);
    fails!(fs.rename(root, b"a", root, b"f", Rename::Replace), Error::NotDir);
    fails!(fs.rename(root, b"b", root, b"a", Rename::Replace), Error::NotEmpty);
    fails!(fs.rename(root, b"f", root, b"b", Rename::NoReplace), Error::Exists);
    fails!(fs.rename(root, b"f", root, b"none", Rename::Exchange), Error::NotFound);
    fs.rename(a.ino, b"inner", root, b"b", Rename::Replace).unwrap();
    fails!(fs.lookup(b.ino, b".."), Error::NotFound);
    fs.rename(root, b"f", a.ino, b"f", Rename::Replace).unwrap();
    fs.rename(a.ino, b"f", root, b"b", Rename::Exchange).unwrap();
    assert_eq!(fs.lookup(root, b"b").unwrap().ino, file.ino);
    assert_eq!(fs.lookup(inner.ino, b"..").unwrap().ino, a.ino);
    fs.rename(root, b"b", root, b"c", Rename::Whiteout).unwrap();
    let mark = fs.lookup(root, b"b").unwrap();
    assert_eq!((mark.kind, mark.rdev), (Kind::CharDevice, 0));
    check_invariants(&fs);
}

#[test]
fn renaming_one_name_of_an_inode_over_another_changes_nothing() {
    let fs = fs();
    let file = make(&fs, fs.root(), "a", Kind::File);
    fs.link(file.ino, fs.root(), b"b").unwrap();
    fs.rename(fs.root(), b"a", fs.root(), b"b", Rename::Replace).unwrap();
    assert_eq!(names(&fs, fs.root()), [".", "..", "a", "b"]);
}

#[test]
fn a_set_group_id_directory_hands_on_its_group_and_the_umask_applies() {
    let fs = fs();
    let shared = make(&fs, fs.root(), "shared", Kind::Dir);
    let set = SetAttr { gid: Some(50), perm: Some(0o2775), ..SetAttr::default() };
    fs.setattr(shared.ino, &set).unwrap();
    let someone = Caller { uid: 7, gid: 8, umask: 0o027 };
    let file = fs.create(&someone, shared.ino, b"f", &node(Kind::File, 0o666)).unwrap();
    let dir = fs.create(&someone, shared.ino, b"d", &node(Kind::Dir, 0o777)).unwrap();
    assert_eq!((file.uid, file.gid, file.perm), (7, 50, 0o640));
    assert_eq!((dir.gid, dir.perm), (50, 0o2750));
    let elsewhere = fs.create(&someone, fs.root(), b"f", &node(Kind::File, 0o666)).unwrap();
    assert_eq!(elsewhere.gid, 8);
}

#[test]
fn set_id_bits_go_with_a_change_by_others_but_stay_on_directories() {
    let fs = fs();
    let file = make(&fs, fs.root(), "f", Kind::File).ino;
    let set = |perm| fs.setattr(file, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
    let perm = || fs.getattr(file).unwrap().perm;
    set(0o6755);
    fs.write(file, 0, b"x", false).unwrap();
    assert_eq!(perm(), 0o6755);
    fs.write(file, 0, b"x", true).unwrap();
    assert_eq!(perm(), 0o755);
    set(0o6745);
    fs.setattr(file, &SetAttr { size: Some(0), kill_suid: true, ..SetAttr::default() }).unwrap();
    assert_eq!(perm(), 0o2745, "without group execution the bit means mandatory locking");
    let dir = make(&fs, fs.root(), "d", Kind::Dir).ino;
    let set = SetAttr { perm: Some(0o2775), kill_suid: true, uid: Some(5), ..SetAttr::default() };
    assert_eq!(fs.setattr(dir, &set).unwrap().perm, 0o2775);
}

/// owner rwx, user 7 rwx, group r-x, mask as given, others ---
fn list(mask: u16) -> Vec<u8> {
    let none = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, none), (2, 7, 7), (4, 5, none), (16, mask, none), (32, 0, none)];
    let raw = entries.iter().flat_map(|(tag, perm, id)| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    });
    2u32.to_le_bytes().into_iter().chain(raw).collect()
}

#[test]
fn mode_and_access_list_stay_in_step() {
    let fs = fs();
    let file = make(&fs, fs.root(), "f", Kind::File).ino;
    fs.setattr(file, &SetAttr { perm: Some(0o2600), ..SetAttr::default() }).unwrap();
    fs.setxattr(file, acl::ACCESS, &list(6), SetXattr::Either, true).unwrap();
    assert_eq!(fs.getattr(file).unwrap().perm, 0o760);
    fs.setattr(file, &SetAttr { perm: Some(0o710), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getxattr(file, acl::ACCESS).unwrap(), list(1));
    fails!(fs.setxattr(file, acl::ACCESS, b"nonsense", SetXattr::Either, false), Error::BadArgument);
    fails!(fs.setxattr(file, acl::DEFAULT, &list(7), SetXattr::Either, false), Error::Denied);
}

#[test]
fn a_default_list_shapes_what_is_made_below() {
    let fs = fs();
    let dir = make(&fs, fs.root(), "d", Kind::Dir).ino;
    fs.setxattr(dir, acl::DEFAULT, &list(7), SetXattr::Either, false).unwrap();
    let file = fs.create(&ROOT_USER, dir, b"f", &node(Kind::File, 0o666)).unwrap();
    assert_eq!(file.perm, 0o660, "the umask has no say");
    assert_eq!(fs.getxattr(file.ino, acl::ACCESS).unwrap()[..4], list(6)[..4]);
    let below = fs.create(&ROOT_USER, dir, b"d", &node(Kind::Dir, 0o777)).unwrap();
    assert_eq!(fs.getxattr(below.ino, acl::DEFAULT).unwrap(), list(7));
    let link = fs.create(&ROOT_USER, dir, b"l", &node(Kind::Symlink, 0o777)).unwrap();
    assert_eq!((link.perm, fs.listxattr(link.ino).unwrap().len()), (0o777, 0));
}

#[test]
fn attributes_are_made_and_replaced_as_asked() {
    let fs = fs();
    let file = make(&fs, fs.root(), "f", Kind::File).ino;
    let set = |value: &[u8], how| fs.setxattr(file, b"user.a", value, how, false);
    fails!(set(b"1", SetXattr::Replace), Error::NoAttribute);
    set(b"1", SetXattr::Create).unwrap();
    fails!(set(b"2", SetXattr::Create), Error::Exists);
    set(b"2", SetXattr::Replace).unwrap();
    assert_eq!(fs.getxattr(file, b"user.a").unwrap(), b"2");
    assert_eq!(fs.listxattr(file).unwrap(), [b"user.a"]);
    fs.removexattr(file, b"user.a").unwrap();
    fails!(fs.removexattr(file, b"user.a"), Error::NoAttribute);
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
    check_invariants(&fs);
}

#[test]
fn fallocate_keeps_or_moves_the_size_as_asked() {
    let fs = fs();
    let file = make(&fs, fs.root(), "f", Kind::File).ino;
    let size = || fs.getattr(file).unwrap().size;
    fs.fallocate(file, 0, 5000, Fallocate::Reserve { keep_size: true }).unwrap();
    assert_eq!((size(), fs.getattr(file).unwrap().blocks), (0, 16));
    fs.fallocate(file, 0, 5000, Fallocate::Reserve { keep_size: false }).unwrap();
    assert_eq!((size(), contents(&fs, file)), (5000, vec![0; 5000]));
    fs.write(file, 0, &[7; 5000], false).unwrap();
    fs.fallocate(file, 4000, 2000, Fallocate::Zero { keep_size: true }).unwrap();
    assert_eq!((size(), contents(&fs, file)[3999..4001].to_vec()), (5000, vec![7, 0]));
    fs.fallocate(file, 4000, 2000, Fallocate::Zero { keep_size: false }).unwrap();
    assert_eq!(size(), 6000);
    fails!(fs.seek(file, 6000, Seek::Hole), Error::NoOffset);
}

#[test]
fn times_are_set_as_asked() {
    let fs = fs();
    let file = make(&fs, fs.root(), "f", Kind::File);
    let long_ago = Stamp { sec: -5, nsec: 3 };
    let set = SetAttr { mtime: Some(SetTime::To(long_ago)), atime: Some(SetTime::Now), ..SetAttr::default() };
    let after = fs.setattr(file.ino, &set).unwrap();
    assert!(after.mtime == long_ago && after.atime >= file.atime && after.ctime >= file.ctime);
    assert_eq!(after.crtime, file.crtime);
    fs.setattr(file.ino, &SetAttr { ctime: Some(long_ago), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getattr(file.ino).unwrap().ctime, long_ago);
}

#[test]
fn the_provided_walk_with_attributes_agrees_with_our_own() {
    let fs = fs();
    let dir = make(&fs, fs.root(), "d", Kind::Dir).ino;
    for number in 0..600 {
        let file = make(&fs, dir, &format!("f{number}"), Kind::File);
        fs.forget(file.ino, 1);
    }
    let walk = |from, count, own| {
        let mut seen = Vec::new();
        let mut visit = |entry: DirEntry, attr: Option<&Attr>| {
            let take = seen.len() < count;
            if take {
                seen.push((entry.name.to_vec(), attr.map(|attr| attr.ino.0), entry.next));
            }
            take
        };
        match own {
            true => fs.readdir_attrs(dir, from, &mut visit).unwrap(),
            false => crate::fs::readdir_then_lookup(&fs, dir, from, &mut visit).unwrap(),
        }
        seen
    };
    for (from, count) in [(0, 10_000), (0, 1), (2, 300), (400, 256)] {
        assert_eq!(walk(from, count, true), walk(from, count, false), "{count} from {from}");
    }
    let file = fs.lookup(dir, b"f0").unwrap();
    fs.unlink(dir, b"f0").unwrap();
    // The four walks that took the entry hold a reference each, the look-up one.
    fs.forget(file.ino, 4);
    assert_eq!(fs.getattr(file.ino).unwrap().nlink, 0);
    fs.forget(file.ino, 1);
    fails!(fs.getattr(file.ino), Error::Stale);
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
            check_invariants(&fs);
        }
    }
    check_invariants(&fs);
}
