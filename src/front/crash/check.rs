//! One state against what was promised.
//!
//! - The device that is whole by itself holds exactly the tree of a moment, names, attributes and bytes, and, where
//!   an fsync is durable there, none before it.
//! - All devices together hold the names and attributes of one moment, not before the last fsync that had returned
//!   and not before the moment of the device alone; each file has a size that it had since, and each of its bytes
//!   is one that was there at that place since: old or new where nothing was synced, never anything else.
//! - What was recovered ends cleanly, and the device alone then holds just that.
//!
//! A look leaves the state as it was. Cost: two or three mounts and as many walks over the whole tree.

use super::history::{Bounds, Edit, History, Id};
use super::snapshot::{Contents, Snapshot, show};
use super::subject::Subject;
use crate::fs::{FileSystem, resolve_bytes};
use crate::media::BlockDevice;
use crate::media::overlay::Overlay;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What is wrong with a state, in one line; or nothing.
pub type Verdict<T = ()> = Result<T, String>;

/// So much of a file is compared at once.
const COMPARED_BYTES: u64 = 256 << 20;

/// The history of a run, and the kind of file system it was of.
pub struct Checker<'a> {
    /// How to open it.
    pub subject: &'a dyn Subject,
    /// What it was asked for.
    pub history: &'a History,
}

/// The devices, each for one look.
pub fn own(devices: &[Arc<dyn BlockDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|device| Arc::new(Overlay::new(device.clone())) as Arc<dyn BlockDevice>).collect()
}

/// An error with the step it happened in.
pub(super) fn failed<E: std::fmt::Display>(step: &'static str) -> impl Fn(E) -> String {
    move |why| format!("{step}: {why}")
}

/// A look that panics found something, too.
pub(super) fn guarded<T>(look: impl FnOnce() -> Verdict<T>) -> Verdict<T> {
    catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("it panicked: {}", said.unwrap_or("without a word")))
    })
}

impl Checker<'_> {
    /// The device alone; its moment, the earliest if there are several.
    pub fn alone(&self, devices: &[Arc<dyn BlockDevice>], bounds: &Bounds) -> Verdict<Option<usize>> {
        let Some(place) = self.subject.whole_alone() else { return Ok(None) };
        let device = own(devices).swap_remove(place);
        let name = self.subject.devices()[place];
        let found = guarded(|| {
            let fs = self.subject.open_alone(device).map_err(|why| why.to_string())?;
            Snapshot::of(&*fs).map_err(|why| why.to_string())
        });
        let found = found.map_err(|why| format!("the {name} alone: {why}"))?;
        let floor = if self.subject.syncs_alone() { bounds.names } else { 0 };
        let moments = self.history.moments_like(found.fingerprint());
        match moments.iter().find(|&&moment| (floor..=bounds.begun).contains(&moment)) {
            Some(&moment) => Ok(Some(moment)),
            None if moments.iter().any(|&moment| moment < floor) => {
                Err(format!("the {name} alone lacks what an fsync made durable on both"))
            }
            None => Err(format!("the {name} alone is of no moment: {}", self.nearest(&found, bounds))),
        }
    }

    /// The device alone after a recovery that was cut: names and attributes of a moment, contents old or new.
    pub fn alone_mixed(&self, devices: &[Arc<dyn BlockDevice>], bounds: &Bounds) -> Verdict {
        let Some(place) = self.subject.whole_alone() else { return Ok(()) };
        let device = own(devices).swap_remove(place);
        let mut lenient = Bounds::anything(bounds.begun);
        lenient.raise(bounds.contents);
        let looked = guarded(|| {
            let fs = self.subject.open_alone(device).map_err(|why| why.to_string())?;
            let found = Snapshot::of(&*fs).map_err(|why| why.to_string())?;
            self.compare(&*fs, &found, &lenient)
        });
        looked.map_err(|why| {
            format!("the {} alone in the middle of a recovery: {why}", self.subject.devices()[place])
        })
    }

    /// All devices together. Gives the file system, still open, and what it holds.
    pub fn together(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        bounds: &Bounds,
    ) -> Verdict<(Box<dyn FileSystem>, Snapshot)> {
        guarded(|| {
            let fs = self.subject.open(devices).map_err(failed("both halves"))?;
            let found = Snapshot::of(&*fs).map_err(failed("both halves"))?;
            self.compare(&*fs, &found, bounds)?;
            Ok((fs, found))
        })
    }

    /// Devices that were cut at different instants: refused (`false`), or what was there at some moment.
    pub fn uneven(&self, devices: &[Arc<dyn BlockDevice>]) -> Verdict<bool> {
        guarded(|| {
            let Ok(fs) = self.subject.open(devices) else { return Ok(false) };
            let found = Snapshot::of(&*fs).map_err(failed("uneven halves"))?;
            let bounds = Bounds::anything(self.history.end());
            self.compare(&*fs, &found, &bounds).map_err(failed("uneven halves"))?;
            Ok(true)
        })
    }

    /// Ends what was recovered, and looks whether it is there without the others, and the second time.
    pub fn end(
        &self,
        fs: Box<dyn FileSystem>,
        found: &Snapshot,
        devices: &[Arc<dyn BlockDevice>],
    ) -> Verdict {
        guarded(|| {
            fs.shutdown().map_err(failed("the end after recovery"))?;
            drop(fs);
            let print = found.fingerprint();
            if let Some(place) = self.subject.whole_alone() {
                let device = own(devices).swap_remove(place);
                let fs = self.subject.open_alone(device).map_err(failed("alone after recovery"))?;
                let left = Snapshot::of(&*fs).map_err(failed("alone after recovery"))?;
                if left.fingerprint() != print {
                    return Err(format!("alone after recovery: {}", difference(found, &left)));
                }
            }
            let fs = self.subject.open(&own(devices)).map_err(failed("the second time"))?;
            let left = Snapshot::of(&*fs).map_err(failed("the second time"))?;
            match left.fingerprint() == print {
                true => Ok(()),
                false => Err(format!("the second time: {}", difference(found, &left))),
            }
        })
    }

    /// Whether a tree is one that may be there.
    pub fn compare(&self, fs: &dyn FileSystem, found: &Snapshot, bounds: &Bounds) -> Verdict {
        let moments = self.history.moments_shaped_like(found.fingerprint());
        let allowed = moments.iter().rev().filter(|&&moment| (bounds.names..=bounds.begun).contains(&moment));
        let mut first = None;
        let mut tried: BTreeSet<Vec<Option<Id>>> = BTreeSet::new();
        for &moment in allowed {
            let nodes: Vec<Option<Id>> =
                found.objects.keys().map(|path| self.history.node(path, moment)).collect();
            if !tried.insert(nodes.clone()) {
                continue;
            }
            let mut files = found.objects.iter().zip(nodes);
            let wrong = files.find_map(|((path, seen), id)| {
                let id = id?;
                let floor = bounds.floor(id).max(self.replaced(id, moment));
                self.file(fs, path, seen.contents, id, floor..=bounds.begun).err()
            });
            match wrong {
                None => return Ok(()),
                Some(why) => drop(first.get_or_insert(why)),
            }
        }
        Err(first.unwrap_or_else(|| match moments.iter().any(|&moment| moment < bounds.names) {
            true => {
                format!("names or attributes are older than the last fsync: {}", self.nearest(found, bounds))
            }
            false => format!("names or attributes are of no moment: {}", self.nearest(found, bounds)),
        }))
    }

    /// What is renamed over something is there as it was then or later, where that is promised.
    fn replaced(&self, id: Id, moment: usize) -> usize {
        if self.subject.replaces_whole() { self.history.replaced_another(id, moment) } else { 0 }
    }

    fn file(
        &self,
        fs: &dyn FileSystem,
        path: &[u8],
        seen: Contents,
        id: Id,
        moments: RangeInclusive<usize>,
    ) -> Verdict {
        let (floor, begun) = moments.into_inner();
        let versions = self.history.past(id).versions_within(floor, begun);
        if versions.is_empty() || versions.iter().any(|(_, version)| *version == seen) {
            return Ok(());
        }
        let attr = resolve_bytes(fs, path).map_err(|why| format!("{}: {why}", show(path)))?;
        let mut at = 0;
        loop {
            let len = COMPARED_BYTES.min(seen.size - at) as usize;
            let parts = fs.read(attr.ino, at, len).and_then(|later| later.get());
            let bytes = parts.map_err(|why| format!("{}: {why}", show(path)))?.concat();
            let part = Part { from: at, of: seen.size, bytes: &bytes };
            self.mixture(id, part, floor, begun).map_err(|why| format!("{}: {why}", show(path)))?;
            at += len as u64;
            if at >= seen.size {
                return Ok(());
            }
        }
    }

    /// Each byte is one that was at its place since `floor`, and the size is one that was.
    fn mixture(&self, id: Id, found: Part, floor: usize, begun: usize) -> Verdict {
        let edits = &self.history.past(id).edits;
        let (old, end) = (
            edits.partition_point(|(moment, _)| *moment <= floor),
            edits.partition_point(|(moment, _)| *moment <= begun),
        );
        let len = found.bytes.len();
        let mut now = Replayed { from: found.from, bytes: vec![0; len], size: 0 };
        for (_, edit) in &edits[..old] {
            now.apply(edit);
        }
        let mut fits = Fits { found, sizes: BTreeSet::from([now.size]), right: vec![false; len] };
        fits.note(&now.bytes, 0..now.inside(now.size));
        for (_, edit) in &edits[old..end] {
            let range = now.apply(edit);
            fits.note(&now.bytes, range);
            fits.sizes.insert(now.size);
        }
        fits.verdict(&now.bytes)
    }

    /// What tells a tree from the moments around it.
    fn nearest(&self, found: &Snapshot, bounds: &Bounds) -> String {
        let differing = |moment: usize| self.differences(found, moment);
        let best =
            (bounds.names..=bounds.begun).rev().take(200).min_by_key(|&moment| differing(moment).len());
        let Some(moment) = best else { return "there is no moment to compare it with".into() };
        let list = differing(moment);
        let shown = list.iter().take(4).cloned().collect::<Vec<_>>().join("; ");
        match list.len() {
            0 => format!(
                "as after call {moment} but for attributes or contents: {}",
                self.changed(found, moment)
            ),
            count => format!("{count} differences from the tree after call {moment}: {shown}"),
        }
    }

    fn differences(&self, found: &Snapshot, moment: usize) -> Vec<String> {
        let tree = self.history.tree(moment);
        let missing = tree.keys().filter(|path| !found.objects.contains_key(**path));
        let missing = missing.map(|path| format!("{} is missing", show(path)));
        let extra = found.objects.keys().filter(|path| !tree.contains_key(path.as_slice()));
        missing.chain(extra.map(|path| format!("{} is there", show(path)))).collect()
    }

    /// Files whose contents are of no version.
    fn changed(&self, found: &Snapshot, moment: usize) -> String {
        let wrong = found.objects.iter().filter(|(path, seen)| {
            let id = self.history.node(path, moment);
            let versions = id.map(|id| &self.history.past(id).versions);
            versions.is_some_and(|versions| {
                !versions.is_empty() && versions.iter().all(|(_, version)| *version != seen.contents)
            })
        });
        let told = wrong.map(|(path, seen)| format!("{} ({} bytes)", show(path), seen.contents.size));
        told.take(4).collect::<Vec<_>>().join("; ")
    }
}

/// Bytes of a file that was found: where they begin, and its size.
#[derive(Clone, Copy)]
struct Part<'a> {
    from: u64,
    of: u64,
    bytes: &'a [u8],
}

/// A file while its edits are applied again, as far as it is looked at.
struct Replayed {
    from: u64,
    bytes: Vec<u8>,
    size: u64,
}

impl Replayed {
    /// Applies an edit; the range of bytes inside the file that it may have changed, a gap that it leaves among them.
    fn apply(&mut self, edit: &Edit) -> std::ops::Range<usize> {
        match edit {
            Edit::Write { offset, data } => {
                let end = offset + data.len() as u64;
                let range = self.inside(*offset)..self.inside(end);
                if !range.is_empty() {
                    let skipped = (self.from + range.start as u64 - offset) as usize;
                    let data = &data[skipped..skipped + range.len()];
                    self.bytes[range.clone()].copy_from_slice(data);
                }
                let from = self.inside(self.size).min(range.start);
                self.size = self.size.max(end);
                from..range.end
            }
            Edit::Zero { offset, len } => {
                let end = offset.saturating_add(*len).min(self.size).max(*offset);
                let range = self.inside(*offset)..self.inside(end);
                self.bytes[range.clone()].fill(0);
                range
            }
            Edit::Size(size) => {
                let (old, new) = (self.inside(self.size), self.inside(*size));
                self.size = *size;
                if new < old {
                    self.bytes[new..old].fill(0);
                }
                old..new.max(old)
            }
        }
    }

    /// A place as an index of the bytes that are looked at.
    fn inside(&self, at: u64) -> usize {
        usize::try_from(at.saturating_sub(self.from)).unwrap_or(usize::MAX).min(self.bytes.len())
    }
}

/// Which bytes of a file found are right.
struct Fits<'a> {
    found: Part<'a>,
    sizes: BTreeSet<u64>,
    right: Vec<bool>,
}

impl Fits<'_> {
    fn note(&mut self, now: &[u8], range: std::ops::Range<usize>) {
        for at in range {
            self.right[at] |= self.found.bytes[at] == now.get(at).copied().unwrap_or(0);
        }
    }

    fn verdict(&self, now: &[u8]) -> Verdict {
        let size = self.found.of;
        if !self.sizes.contains(&size) {
            let known: Vec<String> = self.sizes.iter().take(8).map(u64::to_string).collect();
            return Err(format!("{size} bytes; since it was last made durable it had {}", known.join(", ")));
        }
        let Some(first) = self.right.iter().position(|right| !right) else { return Ok(()) };
        let count = self.right.iter().filter(|right| !**right).count();
        let what = match self.found.bytes[first] {
            0 => "zeros where data was".to_string(),
            byte => format!("{byte:#04x}, in the end it was {:#04x}", now.get(first).copied().unwrap_or(0)),
        };
        Err(format!(
            "{count} of {size} bytes were never so since it was last made durable; the first at {}: {what}",
            self.found.from + first as u64
        ))
    }
}

/// The first thing that tells two trees apart.
pub(super) fn difference(one: &Snapshot, other: &Snapshot) -> String {
    for (path, seen) in &one.objects {
        let Some(now) = other.objects.get(path) else { return format!("{} is missing", show(path)) };
        if now.shape != seen.shape {
            return format!("{}: {:?} instead of {:?}", show(path), now.shape, seen.shape);
        }
        if now.contents != seen.contents {
            let (now, was) = (now.contents.size, seen.contents.size);
            return format!("{}: other contents, {now} bytes instead of {was}", show(path));
        }
    }
    let extra = other.objects.keys().find(|path| !one.objects.contains_key(*path));
    extra.map_or("nothing differs".into(), |path| format!("{} is there", show(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Result;
    use crate::front::crash::calls::Traced;
    use crate::front::crash::subject::Devices;
    use crate::fs::memfs::MemFs;
    use crate::fs::{Caller, Kind, NewNode, Rename, SetAttr};
    use crate::media::recorded::Recorder;
    use crate::units::Ino;

    /// Opens nothing; promises what nfhybrid does.
    struct Promises;

    impl Subject for Promises {
        fn devices(&self) -> &'static [&'static str] {
            &[]
        }
        fn serve(&self, _: &Devices) -> Result<Box<dyn FileSystem>> {
            unreachable!("nothing is opened here")
        }
        fn open(&self, _: &Devices) -> Result<Box<dyn FileSystem>> {
            unreachable!("nothing is opened here")
        }
        fn open_alone(&self, _: Arc<dyn BlockDevice>) -> Result<Box<dyn FileSystem>> {
            unreachable!("nothing is opened here")
        }
        fn replaces_whole(&self) -> bool {
            true
        }
    }

    fn file(fs: &dyn FileSystem, name: &[u8]) -> Ino {
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        fs.create(&Caller::default(), fs.root(), name, &node).unwrap().ino
    }

    fn write(fs: &dyn FileSystem, ino: Ino, at: u64, data: &[u8]) {
        fs.write(ino, at, data, false).unwrap().get().unwrap();
    }

    /// Two files; the first is synced after its first write; a third takes the second's name.
    fn history() -> History {
        let memory = Arc::new(MemFs::new(1 << 20, &Caller::default()));
        let start = Snapshot::of(&*memory).unwrap();
        let fs = Traced::new(memory, Recorder::new());
        let (a, b) = (file(&fs, b"a"), file(&fs, b"b"));
        write(&fs, a, 0, &[1; 8192]);
        fs.fsync(a, false).unwrap().get().unwrap();
        write(&fs, b, 0, &[9; 3000]);
        write(&fs, a, 4096, &[2; 8192]);
        let c = file(&fs, b"c");
        write(&fs, c, 0, &[7; 100]);
        fs.rename(fs.root(), b"c", fs.root(), b"b", Rename::Replace).unwrap();
        History::new(&start, &[], fs.calls())
    }

    /// The verdict on `/a` and `/b` with these contents.
    fn judged(a: &[u8], b: &[u8]) -> Verdict {
        let history = history();
        let fs = MemFs::new(1 << 20, &Caller::default());
        for (name, contents) in [(b"a", a), (b"b", b)] {
            let ino = file(&fs, name);
            write(&fs, ino, 0, contents);
            fs.setattr(ino, &SetAttr { size: Some(contents.len() as u64), ..SetAttr::default() }).unwrap();
        }
        let found = Snapshot::of(&fs).unwrap();
        Checker { subject: &Promises, history: &history }.compare(&fs, &found, &history.bounds(1))
    }

    #[test]
    fn old_new_and_half_of_each_are_right_and_nothing_else_is() {
        let (old, new) = ([1; 8192], [[1; 4096], [2; 4096], [2; 4096]].concat());
        let mixed = [&[1; 4096][..], &[2; 100], &[1; 3996]].concat();
        for right in [&old[..], &new, &mixed] {
            judged(right, &[7; 100]).unwrap();
            // The old file under the second name, before the rename.
            judged(right, &[9; 3000]).unwrap();
        }
        let zeros = [&[1; 4096][..], &[0; 4096]].concat();
        let grown = [&[1; 8192][..], &[0; 4096]].concat();
        let garbage = [&[1; 8191][..], &[3]].concat();
        let others = [&[1; 4096][..], &[9; 3000], &[1; 1096]].concat();
        for (wrong, why) in [
            (&zeros[..], "zeros where data was"),
            (&grown, "4096 of 12288 bytes"),
            (&garbage, "1 of 8192 bytes were never so"),
            (&others, "3000 of 8192 bytes"),
            (&[1; 4096], "4096 bytes; since"),
            (&[], "0 bytes; since"),
        ] {
            let said = judged(wrong, &[7; 100]).unwrap_err();
            assert!(said.contains("/a") && said.contains(why), "{said}");
        }
    }

    #[test]
    fn zeros_are_right_where_a_gap_a_hole_or_growth_left_them_and_nowhere_else() {
        let memory = Arc::new(MemFs::new(1 << 20, &Caller::default()));
        let start = Snapshot::of(&*memory).unwrap();
        let fs = Traced::new(memory, Recorder::new());
        let ino = file(&fs, b"f");
        let sized = |size| fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        write(&fs, ino, 4096, &[1; 4096]);
        sized(16384);
        write(&fs, ino, 0, &[2; 1024]);
        sized(4096);
        write(&fs, ino, 4096, &[3; 4096]);
        let history = History::new(&start, &[], fs.calls());
        let checker = Checker { subject: &Promises, history: &history };
        let id = history.node(b"/f", history.end()).unwrap();
        let judged = |parts: &[(u8, usize)]| {
            let bytes: Vec<u8> = parts.iter().flat_map(|&(byte, len)| vec![byte; len]).collect();
            let judged = |from: usize, to: usize| {
                let part = Part { from: from as u64, of: bytes.len() as u64, bytes: &bytes[from..to] };
                checker.mixture(id, part, 0, history.end())
            };
            // In parts it is as right as it is at once.
            let whole = judged(0, bytes.len());
            for cut in [1, 1024, 4095, 4097, 8192].into_iter().filter(|cut| *cut < bytes.len()) {
                let parts = judged(0, cut).and(judged(cut, bytes.len()));
                assert_eq!(parts.is_ok(), whole.is_ok(), "cut at {cut}: {parts:?}, {whole:?}");
            }
            whole
        };
        for right in [
            &[][..],
            &[(0, 4096), (1, 4096)],
            &[(0, 4096), (1, 4096), (0, 8192)],
            &[(2, 1024), (0, 3072), (1, 4096), (0, 8192)],
            &[(2, 1024), (0, 3072)],
            &[(2, 1024), (0, 3072), (3, 4096)],
        ] {
            judged(right).unwrap();
        }
        for wrong in [&[(0, 8192)][..], &[(2, 1024), (0, 7168)], &[(0, 16384)], &[(1, 4096)]] {
            judged(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_file_that_took_anothers_name_is_whole() {
        let half = [&[7; 50][..], &[0; 50]].concat();
        for wrong in [&half[..], &[1; 100]] {
            assert!(judged(&[1; 8192], wrong).unwrap_err().contains("/b"));
        }
    }
}
