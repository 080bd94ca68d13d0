//! Attributes between the core and the stack: kinds, times and modes.

use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_vfs::{Attr, Kind};
use cmfs_core::Time;

const S_IFMT: u32 = 0o170_000;

/// The type bits of a mode.
pub(super) fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::Fifo => 0o010_000,
        Kind::CharDevice => 0o020_000,
        Kind::Dir => 0o040_000,
        Kind::BlockDevice => 0o060_000,
        Kind::File => 0o100_000,
        Kind::Symlink => 0o120_000,
        Kind::Socket => 0o140_000,
    }
}

fn special(mode: u32) -> Kind {
    match mode & S_IFMT {
        0o020_000 => Kind::CharDevice,
        0o060_000 => Kind::BlockDevice,
        0o140_000 => Kind::Socket,
        _ => Kind::Fifo,
    }
}

/// What the stack calls an object of the core.
pub(super) fn kind(kind: cmfs_core::Kind, mode: u32) -> Kind {
    match kind {
        cmfs_core::Kind::Dir => Kind::Dir,
        cmfs_core::Kind::Symlink => Kind::Symlink,
        cmfs_core::Kind::Special => special(mode),
        _ => Kind::File,
    }
}

/// What the core calls an object of the stack.
pub(super) fn core_kind(kind: Kind) -> cmfs_core::Kind {
    match kind {
        Kind::File => cmfs_core::Kind::File,
        Kind::Dir => cmfs_core::Kind::Dir,
        Kind::Symlink => cmfs_core::Kind::Symlink,
        _ => cmfs_core::Kind::Special,
    }
}

pub(super) fn time(stamp: Stamp) -> Time {
    Time { sec: stamp.sec, nsec: stamp.nsec }
}

fn stamp(time: Time) -> Stamp {
    Stamp { sec: time.sec, nsec: time.nsec }
}

/// The attributes of an object as the stack has them.
pub(super) fn attr(from: &cmfs_core::Attr, page_bytes: u32) -> Attr {
    let kind = kind(from.kind, from.mode);
    let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
    Attr {
        ino: Ino(u64::from(from.id)),
        // Two uses of a number are never of one instant.
        generation: (from.crtime.sec as u32).rotate_left(8) ^ from.crtime.nsec,
        size: from.size,
        blocks: from.pages * u64::from(page_bytes) / 512,
        atime: stamp(from.atime),
        mtime: stamp(from.mtime),
        ctime: stamp(from.ctime),
        crtime: stamp(from.crtime),
        kind,
        perm: (from.mode & 0o7777) as u16,
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        rdev: if is_device { from.rdev } else { 0 },
        blksize: page_bytes,
    }
}
