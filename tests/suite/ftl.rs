//! Real programs on translation layers and FAT volumes of ours.

use crate::media::{Loop, end, ext4_lives_on, run};
use crate::mounts::{bimetal, no_fuse, once_free, skip};
use bimetal::front::export::{Export, Served, serve};
use bimetal::front::nbd;
use bimetal::front::reproduce::CameraPreset as Preset;
use bimetal::fs::fat::layout::Width;
use bimetal::fs::fat::{Format, Options, Volume};
use bimetal::ftl::SCHEMES;
use bimetal::ftl::ssd::{Data, Ssd, SsdProfile};
use bimetal::media::BlockDevice;
use bimetal::media::disk::DiskProfile;
use bimetal::media::file::{Cached, FileDevice, Options as FileOptions};
use bimetal::media::nand::NandProfile;
use bimetal::media::nvram::NvramProfile;
use bimetal::media::profile::{self, Described};
use bimetal::time::Time;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// With the data in the modelled pages, so that a page misplaced is data lost.
#[test]
fn the_kernels_ext4_lives_on_every_translation_layer() {
    for scheme in SCHEMES {
        let mut profile: SsdProfile = profile::load("ssd-tlc").unwrap();
        (profile.nand, profile.ftl, profile.settings) = ("slc-2k".into(), scheme.name.into(), String::new());
        let ssd = Arc::new(Ssd::new(&profile, Data::Pages(64 << 20), 1).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let export =
            Export { device: Arc::clone(&ssd) as Arc<dyn BlockDevice>, real_time: false, model: None };
        let served = match serve(export, dir.path()) {
            Ok(served) => served,
            Err(error) => return println!("skipped: {error}"),
        };
        ext4_lives_on(&served);
        let report = ssd.report();
        assert!(report.ftl.host_writes > 0 && report.ftl.lost_pages == 0, "{}: {report:?}", scheme.name);
        await_detached(dir.path());
        end(served, dir.path());
    }
}

/// Waits until no loop device lies over a file below `dir` any more: the kernel gives one up a moment after its last user.
fn await_detached(dir: &Path) {
    for _ in 0..500 {
        let listed = Command::new("losetup").arg("-a").output().unwrap().stdout;
        if !String::from_utf8_lossy(&listed).contains(&*dir.to_string_lossy()) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("a loop device lies over {} still", dir.display());
}

/// A volume of `bytes` in a file, to write to.
fn image(path: &Path, bytes: u64) -> Arc<dyn BlockDevice> {
    fs::File::create(path).unwrap().set_len(bytes).unwrap();
    open_image(path)
}

fn open_image(path: &Path) -> Arc<dyn BlockDevice> {
    let options = FileOptions { writable: true, cached: Cached::All, exclusive: true, queued: false };
    Arc::new(FileDevice::open_with(path, &options).unwrap())
}

/// Whether a program is to be had.
fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--help").output().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

const LONG: &str = "A photo with a long name.jpeg";

#[test]
fn other_programs_find_no_fault_in_our_volumes_and_read_them() {
    if !is_installed("fsck.fat") || !is_installed("mcopy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (width, bytes, cluster_bytes) in
        [(Width::Fat12, 2 << 20, 1024), (Width::Fat16, 32 << 20, 2048), (Width::Fat32, 64 << 20, 512)]
    {
        let path = dir.path().join(format!("{width:?}"));
        let device = image(&path, bytes);
        let format = Format { width, cluster_bytes, root_entries: 512 };
        Volume::format(&*device, Time::ZERO, &format).unwrap();
        let volume = Volume::open(device, Time::ZERO, Options::default()).unwrap();
        volume.make_dir("dir").unwrap();
        let contents: Vec<u8> = (0..200_000u32).map(|at| (at / 7) as u8).collect();
        for name in ["A.TXT", LONG, "dir/another.bin"] {
            volume.create(name).unwrap().write_at(0, &contents).unwrap();
        }
        volume.remove("A.TXT").unwrap();
        volume.make_dir("dir/deeper").unwrap();
        for number in 0..40 {
            volume.create(&format!("dir/deeper/file with a number {number}")).unwrap();
        }
        volume.rename("dir/deeper", "dir/other").unwrap();
        volume.rename("dir/other/file with a number 7", "seven").unwrap();
        volume.close().unwrap();
        assert!(run("fsck.fat", &["-n"], &path), "{width:?}");
        let copy = dir.path().join("copy");
        let image = path.to_string_lossy().into_owned();
        for name in [format!("::{LONG}"), "::dir/another.bin".to_string()] {
            assert!(run("mcopy", &["-n", "-o", "-i", &image, &name], &copy));
            assert_eq!(fs::read(&copy).unwrap(), contents, "{width:?} {name}");
        }
    }
}

#[test]
fn volumes_of_other_programs_are_read_and_written() {
    if !is_installed("mkfs.fat") || !is_installed("mcopy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (width, bytes) in [("12", 2u64 << 20), ("16", 32 << 20), ("32", 64 << 20)] {
        let path = dir.path().join(width);
        drop(image(&path, bytes));
        assert!(run("mkfs.fat", &["-F", width, "-s", "1"], &path));
        let (theirs, name) = (dir.path().join(LONG), path.to_string_lossy().into_owned());
        fs::write(&theirs, vec![7; 70_000]).unwrap();
        assert!(run("mcopy", &["-i", &name, &theirs.to_string_lossy()], Path::new("::")));
        let volume = Volume::open(open_image(&path), Time::ZERO, Options::default()).unwrap();
        assert_eq!(volume.read(LONG).unwrap(), vec![7; 70_000], "FAT{width}");
        volume.remove(LONG).unwrap();
        volume.create("Ours.bin").unwrap().write_at(0, &[9; 5000]).unwrap();
        volume.close().unwrap();
        assert!(run("fsck.fat", &["-n"], &path), "FAT{width}");
    }
}

#[test]
fn nbd_clients_read_and_write_every_translation_layer() {
    if !is_installed("nbdcopy") || !is_installed("nbdinfo") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image: Vec<u8> = (0..8u32 << 20).map(|at| (at / 3000) as u8).collect();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, &image).unwrap();
    for scheme in SCHEMES {
        let mut profile: SsdProfile = profile::load("ssd-tlc").unwrap();
        (profile.nand, profile.ftl, profile.settings) = ("slc-2k".into(), scheme.name.into(), String::new());
        let device = Arc::new(Ssd::new(&profile, Data::Pages(8 << 20), 1).unwrap());
        let export = Export { device, real_time: scheme.name == "page", model: None };
        let served = nbd::serve(export, &dir.path().join("socket")).unwrap();
        assert!(run("nbdinfo", &[], Path::new(&served.uri())));
        for _ in 0..2 {
            assert!(run("nbdcopy", &["--flush", &from.to_string_lossy()], Path::new(&served.uri())));
        }
        assert!(run("nbdcopy", &[&served.uri()], &to));
        assert!(fs::read(&to).unwrap() == image, "{}", scheme.name);
        assert!(served.counts().flushes > 0);
    }
}

/// Makes an XFS on a served device, fills it, deletes, and reads the rest back after `xfs_repair`.
fn xfs_lives_on(served: &Served) {
    let Some(attached) = Loop::attach(&served.device(), &["--direct-io=on"]) else { return };
    assert!(run("mkfs.xfs", &["-q"], &attached.path));
    let mounted = tempfile::tempdir().unwrap();
    let path = attached.path.to_string_lossy().into_owned();
    if !run("mount", &[&path], mounted.path()) {
        return println!("skipped: no xfs to mount");
    }
    let contents = |index: usize| vec![index as u8; index * 3000];
    for index in 0..200 {
        fs::write(mounted.path().join(format!("file{index}")), contents(index)).unwrap();
    }
    for index in 100..200 {
        fs::remove_file(mounted.path().join(format!("file{index}"))).unwrap();
    }
    assert!(run("fstrim", &[], mounted.path()));
    assert!(once_free(Command::new("umount").arg(mounted.path())).status.success());
    assert!(run("xfs_repair", &["-n"], &attached.path));
    assert!(run("mount", &[&path], mounted.path()));
    for index in 0..100 {
        assert_eq!(fs::read(mounted.path().join(format!("file{index}"))).unwrap(), contents(index));
    }
    assert!(once_free(Command::new("umount").arg(mounted.path())).status.success());
}

#[test]
fn the_kernels_xfs_lives_on_every_translation_layer() {
    if !is_installed("mkfs.xfs") {
        return;
    }
    for scheme in SCHEMES {
        let mut profile: SsdProfile = profile::load("ssd-tlc").unwrap();
        (profile.nand, profile.ftl, profile.settings) = ("slc-2k".into(), scheme.name.into(), String::new());
        let ssd = Arc::new(Ssd::new(&profile, Data::Pages(320 << 20), 1).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let device = Arc::clone(&ssd) as Arc<dyn BlockDevice>;
        let served = match serve(Export { device, real_time: false, model: None }, dir.path()) {
            Ok(served) => served,
            Err(error) => return println!("skipped: {error}"),
        };
        xfs_lives_on(&served);
        assert!(ssd.report().ftl.lost_pages == 0, "{}", scheme.name);
        await_detached(dir.path());
        end(served, dir.path());
    }
}

#[test]
fn the_kernels_ext4_lives_on_flash_that_takes_its_time() {
    for scheme in ["page", "fast"] {
        let mut profile: SsdProfile = profile::load("ssd-tlc").unwrap();
        (profile.ftl, profile.settings) = (scheme.into(), String::new());
        let device = Arc::new(Ssd::new(&profile, Data::Pages(64 << 20), 1).unwrap());
        let dir = tempfile::tempdir().unwrap();
        match serve(Export { device, real_time: true, model: None }, dir.path()) {
            Ok(served) => ext4_lives_on(&served),
            Err(error) => return println!("skipped: {error}"),
        }
    }
}

/// `bimetal export`, ended when dropped, and the command it names to look at it.
struct Exported(Child, String);

impl Exported {
    /// Starts it and waits until it serves.
    fn start(args: &[&str]) -> Exported {
        let command = bimetal().arg("export").args(args).stdout(Stdio::piped()).spawn();
        let mut child = command.expect("the command runs");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let served = lines.next().expect("where it serves").unwrap();
        assert!(served.starts_with("nbd+unix:") || served.ends_with("/device"), "{served}");
        Exported(child, lines.next().expect("how to look at it").unwrap())
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        let process = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

fn status_of(place: &str) -> serde_json::Value {
    let shown = bimetal().args(["status", "--json", place]).output().unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    serde_json::from_slice(&shown.stdout).unwrap()
}

#[test]
fn the_status_of_an_exported_device_shows_merges_and_wear_as_they_come() {
    if !is_installed("nbdcopy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (image, socket, from) = (path("image"), path("socket"), path("from"));
    fs::write(&from, vec![7; 4 << 20]).unwrap();
    let device = ["--profile", "slc-2k", "--size", "16MiB", "--no-latency", &image];
    let exported = Exported::start(&[&["--ftl", "fast:logs=8", "--nbd", &socket], &device[..]].concat());
    let merges = |status: &serde_json::Value| status["model"]["flash"]["switch_merges"].as_u64().unwrap();
    assert_eq!(exported.1, format!("bimetal status {socket}"));
    let before = status_of(&socket);
    assert_eq!((merges(&before), &before["model"]["ftl"]), (0, &"fast:logs=8".into()));
    for _ in 0..2 {
        assert!(run("nbdcopy", &["--flush", &from], Path::new(&format!("nbd+unix:///?socket={socket}"))));
    }
    let after = status_of(&socket);
    assert_eq!(merges(&after), 32, "each of 32 blocks was written twice, in order: {after}");
    assert!(after["model"]["flash"]["wear"]["max"].as_u64() > Some(0));
    drop(exported);
    assert!(!Path::new(&socket).exists() && fs::read(&image).unwrap()[..4 << 20] == fs::read(&from).unwrap());
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let place = path("place");
    fs::create_dir(&place).unwrap();
    let exported = Exported::start(&[&["--ftl", "log", "--file", &place], &device[..]].concat());
    for _ in 0..2 {
        let written = fs::File::options().write(true).open(Path::new(&place).join("device")).unwrap();
        std::io::Write::write_all(&mut &written, &fs::read(&from).unwrap()).unwrap();
        written.sync_all().unwrap();
    }
    assert_eq!((merges(&status_of(&place)), &exported.1), (32, &format!("bimetal status {place}")));
    drop(exported);
    assert!(!Path::new(&place).join("device").exists(), "unmounted");
}

#[test]
fn an_export_that_cannot_be_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (image, socket) = (path("image"), path("socket"));
    for (args, told) in [
        (&["--ftl", "fastest"][..], "no FTL 'fastest'; did you mean 'fast'"),
        (&["--ftl", "fast:logs=two"], "logs"),
        (&["--ftl", "page:speed=9"], "no option 'speed'"),
        (&["--profile", "hdd-7200", "--ftl", "fast"], "a disk, which has no FTL"),
        (&["--profile", "feram"], "not a device by itself"),
        (&["--profile", "/no/such"], "/no/such"),
    ] {
        let rest = ["--size", "16MiB", "--nbd", &socket, &image];
        let refused = bimetal().arg("export").args(args).args(rest).output().unwrap();
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && why.contains(told), "{args:?}: {why}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{args:?} left something");
    }
}

/// Reads `text` as a profile of its kind.
fn parsed(text: &str) -> Result<(), String> {
    let kind = text.lines().find_map(|line| line.strip_prefix("kind = ")).unwrap().trim_matches('"');
    let result = match kind {
        DiskProfile::KIND => profile::parse::<DiskProfile>("mine", text).map(drop),
        NandProfile::KIND => profile::parse::<NandProfile>("mine", text).map(drop),
        NvramProfile::KIND => profile::parse::<NvramProfile>("mine", text).map(drop),
        SsdProfile::KIND => profile::parse::<SsdProfile>("mine", text).map(drop),
        Preset::KIND => profile::parse::<Preset>("mine", text).map(drop),
        other => panic!("unknown kind {other}"),
    };
    result.map_err(|why| why.to_string())
}

/// What a field cannot be, by what it is.
fn impossible(value: &str) -> &'static [&'static str] {
    match value.trim() {
        "true" | "false" => &["3", "\"yes\""],
        text if text.starts_with('"') => &["7", "[]"],
        text if text.parse::<u64>().is_ok() => &["-1", "0.5", "\"many\""],
        _ => &["-1.0", "nan", "inf", "\"many\""],
    }
}

/// What a part or a drive need not be able to do, so that nothing need be said of it.
const MAY_BE_LEFT_OUT: [&str; 13] = [
    "ordering",
    "one_shot",
    "slc_read_us",
    "slc_program_us",
    "program_suspend_us",
    "erase_suspend_us",
    "planes_together",
    "cached_commands",
    "read_us_by_type",
    "program_us_by_type",
    "queue",
    "platter",
    "commands_per_s",
];

#[test]
fn every_field_of_every_profile_is_refused_by_its_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("devices");
    let mut tried = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert_eq!(parsed(&text), Ok(()));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((field, value)) = line.split_once(" = ").filter(|(field, _)| !field.contains('{'))
            else {
                continue;
            };
            if matches!(field, "kind" | "zones") {
                continue;
            }
            match parsed(&text.replacen(&format!("{line}\n"), "", 1)) {
                Ok(()) => assert!(MAY_BE_LEFT_OUT.contains(&field), "without {field}"),
                Err(removed) => assert!(removed.contains(field), "without {field}: {removed}"),
            }
            // Flash is counted in numbers of 32 bits; elsewhere a large number may be meant.
            let counts_flash = text.contains("kind = \"nand\"") && value.parse::<u64>().is_ok();
            for wrong in impossible(value).iter().chain(counts_flash.then_some(&"99999999999")) {
                let why = parsed(&text.replacen(line, &format!("{field} = {wrong}"), 1));
                let why = why.err().unwrap_or_else(|| panic!("{field} = {wrong} was taken"));
                assert!(why.contains("profile mine") && why.contains(field), "{field} = {wrong}: {why}");
                tried += 1;
            }
        }
    }
    assert!(tried > 736, "{tried}");
}

#[test]
fn an_image_that_cannot_be_made_as_large_as_asked_does_not_stay() {
    let home = tempfile::tempdir().unwrap();
    let script = format!(
        "ulimit -f 100; exec {} export --size 16MiB --profile slc-2k --no-latency image --nbd socket",
        env!("CARGO_BIN_EXE_bimetal")
    );
    let tried = Command::new("sh").args(["-c", &script]).current_dir(home.path()).output().unwrap();
    assert_eq!(tried.status.code(), Some(1), "{}", String::from_utf8_lossy(&tried.stderr));
    assert!(String::from_utf8_lossy(&tried.stderr).contains("image: "));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}
