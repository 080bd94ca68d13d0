//! Requests: what a transaction looks like in the log, and images on their way home.

use super::Transaction;
use super::format::{Format, Tag};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::DiskBlock;
use bimetal_media::{BlockDevice, Gather, Request, Ticket, wait_all};
use bytes::Bytes;

/// The most blocks of one gathered write: what a single `writev` takes.
const GATHER_MAX: usize = 1024;
/// The most requests under way together.
const IN_FLIGHT_MAX: usize = 64;

/// The log blocks of a transaction in their order, without the commit block.
pub(super) fn records(
    format: &Format,
    tid: u32,
    revokes: &[u64],
    metadata: &[(DiskBlock, Bytes)],
) -> Vec<Bytes> {
    let mut blocks: Vec<Bytes> =
        revokes.chunks(format.revokes_max()).map(|part| format.revoke(tid, part)).collect();
    for part in metadata.chunks(format.tags_max()) {
        let (tags, images): (Vec<Tag>, Vec<Bytes>) =
            part.iter().map(|(home, image)| format.image(tid, home.0, image.clone())).unzip();
        blocks.push(format.descriptor(tid, &tags));
        blocks.extend(images);
    }
    blocks
}

/// How many log blocks a transaction takes, its commit block among them.
pub(super) fn records_len(format: &Format, revokes: usize, transaction: &Transaction) -> u64 {
    let images = transaction.metadata.len();
    (revokes.div_ceil(format.revokes_max()) + images.div_ceil(format.tags_max()) + images + 1) as u64
}

/// Writes blocks, neighbours together, and waits for all of them. Nothing is durable before a flush.
pub(super) fn write_blocks(
    disk: &dyn BlockDevice,
    at: Time,
    block_bytes: usize,
    blocks: impl IntoIterator<Item = (DiskBlock, Bytes)>,
) -> Result<Time> {
    let mut writer = Writer { disk, at, done: at, block_bytes: block_bytes as u64, tickets: Vec::new() };
    let (mut first, mut run) = (DiskBlock(0), Gather::new());
    for (home, bytes) in blocks {
        if home.0 != first.0.wrapping_add(run.len() as u64) || run.len() >= GATHER_MAX {
            writer.submit(first, std::mem::take(&mut run))?;
            first = home;
        }
        run.push(bytes);
    }
    writer.submit(first, run)?;
    writer.settle()?;
    Ok(writer.done)
}

struct Writer<'d> {
    disk: &'d dyn BlockDevice,
    at: Time,
    done: Time,
    block_bytes: u64,
    tickets: Vec<Ticket>,
}

impl Writer<'_> {
    fn submit(&mut self, first: DiskBlock, data: Gather) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if self.tickets.len() >= IN_FLIGHT_MAX {
            self.settle()?;
            self.at = self.done;
        }
        let offset = first.0 * self.block_bytes;
        self.tickets.push(self.disk.submit(self.at, Request::Write { offset, data, durable: false }));
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        let all = wait_all(self.disk, self.tickets.drain(..));
        self.done = self.done.max(all.at);
        all.result.map(drop)
    }
}

impl Drop for Writer<'_> {
    /// Each ticket is waited for, also after an error.
    fn drop(&mut self) {
        wait_all(self.disk, self.tickets.drain(..));
    }
}
