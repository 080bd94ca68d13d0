//! One error type for the whole stack: a few variants with fields.
//!
//! A bug in bimetal asserts; everything a user, a file or a device can do to us is an [`Error`]. The
//! number a system call returns (`errno`) is chosen only at the front end.

use std::fmt::Display;
use std::io;

/// The result of everything that can fail for a reason outside the program.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the thing and the place.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device or file refused a request.
    #[error("{what}: {source}")]
    Io {
        /// The device or file and what was asked of it.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A device is gone: it answers nothing any more.
    #[error("{device}: the device is gone")]
    Gone {
        /// The device's name.
        device: String,
    },
    /// Something read from a medium is not what its format says.
    #[error("{what} is corrupt: {why} (at {at})")]
    Corrupt {
        /// The structure, in the words of the format page.
        what: String,
        /// What is wrong with it.
        why: String,
        /// Where: device, offset, block, inode.
        at: String,
    },
    /// What the SSD half of a volume answered; the disk half has no part in it.
    #[error("the SSD half failed: {0}")]
    Ssd(Box<Error>),
    /// A valid thing that we do not drive, by name.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// The feature, option or format.
        what: String,
        /// The reason and, where there is one, the remedy.
        why: String,
    },
    /// Something a user gave makes no sense; the text names the thing and the remedy.
    #[error("{0}")]
    Invalid(String),
    /// Somebody else uses a file or device; the text names who, and how to end it.
    #[error("{0}")]
    InUse(String),
    /// Two things that do not belong together (an SSD and a disk, a log and its image).
    #[error("{0}")]
    Mismatch(String),
    /// No space (or no inode) left.
    #[error("no space left: {0}")]
    NoSpace(&'static str),
    /// No such file or directory.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDir,
    /// A directory cannot be used so.
    #[error("is a directory")]
    IsDir,
    /// The directory holds entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A name is longer than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// An inode has as many names as it can have.
    #[error("too many links")]
    TooManyLinks,
    /// Not permitted, whoever asks.
    #[error("operation not permitted")]
    NotPermitted,
    /// The caller may not.
    #[error("permission denied")]
    Denied,
    /// Mounted, or made, read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// A file grew past what the format holds.
    #[error("file too large")]
    TooLarge,
    /// An argument of a system call is out of range.
    #[error("invalid argument")]
    BadArgument,
    /// The extended attribute is not there.
    #[error("no such attribute")]
    NoAttribute,
    /// The answer is longer than the space the caller gave.
    #[error("result too large for the buffer")]
    Range,
    /// The operation is not one this file system has.
    #[error("operation not supported")]
    NotSupported,
    /// `lseek` past the last data or hole.
    #[error("no such offset")]
    NoOffset,
    /// An inode number that means nothing any more.
    #[error("stale file handle")]
    Stale,
}

impl Error {
    /// An I/O error with the thing it happened to.
    pub fn io(what: impl Display, source: io::Error) -> Self {
        Error::Io { what: what.to_string(), source }
    }

    /// A corrupt structure: what it is, why we think so, and where it lies.
    pub fn corrupt(what: impl Display, why: impl Display, at: impl Display) -> Self {
        Error::Corrupt { what: what.to_string(), why: why.to_string(), at: at.to_string() }
    }

    /// Something valid that we do not drive, with the reason or remedy.
    pub fn unsupported(what: impl Display, why: impl Display) -> Self {
        Error::Unsupported { what: what.to_string(), why: why.to_string() }
    }

    /// The same error, as one of a volume's SSD half.
    pub fn of_ssd(error: Error) -> Self {
        match error {
            marked @ Error::Ssd(_) => marked,
            other => Error::Ssd(Box::new(other)),
        }
    }

    /// The same error with what follows from it, and the remedy, in front.
    pub fn explained(self, text: impl Display) -> Self {
        match self {
            Error::Io { what, source } => Error::Io { what: format!("{text}: {what}"), source },
            Error::Ssd(inner) => Error::Ssd(Box::new(inner.explained(text))),
            Error::Corrupt { what, why, at } => Error::Corrupt { what: format!("{text}: {what}"), why, at },
            Error::Gone { device } => Error::Gone { device: format!("{text}: {device}") },
            Error::Mismatch(why) => Error::Mismatch(format!("{text}: {why}")),
            other => Error::Invalid(format!("{text}: {other}")),
        }
    }

    /// A senseless request, in words.
    pub fn invalid(text: impl Display) -> Self {
        Error::Invalid(text.to_string())
    }
}

/// Whether a terminal would act on a character: control characters, separators of lines, and what turns the direction of writing.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name or path for a message: what is not UTF-8 replaced, what a terminal would [act on](acts) written as Rust writes it.
pub fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for c in String::from_utf8_lossy(name).chars() {
        match acts(c) {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
    }
    text
}
