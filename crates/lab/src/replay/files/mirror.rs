//! For tests: what a flash part holds, byte by byte, beside the part itself.

use bimetal_base::time::Time;
use bimetal_media::nand::NandProfile;
use bimetal_media::ram::Ram;
use bimetal_media::{BlockDevice, Request};
use cmfs_core::{Geometry, Nand, NandError};
use std::sync::Arc;

/// A part of cmfs whose pages, each with its spare area, are in memory of their own, too.
pub(crate) struct Mirrored {
    part: Box<dyn Nand + Send>,
    image: Arc<Ram>,
    page_bytes: u64,
    pages_a_block: u64,
}

impl Mirrored {
    /// `part`, and where its bytes are.
    pub fn new(part: Box<dyn Nand + Send>, profile: &NandProfile) -> (Mirrored, Arc<Ram>) {
        let shape = profile.geometry();
        // In whole blocks of the memory.
        let page_bytes = (u64::from(shape.page_bytes) + u64::from(shape.spare_bytes)).next_multiple_of(512);
        let image = Arc::new(Ram::new("flash", shape.pages() * page_bytes));
        let pages_a_block = u64::from(shape.pages_per_block);
        (Mirrored { part, image: image.clone(), page_bytes, pages_a_block }, image)
    }

    fn put(&self, page: u64, bytes: Vec<u8>) {
        let data = [bytes.into()].into_iter().collect();
        let write = Request::Write { offset: page * self.page_bytes, data, durable: false };
        self.image.run(Time::ZERO, write).result.expect("memory takes it");
    }
}

impl Nand for Mirrored {
    fn geometry(&self) -> Geometry {
        self.part.geometry()
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        self.part.is_bad(block)
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        self.part.mark_bad(block)
    }

    fn correctable(&self) -> u32 {
        self.part.correctable()
    }

    fn cell_bits(&self) -> u32 {
        self.part.cell_bits()
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        self.part.read(page, data, spare)
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        self.part.read_spare(page, spare)
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        self.part.program(page, data, spare)?;
        let mut bytes = [data, spare].concat();
        bytes.resize(self.page_bytes as usize, 0xff);
        self.put(page.into(), bytes);
        Ok(())
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        self.part.erase(block)?;
        let bytes = vec![0xff; (self.pages_a_block * self.page_bytes) as usize];
        self.put(u64::from(block) * self.pages_a_block, bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), NandError> {
        self.part.sync()
    }
}
