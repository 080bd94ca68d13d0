//! Files that are written whole or not at all.

use super::{output, replaced};
use bimetal_base::{Error, Result};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use tempfile::NamedTempFile;

/// How the names of files begin that are not whole yet.
pub const BESIDE: &str = ".bimetal-";

/// Writes a file whole or not at all: beside it first, then in its place, with the mode and, as far as that is allowed, the
/// owner of what was there. A device or a FIFO is written to as it is, and so is standard output under its own name
/// (`/dev/stdout`), whatever that leads to.
///
/// # Errors
/// As [`output`]'s, and what `write` says; what was there is there then.
pub fn whole<T>(path: &Path, write: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
    let failed = |why| Error::io(path.display(), why);
    if let Some(mut stdout) = as_stdout(path).map_err(failed)? {
        return write(&mut stdout);
    }
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return write(&mut output(path)?);
    }
    // What a link leads to takes the new contents, and the link stays.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let _old = replaced(path)?;
    let mut made = beside(path)?;
    let done = write(made.as_file_mut())?;
    take_place(made, path)?;
    Ok(done)
}

/// Makes a file beside the place that it is for; it goes away unless it takes that.
///
/// # Errors
/// [`Error::Io`]: none can be made in that directory.
pub fn beside(path: &Path) -> Result<NamedTempFile> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut named = tempfile::Builder::new();
    let named = named.prefix(BESIDE).permissions(Permissions::from_mode(0o666));
    let about = || format!("{}: a file beside it, which takes its place when it is whole", path.display());
    named.tempfile_in(dir).map_err(|why| Error::io(about(), why))
}

/// What was made [`beside`] a place gets that, with the mode and, as far as that is allowed, the owner of what was there.
///
/// # Errors
/// [`Error::Io`]; what was there is there then.
pub fn take_place(made: NamedTempFile, path: &Path) -> Result<()> {
    let failed = |why| Error::io(path.display(), why);
    if let Ok(old) = fs::metadata(path) {
        let now = made.as_file().metadata().map_err(failed)?;
        if (old.uid(), old.gid()) != (now.uid(), now.gid()) {
            // Who may replace a file may not always give it away; then it is theirs.
            let _ = fchown(made.as_file(), Some(old.uid()), Some(old.gid()));
        }
        // A power cut must not leave neither of the two; not every file system can be asked.
        let _ = made.as_file().sync_data();
        let mode = old.mode() & 0o777;
        if mode != now.mode() & 0o777 {
            made.as_file().set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        }
    }
    made.persist(path).map(drop).map_err(|why| failed(why.error))
}

/// Standard output, if a link leads to it.
fn as_stdout(path: &Path) -> io::Result<Option<File>> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (Ok(found), Ok(own)) = (fs::metadata(path), stdout.metadata()) else { return Ok(None) };
    Ok((is_link && (found.dev(), found.ino()) == (own.dev(), own.ino())).then_some(stdout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_cannot_be_written_whole_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let told = whole(&path, |file| -> Result<()> {
            file.write_all(b"half").unwrap();
            Err(Error::invalid("no room"))
        });
        assert!(told.is_err() && fs::read(&path).unwrap() == b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays beside it");
        whole(&path, |file| file.write_all(b"new").map_err(|why| Error::io("x", why))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }
}
