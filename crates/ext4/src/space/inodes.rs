//! Taking and giving back inode numbers.
//!
//! A file goes into its parent's group; if that is full, into groups found by quadratic probing, then any.
//! A directory under the root (or one marked as the top of a hierarchy) goes where there are few
//! directories and much is free, so that unrelated trees lie apart; other directories go near their parent
//! as long as the group is not worse than the average (Orlov's policy, as ext3 and ext4 have it).
//!
//! **Tables that were never written.** With descriptor checksums a group's inode table may hold garbage
//! from `unused_inodes` before its end on. When an inode beyond that line is taken, every block up to it is
//! set to zeros first, so that all before the line is valid at any time. A block all of whose other inodes
//! are free is never read: its contents are zeros.

use super::Space;
use super::bitmap::Bitmap;
use super::group::{BLOCK_UNINIT, INODE_UNINIT, TABLE_ZEROED, bitmap_sum};
use crate::buffers::{Buffers, Seal};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use std::ops::Range;

/// The first read of an inode table, bytes.
const TABLE_READ: u64 = 16 << 10;
/// Groups looked at for a new directory, at most.
const SAMPLES_MAX: u32 = 512;

/// The inodes of a group.
pub(super) struct InodeMap {
    map: Bitmap,
    dirty: bool,
    /// No free inode lies before it.
    hint: u32,
}

/// What a new inode is to be, as far as its number depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub parent: Ino,
    pub is_dir: bool,
    /// The parent spreads its subdirectories.
    pub spread: bool,
    /// This number and no other.
    pub exactly: Option<Ino>,
}

impl InodeMap {
    /// The image of what changed in the running transaction, if anything did.
    pub fn freeze(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.dirty).then(|| self.map.to_bytes())
    }
}

impl Space {
    /// Takes an inode number and makes its slot in the table ready.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if all are in use, [`Error::Exists`] if the one asked for is; a bitmap or table
    /// block that cannot be read.
    pub fn take_inode(&mut self, buffers: &mut Buffers, placement: &Placement) -> Result<Ino> {
        if let Some(ino) = placement.exactly {
            return self.take_exactly(buffers, ino, placement.is_dir);
        }
        if self.count.inodes == 0 {
            return Err(Error::NoSpace("no free inodes"));
        }
        let first = self.pick_group(placement);
        let groups = self.geometry.groups;
        let mut probe = 1;
        let mut group = first;
        while probe < groups.saturating_mul(2) {
            if let Some(ino) = self.take_in_group(buffers, group, placement.is_dir)? {
                return Ok(ino);
            }
            group = (group + probe) % groups;
            probe *= 2;
        }
        for step in 0..groups {
            if let Some(ino) = self.take_in_group(buffers, (first + step) % groups, placement.is_dir)? {
                return Ok(ino);
            }
        }
        Err(Error::NoSpace("no free inodes"))
    }

    fn take_exactly(&mut self, buffers: &mut Buffers, ino: Ino, is_dir: bool) -> Result<Ino> {
        if !self.geometry.is_ordinary(ino) {
            return Err(Error::invalid(format!("inode {ino} cannot be made anew")));
        }
        let (group, place) = self.geometry.group_of_inode(ino);
        if self.inode_map(buffers, group)?.map.test(place) {
            return Err(Error::Exists);
        }
        self.take_place(buffers, group, place, is_dir)
    }

    fn take_in_group(&mut self, buffers: &mut Buffers, group: u32, is_dir: bool) -> Result<Option<Ino>> {
        if self.desc(group).free_inodes == 0 {
            return Ok(None);
        }
        let inodes = self.geometry.inodes_per_group;
        let reserved = if group == 0 { self.geometry.first_ino - 1 } else { 0 };
        let map = self.inode_map(buffers, group)?;
        let Some(place) = map.map.next_zero(map.hint.max(reserved), inodes) else {
            return Err(Error::corrupt(
                "an inode bitmap",
                "it has no free inode though the descriptor counts some",
                format!("group {group}"),
            ));
        };
        map.hint = place;
        self.take_place(buffers, group, place, is_dir).map(Some)
    }

    fn take_place(&mut self, buffers: &mut Buffers, group: u32, place: u32, is_dir: bool) -> Result<Ino> {
        self.prepare_slot(buffers, group, place)?;
        // Linux keeps a group's block bitmap written once the group has inodes.
        self.block_map(buffers, group)?.touch();
        let inodes = self.geometry.inodes_per_group;
        let map = self.inode_map(buffers, group)?;
        map.map.set(place, 1);
        map.dirty = true;
        let entry = &mut self.groups[group as usize];
        entry.desc.flags &= !(INODE_UNINIT | BLOCK_UNINIT);
        entry.desc.free_inodes = entry.desc.free_inodes.saturating_sub(1);
        entry.desc.dirs += u32::from(is_dir);
        entry.desc.unused_inodes = entry.desc.unused_inodes.min(inodes - place - 1);
        self.count.inodes = self.count.inodes.saturating_sub(1);
        self.touch(group);
        Ok(Ino(u64::from(group) * u64::from(inodes) + u64::from(place) + 1))
    }

    /// Gives back an inode number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not in use; a bitmap that cannot be read.
    pub fn give_inode(&mut self, buffers: &Buffers, ino: Ino, is_dir: bool) -> Result<()> {
        let (group, place) = self.geometry.group_of_inode(ino);
        let map = self.inode_map(buffers, group)?;
        if !map.map.test(place) {
            return Err(Error::corrupt(
                "an inode bitmap",
                "an inode in use is marked as free",
                format!("inode {ino}"),
            ));
        }
        map.map.clear(place, 1);
        map.dirty = true;
        map.hint = map.hint.min(place);
        let entry = &mut self.groups[group as usize];
        entry.desc.free_inodes += 1;
        entry.desc.dirs = entry.desc.dirs.saturating_sub(u32::from(is_dir));
        self.count.inodes += 1;
        self.touch(group);
        Ok(())
    }

    /// Whether an inode number is in use.
    pub fn is_taken(&mut self, buffers: &Buffers, ino: Ino) -> Result<bool> {
        let (group, place) = self.geometry.group_of_inode(ino);
        Ok(self.inode_map(buffers, group)?.map.test(place))
    }

    /// The block of the inode table an inode is in, and the offset in it.
    fn slot_of(&self, ino: Ino) -> (u64, usize) {
        let (group, place) = self.geometry.group_of_inode(ino);
        let per_block = self.geometry.block_bytes / self.geometry.inode_bytes;
        let block = self.desc(group).table + u64::from(place / per_block);
        (block, ((place % per_block) * self.geometry.inode_bytes) as usize)
    }

    /// The buffer of the table block of an inode, read if need be with others that hold inodes.
    pub fn load_slot(&self, buffers: &mut Buffers, ino: Ino) -> Result<(u32, usize)> {
        let (block, offset) = self.slot_of(ino);
        if let Some(slot) = buffers.find(block) {
            return Ok((slot, offset));
        }
        let (group, _) = self.geometry.group_of_inode(ino);
        let least = (TABLE_READ >> self.geometry.block_bits).max(1);
        Ok((buffers.load_among(block, &self.used_table(group), least)?, offset))
    }

    /// The blocks of a group's inode table that may hold inodes.
    fn used_table(&self, group: u32) -> Range<u64> {
        let desc = self.desc(group);
        let per_block = self.geometry.block_bytes / self.geometry.inode_bytes;
        let used = (self.geometry.inodes_per_group - desc.unused_inodes).div_ceil(per_block);
        desc.table..desc.table + u64::from(used)
    }

    /// Notes that an inode will be wanted soon.
    pub fn hint_inode(&self, buffers: &Buffers, ino: Ino) {
        let (block, _) = self.slot_of(ino);
        let (group, _) = self.geometry.group_of_inode(ino);
        if self.used_table(group).contains(&block) {
            buffers.hint(block);
        }
    }

    /// Has the table block of a free inode in a buffer, and every block of the table up to it valid.
    fn prepare_slot(&mut self, buffers: &mut Buffers, group: u32, place: u32) -> Result<()> {
        let per_block = self.geometry.block_bytes / self.geometry.inode_bytes;
        let (table, flags) = (self.desc(group).table, self.desc(group).flags);
        let wanted = place / per_block;
        let used = self.geometry.inodes_per_group - self.desc(group).unused_inodes;
        if flags & TABLE_ZEROED == 0 && place >= used {
            for block in used.div_ceil(per_block)..wanted {
                buffers.blank(table + u64::from(block), Seal::Plain);
            }
        }
        let map = self.inode_map(buffers, group)?;
        if map.map.count(wanted * per_block, per_block) == 0 {
            buffers.blank(table + u64::from(wanted), Seal::Plain);
            return Ok(());
        }
        let ino = Ino(u64::from(group) * u64::from(self.geometry.inodes_per_group) + u64::from(place) + 1);
        self.load_slot(buffers, ino).map(drop)
    }

    /// The inode bitmap of a group, read or made if it is not in memory.
    fn inode_map(&mut self, buffers: &Buffers, group: u32) -> Result<&mut InodeMap> {
        if self.groups[group as usize].inodes.is_none() {
            let map = self.read_inode_map(buffers, group)?;
            self.groups[group as usize].inodes = Some(Box::new(map));
            if self.groups[group as usize].blocks.is_none() {
                self.loaded.push(group);
            }
        }
        Ok(self.groups[group as usize].inodes.as_mut().expect("just put there"))
    }

    fn read_inode_map(&self, buffers: &Buffers, group: u32) -> Result<InodeMap> {
        let (inodes, bits) = (self.geometry.inodes_per_group, 8 * self.geometry.block_bytes);
        let desc = self.desc(group);
        let bad = |why: &str| {
            Err(Error::corrupt("an inode bitmap", why, format!("group {group}, block {}", desc.inode_bitmap)))
        };
        let mut map = if desc.has(INODE_UNINIT) {
            Bitmap::zeros(bits)
        } else {
            let bytes = buffers.fetch_bitmap(desc.inode_bitmap)?;
            let sum = bitmap_sum(&bytes, inodes, &self.geometry);
            if sum.is_some_and(|sum| sum != desc.inode_sum) {
                return bad("the checksum is wrong");
            }
            Bitmap::from_bytes(&bytes)
        };
        if inodes - map.count(0, inodes) != desc.free_inodes {
            return bad("it disagrees with the group's count of free inodes");
        }
        let unused = desc.unused_inodes;
        if map.count(inodes - unused, unused) != 0 {
            return bad("an inode is in use that the descriptor calls never used");
        }
        map.set(inodes, bits - inodes);
        Ok(InodeMap { map, dirty: false, hint: 0 })
    }

    /// The group a new inode should go into.
    fn pick_group(&self, placement: &Placement) -> u32 {
        let (parent, _) = self.geometry.group_of_inode(placement.parent);
        if !placement.is_dir {
            return parent;
        }
        let groups = self.geometry.groups;
        let inodes = self.count.inodes / groups;
        let blocks = (self.count.blocks / u64::from(groups)) as u32;
        let good = |group: &u32| {
            let desc = self.desc(*group);
            desc.free_inodes > 0 && desc.free_inodes >= inodes && desc.free_blocks >= blocks
        };
        let first = self.flex_start(parent);
        if placement.spread {
            let stride = groups.div_ceil(SAMPLES_MAX);
            let sample = (self.count.inodes % stride..groups).step_by(stride as usize);
            let fewest = sample.filter(good).min_by_key(|group| self.desc(*group).dirs);
            return fewest.unwrap_or(parent);
        }
        let fair = |group: &u32| {
            let desc = self.desc(*group);
            desc.free_inodes > inodes / 4 && desc.free_blocks >= blocks / 4 && desc.free_inodes > 0
        };
        (0..groups)
            .map(|step| (first + step) % groups)
            .take(SAMPLES_MAX as usize)
            .find(fair)
            .unwrap_or(parent)
    }

    /// The first group of those that keep their tables together with `group`.
    fn flex_start(&self, group: u32) -> u32 {
        group >> self.geometry.flex_bits << self.geometry.flex_bits
    }
}
