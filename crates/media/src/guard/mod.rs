//! The guard: what every command passes its files and devices through before it touches them.
//!
//! A command says what it is going to do to each of its targets ([`Role`]); [`claim`] opens them, locks them, and
//! refuses what must not be touched, in this order:
//!
//! 1. the same bytes named twice (by another path, a hard link, a loop device, a partition of the other);
//! 2. what another bimetal uses: an exclusive flock(2) by who writes, a shared one by who reads;
//! 3. what the kernel uses: mounts, swap, device mapper and RAID, loop devices, and anybody's `O_EXCL`;
//! 4. for what is going to be overwritten, what it holds. This alone can be overridden by `force`.
//!
//! The locks are held from before the checks until the [`Claim`] is dropped, so that what was checked is what is
//! written. Programs that open the device themselves (mke2fs, e2fsck) are lent it, see [`Claim::lend`].
//! Cost: some reads of `/proc` and `/sys` a target, once a command.

mod marks;
mod mounts;
mod place;
mod signature;
mod users;
mod whole;

pub use marks::Mark;
pub use mounts::{MountLine, MountedAt, has_mount, mounted_at, mounts_seen_by};
pub use place::file_below;
pub use whole::{BESIDE, Begun, beside, give_up, take_place, take_places, whole};

use bimetal_base::{Error, Result};
use parking_lot::Mutex;
use place::Place;
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How often, and how far apart, what is in use is asked for again before it counts as in use. The kernel lets go
/// of a device a moment after its last user did, and udev looks into each that was written.
const PATIENCE: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);

/// What a command is going to do to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its contents are lost.
    Overwritten,
    /// Its contents change.
    Changed,
    /// Nothing of it changes.
    Read,
}

impl Role {
    /// To change, or only to read.
    pub fn changed_if(writable: bool) -> Role {
        if writable { Role::Changed } else { Role::Read }
    }

    fn writes(self) -> bool {
        self != Role::Read
    }
}

/// A file or device as a command was given it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// What it is to the command, as `--ssd`.
    pub name: &'a str,
    /// Where it is.
    pub path: &'a Path,
    /// What is going to happen to it.
    pub role: Role,
    /// It is made, empty, if it is not there.
    pub make: bool,
}

impl<'a> Target<'a> {
    /// A target that has to be there.
    pub fn new(name: &'a str, path: &'a Path, role: Role) -> Target<'a> {
        Target { name, path, role, make: false }
    }
}

/// The path by which a program that something was lent to ([`Claim::lend`]) opens it.
pub const LENT: &str = "/proc/self/fd/0";

/// A file or device that is open and locked until this is dropped.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
    role: Role,
    place: Place,
    /// Of a block device that is written: keeps the kernel and other programs away.
    held: Mutex<Option<File>>,
    /// Of a loop device: its backing file, locked so that nobody writes it from behind.
    _backing: Option<File>,
    /// It was not there before.
    made: bool,
}

impl Claim {
    /// How messages call it.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// What may be done to it.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The open file. Whoever duplicates it must not outlive the claim.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path that leads to what is claimed, whatever its name leads to by now; for this process.
    pub fn path(&self) -> PathBuf {
        path_of(&self.file)
    }

    /// The same claim for who only reads. The lock is of both, and lasts while either does.
    ///
    /// # Errors
    /// This process may not open more files.
    pub fn to_read(&self) -> Result<Arc<Claim>> {
        let failed = |why| Error::io(self.name(), why);
        let file = self.file.try_clone().map_err(failed)?;
        let backing = self._backing.as_ref().map(File::try_clone).transpose().map_err(failed)?;
        Ok(Arc::new(Claim {
            file,
            path: self.path.clone(),
            role: Role::Read,
            place: self.place.clone(),
            held: Mutex::new(None),
            _backing: backing,
            made: false,
        }))
    }

    /// Has another program work on what is claimed, at [`LENT`], for its own exclusive use. The lock that other
    /// bimetals respect is the program's as well (the locked file is its standard input): should this process be
    /// killed, it lasts until the program has ended, too.
    ///
    /// # Errors
    /// `about`, where the program cannot be run; [`Error::InUse`] if somebody else took the device in between.
    pub fn lend(&self, command: &mut Command, about: &str) -> Result<Output> {
        let failed = |why| Error::io(about, why);
        let locked = self.file.try_clone().map_err(failed)?;
        let was_held = self.held.lock().take().is_some();
        let done = command.stdin(locked).output().map_err(failed);
        if was_held {
            *self.held.lock() = Some(hold(&self.path(), &self.path)?);
        }
        done
    }
}

/// A path that leads to an open file, for this process: `self` is it in whatever PID namespace `/proc` is of, which its own number
/// need not be.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

impl Drop for Claim {
    /// A file that was made for this claim and got nothing is taken away again.
    fn drop(&mut self) {
        let is_empty = || self.file.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
        let is_there = || fs::metadata(&self.path).is_ok_and(|found| Place::of(&found).is_same(&self.place));
        if self.made && is_empty() && is_there() {
            // Whoever made it has said by then why nothing is in it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens and locks all of `targets`, in their order, or none.
///
/// # Errors
/// [`Error::InUse`] names who uses one of them, [`Error::Invalid`] what one of them holds (unless `force`), that
/// two are the same, or that one is neither a file nor a device; [`Error::Io`] what the system said. Files that
/// were made for it are removed again.
pub fn claim(targets: &[Target], force: bool) -> Result<Vec<Arc<Claim>>> {
    refuse_same(targets)?;
    let mut claims: Vec<Arc<Claim>> = Vec::new();
    for target in targets {
        let claim = Arc::new(claim_one(target, &claims, targets)?);
        claims.push(claim.clone());
        if target.role == Role::Overwritten && !force {
            refuse_contents(&claim)?;
        }
    }
    Ok(claims)
}

/// An error if two of the targets that are there share bytes.
fn refuse_same(targets: &[Target]) -> Result<()> {
    let mut before: Vec<(&Target, Place)> = Vec::new();
    for target in targets {
        // What is not there, or cannot be looked at, is refused or made when it is opened.
        let Ok(found) = fs::metadata(target.path) else { continue };
        let place = Place::of(&found);
        if let Some((other, there)) = before.iter().find(|(_, there)| place.overlaps(there)) {
            return Err(same(other, target, place.is_same(there)));
        }
        before.push((target, place));
    }
    Ok(())
}

/// [`claim`] of one target that has to be there.
///
/// # Errors
/// As [`claim`]'s.
pub fn claim_path(path: &Path, role: Role) -> Result<Arc<Claim>> {
    claim_one(&Target::new("", path, role), &[], &[]).map(Arc::new)
}

/// Opens a file for output that a user named, and empties it if it is there. A device that keeps what is written to it, an image with
/// a file system on it, and what is in use are refused: whoever names one of these has made a mistake.
///
/// # Errors
/// [`Error::Invalid`] and [`Error::InUse`] for these, [`Error::Io`] if it cannot be made.
pub fn output(path: &Path) -> Result<File> {
    let failed = |why| Error::io(path.display(), why);
    let Some(claim) = claim_output(path, Role::Changed)? else { return unclaimed(path) };
    let mut file = &claim.file;
    file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
    // The lock goes with the file that is handed out.
    claim.file.try_clone().map_err(failed)
}

/// Opens for output what is no file, or not there. Nobody is waited for.
fn unclaimed(path: &Path) -> Result<File> {
    let failed = |why| Error::io(path.display(), why);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(|why| match why.raw_os_error() {
        Some(libc::ENXIO) if is_fifo(path) => Error::invalid(format!(
            "{} is a FIFO that nobody reads; name a file for the output, or begin to read it first",
            path.display()
        )),
        _ => failed(why),
    })?;
    // Whoever writes to it is to wait for its reader.
    waits(file).map_err(failed)
}

/// The file, whose reads and writes wait from now on.
fn waits(file: File) -> io::Result<File> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
    Ok(file)
}

/// Whether a path is that of something which this process has open.
fn is_own_pipe(path: &Path) -> bool {
    ["/dev/fd", "/proc/self/fd"].iter().any(|dir| path.starts_with(dir))
}

/// Opens a file that a user named, to be read. What is no file is refused without being waited for: a FIFO waits for a
/// writer, a device may have no end. A pipe that this process was given open (a shell's `<(…)`) has its writer.
///
/// # Errors
/// [`Error::Invalid`] for what is no file, [`Error::Io`] if it cannot be opened.
pub fn input(path: &Path) -> Result<File> {
    let failed = |why| Error::io(path.display(), why);
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let found = opened.and_then(|file| Ok((file.metadata()?.file_type(), file)));
    let what = match found {
        Ok((kind, file)) if kind.is_file() => return Ok(file),
        Ok((kind, _)) if kind.is_dir() => "a directory",
        Ok((kind, file)) if kind.is_fifo() && is_own_pipe(path) => return waits(file).map_err(failed),
        Ok((kind, _)) if kind.is_fifo() => "a FIFO",
        Ok(_) => "a device",
        Err(why) if why.raw_os_error() == Some(libc::ENXIO) => "a socket, or a device that is not there",
        Err(why) => return Err(failed(why)),
    };
    Err(Error::invalid(format!("{} is {what}; name a file", path.display())))
}

fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

/// Opens a file to append to, which is made if it is not there, and which others may append to. Refused is what [`output`]
/// refuses, and FIFOs: who writes to one waits for its reader.
///
/// # Errors
/// As [`output`]'s.
pub fn log(path: &Path) -> Result<File> {
    if is_fifo(path) {
        return Err(Error::invalid(format!("{} is a FIFO; name a file for the output", path.display())));
    }
    match claim_output(path, Role::Read) {
        // It may be appended to, and not be read.
        Err(why) if is_of(&why, &[io::ErrorKind::PermissionDenied]) => {}
        claimed => drop(claimed?),
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o644);
    options.open(path).map_err(|why| Error::io(path.display(), why))
}

fn is_of(why: &Error, kinds: &[io::ErrorKind]) -> bool {
    matches!(why, Error::Io { source, .. } if kinds.contains(&source.kind()))
}

/// An error if what a path leads to must not be replaced by another file: what [`output`] refuses, devices of either kind, FIFOs,
/// sockets, and links, wherever they lead (`/dev/stdout`). What is not there may be. What is returned keeps others away from it.
///
/// # Errors
/// As [`output`]'s.
pub fn replaced(path: &Path) -> Result<Option<Arc<Claim>>> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(None) };
    let kind = found.file_type();
    if kind.is_symlink() {
        return Err(Error::invalid(format!(
            "{} is a link; name what it leads to, or another",
            path.display()
        )));
    }
    if !kind.is_file() {
        return Err(Error::invalid(format!("{} is no file; name another", path.display())));
    }
    // Who may change a directory may replace what is in it, also what may not be written, or is being run.
    match claim_output(path, Role::Changed) {
        Err(why) if is_of(&why, &[io::ErrorKind::PermissionDenied, io::ErrorKind::ExecutableFileBusy]) => {
            claim_output(path, Role::Read)
        }
        claimed => claimed,
    }
}

/// Whether a character device keeps nothing of what is written to it: a terminal, `/dev/null`, `/dev/zero`, `/dev/full`. NAND parts
/// (MTD), NVRAMs, memory and what nobody knows by its numbers do, or may.
fn keeps_nothing(found: &fs::Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let is_of_class = |class: &str| {
        let subsystem = fs::read_link(format!("/sys/dev/char/{major}:{minor}/subsystem"));
        subsystem.is_ok_and(|path| path.ends_with(class))
    };
    // Linux' devices.txt: 1 memory, 4 and 5 terminals, 136 to 143 those of pseudo terminals, which have no entry in /sys.
    matches!((major, minor), (1, 3 | 5 | 7) | (4 | 5 | 136..=143, _)) || is_of_class("tty")
}

/// Claims a file that is there already. Block devices are refused, of character devices those that keep what is written, and files
/// with a file system on them; nothing is claimed of what is no file.
fn claim_output(path: &Path, role: Role) -> Result<Option<Arc<Claim>>> {
    let Ok(found) = fs::metadata(path) else { return Ok(None) };
    let kind = found.file_type();
    if kind.is_block_device() || kind.is_char_device() && !keeps_nothing(&found) {
        let text = format!("{} is a device; name a file for the output", path.display());
        return Err(Error::Invalid(text));
    }
    if !found.is_file() {
        return Ok(None);
    }
    let claim = claim_path(path, role)?;
    match signature::signature((&*claim).into())? {
        Some(what) => {
            let text = format!("{} holds {what}; name another file for the output", path.display());
            Err(Error::Invalid(text))
        }
        None => Ok(Some(claim)),
    }
}

fn claim_one(target: &Target, before: &[Arc<Claim>], targets: &[Target]) -> Result<Claim> {
    let name = target.path.display().to_string();
    let (file, made) = open(target)?;
    let done = claim_opened(target, file, made, before, targets);
    if let (Err(_), true) = (&done, made) {
        let _ = fs::remove_file(target.path);
    }
    done.map_err(|why| match why {
        Error::Io { what, source } if what.is_empty() => Error::io(name, source),
        why => why,
    })
}

fn claim_opened(
    target: &Target,
    file: File,
    made: bool,
    before: &[Arc<Claim>],
    targets: &[Target],
) -> Result<Claim> {
    let found = file.metadata().map_err(|why| Error::io("", why))?;
    let place = Place::of(&found);
    if let Some(index) = before.iter().position(|other| place.overlaps(&other.place)) {
        return Err(same(&targets[index], target, place.is_same(&before[index].place)));
    }
    lock(&file, target)?;
    let backing = lock_backing(&place, target)?;
    users::refuse(&place, target)?;
    let path = path_of(&file);
    let is_block = found.file_type().is_block_device();
    if is_block && target.role.writes() && place.is_read_only() {
        return Err(read_only(target));
    }
    let held = match (is_block, target.role.writes()) {
        (true, true) => Some(hold(&path, target.path)?),
        (true, false) if !users::is_mounted(&place) => drop_held(hold(&path, target.path)?),
        _ => None,
    };
    Ok(Claim {
        file,
        path: target.path.into(),
        role: target.role,
        place,
        held: Mutex::new(held),
        _backing: backing,
        made,
    })
}

/// A reader only asks whether somebody holds the device; two readers may.
fn drop_held(held: File) -> Option<File> {
    drop(held);
    None
}

/// Opens a target as its role needs it; whether it was made.
fn open(target: &Target) -> Result<(File, bool)> {
    let failed = |why| Error::io(target.path.display(), why);
    let mut options = OpenOptions::new();
    options.read(true).write(target.role.writes());
    if target.make && !target.path.exists() {
        let file = options.create_new(true).open(target.path).map_err(failed)?;
        return Ok((file, true));
    }
    let kind = fs::metadata(target.path).map_err(failed)?.file_type();
    // A FIFO would be waited for; a character device can only be a NAND part or an NVRAM.
    if !kind.is_file() && !kind.is_block_device() && !kind.is_char_device() {
        return Err(Error::invalid(format!(
            "{} is neither a file nor a block device",
            target.path.display()
        )));
    }
    let opened = options.open(target.path).map_err(|why| match why.raw_os_error() {
        Some(libc::EROFS) => on_read_only(target),
        _ => failed(why),
    });
    opened.map(|file| (file, false))
}

/// Tries `what` until it is done or has been tried often enough.
fn patiently<T>(mut what: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut done = what();
    for _ in 0..PATIENCE {
        match &done {
            Err(why) if matches!(why.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN)) => {}
            _ => break,
        }
        thread::sleep(PAUSE);
        done = what();
    }
    done
}

/// Takes the lock that all bimetals respect.
fn lock(file: &File, target: &Target) -> Result<()> {
    let how = match target.role.writes() {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match patiently(|| Ok(rustix::fs::flock(file, how)?)) {
        Ok(()) => Ok(()),
        Err(why) if why.raw_os_error() == Some(libc::EAGAIN) => Err(users::locked(target.path, file)),
        Err(why) => Err(Error::io(format!("{}: lock", target.path.display()), why)),
    }
}

/// Locks the file below a loop device: shared, for other loop devices and partitions may lie over other parts of it,
/// but nobody writes the file itself meanwhile. `None` if its name does not lead to it: who names it by another meets the
/// loop device.
fn lock_backing(place: &Place, target: &Target) -> Result<Option<File>> {
    let Some(path) = place.backing.as_deref() else { return Ok(None) };
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let Some(file) = opened.ok().filter(|file| is_at(file, place)) else { return Ok(None) };
    match patiently(|| Ok(rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?)) {
        Ok(()) => Ok(Some(file)),
        Err(why) if why.raw_os_error() == Some(libc::EAGAIN) => {
            let name = format!("{} (the file below {})", path.display(), target.path.display());
            Err(users::locked(Path::new(&name), &file))
        }
        Err(why) => Err(Error::io(format!("{}: lock", path.display()), why)),
    }
}

/// Whether an open file has bytes of this place.
fn is_at(file: &File, place: &Place) -> bool {
    file.metadata().is_ok_and(|found| Place::of(&found).overlaps(place))
}

/// Takes a block device for exclusive use; no mount, no other holder gets it meanwhile.
fn hold(path: &Path, name: &Path) -> Result<File> {
    let open = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    patiently(open).map_err(|why| match why.raw_os_error() {
        Some(libc::EBUSY) => users::held(name),
        _ => Error::io(format!("{}: open", name.display()), why),
    })
}

/// What a claimed thing holds, by its signature; `None` where there is none that is known.
///
/// # Errors
/// What reading it says.
pub fn signature_of(claim: &Claim) -> Result<Option<String>> {
    signature::signature(claim.into())
}

/// What a file or device holds, by its signature. It is neither claimed nor kept from anybody.
///
/// # Errors
/// What opening or reading it says.
pub fn signature_at(path: &Path) -> Result<Option<String>> {
    let file = File::open(path).map_err(|why| Error::io(path.display(), why))?;
    signature::signature(signature::Looked { file: &file, name: path })
}

/// What a file or device holds besides an SSD half of ours, by its signature. It is neither claimed nor kept from anybody.
///
/// # Errors
/// What opening or reading it says.
pub fn other_than_ssd_half(path: &Path) -> Result<Option<String>> {
    let file = File::open(path).map_err(|why| Error::io(path.display(), why))?;
    signature::other_than_ssd_half(signature::Looked { file: &file, name: path })
}

/// The mark of another that a claimed half of ours carries beside its own superblocks, see [`Mark`].
///
/// # Errors
/// What reading it says.
pub fn mark_beside(claim: &Claim) -> Result<Option<Mark>> {
    let looked = signature::Looked::from(claim);
    marks::mark(looked, looked.size())
}

/// The same of a file or device, which is neither claimed nor kept from anybody.
///
/// # Errors
/// What opening or reading it says.
pub fn mark_at(path: &Path) -> Result<Option<Mark>> {
    let file = File::open(path).map_err(|why| Error::io(path.display(), why))?;
    let looked = signature::Looked { file: &file, name: path };
    marks::mark(looked, looked.size())
}

/// Whether a device, or the file system that a file is on, takes no writes.
pub fn is_read_only(path: &Path) -> bool {
    let Ok(found) = fs::metadata(path) else { return false };
    if found.file_type().is_block_device() {
        return Place::of(&found).is_read_only();
    }
    let mounted = rustix::fs::statvfs(path);
    mounted.is_ok_and(|stat| stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// The refusal of a device that takes no writes.
fn read_only(target: &Target) -> Error {
    let name = target.path.display();
    Error::invalid(format!(
        "{name} is a read-only device; look at what is on it with mount -o ro, fsck -n, ls or get, or let it be written: \
         blockdev --setrw {name}"
    ))
}

/// The refusal of a file that takes no writes.
fn on_read_only(target: &Target) -> Error {
    let name = target.path.display();
    Error::invalid(format!(
        "{name} is on a file system that is mounted read-only; look at what is in it with mount -o ro, fsck -n, ls or get, or \
         let it be written: mount -o remount,rw of that file system"
    ))
}

/// The refusal of two targets that are one.
fn same(first: &Target, second: &Target, whole: bool) -> Error {
    let how = if whole { "are the same" } else { "lie over each other" };
    Error::invalid(format!(
        "{} {} and {} {} {how}: each would destroy the other; name two different files or devices",
        first.name,
        first.path.display(),
        second.name,
        second.path.display()
    ))
}

/// What a file or device holds that would be lost if it was overwritten; `None` if it holds nothing.
///
/// # Errors
/// [`Error::Io`] if it cannot be read.
pub fn contents(claim: &Claim) -> Result<Option<String>> {
    signature::contents(claim.into())
}

/// An error if the claimed thing holds something.
fn refuse_contents(claim: &Claim) -> Result<()> {
    let Some(what) = signature::contents(claim.into())? else { return Ok(()) };
    Err(Error::invalid(format!("{} already holds {what}; use --force to overwrite it", claim.name())))
}

#[cfg(test)]
mod tests;
