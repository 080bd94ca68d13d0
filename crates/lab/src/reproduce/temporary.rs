//! Folders that are not to outlive the program.

use bimetal_base::{Error, Result};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// How often removing a folder is tried, and how long after each other.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Who works in them, beside this process.
static AT_WORK: Mutex<Option<Pid>> = Mutex::new(None);

/// Takes them away: the program is about to end by a signal. Who works in them ends first.
pub fn give_up() {
    if let Some(pid) = AT_WORK.lock().take() {
        // It has ended by itself, or does now.
        let _ = kill_process(pid, Signal::KILL);
    }
    for folder in &*FOLDERS.lock() {
        // What was killed takes a moment to be gone; the system clears what is left.
        for _ in 0..TRIES {
            match std::fs::remove_dir_all(folder) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
                _ => break,
            }
        }
    }
}

/// Waits for a process that works in such a folder.
pub(super) fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    *AT_WORK.lock() = Some(Pid::from_child(child));
    let ended = child.wait();
    *AT_WORK.lock() = None;
    ended
}

/// A folder that goes when it is dropped, and when a signal ends the program.
#[derive(Debug)]
pub(super) struct Temporary(TempDir);

impl Temporary {
    /// A new one, whose name begins with `prefix`.
    ///
    /// # Errors
    /// None can be made.
    pub fn new(prefix: &str) -> Result<Temporary> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir();
        let folder = folder.map_err(|why| Error::io("a temporary folder", why))?;
        FOLDERS.lock().push(folder.path().to_path_buf());
        Ok(Temporary(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        FOLDERS.lock().retain(|folder| folder != self.0.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_when_it_is_dropped_and_is_known_to_who_gives_up_until_then() {
        let folder = Temporary::new("bimetal-test-").unwrap();
        let path = folder.path().to_path_buf();
        std::fs::write(path.join("file"), "x").unwrap();
        assert!(FOLDERS.lock().contains(&path));
        drop(folder);
        assert!(!FOLDERS.lock().contains(&path) && !path.exists());
    }
}
