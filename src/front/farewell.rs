//! What a server says of its end, heard by who waits for it; [`crate::front::fuse::FAREWELL`] says how.

use crate::front::fuse::FAREWELL;
use rustix::fs::getxattr;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The most that is read of what a server says.
const SAID_MAX: usize = 64 << 10;

/// Who is going to wait.
pub(super) struct Waiter {
    /// The attribute of the root that is read, and the name of the socket.
    name: String,
    /// What the file comes by, where a server is in the same network namespace.
    socket: Option<UnixDatagram>,
}

impl Waiter {
    pub fn new() -> Waiter {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let name = format!("{FAREWELL}{}-{now}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name);
        let socket = address.and_then(|address| UnixDatagram::bind_addr(&address)).ok();
        Waiter { name, socket }
    }

    /// Asks the server of what is mounted at `place`; the number that the file has there.
    pub fn ask(&self, place: &Path) -> Result<u32, Errno> {
        let mut number = [0; 16];
        let bytes = getxattr(place, &self.name, &mut number)?;
        let number = std::str::from_utf8(number.get(..bytes).unwrap_or_default()).ok();
        number.and_then(|number| number.parse().ok()).ok_or(Errno::INVAL)
    }

    /// The file, as it was sent, or else by its number in the server.
    ///
    /// # Errors
    /// Neither way is open, in words.
    pub fn take(&self, server: i32, number: u32) -> Result<Farewell, String> {
        if let Some(file) = self.receive() {
            return Ok(Farewell(file));
        }
        let path = format!("/proc/{server}/fd/{number}");
        File::open(&path).map(Farewell).map_err(|why| format!("{path}: {why}"))
    }

    fn receive(&self) -> Option<File> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(self.socket.as_ref()?, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags).ok()?;
        ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next().map(File::from),
            _ => None,
        })
    }
}

/// What a server says.
pub(super) struct Farewell(File);

impl Farewell {
    /// What it says now; null while it is just being written.
    pub fn said(&self) -> Value {
        let mut text = vec![0; SAID_MAX];
        let read = self.0.read_at(&mut text, 0).unwrap_or(0);
        serde_json::from_slice(&text[..read]).unwrap_or_default()
    }
}
