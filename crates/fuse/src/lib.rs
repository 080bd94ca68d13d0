//! The FUSE mount: any [`FileSystem`] as a directory.
//!
//! [`Mount::new`] gets the mount from the kernel, agrees on the protocol and serves requests on a thread of
//! its own until the mount is taken away, by [`Mount::unmount`], by dropping it, or by anyone with `umount`.
//!
//! ```no_run
//! # use bimetal_fuse::{Mount, MountOptions};
//! # use bimetal_memfs::MemFs;
//! # use bimetal_vfs::Caller;
//! # use std::{path::Path, sync::Arc};
//! # fn main() -> bimetal_base::Result<()> {
//! let fs = Arc::new(MemFs::new(1 << 30, &Caller::default()));
//! let mount = Mount::new(fs, Path::new("/mnt"), &MountOptions::for_me())?;
//! std::fs::write("/mnt/hello", "world").expect("a working mount");
//! mount.unmount()
//! # }
//! ```
//!
//! One request costs about 2.5 µs when client and server share a processor; everything here serves to have
//! fewer requests and to keep the two together. `adapter` says what is agreed with the kernel.
//!
//! Not there, for fuser 0.18 does not speak it: FUSE_SETXATTR_EXT (made up for, see `caller`), FUSE_TMPFILE
//! (`O_TMPFILE` gives `EOPNOTSUPP`), FUSE_STATX (so no birth time), FUSE_SYNCFS (which the kernel sends to
//! `fuseblk` and virtiofs servers only: `sync` does not reach a FUSE file system, fsync does), io_uring.

mod adapter;
mod affinity;
mod ask;
mod attr;
mod caller;
mod control;
mod counts;
mod errno;
mod farewell;
pub mod health;
mod mount;
mod negotiate;
mod options;
pub mod record;
mod seek;
mod send;
mod workers;

pub use ask::{ask, ask_socket, beside, dead};
pub use control::{DURABILITY, PREFIX, RESIDENCY, SECTION, STATUS, pid_namespace};
pub use farewell::FAREWELL;
pub use mount::{SUBTYPE, Unmount, unmount};
pub use options::{Atime, MountOptions, OPTIONS, OptionSpec};

use crate::record::Recorded;
use adapter::Adapter;
use affinity::CpuAffinity;
use attr::NodeIds;
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use bimetal_media::metered::Devices;
use bimetal_vfs::FileSystem;
use control::Control;
use counts::Counts;
use farewell::Farewell;
use fuser::{Session, SessionACL};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use workers::{Spare, Workers};

/// Most threads that wait for devices when all serving ones but one do.
const WORKERS_MAX: usize = 64;

/// How long such a thread stays without anything to wait for.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);

/// How long dropping a mount waits for programs that still use it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A file system mounted and served. Dropping it unmounts, by force if need be, and shuts the file system down.
pub struct Mount {
    fs: Arc<dyn FileSystem>,
    unmounter: Unmounter,
    server: Option<JoinHandle<io::Result<()>>>,
    farewell: Arc<Farewell>,
}

/// Takes a [`Mount`] away from another thread, such as one that hears signals.
#[derive(Clone)]
pub struct Unmounter {
    mountpoint: PathBuf,
    device: Arc<OwnedFd>,
    /// The kernel's number of the mount, by which it is known from another one at its place.
    number: Option<u64>,
}

/// A directory that the kernel has mounted on for us, and that nobody serves yet: whoever looks there waits. So a file
/// system need not be opened before it is known that it can be mounted. Dropping it takes the mount away.
pub struct Place {
    unmounter: Unmounter,
    serving: Option<OwnedFd>,
    options: MountOptions,
}

impl Place {
    /// Mounts on the directory `mountpoint`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is no FUSE; [`Error::Invalid`] and [`Error::Io`] for a mount point that is not
    /// there or no directory, and with what the kernel or `fusermount3` said otherwise.
    pub fn take(mountpoint: &Path, options: &MountOptions) -> Result<Place> {
        let mount::Connection { device, mountpoint } = mount::mount(mountpoint, options)?;
        let serving = device.try_clone();
        let number = mount::mount_number(&mountpoint);
        let unmounter = Unmounter { mountpoint, device: Arc::new(device), number };
        let mut place = Place { unmounter, serving: None, options: options.clone() };
        place.serving = Some(serving.map_err(|why| Error::io("/dev/fuse", why))?);
        Ok(place)
    }

    /// Serves `fs` there; the mount's status tells what `devices`, on which it lies, were asked for.
    ///
    /// Returns when the kernel's first message is answered: from then on the mount works.
    pub fn serve(mut self, devices: Devices, fs: Arc<dyn FileSystem>) -> Result<Mount> {
        let device = self.serving.take().ok_or(Error::BadArgument)?;
        let counts = Arc::new(Counts::new());
        let threads =
            |most| Workers::new(most, WORKER_PATIENCE, counts.clone(), bimetal_base::runtime::live());
        let (workers, seekers) = (threads(WORKERS_MAX), threads(1));
        let fs: Arc<dyn FileSystem> = Arc::new(Recorded::new(fs));
        let farewell = Farewell::new(&fs, self.unmounter.clone());
        let served = Served { fs: fs.clone(), devices, counts, workers, seekers, farewell: farewell.clone() };
        match start(served, device, &self.options) {
            Ok(server) => {
                let unmounter = self.unmounter.clone();
                Ok(Mount { fs, unmounter, server: Some(server), farewell })
            }
            Err(why) => {
                self.give_back();
                Err(why)
            }
        }
    }

    /// The device that its requests come from, for a server of another kind, and what takes the mount away.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if it was given already.
    pub fn hand_over(mut self) -> Result<(OwnedFd, Unmounter)> {
        let device = self.serving.take().ok_or(Error::BadArgument)?;
        Ok((device, self.unmounter.clone()))
    }

    fn give_back(&self) {
        // Why it is given back is what is reported.
        let _ = self.unmounter.unmount(Unmount::Lazily);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.serving.is_some() {
            self.give_back();
        }
    }
}

impl Mount {
    /// Mounts `fs` on the directory `mountpoint` and starts to serve it.
    ///
    /// Returns when the kernel's first message is answered: from then on the mount works. Fails with
    /// [`Error::Unsupported`] where there is no FUSE, and with what the kernel or `fusermount3` said otherwise.
    pub fn new(fs: Arc<dyn FileSystem>, mountpoint: &Path, options: &MountOptions) -> Result<Mount> {
        Place::take(mountpoint, options)?.serve(Devices::new(), fs)
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.unmounter.mountpoint
    }

    /// Something that can take this mount away while [`wait`](Self::wait) waits for just that.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Waits until the mount is taken away, then shuts the file system down.
    pub fn wait(mut self) -> Result<()> {
        self.end()
    }

    /// Takes the mount away and shuts the file system down. Programs that still use it are waited for.
    pub fn unmount(mut self) -> Result<()> {
        if self.unmounter.unmount(Unmount::IfIdle).is_err() {
            self.unmounter.unmount(Unmount::Lazily)?;
        }
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        let served = match server.join() {
            // A thread that was just taking a request when the mount went away hears this.
            Ok(Err(why)) if why.raw_os_error() == Some(libc::ECONNABORTED) && !self.unmounter.is_alive() => {
                Ok(())
            }
            Ok(served) => served,
            Err(_) => Err(io::Error::other("the serving thread panicked")),
        };
        if served.is_err() && self.unmounter.is_alive() {
            // Nobody answers any more: an empty directory says so sooner than one that hangs.
            let _ = self.unmounter.unmount(Unmount::Lazily);
        }
        self.farewell.ends();
        let shut = self.fs.shutdown();
        let served = served.map_err(|why| Error::io(format!("serving {}", self.mountpoint().display()), why));
        let ended = served.and(shut);
        if let Err(why) = &ended {
            tracing::error!("unmounting {}: {why}", self.mountpoint().display());
        }
        self.farewell.say(&ended);
        ended
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(server) = &self.server else { return };
        if self.unmounter.unmount(Unmount::IfIdle).is_err()
            && self.unmounter.unmount(Unmount::ByForce).is_err()
        {
            let _ = self.unmounter.unmount(Unmount::Lazily);
        }
        let start = Instant::now();
        while !server.is_finished() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        let ended = if server.is_finished() { self.end() } else { self.fs.sync() };
        if let Err(why) = ended {
            tracing::error!("unmounting {}: {why}", self.mountpoint().display());
        }
    }
}

impl Unmounter {
    /// Takes the mount away, unless that has happened already; never another one that is at its place. Whoever waits
    /// for it then goes on.
    ///
    /// # Errors
    /// It is in use, something is mounted over it, or what the kernel or `fusermount3` said.
    pub fn unmount(&self, how: Unmount) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match (self.number, mount::mount_number(&self.mountpoint)) {
            (Some(ours), Some(there)) if ours != there => self.without(ours),
            _ => mount::unmount(&self.mountpoint, how),
        }
    }

    /// What there is to say where another mount is at its place: it is out of the tree of names already, or below that one.
    fn without(&self, ours: u64) -> Result<()> {
        match guard::has_mount(ours) {
            false => Ok(()),
            true => Err(Error::invalid(format!(
                "unmounting {0}: something else is mounted over it; take that away first: umount {0}",
                self.mountpoint.display()
            ))),
        }
    }

    /// Where it is, or was, mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether the kernel still has the mount; it may be another one that stands at its place by now.
    pub fn is_alive(&self) -> bool {
        let mut device = [PollFd::new(&*self.device, PollFlags::empty())];
        let asked = poll(&mut device, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        asked.is_ok() && !device[0].revents().contains(PollFlags::ERR)
    }
}

/// What a session serves, and with whom.
struct Served {
    fs: Arc<dyn FileSystem>,
    devices: Devices,
    counts: Arc<Counts>,
    workers: Workers,
    seekers: Workers,
    farewell: Arc<Farewell>,
}

fn start(served: Served, device: OwnedFd, options: &MountOptions) -> Result<JoinHandle<io::Result<()>>> {
    let Served { fs, devices, counts, workers, seekers, farewell } = served;
    let follower = CpuAffinity::new(options.follow).map_err(|why| Error::io("a thread", why))?;
    let follower = Arc::new(follower);
    let notifier = Arc::new(OnceLock::new());
    let adapter = Adapter {
        ids: NodeIds::new(fs.root()),
        control: Control {
            owner: rustix::process::getuid().as_raw(),
            counts: counts.clone(),
            follower: follower.clone(),
            options: serde_json::to_value(options).unwrap_or_default(),
            devices,
            farewell,
            began: Instant::now(),
        },
        fs,
        counts,
        follower,
        spare: Spare::of(options.threads),
        seekers,
        workers,
        notifier: notifier.clone(),
        writeback: options.writeback,
        read_only: options.read_only,
        default_permissions: options.default_permissions,
    };
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.threads);
    // The kernel itself keeps others out unless `allow_other` is given.
    let session = Session::from_fd(adapter, device, SessionACL::All, config)
        .map_err(|why| Error::io("agreeing with the kernel on the FUSE protocol", why))?;
    // Nobody else sets it.
    let _ = notifier.set(session.notifier());
    let named = thread::Builder::new().name("fuse".into());
    named.spawn(move || session.run()).map_err(|why| Error::io("a thread", why))
}
