//! What a server says at its end to those who wait for it.
//!
//! `bimetal umount` opens a file in memory and sets the root's attribute `bimetal.farewell` to the number of its
//! descriptor; the server opens the same file (`/proc/PID/fd/N` of who set it) and, when everything is written out or
//! cannot be, writes there how it went. A file that is still empty when the server is gone says that it died.

use bimetal_base::{Error, Result};
use bimetal_vfs::FileSystem;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write;

/// The attribute of the root: a descriptor of who sets it.
pub const FAREWELL: &str = "bimetal.farewell";

/// Those who wait.
#[derive(Default)]
pub(super) struct Farewell(Mutex<Vec<File>>);

impl Farewell {
    /// Notes that process `pid` waits, at its descriptor `value`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if that is no descriptor of a file that can be written.
    pub fn wait(&self, pid: u32, value: &[u8]) -> Result<()> {
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u32>().ok());
        let path = format!("/proc/{pid}/fd/{}", number.ok_or(Error::BadArgument)?);
        let file = OpenOptions::new().write(true).open(path).map_err(|_| Error::BadArgument)?;
        self.0.lock().push(file);
        Ok(())
    }

    /// Tells all who wait how it went.
    pub fn say(&self, fs: &dyn FileSystem, ended: &Result<()>) {
        let status = || -> Option<Value> {
            serde_json::from_slice(&fs.control_get(fs.root(), super::STATUS).ok()?).ok()
        };
        let said = match ended {
            Ok(()) => json!({"written": true}),
            Err(why) => {
                let status = status().unwrap_or_default();
                json!({
                    "written": false,
                    "why": why.to_string(),
                    "operations": status["operations"],
                    "at_risk_bytes": status["at_risk"]["bytes"],
                    "ssd_lost": status["ssd_lost"],
                })
            }
        };
        for mut file in self.0.lock().drain(..) {
            // Who waited has gone; the log has it, too.
            let _ = file.write_all(said.to_string().as_bytes());
        }
    }
}
