//! What a front asks of a mounted nfhybrid, each handed to where it is done.

use super::NfHybrid;
use bimetal_base::Result;
use bimetal_base::units::Ino;
use bimetal_ext4::ROOT_INO;
use bimetal_vfs::{
    Attr, Caller, Deferred, DirEntry, Fallocate, FileSystem, FsStat, NewNode, Rename, Seek, SetAttr,
    SetXattr, Trim, VisitAttrs,
};
use bytes::Bytes;

impl FileSystem for NfHybrid {
    fn root(&self) -> Ino {
        ROOT_INO
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.shared.lookup(parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.shared.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.shared.look(|core| core.attr(ino)).map(|(_, attr)| attr)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.shared.with_room(|| self.shared.setattr(ino, set))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let (mut core, target) = self.shared.look(|core| {
            let target = core.ext4.readlink(ino)?;
            self.shared.note_access(core, ino).map(|()| target)
        })?;
        self.shared.wake_if_due(&mut core);
        Ok(target)
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.shared.with_room(|| self.shared.create(caller, parent, name, node))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.shared.remove(parent, name, false)
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.shared.remove(parent, name, true)
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        self.shared.with_room(|| self.shared.rename(parent, name, new_parent, new_name, how))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.shared.with_room(|| self.shared.link(ino, parent, name))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Deferred<Vec<Bytes>>> {
        self.shared.read(ino, offset, len)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Deferred<usize>> {
        self.shared.write(ino, offset, data, kill_suid)
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> Result<Deferred<()>> {
        self.shared.fsync(ino)
    }

    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.shared.readdir(ino, from, visit)
    }

    fn readdir_attrs(&self, ino: Ino, from: u64, visit: &mut VisitAttrs) -> Result<()> {
        self.shared.readdir_attrs(ino, from, visit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.shared.look(|core| core.ext4.get_xattr(ino, name)).map(|(_, value)| value)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        self.shared.with_room(|| self.shared.setxattr(ino, name, value, how, kill_sgid))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.shared.look(|core| core.ext4.list_xattrs(ino)).map(|(_, names)| names)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.shared.with_room(|| self.shared.removexattr(ino, name))
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        self.shared.flags(ino)
    }

    fn set_flags(&self, ino: Ino, flags: u32) -> Result<()> {
        self.shared.with_room(|| self.shared.set_flags(ino, flags))
    }

    fn trim(&self, trim: Trim) -> Result<Deferred<u64>> {
        self.shared.trim(trim)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        self.shared.fallocate(ino, offset, len, what)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.shared.seek(ino, offset, what)
    }

    fn statfs(&self) -> Result<FsStat> {
        Ok(self.shared.core.lock().ext4.statfs())
    }

    fn control_get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        self.shared.control_get(ino, name)
    }

    fn control_set(&self, ino: Ino, name: &str, value: &[u8]) -> Result<()> {
        self.shared.control_set(ino, name, value)
    }

    fn sync(&self) -> Result<()> {
        let op = self.shared.core.lock().ops.last();
        self.shared.await_disk(op)
    }

    fn shutdown(&self) -> Result<()> {
        self.stop_tasks();
        let core = self.shared.core.lock();
        core.state.check_running()?;
        if core.is_read_only() {
            return Ok(());
        }
        drop(core);
        self.shared.finish()
    }
}
