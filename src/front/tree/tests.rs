use super::*;
use crate::fs::memfs::MemFs;
use crate::fs::resolve;
use crate::fs::{Caller, Kind, Seek};
use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// Collects what went wrong.
#[derive(Default)]
struct Heard {
    failures: Vec<String>,
    bytes: u64,
}

impl Watch for Heard {
    fn next(&mut self, _path: &Path) {}
    fn moved(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
    fn failed(&mut self, path: &Path, why: &Error) {
        self.failures.push(format!("{}: {why}", path.display()));
    }
}

/// A tree with one of everything an ordinary user can make.
fn sample(root: &Path) {
    fs::create_dir_all(root.join("dir/empty")).unwrap();
    fs::write(root.join("dir/text"), "some text").unwrap();
    fs::set_permissions(root.join("dir/text"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(root.join("dir/text"), root.join("also text")).unwrap();
    symlink("dir/nowhere", root.join("link")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 5000], 1 << 20).unwrap();
    sparse.set_len(8 << 20).unwrap();
    fs::write(root.join("large"), vec![3; (PIECE + 1234) as usize]).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    // Not every host file system has user attributes; what matters is that they come along where it has.
    let _ = rustix::fs::setxattr(root.join("large"), "user.note", b"here", rustix::fs::XattrFlags::empty());
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for name in ["dir", "dir/text", "large", "sparse"] {
        fs::File::open(root.join(name)).unwrap().set_modified(time).unwrap();
    }
}

/// Everything a copy has to keep, as text, in order of the paths.
fn describe(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let kind = stat.file_type();
        let mut what = String::new();
        if kind.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            what = format!(
                "{} bytes, sum {}",
                bytes.len(),
                bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()
            );
        } else if kind.is_symlink() {
            what = fs::read_link(&path).unwrap().display().to_string();
        } else if kind.is_fifo() {
            what = "pipe".into();
        }
        let time = if kind.is_symlink() || path == root { (0, 0) } else { (stat.mtime(), stat.mtime_nsec()) };
        let links = if kind.is_dir() { 0 } else { stat.nlink() };
        let name = path.strip_prefix(root).unwrap().display();
        lines.push(format!(
            "{name}: {:o} {} {} {links} {time:?} {what}",
            stat.mode(),
            stat.uid(),
            stat.gid()
        ));
    }
    lines.sort();
    lines
}

fn memfs() -> MemFs {
    MemFs::new(64 << 20, &Caller::default())
}

#[test]
fn a_tree_put_and_got_is_the_tree() {
    let home = tempfile::tempdir().unwrap();
    let (from, to) = (home.path().join("from"), home.path().join("to"));
    fs::create_dir(&from).unwrap();
    sample(&from);
    let inside = memfs();
    let mut heard = Heard::default();
    let copied = put(&inside, &from, inside.root(), b"tree", &mut heard);
    assert_eq!((heard.failures, copied.objects), (vec![], 9));
    assert_eq!(heard.bytes, copied.bytes);
    inside.check_invariants();
    let attr = resolve(&inside, "/tree").unwrap();
    let mut heard = Heard::default();
    assert_eq!(get(&inside, &attr, &to, &mut heard).objects, copied.objects);
    assert_eq!(heard.failures, Vec::<String>::new());
    assert_eq!(describe(&from), describe(&to));
    let mut note = [0; 10];
    if let Ok(len) = rustix::fs::getxattr(from.join("large"), "user.note", &mut note[..]) {
        assert_eq!(rustix::fs::getxattr(to.join("large"), "user.note", &mut note[..]), Ok(len));
    }
}

#[test]
fn holes_stay_holes_both_ways() {
    let home = tempfile::tempdir().unwrap();
    sample(home.path());
    let inside = memfs();
    put(&inside, &home.path().join("sparse"), inside.root(), b"s", &mut Heard::default());
    let attr = resolve(&inside, "/s").unwrap();
    assert_eq!(inside.seek(attr.ino, 0, Seek::Data).unwrap(), 1 << 20);
    assert!(attr.size == 8 << 20 && attr.blocks <= 32, "{attr:?}");
    let back = home.path().join("back");
    get(&inside, &attr, &back, &mut Heard::default());
    assert_eq!(
        fs::metadata(&back).unwrap().blocks(),
        fs::metadata(home.path().join("sparse")).unwrap().blocks()
    );
}

#[test]
fn what_is_there_is_replaced_and_directories_are_filled_up() {
    let home = tempfile::tempdir().unwrap();
    sample(home.path());
    let inside = memfs();
    for _ in 0..2 {
        let mut heard = Heard::default();
        put(&inside, &home.path().join("dir"), inside.root(), b"d", &mut heard);
        assert_eq!(heard.failures, Vec::<String>::new());
    }
    fs::write(home.path().join("dir/more"), "x").unwrap();
    fs::remove_file(home.path().join("dir/text")).unwrap();
    put(&inside, &home.path().join("dir"), inside.root(), b"d", &mut Heard::default());
    for path in ["/d/more", "/d/text", "/d/empty"] {
        assert!(resolve(&inside, path).is_ok(), "{path}");
    }
    inside.check_invariants();
}

#[test]
fn a_failure_is_told_and_the_rest_goes_on() {
    let home = tempfile::tempdir().unwrap();
    sample(home.path());
    let small = MemFs::new(64 << 10, &Caller::default());
    let mut heard = Heard::default();
    let copied = put(&small, home.path(), small.root(), b"t", &mut heard);
    assert!(
        copied.failed >= 1 && heard.failures.iter().any(|text| text.contains("large")),
        "{:?}",
        heard.failures
    );
    assert!(resolve(&small, "/t/dir/text").is_ok());
    let missing = PathBuf::from("/no/such/file");
    assert_eq!(put(&small, &missing, small.root(), b"m", &mut heard).failed, 1);
}

#[test]
fn a_stream_becomes_a_file() {
    let inside = memfs();
    let caller = Caller { uid: 3, gid: 4, umask: 0 };
    let bytes = vec![9; (2 * PIECE + 77) as usize];
    let (dir, name) = split(&inside, "/stream").unwrap();
    let put = put_stream(&inside, &mut &bytes[..], &caller, dir, &name, &mut Heard::default());
    assert_eq!(put.unwrap(), bytes.len() as u64);
    let attr = resolve(&inside, "/stream").unwrap();
    assert_eq!((attr.size, attr.uid, attr.kind), (bytes.len() as u64, 3, Kind::File));
}

#[test]
fn a_path_without_a_last_name_or_with_a_missing_directory_is_refused() {
    let inside = memfs();
    for path in ["/", "", "/..", "/a/."] {
        assert!(split(&inside, path).is_err(), "{path}");
    }
    assert!(split(&inside, "/missing/name").unwrap_err().to_string().contains("/missing"));
    assert_eq!(split(&inside, "/name/").unwrap().1, b"name");
}

/// An attribute that the host does not take is told. Where nothing is, the contents are there; what is there stays.
#[test]
fn what_cannot_be_dressed_is_told_and_replaces_nothing() {
    let home = tempfile::tempdir().unwrap();
    let inside = memfs();
    fs::write(home.path().join("from"), "contents").unwrap();
    put(&inside, &home.path().join("from"), inside.root(), b"f", &mut Heard::default());
    let attr = resolve(&inside, "/f").unwrap();
    inside.setxattr(attr.ino, b"unheard.of", b"x", crate::fs::SetXattr::Either, false).unwrap();
    let target = home.path().join("to");
    for (contents, said) in [("contents", "copied, but not its attribute unheard.of"), ("old", "stays")] {
        let mut heard = Heard::default();
        assert_eq!(get(&inside, &attr, &target, &mut heard).failed, 1, "{said}");
        let failure = &heard.failures[0];
        assert!(failure.contains("unheard.of") && failure.contains(said), "{failure}");
        assert_eq!(fs::read_to_string(&target).unwrap(), contents);
        fs::write(&target, "old").unwrap();
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
}

#[test]
fn a_file_that_nobody_may_read_is_replaced_by_one_that_nobody_may_read() {
    let home = tempfile::tempdir().unwrap();
    let inside = memfs();
    fs::write(home.path().join("from"), "contents").unwrap();
    fs::set_permissions(home.path().join("from"), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(home.path().join("from")).is_err() {
        return eprintln!("skipped: not root");
    }
    put(&inside, &home.path().join("from"), inside.root(), b"f", &mut Heard::default());
    let attr = resolve(&inside, "/f").unwrap();
    for _ in 0..2 {
        let mut heard = Heard::default();
        get(&inside, &attr, &home.path().join("to"), &mut heard);
        assert_eq!(heard.failures, Vec::<String>::new());
    }
    assert_eq!(fs::metadata(home.path().join("to")).unwrap().mode() & 0o7777, 0);
}

/// Is asked to end after so many pieces.
struct Ends(u32);

impl Watch for Ends {
    fn next(&mut self, _path: &Path) {}
    fn moved(&mut self, _bytes: u64) {
        self.0 = self.0.saturating_sub(1);
    }
    fn failed(&mut self, path: &Path, why: &Error) {
        panic!("{}: {why}", path.display());
    }
    fn is_over(&self) -> bool {
        self.0 == 0
    }
}

#[test]
fn who_is_asked_to_end_leaves_nothing_that_is_not_whole() {
    let home = tempfile::tempdir().unwrap();
    let large = home.path().join("large");
    fs::write(&large, vec![3; (4 * PIECE) as usize]).unwrap();
    let inside = memfs();
    assert_eq!(put(&inside, &large, inside.root(), b"cut", &mut Ends(2)).failed, 1);
    assert!(resolve(&inside, "/cut").is_err());
    put(&inside, &large, inside.root(), b"large", &mut Heard::default());
    assert_eq!(put(&inside, &large, inside.root(), b"large", &mut Ends(2)).failed, 1);
    let attr = resolve(&inside, "/large").unwrap();
    assert_eq!(attr.size, 4 * PIECE);
    inside.check_invariants();
    let place = home.path().join("place");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("old"), "old").unwrap();
    for name in ["new", "old"] {
        assert_eq!(get(&inside, &attr, &place.join(name), &mut Ends(2)).failed, 1);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "{name}");
    }
    assert_eq!(fs::read_to_string(place.join("old")).unwrap(), "old");
}

/// Files of a directory with their contents.
fn files(root: &Path, all: &[(&str, &str)]) {
    for (name, contents) in all {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
}

/// What replaced it would take the place of the file, and other names of the first would lead to the second.
#[test]
fn no_copy_of_a_run_takes_the_place_of_another_of_the_same_run() {
    let home = tempfile::tempdir().unwrap();
    files(home.path(), &[("A/x", "one"), ("B/x", "two"), ("C/z", "")]);
    fs::hard_link(home.path().join("A/x"), home.path().join("C/y")).unwrap();
    let inside = memfs();
    let mut heard = Heard::default();
    let mut putter = Putter::new(&inside, &mut heard);
    for (source, name) in [("A/x", "x"), ("B/x", "x"), ("C/z", "z"), ("C/y", "y"), ("C/y", "x")] {
        putter.put(&home.path().join(source), inside.root(), name.as_bytes());
    }
    let copied = putter.copied();
    assert_eq!((copied.objects, copied.failed, heard.failures.len()), (4, 1, 1));
    assert!(heard.failures[0].contains("B/x: its name is that of another file"), "{:?}", heard.failures);
    let [x, y] = ["/x", "/y"].map(|path| resolve(&inside, path).unwrap());
    assert_eq!((x.ino, x.nlink, x.size), (y.ino, 2, 3));
    inside.check_invariants();
    // The same on the way out.
    for name in ["A", "B", "C"] {
        put(&inside, &home.path().join(name), inside.root(), name.as_bytes(), &mut Heard::default());
    }
    let place = home.path().join("place");
    fs::create_dir(&place).unwrap();
    let mut heard = Heard::default();
    let mut getter = Getter::new(&inside, &mut heard);
    for (source, name) in [("/x", "x"), ("/B/x", "x"), ("/C/z", "z"), ("/y", "y"), ("/y", "x")] {
        getter.get(&resolve(&inside, source).unwrap(), &place.join(name));
    }
    assert_eq!((getter.copied().objects, getter.copied().failed, heard.failures.len()), (4, 1, 1));
    let [x, y] = ["x", "y"].map(|name| fs::metadata(place.join(name)).unwrap());
    assert_eq!((x.ino(), x.nlink(), x.len()), (y.ino(), 2, 3));
}

/// Somebody else may change the target meanwhile.
#[test]
fn what_somebody_else_put_in_the_place_of_a_copy_gets_no_more_names() {
    let home = tempfile::tempdir().unwrap();
    files(home.path(), &[("tree/a", "one")]);
    fs::hard_link(home.path().join("tree/a"), home.path().join("tree/b")).unwrap();
    let inside = memfs();
    put(&inside, &home.path().join("tree"), inside.root(), b"tree", &mut Heard::default());
    let [a, b] = ["a", "b"].map(|name| home.path().join(name));
    for is_there in [true, false] {
        let mut heard = Heard::default();
        let mut getter = Getter::new(&inside, &mut heard);
        getter.get(&resolve(&inside, "/tree/a").unwrap(), &a);
        fs::remove_file(&a).unwrap();
        if is_there {
            fs::write(home.path().join("other"), "another's").unwrap();
            fs::rename(home.path().join("other"), &a).unwrap();
        }
        getter.get(&resolve(&inside, "/tree/b").unwrap(), &b);
        assert_eq!((getter.copied().failed, heard.failures), (0, Vec::new()));
        assert_eq!(fs::read_to_string(&b).unwrap(), "one");
        fs::remove_file(&b).unwrap();
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

/// Is asked to end once so many objects were told.
struct EndsAt(u32, u32);

impl Watch for EndsAt {
    fn next(&mut self, _path: &Path) {
        self.0 -= 1;
    }
    fn moved(&mut self, _bytes: u64) {}
    fn failed(&mut self, path: &Path, why: &Error) {
        panic!("{}: {why}", path.display());
    }
    fn left_out(&mut self) {
        self.1 += 1;
    }
    fn is_over(&self) -> bool {
        self.0 == 0
    }
}

#[test]
fn what_is_left_out_is_told_and_an_end_after_the_last_leaves_nothing_out() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("tree")).unwrap();
    // Links are whole at once, and so nothing fails.
    for name in ["tree/a", "tree/b", "tree/c"] {
        symlink("nowhere", home.path().join(name)).unwrap();
    }
    for (ends_at, left_out) in [(2, 2), (4, 0)] {
        let inside = memfs();
        let mut watch = EndsAt(ends_at, 0);
        let copied = put(&inside, &home.path().join("tree"), inside.root(), b"tree", &mut watch);
        assert_eq!((watch.1, copied.failed), (left_out, 0));
        let whole = memfs();
        put(&whole, &home.path().join("tree"), whole.root(), b"tree", &mut Heard::default());
        let mut watch = EndsAt(ends_at, 0);
        let back = home.path().join(format!("back{ends_at}"));
        let copied = get(&whole, &resolve(&whole, "/tree").unwrap(), &back, &mut watch);
        assert_eq!((watch.1, copied.failed), (left_out, 0));
    }
}

#[test]
fn an_error_names_its_path_once() {
    for (path, why, said) in [
        ("a/b", "a/b is in use", "a/b is in use"),
        ("a/b", "a/b: gone", "a/b: gone"),
        ("a", "able is not", "a: able is not"),
        ("a/b", "in use", "a/b: in use"),
    ] {
        assert_eq!(named(path, &Error::invalid(why)), said);
    }
}

/// Writes to a file when the copy comes to it.
struct Writer(PathBuf);

impl Watch for Writer {
    fn next(&mut self, path: &Path) {
        if path == self.0 {
            // As long, and as old as it says.
            let time = fs::metadata(path).unwrap().modified().unwrap();
            fs::write(path, "new").unwrap();
            fs::File::open(path).unwrap().set_modified(time).unwrap();
        }
    }
    fn moved(&mut self, _bytes: u64) {}
    fn failed(&mut self, _path: &Path, _why: &Error) {}
}

#[test]
fn a_number_that_became_another_files_makes_no_name_of_the_first() {
    let home = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| home.path().join(name));
    fs::write(&first, "old").unwrap();
    fs::hard_link(&first, &second).unwrap();
    let inside = memfs();
    // Whether the number was given away or the contents changed: it is not what was copied.
    let mut writer = Writer(second.clone());
    let mut putter = Putter::new(&inside, &mut writer);
    putter.put(&first, inside.root(), b"first");
    putter.put(&second, inside.root(), b"second");
    assert_eq!((putter.copied().objects, putter.copied().failed), (2, 0));
    let text = |path: &str| {
        let attr = resolve(&inside, path).unwrap();
        inside.read(attr.ino, 0, 100).unwrap().get().unwrap().concat()
    };
    assert_eq!((text("/first"), text("/second")), (b"old".to_vec(), b"new".to_vec()));
}
