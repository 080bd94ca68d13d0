//! The last part of a rescue: files under the names that the log has.
//!
//! Directories are made first and symbolic links last, so that no name of the image leads out of the target.

use super::{Node, Rescue};
use bimetal_base::{Error, Result};
use bimetal_ext4::ROOT_INO;
use bimetal_vfs::Kind;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// Directories below one another; more is a damaged log.
const DEPTH_MAX: usize = 1000;

impl Rescue {
    /// Gives everything its names, and tells what is missing.
    pub(super) fn name_all(&mut self) -> Result<()> {
        let nodes = std::mem::take(&mut self.nodes);
        let path_of = |ino: u64| self.directory(&nodes, ino);
        let mut places: Vec<(u64, Vec<PathBuf>)> = Vec::new();
        for (ino, node) in nodes.iter().filter(|(_, node)| !node.gone) {
            let place = |(parent, name): &(u64, Vec<u8>)| Some(path_of(*parent)?.join(sound(name)?));
            places.push((*ino, node.names.iter().filter_map(place).collect()));
        }
        let mut holes = Vec::new();
        for kind in [Kind::Dir, Kind::File, Kind::Symlink] {
            for (ino, paths) in &places {
                let node = &nodes[ino];
                if node.kind.unwrap_or(Kind::File) == kind {
                    self.name_one(*ino, node, paths, kind, &mut holes)?;
                }
            }
        }
        self.list(&holes)
    }

    /// Where a directory goes; one whose name is not known gets that of its number.
    fn directory(&self, nodes: &std::collections::BTreeMap<u64, Node>, ino: u64) -> Option<PathBuf> {
        let (mut at, mut names) = (ino, Vec::new());
        for _ in 0..DEPTH_MAX {
            let known = nodes.get(&at).and_then(|node| node.names.first());
            match known {
                _ if at == ROOT_INO.0 => break,
                Some((parent, name)) => {
                    names.push(sound(name)?.to_os_string());
                    at = *parent;
                }
                None => {
                    names.push(format!("dir-{at}").into());
                    at = ROOT_INO.0;
                }
            }
        }
        (at == ROOT_INO.0).then(|| names.iter().rev().fold(self.to.clone(), |path, name| path.join(name)))
    }

    fn name_one(
        &mut self,
        ino: u64,
        node: &Node,
        paths: &[PathBuf],
        kind: Kind,
        holes: &mut Vec<String>,
    ) -> Result<()> {
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |why| Error::io(path, why)
        };
        let is_free = |path: &&PathBuf| fs::symlink_metadata(path).is_err();
        if kind == Kind::Dir {
            self.done.others += 1;
            return paths.iter().try_for_each(|path| fs::create_dir_all(path).map_err(failed(path)));
        }
        for path in paths {
            let above = path.parent().unwrap_or(&self.to);
            fs::create_dir_all(above).map_err(failed(above))?;
        }
        if kind == Kind::Symlink {
            self.done.others += 1;
            let free = paths.iter().filter(is_free);
            return free
                .into_iter()
                .try_for_each(|path| symlink(OsStr::from_bytes(&node.target), path).map_err(failed(path)));
        }
        let mut place = self.file_of(ino);
        self.finish(ino, node)?;
        let mut named = false;
        for path in paths.iter().filter(is_free) {
            match named {
                false => fs::rename(&place, path).map_err(failed(path))?,
                true => fs::hard_link(&place, path).map_err(failed(path))?,
            }
            if !named {
                place = path.clone();
            }
            named = true;
        }
        self.done.nameless += u64::from(!named);
        let missing = node.missing();
        self.done.bytes += node.size - missing;
        if missing > 0 {
            self.done.partial += 1;
            let shown = place.strip_prefix(&self.to).unwrap_or(&place).display().to_string();
            holes.push(format!("{missing} of {} {shown}", node.size));
        } else {
            self.done.whole += 1;
        }
        Ok(())
    }

    /// Size, owner and permissions; bits that lend rights are not brought over.
    fn finish(&self, ino: u64, node: &Node) -> Result<()> {
        let path = self.file_of(ino);
        let file: File = self.open(ino)?;
        let failed = |why| Error::io(path.display(), why);
        file.set_len(node.size).map_err(failed)?;
        let mode = u32::from(node.perm.unwrap_or(0o600) & 0o777);
        file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        if let (Some((uid, gid)), true) = (node.owner, rustix::process::geteuid().is_root()) {
            chown(&path, Some(uid), Some(gid)).map_err(failed)?;
        }
        Ok(())
    }
}

/// A name that stays where it is put.
fn sound(name: &[u8]) -> Option<&OsStr> {
    let good = !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
    good.then(|| OsStr::from_bytes(name))
}
