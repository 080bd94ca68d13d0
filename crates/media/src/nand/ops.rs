//! What an array is asked to do, one operation after the other, for a scheduler to order in time.

use super::Cause;

/// What kind of operation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// A page, to the controller.
    Read,
    /// A page's spare area alone, to the controller.
    ReadSpare,
    /// A page, from the controller.
    Program,
    /// A page to another one.
    Copy,
    /// A block.
    Erase,
}

/// An operation, decided on but without a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it is.
    pub kind: OpKind,
    /// What it is done for.
    pub cause: Cause,
    /// The operation it has to wait for, by its place in the list from 1 on; 0: none.
    pub after: u32,
    /// The block, of a copy that of the target.
    pub block: u32,
    /// The page in it; of an erase 0.
    pub page: u32,
    /// Where a copy comes from: block and page.
    pub from: (u32, u32),
    /// The block holds one bit a cell.
    pub slc: bool,
    /// So does the one that a copy comes from.
    pub from_slc: bool,
    /// Pages, of copies that are one operation; else 1.
    pub pages: u32,
}
