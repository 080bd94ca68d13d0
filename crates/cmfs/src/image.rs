//! A NAND part in a file.
//!
//! The image is page after page, each followed by its spare area: what `nanddump --oob` writes and what tools
//! for YAFFS2 read. It is sparse: a page of zeros, data and spare area, was never programmed (no page that was has
//! tags of zeros), and erasing leaves a hole. A bad block is marked as on a part: a byte with two or more bits
//! clear at the beginning of its first spare area.

use super::host::gone;
use bimetal_base::{Error, Result};
use bimetal_media::guard::{self, Claim, Role};
use bimetal_media::kept::Writes;
use cmfs_core::tags::{SpareState, TagPlace};
use cmfs_core::{Geometry, NandError};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A NAND part in a file.
#[derive(Debug)]
pub struct ImageNand {
    /// The file, and who keeps others away from it.
    claim: Arc<Claim>,
    geometry: Geometry,
    writable: bool,
    writes: Arc<Writes>,
    /// A page as the file has it.
    buffer: Vec<u8>,
}

impl ImageNand {
    /// Opens an image of a part of this shape; the number of blocks follows from its length.
    ///
    /// # Errors
    /// The file cannot be opened, is in use, or is no whole number of blocks long.
    pub fn open(path: &Path, geometry: Geometry, writable: bool) -> Result<ImageNand> {
        ImageNand::over(guard::claim_path(path, Role::changed_if(writable))?, geometry)
    }

    /// [`open`](ImageNand::open) of what a command has claimed; writable if it was claimed for that.
    ///
    /// # Errors
    /// It is no whole number of blocks long, or its length cannot be told.
    pub fn over(claim: Arc<Claim>, mut geometry: Geometry) -> Result<ImageNand> {
        let len = claim.file().metadata().map_err(|why| Error::io(claim.name(), why))?.len();
        let page = u64::from(geometry.page_bytes + geometry.spare_bytes);
        let block = page * u64::from(geometry.pages_per_block);
        if len == 0 || !len.is_multiple_of(block) {
            return Err(Error::invalid(format!(
                "{}: {len} bytes are no whole number of blocks of {} pages of {} + {} bytes; name the part with --device",
                claim.name(),
                geometry.pages_per_block,
                geometry.page_bytes,
                geometry.spare_bytes
            )));
        }
        geometry.blocks = u32::try_from(len / block).unwrap_or(u32::MAX);
        let writable = claim.role() != Role::Read;
        Ok(ImageNand {
            writes: Writes::new(claim.clone()),
            claim,
            geometry,
            writable,
            buffer: vec![0; page as usize],
        })
    }

    /// Empties a file and gives it the length that a part of this shape takes.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn make(claim: &Claim, geometry: &Geometry) -> Result<()> {
        let page = u64::from(geometry.page_bytes + geometry.spare_bytes);
        let resized = claim.file().set_len(0).and_then(|()| claim.file().set_len(page * geometry.pages()));
        resized.map_err(|why| Error::io(claim.name(), why))
    }

    fn file(&self) -> &File {
        self.claim.file()
    }

    fn failed(&self, why: std::io::Error) -> NandError {
        gone(Error::io(self.claim.name(), why))
    }

    fn offset(&self, page: u32) -> u64 {
        u64::from(page) * self.buffer.len() as u64
    }

    fn data_bytes(&self) -> usize {
        self.geometry.page_bytes as usize
    }

    fn spare_at(&self, page: u32) -> u64 {
        self.offset(page) + self.data_bytes() as u64
    }
}

/// What was never programmed reads as ones.
fn as_erased(data: &mut [u8], spare: &mut [u8]) {
    if spare.iter().all(|byte| *byte == 0) && data.iter().all(|byte| *byte == 0) {
        data.fill(0xff);
        spare.fill(0xff);
    }
}

impl cmfs_core::Nand for ImageNand {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn is_in_order(&self) -> bool {
        false
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        let mut spare = vec![0; self.geometry.spare_bytes as usize];
        self.read_spare(self.geometry.first_page(block), &mut spare)?;
        // Where tags begin at the first byte there is no room for a mark.
        let is_tagged = matches!(TagPlace::IMAGE.read(&spare), SpareState::Tagged(_));
        // One wrong bit is no mark.
        Ok(spare.len() >= 34 && spare[0].count_ones() < 7 && !is_tagged)
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        let first = self.geometry.first_page(block);
        let mut spare = vec![0; self.geometry.spare_bytes as usize];
        self.read_spare(first, &mut spare)?;
        spare[..2].fill(0);
        self.writes.write(&spare, self.spare_at(first)).map_err(gone)
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        let at = self.offset(page);
        self.claim.file().read_exact_at(&mut self.buffer, at).map_err(|why| self.failed(why))?;
        let (from, behind) = self.buffer.split_at(self.geometry.page_bytes as usize);
        data.copy_from_slice(from);
        spare.copy_from_slice(behind);
        as_erased(data, spare);
        Ok(0)
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        self.file().read_exact_at(spare, self.spare_at(page)).map_err(|why| self.failed(why))?;
        as_erased(&mut [], spare);
        Ok(0)
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        if !self.writable {
            return Err(NandError::Gone);
        }
        self.writes.write(&[data, spare].concat(), self.offset(page)).map_err(gone)
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        if !self.writable {
            return Err(NandError::Gone);
        }
        let first = self.offset(self.geometry.first_page(block));
        let len = self.buffer.len() as u64 * u64::from(self.geometry.pages_per_block);
        if self.writes.punch(first, len) {
            return Ok(());
        }
        // Not every file system has holes.
        let zeros = vec![0; self.buffer.len()];
        let pages = self.geometry.pages_per_block as usize;
        (0..pages)
            .try_for_each(|page| self.writes.write(&zeros, first + (page * zeros.len()) as u64).map_err(gone))
    }

    fn sync(&mut self) -> Result<(), NandError> {
        self.writes.so_far().keep().map_err(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::kept::Stall;
    use cmfs_core::Nand;
    use std::sync::mpsc;

    /// The host says so once, to whoever asks first.
    #[test]
    fn what_the_host_cannot_keep_is_an_error_of_every_sync_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nand");
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 8, blocks: 8 };
        File::create(&path).unwrap().set_len(8 * 8 * (2048 + 64)).unwrap();
        let mut nand = ImageNand::open(&path, geometry, true).unwrap();
        nand.program(0, &[7; 2048], &[7; 64]).unwrap();
        nand.sync().unwrap();
        let ((asked, _told), (answer, answered)) = (mpsc::channel(), mpsc::channel());
        nand.writes.stall(Stall { asked, answer: answered });
        answer.send(Some(5)).unwrap();
        nand.program(1, &[7; 2048], &[7; 64]).unwrap();
        for _ in 0..2 {
            assert_eq!(nand.sync(), Err(NandError::Gone));
        }
    }

    #[test]
    fn one_wrong_bit_of_the_mark_hides_no_block_and_a_marked_block_is_bad() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nand");
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 8, blocks: 8 };
        File::create(&path).unwrap().set_len(8 * 8 * (2048 + 64)).unwrap();
        let mut nand = ImageNand::open(&path, geometry, true).unwrap();
        for bit in 0..8 {
            let mut spare = [0xff; 64];
            spare[0] ^= 1 << bit;
            nand.program(8 * bit, &[7; 2048], &spare).unwrap();
            assert_eq!(nand.is_bad(bit), Ok(false), "bit {bit}");
        }
        nand.mark_bad(3).unwrap();
        nand.sync().unwrap();
        assert_eq!((nand.is_bad(3), nand.is_bad(4)), (Ok(true), Ok(false)));
    }
}
