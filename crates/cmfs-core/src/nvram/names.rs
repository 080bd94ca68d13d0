//! Names records: what a listing shows of the objects of a group, so that it needs no NAND.
//!
//! Behind a bitmap of which objects there are, each is said in bytes: flags for what is as with the one before;
//! how many bytes its name begins with that the last one began with, the rest of the name; mode, owner, group,
//! device; times as differences. A record is true of an object only while the group record says so, and is
//! written only when flash and memory agree.

use super::compact::{CONTENTS_AT, unpack};
use super::heap::Key;
use super::{Snapshot, Store};
use crate::error::Result;
use crate::media::Nvram;
use crate::object::{Details, GROUP, Kind, Objects, Time};
use alloc::vec::Vec;

const SAME_OWNER: u8 = 1;
const SAME_DEVICE: u8 = 2;
const SAME_NANOS: u8 = 4;
const CTIME_IS_MTIME: u8 = 8;
const ATIME_IS_MTIME: u8 = 16;
const CRTIME_IS_MTIME: u8 = 32;
const SAME_TIME: u8 = 64;

fn put(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn put_signed(to: &mut Vec<u8>, value: i64) {
    put(to, (value << 1 ^ value >> 63) as u64);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.number()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn short(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn bytes(&mut self, len: usize) -> Option<&[u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
}

fn flags(now: &Details, before: &Details) -> u8 {
    let same = |holds: bool, flag: u8| if holds { flag } else { 0 };
    let owner = (now.mode, now.uid, now.gid) == (before.mode, before.uid, before.gid);
    same(owner, SAME_OWNER)
        | same(now.rdev == before.rdev, SAME_DEVICE)
        | same(now.mtime.nsec == before.mtime.nsec, SAME_NANOS)
        | same(now.ctime == now.mtime, CTIME_IS_MTIME)
        | same(now.atime == now.mtime, ATIME_IS_MTIME)
        | same(now.crtime == now.mtime, CRTIME_IS_MTIME)
        | same(now.mtime.sec == before.mtime.sec, SAME_TIME)
}

fn write(to: &mut Vec<u8>, now: &Details, before: &Details) {
    let flags = flags(now, before);
    to.push(flags);
    let shared = now.name.iter().zip(&before.name[..]).take_while(|(a, b)| a == b).count();
    put(to, shared as u64);
    put(to, (now.name.len() - shared) as u64);
    to.extend_from_slice(&now.name[shared..]);
    if flags & SAME_OWNER == 0 {
        [now.mode, now.uid, now.gid].iter().for_each(|value| put(to, u64::from(*value)));
    }
    if flags & SAME_DEVICE == 0 {
        put(to, u64::from(now.rdev));
    }
    if flags & SAME_TIME == 0 {
        put_signed(to, now.mtime.sec.wrapping_sub(before.mtime.sec));
    }
    if flags & SAME_NANOS == 0 {
        put(to, u64::from(now.mtime.nsec));
    }
    let others = [(now.ctime, CTIME_IS_MTIME), (now.atime, ATIME_IS_MTIME), (now.crtime, CRTIME_IS_MTIME)];
    for (time, flag) in others {
        if flags & flag == 0 {
            put_signed(to, time.sec.wrapping_sub(now.mtime.sec));
            put(to, u64::from(time.nsec));
        }
    }
}

fn read(from: &mut Reader, before: &Details) -> Option<Details> {
    let flags = from.byte()?;
    let shared = from.number()? as usize;
    let len = from.number()? as usize;
    let mut name: Vec<u8> = before.name.get(..shared)?.to_vec();
    name.extend_from_slice(from.bytes(len)?);
    let mut now = Details { name: name.into(), rest: None, ..before.clone() };
    if flags & SAME_OWNER == 0 {
        (now.mode, now.uid, now.gid) = (from.short()?, from.short()?, from.short()?);
    }
    if flags & SAME_DEVICE == 0 {
        now.rdev = from.short()?;
    }
    if flags & SAME_TIME == 0 {
        now.mtime.sec = before.mtime.sec.wrapping_add(from.signed()?);
    }
    if flags & SAME_NANOS == 0 {
        now.mtime.nsec = from.short()?;
    }
    let base = now.mtime;
    let mut other = |flag: u8| match flags & flag {
        0 => Some(Time { sec: base.sec.wrapping_add(from.signed()?), nsec: from.short()? }),
        _ => Some(base),
    };
    now.ctime = other(CTIME_IS_MTIME)?;
    now.atime = other(ATIME_IS_MTIME)?;
    now.crtime = other(CRTIME_IS_MTIME)?;
    Some(now)
}

/// The record of these objects of a group.
fn write_group(group: u32, all: &[(u32, Details)]) -> Vec<u8> {
    let mut bitmap = [0u8; (GROUP / 8) as usize];
    for (id, _) in all {
        let at = id - group * GROUP;
        bitmap[(at / 8) as usize] |= 1 << (at % 8);
    }
    let mut to = bitmap.to_vec();
    let mut before = &Details::default();
    for (_, details) in all {
        write(&mut to, details, before);
        before = details;
    }
    to
}

pub(super) fn read_group(group: u32, bytes: &[u8]) -> Option<Vec<(u32, Details)>> {
    let (bitmap, rest) = bytes.split_at_checked((GROUP / 8) as usize)?;
    let mut from = Reader(rest);
    let mut all = Vec::new();
    let mut before = Details::default();
    for at in 0..GROUP {
        if bitmap[(at / 8) as usize] >> (at % 8) & 1 == 1 {
            before = read(&mut from, &before)?;
            all.push((group * GROUP + at, before.clone()));
        }
    }
    Some(all)
}

impl<V: Nvram> Store<V> {
    /// What the names record of a group says; a spoilt one says nothing.
    pub(super) fn load_names(&mut self, group: u32) -> Result<Option<Vec<(u32, Details)>>> {
        let key = Key::new(Key::NAMES, group);
        let Some(bytes) = self.heap.get(key)? else { return Ok(None) };
        let whole = unpack(key, &bytes).is_some();
        Ok(if whole { read_group(group, &bytes[CONTENTS_AT..]) } else { None })
    }

    /// The names record of a group as it should be; `None` if a name is not known here.
    pub(super) fn names_of(&mut self, snapshot: &Snapshot, group: u32) -> Result<Option<Vec<u8>>> {
        let old = self.load_names(group)?.unwrap_or_default();
        let mut all = Vec::new();
        for id in group * GROUP..(group + 1) * GROUP {
            if let Some(details) = details_of(snapshot.objects, id, &old, &|id| self.named.contains(id)) {
                all.push((id, details));
            }
        }
        Ok((!all.is_empty()).then(|| write_group(group, &all)))
    }
}

/// What is to be said of an object: from memory, or what the last record said if that is still true.
fn details_of(
    objects: &Objects,
    id: u32,
    old: &[(u32, Details)],
    named: &dyn Fn(u32) -> bool,
) -> Option<Details> {
    let told = || old.iter().find(|(other, _)| named(id) && *other == id).map(|(_, details)| details.clone());
    if objects.is_stored(id) {
        return told();
    }
    let object = objects.get(id)?;
    if object.header == crate::object::NONE || object.kind == Kind::Unknown {
        return None;
    }
    match &object.details {
        Some(details) if !objects.is_dirty(id) => Some(Details { rest: None, ..(**details).clone() }),
        Some(_) => None,
        None => told(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_attributes_read_back_and_share_what_is_the_same() {
        let time = |sec, nsec| Time { sec, nsec };
        let all: Vec<(u32, Details)> = (0..40u32)
            .map(|at| {
                let name = std::format!("photo-{at:04}.jpg").into_bytes().into();
                let mtime = time(1_700_000_000 + i64::from(at), 5);
                let ctime = if at % 2 == 0 { mtime } else { time(-1, 9) };
                let mode = if at < 30 { 0o100_644 } else { 0o20_600 };
                let all = Details {
                    name,
                    mode,
                    uid: 7,
                    mtime,
                    ctime,
                    atime: mtime,
                    rdev: at / 30,
                    ..Details::default()
                };
                (128 + at, all)
            })
            .collect();
        let bytes = write_group(2, &all);
        let read = read_group(2, &bytes).expect("what was written");
        assert!(bytes.len() < 40 * 24, "{}", bytes.len());
        for ((id, written), (other, read)) in all.iter().zip(&read) {
            assert_eq!(
                (id, &written.name, written.mode, written.ctime),
                (other, &read.name, read.mode, read.ctime)
            );
            assert_eq!((written.mtime, written.crtime, written.rdev), (read.mtime, read.crtime, read.rdev));
        }
        assert!(read_group(2, &bytes[..bytes.len() - 3]).is_none());
    }
}
