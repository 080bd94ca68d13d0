//! cmfs from the command line and through FUSE, and its images read by tools that know YAFFS2 from elsewhere.

use crate::mounts::{bimetal, no_fuse, once_free, skip};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Images {
    dir: tempfile::TempDir,
}

impl Images {
    /// A part of 32 MiB and its NVRAM, freshly made.
    fn new(layout: &str) -> Images {
        let images = Images { dir: tempfile::tempdir().unwrap() };
        let (nand, nvram) = (images.path("nand.img"), images.path("nvram.img"));
        images.ok(&[
            "mkfs",
            "cmfs",
            "--size",
            "32MiB",
            "--layout",
            layout,
            "--nvram-size",
            "64KiB",
            "--nand",
            &nand,
            "--nvram",
            &nvram,
        ]);
        images
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_string()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_bimetal")).args(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A verb on the images, which come before the other arguments.
    fn on(&self, verb: &[&str], rest: &[&str]) -> String {
        let (nand, nvram) = (self.path("nand.img"), self.path("nvram.img"));
        let all: Vec<&str> = verb
            .iter()
            .copied()
            .chain(["--nand", &nand, "--nvram", &nvram])
            .chain(rest.iter().copied())
            .collect();
        self.ok(&all)
    }
}

/// A tree of files of all sizes, with links.
fn tree(at: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    fs::create_dir_all(at.join("sub/deep")).unwrap();
    for (number, size) in [0usize, 1, 1000, 2048, 2049, 5000, 70_000, 300_000].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + number) as u8).collect();
        let name = format!("{}f{number}.bin", ["", "sub/", "sub/deep/"][number % 3]);
        fs::write(at.join(&name), &bytes).unwrap();
        files.push((name, bytes));
    }
    std::os::unix::fs::symlink("sub/f1.bin", at.join("link")).unwrap();
    fs::hard_link(at.join("f3.bin"), at.join("sub/second name")).unwrap();
    files
}

#[test]
fn files_go_in_and_come_out_and_every_verb_works_on_images() {
    for layout in ["compact", "paper"] {
        let images = Images::new(layout);
        let source = images.dir.path().join("tree");
        let files = tree(&source);
        images.on(&["put"], &[source.to_str().unwrap(), "/"]);
        let listing = images.on(&["ls", "-lR"], &["/"]);
        assert!(listing.contains("second name") && listing.contains("link -> sub/f1.bin"), "{listing}");
        assert!(images.on(&["cat"], &["/tree/sub/f1.bin"]) == "\u{1}");
        let back = images.dir.path().join("back");
        images.on(&["get"], &["/tree", back.to_str().unwrap()]);
        for (name, bytes) in &files {
            assert_eq!(&fs::read(back.join(name)).unwrap(), bytes, "{layout}: {name}");
        }
        let checked = images.on(&["fsck", "-n"], &[]);
        assert!(
            checked.starts_with("The file system is clean") && checked.contains("mount \"clean\""),
            "{checked}"
        );
        let status = images.on(&["status", "--json"], &[]);
        assert!(status.contains("\"mounted\": \"clean\""), "{status}");
        // The NVRAM is lost: the NAND is all there is.
        fs::write(images.path("nvram.img"), vec![0; 64 << 10]).unwrap();
        let status = images.on(&["status", "--json"], &[]);
        assert!(status.contains("\"mounted\": \"scanned\""), "{status}");
        assert!(images.on(&["fsck"], &[]).starts_with("The file system is clean"));
        assert!(images.on(&["ls", "-R"], &["/"]).contains("f7.bin"));
        assert!(images.on(&["status", "--json"], &[]).contains("\"mounted\": \"clean\""));
    }
}

#[test]
fn a_mount_is_a_directory_like_any_other() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let images = Images::new("compact");
    let place = images.dir.path().join("mnt");
    fs::create_dir(&place).unwrap();
    images.on(&["mount"], &[place.to_str().unwrap()]);
    let files = tree(&place.join("tree"));
    for (name, bytes) in &files {
        assert_eq!(&fs::read(place.join("tree").join(name)).unwrap(), bytes);
    }
    let status = images.ok(&["status", "--json", place.to_str().unwrap()]);
    assert!(status.contains("\"type\": \"cmfs\""), "{status}");
    assert!(once_free(bimetal().arg("umount").arg(&place)).status.success());
    let listing = images.on(&["ls", "-lR"], &["/"]);
    assert!(listing.contains("f7.bin") && listing.contains("second name"), "{listing}");
    assert!(images.on(&["fsck", "-n"], &[]).starts_with("The file system is clean"));
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("-V").output().is_ok()
}

/// The part's image as a programmer would read it from the chip: what is a hole here is ones there.
fn dump(images: &Images) -> PathBuf {
    let mut bytes = fs::read(images.path("nand.img")).unwrap();
    for page in bytes.chunks_mut(2048 + 64) {
        if page.iter().all(|byte| *byte == 0) {
            page.fill(0xff);
        }
    }
    let path = images.dir.path().join("dump.img");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn the_sleuth_kit_reads_the_flash_of_a_live_volume_byte_for_byte() {
    if !installed("fls") || !installed("icat") {
        return skip("fls and icat of the Sleuth Kit are not installed");
    }
    let images = Images::new("compact");
    let source = images.dir.path().join("tree");
    let files = tree(&source);
    images.on(&["put"], &[source.to_str().unwrap(), "/"]);
    // A second version of one file, and one that was removed, stay on flash.
    fs::write(source.join("f0.bin"), b"second version").unwrap();
    images.on(&["put"], &[source.join("f0.bin").to_str().unwrap(), "/tree"]);
    let image = dump(&images);
    let image = image.to_str().unwrap();
    let output = Command::new("fls").args(["-f", "yaffs2", "-r", "-p", "-u", image]).output().unwrap();
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut read = 0;
    for (name, bytes) in &files {
        let bytes: &[u8] = if name == "f0.bin" { b"second version" } else { bytes };
        let path = format!("tree/{name}");
        let line = listing.lines().find(|line| line.split('\t').nth(1) == Some(&path));
        let line = line.unwrap_or_else(|| {
            panic!("{path} is not in\n{listing}{}", String::from_utf8_lossy(&output.stderr))
        });
        let inode = line.split_whitespace().nth(1).unwrap().trim_end_matches(':');
        let contents = Command::new("icat").args(["-f", "yaffs2", image, inode]).output().unwrap().stdout;
        assert!(contents == bytes, "{path}: {} bytes of {}", contents.len(), bytes.len());
        read += 1;
    }
    assert_eq!(read, files.len());
}

#[test]
fn unyaffs_unpacks_an_exported_image_whole() {
    if !installed("unyaffs") {
        return skip("unyaffs is not installed");
    }
    let images = Images::new("compact");
    let source = images.dir.path().join("tree");
    let files = tree(&source);
    images.on(&["put"], &[source.to_str().unwrap(), "/"]);
    let (nand, nvram, image) =
        (images.path("nand.img"), images.path("nvram.img"), images.path("files.yaffs2"));
    images.ok(&["export", "--device", "slc-2k", &nand, "--nvram", &nvram, "--yaffs2-image", &image]);
    let out = images.dir.path().join("out");
    let output = Command::new("unyaffs").args([&image, out.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (name, bytes) in &files {
        assert_eq!(&fs::read(out.join("tree").join(name)).unwrap(), bytes, "{name}");
    }
    assert_eq!(fs::read_link(out.join("tree/link")).unwrap(), Path::new("sub/f1.bin"));
    assert_eq!(fs::read(out.join("tree/sub/second name")).unwrap(), fs::read(source.join("f3.bin")).unwrap());
}

#[test]
fn an_image_made_for_yaffs2_mounts() {
    let images = Images::new("compact");
    let source = images.dir.path().join("tree");
    let files = tree(&source);
    images.on(&["put"], &[source.to_str().unwrap(), "/"]);
    let (nand, nvram, image) =
        (images.path("nand.img"), images.path("nvram.img"), images.path("files.yaffs2"));
    images.ok(&["export", "--device", "slc-2k", &nand, "--nvram", &nvram, "--yaffs2-image", &image]);
    // As it would be flashed: the rest of the part is erased.
    let mut bytes = fs::read(&image).unwrap();
    bytes.resize(fs::metadata(&nand).unwrap().len() as usize, 0xff);
    fs::write(&image, bytes).unwrap();
    let back = images.dir.path().join("back");
    let refused = images.run(&["get", "--nand", &image, "/tree", back.to_str().unwrap()]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("tags of YAFFS2") && why.contains("--yaffs2"), "{why}");
    images.ok(&["get", "--yaffs2", "--nand", &image, "/tree", back.to_str().unwrap()]);
    for (name, bytes) in &files {
        assert_eq!(&fs::read(back.join(name)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn a_wrong_device_or_a_part_that_is_not_ours_is_refused_and_stays_as_it_is() {
    let images = Images::new("compact");
    let source = images.dir.path().join("tree");
    tree(&source);
    images.on(&["put"], &[source.to_str().unwrap(), "/"]);
    let (nand, blank) = (images.path("nand.img"), images.path("blank.img"));
    fs::write(&blank, vec![0; fs::metadata(&nand).unwrap().len() as usize]).unwrap();
    for (image, device, expected) in
        [(&nand, "slc-4k", "blocks of 64 pages of 2048 + 64 bytes"), (&blank, "slc-2k", "bimetal mkfs cmfs")]
    {
        let before = fs::read(image).unwrap();
        for verb in [&["put", source.to_str().unwrap(), "/"][..], &["ls", "/"], &["fsck"]] {
            let mut arguments = vec![verb[0], "--nand", image, "--device", device];
            arguments.extend(&verb[1..]);
            let output = images.run(&arguments);
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{arguments:?}");
            // A length that is no whole number of blocks is refused before the record is looked for.
            assert!(
                why.contains(expected) || why.contains("no whole number of blocks"),
                "{arguments:?}: {why}"
            );
        }
        assert!(fs::read(image).unwrap() == before, "{image} was written");
    }
}

#[test]
fn an_nvram_that_was_left_out_for_a_mount_is_not_believed_and_a_note_says_so() {
    for layout in ["compact", "paper"] {
        let images = Images::new(layout);
        let source = images.dir.path().join("tree");
        let files = tree(&source);
        images.on(&["put"], &[source.join("f0.bin").to_str().unwrap(), "/"]);
        images.ok(&["put", "--nand", &images.path("nand.img"), source.to_str().unwrap(), "/"]);
        let checked = images.on(&["fsck", "-n"], &[]);
        assert!(checked.contains("the NAND was written without this NVRAM"), "{checked}");
        let back = images.dir.path().join("back");
        images.on(&["get"], &["/tree", back.to_str().unwrap()]);
        for (name, bytes) in &files {
            assert_eq!(&fs::read(back.join(name)).unwrap(), bytes, "{layout}: {name}");
        }
    }
}

#[test]
fn a_mount_can_leave_a_checkpoint_that_the_next_one_opens_from() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let images = Images::new("compact");
    let (place, nand) = (images.dir.path().join("mnt"), images.path("nand.img"));
    fs::create_dir(&place).unwrap();
    for option in ["checkpoint=32", "checkpoint=64"] {
        images.on(&["mount", "-o", option], &[place.to_str().unwrap()]);
        let files = tree(&place.join(option));
        assert!(once_free(bimetal().arg("umount").arg(&place)).status.success());
        let clean = images.on(&["status", "--json"], &[]);
        assert!(clean.contains("\"mounted\": \"clean\""), "{clean}");
        // Without its NVRAM.
        let alone = images.ok(&["status", "--json", "--nand", &nand]);
        assert!(alone.contains("\"mounted\": \"checkpoint\""), "{alone}");
        let back = images.dir.path().join(format!("back {option}"));
        images.ok(&["get", "--nand", &nand, &format!("/{option}"), back.to_str().unwrap()]);
        for (name, bytes) in &files {
            assert_eq!(&fs::read(back.join(name)).unwrap(), bytes, "{name}");
        }
    }
    // The first write ends it.
    images.on(&["put"], &[images.dir.path().join("back checkpoint=32/f0.bin").to_str().unwrap(), "/"]);
    let alone = images.ok(&["status", "--json", "--nand", &nand]);
    assert!(alone.contains("\"mounted\": \"scanned\""), "{alone}");
    let wrong = images.run(&["mount", "-o", "checkpoint=16", "--nand", &nand, place.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("checkpoint=16"));
}

#[test]
fn a_wrong_bit_in_every_page_of_an_image_is_corrected() {
    let images = Images::new("compact");
    let source = images.dir.path().join("tree");
    let files = tree(&source);
    images.on(&["put"], &[source.to_str().unwrap(), "/"]);
    let nand = images.path("nand.img");
    let mut bytes = fs::read(&nand).unwrap();
    for (number, page) in bytes.chunks_mut(2048 + 64).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            page[number * 37 % 2048] ^= 1 << (number % 8);
        }
    }
    fs::write(&nand, bytes).unwrap();
    let back = images.dir.path().join("back");
    images.on(&["get"], &["/tree", back.to_str().unwrap()]);
    for (name, bytes) in &files {
        assert_eq!(&fs::read(back.join(name)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn what_is_no_part_is_refused_with_the_reason() {
    let images = Images::new("compact");
    let why = |arguments: &[&str]| String::from_utf8_lossy(&images.run(arguments).stderr).into_owned();
    assert!(why(&["ls", "--nand", "/dev/null", "/"]).contains("no MTD device"));
    let small = images.path("small.img");
    let refused = why(&["mkfs", "cmfs", "--device", "slc-512", "--size", "16MiB", "--nand", &small]);
    assert!(refused.contains("small-page parts"), "{refused}");
}

#[test]
fn mkimage_makes_images_of_a_directory_and_the_same_ones_again() {
    let images = Images { dir: tempfile::tempdir().unwrap() };
    let source = images.dir.path().join("tree");
    let files = tree(&source);
    let make = |name: &str, epoch: &str, more: &[&str]| {
        let (nand, nvram) = (images.path(&format!("{name}.img")), images.path(&format!("{name}.nvram")));
        let output = Command::new(env!("CARGO_BIN_EXE_bimetal"))
            .args(["mkimage", source.to_str().unwrap(), "--size", "32MiB"])
            .args(["--nand", &nand, "--nvram", &nvram])
            .args(if more.contains(&"--owner") { &[] } else { &["--owner", "0:0"][..] })
            .args(more)
            .env("SOURCE_DATE_EPOCH", epoch)
            .output()
            .unwrap();
        (output, nand, nvram)
    };
    let (made, nand, nvram) = make("nand", "1600000000", &[]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(String::from_utf8_lossy(&made.stdout).contains(&format!("bimetal mount --nand {nand}")));
    let (_, again, nvram_again) = make("again", "1600000000", &[]);
    assert!(fs::read(&nand).unwrap() == fs::read(again).unwrap(), "the same directory, another image");
    assert!(fs::read(&nvram).unwrap() == fs::read(nvram_again).unwrap(), "the same directory, another NVRAM");
    let (_, other, _) = make("other", "1600000000", &["--seed", "2"]);
    assert!(fs::read(&nand).unwrap() != fs::read(other).unwrap(), "another identity");

    let back = images.dir.path().join("back");
    images.ok(&["get", "--nand", &nand, "--nvram", &nvram, "/", back.to_str().unwrap()]);
    for (name, bytes) in &files {
        assert_eq!(&fs::read(back.join(name)).unwrap(), bytes, "{name}");
    }
    let fsck = images.ok(&["fsck", "--nand", &nand, "--nvram", &nvram]);
    assert!(!fsck.contains("scan"), "{fsck}");

    let why = |output: Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(why(make("nand", "1600000000", &[]).0).contains("--force"));
    assert!(why(make("bad", "tomorrow", &[]).0).contains("SOURCE_DATE_EPOCH is tomorrow"));
    assert!(why(make("bad", "1", &["--owner", "root"]).0).contains("as 0:0"));
    assert!(!Path::new(&images.path("bad.img")).exists());
}

#[test]
fn cmake_makes_an_image_and_makes_it_anew_when_what_is_in_it_changes() {
    if Command::new("cmake").arg("--version").output().is_err() {
        return skip("there is no CMake");
    }
    let images = Images { dir: tempfile::tempdir().unwrap() };
    let lists = format!(
        "cmake_minimum_required(VERSION 3.17)\nproject(image NONE)\ninclude(\"{}/crates/cmfs-c/cmake/cmfs.cmake\")\n\
         cmfs_add_image(rootfs DIRECTORY rootfs OUTPUT nand.img NVRAM nvram.img ARGUMENTS --size 32MiB --owner 0:0)\n",
        env!("CARGO_MANIFEST_DIR")
    );
    let root = images.dir.path().join("rootfs");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(images.path("CMakeLists.txt"), lists).unwrap();
    fs::write(root.join("etc/a name with spaces"), "hello").unwrap();
    std::os::unix::fs::symlink("/nowhere/on/this/host", root.join("etc/link")).unwrap();
    for generator in ["Unix Makefiles", "Ninja"] {
        let program = if generator == "Ninja" { "ninja" } else { "make" };
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: there is no {program}");
            continue;
        }
        let build = images.dir.path().join(program);
        let cmake = |arguments: &[&str]| {
            let output =
                Command::new("cmake").args(arguments).env("SOURCE_DATE_EPOCH", "1700000000").output();
            let output = output.unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let (source, to) = (images.path(""), build.to_str().unwrap().to_string());
        let bimetal = format!("-DBIMETAL={}", env!("CARGO_BIN_EXE_bimetal"));
        cmake(&["-G", generator, "-S", &source, "-B", &to, &bimetal]);
        let (nand, nvram) = (format!("{to}/nand.img"), format!("{to}/nvram.img"));
        let age = |path: &str| fs::metadata(path).unwrap().modified().unwrap();
        let list = || {
            cmake(&["--build", &to]);
            images.ok(&["ls", "--nand", &nand, "--nvram", &nvram, "/etc"])
        };
        assert_eq!(list(), "a name with spaces\nlink\n", "{generator}");
        let first = age(&nand);
        assert_eq!(list(), "a name with spaces\nlink\n", "{generator}");
        assert_eq!(age(&nand), first, "{generator}: made anew, and nothing changed");
        fs::write(root.join("etc/new"), "new").unwrap();
        assert_eq!(list(), "a name with spaces\nlink\nnew\n", "{generator}");
        fs::remove_file(root.join("etc/new")).unwrap();
        assert_eq!(list(), "a name with spaces\nlink\n", "{generator}: what was removed is in the image");
        fs::remove_file(&nvram).unwrap();
        assert_eq!(list(), "a name with spaces\nlink\n", "{generator}");
        assert!(Path::new(&nvram).exists(), "{generator}: the NVRAM was not made anew");
    }
}

#[test]
fn images_that_a_signal_ends_leave_nothing_behind() {
    use rustix::process::{Pid, Signal, kill_process};
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("from")).unwrap();
    let mut random = vec![0; 48 << 20];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    fs::write(home.path().join("from/big"), &random).unwrap();
    let mut making = bimetal();
    making
        .args(["mkimage", "from", "--size", "64MiB", "--nand", "n", "--nvram", "v"])
        .current_dir(home.path());
    let mut making = making.spawn().unwrap();
    let names =
        || fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    while !names().any(|name| name.starts_with(".bimetal-")) {
        assert!(making.try_wait().unwrap().is_none(), "it ended before it could be ended");
    }
    // The others may be ignored here, as by nohup, and are then ignored there.
    kill_process(Pid::from_child(&making), Signal::TERM).unwrap();
    assert_eq!(making.wait().unwrap().code(), Some(143));
    assert_eq!(names().collect::<Vec<_>>(), ["from"]);
}
