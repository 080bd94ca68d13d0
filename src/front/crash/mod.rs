//! Crash states of any program's work: recorded once, rebuilt, mounted and compared with what was promised.
//!
//! A file system is used through [`Traced`](calls::Traced), its devices through
//! [`Recorder`](crate::media::recorded::Recorder)s. From the calls follows what the tree was at each moment
//! ([`history`]); from the requests, every state the devices could be in when the power goes
//! ([`states`](crate::media::states)). [`check`] holds one against the other, [`explore`] takes many,
//! [`subject`] says how a kind of file system is opened and what it promises, [`run`] records a command under FUSE,
//! [`save`] keeps what was recorded.

pub mod again;
pub mod calls;
pub mod check;
pub mod explore;
pub mod history;
pub mod run;
pub mod save;
pub mod snapshot;
pub mod state;
pub mod subject;
