//! Folders that are not to outlive the program.

use bimetal_base::{Error, Result};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Takes them away: the program is about to end by a signal.
pub fn give_up() {
    for folder in &*FOLDERS.lock() {
        // The system clears what is left.
        let _ = std::fs::remove_dir_all(folder);
    }
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
