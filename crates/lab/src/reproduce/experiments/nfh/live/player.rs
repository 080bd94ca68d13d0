//! A program's calls, made as system calls below a directory, one after the other.
//!
//! A file stays open until a call is on another one, as it does with the papers' programs.

use bimetal_base::random::Random;
use bimetal_base::{Error, Result};
use bimetal_trace::calls::{Deed, Was, Workload};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that are written, over and over: they do not pack.
const CONTENTS_BYTES: usize = 1 << 20;

/// What calls did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Played {
    /// How long they took, all of them.
    pub took: Duration,
    /// Bytes read and written.
    pub bytes: u64,
}

/// A program below a directory.
pub(super) struct Player<'w> {
    workload: &'w Workload,
    paths: Vec<PathBuf>,
    contents: Vec<u8>,
    buffer: Vec<u8>,
    open: Option<(u32, File)>,
}

impl<'w> Player<'w> {
    pub fn new(root: &Path, workload: &'w Workload, seed: u64) -> Player<'w> {
        let mut paths: Vec<PathBuf> = Vec::with_capacity(workload.places.len());
        for (number, place) in workload.places.iter().enumerate() {
            // A parent has a lower number; the root is its own.
            let path = match number {
                0 => root.to_path_buf(),
                _ => paths[place.parent as usize].join(std::ffi::OsStr::from_bytes(&place.name)),
            };
            paths.push(path);
        }
        let mut random = Random::new(seed, "contents");
        let contents = (0..CONTENTS_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        Player { workload, paths, contents, buffer: vec![0; CONTENTS_BYTES], open: None }
    }

    /// Makes what the program finds, durable.
    ///
    /// # Errors
    /// As the system's.
    pub fn furnish(&mut self) -> Result<()> {
        let workload = self.workload;
        for (path, was) in &workload.initial {
            match was {
                Was::Dir => self.call(*path, Deed::Mkdir)?,
                Was::File(size) => {
                    self.call(*path, Deed::Create)?;
                    for at in (0..*size).step_by(CONTENTS_BYTES) {
                        self.call(*path, Deed::Write(at, (size - at).min(CONTENTS_BYTES as u64)))?;
                    }
                    0
                }
                Was::Symlink => self.call(*path, Deed::Symlink(1))?,
            };
        }
        self.close();
        self.sync()
    }

    /// Makes all of the calls; at the end what they wrote is made durable if `synced`.
    ///
    /// # Errors
    /// As the system's: the program goes no further.
    pub fn play(&mut self, synced: bool) -> Result<Played> {
        let (began, workload, mut bytes) = (Instant::now(), self.workload, 0);
        for call in &workload.calls {
            bytes += self.call(call.path, call.deed)?;
        }
        self.close();
        if synced {
            self.sync()?;
        }
        Ok(Played { took: began.elapsed(), bytes })
    }

    /// Closes what is open.
    fn close(&mut self) {
        self.open = None;
    }

    fn sync(&self) -> Result<()> {
        let root = &self.paths[0];
        let synced = File::open(root).and_then(|root| Ok(rustix::fs::syncfs(root)?));
        synced.map_err(|why| Error::io(root.display(), why))
    }

    fn call(&mut self, path: u32, deed: Deed) -> Result<u64> {
        self.make(path, deed).map_err(|why| {
            let name = Deed::NAMES[deed.index()];
            Error::io(format!("{name} {}", self.paths[path as usize].display()), why)
        })
    }

    fn make(&mut self, path: u32, deed: Deed) -> io::Result<u64> {
        let name = &self.paths[path as usize];
        match deed {
            Deed::Create => {
                let made =
                    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(name)?;
                self.open = Some((path, made));
            }
            Deed::Mkdir => fs::create_dir(name)?,
            Deed::Write(at, len) => {
                let shift = (u64::from(path).wrapping_mul(0x9E37_79B9).wrapping_add(at) % 4096) as usize;
                let mut done = 0;
                while done < len as usize {
                    let part = (len as usize - done).min(CONTENTS_BYTES - shift);
                    let bytes = self.contents[shift..shift + part].to_vec();
                    self.file(path)?.write_all_at(&bytes, at + done as u64)?;
                    done += part;
                }
                return Ok(len);
            }
            Deed::Read(at, len) => {
                let (mut buffer, mut done) = (std::mem::take(&mut self.buffer), 0);
                let read = loop {
                    let part = (len as usize - done).min(CONTENTS_BYTES);
                    match self.file(path).and_then(|file| file.read_at(&mut buffer[..part], at + done as u64))
                    {
                        Ok(0) => break Ok(done as u64),
                        Ok(count) => done += count,
                        Err(why) => break Err(why),
                    }
                };
                self.buffer = buffer;
                return read;
            }
            Deed::Fsync => self.file(path)?.sync_all()?,
            Deed::Unlink => {
                self.open = self.open.take().filter(|(open, _)| *open != path);
                fs::remove_file(&self.paths[path as usize])?;
            }
            Deed::Stat => fs::symlink_metadata(name).map(|_| ())?,
            // None of the papers' programs does anything else.
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(0)
    }

    /// The file, open.
    fn file(&mut self, path: u32) -> io::Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != path) {
            let file = OpenOptions::new().read(true).write(true).open(&self.paths[path as usize])?;
            self.open = Some((path, file));
        }
        self.open.as_ref().map(|(_, file)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::programs::{FILE_BYTES, FILES, Pass, churn, one_file, template};
    use super::*;

    /// Bytes of all files below a folder, and how many there are.
    fn below(folder: &Path) -> (u64, usize) {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries.fold((0, 0), |(bytes, files), entry| match entry.metadata().unwrap() {
            found if found.is_dir() => {
                let (more, inside) = below(&entry.path());
                (bytes + more, files + inside)
            }
            found => (bytes + found.len(), files + 1),
        })
    }

    #[test]
    fn a_program_writes_every_byte_that_its_calls_say_and_reads_back_as_many() {
        let folder = tempfile::tempdir().unwrap();
        let workload = template(Pass::Write, 3);
        let mut player = Player::new(folder.path(), &workload, 1);
        player.furnish().unwrap();
        assert_eq!(below(folder.path()), (0, FILES as usize));
        let played = player.play(true).unwrap();
        let all = u64::from(FILES) * FILE_BYTES;
        assert_eq!((played.bytes, below(folder.path())), (all, (all, FILES as usize)));

        let folder = tempfile::tempdir().unwrap();
        let workload = one_file(Pass::Read, 3 << 20, 5000);
        let mut player = Player::new(folder.path(), &workload, 1);
        player.furnish().unwrap();
        // The last record ends past the end of the file.
        assert_eq!(player.play(false).unwrap().bytes, 3 << 20);
        // What is written does not depend on how it is cut, and is not all the same.
        let bytes = fs::read(folder.path().join("f")).unwrap();
        assert!(bytes.windows(64).step_by(4096).any(|window| window != &bytes[..64]));
    }

    #[test]
    fn files_that_are_removed_and_made_anew_are_as_long_as_the_last_call_says() {
        let folder = tempfile::tempdir().unwrap();
        let workload = churn(4, 8 << 20, 2);
        let played = Player::new(folder.path(), &workload, 1).play(true).unwrap();
        assert!(played.bytes >= 8 << 20);
        let mut left = rustc_hash::FxHashMap::default();
        for call in &workload.calls {
            match call.deed {
                Deed::Create => drop(left.insert(call.path, 0)),
                Deed::Unlink => drop(left.remove(&call.path)),
                Deed::Write(at, len) => drop(left.insert(call.path, at + len)),
                _ => {}
            }
        }
        assert_eq!(below(folder.path()), (left.values().sum(), left.len()));
    }

    #[test]
    fn a_call_that_fails_ends_the_program_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut workload = one_file(Pass::Write, 8192, 4096);
        workload.calls.remove(0);
        let why = Player::new(folder.path(), &workload, 1).play(false).unwrap_err().to_string();
        assert!(why.contains("write") && why.contains("/f"), "{why}");
    }
}
