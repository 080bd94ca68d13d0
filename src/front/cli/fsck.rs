//! `bimetal fsck`: is everything as its format says?

use super::progress::Progress;
use super::volumes::{self, VolumeArgs};
use crate::Result;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal fsck -n --ssd ssd.img --disk disk.img      look only
  bimetal fsck --ssd ssd.img --disk disk.img         repair
Ends with 0 when nothing is wrong any more, with 1 otherwise.";

/// Check a file system that is not mounted, and repair it
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Fsck {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

impl Fsck {
    pub fn run(&self) -> Result<ExitCode> {
        let progress = Progress::spinner("checking");
        let checked = volumes::fsck(&self.volume, !self.dry_run);
        progress.done();
        let report = checked?;
        let clean = report.is_clean();
        if self.json {
            let all = json!({"clean": clean, "problems": report.problems, "checked": report.checked});
            super::say(&serde_json::to_string_pretty(&all).unwrap_or_default())?;
        } else {
            for problem in &report.problems {
                let end = if problem.repaired { " (repaired)" } else { "" };
                super::say(&format!("{}: {}{end}", problem.what, problem.why))?;
            }
            let counts =
                report.checked.iter().map(|(name, count)| format!("{count} {}", name.replace('_', " ")));
            let counts: Vec<String> = counts.collect();
            super::say(&format!("{}; {}", if clean { "clean" } else { "not clean" }, counts.join(", ")))?;
        }
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
