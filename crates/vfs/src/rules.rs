//! What every file system here does the same, as tests that any [`FileSystem`] can be put through.
//!
//! [`check`] runs each rule on a file system of its own, freshly made and empty, of at least 16 MiB and with 4 KiB
//! blocks. A rule is a sentence and fails with it.

use super::acl;
use super::*;

type Rule = (&'static str, fn(&dyn FileSystem));

macro_rules! rules {
    ($($rule:ident,)*) => { &[$((stringify!($rule), $rule),)*] };
}

const RULES: &[Rule] = rules![
    a_file_without_names_lives_until_its_last_reference_is_gone,
    names_of_all_kinds_count_their_links,
    rename_follows_its_flags_and_keeps_directories_a_tree,
    renaming_one_name_of_an_inode_over_another_changes_nothing,
    a_set_group_id_directory_hands_on_its_group_and_the_umask_applies,
    set_id_bits_go_with_a_change_by_others_but_stay_on_directories,
    mode_and_access_list_stay_in_step,
    a_default_list_shapes_what_is_made_below,
    attributes_are_made_and_replaced_as_asked,
    fallocate_keeps_or_moves_the_size_as_asked,
    times_are_set_as_asked,
    the_provided_walk_with_attributes_agrees_with_our_own,
    names_are_checked,
    a_write_past_the_end_leaves_a_hole_that_reads_as_zeros,
    a_listing_goes_on_after_any_entry,
];

/// Puts the file systems that `make` makes through all rules.
pub fn check(make: impl Fn() -> Box<dyn FileSystem>) {
    for (name, rule) in RULES {
        println!("{}", name.replace('_', " "));
        let fs = make();
        rule(&*fs);
        fs.shutdown().unwrap();
    }
}

const ROOT_USER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

fn node(kind: Kind, perm: u16) -> NewNode<'static> {
    NewNode { kind, perm, rdev: 0, target: b"target" }
}

fn make(fs: &dyn FileSystem, parent: Ino, name: &str, kind: Kind) -> Attr {
    fs.create(&ROOT_USER, parent, name.as_bytes(), &node(kind, 0o777)).unwrap()
}

/// All names but those a freshly made file system may have already.
fn names(fs: &dyn FileSystem, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    names.retain(|name| name != "lost+found");
    names.sort();
    names
}

fn contents(fs: &dyn FileSystem, ino: Ino) -> Vec<u8> {
    fs.read(ino, 0, 1 << 20).unwrap().get().unwrap().concat()
}

macro_rules! fails {
    ($call:expr, $error:pat) => {
        assert!(matches!($call, Err($error)), "{:?}", $call.err())
    };
}

fn a_file_without_names_lives_until_its_last_reference_is_gone(fs: &dyn FileSystem) {
    let file = make(fs, fs.root(), "f", Kind::File);
    fs.write(file.ino, 0, b"still here", false).unwrap();
    fs.lookup(fs.root(), b"f").unwrap();
    fs.unlink(fs.root(), b"f").unwrap();
    assert_eq!(fs.getattr(file.ino).unwrap().nlink, 0);
    assert_eq!(contents(fs, file.ino), b"still here");
    fails!(fs.link(file.ino, fs.root(), b"again"), Error::NotFound);
    fs.forget(file.ino, 1);
    assert_eq!(contents(fs, file.ino), b"still here");
    fs.forget(file.ino, 1);
    fails!(fs.getattr(file.ino), Error::Stale);
}

fn names_are_checked(fs: &dyn FileSystem) {
    let long = vec![b'n'; NAME_MAX + 1];
    fails!(fs.create(&ROOT_USER, fs.root(), &long, &node(Kind::File, 0)), Error::NameTooLong);
    fails!(fs.lookup(fs.root(), &long), Error::NameTooLong);
    fs.create(&ROOT_USER, fs.root(), &long[1..], &node(Kind::File, 0)).unwrap();
    fails!(fs.create(&ROOT_USER, fs.root(), &long[1..], &node(Kind::File, 0)), Error::Exists);
    fails!(fs.rename(fs.root(), &long[1..], fs.root(), &long, Rename::Replace), Error::NameTooLong);
    fails!(fs.lookup(fs.root(), b"missing"), Error::NotFound);
    fails!(fs.unlink(fs.root(), b"missing"), Error::NotFound);
    let file = fs.lookup(fs.root(), &long[1..]).unwrap();
    fails!(fs.lookup(file.ino, b"below a file"), Error::NotDir);
}

fn a_write_past_the_end_leaves_a_hole_that_reads_as_zeros(fs: &dyn FileSystem) {
    let file = make(fs, fs.root(), "f", Kind::File).ino;
    fs.write(file, 0, b"start", false).unwrap();
    fs.write(file, 1 << 18, b"end", false).unwrap();
    let bytes = contents(fs, file);
    assert_eq!(bytes.len(), (1 << 18) + 3);
    assert!(bytes.starts_with(b"start") && bytes.ends_with(b"end"));
    assert!(bytes[5..1 << 18].iter().all(|byte| *byte == 0));
    assert_eq!(fs.seek(file, 0, Seek::Hole).unwrap(), 4096);
    assert_eq!(fs.seek(file, 4096, Seek::Data).unwrap(), 1 << 18);
    assert_eq!(fs.seek(file, 1 << 18, Seek::Hole).unwrap(), (1 << 18) + 3);
    fs.fallocate(file, 1 << 18, 4096, Fallocate::Punch).unwrap();
    fails!(fs.seek(file, 4096, Seek::Data), Error::NoOffset);
    fs.setattr(file, &SetAttr { size: Some(2), ..SetAttr::default() }).unwrap();
    fs.setattr(file, &SetAttr { size: Some(8), ..SetAttr::default() }).unwrap();
    assert_eq!(contents(fs, file), b"st\0\0\0\0\0\0");
}

fn a_listing_goes_on_after_any_entry(fs: &dyn FileSystem) {
    let dir = make(fs, fs.root(), "d", Kind::Dir).ino;
    for number in 0..300 {
        make(fs, dir, &format!("a rather long name, to fill blocks, number {number}"), Kind::File);
    }
    let mut all = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        all.push((entry.name.to_vec(), entry.next));
        true
    })
    .unwrap();
    assert_eq!(all.len(), 302);
    for (at, (_, next)) in all.iter().enumerate().step_by(7) {
        let mut following = None;
        fs.readdir(dir, *next, &mut |entry| {
            following = Some(entry.name.to_vec());
            false
        })
        .unwrap();
        assert_eq!(following.as_ref(), all.get(at + 1).map(|(name, _)| name), "after entry {at}");
    }
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

fn names_of_all_kinds_count_their_links(fs: &dyn FileSystem) {
    let dir = make(fs, fs.root(), "d", Kind::Dir);
    let file = make(fs, dir.ino, "f", Kind::File);
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
    assert_eq!(names(fs, fs.root()), [".", "..", "g"]);
}

fn rename_follows_its_flags_and_keeps_directories_a_tree(fs: &dyn FileSystem) {
    let root = fs.root();
    let a = make(fs, root, "a", Kind::Dir);
    make(fs, root, "b", Kind::Dir);
    let inner = make(fs, a.ino, "inner", Kind::Dir);
    let file = make(fs, root, "f", Kind::File);
    fails!(fs.rename(root, b"a", inner.ino, b"x", Rename::Replace), Error::BadArgument);
    fails!(fs.rename(a.ino, b"inner", root, b"a", Rename::Exchange), Error::BadArgument);
    fails!(fs.rename(root, b"f", root, b"a", Rename::Replace), Error::IsDir);
    fails!(fs.rename(root, b"a", root, b"f", Rename::Replace), Error::NotDir);
    fails!(fs.rename(root, b"b", root, b"a", Rename::Replace), Error::NotEmpty);
    fails!(fs.rename(root, b"f", root, b"b", Rename::NoReplace), Error::Exists);
    fails!(fs.rename(root, b"f", root, b"none", Rename::Exchange), Error::NotFound);
    fs.rename(a.ino, b"inner", root, b"b", Rename::Replace).unwrap();
    fs.rename(root, b"f", a.ino, b"f", Rename::Replace).unwrap();
    fs.rename(a.ino, b"f", root, b"b", Rename::Exchange).unwrap();
    assert_eq!(fs.lookup(root, b"b").unwrap().ino, file.ino);
    assert_eq!(fs.lookup(inner.ino, b"..").unwrap().ino, a.ino);
    fs.rename(root, b"b", root, b"c", Rename::Whiteout).unwrap();
    let mark = fs.lookup(root, b"b").unwrap();
    assert_eq!((mark.kind, mark.rdev), (Kind::CharDevice, 0));
}

fn renaming_one_name_of_an_inode_over_another_changes_nothing(fs: &dyn FileSystem) {
    let file = make(fs, fs.root(), "a", Kind::File);
    fs.link(file.ino, fs.root(), b"b").unwrap();
    fs.rename(fs.root(), b"a", fs.root(), b"b", Rename::Replace).unwrap();
    assert_eq!(names(fs, fs.root()), [".", "..", "a", "b"]);
}

fn a_set_group_id_directory_hands_on_its_group_and_the_umask_applies(fs: &dyn FileSystem) {
    let shared = make(fs, fs.root(), "shared", Kind::Dir);
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

fn set_id_bits_go_with_a_change_by_others_but_stay_on_directories(fs: &dyn FileSystem) {
    let file = make(fs, fs.root(), "f", Kind::File).ino;
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
    let dir = make(fs, fs.root(), "d", Kind::Dir).ino;
    let set = SetAttr { perm: Some(0o2775), kill_suid: true, uid: Some(5), ..SetAttr::default() };
    assert_eq!(fs.setattr(dir, &set).unwrap().perm, 0o2775);
    for (uid, gid) in [(Some(6), None), (None, Some(6)), (None, None)] {
        let set = SetAttr { kill_suid: true, uid, gid, ..SetAttr::default() };
        assert_eq!(fs.setattr(dir, &set).unwrap().perm, 0o2775, "{uid:?}, {gid:?}");
    }
}

fn mode_and_access_list_stay_in_step(fs: &dyn FileSystem) {
    let file = make(fs, fs.root(), "f", Kind::File).ino;
    fs.setattr(file, &SetAttr { perm: Some(0o2600), ..SetAttr::default() }).unwrap();
    fs.setxattr(file, acl::ACCESS, &list(6), SetXattr::Either, true).unwrap();
    assert_eq!(fs.getattr(file).unwrap().perm, 0o760);
    fs.setattr(file, &SetAttr { perm: Some(0o710), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getxattr(file, acl::ACCESS).unwrap(), list(1));
    fails!(fs.setxattr(file, acl::ACCESS, b"nonsense", SetXattr::Either, false), Error::BadArgument);
    fails!(fs.setxattr(file, acl::DEFAULT, &list(7), SetXattr::Either, false), Error::Denied);
}

fn a_default_list_shapes_what_is_made_below(fs: &dyn FileSystem) {
    let dir = make(fs, fs.root(), "d", Kind::Dir).ino;
    fs.setxattr(dir, acl::DEFAULT, &list(7), SetXattr::Either, false).unwrap();
    let file = fs.create(&ROOT_USER, dir, b"f", &node(Kind::File, 0o666)).unwrap();
    assert_eq!(file.perm, 0o660, "the umask has no say");
    assert_eq!(fs.getxattr(file.ino, acl::ACCESS).unwrap()[..4], list(6)[..4]);
    let below = fs.create(&ROOT_USER, dir, b"d", &node(Kind::Dir, 0o777)).unwrap();
    assert_eq!(fs.getxattr(below.ino, acl::DEFAULT).unwrap(), list(7));
    let link = fs.create(&ROOT_USER, dir, b"l", &node(Kind::Symlink, 0o777)).unwrap();
    assert_eq!((link.perm, fs.listxattr(link.ino).unwrap().len()), (0o777, 0));
}

fn attributes_are_made_and_replaced_as_asked(fs: &dyn FileSystem) {
    let file = make(fs, fs.root(), "f", Kind::File).ino;
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

fn fallocate_keeps_or_moves_the_size_as_asked(fs: &dyn FileSystem) {
    let file = make(fs, fs.root(), "f", Kind::File).ino;
    let size = || fs.getattr(file).unwrap().size;
    fs.fallocate(file, 0, 5000, Fallocate::Reserve { keep_size: true }).unwrap();
    assert_eq!((size(), fs.getattr(file).unwrap().blocks), (0, 16));
    fs.fallocate(file, 0, 5000, Fallocate::Reserve { keep_size: false }).unwrap();
    assert_eq!((size(), contents(fs, file)), (5000, vec![0; 5000]));
    fs.write(file, 0, &[7; 5000], false).unwrap();
    fs.fallocate(file, 4000, 2000, Fallocate::Zero { keep_size: true }).unwrap();
    assert_eq!((size(), contents(fs, file)[3999..4001].to_vec()), (5000, vec![7, 0]));
    fs.fallocate(file, 4000, 2000, Fallocate::Zero { keep_size: false }).unwrap();
    assert_eq!(size(), 6000);
    fails!(fs.seek(file, 6000, Seek::Hole), Error::NoOffset);
}

fn times_are_set_as_asked(fs: &dyn FileSystem) {
    let file = make(fs, fs.root(), "f", Kind::File);
    let long_ago = Stamp { sec: -5, nsec: 3 };
    let set = SetAttr { mtime: Some(SetTime::To(long_ago)), atime: Some(SetTime::Now), ..SetAttr::default() };
    let after = fs.setattr(file.ino, &set).unwrap();
    assert!(after.mtime == long_ago && after.atime >= file.atime && after.ctime >= file.ctime);
    assert_eq!(after.crtime, file.crtime);
    fs.setattr(file.ino, &SetAttr { ctime: Some(long_ago), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getattr(file.ino).unwrap().ctime, long_ago);
}

fn the_provided_walk_with_attributes_agrees_with_our_own(fs: &dyn FileSystem) {
    let dir = make(fs, fs.root(), "d", Kind::Dir).ino;
    for number in 0..600 {
        let file = make(fs, dir, &format!("f{number}"), Kind::File);
        fs.forget(file.ino, 1);
    }
    type Seen = Vec<(Vec<u8>, Option<u64>, u64)>;
    let count_of = |seen: &Seen| seen.iter().filter(|(name, ..)| name == b"f0").count() as u64;
    let walk = |from, count, own| {
        let mut seen = Seen::new();
        let mut visit = |entry: DirEntry, attr: Option<&Attr>| {
            let take = seen.len() < count;
            if take {
                seen.push((entry.name.to_vec(), attr.map(|attr| attr.ino.0), entry.next));
            }
            take
        };
        match own {
            true => fs.readdir_attrs(dir, from, &mut visit).unwrap(),
            false => super::readdir_then_lookup(fs, dir, from, &mut visit).unwrap(),
        }
        seen
    };
    let all = walk(0, 10_000, false);
    let places = [0, all[2].2, all[400].2];
    let mut references = 1 + count_of(&all);
    for (from, count) in [(places[0], 10_000), (places[0], 1), (places[1], 300), (places[2], 256)] {
        let (own, provided) = (walk(from, count, true), walk(from, count, false));
        assert_eq!(own, provided, "{count} from {from}");
        references += count_of(&own) + count_of(&provided);
    }
    let file = fs.lookup(dir, b"f0").unwrap();
    fs.unlink(dir, b"f0").unwrap();
    // The walks that took the entry hold a reference each, the look-up one.
    fs.forget(file.ino, references - 1);
    assert_eq!(fs.getattr(file.ino).unwrap().nlink, 0);
    fs.forget(file.ino, 1);
    fails!(fs.getattr(file.ino), Error::Stale);
}
