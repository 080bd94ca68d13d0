//! Writing the log, for all who wait: whoever holds the gate seals what anybody appended, writes it durably, and says how
//! far the log is durable.
//!
//! Groups are sealed under the core's lock; small ones are packed before, with the lock let go, and the checksums are worked out after it was let go. Neighbouring groups are
//! one write. One write that binds nothing is durable by itself; else one flush makes all of it durable, with the data
//! that is bound and the tables that wait.
//!
//! A write that fails ends the SSD before the gate is let go: a later write that succeeds would make the failed one look
//! durable.

use super::Shared;
use super::core::Core;
use crate::ssd::{LogWrite, Ssd};
use bimetal_base::Result;
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::time::Time;
use bimetal_media::{BlockDevice, Gather, Request, wait_all};

/// Groups to write, in the order they were sealed.
#[derive(Default)]
pub(super) struct Sealed {
    /// The groups.
    pub groups: Vec<LogWrite>,
    /// Tables were written before and are to become durable with them.
    tables: bool,
}

impl Core {
    /// Closes all that was appended into groups. The error says that the log is full: what has no room waits.
    pub(super) fn seal_all(&mut self) -> (Sealed, Result<()>) {
        let mut sealed = Sealed { groups: Vec::new(), tables: self.tables.are_waiting() };
        let Some(ssd) = &mut self.ssd else { return (sealed, Ok(())) };
        loop {
            match ssd.seal() {
                Ok(Some(group)) => sealed.groups.push(group),
                Ok(None) => return (sealed, Ok(())),
                Err(error) => return (sealed, Err(error)),
            }
        }
    }

    /// A group that only moves the log's tail, if that gains anything.
    pub(super) fn advance_log(&mut self) -> Sealed {
        let group = self.ssd.as_mut().and_then(Ssd::advance);
        Sealed { groups: group.into_iter().collect(), tables: self.tables.are_waiting() }
    }
}

impl Shared {
    /// Writes what was appended and waits until it is durable. The caller holds the gate.
    ///
    /// # Errors
    /// [`Error::NoSpace`](bimetal_base::Error::NoSpace): the log is full; what was appended stays and goes with a later write.
    /// Else those of the SSD's device, which is lost then.
    pub(super) fn write_log<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> Result<()> {
        if let Some(packing) = core.ssd.as_mut().and_then(Ssd::begin_packing) {
            drop(core);
            let packed = packing.pack();
            core = self.core.lock();
            if let Some(ssd) = &mut core.ssd {
                ssd.end_packing(packed);
            }
        }
        let (sealed, full) = core.seal_all();
        drop(core);
        if self.write_groups(sealed)? {
            self.write_tables()?;
        }
        full
    }

    /// Writes sealed groups durably, and tells the SSD half and the line so. Whether tables are due. The caller holds the
    /// gate.
    ///
    /// # Errors
    /// Those of the SSD's device, which is lost then.
    pub(super) fn write_groups(&self, sealed: Sealed) -> Result<bool> {
        let Some(device) = &self.ssd_device else { return Ok(false) };
        let Sealed { groups, tables } = sealed;
        let last = groups.last().map(|group| group.upto);
        self.of_ssd(write_durably(device.as_ref(), self.clock.now(), groups, tables))?;
        let mut core = self.core.lock();
        let Some(ssd) = &mut core.ssd else { return Ok(false) };
        if let Some(upto) = last {
            ssd.sealed(upto);
        }
        self.line.reached(ssd.durable_batch());
        if last.is_some() {
            core.space_freed();
            if tables {
                core.tables_durable();
            }
        }
        Ok(core.tables.take_due())
    }

    /// Takes an error of the SSD's device for the end of the SSD, here and now.
    pub(super) fn of_ssd<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            self.ssd_failed(error);
        })
    }
}

/// Writes groups so that they survive a power cut; nothing for none.
fn write_durably(device: &dyn BlockDevice, at: Time, groups: Vec<LogWrite>, tables: bool) -> Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let binds = groups.iter().any(|group| group.binds);
    let mut writes = neighbours_joined(groups);
    if let ([_], false) = (writes.as_slice(), binds || tables)
        && let Some((offset, data)) = writes.pop()
    {
        // `run` stays on this thread: the fsync path.
        return device.run(at, Request::Write { offset, data, durable: true }).result.map(drop);
    }
    let write = |(offset, data)| device.submit(at, Request::Write { offset, data, durable: false });
    let tickets: Vec<_> = writes.into_iter().map(write).collect();
    wait_all(device, tickets).result?;
    device.flush()
}

/// Groups as writes, each of as many as lie one behind the other.
fn neighbours_joined(groups: Vec<LogWrite>) -> Vec<(u64, Gather)> {
    let mut writes: Vec<(u64, Gather)> = Vec::new();
    let mut end = None;
    for group in groups {
        let (offset, goes_on) = (group.offset, end == Some(group.offset));
        end = Some(group.end());
        match writes.last_mut().filter(|_| goes_on) {
            Some((_, data)) => data.push(group.close()),
            None => writes.push((offset, Gather::from_iter([group.close()]))),
        }
    }
    writes
}
