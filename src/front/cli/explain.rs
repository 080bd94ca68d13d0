//! `bimetal explain`: where the contents of a file on a mount are, and why.

use super::screen::{BEHIND_UNKNOWN, fit};
use crate::error::shown;
use crate::units::show_size;
use crate::{Error, Result};
use bimetal_vfs::EXPLAIN;
use clap::Args;
use rustix::io::Errno;
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal explain /mnt/log
  bimetal explain --json /mnt/log | jq '.extents[] | select(.state == \"disk\")'
  bimetal explain /mnt/backup               of a directory: the rules for what is made in it
States: memory (only there), log (in memory and the SSD's log), ssd (in a section of the SSD; the disk lacks it), both,
disk, hole, reserved; of a cmfs or an osd memory, flash, hole and reserved. What a mount with -o writeback has not been told yet is not seen; fsync first.";

/// Room for an answer; the kernel hands over no more than this.
const ROOM: usize = 64 << 10;
/// The number of the root of any mount, and that of an ext4.
const ROOTS: [u64; 2] = [1, 2];

/// Show where each part of a file is, and why
///
/// Of a file on a mounted nfhybrid: on the SSD, the disk, both or in memory, which rule of which directory holds, and what
/// reads brought to the SSD. Of one on a cmfs or an osd: in which pages of the flash, or in memory.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Explain {
    /// As one JSON object
    #[arg(long)]
    json: bool,
    /// A file or directory on a mount
    path: PathBuf,
}

impl Explain {
    pub fn run(&self) -> Result<ExitCode> {
        let mut all = ask(&self.path, EXPLAIN)?;
        while let Some(from) = all["next_bytes"].as_u64() {
            let mut more = ask(&self.path, &format!("{EXPLAIN}.{from}"))?;
            all["next_bytes"] = more["next_bytes"].take();
            if let (Value::Array(extents), Value::Array(more)) = (&mut all["extents"], &mut more["extents"]) {
                extents.append(more);
            }
        }
        if let Value::Object(fields) = &mut all {
            fields.remove("next_bytes");
        }
        let name = |all: &mut Value, key: &str, path: &Path| {
            let bytes = path.as_os_str().as_bytes();
            if self.json { super::set_name(all, key, bytes) } else { all[key] = shown(bytes).into() }
        };
        name(&mut all, "path", &self.path);
        for rule in ["section_rule", "durability_rule"] {
            if let Some(inode) = all[rule].as_u64() {
                match directory(&self.path, inode) {
                    Some(path) => name(&mut all, &format!("{rule}_of"), &path),
                    None => all[format!("{rule}_of")] = format!("the directory with inode {inode}").into(),
                }
            }
        }
        match self.json {
            true => super::say(&super::as_text(&all))?,
            false => super::say(fit(&text(&all), super::columns()).trim_end())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Asks the server behind a path.
fn ask(path: &Path, name: &str) -> Result<Value> {
    let place = shown(path.as_os_str().as_bytes());
    let mut answer = Vec::with_capacity(ROOM);
    match rustix::fs::lgetxattr(path, name, rustix::buffer::spare_capacity(&mut answer)) {
        Ok(_) => serde_json::from_slice(&answer).map_err(|why| Error::corrupt("the explanation", why, place)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Err(Error::invalid(format!(
            "{place}: this is on no mounted nfhybrid, cmfs or osd, which say where files lie; see: bimetal mount --help"
        ))),
        Err(Errno::NOTCONN) => Err(super::status::dead_around(path)),
        Err(why) => Err(Error::io(place, why.into())),
    }
}

/// The path of the directory above `path` (or `path` itself) that has an inode number; none where the file is reached through
/// another directory.
fn directory(path: &Path, inode: u64) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let is_it = |dir: &&Path| {
        let found = dir.symlink_metadata().map(|found| found.ino());
        found.is_ok_and(|found| found == inode || ROOTS.contains(&found) && ROOTS.contains(&inode))
    };
    path.ancestors().find(is_it).map(Path::to_path_buf)
}

/// One line of what holds, then a line for each stretch.
fn text(all: &Value) -> String {
    let word = |name: &str| all[name].as_str().unwrap_or("?");
    let size = |value: &Value| show_size(value.as_u64().unwrap_or(0));
    let mut lines = vec![match word("kind") {
        "file" => {
            format!("{}: {} of {}, inode {}", word("path"), "file", size(&all["size_bytes"]), all["inode"])
        }
        kind => format!("{}: {kind}, inode {}", word("path"), all["inode"]),
    }];
    if all["type"] == "cmfs" || all["type"] == "osd" {
        lines.extend(stretches(all));
        return lines.join("\n");
    }
    let says = |rule: &str| match all[format!("{rule}_rule_of")].as_str() {
        Some(dir) => format!("the rule of {dir}"),
        None => "no directory says otherwise".into(),
    };
    lines.push(match (all["section"].as_str(), all["ssd"] == true) {
        (Some(section), _) => format!("  section     {section} ({})", says("section")),
        (None, true) => format!("  section     bypass ({})", says("section")),
        (None, false) => "  section     none: there is no SSD half".into(),
    });
    lines.push(match word("durability") {
        "both" => format!("  fsync       waits for both halves ({})", says("durability")),
        _ => format!("  fsync       waits for one half ({})", says("durability")),
    });
    lines.push(format!("  reads       promote={}", word("promote")));
    lines.push(match all["lag_seconds"].as_f64() {
        Some(lag) => format!("  lag         the disk is at most {lag:.1} s behind"),
        None => format!("  lag         unknown: {BEHIND_UNKNOWN}"),
    });
    lines.extend(stretches(all));
    lines.join("\n")
}

/// The lines of each stretch of a file.
fn stretches(all: &Value) -> Vec<String> {
    let size = |value: &Value| show_size(value.as_u64().unwrap_or(0));
    let extents = all["extents"].as_array().map_or(&[][..], Vec::as_slice);
    let mut lines = Vec::new();
    if all["kind"] == "file" && extents.is_empty() {
        lines.push("It is empty.".into());
    }
    for extent in extents {
        lines.push(format!(
            "{:>12} +{:<10}  {:<8}  {}",
            extent["offset_bytes"].to_string(),
            size(&extent["bytes"]),
            extent["state"].as_str().unwrap_or("?"),
            extent["why"].as_str().unwrap_or("")
        ));
        let mut places = Vec::new();
        if let Some(place) = extent["memory"].as_str() {
            places.push(match place {
                "committing" => "memory: on its way to the disk".to_string(),
                _ => "memory: waits for the next commit".into(),
            });
        }
        let old = |half: &Value| if half["old"] == true { ", older contents" } else { "" };
        let (ssd, disk, flash) = (&extent["ssd"], &extent["disk"], &extent["flash"]);
        if flash.is_object() {
            places.push(format!("flash: block {}, from page {} on", flash["block"], flash["page"]));
        }
        if ssd.is_object() {
            let section = ssd["section"].as_str().unwrap_or("?");
            places.push(format!("SSD: byte {} (section {section}){}", ssd["at_bytes"], old(ssd)));
        }
        if disk.is_object() {
            places.push(format!("disk: byte {}{}", disk["at_bytes"], old(disk)));
        }
        lines.extend(places.into_iter().map(|place| format!("{:27}{place}", "")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_stretch_says_its_state_its_places_and_why() {
        let all = json!({
            "path": "/mnt/f", "kind": "file", "size_bytes": 8192, "inode": 12, "ssd": true, "section": "small",
            "section_rule": null, "durability": "both", "durability_rule": 11, "durability_rule_of": "/mnt/d",
            "promote": "second", "lag_seconds": 5.0,
            "extents": [
                {"offset_bytes": 0, "bytes": 4096, "state": "log", "memory": "dirty", "why": "fsynced",
                 "ssd": {"section": "small", "at_bytes": 4194304, "old": true}, "disk": null},
                {"offset_bytes": 4096, "bytes": 4096, "state": "disk", "memory": null, "why": "bypassed",
                 "ssd": null, "disk": {"at_bytes": 8388608, "old": false}},
            ],
        });
        let expected = "\
/mnt/f: file of 8.0 KiB, inode 12
  section     small (no directory says otherwise)
  fsync       waits for both halves (the rule of /mnt/d)
  reads       promote=second
  lag         the disk is at most 5.0 s behind
           0 +4.0 KiB     log       fsynced
                           memory: waits for the next commit
                           SSD: byte 4194304 (section small), older contents
        4096 +4.0 KiB     disk      bypassed
                           disk: byte 8388608";
        let said = text(&all);
        assert_eq!(said, expected, "\n{said}");
        let empty = json!({"path": "/mnt/e", "kind": "file", "size_bytes": 0, "inode": 13, "ssd": false, "section": null,
            "durability": "either", "promote": "never", "lag_seconds": 5.0, "extents": []});
        let said = text(&empty);
        assert!(said.contains("no SSD half") && said.ends_with("It is empty."), "{said}");
        let looked_at = Value::Object(
            empty
                .as_object()
                .unwrap()
                .iter()
                .filter(|(name, _)| *name != "lag_seconds")
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        );
        assert!(text(&looked_at).contains("lag         unknown: a mount for writing brings it"));
    }
}
