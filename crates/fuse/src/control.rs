//! The control channel: questions and orders to a mounted file system as virtual extended attributes.
//!
//! `getfattr -n bimetal.status /mnt` needs no socket, no second program and no privilege, and finds the right
//! file system by itself. Names that start with `bimetal.` never reach stored attributes, and a listing does not
//! show them, so that nothing copies them. Reading is free to all, but for who waits for the end; that and setting is for root and
//! for whoever mounted.

use super::affinity::CpuAffinity;
use super::caller::loses_sgid;
use super::counts::Counts;
use super::farewell::{FAREWELL, Farewell};
use crate::health::health;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bimetal_media::metered::{Devices, Metered};
use bimetal_vfs::{FileSystem, SetXattr, acl};
use fuser::Request;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// What virtual attributes start with.
pub const PREFIX: &str = "bimetal.";
/// The state of the whole mount, as JSON; an attribute of the root.
pub const STATUS: &str = "bimetal.status";
/// The section a directory is mapped to; may be set.
pub const SECTION: &str = "bimetal.section";
/// What an fsync of a file, or of the files of a directory, waits for; may be set.
pub const DURABILITY: &str = "bimetal.durability";
/// Where the contents of a file are, as JSON.
pub const RESIDENCY: &str = "bimetal.residency";

/// Room for a status to grow in between asking for its length and for itself.
const SLACK_BYTES: usize = 1024;

/// Answers virtual attributes and passes the others on.
pub(super) struct Control {
    /// Who mounted.
    pub owner: u32,
    pub counts: Arc<Counts>,
    pub follower: Arc<CpuAffinity>,
    /// The options of the mount, shown in the status.
    pub options: Value,
    /// The devices below, by what they are to the file system.
    pub devices: Devices,
    /// Those who wait for the end.
    pub farewell: Arc<Farewell>,
    /// When the mount began.
    pub began: Instant,
}

fn control_name(name: &[u8]) -> Option<&str> {
    std::str::from_utf8(name).ok().filter(|name| name.starts_with(PREFIX))
}

impl Control {
    /// The value of an attribute of either sort; `room` is 0 when only the length is asked.
    pub fn getxattr(
        &self,
        fs: &dyn FileSystem,
        req: &Request,
        ino: Ino,
        name: &[u8],
        room: u32,
    ) -> Result<Vec<u8>> {
        let Some(name) = control_name(name) else { return fs.getxattr(ino, name) };
        if let Some(socket) = name.strip_prefix(FAREWELL).filter(|_| ino == fs.root()) {
            return match self.is_master(req) {
                true => self.farewell.wait(socket),
                false => Err(Error::NotPermitted),
            };
        }
        let mut value = match name {
            STATUS if ino == fs.root() => self.status(fs)?,
            STATUS => return Err(Error::NoAttribute),
            _ => fs.control_get(ino, name)?,
        };
        if room == 0 {
            value.resize(value.len() + SLACK_BYTES, b' ');
        }
        Ok(value)
    }

    /// Sets an attribute of either sort.
    pub fn setxattr(
        &self,
        fs: Result<&dyn FileSystem>,
        req: &Request,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        match control_name(name) {
            Some(_) if !self.is_master(req) => Err(Error::NotPermitted),
            Some(name) => fs?.control_set(ino, name, value),
            None => {
                let fs = fs?;
                let kill_sgid =
                    name == acl::ACCESS && loses_sgid(req.pid(), req.uid(), req.gid(), fs.getattr(ino)?.gid);
                fs.setxattr(ino, name, value, how, kill_sgid)
            }
        }
    }

    /// Whether root asks, or who mounted.
    fn is_master(&self, req: &Request) -> bool {
        req.uid() == 0 || req.uid() == self.owner
    }

    fn status(&self, fs: &dyn FileSystem) -> Result<Vec<u8>> {
        let mut status: Map<String, Value> = match fs.control_get(fs.root(), STATUS) {
            Ok(own) => serde_json::from_slice(&own).map_err(|why| {
                Error::invalid(format!("the file system's status is no JSON object: {why}"))
            })?,
            Err(Error::NotSupported) => Map::new(),
            Err(error) => return Err(error),
        };
        if let Some(Value::Array(notes)) = status.get_mut("notes") {
            shorten(notes);
        }
        let front = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "pid_namespace": pid_namespace(),
            "options": self.options,
            "mounted_seconds": self.began.elapsed().as_secs(),
            "requests": self.counts.show(),
            "written_bytes": self.counts.written_bytes.load(Relaxed),
            "answers_waited_for": self.counts.waited.load(Relaxed),
            "panics": self.counts.panics.load(Relaxed),
            "moves_between_processors": self.follower.moves(),
        });
        status.insert("front".into(), front);
        status.insert("devices".into(), self.devices_now());
        let health = health(&status);
        status.insert("health".into(), health);
        Ok(Value::Object(status).to_string().into_bytes())
    }

    fn devices_now(&self) -> Value {
        let show = |(role, device): &(&'static str, Arc<Metered>)| {
            let (info, meter) = (device.info(), device.meter());
            let shown = json!({
                "name": info.name,
                "size_bytes": info.size_bytes,
                "requests": meter.requests,
                "waits": meter.waits,
                "errors": meter.errors,
                "last_error": device.last_error(),
            });
            (role.to_string(), shown)
        };
        self.devices.iter().map(show).collect::<Map<String, Value>>().into()
    }
}

/// Where process numbers of this process count, as the kernel names it.
pub fn pid_namespace() -> Option<String> {
    Some(std::fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy().into_owned())
}

/// Bytes of notes that a status shows, as JSON: the kernel takes no attribute of more than 64 KiB.
const NOTES_BYTES: usize = 24 << 10;

/// Keeps the first notes, and says how many more there are.
fn shorten(notes: &mut Vec<Value>) {
    let mut bytes = 0;
    let fits = |note: &&Value| {
        bytes += note.to_string().len();
        bytes <= NOTES_BYTES
    };
    let shown = notes.iter().take_while(fits).count();
    let more = notes.len() - shown;
    if more > 0 {
        notes.truncate(shown);
        notes.push(
            format!(
                "{more} more notes; the server's log has them (journalctl -t bimetal, or what --log named)"
            )
            .into(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_notes_than_an_attribute_can_hold_are_counted() {
        let mut few: Vec<Value> = (0..3).map(|number| format!("note {number}").into()).collect();
        shorten(&mut few);
        assert_eq!(few.len(), 3);
        let mut many: Vec<Value> = (0..5000).map(|number| format!("note {number:094}").into()).collect();
        shorten(&mut many);
        let shown = (NOTES_BYTES / 101) as u64;
        assert_eq!(many.len() as u64, shown + 1);
        let last = many.last().and_then(Value::as_str).unwrap_or_default();
        assert!(last.starts_with(&format!("{} more notes", 5000 - shown)), "{last}");
        let mut odd: Vec<Value> = (0..400).map(|_| "\u{1}".repeat(240).into()).collect();
        shorten(&mut odd);
        assert!(Value::from(odd).to_string().len() < 32 << 10);
    }
}
