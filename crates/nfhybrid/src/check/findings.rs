//! What a check found: problems, what they cost, and the sentences for them.

use super::super::NfHybrid;
use super::super::mount::DISK_HALF;
use super::super::pairing::{Pairing, Saved};
use super::super::scrub::BadCopy;
use super::super::ssd::{LOG_ENDS, Opened, RecordBody};
use super::Plan;
use bimetal_base::Result;
use bimetal_base::checksum::crc32c;
use bimetal_base::units::Ino;
use bimetal_media::BlockDevice;
use serde::Serialize;

/// So many bad copies, or names that lead nowhere, are told; the rest is counted.
pub(super) const NAMED: usize = 100;

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// The structure, or the file.
    pub what: String,
    /// What is wrong, in a sentence.
    pub why: String,
    /// How many things this tells of.
    pub count: u64,
    /// The file it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ino: Option<u64>,
    /// Something that was promised is lost by it, or would be by its repair.
    pub loses: bool,
    /// It is right now, and nothing was lost by it.
    pub repaired: bool,
    /// It is over, and what it says is lost.
    pub lost: bool,
    /// The user said that this may be lost, without `lossy`.
    #[serde(skip)]
    asked: bool,
    /// What is wrong, in words for when it is over.
    #[serde(skip)]
    then: Option<String>,
}

impl Problem {
    /// Whether it is still as it was found.
    pub fn is_left(&self) -> bool {
        !self.repaired && !self.lost
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What else there is to say, in sentences.
    pub notes: Vec<String>,
    /// Operations that only the SSD's log held.
    pub operations_recovered: u64,
    /// Inodes looked at.
    pub inodes: u64,
    /// Bytes on the SSD that were compared.
    pub compared_bytes: u64,
    /// What e2fsck said of the disk half; empty if it was not run.
    pub e2fsck: Vec<String>,
    /// The volume was written to.
    pub changed: bool,
    /// Something was not looked at, as a note says.
    pub partial: bool,
    /// What is wrong says itself what to do.
    #[serde(skip)]
    is_answered: bool,
}

impl Findings {
    pub(super) fn problem(&mut self, what: &str, why: String, loses: bool) {
        let (repaired, lost, asked, then) = Default::default();
        let what = what.into();
        self.problems.push(Problem { what, why, count: 1, ino: None, loses, repaired, lost, asked, then });
    }

    /// A problem that no repair helps with, whatever may be lost: it says itself what does.
    pub(super) fn unanswerable(&mut self, what: &str, why: String) {
        self.problem(what, why, true);
        self.is_answered = true;
    }

    /// A problem whose repair drops something: what is said before it and after it, and whether the user asked for a loss.
    pub(super) fn drops(&mut self, what: &str, [why, then]: [String; 2], lost_as_asked: bool) {
        self.problem(what, why, lost_as_asked);
        if let Some(problem) = self.problems.last_mut() {
            (problem.asked, problem.then) = (lost_as_asked, Some(then));
        }
    }

    /// So many more of what was told.
    pub(super) fn more(&mut self, what: &str, count: u64, of: &str, loses: bool) {
        self.problem(what, format!("{count} more {of}."), loses);
        self.problems.last_mut().into_iter().for_each(|problem| problem.count = count);
    }

    /// A problem of a file; its path goes before the sentence once it is known.
    fn problem_in(&mut self, ino: u64, what: &str, why: String, loses: bool) {
        self.problem(what, why, loses);
        self.problems.iter_mut().last().into_iter().for_each(|problem| problem.ino = Some(ino));
    }

    /// Puts the paths of files before what is wrong in them.
    pub(super) fn name_files(&mut self, fs: &NfHybrid) {
        let wanted = self.problems.iter().filter_map(|problem| problem.ino.map(Ino));
        let paths = fs.paths_of(&wanted.collect());
        for problem in &mut self.problems {
            if let Some(path) = problem.ino.take().and_then(|ino| paths.get(&Ino(ino))) {
                problem.why = format!("{path}: {}", problem.why);
            }
        }
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// What was feared of a repair, in these words, did not happen.
    pub(super) fn cost_nothing(&mut self, feared: &str) {
        let of_it = |problem: &&mut Problem| problem.why.contains(feared) && problem.is_left();
        self.problems.iter_mut().filter(of_it).for_each(|problem| problem.loses = false);
    }

    /// What is wrong with these is over: repaired, or lost.
    pub(super) fn repaired(&mut self, what: &[&str]) {
        let of_these = |problem: &&mut Problem| what.contains(&&*problem.what) && problem.is_left();
        for problem in self.problems.iter_mut().filter(of_these) {
            (problem.repaired, problem.lost) = (!problem.loses, problem.loses);
            if let Some(then) = problem.then.take() {
                problem.why = then;
            }
        }
    }

    /// Whether all stays as it is for now, as more would lose what is named, and says so, and what comes first.
    pub(super) fn note_what_stays(&mut self, plan: &Plan) -> bool {
        let stays = plan.repair && !plan.lossy && self.loses();
        let first = plan.what_comes_first();
        if self.is_answered {
            if plan.repair {
                self.note(format!("{} was changed.", self.what_was_changed()));
            }
        } else if stays {
            let what = self.what_was_changed();
            self.note(format!(
                "{what} was changed, for a repair would lose what is named. {first}; then repair with --yes."
            ));
        } else if !plan.repair && self.problems.iter().any(|problem| problem.what == DISK && problem.loses) {
            self.note(format!("A repair would lose what is named. {first}; then --yes repairs the rest."));
        }
        stays
    }

    /// As the subject of a sentence that says so.
    pub(super) fn what_was_changed(&self) -> &'static str {
        if self.changed { "No more" } else { "Nothing" }
    }

    /// Whether a repair loses what the user did not say may be lost.
    pub(super) fn loses(&self) -> bool {
        self.problems.iter().any(|problem| problem.loses && !problem.asked)
    }
}

pub(super) const LOG: &str = "the SSD's log";
pub(super) const TABLES: &str = "the SSD's tables";
pub(super) const COPIES: &str = "the SSD's copies";
pub(super) const DISK: &str = DISK_HALF;

/// What was durable on the SSD and is damaged, in its log or its tables.
fn note_lost(opened: &Opened, log_open: bool, findings: &mut Findings) {
    let Some(lost) = &opened.lost else { return };
    // What is wrong with the tables is told as it is; of a damaged log it is said what else goes with it.
    if opened.notes.contains(lost) {
        let cost = match log_open {
            true => "; some of it the disk half may lack",
            false => ". Nothing is lost: the volume was left in order, and the disk half has everything",
        };
        return findings.problem(TABLES, format!("{lost}{cost}."), log_open);
    }
    if log_open {
        let why = "What was fsynced with them is lost, and the cached copies are dropped.";
        return findings.problem(LOG, format!("It is damaged: {lost}. {why}"), true);
    }
    let what = match lost.starts_with(LOG_ENDS) {
        true => "This is an older copy of the SSD half, or the end of its log is gone",
        false => "A part of it is damaged",
    };
    let why = format!(
        "{what}. Nothing is lost: the volume was left in order, and the disk half has everything. The SSD's copies, which \
         that log tells of, are dropped by the next mount."
    );
    findings.problem(LOG, why, false);
}

/// What of the SSD is damaged, and what that costs.
pub(super) fn note_damage(
    device: &dyn BlockDevice,
    opened: &Opened,
    pairing: Option<Pairing>,
    findings: &mut Findings,
) -> Result<()> {
    let disk_has = pairing.map_or(0, |pairing| pairing.op);
    let log_open = pairing.is_none_or(|pairing| pairing.state != Saved::Clean)
        || opened.records.iter().any(|record| record.op > disk_has);
    note_lost(opened, log_open, findings);
    let fresh = opened.records.iter().filter_map(|record| match &record.body {
        RecordBody::Fresh { ino, file_block, run, .. }
            if (disk_has + 1..=opened.complete).contains(&record.op) =>
        {
            Some((*ino, *file_block, *run))
        }
        _ => None,
    });
    let size = opened.ssd.block_bytes() as usize;
    for (ino, file_block, run) in fresh {
        let sums = opened.ssd.sums(run.at, run.len).read_each(device)?;
        let wrong = (0..run.len as usize).filter(|index| {
            let block = device.read((run.at.0 + *index as u64) * size as u64, size);
            !block.is_ok_and(|bytes| sums[*index] == Some(crc32c(&bytes)))
        });
        let wrong = wrong.count();
        if wrong > 0 {
            let why = format!(
                "Of inode {ino}, {wrong} of the {} blocks from block {file_block} on are damaged, and the disk half lacks them.",
                run.len
            );
            findings.problem_in(ino.0, LOG, why, true);
        }
    }
    if let Some(unfinished) = &opened.unfinished {
        findings.note(format!("T{}.", &unfinished[1..]));
    }
    // In a volume left in order the disk has everything, and damage costs copies only.
    let is_told = |note: &String| opened.lost.as_ref().is_some_and(|lost| note.starts_with(lost));
    for note in opened.notes.iter().filter(|note| !is_told(note)) {
        let loses = log_open && note.contains("dropped");
        let cost = match (loses, log_open) {
            (true, _) => "; some of it the disk half may lack",
            (false, true) => "; nothing is lost by it",
            (false, false) => "; the disk half has it all",
        };
        findings.problem(TABLES, format!("{note}{cost}."), loses);
    }
    Ok(())
}

pub(super) fn name_bad(bad: &[BadCopy], findings: &mut Findings) {
    for copy in bad.iter().take(NAMED) {
        let cost = if copy.on_disk { "the disk half has it" } else { "the disk half lacks it" };
        let why = format!(
            "Block {} of inode {} (block {} of the SSD): {}; {cost}.",
            copy.file_block, copy.ino, copy.ssd_block, copy.why
        );
        findings.problem_in(copy.ino, COPIES, why, !copy.on_disk);
    }
    if let Some(more) = bad.len().checked_sub(NAMED).filter(|more| *more > 0) {
        let loses = bad[NAMED..].iter().any(|copy| !copy.on_disk);
        findings.more(COPIES, more as u64, "blocks are wrong", loses);
    }
}
