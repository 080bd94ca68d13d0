//! Getting a FUSE mount from the kernel, and giving it back.
//!
//! Root opens `/dev/fuse` and calls mount(2). Anyone else, or root where that is forbidden, asks `fusermount3`,
//! a set-user-ID program that does both and passes the open device back through a socket (its number in
//! `_FUSE_COMMFD`; the protocol is in libfuse's `util/fusermount.c`). That also works where `/dev/fuse` itself is
//! closed to the caller.

use super::options::{Atime, MountOptions};
use bimetal_base::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const HELPER: &str = "fusermount3";
/// The type that the kernel shows of a volume, as `fuse.` and this.
pub const SUBTYPE: &str = "bimetal";

/// A mount that has no server yet: the device its requests come from.
pub(super) struct Connection {
    pub device: OwnedFd,
    pub mountpoint: PathBuf,
}

/// Mounts on `mountpoint`, which must be a directory.
pub(super) fn mount(mountpoint: &Path, options: &MountOptions) -> Result<Connection> {
    let name = mountpoint.display();
    // The kernel may still know what a mount whose server is dead looked like; how full it is, it has to ask.
    let looked = mountpoint.canonicalize().and_then(|whole| {
        rustix::fs::statvfs(&whole)?;
        Ok((whole.metadata()?.is_dir(), whole))
    });
    let (is_dir, whole) = looked.map_err(|why| match why.raw_os_error() {
        Some(libc::ENOTCONN) => Error::invalid(format!(
            "mount point {name}: a mount whose server is dead is in the way; take it away with: bimetal umount {name}"
        )),
        _ => Error::io(format!("mount point {name}"), why),
    })?;
    if !is_dir {
        return Err(Error::invalid(format!("mount point {name} is not a directory; make one with mkdir")));
    }
    let device = match mount_directly(&whole, options) {
        Err(why) if matches!(why.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            mount_by_helper(&whole, options)?
        }
        Err(why) if matches!(why.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {
            return Err(Error::unsupported(
                "mounting",
                format!("this system has no FUSE ({why} at /dev/fuse); load it with: modprobe fuse"),
            ));
        }
        mounted => mounted.map_err(|why| Error::io(format!("mounting on {name}"), why))?,
    };
    Ok(Connection { device, mountpoint: whole })
}

fn mount_directly(mountpoint: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse")?.into();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    for (on, text) in shared_options(options) {
        if on {
            data.push_str(text);
        }
    }
    let flags = [
        (options.read_only, MountFlags::RDONLY),
        (!options.suid, MountFlags::NOSUID),
        (!options.dev, MountFlags::NODEV),
        (!options.exec, MountFlags::NOEXEC),
        (options.atime == Atime::Never, MountFlags::NOATIME),
        (options.atime == Atime::Relative, MountFlags::RELATIME),
        (options.atime == Atime::Always, MountFlags::STRICTATIME),
        (!options.diratime, MountFlags::NODIRATIME),
    ];
    let flags = flags.iter().filter(|(on, _)| *on).fold(MountFlags::empty(), |all, (_, flag)| all | *flag);
    let data = CString::new(data)?;
    rustix::mount::mount(
        &*options.fsname,
        mountpoint,
        format!("fuse.{}", options.subtype),
        flags,
        Some(data.as_c_str()),
    )?;
    Ok(device)
}

fn shared_options(options: &MountOptions) -> [(bool, &'static str); 2] {
    [(options.default_permissions, ",default_permissions"), (options.allow_other, ",allow_other")]
}

fn mount_by_helper(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd> {
    // A comma or a backslash would end the name in the helper's list of options.
    let fsname = options.fsname.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={fsname},subtype={}", options.subtype);
    let flags = [
        (options.read_only, ",ro"),
        (!options.suid, ",nosuid"),
        (!options.dev, ",nodev"),
        (!options.exec, ",noexec"),
        (options.atime == Atime::Never, ",noatime"),
    ];
    for (on, text) in shared_options(options).into_iter().chain(flags) {
        if on {
            list.push_str(text);
        }
    }
    let (ours, theirs) = UnixStream::pair().map_err(|why| Error::io("a socket for fusermount3", why))?;
    // The helper's end is its standard input, so nothing needs to be made inheritable.
    let child = Command::new(HELPER)
        .env("_FUSE_COMMFD", "0")
        .args(["-o", &list, "--"])
        .arg(mountpoint)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|why| {
            Error::unsupported("mounting without root", format!("{HELPER}: {why}; install fuse3"))
        })?;
    let received = receive_device(&ours);
    let output = child.wait_with_output().map_err(|why| Error::io(HELPER, why))?;
    match received {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Err(why) => Err(Error::io("the socket from fusermount3", why)),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            let remedy = match said.contains("/dev/fuse") {
                true => "; as root, let others than root use FUSE with: chmod 666 /dev/fuse",
                false => "",
            };
            Err(Error::invalid(format!("mounting on {}: {said}{remedy}", mountpoint.display())))
        }
    }
}

fn receive_device(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    loop {
        match recvmsg(socket.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
            Ok(_) => break,
        }
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut devices) => devices.next(),
        _ => None,
    }))
}

/// The kernel's number of what is mounted on a place; its server is not asked.
pub(super) fn mount_number(place: &Path) -> Option<u64> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::open(place, flags, Mode::empty()).ok()?;
    let said = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", open.as_raw_fd())).ok()?;
    said.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// How to take a mount away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Only if nothing uses it.
    IfIdle,
    /// From the tree of names at once, for its users when they are done.
    Lazily,
    /// At once; requests under way and to come fail. Root only.
    ByForce,
}

/// Takes the mount at `mountpoint` away, directly or by the helper.
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<()> {
    let flags = match how {
        Unmount::IfIdle => UnmountFlags::NOFOLLOW,
        Unmount::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Unmount::ByForce => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    let failed = |why: io::Error| Error::io(format!("unmounting {}", mountpoint.display()), why);
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_by_helper(mountpoint, how),
        Err(why) => Err(failed(why.into())),
    }
}

fn unmount_by_helper(mountpoint: &Path, how: Unmount) -> Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if how != Unmount::IfIdle {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mountpoint).output();
    let output = output.map_err(|why| {
        Error::unsupported("unmounting without root", format!("{HELPER}: {why}; install fuse3"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let what = format!("unmounting {}", mountpoint.display());
    if said.contains("busy") {
        return Err(Error::io(what, io::Error::from_raw_os_error(libc::EBUSY)));
    }
    Err(Error::invalid(format!("{what}: {}", said.trim())))
}
