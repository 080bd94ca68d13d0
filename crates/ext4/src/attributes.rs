//! Extended attributes of inodes: those in the inode's own slot and those in its attribute block.
//!
//! The format and its rules are [`super::xattr`]'s. A block may be shared by several inodes (Linux does
//! that); it is copied before a change, and freed with its last user.

use super::Ext4;
use super::buffers::Seal;
use super::inode::Inode;
use super::inode::flag;
use super::space::{Claim, Goal};
use super::superblock::OLD_INODE_BYTES;
use super::xattr::{self, XattrLayout, XattrSet};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::SetXattr;

impl Ext4 {
    /// The value of an attribute by its full name, such as `user.k` or `system.posix_acl_access` (in the
    /// form the kernel passes it).
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::NotSupported`] for a kind of name that is not known; as
    /// [`Ext4::inode`].
    pub fn get_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.xattrs(ino)?.get(name)
    }

    /// The full names of all attributes.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn list_xattrs(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.xattrs(ino)?.list())
    }

    /// Sets an attribute. Mode bits that go with an access list are the caller's to set.
    ///
    /// # Errors
    /// [`Error::Exists`] and [`Error::NoAttribute`] as `how` asks, [`Error::NoSpace`] if it fits neither
    /// the inode nor a block, [`Error::NotPermitted`] for inodes that may not change; as
    /// [`Ext4::inode_mut`].
    pub fn set_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        now: Stamp,
    ) -> Result<()> {
        let mut set = self.xattrs(ino)?;
        set.set(name, value, how)?;
        self.set_xattrs(ino, &set, now)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; as [`Ext4::set_xattr`].
    pub fn remove_xattr(&mut self, ino: Ino, name: &[u8], now: Stamp) -> Result<()> {
        let mut set = self.xattrs(ino)?;
        set.remove(name)?;
        self.set_xattrs(ino, &set, now)
    }

    /// All attributes of an inode. Cheap if it has none.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn xattrs(&mut self, ino: Ino) -> Result<XattrSet> {
        self.make_room();
        let slot = self.load(ino)?;
        let inode = &self.inodes.entry(slot).inode;
        if !inode.may_have_xattrs() {
            return Ok(XattrSet::default());
        }
        let (block, place) = (inode.attr_block, format!("inode {ino}"));
        let area = area(inode, self.store.geometry.inode_bytes);
        let outer = if block == 0 { None } else { Some(self.load_attr_block(block, ino)?) };
        let (slot, offset) = self.store.load_slot(ino)?;
        let raw = &self.store.buffers.bytes(slot)[offset..];
        let outer = outer.map(|slot| self.store.buffers.bytes(slot));
        XattrSet::parse(&raw[area], outer, &place)
    }

    /// Replaces all attributes of an inode.
    ///
    /// # Errors
    /// As [`Ext4::set_xattr`].
    pub fn set_xattrs(&mut self, ino: Ino, set: &XattrSet, now: Stamp) -> Result<()> {
        self.make_room();
        let now = self.note_time(now);
        let slot = self.load_dirty(ino)?;
        let inode = &self.inodes.entry(slot).inode;
        if inode.has(flag::IMMUTABLE | flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        let area = area(inode, self.store.geometry.inode_bytes);
        let layout = set.layout(area.len(), self.store.buffers.block_bytes())?;
        self.store_attr_block(slot, &layout)?;
        let (buffer, offset) = self.store.load_slot(ino)?;
        let raw = &mut self.store.buffers.edit(buffer, Seal::Plain)[offset..];
        let inode = &mut self.inodes.entry(slot).inode;
        inode.inner_attrs = layout.inode.iter().any(|byte| *byte != 0);
        inode.ctime = now;
        raw[area].copy_from_slice(&layout.inode);
        self.store.sb.set_ext_attr();
        Ok(())
    }

    /// Brings an inode's attribute block in line with a layout.
    fn store_attr_block(&mut self, slot: u32, layout: &XattrLayout) -> Result<()> {
        let inode = &self.inodes.entry(slot).inode;
        let (ino, old) = (inode.ino, inode.attr_block);
        let Some(bytes) = &layout.block else { return self.drop_attributes(slot) };
        if old != 0 {
            let buffer = self.load_attr_block(old, ino)?;
            if xattr::block_refs(self.store.buffers.bytes(buffer)) <= 1 {
                self.store.buffers.edit(buffer, Seal::Xattr).copy_from_slice(bytes);
                return Ok(());
            }
        }
        self.store.space.check_room(1, Claim::Ordinary)?;
        let (group, _) = self.store.geometry.group_of_inode(ino);
        let near = self.store.geometry.group_start(group);
        let (at, _) = self.store.take_blocks(Goal { at: near, exact: false }, 1)?;
        self.drop_attributes(slot)?;
        let buffer = self.store.buffers.blank(at, Seal::Xattr);
        self.store.buffers.edit(buffer, Seal::Xattr).copy_from_slice(bytes);
        let inode = &mut self.inodes.entry(slot).inode;
        inode.attr_block = at;
        inode.blocks += u64::from(self.store.geometry.block_bytes / 512);
        Ok(())
    }

    /// Gives up an inode's attribute block.
    pub(super) fn drop_attributes(&mut self, slot: u32) -> Result<()> {
        let inode = &self.inodes.entry(slot).inode;
        let (ino, block) = (inode.ino, inode.attr_block);
        if block == 0 {
            return Ok(());
        }
        let buffer = self.load_attr_block(block, ino)?;
        match xattr::block_refs(self.store.buffers.bytes(buffer)) {
            0 | 1 => self.store.give_blocks(block, 1, true)?,
            refs => xattr::set_block_refs(self.store.buffers.edit(buffer, Seal::Xattr), refs - 1),
        }
        let inode = &mut self.inodes.entry(slot).inode;
        inode.attr_block = 0;
        inode.blocks = inode.blocks.saturating_sub(u64::from(self.store.geometry.block_bytes / 512));
        Ok(())
    }

    /// The buffer of an attribute block, checked.
    fn load_attr_block(&mut self, block: u64, ino: Ino) -> Result<u32> {
        if !self.store.space.may_hold_data(block, 1) {
            let why = format!("attributes in block {block}");
            return Err(Error::corrupt("an inode", why, format!("inode {ino}")));
        }
        let buffer = self.store.buffers.load(block)?;
        if !self.store.buffers.is_checked(buffer) {
            if self.store.geometry.features.csum() {
                xattr::verify_block(self.store.buffers.bytes(buffer), self.store.geometry.seed, block)?;
            }
            self.store.buffers.set_checked(buffer);
        }
        Ok(buffer)
    }
}

/// Where attributes lie inside an inode's slot.
fn area(inode: &Inode, inode_bytes: u32) -> std::ops::Range<usize> {
    let len = inode.inner_room(inode_bytes as usize);
    let start = (OLD_INODE_BYTES + inode.extra_isize) as usize;
    start..start + len
}
