//! What `umount` says and ends with where what holds the mount is no process that the mount tables show, and where a server and who
//! asks it may not look at each other.

use crate::guard::{Volume, err, out};
use crate::mounts::{Mounted, bimetal, copy_program, need_fuse, once_free, skip};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Something mounted, beside the mounts of the command.
struct Held(PathBuf);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.0).status();
    }
}

fn mount(args: &[&str], place: &Path) -> Option<Held> {
    fs::create_dir_all(place).unwrap();
    let done = Command::new("mount").args(args).arg(place).stderr(Stdio::null()).status().unwrap();
    done.success().then(|| Held(place.into()))
}

/// Waits until a process is gone.
fn await_end(pid: &str) {
    let began = Instant::now();
    while Path::new("/proc").join(pid).exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "process {pid} goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pid_of(mounted: &Mounted) -> String {
    mounted.status()["front"]["pid"].to_string()
}

#[test]
fn umount_says_that_the_mount_lives_on_below_an_overlay_and_ends() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    fs::create_dir(mounted.path().join("low")).unwrap();
    let pid = pid_of(&mounted);
    let above = mounted.scratch().join("above");
    let Some(_layers) = mount(&["-t", "tmpfs", "t"], &above) else { return skip("no tmpfs") };
    fs::create_dir(above.join("up")).unwrap();
    fs::create_dir(above.join("work")).unwrap();
    let low = mounted.path().join("low");
    let options = format!("lowerdir={0},upperdir={1}/up,workdir={1}/work", low.display(), above.display());
    let overlay = mount(&["-t", "overlay", "-o", &options, "o"], &mounted.scratch().join("overlay"));
    let Some(overlay) = overlay else { return skip("no overlayfs") };
    let began = Instant::now();
    let ended = mounted.unmount();
    assert_eq!(ended.status.code(), Some(1), "{}", err(&ended));
    for part in ["is unmounted here", "lives on elsewhere", "overlay", &format!("process {pid}")] {
        assert!(err(&ended).contains(part), "{part} in {}", err(&ended));
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    drop(overlay);
    await_end(&pid);
}

#[test]
fn umount_lazy_does_not_wait_for_the_directory_it_was_called_in() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let inside = mounted.path().join("d");
    fs::create_dir(&inside).unwrap();
    let mut lazy = bimetal();
    let lazy =
        lazy.args(["umount", "--lazy"]).arg(mounted.path()).current_dir(&inside).stderr(Stdio::piped());
    let mut lazy = lazy.spawn().unwrap();
    let began = Instant::now();
    while lazy.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(60) {
            lazy.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = lazy.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", err(&ended));
}

#[test]
fn umount_lazy_does_not_wait_for_the_shell_that_waits_for_it() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let pid = pid_of(&mounted);
    let mut shell = Command::new("timeout");
    shell.args(["60", "sh", "-c", "cd \"$1\"; \"$0\" umount --lazy \"$1\"; echo it ended with $?"]);
    let ended = shell.arg(env!("CARGO_BIN_EXE_bimetal")).arg(mounted.path()).output().unwrap();
    assert!(
        out(&ended).contains("it ended with 1") && err(&ended).contains("(sh) is in it"),
        "{}",
        err(&ended)
    );
    await_end(&pid);
}

#[test]
fn umount_lazy_says_whom_it_waits_for() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let open = File::create(mounted.path().join("open")).unwrap();
    let mut lazy = bimetal();
    let mut lazy =
        lazy.args(["umount", "--lazy"]).arg(mounted.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(lazy.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    drop(open);
    assert!(lazy.wait().unwrap().success());
    for part in ["still serves", "waited for", &format!("process {} (", std::process::id())] {
        assert!(line.contains(part), "{part} in {line}");
    }
}

#[test]
fn a_refused_umount_leaves_nothing_in_the_server_and_what_who_asks_has_open_is_not_written() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    let open = File::create(mounted.path().join("open")).unwrap();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", pid_of(&mounted))).unwrap().count();
    let refused = || {
        let ended = bimetal().arg("umount").arg(mounted.path()).output().unwrap();
        assert!(!ended.status.success() && err(&ended).contains("busy"), "{}", err(&ended));
    };
    refused();
    let before = descriptors();
    for _ in 0..5 {
        refused();
    }
    assert_eq!(descriptors(), before);
    // A name of the attribute that is the number of a descriptor.
    let kept = mounted.scratch().join("kept");
    fs::write(&kept, "kept").unwrap();
    let theirs = File::options().read(true).write(true).open(&kept).unwrap();
    let name = format!("bimetal.farewell.{}", theirs.as_raw_fd());
    assert!(rustix::fs::getxattr(mounted.path(), &name, &mut [0; 64]).is_ok());
    drop(open);
    assert!(mounted.unmount().status.success());
    assert_eq!(fs::read(&kept).unwrap(), b"kept");
}

/// What a script says that runs in a mount namespace of its own with this volume, as `$SSD` and `$DISK`; `$H/mnt` is a place to mount on
/// for the user that `$user` is, with `$H/bimetal`.
fn in_namespace(volume: &Volume, script: &str) -> Output {
    const NOBODY: u32 = 65534;
    let home = tempfile::tempdir().unwrap();
    copy_program(&home.path().join("bimetal"));
    let place = home.path().join("mnt");
    fs::create_dir(&place).unwrap();
    for path in [&volume.at("ssd"), &volume.at("disk"), &place] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let above = volume.at("ssd").parent().unwrap().to_path_buf();
    for dir in [home.path(), &above] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // What other tests have mounted would live on in it; the device is open to all, as distributions have it.
    let script = format!(
        r#"
awk -v under="$TESTS/" 'index($2, under) == 1 {{ print $2 }}' /proc/mounts | xargs -r umount -l || true
mknod $H/fuse c 10 229; chmod 666 $H/fuse; mount --bind $H/fuse /dev/fuse
echo user_allow_other > $H/fuse.conf; touch /etc/fuse.conf; mount --bind $H/fuse.conf /etc/fuse.conf
user="setpriv --reuid 65534 --regid 65534 --clear-groups"
trap 'umount -ql $H/mnt || true' EXIT
{script}"#
    );
    let mut run = Command::new("unshare");
    run.args(["-m", "--propagation", "private", "sh", "-euc", &script]).env("H", home.path());
    run.env("SSD", volume.at("ssd")).env("DISK", volume.at("disk"));
    run.env("TESTS", home.path().parent().unwrap()).output().unwrap()
}

#[test]
fn root_unmounts_what_a_user_mounted_and_is_told_that_everything_is_written() {
    need_fuse!();
    if Command::new("fusermount3").arg("-V").output().is_err() {
        return skip("no fusermount3(1)");
    }
    for options in ["allow_other", "lag=1h"] {
        let volume = Volume::new();
        let script = format!(
            "$user $H/bimetal mount -o {options} --ssd $SSD --disk $DISK $H/mnt\n$H/bimetal umount $H/mnt\n\
             ! grep -q $H/mnt /proc/mounts\necho done"
        );
        let done = in_namespace(&volume, &script);
        let said = format!("{}{}", out(&done), err(&done));
        assert!(done.status.success() && said.ends_with("done\n"), "{options}: {said}");
        assert!(!said.contains("bimetal:"), "{options}: {said}");
    }
}

#[test]
fn a_server_that_may_not_look_at_others_and_who_may_not_look_at_it_tell_each_other_how_it_ended() {
    need_fuse!();
    let without = "setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace";
    for (server, who) in [(without, ""), ("", without)] {
        let volume = Volume::new();
        let script = format!(
            "{server} $H/bimetal mount --ssd $SSD --disk $DISK $H/mnt\n{who} $H/bimetal umount $H/mnt\necho done"
        );
        let done = in_namespace(&volume, &script);
        let said = format!("{}{}", out(&done), err(&done));
        assert!(done.status.success() && said.ends_with("done\n") && !said.contains("bimetal:"), "{said}");
    }
}

/// What a command ends with that has so long.
fn within(seconds: u64, command: &mut Command) -> Output {
    let mut run = Command::new("timeout");
    run.args(["-k", "1", &seconds.to_string()]).arg(command.get_program()).args(command.get_args());
    run.current_dir(command.get_current_dir().unwrap_or(Path::new("/"))).output().unwrap()
}

#[test]
fn a_volume_of_which_something_lies_below_the_mount_point_is_mounted() {
    need_fuse!();
    let profile =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("devices/slc-2k.toml")).unwrap();
    for (kind, places) in [
        ("osd", &["--nand", "mnt/n"][..]),
        ("osd", &["--nand", "n", "--device", "mnt/p.toml"]),
        ("cmfs", &["--nand", "mnt/n", "--nvram", "mnt/v"]),
        ("cmfs", &["--nand", "n", "--nvram", "mnt/v"]),
        ("cmfs", &["--nand", "mnt/n", "--nvram", "v", "--device", "mnt/p.toml"]),
    ] {
        let home = tempfile::tempdir().unwrap();
        let mnt = home.path().join("mnt");
        fs::create_dir(&mnt).unwrap();
        fs::write(mnt.join("p.toml"), &profile).unwrap();
        let here = |verb: &[&str], more: &[&str]| {
            within(60, bimetal().current_dir(home.path()).args(verb).args(places).args(more))
        };
        let made = here(&["mkfs", kind], &["--size", "16MiB"]);
        assert!(made.status.success(), "{}", err(&made));
        let mounted = here(&["mount"], &["mnt"]);
        let held = Held(mnt.clone());
        assert!(mounted.status.success(), "{places:?}: {}", err(&mounted));
        fs::write(mnt.join("f"), places.concat()).unwrap();
        let ended = once_free(bimetal().arg("umount").arg(&mnt));
        assert!(ended.status.success(), "{places:?}: {}", err(&ended));
        drop(held);
        let read = here(&["cat"], &["/f"]);
        assert_eq!(out(&read), places.concat(), "{}", err(&read));
    }
}

#[test]
fn an_image_that_is_the_mount_point_itself_is_refused_by_its_name() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("mnt")).unwrap();
    fs::write(home.path().join("n"), vec![0xff; 64 * 2112]).unwrap();
    for (args, name) in [
        (&["--nand", "mnt"][..], "mnt"),
        (&["--nand", "n", "--nvram", "mnt"], "mnt"),
        (&["-t", "osd", "--nand", "mnt"], "mnt"),
    ] {
        let refused = within(60, bimetal().current_dir(home.path()).arg("mount").args(args).arg("mnt"));
        let _held = Held(home.path().join("mnt"));
        let said = err(&refused);
        assert!(refused.status.code() == Some(1) && said.contains(name), "{args:?}: {said}");
        assert!(said.contains("neither a file nor a block device"), "{args:?}: {said}");
    }
}

#[test]
fn umount_that_does_not_wait_ends_although_the_server_answers_nothing() {
    need_fuse!();
    for lazily in [&["--no-wait"][..], &["--lazy", "--no-wait"]] {
        let mounted = Mounted::memfs("size=32MiB");
        let pid = pid_of(&mounted);
        let signal = |signal| Command::new("kill").args([signal, &*pid]).status().unwrap();
        signal("-STOP");
        let ended = within(20, bimetal().arg("umount").args(lazily).arg(mounted.path()));
        signal("-CONT");
        assert_eq!(ended.status.code(), Some(0), "{lazily:?}: {}", err(&ended));
        await_end(&pid);
    }
}
