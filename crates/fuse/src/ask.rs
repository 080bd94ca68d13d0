//! What a server says of itself, asked by another program: of a mount through its attribute, of an exported device through
//! the socket beside its own.

use crate::STATUS;
use bimetal_base::{Error, Result};
use rustix::io::Errno;
use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Room for a status; the kernel hands over no more than this.
const ROOM: usize = 64 << 10;
/// Who does not answer for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest state that is read.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// Asks the server behind a directory that is mounted on, or a device that is exported at a socket: what `bimetal status
/// --json` prints.
///
/// # Errors
/// Nothing of bimetal is there, its server is dead or does not answer, or the answer is no JSON.
pub fn ask(place: &Path) -> Result<Value> {
    if place.metadata().is_ok_and(|found| found.file_type().is_socket()) {
        return ask_socket(&beside(place));
    }
    let shown = place.display();
    let mut text = Vec::with_capacity(ROOM);
    match rustix::fs::getxattr(place, STATUS, rustix::buffer::spare_capacity(&mut text)) {
        Ok(_) => {}
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            return Err(Error::invalid(format!(
                "{shown}: nothing of bimetal is mounted here; see: bimetal mount --help"
            )));
        }
        Err(Errno::NOTCONN) => return Err(dead(place)),
        Err(why) => return Err(Error::io(shown, why.into())),
    }
    serde_json::from_slice(&text).map_err(|why| Error::corrupt("the status", why, shown))
}

/// Asks for the state told at the socket `socket`.
///
/// # Errors
/// [`Error::Io`] if nobody answers, [`Error::Corrupt`] if the answer is no JSON.
pub fn ask_socket(socket: &Path) -> Result<Value> {
    let failed = |error| Error::io(format!("{}: ask for the status", socket.display()), error);
    let stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut text = Vec::new();
    stream.take(STATE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|why| Error::corrupt("the status", why, socket.display()))
}

/// Where the state of what is served at `socket` is told.
pub fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".status");
    name.into()
}

/// What to say of a mount point whose server has ended without unmounting it.
pub fn dead(mountpoint: &Path) -> Error {
    let place = mountpoint.display();
    Error::invalid(format!("{place}: its server is dead; take it away with: bimetal umount {place}"))
}
