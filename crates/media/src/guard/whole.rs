//! Files that are written whole or not at all.

use super::{is_of, output, replaced};
use bimetal_base::{Error, Result};
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// How the names of files begin that are not whole yet.
pub const BESIDE: &str = ".bimetal-";

/// Why nothing is made in a directory that a file of it may be written to all the same.
const DIRECTORY_STAYS: [io::ErrorKind; 2] =
    [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];

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
    let mut made = match beside(path) {
        // Who may write to a file, and not into its directory, replaces its contents.
        Err(why) if path.is_file() && is_of(&why, &DIRECTORY_STAYS) => {
            NamedTempFile::new().map_err(|_| why)?
        }
        made => made?,
    };
    let done = write(made.as_file_mut())?;
    take_place(made, path)?;
    Ok(done)
}

/// The files that were made beside their places. Some have them by now, or have gone.
static BESIDES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// So many are remembered before it is looked which of them are still there.
const REMEMBERED: usize = 64;

/// Takes away what is half written beside its place; for who ends the program now, by a signal. Nothing more is begun.
pub fn give_up() {
    let besides = BESIDES.lock();
    for path in &*besides {
        // Most have their places.
        let _ = fs::remove_file(path);
    }
    mem::forget(besides);
}

/// Makes a file beside the place that it is for; it goes away unless it takes that.
///
/// # Errors
/// [`Error::Io`]: none can be made in that directory.
pub fn beside(path: &Path) -> Result<NamedTempFile> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // What takes the place of a file is open to nobody whom that was closed to.
    let mode = if path.exists() { 0o600 } else { 0o666 };
    let mut named = tempfile::Builder::new();
    let named = named.prefix(BESIDE).permissions(Permissions::from_mode(mode));
    let about = || format!("{}: a file beside it, which takes its place when it is whole", path.display());
    let mut besides = BESIDES.lock();
    let made = named.tempfile_in(dir).map_err(|why| Error::io(about(), why))?;
    if besides.len() >= REMEMBERED {
        besides.retain(|path| path.exists());
    }
    besides.push(made.path().into());
    Ok(made)
}

/// What was made [`beside`] a place gets that, with the mode and, as far as that is allowed, the owner of what was there. A file that
/// cannot be replaced, for it is mounted on, or in a directory that does not let go of it, gets the contents instead.
///
/// # Errors
/// [`Error::Io`]; what was there is there then, or, of a file that cannot be replaced, what could be written.
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
    match made.persist(path) {
        Ok(_) => Ok(()),
        Err(why) if path.is_file() => {
            let (mut from, stays) = (why.file.reopen().map_err(failed)?, |_| failed(why.error));
            let mut to = OpenOptions::new().write(true).truncate(true).open(path).map_err(stays)?;
            io::copy(&mut from, &mut to).and_then(|_| to.sync_data()).map_err(failed)
        }
        Err(why) => Err(failed(why.error)),
    }
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

    #[test]
    fn a_file_that_cannot_be_replaced_gets_the_contents_and_the_new_one_is_open_to_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        fs::write(&path, "old and longer").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        let mut made = beside(&path).unwrap();
        assert_eq!(made.as_file().metadata().unwrap().mode() & 0o777, 0o600);
        made.write_all(b"new").unwrap();
        // As where the name of what was made cannot become that of the file: it has gone.
        fs::remove_file(made.path()).unwrap();
        assert!(take_place(made, &path).is_err(), "there is nothing to copy");
        assert_eq!(fs::read(&path).unwrap(), b"old and longer");

        // Mounted on, where that can be done here.
        let bound = |how: &[&str]| {
            std::process::Command::new(how[0])
                .args(&how[1..])
                .arg(&path)
                .status()
                .is_ok_and(|done| done.success())
        };
        if !bound(&["mount", "--bind", path.to_str().unwrap()]) {
            return eprintln!("skipped: nothing can be mounted");
        }
        let written = whole(&path, |file| file.write_all(b"new").map_err(|why| Error::io("x", why)));
        let (contents, mode) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().mode() & 0o777);
        assert!(bound(&["umount"]));
        written.unwrap();
        assert_eq!((&*contents, mode), (&b"new"[..], 0o604));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays beside it");
    }
}
