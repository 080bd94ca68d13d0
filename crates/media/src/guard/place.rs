//! Where a file or device really lies: which bytes of what.
//!
//! A path may lead to a file, a disk, a partition of one, a loop device over part of a file, a partition of that.
//! Followed down, each is a range of bytes of a file or a disk; two of them overlap if their ranges do.

use std::fs::{self, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const SECTOR: u64 = 512;

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
        Place { base, range: 0..u64::MAX, numbers: Vec::new(), backing: None }
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
    let mut numbers = vec![number];
    numbers.extend(partitions(number));
    let (disk, range) = match partition(number) {
        Some((disk, range)) => (disk, range),
        None => (number, 0..u64::MAX),
    };
    let Some((path, below)) = loop_file(disk) else {
        return Place { base: Base::Device(disk), range, numbers, backing: None };
    };
    let range = below.start.saturating_add(range.start)..below.start.saturating_add(range.end).min(below.end);
    let base = fs::metadata(&path).map_or(Base::Device(disk), |found| Base::File(found.dev(), found.ino()));
    Place { base, range, numbers, backing: Some(path) }
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

/// The file below a loop device, and what of it the device shows.
fn loop_file(number: u64) -> Option<(PathBuf, Range<u64>)> {
    let node = node(number).join("loop");
    let path = fs::read_to_string(node.join("backing_file")).ok()?;
    let start = read_number(&node.join("offset")).unwrap_or(0);
    let limit = read_number(&node.join("sizelimit")).filter(|limit| *limit > 0);
    let end = limit.map_or(u64::MAX, |limit| start.saturating_add(limit));
    Some((path.trim_end_matches('\n').into(), start..end))
}

/// Loop devices over some of these bytes of a file: their names and places.
pub(super) fn loops_over(place: &Place) -> Vec<(String, Place)> {
    let Base::File(..) = place.base else { return Vec::new() };
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
        Place { base, range, numbers: Vec::new(), backing: None }
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
