//! The workloads: one operation each, what it needs before, and what is made durable after it.
//!
//! The bounds are those of ACE (Mohan et al., OSDI 2018) for one operation: files `foo`, `bar`, `A/foo`, `A/bar` and
//! directories `A`, `B`; ranges that append, overlap unaligned and overlap the end. Added to its operations are
//! symlink, rmdir, special files and changes of mode; a write through a memory map reaches a file system as whole
//! pages.

use bimetal::fs::Fallocate;

/// What ACE's files hold before an operation that needs contents: not whole blocks.
pub const CONTENTS: u64 = 20_000;

/// One call.
#[derive(Clone, Debug)]
pub enum Op {
    Creat(&'static str),
    Mkdir(&'static str),
    Mkfifo(&'static str),
    Symlink(&'static str),
    Link(&'static str, &'static str),
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Write(&'static str, u64, u64),
    Falloc(&'static str, Fallocate, u64, u64),
    Truncate(&'static str, u64),
    Chmod(&'static str),
    SetXattr(&'static str),
    RemoveXattr(&'static str),
}

/// What is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    Fsync(&'static str),
    Fdatasync(&'static str),
    Sync,
}

/// How what an operation needs came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Just made, nothing durable.
    Fresh,
    /// Durable on the SSD's log alone.
    Logged,
    /// On both halves.
    Committed,
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    pub setting: Setting,
    pub before: Vec<Op>,
    pub op: Op,
    pub persist: Persist,
}

const FILES: [&str; 2] = ["/foo", "/A/foo"];
const MOVES: [(&str, &str); 6] = [
    ("/foo", "/bar"),
    ("/foo", "/A/bar"),
    ("/foo", "/A/foo"),
    ("/A/foo", "/bar"),
    ("/A/foo", "/A/bar"),
    ("/A/foo", "/B/foo"),
];

fn full(path: &'static str) -> Vec<Op> {
    vec![Op::Creat(path), Op::Write(path, 0, CONTENTS)]
}

fn ranges() -> [(u64, u64); 3] {
    [(CONTENTS, 8000), (3000, 5000), (CONTENTS - 3000, 8000)]
}

/// Each operation with what it needs besides the directories `A` and `B`.
fn operations() -> Vec<(Vec<Op>, Op)> {
    let mut all = vec![
        (vec![], Op::Mkdir("/C")),
        (vec![], Op::Mkdir("/A/C")),
        (vec![], Op::Rmdir("/A")),
        (vec![Op::Mkdir("/A/C")], Op::Rmdir("/A/C")),
        (vec![], Op::Rename("/A", "/C")),
        (vec![], Op::Rename("/A", "/B")),
        (vec![], Op::Rename("/A", "/B/A")),
        (full("/A/foo"), Op::Rename("/A", "/C")),
        (full("/A/foo"), Op::Exchange("/A", "/B")),
        (vec![], Op::SetXattr("/A")),
        (vec![Op::SetXattr("/A")], Op::RemoveXattr("/A")),
        (vec![], Op::Chmod("/A")),
    ];
    FILES.iter().for_each(|path| all.extend(on_file(path)));
    for (from, to) in MOVES {
        all.push((full(from), Op::Link(from, to)));
        all.push((full(from), Op::Rename(from, to)));
        let both = [full(from), vec![Op::Creat(to), Op::Write(to, 0, 5000)]].concat();
        all.push((both.clone(), Op::Rename(from, to)));
        all.push((both, Op::Exchange(from, to)));
    }
    all
}

fn on_file(path: &'static str) -> Vec<(Vec<Op>, Op)> {
    let linked = [full(path), vec![Op::Link(path, "/B/second")]].concat();
    let with_attribute = [full(path), vec![Op::SetXattr(path)]].concat();
    let mut all = vec![
        (vec![], Op::Creat(path)),
        (vec![], Op::Mkfifo(path)),
        (vec![], Op::Symlink(path)),
        (vec![Op::Symlink(path)], Op::Unlink(path)),
        (full(path), Op::Unlink(path)),
        (linked, Op::Unlink(path)),
        (full(path), Op::SetXattr(path)),
        (with_attribute, Op::RemoveXattr(path)),
        (full(path), Op::Chmod(path)),
        // A whole page in the middle, as a memory map writes it back.
        (full(path), Op::Write(path, 4096, 4096)),
        (full(path), Op::Write(path, 0, CONTENTS)),
        // Far behind the end: a hole.
        (full(path), Op::Write(path, 300_000, 5000)),
        (vec![Op::Creat(path)], Op::Write(path, 0, 5000)),
        (vec![Op::Creat(path)], Op::Write(path, 0, 200_000)),
    ];
    for size in [0, 4096, 5000, CONTENTS + 9000] {
        all.push((full(path), Op::Truncate(path, size)));
    }
    let kinds = [
        Fallocate::Reserve { keep_size: false },
        Fallocate::Reserve { keep_size: true },
        Fallocate::Punch,
        Fallocate::Zero { keep_size: false },
        Fallocate::Zero { keep_size: true },
    ];
    for (at, len) in ranges() {
        all.push((full(path), Op::Write(path, at, len)));
        all.extend(kinds.map(|kind| (full(path), Op::Falloc(path, kind, at, len))));
    }
    all
}

/// What can be made durable after `op`: the objects it names, the directories they are in, everything.
fn persists(op: &Op) -> Vec<Persist> {
    let (gone, here): (Vec<&'static str>, Vec<&'static str>) = match op {
        Op::Link(from, to) | Op::Exchange(from, to) => (vec![], vec![from, to]),
        Op::Rename(from, to) => (vec![from], vec![to]),
        Op::Unlink(path) | Op::Rmdir(path) => (vec![path], vec![]),
        Op::Creat(path)
        | Op::Mkdir(path)
        | Op::Mkfifo(path)
        | Op::Symlink(path)
        | Op::Write(path, ..)
        | Op::Falloc(path, ..)
        | Op::Truncate(path, _)
        | Op::Chmod(path)
        | Op::SetXattr(path)
        | Op::RemoveXattr(path) => (vec![], vec![path]),
    };
    let parents = gone.iter().chain(&here).map(|path| parent_of(path));
    let mut all: Vec<Persist> = here.iter().copied().chain(parents).map(Persist::Fsync).collect();
    if matches!(op, Op::Write(..) | Op::Falloc(..) | Op::Truncate(..)) {
        all.extend(here.iter().copied().map(Persist::Fdatasync));
    }
    all.push(Persist::Sync);
    all.dedup();
    all
}

fn parent_of(path: &'static str) -> &'static str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

/// All workloads.
pub fn all() -> Vec<Workload> {
    let mut all = Vec::new();
    for (needed, op) in operations() {
        for persist in persists(&op) {
            for setting in [Setting::Fresh, Setting::Logged, Setting::Committed] {
                let before = [vec![Op::Mkdir("/A"), Op::Mkdir("/B")], needed.clone()].concat();
                all.push(Workload { setting, before, op: op.clone(), persist });
            }
        }
    }
    all
}
