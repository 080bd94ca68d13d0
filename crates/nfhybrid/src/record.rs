//! The operations as the SSD's log carries them.
//!
//! Every change of the namespace or of attributes is one record; file contents travel in [`Record::Data`]
//! records, written when an fsync asks for them. A record says all that is needed to run the operation again
//! on a disk half that has every earlier one: numbers of new inodes, times, final modes.
//!
//! On the medium a record is its Postcard encoding (a published format: variants as varint tags in the order
//! below, integers as varints, byte strings with a varint length), preceded by nothing; the log frames it with
//! its operation number, length and checksum. [`Record::Remove`] and [`Record::Rename`] are followed by the inodes
//! whose names they take: `was`, or the two of `were`, encoded by themselves. Logs of earlier versions do not have that.
//! Adding a variant at the end is compatible; anything else raises the format version of the SSD's superblock.

use bimetal_base::time::Stamp;
use bimetal_base::{Error, Result};
use bimetal_vfs::{Fallocate, Kind, Rename};
use serde::{Deserialize, Serialize};

/// What errors call a record that makes no sense.
pub const LOG_RECORD: &str = "log record";

/// A time stamp as seconds and nanoseconds.
pub type When = (i64, u32);

/// [`Stamp`] to its logged form.
pub fn when(stamp: Stamp) -> When {
    (stamp.sec, stamp.nsec)
}

/// The logged form back to a [`Stamp`].
pub fn stamp(when: When) -> Stamp {
    Stamp { sec: when.0, nsec: when.1 }
}

/// An inode, and its generation.
pub type Whose = (u64, u32);

/// One logged operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record<'a> {
    /// A new inode under a name.
    Create {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
        /// The number it got.
        ino: u64,
        /// The generation it got.
        generation: u32,
        /// [`kind_code`].
        kind: u8,
        /// Final permission bits.
        perm: u16,
        /// Owner and group.
        owner: (u32, u32),
        /// Device number.
        rdev: u32,
        /// Target of a symbolic link.
        #[serde(with = "serde_bytes")]
        target: &'a [u8],
        /// When.
        at: When,
    },
    /// Another name of an inode.
    Link {
        /// The inode.
        ino: u64,
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// When.
        at: When,
    },
    /// A name removed; `dir` says the thing was a directory.
    Remove {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// It was a directory.
        dir: bool,
        /// When.
        at: When,
        /// Whose name it was; older logs do not say.
        #[serde(skip)]
        was: Option<Whose>,
    },
    /// A name moved.
    Rename {
        /// Old directory.
        from: u64,
        /// Old name.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// New directory.
        to: u64,
        /// New name.
        #[serde(with = "serde_bytes")]
        new_name: &'a [u8],
        /// [`rename_code`].
        how: u8,
        /// When.
        at: When,
        /// Whose the old name was, and the new one, if it was one; older logs do not say.
        #[serde(skip)]
        were: Option<(Whose, Option<Whose>)>,
    },
    /// An inode without names freed.
    Release {
        /// The inode.
        ino: u64,
    },
    /// Attributes as they are now (absolute, so that one record serves any change of them).
    Attributes {
        /// The inode.
        ino: u64,
        /// Permission bits.
        perm: u16,
        /// Owner and group.
        owner: (u32, u32),
        /// Last access.
        atime: When,
        /// Last change of contents.
        mtime: When,
        /// Last change of the inode.
        ctime: When,
    },
    /// A new size.
    Truncate {
        /// The inode.
        ino: u64,
        /// The size in bytes.
        size: u64,
        /// The size before, which the medium need not have known: data goes there with fsync or a commit only.
        old: u64,
        /// When.
        at: When,
    },
    /// An extended attribute set (or removed: no value).
    Xattr {
        /// The inode.
        ino: u64,
        /// Full name.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Value; `None` removes.
        #[serde(with = "serde_bytes")]
        value: Option<&'a [u8]>,
        /// Permission bits after it (an access ACL changes them).
        perm: u16,
        /// When.
        at: When,
    },
    /// A range reserved, punched or zeroed.
    Fallocate {
        /// The inode.
        ino: u64,
        /// [`fallocate_code`].
        what: u8,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Size of the file after it.
        size: u64,
        /// When.
        at: When,
    },
    /// File contents.
    Data {
        /// The inode.
        ino: u64,
        /// First byte.
        offset: u64,
        /// The contents.
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// Size, times and permission bits of a file whose contents were made durable.
    Contents {
        /// The inode.
        ino: u64,
        /// Its generation.
        generation: u32,
        /// The size in bytes.
        size: u64,
        /// Permission bits (a write clears set-ID bits).
        perm: u16,
        /// Last change of contents.
        mtime: When,
        /// Last change of the inode.
        ctime: When,
    },
    /// The flags that `chattr` sets, as they are now.
    Flags {
        /// The inode.
        ino: u64,
        /// Those of [`SETTABLE`](crate::fixed::SETTABLE) that it has.
        flags: u32,
        /// When.
        at: When,
    },
}

impl<'a> Record<'a> {
    /// What the operation does, for people.
    pub fn in_words(&self) -> String {
        let name = |name: &[u8]| format!("'{}'", String::from_utf8_lossy(name).escape_debug());
        match self {
            Record::Create { parent, name: new, ino, .. } => {
                format!("making {} in directory {parent} as inode {ino}", name(new))
            }
            Record::Link { ino, parent, name: new, .. } => {
                format!("linking inode {ino} as {} in directory {parent}", name(new))
            }
            Record::Remove { parent, name: old, .. } => {
                format!("removing {} from directory {parent}", name(old))
            }
            Record::Rename { from, name: old, to, new_name, .. } => {
                format!("renaming {} of directory {from} to {} of {to}", name(old), name(new_name))
            }
            Record::Release { ino } => format!("freeing inode {ino}"),
            Record::Attributes { ino, .. } => format!("setting attributes of inode {ino}"),
            Record::Truncate { ino, size, .. } => format!("setting the size of inode {ino} to {size}"),
            Record::Xattr { ino, name: attribute, .. } => {
                format!("setting attribute {} of inode {ino}", name(attribute))
            }
            Record::Flags { ino, .. } => format!("setting flags of inode {ino}"),
            Record::Fallocate { ino, offset, len, .. } => {
                format!("allocating or punching {len} bytes at {offset} of inode {ino}")
            }
            Record::Data { ino, offset, bytes } => {
                format!("writing {} bytes at {offset} of inode {ino}", bytes.len())
            }
            Record::Contents { ino, size, .. } => format!("ending a write of inode {ino}, {size} bytes long"),
        }
    }

    /// When the operation was done, in seconds, where it says that.
    pub fn changed(&self) -> Option<i64> {
        match *self {
            Record::Create { at, .. }
            | Record::Link { at, .. }
            | Record::Remove { at, .. }
            | Record::Rename { at, .. }
            | Record::Truncate { at, .. }
            | Record::Xattr { at, .. }
            | Record::Flags { at, .. }
            | Record::Fallocate { at, .. }
            | Record::Attributes { ctime: at, .. }
            | Record::Contents { ctime: at, .. } => Some(at.0),
            Record::Release { .. } | Record::Data { .. } => None,
        }
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        append(self, out);
        match self {
            Record::Remove { was: Some(was), .. } => append(was, out),
            Record::Rename { were: Some(were), .. } => append(were, out),
            _ => {}
        }
    }

    /// Reads one encoded record; `op` names it in the error.
    pub fn decode(bytes: &'a [u8], op: u64) -> Result<Record<'a>> {
        let bad = |why: String| Error::corrupt(LOG_RECORD, why, format!("operation {op}"));
        let (mut record, rest) = take(bytes).map_err(|error| bad(error.to_string()))?;
        let rest = match &mut record {
            Record::Remove { was, .. } => take_last(rest, was),
            Record::Rename { were, .. } => take_last(rest, were),
            _ => Ok(rest),
        };
        match rest.map_err(|error| bad(error.to_string()))? {
            [] => Ok(record),
            rest => Err(bad(format!("{} bytes too many", rest.len()))),
        }
    }
}

fn append<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    let start = std::mem::take(out);
    *out = postcard::to_extend(value, start).expect("encoding to memory cannot fail");
}

fn take<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> postcard::Result<(T, &'a [u8])> {
    postcard::take_from_bytes(bytes)
}

/// Reads what may follow a record, and returns what is left.
fn take_last<'a, T: Deserialize<'a>>(bytes: &'a [u8], last: &mut Option<T>) -> postcard::Result<&'a [u8]> {
    if bytes.is_empty() {
        return Ok(bytes);
    }
    let (value, rest) = take(bytes)?;
    *last = Some(value);
    Ok(rest)
}

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Dir, Kind::Symlink, Kind::CharDevice, Kind::BlockDevice, Kind::Fifo, Kind::Socket];

/// A kind's number in the log: its place in the declaration of [`Kind`], from 0.
pub fn kind_code(kind: Kind) -> u8 {
    KINDS.iter().position(|&one| one == kind).expect("every kind has a code") as u8
}

/// The kind of a number in the log.
pub fn kind_of(code: u8, op: u64) -> Result<Kind> {
    KINDS.get(usize::from(code)).copied().ok_or_else(|| bad_code("file kind", code, op))
}

const RENAMES: [Rename; 4] = [Rename::Replace, Rename::NoReplace, Rename::Exchange, Rename::Whiteout];

/// A rename mode's number in the log.
pub fn rename_code(how: Rename) -> u8 {
    RENAMES.iter().position(|&one| one == how).expect("every rename mode has a code") as u8
}

/// The rename mode of a number in the log.
pub fn rename_of(code: u8, op: u64) -> Result<Rename> {
    RENAMES.get(usize::from(code)).copied().ok_or_else(|| bad_code("rename mode", code, op))
}

const FALLOCATES: [Fallocate; 5] = [
    Fallocate::Reserve { keep_size: false },
    Fallocate::Reserve { keep_size: true },
    Fallocate::Punch,
    Fallocate::Zero { keep_size: false },
    Fallocate::Zero { keep_size: true },
];

/// A fallocate mode's number in the log.
pub fn fallocate_code(what: Fallocate) -> u8 {
    FALLOCATES.iter().position(|&one| one == what).expect("every mode has a code") as u8
}

/// The fallocate mode of a number in the log.
pub fn fallocate_of(code: u8, op: u64) -> Result<Fallocate> {
    FALLOCATES.get(usize::from(code)).copied().ok_or_else(|| bad_code("fallocate mode", code, op))
}

fn bad_code(what: &str, code: u8, op: u64) -> Error {
    Error::corrupt(LOG_RECORD, format!("{what} {code} is unknown"), format!("operation {op}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Record<'static>> {
        vec![
            Record::Create {
                parent: 2,
                name: b"a",
                ino: 12,
                generation: 9,
                kind: 0,
                perm: 0o644,
                owner: (1, 2),
                rdev: 0,
                target: b"",
                at: (-1, 999_999_999),
            },
            Record::Xattr { ino: 12, name: b"user.k", value: None, perm: 0o600, at: (1, 2) },
            Record::Data { ino: 12, offset: 4096, bytes: b"contents" },
            Record::Flags { ino: 12, flags: 0x30, at: (7, 8) },
        ]
    }

    fn taking_names() -> Vec<Record<'static>> {
        let renamed = |replaced| Record::Rename {
            from: 2,
            name: b"a",
            to: 3,
            new_name: b"b",
            how: 0,
            at: (5, 6),
            were: Some(((12, 9), replaced)),
        };
        vec![
            Record::Remove { parent: 2, name: b"a", dir: false, at: (3, 4), was: Some((12, 9)) },
            renamed(None),
            renamed(Some((13, 700_000))),
        ]
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for record in samples().into_iter().chain(taking_names()) {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert_eq!(Record::decode(&bytes, 1).unwrap(), record);
        }
    }

    #[test]
    fn cut_or_padded_records_are_refused() {
        for record in samples() {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            for cut in 0..bytes.len() {
                assert!(Record::decode(&bytes[..cut], 1).is_err());
            }
            bytes.push(0);
            assert!(Record::decode(&bytes, 1).is_err());
        }
    }

    /// What earlier versions wrote ends where what later ones add begins.
    #[test]
    fn removals_and_renames_that_do_not_say_of_which_inodes_are_read() {
        let removed = [2, 2, 1, b'a', 0, 6, 4];
        let read = Record::decode(&removed, 1).unwrap();
        assert_eq!(read, Record::Remove { parent: 2, name: b"a", dir: false, at: (3, 4), was: None });
        let renamed = [3, 2, 1, b'a', 3, 1, b'b', 0, 10, 6];
        assert!(matches!(
            Record::decode(&renamed, 1).unwrap(),
            Record::Rename { at: (5, 6), were: None, .. }
        ));
        for (record, old) in taking_names().iter().zip([removed.len(), renamed.len(), renamed.len()]) {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            bytes.push(0);
            for cut in 0..=bytes.len() {
                let reads = Record::decode(&bytes[..cut], 1).is_ok();
                assert_eq!(reads, cut == old || cut == bytes.len() - 1, "{cut} bytes of {record:?}");
            }
        }
    }

    #[test]
    fn codes_go_both_ways() {
        for kind in KINDS {
            assert_eq!(kind_of(kind_code(kind), 0).unwrap(), kind);
        }
        for how in RENAMES {
            assert_eq!(rename_of(rename_code(how), 0).unwrap(), how);
        }
        for what in FALLOCATES {
            assert_eq!(fallocate_of(fallocate_code(what), 0).unwrap(), what);
        }
        assert!(kind_of(7, 0).is_err() && rename_of(9, 0).is_err() && fallocate_of(200, 0).is_err());
    }
}
