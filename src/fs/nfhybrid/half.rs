//! The SSD half's device, whose errors say which half they are of.
//!
//! The SSD may be given up for what *it* did, never for what the disk, a full log or a bug did. So whatever its device
//! answers is marked here, at the one place all requests pass. Cost: one more call a request.

use crate::media::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use crate::time::Time;
use crate::{Error, Result};
use bytes::Bytes;
use std::sync::Arc;

/// A device whose errors are [`Error::Ssd`].
pub(super) struct SsdHalf(pub(super) Arc<dyn BlockDevice>);

fn marked(completion: Completion) -> Completion {
    let result: Result<Bytes> = completion.result.map_err(Error::of_ssd);
    Completion { result, ..completion }
}

impl BlockDevice for SsdHalf {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        match self.0.submit(at, request) {
            Ticket::Done(completion) => Ticket::Done(marked(completion)),
            pending => pending,
        }
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match ticket {
            Ticket::Done(completion) => completion,
            pending => marked(self.0.wait(pending)),
        }
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.0.is_done(ticket)
    }

    fn place(&self, offset: u64, len: u64, handle: u8) {
        self.0.place(offset, len, handle);
    }

    fn status(&self) -> Option<serde_json::Value> {
        self.0.status()
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        marked(self.0.run(at, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::faulty::{Effect, Faulty, Kind, When};
    use crate::media::ram::Ram;

    #[test]
    fn its_errors_are_marked_once_and_its_answers_are_as_they_were() {
        let faulty = Arc::new(Faulty::new(Arc::new(Ram::new("ssd", 8192))));
        let half = SsdHalf(faulty.clone());
        let half: &dyn BlockDevice = &half;
        assert_eq!(half.read(0, 512).unwrap(), vec![0; 512]);
        faulty.plan(Kind::Read, When::Nth(1), Effect::Error(libc::EIO));
        let ticket = half.submit(Time::ZERO, Request::Read { offset: 0, len: 512 });
        let error = half.wait(ticket).result.unwrap_err();
        assert!(matches!(&error, Error::Ssd(inner) if matches!(**inner, Error::Io { .. })), "{error}");
    }
}
