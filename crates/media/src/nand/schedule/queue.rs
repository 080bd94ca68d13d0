//! What waits for a plane: what the host waits for, and what can wait.

use crate::nand::clock::Cells;
use crate::nand::{Cause, Op, OpKind};
use std::collections::VecDeque;

/// An operation that waits for its turn, or has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    /// Its number among all operations: the order in which they were decided on.
    pub number: u64,
    /// What it has to wait for: the [`key`](Self::key) of another operation, or 0.
    pub after: u64,
    /// It was handed in then, ns.
    pub at: u64,
    pub op: Op,
    /// Of a copy between dies: its first half, a read, or its second, a program.
    pub half: Option<Half>,
}

/// Half of a copy that passes through the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Read,
    Program,
}

impl Queued {
    /// What others wait for it by: a copy that is two operations has two.
    pub fn key(&self) -> u64 {
        2 * self.number + u64::from(self.half == Some(Half::Read))
    }

    /// What it does.
    pub fn kind(&self) -> OpKind {
        match self.half {
            None => self.op.kind,
            Some(Half::Read) => OpKind::Read,
            Some(Half::Program) => OpKind::Program,
        }
    }

    /// Block and page that it is about; of a read of a copy those it comes from.
    pub fn place(&self) -> (u32, u32) {
        match self.half {
            Some(Half::Read) => self.op.from,
            _ => (self.op.block, self.op.page),
        }
    }

    /// The cells of the page that it is about.
    pub fn cells(&self) -> Cells {
        let slc = if self.half == Some(Half::Read) { self.op.from_slc } else { self.op.slc };
        Cells { page: self.place().1, slc }
    }

    /// The cells that a copy comes from.
    pub fn source_cells(&self) -> Cells {
        Cells { page: self.op.from.1, slc: self.op.from_slc }
    }

    /// The blocks that it reads or changes; one of them may be given twice.
    pub fn blocks(&self) -> [u32; 2] {
        match (self.half, self.op.kind) {
            (None, OpKind::Copy) => [self.op.block, self.op.from.0],
            _ => [self.place().0; 2],
        }
    }

    /// Whether the host waits for it, and cleaning does not.
    pub fn is_urgent(&self) -> bool {
        matches!(self.op.cause, Cause::Host | Cause::Map | Cause::Padding)
    }
}

/// One of the queues of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// What the host waits for; with [`InOrder`](crate::nand::Ordering::InOrder) all there is.
    Front,
    /// Cleaning and wear levelling: a debt.
    Debt,
}

/// The queues of a plane, each in the order in which it was decided.
#[derive(Default)]
pub(super) struct Plane {
    pub front: VecDeque<Queued>,
    pub debt: VecDeque<Queued>,
    /// How much of the debt is due with each program for the host …
    share: f64,
    /// … and how much of it is due by now.
    due: f64,
}

impl Plane {
    pub fn queue(&mut self, which: Which) -> &mut VecDeque<Queued> {
        match which {
            Which::Front => &mut self.front,
            Which::Debt => &mut self.debt,
        }
    }

    /// What comes first in a queue.
    pub fn first(&self, which: Which) -> Option<&Queued> {
        match which {
            Which::Front => self.front.front(),
            Which::Debt => self.debt.front(),
        }
    }

    /// Adds to the debt, which is to be paid while the host writes `block_pages`.
    pub fn owe(&mut self, queued: Queued, block_pages: u32) {
        self.debt.push_back(queued);
        self.share = self.debt.len() as f64 / f64::from(block_pages);
    }

    /// Whether some of the debt is due.
    pub fn is_due(&self) -> bool {
        self.due >= 1.0
    }

    /// The queue whose turn it is, of those whose first operation may begin.
    pub fn turn(&self, front: bool, debt: bool) -> Option<Which> {
        match (front, debt) {
            (true, true) if self.is_due() => Some(Which::Debt),
            (true, _) => Some(Which::Front),
            (false, true) => Some(Which::Debt),
            (false, false) => None,
        }
    }

    /// Takes the first of a queue. A program for the host makes a part of the debt due; without debt nothing is.
    pub fn take(&mut self, which: Which) -> Option<Queued> {
        let taken = self.queue(which).pop_front();
        match which {
            Which::Debt => self.due = (self.due - 1.0).max(0.0),
            Which::Front => self.due += self.share,
        }
        if self.debt.is_empty() {
            (self.due, self.share) = (0.0, 0.0);
        }
        taken
    }
}

/// Whether an operation of `queue` that was decided on before `queued` is about one of its blocks.
pub(super) fn is_behind(queued: &Queued, queue: &VecDeque<Queued>) -> bool {
    let blocks = queued.blocks();
    let earlier = queue.iter().take_while(|other| other.number < queued.number);
    earlier.into_iter().any(|other| other.blocks().iter().any(|block| blocks.contains(block)))
}
