//! Writes down, in order and with the data, what changes one or several devices.
//!
//! One [`Recorder`] gives all its devices one common order, so that an SSD and a disk can later be cut
//! at the same instant ([`crash_states`](super::states::crash_states)). A request gets its place in the
//! log when it is submitted; when it was done is written down too, as the place of the first request
//! that was submitted after. Reads are not recorded. Data is kept by reference, not copied.

use super::{BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket};
use bimetal_base::time::Time;
use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Something that changed a device, or a note of the experimenter.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes written.
    Write {
        /// First byte.
        offset: u64,
        /// What was written.
        data: Gather,
        /// It was asked to be durable by itself.
        durable: bool,
    },
    /// Everything completed before is durable once this is done.
    Flush,
    /// A range given up.
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// A note: what the program under test had finished by now.
    Mark(String),
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct RecordedEvent {
    /// Which device, in the order they were wrapped; of no meaning for a mark.
    pub device: usize,
    /// What happened.
    pub event: Event,
    /// The request was successfully done before the entry with this number was submitted. `None`: it
    /// never was, or it failed.
    pub done: Option<usize>,
}

/// What was recorded, and on which devices.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// All events in the order of their submission.
    pub entries: Vec<RecordedEvent>,
    /// The devices, by their number.
    pub devices: Vec<DeviceInfo>,
}

/// The log that one or several devices share.
#[derive(Default)]
pub struct Recorder {
    log: Mutex<Log>,
}

impl Recorder {
    /// An empty log.
    pub fn new() -> Arc<Recorder> {
        Arc::new(Recorder::default())
    }

    /// `inner`, recorded here from now on.
    pub fn wrap(self: &Arc<Recorder>, inner: Arc<dyn BlockDevice>) -> Recorded {
        let mut log = self.log.lock();
        log.devices.push(inner.info().clone());
        let device = log.devices.len() - 1;
        Recorded { inner, recorder: Arc::clone(self), device, pending: Mutex::default() }
    }

    /// Notes that the program under test has got this far.
    pub fn mark(&self, note: impl Into<String>) {
        let mut log = self.log.lock();
        let done = Some(log.entries.len() + 1);
        log.entries.push(RecordedEvent { device: 0, event: Event::Mark(note.into()), done });
    }

    /// How many entries there are: whatever has been done by now was done before the entry of this number.
    pub fn position(&self) -> usize {
        self.log.lock().entries.len()
    }

    /// A copy of the log as it is now; data is shared.
    pub fn log(&self) -> Log {
        self.log.lock().clone()
    }

    /// Forgets all entries. Requests under way must be waited for first.
    pub fn clear(&self) {
        self.log.lock().entries.clear();
    }

    fn begin(&self, device: usize, request: &Request) -> Option<usize> {
        let event = match request {
            Request::Read { .. } => return None,
            Request::Write { offset, data, durable } => {
                Event::Write { offset: *offset, data: data.clone(), durable: *durable }
            }
            Request::Flush => Event::Flush,
            Request::Discard { offset, len } => Event::Discard { offset: *offset, len: *len },
        };
        let mut log = self.log.lock();
        log.entries.push(RecordedEvent { device, event, done: None });
        Some(log.entries.len() - 1)
    }

    fn end(&self, entry: Option<usize>, completion: &Completion) {
        let Some(entry) = entry.filter(|_| completion.result.is_ok()) else { return };
        let mut log = self.log.lock();
        let now = log.entries.len();
        if let Some(entry) = log.entries.get_mut(entry) {
            entry.done = Some(now);
        }
    }
}

/// A device whose changes are written down.
pub struct Recorded {
    inner: Arc<dyn BlockDevice>,
    recorder: Arc<Recorder>,
    device: usize,
    /// Log entries of requests under way, by the number of their tickets.
    pending: Mutex<FxHashMap<u64, usize>>,
}

impl BlockDevice for Recorded {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.inner)
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let Some(entry) = self.recorder.begin(self.device, &request) else {
            return self.inner.submit(at, request);
        };
        let ticket = self.inner.submit(at, request);
        match &ticket {
            Ticket::Done(completion) => self.recorder.end(Some(entry), completion),
            Ticket::Pending(number) => drop(self.pending.lock().insert(*number, entry)),
        }
        ticket
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        let entry = match &ticket {
            Ticket::Pending(number) => self.pending.lock().remove(number),
            Ticket::Done(_) => None,
        };
        let completion = self.inner.wait(ticket);
        self.recorder.end(entry, &completion);
        completion
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        let entry = self.recorder.begin(self.device, &request);
        let completion = self.inner.run(at, request);
        self.recorder.end(entry, &completion);
        completion
    }
}

impl Event {
    /// The bytes of a write in one piece; nothing for other events.
    pub fn data(&self) -> Bytes {
        match self {
            Event::Write { data, .. } => data.concat().into(),
            _ => Bytes::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileDevice;
    use crate::ram::Ram;

    #[test]
    fn two_devices_share_one_order_and_marks_stand_between() {
        let recorder = Recorder::new();
        let [ssd, disk] = ["ssd", "disk"].map(|name| recorder.wrap(Arc::new(Ram::new(name, 8192))));
        let (ssd, disk): (&dyn BlockDevice, &dyn BlockDevice) = (&ssd, &disk);
        ssd.write(0, vec![1; 512]).unwrap();
        disk.write(512, vec![2; 512]).unwrap();
        ssd.read(0, 512).unwrap();
        ssd.flush().unwrap();
        recorder.mark("fsync");
        disk.write(9999, vec![0; 512]).unwrap_err();
        let log = recorder.log();
        let told: Vec<String> = log
            .entries
            .iter()
            .map(|entry| match &entry.event {
                Event::Write { offset, .. } => format!("{} {offset} {:?}", entry.device, entry.done),
                Event::Mark(note) => note.clone(),
                other => format!("{} {other:?} {:?}", entry.device, entry.done),
            })
            .collect();
        assert_eq!(told, ["0 0 Some(1)", "1 512 Some(2)", "0 Flush Some(3)", "fsync", "1 9999 None"]);
        assert_eq!(log.entries[1].event.data(), vec![2; 512]);
    }

    #[test]
    fn a_request_under_way_is_done_when_it_was_waited_for() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8192).unwrap();
        let file = FileDevice::open(image.path(), true).unwrap();
        if !file.is_queued() {
            return println!("skipped: the kernel gives no io_uring");
        }
        let recorder = Recorder::new();
        let device = recorder.wrap(Arc::new(file));
        let write = |offset| Request::Write {
            offset,
            data: Gather::from_iter([Bytes::from(vec![1; 512])]),
            durable: false,
        };
        let first = device.submit(Time::ZERO, write(0));
        let second = device.submit(Time::ZERO, write(512));
        device.wait(first).result.unwrap();
        device.run(Time::ZERO, Request::Flush).result.unwrap();
        device.wait(second).result.unwrap();
        let done: Vec<Option<usize>> = recorder.log().entries.iter().map(|entry| entry.done).collect();
        assert_eq!(done, [Some(2), Some(3), Some(3)], "the flush need not cover the second write");
    }
}
