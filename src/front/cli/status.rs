//! `bimetal status`: what a mounted file system, or a device that is served, says of itself.

use super::screen::{Space, fit, screen};
use crate::error::shown;
pub(super) use crate::front::fuse::dead;
use crate::front::kinds::probe::{Given, misnamed};
use crate::front::{fuse, mounts, processes};
use crate::fs::FileSystem;
use crate::fs::cmfs::volume::Volume;
use crate::units::show_size;
use crate::{Error, Result};
use clap::Args;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  bimetal status /mnt
  bimetal status --all /mnt                            every number there is
  bimetal status --json /mnt | jq .at_risk.bytes
Of a device that bimetal export serves, by its directory or its socket; again and again:
  watch bimetal status /tmp/nbd
Of a cmfs that is not mounted, how the next mount would be:
  bimetal status --nand nand.img --nvram nvram.img";

/// Show the state of a mounted file system or an exported device
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Status {
    /// Every number, by its name
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Every number, as one JSON object
    #[arg(long)]
    json: bool,
    /// Columns of the screen; without it those of the terminal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=1000))]
    columns: Option<u16>,
    /// Of a cmfs that is not mounted: the image of its NAND
    #[arg(long, value_name = "IMAGE", conflicts_with = "mountpoint")]
    nand: Option<PathBuf>,
    /// The image of its NVRAM
    #[arg(long, value_name = "IMAGE", requires = "nand")]
    nvram: Option<PathBuf>,
    /// Profile of its NAND
    #[arg(long, value_name = "PROFILE", default_value = crate::fs::cmfs::volume::DEVICE)]
    device: String,
    /// Its NAND is a plain image of YAFFS2
    #[arg(long, requires = "nand")]
    yaffs2: bool,
    /// The directory that is mounted on, or the socket of an exported device
    #[arg(required_unless_present = "nand")]
    mountpoint: Option<PathBuf>,
}

/// Who does not answer for so long is told of, and waited for all the same.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a server says of itself, see [`fuse::ask`].
///
/// # Errors
/// As that.
pub(super) fn read(place: &Path) -> Result<Value> {
    waiting_for(place, || fuse::ask(place))
}

/// [`dead`] of a path in a mount whose server is dead.
pub(super) fn dead_around(path: &Path) -> Error {
    dead(&mounts::mount_point_of(path).unwrap_or_else(|| path.into()))
}

/// Does what waits for the server behind `place`; where that takes long, says why, as far as it can be known.
pub(super) fn waiting_for<T>(place: &Path, what: impl FnOnce() -> T) -> T {
    let (over, is_over) = channel::<()>();
    let place = place.display().to_string();
    thread::spawn(move || {
        if is_over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            super::complain(&format!("{place}: {}", why_silent(&processes::stopped_servers())));
        }
    });
    let done = what();
    drop(over);
    done
}

/// Why a server does not answer, given the servers that are stopped.
fn why_silent(stopped: &[i32]) -> String {
    let seconds = PATIENCE.as_secs();
    match stopped {
        [] => format!("its server has not answered for {seconds} s; it is waited for"),
        stopped => {
            let numbers: Vec<String> = stopped.iter().map(i32::to_string).collect();
            let (numbers, list) = (numbers.join(" "), numbers.join(", "));
            format!(
                "no answer for {seconds} s: a server of mounts is stopped (process {list}); let it go on with: kill -CONT {numbers}"
            )
        }
    }
}

impl Status {
    pub fn run(&self) -> Result<ExitCode> {
        let status = match (&self.mountpoint, &self.nand) {
            (Some(mountpoint), _) => read(mountpoint)?,
            (None, Some(nand)) => self.of_images(nand)?,
            (None, None) => return Err(Error::invalid("name a directory that is mounted on, or images")),
        };
        let text = match (&self.mountpoint, self.json, self.all) {
            (_, true, _) => super::as_text(&status),
            (Some(place), _, false) if status.get("front").is_some() => {
                screen(&super::place(place), space(place)?, &status, self.columns())
            }
            _ => fit(&for_people(&status), self.columns()),
        };
        super::say(text.trim_end())?;
        Ok(ExitCode::SUCCESS)
    }

    /// How long a line may be; what is no terminal takes any.
    fn columns(&self) -> usize {
        self.columns.map_or_else(super::columns, usize::from)
    }

    /// How images would be mounted, and what is on them.
    fn of_images(&self, nand: &Path) -> Result<Value> {
        let nvram = self.nvram.as_deref();
        let (scan, checkpoint, plain) = (false, None, self.yaffs2);
        let given = Given { role: "nand", of: &["cmfs"], path: nand };
        let fs = Volume { nand, nvram, device: &self.device, scan, checkpoint, plain }.mount(false);
        let fs = fs.map_err(|why| misnamed(why, &[given]))?;
        let text = fs.control_get(fs.root(), "bimetal.status")?;
        serde_json::from_slice(&text).map_err(|why| Error::corrupt("the status", why, nand.display()))
    }
}

/// How full what is mounted on `mountpoint` is.
pub(super) fn space(mountpoint: &Path) -> Result<Space> {
    let stat = rustix::fs::statvfs(mountpoint);
    let stat = stat.map_err(|why| Error::io(mountpoint.display(), why.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Space { used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)), size: bytes(stat.f_blocks) })
}

/// Nested values indented, sizes as people read them.
fn for_people(value: &Value) -> String {
    let mut text = String::new();
    show(&mut text, value, ("", 0));
    text
}

/// What stands below a name; of `host_bytes` all numbers are bytes.
fn show(text: &mut String, value: &Value, (of, depth): (&str, usize)) {
    let Value::Object(fields) = value else { return };
    let width = fields.keys().map(|key| key.len()).max().unwrap_or(0);
    for (key, value) in fields {
        let indent = "  ".repeat(depth);
        let name = key.replace('_', " ");
        // Writing to a string cannot fail.
        let _ = match value {
            Value::Object(_) => writeln!(text, "{indent}{name}"),
            Value::Array(items) if items.iter().any(Value::is_object) => {
                let _ = writeln!(text, "{indent}{name}");
                items.iter().try_for_each(|item| row(text, item, depth + 1))
            }
            value => {
                let unit = if of.ends_with("bytes") { of } else { key };
                writeln!(text, "{indent}{:width$}  {}", said(key), scalar(unit, value))
            }
        };
        show(text, value, (key, depth + 1));
    }
}

/// One of several alike: its fields in a line.
fn row(text: &mut String, item: &Value, depth: usize) -> std::fmt::Result {
    let Value::Object(fields) = item else { return Ok(()) };
    let name = fields.get("name").map_or(String::new(), |name| scalar("name", name));
    let rest = fields.iter().filter(|(key, _)| *key != "name");
    let rest: Vec<String> =
        rest.map(|(key, value)| format!("{} {}", said(key), scalar(key, value))).collect();
    writeln!(text, "{}{name}: {}", "  ".repeat(depth), rest.join(", "))
}

/// The name of a number in words; of a time without its unit, which stands beside the number.
fn said(key: &str) -> String {
    key.strip_suffix("_ns").unwrap_or(key).replace('_', " ")
}

fn scalar(key: &str, value: &Value) -> String {
    match value {
        Value::Number(bytes) if key.ends_with("bytes") => {
            bytes.as_u64().map_or_else(|| bytes.to_string(), show_size)
        }
        Value::Number(ns) if key.ends_with("_ns") => {
            let shown = |ns| humantime::format_duration(Duration::from_nanos(ns)).to_string();
            ns.as_u64().map_or_else(|| ns.to_string(), shown)
        }
        Value::String(text) => shown(text.as_bytes()),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Null => "-".into(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| scalar(key, item)).collect();
            items.join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_terminal_would_act_on_is_shown_as_text() {
        let text = for_people(&serde_json::json!({"name": "a\u{1b}[31m\nb\u{202e}c"}));
        assert_eq!(text, "name  a\\u{1b}[31m\\nb\\u{202e}c\n");
    }

    #[test]
    fn a_server_that_is_stopped_is_named_with_what_lets_it_go_on() {
        assert!(why_silent(&[]).contains("has not answered"));
        assert!(why_silent(&[7, 8]).contains("(process 7, 8); let it go on with: kill -CONT 7 8"));
    }

    #[test]
    fn sizes_and_switches_read_as_people_say_them() {
        let status = serde_json::json!({"used_bytes": 4096, "busy_ns": 1_500_000_000, "on": true, "front": {"reads": 3, "of": ["a", "b"]}, "host_bytes": {"read": 2048}});
        let text = for_people(&status);
        for part in [
            "used bytes  4.0 KiB",
            "busy        1s 500ms",
            "on",
            "yes",
            "front\n",
            "  reads  3",
            "a, b",
            "host bytes\n  read  2.0 KiB",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
