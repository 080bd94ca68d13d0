//! A volume whose server ended without a word: its last files are in the log of its SSD half alone.

use crate::fsck::{filled, kill, marked, write_synced};
use crate::guard::Volume;
use std::fs;
use std::path::Path;

/// Files that only the log has.
pub const LATE: usize = 20;

/// One of them: its name and what is in it.
pub fn late(number: usize) -> (String, Vec<u8>) {
    (format!("late{number}"), vec![number as u8 + 1; 700 * number + 1])
}

/// Brings files to a volume that only the log of its SSD has, and kills its server.
pub fn crash(volume: &Volume) {
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    for (name, bytes) in (0..LATE).map(late) {
        write_synced(&mounted.path().join(name), &bytes);
    }
    kill(mounted);
}

/// A volume with files on both halves, and then such ones.
pub fn crashed() -> Volume {
    let volume = filled();
    crash(&volume);
    volume
}

/// Everything that was fsynced is there.
pub fn check(place: &Path) {
    for (name, bytes) in (0..LATE).map(late) {
        let found = fs::read(place.join(&name)).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(found == bytes, "{name}");
    }
    check_older(place);
}

/// Nothing of what only the log held is there, but all that is older.
pub fn check_old(place: &Path) {
    assert!((0..LATE).all(|number| !place.join(late(number).0).exists()), "the log was applied");
    check_older(place);
}

fn check_older(place: &Path) {
    for number in 0..10 {
        assert!(fs::read(place.join(format!("f{number}"))).unwrap() == marked(number), "f{number}");
    }
}
