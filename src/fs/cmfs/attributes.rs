//! Attributes between the core and the stack: kinds, times, modes and the access control lists that go with them.

use super::error;
use crate::Result;
use crate::fs::acl::{self, Acl, Inherited};
use crate::fs::{Attr, Kind, NewNode};
use crate::time::Stamp;
use crate::units::Ino;
use cmfs_core::{Fs, Nand, Nvram, SetAttr, Time};

const S_IFMT: u32 = 0o170_000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// The type bits of a mode.
fn type_bits(kind: Kind) -> u32 {
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

/// What a write by someone without privilege does to set-ID bits.
pub(super) fn without_set_id(mode: u32) -> u32 {
    if mode & S_IFMT == type_bits(Kind::Dir) {
        return mode;
    }
    let mode = mode & !S_ISUID;
    if mode & GROUP_EXECUTES != 0 { mode & !S_ISGID } else { mode }
}

/// How a new object begins: mode with type, group, and lists to set.
pub(super) struct Shape {
    pub mode: u32,
    pub gid: u32,
    pub lists: Vec<(&'static [u8], Vec<u8>)>,
}

/// The shape of a new object by its directory: set-group-ID and default access control list.
pub(super) fn shape<N: Nand, V: Nvram>(
    fs: &mut Fs<N, V>,
    caller: &crate::fs::Caller,
    dir: u32,
    new: &NewNode,
) -> Result<Shape> {
    let parent = fs.attr(dir).map_err(error)?;
    let inherits = parent.mode & S_ISGID != 0;
    let mut shape = Shape {
        mode: u32::from(new.perm),
        gid: if inherits { parent.gid } else { caller.gid },
        lists: Vec::new(),
    };
    if new.kind != Kind::Symlink {
        let default = fs.attribute(dir, acl::DEFAULT).ok();
        match default.as_deref().and_then(|value| Acl::from_wire(value).ok().flatten()) {
            None => shape.mode &= !(caller.umask & 0o777),
            Some(list) => {
                let Inherited { perm, access, default } = list.inherit(new.perm, new.kind == Kind::Dir);
                shape.mode = u32::from(perm);
                shape.lists.extend(access.map(|list| (acl::ACCESS, list.to_wire())));
                shape.lists.extend(default.map(|list| (acl::DEFAULT, list.to_wire())));
            }
        }
    }
    if inherits && new.kind == Kind::Dir {
        shape.mode |= S_ISGID;
    }
    shape.mode |= type_bits(new.kind);
    Ok(shape)
}

/// Sets permission bits, and the access list with them.
pub(super) fn chmod<N: Nand, V: Nvram>(fs: &mut Fs<N, V>, id: u32, perm: u32) -> Result<()> {
    let list = fs.attribute(id, acl::ACCESS).ok();
    if let Some(Ok(Some(list))) = list.map(|value| Acl::from_wire(&value)) {
        let list = list.with_mode(perm as u16);
        fs.set_attribute(id, acl::ACCESS, Some(&list.to_wire())).map_err(error)?;
    }
    fs.set_attr(id, &SetAttr { perm: Some(perm), ..SetAttr::default() }).map_err(error)
}

/// Sets an access list, and the mode with it; one that says no more than the mode is not kept. None at all leaves
/// the mode.
pub(super) fn set_access<N: Nand, V: Nvram>(
    fs: &mut Fs<N, V>,
    id: u32,
    list: Option<Acl>,
    kill_sgid: bool,
) -> Result<()> {
    let old = (fs.attr(id).map_err(error)?.mode & 0o7777) as u16;
    let (perm, kept) = list.map_or((old, None), |list| list.set_on(old));
    set_list(fs, id, acl::ACCESS, kept.as_ref())?;
    let killed = if kill_sgid { S_ISGID } else { 0 };
    let perm = u32::from(perm) & !killed;
    fs.set_attr(id, &SetAttr { perm: Some(perm), ..SetAttr::default() }).map_err(error)
}

/// Sets a list, or takes the one away that is there.
pub(super) fn set_list<N: Nand, V: Nvram>(
    fs: &mut Fs<N, V>,
    id: u32,
    name: &[u8],
    list: Option<&Acl>,
) -> Result<()> {
    match list {
        Some(list) => fs.set_attribute(id, name, Some(&list.to_wire())).map_err(error),
        None if fs.attribute(id, name).is_ok() => fs.set_attribute(id, name, None).map_err(error),
        None => Ok(()),
    }
}
