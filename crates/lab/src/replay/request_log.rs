//! `--request-log FILE`: every request of a run, a line each, as it is done.

use super::driver::{Observer, Served};
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use std::cell::RefCell;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const HEADER: &str = "request,operation,offset_bytes,length_bytes,arrived_ns,latency_ns";

/// The log of a run. It takes its place at the end, whole.
pub(super) struct RequestLog {
    path: PathBuf,
    /// Nothing after an error.
    lines: RefCell<io::Result<BufWriter<NamedTempFile>>>,
    /// When the run began, ns.
    start: u64,
}

impl RequestLog {
    /// # Errors
    /// No file can be made beside `path`.
    pub fn new(path: &Path, start: u64) -> Result<RequestLog> {
        let mut lines = BufWriter::new(guard::beside(path)?);
        let begun = writeln!(lines, "{HEADER}").map(|()| lines);
        Ok(RequestLog { path: path.into(), lines: RefCell::new(begun), start })
    }

    /// # Errors
    /// It could not be written, now or before.
    pub fn finish(self) -> Result<()> {
        let file =
            self.lines.into_inner().and_then(|lines| lines.into_inner().map_err(|why| why.into_error()));
        guard::take_place(file.map_err(|why| Error::io(self.path.display(), why))?, &self.path)
    }
}

impl Observer for RequestLog {
    fn served(&self, served: &Served) {
        let mut lines = self.lines.borrow_mut();
        let Ok(out) = &mut *lines else { return };
        let Served { number, op, offset, len, arrived, done } = *served;
        let (at, latency) = (arrived.0.saturating_sub(self.start), done.0.saturating_sub(arrived.0));
        if let Err(why) = writeln!(out, "{},{},{offset},{len},{at},{latency}", number + 1, op.name()) {
            *lines = Err(why);
        }
    }
}
