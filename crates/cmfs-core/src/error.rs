//! What can go wrong, apart from bugs.

use core::fmt;

/// The result of everything that can fail.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The medium answers nothing any more: no power, or it is gone.
    Gone,
    /// Something on a medium is not as the format says.
    Corrupt {
        /// The structure.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
        /// Where: a NAND page number, or a byte of the NVRAM.
        at: u64,
    },
    /// A valid thing that is not driven, or a geometry that cannot be.
    Unsupported(&'static str),
    /// The part holds no file system of ours.
    Foreign(&'static str),
    /// NAND and NVRAM do not belong together.
    Mismatch(&'static str),
    /// No page left.
    NoSpace,
    /// No memory left of what may be taken.
    NoMemory,
    /// There is no such name or object.
    NotFound,
    /// The name is taken.
    Exists,
    /// A directory was needed.
    NotDir,
    /// A directory cannot be used so.
    IsDir,
    /// The directory holds entries.
    NotEmpty,
    /// A name is longer than 255 bytes, or a link's target than 159.
    NameTooLong,
    /// The file would grow past what the format holds.
    TooLarge,
    /// An argument makes no sense.
    BadArgument,
    /// The extended attribute is not there.
    NoAttribute,
    /// The attributes of one object do not fit a page.
    AttributesFull,
    /// No data or hole from there on.
    NoOffset,
    /// The object is gone.
    Stale,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Gone => f.write_str("the medium is gone"),
            Error::Corrupt { what, why, at } => write!(f, "{what} is corrupt: {why} (at {at})"),
            Error::Unsupported(why) => write!(f, "not supported: {why}"),
            Error::Foreign(why) => write!(f, "the NAND holds no cmfs: {why}"),
            Error::Mismatch(why) => write!(f, "NAND and NVRAM do not belong together: {why}"),
            Error::NoSpace => f.write_str("no space left"),
            Error::NoMemory => f.write_str("no memory left"),
            Error::NotFound => f.write_str("no such object"),
            Error::Exists => f.write_str("the name is taken"),
            Error::NotDir => f.write_str("not a directory"),
            Error::IsDir => f.write_str("is a directory"),
            Error::NotEmpty => f.write_str("directory not empty"),
            Error::NameTooLong => f.write_str("name too long"),
            Error::TooLarge => f.write_str("file too large"),
            Error::BadArgument => f.write_str("invalid argument"),
            Error::NoAttribute => f.write_str("no such attribute"),
            Error::AttributesFull => f.write_str("the attributes do not fit a page"),
            Error::NoOffset => f.write_str("no such offset"),
            Error::Stale => f.write_str("the object is gone"),
        }
    }
}

impl core::error::Error for Error {}
