//! `bimetal probe`: what a device or an image is, for people, scripts and udev(7).

use crate::Result;
use crate::front::kinds::Kind;
use crate::front::kinds::probe::{self, Part};
use clap::Args;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal probe disk.img
  bimetal probe --json disk.img | jq -r .volume
  bimetal probe --udev ssd.img
Ends with 1 where it is nothing of bimetal, and says nothing then.";

/// Show what a device or an image is: of which type of file system, which part, of which volume
///
/// Only reads, and waits for nobody: what is mounted can be looked at, too. The state is that of its superblock; a mounted
/// nfhybrid says more in `bimetal status`, one that is not mounted in `bimetal fsck -n`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Probe {
    /// As one JSON object
    #[arg(long, conflicts_with = "udev")]
    json: bool,
    /// As properties for a rule of udev, a line each
    #[arg(long)]
    udev: bool,
    /// A block device, or a file
    device: PathBuf,
}

impl Probe {
    pub fn run(&self) -> Result<ExitCode> {
        let Some((kind, part)) = probe::probe(&self.device)? else {
            if self.json {
                super::say(&super::as_text(&self.named(Value::Null)))?;
            }
            return Ok(ExitCode::FAILURE);
        };
        super::say(&match (self.json, self.udev) {
            (true, _) => self.json(kind, &part),
            (_, true) => properties(kind, &part),
            _ => self.words(kind, &part),
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn words(&self, kind: &Kind, part: &Part) -> String {
        let name = self.device.display().to_string();
        let mut lines = vec![format!(
            "{}: {} of {}",
            crate::error::shown(name.as_bytes()),
            Part::called(part.role),
            kind.name
        )];
        let mut line = |name: &str, text: String| lines.push(format!("  {name:<8}{text}"));
        if let Some(volume) = part.volume {
            line("volume", volume.to_string());
        }
        if let Some(uuid) = part.uuid {
            line("UUID", uuid.to_string());
        }
        if let Some((state, about)) = part.state {
            line("state", format!("{state}: {about}"));
        }
        lines.join("\n")
    }

    fn json(&self, kind: &Kind, part: &Part) -> String {
        let Part { role, volume, uuid, state } = part;
        let mut all = self.named(kind.name.into());
        all["role"] = json!(role);
        all["volume"] = json!(volume);
        all["uuid"] = json!(uuid);
        all["state"] = json!(state.map(|(state, _)| state));
        super::as_text(&all)
    }

    /// The device, and what is on it; null if that is nothing of ours.
    fn named(&self, kind: Value) -> Value {
        let mut all = json!({ "type": kind });
        super::set_name(&mut all, "device", self.device.as_os_str().as_bytes());
        all
    }
}

/// What a rule imports. The state is none of it: udev looks when a writer closes the device, and a mount keeps it open.
fn properties(kind: &Kind, part: &Part) -> String {
    let mut lines = vec![format!("BIMETAL_TYPE={}", kind.name), format!("BIMETAL_ROLE={}", part.role)];
    lines.extend(part.volume.map(|volume| format!("BIMETAL_VOLUME={volume}")));
    lines.extend(part.uuid.map(|uuid| format!("BIMETAL_UUID={uuid}")));
    lines.join("\n")
}
