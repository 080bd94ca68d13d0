//! The NF-hybrid paper: its programs on nfhybrid over a simulated SSD and disk, in virtual time, beside what a kernel's ext2 and
//! xfs made of the same programs, recorded and played on the same models.
//!
//! Twice: with the flushes that ask a disk's memory to be written honoured (`honoured`), and with a disk that ignores them
//! (`ignored`): the paper's kernel, 2.6.18, sent none for ext2, so that is what it measured. Programs compute in no time and no
//! page cache is above any of them: these are figures of the devices.

mod align;
mod append;
mod bed;
mod extents;
mod kernel;
pub(super) mod live;
mod marks;
mod programs;
mod template;

pub(super) use align::ALIGN;
pub(super) use append::{FIG7, FIG8};
pub(super) use extents::{FIG13, FIG14, FIG15, FIG16, FIG17, FIG18};
pub(super) use marks::{FIG19, FIG20};
pub(super) use template::{FIG10, FIG11, FIG12};
