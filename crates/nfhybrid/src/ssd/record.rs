//! Records of the log: the caller's operations, and what changed the residency map.
//!
//! A record is a header of 16 bytes and a body. Records of residency say what is bound after them, not how
//! it came to be, so replaying all of them from any point before the tables were written gives the state at
//! the end, whatever the tables held.
//!
//! A change of residency that belongs to an operation counts only if that operation is not lost: if the disk
//! has it, or the log is complete up to it. Else a copy that was promised would be gone with nothing in its place.

use super::CopyState;
use super::pieces::Piece;
use super::slot::PackedInode;
use super::tag_reached;
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Before every record.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    body_bytes: U32,
    kind: u8,
    reserved: [u8; 3],
    op: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawBind {
    ino: U64,
    file_block: U32,
    at: U32,
    count: U32,
    state: u8,
    reserved: [u8; 3],
    slot: U32,
    head: U32,
    inode: [u8; 64],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawMove {
    ino: U64,
    file_block: U32,
    at: U32,
    count: U32,
    tag: U32,
    slot: U32,
    state: u8,
    reserved: [u8; 3],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRange {
    ino: U64,
    from: U64,
    end: U64,
    state: u8,
    reserved: [u8; 7],
}

/// Bytes of a record's header.
pub(super) const RECORD_HEADER: usize = size_of::<RawHeader>();

/// Bytes of a bind record without its checksums.
pub(super) const BIND_BYTES: usize = size_of::<RawBind>();

/// The kinds of records, as the format page numbers them.
mod kind {
    pub(super) const OPERATION: u8 = 1;
    pub(super) const OPERATION_AGAIN: u8 = 2;
    pub(super) const RESTART_BEGIN: u8 = 3;
    pub(super) const RESTART_END: u8 = 4;
    pub(super) const BIND: u8 = 5;
    pub(super) const UNBIND: u8 = 6;
    pub(super) const UNBIND_ALL: u8 = 7;
    pub(super) const SET_STATE: u8 = 8;
    pub(super) const MOVE: u8 = 9;
    pub(super) const FORGET: u8 = 10;
    pub(super) const COMPLETE: u8 = 11;
    pub(super) const UNBIND_ON_DISK: u8 = 12;
    pub(super) const UNDONE: u8 = 13;
    pub(super) const FORGET_ON_DISK: u8 = 14;
}

/// A record as it goes into the log. `S` holds the checksums of a bind record, `P` a payload.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Body<P, S> {
    /// The caller's operation.
    Operation(P),
    /// The same, written again by a restart; counts only if the restart's end is in the log.
    OperationAgain(P),
    /// A restart begins.
    RestartBegin,
    /// A restart is complete: operations before its beginning no longer count.
    RestartEnd,
    /// File blocks are bound, in the place of whatever they were bound to; the piece names the slot that
    /// holds it, `head` is the inode's head slot.
    Bind { ino: u64, piece: Piece, head: u32, inode: PackedInode, sums: S },
    /// File blocks `from..end` are bound to nothing.
    Unbind { ino: u64, from: u64, end: u64 },
    /// Nothing of the inode is bound.
    UnbindAll { ino: u64 },
    /// What is bound of `from..end` has this state.
    SetState { ino: u64, from: u64, end: u64, state: CopyState },
    /// What was bound before is recorded in another slot now.
    Move { ino: u64, piece: Piece },
    /// Nothing of any inode is bound.
    Forget,
    /// Every operation up to this record's is in the log or on the disk, with all the data it was promised.
    Complete,
    /// As `Unbind`, once the disk has the operation, but for what later operations bound in state 10.
    UnbindOnDisk {
        ino: u64,
        from: u64,
        end: u64,
        /// The low half of the operation's number.
        tag: u32,
    },
    /// As `Forget`, once the disk has the operation, but for what later operations bound in state 10.
    ForgetOnDisk {
        /// The low half of the operation's number.
        tag: u32,
    },
    /// Records before this one that [`counts`](Body::counts) denies with these numbers never will count.
    Undone { limits: Limits },
}

/// Up to which operation records of residency count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The last operation that is not lost.
    pub(super) kept: u64,
    /// The last operation the disk has.
    pub(super) disk: u64,
}

impl<P, S> Body<P, S> {
    /// Whether a record of operation `op` (0: of none) says what is so.
    pub(super) fn counts(&self, op: u64, limits: Limits) -> bool {
        match self {
            Body::Bind { .. } | Body::Unbind { .. } | Body::UnbindAll { .. } | Body::SetState { .. } => {
                op <= limits.kept
            }
            Body::UnbindOnDisk { .. } | Body::ForgetOnDisk { .. } => op <= limits.disk,
            // What moved is there if the operation is that bound it.
            Body::Move { piece, .. } => piece.state().on_disk() || tag_reached(piece.tag, limits.kept),
            _ => true,
        }
    }
}

/// A record to append.
pub(super) type Append<'a> = Body<&'a [u8], &'a [u32]>;

/// A record that was read; checksums as little-endian bytes.
pub(super) type Read = Body<Bytes, Bytes>;

impl Append<'_> {
    /// Bytes of the record with its header.
    pub(super) fn bytes(&self) -> usize {
        RECORD_HEADER
            + match self {
                Body::Operation(payload) | Body::OperationAgain(payload) => payload.len(),
                Body::RestartBegin
                | Body::RestartEnd
                | Body::Forget
                | Body::ForgetOnDisk { .. }
                | Body::Complete => 0,
                Body::Bind { sums, .. } => BIND_BYTES + 4 * sums.len(),
                Body::Unbind { .. }
                | Body::UnbindAll { .. }
                | Body::UnbindOnDisk { .. }
                | Body::Undone { .. }
                | Body::SetState { .. } => size_of::<RawRange>(),
                Body::Move { .. } => size_of::<RawMove>(),
            }
    }

    /// Appends the record to `buffer`.
    pub(super) fn write(&self, op: u64, buffer: &mut BytesMut) {
        let kind = match self {
            Body::Operation(_) => kind::OPERATION,
            Body::OperationAgain(_) => kind::OPERATION_AGAIN,
            Body::RestartBegin => kind::RESTART_BEGIN,
            Body::RestartEnd => kind::RESTART_END,
            Body::Bind { .. } => kind::BIND,
            Body::Unbind { .. } => kind::UNBIND,
            Body::UnbindAll { .. } => kind::UNBIND_ALL,
            Body::SetState { .. } => kind::SET_STATE,
            Body::Move { .. } => kind::MOVE,
            Body::Forget => kind::FORGET,
            Body::Complete => kind::COMPLETE,
            Body::UnbindOnDisk { .. } => kind::UNBIND_ON_DISK,
            Body::Undone { .. } => kind::UNDONE,
            Body::ForgetOnDisk { .. } => kind::FORGET_ON_DISK,
        };
        let body_bytes = ((self.bytes() - RECORD_HEADER) as u32).into();
        buffer.put_slice(RawHeader { body_bytes, kind, reserved: [0; 3], op: op.into() }.as_bytes());
        match *self {
            Body::Operation(payload) | Body::OperationAgain(payload) => buffer.put_slice(payload),
            Body::RestartBegin
            | Body::RestartEnd
            | Body::Forget
            | Body::ForgetOnDisk { .. }
            | Body::Complete => {}
            Body::Bind { ino, piece, head, inode, sums } => {
                buffer.put_slice(raw_bind(ino, &piece, head, inode).as_bytes());
                sums.iter().for_each(|sum| buffer.put_u32_le(*sum));
            }
            Body::Unbind { ino, from, end } | Body::UnbindOnDisk { ino, from, end, .. } => {
                buffer.put_slice(raw_range(ino, from, end, 0).as_bytes());
            }
            Body::Undone { limits } => {
                buffer.put_slice(raw_range(0, limits.kept, limits.disk, 0).as_bytes());
            }
            Body::UnbindAll { ino } => buffer.put_slice(raw_range(ino, 0, u64::MAX, 0).as_bytes()),
            Body::SetState { ino, from, end, state } => {
                buffer.put_slice(raw_range(ino, from, end, state as u8).as_bytes());
            }
            Body::Move { ino, piece } => buffer.put_slice(raw_move(ino, &piece).as_bytes()),
        }
    }
}

fn raw_bind(ino: u64, piece: &Piece, head: u32, inode: PackedInode) -> RawBind {
    RawBind {
        ino: ino.into(),
        file_block: piece.file_block.into(),
        at: piece.at.into(),
        count: piece.len().into(),
        state: piece.state() as u8,
        reserved: [0; 3],
        slot: piece.slot.into(),
        head: head.into(),
        inode: inode.0,
    }
}

fn raw_move(ino: u64, piece: &Piece) -> RawMove {
    RawMove {
        ino: ino.into(),
        file_block: piece.file_block.into(),
        at: piece.at.into(),
        count: piece.len().into(),
        tag: piece.tag.into(),
        slot: piece.slot.into(),
        state: piece.state() as u8,
        reserved: [0; 3],
    }
}

fn raw_range(ino: u64, from: u64, end: u64, state: u8) -> RawRange {
    RawRange { ino: ino.into(), from: from.into(), end: end.into(), state, reserved: [0; 7] }
}

/// Takes the next record off `payload`: its operation number and body. `None` when what follows is not a
/// record this version knows.
pub(super) fn read(payload: &mut Bytes) -> Option<(u64, Read)> {
    let (header, _) = RawHeader::read_from_prefix(payload).ok()?;
    let body_bytes = header.body_bytes.get() as usize;
    if payload.len() - RECORD_HEADER < body_bytes {
        return None;
    }
    let mut body = payload.split_to(RECORD_HEADER + body_bytes).split_off(RECORD_HEADER);
    let op = header.op.get();
    let read = match header.kind {
        kind::OPERATION => Body::Operation(body),
        kind::OPERATION_AGAIN => Body::OperationAgain(body),
        kind::RESTART_BEGIN => Body::RestartBegin,
        kind::RESTART_END => Body::RestartEnd,
        kind::FORGET => Body::Forget,
        kind::FORGET_ON_DISK => Body::ForgetOnDisk { tag: op as u32 },
        kind::COMPLETE => Body::Complete,
        kind::BIND => {
            let (raw, _) = RawBind::read_from_prefix(&body).ok()?;
            let sums = body.split_off(BIND_BYTES);
            let piece =
                piece(raw.file_block, raw.at, raw.count, raw.state, op as u32)?.in_slot(raw.slot.get());
            if sums.len() as u64 != 4 * u64::from(piece.len()) {
                return None;
            }
            let (ino, head) = (raw.ino.get(), raw.head.get());
            Body::Bind { ino, piece, head, inode: PackedInode(raw.inode), sums }
        }
        kind::MOVE => {
            let raw = RawMove::read_from_bytes(&body).ok()?;
            let piece =
                piece(raw.file_block, raw.at, raw.count, raw.state, raw.tag.get())?.in_slot(raw.slot.get());
            Body::Move { ino: raw.ino.get(), piece }
        }
        kind::UNBIND | kind::UNBIND_ALL | kind::SET_STATE | kind::UNBIND_ON_DISK | kind::UNDONE => {
            let raw = RawRange::read_from_bytes(&body).ok()?;
            let (ino, from, end) = (raw.ino.get(), raw.from.get(), raw.end.get());
            match header.kind {
                kind::UNBIND => Body::Unbind { ino, from, end },
                kind::UNBIND_ALL => Body::UnbindAll { ino },
                kind::UNBIND_ON_DISK => Body::UnbindOnDisk { ino, from, end, tag: op as u32 },
                kind::UNDONE => Body::Undone { limits: Limits { kept: from, disk: end } },
                _ => Body::SetState { ino, from, end, state: CopyState::from_bits(raw.state) },
            }
        }
        _ => return None,
    };
    Some((op, read))
}

fn piece(file_block: U32, at: U32, count: U32, state: u8, tag: u32) -> Option<Piece> {
    let (file_block, count) = (file_block.get(), count.get());
    let end = u64::from(file_block) + u64::from(count);
    let sane = count > 0 && count <= super::pieces::PIECE_BLOCKS_MAX && end <= 1 << 32 && state <= 3;
    sane.then(|| Piece::new(file_block, at.get(), count, CopyState::from_bits(state), tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_those_of_the_format_page() {
        assert_eq!((RECORD_HEADER, BIND_BYTES), (16, 96));
        assert_eq!((size_of::<RawMove>(), size_of::<RawRange>()), (32, 32));
    }

    #[test]
    fn records_read_back_as_written() {
        let piece = Piece::new(5, 6, 2, CopyState::Ssd, 300).in_slot(12);
        let inode = PackedInode([3; 64]);
        let records: Vec<Append> = vec![
            Body::Operation(b"hello"),
            Body::OperationAgain(b""),
            Body::RestartBegin,
            Body::RestartEnd,
            Body::Bind { ino: 1, piece, head: 11, inode, sums: &[0x0403_0201, 9] },
            Body::Unbind { ino: 2, from: 3, end: 1 << 33 },
            Body::UnbindAll { ino: 4 },
            Body::SetState { ino: 5, from: 0, end: 9, state: CopyState::Both },
            Body::Move { ino: 6, piece },
            Body::Forget,
            Body::Complete,
            Body::UnbindOnDisk { ino: 7, from: 8, end: 9, tag: 300 },
            Body::ForgetOnDisk { tag: 300 },
            Body::Undone { limits: Limits { kept: 10, disk: 4 } },
        ];
        let mut buffer = BytesMut::new();
        for record in &records {
            let before = buffer.len();
            record.write(300, &mut buffer);
            assert_eq!(buffer.len() - before, record.bytes());
        }
        let mut payload = buffer.freeze();
        for record in &records {
            let (op, found) = read(&mut payload).unwrap();
            assert_eq!(op, 300);
            match (record, found) {
                (Body::Operation(a), Body::Operation(b)) => assert_eq!(*a, b),
                (Body::OperationAgain(a), Body::OperationAgain(b)) => assert_eq!(*a, b),
                (
                    Body::Bind { piece, inode, .. },
                    Body::Bind { ino: 1, piece: p, head: 11, inode: n, sums },
                ) => {
                    assert_eq!((piece, inode), (&p, &n));
                    assert_eq!(&sums[..], [1, 2, 3, 4, 9, 0, 0, 0]);
                }
                (Body::Unbind { from: 3, .. }, Body::Unbind { ino: 2, from: 3, end }) => {
                    assert_eq!(end, 1 << 33)
                }
                (Body::UnbindAll { .. }, Body::UnbindAll { ino: 4 }) => {}
                (
                    Body::SetState { .. },
                    Body::SetState { ino: 5, from: 0, end: 9, state: CopyState::Both },
                ) => {}
                (Body::Move { .. }, Body::Move { ino: 6, piece: found }) => assert_eq!(found, piece),
                (Body::RestartBegin, Body::RestartBegin) => {}
                (Body::RestartEnd, Body::RestartEnd) | (Body::Forget, Body::Forget) => {}
                (Body::Complete, Body::Complete) => {}
                (Body::UnbindOnDisk { .. }, Body::UnbindOnDisk { ino: 7, from: 8, end: 9, tag: 300 }) => {}
                (Body::ForgetOnDisk { .. }, Body::ForgetOnDisk { tag: 300 }) => {}
                (Body::Undone { limits }, Body::Undone { limits: found }) => assert_eq!(*limits, found),
                (written, found) => panic!("{written:?} was read as {found:?}"),
            }
        }
        assert!(payload.is_empty());
    }

    #[test]
    fn nonsense_is_not_a_record() {
        let header =
            |bytes: u32, kind| RawHeader { body_bytes: bytes.into(), kind, reserved: [0; 3], op: 0.into() };
        for (bytes, kind, have) in [(10, 1, 9), (0, 0, 0), (0, 99, 0), (31, 6, 31), (20, 5, 20), (0, 9, 0)] {
            let mut payload = BytesMut::from(header(bytes, kind).as_bytes());
            payload.resize(RECORD_HEADER + have, 0);
            assert!(read(&mut payload.freeze()).is_none(), "{bytes} {kind}");
        }
        assert!(read(&mut Bytes::from_static(&[0; 15])).is_none());
    }

    /// Half of what an operation bound moves when the rest of it is cut: it must not count where the operation does not.
    #[test]
    fn what_moved_counts_if_what_bound_it_does() {
        let counts = |state, tag, kept| {
            let body: Body<&[u8], &[u32]> = Body::Move { ino: 1, piece: Piece::new(0, 8, 4, state, tag) };
            body.counts(0, Limits { kept, disk: 3 })
        };
        assert!(counts(CopyState::Ssd, 5, 5) && counts(CopyState::Ssd, 5, 9));
        assert!(!counts(CopyState::Ssd, 5, 4));
        assert!(counts(CopyState::Both, 5, 4), "the disk has it");
    }
}
