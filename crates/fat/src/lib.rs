//! VFAT on a block device of the stack, in its time: FAT12, FAT16 and FAT32 with long names.
//!
//! The format itself is the `fatfs` crate's; what is ours is where its sectors go ([`disk`]), what a volume
//! must be before that crate is let loose on it ([`check`]), and when things are written. A *synchronous*
//! volume, as a camera's or a phone's is mounted, writes a file in pieces of 512 bytes, and each piece with the
//! FATs' and the directory's sectors it changes before the next begins. With a non-volatile write cache
//! ([`NvramCache`]) those metadata sectors go there and the data to the device: the file system itself knows
//! which are which.
//!
//! Every write is durable before the call returns (where the volume is synchronous), in an order that leaves
//! lost clusters at worst when the power goes: data, FATs, directory; directory before FATs when something is
//! deleted. After an error of the device the volume is read-only.
//!
//! Cost: a sector's copy in memory for each sector written; FATs and directories are read once.

pub mod camera;
pub mod check;
mod clock;
mod disk;
pub mod layout;
pub mod metadata;

pub use disk::VolumeCounts;
pub use layout::Layout;

use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_cache::nvram::NvramCache;
use bimetal_media::placed::Placed;
use bimetal_media::{BlockDevice, Request};
use clock::CLOCK;
use disk::{Disk, UpdateOrder};
use layout::Width;
use parking_lot::Mutex;
use serde::Serialize;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// Bytes of a sector, and of a synchronous write.
pub const SECTOR_BYTES: u64 = 512;

/// The most bytes of a file.
pub const FILE_BYTES_MAX: u64 = u32::MAX as u64;

/// What a new volume is to be.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The width of its FAT entries.
    pub width: Width,
    /// Bytes of a cluster: a power of two from 512 to 32768.
    pub cluster_bytes: u32,
    /// FAT12 and FAT16: entries of the root directory, a multiple of 16.
    pub root_entries: u16,
}

/// How a volume is used.
#[derive(Clone, Default)]
pub struct Options {
    /// Changes are gathered until [`Volume::sync`].
    pub lazy: bool,
    /// Where metadata goes; it must be the cache of the volume's device.
    pub cache: Option<Arc<NvramCache>>,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its long name, or the short one where it has no other.
    pub name: String,
    /// It is a directory.
    pub is_dir: bool,
    /// Its bytes; 0 for a directory.
    pub len: u64,
}

/// Space on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Clusters.
    pub clusters: u32,
    /// Those not in use.
    pub free_clusters: u32,
}

/// The library's access to the sectors.
#[derive(Clone)]
struct Handle(Arc<Mutex<Disk>>);

/// A volume in use.
///
/// Dropping it leaves it marked as in use; [`close`](Volume::close) does not.
pub struct Volume {
    fat: fatfs::FileSystem<Handle>,
    disk: Arc<Mutex<Disk>>,
    layout: Layout,
    lazy: bool,
}

/// A file of a volume.
pub struct File<'v> {
    inner: fatfs::File<'v, Handle>,
    volume: &'v Volume,
}

impl Volume {
    /// Makes an empty volume of all of `device`; when that is done.
    ///
    /// Fails with [`Error::Invalid`] where width, clusters and size do not go together.
    pub fn format(device: &dyn BlockDevice, at: Time, format: &Format) -> Result<Time> {
        let size = device.info().size_bytes / SECTOR_BYTES * SECTOR_BYTES;
        let sectors = u32::try_from(size / SECTOR_BYTES)
            .map_err(|_| Error::invalid(format!("a FAT volume of {size} bytes is too large")))?;
        let options = fatfs::FormatVolumeOptions::new()
            .total_sectors(sectors)
            .fat_type(match format.width {
                Width::Fat12 => fatfs::FatType::Fat12,
                Width::Fat16 => fatfs::FatType::Fat16,
                Width::Fat32 => fatfs::FatType::Fat32,
            })
            .bytes_per_cluster(format.cluster_bytes)
            .max_root_dir_entries(format.root_entries);
        // Only what is written counts: boot sector, FATs and root directory.
        let mut image = Sparse { size, position: 0, sectors: Default::default() };
        let shape = (16..=4096).contains(&format.root_entries)
            && format.cluster_bytes.is_power_of_two()
            && (512..=32_768).contains(&format.cluster_bytes);
        let made = if shape { fatfs::format_volume(&mut image, options) } else { Err(io::Error::other("")) };
        made.map_err(|_| {
            Error::invalid(format!("{size} bytes cannot be a volume as asked for: {format:?}"))
        })?;
        let mut now = at;
        for (sector, bytes) in image.sectors {
            let data = [bytes.into()].into_iter().collect();
            let done = device.run(now, Request::Write { offset: sector * SECTOR_BYTES, data, durable: true });
            done.result?;
            now = now.max(done.at);
        }
        Ok(now)
    }

    /// Opens the volume on `device` and checks it first.
    ///
    /// Fails with [`Error::Corrupt`] if its FATs and directories contradict each other.
    pub fn open(device: Arc<dyn BlockDevice>, at: Time, options: Options) -> Result<Volume> {
        if u64::from(device.info().block_bytes) > SECTOR_BYTES {
            let what = format!("a FAT volume on blocks of {} bytes", device.info().block_bytes);
            return Err(Error::unsupported(what, "the device must have blocks of 512"));
        }
        let boot = device.run(at, Request::Read { offset: 0, len: SECTOR_BYTES as usize });
        let layout = Layout::read(&boot.result?, device.info().size_bytes)?;
        // FATs and a fixed root directory are written again with every file, contents once.
        let metadata = layout.fat.start..layout.data;
        let lifetimes = vec![(metadata.start * SECTOR_BYTES..metadata.end * SECTOR_BYTES, 1)];
        let device = Arc::new(Placed::new(device, lifetimes));
        let mut disk = Disk::new(device, options.cache, layout.clone(), boot.at.max(at));
        check::check(&mut disk, &layout)?;
        disk.seek(SeekFrom::Start(0)).map_err(from_io)?;
        let disk = Arc::new(Mutex::new(disk));
        let options_ = fatfs::FsOptions::new().time_provider(&CLOCK);
        let fat = fatfs::FileSystem::new(Handle(Arc::clone(&disk)), options_).map_err(from_io)?;
        Ok(Volume { fat, disk, layout, lazy: options.lazy })
    }

    /// Where things lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// When the last operation was done.
    pub fn now(&self) -> Time {
        self.disk.lock().now
    }

    /// Lets the time until `at` pass.
    pub fn wait_until(&self, at: Time) {
        let mut disk = self.disk.lock();
        disk.now = disk.now.max(at);
    }

    /// Sectors written since it was opened.
    pub fn counts(&self) -> VolumeCounts {
        self.disk.lock().counts
    }

    /// Space in all and left.
    pub fn space(&self) -> Result<Space> {
        let stats = self.run(UpdateOrder::Add, || self.fat.stats())?;
        Ok(Space {
            cluster_bytes: u64::from(stats.cluster_size()),
            clusters: stats.total_clusters(),
            free_clusters: stats.free_clusters(),
        })
    }

    /// The directory that a path's last name is in, and that name. Directories are opened one in the other: the library
    /// goes down a path by calling itself, and a path may have more levels than a stack has room.
    fn within<'p>(&self, path: &'p str) -> io::Result<(fatfs::Dir<'_, Handle>, &'p str)> {
        let path = path.trim_matches('/');
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut names = dirs.split('/').filter(|name| !name.is_empty());
        let dir = names.try_fold(self.fat.root_dir(), |dir, name| dir.open_dir(name))?;
        Ok((dir, name))
    }

    /// A directory; `""` is the root.
    fn dir(&self, path: &str) -> io::Result<fatfs::Dir<'_, Handle>> {
        let (above, name) = self.within(path)?;
        if name.is_empty() { Ok(above) } else { above.open_dir(name) }
    }

    /// Creates an empty file, or opens the one there is.
    ///
    /// Fails with [`Error::NoSpace`] if the directory is full, with [`Error::NotFound`] without it.
    pub fn create(&self, path: &str) -> Result<File<'_>> {
        let inner = self.run(UpdateOrder::Add, || {
            let (dir, name) = self.within(path)?;
            dir.create_file(name)
        })?;
        Ok(File { inner, volume: self })
    }

    /// Opens a file. Fails with [`Error::NotFound`] or [`Error::IsDir`].
    pub fn open_file(&self, path: &str) -> Result<File<'_>> {
        let inner = self.run(UpdateOrder::Add, || {
            let (dir, name) = self.within(path)?;
            dir.open_file(name)
        })?;
        Ok(File { inner, volume: self })
    }

    /// Makes a directory. Fails with [`Error::Exists`] and as [`create`](Volume::create) does.
    pub fn make_dir(&self, path: &str) -> Result<()> {
        let exists = self.run(UpdateOrder::Add, || self.dir(path).map(drop));
        match exists {
            Err(Error::NotFound) => {}
            Ok(()) | Err(Error::NotDir) => return Err(Error::Exists),
            Err(other) => return Err(other),
        }
        self.run(UpdateOrder::Add, || {
            let (dir, name) = self.within(path)?;
            dir.create_dir(name)?;
            self.disk.lock().straighten_new_directory();
            Ok(())
        })
    }

    /// Deletes a file or an empty directory. Fails with [`Error::NotFound`] or [`Error::NotEmpty`].
    pub fn remove(&self, path: &str) -> Result<()> {
        self.run(UpdateOrder::Remove, || {
            let (dir, name) = self.within(path)?;
            dir.remove(name)
        })
    }

    /// Renames a file or a directory, or moves a file to another directory.
    ///
    /// Fails with [`Error::Exists`] if the new name is taken, with [`Error::NotSupported`] for a directory that
    /// is to move elsewhere: the library leaves its `..` behind.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let parent = |path: &str| path.trim_matches('/').rsplit_once('/').map(|(dir, _)| dir.to_lowercase());
        if parent(from) != parent(to) && self.run(UpdateOrder::Add, || self.dir(from).map(drop)).is_ok() {
            return Err(Error::NotSupported);
        }
        self.run(UpdateOrder::Add, || {
            let ((dir, name), (into, new)) = (self.within(from)?, self.within(to)?);
            dir.rename(name, &into, new)
        })
    }

    /// The entries of a directory, in its order; `""` is the root.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.run(UpdateOrder::Add, || {
            let dir = self.dir(path)?;
            let shown = |entry: &fatfs::DirEntry<'_, Handle>| {
                !matches!(entry.short_file_name_as_bytes(), b"." | b"..")
            };
            let entries = dir.iter().filter(|entry| entry.as_ref().map_or(true, shown));
            entries
                .map(|entry| {
                    let entry = entry?;
                    Ok(Entry { name: entry.file_name(), is_dir: entry.is_dir(), len: entry.len() })
                })
                .collect()
        })
    }

    /// All bytes of a file.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let mut file = self.open_file(path)?;
        let mut bytes = vec![0; file.len()? as usize];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Writes what a lazy volume has gathered.
    pub fn sync(&self) -> Result<()> {
        self.disk.lock().sync(UpdateOrder::Add)
    }

    /// Marks the volume as no longer in use, and writes what is left to be written.
    pub fn close(self) -> Result<Time> {
        let Volume { fat, disk, .. } = self;
        fat.unmount().map_err(from_io)?;
        let mut disk = disk.lock();
        disk.sync(UpdateOrder::Add)?;
        Ok(disk.now)
    }

    /// Runs an operation and writes what it changed; all or nothing as far as memory goes.
    fn run<T>(&self, order: UpdateOrder, operation: impl FnOnce() -> io::Result<T>) -> Result<T> {
        clock::set(self.now());
        let result = operation();
        let mut disk = self.disk.lock();
        match result {
            Ok(value) => {
                if !self.lazy {
                    disk.sync(order)?;
                }
                Ok(value)
            }
            Err(error) => {
                let error = from_io(error);
                if !self.lazy {
                    disk.undo();
                }
                if matches!(error, Error::Io { .. } | Error::Gone { .. }) {
                    disk.fail();
                }
                Err(error)
            }
        }
    }

    /// Sets whether a file's contents are read or written now.
    fn in_contents(&self, yes: bool) {
        self.disk.lock().in_contents = yes;
    }
}

impl File<'_> {
    /// Its bytes.
    pub fn len(&mut self) -> Result<u64> {
        self.inner.seek(SeekFrom::End(0)).map_err(from_io)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&mut self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads at `offset`; how many bytes, fewer only at the end.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let (inner, volume) = (&mut self.inner, self.volume);
        if inner.seek(SeekFrom::End(0)).map_err(from_io)? <= offset {
            return Ok(0);
        }
        inner.seek(SeekFrom::Start(offset)).map_err(from_io)?;
        volume.run(UpdateOrder::Add, || {
            volume.in_contents(true);
            let mut done = 0;
            let read = loop {
                match inner.read(&mut buffer[done..]) {
                    Ok(0) => break Ok(done),
                    Ok(read) => done += read,
                    Err(error) => break Err(error),
                }
            };
            volume.in_contents(false);
            read
        })
    }

    /// Writes at `offset`, in pieces of [`SECTOR_BYTES`] that are each durable (unless the volume is lazy)
    /// before the next. Bytes between the end and `offset` become zeros.
    ///
    /// Fails with [`Error::NoSpace`] when the volume is full, with [`Error::TooLarge`] past 4 GiB; the pieces
    /// before stay written.
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let end = self.len()?;
        if offset.saturating_add(data.len() as u64) > FILE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        if offset > end {
            let zeros = [0; SECTOR_BYTES as usize];
            for at in (end..offset).step_by(SECTOR_BYTES as usize) {
                self.write_piece(at, &zeros[..(offset - at).min(SECTOR_BYTES) as usize])?;
            }
        }
        for (index, piece) in data.chunks(SECTOR_BYTES as usize).enumerate() {
            self.write_piece(offset + index as u64 * SECTOR_BYTES, piece)?;
        }
        Ok(())
    }

    fn write_piece(&mut self, offset: u64, piece: &[u8]) -> Result<()> {
        let (inner, volume) = (&mut self.inner, self.volume);
        inner.seek(SeekFrom::Start(offset)).map_err(from_io)?;
        volume.run(UpdateOrder::Add, || {
            volume.in_contents(true);
            let written = inner.write_all(piece);
            volume.in_contents(false);
            written.and_then(|()| inner.flush())
        })
    }

    /// Cuts it off at `len`, or fills it up to there with zeros. Fails as [`write_at`](File::write_at) does.
    pub fn truncate(&mut self, len: u64) -> Result<()> {
        if self.len()? < len {
            return self.write_at(len, &[]);
        }
        let inner = &mut self.inner;
        inner.seek(SeekFrom::Start(len)).map_err(from_io)?;
        self.volume.run(UpdateOrder::Remove, || {
            inner.truncate()?;
            inner.flush()
        })
    }
}

/// What an error of the library is. It tells apart by words what it has no kinds for.
fn from_io(error: io::Error) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(ours) => return ours,
        Err(other) => other,
    };
    match (error.kind(), error.to_string().as_str()) {
        (io::ErrorKind::NotFound, _) => Error::NotFound,
        (io::ErrorKind::AlreadyExists, _) => Error::Exists,
        (io::ErrorKind::WriteZero, _) => Error::NoSpace("in the directory"),
        (_, "No space left on device") => Error::NoSpace("on the FAT volume"),
        (_, "Is a directory") => Error::IsDir,
        (_, "Not a directory") => Error::NotDir,
        (_, "Directory not empty") => Error::NotEmpty,
        (_, "File name contains unsupported characters" | "Invalid file name length") => {
            Error::invalid(format!("FAT has no such names: {error}"))
        }
        (io::ErrorKind::InvalidInput, _) => Error::BadArgument,
        (_, why) => Error::corrupt("FAT volume", why, "as the library met it"),
    }
}

impl Read for Handle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.lock().read(buffer)
    }
}

impl Write for Handle {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Handle {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.lock().seek(to)
    }
}

/// The sectors written by a format, of a volume of zeros.
struct Sparse {
    size: u64,
    position: u64,
    sectors: std::collections::BTreeMap<u64, Vec<u8>>,
}

impl Read for Sparse {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (sector, from) = (self.position / SECTOR_BYTES, (self.position % SECTOR_BYTES) as usize);
        let len = buffer.len().min(SECTOR_BYTES as usize - from);
        match self.sectors.get(&sector) {
            Some(bytes) => buffer[..len].copy_from_slice(&bytes[from..from + len]),
            None => buffer[..len].fill(0),
        }
        self.position += len as u64;
        Ok(len)
    }
}

impl Write for Sparse {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let (sector, from) = (self.position / SECTOR_BYTES, (self.position % SECTOR_BYTES) as usize);
        let len = data.len().min(SECTOR_BYTES as usize - from);
        let bytes = self.sectors.entry(sector).or_insert_with(|| vec![0; SECTOR_BYTES as usize]);
        bytes[from..from + len].copy_from_slice(&data[..len]);
        self.position += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Sparse {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.size, by),
        };
        let to = base.checked_add_signed(by);
        self.position = to.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests;
