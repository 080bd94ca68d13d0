//! The files that device profiles are read from.

use super::NONE;
use bimetal_media::profile::{PROFILES, text_of};
use std::path::PathBuf;
use toml::Table;

/// The key by which a profile names another one.
const PART: &str = "nand";

/// The files that the profile called `name` is read from: none of one that is built in, else its own, and that of the
/// part it names. One that is not there, or no profile, names none: who reads it says so.
pub fn files_of(name: &str) -> Vec<PathBuf> {
    let (mut files, mut next) = (Vec::<PathBuf>::new(), Some(name.to_string()));
    while let Some(name) = next.take() {
        let path = PathBuf::from(&name);
        if name == NONE || PROFILES.find(&name).is_ok() || files.contains(&path) {
            break;
        }
        let Ok(text) = text_of(&name) else { break };
        next = text.parse::<Table>().ok().and_then(|table| table.get(PART)?.as_str().map(str::to_string));
        files.push(path);
    }
    files
}
