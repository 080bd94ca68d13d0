//! Each error × each device × each phase: the fault struck, nothing that was promised is lost, nothing panics or hangs.
//!
//! A cell is one error on one half in one phase of a volume's life. Its fault is placed at the n-th request of its kind
//! in that phase, for every n (`BIMETAL_MATRIX=all`) or for some; the run goes on with the fault until it ends in a
//! power cut or in an unmount, and is then mounted with healthy devices and held against what had been promised. A
//! cell without such a request says so. `BIMETAL_MATRIX_DOC=1` writes the table into docs/reliability.md.
//!
//! What a cell promises is in [`promise`].

mod cell;
mod phases;

use cell::{Outcome, see};
use phases::Phase;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Once,
    FromNowOn,
    NoSpace,
    TornWrite,
    BitFlip,
    Vanishes,
    Blinks,
    Zeros,
    LostWrite,
}

impl Fault {
    const EVERY: [Fault; 9] = [
        Fault::Once,
        Fault::FromNowOn,
        Fault::NoSpace,
        Fault::TornWrite,
        Fault::BitFlip,
        Fault::Vanishes,
        Fault::Blinks,
        Fault::Zeros,
        Fault::LostWrite,
    ];

    fn name(self) -> &'static str {
        match self {
            Fault::Once => "EIO once",
            Fault::FromNowOn => "EIO from then on",
            Fault::NoSpace => "ENOSPC once",
            Fault::TornWrite => "torn write, EIO",
            Fault::BitFlip => "bit flip on read",
            Fault::Vanishes => "vanishes",
            Fault::Blinks => "vanishes, comes back",
            Fault::Zeros => "reads as zeros",
            Fault::LostWrite => "write lost silently",
        }
    }
}

/// Which half it happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Disk,
    Ssd,
}

/// What holds after the fault, once the volume is mounted with healthy devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Everything fsynced is there, the disk alone is of one moment, nothing but old or new contents anywhere.
    Kept,
    /// Names and attributes are; contents that were read wrongly may have been written back so.
    Names,
    /// The device lied: what it lost may be missing, but nothing is there that never was, or the mount is refused.
    OldOrNew,
    /// The device lied about the only copy: an answer or an error, no panic, no hang.
    Answer,
}

/// What is promised of a cell.
fn promise(half: Half, fault: Fault) -> Promise {
    match (half, fault) {
        (Half::Disk, Fault::LostWrite) => Promise::Answer,
        // ext4 has checksums for its metadata and none for contents.
        (Half::Disk, Fault::BitFlip | Fault::Zeros) => Promise::Names,
        (Half::Ssd, Fault::LostWrite) => Promise::OldOrNew,
        _ => Promise::Kept,
    }
}

/// Requests of a cell at which the fault is placed, unless all are asked for.
const SOME: usize = 3;
/// And at most.
const ALL: usize = 400;
/// A cell that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

fn name_of(phase: Phase, half: Half, fault: Fault) -> String {
    format!("{} / {half:?} / {}", phase.name(), fault.name())
}

/// One cell, watched.
fn watched(phase: Phase, half: Half, fault: Fault, most: usize) -> Outcome {
    let (tell, told) = mpsc::channel();
    // A cell that hangs keeps its thread; the test fails then and the process ends.
    std::thread::spawn(move || {
        let seen = tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
            see(phase, half, fault, promise(half, fault), most)
        });
        // Nobody listens where it took too long.
        let _ = tell.send(seen);
    });
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| Outcome::hangs())
}

fn table(cells: &[(Phase, Half, Fault, Outcome)]) -> String {
    let mut text = String::from("| Phase | Half |");
    Fault::EVERY.iter().for_each(|fault| write!(text, " {} |", fault.name()).expect("a string"));
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(Fault::EVERY.len()));
    for phase in Phase::EVERY {
        for half in [Half::Disk, Half::Ssd] {
            let name = if half == Half::Disk { "disk" } else { "ssd" };
            write!(text, "\n| {} | {name} |", phase.name()).expect("a string");
            for fault in Fault::EVERY {
                let cell = cells.iter().find(|(a, b, c, _)| (*a, *b, *c) == (phase, half, fault));
                let shown = cell.map_or(String::new(), |(.., outcome)| outcome.show());
                write!(text, " {shown} |").expect("a string");
            }
        }
    }
    text + "\n"
}

/// Puts the table between its marks in the page.
fn publish(table: &str) {
    const MARKS: [&str; 2] = ["<!-- fault matrix -->\n", "<!-- end of the fault matrix -->"];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.md");
    let page = std::fs::read_to_string(&path).expect("docs/reliability.md");
    let (before, rest) = page.split_once(MARKS[0]).expect("where the table begins");
    let (_, after) = rest.split_once(MARKS[1]).expect("where the table ends");
    std::fs::write(&path, format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1])).expect("the page");
}

#[test]
fn every_error_on_every_half_in_every_phase_keeps_what_was_promised() {
    if !phases::mke2fs_is_here() {
        return crate::mounts::skip("mke2fs is not installed");
    }
    let most = if std::env::var("BIMETAL_MATRIX").is_ok_and(|asked| asked == "all") { ALL } else { SOME };
    let only = std::env::var("BIMETAL_MATRIX_ONLY").unwrap_or_default();
    let (mut cells, mut wrong) = (Vec::new(), Vec::new());
    for phase in Phase::EVERY {
        for half in [Half::Disk, Half::Ssd] {
            for fault in Fault::EVERY {
                let name = name_of(phase, half, fault);
                if !name.contains(&only) {
                    continue;
                }
                let outcome = watched(phase, half, fault, most);
                wrong.extend(outcome.failures.first().map(|why| format!("{name}: {why}")));
                cells.push((phase, half, fault, outcome));
            }
        }
    }
    let strikes: usize = cells.iter().map(|(.., outcome)| outcome.placed).sum();
    let empty = cells.iter().filter(|(.., outcome)| outcome.requests == 0).count();
    println!("{} cells, {strikes} faults placed, {empty} cells without such a request", cells.len());
    if std::env::var_os("BIMETAL_MATRIX_DOC").is_some() {
        publish(&table(&cells));
    }
    assert!(!only.is_empty() || strikes > cells.len() / 2, "hardly any fault struck");
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}
