//! A file or a block special file as a device.
//!
//! Two ways to the same place. [`BlockDevice::submit`] queues on an io_uring, so that many requests are
//! under way at once; where the kernel allows none (old, or forbidden by a container), requests are
//! served one after the other by plain system calls. [`BlockDevice::run`] always uses plain calls on
//! the calling thread: no thread is woken, which matters for a small durable write.
//!
//! How a durable write is made durable, measured on Linux 6.18, a virtio disk with a write cache, 400
//! interleaved writes each over allocated blocks; µs, median (best):
//!
//! ```text
//!                               write+fdatasync   RWF_DSYNC     io_uring       io_uring
//!                                                               write → fsync  DSYNC
//! ext4 file       buffered 4 K    102 (74)         93 (66)       117 (68)       109 (73)
//!                 buffered 8 K     93 (73)         91 (70)       101 (72)        96 (73)
//!                 direct   4 K     92 (62)         91 (65)       109 (74)       101 (69)
//!                 direct   8 K     77 (65)         77 (65)        82 (75)        82 (70)
//! loop, direct on buffered 4 K    214 (132)       181 (127)      225 (165)      206 (145)
//! the file        buffered 8 K    183 (135)       157 (116)      208 (142)      173 (137)
//!                 direct   4 K    162 (119)       239 (176)      170 (129)      157 (116)
//!                 direct   8 K    169 (111)       247 (181)      179 (133)      159 (122)
//! loop, buffered  buffered 4 K    167 (117)       162 (104)      191 (137)      153 (117)
//!                 direct   4 K    191 (132)       289 (151)      240 (157)      172 (134)
//! ```
//!
//! So: `RWF_DSYNC`, except for direct I/O on a block device, where it flushes twice (once as part of the
//! write, once after it) and write + fdatasync is the faster. An SSD that is a block device is used so ([`Cached::Files`]).
//!
//! A device must not be carried over a `fork`: its ring belongs to the process that opened it.

use super::buffer::Pool;
use super::guard::{self, Claim, Role};
use super::probe;
use super::uring::{Job, Ring};
use super::{BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket, check};
use bimetal_base::runtime::Live;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bytes::Bytes;
use rustix::fs::{Advice, FallocateFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// The most parts one gathered write may have in one system call (`IOV_MAX`).
const PARTS_MAX: usize = 1024;
/// The most bytes of one request on the ring; the kernel moves no more than 2 GiB in a call.
const RING_BYTES_MAX: usize = 1 << 30;
/// Requests under way at once; what comes on top is served on the calling thread.
const RING_ENTRIES: u32 = 256;

/// What goes through the kernel's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// Everything.
    All,
    /// Files, and nothing of block devices: a durable write of one is one request and one flush, nothing is in memory twice,
    /// and what is read is what is on the medium. Not writes alone: the kernel leaves what it read meanwhile in the
    /// cache of a device when a queued direct write ends (seen on Linux 6.18), so that reads through it are stale.
    Files,
    /// Nothing; where there is no direct I/O, opening fails.
    Nothing,
}

/// How to open a device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Open for writing, too.
    pub writable: bool,
    /// What goes through the kernel's page cache.
    pub cached: Cached,
    /// Pass it through the [`guard`]: refuse what somebody else uses, and keep others away.
    pub exclusive: bool,
    /// Queue on an io_uring where the kernel allows one.
    pub queued: bool,
}

impl Options {
    /// As an SSD half is used: files through the page cache, block devices round it.
    pub fn of_ssd(writable: bool) -> Options {
        Options { writable, cached: Cached::Files, ..Options::default() }
    }
}

impl Default for Options {
    /// Read-only, through the page cache, shared, queued.
    fn default() -> Options {
        Options { writable: false, cached: Cached::All, exclusive: false, queued: true }
    }
}

/// A file or block special file, read and written in place.
pub struct FileDevice {
    info: DeviceInfo,
    file: File,
    writable: bool,
    block_device: bool,
    direct: bool,
    memory_align: usize,
    pool: Arc<Pool>,
    ring: Option<Ring>,
    /// Keeps others away.
    claim: Option<Arc<Claim>>,
}

impl FileDevice {
    /// Opens an existing file or device, shared and through the page cache; its size is what it is now.
    pub fn open(path: &Path, writable: bool) -> Result<FileDevice> {
        FileDevice::open_with(path, &Options { writable, ..Options::default() })
    }

    /// Opens an existing file or device.
    ///
    /// Fails with [`Error::Invalid`] if it is neither; [`Error::InUse`] if it is wanted exclusively and in use;
    /// [`Error::Unsupported`] if its file system has no direct I/O; [`Error::Io`] otherwise.
    pub fn open_with(path: &Path, options: &Options) -> Result<FileDevice> {
        if options.exclusive {
            return FileDevice::over(guard::claim_path(path, Role::changed_if(options.writable))?, options);
        }
        FileDevice::open_named(path, path.display().to_string(), options)
    }

    /// A device over what a command has claimed; it stays claimed as long as the device is open. Writable only if it
    /// was claimed for that.
    ///
    /// Fails as [`open_with`](FileDevice::open_with).
    pub fn over(claim: Arc<Claim>, options: &Options) -> Result<FileDevice> {
        let options = Options { writable: options.writable && claim.role() != Role::Read, ..*options };
        let path = claim.path();
        let opened = FileDevice::open_named(&path, claim.name(), &options);
        let mut device = opened.map_err(|why| match fs::symlink_metadata(&path) {
            Ok(_) => why,
            Err(_) => why.explained(
                "it is opened by way of /proc, which is not mounted here, or shows other processes",
            ),
        })?;
        device.claim = Some(claim);
        if device.block_device && !device.direct {
            // What others read while it was last used round its cache may be in there still (see `Cached`).
            device.forget_cached(0, device.info.size_bytes);
        }
        Ok(device)
    }

    /// What keeps others away from it, if it was opened so.
    pub fn claim(&self) -> Option<&Arc<Claim>> {
        self.claim.as_ref()
    }

    fn open_named(path: &Path, name: String, options: &Options) -> Result<FileDevice> {
        let opened = probe::open(path, &name, options)?;
        let info = DeviceInfo {
            name,
            size_bytes: opened.size_bytes,
            block_bytes: opened.block_bytes,
            atomic_bytes: opened.block_bytes,
            rotational: opened.rotational,
        };
        Ok(FileDevice {
            info,
            ring: options.queued.then(|| Ring::new(RING_ENTRIES)).flatten(),
            file: opened.file,
            writable: options.writable,
            block_device: opened.block_device,
            direct: opened.direct,
            memory_align: opened.memory_align,
            pool: Pool::new(),
            claim: None,
        })
    }

    /// Whether requests are queued on an io_uring.
    pub fn is_queued(&self) -> bool {
        self.ring.is_some()
    }

    fn check(&self, request: &Request) -> Result<()> {
        check(&self.info, request)?;
        match request {
            Request::Write { .. } | Request::Discard { .. } if !self.writable => {
                Err(Error::invalid(format!("{}: it was opened read-only", self.info.name)))
            }
            _ => Ok(()),
        }
    }

    /// The parts copied into one aligned buffer, if the device cannot take them as they are.
    fn bounced(&self, data: &Gather) -> Option<Gather> {
        let block = self.info.block_bytes as usize;
        let fits = |part: &Bytes| {
            (part.as_ptr() as usize).is_multiple_of(self.memory_align) && part.len().is_multiple_of(block)
        };
        if !self.direct || data.iter().all(fits) {
            return None;
        }
        let mut whole = self.pool.take(data.bytes() as usize);
        let mut rest = whole.as_mut();
        for part in data {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        }
        Some(Gather::from_iter([whole.freeze()]))
    }

    /// Serves a checked request on this thread.
    fn serve(&self, request: &Request) -> io::Result<Bytes> {
        match request {
            Request::Read { offset, len } => {
                let mut buffer = self.pool.take(*len);
                self.file.read_exact_at(buffer.as_mut(), *offset)?;
                return Ok(buffer.freeze());
            }
            Request::Write { offset, data, durable } => {
                let copy = self.bounced(data);
                let data = copy.as_ref().unwrap_or(data);
                match durable {
                    true => {
                        self.write_durable(data, *offset)?;
                        self.check_whole()?;
                    }
                    false => write_from(&self.file, data, 0, *offset, ReadWriteFlags::empty())?,
                }
            }
            Request::Flush => {
                self.file.sync_data()?;
                self.check_whole()?;
            }
            Request::Discard { offset, len } => self.discard(*offset, *len)?,
        }
        Ok(Bytes::new())
    }

    /// Refuses to call durable what is in a file that somebody cut short or removed meanwhile: a write past its new end
    /// makes it longer again, and zeros are where the rest was.
    fn check_whole(&self) -> io::Result<()> {
        if self.block_device {
            return Ok(());
        }
        let (has, links) = self.size_and_links()?;
        if has < self.info.size_bytes {
            let had = self.info.size_bytes;
            return Err(io::Error::other(format!("somebody cut the file from {had} to {has} bytes")));
        }
        match links {
            0 => Err(io::Error::other("somebody removed the file")),
            _ => Ok(()),
        }
    }

    /// How long the file is, and how many names it has, without asking for its times.
    ///
    /// Once somebody has seen a file's times, a kernel with multigrain timestamps (Linux 6.13) gives the next write a time
    /// of its own; else writes within a tick of the clock share one. After each durable write this would dirty the inode,
    /// and make a host without a journal write it with the next: a third of the time of a small durable write.
    fn size_and_links(&self) -> io::Result<(u64, u64)> {
        let wanted = StatxFlags::SIZE | StatxFlags::NLINK;
        match rustix::fs::statx(&self.file, c"", rustix::fs::AtFlags::EMPTY_PATH, wanted) {
            Ok(found) => Ok((found.stx_size, found.stx_nlink.into())),
            // A sandbox may know no statx.
            Err(_) => self.file.metadata().map(|found| (found.len(), found.nlink())),
        }
    }

    fn write_durable(&self, data: &Gather, offset: u64) -> io::Result<()> {
        if !(self.direct && self.block_device) {
            match write_from(&self.file, data, 0, offset, ReadWriteFlags::DSYNC) {
                Err(error) if refused(&error) => {}
                result => return result,
            }
        }
        write_from(&self.file, data, 0, offset, ReadWriteFlags::empty())?;
        self.file.sync_data()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let result = match self.block_device {
            true => block_discard(&self.file, offset, len),
            false => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, offset, len).map_err(io::Error::from)
            }
        };
        // Whichever way it is said that there are none.
        result.map_err(|error| if refused(&error) { Errno::OPNOTSUPP.into() } else { error })
    }

    /// Turns a checked request into a job for the ring; gives it back if it has to be served here.
    fn job(&self, request: Request) -> Result<Job, Request> {
        match request {
            Request::Read { len, .. } if len <= RING_BYTES_MAX => {
                Ok(Job { buffer: Some(self.pool.take(len)), request })
            }
            Request::Write { offset, data, durable }
                if data.len() <= PARTS_MAX && data.bytes() as usize <= RING_BYTES_MAX =>
            {
                let data = self.bounced(&data).unwrap_or(data);
                Ok(Job { buffer: None, request: Request::Write { offset, data, durable } })
            }
            Request::Flush => Ok(Job { buffer: None, request }),
            other => Err(other),
        }
    }

    /// Finishes what the ring did: what it left over is done on this thread.
    fn finish(&self, job: Job, result: io::Result<usize>) -> Result<Bytes> {
        let done = match result {
            Ok(done) => done,
            Err(error) if try_again(&error) => return self.serve_named(&job.request),
            Err(error) => return Err(self.error(&job.request, error)),
        };
        let Job { request, buffer } = job;
        let rest = match (&request, buffer) {
            (Request::Read { offset, .. }, Some(mut buffer)) => {
                let (_, left) = buffer.as_mut().split_at_mut(done);
                match left.is_empty() {
                    true => Ok(()),
                    false => self.file.read_exact_at(left, offset + done as u64),
                }
                .map(|()| buffer.freeze())
            }
            (Request::Write { data, .. }, _) if done < data.bytes() as usize => self.serve(&request),
            (Request::Write { durable: true, .. } | Request::Flush, _) => {
                self.check_whole().map(|()| Bytes::new())
            }
            _ => Ok(Bytes::new()),
        };
        rest.map_err(|error| self.error(&request, error))
    }

    fn serve_named(&self, request: &Request) -> Result<Bytes> {
        self.serve(request).map_err(|error| self.error(request, error))
    }

    fn error(&self, request: &Request, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM | libc::ESHUTDOWN) => {
                Error::Gone { device: self.info.name.clone() }
            }
            _ => Error::io(format!("{}: {}", self.info.name, describe(request)), error),
        }
    }
}

/// What the ring could not do but a plain call may. A thread that ends before its queued request was
/// served has it cancelled.
fn try_again(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ECANCELED)) || refused(error)
}

/// The system knows the call but not for this file.
fn refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

/// Writes all of `data` but its first `skip` bytes, in as few calls as the system lets us; `offset` is
/// where the first byte of all goes.
fn write_from(file: &File, data: &Gather, skip: usize, offset: u64, flags: ReadWriteFlags) -> io::Result<()> {
    let mut at = offset + skip as u64;
    let mut slices: Vec<IoSlice<'_>>;
    let mut one: [IoSlice<'_>; 1];
    let mut parts: &mut [IoSlice<'_>] = match data.as_slice() {
        [part] => {
            one = [IoSlice::new(part)];
            &mut one
        }
        parts => {
            slices = parts.iter().map(|part| IoSlice::new(part)).collect();
            &mut slices
        }
    };
    IoSlice::advance_slices(&mut parts, skip);
    while !parts.is_empty() {
        let now = parts.len().min(PARTS_MAX);
        match rustix::io::pwritev2(file, &parts[..now], at, flags) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut parts, written);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// `BLKDISCARD`: the range of a block device.
fn block_discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    /// `_IO(0x12, 119)` of linux/fs.h.
    const BLKDISCARD: libc::Ioctl = 0x1277;
    let range = [offset, len];
    // SAFETY: the call reads two u64 from the pointer, which outlives it.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A request in words, for messages.
fn describe(request: &Request) -> String {
    match request {
        Request::Read { offset, len } => format!("read of {len} bytes at {offset}"),
        Request::Write { offset, data, .. } => {
            format!("write of {} bytes at {offset}", data.bytes() as usize)
        }
        Request::Flush => "flush".to_string(),
        Request::Discard { offset, len } => format!("discard of {len} bytes at {offset}"),
    }
}

impl BlockDevice for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        // Pages are kept in folios of up to so many bytes, and only whole ones are dropped.
        const FOLIO_BYTES: u64 = 2 << 20;
        let first = offset / FOLIO_BYTES * FOLIO_BYTES;
        let bytes = (offset.saturating_add(len).div_ceil(FOLIO_BYTES) * FOLIO_BYTES).saturating_sub(first);
        // Advice: where it is refused, reads are what they were.
        let _ = rustix::fs::fadvise(&self.file, first, NonZeroU64::new(bytes), Advice::DontNeed);
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let Some(ring) = &self.ring else { return Ticket::Done(self.run(at, request)) };
        if let Err(error) = self.check(&request) {
            return Ticket::Done(Completion { at: Live::monotonic(), result: Err(error) });
        }
        let job = match self.job(request) {
            Ok(job) => job,
            Err(request) => return Ticket::Done(self.run(at, request)),
        };
        match ring.submit(self.file.as_raw_fd(), job) {
            Ok(number) => Ticket::Pending(number),
            Err(job) => Ticket::Done(self.run(at, job.request)),
        }
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match (ticket, &self.ring) {
            (Ticket::Done(completion), _) => completion,
            (Ticket::Pending(number), Some(ring)) => {
                let (job, result) = ring.wait(number);
                let result = self.finish(job, result);
                Completion { at: Live::monotonic(), result }
            }
            (Ticket::Pending(number), None) => unreachable!("ticket {number} is not of this device"),
        }
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        match (ticket, &self.ring) {
            (Ticket::Pending(number), Some(ring)) => ring.is_done(*number),
            _ => true,
        }
    }

    fn run(&self, _at: Time, request: Request) -> Completion {
        let result = self.check(&request).and_then(|()| self.serve_named(&request));
        Completion { at: Live::monotonic(), result }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_all;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    use tempfile::NamedTempFile;

    fn image(bytes: u64) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        file
    }

    fn every_way() -> impl Iterator<Item = Options> {
        [Cached::All, Cached::Files, Cached::Nothing]
            .into_iter()
            .flat_map(|cached| [false, true].map(|queued| (cached, queued)))
            .map(|(cached, queued)| Options { writable: true, cached, exclusive: true, queued })
    }

    fn opened(image: &NamedTempFile, options: &Options) -> Option<FileDevice> {
        match FileDevice::open_with(image.path(), options) {
            Err(Error::Unsupported { .. }) => None,
            device => Some(device.unwrap()),
        }
    }

    #[test]
    fn a_file_that_was_cut_short_or_removed_meanwhile_makes_nothing_durable() {
        for options in every_way() {
            for cut in [true, false] {
                let image = image(1 << 20);
                let Some(device) = opened(&image, &options) else { continue };
                let device: &dyn BlockDevice = &device;
                device.write(0, Bytes::from(vec![1; 4096])).unwrap();
                device.flush().unwrap();
                match cut {
                    true => image.as_file().set_len(4096).unwrap(),
                    false => std::fs::remove_file(image.path()).unwrap(),
                }
                let data = Gather::from_iter([Bytes::from(vec![2; 4096])]);
                for request in [Request::Write { offset: 65536, data, durable: true }, Request::Flush] {
                    let why = wait_all(device, [device.submit(Time::ZERO, request.clone())]).result;
                    let [queued, direct] = [why.err(), device.run(Time::ZERO, request).result.err()];
                    for error in [queued, direct] {
                        let said = error.expect("an error").to_string();
                        assert!(said.contains(if cut { "cut the file from" } else { "removed" }), "{said}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back_every_way() {
        for options in every_way() {
            let image = image(1 << 20);
            let Some(device) = opened(&image, &options) else { continue };
            let device: &dyn BlockDevice = &device;
            let parts: Gather = (0..5).map(|part| Bytes::from(vec![part; 4096])).collect();
            for (offset, durable) in [(0, false), (65536, true)] {
                let request = Request::Write { offset, data: parts.clone(), durable };
                device.run(Time::ZERO, request.clone()).result.unwrap();
                wait_all(device, [device.submit(Time::ZERO, request)]).result.unwrap();
                let read = device.read(offset, 5 * 4096).unwrap();
                assert_eq!(&read[..], &parts.concat()[..], "{options:?}");
            }
            device.flush().unwrap();
            device.wait(device.submit(Time::ZERO, Request::Flush)).result.unwrap();
        }
    }

    #[test]
    fn parts_of_any_length_and_alignment_are_gathered() {
        let whole = Bytes::from((0..8192u32).map(|at| at as u8).collect::<Vec<u8>>());
        let parts: Gather = [(0, 1), (1, 700), (700, 701), (701, 8192)]
            .into_iter()
            .map(|(from, to): (usize, usize)| whole.slice(from..to))
            .collect();
        for options in every_way() {
            let image = image(65536);
            let Some(device) = opened(&image, &options) else { continue };
            let device: &dyn BlockDevice = &device;
            let request = Request::Write { offset: 4096, data: parts.clone(), durable: false };
            device.wait(device.submit(Time::ZERO, request)).result.unwrap();
            assert_eq!(device.read(4096, 8192).unwrap(), whole, "{options:?}");
        }
    }

    #[test]
    fn a_gather_of_more_parts_than_one_call_takes_is_written_whole() {
        let image = image(4 << 20);
        let device = FileDevice::open(image.path(), true).unwrap();
        let device: &dyn BlockDevice = &device;
        let data: Gather = (0..3000u32).map(|part| Bytes::from(vec![part as u8; 512])).collect();
        let request = Request::Write { offset: 512, data, durable: false };
        device.wait(device.submit(Time::ZERO, request)).result.unwrap();
        for part in [0u64, 1023, 1024, 2999] {
            assert_eq!(device.read(512 + part * 512, 512).unwrap()[511], part as u8);
        }
    }

    /// Random writes and reads of separate blocks with up to 300 under way, against a copy in memory.
    #[test]
    fn many_requests_under_way_end_as_they_would_one_by_one() {
        for options in every_way() {
            let image = image(1 << 20);
            let Some(device) = opened(&image, &options) else { continue };
            let mut model = vec![0u8; 256];
            let mut random = SmallRng::seed_from_u64(1);
            for round in 0..6u8 {
                let mut tickets = Vec::new();
                for (block, byte) in model.iter_mut().enumerate() {
                    if random.random_bool(0.7) {
                        *byte = random.random();
                        let data = Gather::from_iter([Bytes::from(vec![*byte; 4096])]);
                        let durable = round == 0 && block % 50 == 0;
                        let request = Request::Write { offset: block as u64 * 4096, data, durable };
                        tickets.push(device.submit(Time::ZERO, request));
                    }
                }
                wait_all(&device, tickets).result.unwrap();
                let read =
                    |block: u64| device.submit(Time::ZERO, Request::Read { offset: block * 4096, len: 4096 });
                let reads: Vec<Ticket> = (0..256).map(read).collect();
                for (block, ticket) in reads.into_iter().enumerate().rev() {
                    assert_eq!(device.wait(ticket).result.unwrap()[4095], model[block], "{options:?}");
                }
            }
        }
    }

    #[test]
    fn a_discarded_range_of_a_file_is_a_hole() {
        let image = image(1 << 20);
        let device = FileDevice::open(image.path(), true).unwrap();
        let device: &dyn BlockDevice = &device;
        device.write(0, vec![1; 65536]).unwrap();
        device.run(Time::ZERO, Request::Discard { offset: 4096, len: 8192 }).result.unwrap();
        let read = device.read(0, 16384).unwrap();
        assert!(read[..4096].iter().chain(&read[12288..]).all(|&byte| byte == 1));
        assert!(read[4096..12288].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn an_image_that_shrank_is_an_error_with_the_place() {
        let image = image(1 << 20);
        for queued in [false, true] {
            image.as_file().set_len(1 << 20).unwrap();
            let options = Options { queued, ..Options::default() };
            let device = FileDevice::open_with(image.path(), &options).unwrap();
            image.as_file().set_len(5000).unwrap();
            let ticket = device.submit(Time::ZERO, Request::Read { offset: 4096, len: 4096 });
            let error = device.wait(ticket).result.unwrap_err().to_string();
            assert!(error.contains("read of 4096 bytes at 4096"), "{error}");
            assert!(error.contains(&*image.path().to_string_lossy()), "{error}");
        }
    }

    #[test]
    fn a_device_opened_read_only_refuses_to_write_by_name() {
        let image = image(4096);
        let device = FileDevice::open(image.path(), false).unwrap();
        let device: &dyn BlockDevice = &device;
        let error = device.write(0, vec![0; 512]).unwrap_err().to_string();
        assert!(error.contains("read-only") && error.contains(&*image.path().to_string_lossy()), "{error}");
    }

    #[test]
    fn an_image_in_use_is_refused_by_name() {
        let image = image(4096);
        // Who only reads shares with readers.
        let options = Options { writable: true, exclusive: true, ..Options::default() };
        let first = FileDevice::open_with(image.path(), &options).unwrap();
        let error = FileDevice::open_with(image.path(), &options).err().unwrap().to_string();
        assert!(error.contains("in use") && error.contains(&*image.path().to_string_lossy()), "{error}");
        drop(first);
        FileDevice::open_with(image.path(), &options).unwrap();
    }

    #[test]
    fn only_files_and_block_devices_open() {
        for path in ["/dev/null", "/tmp"] {
            let error = FileDevice::open(Path::new(path), false).err().unwrap().to_string();
            assert!(error.contains("neither a file nor a block device"), "{error}");
        }
        let error = FileDevice::open(Path::new("/nonexistent"), false).err().unwrap().to_string();
        assert!(error.starts_with("/nonexistent: open"), "{error}");
    }
}
