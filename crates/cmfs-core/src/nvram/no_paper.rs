//! In place of the paper's layout, where it is left out.

use super::{Refusal, Snapshot, State, Store};
use crate::error::{Error, Result};
use crate::fs::UpdateReport;
use crate::media::Nvram;

pub(super) const SESSION_AT: usize = 8;
pub(super) const HEAP_AT: usize = 40;
pub(super) const NAME_AT: usize = 24;

const LEFT_OUT: Error = Error::Unsupported("the paper's layout was left out of this build (feature paper)");

pub(super) fn identity(_: &[u8]) -> Option<[u8; 16]> {
    None
}

impl<V: Nvram> Store<V> {
    pub(super) fn clear_paper(&mut self) -> Result<()> {
        Err(LEFT_OUT)
    }

    pub(super) fn announce_paper(&mut self) -> Result<()> {
        Err(LEFT_OUT)
    }

    pub(super) fn commit_paper(&mut self, _: &Snapshot) -> Result<UpdateReport> {
        Err(LEFT_OUT)
    }

    pub(super) fn load_paper(&mut self) -> core::result::Result<State, Refusal> {
        Err(Refusal::Foreign)
    }
}
