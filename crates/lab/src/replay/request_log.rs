//! `--request-log FILE`: every request of a run, a line each, as it is done.

use super::driver::{Observer, Served};
use bimetal_base::{Error, Result};
use bimetal_media::guard::Begun;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

const HEADER: &str = "request,operation,offset_bytes,length_bytes,arrived_ns,latency_ns";

/// The log of a run. It takes its place at the end, whole.
pub(super) struct RequestLog {
    path: PathBuf,
    begun: Begun,
    /// Nothing after an error.
    lines: RefCell<io::Result<BufWriter<File>>>,
    /// When the run began, ns.
    start: u64,
}

impl RequestLog {
    /// # Errors
    /// As [`guard::output`](bimetal_media::guard::output)'s.
    pub fn new(path: &Path, start: u64) -> Result<RequestLog> {
        let mut begun = Begun::new(path)?;
        let failed = |why| Error::io(path.display(), why);
        let mut lines = BufWriter::new(begun.file().try_clone().map_err(failed)?);
        writeln!(lines, "{HEADER}").map_err(failed)?;
        Ok(RequestLog { path: path.into(), begun, lines: RefCell::new(Ok(lines)), start })
    }

    /// # Errors
    /// It could not be written, now or before.
    pub fn finish(self) -> Result<()> {
        let flushed = self.lines.into_inner().and_then(|mut lines| lines.flush());
        flushed.map_err(|why| Error::io(self.path.display(), why))?;
        self.begun.finish()
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
