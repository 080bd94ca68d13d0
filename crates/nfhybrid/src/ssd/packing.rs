//! Small groups of the log, packed: 4 KiB of data with their headers do not fit a page of 4 KiB, but if they shrink by a
//! tenth they do, and the fsync that waits for them writes one page instead of two.
//!
//! Only what saves a block of the log is packed, and only groups of a few blocks, where one block is much of it. A log
//! whose records do not shrink is tried ever more rarely (`Pause`). Packing takes a few microseconds and is done with no
//! lock held: [`Packing`] takes a batch's records along, [`Packed`] brings them back.
//!
//! The payload of a packed group is the length of its records (32 bits) and an LZ4 block.

use bytes::Bytes;

/// Groups of more bytes than this are not packed.
pub(super) const PACK_MAX: usize = 16 << 10;

/// In the header of a group: its records as they are, or packed.
pub(super) const PLAIN: u16 = 0;
pub(super) const LZ4: u16 = 1;

/// The records of a batch, to be packed.
#[derive(Debug)]
pub struct Packing {
    pub(super) batch: u64,
    pub(super) plain: Vec<u8>,
    /// It is worth it up to so many bytes.
    pub(super) limit: usize,
}

impl Packing {
    /// Packs them.
    pub fn pack(self) -> Packed {
        let packed = lz4_flex::block::compress_prepend_size(&self.plain);
        Packed { batch: self.batch, payload: (packed.len() <= self.limit).then_some(packed) }
    }
}

/// What became of it.
#[derive(Debug)]
pub struct Packed {
    pub(super) batch: u64,
    /// Nothing if it did not shrink enough.
    pub(super) payload: Option<Vec<u8>>,
}

/// The records of a packed payload; nothing if it is none, or they would be more than `most` bytes.
pub(super) fn unpack(payload: &[u8], most: usize) -> Option<Bytes> {
    let (bytes, block) = lz4_flex::block::uncompressed_size(payload).ok()?;
    if bytes > most {
        return None;
    }
    lz4_flex::block::decompress(block, bytes).ok().filter(|plain| plain.len() == bytes).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shrinks_enough_comes_back_as_it_was_and_nonsense_does_not() {
        let plain: Vec<u8> = (0..5000_u32).map(|at| (at / 50) as u8).collect();
        let packing = Packing { batch: 7, plain: plain.clone(), limit: 4000 };
        let packed = packing.pack().payload.unwrap();
        assert_eq!(unpack(&packed, 5000).unwrap(), plain);
        assert!(unpack(&packed, 4999).is_none() && unpack(&packed[..9], 5000).is_none());
        assert!(unpack(&[1, 2], 5000).is_none() && unpack(&[0xff; 40], usize::MAX >> 1).is_none());
        assert!(Packing { batch: 7, plain, limit: 40 }.pack().payload.is_none());
    }
}
