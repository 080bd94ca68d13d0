//! Cuts in which a read fails, or of maps that are damaged: they change nothing, or end a step early.

use super::tests::{BLOCK, NOW, check_cut, made, run};
use crate::inode::flag;
use crate::{Create, Ext4, OpenOptions, ROOT_INO};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bimetal_media::faulty::{Effect, Faulty, Kind, When};
use bimetal_media::ram::Ram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

/// The file that [`made`] makes on a disk of which the n-th read from now on fails, if one is to; its map was read.
fn failing(image: &[u8], nth: Option<u64>) -> (Arc<Ram>, Ext4, Ino) {
    let disk = Arc::new(Ram::from_bytes("disk", image.to_vec()));
    let faulty = Arc::new(Faulty::new(disk.clone()));
    let mut fs = Ext4::open(faulty.clone(), OpenOptions::default()).unwrap();
    let (ino, _) = fs.lookup(ROOT_INO, b"victim").unwrap().unwrap();
    fs.map(ino, 0, 1).unwrap();
    nth.into_iter().for_each(|nth| faulty.plan(Kind::Read, When::Nth(nth + 1), Effect::Error(5)));
    (disk, fs, ino)
}

fn shape(fs: &mut Ext4, ino: Ino) -> (u64, u64) {
    let inode = fs.inode(ino).unwrap();
    (inode.size, inode.blocks)
}

/// Takes the file through a change in steps, each of which says whether it was the last, with one read that fails; how often that
/// was told, and ended a step early.
fn with_a_fault(image: &[u8], nth: u64, mut step: impl FnMut(&mut Ext4, Ino) -> Result<bool>) -> (u32, u32) {
    let (disk, mut fs, ino) = failing(image, Some(nth));
    let (mut told, mut early) = (0, 0);
    loop {
        let before = shape(&mut fs, ino);
        let dirty = fs.dirty_blocks();
        match step(&mut fs, ino) {
            Ok(true) => break,
            Ok(false) => {
                early += u32::from(fs.dirty_blocks() < dirty + fs.step_blocks());
                fs.commit_here().unwrap();
                check_cut(&disk.image(), &format!("read {nth}"));
            }
            Err(error) => {
                assert!(matches!(error, Error::Io { .. }), "{error}");
                assert_eq!(shape(&mut fs, ino), before, "read {nth}");
                told += 1;
            }
        }
    }
    fs.close(NOW).unwrap();
    check_cut(&disk.image(), &format!("read {nth}, done"));
    (told, early)
}

/// How often it was told that a read failed, and how often that ended a step early.
fn sum(each: impl Iterator<Item = (u32, u32)>) -> (u32, u32) {
    each.fold((0, 0), |(told, early), (by_error, by_step)| (told + by_error, early + by_step))
}

/// Cuts to five blocks, with many reads that fail in turn.
fn cut_with_faults(image: &[u8], first: u64, end: u64) -> (u32, u32) {
    let cut = |fs: &mut Ext4, ino| fs.truncate(ino, 5 * BLOCK, NOW);
    sum((0..first).chain((first..end).step_by(23)).map(|nth| with_a_fault(image, nth, cut)))
}

#[test]
fn a_read_that_fails_in_a_cut_of_a_block_map_leaves_a_whole_one() {
    let Some(image) = made() else { return };
    let (told, early) = cut_with_faults(&image, 8, 80);
    assert!(told > 2 && early > 2, "{told} told, {early} steps ended early: nothing is shown");
}

/// The last extents share few groups: more of them are cut in a step than it dirties blocks.
#[test]
fn a_read_that_fails_in_a_cut_of_a_tree_leaves_a_whole_one() {
    let Some(image) = made() else { return };
    let disk = Arc::new(Ram::from_bytes("disk", image));
    let mut fs = Ext4::open(disk.clone(), OpenOptions::default()).unwrap();
    let (ino, _) = fs.lookup(ROOT_INO, b"victim").unwrap().unwrap();
    for block in (69_000..69_900).step_by(2) {
        fs.punch(ino, block, 1, 1).unwrap();
        if fs.dirty_blocks() > 100 {
            fs.commit_here().unwrap();
        }
    }
    fs.close(NOW).unwrap();
    let (told, early) = cut_with_faults(&disk.image(), 6, 60);
    assert!(told > 0 && early > 2, "{told} told, {early} steps ended early: nothing is shown");
}

#[test]
fn a_node_that_changed_since_its_map_was_read_is_noticed() {
    let Some(image) = made() else { return };
    for (what, kept) in
        [("zeros", 69_000), ("zeros", 69_950), ("last pointer", 69_000), ("pointer before", 69_000)]
    {
        let (disk, mut fs, ino) = failing(&image, None);
        let slot = fs.inodes.find(ino).unwrap();
        let node = *fs.inodes.entry(slot).inode.legacy.last().unwrap();
        let device: &dyn BlockDevice = &*disk;
        let mut bytes = device.read(node * BLOCK, BLOCK as usize).unwrap().to_vec();
        let last = bytes.chunks_exact(4).rposition(|pointer| pointer != [0; 4]).unwrap();
        match what {
            "zeros" => bytes.fill(0),
            "last pointer" => bytes[last * 4] ^= 3,
            _ => bytes[(last - 1) * 4] ^= 3,
        }
        device.write(node * BLOCK, bytes).unwrap();
        let before = (shape(&mut fs, ino), fs.statfs().free);
        let cut = fs.truncate(ino, kept * BLOCK, NOW);
        assert!(matches!(cut, Err(Error::Corrupt { .. })), "{what}, {kept}: {cut:?}");
        assert_eq!((shape(&mut fs, ino), fs.statfs().free), before, "{what}, {kept}");
    }
}

/// Pointers to their own node, to others, twice, beyond the disk, to free blocks, and nodes without any.
#[test]
fn a_damaged_map_is_refused_or_cut_and_never_in_part() {
    let Some(image) = made() else { return };
    let (_, mut fs, ino) = failing(&image, None);
    let slot = fs.inodes.find(ino).unwrap();
    let nodes = fs.inodes.entry(slot).inode.legacy.clone();
    drop(fs);
    let (mut refused, mut cut) = (0, 0);
    for seed in 0..60 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut image = image.clone();
        for _ in 0..rng.random_range(1..4) {
            let [node, other] = [0; 2].map(|_| nodes[rng.random_range(0..nodes.len())]);
            let place = |node: u64, index: usize| node as usize * BLOCK as usize + index * 4;
            let at = place(node, if rng.random_bool(0.5) { 0 } else { rng.random_range(0..256) });
            let from = place(other, rng.random_range(0..256));
            let value = match rng.random_range(0..6) {
                0 => (node as u32).to_le_bytes(),
                1 => (other as u32).to_le_bytes(),
                2 => image[from..from + 4].try_into().unwrap(),
                3 => [0; 4],
                _ => rng.random_range(0..45_000_u32).to_le_bytes(),
            };
            image[at..at + 4].copy_from_slice(&value);
            if rng.random_bool(0.3) {
                image[place(other, 0)..place(other, 256)].fill(0);
            }
        }
        let disk = Arc::new(Ram::from_bytes("disk", image));
        let mut fs = Ext4::open(disk, OpenOptions::default()).unwrap();
        loop {
            let before = shape(&mut fs, ino);
            match fs.truncate(ino, [0, 13, 268, 15_800][seed as usize % 4] * BLOCK, NOW) {
                Ok(true) => break cut += 1,
                Ok(false) => fs.commit_here().unwrap(),
                Err(error) => {
                    assert!(matches!(error, Error::Corrupt { .. }), "seed {seed}: {error}");
                    assert_eq!(shape(&mut fs, ino), before, "seed {seed}: {error}");
                    break refused += 1;
                }
            }
        }
        fs.commit_here().unwrap();
    }
    assert!(refused > 5 && cut > 2, "{refused} refused, {cut} cut");
}

/// An end that no block map has: extents take its place, as they do when data is written there.
#[test]
fn a_file_that_outgrows_its_block_map_gets_extents() {
    let Some(image) = made() else { return };
    let (disk, mut fs, ino) = failing(&image, None);
    let most = super::size_max(BLOCK as u32);
    assert!(fs.truncate(ino, most, NOW).unwrap());
    assert!(!fs.inode(ino).unwrap().has(flag::EXTENTS));
    fs.commit_here().unwrap();
    check_cut(&disk.image(), "as long as a map can be");
    let (credits, free) = (fs.credits_to_resize(ino, most + 1).unwrap(), fs.statfs().free);
    assert!(fs.truncate(ino, most + 1, NOW).unwrap());
    assert!(fs.inode(ino).unwrap().has(flag::EXTENTS));
    assert!(fs.dirty_blocks() as u64 <= credits, "{} of {credits}", fs.dirty_blocks());
    assert!(free > 0);
    fs.close(NOW).unwrap();
    check_cut(&disk.image(), "longer");
}

/// A hole is made of whole units of a file, whichever read fails: it ends between two, or nothing has changed.
#[test]
fn a_read_that_fails_while_a_hole_is_made_leaves_whole_units() {
    let Some(image) = made() else { return };
    // What it has for its map is read when it gets extents, so that nothing is left to fail.
    let (disk, mut fs, ino) = failing(&image, None);
    fs.punch(ino, 399, 1, 1).unwrap();
    fs.close(NOW).unwrap();
    let image = disk.image();
    let hole = |nth| {
        let (mut at, end) = (400, 69_996);
        with_a_fault(&image, nth, |fs, ino| {
            let to = fs.punch(ino, at, end - at, 4)?;
            assert!(to % 4 == 0 && to > at, "read {nth}: {at} to {to}");
            at = to;
            Ok(to == end)
        })
    };
    let (told, early) = sum((0..4).chain((4..200).step_by(31)).map(hole));
    assert!(told > 0 && early > 2, "{told} told, {early} steps ended early: nothing is shown");
}

/// What was cut and is not free yet does not come back with a file that grows again.
#[test]
fn a_file_that_grows_while_it_is_being_cut_has_nothing_of_what_was_cut() {
    let Some(image) = made() else { return };
    for trees in [false, true] {
        let (disk, mut fs, ino) = failing(&image, None);
        if trees {
            fs.punch(ino, 41, 1, 1).unwrap();
            fs.commit_here().unwrap();
        }
        let size = fs.inode(ino).unwrap().size;
        assert!(!fs.truncate(ino, BLOCK, NOW).unwrap(), "cut in one step: nothing is shown");
        assert!(fs.is_being_cut(ino).unwrap());
        let mut steps = 0;
        while !fs.truncate(ino, size, NOW).unwrap() {
            fs.commit_here().unwrap();
            check_cut(&disk.image(), "being cut");
            steps += 1;
        }
        assert!(steps > 0 && !fs.is_being_cut(ino).unwrap());
        let inode = fs.inode(ino).unwrap().size;
        assert_eq!((inode, fs.next_data(ino, 1).unwrap()), (size, None));
        fs.close(NOW).unwrap();
        check_cut(&disk.image(), "grown");
    }
}

/// The power goes between two steps of a cut, and a read fails in the mount after it, which goes on.
#[test]
fn a_cut_that_an_error_left_undone_at_mount_is_done_before_the_file_grows() {
    let Some(image) = made() else { return };
    for trees in [false, true] {
        let (disk, mut fs, ino) = failing(&image, None);
        if trees {
            fs.punch(ino, 41, 1, 1).unwrap();
            fs.commit_here().unwrap();
        }
        assert!(!fs.truncate(ino, BLOCK, NOW).unwrap());
        fs.commit_here().unwrap();
        let image = disk.image();
        let mut undone = 0;
        for nth in (0..400).step_by(7) {
            let disk = Arc::new(Ram::from_bytes("disk", image.clone()));
            let faulty = Arc::new(Faulty::new(disk.clone()));
            faulty.plan(Kind::Read, When::Nth(nth + 1), Effect::Error(5));
            let opened = Ext4::open(faulty.clone(), OpenOptions::default());
            faulty.forget();
            let Ok(mut fs) = opened else { continue };
            undone += u32::from(fs.is_being_cut(ino).unwrap());
            while !fs.truncate(ino, 70_000 * BLOCK, NOW).unwrap() {
                fs.commit_here().unwrap();
            }
            assert_eq!(fs.next_data(ino, 1).unwrap(), None, "trees {trees}, read {nth}");
            fs.close(NOW).unwrap();
        }
        assert!(undone > 0, "trees {trees}: nothing is shown");
    }
}

/// An orphan that leads to free blocks, made by hand: it stays, and all else is there.
#[test]
fn an_orphan_that_cannot_be_freed_keeps_nobody_out() {
    let Some(image) = made() else { return };
    let (disk, mut fs, ino) = failing(&image, None);
    fs.unlink(ROOT_INO, b"victim", NOW).unwrap();
    fs.commit_here().unwrap();
    let slot = fs.inodes.find(ino).unwrap();
    let node = *fs.inodes.entry(slot).inode.legacy.last().unwrap();
    drop(fs);
    let device: &dyn BlockDevice = &*disk;
    device.write(node * BLOCK, vec![0xA5; BLOCK as usize]).unwrap();
    for _ in 0..2 {
        let mut fs = Ext4::open(disk.clone(), OpenOptions::default()).unwrap();
        assert_eq!(fs.lookup(ROOT_INO, b"victim").unwrap(), None);
        fs.unlink(ROOT_INO, b"lost+found", NOW).unwrap_err();
        fs.close(NOW).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), disk.image()).unwrap();
    let (code, said) = run("/usr/sbin/e2fsck", &["-fy"], file.path()).unwrap();
    assert!(code == 1, "{said}");
    check_cut(&std::fs::read(file.path()).unwrap(), "mended");
}

/// A disk without a block for a node: whoever did not make sure of one is told by the commit, and nothing is written in its place.
#[test]
fn a_tree_that_lacks_a_node_is_never_written() {
    let Some(image) = made() else { return };
    let (disk, mut fs, ino) = failing(&image, None);
    // An extent in each second block, as many as the inode holds.
    fs.truncate(ino, 0, NOW).unwrap();
    while fs.is_being_cut(ino).unwrap() {
        fs.commit_here().unwrap();
        fs.finish_cut(ino).unwrap();
    }
    fs.punch(ino, 1, 1, 1).unwrap();
    for block in [0, 2, 4, 6] {
        fs.place(ino, block, 1).unwrap();
    }
    fs.inode_mut(ino).unwrap().size = 9 * BLOCK;
    fs.commit_here().unwrap();
    // All blocks but one are another file's, behind which there is no promise.
    let spec = Create {
        parent: ROOT_INO,
        name: b"full",
        kind: bimetal_vfs::Kind::File,
        perm: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
        now: NOW,
        ino: None,
        generation: None,
    };
    let full = fs.create(&spec).unwrap();
    let mut at = 0;
    while fs.statfs().free > 1 {
        let len = fs.statfs().free.min(200) - u64::from(fs.statfs().free <= 200);
        if fs.place(full, at, len.max(1) as u32).is_err() {
            break;
        }
        at += len.max(1);
        fs.inode_mut(full).unwrap().size = at * BLOCK;
        fs.commit_here().unwrap();
    }
    let before = disk.image();
    assert!(fs.place(ino, 8, 1).is_err(), "there was a block for the node: nothing is shown");
    assert!(fs.commit_here().is_err());
    drop(fs);
    assert!(disk.image()[..4096] == before[..4096], "the node was written over block 0");
    check_cut(&disk.image(), "a tree that lacks a node");
}
