//! The files that device profiles are read from.

use super::NONE;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_media::profile::PROFILES;
use std::path::{Path, PathBuf};
use toml::Table;

/// No profile is longer.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// The key by which a profile names another one.
const PART: &str = "nand";

/// The files that the profile called `name` is read from: none of one that is built in, else its own, and that of the
/// part it names. One that is not there, or no profile, names none: who reads it says so.
///
/// # Errors
/// [`Error::Invalid`] on what has no end or is no file, and so would be read for ever.
pub fn files_of(name: &str) -> Result<Vec<PathBuf>> {
    let (mut files, mut next) = (Vec::new(), Some(name.to_string()));
    while let Some(name) = next.take() {
        let path = Path::new(&name);
        if name == NONE || PROFILES.find(&name).is_ok() || files.iter().any(|file| file == path) {
            break;
        }
        let Ok(about) = path.metadata() else { break };
        if !about.is_file() || about.len() > TEXT_BYTES_MAX {
            return Err(Error::invalid(format!(
                "profile {name}: it is no file of at most {}; name a profile's file, or one that is built in",
                show_size(TEXT_BYTES_MAX)
            )));
        }
        let table = std::fs::read_to_string(path).ok().and_then(|text| text.parse::<Table>().ok());
        next = table.and_then(|table| table.get(PART)?.as_str().map(str::to_string));
        files.push(path.to_path_buf());
    }
    Ok(files)
}
