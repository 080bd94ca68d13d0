//! A file or a block special file as a device, by plain `pread`, `pwrite` and `fdatasync`.

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check};
use crate::time::Time;
use crate::{Error, Result};
use bytes::Bytes;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file (or block special file) read and written in place, one request at a time.
pub struct FileDevice {
    info: DeviceInfo,
    file: File,
}

impl FileDevice {
    /// Opens an existing file or device; its size is what it is now.
    pub fn open(path: &Path, writable: bool) -> Result<FileDevice> {
        let name = path.display().to_string();
        let mut file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(path)
            .map_err(|error| Error::io(format!("{name}: open"), error))?;
        let size_bytes =
            file.seek(SeekFrom::End(0)).map_err(|error| Error::io(format!("{name}: size"), error))?;
        let info = DeviceInfo { name, size_bytes, block_bytes: 512, atomic_bytes: 512, rotational: false };
        Ok(FileDevice { info, file })
    }

    fn serve(&self, request: Request) -> std::io::Result<Bytes> {
        match request {
            Request::Read { offset, len } => {
                let mut buffer = vec![0; len];
                self.file.read_exact_at(&mut buffer, offset)?;
                Ok(buffer.into())
            }
            Request::Write { mut offset, data, durable } => {
                for part in data {
                    self.file.write_all_at(&part, offset)?;
                    offset += part.len() as u64;
                }
                if durable {
                    self.file.sync_data()?;
                }
                Ok(Bytes::new())
            }
            Request::Flush => self.file.sync_data().map(|()| Bytes::new()),
            Request::Discard { .. } => Ok(Bytes::new()),
        }
    }
}

impl BlockDevice for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, _at: Time, request: Request) -> Ticket {
        let result = check(&self.info, &request)
            .and_then(|()| self.serve(request).map_err(|error| Error::io(&self.info.name, error)));
        Ticket::Done(Completion { at: Time::now(), result })
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match ticket {
            Ticket::Done(completion) => completion,
            Ticket::Pending(number) => unreachable!("ticket {number} is not of this device"),
        }
    }

    fn is_done(&self, _: &Ticket) -> bool {
        true
    }
}
