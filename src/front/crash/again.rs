//! Going on with what was recovered: some work, drawn from a seed, that is recorded and cut like the first.

use super::calls::is_file;
use super::snapshot::Snapshot;
use crate::fs::{Caller, Deferred, FileSystem, Kind, NewNode, Rename, SetAttr, resolve_bytes};
use crate::random::Random;
use crate::units::Ino;
use crate::{Error, Result};

/// Steps of the work.
const STEPS: u64 = 14;
/// The longest write, bytes.
const WRITE: u64 = 40_000;

/// Works on a file system that holds `start`.
pub fn work(fs: &dyn FileSystem, start: &Snapshot, seed: u64) -> Result<()> {
    let mut random = Random::new(seed, "again");
    let pick = |random: &mut Random, file: bool| {
        let of_kind = |mode: u32| if file { is_file(mode) } else { mode & libc::S_IFMT == libc::S_IFDIR };
        let found: Vec<&Vec<u8>> =
            start.objects.iter().filter(|(_, seen)| of_kind(seen.shape.mode)).map(|(path, _)| path).collect();
        found.get(random.below(found.len() as u64) as usize).map(|path| path.to_vec())
    };
    let dir = resolve_bytes(fs, &pick(&mut random, false).unwrap_or_default())?.ino;
    let mut made = Vec::new();
    for step in 0..STEPS {
        let done = match random.below(8) {
            0..3 => {
                replace(fs, dir, &mut random, &format!("again-{seed}-{step}")).map(|name| made.push(name))
            }
            3..5 => match pick(&mut random, true) {
                Some(path) => overwrite(fs, &path, &mut random),
                None => Ok(()),
            },
            5 => match made.pop() {
                Some(name) => fs.unlink(dir, &name),
                None => Ok(()),
            },
            6 => fs.fsync(dir, false).and_then(Deferred::get),
            _ => fs.sync(),
        };
        match done {
            // A volume that was full before the cut is full after it.
            Err(Error::NoSpace(_)) => {}
            done => done?,
        }
    }
    Ok(())
}

fn bytes(random: &mut Random) -> Vec<u8> {
    let seed = random.next() as u8;
    (0..1 + random.below(WRITE)).map(|at| seed.wrapping_add((at / 61) as u8) | 1).collect()
}

/// A file written, made durable and renamed to its name, as the careful do.
fn replace(fs: &dyn FileSystem, dir: Ino, random: &mut Random, name: &str) -> Result<Vec<u8>> {
    let temporary = format!("{name}.new");
    clear(fs, dir, &temporary)?;
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
    let ino = fs.create(&Caller::default(), dir, temporary.as_bytes(), &node)?.ino;
    let written = fs.write(ino, 0, &bytes(random), false)?.get();
    let synced = written.and_then(|_| fs.fsync(ino, false)?.get());
    fs.forget(ino, 1);
    synced?;
    fs.rename(dir, temporary.as_bytes(), dir, name.as_bytes(), Rename::Replace)?;
    Ok(name.as_bytes().to_vec())
}

/// What the same work left behind before it was cut.
fn clear(fs: &dyn FileSystem, dir: Ino, name: &str) -> Result<()> {
    match fs.unlink(dir, name.as_bytes()) {
        Err(Error::NotFound) => Ok(()),
        done => done,
    }
}

/// A part of a file overwritten, or the file cut; durable or not.
fn overwrite(fs: &dyn FileSystem, path: &[u8], random: &mut Random) -> Result<()> {
    let Ok(attr) = resolve_bytes(fs, path) else { return Ok(()) };
    if random.chance(0.3) {
        let size = Some(random.below(attr.size + 1));
        fs.setattr(attr.ino, &SetAttr { size, ..SetAttr::default() })?;
    } else {
        fs.write(attr.ino, random.below(attr.size + 1), &bytes(random), false)?.get()?;
    }
    if random.chance(0.7) {
        fs.fsync(attr.ino, random.chance(0.5))?.get()?;
    }
    Ok(())
}
