//! The paper's programs, as calls.
//!
//! The random template is as it was recorded on the kernel: 32 files of 1 MiB in a random tree of 128 directories no deeper than
//! ten; a file is changed after every 16 KiB, which are four records of 4 KiB with an fsync each, and the next one is drawn.

use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_trace::calls::{Call, Deed, Place, Was, Workload};

/// Bytes of a record.
pub(super) const RECORD: u64 = 4096;
/// The random template's: directories, their greatest depth, files, bytes of one, and of a visit.
const DIRS: u32 = 128;
const DEPTH_MAX: u32 = 10;
pub(super) const FILES: u32 = 32;
pub(super) const FILE_BYTES: u64 = 1 << 20;
const VISIT: u64 = 16 << 10;

/// What is done to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// New files are written.
    Write,
    /// Files that are there are written again.
    Rewrite,
    /// They are read.
    Read,
}

/// A workload in the making.
#[derive(Default)]
struct Program {
    workload: Workload,
}

impl Program {
    fn new() -> Program {
        let places = vec![Place { parent: 0, name: Box::default() }];
        Program { workload: Workload { places, processes: 1, ..Workload::default() } }
    }

    fn place(&mut self, parent: u32, name: String) -> u32 {
        self.workload.places.push(Place { parent, name: name.into_bytes().into() });
        self.workload.places.len() as u32 - 1
    }

    fn call(&mut self, path: u32, deed: Deed) {
        self.workload.calls.push(Call { at: Time::ZERO, process: 0, path, deed });
    }

    /// Moves a range in records; what is written is made durable record by record.
    fn records(&mut self, pass: Pass, path: u32, from: u64, len: u64, record: u64) {
        for at in (from..from + len).step_by(record as usize) {
            match pass {
                Pass::Read => self.call(path, Deed::Read(at, record)),
                Pass::Write | Pass::Rewrite => {
                    self.call(path, Deed::Write(at, record));
                    self.call(path, Deed::Fsync);
                }
            }
        }
    }
}

/// IOzone's passes over one file, each record made durable.
pub(super) fn one_file(pass: Pass, bytes: u64, record: u64) -> Workload {
    let mut program = Program::new();
    let file = program.place(0, "f".into());
    match pass {
        Pass::Write => program.call(file, Deed::Create),
        Pass::Rewrite | Pass::Read => program.workload.initial.push((file, Was::File(bytes))),
    }
    program.records(pass, file, 0, bytes, record);
    program.workload
}

/// The random template.
pub(super) fn template(pass: Pass, seed: u64) -> Workload {
    let mut random = Random::new(seed, "random template");
    let mut program = Program::new();
    let mut dirs = vec![(0, 0)];
    for number in 1..DIRS {
        let open: Vec<(u32, u32)> = dirs.iter().copied().filter(|(_, depth)| *depth < DEPTH_MAX).collect();
        let (parent, depth) = open[random.below(open.len() as u64) as usize];
        let dir = program.place(parent, format!("d{number}"));
        program.workload.initial.push((dir, Was::Dir));
        dirs.push((dir, depth + 1));
    }
    let mut left: Vec<(u32, u64)> = Vec::new();
    for number in 0..FILES {
        let (dir, _) = dirs[random.below(dirs.len() as u64) as usize];
        let file = program.place(dir, format!("f{number}"));
        let was = if pass == Pass::Write { 0 } else { FILE_BYTES };
        program.workload.initial.push((file, Was::File(was)));
        left.push((file, 0));
    }
    while !left.is_empty() {
        let drawn = random.below(left.len() as u64) as usize;
        let (file, at) = left[drawn];
        program.records(pass, file, at, VISIT, RECORD);
        left[drawn].1 += VISIT;
        if left[drawn].1 == FILE_BYTES {
            left.swap_remove(drawn);
        }
    }
    program.workload
}

/// Files of 256 KiB to 1 MiB that are removed and written anew, over and over, until `bytes` were written; each is made durable
/// when it is whole.
pub(super) fn churn(files: u32, bytes: u64, seed: u64) -> Workload {
    const CALL: u64 = 64 << 10;
    let mut random = Random::new(seed, "churn");
    let mut program = Program::new();
    let places: Vec<u32> = (0..files).map(|number| program.place(0, format!("f{number}"))).collect();
    let mut there = vec![false; files as usize];
    let mut written = 0;
    while written < bytes {
        let drawn = random.below(files.into()) as usize;
        let file = places[drawn];
        if there[drawn] {
            program.call(file, Deed::Unlink);
        }
        there[drawn] = true;
        program.call(file, Deed::Create);
        let len = CALL * (4 + random.below(13));
        (0..len).step_by(CALL as usize).for_each(|at| program.call(file, Deed::Write(at, CALL)));
        program.call(file, Deed::Fsync);
        written += len;
    }
    program.workload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_visits_every_byte_once_in_a_tree_no_deeper_than_ten() {
        let workload = template(Pass::Write, 3);
        let writes = workload.calls.iter().filter(|call| matches!(call.deed, Deed::Write(..))).count() as u64;
        let syncs = workload.calls.iter().filter(|call| call.deed == Deed::Fsync).count() as u64;
        assert_eq!((writes, syncs), (8192, 8192));
        let depth = |mut place: u32| {
            let mut depth = 0;
            while place != 0 {
                place = workload.places[place as usize].parent;
                depth += 1;
            }
            depth
        };
        let deepest = (0..workload.places.len() as u32).map(depth).max().unwrap();
        assert!((4..=11).contains(&deepest), "{deepest}: a file in a directory of ten");
        assert_ne!(template(Pass::Write, 4).calls, workload.calls);
    }
}
