//! Pages that hold several units of a translation layer's map: each unit has a tag of its own in the page's spare area.
//!
//! A page is still programmed, read and erased as one. Memory: 4 bytes a unit, 8 more with sequence numbers, beside those of
//! the pages; nothing where a page is a unit.

use super::{Cause, Failure, Nand, Page, Tag};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};

/// The tags of units, by page and then in order.
pub(super) struct Units {
    per_page: u32,
    owners: Vec<u32>,
    /// Empty where sequence numbers are not kept.
    sequences: Vec<u64>,
}

impl Nand {
    /// Units of a page that have tags of their own; 1: the page's is the only one.
    #[inline]
    pub fn page_units(&self) -> u32 {
        self.units.as_ref().map_or(1, |units| units.per_page)
    }

    /// Has each page hold so many units with tags of their own.
    ///
    /// # Errors
    /// [`Error::Invalid`] if something was programmed in units of another size, or the array lies in a file, which keeps one
    /// tag a page.
    pub fn divide(&mut self, per_page: u32) -> Result<()> {
        if self.page_units() == per_page {
            return Ok(());
        }
        if !self.is_new() {
            let bytes = self.geometry.page_bytes / self.page_units();
            return Err(Error::invalid(format!("it was written with units of {bytes} bytes")));
        }
        if self.payload.image().is_some() {
            return Err(Error::invalid("the file of an array has one tag for each page"));
        }
        let count = self.geometry.pages() as usize * per_page as usize;
        let sequences = if self.sequences.is_empty() { 0 } else { count };
        let units = Units { per_page, owners: vec![0; count], sequences: vec![0; sequences] };
        self.units = (per_page > 1).then(|| Box::new(units));
        Ok(())
    }

    /// What a unit of a page is, without an operation.
    pub fn unit(&self, block: u32, page: u32, unit: u32) -> Page {
        let whole = self.page(block, page);
        match (&self.units, whole) {
            (Some(units), Page::Programmed(_)) => {
                let index = self.index(block, page) * units.per_page as usize + unit as usize;
                let sequence = units.sequences.get(index).copied().unwrap_or(0);
                Page::Programmed(Tag { owner: units.owners[index], sequence })
            }
            _ => whole,
        }
    }

    /// As [`program`](Nand::program), with a tag for each unit of the page. One whose contents come from other pages counts as
    /// copied.
    ///
    /// # Panics
    /// If there are not as many tags as units, and as `program`.
    pub fn program_units(
        &mut self,
        at: Time,
        (block, page): (u32, u32),
        tags: &[Tag],
        data: &[u8],
        copied: bool,
    ) -> std::result::Result<Time, Failure> {
        assert_eq!(tags.len(), self.page_units() as usize, "a tag for each unit");
        let done = self.program(at, block, page, tags[0], data)?;
        let first = self.index(block, page) * tags.len();
        if let Some(units) = &mut self.units {
            for (index, tag) in (first..).zip(tags) {
                units.owners[index] = tag.owner;
                if let Some(sequence) = units.sequences.get_mut(index) {
                    *sequence = tag.sequence;
                }
            }
        }
        self.done().copies += u64::from(copied);
        Ok(done)
    }

    /// What operations are done for now.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Bytes of memory that tags take.
    pub fn tag_bytes(&self) -> u64 {
        let of_units = self.units.as_ref();
        let units =
            of_units.map_or(0, |units| size_of_val(&units.owners[..]) + size_of_val(&units.sequences[..]));
        (size_of_val(&self.owners[..]) + size_of_val(&self.sequences[..]) + units) as u64
    }

    /// How often operations that were put down were taken ([`take_ops`](Nand::take_ops)): places in the list are of one time
    /// between two such.
    pub fn times_taken(&self) -> u64 {
        self.clock.times_taken()
    }
}
