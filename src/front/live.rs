//! What a server says of itself, over a unix socket: whoever connects gets its state as JSON, and the end.
//!
//! `bimetal status SOCKET` asks so for a device served over NBD, whose protocol has no room for it; the socket
//! lies beside the one of the device. Nothing is read from who asks. Cost: a thread that sleeps.

pub(super) use crate::front::fuse::beside;
use crate::{Error, Result};
use serde_json::Value;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Who takes no answer for so long gets none: others wait.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest path that the kernel takes for a socket, unix(7).
const PATH_MAX: usize = 107;

/// A state that is being told; dropping it removes the socket.
pub(super) struct Live {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
    bound: Option<(u64, u64)>,
}

/// A listener at `socket`, whose `sibling` is the other of the pair that a served device has. A stale pair of ours is
/// replaced: two sockets that nobody listens on. Nothing else that is there is touched.
///
/// Fails with [`Error::Invalid`] if something else is there, with [`Error::Io`] if it cannot be made.
pub(super) fn listen(socket: &Path, sibling: &Path) -> Result<UnixListener> {
    let failed = |error| Error::io(format!("{}: listen", socket.display()), error);
    let bytes = socket.as_os_str().len();
    if bytes > PATH_MAX {
        return Err(Error::invalid(format!(
            "{}: the path of a socket has at most {PATH_MAX} bytes, and this one has {bytes}; name a shorter one",
            socket.display()
        )));
    }
    match std::fs::symlink_metadata(socket) {
        Ok(_) if is_stale(socket) && (is_stale(sibling) || is_own(sibling)) => {
            std::fs::remove_file(socket).map_err(failed)?;
        }
        Ok(found) => {
            let what = match found.file_type().is_socket() && !is_stale(socket) {
                true => "another server has this socket; name another, or end that one",
                false => "and is no socket that an ended server left; name another, or remove it",
            };
            return Err(Error::invalid(format!("{} is there already, {what}", socket.display())));
        }
        Err(_) => {}
    }
    UnixListener::bind(socket).map_err(failed)
}

/// Whether this is a socket that nobody listens on, nor is about to.
fn is_stale(socket: &Path) -> bool {
    std::fs::symlink_metadata(socket).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(socket).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        && !is_bound(socket)
}

/// Whether some process has a socket of this name, in whatever directory: the kernel tells the path as it was given.
fn is_bound(socket: &Path) -> bool {
    let Some(name) = socket.file_name() else { return true };
    let table = std::fs::read("/proc/net/unix").unwrap_or_default();
    let end = name.as_bytes();
    let is_it = |line: &[u8]| {
        let before = line.strip_suffix(end).and_then(<[u8]>::last);
        matches!(before, Some(b'/' | b' '))
    };
    table.split(|byte| *byte == b'\n').any(is_it)
}

/// Whether this process listens on a socket.
fn is_own(socket: &Path) -> bool {
    let peer =
        UnixStream::connect(socket).and_then(|stream| Ok(rustix::net::sockopt::socket_peercred(&stream)?));
    peer.is_ok_and(|peer| peer.pid == rustix::process::getpid())
}

/// The inode of a socket that was bound here, by which it is known again.
pub(super) fn identity(socket: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(socket).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes a socket that was bound here, unless something else stands in its place by now.
pub(super) fn remove(socket: &Path, bound: Option<(u64, u64)>) {
    if bound.is_some() && identity(socket) == bound {
        let _ = std::fs::remove_file(socket);
    }
}

/// Tells what `state` gives to all who connect to a new socket [`beside`] that of the device.
///
/// Fails with [`Error::Io`] if that cannot be made.
pub(super) fn tell(beside_of: &Path, state: impl Fn() -> Value + Send + 'static) -> Result<Live> {
    let socket = beside(beside_of);
    let listener = listen(&socket, beside_of)?;
    let bound = identity(&socket);
    let ended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ended);
    let serve = move || {
        for stream in listener.incoming() {
            if seen.load(Relaxed) {
                break;
            }
            // Who does not listen, or has gone, is not told.
            let _ = stream.and_then(|mut stream| {
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.write_all(format!("{:#}\n", state()).as_bytes())
            });
        }
    };
    let thread = thread::Builder::new().name("status".into()).spawn(serve);
    let thread = thread.map_err(|error| Error::io("a thread", error))?;
    Ok(Live { ended, thread: Some(thread), socket, bound })
}

impl Drop for Live {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // Wakes the thread; it sees that all has ended.
        let woken = UnixStream::connect(&self.socket).is_ok();
        remove(&self.socket, self.bound);
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::fuse::ask_socket as ask;
    use serde_json::json;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_socket_that_somebody_has_and_does_not_listen_on_yet_is_not_taken_for_one_that_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        // Bound, as a stream that does not listen is.
        let theirs =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None)
                .unwrap();
        rustix::net::bind(&theirs, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        let why = listen(&path, &path).unwrap_err().to_string();
        assert!(why.contains("another server has this socket") && path.exists(), "{why}");
        drop(theirs);
        assert!(is_stale(&path));
        let listening = listen(&path, &path).unwrap();
        let why = listen(&path, &path).unwrap_err().to_string();
        assert!(why.contains("another server has this socket"), "{why}");
        drop(listening);
        let long = listen(&dir.path().join("x".repeat(120)), &path).unwrap_err().to_string();
        assert!(long.contains("at most 107 bytes"), "{long}");
    }

    #[test]
    fn every_caller_gets_the_state_of_the_moment_and_the_socket_goes_with_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("s");
        let _listening = listen(&device, &beside(&device)).unwrap();
        let socket = beside(&device);
        let asked = AtomicU64::new(0);
        let live = tell(&device, move || json!({ "asked": asked.fetch_add(1, Relaxed) })).unwrap();
        for number in 0..3 {
            assert_eq!(ask(&socket).unwrap()["asked"], number);
        }
        drop(live);
        assert!(!socket.exists());
        assert!(ask(&socket).unwrap_err().to_string().contains("s.status"));
    }
}
