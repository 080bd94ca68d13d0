//! What `make install` installs, and the names under which mount(8), umount(8) and fsck(8) find the command.
//! tests/install.sh boots a Debian with it.

use crate::guard::err;
use crate::mounts::{Mounted, bimetal, need_fuse, once_free, skip};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// `packaging/install.sh` with a root of its own.
fn install(what: &str, root: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/install.sh");
    let mut command = Command::new("sh");
    command.arg(script).arg(what).env("DESTDIR", root).env("BIMETAL", env!("CARGO_BIN_EXE_bimetal"));
    // What is stripped is made small, not tried here.
    let done = command.env("STRIP", "true").env_remove("PREFIX").output().expect("sh(1)");
    assert!(done.status.success(), "{what}: {}", err(&done));
    done
}

/// All files below a directory, as paths from there.
fn files(root: &Path) -> BTreeSet<String> {
    let mut todo = vec![root.to_path_buf()];
    let mut found = BTreeSet::new();
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("a directory").flatten() {
            if entry.file_type().expect("a type").is_dir() {
                todo.push(entry.path());
            } else {
                found.insert(format!("/{}", entry.path().strip_prefix(root).unwrap().display()));
            }
        }
    }
    found
}

#[test]
fn what_is_installed_is_what_is_listed_and_uninstalled_is_nothing() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    fs::create_dir_all(root.join("usr/local/share/man/man1")).unwrap();
    fs::write(root.join("usr/local/share/man/man1/other.1"), "another's").unwrap();
    let before = files(&root);
    install("install", &root);
    let manifest = "/usr/local/share/bimetal/installed";
    let listed = String::from_utf8(install("list", &root).stdout).unwrap();
    let listed: BTreeSet<String> = listed.lines().map(str::to_string).collect();
    let mut found = &files(&root) - &before;
    assert!(found.remove(manifest) && found == listed, "{:?}", &found ^ &listed);
    for place in [
        "/usr/local/bin/bimetal",
        "/sbin/mount.bimetal",
        "/sbin/umount.fuse.bimetal",
        "/sbin/fsck.bimetal",
        "/usr/local/share/man/man1/bimetal-mkfs-nfhybrid.1",
        "/usr/local/share/man/man1/bimetal-man.1",
        "/usr/local/share/bash-completion/completions/bimetal",
        "/usr/local/lib/systemd/system/bimetal@.service",
        "/usr/local/lib/udev/rules.d/64-bimetal.rules",
    ] {
        assert!(listed.contains(place), "{place} in {listed:?}");
    }
    let unit = fs::read_to_string(root.join("usr/local/lib/systemd/system/bimetal@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/bimetal mount") && !unit.contains("@BINDIR@"), "{unit}");
    let rules = fs::read_to_string(root.join("usr/local/lib/udev/rules.d/64-bimetal.rules")).unwrap();
    assert!(
        rules.contains("=\"/usr/local/bin/bimetal probe --udev") && !rules.contains("@BINDIR@"),
        "{rules}"
    );
    // An older one had more.
    let older = root.join("usr/local/share/man/man1/bimetal-older.1");
    fs::write(&older, "").unwrap();
    let written = fs::read_to_string(root.join(&manifest[1..])).unwrap();
    fs::write(root.join(&manifest[1..]), format!("{written}f /usr/local/share/man/man1/bimetal-older.1\n"))
        .unwrap();
    install("install", &root);
    assert!(!older.exists());
    install("uninstall", &root);
    assert_eq!(files(&root), before);
    assert!(!root.join("sbin").exists() && !root.join("usr/local/bin").exists());
}

#[test]
fn systemd_takes_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip("no systemd-analyze(1)");
    }
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("bimetal@data.service");
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd/bimetal@.service");
    let unit = fs::read_to_string(unit).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_bimetal")).parent().unwrap();
    fs::write(&place, unit.replace("@BINDIR@", program.to_str().unwrap())).unwrap();
    let verify = || {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(&place).output().unwrap()
    };
    let done = verify();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", err(&done));
    // It would say so if it were otherwise.
    fs::write(&place, unit.replace("Type=forking", "Type=spooning")).unwrap();
    assert!(!verify().stderr.is_empty());
}

/// The command under the name of a helper.
fn helper(home: &Path, name: &str) -> PathBuf {
    let place = home.join(name);
    symlink(env!("CARGO_BIN_EXE_bimetal"), &place).expect("a link");
    place
}

/// A volume on two images, an fstab(5) with its line, and the helpers.
struct Volume {
    home: TempDir,
}

impl Volume {
    fn new() -> Volume {
        let home = tempfile::tempdir().unwrap();
        let volume = Volume { home };
        for (half, bytes) in [("ssd", 32 << 20), ("disk", 128 << 20)] {
            fs::File::create(volume.at(half)).unwrap().set_len(bytes).unwrap();
        }
        let mut mkfs = bimetal();
        mkfs.args(["mkfs", "nfhybrid", "--ssd"]).arg(volume.at("ssd")).arg("--disk").arg(volume.at("disk"));
        assert!(mkfs.output().unwrap().status.success());
        fs::create_dir(volume.at("mnt")).unwrap();
        let line = format!(
            "{} {} bimetal ssd={},nofail,x-systemd.device-timeout=9 0 2\n",
            volume.at("disk").display(),
            volume.at("mnt").display(),
            volume.at("ssd").display()
        );
        fs::write(volume.at("fstab"), line).unwrap();
        volume
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Runs a helper, with this fstab.
    fn call(&self, name: &str, args: &[&str]) -> Output {
        let place = match self.at(name) {
            place if place.exists() => place,
            _ => helper(self.home.path(), name),
        };
        let places = args.iter().map(|arg| match *arg {
            half @ ("disk" | "mnt") => self.at(half).into_os_string(),
            other => other.into(),
        });
        let mut command = Command::new(place);
        once_free(command.args(places).env("LIBMOUNT_FSTAB", self.at("fstab")))
    }
}

#[test]
fn a_line_of_fstab_is_mounted_unmounted_and_checked_under_the_names_of_helpers() {
    need_fuse!();
    let volume = Volume::new();
    let options = format!("rw,nofail,x-systemd.automount,ssd={}", volume.at("ssd").display());
    let mounts = || fs::read_to_string("/proc/mounts").unwrap();
    let here = |line: &str| line.contains(&format!(" {} fuse.bimetal ", volume.at("mnt").display()));
    // What is only pretended is not done.
    let idle = volume.call("mount.bimetal", &["disk", "mnt", "-f", "-o", &options]);
    assert!(idle.status.success() && !mounts().lines().any(here));
    for name in ["mount.bimetal", "mount.fuse.bimetal"] {
        let mounted = volume.call(name, &["disk", "mnt", "-o", &options]);
        assert!(mounted.status.success(), "{}", err(&mounted));
        let line = mounts().lines().find(|line| here(line)).unwrap().to_string();
        // mount -a goes by that.
        assert!(line.starts_with(&format!("{} ", volume.at("disk").display())), "{line}");
        fs::write(volume.at("mnt").join(name), "written").unwrap();
        let ended = volume.call("umount.fuse.bimetal", &["mnt"]);
        assert!(ended.status.success() && !mounts().lines().any(here), "{}", err(&ended));
        // Both halves are free at once, and in order.
        let checked = volume.call("fsck.bimetal", &["-a", "-C7", "disk"]);
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert_eq!(checked.status.code(), Some(0), "{said}{}", err(&checked));
    }
}

#[test]
fn fsck_finds_the_ssd_half_in_fstab_and_brings_its_log_to_the_disk() {
    need_fuse!();
    if Command::new("findmnt").arg("--version").output().is_err() {
        return skip("no findmnt(8)");
    }
    let volume = Volume::new();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let mounted = Mounted::new(&["--ssd", ssd.to_str().unwrap(), "--disk", disk.to_str().unwrap()]);
    let file = fs::File::create(mounted.path().join("synced")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 10_000], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // What a power cut leaves: both halves as they are now.
    let cut = Volume { home: tempfile::tempdir().unwrap() };
    for half in ["ssd", "disk"] {
        fs::copy(volume.at(half), cut.at(half)).unwrap();
    }
    let line = format!("{} /x bimetal ssd={} 0 2\n", cut.at("disk").display(), cut.at("ssd").display());
    assert!(mounted.unmount().status.success());
    fs::write(cut.at("fstab"), "").unwrap();
    let alone = cut.call("fsck.bimetal", &["-a", "disk"]);
    assert_eq!(alone.status.code(), Some(4), "the SSD half was not named: {}", err(&alone));
    fs::write(cut.at("fstab"), line).unwrap();
    let both = cut.call("fsck.bimetal", &["-a", "disk"]);
    let said = String::from_utf8_lossy(&both.stdout).into_owned();
    assert_eq!(both.status.code(), Some(0), "{said}{}", err(&both));
    let read = bimetal().args(["cat", "--disk"]).arg(cut.at("disk")).arg("/synced").output().unwrap();
    assert_eq!(read.stdout, vec![7; 10_000], "{}", err(&read));
}

#[test]
fn a_recovery_is_in_the_log_of_the_mount() {
    need_fuse!();
    let volume = Volume::new();
    let halves = |of: &Volume| [of.at("ssd"), of.at("disk")].map(|half| half.to_str().unwrap().to_string());
    let [ssd, disk] = halves(&volume);
    let mounted = Mounted::new(&["--ssd", &ssd, "--disk", &disk]);
    let file = fs::File::create(mounted.path().join("synced")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let cut = Volume { home: tempfile::tempdir().unwrap() };
    for half in ["ssd", "disk"] {
        fs::copy(volume.at(half), cut.at(half)).unwrap();
    }
    assert!(mounted.unmount().status.success());
    let ([ssd, disk], log) = (halves(&cut), cut.at("log"));
    let again = Mounted::new(&["--log", log.to_str().unwrap(), "--ssd", &ssd, "--disk", &disk]);
    assert!(again.unmount().status.success());
    let said = fs::read_to_string(&log).unwrap();
    for part in ["operations recovered from the SSD's log", "is mounted on", "everything is written"] {
        assert_eq!(said.matches(part).count(), 1, "{part}, once, in\n{said}");
    }
}

/// `packaging/install.sh` with these variables, whatever becomes of it.
fn tried(what: &str, root: &Path, variables: &[(&str, &str)]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/install.sh");
    let mut command = Command::new("sh");
    command.arg(script).arg(what).env("DESTDIR", root).env("BIMETAL", env!("CARGO_BIN_EXE_bimetal"));
    command.env("STRIP", "true").env_remove("PREFIX").envs(variables.iter().copied()).output().expect("sh(1)")
}

fn is_refused(done: &Output, words: &[&str]) {
    assert!(!done.status.success());
    for word in words {
        assert!(err(done).contains(word), "{word} in {}", err(done));
    }
}

#[test]
fn what_another_installation_put_there_is_neither_replaced_nor_removed() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    let other = [("PREFIX", "/opt/x")];
    let link = root.join("sbin/mount.bimetal");
    install("install", &root);
    let before = files(&root);
    is_refused(
        &tried("install", &root, &other),
        &["sbin/mount.bimetal is there", "nothing was installed", "FORCE=1"],
    );
    assert_eq!(files(&root), before);
    // Taken over, it is the other's.
    let done = tried("install", &root, &[other[0], ("FORCE", "1")]);
    assert!(done.status.success(), "{}", err(&done));
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/opt/x/bin/bimetal"));
    let left = install("uninstall", &root);
    assert!(err(&left).contains("is of another installation by now"), "{}", err(&left));
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/opt/x/bin/bimetal"));
    assert!(!root.join("usr/local/bin/bimetal").exists());
    assert!(tried("uninstall", &root, &other).status.success());
    assert!(files(&root).is_empty(), "{:?}", files(&root));
    // A file of somebody else, and a directory in the place of a file.
    fs::create_dir_all(root.join("sbin")).unwrap();
    fs::write(&link, "another's").unwrap();
    is_refused(&tried("install", &root, &[]), &["sbin/mount.bimetal is there"]);
    assert_eq!(fs::read(&link).unwrap(), b"another's");
    fs::remove_file(&link).unwrap();
    fs::create_dir(&link).unwrap();
    is_refused(&tried("install", &root, &[("FORCE", "1")]), &["is a directory", "nothing was installed"]);
    assert!(files(&root).is_empty(), "{:?}", files(&root));
}

#[test]
fn a_prefix_that_a_unit_cannot_hold_is_refused_and_what_ends_in_the_middle_can_be_uninstalled() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("a root's");
    for prefix in ["usr", "/opt/a&b", "/opt/a|b", "/opt/a\\b", "/opt/my dir", "/opt/\"x", "/opt/%n"] {
        is_refused(&tried("install", &root, &[("PREFIX", prefix)]), &[prefix]);
        assert!(!root.exists(), "{prefix}");
    }
    fs::create_dir_all(root.join("usr/local/lib")).unwrap();
    fs::write(root.join("usr/local/lib/systemd"), "a file").unwrap();
    is_refused(&tried("install", &root, &[]), &["lib/systemd"]);
    assert!(files(&root).len() > 10);
    install("uninstall", &root);
    assert_eq!(files(&root).into_iter().collect::<Vec<_>>(), ["/usr/local/lib/systemd"]);
}
