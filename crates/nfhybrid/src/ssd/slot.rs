//! Slots of the duplicated inode table, as they lie on the SSD.
//!
//! A slot is 256 or 512 bytes and never crosses a sector of 512, so a power cut leaves it old or new. The
//! *head* slot of an inode holds the duplicated inode and the first entries of `SSD_extent[]`; *overflow*
//! slots hold more entries. Slots do not point at each other: each names its inode, so a lost one breaks no
//! chain. The checksum covers the slot, the SSD's UUID and the slot's place.

use super::pieces::{PIECE_BLOCKS_MAX, Piece};
use super::sector::Seal;
use super::{CopyState, DupInode};
use bimetal_base::time::Stamp;
use smallvec::SmallVec;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const KIND_HEAD: u8 = 1;
const KIND_OVERFLOW: u8 = 2;
const KIND_FREE: u8 = 3;

/// Before the entries of every slot.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    checksum: U32,
    kind: u8,
    entries: u8,
    ssd_active: u8,
    ssd_wr_done: u8,
    ino: U64,
    ssd_section: u8,
    reserved: [u8; 7],
}

/// The duplicated inode.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawInode {
    size: U64,
    mode: U16,
    reserved: U16,
    uid: U32,
    gid: U32,
    nlink: U32,
    generation: U32,
    times: [RawStamp; 3],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawStamp {
    seconds: I64,
    nanoseconds: U32,
}

/// One element of `SSD_extent[]`.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    file_block: U32,
    /// SSD block at which the extent begins.
    extent: U32,
    /// Blocks, and the state in the two bits above.
    count_state: U32,
    start: U16,
    reserved: U16,
    tag: U32,
}

const HEADER_BYTES: usize = size_of::<RawHeader>();
const INODE_BYTES: usize = size_of::<RawInode>();
const ENTRY_BYTES: usize = size_of::<RawEntry>();

/// A [`DupInode`] in the 64 bytes it has on the SSD and in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromZeros)]
pub(super) struct PackedInode(pub(super) [u8; INODE_BYTES]);

impl PackedInode {
    /// All zeros.
    pub(super) const ZERO: PackedInode = PackedInode([0; INODE_BYTES]);
}

impl From<&DupInode> for PackedInode {
    fn from(inode: &DupInode) -> PackedInode {
        let raw = RawInode {
            size: inode.size.into(),
            mode: inode.mode.into(),
            reserved: 0.into(),
            uid: inode.uid.into(),
            gid: inode.gid.into(),
            nlink: inode.nlink.into(),
            generation: inode.generation.into(),
            times: [inode.atime, inode.mtime, inode.ctime]
                .map(|stamp| RawStamp { seconds: stamp.sec.into(), nanoseconds: stamp.nsec.into() }),
        };
        PackedInode(zerocopy::transmute!(raw))
    }
}

impl From<&PackedInode> for DupInode {
    fn from(packed: &PackedInode) -> DupInode {
        let raw: RawInode = zerocopy::transmute!(packed.0);
        let [atime, mtime, ctime] =
            raw.times.map(|stamp| Stamp { sec: stamp.seconds.get(), nsec: stamp.nanoseconds.get() });
        DupInode {
            size: raw.size.get(),
            mode: raw.mode.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            nlink: raw.nlink.get(),
            generation: raw.generation.get(),
            atime,
            mtime,
            ctime,
        }
    }
}

/// Entries in a head slot and in an overflow slot of `slot_bytes`.
pub(super) fn entries_per_slot(slot_bytes: u32) -> (u8, u8) {
    let room = slot_bytes as usize - HEADER_BYTES;
    (((room - INODE_BYTES) / ENTRY_BYTES) as u8, (room / ENTRY_BYTES) as u8)
}

/// An entry as read: the piece's `at` is not checked against any section yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Block at which the extent is said to begin.
    pub(super) extent: u32,
    /// Block in that extent.
    pub(super) start: u16,
    /// The rest; `at` is zero.
    pub(super) piece: Piece,
}

/// A slot as read.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) ino: u64,
    /// Of a head slot.
    pub(super) inode: Option<PackedInode>,
    pub(super) entries: SmallVec<[Entry; 2]>,
}

/// What goes into a slot.
pub(super) struct Content<'a> {
    pub(super) ino: u64,
    pub(super) inode: Option<&'a PackedInode>,
    pub(super) section: u8,
    pub(super) pieces: &'a [Piece],
}

/// Fills `bytes` (a whole slot at device offset `offset`). `address` gives extent and start of an SSD block.
pub(super) fn write(
    bytes: &mut [u8],
    offset: u64,
    seal: &Seal,
    content: &Content,
    address: impl Fn(u32) -> (u32, u32),
) {
    bytes.fill(0);
    let done = content.pieces.iter().fold(CopyState::Both as u8, |all, piece| all & piece.state() as u8);
    let mut header = RawHeader {
        checksum: 0.into(),
        kind: if content.inode.is_some() { KIND_HEAD } else { KIND_OVERFLOW },
        entries: content.pieces.len() as u8,
        ssd_active: content.pieces.iter().any(|piece| piece.state().on_ssd()) as u8,
        ssd_wr_done: done,
        ino: content.ino.into(),
        ssd_section: content.section,
        reserved: [0; 7],
    };
    let mut at = HEADER_BYTES;
    if let Some(inode) = content.inode {
        bytes[at..at + INODE_BYTES].copy_from_slice(&inode.0);
        at += INODE_BYTES;
    }
    for piece in content.pieces {
        let (extent, start) = address(piece.at);
        let entry = RawEntry {
            file_block: piece.file_block.into(),
            extent: extent.into(),
            count_state: (piece.len() | (piece.state() as u32) << 30).into(),
            start: (start as u16).into(),
            reserved: 0.into(),
            tag: piece.tag.into(),
        };
        bytes[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
        at += ENTRY_BYTES;
    }
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    header.checksum = seal.checksum(offset, &bytes[4..]).into();
    bytes[..4].copy_from_slice(header.checksum.as_bytes());
}

/// Completes `bytes` (a head slot at device offset `offset`, written with any inode) with the inode in `media`, which is
/// the slot as it is on the SSD. If that is damaged or another inode's, it stays as it is.
pub(super) fn take_inode(bytes: &mut [u8], media: &[u8], offset: u64, seal: &Seal) {
    let ino = RawHeader::read_from_prefix(bytes).map(|(header, _)| header.ino.get()).ok();
    match read(media, offset, seal) {
        Ok(Some(Slot { ino: found, inode: Some(inode), .. })) if Some(found) == ino => {
            bytes[HEADER_BYTES..HEADER_BYTES + INODE_BYTES].copy_from_slice(&inode.0);
            let sum = seal.checksum(offset, &bytes[4..]);
            bytes[..4].copy_from_slice(&sum.to_le_bytes());
        }
        _ => bytes.copy_from_slice(media),
    }
}

/// Writes a free slot, so that it differs from one that a device has lost and gives as zeros.
pub(super) fn write_free(bytes: &mut [u8], offset: u64, seal: &Seal) {
    bytes.fill(0);
    bytes[4] = KIND_FREE;
    let sum = seal.checksum(offset, &bytes[4..]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Whether a slot was never written; or written, and lost by the device.
pub(super) fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Reads a slot: `Ok(None)` when it is free (marked so, or all zeros), `Err` with the reason when it is damaged.
pub(super) fn read(bytes: &[u8], offset: u64, seal: &Seal) -> Result<Option<Slot>, &'static str> {
    if is_blank(bytes) {
        return Ok(None);
    }
    let (header, mut rest) = RawHeader::read_from_prefix(bytes).map_err(|_| "too short")?;
    if header.checksum.get() != seal.checksum(offset, &bytes[4..]) {
        return Err("wrong checksum");
    }
    let inode = match header.kind {
        KIND_HEAD => {
            let (inode, after) = rest.split_at_checked(INODE_BYTES).ok_or("too short")?;
            rest = after;
            Some(PackedInode(inode.try_into().map_err(|_| "too short")?))
        }
        KIND_OVERFLOW => None,
        KIND_FREE => return Ok(None),
        _ => return Err("unknown kind"),
    };
    let (entries, _) = <[RawEntry]>::ref_from_prefix_with_elems(rest, usize::from(header.entries))
        .map_err(|_| "more entries than fit")?;
    let entries = entries.iter().map(read_entry).collect::<Option<_>>().ok_or("an entry makes no sense")?;
    Ok(Some(Slot { ino: header.ino.get(), inode, entries }))
}

fn read_entry(raw: &RawEntry) -> Option<Entry> {
    let (count, state) = (raw.count_state.get() & PIECE_BLOCKS_MAX, raw.count_state.get() >> 30);
    let piece = Piece::new(raw.file_block.get(), 0, count, CopyState::from_bits(state as u8), raw.tag.get());
    let sane = count > 0 && piece.end() <= 1 << 32;
    sane.then_some(Entry { extent: raw.extent.get(), start: raw.start.get(), piece })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> Seal {
        Seal::new(&[7; 16])
    }

    fn sample() -> (DupInode, [Piece; 2]) {
        let stamp = |sec| Stamp { sec, nsec: 999_999_999 };
        let inode = DupInode {
            size: 1 << 40,
            mode: 0o100644,
            uid: 1000,
            gid: 100,
            nlink: 2,
            generation: 77,
            atime: stamp(-5),
            mtime: stamp(1 << 33),
            ctime: stamp(3),
        };
        let pieces =
            [Piece::new(0, 1003, 13, CopyState::Ssd, 9), Piece::new(u32::MAX, 1024, 1, CopyState::Both, 0)];
        (inode, pieces)
    }

    #[test]
    fn the_sizes_are_those_of_the_format_page() {
        assert_eq!((HEADER_BYTES, INODE_BYTES, ENTRY_BYTES), (24, 64, 20));
        assert_eq!((entries_per_slot(256), entries_per_slot(512)), ((8, 11), (21, 24)));
    }

    #[test]
    fn a_slot_reads_back_as_written() {
        let (inode, pieces) = sample();
        let packed = PackedInode::from(&inode);
        assert_eq!(DupInode::from(&packed), inode);
        for head in [true, false] {
            let mut bytes = [0xff; 256];
            let content =
                Content { ino: 1 << 40, inode: head.then_some(&packed), section: 3, pieces: &pieces };
            write(&mut bytes, 4096, &seal(), &content, |at| (at / 16 * 16, at % 16));
            let slot = read(&bytes, 4096, &seal()).unwrap().unwrap();
            assert_eq!((slot.ino, slot.inode), (1 << 40, head.then_some(packed)));
            let found: Vec<_> = slot.entries.iter().map(|e| (e.extent, e.start, e.piece.len())).collect();
            assert_eq!(found, [(992, 11, 13), (1024, 0, 1)]);
            assert_eq!(slot.entries[0].piece.state(), CopyState::Ssd);
            assert_eq!((bytes[6], bytes[7]), (1, 0b10), "SSD_active, SSD_wr_done");
        }
    }

    #[test]
    fn a_damaged_or_misplaced_slot_is_told_from_a_free_one() {
        let (inode, pieces) = sample();
        let packed = PackedInode::from(&inode);
        let mut bytes = [0; 256];
        assert!(read(&bytes, 0, &seal()).unwrap().is_none());
        let content = Content { ino: 5, inode: Some(&packed), section: 0, pieces: &pieces };
        write(&mut bytes, 512, &seal(), &content, |at| (at, 0));
        assert!(read(&bytes, 768, &seal()).is_err(), "another place");
        assert!(read(&bytes, 512, &Seal::new(&[8; 16])).is_err(), "another SSD");
        for bit in 0..256 * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes, 512, &seal()).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
