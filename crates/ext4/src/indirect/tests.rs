//! Block maps that are cut: in as many transactions as it takes, with the power cut after each, and independent eyes on it.

use crate::{Ext4, Mapping, OpenOptions, ROOT_INO};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_media::ram::Ram;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

pub(super) const NOW: Stamp = Stamp { sec: 1_700_000_000, nsec: 0 };
pub(super) const BLOCK: u64 = 1024;
/// Into the third level of nodes.
const BLOCKS: u64 = 70_000;

pub(super) fn run(program: &str, args: &[&str], image: &Path) -> Option<(i32, String)> {
    let out = Command::new(program).args(args).arg(image).output().ok()?;
    let said = [out.stdout, out.stderr].concat();
    Some((out.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned()))
}

/// A file with a block map of three levels, in pieces, on a disk of small groups with a small journal. `None` without mke2fs.
pub(super) fn made() -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (image, source) = (folder.path().join("image"), folder.path().join("source"));
    std::fs::File::create(&image).unwrap().set_len(40 << 20).unwrap();
    let options =
        ["-q", "-t", "ext4", "-F", "-b", "1024", "-g", "256", "-O", "^extents,^64bit", "-J", "size=1"];
    let Some((0, _)) = run("/usr/sbin/mke2fs", &[&options[..], &["-N", "2000", "-m", "0"]].concat(), &image)
    else {
        println!("skipped: no mke2fs");
        return None;
    };
    let sparse = std::fs::File::create(&source).unwrap();
    sparse.set_len(BLOCKS * BLOCK).unwrap();
    for at in (0..BLOCKS).filter(|at| !(40..60_000).contains(at) || at % 1500 < 500) {
        sparse.write_all_at(&[1 + (at % 251) as u8; BLOCK as usize], at * BLOCK).unwrap();
    }
    let script = folder.path().join("script");
    std::fs::write(&script, format!("write {} victim\n", source.display())).unwrap();
    run("/usr/sbin/debugfs", &["-w", "-f", script.to_str().unwrap()], &image).unwrap();
    run("/usr/sbin/tune2fs", &["-O", "extents"], &image).unwrap();
    // It mends what tune2fs leaves, and ends with 1 for it.
    run("/usr/sbin/e2fsck", &["-fy"], &image).unwrap();
    let (checked, said) = run("/usr/sbin/e2fsck", &["-fn"], &image).unwrap();
    assert_eq!(checked, 0, "{said}");
    Some(std::fs::read(&image).unwrap())
}

/// The power goes: what e2fsck has to say of the image, and what we make of it.
pub(super) fn check_cut(bytes: &[u8], what: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let (code, said) = run("/usr/sbin/e2fsck", &["-p"], file.path()).unwrap();
    assert!(code <= 1, "{what}: {said}");
    let (code, said) = run("/usr/sbin/e2fsck", &["-fn"], file.path()).unwrap();
    assert_eq!(code, 0, "{what}: {said}");
    let disk = Arc::new(Ram::from_bytes("disk", bytes.to_vec()));
    let mut fs = Ext4::open(disk.clone(), OpenOptions::default()).unwrap();
    fs.close(NOW).unwrap();
    std::fs::write(file.path(), disk.image()).unwrap();
    let (code, said) = run("/usr/sbin/e2fsck", &["-fn"], file.path()).unwrap();
    assert_eq!(code, 0, "{what}, opened and closed: {said}");
}

/// Takes steps until it is done, with a look at what a cut after each commit leaves; the steps.
fn in_steps(fs: &mut Ext4, disk: &Ram, what: &str, mut step: impl FnMut(&mut Ext4) -> bool) -> usize {
    let mut steps = 1;
    while !step(fs) {
        fs.commit_here().unwrap();
        check_cut(&disk.image(), &format!("{what}, step {steps}"));
        steps += 1;
    }
    fs.commit_here().unwrap();
    check_cut(&disk.image(), &format!("{what}, done"));
    steps
}

fn places(fs: &mut Ext4, ino: Ino, end: u64) -> Vec<Mapping> {
    (0..end).map(|block| fs.map(ino, block, 1).unwrap()).collect()
}

#[test]
fn a_block_map_is_freed_in_steps_and_each_is_whole() {
    let Some(image) = made() else { return };
    let disk = Arc::new(Ram::from_bytes("disk", image));
    let mut fs = Ext4::open(disk.clone(), OpenOptions::default()).unwrap();
    let free = fs.statfs().free;
    let removed = fs.unlink(ROOT_INO, b"victim", NOW).unwrap();
    assert!(removed.last);
    let steps = in_steps(&mut fs, &disk, "unlink", |fs| fs.release(removed.ino).unwrap());
    assert!(steps > 3, "{steps} steps: nothing is shown");
    assert!(fs.statfs().free > free + 25_000);
}

#[test]
fn a_block_map_is_cut_anywhere_stays_one_and_keeps_the_rest() {
    let Some(image) = made() else { return };
    for kept in [0, 12, 13, 268, 15_800, 65_804, 65_805] {
        let disk = Arc::new(Ram::from_bytes("disk", image.clone()));
        let mut fs = Ext4::open(disk.clone(), OpenOptions::default()).unwrap();
        let (ino, _) = fs.lookup(ROOT_INO, b"victim").unwrap().unwrap();
        let before = places(&mut fs, ino, kept);
        let what = format!("cut to {kept} blocks");
        in_steps(&mut fs, &disk, &what, |fs| fs.truncate(ino, kept * BLOCK, NOW).unwrap());
        drop(fs);
        let mut fs = Ext4::open(disk, OpenOptions::default()).unwrap();
        assert!(places(&mut fs, ino, kept) == before, "{what}");
        assert_eq!(fs.map(ino, kept, 80_000).unwrap(), Mapping::Hole { len: 80_000 }, "{what}");
        // It is a block map still, and may become a tree.
        let legacy = !fs.inode(ino).unwrap().has(crate::inode::flag::EXTENTS);
        assert!(legacy, "{what}");
    }
}
