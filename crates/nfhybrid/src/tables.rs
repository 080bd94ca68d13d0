//! Where the SSD's tables stand: to be written, written but not known to be durable, or kept from being written by a log
//! without room for what it lacks.
//!
//! - *Due*: the log was started anew, or they could not be written when they should; whoever writes the log next writes them.
//! - *Waiting*: they were written, and count from the next flush on.
//! - *Blocked*: the log is filled and must be complete before they are written. Nothing is changed until the disk has
//!   everything, since then the log lacks nothing.

/// Where the tables stand.
#[derive(Default)]
pub struct Tables {
    due: bool,
    waiting: bool,
    blocked: bool,
}

impl Tables {
    /// They are to be written.
    pub fn put_off(&mut self) {
        self.due = true;
    }

    /// They cannot be written now; nothing may change meanwhile if the log is `filled`.
    pub fn block(&mut self, filled: bool) {
        self.due = true;
        self.blocked = filled;
    }

    /// They can be written.
    pub fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Whether nothing may be changed until the disk has everything.
    pub fn are_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether they are to be written.
    pub fn are_due(&self) -> bool {
        self.due
    }

    /// Whether they are to be written; it is up to the caller now.
    pub fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// What is to be written was put together, or could not be.
    pub fn put_together(&mut self, done: bool) {
        self.due = !done;
    }

    /// They were written and are not known to be durable.
    pub fn written(&mut self) {
        self.waiting = true;
    }

    /// A flush was done since.
    pub fn durable(&mut self) {
        self.waiting = false;
    }

    /// Whether they wait for a flush.
    pub fn are_waiting(&self) -> bool {
        self.waiting
    }
}
