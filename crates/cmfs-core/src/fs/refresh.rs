//! Refresh and scrub: what is read often, or grows old, is rewritten before too many of its bits are wrong.
//!
//! Every read of the part is watched (`Watch`). A block that was read [`Config::refresh_reads`](super::Config::refresh_reads)
//! times since it was erased, or of which three quarters of the bits that can be corrected were wrong, is cleaned like any
//! other: its live pages go to the log's end, a few for each page written and in each update. Scrubbing reads what
//! nobody reads, so that it is watched, too.

use super::{Fs, Stats};
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};

/// Where scrubbing goes on, and what it came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scrubber {
    next: u32,
    read: u64,
    failures: u64,
}

impl Scrubber {
    pub fn count(&self, stats: &mut Stats) {
        (stats.scrubbed, stats.scrub_failures) = (self.read, self.failures);
    }
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Rewrites pages of tired blocks, at most [`Config::refresh_copies`](super::Config::refresh_copies); how many.
    ///
    /// # Errors
    /// The media are gone. A part that is full goes on as it is.
    pub fn refresh(&mut self) -> Result<u32> {
        match self.volume.refresh() {
            Err(Error::NoSpace) => Ok(0),
            done => done,
        }
    }

    /// Reads the next `pages` pages of the part in turn, of blocks that hold something; what has to be corrected is
    /// rewritten by the next [`refresh`](Fs::refresh). Whether the end of the part was reached; the next call
    /// begins anew then.
    ///
    /// # Errors
    /// The media are gone. A page that cannot be read is counted.
    pub fn scrub(&mut self, pages: u32) -> Result<bool> {
        let log = &mut self.volume.log;
        let geometry = log.flash.geometry();
        let mut left = pages;
        while left > 0 {
            if u64::from(self.scrubber.next) >= geometry.pages() {
                self.scrubber.next = 0;
                return Ok(true);
            }
            let block = geometry.block_of(self.scrubber.next);
            if log.blocks.get(block).live == 0 && log.record_block() != Some(block) {
                self.scrubber.next = geometry.first_page(block) + geometry.pages_per_block;
                continue;
            }
            let read = log.flash.read(self.scrubber.next)?;
            self.scrubber.next += 1;
            self.scrubber.read += 1;
            self.scrubber.failures += u64::from(read.is_none());
            left -= 1;
        }
        Ok(false)
    }
}
