//! What a server says at its end to those who wait for it.
//!
//! `bimetal umount` opens a file in memory and reads the root's attribute `bimetal.farewell.N`, where N is the number of
//! its descriptor; the server opens the same file (`/proc/PID/fd/N` of who asks) and, when everything is written out or
//! cannot be, writes there how it went. A file that is still empty when the server is gone says that it died. Reading an
//! attribute needs no permission to change the root, nor a mount that can be written.

use bimetal_base::{Error, Result};
use bimetal_vfs::FileSystem;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write;

/// What the attribute of the root begins with; the number of a descriptor of who asks follows.
pub const FAREWELL: &str = "bimetal.farewell.";
/// The value of the attribute: who asked will be told.
const TOLD: &[u8] = b"at the end";

/// Those who wait.
#[derive(Default)]
pub(super) struct Farewell(Mutex<Vec<File>>);

impl Farewell {
    /// Notes that process `pid` waits, at its descriptor `number`; what the attribute's value is.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if that is no descriptor of a file that can be written.
    pub fn wait(&self, pid: u32, number: &str) -> Result<Vec<u8>> {
        let number: u32 = number.parse().map_err(|_| Error::BadArgument)?;
        let path = format!("/proc/{pid}/fd/{number}");
        let file = OpenOptions::new().write(true).open(path).map_err(|_| Error::BadArgument)?;
        self.0.lock().push(file);
        Ok(TOLD.into())
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
                    "ssd": status["ssd"],
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
