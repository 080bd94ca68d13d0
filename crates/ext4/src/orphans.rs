//! Inodes without names that are still in use: the orphan list, and their end.
//!
//! The list begins in the superblock and goes on in the deletion time of each inode. After a crash whoever
//! mounts the disk frees what is on it (and cuts files that were being cut). New orphans go to its head;
//! the neighbours of every orphan are kept in memory, so leaving takes no search. Orphans stay in the inode
//! cache.
//!
//! A Linux kernel may have left orphans in the orphan file instead; [`Ext4::adopt_orphans`] takes those in,
//! and leaves the file empty.

use super::Ext4;
use super::buffers::Seal;
use super::credits::has_tree;
use super::inode::{Inode, flag};
use super::le::{get32, get64, put32};
use bimetal_base::checksum::crc32c_raw;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::Kind;
use rustc_hash::FxHashSet;

const FILE_MAGIC: u32 = 0x0B10_CA04;

impl Ext4 {
    /// Puts an inode at the head of the orphan list, if it is not on it.
    pub(super) fn add_orphan(&mut self, ino: Ino) -> Result<()> {
        if self.orphans.contains_key(&(ino.0 as u32)) {
            return Ok(());
        }
        let slot = self.load_dirty_orphan(ino)?;
        let next = self.store.sb.last_orphan();
        let entry = self.inodes.entry(slot);
        entry.orphan = true;
        entry.inode.dtime = next;
        let own = ino.0 as u32;
        self.store.sb.set_last_orphan(own);
        self.orphans.insert(own, (0, next));
        if let Some(neighbour) = self.orphans.get_mut(&next) {
            neighbour.0 = own;
        }
        self.super_dirty = true;
        Ok(())
    }

    /// Takes an inode off the orphan list.
    pub(super) fn remove_orphan(&mut self, ino: Ino) -> Result<()> {
        let own = ino.0 as u32;
        let Some((prior, next)) = self.orphans.get(&own).copied() else { return Ok(()) };
        if prior == 0 {
            self.store.sb.set_last_orphan(next);
        } else {
            let slot = self.load_dirty_orphan(Ino(u64::from(prior)))?;
            self.inodes.entry(slot).inode.dtime = next;
        }
        self.orphans.remove(&own);
        self.orphans.entry(prior).and_modify(|neighbour| neighbour.1 = next);
        self.orphans.entry(next).and_modify(|neighbour| neighbour.0 = prior);
        self.super_dirty = true;
        if let Some(slot) = self.inodes.find(ino) {
            self.mark(slot)?;
            let entry = self.inodes.entry(slot);
            entry.orphan = false;
            entry.inode.dtime = 0;
        }
        Ok(())
    }

    /// Brings in what leaving the list changes of the inode before this one, so that leaving cannot fail.
    pub(super) fn hold_neighbour(&mut self, ino: Ino) -> Result<()> {
        match self.orphans.get(&(ino.0 as u32)) {
            Some((prior @ 1.., _)) => self.load_dirty_orphan(Ino(u64::from(*prior))).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether a file was cut and not all past its end is free yet.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn is_being_cut(&mut self, ino: Ino) -> Result<bool> {
        let slot = self.load(ino)?;
        Ok(self.inodes.entry(slot).being_cut)
    }

    /// Goes on with the cut of a file by a step; `true` if nothing of it is left.
    ///
    /// # Errors
    /// As [`Ext4::truncate`].
    pub fn finish_cut(&mut self, ino: Ino) -> Result<bool> {
        let slot = self.load(ino)?;
        if !self.inodes.entry(slot).being_cut {
            return Ok(true);
        }
        let slot = self.load_dirty(ino)?;
        let size = self.inodes.entry(slot).inode.size;
        self.resize(slot, size)
    }

    /// The slot of an inode that may be without names, marked as changed.
    fn load_dirty_orphan(&mut self, ino: Ino) -> Result<u32> {
        self.store.check_writable()?;
        let slot = match self.inodes.find(ino) {
            Some(slot) => slot,
            None => {
                if !self.store.geometry.is_ordinary(ino) {
                    return Err(Error::Stale);
                }
                let inode = self.store.read_inode(ino)?;
                self.inodes.insert(inode)
            }
        };
        self.mark(slot)?;
        Ok(slot)
    }

    /// Frees an inode without names and everything it has. `false` means that so much has to be freed
    /// that it takes several transactions: commit and call again. A crash in between does no harm.
    ///
    /// # Errors
    /// [`Error::Stale`] if the inode has names or does not exist; [`Error::Corrupt`]; what reading says.
    /// What was not freed stays on the orphan list.
    pub fn release(&mut self, ino: Ino) -> Result<bool> {
        self.make_room();
        let slot = self.inodes.find(ino).ok_or(Error::Stale)?;
        if self.inodes.entry(slot).inode.nlink != 0 {
            return Err(Error::Stale);
        }
        self.store.check_writable()?;
        self.mark(slot)?;
        if has_tree(&self.inodes.entry(slot).inode) && !self.free_from(slot, 0)? {
            return Ok(false);
        }
        self.drop_attributes(slot)?;
        self.hold_neighbour(ino)?;
        let is_dir = self.inodes.entry(slot).inode.kind() == Kind::Dir;
        self.store.give_inode(ino, is_dir)?;
        self.remove_orphan(ino)?;
        self.bury(slot)?;
        Ok(true)
    }

    /// Writes a freed inode into its table and forgets it.
    fn bury(&mut self, slot: u32) -> Result<()> {
        let sec = self.store.clock.sec.clamp(1, i64::from(u32::MAX)) as u32;
        let inode = &mut self.inodes.entry(slot).inode;
        (inode.dtime, inode.size, inode.blocks) = (sec, 0, 0);
        inode.flags &= !flag::EXTENTS;
        inode.body = [0; super::inode::BODY_BYTES];
        let ino = inode.ino;
        self.store.write_inode(inode)?;
        self.inodes.remove(ino);
        Ok(())
    }

    /// Takes in the orphans an earlier mount left: inodes without names are freed, others cut to their
    /// size. What is more than a transaction can hold is committed here, the rest is in the running one.
    /// One that cannot be freed for what is damaged, or cannot be read, stays on the list: the error is its own.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the list is damaged; what reading it and committing says.
    pub(super) fn adopt_orphans(&mut self) -> Result<()> {
        let listed = self.listed_orphans()?;
        let filed = self.filed_orphans()?;
        for ino in &filed {
            if !self.orphans.contains_key(&(ino.0 as u32)) {
                self.add_orphan(*ino)?;
                if let Some(slot) = self.inodes.find(*ino) {
                    let entry = self.inodes.entry(slot);
                    entry.being_cut = is_cut(&entry.inode);
                }
            }
        }
        if self.store.sb.orphan_present() {
            self.store.sb.clear_orphan_present();
            self.super_dirty = true;
        }
        for ino in listed.into_iter().chain(filed) {
            loop {
                match self.finish_orphan(ino) {
                    Ok(true) => break,
                    Ok(false) => self.commit_here()?,
                    Err(error @ (Error::Corrupt { .. } | Error::Io { .. })) => {
                        tracing::warn!(%ino, %error, "what an unlinked or cut file had stays taken; e2fsck frees it");
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            if self.dirty_blocks() > self.capacity / 2 {
                self.commit_here()?;
            }
        }
        Ok(())
    }

    /// The orphans of an earlier mount that were freed when this was opened: whatever else is known of them is old.
    pub fn take_adopted(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.adopted)
    }

    /// A step towards the end of an orphan; `true` if it was the last.
    fn finish_orphan(&mut self, ino: Ino) -> Result<bool> {
        let Some(slot) = self.inodes.find(ino).filter(|_| self.orphans.contains_key(&(ino.0 as u32))) else {
            return Ok(true);
        };
        let inode = &self.inodes.entry(slot).inode;
        if inode.nlink == 0 {
            let freed = self.release(ino)?;
            self.adopted.extend(freed.then_some(ino));
            return Ok(freed);
        }
        match inode.kind() {
            Kind::File => self.finish_cut(ino),
            _ => self.remove_orphan(ino).map(|()| true),
        }
    }

    /// Walks the list in the superblock and the inodes, and remembers it.
    fn listed_orphans(&mut self) -> Result<Vec<Ino>> {
        let bad = |why: &str, ino: u32| Err(Error::corrupt("the orphan list", why, format!("inode {ino}")));
        let (mut list, mut prior, mut ino) = (Vec::new(), 0, self.store.sb.last_orphan());
        while ino != 0 {
            let at = Ino(u64::from(ino));
            if !self.store.geometry.is_ordinary(at) || !self.store.space.is_taken(&self.store.buffers, at)? {
                return bad("it leads to an inode that is not in use", ino);
            }
            if self.orphans.contains_key(&ino) {
                return bad("it leads back into itself", ino);
            }
            let inode = self.store.read_inode(at)?;
            let next = inode.dtime;
            let slot = self.inodes.insert(inode);
            let entry = self.inodes.entry(slot);
            (entry.orphan, entry.being_cut) = (true, is_cut(&entry.inode));
            self.orphans.insert(ino, (prior, next));
            list.push(at);
            (prior, ino) = (ino, next);
        }
        Ok(list)
    }

    /// The inodes in the orphan file, which is empty afterwards.
    fn filed_orphans(&mut self) -> Result<Vec<Ino>> {
        let Some(file) = self.store.geometry.orphan_ino.filter(|_| self.store.sb.orphan_present()) else {
            return Ok(Vec::new());
        };
        if file.0 == 0 || file.0 > u64::from(self.store.geometry.inodes) {
            return Err(Error::corrupt("the orphan file", "it has no inode", "the superblock"));
        }
        let mut inode = self.store.read_inode(file)?;
        let mut found = FxHashSet::default();
        for block in self.store.blocks_of(&mut inode, "the orphan file")? {
            self.take_filed(block, inode.seed, &mut found)?;
        }
        let mut found: Vec<Ino> = found.into_iter().collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Moves the numbers out of one block of the orphan file.
    fn take_filed(&mut self, block: u64, seed: u32, found: &mut FxHashSet<Ino>) -> Result<()> {
        let slot = self.store.buffers.load(block)?;
        let bytes = self.store.buffers.bytes(slot);
        let end = bytes.len() - 8;
        let bad = |why: &str| Err(Error::corrupt("the orphan file", why, format!("block {block}")));
        if get64(bytes, end) as u32 != FILE_MAGIC {
            return bad("the magic is wrong");
        }
        let sum = |numbers: &[u8]| crc32c_raw(crc32c_raw(seed, &block.to_le_bytes()), numbers);
        let sums = self.store.geometry.features.csum();
        if sums && sum(&bytes[..end]) != get32(bytes, end + 4) {
            return bad("the checksum is wrong");
        }
        let numbers = bytes[..end].chunks_exact(4).map(|number| get32(number, 0)).filter(|ino| *ino != 0);
        let numbers: Vec<Ino> = numbers.map(|ino| Ino(u64::from(ino))).collect();
        for ino in numbers {
            if !self.store.geometry.is_ordinary(ino)
                || !self.store.space.is_taken(&self.store.buffers, ino)?
                || !found.insert(ino)
            {
                return bad("it names an inode that is not in use, or one twice");
            }
        }
        let bytes = self.store.buffers.edit(slot, Seal::Plain);
        bytes[..end].fill(0);
        if sums {
            let sum = sum(&bytes[..end]);
            put32(bytes, end + 4, sum);
        }
        Ok(())
    }
}

/// Whether an orphan is a file that keeps its name and was being cut.
fn is_cut(inode: &Inode) -> bool {
    inode.nlink > 0 && inode.kind() == Kind::File
}
