//! Whole trees in and out of a file system that is not mounted, with all that belongs to a file: mode, owner,
//! times, hard links, extended attributes and access control lists, holes, special files.

mod get;
mod host;
mod made;
mod put;
#[cfg(test)]
mod tests;
mod way;

pub use get::{Getter, get};
pub use put::{Putter, own_part, put, put_stream};

use crate::fs::{Attr, FileSystem, resolve_bytes};
use crate::units::Ino;
use crate::{Error, Result};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The attributes that are access control lists. A directory's default one becomes the list of what is made in it.
const ACCESS_LISTS: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];

/// What one read or write moves at most, bytes.
const PIECE: u64 = 1 << 20;

/// Hears of each file as it is copied.
pub trait Watch {
    /// A file, directory or other object comes next.
    fn next(&mut self, path: &Path);
    /// So many bytes of contents went over.
    fn moved(&mut self, bytes: u64);
    /// This one could not be copied; the rest goes on.
    fn failed(&mut self, path: &Path, why: &Error);
    /// This one was copied, but not all that belongs to it.
    fn incomplete(&mut self, path: &Path, what: &Error) {
        self.failed(path, what);
    }
    /// This one was left out, because no more is to be copied.
    fn left_out(&mut self) {}
    /// Whether no more is to be copied; what is not whole by now is taken back.
    fn is_over(&self) -> bool {
        false
    }
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Files, directories and everything else with a name.
    pub objects: u64,
    /// Bytes of contents, without holes.
    pub bytes: u64,
    /// Objects that could not be copied, or not with all that belongs to them.
    pub failed: u64,
}

/// Something that belongs to a file or directory and could not be copied.
struct Lacks {
    what: String,
    why: Error,
}

impl Lacks {
    fn of(what: impl Into<String>) -> impl FnOnce(Error) -> Lacks {
        move |why| Lacks { what: what.into(), why }
    }

    /// It is there without that.
    fn copied(self) -> Error {
        Error::invalid(format!("copied, but not its {}: {}", self.what, self.why))
    }
}

/// Whether what was copied is there with all that belongs to it, or what it lacks.
type Whole = std::result::Result<(), Lacks>;

/// Splits an absolute path of a file system into its directory, which must exist, and the last name.
pub fn split(fs: &dyn FileSystem, path: impl AsRef<OsStr>) -> Result<(Ino, Vec<u8>)> {
    let path = path.as_ref();
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let begin = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (dir, name) = (&bytes[..begin], &bytes[begin..end]);
    if matches!(name, b"" | b"." | b"..") {
        return Err(Error::invalid(format!("'{}' has no name at its end", path.display())));
    }
    let above = resolve_bytes(fs, dir).map_err(|why| at(OsStr::from_bytes(dir).display(), why))?;
    Ok((above.ino, name.to_vec()))
}

/// Adds the path to an error that has none.
pub fn at(path: impl std::fmt::Display, why: Error) -> Error {
    Error::Invalid(named(&path.to_string(), &why))
}

/// An error with the path that it is about, which it may begin with already.
pub fn named(path: &str, why: &Error) -> String {
    let why = why.to_string();
    let has_it = why.strip_prefix(path).is_some_and(|rest| rest.starts_with([' ', ':']));
    if has_it && !path.is_empty() { why } else { format!("{path}: {why}") }
}

/// The attributes of a name, if it is there, without a reference.
fn look(fs: &dyn FileSystem, parent: Ino, name: &[u8]) -> Result<Option<Attr>> {
    match fs.lookup(parent, name) {
        Ok(attr) => {
            fs.forget(attr.ino, 1);
            Ok(Some(attr))
        }
        Err(Error::NotFound) => Ok(None),
        Err(why) => Err(why),
    }
}
