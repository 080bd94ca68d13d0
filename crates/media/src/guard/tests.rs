//! What the guard refuses, on files. Loop devices and mounts are in `tests/suite/guard.rs`.

use super::*;
use std::os::unix::fs::FileExt;

fn file(dir: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = dir.join(name);
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn refusal(targets: &[Target], force: bool) -> String {
    claim(targets, force).err().map_or(String::new(), |why| why.to_string())
}

#[test]
fn who_writes_excludes_everybody_and_readers_each_other_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 8192);
    let writer = claim_path(&path, Role::Changed).unwrap();
    for role in [Role::Read, Role::Changed, Role::Overwritten] {
        let said = claim_path(&path, role).unwrap_err();
        assert!(matches!(said, Error::InUse(_)), "{said}");
    }
    drop(writer);
    let readers = [claim_path(&path, Role::Read).unwrap(), claim_path(&path, Role::Read).unwrap()];
    assert!(claim_path(&path, Role::Changed).is_err());
    drop(readers);
    claim_path(&path, Role::Changed).unwrap();
}

#[test]
fn the_same_file_twice_is_refused_whatever_it_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 8192);
    let (hard, soft) = (dir.path().join("hard"), dir.path().join("soft"));
    fs::hard_link(&path, &hard).unwrap();
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    let around = dir.path().join(".").join("a");
    for other in [&path, &hard, &soft, &around] {
        for role in [Role::Overwritten, Role::Changed, Role::Read] {
            let targets = [Target::new("--ssd", &path, role), Target::new("--disk", other, role)];
            let said = refusal(&targets, true);
            assert!(said.contains("--ssd") && said.contains("are the same"), "{}: {said}", other.display());
        }
    }
}

#[test]
fn every_signature_is_refused_by_name_and_only_force_overrides_it() {
    let dir = tempfile::tempdir().unwrap();
    let known: &[(&str, u64, &[u8])] = &[
        ("btrfs", 0x10040, b"_BHRfS_M"),
        ("xfs", 0, b"XFSB"),
        ("swap", 4086, b"SWAPSPACE2"),
        ("LVM2", 512, b"LABELONE"),
        ("RAID", 4096, b"\xfc\x4e\x2b\xa9"),
        ("RAID", (4 << 20) - (64 << 10), b"\xfc\x4e\x2b\xa9"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("ZFS", 132 << 10, b"\x0c\xb1\xba\x00\x00\x00\x00\x00"),
        ("GPT", 512, b"EFI PART"),
        ("GPT", (4 << 20) - 512, b"EFI PART"),
        ("MBR", 510, b"\x55\xaa"),
        ("ext2/3/4", 0x438, b"\x53\xef"),
        ("bcachefs", 4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
        ("f2fs", 0x400, b"\x10\x20\xf5\xf2"),
        ("squashfs", 0, b"hsqs"),
        ("romfs", 0, b"-rom1fs-"),
        ("cramfs", 0, b"\x45\x3d\xcd\x28"),
        ("SSD half of bimetal", (4 << 20) - 4096, b"BIMETSSD"),
        ("object store", 0, b"bimetalN"),
        ("NVRAM of a cmfs", 0, b"CMFS\x02\0\0\0"),
        ("NVRAM of a cmfs", 96, b"CMF-\0\0\0\0"),
        ("NAND image of a cmfs", (4 << 20) - 64, b"CMFSNAND\x02\0\0\0"),
        ("NAND image of a cmfs", (3 << 20) - 5, b"CMFSNAND\x02\0\0\0"),
        ("data", 1 << 19, b"a letter"),
    ];
    for (name, at, magic) in known {
        let path = file(dir.path(), "image", 4 << 20);
        File::options().write(true).open(&path).unwrap().write_all_at(magic, *at).unwrap();
        let target = [Target::new("--disk", &path, Role::Overwritten)];
        let said = refusal(&target, false);
        assert!(said.contains(name) && said.contains("--force"), "{name}: {said}");
        assert_eq!(refusal(&target, true), "", "{name}");
        assert_eq!(refusal(&[Target { role: Role::Changed, ..target[0] }], false), "", "{name}");
    }
}

#[test]
fn what_was_made_for_a_refused_command_is_gone_again_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (new, old) = (dir.path().join("new"), file(dir.path(), "old", 4096));
    File::options().write(true).open(&old).unwrap().write_all_at(b"precious", 0).unwrap();
    let made = Target { make: true, ..Target::new("--nand", &new, Role::Overwritten) };
    assert!(refusal(&[made, Target::new("--nvram", &old, Role::Overwritten)], false).contains("data"));
    assert!(!new.exists() && old.exists());
    // The same where it is refused later, with nothing in it yet.
    let claims = claim(&[made], false).unwrap();
    assert!(new.exists());
    drop(claims);
    assert!(!new.exists());
    claim(&[made], false).unwrap()[0].file().write_all_at(b"something", 0).unwrap();
    assert!(new.exists());
}

#[test]
fn an_output_replaces_a_file_but_no_device_and_no_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.csv");
    for _ in 0..2 {
        std::io::Write::write_all(&mut output(&path).unwrap(), b"text").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"text");
    }
    let image = file(dir.path(), "image", 1 << 20);
    File::options().write(true).open(&image).unwrap().write_all_at(b"BIMETSSD", 0).unwrap();
    assert!(output(&image).unwrap_err().to_string().contains("SSD half"));
    let _mounted = claim_path(&path, Role::Changed).unwrap();
    assert!(matches!(output(&path), Err(Error::InUse(_))));
}

#[test]
fn a_text_about_a_format_is_no_volume() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes");
    fs::write(&path, "CMFS and CMFSNAND are magic numbers; CMF- is another, of 4 letters").unwrap();
    assert!(output(&path).is_ok());
}

/// A FIFO without a reader would be waited for.
#[test]
fn a_fifo_is_an_output_while_somebody_reads_it_and_never_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    let owner = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, owner, 0).unwrap();
    for refused in [output(&path), log(&path)] {
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("is a FIFO"), "{said}");
    }
    let mut reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    io::Write::write_all(&mut output(&path).unwrap(), b"text").unwrap();
    let mut heard = [0; 4];
    io::Read::read_exact(&mut reader, &mut heard).unwrap();
    assert_eq!(&heard, b"text");
    assert!(log(&path).is_err());
}
