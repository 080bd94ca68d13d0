//! What the tree was after each call, worked out from the calls alone.
//!
//! *Moment* `m` is the tree after the first `m` calls. For each there are fingerprints, so that a tree found on a
//! medium is known to be that of a moment, or of none, by one look-up; for each path, the inode it led to; for each
//! file, its versions and the edits between them. Numbers of inodes may be used again; nodes here are not.
//!
//! Cost: a call costs what it changes; the rename of a directory costs what is below it. Contents are kept once as
//! they are at the end, and every write by reference.

use super::calls::{Call, CallRequest, is_file};
use super::snapshot::{BLOCK, Contents, Fingerprint, Shape, Snapshot, block_digest};
use crate::units::Ino;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A file, directory or other object of the model, by its place.
pub(super) type Id = usize;

/// A change of a file's contents.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    Write { offset: u64, data: Bytes },
    Zero { offset: u64, len: u64 },
    Size(u64),
}

/// What is known of an object over time.
#[derive(Default)]
pub(super) struct Past {
    /// Contents from a moment on, in order.
    pub versions: Vec<(usize, Contents)>,
    /// Edits, each with the first moment that has it.
    pub edits: Vec<(usize, Edit)>,
}

/// The tree at every moment.
pub struct History {
    calls: Vec<Call>,
    /// The node each sync was of, by the call's place.
    synced: BTreeMap<usize, Id>,
    prints: Vec<Fingerprint>,
    by_whole: FxHashMap<u64, Vec<usize>>,
    by_shape: FxHashMap<u64, Vec<usize>>,
    paths: FxHashMap<Vec<u8>, Vec<(usize, Option<Id>)>>,
    pasts: Vec<Past>,
    replacing: FxHashMap<Id, Vec<usize>>,
}

/// What a cut allows and demands.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Nothing of a later moment can be there.
    pub begun: usize,
    /// Names and attributes are of this moment or a later one.
    pub names: usize,
    /// A file's contents are of this moment or later ones.
    pub(super) files: FxHashMap<Id, usize>,
    /// All contents are.
    pub contents: usize,
}

impl Bounds {
    /// Everything of any moment up to `begun` may be there.
    pub fn anything(begun: usize) -> Bounds {
        Bounds { begun, names: 0, files: FxHashMap::default(), contents: 0 }
    }

    /// Nothing may be older than this moment.
    pub fn raise(&mut self, moment: usize) {
        self.names = self.names.max(moment);
        self.contents = self.contents.max(moment);
    }

    pub(super) fn floor(&self, id: Id) -> usize {
        self.files.get(&id).copied().unwrap_or(0).max(self.contents)
    }
}

impl History {
    /// Works out all moments from the tree before the first call; `first` are the bytes of its files.
    pub fn new(start: &Snapshot, first: &[(Ino, u64, Bytes)], calls: Vec<Call>) -> History {
        let mut model = Model::new(start, first);
        let mut prints = vec![model.print];
        for (index, call) in calls.iter().enumerate() {
            model.apply(index, call);
            prints.push(model.print);
        }
        let (mut by_whole, mut by_shape) = (FxHashMap::default(), FxHashMap::default());
        for (moment, print) in prints.iter().enumerate() {
            by_whole.entry(print.whole).or_insert_with(Vec::new).push(moment);
            by_shape.entry(print.shape).or_insert_with(Vec::new).push(moment);
        }
        let Model { nodes, paths, synced, replacing, .. } = model;
        let pasts = nodes.into_iter().map(|node| node.past).collect();
        History { calls, synced, prints, by_whole, by_shape, paths, pasts, replacing }
    }

    /// What was called.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The last moment.
    pub fn end(&self) -> usize {
        self.prints.len() - 1
    }

    /// Fingerprints of a moment.
    pub fn print(&self, moment: usize) -> Fingerprint {
        self.prints[moment]
    }

    /// How many fsyncs returned.
    pub fn syncs(&self) -> usize {
        self.synced.keys().filter(|&&place| self.calls[place].done.is_some()).count()
    }

    /// What must and what can be there after a cut before log entry `cut`.
    pub fn bounds(&self, cut: usize) -> Bounds {
        let mut bounds = Bounds::anything(self.calls.partition_point(|call| call.begun < cut));
        for (&place, &id) in &self.synced {
            if self.calls[place].done.is_some_and(|done| done <= cut) {
                bounds.names = bounds.names.max(place);
                let floor = bounds.files.entry(id).or_insert(0);
                *floor = (*floor).max(place);
            }
        }
        // An fsync that had nothing to do returned at once, where it began.
        bounds.begun = bounds.begun.max(bounds.names);
        bounds
    }

    /// The moments whose whole tree has this fingerprint.
    pub fn moments_like(&self, print: Fingerprint) -> &[usize] {
        self.by_whole.get(&print.whole).map_or(&[], Vec::as_slice)
    }

    /// The moments whose names and attributes have this fingerprint.
    pub fn moments_shaped_like(&self, print: Fingerprint) -> &[usize] {
        self.by_shape.get(&print.shape).map_or(&[], Vec::as_slice)
    }

    /// What a path led to at a moment.
    pub(super) fn node(&self, path: &[u8], moment: usize) -> Option<Id> {
        let bindings = self.paths.get(path)?;
        let count = bindings.partition_point(|(from, _)| *from <= moment);
        bindings[count.checked_sub(1)?].1
    }

    /// The last moment up to `moment` at which a file was renamed over another; 0 if it never was.
    pub(super) fn replaced_another(&self, id: Id, moment: usize) -> usize {
        let renames = self.replacing.get(&id).into_iter().flatten();
        renames.copied().filter(|at| *at <= moment).max().unwrap_or(0)
    }

    /// All paths of a moment, each with its node.
    pub(super) fn tree(&self, moment: usize) -> BTreeMap<&[u8], Id> {
        let there = |path: &'_ Vec<u8>| self.node(path, moment);
        self.paths.keys().filter_map(|path| Some((path.as_slice(), there(path)?))).collect()
    }

    pub(super) fn past(&self, id: Id) -> &Past {
        &self.pasts[id]
    }
}

impl Past {
    /// The versions that were there at some moment from `floor` to `begun`.
    pub fn versions_within(&self, floor: usize, begun: usize) -> &[(usize, Contents)] {
        let first = self.versions.partition_point(|(from, _)| *from <= floor).saturating_sub(1);
        let end = self.versions.partition_point(|(from, _)| *from <= begun);
        &self.versions[first.min(end)..end]
    }
}

/// An object as it is while calls are applied.
#[derive(Default)]
struct Node {
    shape: Shape,
    contents: Contents,
    /// Blocks that are not zeros, without the zeros at their ends past the size.
    blocks: BTreeMap<u64, Vec<u8>>,
    /// Its names, each in a directory.
    names: Vec<(Id, Vec<u8>)>,
    children: BTreeMap<Vec<u8>, Id>,
    past: Past,
}

struct Model {
    nodes: Vec<Node>,
    by_ino: FxHashMap<Ino, Id>,
    print: Fingerprint,
    paths: FxHashMap<Vec<u8>, Vec<(usize, Option<Id>)>>,
    synced: BTreeMap<usize, Id>,
    /// Moments at which a file took the place of another by a rename.
    replacing: FxHashMap<Id, Vec<usize>>,
    moment: usize,
}

const ROOT: Id = 0;

impl Model {
    fn new(start: &Snapshot, first: &[(Ino, u64, Bytes)]) -> Model {
        let mut model = Model {
            nodes: Vec::new(),
            by_ino: FxHashMap::default(),
            print: Fingerprint::default(),
            paths: FxHashMap::default(),
            synced: BTreeMap::new(),
            replacing: FxHashMap::default(),
            moment: 0,
        };
        for seen in start.objects.values() {
            model.by_ino.entry(seen.ino).or_insert_with(|| {
                model.nodes.push(Node { shape: seen.shape.clone(), ..Node::default() });
                model.nodes.len() - 1
            });
        }
        for (ino, offset, data) in first {
            if let Some(&id) = model.by_ino.get(ino) {
                model.nodes[id].edit(0, Edit::Write { offset: *offset, data: data.clone() });
            }
        }
        for seen in start.objects.values() {
            let id = model.by_ino[&seen.ino];
            if is_file(seen.shape.mode) {
                model.nodes[id].resize(0, seen.contents.size);
                model.nodes[id].keep_version(0);
            }
        }
        model.show(ROOT, Vec::new());
        for (path, seen) in start.objects.iter().skip(1) {
            let cut = path.iter().rposition(|&byte| byte == b'/').expect("a path below the root");
            let parent = model.by_ino[&start.objects[&path[..cut]].ino];
            model.attach(parent, path[cut + 1..].to_vec(), model.by_ino[&seen.ino]);
        }
        model
    }

    fn apply(&mut self, index: usize, call: &Call) {
        self.moment = index + 1;
        self.ask(index, &call.ask);
        for after in &call.after {
            let Some(&id) = self.by_ino.get(&after.ino) else { continue };
            self.change(id, |node, moment| {
                node.shape = after.shape.clone();
                if is_file(node.shape.mode) {
                    node.resize(moment, after.size);
                }
            });
        }
    }

    fn ask(&mut self, index: usize, ask: &CallRequest) {
        match ask {
            CallRequest::Create { parent, name, ino } => {
                self.nodes.push(Node::default());
                let id = self.nodes.len() - 1;
                self.by_ino.insert(*ino, id);
                self.bind(*parent, name, Some(id));
            }
            CallRequest::Link { ino, parent, name } => {
                self.bind(*parent, name, self.by_ino.get(ino).copied())
            }
            CallRequest::Remove { parent, name } => drop(self.unbind(*parent, name)),
            CallRequest::Rename { from, to, exchange, whiteout } => {
                self.rename(from, to, *exchange, *whiteout)
            }
            CallRequest::Write { ino, offset, data } => {
                self.edit(*ino, Edit::Write { offset: *offset, data: data.clone() });
            }
            CallRequest::Zero { ino, offset, len } => {
                self.edit(*ino, Edit::Zero { offset: *offset, len: *len })
            }
            CallRequest::Attributes { .. } => {}
            CallRequest::Sync { ino } => {
                if let Some(&id) = self.by_ino.get(ino) {
                    self.synced.insert(index, id);
                }
            }
        }
    }

    fn edit(&mut self, ino: Ino, edit: Edit) {
        if let Some(&id) = self.by_ino.get(&ino) {
            self.change(id, |node, moment| node.edit(moment, edit));
        }
    }

    /// Changes an object, and what its paths count for.
    fn change(&mut self, id: Id, work: impl FnOnce(&mut Node, usize)) {
        let paths = self.paths_of(id);
        let node = &mut self.nodes[id];
        let count = |node: &Node, path: &Vec<u8>| Fingerprint::of(path, &node.shape, node.contents);
        paths.iter().for_each(|path| self.print.remove(count(node, path)));
        work(node, self.moment);
        node.keep_version(self.moment);
        paths.iter().for_each(|path| self.print.add(count(node, path)));
    }

    /// The paths that lead to an object now.
    fn paths_of(&self, id: Id) -> Vec<Vec<u8>> {
        if id == ROOT {
            return vec![Vec::new()];
        }
        let names = self.nodes[id].names.iter();
        names.filter_map(|(parent, name)| Some([&self.path_of(*parent)?[..], b"/", name].concat())).collect()
    }

    /// The path of a directory, which has one name at most; none, if the root is not above it.
    fn path_of(&self, dir: Id) -> Option<Vec<u8>> {
        let (mut at, mut parts) = (dir, Vec::new());
        while at != ROOT {
            let (parent, name) = self.nodes[at].names.first()?;
            parts.push(&name[..]);
            at = *parent;
        }
        Some(parts.iter().rev().flat_map(|part| [&b"/"[..], *part]).collect::<Vec<_>>().concat())
    }

    /// Whether `id` is `dir` or above it.
    fn is_within(&self, dir: Id, id: Id) -> bool {
        let mut at = Some(dir);
        while let Some(here) = at.filter(|here| *here != id) {
            at = self.nodes[here].names.first().filter(|_| here != ROOT).map(|(parent, _)| *parent);
        }
        at.is_some()
    }

    /// Whether a tree stays one where this gets a name in `parent`: a directory has one name, and is not below itself. No file system
    /// does anything else, but a file may say that one did.
    fn may_attach(&self, parent: Id, id: Id) -> bool {
        let is_second = !self.nodes[id].children.is_empty() && !self.nodes[id].names.is_empty();
        let is_directory = parent == ROOT || self.nodes[parent].names.len() <= 1;
        id != ROOT && !is_second && is_directory && !self.is_within(parent, id)
    }

    fn rename(&mut self, from: &(Ino, Vec<u8>), to: &(Ino, Vec<u8>), exchange: bool, whiteout: Option<Ino>) {
        let same = |model: &Model, place: &(Ino, Vec<u8>)| {
            model.by_ino.get(&place.0).and_then(|&dir| model.nodes[dir].children.get(&place.1).copied())
        };
        // Two names of one file: a rename of one to the other does nothing.
        if !exchange && same(self, from).is_some() && same(self, from) == same(self, to) {
            return;
        }
        let moved = self.unbind(from.0, &from.1);
        let replaced = self.unbind(to.0, &to.1);
        if let (Some(id), Some(_), false) = (moved, replaced, exchange) {
            self.replacing.entry(id).or_default().push(self.moment);
        }
        self.bind(to.0, &to.1, moved);
        if exchange {
            self.bind(from.0, &from.1, replaced);
        }
        if let Some(ino) = whiteout {
            self.nodes.push(Node::default());
            let id = self.nodes.len() - 1;
            self.by_ino.insert(ino, id);
            self.bind(from.0, &from.1, Some(id));
        }
    }

    fn bind(&mut self, parent: Ino, name: &[u8], id: Option<Id>) {
        if let (Some(&parent), Some(id)) = (self.by_ino.get(&parent), id) {
            self.attach(parent, name.to_vec(), id);
        }
    }

    fn unbind(&mut self, parent: Ino, name: &[u8]) -> Option<Id> {
        let parent = *self.by_ino.get(&parent)?;
        let id = *self.nodes[parent].children.get(name)?;
        if let Some(path) = self.path_of(parent) {
            self.walk(id, [&path[..], b"/", name].concat(), &mut Model::hide);
        }
        self.nodes[parent].children.remove(name);
        self.nodes[id].names.retain(|(dir, known)| *dir != parent || known != name);
        Some(id)
    }

    fn attach(&mut self, parent: Id, name: Vec<u8>, id: Id) {
        if !self.may_attach(parent, id) {
            return;
        }
        self.nodes[parent].children.insert(name.clone(), id);
        self.nodes[id].names.push((parent, name.clone()));
        if let Some(path) = self.path_of(parent) {
            self.walk(id, [&path[..], b"/", &name].concat(), &mut Model::show);
        }
    }

    /// Visits an object at a path, and all below it.
    fn walk(&mut self, id: Id, path: Vec<u8>, visit: &mut dyn FnMut(&mut Model, Id, Vec<u8>)) {
        let mut todo = vec![(id, path)];
        while let Some((id, path)) = todo.pop() {
            let children = self.nodes[id].children.iter();
            todo.extend(children.map(|(name, child)| (*child, [&path[..], b"/", name].concat())));
            visit(self, id, path);
        }
    }

    fn show(&mut self, id: Id, path: Vec<u8>) {
        let node = &self.nodes[id];
        self.print.add(Fingerprint::of(&path, &node.shape, node.contents));
        self.paths.entry(path).or_default().push((self.moment, Some(id)));
    }

    fn hide(&mut self, id: Id, path: Vec<u8>) {
        let node = &self.nodes[id];
        self.print.remove(Fingerprint::of(&path, &node.shape, node.contents));
        self.paths.entry(path).or_default().push((self.moment, None));
    }
}

impl Node {
    /// Changes the contents and keeps the edit.
    fn edit(&mut self, moment: usize, edit: Edit) {
        match &edit {
            Edit::Write { offset, data } => {
                self.put(*offset, data);
                self.contents.size = self.contents.size.max(offset + data.len() as u64);
            }
            Edit::Zero { offset, len } => {
                let end = offset.saturating_add(*len).min(self.contents.size);
                self.clear(*offset, end);
            }
            Edit::Size(size) => {
                self.clear(*size, self.contents.size);
                self.contents.size = *size;
            }
        }
        self.past.edits.push((moment, edit));
    }

    fn resize(&mut self, moment: usize, size: u64) {
        if size != self.contents.size {
            self.edit(moment, Edit::Size(size));
        }
    }

    fn keep_version(&mut self, moment: usize) {
        match self.past.versions.last_mut() {
            Some((_, known)) if *known == self.contents => {}
            Some((at, known)) if *at == moment => *known = self.contents,
            _ => self.past.versions.push((moment, self.contents)),
        }
    }

    fn put(&mut self, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let from = (at % BLOCK as u64) as usize;
            let (part, after) = rest.split_at(rest.len().min(BLOCK - from));
            self.alter(at / BLOCK as u64, |block| {
                if block.len() < from + part.len() {
                    block.resize(from + part.len(), 0);
                }
                block[from..from + part.len()].copy_from_slice(part);
            });
            at += part.len() as u64;
            rest = after;
        }
    }

    fn clear(&mut self, offset: u64, end: u64) {
        let numbers: Vec<u64> =
            self.blocks.range(offset / BLOCK as u64..).map(|(&number, _)| number).collect();
        for number in numbers.into_iter().take_while(|number| number * (BLOCK as u64) < end) {
            let start = number * BLOCK as u64;
            let from = offset.saturating_sub(start) as usize;
            let to = (end - start).min(BLOCK as u64) as usize;
            self.alter(number, |block| {
                let to = to.min(block.len());
                block[from.min(to)..to].fill(0);
            });
        }
    }

    fn alter(&mut self, number: u64, work: impl FnOnce(&mut Vec<u8>)) {
        let block = self.blocks.entry(number).or_default();
        let before = block_digest(number, block);
        work(block);
        let after = block_digest(number, block);
        self.contents.digest = self.contents.digest.wrapping_sub(before).wrapping_add(after);
        if after == 0 {
            self.blocks.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::crash::calls::Traced;
    use crate::fs::memfs::MemFs;
    use crate::fs::{Caller, Fallocate, FileSystem, Kind, NewNode, Rename, SetAttr};
    use crate::media::recorded::Recorder;
    use crate::random::Random;
    use std::sync::Arc;

    fn node(kind: Kind) -> NewNode<'static> {
        NewNode { kind, perm: 0o644, rdev: 0, target: b"" }
    }

    /// One call of any sort, on names that collide often; many fail.
    fn step(fs: &dyn FileSystem, dirs: &mut Vec<Ino>, random: &mut Random) {
        let name = |random: &mut Random| format!("n{}", random.below(6)).into_bytes();
        let (a, b) = (name(random), name(random));
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let other = dirs[random.below(dirs.len() as u64) as usize];
        let found = fs.lookup(dir, &a).ok().filter(|attr| attr.kind == Kind::File);
        let (at, len) = (random.below(20_000), random.below(9000));
        let done = match (random.below(12), found) {
            (0..3, _) => fs.create(&Caller::default(), dir, &a, &node(Kind::File)).map(drop),
            (3, _) => {
                let made = fs.create(&Caller::default(), dir, &a, &node(Kind::Dir));
                made.map(|attr| dirs.push(attr.ino))
            }
            (4, _) => {
                let how = [Rename::Replace, Rename::Exchange, Rename::NoReplace][random.below(3) as usize];
                fs.rename(dir, &a, other, &b, how)
            }
            (5, _) => fs.unlink(dir, &a).or_else(|_| fs.rmdir(dir, &a)),
            (6, Some(file)) => fs.link(file.ino, other, &b).map(drop),
            (7, Some(file)) => fs.fallocate(file.ino, at, len + 1, Fallocate::Punch),
            (8, Some(file)) => {
                let set = SetAttr { size: Some(at), perm: Some(0o600), ..SetAttr::default() };
                fs.setattr(file.ino, &set).map(drop)
            }
            (_, Some(file)) => {
                let data: Vec<u8> = (0..len).map(|byte| (byte / 100 + at) as u8).collect();
                fs.write(file.ino, at, &data, false).map(drop)
            }
            (_, None) => Ok(()),
        };
        // Whatever does not work changes nothing, and that is looked at, too.
        let _ = done;
    }

    #[test]
    fn after_each_of_many_calls_the_model_is_the_tree_that_is_there() {
        for seed in 0..6 {
            let memory = Arc::new(MemFs::new(64 << 20, &Caller::default()));
            let mut random = Random::new(seed, "calls");
            let mut dirs = vec![memory.root()];
            (0..40).for_each(|_| step(&*memory, &mut dirs, &mut random));
            let mut first = Vec::new();
            let start = Snapshot::read(&*memory, &mut |ino, at, bytes| {
                first.push((ino, at, Bytes::copy_from_slice(bytes)));
            });
            let start = start.unwrap();
            let traced = Traced::new(memory.clone(), Recorder::new());
            let mut seen = vec![start.fingerprint()];
            for _ in 0..300 {
                let before = traced.calls().len();
                step(&traced, &mut dirs, &mut random);
                if traced.calls().len() > before {
                    seen.push(Snapshot::of(&*memory).unwrap().fingerprint());
                }
            }
            let history = History::new(&start, &first, traced.calls());
            assert_eq!(history.end() + 1, seen.len());
            assert!(seen.len() > 80, "only {} calls", seen.len());
            for (moment, print) in seen.iter().enumerate() {
                let told = moment.checked_sub(1).map(|call| &history.calls()[call].ask);
                assert_eq!(history.print(moment), *print, "seed {seed}, after call {moment}: {told:?}");
            }
        }
    }
}
