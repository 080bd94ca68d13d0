//! What a server says of its end to those who wait for it.
//!
//! `bimetal umount` reads the root's attribute `bimetal.farewell.NAME` before it unmounts. The server then keeps a file in
//! memory, one for all who wait, in which it says as JSON how far it is: that it still serves, as the kernel still has the mount
//! somewhere; that it writes everything out, and what is left; that it has ended, and how. Only the server knows that: tables of
//! processes and numbers of devices do not tell.
//!
//! Who asks gets the file in one of two ways: it is sent to the abstract socket of this NAME, where that listens in the network
//! namespace of the server; and the value of the attribute is the number of the server's descriptor, for `/proc/PID/fd`. No
//! file of who asks is opened or kept. A file that does not say how it ended when the server is gone says that it died.
//! Reading an attribute needs no permission to change the root, nor a mount that can be written.

use super::Unmounter;
use bimetal_base::{Error, Result};
use bimetal_vfs::FileSystem;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg_addr, socket_with,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// What the attribute of the root begins with; the name of a socket of who asks follows. The abstract socket has the whole name.
pub const FAREWELL: &str = "bimetal.farewell.";
/// The longest name of a socket.
const NAME_MAX: usize = 64;
/// How often the server says anew how far it is.
const BEAT: Duration = Duration::from_millis(500);
/// How often it says so of a mount that goes on: who asked may have given up.
const BEATS: u32 = 240;

/// Those who wait are told here.
pub(super) struct Farewell {
    fs: Weak<dyn FileSystem>,
    unmounter: Unmounter,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    said: Option<Said>,
    /// Rises with each time that something is said.
    beat: u64,
    /// How often more it is said that the mount goes on.
    left: u32,
    /// A thread says how far it is.
    is_watched: bool,
    /// Nobody serves any more.
    ends: bool,
    /// It was said how it ended.
    is_over: bool,
}

struct Said {
    file: File,
    /// The same for others, who can only read it.
    shared: File,
    bytes: usize,
}

impl Said {
    fn new() -> io::Result<Said> {
        let file: File = memfd_create("farewell", MemfdFlags::CLOEXEC)?.into();
        let shared = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Said { file, shared, bytes: 0 })
    }

    /// Writes over what was said before, in one piece.
    fn say(&mut self, what: &Value) {
        let mut text = what.to_string();
        self.bytes = self.bytes.max(text.len());
        text.extend(std::iter::repeat_n(' ', self.bytes - text.len()));
        // Memory that cannot be had is told by what is missing.
        let _ = self.file.write_all_at(text.as_bytes(), 0);
    }

    /// Sends the file to a socket, if there is one.
    fn send(&self, name: &str) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let address = SocketAddrUnix::new_abstract_name(format!("{FAREWELL}{name}").as_bytes())?;
        let files = [self.shared.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg_addr(&socket, &address, &[IoSlice::new(b"+")], &mut ancillary, SendFlags::empty())?;
        Ok(())
    }
}

impl Farewell {
    pub fn new(fs: &Arc<dyn FileSystem>, unmounter: Unmounter) -> Arc<Farewell> {
        Arc::new(Farewell { fs: Arc::downgrade(fs), unmounter, told: Mutex::default() })
    }

    /// Somebody waits, at the socket of this name; what the attribute's value is.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if that is no name; [`Error::Io`] where no file or thread can be had.
    pub fn wait(self: &Arc<Self>, name: &str) -> Result<Vec<u8>> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_name) {
            return Err(Error::BadArgument);
        }
        let mut told = self.told.lock();
        if told.said.is_none() {
            told.said = Some(Said::new().map_err(|why| Error::io("a file in memory", why))?);
        }
        told.left = BEATS;
        self.say_how_far(&mut told);
        self.watch(&mut told)?;
        let Some(said) = &told.said else { return Err(Error::BadArgument) };
        // Who is not reached so opens it by its number.
        let _ = said.send(name);
        Ok(said.shared.as_raw_fd().to_string().into())
    }

    /// Nobody serves any more; what is left is written out.
    pub fn ends(self: &Arc<Self>) {
        let mut told = self.told.lock();
        told.ends = true;
        if told.said.is_some() {
            self.say_how_far(&mut told);
            // Without a thread it is said once.
            let _ = self.watch(&mut told);
        }
    }

    /// Tells all who wait how it went.
    pub fn say(&self, ended: &Result<()>) {
        let mut told = self.told.lock();
        told.is_over = true;
        let said = match ended {
            Ok(()) => json!({"state": "ended", "written": true}),
            Err(why) => {
                let mut said = self.left();
                said["state"] = "ended".into();
                said["written"] = false.into();
                said["why"] = why.to_string().into();
                said
            }
        };
        if let Some(file) = &mut told.said {
            file.say(&said);
        }
    }

    /// Has a thread say how far it is, again and again.
    fn watch(self: &Arc<Self>, told: &mut Told) -> Result<()> {
        if told.is_watched {
            return Ok(());
        }
        let (all, named) = (self.clone(), thread::Builder::new().name("farewell".into()));
        let watch = move || {
            loop {
                thread::sleep(BEAT);
                let mut told = all.told.lock();
                if told.is_over || told.left == 0 && !told.ends {
                    told.is_watched = false;
                    return;
                }
                told.left = told.left.saturating_sub(1);
                all.say_how_far(&mut told);
            }
        };
        named.spawn(watch).map_err(|why| Error::io("a thread", why))?;
        told.is_watched = true;
        Ok(())
    }

    fn say_how_far(&self, told: &mut Told) {
        told.beat += 1;
        told.ends = told.ends || !self.unmounter.is_alive();
        let mut now = self.left();
        now["state"] = if told.ends { "writes" } else { "serves" }.into();
        now["beat"] = told.beat.into();
        if let Some(said) = &mut told.said {
            said.say(&now);
        }
    }

    /// What of the file system's status tells what is left to be written.
    fn left(&self) -> Value {
        let status = || -> Option<Value> {
            let fs = self.fs.upgrade()?;
            serde_json::from_slice(&fs.control_get(fs.root(), super::STATUS).ok()?).ok()
        };
        let status = status().unwrap_or_default();
        json!({
            "operations": status["operations"],
            "at_risk_bytes": status["at_risk"]["bytes"],
            "ssd": status["ssd"],
            "ssd_lost": status["ssd_lost"],
        })
    }
}
