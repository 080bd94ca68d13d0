//! Partly written pages that wait for the rest, so that a page is not programmed for every few bytes.
//!
//! A page here is newer than the one on flash, whole, and has zeros behind the end of its file.

use super::volume::Volume;
use crate::error::Result;
use crate::media::{Nand, Nvram};
use crate::sorted::Map;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// When a page was last used, and what is in it.
type Cached = (u64, Box<[u8]>);

#[derive(Debug, Default)]
pub(super) struct Cache {
    pages: Map<(u32, u32), Cached>,
    uses: u64,
}

impl Cache {
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    pub fn holds(&self, id: u32, index: u32) -> bool {
        self.pages.contains_key(&(id, index))
    }

    fn get(&self, id: u32, index: u32) -> Option<&[u8]> {
        self.pages.get(&(id, index)).map(|(_, bytes)| &bytes[..])
    }

    fn get_mut(&mut self, id: u32, index: u32) -> Option<&mut [u8]> {
        self.uses += 1;
        let (used, bytes) = self.pages.get_mut(&(id, index))?;
        *used = self.uses;
        Some(bytes)
    }

    fn put(&mut self, id: u32, index: u32, bytes: Box<[u8]>) {
        self.uses += 1;
        self.pages.insert((id, index), (self.uses, bytes));
    }

    pub fn drop_page(&mut self, id: u32, index: u32) {
        self.pages.remove(&(id, index));
    }

    /// The page that was not used for longest.
    fn oldest(&self) -> Option<(u32, u32)> {
        self.pages.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key)
    }

    /// The indices of an object's pages from `from` on, in order.
    pub fn indices(&self, id: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        self.pages.range((id, from)..=(id, u32::MAX)).map(|((_, index), _)| *index)
    }

    /// Drops an object's pages from `from` on.
    pub fn truncate(&mut self, id: u32, from: u32) {
        let gone: Vec<u32> = self.indices(id, from).collect();
        for index in gone {
            self.pages.remove(&(id, index));
        }
    }

    /// Objects with pages here, in order.
    pub fn objects(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.pages.keys().map(|(id, _)| *id).collect();
        ids.dedup();
        ids
    }

    /// Gets a page here, zeros behind the end of the file.
    pub fn load<N: Nand, V: Nvram>(&mut self, volume: &mut Volume<N, V>, id: u32, index: u32) -> Result<()> {
        if self.holds(id, index) {
            return Ok(());
        }
        let object = volume.objects.find(id)?;
        let (size, page) = (object.size, object.map.get(index));
        let mut bytes: Box<[u8]> = alloc::vec![0; volume.page_bytes() as usize].into();
        if let Some(page) = page {
            volume.log.flash.fetch_data(page, id, index)?;
            let valid = volume.valid_bytes(size, index) as usize;
            bytes[..valid].copy_from_slice(&volume.log.flash.page()[..valid]);
        }
        self.put(id, index, bytes);
        Ok(())
    }

    /// Reads a part of one page, from here or from flash.
    pub fn read<N: Nand, V: Nvram>(
        &self,
        volume: &mut Volume<N, V>,
        (id, index): (u32, u32),
        within: usize,
        to: &mut [u8],
    ) -> Result<()> {
        let bytes = match (self.get(id, index), volume.objects.find(id)?.map.get(index)) {
            (Some(bytes), _) => bytes,
            (None, Some(page)) => {
                volume.log.flash.fetch_data(page, id, index)?;
                volume.log.flash.page()
            }
            (None, None) => {
                to.fill(0);
                return Ok(());
            }
        };
        to.copy_from_slice(&bytes[within..within + to.len()]);
        Ok(())
    }

    /// Writes a part of one page here, or a whole one to flash; what waited longest goes there if it is too much.
    pub fn write<N: Nand, V: Nvram>(
        &mut self,
        volume: &mut Volume<N, V>,
        (id, index): (u32, u32),
        within: usize,
        data: &[u8],
    ) -> Result<()> {
        if data.len() as u64 == volume.page_bytes() {
            self.flush_end(volume, id, index)?;
            volume.make_room()?;
            volume.put_page(id, index, data.len() as u32, data)?;
            self.drop_page(id, index);
            return Ok(());
        }
        self.load(volume, id, index)?;
        if let Some(bytes) = self.get_mut(id, index) {
            bytes[within..within + data.len()].copy_from_slice(data);
        }
        while self.len() > volume.config.cache_pages.max(1) {
            let Some((id, index)) = self.oldest() else { break };
            self.flush_page(volume, id, index)?;
        }
        Ok(())
    }

    /// Makes the bytes from `from` to `to` of one page zeros, if there is such a page.
    pub fn zero<N: Nand, V: Nvram>(
        &mut self,
        volume: &mut Volume<N, V>,
        id: u32,
        from: u64,
        to: u64,
    ) -> Result<()> {
        let index = (from / volume.page_bytes()) as u32;
        let there = self.holds(id, index) || volume.objects.find(id)?.map.get(index).is_some();
        if from >= to || !there {
            return Ok(());
        }
        self.load(volume, id, index)?;
        let base = u64::from(index) * volume.page_bytes();
        if let Some(bytes) = self.get_mut(id, index) {
            bytes[(from - base) as usize..(to - base) as usize].fill(0);
        }
        Ok(())
    }

    /// Before a file grows: what its last page has behind the end becomes zeros.
    pub fn zero_tail<N: Nand, V: Nvram>(&mut self, volume: &mut Volume<N, V>, id: u32) -> Result<()> {
        let object = volume.objects.find(id)?;
        let (index, valid) =
            ((object.size / volume.page_bytes()) as u32, (object.size % volume.page_bytes()) as usize);
        if valid == 0 || self.holds(id, index) {
            return Ok(());
        }
        let Some(page) = object.map.get(index) else { return Ok(()) };
        volume.log.flash.fetch(page)?;
        if volume.log.flash.page()[valid..].iter().any(|byte| *byte != 0) {
            self.load(volume, id, index)?;
        }
        Ok(())
    }

    /// Before a page behind the end that flash knows of a file is written: the page with that end, if it waits here. On flash it may
    /// have bytes behind the end, which were cut off, and a file that is longer would show.
    fn flush_end<N: Nand, V: Nvram>(&mut self, volume: &mut Volume<N, V>, id: u32, index: u32) -> Result<()> {
        let (size, page_bytes) = (volume.objects.find(id)?.flash_size, volume.page_bytes());
        let end = (size / page_bytes) as u32;
        if end < index && !size.is_multiple_of(page_bytes) && self.holds(id, end) {
            self.flush_page(volume, id, end)?;
        }
        Ok(())
    }

    fn flush_page<N: Nand, V: Nvram>(
        &mut self,
        volume: &mut Volume<N, V>,
        id: u32,
        index: u32,
    ) -> Result<()> {
        volume.bring(id)?;
        self.flush_end(volume, id, index)?;
        let valid = volume.valid_bytes(volume.objects.find(id)?.size, index);
        let Some(bytes) = self.get(id, index) else { return Ok(()) };
        volume.make_room()?;
        // A page of no valid bytes would be the mark of a hole.
        if valid > 0 {
            volume.put_page(id, index, valid, bytes)?;
        }
        self.drop_page(id, index);
        Ok(())
    }

    /// Gets a file's pages onto flash.
    pub fn flush<N: Nand, V: Nvram>(&mut self, volume: &mut Volume<N, V>, id: u32) -> Result<()> {
        let indices: Vec<u32> = self.indices(id, 0).collect();
        indices.into_iter().try_for_each(|index| self.flush_page(volume, id, index))
    }
}
