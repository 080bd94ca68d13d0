//! The one place where an [`Error`] becomes the number a system call returns.

use bimetal_base::Error;

/// Whether a person should hear of it: the world failed, not the caller.
pub fn is_trouble(error: &Error) -> bool {
    matches!(
        error,
        Error::Io { .. } | Error::Gone { .. } | Error::Corrupt { .. } | Error::Mismatch(_) | Error::Ssd(_)
    )
}

/// The errno of an error.
pub fn number(error: &Error) -> i32 {
    match error {
        // A device's own reasons are not the caller's, except that an image file's home is full, or that the disk half
        // failed and takes no changes any more.
        Error::Io { source, .. } => match source.raw_os_error() {
            Some(own @ (libc::ENOSPC | libc::EDQUOT | libc::EROFS)) => own,
            _ => libc::EIO,
        },
        Error::Gone { .. } | Error::Mismatch(_) | Error::Ssd(_) => libc::EIO,
        // What the kernel's own file systems return for a damaged structure.
        Error::Corrupt { .. } => libc::EUCLEAN,
        Error::Unsupported { .. } | Error::NotSupported => libc::EOPNOTSUPP,
        Error::Invalid(_) | Error::BadArgument => libc::EINVAL,
        Error::InUse(_) => libc::EBUSY,
        Error::NoSpace(_) => libc::ENOSPC,
        Error::NotFound => libc::ENOENT,
        Error::Exists => libc::EEXIST,
        Error::NotDir => libc::ENOTDIR,
        Error::IsDir => libc::EISDIR,
        Error::NotEmpty => libc::ENOTEMPTY,
        Error::NameTooLong => libc::ENAMETOOLONG,
        Error::TooManyLinks => libc::EMLINK,
        Error::NotPermitted => libc::EPERM,
        Error::Denied => libc::EACCES,
        Error::ReadOnly => libc::EROFS,
        Error::TooLarge => libc::EFBIG,
        Error::NoAttribute => libc::ENODATA,
        Error::Range => libc::ERANGE,
        Error::NoOffset => libc::ENXIO,
        Error::Stale => libc::ESTALE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_full_home_of_an_image_is_told_apart_from_a_broken_device() {
        let full = Error::io("disk.img", io::Error::from_raw_os_error(libc::ENOSPC));
        let broken = Error::io("disk.img", io::Error::from_raw_os_error(libc::ENXIO));
        assert_eq!((number(&full), number(&broken)), (libc::ENOSPC, libc::EIO));
        assert!(is_trouble(&full) && !is_trouble(&Error::NotFound));
    }
}
