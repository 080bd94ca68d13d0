//! Where a file or device really lies: which bytes of what.
//!
//! A path may lead to a file, a disk, a partition of one, a loop device over part of a file, a partition of that, a loop
//! device over a device. Followed down, each is a range of bytes of a file or a disk; two of them overlap if their ranges do.
//!
//! sysfs says which loop devices there are. What lies below one it says itself, by device and inode: the name of its
//! file, which sysfs has, may lead elsewhere by now. Where it may not be asked, the name decides.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const SECTOR: u64 = 512;
/// Loop devices over loop devices that are followed down; the kernel makes no circles.
const LOOPS: u32 = 16;

/// What bytes belong to in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// A file, by device and inode.
    File(u64, u64),
    /// A device, by its number.
    Device(u64),
}

/// A range of bytes of a file or a disk.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub base: Base,
    pub range: Range<u64>,
    /// Device numbers of a block device and its partitions, itself first; none for a file.
    pub numbers: Vec<u64>,
    /// The file below a loop device.
    pub backing: Option<PathBuf>,
    /// The devices that it lies on, between itself and its base.
    pub through: Vec<u64>,
}

/// The file that a path leads to, by device and inode, also below loop devices and their partitions; none below another
/// device, or where there is nothing.
pub fn file_below(path: &Path) -> Option<(u64, u64)> {
    match Place::of(&fs::metadata(path).ok()?).base {
        Base::File(device, inode) => Some((device, inode)),
        Base::Device(_) => None,
    }
}

impl Place {
    /// The place of what has this metadata.
    pub fn of(found: &Metadata) -> Place {
        let kind = found.file_type();
        if kind.is_block_device() {
            return of_device(found.rdev());
        }
        let base = match kind.is_char_device() {
            // Character and block devices count separately.
            true => Base::Device(found.rdev() | 1 << 63),
            false => Base::File(found.dev(), found.ino()),
        };
        Place { base, range: 0..u64::MAX, numbers: Vec::new(), backing: None, through: Vec::new() }
    }

    /// Whether some byte belongs to both.
    pub fn overlaps(&self, other: &Place) -> bool {
        self.base == other.base && self.range.start < other.range.end && other.range.start < self.range.end
    }

    /// Whether it is a device that the kernel lets nobody write.
    pub fn is_read_only(&self) -> bool {
        let says = |number: &u64| fs::read_to_string(node(*number).join("ro"));
        self.numbers.first().and_then(|number| says(number).ok()).is_some_and(|text| text.trim() == "1")
    }

    /// Whether the same bytes belong to both.
    pub fn is_same(&self, other: &Place) -> bool {
        self.base == other.base && self.range == other.range
    }
}

fn of_device(number: u64) -> Place {
    below_device(number, LOOPS)
}

/// The place of a device that lies over at most `loops` loop devices.
fn below_device(number: u64, loops: u32) -> Place {
    let mut numbers = vec![number];
    numbers.extend(partitions(number));
    let (disk, range) = partition(number).unwrap_or((number, 0..u64::MAX));
    let mut through = if disk == number { Vec::new() } else { vec![disk] };
    let found = if loops > 0 { loop_file(disk) } else { None };
    let Some(Looped { path, below, range: part }) = found else {
        return Place { base: Base::Device(disk), range, numbers, backing: None, through };
    };
    let range = within(&part, &range);
    let (base, range, backing) = match below {
        Below::File(base) => (base, range, path),
        Below::Block(number) => {
            let lower = below_device(number, loops - 1);
            through.push(number);
            through.extend(lower.through);
            (lower.base, within(&lower.range, &range), lower.backing.unwrap_or(path))
        }
        Below::Unknown => (Base::Device(disk), range, path),
    };
    Place { base, range, numbers, backing: Some(backing), through }
}

/// The bytes that `range` of the bytes of `part` are.
fn within(part: &Range<u64>, range: &Range<u64>) -> Range<u64> {
    part.start.saturating_add(range.start)..part.start.saturating_add(range.end).min(part.end)
}

/// The directory sysfs has for a block device.
pub(super) fn node(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    link.canonicalize().unwrap_or(link)
}

/// `8:1` as a device number.
pub(super) fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Of a partition, its disk and what of it it is.
fn partition(number: u64) -> Option<(u64, Range<u64>)> {
    let node = node(number);
    node.join("partition").exists().then_some(())?;
    let disk = parse_number(&fs::read_to_string(node.parent()?.join("dev")).ok()?)?;
    let start = read_number(&node.join("start"))?.checked_mul(SECTOR)?;
    let size = read_number(&node.join("size"))?.checked_mul(SECTOR)?;
    Some((disk, start..start.saturating_add(size)))
}

/// The partitions of a disk.
fn partitions(number: u64) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(node(number)) else { return Vec::new() };
    let is_partition = |path: &PathBuf| path.join("partition").exists();
    let found = entries.flatten().map(|entry| entry.path()).filter(is_partition);
    found.filter_map(|path| parse_number(&fs::read_to_string(path.join("dev")).ok()?)).collect()
}

/// What a loop device shows.
struct Looped {
    /// The name that its file had.
    path: PathBuf,
    below: Below,
    /// What of it.
    range: Range<u64>,
}

/// What lies below a loop device.
#[derive(Clone, Copy)]
enum Below {
    File(Base),
    Block(u64),
    /// It does not say, and its name leads to nothing.
    Unknown,
}

/// What lies below a loop device, and what of it the device shows; `None` if it is none, or nothing is.
fn loop_file(number: u64) -> Option<Looped> {
    let device = node(number);
    let node = device.join("loop");
    let mut name = fs::read(node.join("backing_file")).ok()?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    let path = PathBuf::from(OsString::from_vec(name));
    if let Some(said) = ask(number, &device) {
        let below = match said.block {
            0 => Below::File(Base::File(said.device, said.inode)),
            block => Below::Block(block),
        };
        return Some(Looped { path, below, range: part(said.offset, said.limit) });
    }
    let below = match fs::metadata(&path) {
        Ok(found) if found.file_type().is_block_device() => Below::Block(found.rdev()),
        Ok(found) => Below::File(Base::File(found.dev(), found.ino())),
        Err(_) => Below::Unknown,
    };
    let offset = read_number(&node.join("offset")).unwrap_or(0);
    Some(Looped { path, below, range: part(offset, read_number(&node.join("sizelimit")).unwrap_or(0)) })
}

/// A limit of 0 is none.
fn part(offset: u64, limit: u64) -> Range<u64> {
    offset..if limit > 0 { offset.saturating_add(limit) } else { u64::MAX }
}

/// What a loop device says of itself.
struct Said {
    /// Device and inode of its file.
    device: u64,
    inode: u64,
    /// The number of the block device that its file is; 0 if it is none.
    block: u64,
    offset: u64,
    limit: u64,
}

/// Asks the loop device of this number, whose directory in sysfs has its name; `None` if it may not be asked.
fn ask(number: u64, node: &Path) -> Option<Said> {
    let device = Path::new("/dev").join(node.file_name()?);
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(device).ok()?;
    let found = file.metadata().ok()?;
    (found.file_type().is_block_device() && found.rdev() == number).then_some(())?;
    let LoopInfo { device, inode, rdevice, offset, limit, .. } = loop_info(&file)?;
    // Older kernels have the file's own device where it is no device itself.
    let block = if rdevice == device { 0 } else { rdevice };
    Some(Said { device, inode, block, offset, limit })
}

/// `loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    limit: u64,
    rest: [u64; 24],
}

fn loop_info(file: &File) -> Option<LoopInfo> {
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    let mut info = LoopInfo { device: 0, inode: 0, rdevice: 0, offset: 0, limit: 0, rest: [0; 24] };
    // SAFETY: the request fills in a loop_info64, of 232 bytes, which `info` has; the descriptor is open.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64, std::ptr::from_mut(&mut info)) };
    (done == 0).then_some(info)
}

/// Loop devices over some of these bytes: their names and places.
pub(super) fn loops_over(place: &Place) -> Vec<(String, Place)> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let over = |name: String| {
        let number = parse_number(&fs::read_to_string(format!("/sys/block/{name}/dev")).ok()?)?;
        let found = of_device(number);
        (found.backing.is_some() && found.overlaps(place) && !place.numbers.contains(&number))
            .then(|| (format!("/dev/{name}"), found))
    };
    names.filter(|name| name.starts_with("loop")).filter_map(over).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(base: Base, range: Range<u64>) -> Place {
        Place { base, range, numbers: Vec::new(), backing: None, through: Vec::new() }
    }

    #[test]
    fn two_partitions_of_a_disk_do_not_overlap_but_each_does_with_the_disk() {
        let disk = place(Base::Device(8), 0..u64::MAX);
        let (first, second) = (place(Base::Device(8), 512..1024), place(Base::Device(8), 1024..4096));
        assert!(!first.overlaps(&second) && !second.overlaps(&first));
        assert!(first.overlaps(&disk) && disk.overlaps(&second) && !first.is_same(&disk));
        assert!(!first.overlaps(&place(Base::Device(16), 512..1024)));
    }

    #[test]
    fn a_hard_link_lies_where_its_file_lies() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&one, "x").unwrap();
        fs::hard_link(&one, &other).unwrap();
        let of = |path: &Path| Place::of(&fs::metadata(path).unwrap());
        assert!(of(&one).is_same(&of(&other)));
        fs::write(dir.path().join("c"), "x").unwrap();
        assert!(!of(&one).overlaps(&of(&dir.path().join("c"))));
    }
}
