//! The object store from the command line and through FUSE.

use crate::mounts::{bimetal, no_fuse, once_free, skip};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    /// A store of 64 MiB with a placement.
    fn new(arguments: &[&str]) -> Image {
        let image = Image { dir: tempfile::tempdir().unwrap() };
        let nand = image.path("nand.img");
        image.ok(&[&["mkfs", "osd", "--size", "64MiB", "--nand", &nand], arguments].concat());
        image
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_string()
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_bimetal"))
            .args(arguments)
            .env("BIMETAL_NAND", self.path("nand.img"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Who reads nothing closes the pipe.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        String::from_utf8_lossy(&self.feed(arguments, b"")).into_owned()
    }

    fn feed(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let output = self.run(arguments, input);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}

#[test]
fn objects_go_in_and_out_as_streams_and_every_verb_works() {
    let image = Image::new(&["--bare", "--placement", "split-atime:entries=100"]);
    let bytes: Vec<u8> = (0..5_000_000u32).map(|at| (at / 7) as u8).collect();
    let first = String::from_utf8(image.feed(&["osd", "put", "-"], &bytes)).unwrap();
    let first = first.trim();
    assert!(image.feed(&["osd", "get", first], b"") == bytes);
    fs::write(image.path("in"), b"from a file").unwrap();
    assert_eq!(image.ok(&["osd", "put", "--id", "77", &image.path("in")]).trim(), "77");
    image.feed(&["osd", "put", "--id", "77", "--append", "-"], b", and more");
    image.ok(&["osd", "get", "77", "-o", &image.path("out")]);
    assert_eq!(fs::read(image.path("out")).unwrap(), b"from a file, and more");
    assert_eq!(image.ok(&["osd", "ls"]).split_whitespace().collect::<Vec<_>>(), [first, "77"]);
    let stat: serde_json::Value = serde_json::from_str(&image.ok(&["osd", "stat", "77", "--json"])).unwrap();
    assert_eq!(stat["size"], 21);
    assert!(image.ok(&["osd", "stat"]).contains("split-atime:entries=100"));
    image.ok(&["osd", "rm", first]);
    assert_eq!(image.ok(&["osd", "ls", "-l"]).lines().count(), 2, "its head and one object");
    let gone = image.run(&["osd", "get", first], b"");
    assert!(!gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains("there is none"));
    assert!(
        image.ok(&["fsck", "-n", "--nand", &image.path("nand.img")]).starts_with("The file system is clean")
    );
}

fn tree(at: &Path) {
    fs::create_dir_all(at.join("sub/deep")).unwrap();
    for (number, size) in [0usize, 1, 4096, 5000, 300_000].into_iter().enumerate() {
        let name = format!("{}f{number}", ["", "sub/", "sub/deep/"][number % 3]);
        fs::write(at.join(name), vec![number as u8; size]).unwrap();
    }
    std::os::unix::fs::symlink("sub/f1", at.join("link")).unwrap();
    fs::hard_link(at.join("f0"), at.join("again")).unwrap();
}

#[test]
fn a_mount_is_a_directory_and_the_same_files_are_there_without_it() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let image = Image::new(&[]);
    let (nand, place) = (image.path("nand.img"), image.path("mnt"));
    fs::create_dir(&place).unwrap();
    image.ok(&["mount", "--nand", &nand, &place]);
    let at = Path::new(&place);
    tree(&at.join("tree"));
    fs::rename(at.join("tree/sub/f4"), at.join("moved")).unwrap();
    assert_eq!(fs::read(at.join("moved")).unwrap(), vec![4; 300_000]);
    let status = image.ok(&["status", "--json", &place]);
    assert!(status.contains("\"type\": \"osd\""), "{status}");
    assert!(once_free(bimetal().args(["umount", &place])).status.success());
    let checked = image.ok(&["fsck", "-n", "--nand", &nand]);
    assert!(checked.starts_with("The file system is clean"), "{checked}");
    let listing = image.ok(&["ls", "-lR", "--nand", &nand, "/"]);
    assert!(listing.contains("link -> sub/f1") && listing.contains("again"), "{listing}");
    image.ok(&["get", "--nand", &nand, "/tree", &image.path("back")]);
    assert_eq!(fs::read(image.path("back/sub/deep/f2")).unwrap(), vec![2; 4096]);
    image.ok(&["put", "--nand", &nand, &image.path("back"), "/"]);
    assert!(image.ok(&["ls", "--nand", &nand, "/back/sub"]).contains("f1"));
    // A file is not to be touched by its number.
    let refused = image.run(&["osd", "rm", "1"], b"");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("file system"), "{refused:?}");
}

#[test]
fn a_mount_that_is_killed_loses_nothing_that_was_fsynced() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let image = Image::new(&[]);
    let (nand, place) = (image.path("nand.img"), image.path("mnt"));
    fs::create_dir(&place).unwrap();
    for round in 0..3u8 {
        let mut server = Command::new(env!("CARGO_BIN_EXE_bimetal"))
            .args(["mount", "--foreground", "--nand", &nand, &place])
            .spawn()
            .unwrap();
        while !image.run(&["status", &place], b"").status.success() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        for number in 0..20 {
            let mut file = fs::File::create(format!("{place}/r{round}-{number}")).unwrap();
            file.write_all(&vec![round; 10_000 + number]).unwrap();
            file.sync_all().unwrap();
        }
        server.kill().unwrap();
        server.wait().unwrap();
        Command::new("umount").args(["-l", &place]).output().unwrap();
        assert!(image.ok(&["fsck", "-n", "--nand", &nand]).starts_with("The file system is clean"));
        for earlier in 0..=round {
            let path = format!("/r{earlier}-19");
            assert_eq!(image.feed(&["cat", "--nand", &nand, &path], b""), vec![earlier; 10_019]);
        }
    }
}

#[test]
fn a_recorded_mount_gives_a_trace_that_replays() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let image = Image::new(&[]);
    let (nand, place, trace) = (image.path("nand.img"), image.path("mnt"), image.path("t.csv"));
    fs::create_dir(&place).unwrap();
    image.ok(&["mount", "--nand", &nand, &place]);
    let script = format!(
        "for n in 1 2 3 4 5 6 7 8 9; do cp /bin/true {place}/f$n; done; cat {place}/f*; rm {place}/f1"
    );
    let recorded = image.run(&["record", &place, "-o", &trace, "--", "sh", "-c", &script], b"");
    assert!(once_free(bimetal().args(["umount", &place])).status.success());
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let text = fs::read_to_string(&trace).unwrap();
    for op in [",create,", ",write,", ",unlink,"] {
        assert!(text.contains(op), "{op} is not in\n{text}");
    }
    assert!(fs::read_to_string(image.path("t.paths.csv")).unwrap().contains(",/f9"));
    let replayed =
        image.ok(&["osd", "replay", &trace, "--placement", "combined,lifetime", "--utilisation", "50"]);
    assert!(replayed.lines().count() == 3 && replayed.contains("lifetime"), "{replayed}");
}

#[test]
fn an_object_that_does_not_fit_leaves_nothing_and_no_store_is_made_of_nothing() {
    let image = Image::new(&["--bare"]);
    let id = String::from_utf8(image.feed(&["osd", "put", "-"], b"small")).unwrap();
    let before = image.ok(&["osd", "ls"]);
    let large = vec![7; 100 << 20];
    let failed = image.run(&["osd", "put", "-"], &large);
    assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("full"));
    let failed = image.run(&["osd", "put", "--append", "--id", id.trim(), "-"], &large);
    assert!(!failed.status.success());
    assert_eq!(image.ok(&["osd", "ls"]), before);
    assert_eq!(image.feed(&["osd", "get", id.trim()], b""), b"small");
    // What is replaced is gone before there is room for what replaces it, and that is said.
    let failed = image.run(&["osd", "put", "--id", id.trim(), "-"], &large);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("is empty now"));
    assert!(image.feed(&["osd", "get", id.trim()], b"").is_empty());
    assert!(image.ok(&["osd", "ls", "-l"]).starts_with("    object        bytes"));

    let nothing = image.path("nothing");
    let refused = image.run(&["mkfs", "osd", "--size", "0", "--nand", &nothing], b"");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("or more") && !Path::new(&nothing).exists());
    // A part of which no memory holds a model: 64 channels of 64 units.
    let (part, text) = (image.path("64x64.toml"), include_str!("../../devices/slc-4k-x8.toml"));
    let text = text.replace("channels = 8\nchips = 1", "channels = 64\nchips = 64");
    std::fs::write(&part, text.replace("\npages = 64", "\npages = 127")).unwrap();
    let refused = image.run(&["mkfs", "osd", "--device", &part, "--nand", &nothing], b"");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("more than can be had; choose a smaller size"), "{said}");
    assert!(!Path::new(&nothing).exists());
}

#[test]
fn a_new_object_beside_files_is_refused_and_one_that_is_forced_is_called_what_it_is() {
    let image = Image::new(&[]);
    let nand = image.path("nand.img");
    fs::write(image.path("in"), b"by number").unwrap();
    let said = |output: &Output| {
        let [out, err] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        out + &err
    };
    let before = fs::read(&nand).unwrap();
    for more in [&[][..], &["--id", "77"]] {
        let refused = image.run(&[&["osd", "put"], more, &[&image.path("in")]].concat(), b"");
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(1), "{text}");
        for part in ["there is a file system on this store", "bimetal put", "--bare", "--force"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    assert!(fs::read(&nand).unwrap() == before, "nothing changes");
    image.ok(&["osd", "put", "--force", "--id", "77", &image.path("in")]);
    // It is no file, and stays an object of its number.
    image.feed(&["osd", "put", "--id", "77", "--append", "-"], b", and more");
    let checked = image.run(&["fsck", "-n", "--nand", &nand], b"");
    let text = said(&checked);
    assert_eq!(checked.status.code(), Some(4), "{text}");
    assert!(text.contains("object 77: it is no file") && text.contains("bimetal osd rm"), "{text}");
    assert!(!text.contains("corrupt"), "{text}");
    image.ok(&["osd", "rm", "77"]);
    assert!(image.ok(&["fsck", "-n", "--nand", &nand]).starts_with("The file system is clean"));
}
