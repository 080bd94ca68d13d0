//! Where the bytes of an object are: what `bimetal explain` shows of a file.

use super::flash::Addr;
use super::layout::{Extent, Fork};
use super::{ObjectId, Store};
use bimetal_base::Result;

/// Where bytes of an object are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory; the flash lacks them.
    Memory,
    /// In the flash, one after the other in the pages of a segment, which go round its erase blocks.
    Flash {
        /// Number of the segment.
        segment: u32,
        /// Erase block of the first byte.
        block: u32,
        /// Its page in that block.
        page: u32,
        /// Where in the page it is, in bytes.
        byte: u32,
    },
    /// Room is kept for them; they read as zeros.
    Reserved,
    /// Nowhere: never written, or punched; they read as zeros.
    Hole,
}

/// Bytes of an object that are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first of them, in the object.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
    /// Where they are.
    pub place: Place,
}

impl Store {
    /// Where the bytes of an object from `from` on are, in order and without gaps: at most `most` stretches, and the
    /// byte behind them if it is not the end of the object.
    ///
    /// # Errors
    /// [`Error::NotFound`](bimetal_base::Error::NotFound); the index cannot be read.
    pub fn places(&mut self, id: ObjectId, from: u64, most: usize) -> Result<(Vec<Stretch>, Option<u64>)> {
        let onode = self.index.onode(id.0)?;
        let size = self.size_of(id.0, &onode);
        let mut extents = Vec::new();
        let mut known = size;
        self.index.each_overlapping(id.0, Fork::Data, from, size, &mut |at, extent| {
            if extents.len() > most {
                known = at;
                return false;
            }
            extents.push((at, extent));
            true
        })?;
        let dirty = self.buffer.get(id.0, Fork::Data).map_or(&[][..], |dirty| &dirty.pieces);
        let pieces: Vec<(u64, u64)> = dirty.iter().map(|piece| (piece.offset, piece.end())).collect();
        let (mut found, mut at) = (Vec::new(), from);
        while at < known && found.len() < most {
            let (place, end) = self.place_of(&extents, &pieces, at, known);
            found.push(Stretch { offset: at, bytes: end - at, place });
            at = end;
        }
        Ok((found, (at < size).then_some(at)))
    }

    /// Where one byte is, and to which the same may be said. Extents and pieces are in order; a piece hides extents.
    fn place_of(
        &self,
        extents: &[(u64, Extent)],
        pieces: &[(u64, u64)],
        at: u64,
        known: u64,
    ) -> (Place, u64) {
        let piece = pieces.iter().find(|(_, end)| *end > at);
        let hidden = match piece {
            Some((start, end)) if *start <= at => return (Place::Memory, *end),
            Some((start, _)) => (*start).min(known),
            None => known,
        };
        match extents.iter().find(|(start, extent)| start + u64::from(extent.len) > at) {
            Some((start, extent)) if *start <= at => {
                let end = (start + u64::from(extent.len)).min(hidden);
                match extent.is_reserved() {
                    true => (Place::Reserved, end),
                    false => (self.in_flash(extent.at + (at - start)), end),
                }
            }
            Some((start, _)) => (Place::Hole, (*start).min(hidden)),
            None => (Place::Hole, hidden),
        }
    }

    fn in_flash(&self, at: u64) -> Place {
        let flash = &self.index.media.flash;
        let page_bytes = flash.page_bytes() as u64;
        let addr = Addr((at / page_bytes) as u32);
        let (block, page) = flash.place(addr);
        Place::Flash { segment: flash.segment_of(addr), block, page, byte: (at % page_bytes) as u32 }
    }
}
