//! The last part of a rescue: files under the names that the log has.
//!
//! Directories are made first, files then, symbolic links last; what directories are to be for others comes at the end, from below
//! upwards. What fails of one object is told of it, and the rest goes on.

use super::below;
use super::node::Node;
use super::{BY_INODE, Rescue};
use bimetal_ext4::ROOT_INO;
use bimetal_vfs::Kind;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Directories below one another; what is deeper goes beside the others.
const DEPTH_MAX: usize = 1000;
/// Names of what is left out that are told.
const NAMES_TOLD: usize = 5;

type Nodes = BTreeMap<u64, Node>;

impl Rescue<'_> {
    /// Gives everything its names, and tells what is missing. `made`: the target was not there before.
    pub(super) fn name_all(&mut self, made: bool) {
        let mut nodes = std::mem::take(&mut self.nodes);
        let parents = nodes.values().filter(|node| !node.gone).flat_map(|node| &node.names);
        for parent in parents.map(|(parent, _)| *parent).chain([ROOT_INO.0]).collect::<HashSet<_>>() {
            nodes.entry(parent).or_default().kind.get_or_insert(Kind::Dir);
        }
        let all = nodes.values().filter(|node| !node.gone).flat_map(|node| &node.names);
        let taken: HashSet<&[u8]> =
            all.filter(|(dir, _)| *dir == ROOT_INO.0).map(|(_, name)| name.as_slice()).collect();
        self.own_names(&taken);
        self.tell_left_out(&nodes);
        let (mut holes, mut dirs) = (Vec::new(), Vec::new());
        for kind in [Kind::Dir, Kind::File, Kind::Symlink] {
            let of_kind = |node: &&Node| !node.gone && node.kind.unwrap_or(Kind::File) == kind;
            for (&ino, node) in nodes.iter().filter(|(_, node)| of_kind(node)) {
                if kind == Kind::Dir {
                    let path = directory(&nodes, &taken, ino);
                    self.name_directory(&path, node);
                    dirs.push((path, node));
                    continue;
                }
                let place = |(parent, name): &(u64, Vec<u8>)| {
                    Some(directory(&nodes, &taken, *parent).join(sound(name)?))
                };
                let paths: Vec<PathBuf> = node.names.iter().filter_map(place).collect();
                match kind {
                    Kind::File => self.name_file(ino, node, &paths, &mut holes),
                    _ => self.name_link(node, &paths),
                }
            }
        }
        dirs.sort_by_key(|(path, _)| Reverse(path.iter().count()));
        let closed = dirs.iter().filter(|(path, node)| self.open_directory(path, node, made)).count();
        if closed > 0 {
            self.done.notes.push(format!(
                "the permissions of {closed} directories are not on the SSD: they are open to who made this rescue alone"
            ));
        }
        self.list(&holes);
    }

    /// What is ours in the target takes names there that nothing of the image has.
    fn own_names(&mut self, taken: &HashSet<&[u8]>) {
        self.done.list = free_name(taken, "RESCUE", ".txt");
        let by_inode = free_name(taken, BY_INODE, "");
        if by_inode != self.done.by_inode {
            let renamed = self.below.give_name(Path::new(&self.done.by_inode), Path::new(&by_inode), true);
            match renamed {
                Ok(_) => self.done.by_inode = by_inode,
                Err(why) => self.problem(Path::new(&by_inode), &[why.to_string()]),
            }
        }
    }

    /// Devices, FIFOs and sockets have nothing to get off; some of what files have beside their contents is not brought over.
    fn tell_left_out(&mut self, nodes: &Nodes) {
        let there = || nodes.values().filter(|node| !node.gone);
        let is_left_out =
            |node: &&Node| !matches!(node.kind, None | Some(Kind::Dir | Kind::File | Kind::Symlink));
        let left_out: Vec<&Node> = there().filter(is_left_out).collect();
        let names = left_out.iter().filter_map(|node| node.names.first()).map(|(_, name)| &name[..]);
        self.tell(left_out.len(), names, "devices, FIFOs and sockets are left out");
        let attributes = there().flat_map(|node| node.attributes.keys());
        let attributes: Vec<&[u8]> =
            attributes.map(Vec::as_slice).filter(|name| !below::is_brought(name)).collect();
        let kinds: std::collections::BTreeSet<&[u8]> = attributes.iter().copied().collect();
        self.tell(attributes.len(), kinds.into_iter(), "extended attributes are left out");
        let name_of = |node: &&Node| node.names.first().map(|(_, name)| name.clone()).unwrap_or_default();
        for (has, what) in [
            (
                (|node| node.flagged) as fn(&&Node) -> bool,
                "files and directories have flags (chattr) that are left out",
            ),
            (
                |node| node.perm.is_some_and(|perm| perm & 0o6000 != 0),
                "files and directories have set-ID bits that are left out",
            ),
        ] {
            let names: Vec<Vec<u8>> = there().filter(has).map(|node| name_of(&node)).collect();
            self.tell(names.len(), names.iter().map(Vec::as_slice), what);
        }
        let is_plain = |node: &&Node| node.kind.unwrap_or(Kind::File) == Kind::File && !node.made;
        let older = there().filter(is_plain).count();
        self.tell(
            older,
            std::iter::empty(),
            "files are older than the log: extended attributes and access control lists of theirs that it does not have are left \
             out, and where such a list capped the group's permissions, the cap is what the group has",
        );
        let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let is_others = |node: &&Node| node.owner.is_some_and(|owner| owner != ours);
        let others = if below::is_root() { 0 } else { there().filter(is_others).count() };
        self.tell(
            others,
            std::iter::empty(),
            "files and directories are yours now, without access control lists, and closed to groups where they are closed to all: only \
             root can give them their owners",
        );
    }

    fn tell<'a>(&mut self, count: usize, names: impl Iterator<Item = &'a [u8]>, what: &str) {
        if count == 0 {
            return;
        }
        let mut names: Vec<_> = names.map(String::from_utf8_lossy).take(NAMES_TOLD + 1).collect();
        let more = if names.len() > NAMES_TOLD { ", …" } else { "" };
        names.truncate(NAMES_TOLD);
        let names = if names.is_empty() { String::new() } else { format!(" ({}{more})", names.join(", ")) };
        self.done.notes.push(format!("{count} {what}{names}"));
    }

    /// Something of an object could not be written.
    pub(super) fn problem(&mut self, path: &Path, troubles: &[String]) {
        if !troubles.is_empty() {
            self.done.failed += 1;
            self.problems.push(format!("{}: {}", path.display(), troubles.join("; ")));
        }
    }

    fn name_directory(&mut self, path: &Path, node: &Node) {
        // One that is known by its number alone is made when something comes into it.
        if node.names.is_empty() {
            return;
        }
        match self.below.dir(path) {
            Ok(_) => self.done.others += 1,
            Err(why) => self.problem(path, &[why.to_string()]),
        }
    }

    /// What a directory is to others; whether nothing is known of that.
    fn open_directory(&mut self, path: &Path, node: &Node, made: bool) -> bool {
        let is_target = path.as_os_str().is_empty();
        if is_target && !made {
            return false;
        }
        let troubles = match self.below.dir_if_there(path) {
            Ok(None) => return false,
            Ok(Some(dir)) => below::dress(&*dir, node),
            Err(why) => vec![why.to_string()],
        };
        self.problem(path, &troubles);
        node.perm.is_none() && !is_target
    }

    fn name_link(&mut self, node: &Node, paths: &[PathBuf]) {
        for path in paths {
            match self.below.link(path, node) {
                Ok(true) => self.done.others += 1,
                Ok(false) => self.problem(path, &["another file has this name".into()]),
                Err(why) => self.problem(path, &[why.to_string()]),
            }
        }
    }

    fn name_file(&mut self, ino: u64, node: &Node, paths: &[PathBuf], holes: &mut Vec<String>) {
        let mut place = Path::new(&self.done.by_inode).join(ino.to_string());
        let mut troubles = node.troubles.clone();
        self.finish(ino, node, &mut troubles);
        let mut named = false;
        for path in paths {
            let told = |why: &dyn std::fmt::Display| format!("the name {}: {why}", path.display());
            match self.below.give_name(&place, path, !named) {
                Ok(true) if named => {}
                Ok(true) => (place, named) = (path.clone(), true),
                Ok(false) => troubles.push(told(&"another file has it")),
                Err(why) => troubles.push(told(&why)),
            }
        }
        self.problem(&place, &troubles);
        self.done.nameless += u64::from(!named);
        let missing = node.missing();
        self.done.bytes += node.size - missing;
        if missing > 0 || self.done.ended {
            self.done.partial += 1;
            holes.push(format!("{missing} of {} {}", node.size, place.display()));
        } else {
            self.done.whole += 1;
        }
    }

    /// Size, and what else a file has beside its contents.
    fn finish(&self, ino: u64, node: &Node, troubles: &mut Vec<String>) {
        let file = match self.open(ino) {
            Ok(file) => file,
            Err(why) => return troubles.push(why.to_string()),
        };
        if let Err(why) = file.set_len(node.size) {
            troubles.push(format!("its size of {} bytes: {why}", node.size));
        }
        troubles.extend(below::dress(&file, node));
    }

    /// Writes the list of what is missing.
    fn list(&mut self, holes: &[String]) {
        let mut text = String::new();
        if self.done.ended {
            text.push_str(
                "This rescue was ended by a signal: files are missing, and any of those that are here may be cut short or older than \
                 it was, whatever is said to be missing of it. Rescue into a new directory.\n\n",
            );
        }
        text.push_str("Files with holes: bytes missing, of how many, path\n");
        text.extend(holes.iter().map(|line| format!("{line}\n")));
        if !self.problems.is_empty() {
            text.push_str("\nNot written, or not as it was: path, why\n");
            text.extend(self.problems.iter().map(|line| format!("{line}\n")));
            let more = if self.problems.len() > 1 {
                format!("; {} lists all", self.done.list)
            } else {
                String::new()
            };
            self.done.notes.push(format!(
                "{} files, directories and links could not be written, or not as they were: {}{more}",
                self.problems.len(),
                self.problems[0]
            ));
        }
        let list = Path::new(&self.done.list);
        let written = self.below.new_file(list).and_then(|mut file| file.write_all(text.as_bytes()));
        if let Err(why) = written {
            self.done.failed += 1;
            self.done.notes.push(format!("{} could not be written: {why}", list.display()));
        }
    }
}

/// Where a directory goes, below the target; one whose name is not known gets that of its number, or the next that is free.
fn directory(nodes: &Nodes, taken: &HashSet<&[u8]>, ino: u64) -> PathBuf {
    let numbered = |ino: u64| free_name(taken, &format!("dir-{ino}"), "").into();
    let (mut at, mut names) = (ino, Vec::new());
    for _ in 0..DEPTH_MAX {
        let known = nodes.get(&at).filter(|node| !node.gone).and_then(|node| node.names.first());
        match known.and_then(|(parent, name)| Some((*parent, sound(name)?))) {
            _ if at == ROOT_INO.0 => break,
            Some((parent, name)) => {
                names.push(name.to_os_string());
                at = parent;
            }
            None => {
                names.push(numbered(at));
                at = ROOT_INO.0;
            }
        }
    }
    if at != ROOT_INO.0 {
        // Too deep, or in itself.
        return PathBuf::from(numbered(ino));
    }
    names.iter().rev().collect()
}

/// A name that stays where it is put.
fn sound(name: &[u8]) -> Option<&OsStr> {
    let good = !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
    good.then(|| below::part(name))
}

/// A name that is not taken: `front` and `back`, with a number in between where that is needed.
fn free_name(taken: &HashSet<&[u8]>, front: &str, back: &str) -> String {
    let plain = format!("{front}{back}");
    let numbered = (2..).map(|number: u64| format!("{front}-{number}{back}"));
    let mut names = std::iter::once(plain.clone()).chain(numbered);
    names.find(|name| !taken.contains(name.as_bytes())).unwrap_or(plain)
}
