//! The last part of a rescue: files under the names that the log has.
//!
//! Directories are made first and symbolic links last, so that no name of the image leads out of the target.

use super::{BY_INODE, Node, Rescue};
use bimetal_base::{Error, Result};
use bimetal_ext4::ROOT_INO;
use bimetal_vfs::Kind;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// Directories below one another; more is a damaged log.
const DEPTH_MAX: usize = 1000;
/// Names of what is left out that are told.
const NAMES_TOLD: usize = 5;

impl Rescue {
    /// Gives everything its names, and tells what is missing.
    pub(super) fn name_all(&mut self) -> Result<()> {
        let nodes = std::mem::take(&mut self.nodes);
        self.own_names(&nodes)?;
        self.tell_left_out(&nodes);
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

    /// What is ours in the target takes names there that nothing of the image has.
    fn own_names(&mut self, nodes: &BTreeMap<u64, Node>) -> Result<()> {
        let all = nodes.iter().filter(|(_, node)| !node.gone).flat_map(|(_, node)| &node.names);
        let taken: HashSet<&[u8]> =
            all.filter(|(dir, _)| *dir == ROOT_INO.0).map(|(_, name)| name.as_slice()).collect();
        self.done.list = free_name(&taken, "RESCUE", ".txt");
        let by_inode = free_name(&taken, BY_INODE, "");
        if by_inode != self.done.by_inode {
            let [from, to] = [&self.done.by_inode, &by_inode].map(|name| self.to.join(name));
            fs::rename(&from, &to).map_err(|why| Error::io(to.display(), why))?;
            self.done.by_inode = by_inode;
        }
        Ok(())
    }

    /// Devices, FIFOs and sockets have nothing to get off.
    fn tell_left_out(&mut self, nodes: &BTreeMap<u64, Node>) {
        let is_left_out = |node: &&Node| {
            !node.gone && !matches!(node.kind, None | Some(Kind::Dir | Kind::File | Kind::Symlink))
        };
        let left_out: Vec<&Node> = nodes.values().filter(is_left_out).collect();
        if left_out.is_empty() {
            return;
        }
        let names = left_out.iter().filter_map(|node| node.names.first());
        let names: Vec<_> = names.map(|(_, name)| String::from_utf8_lossy(name)).take(NAMES_TOLD).collect();
        let more = if names.len() < left_out.len() { ", …" } else { "" };
        let count = left_out.len();
        let text = format!("{count} devices, FIFOs and sockets are left out ({}{more})", names.join(", "));
        self.done.notes.push(text);
    }

    /// Where a directory goes; one whose name is not known gets that of its number.
    fn directory(&self, nodes: &BTreeMap<u64, Node>, ino: u64) -> Option<PathBuf> {
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

/// A name that is not taken: `front` and `back`, with a number in between where that is needed.
fn free_name(taken: &HashSet<&[u8]>, front: &str, back: &str) -> String {
    let plain = format!("{front}{back}");
    let numbered = (2..).map(|number: u64| format!("{front}-{number}{back}"));
    let mut names = std::iter::once(plain.clone()).chain(numbered);
    names.find(|name| !taken.contains(name.as_bytes())).unwrap_or(plain)
}
