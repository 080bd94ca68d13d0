//! Attributes, kinds, times and flags between our types and the protocol's.

use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::{Attr, Fallocate, Kind, Rename, SetTime};
use fuser::{FileAttr, FileType, INodeNo, RenameFlags, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The root's number in the protocol, whatever its inode number.
const ROOT_NODE: u64 = 1;

/// Node numbers of the protocol are inode numbers, except that the root's is 1: the two are swapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeIds {
    root: u64,
}

impl NodeIds {
    pub fn new(root: Ino) -> Self {
        NodeIds { root: root.0 }
    }

    fn swap(self, number: u64) -> u64 {
        match number {
            ROOT_NODE => self.root,
            number if number == self.root => ROOT_NODE,
            number => number,
        }
    }

    pub fn ino(self, node: INodeNo) -> Ino {
        Ino(self.swap(node.0))
    }

    pub fn node(self, ino: Ino) -> INodeNo {
        INodeNo(self.swap(ino.0))
    }

    pub fn attr(self, attr: &Attr) -> FileAttr {
        FileAttr {
            ino: self.node(attr.ino),
            size: attr.size,
            blocks: attr.blocks,
            atime: system_time(attr.atime),
            mtime: system_time(attr.mtime),
            ctime: system_time(attr.ctime),
            crtime: UNIX_EPOCH,
            kind: file_type(attr.kind),
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: 0,
        }
    }

    /// What stands for `.` and `..` in a listing with attributes: the kernel looks at number and kind only.
    pub fn dots_attr(self, ino: Ino) -> FileAttr {
        blank_attr(self.node(ino), FileType::Directory)
    }
}

/// Node 0: the answer "no such name" that the kernel may remember.
pub(super) fn no_such_name() -> FileAttr {
    blank_attr(INodeNo(0), FileType::RegularFile)
}

fn blank_attr(ino: INodeNo, kind: FileType) -> FileAttr {
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The protocol's name of a kind.
pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
    }
}

/// The kind that the type bits of a mode (`S_IFMT`) say.
pub(super) fn kind_of_mode(mode: u32) -> Option<Kind> {
    Some(match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => Kind::File,
        libc::S_IFDIR => Kind::Dir,
        libc::S_IFLNK => Kind::Symlink,
        libc::S_IFCHR => Kind::CharDevice,
        libc::S_IFBLK => Kind::BlockDevice,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        _ => return None,
    })
}

fn system_time(stamp: Stamp) -> SystemTime {
    let whole = Duration::from_secs(stamp.sec.unsigned_abs());
    let below = Duration::from_nanos(u64::from(stamp.nsec));
    let time = if stamp.sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    time.and_then(|time| time.checked_add(below)).unwrap_or(UNIX_EPOCH)
}

/// A time of a request. fuser turns seconds and nanoseconds before 1970 into `-(seconds + nanoseconds)`
/// (its `system_time_from_time`), so that is what is taken apart here.
pub(super) fn stamp(time: SystemTime) -> Stamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => {
            Stamp { sec: after.as_secs().try_into().unwrap_or(i64::MAX), nsec: after.subsec_nanos() }
        }
        Err(before) => {
            let before = before.duration();
            Stamp { sec: 0i64.saturating_sub_unsigned(before.as_secs()), nsec: before.subsec_nanos() }
        }
    }
}

/// A time to set.
pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(stamp(time)),
    }
}

/// The permission bits of a mode, with set-ID and sticky bits.
pub(super) fn perm(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// What the mode of fallocate(2) asks for.
pub(super) fn fallocate_mode(mode: i32) -> Result<Fallocate> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(Fallocate::Reserve { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(Fallocate::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Fallocate::Zero { keep_size }),
        _ => Err(Error::NotSupported),
    }
}

/// What the flags of renameat2(2) ask for.
pub(super) fn rename_how(flags: RenameFlags) -> Result<Rename> {
    match flags {
        RenameFlags::RENAME_NOREPLACE => Ok(Rename::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Ok(Rename::Exchange),
        RenameFlags::RENAME_WHITEOUT => Ok(Rename::Whiteout),
        none if none.is_empty() => Ok(Rename::Replace),
        _ => Err(Error::BadArgument),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_node_one_and_every_other_number_stays() {
        let ids = NodeIds::new(Ino(2));
        assert_eq!((ids.ino(INodeNo(1)), ids.node(Ino(2))), (Ino(2), INodeNo(1)));
        for number in [1, 2, 3, 11, 1 << 40] {
            assert_eq!(ids.ino(ids.node(Ino(number))), Ino(number));
        }
    }

    #[test]
    fn times_survive_both_ways_also_before_1970() {
        let given = |sec: i64, nsec: u32| {
            // As fuser 0.18 builds it from a request.
            if sec >= 0 {
                UNIX_EPOCH + Duration::new(sec as u64, nsec)
            } else {
                UNIX_EPOCH - Duration::new(sec.unsigned_abs(), nsec)
            }
        };
        for (sec, nsec) in [(0, 0), (5, 7), (-1, 0), (-2, 800_000_000), (-100, 1)] {
            assert_eq!(stamp(given(sec, nsec)), Stamp { sec, nsec });
        }
        assert_eq!(
            system_time(Stamp { sec: -2, nsec: 800_000_000 }),
            UNIX_EPOCH - Duration::from_millis(1200)
        );
    }
}
