//! How a run ended: with its trace, or before.
//!
//! A device that wears out, cannot correct a page or has no room left is what a run found out, not a failure of the
//! program: the run is reported with what it had reached, and the others of a grid go on.

use super::driver::Stopped;
use bimetal_base::Error;
use serde::Serialize;
use std::fmt;
use std::io;

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// With the trace, or after as many requests as were asked for.
    #[default]
    Complete,
    /// The flash takes no more writes.
    WornOut,
    /// More bits of a page were wrong than can be corrected.
    Uncorrectable,
    /// There was no room left.
    Full,
    /// The stack cannot be, or the trace does not fit on it.
    Refused,
    /// The device failed otherwise.
    Failed,
}

impl Ending {
    /// What an error of the stack says of the run that met it.
    fn of(why: &Error) -> Ending {
        match why {
            Error::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => Ending::WornOut,
            Error::Corrupt { .. } => Ending::Uncorrectable,
            Error::NoSpace(_) => Ending::Full,
            Error::Invalid(_) | Error::Unsupported { .. } => Ending::Refused,
            _ => Ending::Failed,
        }
    }

    /// Whether it is a result: what a device came to under the trace.
    pub fn is_result(self) -> bool {
        !matches!(self, Ending::Refused | Ending::Failed)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Complete => "complete",
            Ending::WornOut => "worn-out",
            Ending::Uncorrectable => "uncorrectable",
            Ending::Full => "full",
            Ending::Refused => "refused",
            Ending::Failed => "failed",
        })
    }
}

/// How a run ended, where and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// How.
    pub how: Ending,
    /// The request of the trace that was the last, from 1 on; none if the trace ended, or none was served.
    pub request: Option<u64>,
    /// What the stack said.
    pub why: Option<String>,
}

impl Ended {
    /// As the driver says it.
    pub(super) fn of(stopped: Option<&Stopped>) -> Ended {
        stopped.map_or_else(Ended::default, |stopped| Ended {
            request: stopped.request,
            ..Ended::before(&stopped.why)
        })
    }

    /// Before the first request.
    pub(super) fn before(why: &Error) -> Ended {
        Ended { how: Ending::of(why), request: None, why: Some(why.to_string()) }
    }

    /// After the last request, by what was to be done at the end: that can fail, and nobody refuses any more.
    pub(super) fn after(why: &Error) -> Ended {
        let how = match Ending::of(why) {
            Ending::Refused => Ending::Failed,
            how => how,
        };
        Ended { how, ..Ended::before(why) }
    }

    /// In a sentence: what an error says of a run that gave no result.
    pub(super) fn told(&self) -> String {
        let why = self.why.as_deref().unwrap_or_default();
        self.request.map_or_else(|| why.to_string(), |request| format!("request {request}: {why}"))
    }
}
