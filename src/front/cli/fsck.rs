//! `bimetal fsck`: is everything as its format says?
//!
//! Exit codes are those of e2fsck: 0 nothing is wrong, 1 what was wrong is repaired, 4 something is left or lost, 8 it could
//! not be checked, 16 the command line makes no sense.

use super::progress::Progress;
use crate::front::kinds::volume::{self, CheckOptions, CheckReport, VolumeArgs};
use crate::{Error, Result};
use clap::Args;
use serde_json::json;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal fsck -n --ssd ssd.img --disk disk.img        look only
  bimetal fsck --ssd ssd.img --disk disk.img           repair what can be repaired without losing anything
  bimetal fsck --deep --ssd ssd.img --disk disk.img    compare each copy on the SSD with the disk, too
Ends with the codes of e2fsck:
   0  nothing is wrong, and the SSD's copies stay. A volume left in order was not written to; what a crash left only
      in the SSD's log is on the disk half now, as after any mount, and said (with -n: it is where it was, and what
      could not be looked at without a change is said)
   1  something was wrong and is repaired; or the SSD half was stale, or its copies old, and what it held is dropped
   4  something is wrong still (with -n: is as it was), or was lost, by --yes or as --without-ssd asks; or the SSD half was
      not named, and its log may hold something
   8  it could not be checked: in use, unreadable, halves that do not belong together; with another of these: what was
      found could not be written to standard output
  16  the command line makes no sense";

/// What a command line without sense ends with.
pub(super) const SENSELESS: u8 = 16;
const REPAIRED: u8 = 1;
const LEFT: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// Check a file system that is not mounted, and repair it
///
/// What is clean is not written to. Without --yes nothing is repaired that loses something: names that lead to damaged inodes,
/// which e2fsck would clear, are told, and `bimetal rescue` comes first. With --yes a disk half that is damaged is repaired by
/// e2fsck first, then what only the SSD's log holds is brought to it, and what was lost is named.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Fsck {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Repair also what cannot be repaired without losing something
    #[arg(short = 'y', long, conflicts_with = "dry_run")]
    yes: bool,
    /// Compare every copy on the SSD with its checksum and with the disk's block
    #[arg(long)]
    deep: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

impl Fsck {
    pub fn run(&self) -> Result<ExitCode> {
        if let Err(why) = self.volume.check_named() {
            super::complain(&why);
            self.tell(&why);
            return Ok(ExitCode::from(SENSELESS));
        }
        let progress = Progress::spinner("checking");
        let options = CheckOptions { repair: !self.dry_run, lossy: self.yes, deep: self.deep };
        let checked = volume::check(&self.volume, options, &|what| progress.now(what));
        progress.done();
        let report = match checked {
            Ok(report) => report,
            Err(why) => {
                super::complain(&why);
                self.tell(&why);
                return Ok(ExitCode::from(NOT_CHECKED));
            }
        };
        let text = if self.json {
            let all = json!({
                "clean": report.is_clean() && !report.partial,
                "problems": report.problems,
                "changed": report.changed,
                "partial": report.partial,
                "notes": report.notes,
                "said": report.said,
                "checked": report.checked,
            });
            super::as_text(&all)
        } else {
            in_words(&report)
        };
        let found = match (report.problems.is_empty(), report.is_clean()) {
            (true, _) => 0,
            (false, true) => REPAIRED,
            (false, false) => LEFT,
        };
        // Who reads the code alone must not take trouble with the report for a repair.
        let untold = match super::say(&text) {
            Ok(()) => 0,
            Err(why) => {
                super::complain(&why);
                NOT_CHECKED
            }
        };
        Ok(ExitCode::from(found | untold))
    }

    /// Why it was not checked, as JSON where that was asked for.
    fn tell(&self, why: &Error) {
        if self.json {
            // The code says that it failed.
            let _ = super::say(&super::as_line(&json!({ "error": why.to_string() })));
        }
    }
}

fn in_words(report: &CheckReport) -> String {
    let mut lines = Vec::new();
    for problem in &report.problems {
        let end = match (problem.repaired, problem.lost) {
            (true, _) => " Repaired.",
            (_, true) => " Lost.",
            _ => "",
        };
        lines.push(format!("{}: {}{end}", problem.what, problem.why));
    }
    if !report.problems.is_empty() {
        lines.extend(report.said.iter().map(|line| format!("  {line}")));
    }
    lines.extend(report.notes.iter().cloned());
    let counts = report.checked.iter().map(|(name, count)| format!("{} {count}", name.replace('_', " ")));
    let counts = counts.collect::<Vec<_>>().join(", ");
    lines.push(match report.counts() {
        (0, ..) if report.partial => {
            format!("Nothing wrong was found, and not everything was looked at. Looked at: {counts}.")
        }
        (0, ..) => format!("The file system is clean. Looked at: {counts}."),
        (all, 0, 0) => format!("What was wrong ({all}) is repaired. Looked at: {counts}."),
        (all, 0, lost) => format!(
            "What was wrong ({all}) is repaired, and what is called lost ({lost}) is gone. Looked at: {counts}."
        ),
        (_, 1, _) => format!("The file system is not clean: one thing is left. Looked at: {counts}."),
        (_, left, _) => format!("The file system is not clean: {left} things are left. Looked at: {counts}."),
    });
    lines.join("\n")
}
