//! Files that are written whole or not at all.

use super::{Claim, output, replaced};
use bimetal_base::{Error, Result};
use parking_lot::Mutex;
use std::fs::{self, File, Permissions};
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
    let mut begun = Begun::new(path)?;
    let done = write(begun.file())?;
    begun.finish()?;
    Ok(done)
}

/// A file that is being written as [`whole`] does. Dropped before its end it changes nothing.
pub struct Begun {
    to: To,
}

enum To {
    /// What is written to as it is.
    Straight(File),
    /// A file beside its place, and what keeps others from what is there.
    Beside { made: NamedTempFile, place: PathBuf, _old: Option<Arc<Claim>> },
}

impl Begun {
    /// Begins one that is to have this name.
    ///
    /// # Errors
    /// As [`output`]'s.
    pub fn new(path: &Path) -> Result<Begun> {
        let failed = |why| Error::io(path.display(), why);
        if let Some(stdout) = as_stdout(path).map_err(failed)? {
            return Ok(Begun { to: To::Straight(stdout) });
        }
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Ok(Begun { to: To::Straight(output(path)?) });
        }
        // What a link leads to takes the new contents, and the link stays.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let _old = replaced(&place)?;
        let made = beside(&place)?;
        Ok(Begun { to: To::Beside { made, place, _old } })
    }

    /// What to write to.
    pub fn file(&mut self) -> &mut File {
        match &mut self.to {
            To::Straight(file) => file,
            To::Beside { made, .. } => made.as_file_mut(),
        }
    }

    /// It is whole, and takes its place.
    ///
    /// # Errors
    /// [`Error::Io`]; what was there is there then.
    pub fn finish(self) -> Result<()> {
        match self.to {
            To::Straight(_) => Ok(()),
            To::Beside { made, place, .. } => take_place(made, &place),
        }
    }
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

/// What was made [`beside`] a place gets that, with the mode and, as far as that is allowed, the owner of what was there.
///
/// # Errors
/// [`Error::Io`]; what was there is there then.
pub fn take_place(made: NamedTempFile, path: &Path) -> Result<()> {
    take_places(vec![(made, path)])
}

/// The same of several that belong together: all get their places, or none.
///
/// # Errors
/// [`Error::Io`]; what was there is there then.
pub fn take_places(all: Vec<(NamedTempFile, &Path)>) -> Result<()> {
    for (made, path) in &all {
        // A power cut must not leave neither of the two, nor what the host cannot write take the place of what it has.
        sync(made).and_then(|()| dress(made, path)).map_err(|why| Error::io(path.display(), why))?;
    }
    // Who gives up waits until all have their places.
    let _besides = BESIDES.lock();
    let several = all.len() > 1;
    let mut before = Vec::new();
    for (made, path) in all {
        let old = if several { Old::of(path) } else { Old::Stays };
        match made.persist(path) {
            Ok(_) => before.push((path, old)),
            Err(why) => {
                before.into_iter().for_each(|(path, old)| old.put_back(path));
                return Err(Error::io(path.display(), why.error));
            }
        }
    }
    Ok(())
}

/// What takes the place of a file belongs to whom that did.
fn dress(made: &NamedTempFile, path: &Path) -> io::Result<()> {
    let Ok(old) = fs::metadata(path) else { return Ok(()) };
    let now = made.as_file().metadata()?;
    if (old.uid(), old.gid()) != (now.uid(), now.gid()) {
        // Who may replace a file may not always give it away; then it is theirs.
        let _ = fchown(made.as_file(), Some(old.uid()), Some(old.gid()));
    }
    let mode = old.mode() & 0o777;
    if mode != now.mode() & 0o777 {
        made.as_file().set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Has the host write a file out. Not every file system can be asked.
fn sync(made: &NamedTempFile) -> io::Result<()> {
    let cannot = [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS, libc::EROFS];
    match made.as_file().sync_data() {
        Err(why) if why.raw_os_error().is_some_and(|code| cannot.contains(&code)) => Ok(()),
        done => done,
    }
}

/// What was at a place.
enum Old {
    Nothing,
    /// It has another name.
    Named(NamedTempFile<()>),
    /// It has no other name, and cannot be put back.
    Stays,
}

impl Old {
    fn of(path: &Path) -> Old {
        if !path.exists() {
            return Old::Nothing;
        }
        let dir = path.parent().unwrap_or(Path::new("."));
        // Not every file system has second names.
        let named = tempfile::Builder::new().prefix(BESIDE).make_in(dir, |name| fs::hard_link(path, name));
        named.map_or(Old::Stays, Old::Named)
    }

    fn put_back(self, path: &Path) {
        match self {
            Old::Nothing => {
                let _ = fs::remove_file(path);
            }
            // What cannot be put back keeps its second name.
            Old::Named(old) => old.persist(path).map_or_else(|why| drop(why.file.keep()), drop),
            Old::Stays => {}
        }
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
    fn what_replaces_a_file_is_open_to_nobody_else_and_what_is_mounted_on_is_refused_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        fs::write(&path, "old and longer").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        let made = beside(&path).unwrap();
        assert_eq!(made.as_file().metadata().unwrap().mode() & 0o777, 0o600);
        drop(made);
        let bound = |how: &[&str]| {
            let done = std::process::Command::new(how[0]).args(&how[1..]).arg(&path).status();
            done.is_ok_and(|done| done.success())
        };
        if !bound(&["mount", "--bind", path.to_str().unwrap()]) {
            return eprintln!("skipped: nothing can be mounted");
        }
        let written = whole(&path, |file| file.write_all(b"new").map_err(|why| Error::io("x", why)));
        let contents = fs::read(&path).unwrap();
        assert!(bound(&["umount"]));
        assert!(written.unwrap_err().to_string().contains("kept: "));
        assert_eq!(contents, b"old and longer");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays beside it");
    }

    #[test]
    fn of_several_that_belong_together_all_get_their_places_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let read = |name: &str| fs::read(at(name)).ok();
        fs::write(at("a"), "old a").unwrap();
        // A directory with something in it is in the way of the last.
        fs::create_dir_all(at("c/in it")).unwrap();
        let places = ["a", "b", "c"].map(at);
        let all = |names: &'static [&str]| {
            let made = |(name, place): (&&str, &'_ PathBuf)| {
                let mut made = beside(place).unwrap();
                write!(made, "new {name}").unwrap();
                made
            };
            names.iter().zip(&places).map(|pair| (made(pair), pair.1.as_path())).collect::<Vec<_>>()
        };
        assert!(take_places(all(&["a", "b", "c"])).is_err());
        assert_eq!((read("a"), read("b")), (Some(b"old a".to_vec()), None));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing stays beside them");
        take_places(all(&["a", "b"])).unwrap();
        assert_eq!((read("a"), read("b")), (Some(b"new a".to_vec()), Some(b"new b".to_vec())));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
