//! An NVRAM that is mapped into memory: a file, a `/dev/pmem` device, a file on a DAX file system.
//!
//! A word is one store of eight bytes, which no memory tears. `persist` is `msync` of what was written: for a file
//! that writes back its pages, for DAX it flushes the processor's caches to the medium. Opened for reading, the map is
//! private, and what is written stays in memory. A file that is written has no holes.

use super::host;
use bimetal_base::{Error, Result};
use bimetal_media::guard::{self, Claim, Role};
use cmfs_core::NvramError;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const WORD: usize = 8;
/// What a range of `msync` begins with a multiple of: no machine has larger pages.
const PAGE: usize = 64 << 10;

/// A mapped memory.
#[derive(Debug)]
pub struct MappedNvram {
    /// Keeps others away.
    claim: Arc<Claim>,
    base: *mut u8,
    len: usize,
    shared: bool,
    /// Bytes written since they were last made to stay.
    dirty: Option<Range<usize>>,
    /// The host could not keep something.
    failed: bool,
}

// SAFETY: the map belongs to this value alone, and every access needs `&mut self`.
unsafe impl Send for MappedNvram {}

impl MappedNvram {
    /// Maps a file or device as long as it is.
    ///
    /// # Errors
    /// It cannot be opened or mapped, is in use, or is empty.
    pub fn open(path: &Path, writable: bool) -> Result<MappedNvram> {
        MappedNvram::over(guard::claim_path(path, Role::changed_if(writable))?)
    }

    /// Maps what a command has claimed; what is written stays in it only if it was claimed for that.
    ///
    /// # Errors
    /// It cannot be mapped, or is empty.
    pub fn over(claim: Arc<Claim>) -> Result<MappedNvram> {
        let (mut file, writable) = (claim.file(), claim.role() != Role::Read);
        let failed = |why: std::io::Error| Error::io(claim.name(), why);
        let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let len = usize::try_from(len).unwrap_or(0) / WORD * WORD;
        if len == 0 {
            return Err(Error::invalid(format!("{}: an NVRAM cannot be empty", claim.name())));
        }
        if writable {
            allocate(&claim, len)?;
        }
        let flags = if writable { MapFlags::SHARED } else { MapFlags::PRIVATE };
        // SAFETY: a new map at a place that the kernel chooses; the lock keeps other volumes from the file.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)
        };
        let base = base.map_err(|why| failed(why.into()))?.cast();
        Ok(MappedNvram { claim, base, len, shared: writable, dirty: None, failed: false })
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), NvramError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(NvramError),
        }
    }
}

/// Has the host keep room for all of a file: a store into a hole of one, on a host that is full, would kill the process.
fn allocate(claim: &Claim, len: usize) -> Result<()> {
    let file = claim.file();
    let full = |why: std::io::Error| {
        let what = "all of its room on the host is taken when it is opened to be written";
        Error::io(format!("{}: {what}", claim.name()), why)
    };
    if !file.metadata().map_err(full)?.is_file() {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len as u64) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            // What is written, be it what was there, takes room.
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, 0).and_then(|()| file.write_all_at(&bytes, 0)).map_err(full)
        }
        done => done.map_err(|why| full(why.into())),
    }
}

impl Drop for MappedNvram {
    fn drop(&mut self) {
        // SAFETY: the map was made by `open`, of this length, and nobody uses it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

impl cmfs_core::Nvram for MappedNvram {
    fn size_bytes(&self) -> usize {
        self.len
    }

    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), NvramError> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range was checked to be inside the map, and the buffer is not.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(offset), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), NvramError> {
        self.check(offset, bytes.len())?;
        let mut at = offset;
        for part in bytes.chunks(WORD) {
            match <[u8; WORD]>::try_from(part) {
                // SAFETY: inside the map as checked; the map begins at a page, so a multiple of 8 is aligned.
                Ok(word) if at.is_multiple_of(WORD) => unsafe {
                    self.base.add(at).cast::<u64>().write_volatile(u64::from_ne_bytes(word));
                },
                // SAFETY: inside the map as checked, and the bytes are not.
                _ => unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), self.base.add(at), part.len()) },
            }
            at += part.len();
        }
        self.dirty = Some(match self.dirty.take() {
            Some(old) => old.start.min(offset)..old.end.max(at),
            None => offset..at,
        });
        Ok(())
    }

    fn persist(&mut self) -> Result<(), NvramError> {
        if self.failed {
            return Err(NvramError);
        }
        let Some(dirty) = self.dirty.take().filter(|_| self.shared) else { return Ok(()) };
        let start = dirty.start / PAGE * PAGE;
        // SAFETY: from the beginning of a page inside the map to a byte inside it.
        let kept =
            unsafe { rustix::mm::msync(self.base.add(start).cast(), dirty.end - start, MsyncFlags::SYNC) };
        // The host says so once.
        self.failed = kept.is_err();
        kept.map_err(|why| {
            host::said(Error::io(self.claim.name(), why.into()));
            NvramError
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmfs_core::Nvram;

    #[test]
    fn what_is_persisted_is_in_the_file_and_a_reader_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nvram");
        std::fs::write(&path, vec![0; 10_000]).unwrap();
        let mut memory = MappedNvram::open(&path, true).unwrap();
        assert!(MappedNvram::open(&path, true).is_err(), "it is in use");
        memory.write(8, &[1; 16]).unwrap();
        memory.write(8001, &[2; 5]).unwrap();
        memory.persist().unwrap();
        assert_eq!(memory.write(9996, &[0; 8]), Err(NvramError));
        let file = std::fs::read(&path).unwrap();
        assert!(file[8..24] == [1; 16] && file[8001..8006] == [2; 5] && file[24] == 0);
        drop(memory);
        let mut reader = MappedNvram::open(&path, false).unwrap();
        reader.write(0, &[9; 8]).unwrap();
        reader.persist().unwrap();
        let mut bytes = [0; 24];
        reader.read(0, &mut bytes).unwrap();
        assert!(bytes[..8] == [9; 8] && bytes[8..] == [1; 16]);
        drop(reader);
        assert_eq!(std::fs::read(&path).unwrap()[0], 0);
        std::fs::write(&path, b"").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let room = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
        assert_eq!(room(), 0, "a hole");
        drop(MappedNvram::open(&path, false).unwrap());
        assert_eq!(room(), 0, "a reader changes nothing");
        drop(MappedNvram::open(&path, true).unwrap());
        assert!(room() >= 2048, "the host keeps room for all of it: {}", room());
        std::fs::write(&path, b"").unwrap();
        assert!(MappedNvram::open(&path, true).unwrap_err().to_string().contains("empty"));
    }
}
