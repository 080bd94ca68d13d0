//! Damaged images: every flipped bit is found or harmless; nothing panics, nothing runs for ever.

use super::model::listing;
use super::rig::{Rig, at, plain};
use bimetal::fs::ext4::{Create, Ext4, OpenOptions, ROOT_INO};
use bimetal::fs::{Kind, Rename, SetXattr};
use bimetal::media::ram::Ram;
use bimetal::time::Time;
use bimetal::units::Ino;
use bimetal::{Error, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A closed image with a bit of everything in it, and where its metadata lies.
struct Victim {
    image: Vec<u8>,
    block_bytes: usize,
    metadata: Vec<u64>,
    /// What a walk finds.
    sound: Vec<String>,
}

fn fill(rig: &mut Rig) -> Result<()> {
    let dir = rig.create(ROOT_INO, b"indexed", Kind::Dir)?;
    for i in 0..150 {
        rig.create(dir, format!("a name that makes the directory larger {i}").as_bytes(), Kind::Fifo)?;
    }
    let small = rig.create(ROOT_INO, b"small", Kind::Dir)?;
    let deep = rig.create(small, b"deep", Kind::File)?;
    for i in 0..420 {
        rig.write(deep, i * 2048, &i.to_le_bytes())?;
    }
    rig.preallocate(deep, 1, 1)?;
    for (i, len) in [(0, 30), (1, 500)] {
        let name = format!("link{i}");
        let target = vec![b't'; len];
        let spec = Create {
            parent: small,
            name: name.as_bytes(),
            kind: Kind::Symlink,
            target: &target,
            ..plain(at(1))
        };
        rig.fs.create(&spec)?;
    }
    for (ino, len) in [(deep, 60), (dir, 600), (small, 500)] {
        rig.fs.set_xattr(ino, b"user.some", &vec![b'v'; len], SetXattr::Either, at(2))?;
    }
    Ok(())
}

fn victim(options: &str) -> Victim {
    let mut rig = Rig::new(4096, options);
    fill(&mut rig).expect("room for everything");
    let now = rig.now();
    let frozen = rig.fs.freeze(now, None).expect("a freeze");
    let metadata: BTreeSet<u64> = frozen.transaction.metadata.iter().map(|(block, _)| block.0).collect();
    rig.fs.journal().commit(Time::ZERO, frozen.transaction).expect("a commit");
    rig.fs.committed(frozen.tid);
    rig.close();
    super::rig::fsck(&rig.image);
    let image = std::fs::read(&rig.image).expect("the image");
    let mut found = Vec::new();
    rig.reopen();
    walk(&mut rig.fs, ROOT_INO, 0, &mut found).expect("a sound image");
    let metadata = metadata.into_iter().collect();
    Victim { image, block_bytes: rig.fs.block_bytes() as usize, metadata, sound: found }
}

fn open(image: Vec<u8>, read_only: bool) -> Result<Ext4> {
    Ext4::open(
        Arc::new(Ram::from_bytes("damaged", image)),
        OpenOptions { read_only, now: at(9), ..OpenOptions::default() },
    )
}

/// Everything there is to see, in words.
fn walk(fs: &mut Ext4, ino: Ino, depth: usize, found: &mut Vec<String>) -> Result<()> {
    // Without checksums a name may lead back to a directory above it; Linux finds that out above us.
    if depth > 20 {
        return Ok(());
    }
    let inode = fs.inode(ino)?.clone();
    let (size, kind) = (inode.size, inode.kind());
    found.push(format!("{ino} {kind:?} {:o} {size} {} {:?}", inode.mode, inode.nlink, inode.mtime));
    for name in fs.list_xattrs(ino)? {
        found.push(format!("{name:?} {:?}", fs.get_xattr(ino, &name)?));
    }
    match kind {
        // A long target is the one thing in a metadata block that no checksum covers.
        Kind::Symlink => found.push(format!("{}", fs.readlink(ino)?.len())),
        Kind::File => {
            let mut block = 0;
            while block < size.div_ceil(1024).min(5000) {
                let mapping = fs.map(ino, block, 64)?;
                found.push(format!("{block} {mapping:?}"));
                use bimetal::fs::ext4::Mapping::{Data, Hole, Unwritten};
                let (Data { len, .. } | Hole { len } | Unwritten { len, .. }) = mapping;
                assert!(len > 0);
                block += u64::from(len);
            }
        }
        Kind::Dir => {
            let mut below = Vec::new();
            let mut visit = |entry: bimetal::fs::DirEntry| {
                below.push((entry.ino, entry.name.to_vec()));
                below.len() < 10_000
            };
            fs.readdir(ino, 0, &mut visit)?;
            for (child, name) in below {
                found.push(format!("{child} {name:?} {:?}", fs.lookup(ino, &name)?.map(|(ino, _)| ino)));
                if name != b"." && name != b".." {
                    walk(fs, child, depth + 1, found)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Tries to change everything; errors are welcome.
fn meddle(fs: &mut Ext4) {
    let now = at(20);
    let mut dirs = vec![ROOT_INO];
    let mut names = Vec::new();
    while let Some(dir) = dirs.pop() {
        let mut visit = |entry: bimetal::fs::DirEntry| {
            if entry.name != b"." && entry.name != b".." {
                names.push((dir, entry.name.to_vec(), entry.ino));
                if entry.kind == Kind::Dir && names.len() < 2000 {
                    dirs.push(entry.ino);
                }
            }
            names.len() < 2000
        };
        let _ = fs.readdir(dir, 0, &mut visit);
    }
    for i in 0..5 {
        let name = format!("new{i}");
        for kind in [Kind::File, Kind::Dir] {
            let _ = fs.create(&Create { name: name.as_bytes(), kind, ..plain(now) }).and_then(|ino| {
                fs.place(ino, 3, 5)?;
                fs.set_xattr(ino, b"user.x", &[1; 700], SetXattr::Either, now)
            });
        }
    }
    for (dir, name, ino) in names {
        let _ = fs.place(ino, 1, 7);
        let _ = fs.truncate(ino, 3000, now);
        let _ = fs.rename(dir, &name, ROOT_INO, &name, Rename::Replace, now);
        let removed = fs.unlink(ROOT_INO, &name, now).or_else(|_| fs.rmdir(ROOT_INO, &name, now));
        if let Ok(removed) = removed {
            let _ = fs.release(removed.ino);
        }
    }
    let _ = fs.freeze(now, None);
}

#[test]
fn every_flipped_bit_of_checksummed_metadata_is_found_or_harmless() {
    for (seed, options) in
        ["-t ext4 -b 1024 -J size=1", "-t ext4 -b 1024 -J size=1 -O metadata_csum_seed -I 128"]
            .iter()
            .enumerate()
    {
        let victim = victim(options);
        let mut rng = SmallRng::seed_from_u64(seed as u64);
        let mut errors = 0;
        for trial in 0..2500 {
            let block = victim.metadata[rng.random_range(0..victim.metadata.len())] as usize;
            let bit = rng.random_range(0..8 * victim.block_bytes);
            let mut image = victim.image.clone();
            image[block * victim.block_bytes + bit / 8] ^= 1 << (bit % 8);
            let mut found = Vec::new();
            let walked = open(image, true).and_then(|mut fs| walk(&mut fs, ROOT_INO, 0, &mut found));
            match walked {
                Ok(()) => assert!(found == victim.sound, "trial {trial}, block {block}, bit {bit}"),
                Err(Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Stale | Error::Invalid(_)) => {
                    errors += 1;
                }
                Err(other) => panic!("trial {trial}, block {block}, bit {bit}: {other:?}"),
            }
        }
        assert!(errors > 300, "{options}: only {errors} were found");
    }
}

#[test]
fn no_damage_makes_the_driver_panic_or_run_for_ever() {
    for (seed, options) in [
        "-t ext4 -b 1024 -J size=1 -O ^metadata_csum",
        "-t ext4 -b 1024 -J size=1 -O ^metadata_csum,^64bit -I 128",
        "-t ext4 -b 1024 -J size=1",
    ]
    .iter()
    .enumerate()
    {
        let victim = victim(options);
        let mut rng = SmallRng::seed_from_u64(seed as u64);
        for trial in 0..1500 {
            let mut image = victim.image.clone();
            for _ in 0..rng.random_range(1..4) {
                let block = victim.metadata[rng.random_range(0..victim.metadata.len())] as usize;
                let bytes = &mut image[block * victim.block_bytes..][..victim.block_bytes];
                let from = rng.random_range(0..bytes.len());
                match trial % 4 {
                    0 => bytes[from] ^= 1 << rng.random_range(0..8),
                    1 => bytes[from] = rng.random(),
                    2 => bytes[from..].iter_mut().take(4).for_each(|byte| *byte = 0xFF),
                    _ => bytes[from..].iter_mut().take(100).for_each(|byte| *byte = rng.random()),
                }
            }
            let walked = open(image.clone(), true);
            let _ = walked.and_then(|mut fs| walk(&mut fs, ROOT_INO, 0, &mut Vec::new()));
            if let Ok(mut fs) = open(image, false) {
                meddle(&mut fs);
            }
        }
    }
}

#[test]
fn the_victim_has_every_kind_of_metadata() {
    let mut rig = Rig::new(4096, "-t ext4 -b 1024 -J size=1");
    fill(&mut rig).expect("room");
    rig.commit();
    let names = listing(&mut rig, ROOT_INO);
    let indexed = rig.fs.inode(names[&b"indexed"[..]]).expect("a directory").clone();
    assert!(indexed.size >= 10 * 1024 && indexed.may_have_xattrs());
    let small = listing(&mut rig, names[&b"small"[..]]);
    let deep = rig.fs.inode(small[&b"deep"[..]]).expect("a file").clone();
    assert!(deep.blocks / 2 > 420 + 5, "an index node");
}

/// What the kernel leaves when it aborts a journal whose file system it can no longer mark: the error's number in the
/// journal's superblock alone.
#[test]
fn a_journal_that_its_last_user_aborted_is_refused_until_e2fsck_was_run() {
    let (_dir, path) = super::rig::make(4096, "-t ext4 -b 1024 -J size=1 -O ^metadata_csum");
    let mut image = std::fs::read(&path).expect("the image");
    let magic = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let at_block = (0..image.len()).step_by(1024).find(|at| image[*at..].starts_with(&magic));
    let error = at_block.expect("a journal") + 32;
    image[error..error + 4].copy_from_slice(&(-5_i32).to_be_bytes());
    std::fs::write(&path, &image).expect("written");
    for read_only in [true, false] {
        let refused = open(image.clone(), read_only).err().expect("refused").to_string();
        assert!(refused.contains("run e2fsck"), "{refused}");
    }
    assert!(Ext4::look(&(Arc::new(Ram::from_bytes("aborted", image)) as _)).is_err());
    let said = std::process::Command::new("e2fsck").arg("-fy").arg(&path).output().expect("e2fsck");
    assert!(said.status.code().is_some_and(|code| code & !1 == 0), "{said:?}");
    open(std::fs::read(&path).expect("the image"), false).expect("a file system that was checked");
}
