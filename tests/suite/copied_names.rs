//! What `get` and `put` call what they copy: sources of one name, names of one file, directories that lead into themselves, trees
//! that are deep.

use crate::copied::{both, names, put, with_a_file};
use crate::guard::{Loop, Volume, err, out, refused, run};
use crate::mounts::{bimetal, skip};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Files below the volume's directory, with their contents.
fn files(volume: &Volume, all: &[(&str, &str)]) -> Vec<PathBuf> {
    let made = all.iter().map(|(name, contents)| {
        let path = volume.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    });
    made.collect()
}

#[test]
fn sources_of_one_name_are_refused_before_anything_changes() {
    let volume = Volume::new();
    let made = files(&volume, &[("A/x", "one"), ("B/x", "two"), ("D/z", "zzz"), ("C/other", "")]);
    let linked = volume.at("C/y");
    fs::hard_link(&made[0], &linked).unwrap();
    let before = volume.bytes();
    let [a, b, d, c] = [&made[0], &made[1], &made[2], &linked].map(|path| text(path));
    refused(&both(&volume, "put", &[a, b, d, c, "/"]), &["the same name, x", a, b]);
    // Directories, too, whatever is in them.
    for name in ["A", "E/A"] {
        fs::create_dir_all(volume.at(name)).unwrap();
    }
    let [one, other] = ["A", "E/A"].map(|name| text(&volume.at(name)).to_string());
    refused(&both(&volume, "put", &[&one, &other, "/"]), &["the same name, A"]);
    assert!(volume.bytes() == before);
    for name in ["A", "B", "C", "D"] {
        put(&volume, name, "/");
    }
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    refused(
        &both(&volume, "get", &["/A/x", "/D/z", "/B/x", text(&place)]),
        &["/A/x and /B/x have the same name, x"],
    );
    assert!(names(&place).is_empty());
    // Under names of their own they are what they are.
    for source in ["/A", "/B"] {
        assert!(both(&volume, "get", &[source, text(&place)]).status.success());
    }
    assert_eq!(fs::read_to_string(place.join("B/x")).unwrap(), "two");
}

/// Sources may overlap: the root has the others in it.
#[test]
fn a_file_that_two_sources_have_is_copied_once_and_keeps_its_names() {
    let volume = Volume::new();
    let made = files(&volume, &[("tree/a", "one"), ("tree/c", "three")]);
    fs::hard_link(&made[0], volume.at("tree/b")).unwrap();
    put(&volume, "tree", "/");
    let place = volume.at("place");
    let done = both(&volume, "get", &["/tree", text(&place)]);
    assert!(done.status.success(), "{}", err(&done));
    let done = both(&volume, "get", &["/", "/tree", "/tree/a", "/tree/b", text(&place)]);
    assert!(done.status.success(), "{}", err(&done));
    let inode = |name: &str| fs::metadata(place.join(name)).unwrap().ino();
    assert_eq!(inode("tree/a"), inode("tree/b"));
    assert_eq!(inode("a"), inode("b"));
    assert_eq!(fs::read_to_string(place.join("tree/c")).unwrap(), "three");
}

/// A mount; taken away at the end.
struct Unmounts(PathBuf);

impl Drop for Unmounts {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn mounted(args: &[&str], at: &Path) -> Option<Unmounts> {
    fs::create_dir_all(at).unwrap();
    let done = Command::new("mount").args(args).arg(at).output().ok()?;
    done.status.success().then(|| Unmounts(at.into()))
}

/// Where `x` and `X` are one name, one source has two files for it.
#[test]
fn what_was_just_copied_is_not_replaced_where_case_does_not_count() {
    let volume = Volume::new();
    let made = files(&volume, &[("tree/X", "one"), ("tree/x", "two"), ("tree/y", "three")]);
    fs::hard_link(&made[0], volume.at("tree/z")).unwrap();
    put(&volume, "tree", "/");
    let (image, place) = (volume.at("fat"), volume.at("folds"));
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let is_made = Command::new("mkfs.vfat").arg(&image).output().is_ok_and(|done| done.status.success());
    let options = format!("loop,uid={0},gid={0},umask=077", rustix::process::getuid().as_raw());
    let Some(_mounted) = is_made.then(|| mounted(&["-o", &options, text(&image)], &place)).flatten() else {
        return skip("no file system can be mounted in which case does not count");
    };
    let done = both(&volume, "get", &["/tree/X", "/tree/x", "/tree/y", text(&place)]);
    assert_eq!(done.status.code(), Some(1), "{}", err(&done));
    assert!(err(&done).contains("folds/x: its name is that of another file"), "{}", err(&done));
    assert_eq!(fs::read_to_string(place.join("X")).unwrap(), "one");
    assert_eq!(fs::read_to_string(place.join("y")).unwrap(), "three");
}

#[test]
fn a_directory_that_leads_into_itself_is_told_and_the_rest_is_copied() {
    let volume = Volume::new();
    files(&volume, &[("t/d/e/f", "deep"), ("t/z/last", "last")]);
    put(&volume, "t", "/");
    let change = |request: &str| {
        let done = Command::new("debugfs").args(["-w", "-R", request]).arg(volume.at("disk")).output();
        done.is_ok_and(|done| done.status.success())
    };
    // Two cycles have no end, and a directory with two names may double at each level.
    if !["ln t/d t/d/e/a", "ln t/d t/d/e/b", "ln t/z t/d/z"].into_iter().all(change) {
        return skip("no debugfs");
    }
    let place = volume.at("place");
    let mut command = Command::new("timeout");
    command.arg("60").arg(bimetal().get_program()).arg("get").arg("--ssd").arg(volume.at("ssd"));
    let done = command.arg("--disk").arg(volume.at("disk")).arg("/t").arg(&place).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", err(&done));
    for name in ["d/e/a", "d/e/b"] {
        let said = format!("{}: a directory is corrupt: it is in itself", place.join(name).display());
        assert!(err(&done).contains(&said), "{}", err(&done));
    }
    assert!(err(&done).contains("it has two names"), "{}", err(&done));
    assert_eq!(fs::read_to_string(place.join("d/e/f")).unwrap(), "deep");
    assert_eq!(names(&place.join("d/e")), ["f"]);
    let last = ["z/last", "d/z/last"].map(|name| place.join(name)).into_iter().find(|path| path.exists());
    assert_eq!(fs::read_to_string(last.unwrap()).unwrap(), "last");
}

#[test]
fn a_deep_tree_goes_in_and_out_whatever_stack_and_descriptors_there_are() {
    const LEVELS: usize = 1500;
    let volume = with_a_file();
    let mut bottom = volume.at("deep");
    for _ in 0..LEVELS {
        bottom.push("d");
    }
    fs::create_dir_all(&bottom).unwrap();
    fs::write(bottom.join("f"), "at the bottom").unwrap();
    let run = |verb: &str, from: &Path, to: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 64 && ulimit -s 1024 && exec \"$@\"", "sh"]);
        command.arg(bimetal().get_program()).arg(verb);
        command.arg("--ssd").arg(volume.at("ssd")).arg("--disk").arg(volume.at("disk"));
        let done = command.arg(from).arg(to).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{verb} {:?}: {}", done.status, err(&done));
    };
    run("put", &volume.at("deep"), Path::new("/"));
    run("get", Path::new("/deep"), &volume.at("back"));
    let below = bottom.strip_prefix(volume.at("deep")).unwrap();
    assert_eq!(fs::read_to_string(volume.at("back").join(below).join("f")).unwrap(), "at the bottom");
    assert!(volume.done(&["fsck", "-n"]).contains("clean"));
}

#[test]
fn get_looks_at_all_its_sources_before_it_copies_one() {
    let volume = with_a_file();
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    refused(&both(&volume, "get", &["/f", "/none", text(&place)]), &["/none: no such file"]);
    assert!(names(&place).is_empty());
}

#[test]
fn refusals_say_what_is_meant_and_name_it_once() {
    let volume = with_a_file();
    let [place, busy] = ["place", "busy"].map(|name| volume.at(name));
    let new = format!("{}/new/", text(&volume.at(".")));
    refused(&both(&volume, "get", &["/f", &new]), &[&format!("{new}: there is no such directory")]);
    let above = volume.at("none");
    refused(
        &both(&volume, "get", &["/f", text(&above.join("f"))]),
        &[&format!("{}: No such file", above.display())],
    );
    // In use by another, as its lock says.
    fs::write(&busy, "x").unwrap();
    let held = fs::File::open(&busy).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let said = err(&both(&volume, "get", &["/f", text(&busy)]));
    assert!(said.contains("in use") && said.matches(text(&busy)).count() == 1, "{said}");
    // What has no contents.
    fs::create_dir(&place).unwrap();
    assert!(Command::new("mkfifo").arg(place.join("fifo")).status().unwrap().success());
    std::os::unix::fs::symlink("fifo", place.join("link")).unwrap();
    put(&volume, "place", "/");
    refused(&both(&volume, "cat", &["/place/fifo"]), &["/place/fifo: is a FIFO"]);
    refused(&both(&volume, "cat", &["/place/link"]), &["/place/link: is a link to fifo"]);
}

#[test]
fn a_host_that_takes_no_writes_is_said_to_take_none() {
    let volume = with_a_file();
    let [there, ro] = ["there", "ro"].map(|name| volume.at(name));
    files(&volume, &[("there/f", "old")]);
    let Some(_mounted) = mounted(&["-o", "bind,ro", text(&there)], &ro) else {
        return skip("nothing can be mounted");
    };
    let done = both(&volume, "get", &["/f", text(&ro.join("f"))]);
    refused(&done, &["takes no writes; name a target on another"]);
    assert!(!err(&done).contains("mount -o ro"), "{}", err(&done));
}

#[test]
fn put_copies_no_image_of_its_own_volume_into_it() {
    let volume = with_a_file();
    let before = volume.bytes();
    let disk = volume.at("disk");
    refused(&both(&volume, "put", &[text(&disk), "/"]), &["what the volume itself lies on"]);
    assert!(volume.bytes() == before);
    // Below a directory, and by another name, the rest is copied.
    files(&volume, &[("tree/keep", "kept")]);
    fs::hard_link(&disk, volume.at("tree/image")).unwrap();
    let done = both(&volume, "put", &[text(&volume.at("tree")), "/"]);
    refused(&done, &["tree/image: is what the volume itself lies on", "one of the files was not copied"]);
    assert_eq!(out(&both(&volume, "cat", &["/tree/keep"])), "kept");
    refused(&both(&volume, "cat", &["/tree/image"]), &["no such file"]);
    // Also below a loop device, whatever its name has become.
    let Some(device) = Loop::over(&disk, &[]) else { return skip("no loop devices") };
    let moved = volume.at("moved");
    fs::rename(&disk, &moved).unwrap();
    let halves = [("--ssd", &*volume.at("ssd")), ("--disk", device.path())];
    let done = run(&["put"], &halves, &[text(&moved), "/"]);
    refused(&done, &["what the volume itself lies on"]);
}

#[test]
fn a_path_of_nothing_and_an_input_that_is_closed_are_refused_and_short_files_are_replaced_whatever_is_in_them()
 {
    let volume = crate::copied::with_a_file();
    let out_dir = volume.at("out");
    fs::create_dir(&out_dir).unwrap();
    let to = out_dir.to_str().unwrap();
    refused(&both(&volume, "get", &["", to]), &["a path is empty; the root is /"]);
    refused(&both(&volume, "put", &[to, ""]), &["a path is empty"]);
    assert_eq!(fs::read_dir(&out_dir).unwrap().count(), 0);
    let closed = format!(
        "{} put --ssd {} --disk {} - /f <&-",
        env!("CARGO_BIN_EXE_bimetal"),
        volume.at("ssd").display(),
        volume.at("disk").display()
    );
    let tried = Command::new("sh").args(["-c", &closed]).output().unwrap();
    refused(&tried, &["standard input is closed"]);
    // Two bytes that are a signature elsewhere are chance here.
    for (name, at, magic) in [("a", 1024, &b"H+"[..]), ("b", 1080, b"\x53\xef"), ("c", 510, b"\x55\xaa")] {
        let mut bytes = vec![0x31; 60_000];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        fs::write(volume.at(name), &bytes).unwrap();
        crate::copied::put(&volume, name, "/");
        for _ in 0..2 {
            let done = both(&volume, "get", &[&format!("/{name}"), to]);
            assert!(done.status.success(), "{name}: {}", err(&done));
        }
        assert!(fs::read(out_dir.join(name)).unwrap() == bytes);
    }
}
